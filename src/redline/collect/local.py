"""Collection whose policy acts in the learner's process, wherever the environments step.

One or more groups of environments, each with an actor of its own, write into one rollout.
With one group, stepping and acting take turns. With more, and environments that step in
other processes or threads, one group steps while the policy acts for another:

    group 0:  act | step ......... | act | step ......... |
    group 1:        act | step ......... | act | step ....
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.collect.actor import Actor
from redline.collect.buffer import RolloutBuffer, pinned_zeros, zeros
from redline.collect.collector import Collector, ResetMode
from redline.collect.rows import in_order
from redline.data import Array, NestedTensor, Rollout, map_leaves, to_tensor
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError, RedlineError, WorkerError
from redline.policies.policy import Policy

_COPY = operator.methodcaller("copy")


class LocalCollector(Collector):
    """Acts in this process, for one or more groups of environments in turn.

    It acts with the learner's own module: nothing else runs while it collects, so the
    weights cannot change under a rollout. `collect_async` acts with a copy.

    Args:
        envs: the groups, in the order of their environments' numbers; closed with the collector.
        policy: the learner's policy.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        overlap: whether a group may begin to step while another one still does.
    """

    def __init__(
        self,
        envs: Sequence[VecEnv],
        policy: Policy,
        *,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
        overlap: bool = True,
    ) -> None:
        self._envs, self._policy, self._frozen = list(envs), policy, None
        self.num_envs, self.rollout_length = sum(env.num_envs for env in envs), rollout_length
        self.version = self._acting_version = 0
        self._seed, self._overlap = seed, overlap
        self._cancelled = False
        parameter = next(policy.parameters(), None)
        on_cuda = parameter is not None and parameter.device.type == "cuda"
        self._buffer = RolloutBuffer.create(
            rollout_length,
            self.num_envs,
            envs[0].observation_space,
            envs[0].action_space,
            policy.extras_spec,
            allocate=pinned_zeros if on_cuda else zeros,
        )
        self._steps = self._buffer.steps()
        bounds = [0, *itertools.accumulate(env.num_envs for env in envs)]
        self._columns = [slice(begin, end) for begin, end in itertools.pairwise(bounds)]
        self._actors = [
            Actor(
                env,
                policy,
                self._buffer.columns(rows.start, rows.stop),
                seed=seed,
                reset_mode=reset_mode,
                first_env_id=rows.start,
                alone=self.num_envs == 1,
            )
            for env, rows in zip(envs, self._columns, strict=True)
        ]

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the environments can be saved bit for bit, else why not."""
        return next((env.restorable for env in self._envs if env.restorable), None)

    def _start(self, conditioning: Mapping[str, Tensor] | None, *, background: bool) -> None:
        # The caller may put other tensors into the mapping while the rollout is made.
        self._conditioning = None if conditioning is None else dict(conditioning)
        self._acting_version = self.version
        policy = self._frozen_policy() if background else self._policy
        for actor in self._actors:
            actor.policy = policy
            actor.progress[1] = 0

    def _frozen_policy(self) -> Policy:
        """A copy with the learner's present weights."""
        if self._frozen is None:
            self._frozen = copy.deepcopy(self._policy)
        else:
            self._frozen.load_state_dict(self._policy.state_dict())
        return self._frozen.train(self._policy.training)

    def _finish(self) -> Rollout:
        with torch.inference_mode():
            self._begin()
            self._step_in_turn()
            parts = [actor.end() for actor in self._actors]
        return Rollout(
            steps=self._steps,
            initial_state={
                name: torch.cat([part.initial_state[name] for part in parts])
                for name in parts[0].initial_state
            },
            last_obs=self._last_obs(),
            episodes=in_order(parts),
            version=self._acting_version,
            num_running=sum(part.num_running for part in parts),
        )

    def _begin(self) -> None:
        if len(self._actors) == 1:  # takes it as it is: a slice costs more than a single act
            self._actors[0].begin(self._conditioning)
            return
        for actor, rows in zip(self._actors, self._columns, strict=True):
            actor.begin(conditioning_of(rows, self._conditioning))

    def _last_obs(self) -> NestedTensor:
        """A copy of what all groups see now."""
        if len(self._actors) == 1:
            return to_tensor(map_leaves(_COPY, self._actors[0].last_obs))
        groups = [to_tensor(actor.last_obs) for actor in self._actors]
        return map_leaves(lambda *leaves: torch.cat(leaves), *groups)

    def _step_in_turn(self) -> None:
        """Step every group to the end of the rollout."""
        if len(self._actors) == 1:
            self._actors[0].run(self._refuse_if_cancelled)
            return
        stepping: list[Actor] = []
        try:
            while any(not actor.is_over for actor in self._actors):
                for actor in self._actors:
                    self._take_turn(actor, stepping)
        except WorkerError:
            raise  # the end of this collector: the other groups are not waited for
        except BaseException:  # whatever it was: a program may catch it and collect again
            # What they are at would come as the answer to the next question.
            for actor in stepping:
                with contextlib.suppress(RedlineError):
                    actor.env.finish_step()
            raise

    def _take_turn(self, actor: Actor, stepping: list[Actor]) -> None:
        """Finish a group's step, if it is at one, and begin the next."""
        if actor in stepping:
            stepping.remove(actor)
            actor.observe()
        if actor.is_over:
            return
        self._refuse_if_cancelled()
        actor.act()
        while stepping and not self._overlap:
            stepping.pop(0).observe()
        actor.send()
        stepping.append(actor)

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise RedlineError("the collector was closed while it collected.")

    def _partial(self) -> Rollout:
        done = [np.full(actor.env.num_envs, actor.progress[1]) for actor in self._actors]
        steps = self._buffer.first_rows(np.concatenate(done))
        return Rollout(
            steps=steps,
            initial_state={},
            last_obs={},
            version=self._acting_version,
            num_running=sum(actor.num_running for actor in self._actors),
        )

    def _limit_episodes(self, quota: Array | None) -> None:
        for actor, rows in zip(self._actors, self._columns, strict=True):
            actor.limit_episodes(None if quota is None else quota[rows])

    def update_weights(self, version: int) -> None:
        """Name the weights that act from now on; they are the learner's own."""
        self.version = version

    def state_dict(self) -> dict[str, Any]:
        """Environments, noise streams, recurrent states and the version of the weights."""
        self._refuse_if_busy("state_dict()")
        return {"version": self.version, "actors": [actor.state_dict() for actor in self._actors]}

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        self._refuse_if_busy("load_state_dict()")
        saved = state["actors"]
        if len(saved) != len(self._actors):
            raise ConfigError(
                f"the saved state is of {len(saved)} groups of environments, this run has "
                f"{len(self._actors)}. Resume with the same number."
            )
        self.version = state["version"]
        fresh_seed = self._seed + 1 + self.version
        reasons = [
            actor.load_state_dict(part, fresh_seed)
            for actor, part in zip(self._actors, saved, strict=True)
        ]
        return next((reason for reason in reasons if reason), None)

    def close(self) -> None:
        """Close the environments."""
        self._cancelled = True
        if self._future is not None:
            self._future.wait()
        for env in self._envs:
            env.close()


def conditioning_of(
    rows: slice, conditioning: Mapping[str, Tensor] | None
) -> dict[str, Tensor] | None:
    """The part of `conditioning` [B, ...] that belongs to some of the environments."""
    if conditioning is None:
        return None
    return {name: leaf[rows] for name, leaf in conditioning.items()}

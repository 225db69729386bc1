"""Collection whose policy acts in the learner's process, wherever the environments step.

One or more groups of environments, each with a loop of its own, write into one rollout.
With one group, stepping and acting take turns. With more, and environments that step in
other processes or threads, one group steps while the policy acts for another:

    group 0:  act | step ......... | act | step ......... |
    group 1:        act | step ......... | act | step ....
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.collect.acting_loop import ActingLoop
from redline.collect.buffer import RolloutBuffer
from redline.collect.collector import Collector
from redline.collect.episodes import in_order
from redline.collect.memory import TensorMemory
from redline.data import Array, NestedTensor, Rollout, map_leaves
from redline.errors import ConfigError, RedlineError, WorkerError
from redline.policies.modes import copy_modes
from redline.policies.policy import Policy


class LocalCollector(Collector):
    """Acts in this process, for one or more groups of environments in turn.

    Nothing else runs while it collects, so the weights cannot change under a rollout.
    `collect_async` acts with a copy.

    Args:
        loops: of the groups, in the order of their environments' numbers; the environments
            are closed with the collector.
        policy: the learner's policy.
        memory: of the whole rollout.
        seed: of the run.
        overlap: whether a group may begin to step while another one still does.

    Attributes:
        policy: what acts: the learner's own module, or a copy on another device.
    """

    def __init__(
        self,
        loops: Sequence[ActingLoop],
        policy: Policy,
        memory: RolloutBuffer | TensorMemory,
        *,
        seed: int,
        overlap: bool = True,
    ) -> None:
        self._loops, self._learner, self.policy = list(loops), policy, loops[0].policy
        self._frozen: Policy | None = None
        self.rollout_length = loops[0].memory.rollout_length
        bounds = [0, *itertools.accumulate(loop.env.num_envs for loop in loops)]
        self._columns = [slice(begin, end) for begin, end in itertools.pairwise(bounds)]
        self.num_envs = bounds[-1]
        self.version = self._acting_version = 0
        self._seed, self._overlap = seed, overlap
        self._cancelled = False
        self._memory, self._steps = memory, memory.steps()

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the environments can be saved bit for bit, else why not."""
        return next((loop.env.restorable for loop in self._loops if loop.env.restorable), None)

    def _start(self, conditioning: Mapping[str, Tensor] | None, *, background: bool) -> None:
        # The caller may put other tensors into the mapping while the rollout is made.
        self._conditioning = None if conditioning is None else dict(conditioning)
        self._acting_version = self.version
        policy = self._frozen_policy() if background else self.policy
        for loop in self._loops:
            loop.policy = policy
            loop.progress[1] = 0

    def _frozen_policy(self) -> Policy:
        """A copy with the weights of this moment."""
        if self._frozen is None:
            self._frozen = copy.deepcopy(self.policy)
        else:
            copy_weights(self._frozen, self.policy)
        copy_modes(self._frozen, self.policy)
        return self._frozen

    def _finish(self) -> Rollout:
        with torch.inference_mode():
            self._begin()
            self._step_in_turn()
            parts = [loop.end() for loop in self._loops]
        return Rollout(
            steps=self._steps,
            initial_state={
                name: torch.cat([part.initial_state[name] for part in parts])
                for name in parts[0].initial_state
            },
            last_obs=self._last_obs(),
            episodes=in_order(part.episodes for part in parts),
            version=self._acting_version,
            num_running=sum(part.num_running for part in parts),
        )

    def _begin(self) -> None:
        if len(self._loops) == 1:  # takes it as it is: a slice costs more than a single act
            self._loops[0].begin(self._conditioning)
            return
        for loop, columns in zip(self._loops, self._columns, strict=True):
            loop.begin(conditioning_of(columns, self._conditioning))

    def _last_obs(self) -> NestedTensor:
        """A copy of what all groups see now."""
        groups = [loop.copy_last_obs() for loop in self._loops]
        if len(groups) == 1:
            return groups[0]
        return map_leaves(lambda *leaves: torch.cat(leaves), *groups)

    def _step_in_turn(self) -> None:
        """Step every group to the end of the rollout."""
        if len(self._loops) == 1:
            self._loops[0].run(self._refuse_if_cancelled)
            return
        stepping: list[ActingLoop] = []
        try:
            while any(not loop.is_over for loop in self._loops):
                for loop in self._loops:
                    self._take_turn(loop, stepping)
        except WorkerError:
            raise  # the end of this collector: the other groups are not waited for
        except BaseException:  # whatever it was: a program may catch it and collect again
            # Their present step would come as the answer to the next question.
            for loop in stepping:
                with contextlib.suppress(RedlineError):
                    loop.env.finish_step()
            raise

    def _take_turn(self, loop: ActingLoop, stepping: list[ActingLoop]) -> None:
        """Finish a group's step, if it is at one, and begin the next."""
        if loop in stepping:
            stepping.remove(loop)
            loop.observe()
        if loop.is_over:
            return
        self._refuse_if_cancelled()
        loop.act()
        while stepping and not self._overlap:
            stepping.pop(0).observe()
        loop.send()
        stepping.append(loop)

    def _refuse_if_cancelled(self) -> None:
        if self._cancelled:
            raise RedlineError("the collector was closed while it collected.")

    def _partial(self) -> Rollout:
        done = [np.full(loop.env.num_envs, loop.progress[1]) for loop in self._loops]
        return Rollout(
            steps=self._memory.first_rows(np.concatenate(done)),
            initial_state={},
            last_obs={},
            version=self._acting_version,
            num_running=sum(loop.episodes.num_running for loop in self._loops),
        )

    def _limit_episodes(self, quota: Array | None) -> None:
        for loop, columns in zip(self._loops, self._columns, strict=True):
            loop.limit_episodes(None if quota is None else quota[columns])

    def update_weights(self, version: int) -> None:
        """Take the learner's present weights, if they are not the very ones that act."""
        self.version = version
        if self.policy is not self._learner:
            copy_weights(self.policy, self._learner)

    def set_env_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `Collector.set_env_attr`."""
        self._refuse_if_busy("set_env_attr()")
        for loop in self._loops:
            loop.env.set_attr(name, value)

    def state_dict(self) -> dict[str, Any]:
        """Environments, noise streams, recurrent states and the version of the weights."""
        self._refuse_if_busy("state_dict()")
        return {"version": self.version, "actors": [loop.state_dict() for loop in self._loops]}

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        self._refuse_if_busy("load_state_dict()")
        saved = state["actors"]
        if len(saved) != len(self._loops):
            raise ConfigError(
                f"the saved state is of {len(saved)} groups of environments, this run has "
                f"{len(self._loops)}. Resume with the same number."
            )
        self.version = state["version"]
        fresh_seed = self._seed + 1 + self.version
        reasons = [
            loop.load_state_dict(part, fresh_seed)
            for loop, part in zip(self._loops, saved, strict=True)
        ]
        return next((reason for reason in reasons if reason), None)

    def close(self) -> None:
        """Close the environments."""
        self._cancelled = True
        if self._future is not None:
            self._future.wait()
        for loop in self._loops:
            loop.env.close()


def copy_weights(target: Policy, source: Policy) -> None:
    """Copy parameters and all buffers, those that checkpoints leave out too."""
    with torch.no_grad():
        for mine, theirs in zip(_tensors(target), _tensors(source), strict=True):
            mine.copy_(theirs)


def _tensors(policy: Policy) -> itertools.chain[Tensor]:
    return itertools.chain(policy.parameters(), policy.buffers())


def conditioning_of(
    columns: slice, conditioning: Mapping[str, Tensor] | None
) -> dict[str, Tensor] | None:
    """The part of `conditioning` [B, ...] that belongs to some of the environments."""
    if conditioning is None:
        return None
    return {name: leaf[columns] for name, leaf in conditioning.items()}

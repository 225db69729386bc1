"""Collection in worker processes that act: each steps its share with its own policy.

The rollout lies in memory that all processes share: a worker writes its columns, the parent
reads them in place. Weights go the other way as numbered versions: the parent writes them
into shared memory, and a worker copies them into its own policy before it begins, so no step
of the learner can show in the middle of a rollout.

With `max_staleness` M above 0 the workers work ahead: while the learner learns from one
rollout, M others are being made, each with the weights that were the newest when it was asked
for. `collect` gives the oldest and asks for one more:

    learner:   | learn from 0 -> v1 | learn from 1 -> v2 | learn from 2 -> v3 |
    workers:   | rollout 1 with v0  | rollout 2 with v1  | rollout 3 with v2  |    M = 1

So a rollout is never more than M versions behind, whoever is the faster side waits for the
other, and the order of events does not depend on who that is: the same seed gives the same
rollouts, whatever the machine's speed.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.collect.acting_loop import ActorFor
from redline.collect.acting_worker import (
    ActingJob,
    CollectRequest,
    PrefetchedRollout,
    WorkerPart,
)
from redline.collect.buffer import RolloutBuffer
from redline.collect.collector import WORKER_OPTIONS, Collector, CollectorSetup
from redline.collect.episodes import ResetMode, in_order, require_idling
from redline.collect.local import conditioning_of
from redline.data import Array, Rollout, map_leaves, to_tensor
from redline.devices import exact_device
from redline.envs.backends.processes import split_evenly
from redline.envs.cpus import threads_each
from redline.envs.settings import EnvSettings
from redline.envs.space_checks import require_same_spaces
from redline.envs.workers.shared_memory import Layout, SharedBlock, spec_of
from redline.envs.workers.supervisor import WorkerGroup
from redline.errors import ConfigError, RedlineError
from redline.policies.policy import Policy

SLOW_COMMAND_S = 120.0
"""Making and restoring environments may take long."""


class WorkersCollector(Collector):
    """Steps and acts in W worker processes.

    Args:
        settings: how to make environments.
        policy: the learner's; each worker gets a copy, on `policy_device`.
        num_envs: B, over all workers.
        num_workers: W.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        max_staleness: M, rollouts that are made while the learner learns; 0: none.
        timeout_s: seconds without a step after which a worker counts as hung.
        cpus: the cores that each worker may run on; None: those of this process.
        actor_for: gives what acts in the policy's place; None: the policy always acts.
        policy_device: where the workers act, each in its own process.

    Raises:
        ConfigError: if there are more workers than environments, environments should wait but
            their back end cannot idle, or something cannot be sent to another process.
        WorkerError: if a worker does not start.
    """

    name = "workers"
    workers = "acting"
    takes_policy_device = True
    options = WORKER_OPTIONS

    def __init__(
        self,
        settings: EnvSettings,
        policy: Policy,
        *,
        num_envs: int,
        num_workers: int,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
        max_staleness: int = 0,
        timeout_s: float = 8.0,
        cpus: Sequence[Collection[int]] | None = None,
        actor_for: ActorFor | None = None,
        policy_device: str = "cpu",
    ) -> None:
        if num_workers > num_envs:
            raise ConfigError(
                f"num_workers={num_workers} is more than num_envs={num_envs}: a worker without an "
                f"environment has nothing to do. Use at most {num_envs}."
            )
        if max_staleness < 0:
            raise ConfigError(f"max_staleness={max_staleness} is negative; 0 works without delay.")
        self.num_envs, self.rollout_length, self.version = num_envs, rollout_length, 0
        self.max_staleness = max_staleness
        self._policy, self._seed, self._settings = policy, seed, settings
        if reset_mode == "wait":
            self._require_idling("reset_mode='wait'")
        self._shares = split_evenly(num_envs, num_workers)
        acting = copy.deepcopy(policy).to("cpu")
        # Where they work ahead, the learner needs a core, too.
        threads = [threads_each(num_workers + min(max_staleness, 1))] * num_workers
        if cpus is not None:
            threads = [len(own) for own in cpus]
        # Exact here: which GPU is this rank's, a worker's process does not know.
        place = str(exact_device(policy_device))
        jobs = [
            ActingJob(settings, acting, *share, seed, reset_mode, count, actor_for, place)
            for share, count in zip(self._shares, threads, strict=True)
        ]
        self._group = self._started(jobs, timeout_s, cpus)
        try:
            found = self._group.call("spaces")
            require_same_spaces([each[:2] for each in found], settings.env_id, "worker")
            observation_space, action_space, self.frame_skip = found[0]
            self._lay_out(
                RolloutBuffer.create(
                    rollout_length, num_envs, observation_space, action_space, policy.extras_spec
                )
            )
            self._restorable = next((r for r in self._group.call("restorable") if r), None)
        except BaseException:
            self.close()
            raise

    def _started(
        self,
        jobs: Sequence[ActingJob],
        timeout_s: float,
        cpus: Sequence[Collection[int]] | None,
    ) -> WorkerGroup:
        """Start the workers, which make their environments."""
        self._memory = SharedBlock()
        try:
            return WorkerGroup(
                jobs,
                titles=self._titles,
                memory=self._memory,
                timeout_s=timeout_s,
                start_timeout_s=SLOW_COMMAND_S,
                cpus=cpus,
            )
        except BaseException:
            self._memory.close()
            raise

    @property
    def _titles(self) -> list[str]:
        """What each worker works on, for messages."""
        return [f"environments {begin} .. {end - 1}" for begin, end in self._shares]

    @classmethod
    def make(cls, setup: CollectorSetup) -> WorkersCollector:
        """See `Collector.make`."""
        setup.env.close()
        return cls(setup.settings, setup.policy, **setup.in_acting_workers)

    def _lay_out(self, template: RolloutBuffer) -> None:
        """Share the memory of rollouts and weights with the workers."""
        weights = {str(i): leaf.numpy() for i, leaf in enumerate(self._flat_weights())}
        num_rollouts = self.max_staleness + 1
        # One for each rollout under way and one to write the next version into.
        num_weights = num_rollouts + 1
        arrays = {
            "rollouts": {str(slot): template.fields for slot in range(num_rollouts)},
            "weights": {str(slot): weights for slot in range(num_weights)},
            "progress": self._no_progress(),
        }
        layout = Layout.of(spec_of(arrays))
        self._memory.resize(layout.nbytes)
        shared = self._memory.arrays(layout)
        self._weights = [
            [torch.from_numpy(leaf) for leaf in leaves.values()]
            for leaves in shared["weights"].values()
        ]
        self._take_buffers(map(RolloutBuffer, shared["rollouts"].values()), shared["progress"])
        self._group.call("attach", [layout] * len(self._shares))
        self.update_weights(0)

    def _no_progress(self) -> Array:
        """[W, 8] int64, a cache line each: steps, rows of the rollout under way, its number."""
        return np.zeros((len(self._shares), 8), np.int64)

    def _take_buffers(self, buffers: Iterable[RolloutBuffer], progress: Array) -> None:
        """Begin with these rollouts' memory, of which none is in use."""
        self._buffers, self._progress = list(buffers), progress
        self._steps = [buffer.steps() for buffer in self._buffers]
        self._free = list(range(len(self._buffers)))
        # Replaced as a whole: another thread may look at it.
        self._prefetched: list[PrefetchedRollout] = []
        self._held: int | None = None
        self._looked_at: PrefetchedRollout | None = None  # the one that was started last
        self._has_begun = False  # whether the environments have their first observations
        self._dirty: set[int] = set()  # slots that this process has written into
        self._num_asked, self._stamp = 0, 0

    def _flat_weights(self) -> list[Tensor]:
        """Every parameter and buffer of the learner's policy, at least one-dimensional."""
        state = self._policy.state_dict()
        return [leaf.detach().cpu().reshape(leaf.shape or (1,)) for leaf in state.values()]

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the environments can be saved bit for bit, else why not."""
        return self._restorable

    def update_weights(self, version: int) -> None:
        """Put the learner's present weights where the rollouts asked for from now on find them."""
        in_use = {ahead.weights for ahead in self._prefetched}
        self._latest = next(slot for slot in range(len(self._weights)) if slot not in in_use)
        for target, source in zip(self._weights[self._latest], self._flat_weights(), strict=True):
            target.copy_(source)
        self._stamp += 1
        self.version = version

    # -- collecting -----------------------------------------------------------------------

    def _start(self, conditioning: Mapping[str, Tensor] | None, *, background: bool) -> None:
        del background  # the workers act with copies in any case
        if self._held is not None:
            self._free.append(self._held)
            self._held = None
        if not self._has_begun:
            # A command of its own: the first resets of all environments may take longer than the
            # steps of a rollout may stand still.
            self._group.call("begin", timeout_s=SLOW_COMMAND_S)
            self._has_begun = True
        while self._free:
            self._ask(self._free.pop(0), conditioning)
        self._looked_at = self._prefetched[0]

    def _ask(self, slot: int, conditioning: Mapping[str, Tensor] | None) -> None:
        """Have one more rollout made."""
        if slot in self._dirty:
            self._dirty.remove(slot)
            self._buffers[slot].clear_final_obs()
        self._num_asked += 1
        on_cpu = None
        if conditioning is not None:
            on_cpu = {name: leaf.cpu() for name, leaf in conditioning.items()}
        requests = [
            CollectRequest(
                self._num_asked,
                slot,
                self._latest,
                self._stamp,
                conditioning_of(slice(*share), on_cpu),
            )
            for share in self._shares
        ]
        self._group.post("collect", requests)
        self._prefetched = [
            *self._prefetched,
            PrefetchedRollout(self._num_asked, slot, self._latest, self.version),
        ]

    def _finish(self) -> Rollout:
        rollout = self._prefetched[0]
        try:
            parts = self._parts_of(rollout)
        except RedlineError:
            # An environment broke its contract: the workers go on, with the next rollout.
            self._prefetched = self._prefetched[1:]
            self._free.append(rollout.slot)
            raise
        self._prefetched = self._prefetched[1:]
        self._held = rollout.slot
        names = parts[0].collected.initial_state
        return Rollout(
            steps=self._steps[rollout.slot],
            initial_state={
                name: torch.from_numpy(
                    np.concatenate([part.collected.initial_state[name] for part in parts])
                )
                for name in names
            },
            last_obs=to_tensor(
                map_leaves(
                    lambda *leaves: np.concatenate(leaves), *[part.last_obs for part in parts]
                )
            ),
            episodes=in_order(part.collected.episodes for part in parts),
            version=rollout.version,
            num_running=sum(part.collected.num_running for part in parts),
        )

    def _parts_of(self, rollout: PrefetchedRollout) -> list[WorkerPart]:
        """Wait for the answers of all workers, if they are not there yet."""
        if rollout.parts is None:
            rollout.parts = self._gathered(rollout)
            rollout.weights = None
        return rollout.parts

    def _gathered(self, rollout: PrefetchedRollout) -> list[WorkerPart]:
        """The workers' answers to the oldest request, which was for this rollout."""
        del rollout  # its rows are in shared memory
        return self._group.gather(
            "collect", heartbeat=lambda worker: int(self._progress[worker, 0])
        )

    def _partial(self) -> Rollout:
        rollout = self._looked_at
        if rollout is None:
            raise ConfigError("no rollout was started to look at.")
        rows = np.zeros(self.num_envs, np.int64)
        for worker, (begin, end) in enumerate(self._shares):
            _, done, number = self._progress[worker, :3].tolist()
            if rollout.parts is not None or number > rollout.number:
                done = self.rollout_length
            elif number < rollout.number:
                done = 0
            rows[begin:end] = done
        return Rollout(
            steps=self._buffers[rollout.slot].first_rows(rows),
            initial_state={},
            last_obs={},
            version=rollout.version,
        )

    def _limit_episodes(self, quota: Array | None) -> None:
        if quota is not None:
            self._require_idling("a number of episodes")
        self._drop_prefetched()
        quotas = [None if quota is None else quota[slice(*share)] for share in self._shares]
        self._group.call("limit", quotas, SLOW_COMMAND_S)  # it gives up episodes, and resets

    def _require_idling(self, purpose: str) -> None:
        # Before any worker is asked: its refusal would be that of a worker that failed.
        backend = self._settings.backend_class
        require_idling(backend.name, backend.can_idle, purpose)

    def _drop_prefetched(self) -> None:
        """Throw away what was made ahead."""
        for rollout in self._prefetched:
            self._parts_of(rollout)
            self._free.append(rollout.slot)
        self._prefetched = []

    def set_env_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `Collector.set_env_attr`."""
        self._refuse_if_busy("set_env_attr()")
        for rollout in self._prefetched:
            self._parts_of(rollout)  # what is being made ahead is to be the same whenever it ends
        self._group.call("set_attr", [(name, value)] * self._group.num_workers)

    # -- saving ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The workers' environments, noise and states, and the rollouts made ahead."""
        self._refuse_if_busy("state_dict()")
        for rollout in self._prefetched:
            self._parts_of(rollout)
        return {
            "version": self.version,
            "workers": self._group.call("state", timeout_s=SLOW_COMMAND_S),
            "ahead": [
                rollout.to_state(self._buffers[rollout.slot]) for rollout in self._prefetched
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        self._refuse_if_busy("load_state_dict()")
        saved = state["workers"]
        if len(saved) != self._group.num_workers:
            raise ConfigError(
                f"the saved state is of {len(saved)} workers, this run has "
                f"{self._group.num_workers}. Resume with num_workers={len(saved)}."
            )
        if len(state["ahead"]) > self.max_staleness:
            raise ConfigError(
                f"the saved state holds {len(state['ahead'])} rollouts made ahead, and this run "
                f"makes max_staleness={self.max_staleness}. Resume with the same number."
            )
        self._drop_prefetched()
        self.version = state["version"]
        fresh_seed = self._seed + 1 + self.version
        parts = [(part, fresh_seed) for part in saved]
        reasons = self._group.call("load", parts, SLOW_COMMAND_S)
        # The rollouts made ahead are whole and in order, also if the environments begin anew.
        self._prefetched = [self._restored(rollout) for rollout in state["ahead"]]
        return next((reason for reason in reasons if reason), None)

    def _restored(self, saved: Mapping[str, Any]) -> PrefetchedRollout:
        slot = self._free.pop(0)
        self._dirty.add(slot)
        return PrefetchedRollout.from_state(saved, slot, self._buffers[slot])

    def close(self) -> None:
        """End the workers and free the shared memory."""
        if self._future is not None and not self._future.done:
            self._group.interrupt()
            self._future.wait()
        self._group.close()
        self._memory.close()


class AsyncCollector(WorkersCollector):
    """Workers that act and work ahead, so that collecting and learning overlap.

    The module docstring says in which order; arguments as for `WorkersCollector`.

    Args:
        settings: how to make environments.
        policy: the learner's; each worker gets a copy.
        max_staleness: M, at least 1.
        further: as for `WorkersCollector`.

    Raises:
        ConfigError: also if max_staleness is below 1.
    """

    name = "async"
    works_ahead = True
    options = (*WORKER_OPTIONS, "max_staleness")

    def __init__(
        self, settings: EnvSettings, policy: Policy, *, max_staleness: int = 1, **further: Any
    ) -> None:
        if max_staleness < 1:
            raise ConfigError(
                f"max_staleness={max_staleness}: rollouts made beside learning are at least 1 "
                f"version behind. Use at least 1, or the workers collector."
            )
        super().__init__(settings, policy, max_staleness=max_staleness, **further)

    @classmethod
    def make(cls, setup: CollectorSetup) -> AsyncCollector:
        """See `Collector.make`."""
        setup.env.close()
        further = setup.in_acting_workers | {"max_staleness": setup.max_staleness}
        return cls(setup.settings, setup.policy, **further)

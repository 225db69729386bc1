"""The inside of a worker process that steps and acts, and what it exchanges with `workers`."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.collect.acting_loop import ActingLoop, ActorFor, Collected
from redline.collect.buffer import RolloutBuffer
from redline.collect.episodes import ResetMode
from redline.collect.memory import ArrayMemory
from redline.data import Array, EpisodeRecord, NestedArray, map_leaves, to_numpy
from redline.devices import exact_device
from redline.envs.settings import EnvSettings
from redline.envs.vec_env import VecEnv
from redline.envs.workers.shared_memory import Layout
from redline.envs.workers.supervisor import WorkerLink
from redline.errors import ConfigError
from redline.policies.policy import Policy


@dataclass(frozen=True, slots=True)
class CollectRequest:
    """What a worker is asked to collect.

    Attributes:
        number: of the rollout, from 1.
        slot: which of the rollout buffers to fill.
        weights: which of the weights in shared memory to act with; a reference, where they lie
            in an object store.
        stamp: number of their publication; the same one need not be read again.
        conditioning: the policy's inputs for the worker's own environments.
    """

    number: int
    slot: int
    weights: Any
    stamp: int
    conditioning: dict[str, Tensor] | None


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """A worker's answer; its columns of the rollout are in shared memory.

    Attributes:
        collected: what its rollout has beside the rows, the state as arrays.
        last_obs: [b, ...] of its environments.
    """

    collected: Collected
    last_obs: NestedArray


@dataclass(slots=True)
class PrefetchedRollout:
    """A rollout that was asked for before it is needed; complete as soon as it has `parts`.

    Attributes:
        number: of the rollout, from 1; 0 if it comes from a checkpoint.
        slot: its buffer.
        weights: those that act, as in `CollectRequest`; None once they are not needed.
        version: their number.
        parts: the workers' answers.
    """

    number: int
    slot: int
    weights: Any
    version: int
    parts: list[WorkerPart] | None = None

    def to_state(self, buffer: RolloutBuffer) -> dict[str, Any]:
        """All of a complete rollout, for a checkpoint.

        Args:
            buffer: where its rows are.
        """
        if self.parts is None:
            raise ConfigError("a rollout that is not complete was to be saved.")
        return {
            "version": self.version,
            "fields": map_leaves(np.array, buffer.fields),
            "parts": [
                {
                    "initial_state": part.collected.initial_state,
                    "episodes": [
                        [row, e.env_id, e.episode_id, e.return_, e.length, e.success, e.info]
                        for row, e in part.collected.episodes
                    ],
                    "num_running": part.collected.num_running,
                    "last_obs": part.last_obs,
                }
                for part in self.parts
            ],
        }

    @staticmethod
    def from_state(saved: Mapping[str, Any], slot: int, buffer: RolloutBuffer) -> PrefetchedRollout:
        """What `to_state` gave, with its rows written into `buffer`, which is number `slot`."""
        map_leaves(
            lambda into, leaf: np.copyto(into, np.asarray(leaf)), buffer.fields, saved["fields"]
        )
        parts = []
        for part in saved["parts"]:
            episodes = [(row, _record(*fields)) for row, *fields in part["episodes"]]
            state = to_numpy(map_leaves(torch.as_tensor, part["initial_state"]))
            collected = Collected(state, episodes, part["num_running"])
            parts.append(WorkerPart(collected, map_leaves(np.asarray, part["last_obs"])))
        return PrefetchedRollout(0, slot, None, saved["version"], parts)


def _record(
    env_id: int,
    episode_id: int,
    return_: float,
    length: int,
    success: bool | None = None,  # it and info were not saved by version 0.1
    info: Mapping[str, float] | None = None,
) -> EpisodeRecord:
    return EpisodeRecord(
        env_id=env_id,
        episode_id=episode_id,
        return_=return_,
        length=length,
        success=success,
        info=dict(info or {}),
    )


@dataclass(frozen=True, slots=True)
class ActingJob:
    """What a worker is sent to begin with.

    Attributes:
        settings: how to make environments.
        policy: its own copy, sent on the CPU.
        begin: number of its first environment.
        end: number after its last.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        num_threads: of the tensor library.
        actor_for: gives what acts in the policy's place; None: the policy always acts.
        device: where the worker puts its copy, and acts.
    """

    settings: EnvSettings
    policy: Policy
    begin: int
    end: int
    seed: int
    reset_mode: ResetMode
    num_threads: int
    actor_for: ActorFor | None
    device: str = "cpu"

    def __call__(self, link: WorkerLink) -> ActingHandler:
        """Make the environments, in the worker."""
        return ActingHandler(self, self.make_envs(), link)

    def make_envs(self) -> VecEnv:
        """The environments; sets threads and global generators of this process."""
        torch.set_num_threads(self.num_threads)
        # What draws from global generators repeats at least from the start of a run.
        own = self.seed + self.begin
        random.seed(own)
        np.random.seed(own % 2**32)
        torch.manual_seed(own % 2**64)
        return self.settings.make(self.end - self.begin, self.begin)


class ActingHandler:
    """Answers the collector's commands.

    Args:
        job: what the worker was sent.
        env: its environments.
        link: to the shared memory.
    """

    def __init__(self, job: ActingJob, env: VecEnv, link: WorkerLink) -> None:
        self._job, self._env, self._link = job, env, link
        self._device = exact_device(job.device)
        job.policy.to(self._device)
        self._stamp = -1

    def handle(self, command: str, payload: Any) -> Any:
        """Answer one command."""
        return getattr(self, f"_{command}")(payload)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

    def _spaces(self, _: None) -> Any:
        return self._env.observation_space, self._env.action_space, self._env.frame_skip

    def _restorable(self, _: None) -> str | None:
        return self._env.restorable

    def _attach(self, layout: Layout) -> None:
        if self._link.memory is None:
            raise ConfigError("a collecting worker was started without shared memory.")
        shared, job = self._link.memory.arrays(layout), self._job
        self._weights = [
            [torch.from_numpy(leaf) for leaf in leaves.values()]
            for leaves in shared["weights"].values()
        ]
        buffers = [
            RolloutBuffer(fields).columns(job.begin, job.end)
            for fields in shared["rollouts"].values()
        ]
        alone = all(fields["reward"].shape[1] == 1 for fields in shared["rollouts"].values())
        self._use(buffers, shared["progress"][self._link.index], alone=alone)

    def _use(self, buffers: list[RolloutBuffer], progress: Array, *, alone: bool) -> None:
        """Act with these buffers [T, b].

        Args:
            buffers: one for each slot.
            progress: [8] int64: steps taken, rows of the rollout under way, its number.
            alone: whether these are all environments of the run.
        """
        job = self._job
        self._progress = progress
        self._loop = ActingLoop.beside_arrays(
            self._env,
            job.policy,
            buffers[0],
            seed=job.seed,
            reset_mode=job.reset_mode,
            first_env_id=job.begin,
            progress=progress[:2],
            actor_for=job.actor_for,
            alone=alone,
            device=self._device,
        )
        further = [ArrayMemory(b, job.policy.extras_spec, job.begin) for b in buffers[1:]]
        self._memories = [self._loop.memory, *further]

    def _begin(self, _: None) -> None:
        """Reset all environments, if they have not begun."""
        _ = self._loop.last_obs

    def _collect(self, request: CollectRequest) -> WorkerPart:
        # In this order, so that the rows of the rollout before are never taken for this one's.
        self._progress[1] = 0
        self._progress[2] = request.number
        if request.stamp != self._stamp:
            self._take_weights(request)
        self._loop.memory = self._memories[request.slot]
        collected = self._loop.collect(self._near(request.conditioning))
        last_obs = map_leaves(np.array, self._loop.last_obs)
        state = to_numpy(collected.initial_state)
        return WorkerPart(collected._replace(initial_state=state), last_obs)

    def _near(self, conditioning: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        """The policy's inputs where it acts."""
        if conditioning is None:
            return None
        return {name: leaf.to(self._device) for name, leaf in conditioning.items()}

    def _take_weights(self, request: CollectRequest) -> None:
        """Copy, never share: the learner may write the next version at any later time."""
        own = self._job.policy.state_dict()
        with torch.no_grad():
            for target, source in zip(own.values(), self._published(request), strict=True):
                target.copy_(source.reshape(target.shape))
        self._stamp = request.stamp

    def _published(self, request: CollectRequest) -> Sequence[Tensor]:
        """The weights to act with, in the order of the policy's state."""
        return self._weights[request.weights]

    def _limit(self, quota: Array | None) -> None:
        self._loop.limit_episodes(quota)

    def _set_attr(self, payload: tuple[str, Any]) -> None:
        self._loop.env.set_attr(*payload)

    def _state(self, _: None) -> dict[str, Any]:
        return self._loop.state_dict()

    def _load(self, payload: tuple[Mapping[str, Any], int]) -> str | None:
        state, fresh_seed = payload
        return self._loop.load_state_dict(state, fresh_seed)

"""Collection in worker processes that act: each steps its share with its own policy.

The rollout lies in memory that all processes share: a worker writes its columns, the parent
reads them in place. Weights go the other way as numbered versions: the parent writes them
into shared memory between collections, and a worker copies them into its own policy before
it begins, so no step of the learner can show in the middle of a rollout.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.collect.actor import Actor
from redline.collect.buffer import RolloutBuffer
from redline.collect.collector import Collector, ResetMode
from redline.data import EpisodeRecord, NestedArray, Rollout, map_leaves, to_numpy, to_tensor
from redline.envs.cpus import usable_cpus
from redline.envs.processes import split_evenly
from redline.envs.settings import EnvSettings
from redline.envs.shared_memory import Layout, SharedBlock, spec_of
from redline.envs.supervisor import WorkerGroup, WorkerLink
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError
from redline.policies.policy import Policy

_SLOW_COMMAND_S = 120.0  # making and restoring environments may take long


class WorkersCollector(Collector):
    """Steps and acts in W worker processes.

    Args:
        settings: how to make environments.
        policy: the learner's; each worker gets a copy, on the CPU.
        num_envs: B, over all workers.
        num_workers: W.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        timeout_s: seconds without a step after which a worker counts as hung.

    Raises:
        ConfigError: if there are more workers than environments, or something cannot be sent
            to another process.
        WorkerError: if a worker does not start.
    """

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
        timeout_s: float = 8.0,
    ) -> None:
        if num_workers > num_envs:
            raise ConfigError(
                f"num_workers={num_workers} is more than num_envs={num_envs}: a worker without an "
                f"environment has nothing to do. Use at most {num_envs}."
            )
        self.num_envs, self.rollout_length, self.version = num_envs, rollout_length, 0
        self._policy, self._seed = policy, seed
        shares = split_evenly(num_envs, num_workers)
        acting = copy.deepcopy(policy).to("cpu")
        threads = max(1, usable_cpus() // num_workers)
        jobs = [_Job(settings, acting, *share, seed, reset_mode, threads) for share in shares]
        self._memory = SharedBlock()
        try:
            self._group = WorkerGroup(
                jobs,
                titles=[f"environments {begin} .. {end - 1}" for begin, end in shares],
                memory=self._memory,
                timeout_s=timeout_s,
                start_timeout_s=_SLOW_COMMAND_S,
            )
        except BaseException:
            self._memory.close()
            raise
        try:
            self._share_memory(rollout_length, num_envs, num_workers)
            self._restorable = next((r for r in self._group.call("restorable") if r), None)
        except BaseException:
            self.close()
            raise

    def _share_memory(self, rollout_length: int, num_envs: int, num_workers: int) -> None:
        observation_space, action_space, self.frame_skip = self._group.call("spaces")[0]
        template = RolloutBuffer.create(
            rollout_length, num_envs, observation_space, action_space, self._policy.extras_spec
        )
        weights = {str(i): leaf for i, leaf in enumerate(self._flat_weights())}
        arrays = {
            "rollout": template.fields,
            "weights": {name: leaf.numpy() for name, leaf in weights.items()},
            "progress": np.zeros((num_workers, 8), np.int64),  # a cache line each
        }
        layout = Layout.of(spec_of(arrays))
        self._memory.resize(layout.nbytes)
        shared = self._memory.arrays(layout)
        self._steps = RolloutBuffer(shared["rollout"]).steps()
        self._weights = [torch.from_numpy(shared["weights"][name]) for name in weights]
        self._progress = shared["progress"]
        self._group.call("attach", [layout] * num_workers)
        self.update_weights(0)

    def _flat_weights(self) -> list[Tensor]:
        """Every parameter and buffer of the learner's policy, at least one-dimensional."""
        state = self._policy.state_dict()
        return [leaf.detach().cpu().reshape(leaf.shape or (1,)) for leaf in state.values()]

    @property
    def restorable(self) -> str | None:
        """None if the environments can be saved bit for bit, else why not."""
        return self._restorable

    def collect(self, conditioning: Mapping[str, Tensor] | None = None) -> Rollout:
        """Take T steps in every environment; see `Collector.collect`."""
        given = None if conditioning is None else {k: v.cpu() for k, v in conditioning.items()}
        request = (self.version, given)
        replies: list[_Collected] = self._group.call(
            "collect",
            [request] * self._group.num_workers,
            heartbeat=lambda worker: int(self._progress[worker, 0]),
        )
        names = replies[0].initial_state
        return Rollout(
            steps=self._steps,
            initial_state={
                name: torch.from_numpy(np.concatenate([r.initial_state[name] for r in replies]))
                for name in names
            },
            last_obs=to_tensor(_concatenate([reply.last_obs for reply in replies])),
            episodes=[record for reply in replies for record in reply.episodes],
            version=replies[0].version,
        )

    def update_weights(self, version: int) -> None:
        """Put the learner's present weights where workers take them from at the next `collect`."""
        for target, source in zip(self._weights, self._flat_weights(), strict=True):
            target.copy_(source)
        self.version = version

    def state_dict(self) -> dict[str, Any]:
        """The state of every worker's environments, noise streams and recurrent states."""
        return {
            "version": self.version,
            "workers": self._group.call("state", timeout_s=_SLOW_COMMAND_S),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        saved = state["workers"]
        if len(saved) != self._group.num_workers:
            raise ConfigError(
                f"the saved state is of {len(saved)} workers, this run has "
                f"{self._group.num_workers}. Resume with num_workers={len(saved)}."
            )
        self.version = state["version"]
        fresh_seed = self._seed + 1 + self.version
        parts = [(part, fresh_seed) for part in saved]
        return next((r for r in self._group.call("load", parts, _SLOW_COMMAND_S) if r), None)

    def close(self) -> None:
        """End the workers and free the shared memory."""
        self._group.close()
        self._memory.close()


def _concatenate(parts: list[NestedArray]) -> NestedArray:
    return map_leaves(lambda *leaves: np.concatenate(leaves), *parts)


@dataclass(frozen=True, slots=True)
class _Collected:
    """A worker's answer to `collect`; the rows themselves are in shared memory."""

    version: int
    initial_state: dict[str, Any]
    last_obs: NestedArray
    episodes: list[EpisodeRecord]


@dataclass(frozen=True, slots=True)
class _Job:
    """What a worker is sent to begin with."""

    settings: EnvSettings
    policy: Policy
    begin: int
    end: int
    seed: int
    reset_mode: ResetMode
    num_threads: int

    def __call__(self, link: WorkerLink) -> _Handler:
        torch.set_num_threads(self.num_threads)
        # Environments that draw from global generators repeat at least from the start of a run.
        random.seed(self.seed + self.begin)
        np.random.seed((self.seed + self.begin) % 2**32)
        return _Handler(self, self.settings.make(self.end - self.begin, self.begin), link)


class _Handler:
    """The worker's side."""

    def __init__(self, job: _Job, env: VecEnv, link: WorkerLink) -> None:
        self._job, self._env, self._link = job, env, link
        self._version = -1

    def handle(self, command: str, payload: Any) -> Any:
        return getattr(self, f"_{command}")(payload)

    def close(self) -> None:
        self._env.close()

    def _spaces(self, _: None) -> Any:
        return self._env.observation_space, self._env.action_space, self._env.frame_skip

    def _restorable(self, _: None) -> str | None:
        return self._env.restorable

    def _attach(self, layout: Layout) -> None:
        if self._link.memory is None:
            raise ConfigError("a collecting worker was started without shared memory.")
        shared = self._link.memory.arrays(layout)
        self._weights = [torch.from_numpy(leaf) for leaf in shared["weights"].values()]
        self._actor = Actor(
            self._env,
            self._job.policy,
            RolloutBuffer(shared["rollout"]).columns(self._job.begin, self._job.end),
            seed=self._job.seed,
            reset_mode=self._job.reset_mode,
            first_env_id=self._job.begin,
            progress=shared["progress"][self._link.index, :2],
        )

    def _collect(self, request: tuple[int, Mapping[str, Tensor] | None]) -> _Collected:
        version, conditioning = request
        if version != self._version:
            self._take_weights(version)
        if conditioning is not None:
            mine = slice(self._job.begin, self._job.end)
            conditioning = {name: leaf[mine] for name, leaf in conditioning.items()}
        state, episodes = self._actor.collect(conditioning)
        last_obs = map_leaves(np.array, self._actor.last_obs)
        return _Collected(self._version, to_numpy(state), last_obs, episodes)

    def _take_weights(self, version: int) -> None:
        """Copy, never share: the learner may write the next version at any later time."""
        own = self._job.policy.state_dict()
        with torch.no_grad():
            for target, source in zip(own.values(), self._weights, strict=True):
                target.copy_(source.reshape(target.shape))
        self._version = version

    def _state(self, _: None) -> dict[str, Any]:
        return self._actor.state_dict()

    def _load(self, payload: tuple[Mapping[str, Any], int]) -> str | None:
        state, fresh_seed = payload
        return self._actor.load_state_dict(state, fresh_seed)

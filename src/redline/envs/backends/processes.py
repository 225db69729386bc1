"""Environments in worker processes, their data in memory shared with this one.

Each worker steps a contiguous share of the batch with the loop of the in-process back end,
so the same seed gives the same steps whatever the number of workers.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
from gymnasium import Space

from redline.envs.backends.backend import ConcurrentBackend, StepBuffers
from redline.envs.backends.env_loop import EnvLoop
from redline.envs.single_env import SingleEnv
from redline.envs.space_checks import require_same_spaces
from redline.envs.workers.shared_memory import Layout, SharedBlock, spec_of
from redline.envs.workers.supervisor import WorkerGroup, WorkerLink
from redline.errors import ConfigError, EnvError
from redline.nested import Array, NestedArray, copy_all, map_leaves
from redline.usable_cores import usable_cpus

if TYPE_CHECKING:
    from redline.envs.settings import EnvSettings

_STEP_ALL, _STEP_ACTIVE = 0, 1
_SLOW_COMMAND_S = 120.0  # restoring may replay whole episodes


class ProcessBackend(ConcurrentBackend):
    """B single environments in worker processes.

    Args:
        single: how to make one environment.
        num_envs: B.
        first_env_id: index of the first of them in the whole batch.
        num_workers: W; None is one per environment, at most the usable cores.
        timeout_s: seconds after which a silent worker has failed.
        cpus: the cores that each worker may run on; None: those of this process.

    Raises:
        ConfigError: if there are more workers than environments.
        WorkerError: if a worker fails to start.
    """

    name = "processes"
    single_envs = True
    options = ("num_workers", "worker_timeout_s", "on_worker_failure", "check_env")
    can_idle = True
    reads_info = True

    def __init__(
        self,
        single: SingleEnv,
        num_envs: int,
        *,
        first_env_id: int = 0,
        num_workers: int | None = None,
        timeout_s: float = 8.0,
        cpus: Sequence[Collection[int]] | None = None,
    ) -> None:
        workers = min(num_envs, usable_cpus()) if num_workers is None else num_workers
        if workers > num_envs:
            raise ConfigError(
                f"num_workers={workers} is more than num_envs={num_envs}: a worker without an "
                f"environment has nothing to do. Use at most {num_envs}."
            )
        self.frame_skip, self.info_names = single.frame_skip, single.info_names
        self._shares = split_evenly(num_envs, workers)
        self._memory = SharedBlock()
        try:
            self._group = WorkerGroup(
                [
                    _Factory(single, first_env_id + begin, end - begin)
                    for begin, end in self._shares
                ],
                titles=[
                    _title(single.env_id, first_env_id + begin, first_env_id + end - 1)
                    for begin, end in self._shares
                ],
                memory=self._memory,
                timeout_s=timeout_s,
                cpus=cpus,
            )
        except BaseException:
            self._memory.close()
            raise
        try:
            parts = [cloudpickle.loads(part) for part in self._group.call("describe")]
            require_same_spaces([tuple(part.values()) for part in parts], single.env_id, "worker")
            spaces = parts[0]
            self.allocate(single.env_id, num_envs, first_env_id, **spaces)
            self._share_buffers()
        except BaseException:
            self.close()
            raise

    @classmethod
    def make(cls, settings: EnvSettings, num_envs: int, first_env_id: int) -> ProcessBackend:
        """The workers over environments of an id or a callable."""
        return cls(
            settings.single(),
            num_envs,
            first_env_id=first_env_id,
            num_workers=settings.num_workers,
            timeout_s=settings.worker_timeout_s,
            cpus=settings.worker_cpus,
        )

    def _share_buffers(self) -> None:
        """Move the buffers into shared memory, each worker's rows into its hands."""
        buffers = self.buffers
        arrays = {
            "buffers": {part.name: getattr(buffers, part.name) for part in fields(buffers)},
            "action": self.codec.zeros(),
            "active": np.ones(self.num_envs, dtype=np.bool_),
        }
        layout = Layout.of(spec_of(arrays))
        self._memory.resize(layout.nbytes)
        shared = self._memory.arrays(layout)
        self.buffers = StepBuffers(**shared["buffers"])
        self._action, self._active = shared["action"], shared["active"]
        self._group.call("attach", [(layout, begin, end) for begin, end in self._shares])

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if every environment can be restored bit for bit, else the reason why not."""
        return next((reason for reason in self._group.call("restorable") if reason), None)

    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere; environment i is seeded from (seed, i) alone."""
        self._group.call("reset", [seed] * self._group.num_workers, _SLOW_COMMAND_S)

    def begin_step(self, action: NestedArray, active: Array | None) -> None:
        """Give the workers their actions and wake them."""
        copy_all(self._action, action)
        if active is not None:
            self._active[...] = active
        self._group.begin_step(_STEP_ALL if active is None else _STEP_ACTIVE)

    def finish_step(self) -> bool:
        """Wait for all workers."""
        return any(self._group.finish_step())

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `Backend.set_attr`."""
        self._group.call("set_attr", [(name, value)] * self._group.num_workers)

    def state_dict(self) -> dict[str, Any]:
        """The state of each environment and the observation to act on."""
        parts = self._group.call("state", timeout_s=_SLOW_COMMAND_S)
        own = parts[0].get("attributes")
        return {
            "envs": [env for part in parts for env in part["envs"]],
            **({"attributes": own} if own else {}),
            **self.buffers.saved(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore each environment, whatever the number of workers it was saved with."""
        own = {"attributes": state["attributes"]} if "attributes" in state else {}
        parts = [
            {
                **own,
                "envs": state["envs"][begin:end],
                "obs": {key: leaf[begin:end] for key, leaf in state["obs"].items()},
                "lives": state["lives"][begin:end],
            }
            for begin, end in self._shares
        ]
        self._group.call("load", parts, _SLOW_COMMAND_S)

    def close(self) -> None:
        """End the workers."""
        self._group.close()
        self._memory.close()


def _title(env_id: str, first: int, last: int) -> str:
    which = f"environment {first}" if first == last else f"environments {first} .. {last}"
    return f"{which} of {env_id}"


def split_evenly(total: int, parts: int) -> list[tuple[int, int]]:
    """Contiguous (begin, end) shares of 0 .. total - 1 whose sizes differ by at most 1."""
    bounds = [total * part // parts for part in range(parts + 1)]
    return list(pairwise(bounds))


@dataclass(frozen=True, slots=True)
class _Factory:
    single: SingleEnv
    first_env_id: int
    num_envs: int

    def __call__(self, link: WorkerLink) -> _LoopHandler:
        loop = EnvLoop.over(self.single, self.num_envs, self.first_env_id)
        return _LoopHandler(loop, link, self.first_env_id)


class _LoopHandler:
    """The worker's side: one loop, writing into its rows of the shared buffers."""

    def __init__(self, loop: EnvLoop, link: WorkerLink, first_env_id: int) -> None:
        self._loop, self._link, self._first_env_id = loop, link, first_env_id
        self._action: NestedArray = np.zeros(0)
        self._active: Array = np.zeros(0, dtype=np.bool_)

    def handle(self, command: str, payload: Any) -> Any:
        return getattr(self, f"_{command}")(payload)

    def step(self, code: int) -> int:
        active = self._active if code == _STEP_ACTIVE else None
        return self._loop.step(map_leaves(np.array, self._action), active)

    def _describe(self, _: None) -> bytes:
        spaces: dict[str, Space[Any]] = {
            "observation_space": self._loop.observation_space,
            "action_space": self._loop.native_action_space,
        }
        return cloudpickle.dumps(spaces)

    def _attach(self, payload: tuple[Layout, int, int]) -> None:
        layout, begin, end = payload
        if self._link.memory is None:
            raise EnvError("a worker of the processes back end was started without memory.")
        shared = self._link.memory.arrays(layout)
        self._loop.use_buffers(StepBuffers(**shared["buffers"]).rows(begin, end))
        self._action = map_leaves(lambda leaf: leaf[begin:end], shared["action"])
        self._active = shared["active"][begin:end]

    def _restorable(self, _: None) -> str | None:
        return self._loop.restorable

    def _reset(self, seed: int | None) -> None:
        if seed is not None:
            # Environments that draw from global generators repeat from here at least.
            own = operator.index(seed) + self._first_env_id
            random.seed(own)
            np.random.seed(own % 2**32)
            torch: Any = sys.modules.get("torch")  # where the environments have imported it
            if torch is not None:
                torch.manual_seed(own % 2**64)
        self._loop.reset(seed)

    def _set_attr(self, payload: tuple[str, Any]) -> None:
        self._loop.set_attr(*payload)

    def _state(self, _: None) -> dict[str, Any]:
        return self._loop.state_dict()

    def _load(self, state: dict[str, Any]) -> None:
        self._loop.load_state_dict(state)

    def close(self) -> None:
        self._loop.close()

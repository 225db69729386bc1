"""Any `VecEnv` on a device: observations are delivered there, actions fetched from there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.data import EpisodeRecord, NestedTensor, map_leaves, to_numpy
from redline.devices import exact_device, kind_of
from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv
from redline.envs.vec_env import EnvStep, VecEnv
from redline.errors import EnvError
from redline.nested import Array, NestedArray

# Rows of the block in which the numbers of one step travel together. float64 holds all of
# them exactly, and one copy costs less than eight.
_ROWS = (
    "reward",
    "terminated",
    "truncated",
    "valid",
    "episode_id",
    "episode_ended",
    "episode_return",
    "episode_length",
)


class MirroredEnv(DeviceVecEnv):
    """Environments that step on the CPU, seen from a device.

    What is sent to a device that pins goes through pinned memory without waiting. That memory is
    written again at the next step, after that step's actions have been fetched: fetching
    waits for all that was sent before on the same stream.

    What `step` gives holds until the next call.

    Args:
        env: owned from now on.
        device: where observations are to be.
    """

    has_fillers = True  # it cannot be known beforehand

    def __init__(self, env: VecEnv, device: torch.device | str) -> None:
        self._env, self.device = env, exact_device(device)
        self.num_envs, self.env_id, self.backend = env.num_envs, env.env_id, env.backend
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.frame_skip, self.can_idle = env.frame_skip, env.can_idle
        self.first_env_id = env.first_env_id
        self._kind = kind_of(self.device)
        self._pins = self._kind.pins
        self._staging: dict[str, Any] = {}
        self._numbers = torch.zeros(len(_ROWS), env.num_envs, dtype=torch.float64)
        if self._pins:
            self._numbers = self._kind.pinned(self._numbers)
        self._rows = dict(zip(_ROWS, self._numbers.numpy(), strict=True))
        self._episode_id = np.zeros(env.num_envs, np.int64)
        self._in_episode = np.zeros(env.num_envs, np.bool_)
        self._records: list[EpisodeRecord] = []

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if the environments can be saved bit for bit, else why not."""
        return self._env.restorable

    def take_records(self) -> Sequence[EpisodeRecord]:
        """See `DeviceVecEnv.take_records`."""
        taken, self._records = self._records, []
        return taken

    def reset(self, seed: int | None = None) -> NestedTensor:
        """Start a new episode everywhere; see `DeviceVecEnv.reset`."""
        self._wait()
        # An episode that is given up in the middle keeps its number.
        self._episode_id += self._in_episode
        self._in_episode[:] = False
        if seed is not None:
            self._episode_id[:] = 0
        return self._send("obs", self._env.reset(seed))

    def step(self, action: NestedTensor, active: Tensor | None = None) -> DeviceStep:
        """Fetch the actions, step, and send what came of it; see `DeviceVecEnv.step`."""
        mask = None if active is None else active.cpu().numpy()
        step = self._env.step(to_numpy(action), mask)
        self._fill(step)
        sent = self._numbers
        if self.device.type != "cpu":
            sent = sent.to(self.device, non_blocking=True)
        numbers = dict(zip(_ROWS, sent.unbind(), strict=True))
        obs = self._send("obs", step.obs)
        final_obs = obs if step.final_obs is None else self._send("final_obs", step.final_obs)
        return DeviceStep(
            obs=obs,
            reward=numbers["reward"].float(),
            terminated=numbers["terminated"].bool(),
            truncated=numbers["truncated"].bool(),
            valid=numbers["valid"].bool(),
            final_obs=final_obs,
            episode_id=numbers["episode_id"].long(),
            episode_ended=numbers["episode_ended"].bool(),
            episode_return=numbers["episode_return"],
            episode_length=numbers["episode_length"].long(),
        )

    def _fill(self, step: EnvStep) -> None:
        """Put the step's numbers into the block that is sent."""
        rows = self._rows
        for name in ("reward", "terminated", "truncated", "valid"):
            rows[name][:] = getattr(step, name)
        rows["episode_id"][:] = self._episode_id
        for name in ("episode_ended", "episode_return", "episode_length"):
            rows[name].fill(0.0)
        self._in_episode |= step.valid
        for record in step.episodes:
            i = record.env_id - self.first_env_id
            rows["episode_ended"][i] = True
            rows["episode_return"][i], rows["episode_length"][i] = record.return_, record.length
            self._episode_id[i], self._in_episode[i] = record.episode_id + 1, False
            if record.success is not None or record.info:
                self._records.append(record)

    def _send(self, name: str, tree: NestedArray) -> NestedTensor:
        """Nested arrays as tensors on the device; on the CPU they share memory."""
        tensors = map_leaves(torch.from_numpy, tree)
        if not self._pins:
            return map_leaves(lambda leaf: leaf.to(self.device), tensors)
        if name not in self._staging:
            self._staging[name] = map_leaves(
                lambda leaf: self._kind.pinned(torch.empty_like(leaf)), tensors
            )
        return map_leaves(self._through_pinned, self._staging[name], tensors)

    def _through_pinned(self, pinned: Tensor, leaf: Tensor) -> Tensor:
        return pinned.copy_(leaf).to(self.device, non_blocking=True)

    def _wait(self) -> None:
        """Until what was sent has arrived: no action was fetched since."""
        if self._pins:
            self._kind.synchronize(self.device)

    @property
    def in_episode(self) -> Tensor:
        """[B] bool, the environments that are in the middle of an episode."""
        return torch.from_numpy(self._in_episode.copy()).to(self.device)

    def raise_faults(self) -> None:
        """Nothing: environments on the CPU are looked at in every step."""

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `VecEnv.set_attr`."""
        self._env.set_attr(name, value)

    def state_dict(self) -> dict[str, Any]:
        """The environments' own state, and the episodes' numbers."""
        return {
            "env": self._env.state_dict(),
            "episode_id": self._episode_id.copy(),
            "in_episode": self._in_episode.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> NestedTensor:
        """Go on from `state`; see `DeviceVecEnv.load_state_dict`."""
        self._wait()
        episode_id: Array = np.asarray(state.get("episode_id"))
        if episode_id.shape != self._episode_id.shape or "env" not in state:
            raise EnvError(
                f"the saved environment state of {self.env_id} is not of {self.num_envs} "
                f"environments behind a device. Resume with the settings of the saved run."
            )
        obs = self._env.load_state_dict(state["env"])
        self._episode_id[:], self._in_episode[:] = episode_id, state["in_episode"]
        return self._send("obs", obs)

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

"""Native games, the whole batch in tensor operations, behind the contract of arrays.

torch is imported when games are made: a process that only looks the class up needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from redline.envs.backends.backend import Backend
from redline.envs.games import ids
from redline.envs.single_env import name_of
from redline.errors import ConfigError
from redline.nested import Array, NestedArray

if TYPE_CHECKING:
    import torch

    from redline.envs.games.native import NativeEnv
    from redline.envs.settings import EnvSettings, EnvSource


class DeviceBackend(Backend):
    """The numpy view of a `NativeEnv`, for evaluation and for collectors that step arrays.

    Args:
        env: on any device; owned from now on.
    """

    name = "device"
    on_device = True
    options = ()
    can_idle = True
    restorable = None

    def __init__(self, env: NativeEnv) -> None:
        self._env = env
        self.allocate(
            env.env_id, env.num_envs, env.first_env_id, env.observation_space, env.action_space
        )

    @classmethod
    def serves(cls, env: EnvSource) -> bool:
        """The native games."""
        return ids.is_native(env)

    @classmethod
    def check_env(cls, env: EnvSource) -> None:
        """Refuse anything else; see `Backend.check_env`."""
        if cls.serves(env):
            return
        close = f"{ids.PREFIX}{env}"
        hint = f" Give {close!r}." if close in ids.GAMES else ""
        raise ConfigError(
            f"backend='device' steps the native games {', '.join(ids.GAMES)}, not "
            f"{name_of(env)}.{hint} Any other environment can be delivered to a device with "
            f"make_device_vec, or --env-device."
        )

    @classmethod
    def make(cls, settings: EnvSettings, num_envs: int, first_env_id: int) -> DeviceBackend:
        """B games on the CPU; rewards are clipped above, as for every back end."""
        return cls(_games(settings, num_envs, first_env_id, "cpu", clip_reward=False))

    @classmethod
    def make_on_device(
        cls, settings: EnvSettings, num_envs: int, first_env_id: int, device: torch.device | str
    ) -> NativeEnv:
        """B games whose data never leave `device`."""
        clip_reward = bool(settings.clip_reward)
        return _games(settings, num_envs, first_env_id, device, clip_reward=clip_reward)

    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere."""
        self.buffers.clear_flags()
        self._show(self._env.reset(seed))

    def step(self, action: NestedArray, active: Array | None) -> bool:
        """Step all, or those in `active`."""
        import torch

        mask = None if active is None else torch.from_numpy(active).to(self._env.device)
        given = torch.from_numpy(np.asarray(action)).to(self._env.device)
        step = self._env.step(given, mask)
        buffers = self.buffers
        self._show(step.obs)
        for target, value in (
            (buffers.final_obs, step.final_obs),
            (buffers.reward, step.reward),
            (buffers.terminated, step.terminated),
            (buffers.truncated, step.truncated),
            (buffers.valid, step.valid),
        ):
            np.copyto(target, value.cpu().numpy())  # type: ignore[arg-type,union-attr]
        return bool(buffers.terminated.any() or buffers.truncated.any())

    def _show(self, obs: Any) -> None:
        np.copyto(self.buffers.obs, obs.cpu().numpy())  # type: ignore[arg-type]

    def state_dict(self) -> dict[str, Any]:
        """The state of every game and its random stream."""
        return self._env.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.buffers.clear_flags()
        self._show(self._env.load_state_dict(state))

    def close(self) -> None:
        """Forget the state."""
        self._env.close()


def _games(
    settings: EnvSettings,
    num_envs: int,
    first_env_id: int,
    device: torch.device | str,
    *,
    clip_reward: bool,
) -> NativeEnv:
    from redline.envs.games.native import NativeEnv, make_game

    game = make_game(str(settings.env), device, settings.env_kwargs)
    return NativeEnv(game, num_envs, first_env_id=first_env_id, clip_reward=clip_reward)

"""`EnvSettings`: all that `make_vec` was asked for, as one value that workers can be sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import gymnasium
from gymnasium.vector import VectorEnv

from redline.envs import atari
from redline.envs.backends.backend import Backend
from redline.envs.backends.env_loop import EnvLoop
from redline.envs.batched import BatchedEnv
from redline.envs.games import ids
from redline.envs.registry import (
    SingleEnv,
    find_single,
    is_atari,
    is_native,
    name_of,
    refuse_preset,
)
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    import torch

    from redline.envs.device.vec_env import DeviceVecEnv

BackendName: TypeAlias = Literal["auto", "gymnasium", "processes", "envpool", "ale", "device"]
EnvSource: TypeAlias = "str | Callable[[], gymnasium.Env[Any, Any]] | VectorEnv[Any, Any, Any]"
BACKENDS = ("auto", "gymnasium", "processes", "envpool", "ale", "device")
THREADED = ("envpool", "ale")  # those that step in threads of their own


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSettings:
    """What to step, and with what; the arguments of `make_vec` without the number.

    Send it to a worker with cloudpickle: it may hold a callable.

    Raises:
        ConfigError: if settings contradict each other.
        UnknownNameError: if there is no such environment, back end or preset.
        MissingExtraError: if a package is missing.
    """

    env: EnvSource
    # One of BACKENDS; auto: ale for ALE/*-v5 ids, device for native games, else gymnasium.
    backend: str = "auto"
    preset: str | None = None  # Atari protocol; None means dqn-2015 for ALE/*-v5 ids
    num_threads: int = 0  # of envpool and ale; 0: one per environment, at most the usable cores
    num_workers: int | None = None  # processes; None: one per environment, at most the cores
    worker_timeout_s: float = 8.0  # a worker silent for longer has failed
    worker_cpus: tuple[tuple[int, ...], ...] | None = None  # cores of each; None: as this process
    clip_reward: bool | None = None  # give the learner the reward's sign; None: as the preset
    env_kwargs: dict[str, Any] = field(default_factory=dict)  # for the environment's constructor
    check: bool = True  # look for NaN and infinity

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS and self.backend != "vector":
            raise UnknownNameError(
                f"there is no environment back end {self.backend!r}. Choose one of "
                f"{', '.join(BACKENDS)}."
            )
        if self.num_threads < 0:
            raise ConfigError(f"num_threads={self.num_threads} is negative; 0 means automatic.")
        if self.num_workers is not None and self.num_workers < 1:
            raise ConfigError(f"num_workers={self.num_workers}; at least one is needed.")
        if not self.worker_timeout_s > 0:
            raise ConfigError(f"worker_timeout_s={self.worker_timeout_s} must be above 0 seconds.")
        object.__setattr__(self, "backend", self._chosen_backend())
        if is_atari(self.env):
            object.__setattr__(self, "preset", atari.find_preset(self.preset).name)
        else:
            refuse_preset(self.env, self.preset)

    def _chosen_backend(self) -> str:
        if isinstance(self.env, VectorEnv):
            if self.backend not in ("auto", "vector"):
                raise ConfigError(
                    f"backend={self.backend!r} cannot step a ready {type(self.env).__name__}. "
                    f"Leave it at 'auto', or give an id or a callable."
                )
            return "vector"
        if self.backend == "vector":
            raise ConfigError("backend='vector' is for a ready gymnasium.vector.VectorEnv only.")
        if self.backend in THREADED and not isinstance(self.env, str):
            raise ConfigError(
                f"backend={self.backend!r} needs an id, not a callable. Use gymnasium or processes."
            )
        if self.backend == "ale" and not is_atari(self.env):
            raise ConfigError(f"backend='ale' steps ALE/*-v5 games only, not {self.env!r}.")
        if is_native(self.env):
            return self._native_backend()
        if self.backend == "device":
            close = f"{ids.PREFIX}{self.env}"
            hint = f" Give {close!r}." if close in ids.GAMES else ""
            raise ConfigError(
                f"backend='device' steps the native games {', '.join(ids.GAMES)}, not "
                f"{self.env_id}.{hint} Any other environment can be delivered to a device with "
                f"make_device_vec, or --env-device."
            )
        if self.backend == "auto":
            return "ale" if is_atari(self.env) else "gymnasium"
        return self.backend

    def _native_backend(self) -> str:
        if self.backend not in ("auto", "device"):
            raise ConfigError(
                f"backend={self.backend!r} cannot step {self.env!r}, which is written for the "
                f"device back end. Leave it at 'auto', or give {ids.ORIGINALS[str(self.env)]!r}."
            )
        return "device"

    @property
    def env_id(self) -> str:
        """The name in messages and configs."""
        return name_of(self.env)

    def make(self, num_envs: int, first_env_id: int = 0) -> VecEnv:
        """A batch of environments.

        Args:
            num_envs: B.
            first_env_id: index of the first of them, where this is a part of a bigger batch.

        Raises:
            ConfigError: if the number does not fit.
        """
        _check_numbers(num_envs, first_env_id)
        protocol = atari.find_preset(self.preset) if is_atari(self.env) else None
        clip_reward = self.clip_reward
        if clip_reward is None:
            clip_reward = protocol is not None and protocol.clip_reward
        return BatchedEnv(
            self._make_backend(num_envs, first_env_id),
            self.env_id,
            preset=self.preset,
            clip_reward=clip_reward,
            episodic_life=protocol is not None and protocol.episodic_life,
            check=self.check,
        )

    def make_on_device(
        self, num_envs: int, device: torch.device | str, first_env_id: int = 0
    ) -> DeviceVecEnv:
        """A batch whose observations and actions are tensors on `device`.

        Native games are stepped there. All others are stepped on the CPU, their
        observations delivered to the device and their actions fetched from it.

        Args:
            num_envs: B.
            device: such as "cpu" or "cuda".
            first_env_id: index of the first of them in the whole batch.

        Raises:
            ConfigError: if the number does not fit.
            DeviceError: if the device is not there.
        """
        from redline.envs.games.native import NativeEnv, make_game, require_device

        require_device(device)
        if self.backend == "device":
            _check_numbers(num_envs, first_env_id)
            return NativeEnv(
                make_game(str(self.env), device, self.env_kwargs),
                num_envs,
                first_env_id=first_env_id,
                clip_reward=bool(self.clip_reward),
            )
        from redline.envs.device.mirrored import MirroredEnv

        return MirroredEnv(self.make(num_envs, first_env_id), device)

    def _make_backend(self, num_envs: int, first_env_id: int) -> Backend:
        if self.backend == "device":
            from redline.envs.backends.native import DeviceBackend
            from redline.envs.games.native import NativeEnv, make_game

            game = make_game(str(self.env), "cpu", self.env_kwargs)
            return DeviceBackend(NativeEnv(game, num_envs, first_env_id=first_env_id))
        if isinstance(self.env, VectorEnv):
            from redline.envs.backends.vector_env import VectorBackend

            return VectorBackend(self.env, num_envs, first_env_id)
        if self.backend == "ale":
            from redline.envs.backends.ale import AleBackend

            return AleBackend(self, num_envs, first_env_id)
        if self.backend == "envpool":
            from redline.envs.backends.envpool import EnvPoolBackend

            return EnvPoolBackend(self, num_envs, first_env_id)
        single = self.single()
        if self.backend == "processes":
            from redline.envs.backends.processes import ProcessBackend

            return ProcessBackend(
                single,
                num_envs,
                first_env_id=first_env_id,
                num_workers=self.num_workers,
                timeout_s=self.worker_timeout_s,
                cpus=self.worker_cpus,
            )
        return EnvLoop(
            single.make,
            num_envs,
            env_id=single.env_id,
            first_env_id=first_env_id,
            frame_skip=single.frame_skip,
        )

    def single(self) -> SingleEnv:
        """How to make one of these environments alone, for videos for example.

        Raises:
            ConfigError: if it is a ready vector environment.
        """
        if isinstance(self.env, VectorEnv):
            raise ConfigError(
                f"{self.env_id} is a ready vector environment, not one that can be made."
            )
        return find_single(self.env, self.preset, self.env_kwargs)


def _check_numbers(num_envs: int, first_env_id: int) -> None:
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}; at least one environment is needed.")
    if first_env_id < 0:
        raise ConfigError(f"first_env_id={first_env_id} is negative.")

"""`make_vec`: one kind of object, whatever the back end; `make_device_vec`: with tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redline.envs.settings import EnvSettings, EnvSource
from redline.envs.vec_env import VecEnv

if TYPE_CHECKING:
    import torch

    from redline.envs.device.vec_env import DeviceVecEnv


def make_vec(
    env: EnvSource,
    num_envs: int,
    *,
    backend: str = "auto",
    preset: str | None = None,
    num_threads: int = 0,
    num_workers: int | None = None,
    worker_timeout_s: float = 8.0,
    clip_reward: bool | None = None,
    env_kwargs: dict[str, Any] | None = None,
    first_env_id: int = 0,
    check: bool = True,
) -> VecEnv:
    """Make B environments of one kind.

    Args:
        env: a Gymnasium id ("CartPole-v1", "ALE/Breakout-v5", "MinAtar/Breakout-v1"), an id of
            EnvPool with that back end, a callable that makes one `gymnasium.Env`, or a ready
            `gymnasium.vector.VectorEnv` in any autoreset mode. A callable is called once per
            environment, and once more (per worker) to see whether it reports action masks.
        num_envs: B.
        backend: "gymnasium" steps in this process, "processes" in worker processes, "envpool"
            and "ale" in threads of those packages, "device" native games such as
            "redline/CartPole-v1" in tensor operations; "auto" is ale for ALE/*-v5 ids, device
            for native games, else gymnasium. `VecEnv.backend` says what was chosen.
        preset: Atari protocol, "dqn-2015" (also if None) or "machado-2018", for ALE/*-v5 ids.
        num_threads: of envpool and ale; 0 is one per environment, at most the usable cores.
        num_workers: of processes; None is one per environment, at most the usable cores.
        worker_timeout_s: seconds after which a silent worker has failed.
        clip_reward: give the learner the reward's sign; None is as the preset says, else no.
        env_kwargs: for the environment's constructor.
        first_env_id: index of the first environment where this is a part of a bigger batch:
            environment i is seeded from (seed, first_env_id + i) alone.
        check: look for NaN and infinity in rewards and observations.

    Raises:
        ConfigError: if settings contradict each other.
        UnknownNameError: if there is no such environment, back end or preset; lists close ones.
        SpaceError: if a space has no array form.
        MissingExtraError: if a package is missing; names the pip command.
    """
    settings = EnvSettings(
        env=env,
        backend=backend,
        preset=preset,
        num_threads=num_threads,
        num_workers=num_workers,
        worker_timeout_s=worker_timeout_s,
        clip_reward=clip_reward,
        env_kwargs=dict(env_kwargs or {}),
        check=check,
    )
    return settings.make(num_envs, first_env_id)


def make_device_vec(
    env: EnvSource, num_envs: int, *, device: torch.device | str, **settings: Any
) -> DeviceVecEnv:
    """Make B environments whose observations and actions are tensors on a device.

    A native game ("redline/CartPole-v1", "redline/Breakout-v1", ...) is stepped there and
    never leaves it. Anything else that `make_vec` takes is stepped on the CPU; observations
    are delivered to the device and actions fetched from it.

    Args:
        env: as for `make_vec`.
        num_envs: B.
        device: such as "cpu" or "cuda".
        settings: further arguments of `make_vec`.

    Raises:
        DeviceError: if the device is not there.
        RedlineError: as `make_vec` does.
    """
    first_env_id = settings.pop("first_env_id", 0)
    return EnvSettings(env=env, **settings).make_on_device(num_envs, device, first_env_id)

"""`make_vec` and `make_device_vec`, and `EnvSettings`: their arguments as one value.

Settings can be sent to a worker, which makes its part of the batch from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import gymnasium
from gymnasium.vector import VectorEnv

from redline.envs import atari
from redline.envs.backends.backend import Backend
from redline.envs.backends.registry import BACKENDS, choose_backend, find_backend
from redline.envs.batched import BatchedEnv
from redline.envs.previous_inputs import PreviousInputs
from redline.envs.single_env import SingleEnv, find_single, name_of, refuse_atari_settings
from redline.envs.space_checks import CheckEnv
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError
from redline.free_memory import require_memory
from redline.previous_inputs import has_previous

if TYPE_CHECKING:
    import torch

    from redline.envs.device.vec_env import DeviceVecEnv

_LEAST_BYTES = 1_000  # of an environment with its spaces and generators; CartPole has 2,500
_LEAST_ON_DEVICE = 100  # of a row of a native game; CartPole has 280
EnvSource: TypeAlias = "str | Callable[[], gymnasium.Env[Any, Any]] | VectorEnv[Any, Any, Any]"


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
    # A name, "module:Name" or class; once chosen, the name of a built-in one, else the class.
    backend: str | type[Backend] = "auto"
    preset: str | None = None  # Atari protocol; None means dqn-2015 for ALE/*-v5 ids
    num_threads: int = 0  # of envpool and ale; 0: one per environment, at most the usable cores
    num_workers: int | None = None  # processes; None: one per environment, at most the cores
    worker_timeout_s: float = 8.0  # a worker silent for longer has failed
    worker_cpus: tuple[tuple[int, ...], ...] | None = None  # cores of each; None: as this process
    tune_process: bool = True  # let envpool and ale pin their threads and choose their scheduling
    clip_reward: bool | None = None  # give the learner the reward's sign; None: as the preset
    episodic_life: bool | None = None  # Atari: a lost life ends the learner's episode
    sticky_actions: float | None = None  # Atari: probability of repeating the last action
    noop_max: int | None = None  # Atari: no-ops at the start of a game, drawn from 1 .. noop_max
    frame_skip: int | None = None  # Atari: frames per step; None here and above: as the preset
    observe_previous: bool = False  # put the action before and its reward beside observations
    env_kwargs: dict[str, Any] = field(default_factory=dict)  # for the environment's constructor
    check: bool = True  # look for NaN and infinity
    check_env: CheckEnv = "first"  # compare observations with their space: off, first or always
    log_info: tuple[str, ...] = ()  # values in the last info of an episode that are kept

    def __post_init__(self) -> None:
        if self.num_threads < 0:
            raise ConfigError(f"num_threads={self.num_threads} is negative; 0 means automatic.")
        if self.num_workers is not None and self.num_workers < 1:
            raise ConfigError(f"num_workers={self.num_workers}; at least one is needed.")
        if not self.worker_timeout_s > 0:
            raise ConfigError(f"worker_timeout_s={self.worker_timeout_s} must be above 0 seconds.")
        if self.check_env not in get_args(CheckEnv):
            raise ConfigError(
                f"check_env={self.check_env!r}: choose one of {', '.join(get_args(CheckEnv))}."
            )
        chosen = choose_backend(self.env, self.backend)
        if self.log_info and not chosen.reads_info:
            raise ConfigError(
                f"log_info={','.join(self.log_info)} needs the infos of episodes, which the back "
                f"end {chosen.name!r} does not give. Use env_backend='gymnasium' or 'processes', "
                f"or leave it out."
            )
        object.__setattr__(self, "backend", chosen.name if chosen in BACKENDS else chosen)
        if atari.is_atari(self.env):
            object.__setattr__(self, "preset", self.atari_protocol.name)
        else:
            asked = {name: value for name, value in self._asked().items() if name != "clip_reward"}
            refuse_atari_settings(self.env, self.preset, asked)

    def _asked(self) -> dict[str, Any]:
        """What was asked for in place of the protocol's own; None: nothing."""
        names = ("clip_reward", "episodic_life", "sticky_actions", "noop_max", "frame_skip")
        return {name: getattr(self, name) for name in names}

    @property
    def atari_protocol(self) -> atari.AtariPreset:
        """The rules of an Atari game: the preset's, but for what was asked for."""
        return atari.find_preset(self.preset).changed(**self._asked())

    @property
    def clips_reward(self) -> bool:
        """Whether the learner sees the reward's sign."""
        if atari.is_atari(self.env):
            return self.atari_protocol.clip_reward
        return bool(self.clip_reward)

    @property
    def ends_at_lost_lives(self) -> bool:
        """Whether a lost life ends the learner's episode, though not the game."""
        return atari.is_atari(self.env) and self.atari_protocol.episodic_life

    @property
    def backend_class(self) -> type[Backend]:
        """The back end that was chosen."""
        return find_backend(self.backend)

    @property
    def env_id(self) -> str:
        """The name in messages and configs."""
        return name_of(self.env)

    def require_fit(self, num_envs: int) -> None:
        """Refuse more environments than memory holds.

        Raises:
            ConfigError: with the arithmetic.
        """
        if isinstance(self.env, VectorEnv):
            return  # its environments are there
        each = _LEAST_ON_DEVICE if self.backend_class.on_device else _LEAST_BYTES
        require_memory(
            num_envs * each,
            f"num_envs={num_envs}: {num_envs:,} environments x {each:,} bytes, and so it",
            "Use fewer environments.",
        )

    def make(self, num_envs: int, first_env_id: int = 0) -> VecEnv:
        """A batch of environments.

        Args:
            num_envs: B.
            first_env_id: index of the first of them, where this is a part of a bigger batch.

        Raises:
            ConfigError: if the number does not fit.
        """
        _check_numbers(num_envs, first_env_id)
        self.require_fit(num_envs)
        env = BatchedEnv(
            self.backend_class.make(self, num_envs, first_env_id),
            self.env_id,
            preset=self.preset,
            clip_reward=self.clips_reward,
            episodic_life=self.ends_at_lost_lives,
            check=self.check,
        )
        return PreviousInputs(env) if self.observe_previous else env

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
        from redline.envs.games.native import require_device

        require_device(device)
        _check_numbers(num_envs, first_env_id)
        self.require_fit(num_envs)
        env = self.backend_class.make_on_device(self, num_envs, first_env_id, device)
        if self.observe_previous and not has_previous(env.observation_space):
            from redline.envs.device.previous_inputs import DevicePreviousInputs

            return DevicePreviousInputs(env)
        return env  # what only delivers arrays has them already

    def single(self) -> SingleEnv:
        """How to make one of these environments alone, for videos for example.

        Raises:
            ConfigError: if it is a ready vector environment.
        """
        if isinstance(self.env, VectorEnv):
            raise ConfigError(
                f"{self.env_id} is a ready vector environment, not one that can be made."
            )
        protocol = self.atari_protocol if atari.is_atari(self.env) else None
        single = find_single(self.env, protocol, self.env_kwargs)
        return replace(single, info_names=tuple(self.log_info), check_env=self.check_env)


def _check_numbers(num_envs: int, first_env_id: int) -> None:
    if num_envs < 1:
        raise ConfigError(f"num_envs={num_envs}; at least one environment is needed.")
    if first_env_id < 0:
        raise ConfigError(f"first_env_id={first_env_id} is negative.")


def make_vec(
    env: EnvSource,
    num_envs: int,
    *,
    backend: str | type[Backend] = "auto",
    preset: str | None = None,
    num_threads: int = 0,
    num_workers: int | None = None,
    worker_timeout_s: float = 8.0,
    tune_process: bool = True,
    clip_reward: bool | None = None,
    episodic_life: bool | None = None,
    sticky_actions: float | None = None,
    noop_max: int | None = None,
    frame_skip: int | None = None,
    observe_previous: bool = False,
    env_kwargs: dict[str, Any] | None = None,
    first_env_id: int = 0,
    check: bool = True,
    check_env: CheckEnv = "first",
    log_info: Sequence[str] = (),
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
            for native games, else gymnasium. One of your own: its class, or "module:Name".
            `VecEnv.backend` says what was chosen.
        preset: Atari protocol, "dqn-2015" (also if None) or "machado-2018", for ALE/*-v5 ids.
        num_threads: of envpool and ale; 0 is one per environment, at most the usable cores.
        num_workers: of processes; None is one per environment, at most the usable cores.
        worker_timeout_s: seconds after which a silent worker has failed.
        tune_process: let envpool and ale pin their threads and choose their scheduling class.
        clip_reward: give the learner the reward's sign; None is as the preset says, else no.
        episodic_life: of ALE/*-v5 games, as all until `frame_skip`; None is as the preset says.
            Whether a lost life ends the learner's episode.
        sticky_actions: probability of repeating the last executed action.
        noop_max: no-ops at the start of a game are drawn from 1 to this; 0 for none.
        frame_skip: frames that an action is held for.
        observe_previous: put the action before and its reward beside observations, under the
            names in `redline.previous_inputs`.
        env_kwargs: for the environment's constructor.
        first_env_id: index of the first environment where this is a part of a bigger batch:
            environment i is seeded from (seed, first_env_id + i) alone.
        check: look for NaN and infinity in rewards and observations.
        check_env: compare observations with their space: "off", in each environment's "first"
            episode and now and then after it, or "always". Of single environments only.
        log_info: names of values in the last info of an episode, which `EpisodeRecord.info` then
            holds.

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
        tune_process=tune_process,
        clip_reward=clip_reward,
        episodic_life=episodic_life,
        sticky_actions=sticky_actions,
        noop_max=noop_max,
        frame_skip=frame_skip,
        observe_previous=observe_previous,
        env_kwargs=dict(env_kwargs or {}),
        check=check,
        check_env=check_env,
        log_info=tuple(log_info),
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

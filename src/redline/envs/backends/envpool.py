"""EnvPool 1.x, whose environments run in C++ threads and reset on the next step.

In the step after an episode's end EnvPool ignores the action and gives the first
observation of the next episode. That row is a filler: it is not valid, has no reward and
counts in no episode. What the policy is given to act on before it is the ended episode's
last observation.

Its state cannot be saved.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redline.envs import atari
from redline.envs.backends.backend import ConcurrentBackend, FillerRows
from redline.envs.cpus import batch_scheduling, thread_pool
from redline.envs.seeding import env_seed, fresh_seed
from redline.envs.spaces.layout import batch_to_carried, carried_space
from redline.errors import ConfigError, MissingExtraError, UnknownNameError
from redline.nested import Array, NestedArray

if TYPE_CHECKING:
    from gymnasium import Space

    from redline.envs.settings import EnvSettings, EnvSource


class EnvPoolBackend(ConcurrentBackend):
    """B environments of EnvPool.

    Args:
        settings: what to make; its env is an id of EnvPool, or an `ALE/*-v5` id.
        num_envs: B.
        first_env_id: index of the first of them in the whole batch.

    Raises:
        ConfigError: if EnvPool does not take the given `env_kwargs`.
        UnknownNameError: if EnvPool has no such environment.
        MissingExtraError: if it is not installed.
    """

    name = "envpool"
    threaded = True
    options = ()
    restorable = "EnvPool cannot save its state"

    @classmethod
    def check_env(cls, env: EnvSource) -> None:
        """Refuse what has no id; see `Backend.check_env`."""
        super().check_env(env)
        if not isinstance(env, str):
            raise ConfigError(
                "backend='envpool' needs an id, not a callable. Use 'gymnasium' or 'processes'."
            )

    def __init__(self, settings: EnvSettings, num_envs: int, first_env_id: int) -> None:
        self._envpool = _import_envpool()
        self._tune = settings.tune_process
        self._pool_id, self._options = self._task(settings)
        self._pool: Any = None
        pool = thread_pool(settings.num_threads, num_envs, tune=self._tune)
        self._options["num_threads"] = pool["num_threads"]
        self._options.setdefault("thread_affinity_offset", pool["thread_affinity_offset"])
        self._native_space, action_space = self._spaces()
        obs_space = carried_space(self._native_space)
        self.allocate(settings.env_id, num_envs, first_env_id, obs_space, action_space)
        self._fillers = FillerRows(self.buffers)

    def _spaces(self) -> tuple[Space[Any], Space[Any]]:
        with _refusals(self._pool_id, self._options), warnings.catch_warnings():
            # EnvPool declares float64 bounds for float32 spaces.
            warnings.filterwarnings("ignore", message=".*precision lowered by casting")
            spec = self._envpool.make_spec(self._pool_id, **self._options)
            return spec.gymnasium_observation_space, spec.gymnasium_action_space

    def _task(self, settings: EnvSettings) -> tuple[str, dict[str, Any]]:
        pool_id, options = str(settings.env), dict(settings.env_kwargs)
        if atari.is_atari(pool_id):
            pool_id = pool_id.rpartition(":")[2].removeprefix(atari.PREFIX)
            protocol = settings.atari_protocol
            if settings.noop_max == 0:
                raise ConfigError(
                    "noop_max=0 cannot be had from EnvPool, which draws 1 to noop_max no-ops. Use "
                    "noop_max=1, or env_backend='ale'."
                )
            options |= {
                "frame_skip": protocol.frame_skip,
                "stack_num": atari.FRAME_STACK,
                "img_height": atari.SIZE,
                "img_width": atari.SIZE,
                "max_episode_steps": atari.MAX_FRAMES // protocol.frame_skip,
                # EnvPool draws 1 .. noop_max no-ops and has no way to take none.
                "noop_max": max(1, protocol.max_noops),
                "use_fire_reset": protocol.fire_reset,
                "repeat_action_probability": protocol.sticky_probability,
                "full_action_space": protocol.full_action_set,
                "episodic_life": False,
                "reward_clip": False,
            }
            self.frame_skip = protocol.frame_skip
        known = self._envpool.list_all_envs()
        if pool_id not in known:
            matches = difflib.get_close_matches(pool_id, known, n=4, cutoff=0.5)
            hint = f"Did you mean {' or '.join(map(repr, matches))}? " if matches else ""
            raise UnknownNameError(
                f"EnvPool has no environment {pool_id!r}. {hint}"
                f"envpool.list_all_envs() lists them; others run with backend='processes'."
            )
        return pool_id, options

    def _open(self, seed: int) -> None:
        """Make the pool anew: EnvPool takes seeds at construction only."""
        if self._pool is not None:
            self._pool.close()
        seeds = [env_seed(seed, self.first_env_id + i) for i in range(self.num_envs)]
        with _refusals(self._pool_id, self._options), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*precision lowered by casting")
            with batch_scheduling(self._tune):
                self._pool = self._envpool.make_gymnasium(
                    self._pool_id, num_envs=self.num_envs, seed=seeds, **self._options
                )
            _ = self._pool.observation_space  # computed once, with the warning filtered here

    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere; a seed makes the pool anew."""
        if seed is not None or self._pool is None:
            self._open(fresh_seed() if seed is None else seed)
        pool: Any = self._pool
        obs, info = pool.reset()
        self.buffers.clear_flags()
        self._fillers.begin()
        self._write(obs)
        self.buffers.lives[...] = info.get("lives", 0)

    def begin_step(self, action: NestedArray, active: Array | None) -> None:
        """Set EnvPool's threads off."""
        del active  # it cannot leave any out, and nobody asks for that
        self._pool.send(action)

    def finish_step(self) -> bool:
        """Wait for its threads; what ended in the step before was only reset in this one."""
        buffers = self.buffers
        obs, reward, terminated, truncated, info = self._pool.recv()
        buffers.write_outcome(reward, terminated, truncated)
        if "lives" in info:
            buffers.lives[...] = info["lives"]
        self._write(obs)
        return self._fillers.mark()

    def _write(self, obs: Any) -> None:
        batch_to_carried(self._native_space, self.buffers.obs, obs, self.env_id)

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.close()


def _import_envpool() -> Any:
    try:
        import envpool
    except ImportError as error:
        raise MissingExtraError("envpool", "envpool", "the envpool back end") from error
    return envpool


@contextmanager
def _refusals(pool_id: str, options: dict[str, Any]) -> Iterator[None]:
    """Name the options when EnvPool does not take one."""
    try:
        yield
    except (TypeError, AssertionError, KeyError, ValueError) as error:
        raise ConfigError(f"EnvPool does not take {options} for {pool_id}: {error}") from error

"""ALE's own vector environment, whose games run in C++ threads.

It resets on the next step or in the same one, and gives the true last observation in
neither case together with control over seeds. Here it is told to reset on the next step,
and the games that ended are reset right away with a seed of their own, so that

- the last observation of a game and the first of the next are both at hand, without
  filler steps;
- every game depends on (seed, environment, number of the game) and its actions alone, and
  is restored bit for bit by replaying them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from redline.envs import atari
from redline.envs.backends.backend import ConcurrentBackend
from redline.envs.cpus import batch_scheduling, thread_pool
from redline.envs.seeding import episode_seed, fresh_seed
from redline.envs.single_env import check_registered, import_module_of, name_of
from redline.errors import ConfigError, EnvError
from redline.nested import Array, NestedArray

if TYPE_CHECKING:
    from redline.envs.settings import EnvSettings, EnvSource

_JOURNAL_LENGTH = 1024  # steps that it has space for at first


class AleBackend(ConcurrentBackend):
    """B Atari games under a protocol.

    Args:
        settings: what to make; its env is an `ALE/*-v5` id.
        num_envs: B.
        first_env_id: index of the first of them in the whole batch.

    Raises:
        ConfigError: if `env_kwargs` are given: the protocol fixes everything.
        UnknownNameError: if there is no such game.
        MissingExtraError: if ale-py is not installed.
    """

    name = "ale"
    threaded = True
    options = ()
    restorable = None

    @classmethod
    def serves(cls, env: EnvSource) -> bool:
        """The ids of ALE."""
        return atari.is_atari(env)

    @classmethod
    def check_env(cls, env: EnvSource) -> None:
        """Refuse anything else; see `Backend.check_env`."""
        super().check_env(env)
        if not cls.serves(env):
            raise ConfigError(
                f"backend='ale' steps ALE/*-v5 games only, not {name_of(env)}. Use 'gymnasium' or "
                f"'processes'."
            )

    def __init__(self, settings: EnvSettings, num_envs: int, first_env_id: int) -> None:
        atari.register_games()
        from ale_py.vector_env import AtariVectorEnv

        game = import_module_of(str(settings.env))
        check_registered(game)
        if settings.env_kwargs:
            raise ConfigError(
                f"env_kwargs {sorted(settings.env_kwargs)} cannot be given to the ale back end. "
                f"Use backend='gymnasium' to set a mode or difficulty."
            )
        protocol = settings.atari_protocol
        self.frame_skip = protocol.frame_skip
        pool: dict[str, Any] = thread_pool(
            settings.num_threads, num_envs, tune=settings.tune_process
        )
        with batch_scheduling(settings.tune_process):
            self._games = AtariVectorEnv(
                atari.rom_of(game),
                num_envs,
                **pool,
                max_num_frames_per_episode=atari.MAX_FRAMES,
                repeat_action_probability=protocol.sticky_probability,
                full_action_space=protocol.full_action_set,
                img_height=atari.SIZE,
                img_width=atari.SIZE,
                stack_num=atari.FRAME_STACK,
                frameskip=protocol.frame_skip,
                noop_max=protocol.max_noops,
                use_fire_reset=protocol.fire_reset,
                # Both would hide the score and the real end of the game.
                reward_clipping=False,
                episodic_life=False,
            )
        action_space = self._games.single_action_space
        if not isinstance(action_space, spaces.Discrete):
            raise EnvError(f"{settings.env_id}: ALE gave the action space {action_space}.")
        obs_space = self._games.single_observation_space
        self.allocate(settings.env_id, num_envs, first_env_id, obs_space, action_space)
        self._journal = ActionJournal(num_envs)
        self._seed: int | None = None
        self._num_resets = np.zeros(num_envs, dtype=np.int64)
        self._episode_seeds = np.zeros(num_envs, dtype=np.int64)

    def reset(self, seed: int | None) -> None:
        """Start new games everywhere."""
        if seed is not None or self._seed is None:
            self._seed = fresh_seed() if seed is None else seed
            self._num_resets[...] = 0
        self.buffers.clear_flags()
        self._reset_rows(np.ones(self.num_envs, dtype=np.bool_))

    def _reset_rows(self, mask: Array) -> None:
        if self._seed is None:
            raise EnvError(f"{self.env_id}: games were reset before reset(seed).")
        rows = np.flatnonzero(mask)
        for i in rows.tolist():
            self._episode_seeds[i] = episode_seed(
                self._seed, self.first_env_id + i, int(self._num_resets[i])
            )
        self._num_resets[rows] += 1
        self._journal.begin(rows)
        self._reset_games(mask, self._episode_seeds[rows])

    def _reset_games(self, mask: Array, seeds: Array) -> None:
        obs, info = self._games.reset(seed=seeds, options={"reset_mask": mask})
        _array(self.buffers.obs)[mask] = obs[mask] if len(obs) == self.num_envs else obs
        lives = info["lives"]
        self.buffers.lives[mask] = lives[mask] if len(lives) == self.num_envs else lives

    def begin_step(self, action: NestedArray, active: Array | None) -> None:
        """Set ALE's threads off."""
        del active  # it cannot leave any out, and nobody asks for that
        action = _array(action)
        self._journal.record(action)
        self._games.send(action)

    def finish_step(self) -> bool:
        """Wait for its threads, and reset the games that ended."""
        buffers = self.buffers
        obs, reward, terminated, truncated, info = self._games.recv()
        buffers.write_outcome(reward, terminated, truncated)
        buffers.lives[...] = info["lives"]
        np.copyto(_array(buffers.obs), obs)
        ended = buffers.terminated | buffers.truncated
        if not ended.any():
            return False
        _array(buffers.final_obs)[ended] = obs[ended]
        self._reset_rows(ended)
        return True

    def state_dict(self) -> dict[str, Any]:
        """Each game's seed and actions, and the observation that they led to."""
        return {
            "seed": self._seed,
            "num_resets": self._num_resets.copy(),
            "episode_seeds": self._episode_seeds.copy(),
            "journal": self._journal.state_dict(),
            "obs": _array(self.buffers.obs).copy(),
            "lives": self.buffers.lives.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replay each running game from its seed."""
        self._seed = None if state["seed"] is None else int(state["seed"])
        self._num_resets[...] = state["num_resets"]
        self._episode_seeds[...] = state["episode_seeds"]
        self._journal.load_state_dict(state["journal"])
        self._replay(
            np.asarray(state["journal"]["length"]), np.asarray(state["journal"]["actions"])
        )
        obs = _array(self.buffers.obs)
        same = (obs == state["obs"]).reshape(self.num_envs, -1).all(axis=1)
        if not same.all():
            index = int(np.flatnonzero(~same)[0])
            raise EnvError(
                f"{self.label(index)}: replaying the game's actions did not reproduce the saved "
                f"observation. Resume with the version of ale-py that the run was started with."
            )
        self.buffers.lives[...] = state["lives"]

    def _replay(self, length: Array, actions: Array) -> None:
        """Bring each game to the end of its own journal, the longest first.

        All step together, so a game begins (is reset) when as many steps are left as it needs.
        """
        self.buffers.clear_flags()
        everyone = np.ones(self.num_envs, dtype=np.bool_)
        self._reset_games(everyone, self._episode_seeds)
        longest = int(length.max())
        for t in range(longest):
            start = longest - length  # step at which each game begins
            begins = (start == t) & (t > 0)
            if begins.any():
                self._reset_games(begins, self._episode_seeds[begins])
            played = t >= start
            column = np.where(played, t - start, 0)
            action = np.where(played, actions[np.arange(self.num_envs), column], 0)
            obs, _, terminated, truncated, info = self._games.step(action.astype(np.int64))
            early = (terminated | truncated) & ~played
            if early.any():  # a game that only waits must not be left ended
                self._games.reset(
                    seed=self._episode_seeds[early], options={"reset_mask": early.copy()}
                )
            np.copyto(_array(self.buffers.obs), obs)
            self.buffers.lives[...] = info["lives"]
        begins = length == 0
        if longest and begins.any():
            self._reset_games(begins, self._episode_seeds[begins])

    def close(self) -> None:
        """End the threads."""
        self._games.close()


class ActionJournal:
    """Per environment, the actions since its last reset.

    Args:
        num_envs: B.
    """

    def __init__(self, num_envs: int) -> None:
        self._actions = np.zeros((num_envs, _JOURNAL_LENGTH), dtype=np.int16)
        self._length = np.zeros(num_envs, dtype=np.int64)
        self._rows = np.arange(num_envs)

    def begin(self, rows: Array) -> None:
        """Forget the actions of the environments `rows`, whose episodes ended."""
        self._length[rows] = 0

    def record(self, action: Array) -> None:
        """Add one action [B] per environment."""
        if int(self._length.max()) == self._actions.shape[1]:
            self._actions = np.pad(self._actions, ((0, 0), (0, self._actions.shape[1])))
        self._actions[self._rows, self._length] = action
        self._length += 1

    def state_dict(self) -> dict[str, Array]:
        """The lengths [B], and the actions [B, longest]."""
        longest = int(self._length.max())
        return {"length": self._length.copy(), "actions": self._actions[:, :longest].copy()}

    def load_state_dict(self, state: dict[str, Array]) -> None:
        """Take over what `state_dict` gave."""
        length, actions = np.asarray(state["length"]), np.asarray(state["actions"])
        width = _JOURNAL_LENGTH
        while width < actions.shape[1]:
            width *= 2
        self._actions = np.zeros((len(length), width), dtype=np.int16)
        self._actions[:, : actions.shape[1]] = actions
        self._length = length.astype(np.int64)


def _array(tree: NestedArray) -> Array:
    if not isinstance(tree, np.ndarray):
        raise EnvError("Atari observations and actions are single arrays.")
    return tree

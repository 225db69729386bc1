"""A game's rules made into B environments: random draws, time limit, autoreset, accounting.

One step is a pure function `advance(carry, action, active) -> carry, DeviceStep` of fixed
shapes that never waits for the device, so it can be compiled or captured in a CUDA graph.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from redline.devices import kind_of
from redline.envs.device.vec_env import DeviceStep, DeviceVecEnv
from redline.envs.games.game import Game, GameState, pick, pick_state
from redline.envs.games.ids import GAMES
from redline.envs.games.randomness import draw_words, stream_keys, uniforms, word_offsets
from redline.envs.seeding import fresh_seed
from redline.envs.vec_env import refuse_other_state
from redline.errors import (
    ActionError,
    ConfigError,
    DeviceError,
    EnvDataError,
    EnvError,
    UnknownNameError,
)

_STATE_FORMAT = 1


class Carry(NamedTuple):
    """All that a step depends on, each [B].

    Attributes:
        game: the game's own state, name -> [B, ...].
        key: int64, the environment's random stream.
        position: int64, words drawn from it.
        length: int64, steps of the running episode.
        total: float64, its rewards so far.
        episode_id: int64, its number.
        bad_action: bool, some action lay outside the action space.
        bad_reward: bool, some reward was NaN or infinite.
    """

    game: GameState
    key: Tensor
    position: Tensor
    length: Tensor
    total: Tensor
    episode_id: Tensor
    bad_action: Tensor
    bad_reward: Tensor


def make_game(env_id: str, device: torch.device | str, env_kwargs: Mapping[str, Any]) -> Game:
    """The rules of one of `ids.GAMES`.

    Raises:
        UnknownNameError: if there is no such game.
        ConfigError: if `env_kwargs` do not fit it.
    """
    if env_id not in GAMES:
        raise UnknownNameError(f"there is no native game {env_id!r}. There are {', '.join(GAMES)}.")
    module, name = GAMES[env_id]
    cls = getattr(importlib.import_module(f"redline.envs.games.{module}"), name)
    parameters = {
        known
        for base in cls.__mro__
        if "__init__" in vars(base)
        for known, parameter in inspect.signature(base.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    if unknown := sorted(set(env_kwargs) - parameters):
        takes = f"it takes {sorted(parameters)}" if parameters else "it takes none"
        raise ConfigError(f"env_kwargs {unknown} are unknown to {env_id}; {takes}.")
    try:
        return cls(device, **env_kwargs)
    except TypeError as error:
        raise ConfigError(f"env_kwargs {dict(env_kwargs)} do not fit {env_id}: {error}") from error


def require_device(device: torch.device | str) -> None:
    """Refuse a device that is not there, or on which returns cannot be summed.

    Raises:
        DeviceError: naming the reason and the fix.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise DeviceError(
            f"the environments' device {str(device)!r} cannot be used ({reason}). Use 'cpu', or "
            f"install a build of torch for it on a machine that has it."
        ) from error
    if not kind_of(device).has_float64:
        raise DeviceError(
            f"the environments' device {str(device)!r} cannot be used: returns are summed in "
            f"float64, in which it does not compute. Use --env-device cpu."
        )


class NativeEnv(DeviceVecEnv):
    """B copies of one game on one device.

    What environment i experiences depends on (seed, i) and its actions alone.

    Args:
        game: the rules, made for `device`.
        num_envs: B.
        first_env_id: index of the first environment in the whole batch.
        clip_reward: give the learner the sign of the reward.
    """

    backend = "device"
    can_idle = True

    def __init__(
        self, game: Game, num_envs: int, *, first_env_id: int = 0, clip_reward: bool = False
    ) -> None:
        self.game, self.num_envs, self.first_env_id = game, num_envs, first_env_id
        self.env_id, self.device = game.env_id, game.device
        self.observation_space = game.observation_space
        self.action_space = game.action_space
        self._clip_reward = clip_reward
        self._num_words = -(-(game.reset_draws + game.step_draws) // 2)
        self._offsets = word_offsets(self._num_words, self.device)
        # A game that begins always in the same way needs no new beginning at every step.
        no_draws = torch.empty(0, num_envs, device=self.device)
        self._beginning = None if game.reset_draws else game.reset(no_draws)
        self._all = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self._carry: Carry | None = None
        if isinstance(game.action_space, spaces.Box):
            box = game.action_space
            self._action_shape, self._action_dtype = (num_envs, *box.shape), torch.float32
            self._low = torch.as_tensor(box.low, device=self.device)
            self._high = torch.as_tensor(box.high, device=self.device)
        else:
            self._action_shape, self._action_dtype = (num_envs,), torch.int64

    # -- stepping -------------------------------------------------------------------------

    def reset(self, seed: int | None = None) -> Tensor:
        """Start a new episode everywhere; see `DeviceVecEnv.reset`."""
        carry = self._carry
        if seed is None and carry is None:
            seed = fresh_seed()
        if seed is not None:
            carry = self._seeded(seed)
        assert carry is not None  # noqa: S101 (one of the two above made it)
        words = draw_words(carry.key, carry.position, self._num_words, self._offsets)
        nothing = torch.zeros_like(carry.length)
        self._carry = carry._replace(
            game=self._begin(uniforms(words)),
            position=carry.position + self._num_words,
            length=nothing,
            total=torch.zeros_like(carry.total),
            # An episode that is given up in the middle keeps its number.
            episode_id=nothing if seed is not None else carry.episode_id + (carry.length > 0),
        )
        return self.game.observe(self._carry.game)

    def _seeded(self, seed: int) -> Carry:
        key = stream_keys(seed, self.first_env_id, self.num_envs, self.device)
        zeros = torch.zeros_like(key)
        no = torch.zeros_like(self._all)
        return Carry({}, key, zeros, zeros, zeros.double(), zeros, no, no)

    def _begin(self, uniform: Tensor) -> GameState:
        if self._beginning is not None:
            return self._beginning
        return self.game.reset(uniform[self.game.step_draws :][: self.game.reset_draws])

    def step(self, action: Any, active: Tensor | None = None) -> DeviceStep:
        """Take one step in each environment; see `DeviceVecEnv.step`."""
        if self._carry is None:
            raise ConfigError("step() was called before reset(); call reset(seed) first.")
        if action.shape != self._action_shape or action.dtype != self._action_dtype:
            raise ActionError(
                f"{self.env_id}: action must be {self._action_dtype} of shape "
                f"{self._action_shape} (environments first), got {action.dtype} of shape "
                f"{tuple(action.shape)}."
            )
        if action.device != self.device:
            raise ActionError(
                f"{self.env_id}: action is on {action.device}, the environments on {self.device}. "
                f"Move it there with action.to({str(self.device)!r})."
            )
        self._carry, step = self.advance(self._carry, action, active)
        return step

    def advance(
        self, carry: Carry, action: Tensor, active: Tensor | None = None
    ) -> tuple[Carry, DeviceStep]:
        """One step as a pure function of fixed shapes; nothing is waited for.

        Args:
            carry: before the step.
            action: [B, ...].
            active: [B] bool; None means all.
        """
        game = self.game
        words = draw_words(carry.key, carry.position, self._num_words, self._offsets)
        uniform = uniforms(words)
        action, bad_action = self._checked(action)
        state, raw_reward, terminated = game.step(carry.game, action, uniform[: game.step_draws])
        length, total = carry.length + 1, carry.total + raw_reward
        truncated = (
            torch.zeros_like(terminated)
            if game.max_episode_steps is None
            else length >= game.max_episode_steps
        )
        ended = terminated | truncated
        after = Carry(
            game=pick_state(ended, self._begin(uniform), state),
            key=carry.key,
            position=carry.position + self._num_words,
            length=length.masked_fill(ended, 0),
            total=total.masked_fill(ended, 0.0),
            episode_id=carry.episode_id + ended,
            bad_action=carry.bad_action | bad_action,
            bad_reward=carry.bad_reward | ~raw_reward.isfinite(),
        )
        reward = raw_reward.sign() if self._clip_reward else raw_reward
        if active is not None:
            after = _only(active, after, carry)
            reward = reward.masked_fill(~active, 0.0)
            terminated, truncated, ended = (
                terminated & active,
                truncated & active,
                ended & active,
            )
        return after, DeviceStep(
            obs=game.observe(after.game),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            valid=self._all if active is None else active,
            final_obs=game.observe(state),
            episode_id=carry.episode_id,
            episode_ended=ended,
            episode_return=total,
            episode_length=length,
        )

    def _checked(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """An action that the game can take, and where it is not the one that was given."""
        if isinstance(self.action_space, spaces.Discrete):
            inside = action.clamp(0, int(self.action_space.n) - 1)
            return inside, inside != action
        inside = (action >= self._low) & (action <= self._high)  # false for NaN
        return torch.where(inside, action, 0.0), ~inside.flatten(1).all(1)

    def carried(self) -> Any:
        """See `DeviceVecEnv.carried`."""
        return None if self._carry is None else self._carry._asdict()

    def take_carried(self, carried: Any) -> None:
        """See `DeviceVecEnv.take_carried`."""
        self._carry = Carry(**carried)

    @property
    def in_episode(self) -> Tensor:
        """[B] bool, the environments that are in the middle of an episode."""
        return ~self._all if self._carry is None else self._carry.length > 0

    def raise_faults(self) -> None:
        """Look for what went wrong since the last look; see `DeviceVecEnv.raise_faults`."""
        if self._carry is None:
            return
        carry = self._carry
        bad = torch.stack([carry.bad_action, carry.bad_reward]).cpu().numpy()
        if not bad.any():
            return
        no = torch.zeros_like(carry.bad_action)
        self._carry = carry._replace(bad_action=no, bad_reward=no)
        name = f"{self.env_id}, environment {self.first_env_id + int(np.argmax(bad.any(0)))}"
        if bad[0].any():
            name = f"{self.env_id}, environment {self.first_env_id + int(np.argmax(bad[0]))}"
            raise ActionError(
                f"{name}: an action lay outside {self.action_space} since the last check. Clip or "
                f"squash actions before they reach the environment; they are zero-based."
            )
        raise EnvDataError(
            f"{name}: a reward was NaN or infinite since the last check. Look at the actions "
            f"that it was given."
        )

    # -- saving ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit; see `DeviceVecEnv.state_dict`."""
        if self._carry is None:
            raise EnvError("there is no state to save before reset(); call reset(seed) first.")
        carry = self._carry._asdict()
        game = carry.pop("game")
        return {
            "format": _STATE_FORMAT,
            "env_id": self.env_id,
            "backend": self.backend,
            "game": {name: leaf.cpu().numpy().copy() for name, leaf in game.items()},
            "carry": {name: leaf.cpu().numpy().copy() for name, leaf in carry.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> Tensor:
        """Go on from `state`; see `DeviceVecEnv.load_state_dict`."""
        refuse_other_state(state, format=_STATE_FORMAT, env_id=self.env_id, backend=self.backend)
        pattern = self._seeded(0)
        game = self._begin(torch.zeros(2 * self._num_words, self.num_envs, device=self.device))
        saved = state["carry"]
        parts = {
            name: self._restored(name, saved.get(name), leaf)
            for name, leaf in pattern._asdict().items()
            if name != "game"
        }
        self._carry = Carry(
            game={
                name: self._restored(name, state["game"].get(name), leaf)
                for name, leaf in game.items()
            },
            **parts,
        )
        return self.game.observe(self._carry.game)

    def _restored(self, name: str, saved: Any, pattern: Tensor) -> Tensor:
        """A saved array as a tensor, if it is what `pattern` is."""
        given = None if saved is None else torch.from_numpy(np.array(saved))
        if given is None or given.shape != pattern.shape or given.dtype != pattern.dtype:
            what = "missing" if given is None else f"{given.dtype} of {tuple(given.shape)}"
            raise EnvError(
                f"{self.env_id}: {name!r} in the saved state is {what}, not {pattern.dtype} of "
                f"{tuple(pattern.shape)}. Resume with the same num_envs and env_kwargs."
            )
        return given.to(self.device)

    def close(self) -> None:
        """Forget the state."""
        self._carry = None


def _only(active: Tensor, after: Carry, before: Carry) -> Carry:
    """`after` where active, else `before`."""
    stepped = {
        name: pick(active, leaf, getattr(before, name))
        for name, leaf in after._asdict().items()
        if name not in ("game", "key")
    }
    return after._replace(game=pick_state(active, after.game, before.game), **stepped)

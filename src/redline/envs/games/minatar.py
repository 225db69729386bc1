"""MinAtar's five games (Young and Tian 2019, arXiv:1903.03176) as Gymnasium environments.

Ids are "MinAtar/Breakout-v1" and so on: v1 has the game's minimal action set, v0 all six
actions. Sticky actions 0.1 and difficulty ramping, as in the paper. Observations are
uint8 [C, 10, 10], one channel per kind of object, 1 where there is one.

Sticky actions and game draw from one generator, which a seeded reset renews and which is
saved with the game.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from redline.errors import ConfigError, MissingExtraError, UnknownNameError
from redline.nested import Array

PREFIX = "MinAtar/"
_GAMES = {
    "Asterix": "asterix",
    "Breakout": "breakout",
    "Freeway": "freeway",
    "Seaquest": "seaquest",
    "SpaceInvaders": "space_invaders",
}
IDS = tuple(f"{PREFIX}{name}-{version}" for name in _GAMES for version in ("v0", "v1"))


def make_minatar(env_id: str, env_kwargs: dict[str, Any]) -> gymnasium.Env[Array, Any]:
    """One game.

    Args:
        env_id: one of `IDS`.
        env_kwargs: `sticky_action_prob` (default 0.1), `difficulty_ramping` (default true).

    Raises:
        UnknownNameError: if there is no such game.
        MissingExtraError: if minatar is not installed.
    """
    if env_id not in IDS:
        raise UnknownNameError(f"there is no MinAtar game {env_id!r}. There are {', '.join(IDS)}.")
    allowed = {"sticky_action_prob", "difficulty_ramping", "render_mode"}
    if unknown := sorted(set(env_kwargs) - allowed):
        raise ConfigError(f"env_kwargs {unknown} are unknown to {env_id}; it takes {allowed}.")
    name, version = env_id.removeprefix(PREFIX).split("-")
    return MinAtarGame(_GAMES[name], minimal_actions=version == "v1", **env_kwargs)


class MinAtarGame(gymnasium.Env[Array, Any]):
    """One MinAtar game.

    Args:
        game: its name in snake_case.
        minimal_actions: leave out actions without effect.
        sticky_action_prob: probability of repeating the last action.
        difficulty_ramping: let games grow harder.
        render_mode: None or "rgb_array".
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012

    def __init__(
        self,
        game: str,
        *,
        minimal_actions: bool = True,
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
        render_mode: str | None = None,
    ) -> None:
        self._game = _environment(game, sticky_action_prob, difficulty_ramping)
        self._use_random(np.random.RandomState())
        self.render_mode = render_mode
        actions = self._game.minimal_action_set() if minimal_actions else range(6)
        self._actions = [int(action) for action in actions]
        rows, columns, channels = self._game.state_shape()
        self.observation_space = spaces.Box(0, 1, (channels, rows, columns), dtype=np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start a new game; a seed begins a new stream of games."""
        super().reset(seed=seed)
        if seed is not None:
            self._use_random(np.random.RandomState(seed))
        self._game.last_action = 0
        self._game.reset()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """One frame."""
        reward, terminated = self._game.act(self._actions[int(action)])
        return self._observation(), float(reward), bool(terminated), False, {}

    def render(self) -> Array | None:
        """The board as an RGB image of 160 x 160 pixels, a color for each kind of object."""
        if self.render_mode is None:
            return None
        kinds = np.arange(1, self.observation_space.shape[0] + 1)  # pyright: ignore[reportOptionalSubscript]
        board = (self._observation() * kinds[:, None, None]).max(axis=0)
        hues = np.array(
            [[37 * n % 256, 91 * n % 256, 173 * n % 256] for n in range(len(kinds) + 1)]
        )
        image = hues.astype(np.uint8)[board]
        return image.repeat(16, axis=0).repeat(16, axis=1)

    def get_state(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        inner = {name: part for name, part in vars(self._game.env).items() if name != "random"}
        return {"game": inner, "random": self._game.random, "last": int(self._game.last_action)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        for name, part in state["game"].items():
            setattr(self._game.env, name, part)
        self._use_random(state["random"])
        self._game.last_action = state["last"]

    def _use_random(self, random: np.random.RandomState) -> None:
        # The sticky actions and the game draw from one stream, as in the package.
        self._game.random = random
        self._game.env.random = random

    def _observation(self) -> Array:
        return np.ascontiguousarray(np.moveaxis(self._game.state(), 2, 0), dtype=np.uint8)


def _environment(game: str, sticky_action_prob: float, difficulty_ramping: bool) -> Any:
    try:
        from minatar import Environment
    except ImportError as error:
        raise MissingExtraError("minatar", "minatar", "MinAtar games") from error
    return Environment(game, sticky_action_prob, difficulty_ramping)

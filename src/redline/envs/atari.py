"""Atari games: the two protocols in use, and one game in process.

| | `dqn-2015` | `machado-2018` |
|---|---|---|
| source | Mnih et al. 2015, Methods and extended data table 1 | Machado et al. 2018, section 5 |
| no-ops at the start | 1 to 30 | none |
| fire at the start, where a game has it | yes | no |
| sticky actions | none | 0.25 |
| actions | the game's minimal set | all 18 |
| a lost life ends the learner's episode | yes | no |
| rewards for the learner | their sign | their sign |

Both: 84 x 84 gray frames, 4 stacked, 4 skipped with the maximum of the last two, at most
108,000 frames a game (30 minutes). Machado et al. leave the reward to the agent; its sign
is what Dopamine's agents take. The game's score is always reported as it is.

A lost life does not reset or press anything: the game simply goes on.

Where a run asks for something else than its protocol, `AtariPreset.changed` says what.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from redline.envs.snapshot import restore_ale, save_ale
from redline.errors import ConfigError, MissingExtraError, UnknownNameError
from redline.nested import Array
from redline.plain_text import shown
from redline.registry import PYTHON_ONLY

FRAME_SKIP = 4
FRAME_STACK = 4
SIZE = 84
MAX_FRAMES = 108_000
DEFAULT_PRESET = "dqn-2015"
PREFIX = "ALE/"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtariPreset:
    """The settings in which Atari protocols differ."""

    name: str
    max_noops: int  # at the start of a game, drawn from 1 .. max_noops; 0 for none
    fire_reset: bool  # press fire once at the start, where the game has it
    sticky_probability: float  # of repeating the last executed action, at every frame
    full_action_set: bool
    episodic_life: bool  # a lost life ends the learner's episode
    clip_reward: bool  # the learner sees the reward's sign
    frame_skip: int = FRAME_SKIP  # frames that an action is held; the last two are shown

    def changed(
        self,
        *,
        clip_reward: bool | None,
        episodic_life: bool | None,
        sticky_actions: float | None,
        noop_max: int | None,
        frame_skip: int | None,
    ) -> AtariPreset:
        """The protocol with what was asked for in place of its own; None: its own.

        Raises:
            ConfigError: if a value is out of range.
        """
        if sticky_actions is not None and not 0.0 <= sticky_actions < 1.0:
            raise ConfigError(
                f"sticky_actions={sticky_actions} is no probability below 1 of repeating the last "
                f"action. Use 0 for none, or 0.25 as Machado et al. 2018 do."
            )
        if noop_max is not None and noop_max < 0:
            raise ConfigError(f"noop_max={noop_max} is negative. Use 0 for no no-ops at the start.")
        if frame_skip is not None and frame_skip < 1:
            raise ConfigError(f"frame_skip={frame_skip} must be at least 1, which skips nothing.")
        asked = {
            "clip_reward": clip_reward,
            "episodic_life": episodic_life,
            "sticky_probability": sticky_actions,
            "max_noops": noop_max,
            "frame_skip": frame_skip,
        }
        return replace(self, **{name: value for name, value in asked.items() if value is not None})


PRESETS = {
    preset.name: preset
    for preset in (
        AtariPreset(
            name="dqn-2015",
            max_noops=30,
            fire_reset=True,
            sticky_probability=0.0,
            full_action_set=False,
            episodic_life=True,
            clip_reward=True,
        ),
        AtariPreset(
            name="machado-2018",
            max_noops=0,
            fire_reset=False,
            sticky_probability=0.25,
            full_action_set=True,
            episodic_life=False,
            clip_reward=True,
        ),
    )
}


def is_atari(env: Any) -> bool:
    """Whether `env` is an id of an Atari game that the presets are made for.

    Gymnasium's `module:Id` is the same game as `Id`. What a label of code has as arguments is none.
    """
    if not isinstance(env, str) or env.startswith(PYTHON_ONLY):
        return False
    return env.rpartition(":")[2].startswith(PREFIX)


def is_old_id(spec: Any) -> bool:
    """Whether a spec's id is one of the many that Atari games had before ALE/*-v5."""
    return spec.id.endswith(("-v0", "-v4")) and str(spec.entry_point).startswith(
        ("ale_py", "shimmy")
    )


def id_of_today(env: str) -> str | None:
    """The `ALE/*-v5` id of the game that a registered old id names; None for all other ids."""
    spec = gymnasium.registry.get(env.rpartition(":")[2])
    if spec is None or not is_old_id(spec):
        return None
    game = spec.kwargs.get("game")
    ids = (name for name, each in gymnasium.registry.items() if each.kwargs.get("game") == game)
    return next((name for name in ids if name.startswith(PREFIX)), None)


def find_preset(name: str | None) -> AtariPreset:
    """The preset called `name`; None means `dqn-2015`.

    Raises:
        UnknownNameError: if there is none of this name.
    """
    name = DEFAULT_PRESET if name is None else name
    if name not in PRESETS:
        raise UnknownNameError(
            f"there is no Atari preset {shown(name)}. Choose one of {', '.join(sorted(PRESETS))}."
        )
    return PRESETS[name]


def register_games() -> None:
    """Make the `ALE/*-v5` ids known to Gymnasium.

    Raises:
        MissingExtraError: if ale-py is not installed.
    """
    try:
        import ale_py
    except ImportError as error:
        raise MissingExtraError("ale_py", "atari", "Atari games") from error
    gymnasium.register_envs(ale_py)
    # One banner per process and game would drown the progress bar.
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def rom_of(env_id: str) -> str:
    """The ROM's name in snake_case: "ALE/MsPacman-v5" is "ms_pacman"."""
    return str(gymnasium.spec(env_id).kwargs["game"])


def make_atari(env_id: str, preset: AtariPreset, env_kwargs: dict[str, Any]) -> gymnasium.Env:
    """One game under a protocol.

    Args:
        env_id: an `ALE/*-v5` id.
        preset: the protocol.
        env_kwargs: `mode`, `difficulty` or `render_mode` of ale_py's environment.

    Raises:
        ConfigError: if `env_kwargs` has settings that the protocol fixes.
        MissingExtraError: if ale-py is not installed.
    """
    register_games()
    fixed = sorted(set(env_kwargs) - {"mode", "difficulty", "render_mode"})
    if fixed:
        raise ConfigError(
            f"env_kwargs {fixed} of {env_id} are fixed by the preset {preset.name!r}. Only mode, "
            f"difficulty and render_mode can be set here; clip_reward, episodic_life, "
            f"sticky_actions, noop_max and frame_skip are settings of their own. Pass a callable "
            f"for another protocol."
        )
    game = gymnasium.make(
        env_id,
        disable_env_checker=True,
        frameskip=1,
        repeat_action_probability=0.0,
        full_action_space=preset.full_action_set,
        max_num_frames_per_episode=MAX_FRAMES,
        **env_kwargs,
    )
    return AtariGame(game.unwrapped, preset)


class AtariGame(gymnasium.Env[Array, Any]):
    """One game in process, with observations uint8 [4, 84, 84], the newest frame last.

    Sticky actions are drawn here rather than in ALE, which does not save its last
    executed action and so could not be restored bit for bit.

    Args:
        game: ale_py's environment without frame skip and sticky actions; owned from now on.
        preset: the protocol.
    """

    def __init__(self, game: Any, preset: AtariPreset) -> None:
        self._game, self._ale, self._preset = game, game.ale, preset
        meanings = game.get_action_meanings()
        self._actions = list(game._action_set)
        self._noop = self._actions[meanings.index("NOOP")]
        self._fire = self._actions[meanings.index("FIRE")] if "FIRE" in meanings else None
        self._last = 0  # number of the last executed action, what a sticky one repeats
        self.render_mode = game.render_mode
        self.metadata = game.metadata
        self.spec = game.spec
        height, width = self._ale.getScreenDims()
        self._screens = np.zeros((2, height, width), dtype=np.uint8)
        self._resize = AreaResize(height, width)
        self._stack = np.zeros((FRAME_STACK, SIZE, SIZE), dtype=np.uint8)
        self.observation_space = spaces.Box(0, 255, self._stack.shape, dtype=np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Start a new game, with no-ops and fire as the protocol says."""
        super().reset(seed=seed)
        self._game.reset(seed=seed)
        self._last = 0
        noops = (
            int(self.np_random.integers(1, self._preset.max_noops + 1))
            if self._preset.max_noops
            else 0
        )
        for _ in range(noops):
            self._ale.act(self._noop)
            if self._ale.game_over():
                self._ale.reset_game()
        if self._preset.fire_reset and self._fire is not None:
            self._ale.act(self._fire)
            if self._ale.game_over():
                self._ale.reset_game()
        self._ale.getScreenGrayscale(self._screens[1])
        self._stack[:] = self._resize(self._screens[1])
        return self._stack.copy(), {"lives": self._ale.lives()}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """As many frames of one action as are skipped, of which the last two are shown."""
        ale, reward, skip = self._ale, 0, self._preset.frame_skip
        sticky = self._preset.sticky_probability
        repeats = self.np_random.random(skip) < sticky if sticky else None
        self._screens[:] = 0
        for frame in range(skip):
            if repeats is None or not repeats[frame]:
                self._last = int(action)
            reward += ale.act(self._actions[self._last])
            if frame >= skip - 2:
                ale.getScreenGrayscale(self._screens[frame - (skip - 2)])
            if ale.game_over():
                if frame < skip - 2:
                    ale.getScreenGrayscale(self._screens[1])
                break
        np.maximum(self._screens[0], self._screens[1], out=self._screens[1])
        self._stack[:-1] = self._stack[1:]
        self._stack[-1] = self._resize(self._screens[1])
        return (
            self._stack.copy(),
            float(reward),
            ale.game_over(with_truncation=False),
            ale.game_truncated(),
            {"lives": ale.lives()},
        )

    def render(self) -> Any:
        """The game's screen, if made with render_mode="rgb_array"."""
        return self._game.render()

    def close(self) -> None:
        """Close the game."""
        self._game.close()

    def get_state(self) -> dict[str, Any]:
        """All that the next steps depend on."""
        return {
            "system": save_ale(self._ale),
            "stack": self._stack,
            "last": self._last,
            "random": self.np_random,
            "game_random": self._game.np_random,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        restore_ale(self._ale, state["system"])
        self._stack[:] = state["stack"]
        self._last = state["last"]
        self.np_random = state["random"]
        self._game.np_random = state["game_random"]


class AreaResize:
    """Area interpolation of a gray image to 84 x 84, exact.

    Each target pixel is the mean of the source pixels under it, weighted by overlap
    (OpenCV's INTER_AREA), rounded half to even. The weights are whole numbers and the sums
    stay below 2**24, so float32 matrix products give the same bytes on every machine.

    Args:
        height, width: of the source image, in pixels.
    """

    def __init__(self, height: int, width: int) -> None:
        rows, columns = _overlaps(height), _overlaps(width)
        self._rows, self._columns = rows, np.ascontiguousarray(columns.T)
        self._total = np.float32(rows[0].sum() * columns[0].sum())

    def __call__(self, image: Array) -> Array:
        """The [84, 84] uint8 of a [height, width] uint8 image, which is left as it is."""
        total = self._rows @ image.astype(np.float32) @ self._columns
        return np.rint(total / self._total).astype(np.uint8)


def _overlaps(length: int) -> Array:
    """[84, length] float32: overlap of each target pixel with each source pixel.

    In units in which both pixel sizes are whole: a source pixel is 84/g long, a target
    pixel length/g, with g their greatest common divisor.
    """
    divisor = gcd(length, SIZE)
    source, target = SIZE // divisor, length // divisor
    weights = np.zeros((SIZE, length), dtype=np.float32)
    for row in range(SIZE):
        for column in range(length):
            begin = max(row * target, column * source)
            end = min((row + 1) * target, (column + 1) * source)
            weights[row, column] = max(0, end - begin)
    return weights

"""Episodes in a window: `redline eval --render human`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redline.envs import EnvSettings, VecEnv
from redline.errors import ConfigError
from redline.train.runs.video import drawing_settings

_NO_DISPLAY = (
    "the environment could not open a window: this process has no display (neither DISPLAY nor "
    "WAYLAND_DISPLAY is set). Run it where there is one, or write a video instead: --video."
)
_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "MUJOCO_GL")


def windowed(settings: EnvSettings, num_envs: int) -> VecEnv:
    """One environment that shows itself in a window as it is stepped.

    Args:
        settings: how the run makes its environments.
        num_envs: 1.

    Raises:
        ConfigError: if it shows none.
    """
    _require_window(settings)
    return drawing_settings(settings, "human").make(num_envs)


def _require_window(settings: EnvSettings) -> None:
    """Refuse an environment that would show nothing, before anything is run."""
    env: Any = drawing_settings(settings, None).single().make()
    try:
        modes = list(map(str, env.metadata.get("render_modes", [])))
        mode = env.render_mode
    finally:
        env.close()
    if isinstance(settings.env, str):
        # Gymnasium shows the pictures of an environment that has no window of its own.
        shows = not {"human", "rgb_array"}.isdisjoint(modes)
        reason = f"its render modes are {modes or 'none'}"
    else:
        shows = mode == "human"
        reason = f"it was made with render_mode={mode!r}"
    if not shows:
        raise ConfigError(
            f"{settings.env_id} shows no window: {reason}. Give an environment that draws itself, "
            f"made with render_mode='human' if it is a Python object."
        )


@contextmanager
def explained_window(render: str | None) -> Iterator[None]:
    """Say so where an environment fails to open its window because there is no display.

    Args:
        render: what was asked for; None: nothing is to be explained.

    Raises:
        ConfigError: in place of the graphics library's error.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if render is None or not _lacks_display():
            raise
        raise ConfigError(f"{_NO_DISPLAY} The environment said: {error}") from error


def refuse_unseen(on_step: Callable[[Any], None] | None) -> Callable[[Any], None]:
    """What to call after every step in a window, which looks whether there is one.

    pygame draws on without a display, where nobody sees it.

    Args:
        on_step: what else to call; None: nothing.
    """

    def call(ended: Any) -> None:
        if _lacks_display() and _draws_unseen(sys.modules.get("pygame")):
            raise ConfigError(_NO_DISPLAY)
        if on_step is not None:
            on_step(ended)

    return call


def _draws_unseen(pygame: Any) -> bool:
    """Whether pygame, if it is there, draws into memory."""
    if pygame is None or not pygame.display.get_init():
        return False
    return pygame.display.get_driver() in ("dummy", "offscreen")


def _lacks_display() -> bool:
    return sys.platform.startswith("linux") and not any(map(os.environ.get, _DISPLAYS))

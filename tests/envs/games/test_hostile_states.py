"""Saved states of Redline's own environments, altered: refused, not taken and crashed on later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from redline.envs import make_vec
from redline.envs.plain_data import decode, encode
from redline.errors import CorruptCheckpointError, EnvError

MINATAR, REACH, MAZE = "MinAtar/Breakout-v1", "redline/PointReach-v1", "redline/TMaze-v1"


def _in_game(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["game"].update(values)


def _at_top(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.update(values)


def _without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda state: state.pop(name)


@pytest.mark.parametrize(
    ("env_id", "alter", "said"),
    [
        # An attribute in front of a method: the next step called a number.
        (MINATAR, _in_game(act=1), "sets 'game.act', which this environment does not have"),
        (MINATAR, _in_game(ball_x="left"), "'game.ball_x' is a str, and here it is a number"),
        (MINATAR, _in_game(brick_map=np.zeros((2, 2))), r"shape \(2, 2\), and here"),
        (MINATAR, _without("random"), "lacks 'random"),
        (MINATAR, _in_game(ball_x=None), "cannot be taken"),
        ("MinAtar/Asterix-v1", _in_game(entities=["x"] * 8), "cannot be taken"),
        (MINATAR, _at_top(**{"game.ball_x": 3}), "lacks"),
        (MINATAR, _at_top(game=3), "lacks 'game.action_map'"),
        (REACH, _at_top(place=np.zeros(7)), r"shape \(7,\), and here"),
        (REACH, _at_top(steps=[]), "'steps' is a list, and here it is a number"),
        (MAZE, _at_top(position={"a": 1}), "lacks 'position'"),
        (MAZE, _without("steps"), "lacks 'steps'"),
    ],
)
def test_an_altered_state_is_refused(
    env_id: str, alter: Callable[[dict[str, Any]], None], said: str
) -> None:
    with make_vec(env_id, 1, backend="gymnasium") as env:
        env.reset(0)
        saved = env.state_dict()
        env.load_state_dict(saved)
        inner = decode(saved["simulators"]["envs"][0]["inner"])
        alter(inner)
        saved["simulators"]["envs"][0]["inner"] = encode(inner)
        with pytest.raises((EnvError, CorruptCheckpointError), match=said):
            env.load_state_dict(saved)


def test_an_altered_state_of_an_atari_game_is_refused() -> None:
    pytest.importorskip("ale_py")
    with make_vec("ALE/Pong-v5", 1, backend="gymnasium") as env:
        env.reset(0)
        env.step(np.array([1]))
        saved = env.state_dict()
        env.load_state_dict(saved)
        inner = decode(saved["simulators"]["envs"][0]["inner"])
        inner["last"] = "up"
        saved["simulators"]["envs"][0]["inner"] = encode(inner)
        with pytest.raises(EnvError, match="'last' is a str, and here it is a number"):
            env.load_state_dict(saved)

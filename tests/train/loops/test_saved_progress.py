"""Counters, sums and lists of a checkpoint are of their kind, or it is refused with their place."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import redline
from redline.data import Rollout
from redline.errors import CorruptCheckpointError, EnvError
from redline.train.loops.saved_progress import require_sound_progress

SOUND: dict[str, Any] = {
    "counters": {"iteration": 3, "env_steps": 96, "wall_time_s": 0.5},
    "metrics": {"totals": {"loss": float("nan")}, "count": 2},
    "episodes": {"returns": [1.0, 2], "lengths": [3], "recent": [], "infos": {"x": [1.0]}},
    "logger": {"rows": 2, "columns": ["env_steps"], "last_env_steps": -1},
    "last_evaluation": {"eval_return_mean": 1.5, "eval_success_rate": None},
    "staleness": [0, 1],
    "learning": {"updates_owed": 0.25, "samples_used": 64, "reward_scaler": None},
    "of a later version": "anything",
}


def test_what_a_run_saves_is_sound() -> None:
    require_sound_progress(SOUND)
    require_sound_progress({})


@pytest.mark.parametrize(
    ("trail", "value"),
    [
        ("metrics.count", ""), ("metrics.count", -1), ("metrics.count", 1.5),
        ("metrics.totals", []), ("metrics.totals.loss", "1"), ("metrics.totals.loss", 10**400),
        ("counters.iteration", None), ("counters.env_steps", 10**30),
        ("counters.wall_time_s", float("nan")), ("counters.wall_time_s", -1.0),
        ("episodes.returns", {}), ("episodes.returns", [[]]), ("episodes.infos", "x"),
        ("episodes.infos.x", [None]), ("logger.rows", "2"), ("logger.columns", [7]),
        ("logger.last_env_steps", None), ("last_evaluation", 3), ("staleness", [[]]),
        ("learning.updates_owed", 1e308), ("learning.updates_owed", float("nan")),
        ("learning.samples_used", "x"), ("learning", None),
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_its_place(trail: str, value: Any) -> None:
    """Text in the place of a counter was a TypeError of the first update after a resume."""
    state = copy.deepcopy(SOUND)
    *way, last = trail.split(".")
    holder = state
    for key in way:
        holder = holder[key]
    holder[last] = value
    with pytest.raises(CorruptCheckpointError, match=rf"state\.{trail}.* should be "):
        require_sound_progress(state)


def test_rollouts_without_a_step_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged limit on episodes left every environment idle, and the run went on for ever."""
    monkeypatch.setattr(Rollout, "num_valid", lambda self: 0)
    with pytest.raises(EnvError, match="no environment took a step in 9 rollouts"):
        redline.train(
            "a2c", env="CartPole-v1", total_env_steps=64, out=tmp_path / "run", quiet=True
        )


def test_an_empty_rollout_now_and_then_is_usual(tmp_path: Path) -> None:
    """A row begins each episode there; with one environment and rollouts of one row it is alone."""
    env = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")])
    run = redline.train(
        "dqn",
        env=env,
        preset="default",
        rollout_length=1,
        learning_starts=32,
        target_update_interval=8,
        total_env_steps=96,
        out=tmp_path / "run",
        quiet=True,
    )
    assert run.exit_code == 0

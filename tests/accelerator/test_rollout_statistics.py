"""Statistics that scale rewards and normalize observations, moved on inside the update's graph."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

import redline
from redline.errors import CallbackError
from redline.train.callbacks import RunState
from redline.train.runs.run import Run
from tests.accelerator.test_runs import run

SCALED: dict[str, Any] = {
    "normalize_obs": True,
    "scale_reward": True,
    "total_env_steps": 64,
    "learning_rate_schedule": "linear",
    "clip_range_schedule": "linear",
}


def metrics_of(made: Run) -> list[dict[str, str]]:
    with (made.out / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in ("wall_time_s", "sps")} for row in rows]


class FailsInTheMiddle:
    """Once: not where the run goes on."""

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails

    def on_iteration(self, state: RunState) -> None:
        if self._fails and state.env_steps >= 32:
            raise RuntimeError("half of it")

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("name", ["ppo", "ppo-host-envs"])
def test_a_captured_run_is_the_eager_one_to_the_bit(name: str, tmp_path: Path) -> None:
    """Parameters, statistics and every metric of every row, though resumed in the middle."""
    eager = run(tmp_path / "eager", name, **SCALED, accelerate="eager")
    with pytest.raises(CallbackError, match="half of it"):
        run(tmp_path / "fast", name, **SCALED, accelerate="cudagraph",
            callbacks=[FailsInTheMiddle(fails=True)])  # fmt: skip
    fails_no_more = [FailsInTheMiddle(fails=False)]
    whole = redline.train(resume=tmp_path / "fast", quiet=True, callbacks=fails_no_more)
    rows, eager_rows = metrics_of(whole), metrics_of(eager)
    assert (rows[0], rows[-1]) == (eager_rows[0], eager_rows[-1])  # the failure took a row
    wanted, found = eager.checkpoint().state, whole.checkpoint().state
    assert found["learning"]["reward_scaler"]["count"] == 64
    for part in ("algorithm", "learning"):
        assert flat(found[part]) == flat(wanted[part])


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Every leaf as plain numbers."""
    if isinstance(tree, dict):
        parts = [flat(part, f"{prefix}.{name}") for name, part in tree.items()]
        return {name: leaf for part in parts for name, leaf in part.items()}
    return {prefix: tree.tolist() if isinstance(tree, torch.Tensor) else str(tree)}

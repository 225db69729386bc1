"""Environments in worker processes, the policy on the device: captured as eager, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.accelerator.test_rollout_statistics import flat, metrics_of
from tests.accelerator.test_runs import run

WORKERS: dict[str, Any] = {"num_workers": 2, "num_envs": 4, "rollout_length": 4}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ppo-host-envs", {"collector": "central", "num_minibatches": 2}),
        ("ppo-host-envs", {"collector": "alternating", "num_minibatches": 2}),
        ("dqn-host-envs", {"collector": "central"}),
    ],
    ids=["central", "alternating", "central-dqn"],
)
def test_a_captured_run_with_workers_is_the_eager_one(
    name: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Parameters, statistics and every metric of every row."""
    chosen = WORKERS | {"total_env_steps": 48} | settings
    made = [
        run(tmp_path / mode, name, **chosen, accelerate=mode) for mode in ("eager", "cudagraph")
    ]
    eager, fast = made
    assert fast.config.run.accelerate == "cudagraph"
    assert metrics_of(fast) == metrics_of(eager)
    for part in ("algorithm", "learning"):
        wanted = flat(eager.checkpoint().state[part])
        assert flat(fast.checkpoint().state[part]) == wanted

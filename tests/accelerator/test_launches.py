"""`benchmarks.launches` counts what the host launches."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import launches


@pytest.mark.parametrize("mode", launches.MODES)
def test_launches_of_a_small_workload(mode: str, tmp_path: Path) -> None:
    row = launches.measure("dqn", mode, env="redline/CartPole-v1", batch_size=8, replay_ratio=0.8,
                           learning_starts=40, total_env_steps=120, hidden_sizes=(8,),
                           target_update_interval=2)  # fmt: skip
    if mode == "cudagraph":
        # One graph; two copies of what replay makes anew for each batch, two of what came out.
        assert 1 <= row["update"]["launches"] <= 5
    else:
        assert row["update"]["launches"] > 30
    assert row["update"]["waits"] == 0
    assert row["update"]["copied_bytes"] == 0
    launches.write([row], tmp_path)
    assert f"| dqn | {mode} |" in (tmp_path / "launches.md").read_text()

"""The figures of the profiler's measurements, worked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.profiler.tables import bias, overheads, share_differences, write_tables


def one_round(plain_s: float, light_s: float, full_s: float, taken_out_s: float) -> dict[str, Any]:
    times = {"unprofiled": plain_s, "light": light_s, "full": full_s}
    found: dict[str, Any] = {
        mode: {"wall_s": s, "cpu_s": s / 2, "loop_s": s - 1} for mode, s in times.items()
    }
    found["full"] |= {
        "taken_out_s": taken_out_s,
        "attributed": 0.995,
        "dropped_events": 0,
        "overhead": {"unit_ns": 80.0, "corrected": taken_out_s > 0, "count": 10},
    }
    return found


ROUNDS = [one_round(10, 10.1, 11, 0.9), one_round(20, 20.4, 21, 1.4), one_round(8, 8, 10, 1)]


def test_overheads_are_of_the_same_round() -> None:
    assert overheads(ROUNDS, "light", "wall_s") == pytest.approx([0.01, 0.02, 0.0])
    assert overheads(ROUNDS, "full", "loop_s") == pytest.approx([1 / 9, 1 / 19, 2 / 7])


def test_the_bias_is_the_median_of_corrected_over_unprofiled() -> None:
    # 10.1 / 10, 19.6 / 20, 9 / 8; of CPU time: (5.5 - 0.9) / 5, (10.5 - 1.4) / 10, (5 - 1) / 4
    assert bias(ROUNDS, "wall_s") == pytest.approx(0.01)
    assert bias(ROUNDS, "cpu_s") == pytest.approx(-0.08)


def test_share_differences_are_averaged_over_the_sampled_rounds() -> None:
    def sampled(python: float) -> dict[str, Any]:
        row = {"name": "python", "measured": 0.5, "sampled": python, "samples": 100}
        return {**ROUNDS[0], "sample": {"levels": [row]}}

    found = share_differences([sampled(0.52), sampled(0.49), ROUNDS[1]])
    assert found == pytest.approx({"python": 0.005})


def test_tables_are_written_beside_the_results(tmp_path: Path) -> None:
    path = tmp_path / "python-3.12.json"
    content = {
        "machine": {"cores": "2"},
        "versions": {"python": "3.12.1"},
        "scale": 1.0,
        "commands": ["python -m benchmarks.profiler programs"],
        "programs": {"redline ppo": ROUNDS, "redline sac": []},
    }
    path.write_text(json.dumps(content))
    tables = write_tables(path)
    assert "| redline ppo | 3 | 10.00 | +1.0% (+0.0% to +2.0%) |" in tables
    assert "wall: mean absolute 1.0%, worst 1.0%" in tables
    assert "redline sac" not in tables
    assert tables in path.with_suffix(".md").read_text()
    rows = json.loads((tmp_path / "python-3.12-bias.json").read_text())
    assert rows[0]["workload"] == "redline ppo"
    assert rows[0]["corrected_s"] == pytest.approx(10.1)

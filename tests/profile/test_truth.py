"""A slice of the table of truth: `python -m benchmarks.truth` measures the whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.truth import __main__ as truth
from benchmarks.truth.__main__ import measure, table

pytestmark = pytest.mark.usefixtures("with_scheduler")


@pytest.mark.parametrize("name", ["with lock", "flock"])
def test_waits_of_known_length_are_waiting(name: str, stubs: Path) -> None:
    """A lock held by a thread, and a file locked by a process: not calls of Python code, not work.

    On a busy machine the ends of a wait are `ready`, so the bound is from one side.
    """
    rows = measure(sys.executable, name, 0.4, stubs, processes=1, tries=0)
    waits = {row["part"]: row for row in rows}[name]
    assert waits["kind"] == "waits"
    assert waits["raw_s"] > 0.5 * waits["true_s"] > 0
    flat: dict[str, Any] = {row["part"]: row for row in rows}["flat"]
    assert flat["raw_s"] > 0
    assert "within 6%" in table(rows)


def row_of(drift: float, corrected_s: float = 1.0, *, corrected: bool = True) -> dict[str, Any]:
    """True is 1 s, the interval reaches 0.02 s to both sides."""
    ends = {"ci_low_s": corrected_s - 0.02, "ci_high_s": corrected_s + 0.02}
    known = {"program": "p", "part": "p", "raw_s": 2.0, "true_s": 1.0, "corrected": corrected}
    return {**known, **ends, "drift": drift, "corrected_s": corrected_s, "shared": False}


def test_the_steadiest_of_a_few_tries_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drifts of 30, 10 and 20%: no two are steady, so all three are made, and two of them count."""
    drifts = iter([0.3, -0.1, 0.2, 0.01, 0.02])
    monkeypatch.setattr(truth, "run", lambda *_: {})
    monkeypatch.setattr(truth, "reported", lambda *_: {})
    monkeypatch.setattr(truth, "compare", lambda *_: [row_of(next(drifts))])
    (row,) = measure("python", "flat", 1.0, Path(), processes=2, tries=1)
    assert row["drift"] == 0.2
    (row,) = measure("python", "flat", 1.0, Path(), processes=2, tries=1)
    assert row["drift"] == 0.02


def test_a_row_is_the_mean_of_its_processes() -> None:
    """+12, -2 and +11% are +7% in the mean: beyond 6%, and beyond the interval of 2%."""
    runs = [[row_of(0.0, time_s)] for time_s in (1.12, 0.98, 1.11)]
    (row,) = truth.pooled(runs)
    assert row["corrected_s"] == pytest.approx(1.07)
    assert row["errors"] == pytest.approx([0.12, -0.02, 0.11])
    assert (row["ci_low_s"], row["ci_high_s"]) == pytest.approx((1.05, 1.09))
    assert row["inside"] is False


def test_the_table_says_where_the_cost_is_left_in() -> None:
    rows = truth.pooled([[row_of(0.0, 1.01, corrected=False)], [row_of(0.0, 1.03)]])
    text = table(rows)
    assert "1.020 (cost left in)" in text
    assert (
        "1 of 1 within 6% (1) or within their interval. In 1 what the probe cost is left in" in text
    )

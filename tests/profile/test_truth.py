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
    rows = measure(sys.executable, name, 0.4, stubs, tries=1)
    waits = {row["part"]: row for row in rows}[name]
    assert waits["kind"] == "waits"
    assert waits["raw_s"] > 0.5 * waits["true_s"] > 0
    flat: dict[str, Any] = {row["part"]: row for row in rows}["flat"]
    assert flat["raw_s"] > 0
    assert "within 6% or within their interval" in table(rows)


def test_the_steadiest_of_a_few_tries_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drifts of 30, 10 and 20%: none is steady, so all three are made, and the second counts."""
    drifts = iter([0.3, -0.1, 0.2, 0.01])
    monkeypatch.setattr(truth, "run", lambda *_: {})
    monkeypatch.setattr(truth, "reported", lambda *_: {})
    monkeypatch.setattr(truth, "compare", lambda *_: [{"drift": next(drifts)}])
    assert measure("python", "flat", 1.0, Path()) == [{"drift": -0.1}]
    assert measure("python", "flat", 1.0, Path()) == [{"drift": 0.01}]

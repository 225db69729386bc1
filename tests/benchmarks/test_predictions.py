"""Descriptions of predictions, and their table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.predictions.__main__ import HERE, Pair, error, read_pairs, table

from redline.profile.advise.remedies import REMEDIES


def test_the_descriptions_hold_ten_pairs_and_six_remedies() -> None:
    pairs = read_pairs(HERE / "pairs.toml")
    assert len(pairs) >= 10
    assert len({pair.remedy for pair in pairs}) >= 6
    assert {pair.remedy for pair in pairs} <= set(REMEDIES)
    assert all(pair.change or pair.edits or pair.change_threads for pair in pairs)


def test_a_change_is_of_the_arguments_or_of_a_copy(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("Adam(lr=1)")
    copies = tmp_path / "copies"
    copies.mkdir()
    edited = Pair("a", "fused", "{here}/a.py", "--steps 3", edits=(("lr=1", "lr=1, fused=True"),))
    before, after = edited.commands({"here": str(tmp_path)}, copies)
    assert before == f"env OMP_NUM_THREADS=1 {sys.executable} {script} --steps 3"
    assert after == f"env OMP_NUM_THREADS=1 {sys.executable} {copies / 'a.py'} --steps 3"
    assert (copies / "a.py").read_text() == "Adam(lr=1, fused=True)"
    assert script.read_text() == "Adam(lr=1)"
    threads = Pair("b", "threads", str(script), "", "--fast", threads=2, change_threads=1)
    assert threads.commands({}, copies)[1].endswith(f"=1 {sys.executable} {script} --fast")
    missing = Pair("c", "fused", str(script), "", edits=(("nothing", "x"),))
    with pytest.raises(SystemExit, match="does not hold 'nothing'"):
        missing.commands({}, copies)


def row(predicted: float, measured: float, remedy: str, verdict: str) -> dict[str, Any]:
    found = {"remedy": remedy, "verdict": verdict, "before_us": 100.0}
    for name, us in (("predicted", predicted), ("measured", measured)):
        found |= {f"{name}_us": us}
    found |= {"low_us": 40.0, "high_us": 60.0, "measured_low_us": 39.0, "measured_high_us": 41.0}
    return found


def test_the_table_counts_what_is_inside_and_the_mean_error() -> None:
    """50 against 40 is 25% too much, 45 against 50 10% too little: 17.5% on average."""
    rows = {"a": row(50, 40, "envs", "outside"), "b": row(45, 50, "fused", "inside")}
    assert error(rows["a"]) == pytest.approx(0.25)
    text = table(rows)
    assert "1 of 2 measured inside the predicted interval" in text
    assert "2 remedies, mean size of the error 17.5%" in text

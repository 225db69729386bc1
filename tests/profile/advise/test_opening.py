"""What reports open with, worked by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from redline.profile.advise.counted import (
    HotLine,
    Updates,
    Waiting,
    count_updates,
    who_waits,
)
from redline.profile.advise.iteration import Iteration, Part, Time
from redline.profile.advise.opening import opening_to_json, render_opening, step_lines
from redline.profile.analyse.correction import Estimate
from redline.profile.analyse.processes import WaitsFor
from redline.profile.analyse.stacks import ImportRow, PythonLine
from redline.profile.analyse.summary import Cell, ProcessRow, Summary
from redline.profile.report.text import render_text


def iteration(**changes: Any) -> Iteration:
    """80 us of simulation, half of it waiting, and 20 us of learning, 4 env steps an update."""
    found: dict[str, Any] = {
        "process": "train.py",
        "pid": 7,
        "framework": "SB3",
        "mode": "full",
        "env_steps": 4000,
        "num_envs": 2,
        "workers": 2,
        "cpus": 2,
        "begin_s": 1.0,
        "end_s": 1.4,
        "parts": {
            "simulation": Part("simulation", {"waiting": 40.0, "python": 40.0}, Time(80.0, 3.0)),
            "learning": Part("learning", {"backend": 20.0}, Time(20.0, 1.0)),
            "imports": Part("imports", {"python": 0.0}, Time(0.0)),
        },
        "total": Time(100.0, 3.0),
        "ready_us": 0.0,
        "optimizer_us": math.nan,
        "updates": Updates("update", "learning", 1000),
        "waiting": Waiting("simulation", "the env workers", "stepping", 0.25),
        "hot_lines": {"simulation": HotLine("/p/lib/env.py", 9, "step", 0.5, "/p/train.py:3")},
    }
    return Iteration(**(found | changes))


def test_an_opening_by_hand() -> None:
    """4 env steps of 100 us are 0.4 ms an update; parts of nothing are left out."""
    text = "\n".join(render_opening(iteration()))
    assert text.startswith(
        "train.py (pid 7) takes 100.0 +- 3.0 us per env step once started up: simulation 80%, "
        "learning 20%,"
    )
    rows = {
        line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith("  ")
    }
    assert rows["simulation"] == ["80.0", "3.0", "80.0", "0.320", "0.012"]
    assert rows["learning"] == ["20.0", "1.0", "20.0", "0.080", "0.004"]
    assert rows["all"] == ["100.0", "3.0", "100.0", "0.400", "0.012"]
    assert "imports" not in rows
    assert "1,000 updates (entries of learning), one per 4.0 env steps" in text
    assert " ".join(text.splitlines()[-2:]) == (
        "train.py waits 40.0 us per env step (40%), most in simulation, for the env workers, busy "
        "with stepping; the env workers are idle 25% of their time."
    )


def test_the_interval_holds_what_the_probe_may_have_cost() -> None:
    """Noise of 3 us, and the probe somewhere within 8 us: hypot(3, 4) = 5."""
    ends = [iteration(total=Time(us)) for us in (96.0, 104.0)]
    found = iteration(extremes=tuple(ends))
    assert "takes 100.0 +- 5.0 us" in " ".join(render_opening(found))
    assert opening_to_json(found)["us_per_env_step"] == {"us": 100.0, "half_us": 5.0}


def test_hottest_lines_stand_under_large_parts() -> None:
    lines = step_lines(iteration(), with_hot_lines=True)
    (at,) = [i for i, line in enumerate(lines) if "hottest line" in line]
    assert lines[at].strip() == (
        "hottest line: p/lib/env.py:9 step, 40.0 us per env step (from /p/train.py:3)"
    )
    assert lines[at - 1].split()[0] == "simulation"
    part = opening_to_json(iteration())["parts"][0]
    assert part["hottest_line"]["us"] == 40.0


def test_without_updates_or_others_nothing_is_said_of_them() -> None:
    alone = Waiting("", "", "", math.nan)
    text = "\n".join(render_opening(iteration(updates=None, waiting=alone)))
    assert "update" not in text
    assert text.endswith("for no other recorded process.")


def test_updates_are_counted_by_what_there_is() -> None:
    """Learning counts before zero_grad; only what begins within [10, 40) counts."""
    times = {"learning": np.array([5, 10, 39, 40]), "zero_grad": np.array([10, 11, 12])}
    assert count_updates(times, 10, 40) == Updates("update", "learning", 2)
    only = {"learning": np.empty(0, np.int64), "zero_grad": times["zero_grad"]}
    assert count_updates(only, 10, 40) == Updates("optimizer step", "zero_grad", 3)
    assert count_updates({}, 10, 40) is None


def cell(pid: int, operation: str, level: str, s: float, half_s: float = 0.0) -> Cell:
    return Cell(f"p{pid}", pid, "", operation, level, False, s, s, s - half_s, s + half_s)


def summary(cells: list[Cell], **changes: Any) -> Summary:
    rows = [ProcessRow("p7", 7, 0, 4.0, 1.0, True, {}, [])]
    found = Summary("dir", "full", 4.0, rows, cells, [], [], 0, [])
    for name, value in changes.items():
        object.__setattr__(found, name, value)
    return found


def test_who_waits_for_whom() -> None:
    """Worker 8 is busy 3 of the 4 s in which it steps envs: idle a quarter. Waits for its start,
    the longest, say nothing of the steady state."""
    found = summary(
        [
            cell(8, "simulation", "python", 3.0),
            cell(8, "simulation", "waiting", 1.0),
            cell(8, "imports", "python", 9.0),
        ],
        waits_for=[
            WaitsFor("p7", 7, "logging", "p9", 9, "other", 5),
            WaitsFor("p7", 7, "simulation", "p8", 8, "simulation", 20),
            WaitsFor("p8", 8, "other", "p7", 7, "learning", 30),
            WaitsFor("p7", 7, "startup", "p8", 8, "imports", 40),
            WaitsFor("p7", 7, "simulation", "p8", 8, "imports", 41),
        ],
    )
    assert who_waits(found, 7, {8: 4.0}) == Waiting(
        "simulation", "the env workers", "simulation", 0.25
    )
    assert who_waits(found, 8, {}).worker == "p7"


def test_the_text_report_opens_with_the_verdict_and_ends_with_what_next() -> None:
    """Imports stand last, whatever they take; the cells' half widths of an operation add."""
    cells = [
        cell(7, "simulation", "python", 2.0, 0.1),
        cell(7, "simulation", "waiting", 1.0, 0.2),
        cell(7, "imports", "python", 5.0),
    ]
    imports = [ImportRow("p7", 7, "torch", "/p/train.py", 1, 3.5, 350)]
    hot = [PythonLine("p7", 7, "simulation", "/p/env.py", i, "step", 1.0, 1.0, 9) for i in range(5)]
    text = render_text(summary(cells, imports=imports, python_lines=hot), iteration())
    lines = text.splitlines()
    assert lines[2].startswith("train.py (pid 7) takes 100.0 +- 3.0 us per env step")
    table = lines[lines.index("the whole run, start-up included:") :]
    at = next(i for i, line in enumerate(table) if line.startswith("  operation"))
    assert table[at].split() == ["operation", "s", "+-", "%", "python", "waiting"]
    assert table[at + 1].split() == ["simulation", "3.000", "0.300", "37.5", "2.000", "1.000"]
    assert table[at + 2].split() == ["imports", "5.000", "0.000", "62.5", "5.000", "0.000"]
    assert "         3.500 s  torch (/p/train.py:1)" in table
    assert sum("step (/p/env.py" in line for line in table) == 3  # of one operation
    assert lines[-1] == "next: redline advise dir, or redline report dir --html FILE"
    assert max(map(len, lines)) <= 100


def test_times_that_were_not_corrected_are_called_raw() -> None:
    estimate = Estimate("native boundary", 100.0, 0.0, 300.0, 10, 2, False, "too wide")
    object.__setattr__(estimate, "cost_high_s", 1.5)
    text = render_text(summary([cell(7, "learning", "python", 2.0)], overhead=[estimate]))
    head = text.partition("operation  ")[0]
    assert "times hold what the native boundary probe cost: up to 1.500 s" in head
    assert "largest operation: learning of p7 (pid 7), 2.000 s of work" in head
    assert text.splitlines()[-1] == "next: redline report dir --html FILE"


@pytest.mark.parametrize("level", ["python", "waiting"])
def test_levels_of_nothing_are_no_columns(level: str) -> None:
    text = render_text(summary([cell(7, "learning", level, 2.0), cell(7, "other", "ready", 1e-5)]))
    (head,) = [line for line in text.splitlines() if line.startswith("  operation")]
    assert head.split() == ["operation", "s", "+-", "%", level]

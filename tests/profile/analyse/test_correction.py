"""The probe's unit cost, on cycles with a known answer."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.profile.analyse.cells import Cells, Hidden, split_exactly
from redline.profile.analyse.correction import (
    Block,
    Cycle,
    estimate_unit_cost,
    find_cycles,
)
from redline.profile.analyse.summary import correct, summarize
from redline.profile.reader import open_session


def block(observed: bool, steps: int, unit_ns: float, step_ns: float, noise_ns: float) -> Block:
    """Steps that call the probe 300 times each."""
    callbacks = 300 * steps if observed else 0
    cpu_ns = step_ns * steps + unit_ns * callbacks + noise_ns
    return Block(observed, round(cpu_ns), {"simulation": steps}, callbacks)


def cycles(unit_ns: float, noise_ns: float, number: int = 40) -> list[Cycle]:
    """Cycles of a program whose steps take 100 us at first and 200 us at last."""
    rng = np.random.default_rng(3)
    made = []
    for i in range(number):
        step_ns = 100_000 * (1 + i / number)
        blocks = [
            block(observed, int(rng.integers(180, 400)), unit_ns, step_ns, rng.normal(0, noise_ns))
            for observed in (True, False, True)
        ]
        made.append(Cycle(*blocks))
    return made


def test_the_unit_cost_is_found_exactly_without_noise() -> None:
    estimate = estimate_unit_cost(cycles(80.0, 0.0), count=10**6, busy_ns=10**9)
    assert estimate.corrected
    assert estimate.unit_ns == pytest.approx(80.0, rel=1e-4)
    assert estimate.count == 10**6


def test_the_interval_covers_the_truth_under_noise() -> None:
    """1 ms of noise per block against some 300 * 300 * 80 ns = 7 ms of probe."""
    estimate = estimate_unit_cost(cycles(80.0, 1e6), count=1, busy_ns=0)
    assert estimate.corrected
    assert estimate.ci_low_ns < 80.0 < estimate.ci_high_ns
    assert estimate.ci_high_ns - estimate.ci_low_ns < 20.0


def test_outlying_cycles_are_set_aside() -> None:
    """One block in twenty was interrupted for 50 ms of somebody else's work."""
    disturbed = cycles(80.0, 1e5)
    for i in range(0, len(disturbed), 20):
        whole = disturbed[i]
        late = dataclasses.replace(whole.off, cpu_ns=whole.off.cpu_ns + 50_000_000)
        disturbed[i] = dataclasses.replace(whole, off=late)
    estimate = estimate_unit_cost(disturbed, count=1, busy_ns=0)
    assert estimate.unit_ns == pytest.approx(80.0, rel=0.02)
    assert estimate.cycles == len(disturbed) - 2


def test_a_wide_interval_speaks_instead_of_correcting() -> None:
    estimate = estimate_unit_cost(cycles(80.0, 2e7), count=1, busy_ns=0)
    assert not estimate.corrected
    assert "too wide" in estimate.reason


def test_a_wide_interval_is_used_where_it_hardly_matters() -> None:
    """Half the interval times the callbacks must be within 1.5% of the time, and tell from zero."""
    wide = cycles(80.0, 1e7)
    estimate = estimate_unit_cost(wide, count=10**6, busy_ns=0)
    assert not estimate.corrected
    half_ns = estimate.ci_high_ns - estimate.unit_ns
    assert 0.35 * estimate.unit_ns < half_ns < estimate.unit_ns
    limit_ns = half_ns * 10**6 / 0.015
    assert estimate_unit_cost(wide, count=10**6, busy_ns=round(1.001 * limit_ns)).corrected
    assert not estimate_unit_cost(wide, count=10**6, busy_ns=round(0.999 * limit_ns)).corrected
    nothing = estimate_unit_cost(cycles(0.0, 1e7), count=1, busy_ns=10**18)
    assert nothing.ci_low_ns < 0.0 < nothing.ci_high_ns
    assert not nothing.corrected


def test_a_rare_costly_operation_is_no_overhead() -> None:
    """Every fifth block holds a checkpoint of 20 ms, beside 300 * 300 * 80 ns = 7 ms of probe."""
    made = []
    for i, cycle in enumerate(cycles(80.0, 0.0)):
        parts = [cycle.before, cycle.off, cycle.after]
        if i % 5 < 3:
            part = parts[i % 5]
            operations = {**part.operations, "checkpoint": 1}
            parts[i % 5] = dataclasses.replace(
                part, cpu_ns=part.cpu_ns + 20_000_000, operations=operations
            )
        made.append(Cycle(*parts))
    estimate = estimate_unit_cost(made, count=1, busy_ns=0)
    assert estimate.unit_ns == pytest.approx(80.0, rel=0.03)


def test_operations_of_different_weight_are_told_apart() -> None:
    """Blocks mix 50 us simulation steps and 1 ms updates in all proportions."""
    rng = np.random.default_rng(5)
    made = []
    for _ in range(40):
        blocks = []
        for observed in (True, False, True):
            steps, updates = rng.integers(50, 500, 2).tolist()
            callbacks = (100 * steps + 900 * updates) * observed
            cpu_ns = 50_000 * steps + 1_000_000 * updates + 90 * callbacks
            blocks.append(
                Block(observed, cpu_ns, {"simulation": steps, "update": updates}, callbacks)
            )
        made.append(Cycle(*blocks))
    assert estimate_unit_cost(made, count=1, busy_ns=0).unit_ns == pytest.approx(90.0, rel=1e-3)


def test_too_few_cycles_are_no_estimate() -> None:
    estimate = estimate_unit_cost(cycles(80.0, 0.0, number=3), count=1, busy_ns=0)
    assert not estimate.corrected
    assert math.isnan(estimate.unit_ns)
    assert "3 calibration cycles" in estimate.reason


def test_correction_takes_from_python_first() -> None:
    """30 callbacks of 10 ns in inference: 250 ns of Python go, then 50 of the back end's 500."""
    observed = {
        ("", "inference", "python", False): 250,
        ("", "inference", "backend", False): 500,
        ("", "inference", "waiting", False): 1000,
        ("", "simulation", "python", False): 70,
    }
    cells = Cells(observed, observed, hidden=[])
    corrected = correct(cells, {("", "inference"): 30}, unit_ns=10.0)
    assert corrected == {
        ("", "inference", "python", False): 0.0,
        ("", "inference", "backend", False): 450.0,
        ("", "inference", "waiting", False): 1000.0,
        ("", "simulation", "python", False): 70.0,
    }


def test_calibration_blocks_are_split_like_what_is_left_of_the_observed() -> None:
    """Observed 400 and 400; 20 callbacks of 10 ns leave 200 and 400: a block of 300 is split 1:2.

    One beside another operation is split like that; of one that was never seen nothing is known.
    """
    python, backend = ("", "inference", "python", False), ("", "inference", "backend", False)
    simulation = ("", "simulation", "python", False)
    unknown = ("", "learning", "unattributed", False)
    cells = Cells(
        {python: 550, backend: 550, simulation: 90, unknown: 8},
        {python: 400, backend: 400, simulation: 50},
        [
            Hidden(300, {python: 400, backend: 400}),
            Hidden(40, {simulation: 50}),
            Hidden(8, {unknown: 1}),
        ],
    )
    charge = {("", "inference"): 20}
    corrected = correct(cells, charge, unit_ns=10.0)
    assert corrected == pytest.approx({python: 300, backend: 600, simulation: 90, unknown: 8})
    assert correct(cells, charge, unit_ns=0.0) == cells.time_ns
    # Where the cost takes all there is, a block is split as it was observed.
    all_taken = correct(cells, {("", "inference"): 80}, unit_ns=10.0)
    assert all_taken == pytest.approx({python: 150, backend: 150, simulation: 90, unknown: 8})


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 10**10), min_size=3, max_size=3),
    st.integers(1, 10**9),
    st.one_of(st.floats(0.0, 2.0), st.just(1.0)),
)
def test_correction_invents_no_time(observed: list[int], hidden: int, share: float) -> None:
    """No cell below 0; what is left is all time less the cost, of which none is where none fits."""
    keys = [("", "inference", level, False) for level in ("python", "backend", "waiting")]
    seen = dict(zip(keys, observed, strict=True))
    parts = zip(observed, split_exactly(hidden, observed), strict=True)
    everything = dict(zip(keys, map(sum, parts), strict=True))
    cells = Cells(everything, seen, [Hidden(hidden, seen)])
    busy = observed[0] + observed[1]
    corrected = correct(cells, {("", "inference"): 1}, unit_ns=share * busy)
    assert min(corrected.values()) >= 0.0
    wanted = sum(observed) + hidden - (min(share, 1.0) * busy)
    assert sum(corrected.values()) == pytest.approx(wanted, rel=1e-9, abs=1.0)


@settings(deadline=None)
@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_splitting_loses_nothing(total: int, weights: list[int]) -> None:
    if sum(weights) == 0:
        weights = [1, *weights]
    parts = split_exactly(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part - total * weight / sum(weights)) <= 1.001


def test_a_run_leaves_cycles_and_all_its_time_is_attributed(profiled: Any) -> None:
    """Blocks of the real thing; the time in unobserved blocks is split like the rest."""
    profiled.run(
        """
import time
import mujoco, torch
from redline import profile
until = time.monotonic() + 2.5
while time.monotonic() < until:
    with profile.operation("simulation"):
        mujoco.spin(200_000)
        for _ in range(100):
            torch.spin(500)
"""
    )
    process = open_session(profiled.session).processes[0]
    found = find_cycles(process, process.threads[0])
    assert len(found) >= 3
    assert all(c.before.callbacks > 0 and c.off.callbacks == 0 for c in found)
    summary = summarize(profiled.session)
    levels = {"python": 0.0, "backend": 0.0, "simulator": 0.0, "waiting": 0.0, "unattributed": 0.0}
    for cell in summary.cells:
        levels[cell.level] += cell.raw_s
    assert levels["unattributed"] < 0.01 * sum(levels.values())
    assert sum(levels.values()) == pytest.approx(summary.processes[0].wall_s)
    assert min(levels["simulator"], levels["backend"]) > 0

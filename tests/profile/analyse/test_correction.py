"""The probe's unit cost, on cycles with a known answer."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.profile import layout
from redline.profile.analyse.cells import Cells, Hidden, split_exactly
from redline.profile.analyse.corrected import correct
from redline.profile.analyse.correction import (
    Estimate,
    Prior,
    ProbeCost,
    estimate_probe_cost,
    prior_of,
)
from redline.profile.analyse.cycles import Block, Cycle, Part, find_cycles
from redline.profile.analyse.summary import summarize
from redline.profile.analyse.timeline import decode
from redline.profile.reader import Shard, open_session
from redline.profile.record.recorder import session
from tests.profile import streams

PRIOR = Prior(80.0, 50.0, 0.25, 0.1, imports=0.9)


def block(
    observed: bool, parts: dict[str, tuple[int, float, float, float]], noise_ns: float = 0.0
) -> Block:
    """A block of marked parts.

    Args:
        observed: whether the probe is on.
        parts: {name: (units, ns of a unit, callbacks of a unit, what the probe adds to a unit)}.
        noise_ns: in all.
    """
    made = {}
    for name, (units, unit_ns, callbacks, added_ns) in parts.items():
        ns = round(units * (unit_ns + added_ns * observed) + noise_ns)
        made[name] = Part(units, ns, ns * observed, round(units * callbacks * observed))
    return Block(observed, sum(part.ns for part in made.values()), made)


def cycles(
    parts: dict[str, tuple[float, float, float]], noise_ns: float = 0.0, number: int = 40
) -> list[Cycle]:
    """Cycles of a program whose units take twice as long at last, in blocks of different length."""
    rng = np.random.default_rng(3)
    made = []
    for i in range(number):
        growth = 1 + i / number
        blocks = [
            block(
                observed,
                {
                    name: (int(rng.integers(18, 40)), unit_ns * growth, callbacks, added_ns)
                    for name, (unit_ns, callbacks, added_ns) in parts.items()
                },
                rng.normal(0, noise_ns),
            )
            for observed in (True, False, True)
        ]
        made.append(Cycle(*blocks))
    return made


def fit(
    found: list[Cycle], charges: dict[str, tuple[int, int]] | None = None, busy_ns: int = 10**10
) -> tuple[Estimate, ProbeCost]:
    """The estimate; what is to be corrected is what the cycles hold, unless told."""
    if charges is None:
        charges = {}
        for name in found[0].before.parts:
            parts = [b.parts[name] for c in found for b in (c.before, c.after)]
            charges[name] = sum(p.callbacks for p in parts), sum(p.python_ns for p in parts)
    return estimate_probe_cost(found, charges, busy_ns, PRIOR)


def added(found: list[Cycle], name: str, added_ns: float) -> float:
    """What the probe added to an operation in the observed blocks."""
    return added_ns * sum(b.parts[name].ends for c in found for b in (c.before, c.after))


def charge(found: list[Cycle], name: str) -> tuple[int, int]:
    parts = [b.parts[name] for c in found for b in (c.before, c.after)]
    return sum(p.callbacks for p in parts), sum(p.python_ns for p in parts)


def test_bytecode_without_calls_is_corrected_for_its_own_slow_down() -> None:
    """A loop of 1 ms per unit that the hook slows by 70%, and calls nothing."""
    found = cycles({"flat": (1e6, 0, 7e5)})
    estimate, cost = fit(found)
    assert estimate.corrected
    mean, error = cost.of("flat", *charge(found, "flat"))
    assert mean == pytest.approx(added(found, "flat", 7e5), rel=0.01)
    assert error < 0.1 * mean
    assert estimate.count == 0


def test_calls_and_bytecode_are_told_apart_within_a_session() -> None:
    """A loop slowed by half, calls of 100 ns each, and native code that costs nothing: each is
    corrected by what its own blocks say, not by the average."""
    parts = {"flat": (1e6, 0, 5e5), "calls": (2e6, 10_000, 1e6), "native": (3e6, 100, 1e4)}
    found = cycles(parts)
    estimate, cost = fit(found)
    assert estimate.corrected
    for name, (_, _, added_ns) in parts.items():
        mean, error = cost.of(name, *charge(found, name))
        truth = added(found, name, added_ns)
        assert abs(mean - truth) <= max(0.03 * truth, 2 * error)
    whole = sum(added(found, name, each[2]) for name, each in parts.items()) / 1e9
    assert estimate.cost_low_s < whole < estimate.cost_high_s


def test_imports_cost_what_is_usual_whatever_the_loop_says() -> None:
    """A loop of native code that the probe costs 10 ns a call: 1,000 callbacks and 1 ms of
    interpreted time of imports cost 0.9 of 80 ns and a quarter all the same, of 330 us, give or
    take a fifth of these."""
    _, cost = fit(cycles({"native": (1e6, 1000, 1e4)}))
    mean, error = cost.of("imports", 1000, 1_000_000)
    assert mean == pytest.approx(297_000)
    assert error == pytest.approx(66_000)
    assert cost.of("loading", 1000, 1_000_000)[0] < 0.5 * mean


def test_an_operation_without_blocks_takes_the_others_terms() -> None:
    """100 ns for a callback, nothing for bytecode: so it is for what was never in a block."""
    parts = {"few": (1e6, 1000, 1e5), "many": (1e6, 9000, 9e5), "none": (1e6, 0, 0.0)}
    _, cost = fit(cycles(parts))
    mean, error = cost.of("never seen", 1_000_000, 0)
    assert abs(mean - 1e8) < 2 * error
    known, known_error = cost.of("many", 1_000_000, 0)
    assert known_error < error
    assert known == pytest.approx(1e8, rel=0.3)


def waiting(found: list[Cycle], *names: str, busy_ns: int, added_ns: int) -> list[Cycle]:
    """The cycles, in which these wait for all but so much of each unit, and the probe adds some.

    CPU time leaves waits out; what waits in a block without the probe is not known.
    """
    made = []
    for cycle in found:
        blocks = []
        for block in (cycle.before, cycle.off, cycle.after):
            cpu_ns = block.cpu_ns
            for name in names:
                part = block.parts[name]
                busy = part.ends * (busy_ns + added_ns * block.observed)
                cpu_ns -= part.ns - busy
                part.waiting_ns = (part.ns - busy) * block.observed
                part.python_ns = busy * block.observed
            blocks.append(dataclasses.replace(block, cpu_ns=cpu_ns))
        made.append(Cycle(*blocks))
    return made


def test_of_an_operation_that_waits_the_cpu_time_counts() -> None:
    """It waits three times as long while observed, for a thread that is observed as well. Of its
    own 100 us a unit the probe adds 30, whatever the wait."""
    found = cycles({"step": (1e6, 3000, 3e5), "ask": (1e6, 300, 2e6)})
    found = waiting(found, "ask", busy_ns=100_000, added_ns=30_000)
    estimate, cost = fit(found)
    assert estimate.corrected
    for name, added_ns in (("step", 3e5), ("ask", 3e4)):
        mean, _ = cost.of(name, *charge(found, name))
        assert mean == pytest.approx(added(found, name, added_ns), rel=0.02)


def test_of_two_that_wait_one_stands_for_both() -> None:
    """Which of the two had the CPU time that the third left is not known: `tell`, which calls more
    often, takes the 5 and the 1 us that the probe adds to them."""
    found = cycles({"step": (1e6, 3000, 3e5), "ask": (1e6, 10, 2e6), "tell": (1e6, 20, 2e6)})
    for cycle in found:
        for block in (cycle.before, cycle.off, cycle.after):
            ends = block.parts["tell"].ends
            block.parts["ask"] = dataclasses.replace(block.parts["ask"], ends=ends)
    found = waiting(found, "ask", busy_ns=100_000, added_ns=5_000)
    found = waiting(found, "tell", busy_ns=100_000, added_ns=1_000)
    estimate, cost = fit(found)
    assert estimate.corrected
    both = [sum(each) for each in zip(charge(found, "ask"), charge(found, "tell"), strict=True)]
    assert cost.of("tell", *both)[0] == pytest.approx(added(found, "tell", 6_000), rel=0.02)
    assert cost.of("step", *charge(found, "step"))[0] == pytest.approx(
        added(found, "step", 3e5), rel=0.01
    )


def test_an_operation_that_mostly_waits_is_heard_where_no_other_is() -> None:
    found = cycles({"ask": (1e6, 1000, 2e5)})
    for cycle in found:
        for block in (cycle.before, cycle.after):
            block.parts["ask"].waiting_ns = round(0.9 * block.parts["ask"].ns)
    estimate, cost = fit(found)
    assert estimate.corrected
    assert cost.of("ask", *charge(found, "ask"))[0] == pytest.approx(
        added(found, "ask", 2e5), rel=0.02
    )


def test_the_interval_covers_the_truth_under_noise() -> None:
    found = cycles({"step": (1e6, 3000, 3e5)}, noise_ns=1e6)
    estimate, cost = fit(found)
    mean, error = cost.of("step", *charge(found, "step"))
    assert estimate.corrected
    assert abs(mean - added(found, "step", 3e5)) < 2 * error


def test_outlying_cycles_are_set_aside() -> None:
    """One block in twenty was interrupted for 50 ms of somebody else's work."""
    found = cycles({"step": (1e6, 3000, 3e5)})
    truth = added(found, "step", 3e5)
    for i in range(0, len(found), 20):
        late = dataclasses.replace(found[i].off.parts["step"])
        late.ns += 50_000_000
        off = dataclasses.replace(found[i].off, parts={"step": late})
        found[i] = dataclasses.replace(found[i], off=off)
    _, cost = fit(found)
    assert cost.of("step", *charge(found, "step"))[0] == pytest.approx(truth, rel=0.02)


def test_a_wide_interval_speaks_instead_of_correcting() -> None:
    """Noise of 20 ms per block, ten times what the probe adds; used where it hardly matters."""
    found = cycles({"step": (1e6, 300, 6e4)}, noise_ns=2e7)
    estimate, _ = fit(found)
    assert not estimate.corrected
    assert "too wide" in estimate.reason
    assert fit(found, busy_ns=10**13)[0].corrected


def test_too_few_cycles_correct_nothing() -> None:
    estimate, _ = fit(cycles({"step": (1e6, 3000, 3e5)}, number=3))
    assert not estimate.corrected
    assert "3 calibration cycles" in estimate.reason


def test_a_rare_costly_operation_is_no_overhead() -> None:
    """Every fifth block holds a checkpoint of 20 ms: the units beside it cost what they cost."""
    found = cycles({"step": (1e6, 3000, 3e5), "checkpoint": (2e7, 0, 0.0)})
    for i, cycle in enumerate(found):
        blocks = [cycle.before, cycle.off, cycle.after]
        for place, each in enumerate(blocks):
            if i % 5 != place:
                each.parts.pop("checkpoint")
        found[i] = Cycle(*blocks)
    charges = {"step": charge(found, "step")}
    estimate, cost = fit(found, charges)
    assert estimate.corrected
    truth = added(found, "step", 3e5)
    assert cost.of("step", *charges["step"])[0] == pytest.approx(truth, rel=0.03)


def test_correction_takes_from_python_first() -> None:
    """30 callbacks of 10 ns in inference: 250 ns of Python go, then 50 of the back end's 500."""
    observed = {
        ("", "inference", "python", False): 250,
        ("", "inference", "backend", False): 500,
        ("", "inference", "waiting", False): 1000,
        ("", "simulation", "python", False): 70,
    }
    cells = Cells(observed, observed, hidden=[])
    corrected = correct(cells, {("", "inference"): 300.0})
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
    corrected = correct(cells, {("", "inference"): 200.0})
    assert corrected == pytest.approx({python: 300, backend: 600, simulation: 90, unknown: 8})
    assert correct(cells, {}) == cells.time_ns
    # Where the cost takes all there is, a block is split as it was observed.
    all_taken = correct(cells, {("", "inference"): 800.0})
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
    corrected = correct(cells, {("", "inference"): share * busy})
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


@pytest.mark.parametrize("from_ns", [0, 2**48 - 160 * 10**6])
def test_a_block_whose_cpu_time_wrapped_is_none(from_ns: int) -> None:
    """Of its CPU time a marker keeps 48 bits. Two cycles, of which the wrap lies in the second."""
    on, off = layout.CODE_PROBE_ON, layout.CODE_PROBE_OFF
    rows = [(0, layout.CODE_WINDOW_ON)]
    for i, code in enumerate([on, off, off, on, on, off, off, on, on, off]):
        cpu_ns = (from_ns + 25 * 10**6 * i) % 2**48
        rows += [(cpu_ns >> 32, layout.CODE_HIGH), (cpu_ns % 2**32, layout.CODE_CPU)]
        rows.append((25 * 10**6, code))
    made = streams.process([])
    deltas, codes = (np.array(column) for column in zip(*rows, strict=True))
    shard = Shard(Path("x"), deltas.astype(np.uint32), codes.astype(np.uint16), None)
    found = find_cycles(made, decode(made, shard))
    used = [b.cpu_ns for cycle in found for b in (cycle.before, cycle.off, cycle.after)]
    assert used == [25 * 10**6] * (3 if from_ns else 6)


def test_a_run_leaves_cycles_and_all_its_time_is_attributed(profiled: Any) -> None:
    """Blocks of the real thing; the time in unobserved blocks is split like the rest."""
    profiled.run(
        """
import time
import mujoco, torch
from redline import profile
while time.process_time() < 3.5:  # start-up included; a busy machine takes longer for it
    with profile.operation("simulation"):
        mujoco.spin(200_000)
        for _ in range(100):
            torch.spin(500)
"""
    )
    process = open_session(profiled.session).processes[0]
    shard = process.threads[0]
    found = find_cycles(process, decode(process, shard))
    assert len(found) >= 3
    for cycle in found:
        assert sum(part.callbacks for part in cycle.before.parts.values()) > 0
        assert sum(part.callbacks for part in cycle.off.parts.values()) == 0
    summary = summarize(profiled.session)
    levels = {"python": 0.0, "backend": 0.0, "simulator": 0.0, "waiting": 0.0, "unattributed": 0.0}
    for cell in summary.cells:
        levels[cell.level] += cell.raw_s
    assert levels["unattributed"] < 0.01 * sum(levels.values())
    assert sum(levels.values()) == pytest.approx(summary.processes[0].wall_s)
    assert min(levels["simulator"], levels["backend"]) > 0


def test_what_was_never_seen_without_the_probe_says_nothing() -> None:
    """Time outside of marks that no block without the probe holds is no cost of the probe.

    All of it would be, with no error at all, and outweigh what the other blocks say.
    """
    found = cycles({"simulation": (1e6, 1000.0, 200_000.0)})
    alone, _ = fit(found)
    for cycle in found:
        for part in (cycle.before, cycle.after):
            part.parts[""] = Part(0, 5_000_000, 5_000_000, 10)
    beside, cost = fit(found)
    assert "" not in cost.operations
    assert beside.unit_ns == pytest.approx(alone.unit_ns)
    assert beside.slowdown == pytest.approx(alone.slowdown)


def test_a_version_that_cannot_be_read_counts_as_the_earliest() -> None:
    """Its text is a session's, which damage makes anything: `3-11` was a ValueError."""
    wide, narrow = prior_of(["3.11.7"]), prior_of(["3.12.0"])
    assert wide.slowdown_error == 0.1
    assert narrow.slowdown_error == 0.03
    assert prior_of(["3.13.1", "3.12.4"]) == narrow
    assert prior_of(["3.12.4", "3.9.1"]) == wide, "9 is before 12, though not as text"
    for damaged in ("3-11.7", "3", "", ".", "x.y", "3.", "٣.12", "9" * 5000 + ".1", "\0.\0"):
        assert prior_of([damaged]) == wide
        assert prior_of(["3.13.0", damaged]) == wide
    assert prior_of([]) == wide


def test_callbacks_are_faster_where_calls_are() -> None:
    """On a machine on which a call takes 15 ns in place of 50, so does a callback in proportion."""
    usual, fast = prior_of(["3.11.7"]), prior_of(["3.11.7"], [15.0, 15, 900.0])
    assert fast.callback_ns == pytest.approx(0.3 * usual.callback_ns) == pytest.approx(24.0)
    assert fast.callback_error_ns == pytest.approx(15.0)
    assert (fast.slowdown, fast.imports) == (usual.slowdown, usual.imports)
    for damaged in (None, "15", True, math.nan, math.inf, -3.0, 0, 1e9, [15.0]):
        assert prior_of(["3.11.7"], [damaged]) == usual


def test_a_recording_says_how_fast_calls_are(tmp_path: Path) -> None:
    with session(tmp_path / "full", mode="full"):
        pass
    with session(tmp_path / "light", mode="light"):
        pass
    (full,) = open_session(tmp_path / "full").processes
    (light,) = open_session(tmp_path / "light").processes
    assert 1.0 <= full.start["call_ns"] <= 1000.0
    assert "call_ns" not in light.start

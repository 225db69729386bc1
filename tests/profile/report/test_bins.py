"""Time bins against sums that must hold exactly, and against calls laid out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.profile.analyse.cells import compute_cells
from redline.profile.analyse.decoded import Decoded, RowClock
from redline.profile.analyse.timeline import State, Timeline, build_timeline
from redline.profile.gpu.records import GpuRecords, GpuWindow
from redline.profile.reader import Name, open_session
from redline.profile.report.bins import CallBins, bin_cells, bin_functions, spread
from redline.profile.report.samples import gpu_series, process_series, session_series

NAMES = {
    8: Name(8, "operation", "simulation", 0, None),
    9: Name(9, "operation", "inference", 0, None),
    10: Name(10, "call", "spin", 3, "mujoco"),
}
STATES = [State(0, 0, 0), State(0, 0, 0), State(8, 8, 0), State(8, 8, 3), State(9, 9, 1)]


def stream(*points: tuple[int, int]) -> Any:
    return (
        np.array([t for t, _ in points], np.int64),
        np.array([s for _, s in points], np.uint32),
    )


def switched(times: list[int]) -> Any:
    """1 and 0 in turn."""
    return stream(*((time, (i + 1) % 2) for i, time in enumerate(sorted(set(times)))))


def timeline(lead: Any, blind: Any, end_ns: int) -> Timeline:
    process: Any = SimpleNamespace(names=NAMES, threads=[])
    whole, none = stream((0, 1)), stream()
    return Timeline(process, [], STATES, lead, [""], none, whole, blind, end_ns)


@settings(deadline=None)
@given(
    lead=st.lists(st.tuples(st.integers(1, 999), st.integers(1, 4)), min_size=1, max_size=12),
    blind=st.lists(st.integers(0, 1000), max_size=6),
    edges=st.lists(st.integers(-100, 1100), min_size=2, max_size=9, unique=True),
    busy=st.lists(st.integers(0, 1000), max_size=6),
    api=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 2)), max_size=6),
)
def test_bins_of_a_cell_sum_to_it_and_cells_of_a_bin_to_its_time(
    lead: list[tuple[int, int]],
    blind: list[int],
    edges: list[int],
    busy: list[int],
    api: list[tuple[int, int]],
) -> None:
    changes = sorted({time: state for time, state in [(0, 1), *lead]}.items())
    one = timeline(stream(*changes), switched(blind), 1000)
    gpu = switched(busy), stream(*sorted(dict(api).items()))
    borders = np.array([-100, *sorted(e for e in edges if -100 < e < 1100), 1100], np.int64)
    binned = bin_cells(one, borders, *gpu)
    sums = {k: int(row.sum()) for k, row in binned.items() if row.any()}
    assert sums == compute_cells(one, *gpu).time_ns
    lengths = np.diff(np.clip(borders, 0, 1000))
    assert np.sum(list(binned.values()), axis=0).tolist() == lengths.tolist()


def test_a_calibration_block_is_spread_over_the_bins_it_lies_in() -> None:
    """Simulation all along, seen for 400 ns as 300 in the simulator and 100 in Python.

    The block 400..600 is split 150 to 50; half of it lies in each of the bins 300..500..700, and
    the level that was on when the block began does not matter.
    """
    lead = stream((0, 3), (300, 2), (400, 2), (600, 1))
    one = timeline(lead, stream((400, 1), (600, 0)), 700)
    found = bin_cells(one, np.array([0, 300, 500, 700]))
    assert found["", "simulation", "simulator", False].tolist() == [300, 75, 75]
    assert found["", "simulation", "python", False].tolist() == [0, 125, 25]
    assert found["", "other", "python", False].tolist() == [0, 0, 100]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 10**13), min_size=1, max_size=6),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
)
def test_spreading_keeps_rows_and_columns(columns: list[int], weights: list[int]) -> None:
    total = sum(columns)
    rows = [total * w // max(sum(weights), 1) for w in weights]
    rows.append(total - sum(rows))
    table = spread(rows, columns)
    assert [sum(row) for row in table] == rows
    assert [sum(column) for column in zip(*table, strict=True)] == columns
    for row, sum_of_row in zip(table, rows, strict=True):
        for entry, column in zip(row, columns, strict=True):
            assert abs(entry * total - sum_of_row * column) <= 2 * total


def in_a_thread(*events: tuple[int, int]) -> Any:
    """(delta_ns, code) rows as all that a timeline holds."""
    rows = np.array([d for d, _ in events], np.uint32), np.array([c for _, c in events], np.uint16)
    nothing = np.empty(0, np.int64)
    codes = nothing.astype(np.uint16)
    thread = Decoded(
        0, stream(), [None], nothing, codes, nothing, nothing, nothing, 0, RowClock(rows)
    )
    return SimpleNamespace(threads=[thread])


def test_time_inside_a_function_by_hand() -> None:
    """Calls at 10..30 with a nested one 15..20, and at 45..60; bins of 25 ns.

    0..25: 15, two calls. 25..50: 5 + 5, one call. 50..75: 10.
    """
    begin, end = 20, 21
    events = [(10, begin), (5, begin), (5, end), (10, end), (15, begin), (15, end)]
    found = bin_functions(in_a_thread(*events), [10], np.array([0, 25, 50, 75]))[10]
    assert found.inclusive_ns.tolist() == [15, 10, 10]
    assert found.calls.tolist() == [2, 1, 0]


def test_a_window_that_closes_ends_the_calls_in_it() -> None:
    """Begun before the window: no call. 30..50 cut off by the window's end, 60..65 whole."""
    begin, end, window_off = 20, 21, 5
    events = [(10, end), (20, begin), (20, window_off), (10, begin), (5, end)]
    found = bin_functions(in_a_thread(*events), [10], np.array([0, 40, 80]))[10]
    assert found.inclusive_ns.tolist() == [10, 15]
    assert found.calls.tolist() == [1, 1]


def test_calls_within_calls_that_a_slice_or_a_window_cuts() -> None:
    """10..40 with one within, cut after 20; 50..70 with one within, until the window ends."""
    begin, end, window_off = 20, 21, 5
    sums = CallBins([10], np.array([0, 25, 80]))
    sums.add(in_a_thread((10, begin), (10, begin)))
    late = [(30, end), (10, end), (10, begin), (10, begin), (10, window_off)]
    sums.add(in_a_thread(*late))
    found = sums.result()[10]
    assert found.inclusive_ns.tolist() == [15, 15 + 20]
    assert found.calls.tolist() == [2, 2]


def test_a_recorded_session_bins_to_its_summary(profiled: Any) -> None:
    from redline.profile.analyse.summary import summarize

    profiled.run(
        """
import threading, mujoco
from redline import profile
def work():
    for _ in range(30):
        with profile.phase("p"), profile.operation("simulation"):
            mujoco.spin(300_000)
thread = threading.Thread(target=work)
thread.start()
work()
thread.join()
"""
    )
    session = open_session(profiled.session)
    one = build_timeline(session.processes[0])
    edges = np.linspace(0, one.end_ns, 41).astype(np.int64)
    found = {k: int(row.sum()) for k, row in bin_cells(one, edges).items() if row.any()}
    assert found == compute_cells(one).time_ns
    spin = next(f for f in summarize(session).functions if f.function == "mujoco.spin")
    number = next(n.id for n in session.processes[0].names.values() if n.name == "spin")
    functions = bin_functions(one, [number], edges)[number]
    assert functions.inclusive_ns.sum() == round(spin.total_s * 1e9)
    assert functions.calls.sum() == spin.calls == 60


def test_gpu_use_is_told_where_it_was_observed_only() -> None:
    """Window 0..30 of bins of 20 ns, busy 10..25: 50% of the first, 50% of what is known of the
    second, nothing of the third."""
    kinds = np.array([0, 1], np.uint8)  # a kernel and a copy that overlap
    begin, end = np.array([10, 20], np.int64), np.array([22, 25], np.int64)
    zeros = np.zeros(2, np.int64)
    records = GpuRecords(kinds, begin + 100, end + 100, zeros, zeros, zeros)
    (series,) = gpu_series([GpuWindow(100, 130, records)], 0, np.array([100, 120, 140, 160]))
    assert series["value"] == [50.0, 50.0]
    assert series["unit"] == "%"
    assert gpu_series([], 0, np.array([0, 1])) == []


def test_cores_used_are_the_cpu_time_between_readings() -> None:
    from redline.profile.report.samples import _rate

    # 0.5 s of CPU in 1 s, then 2 s in 1 s; a repeated reading says nothing.
    readings = ([0, 10**9, 10**9, 2 * 10**9], [0, 500_000, 500_000, 2_500_000])
    assert _rate(*readings) == [(1.0, 0.5), (2.0, 2.0)]
    lonely: Any = SimpleNamespace(monitor=None)
    assert process_series(lonely, 0, 0) == []


def test_readings_of_the_machine_by_hand(tmp_path: Path) -> None:
    """Two cores at 50% and 100% are 1.5 cores; utilization in %, memory in MiB."""
    session: Any = SimpleNamespace(directory=tmp_path)
    assert session_series(session, 0) == ([], [])
    gpu = {"utilization": 0.25, "memory_used_bytes": 3 * 2**20, "power_w": None}
    reading = {"time_ns": 3 * 10**9, "cpu": [0.5, 1.0], "processes": {}, "gpu": [gpu]}
    lines: list[Any] = [
        {"event": "start", "cores": [0, 1], "gpus": ["H"], "gpus_absent": "no driver"},
        reading,
    ]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    series, notes = session_series(session, 10**9)
    shown = {(s["group"], s["name"], s["unit"]): (s["t_s"], s["value"]) for s in series}
    assert shown == {
        ("cpu", "all of the machine's 2 cores", "cores"): ([2.0], [1.5]),
        ("gpu", "utilization, GPU 0 (H)", "%"): ([2.0], [25.0]),
        ("gpu", "memory used, GPU 0 (H)", "MiB"): ([2.0], [3.0]),
    }
    assert notes == ["no GPU readings: no driver"]

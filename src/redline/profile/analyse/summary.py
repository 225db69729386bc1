"""A session in one object: processes, cells raw and corrected, overhead, native functions."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout, levels
from redline.profile.analyse.cells import Cells, Key, compute_cells, operation_name
from redline.profile.analyse.correction import Cycle, Estimate, estimate_unit_cost, find_cycles
from redline.profile.analyse.processes import Waits, WaitsFor, busy_together, session_span, waits
from redline.profile.analyse.timeline import Decoded, Timeline, build_timeline, decode
from redline.profile.analyse.transitions import Transitions, transitions
from redline.profile.gpu.activity import (
    Concurrent,
    DeviceBusy,
    Launched,
    api_stream,
    busy_stream,
    concurrent_with,
    device_busy,
    launched_by,
)
from redline.profile.gpu.records import GpuWindow, read_windows
from redline.profile.reader import Process, Session, open_session

__all__ = ["Cell", "FunctionRow", "ProcessRow", "ShareRow", "Summary", "summarize"]


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process; times in seconds."""

    name: str
    pid: int
    parent_pid: int
    wall_s: float  # recorded time
    cpu_s: float
    ended: bool  # False: killed, crashed, or still running
    metadata: dict[str, Any]
    problems: list[str]
    steps: int = 0  # calls of `profile.step()` in the recorded time


@dataclass(frozen=True, slots=True)
class Cell:
    """Time of one process in one (phase, operation, level)."""

    process: str
    pid: int
    phase: str
    operation: str
    level: str
    gpu_busy: bool
    raw_s: float
    corrected_s: float


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A native function of one process; inclusive time, callbacks into Python too."""

    process: str
    pid: int
    level: str
    function: str
    calls: int
    total_s: float


@dataclass(frozen=True, slots=True)
class BusyTogether:
    """How long exactly so many processes worked at once."""

    processes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One share of a process's time, measured and sampled."""

    process: str
    pid: int
    kind: str  # level or operation
    name: str
    measured: float  # of 1; nan: the levels of a session that was not recorded in full
    sampled: float  # of 1
    standard_error: float  # of `sampled`, from the number of samples alone
    samples: int

    @property
    def difference(self) -> float:
        """Sampled minus measured, of 1."""
        return self.sampled - self.measured


@dataclass(frozen=True, slots=True)
class Summary:
    """What `redline report` shows."""

    session: str
    mode: str
    wall_s: float  # from the first process's start to the last one's end
    processes: list[ProcessRow]
    cells: list[Cell]
    overhead: list[Estimate]
    functions: list[FunctionRow]
    dropped_events: int
    problems: list[str]
    transitions: list[Transitions] = field(default_factory=list)
    busy_together: list[BusyTogether] = field(default_factory=list)
    waits: list[Waits] = field(default_factory=list)
    waits_for: list[WaitsFor] = field(default_factory=list)
    gpu_devices: list[DeviceBusy] = field(default_factory=list)
    gpu_launched: list[Launched] = field(default_factory=list)
    gpu_concurrent: list[Concurrent] = field(default_factory=list)
    shares: list[ShareRow] = field(default_factory=list)  # see `shares.with_shares`
    attributed: float = math.nan  # share of the recorded time that has a level; in full mode only

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`; numbers that are not known are null."""
        return _without_nan(asdict(self))


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return {key: _without_nan(item) for key, item in items}
    if isinstance(value, list):
        return [_without_nan(item) for item in cast(list[Any], value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def summarize(session: Session | str | Path) -> Summary:
    """Analyse a whole session.

    Raises:
        SessionError: if the directory is not a session that can be read.
        ProfileError: if the C extension was not built.
    """
    if not isinstance(session, Session):
        session = open_session(session)
    timelines = [build_timeline(process) for process in session.processes]
    charges = [_callbacks_by_operation(timeline) for timeline in timelines]
    windows = [_gpu_windows(timeline.process) for timeline in timelines]
    all_cells = [_cells(t, found) for t, found in zip(timelines, windows, strict=True)]
    overhead = _overhead(session, all_cells, charges)
    unit_ns = sum(e.unit_ns for e in overhead if e.corrected)
    cells: list[Cell] = []
    rows: list[ProcessRow] = []
    functions: list[FunctionRow] = []
    problems = list(session.problems)
    for timeline, found, charge in zip(timelines, all_cells, charges, strict=True):
        cells += _cell_rows(timeline.process, found, correct(found, charge, unit_ns))
        rows.append(_process_row(timeline, found))
        functions += _function_rows(timeline)
        for problem in timeline.process.problems:
            problems.append(f"{timeline.process.name} (pid {timeline.process.pid}): {problem}")
    begin, end = session_span(timelines)
    waiting, waiting_for = waits(timelines)
    gpu = [(timeline, found) for timeline, found in zip(timelines, windows, strict=True) if found]
    return Summary(
        session=str(session.directory),
        mode=session.mode,
        wall_s=(end - begin) / 1e9,
        processes=rows,
        cells=cells,
        overhead=overhead,
        functions=sorted(functions, key=lambda row: -row.total_s),
        dropped_events=sum(process.dropped for process in session.processes),
        problems=problems,
        transitions=[row for t in timelines for row in transitions(t)],
        busy_together=[BusyTogether(k, ns / 1e9) for k, ns in busy_together(timelines).items()],
        waits=waiting,
        waits_for=waiting_for,
        gpu_devices=[row for t, found in gpu for row in device_busy(t, found)],
        gpu_launched=[row for t, found in gpu for row in launched_by(t, found)],
        gpu_concurrent=[row for t, found in gpu for row in concurrent_with(t, found)],
        attributed=_attributed(all_cells) if session.mode == "full" else math.nan,
    )


def _overhead(
    session: Session, cells: list[Cells], charges: list[dict[tuple[str, str], int]]
) -> list[Estimate]:
    """The unit cost of the native boundary, from the calibration cycles of all threads."""
    if session.mode != "full":
        return []
    cycles: list[Cycle] = []
    for process in session.processes:
        for shard in process.threads:
            cycles += find_cycles(process, shard)
    waiting = levels.LEVELS[levels.WAITING]
    busy_ns = sum(ns for each in cells for key, ns in each.time_ns.items() if key[2] != waiting)
    return [estimate_unit_cost(cycles, sum(sum(c.values()) for c in charges), busy_ns)]


def _attributed(cells: list[Cells]) -> float:
    unknown = levels.LEVELS[levels.UNATTRIBUTED]
    times = [(key[2], ns) for each in cells for key, ns in each.time_ns.items()]
    whole = sum(ns for _, ns in times)
    return sum(ns for level, ns in times if level != unknown) / whole if whole else math.nan


def _gpu_windows(process: Process) -> list[GpuWindow]:
    windows, problems = read_windows(process)
    process.problems.extend(problems)
    return windows


def _cells(timeline: Timeline, windows: list[GpuWindow]) -> Cells:
    """The cells, with what the GPU's records add to them where it was observed."""
    if not windows:
        return compute_cells(timeline)
    base_ns = timeline.process.base_ns
    return compute_cells(timeline, busy_stream(windows, base_ns), api_stream(windows, base_ns))


def _callbacks_by_operation(timeline: Timeline) -> dict[tuple[str, str], int]:
    """Probe callbacks per (phase, operation) of the threads that led when they happened."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for thread in timeline.threads:
        chosen = thread.special_codes == layout.CODE_CALLBACKS
        times, values = thread.special_times[chosen], thread.special_values[chosen]
        own = _states_at(thread, times)
        phases = np.concatenate([[0], timeline.phase[1]])[
            np.searchsorted(timeline.phase[0], times, side="right")
        ]
        leads = np.concatenate([[0], timeline.lead[1]])[
            np.searchsorted(timeline.lead[0], times, side="right")
        ]
        keys = (own.astype(np.int64) << 40) | (leads.astype(np.int64) << 16) | phases
        for key in np.unique(keys):
            state = thread.states[int(key) >> 40]
            lead = timeline.states[int(key) >> 16 & 0xFFFFFF]
            if state is not None and lead.operation == state.operation:
                phase = timeline.phases[int(key) & 0xFFFF]
                total = int(values[keys == key].sum())
                counts[phase, operation_name(timeline, state)] += total
    return dict(counts)


def _states_at(thread: Decoded, times: NDArray[np.int64]) -> NDArray[np.int64]:
    at = np.searchsorted(thread.stream[0], times, side="right")
    return np.concatenate([[0], thread.stream[1]])[at]


def correct(cells: Cells, charge: dict[tuple[str, str], int], unit_ns: float) -> dict[Key, float]:
    """Take the probe's cost out of the cells, ns.

    A callback's cost falls on the code that makes the call: on `python` of the same phase and
    operation first, on that operation's other levels once nothing is left of it. Calibration
    blocks hold no such cost, so they are split like what is left of the observed time near by.
    """
    if unit_ns <= 0:
        return {key: float(ns) for key, ns in cells.time_ns.items()}
    corrected = {key: float(ns) for key, ns in cells.observed_ns.items()}
    by_operation: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for key in corrected:
        by_operation[key[0], key[1]].append(key)
    for operation, count in charge.items():
        rest = count * unit_ns
        keys = by_operation[operation]
        for group in (
            [key for key in keys if key[2] == levels.LEVELS[levels.PYTHON]],
            [key for key in keys if key[2] not in ("python", "waiting")],
        ):
            whole = sum(corrected[key] for key in group)
            taken = min(rest, whole)
            for key in group if taken > 0 else []:
                corrected[key] *= 1.0 - taken / whole  # exactly 0 where all is taken
            rest -= taken
    _add_hidden(corrected, cells)
    return corrected


def _add_hidden(corrected: dict[Key, float], cells: Cells) -> None:
    """Add the calibration blocks to the observed time of which the probe's cost was taken."""
    left = {key: corrected[key] / ns for key, ns in cells.observed_ns.items() if ns}
    for part in cells.hidden:
        weights = {key: ns * left.get(key, 1.0) for key, ns in part.nearby_ns.items()}
        if not any(weights.values()):
            weights = {key: float(ns) for key, ns in part.nearby_ns.items()}
        whole = sum(weights.values())
        for key, ns in weights.items():
            corrected[key] = corrected.get(key, 0.0) + part.ns * ns / whole


def _cell_rows(process: Process, cells: Cells, corrected: dict[Key, float]) -> list[Cell]:
    return [
        Cell(process.name, process.pid, *key, raw_s=ns / 1e9, corrected_s=corrected[key] / 1e9)
        for key, ns in sorted(cells.time_ns.items(), key=lambda item: -item[1])
    ]


def _process_row(timeline: Timeline, cells: Cells) -> ProcessRow:
    process = timeline.process
    return ProcessRow(
        name=process.name,
        pid=process.pid,
        parent_pid=process.parent_pid,
        wall_s=sum(cells.time_ns.values()) / 1e9,
        cpu_s=_cpu_s(process),
        ended=process.end is not None,
        metadata=process.metadata,
        problems=list(process.problems),
        steps=sum(int((t.special_codes == layout.CODE_STEP).sum()) for t in timeline.threads),
    )


def _cpu_s(process: Process) -> float:
    """CPU time since the recording was opened."""
    before_s = float(process.start.get("cpu_s", 0.0))
    if process.end is not None:
        return max(float(process.end.get("cpu_s", 0.0)) - before_s, 0.0)
    if process.monitor is None:
        return 0.0
    monitor = decode(process, process.monitor)
    readings = monitor.special_values[monitor.special_codes == layout.CODE_PROCESS_CPU]
    return max(float(readings[-1]) / 1e6 - before_s, 0.0) if len(readings) else 0.0


def _function_rows(timeline: Timeline) -> list[FunctionRow]:
    process = timeline.process
    calls, total_ns = np.zeros((2, layout.MAX_IDS), np.int64)
    for thread in timeline.threads:
        calls[: len(thread.counts)] += thread.counts
        total_ns[: len(thread.inclusive_ns)] += thread.inclusive_ns
    return [
        FunctionRow(
            process.name,
            process.pid,
            levels.LEVELS[name.level],
            f"{name.module}.{name.name}" if name.module else name.name,
            int(calls[name.id]),
            int(total_ns[name.id]) / 1e9,
        )
        for name in process.names.values()
        if name.kind == "call" and name.level != levels.PYTHON and calls[name.id]
    ]

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
from redline.profile.analyse.correction import (
    WIDE,
    Cycle,
    Estimate,
    ProbeCost,
    estimate_probe_cost,
    find_cycles,
    prior_of,
)
from redline.profile.analyse.processes import Waits, WaitsFor, busy_together, session_span, waits
from redline.profile.analyse.stacks import (
    PythonFunction,
    PythonLine,
    python_functions,
    python_lines,
    read_stacks,
)
from redline.profile.analyse.threads import ThreadRow, blind_share, thread_rows
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

MOST_BLIND = 0.9  # of the time; estimates from less than the rest would be none
Charge = dict[tuple[str, str], tuple[int, str]]  # (phase, operation): callbacks, marked operation
Costs = dict[tuple[str, str], tuple[float, float]]  # (phase, operation): ns, standard deviation

__all__ = [
    "Cell",
    "FunctionRow",
    "ProcessRow",
    "ShareRow",
    "Summary",
    "all_problems",
    "summarize",
]


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
    ci_low_s: float = math.nan  # 95% interval, also where nothing is corrected
    ci_high_s: float = math.nan


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A native function of one process; inclusive time, callbacks into Python too."""

    process: str
    pid: int
    level: str
    function: str
    calls: int  # observed
    total_s: float  # of the observed ones
    estimated_calls: float = math.nan  # with those in calibration blocks, which are not observed
    estimated_s: float = math.nan


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
    threads: list[ThreadRow] = field(default_factory=list)  # of processes with several
    python_functions: list[PythonFunction] = field(default_factory=list)  # sampled, main threads
    python_lines: list[PythonLine] = field(default_factory=list)
    too_deep_events: int = 0  # of the dropped ones, those nested too deeply
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
    charged = [_callbacks_by_operation(timeline) for timeline in timelines]
    windows = [_gpu_windows(timeline.process) for timeline in timelines]
    all_cells = [_cells(t, found) for t, found in zip(timelines, windows, strict=True)]
    overhead, costs = _overhead(session, timelines, all_cells, charged)
    is_corrected = any(estimate.corrected for estimate in overhead)
    cells: list[Cell] = []
    rows: list[ProcessRow] = []
    functions: list[FunctionRow] = []
    for timeline, found, cost in zip(timelines, all_cells, costs, strict=True):
        cells += _cell_rows(timeline.process, found, cost, is_corrected)
        rows.append(_process_row(timeline, found))
        functions += _function_rows(timeline)
    seen = [(t.process, stacks) for t in timelines if (stacks := read_stacks(t)) is not None]
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
        too_deep_events=sum(process.too_deep for process in session.processes),
        problems=all_problems(session),
        transitions=[row for t in timelines for row in transitions(t)],
        busy_together=[BusyTogether(k, ns / 1e9) for k, ns in busy_together(timelines).items()],
        waits=waiting,
        waits_for=waiting_for,
        gpu_devices=[row for t, found in gpu for row in device_busy(t, found)],
        gpu_launched=[row for t, found in gpu for row in launched_by(t, found)],
        gpu_concurrent=[row for t, found in gpu for row in concurrent_with(t, found)],
        threads=[row for t in timelines for row in thread_rows(t)],
        python_functions=[row for each in seen for row in python_functions(*each)],
        python_lines=[row for each in seen for row in python_lines(*each)],
        attributed=_attributed(all_cells) if session.mode == "full" else math.nan,
    )


def all_problems(session: Session) -> list[str]:
    """What was wrong with the files that were read so far, each with its process."""
    return session.problems + [
        f"{process.name} (pid {process.pid}): {problem}"
        for process in session.processes
        for problem in process.problems
    ]


def _overhead(
    session: Session, timelines: list[Timeline], cells: list[Cells], charged: list[Charge]
) -> tuple[list[Estimate], list[Costs]]:
    """What the native boundary's probe cost, from the calibration cycles of all threads."""
    if session.mode != "full":
        return [], [{} for _ in cells]
    cycles: list[Cycle] = []
    for timeline in timelines:
        for shard, thread in zip(timeline.process.threads, timeline.threads, strict=True):
            cycles += find_cycles(timeline.process, shard, thread)
    idle = {levels.LEVELS[level] for level in levels.IDLE}
    busy_ns = sum(ns for each in cells for key, ns in each.time_ns.items() if key[2] not in idle)
    interpreted = [_interpreted(each) for each in cells]
    whole: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for charge, python_ns in zip(charged, interpreted, strict=True):
        for operation in {*charge, *python_ns}:
            callbacks, marked = charge.get(operation, (0, operation[1]))
            before = whole[marked]
            whole[marked] = before[0] + callbacks, before[1] + python_ns.get(operation, 0)
    versions = [str(process.start.get("python", "3.11")) for process in session.processes]
    estimate, cost = estimate_probe_cost(
        cycles, dict(whole), busy_ns, prior_of(min(versions, default="3.11"))
    )
    pairs = zip(charged, interpreted, strict=True)
    return [estimate], [_costs(charge, python_ns, cost) for charge, python_ns in pairs]


def _interpreted(cells: Cells) -> dict[tuple[str, str], int]:
    """Observed ns of interpreted time by (phase, operation)."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    for (phase, operation, level, _), ns in cells.observed_ns.items():
        if level == levels.LEVELS[levels.PYTHON]:
            found[phase, operation] += ns
    return dict(found)


def _costs(charge: Charge, python_ns: dict[tuple[str, str], int], cost: ProbeCost) -> Costs:
    found: Costs = {}
    for operation in {*charge, *python_ns}:
        callbacks, marked = charge.get(operation, (0, operation[1]))
        found[operation] = cost.of(marked, callbacks, python_ns.get(operation, 0))
    return found


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


def _callbacks_by_operation(timeline: Timeline) -> Charge:
    """Probe callbacks per (phase, operation) of the threads that led when they happened.

    Beside them the marked operation most of them fell into, "" for none.
    """
    counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
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
                name = timeline.process.names.get(state.marked)
                marked = name.name if name is not None else ""
                counts[phase, operation_name(timeline, state)][marked] += total
    return {
        operation: (sum(found.values()), max(found, key=lambda name: found[name]))
        for operation, found in counts.items()
    }


def _states_at(thread: Decoded, times: NDArray[np.int64]) -> NDArray[np.int64]:
    at = np.searchsorted(thread.stream[0], times, side="right")
    return np.concatenate([[0], thread.stream[1]])[at]


def correct(cells: Cells, costs: dict[tuple[str, str], float]) -> dict[Key, float]:
    """Take the probe's cost out of the cells, ns.

    It falls on the code that makes calls: on `python` of the same phase and operation first, on
    that operation's other levels once nothing is left of it. Calibration blocks hold no such cost,
    so they are split like what is left of the observed time near by.

    Args:
        cells: as recorded.
        costs: {(phase, operation): ns}.
    """
    if not any(costs.values()):
        return {key: float(ns) for key, ns in cells.time_ns.items()}
    corrected = {key: float(ns) for key, ns in cells.observed_ns.items()}
    by_operation: dict[tuple[str, str], list[Key]] = defaultdict(list)
    for key in corrected:
        by_operation[key[0], key[1]].append(key)
    for operation, cost in costs.items():
        rest = cost
        keys = by_operation[operation]
        for group in (
            [key for key in keys if key[2] == levels.LEVELS[levels.PYTHON]],
            [key for key in keys if key[2] not in ("python", "waiting", "ready")],
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


def _cell_rows(process: Process, cells: Cells, costs: Costs, is_corrected: bool) -> list[Cell]:
    """With the interval of each cell: what is left at either end of the cost's own.

    Where the session is not corrected the interval still says what the probe may have cost.
    """
    low, middle, high = (
        correct(cells, {key: max(mean + at * error, 0.0) for key, (mean, error) in costs.items()})
        for at in (WIDE, 0.0, -WIDE)
    )
    rows: list[Cell] = []
    for key, ns in sorted(cells.time_ns.items(), key=lambda item: -item[1]):
        shown = middle[key] if is_corrected else float(ns)
        # A cell may gain from a cost elsewhere, by which the calibration blocks are split.
        ends = low[key], shown, high[key]
        bounds = min(ends) / 1e9, max(ends) / 1e9
        rows.append(Cell(process.name, process.pid, *key, ns / 1e9, shown / 1e9, *bounds))
    return rows


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
    unseen = min(blind_share(timeline), MOST_BLIND)
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
            int(calls[name.id]) / (1.0 - unseen),
            int(total_ns[name.id]) / 1e9 / (1.0 - unseen),
        )
        for name in process.names.values()
        if name.kind == "call" and name.level != levels.PYTHON and calls[name.id]
    ]

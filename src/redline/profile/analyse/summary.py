"""A session in one object: processes, cells raw and corrected, overhead, native functions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from redline.profile import layout, levels
from redline.profile.analyse.cells import Cells, CellSums
from redline.profile.analyse.charges import Charge, ChargeSums
from redline.profile.analyse.corrected import (
    Costs,
    Delays,
    Shares,
    beside_the_profiler,
    correct,
    joined,
    lasting,
    passed_on,
)
from redline.profile.analyse.correction import (
    WIDE,
    Estimate,
    Prior,
    ProbeCost,
    estimate_probe_cost,
    prior_of,
)
from redline.profile.analyse.cpu_time import CpuSums
from redline.profile.analyse.cycles import Cycle, CycleSeeker, Room
from redline.profile.analyse.native_calls import CallSums
from redline.profile.analyse.processes import READY, Waits, WaitsFor, WaitSums, session_span
from redline.profile.analyse.progress import progress_of
from redline.profile.analyse.slices import Outline, outline, slices_of
from redline.profile.analyse.stacks import (
    ImportRow,
    PythonFunction,
    PythonLine,
    Stacks,
    import_rows,
    python_functions,
    python_lines,
    read_stacks,
)
from redline.profile.analyse.threads import ThreadRow, ThreadSums
from redline.profile.analyse.timeline import Timeline
from redline.profile.analyse.transitions import Transitions, TransitionSums
from redline.profile.gpu.activity import (
    Concurrent,
    DeviceBusy,
    GpuSums,
    Launched,
    device_busy,
    streams_of,
)
from redline.profile.gpu.records import GpuWindow, windows_of
from redline.profile.marks import OTHER
from redline.profile.reader import Process, Session, open_session, printable

NAMED_PROCESSES = 4  # of those with the same problem

__all__ = [
    "Cell",
    "CounterRow",
    "FunctionRow",
    "ProcessRow",
    "ShareRow",
    "Summary",
    "all_problems",
    "summarize",
    "without_nan",
]


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process; times in seconds."""

    name: str
    pid: int
    parent_pid: int
    wall_s: float  # recorded time
    cpu_s: float  # since it joined the session, whether recorded or not
    ended: bool  # False: killed, crashed, or still running
    metadata: dict[str, Any]
    problems: list[str]
    steps: int = 0  # calls of `profile.step()` in the recorded time
    progress_done: float = math.nan  # as last reported by `profile.progress`
    progress_total: float = math.nan
    progress_per_s: float = math.nan  # in the recorded time
    progress_whole_s: float = math.nan  # from nothing to all, at that speed
    profiler_cpu_s: float = 0.0  # of `cpu_s`, of the profiler's own threads
    recorded_cpu_s: float = 0.0  # of `cpu_s`, in the recorded time
    recorded_profiler_cpu_s: float = 0.0  # of that, of the profiler's own threads


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
class CounterRow:
    """One counter of one operation, over the recorded threads of a process."""

    process: str
    pid: int
    operation: str
    counter: str
    count: float


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
    imports: list[ImportRow] = field(default_factory=list)  # that the program itself makes
    too_deep_events: int = 0  # of the dropped ones, those nested too deeply
    counters: list[CounterRow] = field(default_factory=list)  # see `record.counters`
    attributed: float = math.nan  # share of the recorded time that has a level; in full mode only

    def to_json(self) -> dict[str, Any]:
        """Plain data for `json.dumps`; numbers that are not known are null."""
        return without_nan(asdict(self))


def without_nan(value: Any) -> Any:
    """The same plain data for strict JSON: NaN is null, and infinities are words."""
    if isinstance(value, dict):
        items = cast(dict[str, Any], value).items()
        return {key: without_nan(item) for key, item in items}
    if isinstance(value, list):
        return [without_nan(item) for item in cast(list[Any], value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


def summarize(
    session: Session | str | Path,
    outlines: list[Outline] | None = None,
    *beside: Callable[[int, Timeline], None],
    stacks: list[Stacks | None] | None = None,
    windows: list[list[GpuWindow]] | None = None,
) -> Summary:
    """Analyse a whole session.

    Args:
        session: that was recorded.
        outlines: of its processes, where they are known.
        beside: let these have each slice as well, as `slices.follow` does.
        stacks: the samples of its processes, which are told what they were in; None: read here.
        windows: of its processes, in which the GPU was observed; None: likewise.

    Raises:
        SessionError: if the directory is not a session that can be read.
        ProfileError: if the C extension was not built.
    """
    if not isinstance(session, Session):
        session = open_session(session)
    session.look_at_seal()
    outlines = outlines or outline(session.processes)
    if stacks is None:
        stacks = [read_stacks(process) for process in session.processes]
    if windows is None:
        windows = [windows_of(process) for process in session.processes]
    room = Room()
    sums = [_ProcessSums(*each, room) for each in zip(outlines, stacks, windows, strict=True)]
    begin, end = session_span(outlines)
    together = WaitSums(session.processes, begin, end)
    for step in slices_of(outlines):
        for place, timeline in zip(step.places, step.timelines, strict=True):
            sums[place].add(timeline)
            for take in beside:
                take(place, timeline)
        together.add(step.places, step.timelines, step.until_ns)
    return _summary(session, sums, together, (end - begin) / 1e9)


class _ProcessSums:
    """All tables of one process, slice by slice."""

    def __init__(
        self, found: Outline, stacks: Stacks | None, windows: list[GpuWindow], room: Room
    ) -> None:
        process = self.process = found.process
        self.windows = windows
        self._gpu = streams_of(windows, process.base_ns)
        self.gpu = GpuSums(process, self.windows)
        self.cell_sums = CellSums()
        self.charges = ChargeSums()
        self.cycles: dict[int, CycleSeeker] = defaultdict(lambda: CycleSeeker(process, room))
        self.cpu = CpuSums(process)
        self.threads = ThreadSums(process)
        self.transitions = TransitionSums(process)
        self.stacks = stacks
        self.steps = 0
        self.calls = CallSums(process)
        self.is_full = process.start.get("mode", "full") == "full"

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        self.cell_sums.add(timeline, *self._gpu)
        self.charges.add(timeline)
        self.cpu.add(timeline)
        self.threads.add(timeline)
        self.calls.add(timeline)
        self.transitions.add(timeline)
        if self.stacks is not None:
            self.stacks.add(timeline)
        if self.windows:
            self.gpu.add(timeline)
        for thread in timeline.threads:
            if self.is_full:
                self.cycles[thread.index].add(
                    thread, timeline.begin_ns, timeline.until_ns, timeline.blind
                )
            self.steps += int((thread.special_codes == layout.CODE_STEP).sum())

    def tell_limit(self) -> None:
        """Say what the limit of the recording cost, if it acted."""
        most, seen = self.process.event_limit, 1.0 - self.threads.blind_share()
        if most > 0:
            self.process.note(
                f"more than {most:,.0f} events a second: to stay below, native calls were observed "
                f"{100 * seen:.0f}% of the time; the rest, in which imports and calibration have a "
                "part, is split like that, and calls in it are not counted (see "
                "--max-events-per-s)"
            )

    def tell_nameless(self) -> None:
        """Say that names are missing, as where a process was killed while the disk was full."""
        nameless = int(((self.calls.calls > 0) & (self.process.name_tables[0] == 255)).sum())
        if nameless:
            self.process.note(
                f"names that its events refer to are missing ({nameless:,}): their time counts to "
                "whatever surrounds it"
            )

    @cached_property
    def cells(self) -> Cells:
        """After the last slice."""
        return self.cell_sums.result()


def _summary(
    session: Session, sums: list[_ProcessSums], together: WaitSums, wall_s: float
) -> Summary:
    for each in sums:
        each.tell_limit()
        each.tell_nameless()
    overhead, costs = _overhead(session, sums)
    is_corrected = any(estimate.corrected for estimate in overhead)
    waiting, waiting_for = together.waits()
    beside = _beside(session, sums, together)
    delays, known = _delays(sums, costs, together), _known(session, sums, beside)
    overhead = [replace(estimate, **_known_s(sums, beside)) for estimate in overhead]
    cells: list[Cell] = []
    for each, cost, delay, sure in zip(sums, costs, delays, known, strict=True):
        cells += _cell_rows(each.process, each.cells, cost, delay, sure, is_corrected)
    functions = [row for each in sums for row in _function_rows(each)]
    seen = [(each.process, each.stacks) for each in sums if each.stacks is not None]
    gpu = [each for each in sums if each.windows]
    return Summary(
        session=str(session.directory),
        mode=session.mode,
        wall_s=wall_s,
        processes=[_process_row(each) for each in sums],
        cells=cells,
        overhead=overhead,
        functions=sorted(functions, key=lambda row: -row.total_s),
        dropped_events=sum(process.dropped for process in session.processes),
        too_deep_events=sum(process.too_deep for process in session.processes),
        problems=all_problems(session),
        transitions=[row for each in sums for row in each.transitions.rows()],
        busy_together=[BusyTogether(k, ns / 1e9) for k, ns in together.busy_together().items()],
        waits=waiting,
        waits_for=waiting_for,
        gpu_devices=[row for each in gpu for row in device_busy(each.process, each.windows)],
        gpu_launched=[row for each in gpu for row in each.gpu.launched_by()],
        gpu_concurrent=[row for each in gpu for row in each.gpu.concurrent_with()],
        threads=[row for each in sums for row in each.threads.rows()],
        python_functions=[row for each in seen for row in python_functions(*each)],
        python_lines=[row for each in seen for row in python_lines(*each)],
        counters=[row for each in sums for row in _counter_rows(each.process)],
        imports=[row for each in seen for row in import_rows(*each)],
        attributed=_attributed([each.cells for each in sums])
        if session.mode == "full"
        else math.nan,
    )


def all_problems(session: Session) -> list[str]:
    """What was wrong with the files that were read so far, and in which processes."""
    found: dict[str, list[str]] = {}
    for process in session.processes:
        for problem in dict.fromkeys(process.problems):  # of one process once
            found.setdefault(problem, []).append(f"{process.name} (pid {process.pid})")
    told = [f"{_some(names)}: {problem}" for problem, names in found.items()]
    return session.problems + _never_seen(session) + told


def _never_seen(session: Session) -> list[str]:
    """Which functions were to be watched, and no process had them."""
    asked: Any = session.manifest.get("watch")
    seen = [process.metadata.get(layout.WATCHED) for process in session.processes]
    found = [name for names in seen if isinstance(names, list) for name in cast(list[Any], names)]
    targets = cast(list[Any], asked) if isinstance(asked, list) else []
    return [
        f"--watch {printable(target)}: no process imported it, so nothing of it is counted. Check "
        "the module's name"
        for target in targets
        if isinstance(target, str) and target not in found
    ]


def _some(names: list[str]) -> str:
    """The first few by name."""
    more = len(names) - NAMED_PROCESSES
    return ", ".join(names[:NAMED_PROCESSES]) + (f" and {more} more" if more > 0 else "")


def _overhead(session: Session, sums: list[_ProcessSums]) -> tuple[list[Estimate], list[Costs]]:
    """What the native boundary's probe cost, from the calibration cycles of all threads."""
    if session.mode != "full":
        return [], [{} for _ in sums]
    cycles: list[Cycle] = []
    for each in sums:
        for _, seeker in sorted(each.cycles.items()):
            cycles += seeker.found()
    cells = [each.cells for each in sums]
    charged = [each.charges.result() for each in sums]
    idle = {levels.LEVELS[level] for level in levels.IDLE}
    busy_ns = sum(ns for each in cells for key, ns in each.time_ns.items() if key[2] not in idle)
    interpreted = [_interpreted(each) for each in cells]
    whole: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for charge, python_ns in zip(charged, interpreted, strict=True):
        for operation in sorted({*charge, *python_ns}):
            callbacks, marked = charge.get(operation, (0, operation[1]))
            before = whole[marked]
            whole[marked] = before[0] + callbacks, before[1] + python_ns.get(operation, 0)
    versions = [_python_of(process) for process in session.processes]
    prior = prior_of(versions, [process.start.get("call_ns") for process in session.processes])
    estimate, cost = estimate_probe_cost(cycles, dict(whole), busy_ns, prior)
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
    for operation in sorted({*charge, *python_ns}):
        callbacks, marked = charge.get(operation, (0, operation[1]))
        found[operation] = cost.of(marked, callbacks, python_ns.get(operation, 0))
    return found


def _attributed(cells: list[Cells]) -> float:
    unknown = levels.LEVELS[levels.UNATTRIBUTED]
    times = [(key[2], ns) for each in cells for key, ns in each.time_ns.items()]
    whole = sum(ns for _, ns in times)
    return sum(ns for level, ns in times if level != unknown) / whole if whole else math.nan


def _cell_rows(
    process: Process,
    cells: Cells,
    costs: Costs,
    delays: Delays,
    known: Shares,
    is_corrected: bool,
) -> list[Cell]:
    """With the interval of each cell: what is left at either end of the cost's own.

    Where the session is not corrected the interval still says what the probe may have cost.

    Args:
        process: that spent the time.
        cells: as recorded.
        costs: of the probe.
        delays: what others' costs made longer.
        known: what full mode cost beside that, and is taken out in any case.
        is_corrected: whether the probe's cost is to be taken out.
    """
    low, middle, high = (
        correct(cells, _at(costs, deviations), _at(delays, deviations), _at(known, deviations))
        for deviations in (WIDE, 0.0, -WIDE)
    )
    if not is_corrected:
        middle = correct(cells, {}, {}, _at(known, 0.0))
    rows: list[Cell] = []
    for key, ns in sorted(cells.time_ns.items(), key=lambda item: -item[1]):
        shown = middle[key]
        # A cell may gain from a cost elsewhere, by which the calibration blocks are split.
        ends = low[key], shown, high[key]
        bounds = max(min(ends), 0.0) / 1e9, max(ends) / 1e9
        rows.append(Cell(process.name, process.pid, *key, ns / 1e9, shown / 1e9, *bounds))
    return rows


def _known(session: Session, sums: list[_ProcessSums], beside: list[Shares]) -> list[Shares]:
    """What full mode cost each process beside the probe's calls, which no block can tell."""
    if session.mode != "full":
        return [{} for _ in sums]
    found = [lasting(each.cells, _prior_of(each.process)) for each in sums]
    return list(map(joined, found, beside))


def _beside(session: Session, sums: list[_ProcessSums], together: WaitSums) -> list[Shares]:
    if session.manifest.get("cpus") != 1:
        return [{} for _ in sums]
    own_ns = [each.process.recorded_own_cpu_s * 1e9 for each in sums]
    return beside_the_profiler([each.cells for each in sums], own_ns, together.beside())


def _known_s(sums: list[_ProcessSums], beside: list[Shares]) -> dict[str, float]:
    """The two of them, in seconds of all processes."""
    lost = [lasting(each.cells, _prior_of(each.process)) for each in sums]
    found = {"lasting_s": lost, "threads_s": beside}
    return {
        name: sum(
            ns * shares.get(key[:3], (0.0, 0.0))[0]
            for each, shares in zip(sums, table, strict=True)
            for key, ns in each.cells.time_ns.items()
        )
        / 1e9
        for name, table in found.items()
    }


def _python_of(process: Process) -> str:
    return str(process.start.get("python", "3.11"))


def _prior_of(process: Process) -> Prior:
    return prior_of([_python_of(process)])


def _delays(sums: list[_ProcessSums], costs: list[Costs], together: WaitSums) -> list[Delays]:
    """What the probe in each process added to the waits of the others."""
    cells = [(each.process.pid, each.cells) for each in sums]
    waiting = passed_on(cells, costs, levels.WAITING, *together.waits())
    ready = passed_on(cells, costs, levels.READY, *together.waits(READY))
    return [a | b for a, b in zip(waiting, ready, strict=True)]


K = TypeVar("K")


def _at(costs: dict[K, tuple[float, float]], deviations: float) -> dict[K, float]:
    """The costs, ns, so many standard deviations from the mean."""
    return {key: max(mean + deviations * error, 0.0) for key, (mean, error) in costs.items()}


def _process_row(sums: _ProcessSums) -> ProcessRow:
    process = sums.process
    progress, cpu = progress_of(process.progress), sums.cpu
    return ProcessRow(
        name=process.name,
        pid=process.pid,
        parent_pid=process.parent_pid,
        wall_s=sum(sums.cells.time_ns.values()) / 1e9,
        cpu_s=cpu.whole_s,
        profiler_cpu_s=min(process.own_cpu_s, cpu.whole_s),
        recorded_cpu_s=cpu.recorded_s,
        recorded_profiler_cpu_s=min(process.recorded_own_cpu_s, cpu.recorded_s),
        ended=process.end is not None,
        metadata=process.metadata,
        problems=list(process.problems),
        steps=sums.steps,
        progress_done=progress.done if progress else math.nan,
        progress_total=progress.total if progress else math.nan,
        progress_per_s=progress.per_s if progress else math.nan,
        progress_whole_s=progress.whole_s if progress else math.nan,
    )


def _function_rows(sums: _ProcessSums) -> list[FunctionRow]:
    process, found = sums.process, sums.calls
    return [
        FunctionRow(
            process.name,
            process.pid,
            levels.LEVELS[name.level],
            f"{name.module}.{name.name}" if name.module else name.name,
            calls := int(found.calls[name.id]),
            total_s := int(found.inclusive_ns[name.id]) / 1e9,
            estimated := found.estimated_calls(name.id),
            total_s * estimated / calls,
        )
        for name in process.names.values()
        if name.kind == "call" and name.level != levels.PYTHON and found.calls[name.id]
    ]


def _counter_rows(process: Process) -> list[CounterRow]:
    """Of each operation, by name; what was counted in none is `other`."""
    counted = process.counted
    if counted is None:
        return []
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for number, values in counted.counts.items():
        name = process.names.get(number)
        for counter, value in zip(counted.names, values, strict=True):
            totals[name.name if name is not None else OTHER, counter] += value
    return [
        CounterRow(process.name, process.pid, operation, counter, count)
        for (operation, counter), count in totals.items()
    ]

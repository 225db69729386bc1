"""Time per env step of the process that learns, part by part, once it has started up.

The steady state begins where the program first learns (or, if it never does, first simulates),
after a compiler has done its work, and ends with its last env step. It is cut where bursts of
learning begin (or, if there are none, into equal stretches), so that each stretch is whole
iterations; a part's time per env step is sum(t) / sum(n) over them, and its interval is the
jackknife's.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from redline.errors import ProfileError, SessionError
from redline.plain_text import shown
from redline.profile import levels
from redline.profile.advise.counted import (
    UPDATES,
    HotLine,
    Updates,
    Waiting,
    count_updates,
    hot_lines,
    who_waits,
)
from redline.profile.analyse.cells import Key
from redline.profile.analyse.slices import Outline, outline, slices_of
from redline.profile.analyse.stacks import Stacks, read_stacks
from redline.profile.analyse.summary import Cell, Summary, summarize
from redline.profile.analyse.transitions import entry_times
from redline.profile.reader import Process, Session, open_session
from redline.profile.report.bins import CellBins

STRETCHES = 20  # at most, or exactly where learning comes in no bursts
MIN_BURSTS = 4
WIDE = 1.96  # standard deviations of a 95% interval
MOST_THREADS = 4096
LEARNING = ("backpropagation", "learning")
SIMULATION, COMPILE = "simulation", "compile"
BACKWARD = "torch._C._EngineBase.run_backward"

__all__ = ["Iteration", "Part", "Time", "once_compiled", "parts_between", "read_iteration"]


@dataclass(frozen=True, slots=True)
class Time:
    """A time per env step, us, with the half width of its 95% interval."""

    us: float
    half_us: float = 0.0

    def __add__(self, other: Time) -> Time:
        return Time(self.us + other.us, math.hypot(self.half_us, other.half_us))


@dataclass(frozen=True, slots=True)
class Part:
    """One operation of the learning process."""

    operation: str
    by_level: dict[str, float]  # us per env step
    time: Time  # all levels but `ready`

    def level(self, name: str) -> float:
        """Us per env step in one level."""
        return self.by_level.get(name, 0.0)


@dataclass(frozen=True, slots=True)
class Iteration:
    """What an env step costs the process that learns."""

    process: str
    pid: int
    framework: str  # "SB3", "CleanRL", "TorchRL", "Redline" or ""
    mode: str
    env_steps: int  # in the steady state
    num_envs: int  # stepped at once
    workers: int  # processes that simulate for it
    cpus: int
    begin_s: float  # of the steady state, since the process's start
    end_s: float
    parts: dict[str, Part]
    total: Time  # without `ready`
    ready_us: float
    optimizer_us: float  # of backpropagation what is not the backward pass; nan: not known
    gpu_busy: float  # share of the time
    torch_threads: int = 0  # of the process; 0: not told
    optimizers: tuple[str, ...] = ()  # such as "Adam" or "Adam fused"; empty: not told
    worker_busy_us: float = math.nan  # of a worker, per env step of its own
    problems: list[str] = field(default_factory=list)
    updates: Updates | None = None  # None: nothing counts them
    waiting: Waiting | None = None
    hot_lines: dict[str, HotLine] = field(default_factory=dict)  # by operation
    # The same if the probe cost as much, and as little, as it may have: see `_BOUNDS`.
    extremes: tuple[Iteration, ...] = ()

    def part(self, name: str) -> Part:
        """An operation, of no time if it never happened."""
        return self.parts.get(name, Part(name, {}, Time(0.0)))

    def us(self, *names: str) -> float:
        """Us per env step in these operations, waiting included."""
        return sum(self.part(name).time.us for name in names)


def read_iteration(session: Session | str | Path, summary: Summary | None = None) -> Iteration:
    """Find the process that learns, and what its env steps consist of.

    Args:
        session: that was recorded.
        summary: of it, where it is known.

    Raises:
        SessionError: if it is no session.
        ProfileError: if no env step was recorded.
    """
    if not isinstance(session, Session):
        session = open_session(session)
    summary = summary or summarize(session)
    outlines = outline(session.processes)
    entries = _entries(outlines)
    steps = [each[SIMULATION] for each in entries]
    if not any(map(len, steps)):
        raise ProfileError(
            f"{session.directory} holds no env step: advice is per env step. Record a program that "
            "steps Gymnasium, EnvPool or Stable-Baselines3 envs, or mark its steps: with "
            'profile.operation("simulation")'
        )
    place = _learner(summary, session.processes, steps)
    process = session.processes[place]
    own = steps[place]
    workers = [i for i in range(len(steps)) if i != place and len(steps[i]) > 2]
    num_envs = _num_envs(summary, process, steps_itself=len(own) > 0, workers=len(workers))
    if len(own) == 0:  # its envs are stepped elsewhere, and it is not told
        told = [(steps[i], session.processes[i].base_ns - process.base_ns) for i in workers]
        own = np.sort(np.concatenate([times + later_ns for times, later_ns in told]))
        num_envs = max(
            _num_envs(summary, session.processes[i], steps_itself=True, workers=1) for i in workers
        )
    learned = np.concatenate([entries[place][name] for name in LEARNING])
    edges = _steady(once_compiled(learned, entries[place][COMPILE], own), own)
    counts = np.histogram(own, edges)[0] * num_envs
    if counts.sum() < STRETCHES:
        raise ProfileError(
            f"{session.directory} holds {counts.sum()} env steps in the steady state. Record longer"
        )
    found = outlines[place]
    stacks = read_stacks(process)
    rows = _binned(found, edges, stacks)
    middle, *extremes = (_corrected(rows, summary, found.process.pid, of) for of in _BOUNDS)
    nothing = np.zeros(len(counts))
    ready = sum((row for key, row in middle.items() if key[1] == _READY), nothing)
    made = Iteration(
        process=process.name,
        pid=process.pid,
        framework=_framework(session),
        mode=session.mode,
        env_steps=int(counts.sum()),
        num_envs=num_envs,
        workers=len(workers),
        cpus=_cpus_of(session),
        begin_s=float(edges[0]) / 1e9,
        end_s=float(edges[-1]) / 1e9,
        parts={},
        total=Time(0.0),
        ready_us=_per_step(ready, counts).us,
        optimizer_us=math.nan,
        gpu_busy=_gpu_share(summary, process.pid),
        torch_threads=_threads_of(process),
        optimizers=_optimizers_of(process),
        worker_busy_us=_worker_us(summary, [session.processes[i] for i in workers], steps, workers),
        problems=[*summary.problems, *_doubts(summary), *_elsewhere(session)],
        updates=count_updates(entries[place], int(edges[0]), int(edges[-1])),
        waiting=who_waits(
            summary,
            process.pid,
            {session.processes[i].pid: float(np.ptp(steps[i])) / 1e9 for i in workers},
        ),
        hot_lines=hot_lines(stacks, int(edges[0]), int(edges[-1])) if stacks else {},
    )

    def with_times(table: dict[tuple[str, str], NDArray[np.float64]], of: Bound) -> Iteration:
        parts = _parts(table, counts)
        optimizer_us = _optimizer_us(summary, found, parts, of)
        return replace(made, parts=parts, total=_total(table, counts), optimizer_us=optimizer_us)

    others = zip(extremes, _BOUNDS[1:], strict=True)
    return replace(
        with_times(middle, _BOUNDS[0]),
        extremes=tuple(with_times(table, of) for table, of in others),
    )


Bound = Callable[[Cell], float]  # seconds of a cell, if the probe cost a certain part of it


def _likely_s(cell: Cell) -> float:
    """As corrected; where the session was not, the middle of what it may have been."""
    if cell.corrected_s != cell.raw_s or not cell.ci_low_s >= 0.0:
        return cell.corrected_s
    return (cell.ci_low_s + cell.ci_high_s) / 2


def _least_s(cell: Cell) -> float:
    return cell.ci_low_s if cell.ci_low_s >= 0.0 else cell.corrected_s


def _most_s(cell: Cell) -> float:
    return cell.ci_high_s if cell.ci_high_s >= 0.0 else cell.corrected_s


_BOUNDS: tuple[Bound, ...] = (_likely_s, _least_s, _most_s)


def _doubts(summary: Summary) -> list[str]:
    """What makes the advice less sure than it could be."""
    return [
        f"the probe's cost is not known well ({each.reason}): advice takes the middle of what it "
        "may be, and its intervals are wide"
        for each in summary.overhead
        if not each.corrected and each.reason and each.cost_high_s > 0
    ]


def _elsewhere(session: Session) -> list[str]:
    there = str(session.manifest.get("machine") or "")
    here = platform.platform()
    if there in ("", here):
        return []
    return [
        f"recorded on another machine ({there}, this is {here}): what is measured here for the "
        "advice may not hold there. Run redline advise on that machine"
    ]


_READY = levels.LEVELS[levels.READY]


def _entries(outlines: list[Outline]) -> list[dict[str, NDArray[np.int64]]]:
    """Per process when simulation and learning began, in order, ns since its base."""
    names = dict.fromkeys((SIMULATION, COMPILE, *LEARNING, *UPDATES))
    found: list[dict[str, list[NDArray[np.int64]]]] = [
        {name: [np.empty(0, np.int64)] for name in names} for _ in outlines
    ]
    for step in slices_of(outlines):
        for place, timeline in zip(step.places, step.timelines, strict=True):
            for name, times in found[place].items():
                times.append(entry_times(timeline, name))
    return [{name: np.concatenate(times) for name, times in each.items()} for each in found]


def _learner(summary: Summary, processes: list[Process], steps: list[NDArray[np.int64]]) -> int:
    """The process that spends most on learning, else the one that steps most."""

    def rank(i: int) -> tuple[float, int]:
        pid = processes[i].pid
        cells = [c for c in summary.cells if c.pid == pid and c.operation in LEARNING]
        return sum(c.corrected_s for c in cells), len(steps[i])

    return max(range(len(processes)), key=rank)


def _num_envs(summary: Summary, process: Process, *, steps_itself: bool, workers: int) -> int:
    """Envs stepped at once: as the program's vector env said, else one, or one for each worker."""
    for row in summary.processes:
        if row.pid == process.pid:
            said = row.metadata.get("num_envs")
            if type(said) is int and said > 0:
                return said
    return max(workers, 1) if steps_itself else 1


def _threads_of(process: Process) -> int:
    said = process.metadata.get("torch_threads")
    return said if type(said) is int and 0 < said < MOST_THREADS else 0


def _optimizers_of(process: Process) -> tuple[str, ...]:
    said = process.metadata.get("optimizers")
    return tuple(map(str, cast(list[Any], said))) if isinstance(said, list) else ()


def once_compiled(
    learned: NDArray[np.int64], compiled: NDArray[np.int64], steps: NDArray[np.int64]
) -> NDArray[np.int64]:
    """When it learned after the compiler was last at work, if half of the env steps come then.

    A program that compiles to its end is in no steady state, and is taken as it is.
    """
    if len(compiled) == 0:
        return learned
    after = learned[learned > compiled.max()]
    enough = len(after) > 0 and 2 * int((steps > after.min()).sum()) >= len(steps)
    return after if enough else learned


def _steady(learned: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N + 1] edges of stretches, from the first update on, or the first step, to the last step."""
    begin, end = int(steps[0]), int(steps[-1]) + 1
    if len(learned) and int(learned.min()) < end and len(steps[steps > learned.min()]) > STRETCHES:
        begin = int(learned.min())
    # Whole iterations: where learning comes in bursts, it begins and ends with a burst.
    bursts = np.sort(learned[(learned >= begin) & (learned < end)])
    pause = np.diff(bursts)
    if len(pause) and pause.max() > 20 * np.median(pause):
        first = bursts[1:][pause > 0.5 * pause.max()]
        if len(first) > MIN_BURSTS:
            return first[:: -(-len(first) // STRETCHES)]
    return np.linspace(begin, end, STRETCHES + 1).astype(np.int64)


def _binned(
    found: Outline, edges: NDArray[np.int64], stacks: Stacks | None = None
) -> dict[Key, NDArray[np.float64]]:
    """[STRETCHES] ns of each cell, as recorded; the samples of `stacks` are told what they hit."""
    last = max(found.end_ns, int(edges[-1])) + 1
    bins = CellBins(np.concatenate([[0], edges, [last]]))
    for step in slices_of([found]):
        for timeline in step.timelines:
            bins.add(timeline)
            if stacks is not None:
                stacks.add(timeline)
    return {key: row[1:-1].astype(np.float64) for key, row in bins.result().items()}


def _corrected(
    rows: dict[Key, NDArray[np.float64]], summary: Summary, pid: int, of: Bound
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """{(operation, level): [STRETCHES] ns}, corrected as the process's cells are."""
    share: dict[Key, float] = {}
    for cell in summary.cells:
        if cell.pid == pid and cell.raw_s > 0:
            key = (cell.phase, cell.operation, cell.level, cell.gpu_busy)
            share[key] = of(cell) / cell.raw_s
    table: dict[tuple[str, str], NDArray[np.float64]] = {}
    for key, row in rows.items():
        scaled = row * share.get(key, 1.0)
        into = key[1], key[2]
        table[into] = table.get(into, np.zeros(len(scaled))) + scaled
    return table


def _per_step(ns: NDArray[np.float64], counts: NDArray[np.int64]) -> Time:
    """Us per env step with the jackknife's interval."""
    whole, steps = float(ns.sum()), int(counts.sum())
    without = (whole - ns) / np.maximum(steps - counts, 1)
    number = len(ns)
    error = math.sqrt((number - 1) / number * float(((without - without.mean()) ** 2).sum()))
    return Time(whole / steps / 1e3, WIDE * error / 1e3)


def _total(table: dict[tuple[str, str], NDArray[np.float64]], counts: NDArray[np.int64]) -> Time:
    nothing = np.zeros(len(counts))
    busy = (row for (_, level), row in table.items() if level != _READY)
    return _per_step(sum(busy, nothing), counts)


def parts_between(
    found: Outline, summary: Summary, edges: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[dict[str, Part], Time]:
    """The operations of a process, and all of them, per step.

    Args:
        found: outline of the process.
        summary: of its session.
        edges: [N + 1] ns since the process's base, of stretches of whole steps.
        counts: [N] steps in each.
    """
    table = _corrected(_binned(found, edges), summary, found.process.pid, _likely_s)
    return _parts(table, counts), _total(table, counts)


def _parts(
    table: dict[tuple[str, str], NDArray[np.float64]], counts: NDArray[np.int64]
) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    nothing = np.zeros(len(counts))
    for operation in dict.fromkeys(operation for operation, _ in table):
        own = {level: row for (name, level), row in table.items() if name == operation}
        busy = sum((row for level, row in own.items() if level != _READY), nothing)
        by_level = {level: _per_step(row, counts).us for level, row in own.items()}
        parts[operation] = Part(operation, by_level, _per_step(busy, counts))
    return dict(sorted(parts.items(), key=lambda item: -item[1].time.us))


def _optimizer_us(summary: Summary, found: Outline, parts: dict[str, Part], of: Bound) -> float:
    """Backpropagation without the backward passes, whose share the observed blocks tell."""
    if summary.mode != "full" or "backpropagation" not in parts:
        return math.nan
    pid = found.process.pid
    backward_s = sum(
        row.total_s for row in summary.functions if row.pid == pid and row.function == BACKWARD
    )
    cells = [c for c in summary.cells if c.pid == pid and c.operation == "backpropagation"]
    # The probe slows the optimizer's Python, not the native backward pass.
    own_s = sum(of(cell) for cell in cells)
    if backward_s <= 0 or own_s <= 0:
        return math.nan
    observed = 1.0 - _blind_share(found)
    share = min(backward_s / max(observed, 1e-3) / own_s, 1.0)
    return (1.0 - share) * parts["backpropagation"].time.us


def _blind_share(found: Outline) -> float:
    times, states = found.blind
    if len(times) == 0 or found.end_ns <= 0:
        return 0.0
    held = np.diff(np.append(times, max(found.end_ns, int(times[-1]))))
    return float(held[states == 1].sum()) / found.end_ns


def _gpu_share(summary: Summary, pid: int) -> float:
    cells = [cell for cell in summary.cells if cell.pid == pid]
    whole = sum(cell.raw_s for cell in cells)
    return sum(cell.raw_s for cell in cells if cell.gpu_busy) / whole if whole else 0.0


def _worker_us(
    summary: Summary,
    processes: list[Process],
    steps: list[NDArray[np.int64]],
    places: list[int],
) -> float:
    """Simulation per env step of the worker processes."""
    if not processes:
        return math.nan
    pids = {process.pid for process in processes}
    cells = [c for c in summary.cells if c.pid in pids and c.operation == SIMULATION]
    seconds = sum(c.corrected_s for c in cells if c.level not in ("waiting", "ready"))
    return 1e6 * seconds / max(sum(len(steps[i]) for i in places), 1)


def _cpus_of(session: Session) -> int:
    """The cores that the program could use; 1 where an earlier version did not say.

    Raises:
        SessionError: if what stands there is no number of cores.
    """
    cpus: Any = session.manifest.get("cpus") or 1
    if not isinstance(cpus, int) or cpus < 1:
        raise SessionError(
            f"{session.directory}: session.json says cpus={shown(cpus)}, which is no number of "
            "cores. Record the program again"
        )
    return cpus


def _framework(session: Session) -> str:
    """By its name, as told while recording or in the command; "" if none is known."""
    words = cast(list[Any], session.manifest.get("command") or [])
    command = " ".join(map(str, words)).lower()
    said = {str(process.metadata.get("framework", "")) for process in session.processes}
    for name in ("TorchRL", "SB3", "CleanRL", "Redline"):
        if name in said or name.lower() in command:
            return name
    return "SB3" if "stable_baselines3" in command else ""

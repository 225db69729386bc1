"""Time per env step of the process that learns, part by part, once it has started up.

A part's time per env step is sum(t) / sum(n) over the stretches of the steady state (see `steady`),
and its interval is the jackknife's.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from redline.errors import ProfileError, SessionError
from redline.plain_text import shown
from redline.profile import levels
from redline.profile.advise.counted import (
    HotLine,
    Updates,
    Waiting,
    count_updates,
    hot_lines,
    who_waits,
)
from redline.profile.advise.steady import (
    SIMULATION,
    Entries,
    Steady,
    find_learner,
    find_steady,
    learners,
)
from redline.profile.advise.stretches import BACKPROPAGATION, OnGpu, Stretches
from redline.profile.analyse.cells import Key
from redline.profile.analyse.correction import t_quantile
from redline.profile.analyse.slices import Outline, follow, outline
from redline.profile.analyse.stacks import Stacks, read_stacks
from redline.profile.analyse.summary import Cell, Summary, summarize
from redline.profile.analyse.timeline import Timeline
from redline.profile.gpu.records import GpuWindow, windows_of
from redline.profile.reader import Process, Session, open_session, printable

MOST_THREADS = 4096
WORK_OF_WORKERS = (SIMULATION, "inference", "collection")

__all__ = [
    "Iteration",
    "IterationReader",
    "Part",
    "Time",
    "parts_between",
    "read_iteration",
    "torch_threads_of",
]


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
    gpu: OnGpu = field(default_factory=OnGpu)
    torch_threads: int = 0  # of the process; 0: not told
    optimizers: tuple[str, ...] = ()  # such as "Adam" or "Adam fused"; empty: not told
    worker_busy_us: float = math.nan  # of a worker, per env step of its own, acting included
    problems: list[str] = field(default_factory=list)
    updates: Updates | None = None  # None: nothing counts them
    waiting: Waiting | None = None
    hot_lines: dict[str, HotLine] = field(default_factory=dict)  # by operation
    # The same if the probe cost as much, and as little, as it may have: see `_bounds`.
    extremes: tuple[Iteration, ...] = ()
    collector: str = ""  # of a run of Redline
    replay_is_near: bool = False  # its replay lies on the learner's device already, or may not

    def part(self, name: str) -> Part:
        """An operation, of no time if it never happened."""
        return self.parts.get(name, Part(name, {}, Time(0.0)))

    def us(self, *names: str) -> float:
        """Us per env step in these operations, waiting included."""
        return sum(self.part(name).time.us for name in names)


def read_iteration(session: Session | str | Path) -> Iteration:
    """Find the process that learns, and what its env steps consist of.

    Args:
        session: that was recorded.

    Raises:
        SessionError: if it is no session.
        ProfileError: if no env step was recorded.
    """
    if not isinstance(session, Session):
        session = open_session(session)
    entries = Entries(session.processes)
    outlines = outline(session.processes, beside=entries.add)
    stacks = [read_stacks(process) for process in session.processes]
    windows = [windows_of(process) for process in session.processes]
    reader = IterationReader(session, outlines, entries.found(), windows)
    summary = summarize(session, outlines, reader.add, stacks=stacks, windows=windows)
    return reader.result(summary, stacks)


class IterationReader:
    """Reads an iteration, slice by slice.

    Who learns is known once the session was summed. So this follows each process that may be the
    one, in the same walk.

    Args:
        session: that was recorded.
        outlines: of its processes.
        entries: likewise, see `Entries`.
        windows: likewise, in which the GPU was observed.
    """

    def __init__(
        self,
        session: Session,
        outlines: list[Outline],
        entries: list[dict[str, NDArray[np.int64]]],
        windows: list[list[GpuWindow]],
    ) -> None:
        self._session, self._outlines, self._entries = session, outlines, entries
        self._windows = windows
        self._followed: dict[int, tuple[Steady, Stretches]] = {}
        for place in learners(entries):
            # Too few env steps matter if this is the process that learns, and are told then.
            with suppress(ProfileError):
                self._followed[place] = self._begin(place)

    def _begin(self, place: int) -> tuple[Steady, Stretches]:
        steady = find_steady(self._session, place, self._entries)
        return steady, Stretches(self._outlines[place], steady.edges_ns, self._windows[place])

    def add(self, place: int, timeline: Timeline) -> None:
        """The next slice of the process at this place."""
        if place in self._followed:
            self._followed[place][1].add(timeline)

    def result(self, summary: Summary, stacks: list[Stacks | None]) -> Iteration:
        """After the last slice.

        Args:
            summary: of the session.
            stacks: samples of its processes, with what each was in; None where there are none.

        Raises:
            ProfileError: if the session holds too few env steps, or no time that they took.
        """
        place = find_learner(self._session, summary, self._entries)
        if place not in self._followed:  # its entries did not tell: it is walked through alone
            steady, stretches = self._begin(place)
            follow([self._outlines[place]], lambda _, timeline: stretches.add(timeline))
            self._followed[place] = steady, stretches
        steady, stretches = self._followed[place]
        found = _Learner(self._session, summary, self._outlines[place], steady, stacks[place])
        return found.iteration(stretches)


class _Learner:
    """The process that learns.

    Args:
        session: it belongs to.
        summary: of that.
        found: outline of the process.
        steady: its steady state.
        stacks: its samples, with what each was in; None: there are none.
    """

    def __init__(
        self,
        session: Session,
        summary: Summary,
        found: Outline,
        steady: Steady,
        stacks: Stacks | None,
    ) -> None:
        self._session, self._summary, self._outline, self._steady = session, summary, found, steady
        self._stacks = stacks

    def iteration(self, stretches: Stretches) -> Iteration:
        """What an env step costs.

        Args:
            stretches: of the steady state, after the last slice.

        Raises:
            ProfileError: if the session holds no time in its steady state.
        """
        counts = self._steady.env_steps
        pid = self._outline.process.pid
        rows, gpu = stretches.rows(), stretches.on_gpu()
        bounds = _bounds(self._summary)
        shares = [_shares_left(self._summary, pid, of) for of in bounds]
        middle, *extremes = (_corrected(rows, share) for share in shares)
        nothing = np.zeros(len(counts))
        ready = sum((row for key, row in middle.items() if key[1] == _READY), nothing)
        made = self._without_times(_per_step(ready, counts).us, gpu)

        def with_times(
            table: dict[tuple[str, str], NDArray[np.float64]], left: dict[Key, float]
        ) -> Iteration:
            parts = _parts(table, counts)
            return replace(
                made,
                parts=parts,
                total=_total(table, counts),
                optimizer_us=self._optimizer_us(parts, stretches, left),
            )

        likely = with_times(middle, shares[0])
        if not likely.total.us > 0:  # of a damaged session, or one that was ready throughout
            raise ProfileError(
                f"{self._session.directory} holds env steps, but no time that they took. Record "
                "the program again"
            )
        others = zip(extremes, shares[1:], strict=True)
        return replace(likely, extremes=tuple(with_times(*other) for other in others))

    def _optimizer_us(
        self, parts: dict[str, Part], stretches: Stretches, left: dict[Key, float]
    ) -> float:
        """Backpropagation without the backward passes; nan where these were not observed."""
        if self._summary.mode != "full" or BACKPROPAGATION not in parts:
            return math.nan
        share = stretches.backward_share(left)
        return (1.0 - share) * parts[BACKPROPAGATION].time.us

    def _without_times(self, ready_us: float, gpu: OnGpu) -> Iteration:
        """All but what the parts take."""
        session, summary, steady = self._session, self._summary, self._steady
        process = self._outline.process
        begin_ns, end_ns = int(steady.edges_ns[0]), int(steady.edges_ns[-1])
        workers = [session.processes[i] for i in steady.workers]
        stepping_s = {
            session.processes[i].pid: float(np.ptp(steady.steps[i])) / 1e9 for i in steady.workers
        }
        return Iteration(
            process=process.name,
            pid=process.pid,
            framework=_framework(session),
            mode=session.mode,
            env_steps=int(steady.env_steps.sum()),
            num_envs=steady.num_envs,
            workers=len(workers),
            cpus=_cpus_of(session),
            begin_s=float(begin_ns) / 1e9,
            end_s=float(end_ns) / 1e9,
            parts={},
            total=Time(0.0),
            ready_us=ready_us,
            optimizer_us=math.nan,
            gpu=gpu,
            torch_threads=_threads_of(process),
            optimizers=_optimizers_of(process),
            collector=str(process.metadata.get("collector") or ""),
            replay_is_near=bool(process.metadata.get("replay_is_near")),
            worker_busy_us=_worker_us(summary, workers, steady),
            problems=[
                *summary.problems,
                *_doubts(summary),
                *_elsewhere(session),
                *_inferred(process, *workers),
            ],
            updates=count_updates(steady.entries, begin_ns, end_ns),
            waiting=who_waits(summary, process.pid, stepping_s),
            hot_lines=hot_lines(self._stacks, begin_ns, end_ns) if self._stacks else {},
        )


Bound = Callable[[Cell], float]  # seconds of a cell, if the probe cost a certain part of it


def _likely_s(cell: Cell) -> float:
    return cell.corrected_s


def _middle_s(cell: Cell) -> float:
    if not cell.ci_low_s >= 0.0:
        return cell.corrected_s
    return (cell.ci_low_s + cell.ci_high_s) / 2


def _least_s(cell: Cell) -> float:
    return cell.ci_low_s if cell.ci_low_s >= 0.0 else cell.corrected_s


def _most_s(cell: Cell) -> float:
    return cell.ci_high_s if cell.ci_high_s >= 0.0 else cell.corrected_s


def _bounds(summary: Summary) -> tuple[Bound, ...]:
    """As corrected, at least, at most; where the session was not corrected the middle of these."""
    is_corrected = any(each.corrected for each in summary.overhead) or not summary.overhead
    return _likely_s if is_corrected else _middle_s, _least_s, _most_s


def _doubts(summary: Summary) -> list[str]:
    """What makes the advice less sure than it could be."""
    return [
        f"the probe's cost is not known well ({each.reason}): advice takes the middle of what it "
        "may be, and its intervals are wide"
        for each in summary.overhead
        if not each.corrected and each.reason and each.cost_high_s > 0
    ]


def _inferred(*processes: Process) -> list[str]:
    """Which classes of the program's own were taken for environments."""
    said = (process.metadata.get("inferred_envs") for process in processes)
    names = [name for each in said if isinstance(each, list) for name in cast(list[Any], each)]
    if not names:
        return []
    shown = ", ".join(dict.fromkeys(printable(str(name)) for name in names))
    return [
        f"env steps are inferred: {shown} answers a step as an environment does. If it is none, "
        'mark your own with profile.operation("simulation")'
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


def _threads_of(process: Process) -> int:
    said = process.metadata.get("torch_threads")
    return said if type(said) is int and 0 < said < MOST_THREADS else 0


def torch_threads_of(session: Session) -> int:
    """Of torch in the first process that told it; 0: none did. No event is read for this."""
    told = [_threads_of(process) for process in session.processes]
    return next((threads for threads in told if threads), 0)


def _optimizers_of(process: Process) -> tuple[str, ...]:
    said = process.metadata.get("optimizers")
    return tuple(map(str, cast(list[Any], said))) if isinstance(said, list) else ()


def _shares_left(summary: Summary, pid: int, of: Bound) -> dict[Key, float]:
    """What is left of each cell of a process without the probe's cost, of 1."""
    return {
        (cell.phase, cell.operation, cell.level, cell.gpu_busy): of(cell) / cell.raw_s
        for cell in summary.cells
        if cell.pid == pid and cell.raw_s > 0
    }


def _corrected(
    rows: dict[Key, NDArray[np.float64]], left: dict[Key, float]
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """{(operation, level): [STRETCHES] ns}, corrected as the process's cells are."""
    table: dict[tuple[str, str], NDArray[np.float64]] = {}
    for key, row in rows.items():
        scaled = row * left.get(key, 1.0)
        into = key[1], key[2]
        table[into] = table.get(into, np.zeros(len(scaled))) + scaled
    return table


def _per_step(ns: NDArray[np.float64], counts: NDArray[np.int64]) -> Time:
    """Us per env step with the jackknife's interval."""
    whole, steps = float(ns.sum()), int(counts.sum())
    without = (whole - ns) / np.maximum(steps - counts, 1)
    number = len(ns)
    error = math.sqrt((number - 1) / number * float(((without - without.mean()) ** 2).sum()))
    return Time(whole / steps / 1e3, t_quantile(max(number - 1, 1)) * error / 1e3)


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
    stretches = Stretches(found, edges, windows_of(found.process))
    follow([found], lambda _, timeline: stretches.add(timeline))
    left = _shares_left(summary, found.process.pid, _bounds(summary)[0])
    table = _corrected(stretches.rows(), left)
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


def _worker_us(summary: Summary, processes: list[Process], steady: Steady) -> float:
    """Work per env step of the worker processes: simulation, and acting where they act."""
    if not processes:
        return math.nan
    pids = {process.pid for process in processes}
    cells = [c for c in summary.cells if c.pid in pids and c.operation in WORK_OF_WORKERS]
    seconds = sum(c.corrected_s for c in cells if c.level not in ("waiting", "ready"))
    shares = zip(steady.workers, steady.num_envs_each, strict=True)
    env_steps = sum(len(steady.steps[i]) * num_envs for i, num_envs in shares)
    return 1e6 * seconds / max(env_steps, 1)


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
    said: Any = session.manifest.get("command")
    words = cast(list[Any], said) if isinstance(said, list) else []
    command = " ".join(map(str, words)).lower()
    told = {str(process.metadata.get("framework", "")) for process in session.processes}
    for name in ("TorchRL", "SB3", "CleanRL", "Redline"):
        if name in told or name.lower() in command:
            return name
    return "SB3" if "stable_baselines3" in command else ""

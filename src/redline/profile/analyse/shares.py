"""What the sampler saw, beside what was measured: an independent check of the shares.

The two may come from one session (`sample_hz` beside the full mode) or from two runs of a program.
Levels that native stacks do not tell apart (compiled regions and CUDA API calls inside the ML back
end) count as `backend` on both sides; operations that were inferred from Python code, which the
sampler does not see, count to the marked operation around them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redline.errors import ConfigError
from redline.profile import layout, levels
from redline.profile.analyse.cells import sweep_streams
from redline.profile.analyse.decoded import states_at
from redline.profile.analyse.slices import Outline, follow, outline
from redline.profile.analyse.summary import ShareRow, Summary, all_problems, summarize
from redline.profile.analyse.timeline import OTHER, Timeline
from redline.profile.reader import Process, Session, Shard, read_shard

LONGEST_GAP = 5  # a sample stands for at most so many times the median interval around it
NEIGHBORS = 50  # samples, on either side at least
MERGED = {"compiled": "backend", "cuda_api": "backend"}

__all__ = ["Sampled", "ShareRow", "compare_shares", "read_sampled", "with_shares"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one process was seen doing."""

    times_ns: NDArray[np.int64]  # [N] since the process's base
    levels: NDArray[np.uint16]  # [N] index into `levels.LEVELS`
    weights_ns: NDArray[np.int64]  # [N] the time each sample stands for


def read_sampled(process: Process) -> Sampled | None:
    """The samples of a process, None if it was not sampled."""
    path = process.directory / layout.SAMPLES_SHARD
    if not path.exists():
        return None
    shard = read_shard(path)
    if shard.problem is not None:
        process.note(f"{path.name}: {shard.problem}")
    return weigh(shard)


def weigh(shard: Shard) -> Sampled:
    """Give each sample the time since the one before it.

    Sampling is late when the machine is busy: equal weights would count such times too little.
    A gap (the recording paused) stands for nothing.
    """
    times = np.cumsum(shard.deltas.astype(np.int64))
    real = shard.codes < len(levels.LEVELS)
    times, seen = times[real], shard.codes[real]
    gaps = np.diff(times, prepend=times[:1])
    typical = _typical(gaps)
    return Sampled(times, seen, np.where(gaps > LONGEST_GAP * typical, typical, gaps))


def _typical(gaps: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N] the median gap around each; the sampler may have become slower on its way.

    The first gap is none.
    """
    found = np.zeros(len(gaps), np.int64)
    for at in range(0, len(gaps), NEIGHBORS):
        around = gaps[max(at - NEIGHBORS, 1) : at + 2 * NEIGHBORS]
        found[at : at + NEIGHBORS] = int(np.median(around)) if len(around) else 0
    return found


def compare_shares(
    measured: Session,
    sampled: Session,
    summary: Summary | None = None,
    outlines: list[Outline] | None = None,
) -> list[ShareRow]:
    """Shares of each process's time by level and by marked operation.

    Within one session the sampler saw the probe's cost, too, and times are compared as they were
    recorded; levels without the calibration blocks, where none were. Of two sessions the levels of
    the measured one are those corrected for the probe.

    Args:
        measured: recorded in full mode, if levels are to be compared.
        sampled: recorded with the sampler on; may be the same session.
        summary: of `measured`, if it is there already.
        outlines: of its processes, if they are.

    Returns:
        Rows of the processes that are in both, in order of their start: the n-th of a name in
        one session is compared with the n-th of that name in the other.
    """
    rows: list[ShareRow] = []
    here, there = _by_name(measured), _by_name(sampled)
    seen = {key: samples for key, p in there.items() if (samples := read_sampled(p)) is not None}
    common = [key for key in there if key in seen and key in here]
    same = measured is sampled
    sums = _sums(
        sampled, {there[key].directory: seen[key] for key in common}, outlines if same else None
    )
    others = (
        sums if same else _sums(measured, {here[key].directory: None for key in common}, outlines)
    )
    for key in common:
        own, other = sums[there[key].directory], others[here[key].directory]
        if not own.number:
            continue
        if measured.mode != "full":
            measured_levels = {str(level): math.nan for level in levels.LEVELS}
        elif same:
            measured_levels = _normalized(other.level_ns)
        else:
            summary = summary or summarize(measured)
            measured_levels = _corrected_level_shares(summary, here[key].pid)
        shown = own.beside_probe if same else own.by_level
        rows += _rows(there[key], "level", measured_levels, shown)
        rows += _rows(there[key], "operation", _normalized(other.operation_ns), own.by_operation)
    return rows


@dataclass(slots=True)
class _Tally:
    """Samples by what they show."""

    ns: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # that they stand for
    number: int = 0
    squares: float = 0.0  # sum of the squares of what each stands for

    def add(self, names: list[str], which: NDArray[np.int64], weights: NDArray[np.int64]) -> None:
        """Some samples.

        Args:
            names: [K] of what can be seen.
            which: [N] what each shows.
            weights: [N] ns that each stands for.
        """
        held = np.zeros(len(names), np.int64)
        np.add.at(held, which, weights)
        for name, ns in zip(names, held.tolist(), strict=True):
            if ns:
                self.ns[MERGED.get(name, name)] += ns
        self.number += len(weights)
        self.squares += float((weights.astype(np.float64) ** 2).sum())


class _ShareSums:
    """The time of one process by level and by operation, and its samples, slice by slice."""

    def __init__(self, samples: Sampled | None) -> None:
        self._samples = samples
        self.level_ns: dict[str, int] = defaultdict(int)  # while the boundary was observed
        self.operation_ns: dict[str, int] = defaultdict(int)
        self.by_level, self.beside_probe, self.by_operation = _Tally(), _Tally(), _Tally()

    @property
    def number(self) -> int:
        """Of the samples in the recorded time."""
        return self.by_level.number

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        streams = [timeline.lead, timeline.window, timeline.blind]
        table = sweep_streams(streams, [len(timeline.states), 2, 2], *timeline.span_ns)[:, 1]
        marked = _marked_names(timeline)
        for state, name, ns in zip(timeline.states, marked, table.tolist(), strict=True):
            level = levels.LEVELS[state.level]
            self.level_ns[MERGED.get(level, level)] += ns[0]
            self.operation_ns[name] += sum(ns)
        if self._samples is not None:
            self._add_samples(timeline, marked, self._samples)

    def _add_samples(self, timeline: Timeline, marked: list[str], samples: Sampled) -> None:
        edges = [timeline.begin_ns, timeline.until_ns]
        first, last = np.searchsorted(samples.times_ns, edges, side="left").tolist()
        rows = slice(first, None if timeline.is_last else last)
        times, weights = samples.times_ns[rows], samples.weights_ns[rows]
        inside = (states_at(timeline.window, times) == 1) & (weights > 0)
        observed = inside & (states_at(timeline.blind, times) == 0)
        names, seen = list(levels.LEVELS), samples.levels[rows].astype(np.int64)
        self.by_level.add(names, seen[inside], weights[inside])
        self.beside_probe.add(names, seen[observed], weights[observed])
        leads = states_at(timeline.lead, times[inside]).astype(np.int64)
        self.by_operation.add(marked, leads, weights[inside])


def _sums(
    session: Session,
    samples: Mapping[Path, Sampled | None],
    outlines: list[Outline] | None = None,
) -> dict[Path, _ShareSums]:
    """Of the processes that have an entry."""
    found = {directory: _ShareSums(each) for directory, each in samples.items()}
    if not found:
        return found
    if outlines is None:
        outlines = outline([p for p in session.processes if p.directory in found])
    own = [each for each in outlines if each.process.directory in found]
    follow(own, lambda _, timeline: found[timeline.process.directory].add(timeline))
    return found


def with_shares(
    summary: Summary,
    session: Session,
    sampled: Session | None = None,
    outlines: list[Outline] | None = None,
) -> Summary:
    """The summary, and beside it what a sampler saw.

    Args:
        summary: of `session`.
        session: as recorded.
        sampled: another session of the same program, in sample mode; None: the samples that
            `session` holds itself, if it does.
        outlines: of the processes of `session`, where they are known.

    Raises:
        ConfigError: if `sampled` holds no samples of a process that is in `session`.
    """
    rows = compare_shares(session, sampled or session, summary, outlines)
    if sampled is not None and not rows:
        raise ConfigError(
            f"{sampled.directory} holds no samples of a process of {session.directory}. Record the "
            "same program with --mode sample, or with --sample-hz"
        )
    return replace(summary, shares=rows, problems=all_problems(session))


def _by_name(session: Session) -> dict[tuple[str, int], Process]:
    counts: dict[str, int] = defaultdict(int)
    found: dict[tuple[str, int], Process] = {}
    for process in session.processes:
        found[process.name, counts[process.name]] = process
        counts[process.name] += 1
    return found


def _rows(
    process: Process, kind: str, measured: Mapping[str, float], seen: _Tally
) -> list[ShareRow]:
    sampled = _normalized(seen.ns)
    # Samples that stand for unequal times tell less than so many equal ones.
    whole = float(sum(seen.ns.values()))
    alike = whole**2 / seen.squares if seen.number else math.nan
    return [
        ShareRow(
            process.name,
            process.pid,
            kind,
            name,
            measured.get(name, 0.0),
            share := sampled.get(name, 0.0),
            math.sqrt(share * (1 - share) / alike),
            seen.number,
        )
        for name in sorted({*measured, *sampled}, key=lambda n: (-sampled.get(n, 0.0), n))
        if measured.get(name, 0.0) == measured.get(name, 0.0) or name in sampled
    ]


def _marked_names(timeline: Timeline) -> list[str]:
    names = timeline.process.names
    return [names[s.marked].name if s.marked in names else OTHER for s in timeline.states]


def _normalized(totals: Mapping[str, float]) -> dict[str, float]:
    whole = sum(totals.values())
    return {name: part / whole for name, part in totals.items() if part}


def _corrected_level_shares(summary: Summary, pid: int) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for cell in summary.cells:
        if cell.pid == pid:
            totals[MERGED.get(cell.level, cell.level)] += cell.corrected_s
    return _normalized(totals)

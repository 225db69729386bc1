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
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redline.errors import ConfigError
from redline.profile import layout, levels
from redline.profile.analyse.cells import sweep_streams
from redline.profile.analyse.summary import ShareRow, Summary, all_problems, summarize
from redline.profile.analyse.timeline import OTHER, Stream, Timeline, build_timeline
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
        process.problems.append(f"{path.name}: {shard.problem}")
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
    measured: Session, sampled: Session, summary: Summary | None = None
) -> list[ShareRow]:
    """Shares of each process's time by level and by marked operation.

    Within one session the sampler saw the probe's cost, too, and times are compared as they were
    recorded; levels without the calibration blocks, where none were. Of two sessions the levels of
    the measured one are those corrected for the probe.

    Args:
        measured: recorded in full mode, if levels are to be compared.
        sampled: recorded with the sampler on; may be the same session.
        summary: of `measured`, if it is there already.

    Returns:
        Rows of the processes that are in both, in order of their start: the n-th of a name in
        one session is compared with the n-th of that name in the other.
    """
    rows: list[ShareRow] = []
    others = _by_name(measured)
    for key, process in _by_name(sampled).items():
        samples = read_sampled(process)
        if samples is None or key not in others:
            continue
        timeline = build_timeline(process)
        same = others[key] is process
        found = timeline if same else build_timeline(others[key])
        inside = _state_at(timeline.window, samples.times_ns) == 1
        inside &= samples.weights_ns > 0
        if not inside.any():
            continue
        shown = inside
        if same:
            shown = inside & (_state_at(timeline.blind, samples.times_ns) == 0)
            measured_levels = _level_shares(found)
        else:
            summary = summary or summarize(measured)
            measured_levels = _corrected_level_shares(summary, found.process.pid)
        if measured.mode != "full":
            measured_levels = {str(level): math.nan for level in levels.LEVELS}
        codes: list[int] = samples.levels[shown].tolist()
        names: list[str] = [levels.LEVELS[code] for code in codes]
        rows += _rows(process, "level", measured_levels, names, samples.weights_ns[shown])
        marked = _marked_at(timeline, samples.times_ns[inside])
        weights = samples.weights_ns[inside]
        rows += _rows(process, "operation", _operation_shares(found), marked, weights)
    return rows


def with_shares(summary: Summary, session: Session, sampled: Session | None = None) -> Summary:
    """The summary, and beside it what a sampler saw.

    Args:
        summary: of `session`.
        session: as recorded.
        sampled: another session of the same program, in sample mode; None: the samples that
            `session` holds itself, if it does.

    Raises:
        ConfigError: if `sampled` holds no samples of a process that is in `session`.
    """
    rows = compare_shares(session, sampled or session, summary)
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
    process: Process,
    kind: str,
    measured: Mapping[str, float],
    seen: list[str],
    weights: NDArray[np.int64],
) -> list[ShareRow]:
    sampled, number = _merge(seen, weights), len(seen)
    # Samples that stand for unequal times tell less than so many equal ones.
    sizes = weights.astype(np.float64)
    alike = float(sizes.sum() ** 2 / (sizes**2).sum()) if number else math.nan
    return [
        ShareRow(
            process.name,
            process.pid,
            kind,
            name,
            measured.get(name, 0.0),
            share := sampled.get(name, 0.0),
            math.sqrt(share * (1 - share) / alike),
            number,
        )
        for name in sorted({*measured, *sampled}, key=lambda n: -sampled.get(n, 0.0))
        if measured.get(name, 0.0) == measured.get(name, 0.0) or name in sampled
    ]


def _state_at(stream: Stream, times: NDArray[np.int64]) -> NDArray[np.uint32]:
    at = np.searchsorted(stream[0], times, side="right")
    return np.concatenate([np.zeros(1, np.uint32), stream[1]])[at]


def _marked_names(timeline: Timeline) -> list[str]:
    names = timeline.process.names
    return [names[s.marked].name if s.marked in names else OTHER for s in timeline.states]


def _marked_at(timeline: Timeline, times: NDArray[np.int64]) -> list[str]:
    names = _marked_names(timeline)
    return [names[state] for state in _state_at(timeline.lead, times).tolist()]


def _merge(names: list[str], weights: NDArray[np.int64]) -> dict[str, float]:
    totals: dict[str, int] = defaultdict(int)
    for name, weight in zip(names, weights.tolist(), strict=True):
        totals[MERGED.get(name, name)] += weight
    return _normalized(totals)


def _normalized(totals: Mapping[str, float]) -> dict[str, float]:
    whole = sum(totals.values())
    return {name: part / whole for name, part in totals.items() if part}


def _level_shares(timeline: Timeline) -> dict[str, float]:
    """Of the time in which the native boundary was observed."""
    streams = [timeline.lead, timeline.window, timeline.blind]
    sizes = [len(timeline.states), 2, 2]
    table = sweep_streams(streams, sizes, 0, max(timeline.end_ns, 0))[:, 1, 0]
    totals: dict[str, int] = defaultdict(int)
    for state, ns in zip(timeline.states, table.tolist(), strict=True):
        level = levels.LEVELS[state.level]
        totals[MERGED.get(level, level)] += ns
    return _normalized(totals)


def _corrected_level_shares(summary: Summary, pid: int) -> dict[str, float]:
    totals: dict[str, float] = defaultdict(float)
    for cell in summary.cells:
        if cell.pid == pid:
            totals[MERGED.get(cell.level, cell.level)] += cell.corrected_s
    return _normalized(totals)


def _operation_shares(timeline: Timeline) -> dict[str, float]:
    end_ns = max(timeline.end_ns, 0)
    sizes = [len(timeline.states), 2]
    table = sweep_streams([timeline.lead, timeline.window], sizes, 0, end_ns)[:, 1]
    totals: dict[str, int] = defaultdict(int)
    for name, ns in zip(_marked_names(timeline), table.tolist(), strict=True):
        totals[name] += ns
    return _normalized(totals)

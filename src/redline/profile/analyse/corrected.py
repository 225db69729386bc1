"""Cells without what the probe cost: its own time, and the waits that it made longer."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TypeAlias

from redline.profile import levels
from redline.profile.analyse.cells import Cells, Key
from redline.profile.analyse.correction import Prior
from redline.profile.analyse.processes import Waits, WaitsFor

Operation: TypeAlias = tuple[str, str]  # phase and operation
Costs: TypeAlias = dict[Operation, tuple[float, float]]  # ns, standard deviation

Delayed: TypeAlias = tuple[str, str, str]  # phase, operation and level
Delays: TypeAlias = dict[Delayed, tuple[float, float]]  # ns, standard deviation
Shares: TypeAlias = dict[Delayed, tuple[float, float]]  # of 1, standard deviation

PYTHON = levels.LEVELS[levels.PYTHON]
WAITING = levels.LEVELS[levels.WAITING]
IDLE = tuple(levels.LEVELS[level] for level in levels.IDLE)
# Of a time that costs something there is at least so much left without the cost.
MOST_OF_TIME = 0.95
# Nothing says for sure that a wait was for those that worked meanwhile. So its interval reaches
# from no correction to twice the likely one.
UNSURE = 0.5

__all__ = [
    "Costs",
    "Delays",
    "Operation",
    "Shares",
    "beside_the_profiler",
    "correct",
    "joined",
    "lasting",
    "passed_on",
]


def correct(
    cells: Cells,
    costs: dict[Operation, float],
    delays: dict[Delayed, float] | None = None,
    shares: dict[Delayed, float] | None = None,
) -> dict[Key, float]:
    """Take the probe's cost out of the cells, ns.

    It falls on the code that makes calls: on `python` of the same phase and operation first, on
    that operation's other levels once nothing is left of it. Calibration blocks hold no such cost,
    so they are split like what is left of the observed time near by. What costs a share of all
    time, that of these blocks included, is taken out last.

    Args:
        cells: as recorded.
        costs: {(phase, operation): ns}.
        delays: {(phase, operation, level): ns} of what others made longer, see `passed_on`.
        shares: {(phase, operation, level): share, of 1}, see `lasting` and `beside_the_profiler`.
    """
    delays, shares = delays or {}, shares or {}
    if not any(costs.values()) and not any(delays.values()):
        corrected = {key: float(ns) for key, ns in cells.time_ns.items()}
    else:
        corrected = {key: float(ns) for key, ns in cells.observed_ns.items()}
        _take_all(corrected, costs, delays)
        _add_hidden(corrected, cells)
    return {key: ns * (1.0 - shares.get(key[:3], 0.0)) for key, ns in corrected.items()}


def _take_all(
    corrected: dict[Key, float], costs: dict[Operation, float], delays: dict[Delayed, float]
) -> None:
    by_operation: dict[Operation, list[Key]] = defaultdict(list)
    for key in corrected:
        by_operation[key[0], key[1]].append(key)
    for operation, cost in costs.items():
        keys = by_operation[operation]
        python = [key for key in keys if key[2] == PYTHON]
        rest = cost - _take(corrected, python, cost)
        _take(corrected, [key for key in keys if key[2] not in (PYTHON, *IDLE)], rest)
    for (*operation, level), cost in delays.items():
        keys = by_operation[operation[0], operation[1]]
        _take(corrected, [key for key in keys if key[2] == level], cost)


def _take(corrected: dict[Key, float], keys: list[Key], cost: float) -> float:
    """Take so many ns from some cells, in proportion; how many could be taken."""
    whole = sum(corrected[key] for key in keys)
    taken = min(cost, whole)
    for key in keys if taken > 0 else []:
        corrected[key] *= 1.0 - taken / whole  # exactly 0 where all is taken
    return taken


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


def passed_on(
    processes: list[tuple[int, Cells]],
    costs: list[Costs],
    level: int,
    waits: list[Waits],
    waits_for: list[WaitsFor],
) -> list[Delays]:
    """What the probe in one process added to the waits of another.

    A process that waits while others work most often waits for what they do: a learner for its
    workers' observations, a worker for the next action. One that is ready waits for the core that
    they have. What the probe cost those meanwhile, the wait is longer. Where several worked at
    once, the mean of their costs counts: they cost side by side, not one after the other.

    Args:
        processes: P process ids, each with its cells.
        costs: [P] of each process's own time.
        level: WAITING or READY.
        waits: of that level, see `WaitSums.waits`.
        waits_for: the same.

    Returns:
        [P] {(phase, operation, level): (ns, standard deviation)}.
    """
    rates = {
        (pid, operation): rate
        for (pid, cells), cost in zip(processes, costs, strict=True)
        for operation, rate in _rates(cells, cost).items()
    }
    both: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in waits_for:
        sums = both[row.waiter_pid, row.waiter_operation]
        sums[0] += row.both_ns
        sums[1] += row.both_ns * rates.get((row.worker_pid, row.worker_operation), 0.0)
    longer = {
        (row.pid, row.operation): (row.waiting_ns - row.nobody_busy_ns) * shared / together
        for row in waits
        for together, shared in [both[row.pid, row.operation]]
        if together
    }
    name = levels.LEVELS[level]
    return [_by_phase(pid, cells, name, longer) for pid, cells in processes]


def beside_the_profiler(
    processes: list[Cells], own_ns: list[float], beside_ns: dict[tuple[int, int], int]
) -> list[Shares]:
    """What the profiler's own threads added where all share one core.

    A program of a single core stands still while they run. Which of its work that was is not told,
    as it takes them less than a millisecond at a time: so all of it in proportion. While the
    program waits, they cost it nothing: those of a child that its parent waits for are the child's.

    Args:
        processes: P cells, of each.
        own_ns: [P] CPU time of the profiler's threads in each while it was recorded; they take it
            evenly then.
        beside_ns: {(P, P): ns} for which one worked while the other was recorded, see
            `WaitSums.beside`.
    """
    spans = [sum(cells.time_ns.values()) for cells in processes]
    rates = [own / span if span else 0.0 for own, span in zip(own_ns, spans, strict=True)]
    working = [level for level in levels.LEVELS if level != WAITING]
    found: list[Shares] = []
    for place, cells in enumerate(processes):
        work = sum(ns for key, ns in cells.time_ns.items() if key[2] != WAITING)
        share = rates[place] + sum(
            rate * min(beside_ns.get((place, other), 0) / work, 1.0)
            for other, rate in enumerate(rates)
            if work and other != place
        )
        share = min(share, MOST_OF_TIME)
        found.append(_shares_of(cells, working, share, UNSURE * share))
    return found


def lasting(cells: Cells, prior: Prior) -> Shares:
    """What a process's Python lost for good, the calibration blocks included."""
    return _shares_of(cells, [PYTHON], prior.lasting, prior.lasting_error)


def joined(*shares: Shares) -> Shares:
    """All of them at once, as of causes that do not know of each other."""
    found: Shares = {}
    for each in shares:
        for key, (mean, error) in each.items():
            before = found.get(key, (0.0, 0.0))
            found[key] = min(before[0] + mean, MOST_OF_TIME), math.hypot(before[1], error)
    return found


def _shares_of(cells: Cells, chosen: list[str], share: float, error: float) -> Shares:
    """The same of each cell of these levels."""
    keys = (key[:3] for key in cells.time_ns if key[2] in chosen)
    return {key: (share, error) for key in keys} if share > 0 else {}


def _rates(cells: Cells, costs: Costs) -> dict[str, float]:
    """The share of each operation's work that is the probe's."""
    busy: dict[str, float] = defaultdict(float)
    for (_, operation, level, _), ns in cells.time_ns.items():
        busy[operation] += 0 if level in IDLE else ns
    cost: dict[str, float] = defaultdict(float)
    for (_, operation), (mean, _) in costs.items():
        cost[operation] += mean
    return {name: min(cost[name] / ns, MOST_OF_TIME) for name, ns in busy.items() if ns}


def _by_phase(pid: int, cells: Cells, level: str, longer: dict[tuple[int, str], float]) -> Delays:
    """An operation's waits, split over its phases as the waits themselves are."""
    waiting: dict[Operation, float] = defaultdict(float)
    whole: dict[str, float] = defaultdict(float)
    for (phase, operation, own, _), ns in cells.time_ns.items():
        if own == level:
            waiting[phase, operation] += ns
            whole[operation] += ns
    found = {
        key: longer.get((pid, key[1]), 0.0) * ns / whole[key[1]] for key, ns in waiting.items()
    }
    return {(*key, level): (ns, UNSURE * ns) for key, ns in found.items() if ns}

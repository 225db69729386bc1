"""What the probe on the native boundary cost, estimated in the run itself, operation by operation.

The recorder left cycles of three blocks: observed, not observed, observed. All three begin and end
where a mark ends, so each operation k did m_k whole units of its work in each, and

    x_k = t_on_k - (m_on_k / m_off_k) * t_off_k

is what the probe added to it (t: time in it, on the run queue aside). That cost has two terms:

    x_k = a * n_k + g * p_k + d_k

n_k callbacks of a ns each, and a share g of the interpreted time p_k: Python 3.11 runs bytecode
slower while a profile function is set, calls or not. d_k is how far this operation's code is from
the usual. All are estimated at once as a Gaussian: a and g from priors measured once
(`python -m benchmarks.truth`), that of a in proportion to the machine's pace, d_k around 0, and x_k
with the jackknife's error over the cycles. So one operation alone is corrected by what its own
blocks say, an operation without blocks by the others' terms, and each correction has an interval.
Where the interval of the whole is wide it is reported, and this cost is left in.

What lasts of having observed code slows the blocks without the probe, too, so no session tells of
it: see `Prior.lasting`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.profile.analyse.cycles import Block, Cycle, Part

MIN_CYCLES = 6
# An interval is narrow when it is small beside the estimate, or beside the times to be corrected. A
# cost known to 60% is still better taken out than left in, and each number shows its interval.
MAX_RELATIVE_HALF_WIDTH = 0.6
MAX_SHARE_OF_TIME = 0.015
MAX_OPERATIONS = 16
MAX_SWEEPS = 1000
OUTLYING = 2.5  # robust standard deviations
WIDE = 1.96  # standard deviations of a 95% interval
# How far one operation's code is from the usual, as a share of its usual cost.
UNUSUAL = 0.25
# The same of an operation that no block holds, for its own interval: a loop without calls is slowed
# by as much as calls slow others, and nothing says which of the two it is.
UNSEEN = 0.6
FINEST = 0.002  # of the usual cost: what blocks say is not more exact
# And how far what a block without the probe takes is from what the program takes by itself.
REGIME = 0.06
MOSTLY = 0.5  # of an operation's time, from which on it mostly waits
SOME = 0.05  # and from which on its waits count
# The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom.
T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)
# Importing is unlike what a program does later, and no block holds it. Its cost is a share of the
# usual one, see `Prior.imports`.
IMPORTS = "imports"
UNUSUAL_IMPORTS = 0.2
# What a call of a builtin function took on the machine of the terms below; see `record.pace`.
USUAL_CALL_NS = 50.0

__all__ = [
    "Estimate",
    "Prior",
    "ProbeCost",
    "estimate_probe_cost",
    "prior_of",
    "t_quantile",
]


@dataclass(frozen=True, slots=True)
class Prior:
    """The two terms as they usually are, with standard deviations."""

    callback_ns: float
    callback_error_ns: float
    slowdown: float  # of interpreted time, of 1
    slowdown_error: float
    # Of interpreted time, whether the probe rests or not. Python 3.12 parts its joint instructions
    # in whatever was ever observed: `python3.12 -m benchmarks.profiler.lasting` has what that costs
    # in code of many kinds. The 95% interval reaches to 9%. A lone short loop may lose 14%: that
    # would be too wide for all other code.
    lasting: float = 0.0
    lasting_error: float = 0.0
    # What imports cost of what the two terms say: part of their time is the importer's own, in C.
    # See `python -m benchmarks.profiler imports`.
    imports: float = 1.0


def prior_of(pythons: Iterable[str], call_ns: Iterable[Any] = ()) -> Prior:
    """For the earliest of some Python versions, as `python -m benchmarks.truth` found them.

    A damaged session may hold any text as a version. It counts as the earliest, whose terms are
    the widest.

    Args:
        pythons: versions.
        call_ns: what a call of a builtin function took in each process, see `record.pace`. Where
            that is less, so is what a callback takes; what is no such time is left out.
    """
    prior = _usual_prior(pythons)
    known = [float(ns) for ns in call_ns if type(ns) in (int, float) and 5.0 <= ns <= 300.0]
    if not known:
        return prior
    pace = float(np.median(known)) / USUAL_CALL_NS
    return replace(
        prior,
        callback_ns=pace * prior.callback_ns,
        callback_error_ns=pace * prior.callback_error_ns,
    )


def _usual_prior(pythons: Iterable[str]) -> Prior:
    found = (re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", python) for python in pythons)
    versions = [10_000 * int(each[1]) + int(each[2]) if each else 0 for each in found]
    if min(versions, default=0) < 30_012:
        return Prior(80.0, 50.0, 0.25, 0.1, imports=0.72)
    if min(versions) < 30_013:
        return Prior(70.0, 50.0, 0.03, 0.03, 0.014, 0.039)
    return Prior(70.0, 50.0, 0.03, 0.03)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a probe cost."""

    probe: str
    unit_ns: float  # of a callback
    ci_low_ns: float  # 95% interval
    ci_high_ns: float
    count: int  # callbacks in the whole session
    cycles: int
    corrected: bool  # whether the interval is narrow enough to correct by it
    reason: str  # why not, else empty
    slowdown: float = math.nan  # of interpreted time, of 1
    slowdown_low: float = math.nan
    slowdown_high: float = math.nan
    cost_s: float = math.nan  # of the whole session
    cost_low_s: float = math.nan
    cost_high_s: float = math.nan
    # What is taken out in any case: of what lasts, see `Prior.lasting`; of the profiler's threads,
    # where the program shares its only core with them.
    lasting_s: float = 0.0
    threads_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """The fitted terms: of the whole, and of each operation."""

    mean: NDArray[np.float64]  # [2 + K] ns per callback, slow-down, then how unusual each is
    covariance: NDArray[np.float64]  # [2 + K, 2 + K]
    operations: dict[str, int]  # place of each operation
    prior: Prior

    def of(self, operation: str, callbacks: float, python_ns: float) -> tuple[float, float]:
        """Ns that the probe added, and the standard deviation.

        Args:
            operation: the marked one.
            callbacks: while it was observed.
            python_ns: interpreted time in it meanwhile.
        """
        usual = _usual(self.prior, callbacks, python_ns)
        place = self.operations.get(operation)
        if place is None and operation == IMPORTS:
            return self.prior.imports * usual, UNUSUAL_IMPORTS * usual
        weights = np.zeros(len(self.mean))
        weights[:2] = callbacks, python_ns
        if place is not None:
            weights[place] = usual
        cost = float(weights @ self.mean)
        variance = float(weights @ self.covariance @ weights)
        if place is None:
            variance += (UNSEEN * usual) ** 2
        variance += (REGIME * cost) ** 2
        return max(cost, 0.0), math.sqrt(max(variance, 0.0))


def _usual(prior: Prior, callbacks: float, python_ns: float) -> float:
    return prior.callback_ns * callbacks + prior.slowdown * python_ns


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the cycles say of one operation, in sum."""

    extra_ns: float
    error_ns: float
    callbacks: float
    python_ns: float


def estimate_probe_cost(
    cycles: list[Cycle], charges: dict[str, tuple[int, int]], busy_ns: int, prior: Prior
) -> tuple[Estimate, ProbeCost]:
    """Fit the two terms, and what is particular to each operation.

    Args:
        cycles: of all processes of the session.
        charges: {marked operation: (callbacks, interpreted ns)} of the whole session, observed.
        busy_ns: recorded time of all processes, waiting aside.
        prior: for the Python that ran.
    """
    seen = _seen(cycles)
    cost = _posterior(seen, prior)
    count = sum(callbacks for callbacks, _ in charges.values())
    sums = [cost.of(name, *charge) for name, charge in charges.items()]
    whole = sum(each for each, _ in sums)
    half = WIDE * math.hypot(_joint_error(cost, charges), REGIME * whole)
    reason = _why_not(cycles, seen, whole, half, busy_ns)
    error = [math.sqrt(max(float(cost.covariance[i, i]), 0.0)) for i in (0, 1)]
    unit, slowdown = (float(each) for each in cost.mean[:2])
    estimate = Estimate(
        probe="native boundary",
        unit_ns=unit,
        ci_low_ns=unit - WIDE * error[0],
        ci_high_ns=unit + WIDE * error[0],
        count=count,
        cycles=len(cycles),
        corrected=not reason,
        reason=reason,
        slowdown=slowdown,
        slowdown_low=slowdown - WIDE * error[1],
        slowdown_high=slowdown + WIDE * error[1],
        cost_s=whole / 1e9,
        cost_low_s=max(whole - half, 0.0) / 1e9,
        cost_high_s=(whole + half) / 1e9,
    )
    return estimate, cost


def _joint_error(cost: ProbeCost, charges: dict[str, tuple[int, int]]) -> float:
    """Of the sum over all operations, whose errors are not independent."""
    weights = np.zeros(len(cost.mean))
    own = 0.0
    for name, (callbacks, python_ns) in charges.items():
        usual = _usual(cost.prior, callbacks, python_ns)
        if name == IMPORTS and name not in cost.operations:
            own += (UNUSUAL_IMPORTS * usual) ** 2
            continue
        weights[:2] += callbacks, python_ns
        if name in cost.operations:
            weights[cost.operations[name]] += usual
        else:
            own += (UNUSUAL * usual) ** 2
    return math.sqrt(max(float(weights @ cost.covariance @ weights), 0.0) + own)


def _why_not(
    cycles: list[Cycle], seen: dict[str, _Seen], whole: float, half: float, busy_ns: int
) -> str:
    if len(cycles) < MIN_CYCLES:
        return f"{len(cycles)} calibration cycles, at least {MIN_CYCLES} needed"
    if not seen:
        return "the calibration blocks hold no marks to compare their work by"
    if half <= MAX_SHARE_OF_TIME * busy_ns or half <= MAX_RELATIVE_HALF_WIDTH * whole:
        return ""
    return (
        f"the interval is too wide to correct by ({whole / 1e9:.3f} +- {half / 1e9:.3f} s): "
        "record longer"
    )


def _seen(cycles: list[Cycle]) -> dict[str, _Seen]:
    """What the probe added to each operation, over all cycles but outlying ones.

    Of an operation that waits the CPU time counts: what it waits for is perhaps observed as well,
    and then the wait is longer for it. Where that is of no use, an operation that mostly waits
    counts only where no other says anything.
    """
    work, waits = _cost_per_operation(cycles), _that_wait(cycles)
    rows: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for cycle in cycles:
        # In an order of its own: sums of floating-point numbers depend on it.
        for name in sorted({*cycle.before.parts, *cycle.after.parts}):
            working = _without_waits(cycle, name, waits)
            row = _row(working, name, work) if working is not None else None
            if row is not None:
                rows[name].append(row)
    found: dict[str, _Seen] = {}
    works: dict[str, _Seen] = {}
    for name, own in sorted(rows.items()):
        if len(own) < MIN_CYCLES:
            continue
        table = _without_outliers(np.array(own))
        extra, spent, callbacks, python_ns, waiting_ns = table.sum(0)
        # What was never seen without the probe says nothing of it: all of its time would be cost.
        if callbacks + python_ns > 0 and extra < spent:
            error = t_quantile(len(table) - 1) / WIDE * _jackknife_error(table[:, 0], table[:, 1])
            found[name] = _Seen(extra, error * spent, callbacks, python_ns)
            if waiting_ns <= MOSTLY * spent:
                works[name] = found[name]
    return works or found


def _that_wait(cycles: list[Cycle]) -> frozenset[str]:
    """Operations of which a good part is spent waiting."""
    spent: dict[str, int] = defaultdict(int)
    waiting: dict[str, int] = defaultdict(int)
    for cycle in cycles:
        for block in (cycle.before, cycle.after):
            for name, part in block.parts.items():
                spent[name] += part.ns
                waiting[name] += part.waiting_ns
    return frozenset(name for name, ns in spent.items() if waiting[name] > SOME * ns)


def _without_waits(cycle: Cycle, name: str, waits: frozenset[str]) -> Cycle | None:
    """A cycle in which the time of an operation that waits is what it had a core for.

    No event of a block without the probe says what waits, but the thread's CPU time is known. What
    the operations that do not wait leave of it is that of all that do. The one of them that calls
    most stands for all; of the others the cycle says nothing by itself (None).
    """
    if name not in waits:
        return cycle
    on = (cycle.before, cycle.after)
    calls = {
        other: sum(block.parts[other].callbacks for block in on if other in block.parts)
        for other in waits
        if all(other in block.parts and block.parts[other].ends for block in (*on, cycle.off))
    }
    if not calls or name != max(sorted(calls), key=lambda other: calls[other]):
        return None
    return Cycle(
        *(_working(block, name, waits) for block in (cycle.before, cycle.off, cycle.after))
    )


def _working(block: Block, name: str, waits: frozenset[str]) -> Block:
    """All that waits as one operation, with the CPU time that the rest leaves."""
    rest = {other: part for other, part in block.parts.items() if other not in waits}
    waiting = [part for other, part in block.parts.items() if other in waits]
    joint = Part(
        ends=block.parts[name].ends,
        ns=max(block.cpu_ns - sum(part.ns for part in rest.values()), 0),
        python_ns=sum(part.python_ns for part in waiting),
        callbacks=sum(part.callbacks for part in waiting),
    )
    return replace(block, parts={**rest, name: joint})


def _row(cycle: Cycle, name: str, work: dict[str, float]) -> tuple[float, ...] | None:
    """(added ns, ns, callbacks, interpreted ns, ns of waiting) of an operation while observed."""
    nothing = Part()
    on = [block.parts.get(name, nothing) for block in (cycle.before, cycle.after)]
    off = cycle.off.parts.get(name, nothing)
    if name:
        done, done_off = float(sum(part.ends for part in on)), float(off.ends)
    else:
        done = _work(cycle.before, work) + _work(cycle.after, work)
        done_off = _work(cycle.off, work)
    if done <= 0 or done_off <= 0:
        return None
    spent = float(sum(part.ns for part in on))
    return (
        spent - done / done_off * off.ns,
        spent,
        float(sum(part.callbacks for part in on)),
        float(sum(part.python_ns for part in on)),
        float(sum(part.waiting_ns for part in on)),
    )


def _posterior(seen: dict[str, _Seen], prior: Prior) -> ProbeCost:
    """The Gaussian of a, g and all d_k, in units of each one's usual cost, given the blocks."""
    operations = {name: 2 + i for i, name in enumerate(seen)}
    size = 2 + len(seen)
    mean = np.zeros(size)
    mean[:2] = prior.callback_ns, prior.slowdown
    precision = np.diag(
        [prior.callback_error_ns**-2, prior.slowdown_error**-2] + [UNUSUAL**-2] * len(seen)
    )
    pull = precision @ mean
    for name, each in seen.items():
        weights = np.zeros(size)
        weights[:2] = each.callbacks, each.python_ns
        usual = weights[operations[name]] = _usual(prior, each.callbacks, each.python_ns)
        # No clock is better than that, and the equations could not be solved.
        error = max(each.error_ns, FINEST * usual, 1.0)
        precision += np.outer(weights, weights) / error**2
        pull += weights * each.extra_ns / error**2
    # Scaled: a is some hundred, g a fraction.
    scale = 1.0 / np.sqrt(np.diag(precision))
    inverse = np.linalg.inv(precision * np.outer(scale, scale))
    covariance = inverse * np.outer(scale, scale)
    return ProbeCost(covariance @ pull, covariance, operations, prior)


def _cost_per_operation(cycles: list[Cycle]) -> dict[str, float]:
    """CPU ns of each operation's share of the work, by non-negative least squares over all blocks.

    The probe's callbacks are a column of their own. Of operations that always end together one
    gets the cost of all, which is as good.
    """
    blocks = [b for cycle in cycles for b in (cycle.before, cycle.off, cycle.after)]
    found: dict[str, int] = {}
    for block in blocks:
        for name, part in block.parts.items():
            if part.ends:
                found[name] = found.get(name, 0) + 1
    chosen = sorted(found, key=lambda name: -found[name])[:MAX_OPERATIONS]
    nothing = Part()
    columns = [[float(b.parts.get(name, nothing).ends) for b in blocks] for name in chosen]
    columns.append([float(sum(part.callbacks for part in b.parts.values())) for b in blocks])
    target = np.array([b.cpu_ns for b in blocks], np.float64)
    cost = _nonnegative_least_squares(np.array(columns).T, target)
    return {name: each for name, each in zip(chosen, cost.tolist()[:-1], strict=True) if each > 0}


def _nonnegative_least_squares(
    columns: NDArray[np.float64], target: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Find x >= 0 of least |columns x - target|, by coordinate descent.

    Args:
        columns: [N, K].
        target: [N].
    """
    size = np.maximum(np.sqrt((columns**2).sum(0)), 1e-300)
    scaled = columns / size
    gram, aim = scaled.T @ scaled, scaled.T @ target
    x = np.zeros(columns.shape[1])
    for _ in range(MAX_SWEEPS):
        before = x.copy()
        for k in range(len(x)):
            # The diagonal is 1, or 0 for a column of zeros, whose x stays 0.
            x[k] = max(x[k] + aim[k] - gram[k] @ x, 0.0)
        if np.abs(x - before).max() <= 1e-8 * max(x.max(), 1.0):
            break
    return x / size


def _work(block: Block, cost: dict[str, float]) -> float:
    return sum(each * block.parts[name].ends for name, each in cost.items() if name in block.parts)


def _without_outliers(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Set aside cycles that the rest makes implausible: a garbage collection, a disturbance.

    Args:
        table: [N, 5] added ns, ns, callbacks, interpreted ns, ns of waiting.
    """
    x, spent = table[:, 0], np.maximum(table[:, 1], 1.0)
    residuals = x - spent * np.median(x / spent)
    spread = 1.4826 * float(np.median(np.abs(residuals)))
    good = np.abs(residuals) <= OUTLYING * max(spread, 1.0)
    return table[good] if good.sum() >= MIN_CYCLES else table


def _jackknife_error(x: NDArray[np.float64], e: NDArray[np.float64]) -> float:
    """Standard error of sum(x) / sum(e)."""
    without = (x.sum() - x) / np.maximum(e.sum() - e, 1.0)
    number = len(x)
    return math.sqrt((number - 1) / number * float(((without - without.mean()) ** 2).sum()))


def t_quantile(freedom: int) -> float:
    """The 0.975 quantile of Student's t."""
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    return 1.96 + 2.5 / freedom

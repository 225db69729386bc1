"""What the probe on the native boundary cost, estimated in the run itself.

The recorder left cycles of three blocks: observed, not observed, observed. A block's work is
w = sum_k a_k n_k, with n_k how often operation k ended in it and a_k its CPU time, fitted over all
blocks of the session. Within a cycle the unobserved block says how much CPU time a unit of work
takes there and then, and what the observed ones took beyond that is the probe's:

    x = cpu_on - w_on * cpu_off / w_off,    u = sum x / sum e

with e the probe's callbacks, over all cycles but outlying ones. Comparing neighbors cancels the
drift of a program that learns; comparing per work cancels that blocks differ in length. The
interval is the jackknife's. Where it is wide it is reported and nothing is corrected: narrow is
what is small beside the estimate, or leaves the corrected times themselves uncertain by little.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.reader import Process, Shard

MIN_CYCLES = 6
# An interval is narrow when it is small beside the estimate, or beside the times to be corrected.
MAX_RELATIVE_HALF_WIDTH = 0.35
MAX_SHARE_OF_TIME = 0.015
MAX_OPERATIONS = 16
MAX_SWEEPS = 1000
OUTLYING = 2.5  # robust standard deviations
# The 0.975 quantile of Student's t for 1, 2, ... degrees of freedom.
T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14)

__all__ = ["Cycle", "Estimate", "estimate_unit_cost", "find_cycles"]


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of the main thread between two markers."""

    observed: bool
    cpu_ns: int
    operations: dict[str, int]  # how many marks of each operation ended
    callbacks: int


@dataclass(frozen=True, slots=True)
class Cycle:
    """Three blocks in a row, the middle one without the probe."""

    before: Block
    off: Block
    after: Block


@dataclass(frozen=True, slots=True)
class Estimate:
    """The unit cost of a probe."""

    probe: str
    unit_ns: float
    ci_low_ns: float  # 95% interval
    ci_high_ns: float
    count: int  # how often it fired in the whole session
    cycles: int
    corrected: bool  # whether the interval is narrow enough to correct by it
    reason: str  # why not, else empty


def find_cycles(process: Process, shard: Shard) -> list[Cycle]:
    """The calibration cycles in the shard of a process's main thread."""
    blocks = _blocks(process, shard)
    return [
        Cycle(before, off, after)
        for before, off, after in zip(blocks, blocks[1:], blocks[2:], strict=False)
        if before is not None
        and off is not None
        and after is not None
        and before.observed
        and not off.observed
        and after.observed
    ]


def _blocks(process: Process, shard: Shard) -> list[Block | None]:
    """The blocks between markers; None where the recording paused in between.

    What follows a switch is left out: its first marker differs in state from the one before.
    """
    codes = shard.codes
    markers = np.flatnonzero((codes == layout.CODE_PROBE_ON) | (codes == layout.CODE_PROBE_OFF))
    cpu_rows = np.flatnonzero(codes == layout.CODE_CPU)
    if len(markers) < 2 or len(cpu_rows) != len(markers):
        return []
    high = np.where(codes[cpu_rows - 1] == layout.CODE_HIGH, shard.deltas[cpu_rows - 1], 0)
    cpu = (high.astype(np.int64) << 32) + shard.deltas[cpu_rows]
    observed = codes[markers] == layout.CODE_PROBE_ON
    paused = np.flatnonzero(codes == layout.CODE_WINDOW_OFF)
    ends = {
        2 * name.id + 1: name.name for name in process.names.values() if name.kind == "operation"
    }
    blocks: list[Block | None] = []
    for i in range(len(markers) - 1):
        if i > 0 and observed[i] != observed[i - 1]:
            continue
        rows = slice(int(markers[i]), int(markers[i + 1]))
        if ((paused >= rows.start) & (paused < rows.stop)).any():
            blocks.append(None)
            continue
        inside = codes[rows]
        called = shard.deltas[rows][inside == layout.CODE_CALLBACKS]
        counts = np.bincount(inside, minlength=2 * layout.MAX_IDS)
        blocks.append(
            Block(
                observed=bool(observed[i]),
                cpu_ns=int(cpu[i + 1] - cpu[i]),
                operations={name: int(counts[code]) for code, name in ends.items() if counts[code]},
                callbacks=int(called.sum()),
            )
        )
    return blocks


def estimate_unit_cost(cycles: list[Cycle], count: int, busy_ns: int) -> Estimate:
    """Fit the cost of one callback.

    Args:
        cycles: of all processes of the session.
        count: callbacks in the whole session.
        busy_ns: recorded time of all processes, waiting aside.
    """
    if len(cycles) < MIN_CYCLES:
        return _unknown(
            count, len(cycles), f"{len(cycles)} calibration cycles, at least {MIN_CYCLES} needed"
        )
    cost = _cost_per_operation(cycles)
    excess: list[float] = []
    fired: list[int] = []
    for cycle in cycles:
        work_off = _work(cycle.off, cost)
        work_on = _work(cycle.before, cost) + _work(cycle.after, cost)
        if work_off > 0 and work_on > 0:
            cpu_on = cycle.before.cpu_ns + cycle.after.cpu_ns
            excess.append(cpu_on - work_on * cycle.off.cpu_ns / work_off)
            fired.append(cycle.before.callbacks + cycle.after.callbacks)
    if len(excess) < MIN_CYCLES:
        return _unknown(
            count, len(excess), "the calibration blocks hold no marks to compare their work by"
        )
    if not any(fired):
        return _unknown(count, len(excess), "the probe never fired in a calibration block")
    x, e = _without_outliers(np.array(excess), np.array(fired, np.float64))
    unit = float(x.sum() / e.sum())
    half = _t_quantile(len(x) - 1) * _jackknife_error(x, e)
    reason = ""
    narrow = half <= MAX_RELATIVE_HALF_WIDTH * unit or half * count <= MAX_SHARE_OF_TIME * busy_ns
    if half >= unit or not narrow:
        reason = (
            f"the interval is too wide to correct by ({unit:.0f} +- {half:.0f} ns): record longer"
        )
    return Estimate(
        probe="native boundary",
        unit_ns=unit,
        ci_low_ns=unit - half,
        ci_high_ns=unit + half,
        count=count,
        cycles=len(x),
        corrected=not reason,
        reason=reason,
    )


def _unknown(count: int, cycles: int, reason: str) -> Estimate:
    nan = float("nan")
    return Estimate("native boundary", nan, nan, nan, count, cycles, False, reason)


def _cost_per_operation(cycles: list[Cycle]) -> dict[str, float]:
    """CPU ns of each operation's share of the work, by non-negative least squares over all blocks.

    The probe's callbacks are a column of their own. Of operations that always end together one
    gets the cost of all, which is as good.
    """
    blocks = [b for cycle in cycles for b in (cycle.before, cycle.off, cycle.after)]
    found: dict[str, int] = {}
    for block in blocks:
        for name in block.operations:
            found[name] = found.get(name, 0) + 1
    chosen = sorted(found, key=lambda name: -found[name])[:MAX_OPERATIONS]
    columns = [[float(b.operations.get(name, 0)) for b in blocks] for name in chosen]
    columns.append([float(b.callbacks) for b in blocks])
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
    return sum(each * block.operations.get(name, 0) for name, each in cost.items())


def _without_outliers(
    x: NDArray[np.float64], e: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Set aside cycles that the rest makes implausible: a garbage collection, a disturbance."""
    residuals = x - e * np.median(x / np.maximum(e, 1.0))
    spread = 1.4826 * float(np.median(np.abs(residuals)))
    good = np.abs(residuals) <= OUTLYING * max(spread, 1.0)
    return (x[good], e[good]) if good.sum() >= MIN_CYCLES else (x, e)


def _jackknife_error(x: NDArray[np.float64], e: NDArray[np.float64]) -> float:
    """Standard error of sum(x) / sum(e)."""
    without = (x.sum() - x) / (e.sum() - e)
    number = len(x)
    return math.sqrt((number - 1) / number * float(((without - without.mean()) ** 2).sum()))


def _t_quantile(freedom: int) -> float:
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    return 1.96 + 2.5 / freedom

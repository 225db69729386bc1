"""What the probe on the native boundary cost, estimated in the run itself.

The recorder left cycles of three blocks: observed, not observed, observed. A block's work is
w = sum_k a_k n_k, with n_k how often operation k ended in it and a_k its CPU time, fitted over all
blocks of the session. Within a cycle the unobserved block says how much CPU time a unit of work
takes there and then, and what the observed ones took beyond that is the probe's:

    x = cpu_on - w_on * cpu_off / w_off,    u = sum x / sum e

with e the probe's callbacks, over all cycles but outlying ones. Comparing neighbors cancels the
drift of a program that learns; comparing per work cancels that blocks differ in length. The
interval is the jackknife's. Where it is wide it is reported and nothing is corrected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.reader import Process, Shard

MIN_CYCLES = 6
MAX_RELATIVE_HALF_WIDTH = 0.35
MAX_OPERATIONS = 3
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


def estimate_unit_cost(cycles: list[Cycle], count: int) -> Estimate:
    """Fit the cost of one callback.

    Args:
        cycles: of all processes of the session.
        count: callbacks in the whole session.
    """
    if len(cycles) < MIN_CYCLES:
        return _unknown(
            count, len(cycles), f"{len(cycles)} calibration cycles, at least {MIN_CYCLES} needed"
        )
    cost = _cost_per_operation(cycles)
    excess, fired = [], []
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
    if unit <= 0 or half > MAX_RELATIVE_HALF_WIDTH * unit:
        reason = f"the interval is too wide to correct by ({unit:.0f} +- {half:.0f} ns)"
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
    """CPU ns of each operation's share of the work, by least squares over all blocks.

    The probe's callbacks are a column of their own; operations that would come out negative are
    left out, rarest first.
    """
    blocks = [b for cycle in cycles for b in (cycle.before, cycle.off, cycle.after)]
    totals: dict[str, int] = {}
    for block in blocks:
        for name, ended in block.operations.items():
            totals[name] = totals.get(name, 0) + ended
    chosen = sorted(totals, key=lambda name: -totals[name])[:MAX_OPERATIONS]
    target = np.array([b.cpu_ns for b in blocks], np.float64)
    while chosen:
        columns = [[float(b.callbacks) for b in blocks]]
        columns += [[float(b.operations.get(name, 0)) for b in blocks] for name in chosen]
        cost = np.linalg.lstsq(np.array(columns).T, target, rcond=None)[0][1:].tolist()
        if len(chosen) == 1 or all(each > 0 for each in cost):
            return {name: max(each, 1.0) for name, each in zip(chosen, cost, strict=True)}
        chosen.pop(next(i for i in range(len(cost) - 1, -1, -1) if cost[i] <= 0))
    return {}


def _work(block: Block, cost: dict[str, float]) -> float:
    return sum(each * block.operations.get(name, 0) for name, each in cost.items())


def _without_outliers(
    x: NDArray[np.float64], e: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Set aside cycles more than four robust standard deviations from the rest."""
    for _ in range(5):
        residuals = x - e * np.median(x / np.maximum(e, 1.0))
        spread = 1.4826 * float(np.median(np.abs(residuals)))
        good = np.abs(residuals) <= 4 * max(spread, 1.0)
        if good.all() or good.sum() < MIN_CYCLES:
            break
        x, e = x[good], e[good]
    return x, e


def _jackknife_error(x: NDArray[np.float64], e: NDArray[np.float64]) -> float:
    """Standard error of sum(x) / sum(e)."""
    without = (x.sum() - x) / (e.sum() - e)
    number = len(x)
    return math.sqrt((number - 1) / number * float(((without - without.mean()) ** 2).sum()))


def _t_quantile(freedom: int) -> float:
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    return 1.96 + 2.5 / freedom

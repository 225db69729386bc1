"""What the probe on the native boundary cost, estimated in the run itself.

The recorder left cycles of three blocks, observed - not observed - observed. With cpu the CPU time
of the main thread, n_k how often operation k ended, and e the probe's callbacks in a block:

    mean(cpu_on) - cpu_off = sum_k a_k (mean(n_k,on) - n_k,off) + u mean(e_on) + noise

over all cycles; u, the cost of a callback, is found by least squares with outlying cycles set
aside, its interval from heteroscedasticity-consistent (HC1) standard errors. Where the interval is
wide it is reported and nothing is corrected.
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
class Cycle:
    """The difference of the observed blocks (their mean) and the unobserved one."""

    cpu_ns: float
    operations: dict[str, float]  # how many more marks ended, per operation
    callbacks: float


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


@dataclass(frozen=True, slots=True)
class _Block:
    observed: bool
    cpu_ns: int
    operations: dict[str, int]
    callbacks: int


def find_cycles(process: Process, shard: Shard) -> list[Cycle]:
    """The calibration cycles in the shard of a process's main thread."""
    blocks = _blocks(process, shard)
    cycles = []
    for before, off, after in zip(blocks, blocks[1:], blocks[2:], strict=False):
        if before is None or off is None or after is None:
            continue
        if off.observed or not before.observed or not after.observed:
            continue
        names = {*before.operations, *off.operations, *after.operations}
        cycles.append(
            Cycle(
                cpu_ns=(before.cpu_ns + after.cpu_ns) / 2 - off.cpu_ns,
                operations={
                    name: (before.operations.get(name, 0) + after.operations.get(name, 0)) / 2
                    - off.operations.get(name, 0)
                    for name in names
                },
                callbacks=(before.callbacks + after.callbacks) / 2 - off.callbacks,
            )
        )
    return cycles


def _blocks(process: Process, shard: Shard) -> list[_Block | None]:
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
    blocks: list[_Block | None] = []
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
            _Block(
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
    target = np.array([c.cpu_ns for c in cycles])
    totals: dict[str, float] = {}
    for cycle in cycles:
        for name, difference in cycle.operations.items():
            totals[name] = totals.get(name, 0.0) + abs(difference)
    chosen = sorted(totals, key=lambda name: -totals[name])[: min(MAX_OPERATIONS, len(cycles) // 4)]
    columns = [[c.callbacks for c in cycles]]
    columns += [[c.operations.get(name, 0.0) for c in cycles] for name in chosen]
    design = np.array(columns, np.float64).T
    design = design[:, np.abs(design).sum(axis=0) > 0]
    if not np.any(design[:, 0]):
        return _unknown(count, len(cycles), "the probe never fired in a calibration block")
    kept = np.ones(len(cycles), bool)
    for _ in range(5):
        residuals = target - design @ _fit(design[kept], target[kept])
        spread = 1.4826 * float(np.median(np.abs(residuals[kept] - np.median(residuals[kept]))))
        good = np.abs(residuals - np.median(residuals[kept])) <= 4 * max(spread, 1.0)
        if (good == kept).all() or good.sum() < MIN_CYCLES:
            break
        kept = good
    unit, error, freedom = _unit_and_error(design[kept], target[kept])
    half = _t_quantile(freedom) * error
    reason = ""
    if not math.isfinite(half) or unit <= 0 or half > MAX_RELATIVE_HALF_WIDTH * unit:
        reason = f"the interval is too wide to correct by ({unit:.0f} +- {half:.0f} ns)"
    return Estimate(
        probe="native boundary",
        unit_ns=unit,
        ci_low_ns=unit - half,
        ci_high_ns=unit + half,
        count=count,
        cycles=int(kept.sum()),
        corrected=not reason,
        reason=reason,
    )


def _unknown(count: int, cycles: int, reason: str) -> Estimate:
    nan = float("nan")
    return Estimate("native boundary", nan, nan, nan, count, cycles, False, reason)


def _fit(design: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.lstsq(design, target, rcond=None)[0], np.float64)


def _unit_and_error(
    design: NDArray[np.float64], target: NDArray[np.float64]
) -> tuple[float, float, int]:
    """The first coefficient, its HC1 standard error, the degrees of freedom."""
    rows, columns = design.shape
    coefficients = _fit(design, target)
    residuals = target - design @ coefficients
    freedom = max(rows - columns, 1)
    bread = np.linalg.pinv(design.T @ design)
    meat = (design * residuals[:, None] ** 2).T @ design * rows / freedom
    variance = float((bread @ meat @ bread)[0, 0])
    return float(coefficients[0]), math.sqrt(max(variance, 0.0)), freedom


def _t_quantile(freedom: int) -> float:
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    return 1.96 + 2.5 / freedom

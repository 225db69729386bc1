"""Whether what was loaded from a snapshot is what a replay comes to.

A hash does not say who wrote a file. Whoever signs a snapshot may put any observations and rewards
into it. What is drawn, and from where, must go together: a place outside of an array would end in
an IndexError of some later update, or stop a GPU, and a sum of priorities that its leaves do not
have would draw what was never stored. All of it follows from the flags of the rows, the leaves of
the tree and two counters, so it is computed again here and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from redline.data import Array
from redline.errors import IncompatibleCheckpointError
from redline.replay.links import CUT, ENDED, FIRST, TERMINATED, TRUNCATED, VALID
from redline.replay.snapshot_form import refuse
from redline.replay.spec import Bounds

_ROUNDING = 1e-9  # relative; a GPU adds in another order than the CPU
_FAN = 16
_TOLERANCE = 1e-4  # by which actions in float32 may leave their space


def require_flags(flags: Array, head: int, oldest: int, where: Path) -> None:
    """Refuse flags that no row has.

    Args:
        flags: [L, B] uint8 of the ring.
        head: absolute number of the row to be written next.
        oldest: of the oldest row.
        where: the snapshot's directory.

    Raises:
        CorruptCheckpointError: with a row's flags.
    """
    is_valid = (flags & VALID) != 0
    wrong = flags >= 2 * FIRST
    wrong |= ~is_valid & (flags != 0)
    wrong |= ((flags & CUT) != 0) & ((flags & (TERMINATED | TRUNCATED)) != 0)
    is_beyond = (np.arange(len(flags)) - oldest) % len(flags) >= head - oldest
    wrong[is_beyond] = flags[is_beyond] != 0  # nothing was written there
    if wrong.any():
        row, env = (int(each[0]) for each in np.nonzero(wrong))
        refuse(
            where, f"flags of row {row} of environment {env} are {flags[row, env]}, as of no row"
        )


def require_chain(
    newest_goes_on: Array, episode_open: Array, flags: Array, head: int, where: Path
) -> None:
    """Refuse what is left open if it is not what the newest row leaves open.

    Args:
        newest_goes_on: [B] bool.
        episode_open: [B] bool.
        flags: [L, B] uint8.
        head: absolute number of the row to be written next.
        where: the snapshot's directory.

    Raises:
        CorruptCheckpointError: naming the array.
    """
    for name, value in (("newest_goes_on", newest_goes_on), ("episode_open", episode_open)):
        require_bits(f"chain/{name}", value, where)
    newest = flags[(head - 1) % len(flags)] if head else np.zeros_like(flags[0])
    is_valid = (newest & VALID) != 0
    goes_on = is_valid & ((newest & ENDED) == 0)
    if not np.array_equal(newest_goes_on, goes_on):
        refuse(where, "chain/newest_goes_on is not what the flags of the newest row say")
    if not np.array_equal(episode_open[is_valid], goes_on[is_valid]):
        refuse(where, "chain/episode_open is not what the flags of the newest row say")


def require_bits(name: str, value: Array, where: Path) -> None:
    """Refuse booleans that are neither 0 nor 1 in memory.

    Raises:
        CorruptCheckpointError: naming the array.
    """
    if value.dtype == np.bool_ and value.view(np.uint8).max(initial=0) > 1:
        refuse(where, f"{name} holds booleans that are neither 0 nor 1")


def require_units(
    span: Array, per_row: Array | None, eligible: Array, first: int, rows: int, where: Path
) -> None:
    """Refuse counts of units that the flags of their rows do not give.

    Args:
        span: [3] int64: oldest unit row, the one after the newest, units.
        per_row: [rows] int64, units of each row of the ring; None where every unit is there.
        eligible: [R, B] bool of the unit rows from `first` on, which may be drawn.
        first: oldest unit row.
        rows: unit rows of the ring.
        where: the snapshot's directory.

    Raises:
        CorruptCheckpointError: naming the array.
    """
    counts = np.count_nonzero(eligible, axis=1)
    expected = [first, first + len(eligible), int(counts.sum())]
    if span.tolist() != expected:
        refuse(
            where,
            f"sampler/span is {span.tolist()!s:.100}, and the rows that are there make {expected}",
        )
    if per_row is None:
        if not eligible.all():
            refuse(where, "sampler/per_row is missing, and some rows have fewer units than others")
        return
    wanted = np.zeros(rows, dtype=np.int64)
    wanted[np.arange(first, first + len(eligible)) % rows] = counts
    if not np.array_equal(per_row, wanted):
        row = int(np.flatnonzero(per_row != wanted)[0])
        refuse(
            where,
            f"sampler/per_row counts {per_row[row]} units in row {row}, which has {wanted[row]}",
        )


def require_queue(queue: Array, begin: int, eligible: Array, first: int, where: Path) -> None:
    """Refuse a queue that holds other units than those that may be drawn, in their order.

    Args:
        queue: [size] int64 ring of units.
        begin: place of the first.
        eligible: as for `require_units`.
        first: as there.
        where: the snapshot's directory.

    Raises:
        CorruptCheckpointError: if they differ.
    """
    if not 0 <= begin < 2**53:
        refuse(where, f"sampler/begin is {begin}, where no queue begins")
    row, env = np.nonzero(eligible)
    units = (first + row) * eligible.shape[1] + env
    if not np.array_equal(queue[(begin + np.arange(len(units))) % len(queue)], units):
        refuse(where, "units holds others than those that may be drawn")


def require_priorities(
    sums: Sequence[Array], minima: Sequence[Array], eligible: Array, first: int, size: int,
    where: Path,
) -> None:  # fmt: skip
    """Refuse a tree that its leaves do not make, and leaves of units that are not there.

    Args:
        sums: of each level [rows] float64, the leaves first.
        minima: of each level but the leaves, likewise.
        eligible: as for `require_units`.
        first: as there.
        size: leaves that are units; others are empty.
        where: the snapshot's directory.

    Raises:
        CorruptCheckpointError: naming the level.
    """
    leaves = sums[0]
    if not (np.isfinite(leaves) & (leaves >= 0)).all():
        refuse(where, "priority/sum0 holds a priority that is NaN, infinite or negative")
    row, env = np.nonzero(eligible)
    may_be_drawn = np.zeros(len(leaves), dtype=bool)
    may_be_drawn[((first + row) * eligible.shape[1] + env) % size] = True
    if (leaves[~may_be_drawn] != 0).any():
        refuse(where, "priority/sum0 holds a priority of what is not there")
    if len(row) and not leaves.any():
        refuse(where, "priority/sum0 holds no priority, and there is something to draw")
    lower = np.where(leaves > 0, leaves, np.inf)
    for level, (above, least) in enumerate(zip(sums[1:], minima, strict=True), start=1):
        children = sums[level - 1].reshape(-1, _FAN)
        with np.errstate(over="ignore"):
            wanted = _padded(np.cumsum(children, axis=1)[:, -1], len(above), 0.0)
        if not (np.isfinite(above) & (np.abs(above - wanted) <= _ROUNDING * wanted)).all():
            refuse(where, f"priority/sum{level} is not the sum of what is below it")
        lower = _padded(lower.reshape(-1, _FAN).min(axis=1), len(least), np.inf)
        if not np.array_equal(least, lower):
            refuse(where, f"priority/min{level} is not the least of what is below it")
    if not np.isfinite(np.cumsum(sums[-1])[-1]):
        refuse(where, f"priority/sum{len(sums) - 1} adds up to more than a number can hold")


def _padded(value: Array, length: int, filling: float) -> Array:
    found = np.full(length, filling)
    found[: len(value)] = value
    return found


def require_slots(name: str, slots: Array, rows: int, where: Path) -> None:
    """Refuse places that an array of `rows` frames does not have.

    Raises:
        CorruptCheckpointError: naming the array.
    """
    if slots.size and not 0 <= int(slots.min()) <= int(slots.max()) < rows:
        refuse(where, f"{name} points outside of the {rows} frames that there are")


def require_pool(
    name: str, state: Mapping[str, Array], first: int, rows: int, head: int, where: Path
) -> None:
    """Refuse places beside the ring that are given out twice, or to rows that are not there.

    Args:
        name: of the leaf.
        state: what `SlotPool.state_arrays` gave.
        first: number of the first place.
        rows: frames that there is room for.
        head: absolute number of the row to be written next.
        where: the snapshot's directory.

    Raises:
        CorruptCheckpointError: naming the array.
    """
    slots = np.concatenate([state["free"], state["last_slots"], state["first_slots"]])
    if first + len(slots) > rows or not np.array_equal(
        np.sort(slots), np.arange(first, first + len(slots))
    ):
        refuse(where, f"{name}/free and the places given out are not each place once")
    for lane in ("last", "first"):
        taken_by = state[f"{lane}_rows"]
        if len(taken_by) != len(state[f"{lane}_slots"]):
            refuse(where, f"{name}/{lane}_rows and {name}/{lane}_slots differ in length")
        in_order = bool((np.diff(taken_by) >= 0).all())
        if not in_order or (len(taken_by) and not 0 <= taken_by[0] <= taken_by[-1] <= head):
            refuse(where, f"{name}/{lane}_rows are not rows that were written, in their order")


def require_bounds(
    name: str,
    value: Array,
    bounds: Bounds,
    is_valid: Array,
    where: Path,
    *,
    of_another_run: bool = False,
) -> None:
    """Refuse values outside of their space.

    Args:
        name: of the array.
        value: [rows, ...].
        bounds: lowest and highest value of each element.
        is_valid: [rows] bool; other rows hold zeros and do not count.
        where: the snapshot's directory.
        of_another_run: whether its spaces may be other ones.

    Raises:
        CorruptCheckpointError: with the first such value.
        IncompatibleCheckpointError: likewise, if it is of another run.
    """
    low, high = (np.asarray(bound) for bound in bounds)
    if value.dtype.kind == "f":
        low = low - _TOLERANCE * np.maximum(1.0, np.abs(low))
        high = high + _TOLERANCE * np.maximum(1.0, np.abs(high))
    outside = ~((value >= low) & (value <= high))  # NaN, too
    outside[~is_valid] = False
    if outside.any():
        at = tuple(int(each[0]) for each in np.nonzero(outside))
        if of_another_run:
            raise IncompatibleCheckpointError(
                f"{where}: {name} holds {value[at]}, outside of its space in this run. Begin with "
                f"the replay of a run with the same spaces, or without one."
            )
        refuse(where, f"{name} holds {value[at]}, outside of its space")

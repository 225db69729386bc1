"""A tree of sums and minima over priorities, for whole batches of indices at once.

Each node has 16 children, up to a top of at most 4,096 nodes that is searched as a whole.
A million leaves thus take three steps of plain tensor code for a batch of any size, on any
device. On the CPU a C extension does the same in less time and with equal bits. A parent is
always recomputed from its children, never adjusted by a difference, so that rounding does not
accumulate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redline.data import Array
from redline.replay.storage import Arena, ArrayPlan

_tree: Any
try:
    from redline.replay import _tree  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # installed without a C compiler
    _tree = None

_FAN = 16
_TOP = 4096


class PriorityTree:
    """A tree over `size` leaves; an empty leaf is 0 and plays no part in the minimum.

    Args:
        arena: holds the arrays that `plans` asked for.
        name: prefix of their names.
        size: number of leaves.
    """

    def __init__(self, arena: Arena, name: str, size: int) -> None:
        self.size = size
        arrays = [arena.arrays[plan.name] for plan in self.plans(name, size)]
        self._sums = [a for a in arrays if a.plan.name.startswith(f"{name}/sum")]
        self._minima = [a for a in arrays if a.plan.name.startswith(f"{name}/min")]
        self._on_host = None
        if _tree is not None and arena.device.type == "cpu":
            # The arrays never grow, so these views of their memory last.
            self._on_host = (
                tuple(array.tensor.numpy() for array in self._sums),
                tuple(array.tensor.numpy() for array in self._minima),
            )
        self.clear()

    @staticmethod
    def plans(name: str, size: int) -> list[ArrayPlan]:
        """The arrays of a tree, from the leaves up; one spare leaf takes writes to discard."""
        levels = [-(-(size + 1) // _FAN) * _FAN]
        while len(levels) == 1 or levels[-1] > _TOP:
            levels.append(-(-(levels[-1] // _FAN) // _FAN) * _FAN)
        return [
            ArrayPlan(
                name=f"{name}/{kind}{level}",
                rows=rows,
                shape=(),
                dtype=torch.float64,
                volatile=True,
            )
            for kind, first in (("sum", 0), ("min", 1))
            for level, rows in enumerate(levels[first:], start=first)
        ]

    def clear(self) -> None:
        """Empty all leaves."""
        for arrays, empty in ((self._sums, 0.0), (self._minima, torch.inf)):
            for array in arrays:
                array.tensor.fill_(empty)
                array.touch(0, array.rows)

    def memory(self) -> dict[str, Tensor]:
        """Name -> every level, itself."""
        return {array.plan.name: array.tensor for array in (*self._sums, *self._minima)}

    def levels(self) -> tuple[list[Array], list[Array]]:
        """Sums and minima of each level, on the host; the leaves, which have no minima, first."""
        return (
            [array.tensor.cpu().numpy() for array in self._sums],
            [array.tensor.cpu().numpy() for array in self._minima],
        )

    @property
    def leaves(self) -> Tensor:
        """[size] float64 the values of the leaves."""
        return self._sums[0].tensor[: self.size]

    @property
    def total(self) -> Tensor:
        """[] float64 the sum of all leaves."""
        return self._sums[-1].tensor.cumsum(0)[-1]

    @property
    def least(self) -> Tensor:
        """[] float64 the least leaf that is not empty; infinity if all are."""
        return self._minima[-1].tensor.amin()

    def set(self, index: Tensor, value: Tensor, keep: Tensor | None = None) -> None:
        """Write leaves and what lies above them.

        Args:
            index: [N] int64 leaves; where one occurs twice, the larger value counts.
            value: [N] float64, not negative.
            keep: [N] bool; entries where it is false are discarded. None keeps all.
        """
        if keep is not None:
            index = torch.where(keep, index, self.size)
            value = value.masked_fill(~keep, 0.0)
        if self._on_host is not None:
            _tree.set(*self._on_host, _contiguous(index), _contiguous(value))
            return
        self._sums[0].tensor.scatter_reduce_(0, index, value, "amax", include_self=False)
        node = index
        for level, above in enumerate(self._sums[1:]):
            node = node // _FAN
            children = self._sums[level].tensor.view(-1, _FAN).index_select(0, node)
            if level == 0:
                lower = children.masked_fill(children <= 0, torch.inf)
            else:
                lower = self._minima[level - 1].tensor.view(-1, _FAN).index_select(0, node)
            # A running sum, not sum(): its order, hence its rounding, is that of `find`.
            # Where a node occurs twice, both copies are the same.
            above.tensor.index_copy_(0, node, children.cumsum(1)[:, -1])
            self._minima[level].tensor.index_copy_(0, node, lower.amin(1))

    def find(self, fraction: Tensor) -> Tensor:
        """The leaves whose running sums first exceed fractions of the total.

        Args:
            fraction: [N] float64 in [0, 1).

        Returns:
            [N] int64 leaves, none of them empty. There must be one that is not.
        """
        if self._on_host is not None:
            found = torch.empty(len(fraction), dtype=torch.int64)
            _tree.find(self._on_host[0], _contiguous(fraction), found.numpy())
            return found
        values = self._sums[-1].tensor
        running = values.cumsum(0)
        rest = fraction * running[-1]
        node = _first_above(running, rest, running[-1])
        rest = rest - (running[node] - values[node])
        for array in reversed(self._sums[:-1]):
            values = array.tensor
            running = values.view(-1, _FAN).index_select(0, node).cumsum(1)
            child = _first_above(running, rest[:, None], running[:, -1:])
            node = node * _FAN + child[:, 0]
            if array is not self._sums[0]:
                rest = rest - (running.gather(1, child)[:, 0] - values[node])
        return node


def _contiguous(tensor: Tensor) -> Array:
    return tensor.contiguous().numpy()


def _first_above(running: Tensor, target: Tensor, total: Tensor) -> Tensor:
    """The first place where a running sum exceeds the target, or else reaches the total.

    Rounding may have taken what is left of a target a little below zero, or up to the total:
    it is moved back to between zero and the greatest number below the total.
    """
    zero = torch.zeros_like(total)
    return torch.searchsorted(
        running, torch.clamp(target, zero, torch.nextafter(total, zero)), right=True
    )

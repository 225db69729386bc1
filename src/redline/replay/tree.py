"""A tree of sums (or minima) over priorities, for whole batches of indices at once.

Each node has 32 children, so a million leaves are four levels deep and a batch descends in
four steps of plain tensor code, on any device. A parent is always recomputed from its
children, never adjusted by a difference, so that rounding does not accumulate.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from redline.replay.storage import Arena, ArrayPlan

_FAN = 32


class PriorityTree:
    """A tree over `size` leaves.

    Args:
        arena: holds the arrays that `plans` asked for.
        name: prefix of their names.
        size: number of leaves.
        kind: "sum", whose empty leaf is 0, or "min", whose empty leaf is infinity.
    """

    def __init__(self, arena: Arena, name: str, size: int, kind: Literal["sum", "min"]) -> None:
        self.kind: Literal["sum", "min"] = kind
        self.size = size
        self._arrays = [arena.arrays[plan.name] for plan in self.plans(name, size)]
        self.clear()

    @staticmethod
    def plans(name: str, size: int) -> list[ArrayPlan]:
        """The arrays of a tree, from the leaves up; one spare leaf takes writes to discard."""
        levels = [-(-(size + 1) // _FAN) * _FAN]
        while levels[-1] > _FAN:
            levels.append(-(-(levels[-1] // _FAN) // _FAN) * _FAN)
        return [
            ArrayPlan(
                name=f"{name}/{level}",
                rows=rows,
                shape=(),
                dtype=torch.float64,
                volatile=True,
            )
            for level, rows in enumerate([*levels, 1])
        ]

    def clear(self) -> None:
        """Empty all leaves."""
        for array in self._arrays:
            array.tensor.fill_(0.0 if self.kind == "sum" else torch.inf)
            array.touch(0, array.rows)

    @property
    def leaves(self) -> Tensor:
        """[size] float64 the values of the leaves."""
        return self._arrays[0].tensor[: self.size]

    @property
    def root(self) -> Tensor:
        """[] float64 the sum, or the least, of all leaves."""
        return self._arrays[-1].tensor[0]

    def set(self, index: Tensor, value: Tensor, keep: Tensor | None = None) -> None:
        """Write leaves and what lies above them.

        Args:
            index: [N] int64 leaves; where one occurs twice, the larger value counts.
            value: [N] float64.
            keep: [N] bool; entries where it is false are discarded. None keeps all.
        """
        if keep is not None:
            empty = 0.0 if self.kind == "sum" else torch.inf
            index = torch.where(keep, index, self.size)
            value = torch.where(keep, value, empty)
        self._arrays[0].tensor.scatter_reduce_(0, index, value, "amax", include_self=False)
        node = index
        for below, above in zip(self._arrays[:-1], self._arrays[1:], strict=True):
            node = node // _FAN
            children = below.tensor.view(-1, _FAN).index_select(0, node)
            # A running sum, not sum(): its order, hence its rounding, is that of `find`.
            total = children.cumsum(1)[:, -1] if self.kind == "sum" else children.amin(1)
            above.tensor[node] = total

    def set_range(self, start: int, value: Tensor) -> None:
        """Write consecutive leaves, around the end if need be.

        Args:
            start: first leaf.
            value: [N] float64, N at most `size`.
        """
        index = torch.arange(start, start + value.shape[0], device=value.device) % self.size
        self.set(index, value)

    def find(self, target: Tensor) -> Tensor:
        """The leaves whose running sums first exceed the targets; never an empty leaf.

        Args:
            target: [N] float64 in [0, root).

        Returns:
            [N] int64 leaves.
        """
        node = torch.zeros_like(target, dtype=torch.int64)
        rest = target
        for array in reversed(self._arrays[:-1]):
            running = array.tensor.view(-1, _FAN).index_select(0, node).cumsum(1)
            # Rounding may push a target to the node's very total, where no child is left.
            below_total = torch.nextafter(running[:, -1], torch.zeros_like(rest))
            rest = torch.minimum(rest, below_total)
            child = (running <= rest[:, None]).sum(1)
            before = running.gather(1, (child - 1).clamp(min=0)[:, None])[:, 0]
            rest = rest - torch.where(child > 0, before, 0.0)
            node = node * _FAN + child
        return node

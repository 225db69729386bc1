"""The quick way into a buffer of plain transitions on a device.

What `PlainPath` writes to the rings in main memory is written to a block of the rollout's size
here. Its arrays then cross to the device with everything else that an `add` writes, by one copy,
and one graph puts them in their places.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from redline.data import Array
from redline.replay.config import ReplayConfig
from redline.replay.plain import PairStore, PlainPath
from redline.replay.spec import Path as KeyPath
from redline.replay.spec import ReplaySpec
from redline.replay.storage import Arena

_MOST_LENGTHS = 4  # of rollouts; more are rare, and each has a block


class StagedPath(PlainPath):
    """Adds plain transitions that lie in main memory to a device's; arguments as `PlainPath`."""

    def __init__(
        self,
        arena: Arena,
        config: ReplayConfig,
        spec: ReplaySpec,
        leaves: dict[KeyPath, PairStore],
        ring_rows: int,
    ) -> None:
        super().__init__(arena, config, spec, leaves, ring_rows)
        self._overwrites = False  # batches are drawn on the device
        self._blocks: dict[int, tuple[dict[str, Array], list[Tensor]]] = {}
        self._columns = np.arange(spec.num_envs)

    def _make_rings(self) -> dict[str, Array]:
        return {}

    @torch.inference_mode(False)  # a rollout is collected in that mode, and the block outlives it
    def _rows_for(self, length: int) -> dict[str, Array]:
        if length not in self._blocks:
            if len(self._blocks) >= _MOST_LENGTHS:
                self._blocks.clear()
                self._rollouts.clear()  # their views lead to the blocks
            plans = [self._arena.arrays[name].plan for name in self._names]
            rows = (length, self._spec.num_envs)
            staged = [torch.zeros(*rows, *plan.shape, dtype=plan.dtype) for plan in plans]
            arrays = dict(zip(self._names, (each.numpy() for each in staged), strict=True))
            self._blocks[length] = arrays, [each.flatten(0, 1) for each in staged]
        return self._blocks[length][0]

    def _first_row(self, head: int, length: int) -> int | None:
        del head
        return 0 if length <= self._ring_rows else None

    def _pass_on(self, head: int, length: int) -> None:
        rows = (head + np.arange(length)) % self._ring_rows
        index = (rows[:, None] * len(self._columns) + self._columns).reshape(-1)
        write = partial(_write, [self._arena[name] for name in self._names])
        self._arena.run(("rows", length), write, torch.from_numpy(index), *self._blocks[length][1])


def _write(arrays: list[Tensor], index: Tensor, *values: Tensor) -> None:
    for array, value in zip(arrays, values, strict=True):
        array.index_copy_(0, index, value)

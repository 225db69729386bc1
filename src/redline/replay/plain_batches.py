"""Batches of plain transitions out of main memory, gathered by numpy into memory made once.

One-step windows of small whole observations are table look-ups and a few short gathers: by the
general way of `Batches` the calls cost several times the gathering. The numbers are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from redline.data import Array
from redline.replay.batches import earlier
from redline.replay.config import ReplayConfig
from redline.replay.entries import Entries
from redline.replay.observations import ObservationLeaf
from redline.replay.spec import Path, ReplaySpec, entry_name, nest
from redline.replay.storage import Arena
from redline.replay.windows import ENDED, FIRST, TERMINATED, VALID

_LARGEST_ROW = 4096  # bytes; beyond, the tensor library's threads gather faster


def serves(config: ReplayConfig, spec: ReplaySpec, frames: dict[Path, int], arena: Arena) -> bool:
    """Whether a buffer's batches can be made here.

    Args:
        config: the buffer's.
        spec: the buffer's.
        frames: frames per observation of each leaf.
        arena: the buffer's arrays.
    """
    return (
        arena.device.type == "cpu"
        and config.n_step == 1
        and not config.is_sequential
        and all(count == 1 for count in frames.values())
        and all(
            math.prod(leaf.shape) * leaf.dtype.itemsize <= _LARGEST_ROW
            for leaf in spec.obs.values()
        )
    )


@dataclass(frozen=True, slots=True)
class _Made:
    """A batch of N transitions and its memory.

    Attributes:
        batch: it.
        entries: what it was made of: a caller may have put others.
        index: [N] int64.
        weight: [N] float32.
        num_steps: [N] int64.
        discount: [N] float32.
        by_row: array of the buffer with one entry per row, and the batch's memory for it.
        observed: leaf, its frames, and the batch's memory for obs and, if it is wanted, next_obs.
    """

    batch: TensorDict
    entries: Entries
    index: Array
    weight: Array
    num_steps: Array
    discount: Array
    by_row: list[tuple[Array, Array]]
    observed: list[tuple[ObservationLeaf, Array, Array, Array | None]]

    def is_as_made(self, num_rows: int) -> bool:
        """Whether the batch has that size and its own entries still."""
        return num_rows == len(self.index) and self.entries.are_held()


class PlainBatches:
    """Gathers batches of one-step transitions.

    Args:
        arena: the buffer's arrays, in main memory.
        config: the buffer's; see `serves`.
        spec: the buffer's.
        leaves: its observations.
    """

    def __init__(
        self,
        arena: Arena,
        config: ReplayConfig,
        spec: ReplaySpec,
        leaves: dict[Path, ObservationLeaf],
    ) -> None:
        self._arena, self._spec, self._leaves = arena, spec, leaves
        self._next_obs, self._num_envs = config.next_obs, spec.num_envs
        self._flags = arena.host("flags")
        # What one step means, by the row's flags.
        bits = np.arange(2 * FIRST)
        valid = (bits & VALID) != 0
        self._num_steps = valid.astype(np.int64)
        bootstraps = valid & ((bits & TERMINATED) == 0)
        self._discount = np.where(bootstraps, np.float32(config.gamma), np.float32(0.0))
        self._ended = (bits & ENDED) != 0
        self._stored = {entry_name("action", path): ("action", path) for path in spec.action}
        self._stored |= {f"extra/{name}": (name, ()) for name in spec.extras}
        self._made: _Made | None = None

    def sample(self, rows: Array, weight: Array | float, out: TensorDictBase | None) -> TensorDict:
        """The transitions of the rows that were drawn.

        Args:
            rows: [N] int64 numbers t * B + b of the rows.
            weight: [N] float32 importance weights, or one for all.
            out: an earlier batch; if it is the one made last, and holds what it held then, it is
                written over and returned.

        Raises:
            ConfigError: if `out` is not of the batch's shape, kind and place.
        """
        made = self._made
        if made is None or out is not made.batch or not made.is_as_made(len(rows)):
            for path, leaf in self._leaves.items():
                earlier(out, ("obs", *path), (len(rows),), leaf, self._arena.device)
            made = self._made = self._make(len(rows))
        made.index[:], made.weight[:] = rows, weight
        slot = rows % len(self._flags)
        bits = self._flags.take(slot).astype(np.intp)
        # Taking by `clip` writes to `out` without a detour; every slot is inside anyway.
        self._num_steps.take(bits, out=made.num_steps, mode="clip")
        self._discount.take(bits, out=made.discount, mode="clip")
        for stored, into in made.by_row:
            stored.take(slot, axis=0, out=into, mode="clip")
        ends = self._ended.take(bits).nonzero()[0]
        for leaf, frames, obs, next_obs in made.observed:
            frames.take(rows % leaf.zero_slot, axis=0, out=obs, mode="clip")
            if next_obs is None:
                continue
            following = (rows + self._num_envs) % leaf.zero_slot
            if len(ends):
                following[ends] = self._arena.host(f"{leaf.name}/last").take(slot[ends])
            frames.take(following, axis=0, out=next_obs, mode="clip")
        return made.batch

    def _make(self, rows: int) -> _Made:
        """A batch with memory of its own, to be written over from here on."""
        arena, arrays = self._arena, {}

        def tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            value = torch.zeros((rows, *shape), dtype=dtype)
            arrays[name] = value.numpy()
            return value

        fields: dict[str, Any] = {
            "reward": tensor("reward", (), torch.float32),
            "discount": tensor("discount", (), torch.float32),
            "num_steps": tensor("num_steps", (), torch.int64),
            "index": tensor("index", (), torch.int64),
            "weight": tensor("weight", (), torch.float32),
        }
        parts: dict[str, dict[Path, Tensor]] = {}
        for path, leaf in self._leaves.items():
            for key, what in (("obs", "obs"), ("next_obs", "next"))[: 1 + self._next_obs]:
                found = parts.setdefault(key, {})
                found[path] = tensor(f"{leaf.name}/{what}", leaf.shape, leaf.dtype)
        for name, (key, path) in self._stored.items():
            array = arena[name]
            parts.setdefault(key, {})[path] = tensor(name, tuple(array.shape[1:]), array.dtype)
        fields |= {key: nest(leaves, (rows,)) for key, leaves in parts.items()}
        batch = TensorDict(fields, batch_size=[rows])
        return _Made(
            batch=batch,
            entries=Entries(batch),
            index=arrays["index"],
            weight=arrays["weight"],
            num_steps=arrays["num_steps"],
            discount=arrays["discount"],
            by_row=[(arena.host(name), arrays[name]) for name in ("reward", *self._stored)],
            observed=[
                (
                    leaf,
                    arena.host(f"{leaf.name}/frames"),
                    arrays[f"{leaf.name}/obs"],
                    arrays.get(f"{leaf.name}/next"),
                )
                for leaf in self._leaves.values()
            ],
        )

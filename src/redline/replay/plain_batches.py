"""Batches of plain transitions out of main memory, gathered by numpy into memory made once.

One-step windows of small whole observations are table look-ups and a few short gathers: by the
general way of `Batches` the calls cost several times the gathering. The numbers are the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from redline.data import Array
from redline.replay.batches import earlier
from redline.replay.config import ReplayConfig
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
        # What one step means, by the row's flags.
        bits = np.arange(2 * FIRST)
        valid = (bits & VALID) != 0
        self._num_steps = valid.astype(np.int64)
        self._ended = (bits & ENDED) != 0
        bootstraps = valid & ((bits & TERMINATED) == 0)
        self._discount = np.where(bootstraps, np.float32(config.gamma), np.float32(0.0))
        self._stored = {entry_name("action", path): ("action", path) for path in spec.action}
        self._stored |= {f"extra/{name}": (name, ()) for name in spec.extras}
        self._made: TensorDict | None = None
        self._entries: list[tuple[Any, Any]] = []
        self._arrays: dict[str, Array] = {}

    def sample(self, index: Tensor, weight: Tensor, out: TensorDictBase | None) -> TensorDict:
        """The transitions of the rows that were drawn.

        Args:
            index: [N] int64 numbers t * B + b of the rows.
            weight: [N] float32 importance weights.
            out: an earlier batch; if it is the one made last, and holds what it held then, it is
                written over and returned.

        Raises:
            ConfigError: if `out` is not of the batch's shape, kind and place.
        """
        batch = self._made
        if batch is None or out is not batch or not self._is_as_made(batch, len(index)):
            for path, leaf in self._leaves.items():
                earlier(out, ("obs", *path), (len(index),), leaf, index.device)
            batch = self._make(len(index))
        arrays, arena = self._arrays, self._arena
        rows = index.numpy()
        arrays["index"][:], arrays["weight"][:] = rows, weight.numpy()
        flags = arena.host("flags")
        slot = rows % len(flags)
        bits = flags.take(slot)
        # Taking by `clip` writes to `out` without a detour; every slot is inside anyway.
        arena.host("reward").take(slot, out=arrays["reward"], mode="clip")
        self._discount.take(bits, out=arrays["discount"], mode="clip")
        self._num_steps.take(bits, out=arrays["num_steps"], mode="clip")
        for name in self._stored:
            arena.host(name).take(slot, axis=0, out=arrays[name], mode="clip")
        ended = self._ended.take(bits)
        any_ended = bool(ended.any())
        for leaf in self._leaves.values():
            frames = arena.host(f"{leaf.name}/frames")
            frames.take(rows % leaf.zero_slot, axis=0, out=arrays[f"{leaf.name}/obs"], mode="clip")
            if not self._next_obs:
                continue
            following = (rows + self._num_envs) % leaf.zero_slot
            if any_ended:
                kept = arena.host(f"{leaf.name}/last")
                following = np.where(ended, kept.take(slot), following)
            frames.take(following, axis=0, out=arrays[f"{leaf.name}/next"], mode="clip")
        return batch

    def _is_as_made(self, batch: TensorDict, rows: int) -> bool:
        """Whether a batch has its size and its own entries still: a caller may have put others."""
        return (
            rows == len(self._arrays["reward"])
            and len(batch.keys()) == self._num_keys
            and all(batch.get(key, None) is value for key, value in self._entries)
        )

    def _make(self, rows: int) -> TensorDict:
        """A batch with memory of its own, to be written over from here on."""
        self._arrays = {}

        def tensor(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            value = torch.zeros((rows, *shape), dtype=dtype)
            self._arrays[name] = value.numpy()
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
            array = self._arena[name]
            parts.setdefault(key, {})[path] = tensor(name, tuple(array.shape[1:]), array.dtype)
        fields |= {key: nest(leaves, (rows,)) for key, leaves in parts.items()}
        self._made = TensorDict(fields, batch_size=[rows])
        self._num_keys = len(fields)
        nested = [(key, *path) for key, leaves in parts.items() for path in leaves if path]
        self._entries = [(key, self._made.get(key)) for key in (*fields, *nested)]
        return self._made

"""Batches: what is gathered for the rows that were drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from redline.data import SequenceBatch as SequenceBatch
from redline.errors import ConfigError
from redline.replay.config import ReplayConfig
from redline.replay.frames import FrameStore
from redline.replay.links import FIRST, TERMINATED, TRUNCATED, VALID
from redline.replay.plain import PairStore
from redline.replay.spec import Path, ReplaySpec, entry_name, nest
from redline.replay.storage import Arena
from redline.replay.windows import Windows

ObservationStore: TypeAlias = FrameStore | PairStore


class Batches:
    """Gathers batches, with fixed shapes and without waiting for a device.

    Args:
        arena: the buffer's arrays.
        config: the buffer's.
        spec: the buffer's.
        leaves: its observations.
    """

    def __init__(
        self,
        arena: Arena,
        config: ReplayConfig,
        spec: ReplaySpec,
        leaves: Mapping[Path, ObservationStore],
    ) -> None:
        self._arena, self._config, self._spec, self._leaves = arena, config, spec, leaves
        self._windows = Windows(config.gamma, config.n_step, spec.num_envs, arena.device)

    def rows(self, index: Tensor, head: Tensor, out: TensorDictBase | None) -> dict[str, Any]:
        """What is drawn for each row, with the leading axes of `index`.

        Args:
            index: [N] or [T', N] int64 numbers t * B + b of the rows.
            head: [] int64 number of row t to be written next.
            out: an earlier batch of the same shape, whose observations are overwritten.
        """
        shape, flat = tuple(index.shape), index.reshape(-1)
        window = self._windows(self._arena["reward"], self._arena["flags"], flat, head)
        slot = flat % self._arena["flags"].shape[0]

        def shaped(value: Tensor) -> Tensor:
            return value.view(*shape, *value.shape[1:])

        def stored(name: str) -> Tensor:
            return shaped(self._arena[name].index_select(0, slot))

        # Sequences overlap by more than two stacks can share, so only transitions try to.
        shift = 0 if self._config.is_sequential else self._config.n_step
        observed: dict[str, dict[Path, Tensor]] = {"obs": {}, "next_obs": {}}
        for path, leaf in self._leaves.items():
            earlier = self._earlier(out, path, shape, leaf)
            successors = window if self._config.next_obs else None
            for key, value in leaf.gather(flat, successors, shift, earlier).items():
                observed[key][path] = value.reshape(*shape, *value.shape[1:])
        actions = {path: stored(entry_name("action", path)) for path in self._spec.action}
        return {
            **{key: nest(leaves, shape) for key, leaves in observed.items() if leaves},
            "action": nest(actions, shape),
            "reward": shaped(window.reward),
            "discount": shaped(window.discount),
            "num_steps": shaped(window.num_steps),
            **{name: stored(f"extra/{name}") for name in self._spec.extras},
        }

    def steps(self, index: Tensor, head: Tensor, out: TensorDictBase | None) -> TensorDict:
        """The [T', N] steps of sequences; arguments as for `rows`."""
        fields = self.rows(index, head, out)
        flags = self._arena["flags"]
        bits = flags[index % flags.shape[0]]
        fields["valid"] = (bits & VALID) != 0
        fields["terminated"] = (bits & TERMINATED) != 0
        fields["truncated"] = (bits & TRUNCATED) != 0
        fields["reset"] = (bits & FIRST) != 0
        fields["reset"][0] = False
        return TensorDict(fields, batch_size=list(index.shape))

    def observations(self, oldest: int, head: int, at_once: int) -> Iterator[Any]:
        """The observations of all valid rows, oldest first.

        Args:
            oldest: number of the oldest row t.
            head: number of row t to be written next.
            at_once: [N] of each part at most.
        """
        flags, num_envs = self._arena["flags"], self._spec.num_envs
        for first in range(oldest * num_envs, head * num_envs, at_once):
            last = min(first + at_once, head * num_envs)
            index = torch.arange(first, last, device=self._arena.device)
            index = index[(flags[index % flags.shape[0]] & VALID) != 0]
            found = {p: leaf.gather(index, None, 0, {})["obs"] for p, leaf in self._leaves.items()}
            yield nest(found, (len(index),))

    def _earlier(
        self,
        out: TensorDictBase | None,
        path: Path,
        shape: tuple[int, ...],
        leaf: ObservationStore,
    ) -> dict[str, Tensor]:
        """The observations of an earlier batch, whose memory may be overwritten."""
        found: dict[str, Tensor] = {}
        if out is None:
            return found
        wanted, device = (*shape, *leaf.shape), self._arena.device
        for key in ("obs", "next_obs") if self._config.next_obs else ("obs",):
            value = out.get((key, *path))
            if (
                not isinstance(value, Tensor)
                or tuple(value.shape) != wanted
                or value.dtype != leaf.dtype
                or value.device != device
            ):
                raise ConfigError(
                    f"out[{'.'.join((key, *path))!r}] should be {leaf.dtype} of shape {wanted} on "
                    f"{device}. Give a batch that this replay drew with the same batch_size."
                )
            found[key] = value
        return found

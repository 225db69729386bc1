"""Batches: what is gathered for the rows that were drawn."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from redline.data import SequenceBatch as SequenceBatch
from redline.errors import ConfigError
from redline.replay.config import ReplayConfig
from redline.replay.observations import ObservationLeaf
from redline.replay.spec import Path, ReplaySpec, entry_name, nest
from redline.replay.storage import Arena
from redline.replay.windows import FIRST, TERMINATED, TRUNCATED, VALID, Window, Windows


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
        leaves: dict[Path, ObservationLeaf],
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

        def observed(key: str) -> Any:
            found: dict[Path, Tensor] = {}
            for path, leaf in self._leaves.items():
                slots = leaf.slots(flat) if key == "obs" else self._successor(leaf, window)
                found[path] = shaped(leaf.fetch(slots, _reused(out, (key, *path), index, leaf)))
            return nest(found, shape)

        fields: dict[str, Any] = {
            "obs": observed("obs"),
            "action": nest(
                {path: stored(entry_name("action", path)) for path in self._spec.action}, shape
            ),
            "reward": shaped(window.reward),
            "discount": shaped(window.discount),
            "num_steps": shaped(window.num_steps),
        }
        if self._config.next_obs:
            fields["next_obs"] = observed("next_obs")
        for name in self._spec.extras:
            fields[name] = stored(f"extra/{name}")
        return fields

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

    def _successor(self, leaf: ObservationLeaf, window: Window) -> Tensor:
        slots = leaf.successor_slots(window.last, window.ended)
        if self._config.is_sequential:  # only there can rows be drawn that are not valid
            valid = (window.num_steps > 0).view(-1, *([1] * (slots.dim() - 1)))
            slots = torch.where(valid, slots, leaf.zero_slot)
        return slots


def _reused(
    out: TensorDictBase | None, path: Path, index: Tensor, leaf: ObservationLeaf
) -> Tensor | None:
    """The tensor of an earlier batch to write into.

    Raises:
        ConfigError: if it is not of the batch's shape, kind and place.
    """
    if out is None:
        return None
    value = out.get(path)
    wanted = (*index.shape, *leaf.shape)
    if (
        not isinstance(value, Tensor)
        or tuple(value.shape) != wanted
        or value.dtype != leaf.dtype
        or value.device != index.device
        or not value.is_contiguous()
    ):
        raise ConfigError(
            f"out[{'.'.join(path)!r}] should be contiguous {leaf.dtype} of shape {wanted} on "
            f"{index.device}. Give a batch that this replay drew with the same batch_size."
        )
    return value

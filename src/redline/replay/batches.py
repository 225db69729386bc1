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

        observed = self._observed(flat, window, shape, out)
        fields: dict[str, Any] = {
            "obs": observed["obs"],
            "action": nest(
                {path: stored(entry_name("action", path)) for path in self._spec.action}, shape
            ),
            "reward": shaped(window.reward),
            "discount": shaped(window.discount),
            "num_steps": shaped(window.num_steps),
        }
        if self._config.next_obs:
            fields["next_obs"] = observed["next_obs"]
        for name in self._spec.extras:
            fields[name] = stored(f"extra/{name}")
        return fields

    def _observed(
        self, flat: Tensor, window: Window, shape: tuple[int, ...], out: TensorDictBase | None
    ) -> dict[str, Any]:
        """Key -> the rows' observations, nested: obs, and next_obs where it is wanted."""
        found: dict[str, dict[Path, Tensor]] = {"obs": {}, "next_obs": {}}
        for path, leaf in self._leaves.items():
            slots = {"obs": leaf.slots(flat)}
            if self._config.next_obs:
                slots["next_obs"] = self._successor(leaf, window)
            fetched = self._fetch(leaf, slots, path, out, shape)
            for key, value in fetched.items():
                found[key][path] = value.reshape(*shape, *value.shape[1:])
        return {key: nest(leaves, shape) for key, leaves in found.items() if leaves}

    def _fetch(
        self,
        leaf: ObservationLeaf,
        slots: dict[str, Tensor],
        path: Path,
        out: TensorDictBase | None,
        shape: tuple[int, ...],
    ) -> dict[str, Tensor]:
        """The observations at these slots, key -> [N, ...]."""
        n = self._config.n_step
        device = slots["obs"].device
        old = {key: earlier(out, (key, *path), shape, leaf, device) for key in slots}
        if leaf.frames > n and len(slots) == 2 and len(shape) == 1 and device.type == "cpu":
            obs, following = slots["obs"], slots["next_obs"]
            if torch.equal(obs[:, n:], following[:, :-n]):
                # The two stacks share all frames but n: each is gathered once, and both
                # observations are views of the same memory.
                joint = torch.cat([obs, following[:, -n:]], dim=1)
                return leaf.fetch_overlapping(joint, n, old["obs"])
        return {key: leaf.fetch(where, old[key]) for key, where in slots.items()}

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


def earlier(
    out: TensorDictBase | None,
    path: Path,
    shape: tuple[int, ...],
    leaf: ObservationLeaf,
    device: torch.device,
) -> Tensor | None:
    """The tensor of an earlier batch whose memory may be taken.

    Raises:
        ConfigError: if it is not of the batch's shape, kind and place.
    """
    if out is None:
        return None
    value = out.get(path)
    wanted = (*shape, *leaf.shape)
    if (
        not isinstance(value, Tensor)
        or tuple(value.shape) != wanted
        or value.dtype != leaf.dtype
        or value.device != device
    ):
        raise ConfigError(
            f"out[{'.'.join(path)!r}] should be {leaf.dtype} of shape {wanted} on {device}. Give "
            "a batch that this replay drew with the same batch_size."
        )
    return value

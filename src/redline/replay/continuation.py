"""The usual rollout, taken into a buffer in a few copies.

Most rollouts carry on where the last one stopped, and all of their rows are valid: nothing is to
be cut, and where an episode ended its last observation is kept. `carry_on` writes just those, and
leaves every other one, and every one that is wrong, to `Replay.add`'s general way, with the
same result to the bit. With few rows per rollout that way cost a tenth of the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.data import Array, Rollout
from redline.replay.observations import ObservationLeaf
from redline.replay.spec import LeafSpec, ReplaySpec, entry_name, flatten
from redline.replay.spec import Path as KeyPath
from redline.replay.storage import Arena
from redline.replay.windows import FIRST, TERMINATED, TRUNCATED, VALID

_FLAG, _NUMBER = LeafSpec((), torch.bool), LeafSpec((), torch.int64)
_REWARD = LeafSpec((), torch.float32)
_SMALL = 64 * 1024  # bytes
_MOST_KNOWN = 64


class Continuation:
    """Writes rollouts that carry on.

    Args:
        arena: the buffer's arrays, in main memory.
        spec: shapes and dtypes of what the collector produces.
        leaves: the buffer's observations, stored whole.
        ring_rows: L.
    """

    def __init__(
        self,
        arena: Arena,
        spec: ReplaySpec,
        leaves: dict[KeyPath, ObservationLeaf],
        ring_rows: int,
    ) -> None:
        self._arena, self._spec, self._leaves = arena, spec, leaves
        self._ring_rows, self._num_envs = ring_rows, spec.num_envs
        self._known: dict[int, tuple[Tensor, LeafSpec | None, Array]] = {}

    def carry_on(self, rollout: Rollout, head: int, open_before: Array) -> Array | None:
        """Write a rollout if it is of the usual kind.

        Args:
            rollout: [T, B].
            head: absolute number of its first row, above 0.
            open_before: [B] bool, the episode of the row before goes on.

        Returns:
            [B] bool, whether the episode goes on after the last row. None if it is another kind
            of rollout: then nothing was written.
        """
        steps = rollout.steps
        length, num_envs = steps.batch_size
        slot = head % self._ring_rows
        if num_envs != self._num_envs or slot + length > self._ring_rows:
            return None
        ends = self._ends(rollout)
        if ends is None:
            return None
        terminated, truncated = ends
        ended = terminated | truncated
        values = self._rows(rollout)
        observed = self._observed(rollout, head)
        kept = self._kept(rollout, ended) if np.count_nonzero(ended) else {}
        if values is None or observed is None or kept is None:
            return None
        oldest = head + length - self._ring_rows
        if oldest > 0:  # room for last observations, now that nothing can be refused any more
            for leaf in self._leaves.values():
                leaf.release(oldest)
        values["flags"] = _flags(terminated, truncated, ended, open_before)
        for name, value in values.items():
            self._write(name, slot, value)
        for name, (row, value) in observed.items():
            self._write(name, row, value)
        for path, (at, last, following) in kept.items():
            self._keep(self._leaves[path], head, at, last, following)
        return ~ended[-1]

    def _ends(self, rollout: Rollout) -> tuple[Array, Array] | None:
        """[T, B] terminated and truncated; None unless all rows are valid and episodes whole."""
        steps = rollout.steps
        valid, terminated, truncated = (
            self._array(steps.get(name), _FLAG, 2) for name in ("valid", "terminated", "truncated")
        )
        if valid is None or terminated is None or truncated is None:
            return None
        if np.count_nonzero(valid) < valid.size:
            return None
        if len(valid) > 1:
            episode = self._array(steps.get("episode_id"), _NUMBER, 2)
            ended = terminated[:-1] | truncated[:-1]
            if episode is None or ((episode[1:] != episode[:-1]) & ~ended).any():
                return None
        return terminated, truncated

    def _rows(self, rollout: Rollout) -> dict[str, Array] | None:
        """Array -> [T, B, ...] values; None if one is not as it should be."""
        steps, values = rollout.steps, {}
        wanted: dict[str, tuple[Any, LeafSpec | None]] = {"reward": (steps.get("reward"), _REWARD)}
        for path, value in flatten(steps.get("action")).items():
            wanted[entry_name("action", path)] = (value, self._spec.action.get(path))
        for name, leaf in self._spec.extras.items():
            wanted[f"extra/{name}"] = (steps.get(name), leaf)
        if len(wanted) != 1 + len(self._spec.action) + len(self._spec.extras):
            return None
        for name, (value, leaf) in wanted.items():
            array = self._array(value, leaf, 2)
            if array is None:
                return None
            values[name] = array
        return values

    def _observed(self, rollout: Rollout, head: int) -> dict[str, tuple[int, Array]] | None:
        """Array -> first row and the observations to write there; None if they do not fit.

        Row `head` is there already: it is what the buffer was given to act on last.
        """
        obs, last = flatten(rollout.steps.get("obs")), flatten(rollout.last_obs)
        if obs.keys() != self._leaves.keys() or last.keys() != obs.keys():
            return None
        found: dict[str, tuple[int, Array]] = {}
        for path, leaf in self._leaves.items():
            given = self._array(obs[path], self._spec.obs[path], 2)
            acting = self._array(last[path], self._spec.obs[path], 1)
            if given is None or acting is None or len(acting) != self._num_envs:
                return None
            rows, name = leaf.frame_rows, f"{leaf.name}/frames"
            row, following = head % rows, (head + 1) % rows
            if following + len(given) > rows:
                return None
            stored = self._arena.host(name)[row * self._num_envs : (row + 1) * self._num_envs]
            if np.count_nonzero(stored == given[0]) < stored.size:
                return None
            value = acting[None]
            if len(given) > 1:
                value = np.concatenate([given[1:], value])
            found[name] = (following, value)
        return found

    def _kept(
        self, rollout: Rollout, ended: Array
    ) -> dict[KeyPath, tuple[tuple[Array, Array], Array, Array]] | None:
        """What is kept of episodes that ended, per leaf; None if it does not fit.

        Returns:
            Key -> [n] rows and environments of the ends, [n, ...] last observations, and [n, ...]
            those of the rows that follow.
        """
        t, b = np.nonzero(ended)
        at_end = t == len(ended) - 1
        obs, final = flatten(rollout.steps.get("obs")), flatten(rollout.steps.get("final_obs"))
        last, found = flatten(rollout.last_obs), {}
        for path, leaf in self._spec.obs.items():
            finals, given = (self._array(leaves.get(path), leaf, 2) for leaves in (final, obs))
            acting = self._array(last.get(path), leaf, 1)
            if finals is None or given is None or acting is None:
                return None
            following = given[np.where(at_end, 0, t + 1), b]
            following[at_end] = acting[b[at_end]]
            found[path] = ((t, b), finals[t, b], following)
        return found

    def _keep(
        self,
        leaf: ObservationLeaf,
        head: int,
        at: tuple[Array, Array],
        last: Array,
        following: Array,
    ) -> None:
        """Store last observations, except those that are the next row's anyway (a lost life)."""
        t, b = at
        slots = leaf.own_slots(head + t + 1, b)
        pairs = zip(last, following, strict=True)
        alone = [i for i, (one, other) in enumerate(pairs) if one.tobytes() != other.tobytes()]
        if alone:
            slots[alone] = taken = leaf.take(head + t[alone], "last")
            name = f"{leaf.name}/frames"
            self._arena.host(name)[taken] = last[alone]
            self._arena.arrays[name].touch_rows(taken)
        where = (head + t) % self._ring_rows * self._num_envs + b
        self._arena.host(f"{leaf.name}/last")[where] = slots
        self._arena.arrays[f"{leaf.name}/last"].touch_rows(where)

    def _array(self, value: Any, leaf: LeafSpec | None, leading: int) -> Array | None:
        """A tensor's memory for numpy; None if it is not what a leaf should be.

        Collectors write every rollout into the same few tensors: those are looked at once.
        """
        known = self._known.get(id(value))
        if known is not None and known[0] is value and known[1] is leaf:
            return known[2]
        if not _fits(value, leaf, leading):
            return None
        array = value.numpy()
        if array.nbytes <= _SMALL:  # what is remembered stays in memory
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(value)] = (value, leaf, array)
        return array

    def _write(self, name: str, row: int, value: Array) -> None:
        start, stop = row * self._num_envs, (row + len(value)) * self._num_envs
        self._arena.host(name)[start:stop] = value.reshape(stop - start, *value.shape[2:])
        self._arena.arrays[name].touch(start, stop)


def _flags(terminated: Array, truncated: Array, ended: Array, open_before: Array) -> Array:
    """[T, B] uint8 what is stored of rows that are all valid and carry on."""
    flags = np.full(terminated.shape, VALID, np.uint8)
    if np.count_nonzero(open_before) < open_before.size:
        flags[0] += np.where(open_before, 0, FIRST).astype(np.uint8)
    if np.count_nonzero(ended):
        flags += TERMINATED * terminated.view(np.uint8) + TRUNCATED * truncated.view(np.uint8)
        flags[1:] += FIRST * ended[:-1].view(np.uint8)
    return flags


def _fits(value: Any, leaf: LeafSpec | None, leading: int) -> bool:
    """Whether a tensor in main memory has the shape and the dtype of a leaf."""
    return (
        leaf is not None
        and value is not None
        and value.device.type == "cpu"
        and tuple(value.shape[leading:]) == leaf.shape
        and value.dtype == leaf.dtype
    )

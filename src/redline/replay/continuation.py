"""The usual rollout, taken into a buffer in a few copies.

Most rollouts carry on where the last one stopped, and all of their rows are valid: nothing is to
be cut, and where an episode ended its last observation is kept. `carry_on` writes just those, and
leaves every other one, and every one that is wrong, to `Replay.add`'s general way, with the
same result to the bit. With few rows per rollout that way cost a tenth of the run.

Collectors write every rollout into the same few TensorDicts. Which of their arrays goes where is
worked out once for each, as long as none of its entries is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from redline.data import Array, NestedTensor, Rollout
from redline.replay.entries import Entries
from redline.replay.observations import ObservationLeaf
from redline.replay.spec import LeafSpec, ReplaySpec, entry_name, flatten
from redline.replay.spec import Path as KeyPath
from redline.replay.storage import Arena, HostRing
from redline.replay.windows import FIRST, TERMINATED, TRUNCATED, VALID

_FLAG, _NUMBER = LeafSpec((), torch.bool), LeafSpec((), torch.int64)
_REWARD = LeafSpec((), torch.float32)
_MOST_BYTES = 1024 * 1024  # of a rollout that is remembered: it stays in memory
_MOST_KNOWN = 8


@dataclass(frozen=True, slots=True)
class _Steps:
    """The memory of a rollout's steps, of the shapes and dtypes it should have.

    Attributes:
        steps: whose memory it is.
        batch_size: (T, B) it had.
        entries: what it held.
        valid: [T, B] bool.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        episode_id: [T, B] int64.
        rows: ring and the [T, B, ...] values that are written to it as they are.
        obs: path -> [T, B, ...].
        final_obs: likewise.
    """

    steps: TensorDict
    batch_size: tuple[int, ...]
    entries: Entries
    valid: Array
    terminated: Array
    truncated: Array
    episode_id: Array
    rows: list[tuple[HostRing, Array]]
    obs: dict[KeyPath, Array]
    final_obs: dict[KeyPath, Array]

    def are_unchanged(self) -> bool:
        """Whether this is the memory of the steps still."""
        return self.steps.batch_size == self.batch_size and self.entries.are_held()

    def are_usual(self, ended: Array) -> bool:
        """Whether all rows are valid, and each episode goes on until it ends.

        Args:
            ended: [T, B] bool, terminated or truncated.
        """
        if np.count_nonzero(self.valid) < self.valid.size:
            return False
        before, after = self.episode_id[:-1], self.episode_id[1:]
        if before.tobytes() == after.tobytes():
            return True
        return np.count_nonzero((before != after) & ~ended[:-1]) == 0


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
        self._known: dict[int, _Steps] = {}
        row_arrays = ["reward", "flags", *(entry_name("action", path) for path in spec.action)]
        row_arrays += [f"extra/{name}" for name in spec.extras]
        self._rings = {name: HostRing(arena, name, ring_rows, spec.num_envs) for name in row_arrays}
        self._frames = {
            path: HostRing(arena, f"{leaf.name}/frames", leaf.frame_rows, spec.num_envs)
            for path, leaf in leaves.items()
        }

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
        steps = self._known_or_found(rollout.steps)
        last = _arrays(rollout.last_obs, self._spec.obs, (self._num_envs,))
        if steps is None or last is None or not self._joins(steps, head):
            return None
        ended = steps.terminated | steps.truncated
        if not steps.are_usual(ended):
            return None
        oldest = head + len(ended) - self._ring_rows
        if oldest > 0:  # room for last observations, now that nothing can be refused any more
            for leaf in self._leaves.values():
                leaf.release(oldest)
        slot, any_ended = head % self._ring_rows, np.count_nonzero(ended) > 0
        for ring, values in steps.rows:
            ring.write(slot, values)
        flags = self._rings["flags"].part(slot, len(ended))
        flags[:] = VALID
        if np.count_nonzero(open_before) < open_before.size:
            flags[0] += FIRST * (~open_before).view(np.uint8)
        if any_ended:
            _mark_ends(flags, steps, ended)
        for path, leaf in self._leaves.items():
            following = self._frames[path].part((head + 1) % leaf.frame_rows, len(ended))
            following[:-1], following[-1] = steps.obs[path][1:], last[path]
            if any_ended:
                self._keep(leaf, head, ended, steps.final_obs[path], following)
        return ~ended[-1]

    def _known_or_found(self, steps: TensorDict) -> _Steps | None:
        """The memory of a rollout's steps; None if they are not as they should be."""
        known = self._known.get(id(steps))
        if known is not None and known.are_unchanged():  # it is kept alive, and its id with it
            return known
        found = self._found(steps)
        self._known.pop(id(steps), None)
        if found is not None and steps.bytes() <= _MOST_BYTES:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(steps)] = found
        return found

    def _found(self, steps: TensorDict) -> _Steps | None:
        spec = self._spec
        wanted = [
            *((name, {(): _FLAG}) for name in ("valid", "terminated", "truncated")),
            ("episode_id", {(): _NUMBER}),
            ("reward", {(): _REWARD}),
            ("action", spec.action),
            *((name, {(): leaf}) for name, leaf in spec.extras.items()),
            ("obs", spec.obs),
            ("final_obs", spec.obs),
        ]
        shape = tuple(steps.batch_size)
        if shape[1:] != (self._num_envs,):
            return None
        try:
            entries = Entries(steps, dict.fromkeys(name for name, _ in wanted))
        except KeyError:
            return None
        arrays: dict[str, dict[KeyPath, Array]] = {}
        for name, leaves in wanted:
            found = _arrays(steps[name], leaves, shape)
            if found is None:
                return None
            arrays[name] = found
        rings = self._rings
        rows = [(rings["reward"], arrays["reward"][()])]
        rows += [(rings[entry_name("action", path)], a) for path, a in arrays["action"].items()]
        rows += [(rings[f"extra/{name}"], arrays[name][()]) for name in spec.extras]
        return _Steps(
            steps=steps,
            batch_size=shape,
            entries=entries,
            valid=arrays["valid"][()],
            terminated=arrays["terminated"][()],
            truncated=arrays["truncated"][()],
            episode_id=arrays["episode_id"][()],
            rows=rows,
            obs=arrays["obs"],
            final_obs=arrays["final_obs"],
        )

    def _joins(self, steps: _Steps, head: int) -> bool:
        """Whether the rows lie in one piece, and begin with what was there to act on last.

        That observation is stored already, as row `head`.
        """
        length = len(steps.valid)
        if head % self._ring_rows + length > self._ring_rows:
            return False
        for path, leaf in self._leaves.items():
            if (head + 1) % leaf.frame_rows + length > leaf.frame_rows:
                return False
            stored = self._frames[path].rows[head % leaf.frame_rows]
            if np.count_nonzero(stored == steps.obs[path][0]) < stored.size:
                return False
        return True

    def _keep(
        self, leaf: ObservationLeaf, head: int, ended: Array, final: Array, following: Array
    ) -> None:
        """Store last observations, except those that are the next row's anyway (a lost life).

        Args:
            leaf: of which observations.
            head: absolute number of the rollout's first row.
            ended: [T, B] bool.
            final: [T, B, ...] the last observations where an episode ended.
            following: [T, B, ...] the observations that follow each row.
        """
        t, b = ended.nonzero()
        row, last = head + t, final[t, b]
        pairs = zip(last, following[t, b], strict=True)
        alone = [i for i, (one, other) in enumerate(pairs) if one.tobytes() != other.tobytes()]
        if len(alone) == len(row):
            slots = self._beside(leaf, row, last)
        else:
            slots = leaf.own_slots(row + 1, b)
            slots[alone] = self._beside(leaf, row[alone], last[alone])
        where = row % self._ring_rows * self._num_envs + b
        self._arena.host(f"{leaf.name}/last")[where] = slots
        self._arena.arrays[f"{leaf.name}/last"].touch_rows(where)

    def _beside(self, leaf: ObservationLeaf, row: Array, value: Array) -> Array:
        """[n] slots beside the ring, in which [n, ...] observations of these rows now are."""
        slots, name = leaf.take(row, "last"), f"{leaf.name}/frames"
        self._arena.host(name)[slots] = value
        self._arena.arrays[name].touch_rows(slots)
        return slots


def _mark_ends(flags: Array, steps: _Steps, ended: Array) -> None:
    """Add to the [T, B] flags which rows ended an episode, and which begin one after that."""
    flags += TERMINATED * steps.terminated.view(np.uint8)
    flags += TRUNCATED * steps.truncated.view(np.uint8)
    flags[1:] += FIRST * ended[:-1].view(np.uint8)


def _arrays(
    tree: NestedTensor, leaves: dict[KeyPath, LeafSpec], leading: tuple[int, ...]
) -> dict[KeyPath, Array] | None:
    """Path -> the memory of a tensor; None unless all are there, in main memory, and as wanted.

    Args:
        tree: nested tensors [*leading, ...].
        leaves: path -> what is wanted of each.
        leading: sizes of the leading axes.
    """
    found: dict[KeyPath, Array] = {}
    for path, value in flatten(tree).items():
        leaf = leaves.get(path)
        if leaf is None or not isinstance(value, Tensor) or not value.is_cpu:
            return None
        if value.dtype != leaf.dtype or value.shape != (*leading, *leaf.shape):
            return None
        found[path] = value.numpy()
    return found if len(found) == len(leaves) else None

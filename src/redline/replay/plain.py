"""Plain transitions: each observation stored beside its true successor.

`PairStore` holds one observation leaf that is small enough to be stored twice, in two rings
of L rows. No links are needed: what a row is bootstrapped from was written with it. Larger
observations and stacks of frames are stored once, by `frames.py`.

`PlainPath` is the quick way in and out of a buffer that holds nothing but such leaves, in main
memory. Collectors write every rollout into the same few TensorDicts, and batches are drawn into
the same one, so both keep numpy views of that memory: for a rollout of a single step, looking
its tensors up would take longer than copying them. Whatever is out of the ordinary (invalid
rows, a break between rollouts, the ring's end, wrong shapes) is left to `Replay.add`, which
writes the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from redline.data import Array, Rollout
from redline.replay.config import ReplayConfig
from redline.replay.links import (
    ENDED,
    FIRST,
    TERMINATED,
    TRUNCATED,
    VALID,
    LeafRows,
    Links,
    zero_invalid,
)
from redline.replay.spec import LeafSpec, ReplaySpec, entry_name, flatten
from redline.replay.spec import Path as KeyPath
from redline.replay.storage import Arena, ArrayPlan
from redline.replay.windows import Window

LARGEST_PAIRED_BYTES = 4096  # of one observation; beyond, the memory counts for more than links
_MOST_ROLLOUTS = 8  # rollouts whose memory is remembered
_MOST_BYTES = 1024 * 1024  # of such a rollout, because remembering keeps it alive


class PairStore:
    """One tensor of the observations and, if batches carry it, its true successor.

    Args:
        arena: holds the arrays that `plans` asked for.
        name: of the leaf, "obs" or "obs/...".
        leaf: shape and dtype.
        ring_rows: L.
        num_envs: B.
    """

    def __init__(
        self, arena: Arena, name: str, leaf: LeafSpec, ring_rows: int, num_envs: int
    ) -> None:
        self._arena, self.name, self.next_name = arena, name, f"next_{name}"
        self.shape, self.dtype, self.row_bytes = leaf.shape, leaf.dtype, leaf.nbytes
        self._ring_rows, self._num_envs = ring_rows, num_envs
        self.has_next = self.next_name in arena
        # The observation to act on next, [B, ...]: where the next rollout should begin. Bytes
        # are compared in a tenth of the time that arrays take.
        self.last_bytes = bytes(num_envs * leaf.nbytes)

    @staticmethod
    def plans(name: str, leaf: LeafSpec, rows: int, *, next_obs: bool) -> list[ArrayPlan]:
        """The arrays of a leaf for `rows` transitions."""
        names = [name, f"next_{name}"] if next_obs else [name]
        return [ArrayPlan(name=n, rows=rows, shape=leaf.shape, dtype=leaf.dtype) for n in names]

    def follows(self, head: int, first: Tensor) -> Tensor:
        """[B] bool whether [B, ...] observations are those that were to be acted on next."""
        del head
        stored = self.last_obs().to(first.device)
        same = (stored == first) | ((stored != stored) & (first != first))  # NaN is itself
        return same.reshape(self._num_envs, -1).all(1)

    def last_obs(self) -> Tensor:
        """[B, ...] the observation to act on next."""
        flat = torch.frombuffer(bytearray(self.last_bytes), dtype=self.dtype)
        return flat.view(self._num_envs, *self.shape)

    def set_last_obs(self, value: Tensor) -> None:
        """Remember [B, ...] the observation to act on next."""
        self.last_bytes = value.detach().cpu().contiguous().numpy().tobytes()

    def check(self, rows: LeafRows, links: Links) -> None:
        """Any observation will do."""

    def make_way(self, head: int, oldest: int, cut: Array, matches: Array) -> None:
        """Nothing is shared between rows."""

    def write(self, head: int, rows: LeafRows, links: Links, matches: Array) -> None:
        """Store a rollout's observations.

        Args:
            head: absolute number of its first row.
            rows: the leaf's part of it.
            links: how its rows hang together.
            matches: not needed here.
        """
        self._arena.write_ring(self.name, head, rows.obs, self._num_envs)
        if self.has_next:
            following = torch.cat([rows.obs[1:], rows.last_obs[None]])
            device = following.device
            at = (torch.from_numpy(rows.end_t).to(device), torch.from_numpy(rows.end_b).to(device))
            following[at] = rows.end_obs
            following = zero_invalid(following, links)
            self._arena.write_ring(self.next_name, head, following, self._num_envs)
        self.set_last_obs(rows.last_obs)

    def gather(
        self, index: Tensor, window: Window | None, shift: int, out: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Observations of N rows; see `FrameStore.gather`."""
        del shift
        wanted = {"obs": (self.name, index)}
        if window is not None:
            wanted["next_obs"] = (self.next_name, window.last)
        found: dict[str, Tensor] = {}
        for key, (name, rows) in wanted.items():
            stored, into = self._arena[name], out.get(key)
            if into is not None and not into.is_contiguous():
                into = None
            if into is not None:
                into = into.view(len(rows), *self.shape)
            found[key] = torch.index_select(stored, 0, rows % len(stored), out=into)
        return found

    def load_linked(
        self, frames: Tensor, last: Tensor, flags: Tensor, head: int, oldest: int
    ) -> None:
        """Take over what format 1 of a snapshot stored: observations once, with links.

        Args:
            frames: [M, elements] the ring of (L + 1) * B observations, and others behind it.
            last: [L * B, 1] places of the successors of rows that ended or were cut.
            flags: [L * B] of the rows.
            head: absolute number of the row to be written next.
            oldest: of the oldest row.
        """
        width, ring = self._num_envs, (self._ring_rows + 1) * self._num_envs
        frames = frames.view(-1, *self.shape)
        index = torch.arange(oldest * width, head * width)
        slot = index % len(flags)
        after = torch.where((flags[slot] & ENDED) != 0, last[slot, 0], (index + width) % ring)
        following = frames[after]
        following[(flags[slot] & VALID) == 0] = 0
        for name, value in ((self.name, frames[index % ring]), (self.next_name, following)):
            if name in self._arena and len(index):
                rows = value.view(-1, width, *self.shape)
                self._arena.write_ring(name, oldest, rows, width)
        self.set_last_obs(frames[(head * width + torch.arange(width)) % ring])

    def state_arrays(self) -> dict[str, Array]:
        """What is not in the arena."""
        return {"last_obs": self.last_obs().numpy()}

    def load_state_arrays(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state_arrays`."""
        if "last_obs" in state:  # else `load_linked` sets it
            self.set_last_obs(torch.from_numpy(state["last_obs"]))

    def clear(self) -> None:
        """Forget the observation to act on."""
        self.last_bytes = bytes(len(self.last_bytes))


class SameTensors:
    """Remembers the tensors of a TensorDict, and tells whether it still holds them.

    Args:
        tree: the TensorDict; it and its tensors are kept alive, so no others can be taken for
            them.
        keys: the entries that matter, with all that is below them. None: all, and that there
            are no more.

    Raises:
        KeyError: if one is missing.
    """

    def __init__(self, tree: TensorDictBase, keys: Iterable[str] | None = None) -> None:
        self._sizes: list[tuple[TensorDictBase, int]] = []
        self._entries: list[tuple[TensorDictBase, str, Any, Callable[[], int], int]] = []
        self._remember(tree, keys)

    def _remember(self, tree: TensorDictBase, keys: Iterable[str] | None) -> None:
        if keys is None:
            self._sizes.append((tree, len(tree.keys())))
        for name in list(tree.keys() if keys is None else keys):
            value = tree[name]
            is_tree = isinstance(value, TensorDictBase)
            address = int if is_tree else value.data_ptr  # int() is 0: a tree has no address
            self._entries.append((tree, name, value, address, address()))
            if is_tree:
                self._remember(value, None)

    def are_held(self) -> bool:
        """Whether each is the one it was, where it was: `share_memory_` moves its memory."""
        for tree, size in self._sizes:
            if len(_mapping(tree)) != size:
                return False
        for tree, name, value, address, was in self._entries:
            if _mapping(tree).get(name) is not value or address() != was:
                return False
        return True


def _mapping(tree: TensorDictBase) -> Mapping[str, Any]:
    """What a TensorDict holds. Its own dict, where it has one, answers 15 times as fast."""
    try:
        return tree._tensordict  # pyright: ignore[reportAttributeAccessIssue]
    except AttributeError:
        return dict(tree.items())


@dataclass(frozen=True, slots=True)
class _RolloutViews:
    """The memory of a rollout's steps, of the shapes and dtypes it should have.

    Attributes:
        batch_size: (T, B) it had.
        tensors: what it held.
        valid: [T, B] bool.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        episode_id: [T, B] int64.
        flags: ring [L, B] of the rows' flags.
        rows: (ring [L, B, ...], values [T, B, ...]) to be copied as they are.
        leaves: for each observation its store, the ring of successors (None if there is none),
            obs [T, B, ...], obs[0] and final_obs [T, B, ...].
    """

    batch_size: torch.Size
    tensors: SameTensors
    valid: Array
    terminated: Array
    truncated: Array
    episode_id: Array
    flags: Array
    rows: list[tuple[Array, Array]]
    leaves: list[tuple[PairStore, Array | None, Array, Array, Array]]

    def are_usual(self, ended: Array) -> bool:
        """Whether it carries on, all rows are valid, and each episode goes on until it ended."""
        if not _all(self.valid):
            return False
        for leaf, _, _, first, _ in self.leaves:
            if first.tobytes() != leaf.last_bytes:
                return False
        if len(ended) == 1:
            return True
        changes = self.episode_id[:-1] != self.episode_id[1:]
        return not _any(changes & ~ended[:-1])


def _all(mask: Array) -> bool:
    return b"\0" not in mask.tobytes()  # a fifth of the time of numpy's own for few elements


def _any(mask: Array) -> bool:
    return b"\1" in mask.tobytes()


@dataclass(frozen=True, slots=True)
class _BatchViews:
    """A batch of N transitions, and numpy views of its memory.

    Attributes:
        batch: it.
        tensors: what it was made of: a caller may have put others.
        index: [N] int64.
        weight: [N] float32.
        num_steps: [N] int64.
        discount: [N] float32.
        rows: (array of the buffer with one entry per transition, the batch's memory for it).
    """

    batch: TensorDict
    tensors: SameTensors
    index: Array
    weight: Array
    num_steps: Array
    discount: Array
    rows: list[tuple[Array, Array]]


class PlainPath:
    """Adds and draws plain transitions in main memory.

    Args:
        arena: the buffer's arrays.
        config: the buffer's.
        spec: the buffer's.
        leaves: its observations.
        ring_rows: L.
    """

    def __init__(
        self,
        arena: Arena,
        config: ReplayConfig,
        spec: ReplaySpec,
        leaves: dict[KeyPath, PairStore],
        ring_rows: int,
    ) -> None:
        self._arena, self._spec, self._leaves = arena, spec, leaves
        self._ring_rows = ring_rows
        self._rollouts: dict[int, _RolloutViews] = {}
        self._batch: _BatchViews | None = None
        self._overwrites = config.n_step == 1
        self._unmarked = 0  # rows from here on may not be marked as changed yet
        self._by_row = {entry_name("action", path): ("action", path) for path in spec.action}
        self._by_row |= {f"extra/{name}": (name, ()) for name in spec.extras}
        self._by_row["reward"] = ("reward", ())
        names = ["flags", *self._by_row]
        for leaf in leaves.values():
            names += [leaf.name, leaf.next_name] if leaf.has_next else [leaf.name]
        self._names = names
        self._rings = self._make_rings()
        bare = spec.obs.get(())
        self._bare_shape = None if bare is None else torch.Size((spec.num_envs, *bare.shape))
        # What one step means, by the row's flags.
        bits = np.arange(2 * FIRST)
        valid = (bits & VALID) != 0
        self._num_steps = valid.astype(np.int64)
        bootstraps = valid & ((bits & TERMINATED) == 0)
        self._discount = np.where(bootstraps, np.float32(config.gamma), np.float32(0.0))

    def add(self, rollout: Rollout, head: int, episode_open: Array) -> Array | None:
        """Write a rollout if it carries on where the last one stopped, with valid rows only.

        Args:
            rollout: [T, B].
            head: absolute number of its first row, above 0.
            episode_open: [B] bool, the episode of the row before goes on.

        Returns:
            [B] bool, whether the episode goes on after the last row. None if it is another kind
            of rollout: then nothing was written.
        """
        views, last = self._views_of(rollout.steps), self._last_obs(rollout.last_obs)
        if views is None or last is None:
            return None
        ended = views.terminated | views.truncated
        length = len(ended)
        first = self._first_row(head, length)
        if first is None or not views.are_usual(ended):
            return None
        stop = first + length
        for ring, values in views.rows:
            ring[first:stop] = values
        at = ended.nonzero() if _any(ended) else None
        flags = views.flags[first:stop]
        _write_flags(flags, views, None if at is None else ended, episode_open)
        for (leaf, ring, obs, _, final_obs), value in zip(views.leaves, last, strict=True):
            leaf.last_bytes = value.tobytes()
            if ring is None:
                continue
            ring[stop - 1] = value
            if length > 1:
                ring[first : stop - 1] = obs[1:]
            if at is not None:
                ring[first:stop][at] = final_obs[at]
        self._pass_on(head, length)
        return ~ended[-1]

    def _rows_for(self, length: int) -> dict[str, Array]:
        """Where rollouts of so many rows are written: array of the buffer -> [M, B, ...]."""
        del length
        return self._rings

    def _first_row(self, head: int, length: int) -> int | None:
        """Where row `head` is written there; None if the rollout would go beyond the end."""
        first = head % self._ring_rows
        return None if first + length > self._ring_rows else first

    def _pass_on(self, head: int, length: int) -> None:
        """What was written is in its place."""

    def mark_changed(self, head: int) -> None:
        """Record which rows were written since the last call; `add` leaves that to a save."""
        count = min(head - self._unmarked, self._ring_rows)
        start, width = (head - count) % self._ring_rows, self._spec.num_envs
        over = max(start + count - self._ring_rows, 0)
        for name in self._names:
            self._arena.arrays[name].touch(start * width, (start + count - over) * width)
            self._arena.arrays[name].touch(0, over * width)
        self._unmarked = head

    def skip_marking(self, head: int) -> None:
        """Rows below `head` are marked already: they were loaded, or there are none."""
        self._unmarked = head

    def remember(self, batch: TensorDict) -> None:
        """Note a batch drawn from this buffer, to be written over by `overwrite`."""
        if not self._overwrites:
            return
        leaves = {path: leaf.numpy() for path, leaf in flatten(batch).items()}
        places = {name: (key, *path) for name, (key, path) in self._by_row.items()}
        for path, leaf in self._leaves.items():
            places[leaf.name] = ("obs", *path)
            if leaf.has_next:
                places[leaf.next_name] = ("next_obs", *path)
        self._batch = _BatchViews(
            batch=batch,
            tensors=SameTensors(batch),
            index=leaves["index",],
            weight=leaves["weight",],
            num_steps=leaves["num_steps",],
            discount=leaves["discount",],
            rows=[(self._arena.host(name), leaves[place]) for name, place in places.items()],
        )

    def overwrite(self, out: TensorDictBase | None, index: Tensor, weight: Tensor) -> bool:
        """Write the one-step transitions that were drawn over an earlier batch.

        Args:
            out: the earlier batch.
            index: [N] int64 numbers t * B + b of the rows.
            weight: [N] float32 importance weights.

        Returns:
            Whether `out` is the batch remembered last, of this size, and holds the tensors it
            held then. Otherwise nothing was written.
        """
        made = self._batch
        if made is None or out is not made.batch or len(index) != len(made.index):
            return False
        if not made.tensors.are_held():
            return False
        made.index[:], made.weight[:] = index.numpy(), weight.numpy()
        flags = self._arena.host("flags")
        slot = made.index % len(flags)
        bits = flags.take(slot).astype(np.intp)
        # Taking by `clip` writes to `out` without a detour; every slot is inside anyway.
        self._num_steps.take(bits, out=made.num_steps, mode="clip")
        self._discount.take(bits, out=made.discount, mode="clip")
        for stored, into in made.rows:
            stored.take(slot, axis=0, out=into, mode="clip")
        return True

    def _views_of(self, steps: TensorDict) -> _RolloutViews | None:
        """Views of a rollout's memory; None if it is not as it should be."""
        known = self._rollouts.get(id(steps))  # known steps are kept alive, so the id is theirs
        if known is not None and known.batch_size == steps.batch_size and known.tensors.are_held():
            return known
        self._rollouts.pop(id(steps), None)
        views = self._make_views(steps)
        if views is not None and steps.bytes() <= _MOST_BYTES:
            if len(self._rollouts) >= _MOST_ROLLOUTS:
                self._rollouts.clear()
            self._rollouts[id(steps)] = views
        return views

    def _make_views(self, steps: TensorDict) -> _RolloutViews | None:
        spec = self._spec
        wanted: dict[str, dict[KeyPath, LeafSpec]] = {
            **{key: {(): LeafSpec((), torch.bool)} for key in ("valid", "terminated", "truncated")},
            "episode_id": {(): LeafSpec((), torch.int64)},
            "reward": {(): LeafSpec((), torch.float32)},
            "action": spec.action,
            **{name: {(): leaf} for name, leaf in spec.extras.items()},
            "obs": spec.obs,
            "final_obs": spec.obs,
        }
        try:
            tensors = SameTensors(steps, wanted)
        except KeyError:
            return None
        if steps.batch_size[1:] != (spec.num_envs,):
            return None
        arrays: dict[str, dict[KeyPath, Array]] = {}
        for name, leaves in wanted.items():
            found = _arrays(steps[name], leaves, tuple(steps.batch_size))
            if found is None:
                return None
            arrays[name] = found
        rings = self._rows_for(steps.batch_size[0])
        rows = [(rings[name], arrays[key][path]) for name, (key, path) in self._by_row.items()]
        rows += [(rings[leaf.name], arrays["obs"][p]) for p, leaf in self._leaves.items()]
        return _RolloutViews(
            batch_size=steps.batch_size,
            tensors=tensors,
            valid=arrays["valid"][()],
            terminated=arrays["terminated"][()],
            truncated=arrays["truncated"][()],
            episode_id=arrays["episode_id"][()],
            flags=rings["flags"],
            rows=rows,
            leaves=[
                (
                    leaf,
                    rings[leaf.next_name] if leaf.has_next else None,
                    arrays["obs"][path],
                    arrays["obs"][path][0],
                    arrays["final_obs"][path],
                )
                for path, leaf in self._leaves.items()
            ],
        )

    def _last_obs(self, last_obs: Any) -> list[Array] | None:
        """[B, ...] of each leaf; None if it is not as it should be."""
        leaves = self._spec.obs
        if not isinstance(last_obs, Tensor):
            found = _arrays(last_obs, leaves, (self._spec.num_envs,))
            return None if found is None else [found[path] for path in leaves]
        leaf, shape = leaves.get(()), self._bare_shape
        if leaf is None or last_obs.dtype != leaf.dtype or last_obs.shape != shape:
            return None
        return [last_obs.numpy()] if last_obs.is_cpu else None

    def _make_rings(self) -> dict[str, Array]:
        """[L, B, ...] views of the buffer's arrays."""
        stored = {name: self._arena.host(name) for name in self._names}
        rows = (self._ring_rows, self._spec.num_envs)
        return {name: array.reshape(*rows, *array.shape[1:]) for name, array in stored.items()}


def _write_flags(
    flags: Array, views: _RolloutViews, ended: Array | None, episode_open: Array
) -> None:
    flags.fill(VALID)
    if not _all(episode_open):
        flags[0] += FIRST * (~episode_open).view(np.uint8)
    if ended is not None:
        flags += TERMINATED * views.terminated.view(np.uint8)
        flags += TRUNCATED * views.truncated.view(np.uint8)
        flags[1:] += FIRST * ended[:-1].view(np.uint8)


def _arrays(
    tree: Any, leaves: Mapping[KeyPath, LeafSpec], leading: tuple[int, ...]
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
        if value.requires_grad or value.is_conj() or value.is_neg():
            return None  # numpy cannot look at these
        found[path] = value.numpy()
    return found if len(found) == len(leaves) else None

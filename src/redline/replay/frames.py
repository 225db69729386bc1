"""Observations, each frame stored once; stacks are rebuilt by one gather.

An observation holds k frames on its first axis, newest last (k = 1: the whole observation
is the one frame). Per row only the newest frame is stored, in a ring; for the older ones the
row stores the slots where they lie:

- a row that shifts its predecessor's stack takes over its slots, also across the end of a
  learner's episode without a reset (a lost life). Equality of the frames is checked.
- the first stack after a reset is described by what is in it: frames of zeros share one
  slot, repeated frames share theirs, any other frame gets a slot of its own.

So a batch is one `index_select`, and equals what an undeduplicated buffer holds. True last
observations lie in slots beside the ring, one frame each; where a life was lost without a
reset, that frame is the next row's and takes no slot. The observation to act on next is
stored as row `head`, where the next rollout will begin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from redline.data import Array
from redline.errors import ConfigError
from redline.replay.links import LeafRows, Links
from redline.replay.loaded_values import require_pool, require_slots
from redline.replay.spec import LeafSpec
from redline.replay.storage import ROWS_PER_END, Arena, ArrayPlan
from redline.replay.windows import Window

_LANES = ("last", "first")


class SlotPool:
    """Slots beside the ring, handed out per row and given back when that row is gone.

    The last ones freed are used first, so that no more memory is touched than is needed at
    once.

    The slots are first .. first + capacity - 1; more are made when too few are free.

    Two lanes take from it, each in the order of rows: "last" for last observations of
    episodes, "first" for the older frames of first stacks, which are needed for longer.

    Args:
        first: number of the first slot.
        capacity: how many there are to begin with.
    """

    def __init__(self, first: int, capacity: int) -> None:
        self.first = first
        self._initial_capacity = capacity
        self.clear()

    def clear(self) -> None:
        """Free everything; the capacity is that of the beginning."""
        self.capacity = self._initial_capacity
        self._free = np.arange(self.first + self.capacity - 1, self.first - 1, -1)
        self._taken: dict[str, deque[tuple[Array, Array]]] = {lane: deque() for lane in _LANES}

    @property
    def num_taken(self) -> int:
        """Slots in use."""
        return self.capacity - len(self._free)

    def release_before(self, row: int, lane: str) -> None:
        """Free the slots of rows below `row` in a lane."""
        taken = self._taken[lane]
        freed: list[Array] = []
        while taken and taken[0][0][0] < row:
            rows, slots = taken.popleft()
            count = int(np.searchsorted(rows, row))
            freed.append(slots[:count])
            if count < len(rows):
                taken.appendleft((rows[count:], slots[count:]))
        if freed:
            self._free = np.concatenate([self._free, *freed])

    def missing(self, count: int) -> int:
        """How many more slots are needed before `count` can be taken."""
        return max(count - len(self._free), 0)

    def extend(self, count: int) -> None:
        """Add `count` slots."""
        stop = self.first + self.capacity
        self._free = np.concatenate([np.arange(stop + count - 1, stop - 1, -1), self._free])
        self.capacity += count

    def take(self, rows: Array, lane: str) -> Array:
        """One slot for each entry of `rows`.

        Args:
            rows: [n] int64 ascending; none below those of earlier calls for this lane.
            lane: "last" or "first".

        Returns:
            [n] int64 slots.
        """
        split = len(self._free) - len(rows)
        slots = self._free[split:][::-1].copy()
        self._free = self._free[:split]
        if len(rows):
            self._taken[lane].append((rows.astype(np.int64), slots))
        return slots

    def state_arrays(self) -> dict[str, Array]:
        """All there is to know, as arrays."""
        empty = np.zeros(0, dtype=np.int64)
        state = {"free": self._free}
        for lane in _LANES:
            taken = self._taken[lane]
            state[f"{lane}_rows"] = np.concatenate([empty, *(rows for rows, _ in taken)])
            state[f"{lane}_slots"] = np.concatenate([empty, *(slots for _, slots in taken)])
        return state

    def load_state_arrays(self, state: dict[str, Array]) -> None:
        """The inverse of `state_arrays`."""
        self._free = state["free"]
        self.capacity = len(self._free)
        for lane in _LANES:
            rows, slots = state[f"{lane}_rows"], state[f"{lane}_slots"]
            self._taken[lane] = deque([(rows, slots)] if len(rows) else [])
            self.capacity += len(rows)


class FrameStore:
    """One tensor of the observations, stored frame by frame.

    Args:
        arena: holds the arrays that `plans` asked for.
        name: dotted name of the leaf.
        frames: k.
        ring_rows: L.
        num_envs: B.
    """

    def __init__(self, arena: Arena, name: str, frames: int, ring_rows: int, num_envs: int) -> None:
        self.arena, self.name = arena, name
        self.frames, self.ring_rows, self.num_envs = frames, ring_rows, num_envs
        self.frame_rows = ring_rows + frames
        self.zero_slot = self.frame_rows * num_envs
        reserve = arena.arrays[f"{name}/frames"].plan.rows - self.zero_slot - 1
        self.pool = SlotPool(self.zero_slot + 1, reserve)

    @staticmethod
    def plans(
        name: str, leaf: LeafSpec, frames: int, ring_rows: int, num_envs: int
    ) -> list[ArrayPlan]:
        """The arrays of a leaf.

        The ring of frames has k - 1 rows more than the ring of rows, which the oldest row's
        stack reaches back to, and one for the observation to act on next. Beside it lie a
        frame of zeros and the pool, which starts with one slot per 64 rows and can grow to
        the worst case: a slot per row for the ends of episodes, and others for first stacks of
        frames that all differ.

        Raises:
            ConfigError: if the observation is not a stack of that many frames.
        """
        if frames > 1 and (not leaf.shape or leaf.shape[0] % frames):
            raise ConfigError(
                f"frame_stack={frames} does not divide the first axis of the observation "
                f"{name!r} of shape {leaf.shape}. Use a divisor of it, or name the stacked "
                "entries of a Dict observation in stacked_keys."
            )
        total = ring_rows * num_envs
        ring = (ring_rows + frames) * num_envs + 1
        limit = ring + 2 * frames * (total + frames * num_envs)
        slot_dtype = torch.int32 if limit < 2**31 else torch.int64
        frame = (leaf.shape[0] // frames, *leaf.shape[1:]) if frames > 1 else leaf.shape
        plans = [
            ArrayPlan(
                name=f"{name}/frames",
                rows=ring + max(total // ROWS_PER_END, frames * num_envs),
                shape=frame,
                dtype=leaf.dtype,
                max_rows=limit,
                short_rows=ring + total + frames * num_envs,
            ),
            ArrayPlan(name=f"{name}/last", rows=total, shape=(), dtype=slot_dtype),
        ]
        if frames > 1:
            older = (ring_rows + 1) * num_envs
            plans.append(
                ArrayPlan(name=f"{name}/older", rows=older, shape=(frames - 1,), dtype=slot_dtype)
            )
        return plans

    def check(self, rows: LeafRows, links: Links) -> None:
        """Find which rows shift their predecessor's stack, for `write`.

        Raises:
            ConfigError: if a row in the midst of an episode, or a last observation, does not.
        """
        if self.frames == 1:
            return
        obs, last_obs = self._stacks(rows.obs, 2), self._stacks(rows.last_obs, 1)
        # [T, B] bool: row t + 1 (for T - 1: last_obs) shifts row t's stack.
        shifts = np.empty(obs.shape[:2], dtype=bool)
        shifts[:-1] = rows_equal(obs[:-1, :, 1:], obs[1:, :, :-1], 2)
        shifts[-1] = rows_equal(obs[-1, :, 1:], last_obs[:, :-1], 1)
        self._require(links.goes_on & ~shifts)
        t, b = rows.end_t, rows.end_b
        if len(t):
            at = (torch.from_numpy(t).to(obs.device), torch.from_numpy(b).to(obs.device))
            wrong = np.zeros_like(shifts)
            wrong[t, b] = ~rows_equal(obs[at][:, 1:], self._stacks(rows.end_obs, 1)[:, :-1], 1)
            self._require(wrong)
        self._shifts = shifts

    def follows(self, head: int, first: Tensor) -> Tensor:
        """[B] bool whether [B, ...] observations are those that were to be acted on next."""
        here = head * self.num_envs + torch.arange(self.num_envs, device=self.arena.device)
        stored = self.fetch(self.slots(here))
        return (stored == first.to(stored.device)).reshape(self.num_envs, -1).all(1)

    def make_way(self, head: int, oldest: int, cut: Array, matches: Array) -> None:
        """Free what left the ring, and save the observation to act on where it is still needed.

        Row `head` is about to be written. Where the chain is cut before it, row `head` - 1 is
        bootstrapped from the observation it was left with; where a life was lost, its true
        successor is that very observation. Then it gets a slot of its own.

        Args:
            head: absolute number of the row to be written next.
            oldest: absolute number of the oldest row that will be left in the ring.
            cut: [B] bool, the chain is cut before `head`.
            matches: [B] bool, row `head` will be what is stored there already.
        """
        self.pool.release_before(oldest, "last")
        if self.frames > 1:
            self.pool.release_before(oldest - self.frames + 1, "first")
        if head == 0 or matches.all():
            return
        env = np.arange(self.num_envs)
        last = self.arena[f"{self.name}/last"]
        at = torch.from_numpy((head - 1) % self.ring_rows * self.num_envs + env)
        borrowed = last[at.to(last.device)].cpu().numpy() == self.own_slots(np.array(head), env)
        envs = np.flatnonzero(cut | (borrowed & ~matches))
        if len(envs) == 0:
            return
        slots = self.take(np.full(len(envs), head - 1), "last")
        frames = self.arena.arrays[f"{self.name}/frames"]
        frames.touch_rows(slots)
        index = torch.from_numpy(slots).to(self.arena.device)
        frames.tensor[index] = frames.tensor[self._own(head, envs)]
        self._point_last(np.full(len(envs), head - 1), envs, slots)

    def write(self, head: int, rows: LeafRows, links: Links, matches: Array) -> None:
        """Store a rollout's observations.

        Args:
            head: absolute number of its first row.
            rows: as given to `check` just before.
            links: how its rows hang together.
            matches: [B] bool, its first row is valid and equals the stored row `head`.
        """
        length = rows.obs.shape[0]
        if self.frames > 1:
            self._write_older(head, rows, links, matches)
        newest, newest_last = self._newest(rows.obs, 2), self._newest(rows.last_obs, 1)
        name = f"{self.name}/frames"
        self.arena.write_ring(name, head, newest, self.num_envs, self.frame_rows)
        self.arena.write_ring(
            name, head + length, newest_last[None], self.num_envs, self.frame_rows
        )
        self._write_ends(head, rows)

    def _write_ends(self, head: int, rows: LeafRows) -> None:
        """Store true successors, except those that are the next row's observation anyway."""
        t, b = rows.end_t, rows.end_b
        if len(t) == 0:
            return
        length = rows.obs.shape[0]
        device = rows.obs.device
        at_t, at_b = torch.from_numpy(t).to(device), torch.from_numpy(b).to(device)
        following = rows.obs[(at_t + 1).clamp(max=length - 1), at_b]
        at_end = (at_t == length - 1).view(-1, *([1] * (following.dim() - 1)))
        following = torch.where(at_end, rows.last_obs[at_b], following)
        ends = self._newest(rows.end_obs, 1)
        borrowed = rows_equal(ends, self._newest(following, 1), 1)

        slots = self.own_slots(head + t + 1, b)
        alone = np.flatnonzero(~borrowed)
        slots[alone] = self.take(head + t[alone], "last")
        frames = self.arena.arrays[f"{self.name}/frames"]
        frames.touch_rows(slots[alone])
        index = torch.from_numpy(slots[alone]).to(self.arena.device)
        value = ends[torch.from_numpy(alone).to(device)]
        frames.tensor[index] = value.to(self.arena.device)
        self._point_last(head + t, b, slots)

    def state_arrays(self) -> dict[str, Array]:
        """What is not in the arena."""
        return self.pool.state_arrays()

    def load_state_arrays(self, state: dict[str, Array]) -> None:
        """The inverse of `state_arrays`."""
        self.pool.load_state_arrays(state)

    def require_state(self, state: dict[str, Array], head: int, where: Path) -> None:
        """Refuse places of frames, just loaded, that there are not.

        Args:
            state: as from `state_arrays`.
            head: absolute number of the row to be written next.
            where: the snapshot's directory.

        Raises:
            CorruptCheckpointError: naming the array.
        """
        rows = self.arena.arrays[f"{self.name}/frames"].rows
        for name in (f"{self.name}/last", f"{self.name}/older"):
            if name in self.arena:
                require_slots(name, self.arena[name].cpu().numpy(), rows, where)
        require_pool(self.name, state, self.pool.first, rows, head, where)

    def clear(self) -> None:
        """Free all slots beside the ring."""
        self.pool.clear()

    def slots(self, index: Tensor) -> Tensor:
        """Where the frames of N rows lie.

        Args:
            index: [N] int64 numbers t * B + b of rows in the ring; t may be `head`.

        Returns:
            [N] int64 slots, or [N, k] for stacks.
        """
        newest = index % self.zero_slot
        if self.frames == 1:
            return newest
        older = self.arena[f"{self.name}/older"]
        older = older.index_select(0, index % older.shape[0])
        return torch.cat([older, newest[:, None]], dim=1)

    def successor_slots(self, last: Tensor, ended: Tensor) -> Tensor:
        """Where the frames of the successors of N rows lie.

        Args:
            last: [N] int64 numbers of the rows.
            ended: [N] bool, the successor is a true last observation, beside the ring.

        Returns:
            As `slots`.
        """
        ends = self.arena[f"{self.name}/last"]
        ends = ends.index_select(0, last % ends.shape[0])
        following = self.slots(last + self.num_envs)
        if self.frames == 1:
            return torch.where(ended, ends, following)
        shifted = torch.cat([self.slots(last)[:, 1:], ends[:, None]], dim=1)
        return torch.where(ended[:, None], shifted, following)

    @property
    def dtype(self) -> torch.dtype:
        """Element type, as collected."""
        return self.arena[f"{self.name}/frames"].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one observation."""
        frame = self.arena[f"{self.name}/frames"].shape[1:]
        return tuple(frame) if self.frames == 1 else (self.frames * frame[0], *frame[1:])

    def gather(
        self, index: Tensor, window: Window | None, shift: int, out: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Observations of N rows.

        Args:
            index: [N] int64 numbers of the rows.
            window: their n-step windows; None leaves the successors out.
            shift: frames that most successors are later by. If all are, the frames that both
                stacks share are gathered once. 0 does not try.
            out: "obs" and "next_obs" of an earlier batch, to write over; empty takes new memory.

        Returns:
            "obs" and, with a window, "next_obs", each [N, ...].
        """
        slots = {"obs": self.slots(index)}
        if window is not None:
            following = self.successor_slots(window.last, window.ended)
            valid = (window.num_steps > 0).view(-1, *([1] * (following.dim() - 1)))
            slots["next_obs"] = torch.where(valid, following, self.zero_slot)
        if 0 < shift < self.frames and len(slots) == 2 and index.device.type == "cpu":
            obs, following = slots["obs"], slots["next_obs"]
            if torch.equal(obs[:, shift:], following[:, :-shift]):
                run = torch.cat([obs, following[:, -shift:]], dim=1)
                return self._fetch_overlapping(run, shift, out.get("obs"))
        out = {} if _overlap(out) else out
        return {key: self.fetch(where, out.get(key)) for key, where in slots.items()}

    def fetch(self, slots: Tensor, out: Tensor | None = None) -> Tensor:
        """Observations made of the frames at these slots.

        Args:
            slots: [N] or [N, k].
            out: N observations to write over if they lie in one piece; None takes new memory.

        Returns:
            [N, ...].
        """
        frames = self.arena[f"{self.name}/frames"]
        if out is not None and out.is_contiguous():
            out = out.view(slots.numel(), *frames.shape[1:])
            torch.index_select(frames, 0, slots.reshape(-1), out=out)
            return out.view(slots.shape[0], *self.shape)
        return frames.index_select(0, slots.reshape(-1)).view(slots.shape[0], *self.shape)

    def _fetch_overlapping(
        self, slots: Tensor, shift: int, out: Tensor | None
    ) -> dict[str, Tensor]:
        """Stacks and those `shift` frames later, as views of one gathered run of frames.

        Args:
            slots: [N, k + shift] of the frames, oldest first.
            shift: frames from one stack to the other.
            out: the "obs" of an earlier result of this shape, to write over; None, or
                anything else, takes new memory.

        Returns:
            "obs" and "next_obs", each [N, ...] and not contiguous.
        """
        frames = self.arena[f"{self.name}/frames"]
        shape = (slots.numel(), *frames.shape[1:])
        run = None if out is None else out._base
        if run is None or run.shape != shape or run.dtype != frames.dtype:
            run = torch.empty(shape, dtype=frames.dtype, device=frames.device)
        torch.index_select(frames, 0, slots.reshape(-1), out=run)
        count = slots.shape[1]
        channels = frames.shape[1]
        whole = run.view(slots.shape[0], count * channels, *frames.shape[2:])
        return {
            "obs": whole[:, : self.frames * channels],
            "next_obs": whole[:, shift * channels :],
        }

    def _write_older(self, head: int, rows: LeafRows, links: Links, matches: Array) -> None:
        """Where the older frames of rows 0 .. T lie, T being the observation to act on."""
        length, num_envs, k = *links.valid.shape, self.frames
        real = np.concatenate([links.valid, np.ones((1, num_envs), dtype=bool)])
        base = np.ones((length + 1, num_envs), dtype=bool)
        base[1:] = ~(links.valid & real[1:] & self._shifts)

        older = np.full((length + 1, num_envs, k - 1), self.zero_slot, dtype=np.int64)
        fresh = base & real
        fresh[0] &= ~matches
        self._describe(head, rows, fresh, older)
        env = np.flatnonzero(matches)
        at_head = torch.from_numpy(env).to(self.arena.device)
        stored = self.slots(head * num_envs + at_head)
        older[0, env] = stored[:, :-1].cpu().numpy()

        # Slot j of row t shows the frame of d = k - 1 - j rows ago: that row's own, unless
        # the chain began `age` < d rows ago; then what was slot j + age where it began.
        t = np.arange(length + 1)[:, None]
        begin = np.maximum.accumulate(np.where(base, t, 0), axis=0)
        age = (t - begin)[..., None]
        j = np.arange(k - 1)
        distance = k - 1 - j
        began = older[begin, np.arange(num_envs)]
        inherited = np.take_along_axis(began, np.minimum(j + age, k - 2), axis=2)
        own = self.own_slots(head + t[..., None] - distance, np.arange(num_envs)[:, None])
        older = np.where(distance <= age, own, inherited)
        value = torch.from_numpy(older)
        self.arena.write_ring(f"{self.name}/older", head, value[:-1], num_envs)
        self.arena.write_ring(f"{self.name}/older", head + length, value[-1:], num_envs)

    def _describe(self, head: int, rows: LeafRows, fresh: Array, older: Array) -> None:
        """Fill `older` for the rows that begin a chain, from what is in their stacks."""
        t, b = np.nonzero(fresh)
        if len(t) == 0:
            return
        length = rows.obs.shape[0]
        device = rows.obs.device
        index_t, index_b = torch.from_numpy(t).to(device), torch.from_numpy(b).to(device)
        whole = rows.obs[index_t.clamp(max=length - 1), index_b]
        acting = torch.from_numpy(np.flatnonzero(t == length)).to(device)
        whole[acting] = rows.last_obs[index_b[acting]]
        stacks = self._stacks(whole, 1)

        zero = (stacks[:, :-1] == 0).flatten(2).all(2).cpu().numpy()
        same = (stacks[:, :-1] == stacks[:, 1:]).flatten(2).all(2).cpu().numpy()
        entry, slot = np.nonzero(~zero & ~same)
        taken = self.take(head + t[entry], "first")
        if len(taken):
            frames = self.arena.arrays[f"{self.name}/frames"]
            frames.touch_rows(taken)
            value = stacks[torch.from_numpy(entry), torch.from_numpy(slot)]
            frames.tensor[torch.from_numpy(taken).to(self.arena.device)] = value.to(
                self.arena.device
            )
        own_frame = np.full(zero.shape, -1, dtype=np.int64)
        own_frame[entry, slot] = taken
        following = self.own_slots(head + t, b)
        for j in range(self.frames - 2, -1, -1):
            following = np.where(same[:, j], following, own_frame[:, j])
            following = np.where(zero[:, j], self.zero_slot, following)
            older[t, b, j] = following

    def take(self, rows: Array, lane: str) -> Array:
        """[n] slots beside the ring, one for each of `rows` [n]; see `SlotPool.take`."""
        missing = self.pool.missing(len(rows))
        if missing:
            more = max(missing, self.pool.capacity // 2)
            array = self.arena.arrays[f"{self.name}/frames"]
            plan, present = array.plan, array.rows
            limit = plan.short_rows if present + missing <= plan.short_rows else plan.max_rows
            more = min(more, max(limit - present, missing))
            array.grow(array.rows + more)
            self.pool.extend(more)
        return self.pool.take(rows, lane)

    def _point_last(self, row: Array, env: Array, slots: Array) -> None:
        array = self.arena.arrays[f"{self.name}/last"]
        index = (row % self.ring_rows) * self.num_envs + env
        array.touch_rows(index)
        where = torch.from_numpy(index).to(self.arena.device)
        array.tensor[where] = torch.from_numpy(slots).to(self.arena.device, array.tensor.dtype)

    def _require(self, wrong: Array) -> None:
        if wrong.any():
            t, b = (int(i[0]) for i in np.nonzero(wrong))
            raise ConfigError(
                f"frame_stack={self.frames}: after row t={t} of environment {b} the observation "
                f"{self.name!r} does not shift by one frame within the episode. Stacks need "
                "their frames on the first axis, newest last; otherwise use frame_stack=1 (a run: "
                "leave replay_frame_stack out)."
            )

    def own_slots(self, row: Array, env: Array) -> Array:
        """Where the newest frames of these rows lie in the ring."""
        return (row % self.frame_rows) * self.num_envs + env

    def _own(self, row: int, env: Array) -> Tensor:
        return torch.from_numpy(self.own_slots(np.asarray(row), env)).to(self.arena.device)

    def _stacks(self, obs: Tensor, leading: int) -> Tensor:
        """[..., k, frame] view of [..., k * c, ...]."""
        shape = obs.shape
        return obs.reshape(
            *shape[:leading], self.frames, shape[leading] // self.frames, *shape[leading + 1 :]
        )

    def _newest(self, obs: Tensor, leading: int) -> Tensor:
        if self.frames == 1:
            return obs
        return obs.narrow(
            leading,
            obs.shape[leading] - obs.shape[leading] // self.frames,
            obs.shape[leading] // self.frames,
        )


def rows_equal(a: Tensor, b: Tensor, leading: int) -> Array:
    """Whether the bits of two tensors agree, for each entry of the leading axes.

    Args:
        a: [leading axes, ...]; the trailing axes of one frame lie together.
        b: the same shape.
        leading: number of axes to keep.

    Returns:
        [leading axes] bool on the host.
    """
    if a.dim() == leading:
        return (a == b).cpu().numpy()
    if a.device.type != "cpu":
        return (a == b).flatten(leading).all(leading).cpu().numpy()
    # Whole words at a time: eight times less to compare and to reduce.
    first, second = (_words(x).numpy() for x in (a, b))
    return (first == second).all(axis=tuple(range(leading, first.ndim)))


def _words(value: Tensor) -> Tensor:
    """The same memory in the widest integers that divide the last axis."""
    for dtype in (torch.int64, torch.int32, torch.int16):
        ratio, rest = divmod(dtype.itemsize, value.element_size())
        if rest == 0 and value.shape[-1] % max(ratio, 1) == 0 and value.stride(-1) == 1:
            strides = value.stride()[:-1]
            if all(s % ratio == 0 for s in strides) and value.storage_offset() % ratio == 0:
                return value.view(dtype)
    return value


def _overlap(out: Mapping[str, Tensor]) -> bool:
    """Whether the stacks of an earlier batch share frames: to write one would alter the other.

    Those of more than one row do not lie in one piece then. A single row's do.
    """
    if len(out) < 2:
        return False
    first, second = sorted(out.values(), key=Tensor.data_ptr)
    return first.data_ptr() + first.nbytes > second.data_ptr()

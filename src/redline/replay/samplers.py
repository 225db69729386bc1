"""Which units a batch is made of. A unit is a transition, or a sequence by where it starts.

Units are numbered for ever: unit u lies in unit row u // B and environment u % B. So a
number that comes back with a priority says by itself whether its unit is still there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from redline.data import Array
from redline.errors import ConfigError
from redline.replay.loaded_values import require_priorities, require_queue, require_units
from redline.replay.priorities import UnsoundPriorityError
from redline.replay.snapshot_form import refuse
from redline.replay.storage import Arena, ArrayPlan
from redline.replay.tree import PriorityTree

_UNSOUND = (
    "a priority is NaN, infinite or negative. Priorities are absolute TD errors; "
    "look for a loss that diverged."
)


def mixed_priority(priority: Tensor, valid: Tensor, eta: float) -> Tensor:
    """Priority of a sequence from those of its rows.

    Kapturowski et al. 2019 (R2D2), section 2.3: eta * max + (1 - eta) * mean.

    Args:
        priority: [T, N] absolute n-step TD errors.
        valid: [T, N] bool, rows that count.
        eta: in [0, 1].

    Returns:
        [N]; 0 where no row counts.
    """
    kept = torch.where(valid, priority, torch.zeros_like(priority))
    mean = kept.sum(0) / valid.sum(0).clamp(min=1)
    return eta * kept.amax(0) + (1.0 - eta) * mean


class _UnitRows:
    """How many units of each unit row may be drawn, on the host.

    Args:
        rows: unit rows the ring holds at most.
    """

    def __init__(self, rows: int) -> None:
        self._per_row = np.zeros(rows, dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        self._per_row[:] = 0
        self.oldest = self.stop = self.count = 0

    def evict(self, oldest: int) -> tuple[range, int]:
        """Unit rows that go, and how many units with them."""
        gone = range(self.oldest, min(oldest, self.stop))
        units = 0
        for part in self._parts(gone.start, len(gone)):
            units += sum(part.tolist())  # few rows: a reduction takes four times as long
            part.fill(0)
        self.oldest = max(self.oldest, oldest)
        self.count -= units
        return gone, units

    def append(self, first: int, eligible: Array) -> None:
        units, begin = np.count_nonzero(eligible, axis=1), 0
        for part in self._parts(first, len(eligible)):
            part[:] = units[begin : begin + len(part)]
            begin += len(part)
        self.count += int(np.add.reduce(units))
        self.stop = max(self.stop, first + len(eligible))

    def fill(self, num_envs: int) -> None:
        """Every unit of the rows from the oldest on may be drawn."""
        self._per_row[:] = 0
        for part in self._parts(self.oldest, self.stop - self.oldest):
            part.fill(num_envs)

    def _parts(self, first: int, num_rows: int) -> list[Array]:
        """Consecutive unit rows, in two pieces where they reach around the ring's end."""
        if num_rows <= 0:
            return []
        rows = len(self._per_row)
        slot = first % rows
        whole = self._per_row[slot : slot + num_rows]
        over = slot + num_rows - rows
        return [whole] if over <= 0 else [whole, self._per_row[:over]]

    def state_arrays(self) -> dict[str, Array]:
        span = np.array([self.oldest, self.stop, self.count], dtype=np.int64)
        return {"per_row": self._per_row, "span": span}

    def load_state_arrays(self, state: dict[str, Array]) -> None:
        self._per_row[:] = state.get("per_row", 0)
        self.oldest, self.stop, self.count = (int(value) for value in state["span"])


class UniformSampler:
    """Every eligible unit with equal probability.

    In main memory, as long as every unit in the ring may be drawn, a unit is found by counting
    from the oldest. Otherwise, and always on a device, a queue of unit numbers is looked up.

    Args:
        arena: holds the arrays that `plans` asked for.
        unit_rows: unit rows the ring holds at most.
        num_envs: B.
    """

    def __init__(self, arena: Arena, unit_rows: int, num_envs: int) -> None:
        self._arena, self._num_envs = arena, num_envs
        self._size = unit_rows * num_envs
        self._rows = _UnitRows(unit_rows)
        self._begin = 0  # place of the queue's first unit
        self._on_host = arena.device.type == "cpu"
        self._is_whole = self._on_host  # every unit in the ring may be drawn: no queue
        self._span = torch.zeros(2, dtype=torch.int64, device=arena.device)

    @staticmethod
    def plans(unit_rows: int, num_envs: int) -> list[ArrayPlan]:
        """The arrays of a uniform sampler."""
        return [ArrayPlan(name="units", rows=unit_rows * num_envs, shape=(), dtype=torch.int64)]

    @property
    def count(self) -> int:
        """Units to draw from."""
        return self._rows.count

    def advance(self, oldest: int, first: int, eligible: Array, priority: Tensor | None) -> None:
        """Forget old units and take in new ones.

        Args:
            oldest: units in unit rows below this are gone.
            first: unit row of the first new ones.
            eligible: [R, B] bool on the host, which of the new ones may be drawn.
            priority: plays no part here.
        """
        if self._is_whole:
            if np.count_nonzero(eligible) == eligible.size:
                self.advance_whole(oldest, first, len(eligible))
                return
            self._make_queue()
        _, gone = self._rows.evict(oldest)
        self._begin += gone
        row, env = np.nonzero(eligible)
        if len(row):
            units = (first + row) * self._num_envs + env
            place = self._begin + self.count
            self._arena.write_ring("units", place, torch.from_numpy(units)[:, None], 1)
        self._rows.append(first, eligible)
        self._choose_way()

    def advance_whole(self, oldest: int, first: int, num_rows: int) -> None:
        """`advance` by `num_rows` unit rows of which every unit may be drawn."""
        if not self._is_whole:
            self.advance(oldest, first, np.ones((num_rows, self._num_envs), dtype=bool), None)
            return
        rows = self._rows
        rows.stop = max(rows.stop, first + num_rows)
        rows.oldest = max(rows.oldest, oldest)
        rows.count = (rows.stop - rows.oldest) * self._num_envs

    def draw(self, uniform: Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor]:
        """Units and their importance weights.

        Args:
            uniform: [N] float64 random numbers in [0, 1).
            beta: plays no part here.

        Returns:
            [N] int64 units, and [N] float32 weights, all 1.
        """
        if not self._on_host:
            offset = (uniform * self._span[1]).long()
            units = self._arena["units"][(self._span[0] + offset) % self._size]
            return units, torch.ones(len(units), device=units.device)
        place = (uniform.numpy() * self.count).astype(np.int64)
        if self._is_whole:
            place += self._rows.oldest * self._num_envs
        else:
            place += self._begin % self._size
            # Taking by `wrap` subtracts the size where need be: once at most.
            place = self._arena.host("units").take(place, mode="wrap")
        return torch.from_numpy(place), torch.ones(len(place))

    def state_arrays(self) -> dict[str, Array]:
        """What is not in the arena."""
        state = self._rows.state_arrays()
        if self._is_whole:
            del state["per_row"]
        return {**state, "begin": np.array([self._begin], dtype=np.int64)}

    def load_state_arrays(self, state: dict[str, Array]) -> None:
        """The inverse of `state_arrays`; format 1 saved the queue in any case."""
        self._rows.load_state_arrays(state)
        self._begin = int(state["begin"][0])
        self._is_whole = "per_row" not in state
        if self._is_whole and not self._on_host:
            self._make_queue()
        self._choose_way()

    def require_state(
        self, state: dict[str, Array], eligible: Array, first: int, where: Path
    ) -> None:
        """Refuse a state, not yet taken over, that does not go with the rows that were loaded.

        Args:
            state: as from `state_arrays`.
            eligible: [R, B] bool of the unit rows from `first` on, which may be drawn.
            first: oldest unit row.
            where: the snapshot's directory.

        Raises:
            CorruptCheckpointError: naming the array.
        """
        rows = self._size // self._num_envs
        require_units(state["span"], state.get("per_row"), eligible, first, rows, where)
        begin = int(state["begin"][0])
        if "per_row" in state:
            require_queue(self._arena["units"].cpu().numpy(), begin, eligible, first, where)
        elif begin:
            refuse(where, f"sampler/begin is {begin}, and there is no queue to begin")

    def clear(self) -> None:
        """Forget all units."""
        self._rows.clear()
        self._begin = 0
        self._is_whole = self._on_host
        self._choose_way()

    def _make_queue(self) -> None:
        """From counting to a queue."""
        rows, width = self._rows, self._num_envs
        self._is_whole, self._begin = False, 0
        units = torch.arange(rows.oldest * width, rows.stop * width)
        self._arena.write_ring("units", 0, units[:, None], 1)
        rows.fill(width)

    def _choose_way(self) -> None:
        """Count again once every unit in the ring may be drawn; tell the device what changed."""
        if not self._on_host:
            span = torch.tensor([self._begin, self.count])
            self._arena.run("span", self._span.copy_, span)
        elif self.count == (self._rows.stop - self._rows.oldest) * self._num_envs:
            self._is_whole, self._begin = True, 0


class PrioritizedSampler:
    """Units in proportion to (priority + epsilon)^alpha, stratified.

    Schaul et al. 2016, arXiv:1511.05952, section 3.3 and appendix B.2.1. The total is cut
    into N equal parts and one unit drawn from each. Weights are divided by the largest of the
    batch, w_i = (min_j p_j / p_i)^beta over the units j drawn with i. Dividing by the largest
    of the whole buffer would let one tiny priority shrink every update.

    Args:
        arena: holds the arrays that `plans` asked for.
        unit_rows: unit rows the ring holds at most.
        num_envs: B.
        alpha: exponent, applied to initial priorities too.
        epsilon: added before the exponent.

    Attributes:
        replaces_unsound: whether the highest priority so far takes the place of one that is NaN
            or infinite; else that is refused.
    """

    def __init__(
        self, arena: Arena, unit_rows: int, num_envs: int, alpha: float, epsilon: float
    ) -> None:
        self._arena, self._num_envs, self._unit_rows = arena, num_envs, unit_rows
        self._size = unit_rows * num_envs
        self._alpha, self._epsilon = alpha, epsilon
        self.replaces_unsound = False
        self._rows = _UnitRows(unit_rows)
        self.tree = PriorityTree(arena, "priority", self._size)
        self._span = torch.zeros(2, dtype=torch.int64, device=arena.device)
        self._strata: dict[int, Tensor] = {}  # N -> 0 to N - 1; kept, for graphs read from there
        self._refused = torch.zeros((), dtype=torch.bool, device=arena.device)
        self.clear()

    @staticmethod
    def plans(unit_rows: int, num_envs: int) -> list[ArrayPlan]:
        """The arrays of a prioritized sampler."""
        size = unit_rows * num_envs
        return [
            *PriorityTree.plans("priority", size),
            ArrayPlan(
                name="priority/highest", rows=1, shape=(), dtype=torch.float64, volatile=True
            ),
        ]

    @property
    def count(self) -> int:
        """Units to draw from."""
        return self._rows.count

    @property
    def highest(self) -> Tensor:
        """[1] float64 the highest priority ever given, before epsilon and alpha; 1 at first."""
        return self._arena["priority/highest"]

    def advance(self, oldest: int, first: int, eligible: Array, priority: Tensor | None) -> None:
        """Forget old units and take in new ones; see `UniformSampler.advance`.

        Args:
            oldest: as there.
            first: as there.
            eligible: as there.
            priority: [R, B] of the new ones; NaN, or None for all, means as high as any.

        Raises:
            ConfigError: if a priority is negative.
            UnsoundPriorityError: if one is infinite.
        """
        mask = torch.from_numpy(eligible)
        given = torch.full(eligible.shape, torch.nan, dtype=torch.float64)
        if priority is not None:
            # Where writes are gathered, it is looked at where it lies.
            place = priority.device if self._arena.gathers else self._arena.device
            given = priority.to(place).to(torch.float64)  # some devices have no doubles
            known = torch.where(mask.to(given.device) & ~given.isnan(), given, 0.0)
            if known.numel():
                self._take_note(known)
                self.require_sound()
        evicted, _ = self._rows.evict(oldest)
        gone = np.arange(evicted.start, evicted.stop)
        self._rows.append(first, eligible)
        taken_over = (gone + self._unit_rows >= first) & (
            gone + self._unit_rows < first + len(eligible)
        )
        gone = torch.from_numpy(gone[~taken_over])
        if len(gone):
            unit = (gone[:, None] * self._num_envs + torch.arange(self._num_envs)).view(-1)
            self._arena.run("forget", self._forget, unit % self._size)
        if mask.numel():
            unit = first * self._num_envs + torch.arange(mask.numel())
            self._arena.run("take in", self._take_in, mask, given, unit % self._size)
        self._point()

    def _forget(self, leaf: Tensor) -> None:
        empty = torch.zeros(len(leaf), dtype=torch.float64, device=leaf.device)
        self.tree.set(leaf, empty)

    def _take_in(self, mask: Tensor, given: Tensor, leaf: Tensor) -> None:
        """Give leaves [R * B] the priorities [R, B] of new units, where `mask` [R, B]."""
        value = self._scaled(torch.where(given.isnan(), self.highest, given))
        self.tree.set(leaf, torch.where(mask, value, 0.0).view(-1))

    def advance_whole(self, oldest: int, first: int, num_rows: int) -> None:
        """`advance` by `num_rows` unit rows of which every unit may be drawn."""
        self.advance(oldest, first, np.ones((num_rows, self._num_envs), dtype=bool), None)

    def draw(self, uniform: Tensor, beta: float | Tensor) -> tuple[Tensor, Tensor]:
        """Units and their importance weights; see `UniformSampler.draw`."""
        strata = self._strata.get(len(uniform))
        if strata is None:
            strata = torch.arange(len(uniform), device=uniform.device)
            self._strata[len(uniform)] = strata
        leaf = self.tree.find((strata + uniform) / len(uniform))
        newest = self._span[1] - 1
        drawn = self.tree.leaves[leaf]
        ratio = drawn.amin() / drawn
        return newest - (newest - leaf) % self._size, (ratio**beta).float()

    def update(self, unit: Tensor, priority: Tensor) -> None:
        """Give units new priorities; those gone since they were drawn are passed over.

        Args:
            unit: [N] int64 as drawn; where one occurs twice, the higher priority counts.
            priority: [N] non-negative, before epsilon and alpha.

        Raises:
            ConfigError: if a priority is negative.
            UnsoundPriorityError: if one is NaN or infinite; on a device neither comes here but
                at the next `advance` or save, for to look at it now would wait.
        """
        device = self._arena.device
        unit = unit.to(device)
        value = self.sound(priority.detach().to(device).to(torch.float64))
        self._take_note(value)
        leaf = unit % self._size
        live = (unit >= self._span[0]) & (self.tree.leaves[leaf] > 0)
        if device.type != "cpu":
            live &= (value >= 0) & (value < torch.inf)
        self.tree.set(leaf, self._scaled(value), live)

    def sound(self, priority: Tensor) -> Tensor:
        """Priorities of any shape, the highest so far where they are unsound and to be replaced."""
        if not self.replaces_unsound:
            return priority
        highest = self.highest.to(priority.device, priority.dtype)
        return torch.where(priority.isfinite(), priority, highest)

    def written_by_updates(self) -> dict[str, Tensor]:
        """Name -> the memory that `update` writes to."""
        return {**self.tree.memory(), "highest": self.highest, "refused": self._refused}

    def require_sound(self) -> None:
        """Raise if a bad priority was ever given.

        Raises:
            UnsoundPriorityError: in that case.
        """
        if bool(self._refused):
            self._refused.fill_(False)
            raise UnsoundPriorityError(_UNSOUND)

    def state_arrays(self) -> dict[str, Array]:
        """What is not in the arena."""
        return self._rows.state_arrays()

    def load_state_arrays(self, state: dict[str, Array]) -> None:
        """The inverse of `state_arrays`."""
        self._rows.load_state_arrays(state)
        self._refused.fill_(False)
        self._point()

    def require_state(
        self, state: dict[str, Array], eligible: Array, first: int, where: Path
    ) -> None:
        """Refuse a state or a tree; see `UniformSampler.require_state`."""
        require_units(state["span"], state["per_row"], eligible, first, self._unit_rows, where)
        sums, minima = self.tree.levels()
        require_priorities(sums, minima, eligible, first, self._size, where)
        highest = self.highest.cpu()
        # What new units will have must be a number, too.
        if not bool((highest >= 0) & self._scaled(highest).isfinite()):
            refuse(where, f"priority/highest is {highest.item()}, which no priority is")

    def clear(self) -> None:
        """Forget all units."""
        self._rows.clear()
        self.tree.clear()
        self._arena.arrays["priority/highest"].touch(0, 1)
        self.highest.fill_(1.0)
        self._refused.fill_(False)
        self._point()

    def _take_note(self, value: Tensor) -> None:
        """Raise the highest priority; refuse bad ones, on a device only when next asked."""
        low, high = torch.aminmax(value)  # NaN if there is one
        good = (low >= 0) & (high < torch.inf)
        if value.device.type != "cpu":
            self._refused |= ~good
            high = torch.where(good, high, 0.0)
        elif not bool(good):
            is_negative = bool(low < 0) and bool(high < torch.inf)
            raise ConfigError(_UNSOUND) if is_negative else UnsoundPriorityError(_UNSOUND)
        self._arena.run("highest", self._raise_highest, high)

    def _raise_highest(self, high: Tensor) -> None:
        torch.maximum(self.highest, high, out=self.highest)

    def _scaled(self, priority: Tensor) -> Tensor:
        return (priority + self._epsilon) ** self._alpha

    def _point(self) -> None:
        span = torch.tensor([self._rows.oldest, self._rows.stop])
        self._arena.run("span", self._span.copy_, span * self._num_envs)


Sampler: TypeAlias = UniformSampler | PrioritizedSampler

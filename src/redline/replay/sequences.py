"""Sequences for recurrent learning: which are complete, and the states they start from.

Sequences start at every `state_interval`-th row, where the recurrent state is stored, and
take T' = burn_in + sequence_length + n_step rows. They may overlap and may run across ends
of episodes; `reset` marks every row before which the state must be cleared, and is false at
a sequence's first row, because the stored state has been cleared already.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from redline.data import Array, Rollout
from redline.errors import ConfigError
from redline.replay.config import ReplayConfig
from redline.replay.samplers import mixed_priority
from redline.replay.snapshot_form import refuse
from redline.replay.spec import LeafSpec
from redline.replay.storage import Arena, ArrayPlan
from redline.replay.windows import VALID


class SequenceIndex:
    """The sequences of a ring of L rows.

    Args:
        arena: holds the arrays that `plans` asked for.
        config: lengths and interval.
        state: name -> leaf of the recurrent state.
        ring_rows: L, a multiple of the interval.
        num_envs: B.
    """

    def __init__(
        self,
        arena: Arena,
        config: ReplayConfig,
        state: dict[str, LeafSpec],
        ring_rows: int,
        num_envs: int,
    ) -> None:
        self._arena, self._config = arena, config
        self._names = list(state)
        self._ring_rows, self._num_envs = ring_rows, num_envs
        self.interval = config.state_interval
        self.complete = 0  # unit rows taken in so far

    @staticmethod
    def plans(
        config: ReplayConfig, state: dict[str, LeafSpec], ring_rows: int, num_envs: int
    ) -> list[ArrayPlan]:
        """The arrays that sequences need."""
        starts = ring_rows // config.state_interval * num_envs
        plans = [
            ArrayPlan(name=f"state/{name}", rows=starts, shape=leaf.shape, dtype=leaf.dtype)
            for name, leaf in state.items()
        ]
        if config.prioritized:
            rows = ring_rows * num_envs
            plans.append(ArrayPlan(name="row_priority", rows=rows, shape=(), dtype=torch.float32))
        return plans

    def require_states(
        self, head: int, rollout: Rollout, states: dict[str, Tensor] | None
    ) -> dict[str, Tensor]:
        """The states of the sequences that start in this rollout.

        Args:
            head: absolute number of its first row.
            rollout: whose `initial_state` serves if a start falls on its first row only.
            states: name -> [S, B, ...] for its S starts, if the caller knows them.

        Returns:
            name -> [S, B, ...].

        Raises:
            ConfigError: if a start has no state.
        """
        starts = self._starts(head, rollout.rollout_length)
        if states is None:
            if any(start != head for start in starts):
                raise ConfigError(
                    f"state_interval={self.interval} starts a sequence at rows {list(starts)}, "
                    f"but a rollout from row {head} of {rollout.rollout_length} rows carries the "
                    "state of its first row only. Use a multiple of the rollout_length, or give "
                    "the states."
                )
            states = {
                name: rollout.initial_state[name][None][: len(starts)] for name in self._names
            }
        for name in self._names:
            if states[name].shape[:2] != (len(starts), self._num_envs):
                raise ConfigError(
                    f"states[{name!r}] of shape {tuple(states[name].shape)} should begin with "
                    f"[{len(starts)}, {self._num_envs}]: the starts in this rollout, and num_envs."
                )
        return states

    def write(
        self, head: int, length: int, states: dict[str, Tensor], priority: Tensor | None
    ) -> None:
        """Store the states and row priorities of a rollout from row `head`."""
        starts = self._starts(head, length)
        if len(starts):
            for name in self._names:
                first = starts[0] // self.interval
                self._arena.write_ring(f"state/{name}", first, states[name], self._num_envs)
        if self._config.prioritized:
            shape = (length, self._num_envs)
            value = torch.full(shape, torch.nan) if priority is None else priority.float()
            self._arena.write_ring("row_priority", head, value, self._num_envs)

    def completed(self, head: int, oldest: int) -> tuple[int, Array, Tensor | None]:
        """The sequences whose last row has just been written.

        Args:
            head: absolute number of the row to be written next.
            oldest: of the oldest row in the ring.

        Returns:
            Their first unit row; [R, B] bool, which have a valid row to learn from; and
            [R, B] their priorities, NaN where not known (None if not prioritized).
        """
        first = max(self.complete, -(-oldest // self.interval))
        stop = max((head - self._config.sequence_rows) // self.interval + 1, first)
        self.complete = stop
        units = torch.arange(first, stop)
        learned = self._config.burn_in + torch.arange(self._config.sequence_length)
        rows = (units[:, None] * self.interval + learned) % self._ring_rows
        env = torch.arange(self._num_envs)
        slots = (rows[..., None] * self._num_envs + env).to(self._arena.device)
        valid = (self._arena["flags"][slots] & VALID) != 0  # [R, rows, B]
        priority = None
        if self._config.prioritized:
            row_priority = self._arena["row_priority"][slots]
            unknown = (valid & row_priority.isnan()).any(1)
            mixed = mixed_priority(
                row_priority.nan_to_num(0.0).transpose(0, 1),
                valid.transpose(0, 1),
                self._config.priority_eta,
            )
            priority = torch.where(unknown, torch.nan, mixed)
        return first, valid.any(1).cpu().numpy(), priority

    def complete_at(self, head: int) -> int:
        """Unit rows taken in when `head` rows were written."""
        return max((head - self._config.sequence_rows) // self.interval + 1, 0)

    def eligible_at(self, head: int, oldest: int, flags: Array) -> tuple[int, Array]:
        """The sequences that are there when `head` rows were written.

        Args:
            head: absolute number of the row to be written next.
            oldest: of the oldest row in the ring.
            flags: [L, B] uint8.

        Returns:
            The oldest unit row, and [R, B] bool, which have a valid row to learn from.
        """
        first = -(-oldest // self.interval)
        count = max(self.complete_at(head) - first, 0)
        start = (first + np.arange(count)) * self.interval + self._config.burn_in
        eligible = np.zeros((count, self._num_envs), dtype=bool)
        for offset in range(self._config.sequence_length):
            eligible |= (flags[(start + offset) % self._ring_rows] & VALID) != 0
        return first, eligible

    def require_state(self, where: Path) -> None:
        """Refuse priorities of rows, just loaded, that are none.

        Args:
            where: the snapshot's directory.

        Raises:
            CorruptCheckpointError: if one is infinite or negative; NaN stands for unknown.
        """
        if not self._config.prioritized:
            return
        value = self._arena["row_priority"]
        if bool(((value < 0) | value.isinf()).any()):
            refuse(where, "row_priority holds a priority that is infinite or negative")

    def rows(self, unit: Tensor) -> Tensor:
        """[T', N] numbers t * B + b of the rows of N sequences."""
        start, env = unit // self._num_envs * self.interval, unit % self._num_envs
        steps = torch.arange(self._config.sequence_rows, device=unit.device)
        return (start + steps[:, None]) * self._num_envs + env

    def states(self, unit: Tensor) -> dict[str, Tensor]:
        """Name -> [N, ...] recurrent states before the first rows of N sequences."""
        starts = self._ring_rows // self.interval
        slot = (unit // self._num_envs) % starts * self._num_envs + unit % self._num_envs
        return {name: self._arena[f"state/{name}"].index_select(0, slot) for name in self._names}

    def _starts(self, head: int, length: int) -> range:
        return range(-(-head // self.interval) * self.interval, head + length, self.interval)

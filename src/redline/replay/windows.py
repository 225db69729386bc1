"""n-step windows, computed when a batch is drawn.

The window of row t holds the rows t, t+1, ... of the same environment up to and with the
first of: the row that ends the episode (or at which the chain is cut), the n-th row, the
newest row of the ring. With k rows in it (Sutton & Barto 2018, eq. 12.1, shortened at ends):

    reward   = sum_{i<k} gamma^i r_{t+i}
    discount = gamma^k, but 0 if the last row terminated
    successor = the true last observation if the last row ended the episode, else the
                observation of row t+k, which for the newest row is the one to act on next

A window cut by the ring's head is therefore a correct k-step one with 1 <= k < n, so every
valid row can be drawn; nothing waits n rows to become usable.

Row t of environment b has the number t * B + b, for ever; it lies in its ring at that number
modulo the ring's size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from redline.replay.links import ENDED, FIRST, TERMINATED, VALID


class Window(NamedTuple):
    """n-step windows of N rows; all zero where the row is not valid.

    Attributes:
        reward: [N] float32 discounted sum.
        discount: [N] float32 factor of the successor's value.
        num_steps: [N] int64, k.
        last: [N] int64 number of the window's last row.
        ended: [N] bool, the successor is row `last`'s true last observation, not the next row.
    """

    reward: Tensor
    discount: Tensor
    num_steps: Tensor
    last: Tensor
    ended: Tensor


class Windows:
    """Computes n-step windows with fixed shapes and without waiting for a device.

    Args:
        gamma: discount per step.
        n_step: n, the most rewards summed.
        num_envs: B.
        device: where the rings lie.
    """

    def __init__(self, gamma: float, n_step: int, num_envs: int, device: torch.device) -> None:
        self._n, self._num_envs = n_step, num_envs
        powers = torch.tensor([gamma**i for i in range(n_step + 1)], dtype=torch.float64)
        self._powers = powers.to(device, torch.float32)
        self._steps = torch.arange(n_step, device=device)
        # What one step means, by the row's flags: the case n = 1 is all table look-ups.
        bits = torch.arange(2 * FIRST, device=device)
        self._valid = (bits & VALID) != 0
        self._ended = (bits & ENDED) != 0
        self._bootstraps = self._valid & ((bits & TERMINATED) == 0)
        self._discount = torch.where(self._bootstraps, self._powers[1], 0.0)

    def __call__(self, reward: Tensor, flags: Tensor, index: Tensor, head: Tensor) -> Window:
        """The windows of N rows.

        Args:
            reward: [L * B] float32 ring of one-step rewards, zero where not valid.
            flags: [L * B] uint8 ring of flags.
            index: [N] int64 numbers t * B + b of rows in the ring.
            head: [] int64 number of row t to be written next.
        """
        if self._n == 1:
            slot = index % len(reward)
            bits = flags[slot].long()
            return Window(
                reward=reward[slot],
                discount=self._discount[bits],
                num_steps=self._valid[bits].long(),
                last=index,
                ended=self._ended[bits],
            )
        numbers = index[:, None] + self._steps * self._num_envs
        slots = numbers % len(reward)
        bits = flags[slots].long()
        ends = self._ended[bits]
        ended_before = (ends.cumsum(1) - ends.long()) > 0
        valid = self._valid[bits[:, :1]]
        inside = (numbers < head * self._num_envs) & ~ended_before & valid
        num_steps = inside.sum(1)
        offset = (num_steps - 1).clamp(min=0)
        last_bits = bits.gather(1, offset[:, None])[:, 0]
        bootstraps = self._bootstraps[last_bits] & valid[:, 0]
        return Window(
            reward=(reward[slots].masked_fill(~inside, 0.0) * self._powers[:-1]).sum(1),
            discount=self._powers[num_steps].masked_fill(~bootstraps, 0.0),
            num_steps=num_steps,
            last=index + offset * self._num_envs,
            ended=self._ended[last_bits],
        )

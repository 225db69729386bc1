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
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Bits of a row's flags.
VALID = 1
TERMINATED = 2
TRUNCATED = 4
CUT = 8  # the chain of rows breaks here without an end of the episode; the successor is kept
FIRST = 16  # the first valid row of an episode
ENDED = TERMINATED | TRUNCATED | CUT


class Window(NamedTuple):
    """n-step windows of N rows; all zero where the row is not valid.

    Attributes:
        reward: [N] float32 discounted sum.
        discount: [N] float32 factor of the successor's value.
        num_steps: [N] int64, k.
        last: [N] int64 absolute number of the window's last row.
        ended: [N] bool, the successor is the kept one of row `last`, not the next row's.
        valid: [N] bool, the row is a real transition.
    """

    reward: Tensor
    discount: Tensor
    num_steps: Tensor
    last: Tensor
    ended: Tensor
    valid: Tensor


def n_step_windows(
    reward: Tensor,
    flags: Tensor,
    row: Tensor,
    env: Tensor,
    head: Tensor,
    num_envs: int,
    powers: Tensor,
) -> Window:
    """The windows of N rows, with fixed shapes and without waiting for a device.

    Args:
        reward: [L * B] float32 ring of one-step rewards.
        flags: [L * B] uint8 ring of flags.
        row: [N] int64 absolute row numbers, each in the ring.
        env: [N] int64 environments.
        head: [] int64 absolute number of the row to be written next.
        num_envs: B.
        powers: [n + 1] float32, gamma^0 .. gamma^n.
    """
    n = powers.shape[0] - 1
    ring = reward.shape[0] // num_envs
    rows = row[:, None] + torch.arange(n, device=row.device)
    slots = (rows % ring) * num_envs + env[:, None]
    bits = flags[slots]
    ends = (bits & ENDED) != 0
    ended_before = (ends.cumsum(1) - ends.long()) > 0
    valid = (bits[:, :1] & VALID) != 0
    inside = (rows < head) & ~ended_before & valid
    num_steps = inside.sum(1)
    rewards = torch.where(inside, reward[slots], 0.0)
    last = row + (num_steps - 1).clamp(min=0)
    last_bits = bits.gather(1, (last - row)[:, None])[:, 0]
    bootstraps = valid[:, 0] & ((last_bits & TERMINATED) == 0)
    return Window(
        reward=(rewards * powers[:-1]).sum(1),
        discount=torch.where(bootstraps, powers[num_steps], 0.0),
        num_steps=num_steps,
        last=last,
        ended=(last_bits & ENDED) != 0,
        valid=valid[:, 0],
    )

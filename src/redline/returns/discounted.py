"""Discounted sums of rewards along a rollout."""

from __future__ import annotations

import torch
from torch import Tensor


def reverse_scan(addend: Tensor, decay: Tensor) -> Tensor:
    """The recursion that every return obeys, from the last row to the first.

        x_t = addend_t + decay_t * x_{t+1},    x_T = 0

    Args:
        addend: [T, ...].
        decay: [T, ...].

    Returns:
        [T, ...] x.
    """
    result = torch.empty_like(addend)
    rows, decays, outs = addend.unbind(0), decay.unbind(0), result.unbind(0)
    running = torch.zeros_like(rows[0])
    for t in range(len(rows) - 1, -1, -1):
        running = torch.addcmul(rows[t], decays[t], running, out=outs[t])
    return result


def discounted_return(
    reward: Tensor,
    bootstrap_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    gamma: float,
) -> Tensor:
    """Reward-to-go of every step, as REINFORCE uses it.

    Sutton and Barto 2018, eq. 3.9, with the tail of an episode that was cut (by a time
    limit, or by the end of the rollout) replaced by its estimated value:

        G_t = r_t + gamma * G_{t+1}             while the episode goes on
        G_t = r_t                               if terminated
        G_t = r_t + gamma * bootstrap_value_t   if truncated, or at t = T - 1

    Args:
        reward: [T, B].
        bootstrap_value: [T, B] value of the true successor where truncated and at t = T - 1;
            zeros for plain Monte-Carlo returns of what was seen.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool; rows that are not valid give 0 and pass nothing on.
        gamma: discount per env_step, in [0, 1].

    Returns:
        [T, B] G.
    """
    ended = terminated | truncated
    cut = truncated.clone()
    cut[-1] |= ~ended[-1]
    tail = torch.where(cut & ~terminated, gamma * bootstrap_value, torch.zeros_like(reward))
    addend = (reward + tail).masked_fill(~valid, 0.0)
    decay = torch.full_like(addend, gamma).masked_fill(ended | ~valid, 0.0)
    return reverse_scan(addend, decay)

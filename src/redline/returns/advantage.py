"""Generalised advantage estimation, right at every kind of episode end."""

from __future__ import annotations

import torch
from torch import Tensor

from redline.returns.discounted import reverse_scan


def gae(
    reward: Tensor,
    value: Tensor,
    bootstrap_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    *,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of a rollout.

    Schulman et al. 2016, arXiv:1506.02438, eq. 16, for t = 0 .. T - 1:

        delta_t = r_t + gamma * v'_t - V(s_t)
        A_t = delta_t + gamma * lambda * (1 - done_t) * A_{t+1},    A_T = 0

    where v'_t, the value of the true successor, is 0 after a termination,
    `bootstrap_value` after a truncation and in the last row, and V(s_{t+1}) otherwise.
    Nothing flows back across the end of an episode.

    Args:
        reward: [T, B] reward of the action taken at t.
        value: [T, B] V(s_t) under the policy that acted; a constant here.
        bootstrap_value: [T, B] V of the true successor where truncated and at t = T - 1.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool; rows that are not valid give 0 and pass nothing on.
        gamma: discount per env_step, in [0, 1].
        gae_lambda: in [0, 1]; 0 gives one-step advantages, 1 Monte-Carlo ones.

    Returns:
        The advantages [T, B] and the value targets [T, B] = advantage + value; both are 0
        where not valid.
    """
    ended = terminated | truncated
    next_value = torch.cat([value[1:], bootstrap_value[-1:]])
    next_value = torch.where(truncated, bootstrap_value, next_value)
    next_value = next_value.masked_fill(terminated, 0.0)
    delta = (reward + gamma * next_value - value).masked_fill(~valid, 0.0)
    decay = torch.full_like(delta, gamma * gae_lambda).masked_fill(ended | ~valid, 0.0)
    advantage = reverse_scan(delta, decay)
    target = (advantage + value).masked_fill(~valid, 0.0)
    return advantage, target

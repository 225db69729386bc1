"""Discounted sums along a rollout: reward-to-go, and generalized advantage estimation (GAE)."""

# torch ships no types for `tolist` and for making operators.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import torch
from torch import Tensor

from redline.devices import kind_of

_FEW_COLUMNS = 16  # up to here numbers one by one are quicker than rows


def reverse_scan(addend: Tensor, decay: Tensor) -> Tensor:
    """The recursion that every return obeys, from the last row to the first.

        x_t = addend_t + decay_t * x_{t+1},    x_T = 0

    Args:
        addend: [T, ...].
        decay: [T, ...].

    Returns:
        [T, ...] x.
    """
    if torch.is_grad_enabled() and (addend.requires_grad or decay.requires_grad):
        return _scan_with_gradient(addend, decay)
    if torch.compiler.is_compiling():
        return _closed_scan(addend, decay)
    return _scan(addend, decay)


def _scan(addend: Tensor, decay: Tensor) -> Tensor:
    if not addend.is_cpu or kind_of(addend.device).captures:
        return _scan_doubling(addend, decay)
    columns = addend.numel() // max(len(addend), 1)
    if columns <= _FEW_COLUMNS:
        return _scan_columns(addend, decay)
    return _scan_rows(addend, decay)


@torch.library.custom_op("redline::reverse_scan", mutates_args=())
def _closed_scan(addend: Tensor, decay: Tensor) -> Tensor:
    """The same, closed to the compiler, which would make a graph of all T rows."""
    found = _scan(addend, decay)
    # With T = 1 it may be `addend` itself, and the result of an operator must not be its input.
    return found.clone() if len(addend) == 1 else found


@_closed_scan.register_fake
def _shape_of_scan(addend: Tensor, decay: Tensor) -> Tensor:
    del decay
    return torch.empty_like(addend, memory_format=torch.contiguous_format)


def _scan_with_gradient(addend: Tensor, decay: Tensor) -> Tensor:
    """Row by row, each a tensor of its own: what is written into another has no gradient."""
    running = torch.zeros_like(addend[0])
    found: list[Tensor] = []
    for row, factor in zip(reversed(addend.unbind(0)), reversed(decay.unbind(0)), strict=True):
        running = torch.addcmul(row, factor, running)
        found.append(running)
    return torch.stack(found[::-1])


def _scan_rows(addend: Tensor, decay: Tensor) -> Tensor:
    result = torch.empty_like(addend, memory_format=torch.contiguous_format)
    rows, decays, outs = addend.unbind(0), decay.unbind(0), result.unbind(0)
    running = torch.zeros_like(rows[0])
    for t in range(len(rows) - 1, -1, -1):
        running = torch.addcmul(rows[t], decays[t], running, out=outs[t])
    return result


def _scan_doubling(addend: Tensor, decay: Tensor) -> Tensor:
    """In log2(T) steps of four kernels each: on a device, launches count and arithmetic does not.

    Hillis and Steele 1986, "Data parallel algorithms". After the step of span s, row t holds its
    2 s next addends, and its decay is the product of theirs:

        x_t += d_t x_{t+s},    d_t *= d_{t+s}
    """
    span = 1
    while span < len(addend):
        head, tail = addend[:-span], addend[-span:]
        addend = torch.cat([torch.addcmul(head, decay[:-span], addend[span:]), tail])
        decay = torch.cat([decay[:-span] * decay[span:], decay[-span:]])
        span *= 2
    return addend.contiguous()


def _scan_columns(addend: Tensor, decay: Tensor) -> Tensor:
    """In Python's own numbers: one takes a twentieth of the time of an operation on a row."""
    length = len(addend)
    rows, decays = addend.reshape(length, -1), decay.reshape(length, -1)
    columns: list[list[float]] = []
    for column, factors in zip(rows.unbind(1), decays.unbind(1), strict=True):
        running, values = 0.0, list[float]()
        addends: list[float] = column.tolist()
        for a, d in zip(reversed(addends), reversed(factors.tolist()), strict=True):
            running = a + d * running
            values.append(running)
        columns.append(values[::-1])
    found = torch.tensor(columns, dtype=addend.dtype, device=addend.device)
    return found.t().reshape(addend.shape).contiguous()


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
        value: [T, B] V(s_t) under the policy that acted; a gradient flows through it, so
            detach it where none is meant.
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

"""V-trace: value targets and advantages from rollouts that an older policy collected."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from redline.returns.discounted import reverse_scan


class VTrace(NamedTuple):
    """What V-trace makes of a rollout; all 0 where not valid.

    Attributes:
        advantage: [T, B] rho_t (r_t + gamma q_{t+1} - V(s_t)), the factor of the policy gradient.
        target: [T, B] v_t, what the value of the learner's policy should be.
        rho: [T, B] the clipped importance ratio min(rho_bar, pi / mu).
    """

    advantage: Tensor
    target: Tensor
    rho: Tensor


def vtrace(
    reward: Tensor,
    value: Tensor,
    bootstrap_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    log_ratio: Tensor,
    *,
    gamma: float,
    gae_lambda: float = 1.0,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> VTrace:
    """Off-policy corrected value targets and advantages.

    Espeholt et al. 2018, arXiv:1802.01561, eq. 1 in the recursive form of its remark 1, with
    rho_t = min(rho_bar, pi / mu) and c_t = lambda * min(c_bar, pi / mu), t = 0 .. T - 1:

        delta_t = rho_t (r_t + gamma * v'_t - V(s_t))
        v_t - V(s_t) = delta_t + gamma * c_t * (1 - done_t) * (v_{t+1} - V(s_{t+1}))
        A_t = rho_t (r_t + gamma * q_{t+1} - V(s_t))
        q_{t+1} = lambda * v_{t+1} + (1 - lambda) * V(s_{t+1})

    where v'_t, the value of the true successor, is 0 after a termination,
    `bootstrap_value` after a truncation and in the last row, and V(s_{t+1}) otherwise;
    where it is not V(s_{t+1}), it is q_{t+1} as well. With lambda = 1, A is the paper's
    (section 4.2). With pi = mu and both bounds at least 1, A and v are the advantages and
    targets of `gae` for every lambda.

    `rho_bar` sets which policy the values are of (infinite: pi; small: near mu), `c_bar` how
    far corrections reach back; neither changes the fixed point that the other one sets.

    Args:
        reward: [T, B] reward of the action taken at t.
        value: [T, B] V(s_t) of the learner; a gradient flows through it, so detach it
            where none is meant.
        bootstrap_value: [T, B] V of the true successor where truncated and at t = T - 1.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool; rows that are not valid give 0 and pass nothing on.
        log_ratio: [T, B] log pi(a|s) - log mu(a|s), learner less collector, in nats; a
            constant here.
        gamma: discount per env_step, in [0, 1].
        gae_lambda: lambda in [0, 1].
        rho_bar: > 0.
        c_bar: > 0, by the paper at most rho_bar.

    Returns:
        advantage, target and rho, each [T, B].
    """
    ended = terminated | truncated
    ratio = log_ratio.masked_fill(~valid, 0.0).exp()  # infinite ratios are cut by the bounds
    rho = ratio.clamp(max=rho_bar).masked_fill(~valid, 0.0)
    c = gae_lambda * ratio.clamp(max=c_bar)

    next_value = torch.cat([value[1:], bootstrap_value[-1:]])
    next_value = torch.where(truncated, bootstrap_value, next_value)
    next_value = next_value.masked_fill(terminated, 0.0)
    error = (reward + gamma * next_value - value).masked_fill(~valid, 0.0)
    decay = (gamma * c).masked_fill(ended | ~valid, 0.0)
    correction = reverse_scan(rho * error, decay)

    # gamma * (q_{t+1} - v'_t), which is 0 where the episode or the rollout ends.
    ahead = torch.cat([correction[1:], torch.zeros_like(correction[:1])])
    ahead = (gamma * gae_lambda * ahead).masked_fill(ended | ~valid, 0.0)
    advantage = rho * (error + ahead)
    target = (correction + value).masked_fill(~valid, 0.0)
    return VTrace(advantage, target, rho)

"""IMPALA-style A2C: the actor-critic gradient with V-trace, for rollouts of older weights.

Espeholt et al. 2018, arXiv:1802.01561. Reads top to bottom: `ImpalaConfig`, `corrected`,
`Impala.estimate`; loss and update are A2C's.

| symbol | shape | meaning |
|---|---|---|
| mu | | the policy that collected; log mu(a|s) is the rollout's `log_prob` |
| pi, V | | the learner's policy and value when the update begins |
| rho | [T, B] | min(rho_bar, pi / mu) |
| A | [T, B] | rho (r + gamma q - V) from `returns.vtrace` |
| v | [T, B] | value target from `returns.vtrace` |

With the weights that collected, pi = mu, and the update is A2C's to float tolerance.

Departs from the paper: means in place of sums in the loss. A truncated episode is
bootstrapped with the value that the collecting weights gave its last observation; the last
row, as in the paper, with the learner's. A recurrent policy starts from the state that the
collecting weights left.

Cost: one optimizer step per rollout. `update` never waits for the device.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from redline.algos import presets as named
from redline.algos.a2c import A2C, A2CConfig
from redline.algos.config import require_importance_bounds
from redline.data import Rollout, masked_mean
from redline.policies.policy import ActionEvaluation, Policy
from redline.returns import VTrace, vtrace


@dataclass(frozen=True, slots=True, kw_only=True)
class ImpalaConfig(A2CConfig):
    """Hyperparameters of A2C with V-trace, Espeholt et al. 2018, arXiv:1802.01561.

    `gae_lambda` is the lambda of V-trace (the paper's remark 2).

    Raises:
        ConfigError: if a value is out of range.
    """

    rollout_length: int = 20
    """T, env_steps per environment per iteration; one optimizer step each."""
    rho_bar: float = 1.0
    """Largest importance ratio in the temporal difference and the policy gradient."""
    c_bar: float = 1.0
    """Largest importance ratio in how far back a difference reaches; at most rho_bar."""

    def __post_init__(self) -> None:
        A2CConfig.__post_init__(self)
        require_importance_bounds(self.rho_bar, self.c_bar)


@torch.no_grad()
def corrected(
    policy: Policy, rollout: Rollout, output: ActionEvaluation, config: Any
) -> tuple[VTrace, dict[str, Tensor]]:
    """V-trace of a rollout under the learner's present weights.

    Args:
        policy: the learner's.
        rollout: [T, B] with the extra `log_prob`, of the weights that collected.
        output: what `policy.evaluate_rollout` gives for it now.
        config: with gamma, gae_lambda, rho_bar and c_bar.

    Returns:
        Advantages, targets and clipped ratios [T, B], and as metrics [] the mean of the
        clipped ratio, 1 for fresh rollouts, and the mean of log mu - log pi, an estimate of
        KL(mu || pi) in nats.
    """
    valid = rollout["valid"]
    # The last row goes on at last_obs unless its episode ended there; its value is not used then.
    conditioning = {name: rollout[name][-1] for name in policy.conditioning_names}
    last_value = policy.value(rollout.last_obs, output.state, conditioning)
    cut = rollout["truncated"][-1:]
    bootstrap = rollout["bootstrap_value"]
    last = torch.where(cut, bootstrap[-1:], last_value.unsqueeze(0))
    log_ratio = output.log_prob - rollout["log_prob"]
    result = vtrace(
        rollout["reward"],
        output.value,
        torch.cat([bootstrap[:-1], last]),
        rollout["terminated"],
        rollout["truncated"],
        valid,
        log_ratio,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda,
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
    )
    return result, {
        "rho": masked_mean(result.rho, valid),
        "behavior_kl": masked_mean(-log_ratio, valid),
    }


class Impala(A2C):
    """A2C that learns right from rollouts of older weights.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: unused, it draws nothing; there because all algorithms are made alike.
    """

    name = "impala"
    Config = ImpalaConfig
    presets = named.IMPALA

    def estimate(
        self, rollout: Rollout, output: ActionEvaluation
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """A and v by V-trace, with what it says of the rollout's age."""
        result, metrics = corrected(self.policy, rollout, output, self.config)
        return result.advantage, result.target, metrics

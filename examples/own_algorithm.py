"""An algorithm of one's own: PPO with a KL penalty in place of the clipped ratio.

Schulman et al. 2017, arXiv:1707.06347, section 4. One file, one class; everything else of Redline
serves it as it stands: environments, collectors, checkpoints, resuming, logs, evaluation.

    python examples/own_algorithm.py

or, from this folder, by the command line:

    redline train own_algorithm:KLPenaltyPPO --env CartPole-v1 --total-env-steps 100000 --out run
    redline train own_algorithm:KLPenaltyPPO --resume run --total-env-steps 200000
    redline eval run --algorithm own_algorithm:KLPenaltyPPO
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import redline
from redline.algos.algorithm import OnPolicyAlgorithm, normalized
from redline.data import Rollout, masked_mean
from redline.policies import Policy
from redline.returns import gae


@dataclass(frozen=True, slots=True, kw_only=True)
class KLPenaltyConfig:
    """Hyperparameters; each becomes an option of the command line, explained by its docstring."""

    num_envs: int = 8
    """B, environments stepped in parallel."""
    rollout_length: int = 64
    """T, env_steps per environment per iteration."""
    num_epochs: int = 10
    """Passes over each rollout."""
    gamma: float = 0.99
    """Discount per env_step."""
    gae_lambda: float = 0.95
    """Lambda of generalized advantage estimation."""
    learning_rate: float = 3e-3
    """Adam's step size."""
    target_kl: float = 0.01
    """KL divergence per iteration, in nats, that the penalty steers to."""


def penalized_loss(log_ratio: Tensor, advantage: Tensor, beta: Tensor, valid: Tensor) -> Tensor:
    """-mean(r A) + beta KL, with r = exp(log_ratio); Schulman et al. 2017, eq. 8.

    Args:
        log_ratio: [T, B] log pi(a|s) - log pi_old(a|s); carries gradient.
        advantage: [T, B] a constant here.
        beta: [] weight of the penalty.
        valid: [T, B] bool, the rows to average over.

    Returns:
        The loss [].
    """
    log_ratio = log_ratio.masked_fill(~valid, 0.0)  # before exp, where it might overflow
    ratio = log_ratio.exp()
    kl = ratio - 1.0 - log_ratio
    return masked_mean(beta * kl - ratio * advantage, valid)


class KLPenaltyPPO(OnPolicyAlgorithm):
    """PPO that pays for moving away from the policy that collected."""

    name = "kl-penalty-ppo"
    Config = KLPenaltyConfig

    def __init__(self, policy: Policy, config: Any, seed: int = 0) -> None:
        del seed  # draws nothing
        self.policy, self.config = policy, config
        self.device = next(policy.parameters()).device
        self.optimizer = torch.optim.Adam(policy.parameters(), config.learning_rate)
        self.beta = torch.ones((), device=self.device)
        self.updates = 0

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """num_epochs steps on the whole rollout, then the penalty follows the KL divergence."""
        config, valid = self.config, rollout["valid"]
        advantage, target = gae(
            rollout["reward"],
            rollout["value"],
            rollout["bootstrap_value"],
            rollout["terminated"],
            rollout["truncated"],
            valid,
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        advantage = normalized(advantage, valid)
        for _ in range(config.num_epochs):
            output = self.policy.evaluate_rollout(rollout)
            log_ratio = output.log_prob - rollout["log_prob"]
            policy_loss = penalized_loss(log_ratio, advantage, self.beta, valid)
            value_loss = masked_mean((output.value - target).square(), valid)
            self.optimizer.zero_grad()
            (policy_loss + 0.5 * value_loss).backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
            self.optimizer.step()
        self.updates += 1
        kl = masked_mean(-log_ratio.detach(), valid)
        self._adapt(kl)
        return {"policy_loss": policy_loss.detach(), "value_loss": value_loss.detach(), "kl": kl}

    def _adapt(self, kl: Tensor) -> None:
        """Double or halve beta where KL is far from its target; on the device, without a wait."""
        factor = torch.where(kl > 1.5 * self.config.target_kl, 2.0, 1.0)
        factor = torch.where(kl < self.config.target_kl / 1.5, 0.5, factor)
        self.beta.mul_(factor).clamp_(1e-3, 1e3)

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Nothing here follows a schedule."""

    def optimizer_steps(self) -> int:
        """Steps taken so far."""
        return self.updates * self.config.num_epochs

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "beta": self.beta,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.beta.copy_(state["beta"])
        self.updates = state["updates"]


if __name__ == "__main__":
    run = redline.train(KLPenaltyPPO, env="CartPole-v1", total_env_steps=100_000, seed=1)
    print(f"mean return of 20 episodes: {run.evaluate(episodes=20).return_mean:.1f}")

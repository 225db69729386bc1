"""Advantage actor-critic (A2C), the synchronous form of A3C.

Mnih et al. 2016, arXiv:1602.01783. Reads top to bottom: `A2CConfig`, `policy_gradient_loss`,
`A2C.update`. IMPALA-style A2C and REINFORCE are this algorithm with other estimates of how good
the actions were (`A2C.estimate`).

| symbol | shape | meaning |
|---|---|---|
| A | [T, B] | advantage from `returns.gae`; with lambda = 1 the paper's n-step return minus V |
| R | [T, B] | value target, A + V |

Departs from the paper: synchronous, one optimizer step per rollout; generalized advantage
estimation where lambda < 1.

Cost: one optimizer step per rollout. `update` never waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from redline.algos import presets as named
from redline.algos.algorithm import (
    OnPolicyAlgorithm,
    clip_gradients,
    explained_variance,
    normalized,
    saved_count,
)
from redline.algos.config import (
    OnlyIf,
    OnlyWith,
    require_fraction,
    require_noise_color,
    require_not_negative,
    require_positive,
    require_widths,
)
from redline.algos.optimizers import Adam, Optimizer, RMSprop
from redline.data import Rollout, masked_mean
from redline.policies.policy import ActionEvaluation, Policy
from redline.returns import gae


@dataclass(frozen=True, slots=True, kw_only=True)
class A2CConfig:
    """Hyperparameters of A2C, the synchronous form of Mnih et al. 2016, arXiv:1602.01783.

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "entropy_coef_schedule": (OnlyIf("entropy_coef", never=(0.0,)),),
        "noise_color": (OnlyIf("actions", ("Box",)),),
        "critic_hidden_sizes": (OnlyIf("layers", ("dense",)),),
    }

    num_envs: int = 8
    """B, environments stepped in parallel."""
    rollout_length: int = 5
    """T, env_steps per environment per iteration; one optimizer step each."""
    gamma: float = 0.99
    """Discount per env_step, in [0, 1]."""
    gae_lambda: float = 1.0
    """Lambda of generalized advantage estimation, in [0, 1]; 1 is A2C's n-step return."""
    normalize_advantage: bool = False
    """Whether advantages get mean 0 and standard deviation 1 in each rollout."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    entropy_coef_schedule: Literal["constant", "linear"] = "constant"
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """Which optimizer; RMSprop (smoothing 0.99) is the original's."""
    learning_rate: float = 7e-4
    """The optimizer's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    optimizer_eps: float = 1e-5
    """The optimizer's epsilon."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    scale_reward: bool = False
    """Whether rewards are divided by the running standard deviation of the discounted return, and
    then clipped to [-10, 10]. Logged returns are the true ones."""
    noise_color: float = 0.0
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 0.5: what suits PPO (Hollenstein et al. 2024);
    1: pink; 2: red."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the value's hidden layers, where it shares none with the policy.
    None: hidden_sizes."""

    def __post_init__(self) -> None:
        require_positive(
            num_envs=self.num_envs,
            rollout_length=self.rollout_length,
            learning_rate=self.learning_rate,
            optimizer_eps=self.optimizer_eps,
        )
        require_fraction(gamma=self.gamma, gae_lambda=self.gae_lambda)
        require_not_negative(
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
            max_grad_norm=self.max_grad_norm,
        )
        require_noise_color(self.noise_color)
        require_widths(critic_hidden_sizes=self.critic_hidden_sizes)


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
    """The score-function estimator, negated so that it is minimized.

    Sutton and Barto 2018, eq. 13.11:  loss = -mean(log pi(a|s) * A)

    Args:
        log_prob: [...] log pi(a|s), in nats; carries gradient.
        advantage: [...] A; a constant here.
        valid: [...] bool, the rows to average over.

    Returns:
        The loss [].
    """
    return -masked_mean(log_prob * advantage, valid)


class A2C(OnPolicyAlgorithm):
    """A2C on a policy.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: unused, A2C draws nothing; there because all algorithms are made alike.
    """

    name = "a2c"
    Config = A2CConfig
    presets = named.A2C
    config: Any

    def __init__(self, policy: Policy, config: Any, seed: int = 0) -> None:
        del seed
        self.policy = policy
        self.config = config
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = self._make_optimizer()
        # A tensor: a compiled or captured step sees the schedule change it.
        self._present_entropy_coef = self._configured_entropy_coef()
        self.entropy_coef = torch.tensor(self._present_entropy_coef, device=self.device)
        self.updates = 0

    def _make_optimizer(self) -> Optimizer:
        config = self.config
        if config.optimizer == "adam":
            return Adam(self.parameters, config.learning_rate, eps=config.optimizer_eps)
        return RMSprop(self.parameters, config.learning_rate, eps=config.optimizer_eps)

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Take one optimizer step from one rollout.

        Args:
            rollout: [T, B] with the extra `value`.

        Returns:
            name -> [] metrics.
        """
        return self.learn(rollout, self.begin_update())

    def begin_update(self) -> tuple[bool, ...]:
        """Count it; every part has its turn."""
        self.updates += 1
        return ()

    def learn(self, rollout: Rollout, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """The whole update, which is its one step."""
        del turns
        return self.step(rollout)

    def step(self, rollout: Rollout) -> dict[str, Tensor]:
        """The update; nothing here depends on counts."""
        config, valid = self.config, rollout["valid"]
        output = self.policy.evaluate_rollout(rollout)
        advantage, target, metrics = self.estimate(rollout, output)
        variance = explained_variance(output.value.detach(), target, valid)
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        policy_loss = policy_gradient_loss(output.log_prob, advantage, valid)
        value_loss = 0.5 * masked_mean((output.value - target).square(), valid)
        entropy = masked_mean(output.entropy, valid)
        loss = policy_loss + config.value_coef * value_loss - self.entropy_coef * entropy
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_gradients(self.parameters, config.max_grad_norm)
        self.optimizer.step()
        return {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy.detach(),
            "grad_norm": grad_norm,
            "explained_variance": variance,
            **metrics,
        }

    def estimate(
        self, rollout: Rollout, output: ActionEvaluation
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """How good the actions were, and what the values should have been.

        Args:
            rollout: [T, B].
            output: what `policy.evaluate_rollout` gives for it now.

        Returns:
            A and R, constants [T, B], and further metrics [], here none.
        """
        del output
        advantage, target = gae(
            rollout["reward"],
            rollout["value"],
            rollout["bootstrap_value"],
            rollout["terminated"],
            rollout["truncated"],
            rollout["valid"],
            gamma=self.config.gamma,
            gae_lambda=self.config.gae_lambda,
        )
        return advantage, target, {}

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` and `entropy_coef` from the schedules."""
        self.optimizer.set_learning_rate(values.get("learning_rate", self.config.learning_rate))
        entropy_coef = values.get("entropy_coef", self._configured_entropy_coef())
        if entropy_coef != self._present_entropy_coef:  # on a device it is a launch
            self._present_entropy_coef = entropy_coef
            self.entropy_coef.fill_(entropy_coef)

    def _configured_entropy_coef(self) -> float:
        """A config of one's own, for a loss of one's own, may know no entropy bonus."""
        return float(getattr(self.config, "entropy_coef", 0.0))

    def optimizer_steps(self) -> int:
        """Optimizer steps taken."""
        return self.updates

    def state_dict(self) -> dict[str, Any]:
        """Parameters, optimizer state and the count of steps."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_steps": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = saved_count(state, "optimizer_steps")

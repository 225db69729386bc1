"""REINFORCE with a learned baseline.

Williams 1992; Sutton and Barto 2018, section 13.4. Reads top to bottom: `ReinforceConfig`,
`Reinforce.estimate`; loss and update are those of `algos/a2c.py`.

| symbol | shape | meaning |
|---|---|---|
| G | [T, B] | reward-to-go of a whole episode, from `returns.discounted_return` |
| A | [T, B] | G - V(s), the baseline subtracted |

Data: one episode per environment and iteration; an environment that has finished waits,
its rows not valid. Only an episode longer than T is cut, its tail estimated by V.

Departs from the book: the factor gamma^t is left out, as is customary, so that late steps
count as much as early ones; one optimizer step uses all episodes of the iteration.

Cost: one optimizer step per iteration. `update` never waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from redline.algos import presets as named
from redline.algos.a2c import A2C
from redline.algos.config import (
    OnlyIf,
    OnlyWith,
    require_fraction,
    require_noise_color,
    require_not_negative,
    require_positive,
    require_widths,
)
from redline.algos.optimizers import Adam, Optimizer
from redline.data import Rollout
from redline.policies.policy import ActionEvaluation
from redline.returns import discounted_return


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceConfig:
    """Hyperparameters of REINFORCE with baseline; Sutton and Barto 2018, section 13.4.

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "entropy_coef_schedule": (OnlyIf("entropy_coef", never=(0.0,)),),
        "noise_color": (OnlyIf("actions", ("Box",)),),
        "critic_hidden_sizes": (OnlyIf("layers", ("dense",)),),
    }

    num_envs: int = 8
    """B, environments stepped in parallel: at most that many episodes per iteration."""
    rollout_length: int = 500
    """T, env_steps per environment per iteration at most.
    A longer episode goes on in the next iteration, its tail estimated by the baseline."""
    gamma: float = 0.99
    """Discount per env_step, in [0, 1]."""
    normalize_advantage: bool = True
    """Whether advantages get mean 0 and standard deviation 1 in each iteration."""
    value_coef: float = 0.5
    """Weight of the baseline's loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    entropy_coef_schedule: Literal["constant", "linear"] = "constant"
    """How entropy_coef changes with env_steps; linear reaches 0 at total_env_steps."""
    learning_rate: float = 3e-3
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
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
    """Widths of the baseline's hidden layers, where it shares none with the policy.
    None: hidden_sizes."""

    def __post_init__(self) -> None:
        require_positive(
            num_envs=self.num_envs,
            rollout_length=self.rollout_length,
            learning_rate=self.learning_rate,
            adam_eps=self.adam_eps,
        )
        require_fraction(gamma=self.gamma)
        require_not_negative(
            value_coef=self.value_coef,
            entropy_coef=self.entropy_coef,
            max_grad_norm=self.max_grad_norm,
        )
        require_noise_color(self.noise_color)
        require_widths(critic_hidden_sizes=self.critic_hidden_sizes)


class Reinforce(A2C):
    """REINFORCE on a policy.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: unused, REINFORCE draws nothing; there because all algorithms are made alike.
    """

    name = "reinforce"
    Config = ReinforceConfig
    presets = named.REINFORCE
    waits_for_episodes = True

    def _make_optimizer(self) -> Optimizer:
        return Adam(self.parameters, self.config.learning_rate, eps=self.config.adam_eps)

    def estimate(
        self, rollout: Rollout, output: ActionEvaluation
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """A and G of whole episodes, and no further metrics."""
        del output
        returns = discounted_return(
            rollout["reward"],
            rollout["bootstrap_value"],
            rollout["terminated"],
            rollout["truncated"],
            rollout["valid"],
            gamma=self.config.gamma,
        )
        return returns - rollout["value"], returns, {}

"""REINFORCE with a learned baseline.

Williams 1992; Sutton and Barto 2018, section 13.4. Reads top to bottom: `ReinforceConfig`
in `algos/configs/reinforce.py`, then `Reinforce.estimate`; loss and update are those of
`algos/policy_gradient.py`.

| symbol | shape | meaning |
|---|---|---|
| G | [T, B] | reward-to-go of a whole episode, from `returns.discounted_return` |
| A | [T, B] | G - V(s), the baseline subtracted |

Data: one episode per environment and iteration; an environment that has finished waits,
its rows not valid. Only an episode longer than T is cut, its tail estimated by V.

Departs from the book: the factor gamma^t is left out, as is customary, so that late steps
count as much as early ones; one optimiser step uses all episodes of the iteration.

Cost: one optimiser step per iteration. `update` never waits for the device.
"""

from __future__ import annotations

from torch import Tensor

from redline.algos.configs import ReinforceConfig
from redline.algos.optimizers import Adam, Optimizer
from redline.algos.policy_gradient import PolicyGradient
from redline.data import Rollout
from redline.policies.policy import ActionEvaluation, Policy
from redline.returns import discounted_return


class Reinforce(PolicyGradient):
    """REINFORCE on a policy.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: unused, REINFORCE draws nothing; kept so that all algorithms are made alike.
    """

    config: ReinforceConfig

    def __init__(self, policy: Policy, config: ReinforceConfig, seed: int = 0) -> None:
        del seed
        super().__init__(policy, config)

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

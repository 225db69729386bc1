"""APPO-style PPO: the clipped surrogate with V-trace, for rollouts of older weights.

Schulman et al. 2017, arXiv:1707.06347; V-trace of Espeholt et al. 2018, arXiv:1802.01561;
the clip range around the learner's policy instead of the collecting one, the decoupled
objective of Hilton et al. 2021, arXiv:2110.00641. Losses and passes are PPO's; `APPO` says
what goes into them.

| symbol | shape | meaning |
|---|---|---|
| mu | | the policy that collected; log mu(a|s) is the rollout's `log_prob` |
| pi_prox, V_prox | | the learner's policy and value when the update begins |
| A, v | [T, B] | advantage and target from `returns.vtrace` with pi_prox / mu |
| r | [N] | pi(a|s) / pi_prox(a|s), which the surrogate clips to [1 - eps, 1 + eps] |

A carries the factor rho = min(rho_bar, pi_prox / mu), so that the first step's gradient is,
up to the cut, that of samples from pi_prox, and the clip range limits how far one update
goes from there. Centered on mu instead, it would forbid every step on rows of a rollout
that is old enough. With the weights that collected, pi_prox = mu, and the update is PPO's to
float tolerance.

Departs from these: as listed in `algos/ppo.py` and `algos/impala.py`.

Cost: PPO's, and one pass over the rollout without gradient. `update` never waits for the
device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from redline.algos import presets as named
from redline.algos.config import require_importance_bounds
from redline.algos.impala import corrected
from redline.algos.ppo import PPO, PPOConfig
from redline.data import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class APPOConfig(PPOConfig):
    """Hyperparameters of PPO with V-trace, Espeholt et al. 2018, arXiv:1802.01561.

    `gae_lambda` is the lambda of V-trace (the paper's remark 2).

    Raises:
        ConfigError: if a value is out of range, or a rollout does not split into equal
            minibatches.
    """

    rho_bar: float = 1.0
    """Largest importance ratio in the temporal difference and the advantage."""
    c_bar: float = 1.0
    """Largest importance ratio in how far back a difference reaches; at most rho_bar."""

    def __post_init__(self) -> None:
        PPOConfig.__post_init__(self)
        require_importance_bounds(self.rho_bar, self.c_bar)


class APPO(PPO):
    """PPO that learns right from rollouts of older weights.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: of the minibatch permutation.

    Raises:
        ConfigError: if a recurrent policy's environments do not split into the minibatches.
    """

    name = "appo"
    Config = APPOConfig
    # What suits PPO suits it here too: with fresh rollouts the two are the same.
    presets = named.PPO

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Correct for the rollout's age, then run num_epochs passes of minibatch updates.

        Args:
            rollout: [T, B] with the extra `log_prob`; it is not changed.

        Returns:
            name -> [] means over the optimizer steps taken.
        """
        return self.learn(rollout, self.begin_update())

    def learn(self, rollout: Rollout, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """See `PPO.learn`."""
        del turns
        with torch.no_grad():
            output = self.policy.evaluate_rollout(rollout)
        result, metrics = corrected(self.policy, rollout, output, self.config)
        # Copies: a policy may give views of its parameters, which are about to change.
        proximal = rollout.with_columns(
            log_prob=output.log_prob.clone(), value=output.value.clone()
        )
        return self.optimize(proximal, result.advantage, result.target) | metrics

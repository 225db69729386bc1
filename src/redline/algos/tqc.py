"""Truncated quantile critics (TQC), for Box actions: SAC whose critics are distributions.

Kuznetsov et al. 2020, arXiv:2005.04269. Reads top to bottom: `truncated`, `TQC`; the actor and the
temperature learn as in `algos/sac.py`, the critics' loss is in `algos/distributional.py`.

| symbol | shape | meaning |
|---|---|---|
| E, M | | `num_critics`, `num_quantiles` of each |
| Z | [E, N, M] | quantiles of the return, at the fractions (i + 1/2) / M |
| d | | `dropped_quantiles`, the largest ones that are left out for each critic |
| z | [N, E (M - d)] | the smallest quantiles of all E M |
| y | like z | R + discount * (z - alpha log pi(a'|s')) |

Overestimation is held back by leaving out the largest quantiles of all critics together, instead of
taking the smaller of two values. The actor follows the mean of all quantiles.

Departs from the paper: the loss is averaged over critics and quantiles, which Adam hardly notices.

Cost: as SAC with E critics, and E M * E (M - d) comparisons per row.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from redline.algos import presets as named
from redline.algos.config import require_not_negative, require_positive
from redline.algos.critics import Critic
from redline.algos.distributional import quantile_huber_loss
from redline.algos.sac import SAC, Draws, SACConfig
from redline.data import NestedTensor
from redline.errors import ConfigError, SpaceError
from redline.policies.alternatives import algorithms_for


@dataclass(frozen=True, slots=True, kw_only=True)
class TQCConfig(SACConfig):
    """Hyperparameters of TQC; E, M and d are those of Kuznetsov et al. 2020, appendix B.

    The paper's critics have three layers of 512 units; here they have SAC's, unless
    critic_hidden_sizes says otherwise.

    Raises:
        ConfigError: if a value is out of range.
    """

    num_critics: int = 5
    """E, critics in the ensemble."""
    num_quantiles: int = 25
    """M, quantiles of each critic."""
    dropped_quantiles: int = 2
    """d, of each critic's quantiles so many are left out of the target: the largest of all E * M,
    d * E of them. More of them hold values down further."""

    def __post_init__(self) -> None:
        SACConfig.__post_init__(self)
        require_positive(num_quantiles=self.num_quantiles)
        if self.num_quantiles == 1:
            raise ConfigError(
                "num_quantiles=1 leaves no distribution that tqc could truncate. Give 2 or more, "
                "such as 25, or use sac."
            )
        require_not_negative(dropped_quantiles=self.dropped_quantiles)
        if self.dropped_quantiles >= self.num_quantiles:
            raise ConfigError(
                f"dropped_quantiles={self.dropped_quantiles} leaves nothing of num_quantiles="
                f"{self.num_quantiles}. Give less than {self.num_quantiles}."
            )
        if self.critic_subset is not None:
            raise ConfigError(
                f"critic_subset={self.critic_subset} is not for tqc: the quantiles of all critics "
                f"are sorted together. Leave it out."
            )
        if self.actor_follows is not None:
            raise ConfigError(
                f"actor_follows={self.actor_follows!r} is not for tqc, whose actor follows the "
                f"mean of all quantiles. Leave it out."
            )


def truncated(quantiles: Tensor, dropped: int) -> Tensor:
    """The smallest quantiles of all critics together.

    Kuznetsov et al. 2020, eq. 9.

    Args:
        quantiles: [E, N, M].
        dropped: d, of which d * E of the largest are left out.

    Returns:
        [N, E * (M - d)], rising.
    """
    members, rows, count = quantiles.shape
    pooled = quantiles.transpose(0, 1).reshape(rows, members * count)
    return pooled.sort(dim=1).values[:, : members * (count - dropped)]


class TQC(SAC):
    """SAC with truncated quantile critics; arguments as for `SAC`."""

    name = "tqc"
    Config = TQCConfig
    presets = named.TQC

    def __init__(self, actor: Any, critic: Critic, config: TQCConfig, *, seed: int = 0) -> None:
        super().__init__(actor, critic, config, seed=seed)
        count = config.num_quantiles
        self._fractions = (torch.arange(count, device=self.device) + 0.5) / count

    @classmethod
    def make(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: Any,
        **settings: Any,
    ) -> SAC:
        """As `SAC.make`, for a Box with finite bounds.

        Raises:
            SpaceError: if the action space is another.
        """
        if not isinstance(action_space, spaces.Box):
            raise SpaceError(
                f"tqc needs a Box action space, got {action_space}. {algorithms_for(action_space)}"
            )
        return super().make(observation_space, action_space, config, **settings)

    @staticmethod
    def _critic_settings(actor: Any, config: Any) -> dict[str, Any]:
        return SAC._critic_settings(actor, config) | {"num_choices": config.num_quantiles}

    def _update_critics(self, batch: Any, alpha: Tensor, drawn: Draws) -> dict[str, Tensor]:
        target = self._targets(batch, alpha, drawn.noise[0])
        quantiles = self._predictions(batch["obs"], batch["action"])
        losses = torch.stack(
            [quantile_huber_loss(each, self._fractions, target, 1.0) for each in quantiles]
        )
        loss = (batch["weight"] * losses.mean(dim=0)).mean() / self.config.num_quantiles
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        value = quantiles.detach().mean(dim=2)
        priority = (value - target.mean(dim=1)).abs().mean(dim=0)
        return {"critic_loss": loss.detach(), "q_value": value.mean(), "priority": priority}

    @torch.no_grad()
    def _targets(self, batch: Any, alpha: Tensor, noise: Tensor) -> Tensor:
        """[N, E * (M - d)] samples of the return to learn from; Kuznetsov et al. 2020, eq. 11."""
        action, log_prob = self.policy.sample(batch["next_obs"], noise)
        kept = truncated(self.target(batch["next_obs"], action), self.config.dropped_quantiles)
        kept = self.backed_up(kept, -log_prob.unsqueeze(1), alpha)
        return batch["reward"].unsqueeze(1) + batch["discount"].unsqueeze(1) * kept

    def _policy_terms(
        self,
        obs: NestedTensor,
        critic: Critic,
        members: Tensor | None,
        noise: Tensor,
        *,
        average: bool,
    ) -> tuple[Tensor, Tensor]:
        """V, the mean of all quantiles (eq. 13), and H, each [N]; as `SAC._policy_terms`."""
        with torch.no_grad():
            features = critic.encode(obs)
        action, log_prob = self.policy.sample(obs, noise)
        return critic.values(features, action, members).mean(dim=(0, 2)), -log_prob

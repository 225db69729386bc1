"""Deep deterministic policy gradient (DDPG).

Lillicrap et al. 2016, arXiv:1509.02971. Reads top to bottom: `actor_loss`, `DDPG`; the
critic, its target and loss are in `algos/critics.py`.

| symbol | shape | meaning |
|---|---|---|
| mu(s) | [N, ...] | the actor's action in [-1, 1]^k |
| Q | [N] | the critic |
| y | [N] | R + discount * Q'(s', mu'(s')), with the targets' networks |

Departs from the paper: independent Gaussian noise instead of an Ornstein-Uhlenbeck process
(Fujimoto et al. 2018, arXiv:1802.09477, found no difference), actions enter the critic's
first layer, no weight decay and no batch normalization. `n_step` windows have discount
gamma^n.

Cost: one step of the critic and one of the actor per update.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from redline.algos import presets as named
from redline.algos.config import (
    OffPolicyConfig,
    OnlyIf,
    OnlyWith,
    require_fraction,
    require_noise_color,
    require_not_negative,
    require_positive,
    require_widths,
)
from redline.algos.critics import Critic, bootstrapped, critic_loss, frozen_copy
from redline.algos.off_policy_actor_critic import OffPolicyActorCritic
from redline.algos.optimizers import move_towards
from redline.policies import DeterministicActor


@dataclass(frozen=True, slots=True, kw_only=True)
class DDPGConfig(OffPolicyConfig):
    """Hyperparameters of DDPG; symbols as in Lillicrap et al. 2016, arXiv:1509.02971.

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "noise_color": (OnlyIf("exploration_noise", never=(0.0,)),),
    }

    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions while collecting, in units of half the
    distance between the bounds."""
    noise_color: float = 0.0
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    tau: float = 0.005
    """Share of the way that the target networks move towards the online ones."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate, and in proportion the two below, changes with env_steps; linear
    reaches 0 at total_env_steps."""
    actor_learning_rate: float | None = None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None = None
    """Adam's step size for the critic. None: learning_rate."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the critic's hidden layers. None: hidden_sizes, which the actor has."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        require_widths(critic_hidden_sizes=self.critic_hidden_sizes)
        require_positive(tau=self.tau, learning_rate=self.learning_rate)
        require_fraction(tau=self.tau)
        require_noise_color(self.noise_color)
        require_not_negative(exploration_noise=self.exploration_noise)
        for name in ("actor_learning_rate", "critic_learning_rate"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})


def actor_loss(value: Tensor) -> Tensor:
    """The deterministic policy gradient's objective, negated: -mean(Q(s, mu(s))).

    Lillicrap et al. 2016, eq. 6.

    Args:
        value: [N] Q(s, mu(s)); carries gradient through the action.
    """
    return -value.mean()


class DDPG(OffPolicyActorCritic):
    """DDPG for Box actions.

    Args:
        actor: the policy; kept, its target is a copy.
        critic: one Q-function on the same device; kept, its target is a copy.
        config: hyperparameters.
        seed: not used, since updates draw nothing; there because every algorithm has it.
    """

    name = "ddpg"
    Config = DDPGConfig
    defaults = named.WIDE
    presets = named.DDPG
    metric_names = ("critic_loss", "q_value", "actor_loss")

    def __init__(
        self, actor: DeterministicActor, critic: Critic, config: DDPGConfig, *, seed: int = 0
    ) -> None:
        super().__init__(actor, critic, config, seed=seed)
        self.target_policy = frozen_copy(actor)
        self._online = [*actor.parameters(), *critic.parameters()]
        self._targets = [*self.target_policy.parameters(), *self.target.parameters()]

    @staticmethod
    def _critic_settings(actor: Any, config: DDPGConfig) -> dict[str, Any]:
        return {
            "num_critics": 1,
            "action_size": actor.action_size,
            "hidden_sizes": config.critic_hidden_sizes,
        }

    def update(self, batch: Any) -> dict[str, Tensor]:
        """One step of the critic, one of the actor, and the targets follow.

        Args:
            batch: [N] transitions, with the keys in `data/rollout.py`.

        Returns:
            name -> [] metrics, and "priority" [N], |Q - y|.
        """
        return self.reported(self.learn(batch, self.begin_update()))

    def begin_update(self) -> tuple[bool, ...]:
        """Count it; every part has its turn."""
        self.updates += 1
        return ()

    def learn(self, batch: Any, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """The whole update; nothing here depends on counts."""
        del turns
        metrics, actor_metrics = self.step(batch, None, True)
        return metrics | actor_metrics

    def step(
        self, batch: Any, noise: None, actor_learns: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The update; nothing here depends on counts or generators.

        Args:
            batch: as for `update`.
            noise: None; there because TD3's step has it.
            actor_learns: True, likewise.

        Returns:
            The critic's metrics and the actor's.
        """
        with torch.no_grad():
            next_action = self.target_policy(batch["next_obs"])
            next_value = self.target(batch["next_obs"], next_action)[0]
            target = bootstrapped(batch["reward"], batch["discount"], next_value)
        values = self.critic(batch["obs"], batch["action"])
        loss, priority = critic_loss(values, target, batch["weight"])
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        actor_metrics = {"actor_loss": self._update_actor(batch["obs"])}
        self.move_targets()
        q_value = values.detach().mean()
        metrics = {"critic_loss": loss.detach(), "q_value": q_value, "priority": priority}
        return metrics, actor_metrics

    def move_targets(self) -> None:
        """Both target networks go a part of the way to the online ones."""
        move_towards(self._targets, self._online, self.config.tau)

    def _update_actor(self, obs: Any) -> Tensor:
        """One step of the actor; its loss [], without gradient."""
        with torch.no_grad():
            features = self.critic.encode(obs)
        loss = actor_loss(self.critic.values(features, self.policy(obs))[0])
        self.step_actor(loss)
        return loss.detach()

    def _modules(self) -> dict[str, nn.Module]:
        return super()._modules() | {"target_policy": self.target_policy}

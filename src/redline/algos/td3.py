"""Twin delayed deep deterministic policy gradient (TD3).

Fujimoto et al. 2018, arXiv:1802.09477. Reads top to bottom: `smoothed`, `TD3`; critics,
their target and loss are in `algos/critics.py`, the actor's loss is that of DDPG.

| symbol | shape | meaning |
|---|---|---|
| mu(s) | [N, ...] | the actor's action in [-1, 1]^k |
| Q | [E, N] | `num_critics` Q-functions |
| a' | [N, ...] | clip(mu'(s') + clip(noise, -c, c), -1, 1) |
| y | [N] | R + discount * min Q'(s', a'), with the targets' networks |

The three differences from DDPG: the minimum of the critics in y (clipped double
Q-learning), noise on the target's action (smoothing), and an actor and targets that move
once per `policy_delay` updates. The noise and c are in units of half the distance between
the bounds, in which actions are kept. `n_step` windows have discount gamma^n.

Cost: one step of the critics per update, one of the actor per `policy_delay` updates. Only
a Python counter decides which.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping
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
from redline.algos.ddpg import actor_loss
from redline.algos.off_policy_actor_critic import OffPolicyActorCritic
from redline.algos.optimizers import move_towards
from redline.policies import DeterministicActor


@dataclass(frozen=True, slots=True, kw_only=True)
class TD3Config(OffPolicyConfig):
    """Hyperparameters of TD3; symbols as in Fujimoto et al. 2018, arXiv:1802.09477.

    Actions are measured in units of half the distance between their bounds: [-1, 1].

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "noise_color": (OnlyIf("exploration_noise", never=(0.0,)),),
        "target_noise_clip": (OnlyIf("target_noise", never=(0.0,)),),
    }

    move_intervals: ClassVar[Mapping[str, str]] = {"policy_delay": "the actor"}

    exploration_noise: float = 0.1
    """Standard deviation of the noise on actions while collecting."""
    noise_color: float = 0.0
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    target_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: float = 0.5
    """Bound of that noise, c."""
    policy_delay: int = 2
    """Updates of the critics per update of the actor and of all targets, d."""
    num_critics: int = 2
    """Critics in the ensemble, whose minimum makes the target; the actor follows the first."""
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
    """Adam's step size for the critics. None: learning_rate."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the critics' hidden layers. None: hidden_sizes, which the actor has."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        require_widths(critic_hidden_sizes=self.critic_hidden_sizes)
        require_positive(
            tau=self.tau,
            policy_delay=self.policy_delay,
            num_critics=self.num_critics,
            learning_rate=self.learning_rate,
        )
        require_fraction(tau=self.tau)
        require_noise_color(self.noise_color)
        require_not_negative(
            exploration_noise=self.exploration_noise,
            target_noise=self.target_noise,
            target_noise_clip=self.target_noise_clip,
        )
        for name in ("actor_learning_rate", "critic_learning_rate"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})


def smoothed(action: Tensor, noise: Tensor, scale: float, clip: float) -> Tensor:
    """The target's action with clipped noise on it, within [-1, 1].

    Fujimoto et al. 2018, section 5.3 and algorithm 1:
        a' = clip(mu' + clip(scale * noise, -c, c), -1, 1)

    Args:
        action: [N, ...] mu'.
        noise: [N, ...] standard normal.
        scale: standard deviation, in the units of the action.
        clip: c >= 0, in the same units.
    """
    return (action + (scale * noise).clamp(-clip, clip)).clamp(-1.0, 1.0)


class TD3(OffPolicyActorCritic):
    """TD3 for Box actions.

    Args:
        actor: the policy; kept, its target is a copy.
        critic: `num_critics` Q-functions on the same device; kept, its target is a copy.
        config: hyperparameters.
        seed: of the noise on the target's actions.
    """

    name = "td3"
    Config = TD3Config
    defaults = named.WIDE
    presets = named.TD3
    metric_names = ("critic_loss", "q_value", "actor_loss")

    def __init__(
        self, actor: DeterministicActor, critic: Critic, config: TD3Config, *, seed: int = 0
    ) -> None:
        super().__init__(actor, critic, config, seed=seed)
        self.target_policy = frozen_copy(actor)
        self._online = [*actor.parameters(), *critic.parameters()]
        self._targets = [*self.target_policy.parameters(), *self.target.parameters()]

    @staticmethod
    def _critic_settings(actor: Any, config: TD3Config) -> dict[str, Any]:
        return {
            "num_critics": config.num_critics,
            "action_size": actor.action_size,
            "hidden_sizes": config.critic_hidden_sizes,
        }

    def update(self, batch: Any) -> dict[str, Tensor]:
        """One step of the critics and, when it is their turn, of the actor and the targets.

        Args:
            batch: [N] transitions, with the keys in `data/rollout.py`.

        Returns:
            name -> [] metrics; that of the actor is of its last step. "priority" [N] is the
            mean over the critics of |Q - y|.
        """
        return self.reported(self.learn(batch, self.begin_update()))

    def begin_update(self) -> tuple[bool, ...]:
        """Count it; whether it is the turn of the actor and the targets."""
        self.updates += 1
        return (self.updates % self.config.policy_delay == 0,)

    def learn(self, batch: Any, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """The whole update, what is random included; nothing here depends on counts.

        Args:
            batch: as for `update`.
            turns: as `begin_update` gave.
        """
        noise = self.draw_noise(len(batch["reward"]))
        metrics, actor_metrics = self.step(batch, noise, *turns)
        return metrics | actor_metrics

    def step(
        self, batch: Any, noise: Tensor, actor_learns: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The update from given noise: nothing here depends on counts or generators.

        Args:
            batch: as for `update`.
            noise: [N, k] standard normal, for the target's actions.
            actor_learns: whether it is the turn of the actor and the targets.

        Returns:
            The critics' metrics and the actor's, which are none if it was not its turn.
        """
        with torch.no_grad():
            next_action = self._next_action(batch["next_obs"], noise)
            next_value = self.target(batch["next_obs"], next_action).amin(dim=0)
            target = bootstrapped(batch["reward"], batch["discount"], next_value)
        values = self.critic(batch["obs"], batch["action"])
        loss, priority = critic_loss(values, target, batch["weight"])
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        actor_metrics: dict[str, Tensor] = {}
        if actor_learns:
            actor_metrics["actor_loss"] = self._update_actor(batch["obs"])
            self.move_targets()
        q_value = values.detach().mean()
        metrics = {"critic_loss": loss.detach(), "q_value": q_value, "priority": priority}
        return metrics, actor_metrics

    def move_targets(self) -> None:
        """All target networks go a part of the way to the online ones."""
        move_towards(self._targets, self._online, self.config.tau)

    def _next_action(self, next_obs: Any, noise: Tensor) -> Tensor:
        """[N, ...] a' of the target policy, smoothed."""
        action = self.target_policy(next_obs)
        noise = noise.view_as(action)
        return smoothed(action, noise, self.config.target_noise, self.config.target_noise_clip)

    def _update_actor(self, obs: Any) -> Tensor:
        """One step of the actor by the first critic; its loss [], without gradient."""
        with torch.no_grad():
            features = self.critic.encode(obs)
        values = self.critic.values(features, self.policy(obs), slice(0, 1))
        loss = actor_loss(values[0])
        self.step_actor(loss)
        return loss.detach()

    def _modules(self) -> dict[str, nn.Module]:
        return super()._modules() | {"target_policy": self.target_policy}

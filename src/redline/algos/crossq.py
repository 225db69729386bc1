"""CrossQ, for Box actions: SAC without target networks, held by batch renormalization.

Bhatt et al. 2024, "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample
Efficiency and Simplicity", arXiv:1902.05605v4. Reads top to bottom: `CrossQConfig`, `CrossQ`; the
actor and the temperature learn as in `algos/sac.py`, the layers are in `models/batch_renorm.py`.

| symbol | shape | meaning |
|---|---|---|
| Q, Q' | [E, N] | the same critics at (s, a) and at (s', a'), a' from the policy |
| y | [N] | R + discount * (min Q' - alpha log pi(a'|s')), a constant |

Q and Q' come from one forward pass of the 2 N rows together, so that both are normalized by the
same statistics of the batch: with those of (s, a) alone, (s', a') would look like no input that
the critics have seen. Only Q carries gradient, through the statistics as well.

| pass | normalized by |
|---|---|
| critics' update: Q and Q' | the batch of 2 N rows, which the running statistics take in |
| critics' update: a' | running statistics |
| actor's update: a | the batch of N rows, which the running statistics take in |
| actor's update: Q(s, a) | running statistics |
| acting, evaluation, export | running statistics |

Departs from the authors' code: weights start as `nn.Linear`'s, which is uniform within
1 / sqrt(fan in), and the deviations in d hold eps, as in Ioffe 2017.

Cost: as SAC, without the target critics; but the critics are wide. One critic of 2048 units has 60
times the weights of one of 256.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gymnasium import spaces
from torch import Tensor

from redline.algos import presets as named
from redline.algos.config import require_fraction, require_not_negative
from redline.algos.critics import (
    Critic,
    NetworkSettings,
    bootstrapped,
    critic_loss,
    network_settings,
)
from redline.algos.sac import SAC, Draws, SACConfig
from redline.data import NestedTensor
from redline.errors import ConfigError, SpaceError
from redline.models.batch_renorm import Renormalization, RenormalizedEnsemble, RenormalizedMLP
from redline.policies import ObservationNormalizer
from redline.policies.alternatives import algorithms_for
from redline.policies.make import make_torso, refuse_previous
from redline.policies.masks import network_space
from redline.policies.renormalized import RenormalizedActor


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossQConfig(SACConfig):
    """Hyperparameters of CrossQ; the values are those of Bhatt et al. 2024.

    Raises:
        ConfigError: if a value is out of range, or a setting of SAC's is not served.
    """

    move_intervals: ClassVar[Mapping[str, str]] = {"actor_update_interval": "the actor"}

    learning_rate: float = 1e-3
    """Adam's step size."""
    actor_update_interval: int = 3
    """Updates of the critics per update of the actor and the temperature."""
    adam_momentum: float = 0.5
    """Weight of the past in Adam's mean of gradients, beta 1, of actor and critics; the temperature
    keeps 0.9."""
    critic_hidden_sizes: tuple[int, ...] = (2048, 2048)
    """Widths of the critics' hidden layers; hidden_sizes are the actor's."""
    renorm_momentum: float = 0.99
    """Weight of the past in the running statistics of batch renormalization."""
    renorm_warmup: int = 100_000
    """Batches that each network learns from before its renormalization looks at the running
    statistics."""

    def __post_init__(self) -> None:
        SACConfig.__post_init__(self)
        require_not_negative(
            adam_momentum=self.adam_momentum,
            renorm_momentum=self.renorm_momentum,
            renorm_warmup=self.renorm_warmup,
        )
        require_fraction(adam_momentum=self.adam_momentum, renorm_momentum=self.renorm_momentum)
        for name in ("adam_momentum", "renorm_momentum"):
            if getattr(self, name) == 1.0:
                raise ConfigError(f"{name}=1.0 never takes in anything new. Give less than 1.")
        self._refuse_what_means_nothing()
        if not self.critic_hidden_sizes or min(self.critic_hidden_sizes) < 1:
            raise ConfigError(
                f"critic_hidden_sizes={self.critic_hidden_sizes} are no layers. Give widths of at "
                f"least 1, such as (2048, 2048)."
            )

    def _refuse_what_means_nothing(self) -> None:
        no_target = "there are no target networks"
        renormalized = "the critics have batch renormalization"
        for name, default, reason in (
            ("tau", 0.005, no_target),
            ("target_update_interval", 1, no_target),
            ("critic_subset", None, "all critics are normalized and learn together"),
            ("critic_layer_norm", False, renormalized),
            ("critic_dropout", 0.0, renormalized),
        ):
            if getattr(self, name) != default:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} is not for crossq: {reason}. Leave it out."
                )


class CrossQ(SAC):
    """SAC without target networks.

    Args:
        actor: the policy; kept, not copied.
        critic: `num_critics` Q-functions with batch renormalization, on the same device; kept.
        config: hyperparameters.
        seed: of everything that updates draw.
    """

    name = "crossq"
    Config = CrossQConfig
    presets = named.CROSSQ
    has_target = False

    def __init__(self, actor: Any, critic: Critic, config: CrossQConfig, *, seed: int = 0) -> None:
        super().__init__(actor, critic, config, seed=seed)
        for optimizer in (self.actor_optimizer, self.critic_optimizer):
            optimizer.betas = (config.adam_momentum, optimizer.betas[1])

    @classmethod
    def make(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: Any,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> CrossQ:
        """As `SAC.make`, for a Box with finite bounds.

        Raises:
            SpaceError: if the action space is another.
        """
        actor = cls.make_policy(observation_space, action_space, config, **network)
        settings = network_settings(cls.name, **network)
        critic = _make_critic(observation_space, settings, config, actor.action_size)
        return cls(actor.to(device), critic.to(device), config, seed=seed)

    @classmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: Any,
        **network: Any,
    ) -> RenormalizedActor:
        """Only the actor, on the CPU; arguments as for `make`."""
        settings = network_settings(cls.name, **network)
        if not isinstance(action_space, spaces.Box):
            raise SpaceError(
                f"crossq needs a Box action space, got {action_space}. "
                f"{algorithms_for(action_space)}"
            )
        seen = network_space(observation_space)
        refuse_previous(seen)
        encoder, features = make_torso(seen, settings.encoder, (), settings.activation)
        sizes = (features, *settings.hidden_sizes)
        actor = RenormalizedActor(
            observation_space,
            action_space,
            encoder=encoder,
            body=RenormalizedMLP(sizes, settings.activation, how=_renormalization(config)),
            features=sizes[-1],
            normalizer=ObservationNormalizer(seen) if settings.normalize_obs else None,
        )
        actor.noise_color = config.noise_color
        return actor

    def begin_update(self) -> tuple[bool, ...]:
        """Count it; whether it is the turn of the actor. No target critics ever move."""
        actor_learns, _ = super().begin_update()
        return actor_learns, False

    def _update_critics(self, batch: Any, alpha: Tensor, drawn: Draws) -> dict[str, Tensor]:
        with torch.no_grad():
            next_action, next_log_prob = self.policy.sample(batch["next_obs"], drawn.noise[0])
        values, next_values = self._joint_values(batch, next_action)
        value = self.backed_up(next_values.amin(dim=0), -next_log_prob, alpha)
        target = bootstrapped(batch["reward"], batch["discount"], value)
        loss, priority = critic_loss(values, target, batch["weight"])
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        q_value = values.detach().mean()
        return {"critic_loss": loss.detach(), "q_value": q_value, "priority": priority}

    def _joint_values(self, batch: Any, next_action: Tensor) -> tuple[Tensor, Tensor]:
        """Q(s, a), which carries gradient, and Q(s', a'), which does not, of one forward pass.

        The joint forward pass of Bhatt et al. 2024.

        Args:
            batch: [N] transitions.
            next_action: [N, ...] in [-1, 1].

        Returns:
            Both [E, N].
        """
        critic = self.critic
        features = torch.cat([critic.encode(batch["obs"]), critic.encode(batch["next_obs"])])
        actions = torch.cat([batch["action"], next_action]).flatten(1)
        ensemble: Any = critic.ensemble
        both = ensemble.learn(torch.cat([features, actions], dim=1)).squeeze(-1)
        values, next_values = both.chunk(2, dim=1)
        return values, next_values.detach()

    def _policy_terms(
        self,
        obs: NestedTensor,
        critic: Critic,
        members: Tensor | None,
        noise: Tensor,
        *,
        average: bool,
    ) -> tuple[Tensor, Tensor]:
        """V and H for the actor's update, each [N]; as `SAC._policy_terms`.

        The actor is normalized by this batch, the critics by their running statistics.
        """
        with torch.no_grad():
            features = critic.encode(obs)
        action, log_prob = self.policy.learning_sample(obs, noise)
        values = critic.values(features, action, members)
        return (values.mean(dim=0) if average else values.amin(dim=0)), -log_prob


def _renormalization(config: Any) -> Renormalization:
    return Renormalization(momentum=config.renorm_momentum, warmup=config.renorm_warmup)


def _make_critic(
    observation_space: spaces.Space[Any], network: NetworkSettings, config: Any, action_size: int
) -> Critic:
    """The critics, their weights drawn from torch's global generator."""
    seen = network_space(observation_space)
    encoder, features = make_torso(seen, network.encoder, (), network.activation)
    sizes = (features + action_size, *config.critic_hidden_sizes, 1)
    ensemble = RenormalizedEnsemble(
        config.num_critics, sizes, network.activation, how=_renormalization(config)
    )
    return Critic(encoder, ensemble)

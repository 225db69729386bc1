"""Soft actor-critic (SAC), for Box and for Discrete actions.

Haarnoja et al. 2018, arXiv:1812.05905; Discrete actions: Christodoulou 2019,
arXiv:1910.07207. Reads top to bottom: `actor_loss`, `temperature_loss`, `SAC`,
`DiscreteSAC`; critics, their target and loss are in `algos/critics.py`.

| symbol | shape | meaning |
|---|---|---|
| Q | [E, N] | `num_critics` Q-functions |
| a, log pi | [N, ...], [N] | the action in [-1, 1]^k and its log-density there, not in the bounds |
| alpha | [] | temperature: weight of the entropy |
| y | [N] | R + discount * (min Q'(s', a') - alpha log pi(a'|s')), a' from the policy |

With n_step > 1, R sums n rewards and discount is gamma^n; the entropy of the steps in
between, which the soft value also counts, is left out of y. With backup_entropy=False, as for
Discrete actions unless it is set, y has no entropy at all.

Departs from the paper: the temperature's loss is in log alpha (its gradient has the same
sign, and Adam removes most of the difference in scale); a subset of an ensemble, dropout,
layer normalization and several critic updates per actor update are settings, which give
REDQ (Chen et al. 2021, arXiv:2101.05982) and DroQ (Hiraoka et al. 2022, arXiv:2110.02034).

Cost: one step of the critics per update; one of actor and temperature, from one sample of
actions, per `actor_update_interval` updates. Only Python counters decide which.
"""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor

from redline.algos import presets as named
from redline.algos.config import (
    OffPolicyConfig,
    OnlyIf,
    OnlyWith,
    require_finite,
    require_fraction,
    require_noise_color,
    require_not_negative,
    require_positive,
    require_widths,
)
from redline.algos.critics import Critic, bootstrapped, critic_loss, network_settings
from redline.algos.off_policy_actor_critic import OffPolicyActorCritic
from redline.algos.optimizers import Adam, move_towards
from redline.data import NestedTensor
from redline.errors import ConfigError, SpaceError
from redline.policies import CategoricalActor, SquashedGaussianActor, make_actor
from redline.policies.alternatives import algorithms_for


@dataclass(frozen=True, slots=True, kw_only=True)
class SACConfig(OffPolicyConfig):
    """Hyperparameters of SAC; symbols as in Haarnoja et al. 2018, arXiv:1812.05905.

    REDQ (Chen et al. 2021, arXiv:2101.05982) is num_critics=10, critic_subset=2 and twenty
    updates per sample, the actor's once per twenty: replay_ratio=20 * batch_size,
    actor_update_interval=20. DroQ (Hiraoka et al. 2022, arXiv:2110.02034) is num_critics=2,
    critic_dropout=0.01, critic_layer_norm=True, actor_follows="mean" with the same two.

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "initial_alpha": (OnlyIf("alpha", (None,)),),
        "alpha_learning_rate": (OnlyIf("alpha", (None,)),),
        "target_entropy": (OnlyIf("alpha", (None,)),),
        "target_entropy_scale": (
            OnlyIf("alpha", (None,)),
            OnlyIf("target_entropy", (None,)),
            OnlyIf("actions", ("Discrete",)),
        ),
    }
    move_intervals: ClassVar[Mapping[str, str]] = {
        "target_update_interval": "the target network",
        "actor_update_interval": "the actor",
    }

    alpha: float | None = None
    """Temperature, the weight of the entropy. None: learned."""
    initial_alpha: float = 1.0
    """Where the learned temperature starts."""
    target_entropy: float | None = None
    """Entropy in nats that the learned temperature steers to.
    None: -dim(A) for Box actions, target_entropy_scale * log |A| for Discrete ones, where A are
    the actions that the action mask of each observation allows."""
    target_entropy_scale: float = 0.5
    """Share of the largest entropy, log |A|, that Discrete actions are steered to. At 0.5 the
    better one of two choices has a probability of 0.89, at the paper's 0.98 one of 0.58."""
    backup_entropy: bool | None = None
    """Whether the critics' target counts the entropy of the next actions, as the paper's does.
    None: for Box actions, not for Discrete ones, where it can outgrow the reward
    (Asad et al. 2025, arXiv:2509.09838). The actor's loss counts the entropy either way."""
    noise_color: float = 0.0
    """How alike the action noise of neighboring steps is while collecting: the exponent of its
    spectrum. 0: white, steps are independent; 1: pink; 2: red (Eberhard et al. 2023)."""
    tau: float = 0.005
    """Share of the way that the target critics move towards the critics."""
    target_update_interval: int = 1
    """Updates per step of the target critics."""
    actor_update_interval: int = 1
    """Updates of the critics per update of the actor and the temperature."""
    num_critics: int = 2
    """E, critics in the ensemble."""
    critic_subset: int | None = None
    """M, critics drawn anew at each update whose minimum makes the target. None: all of them."""
    actor_follows: Literal["min", "mean"] | None = None
    """What of all critics the actor maximizes: their minimum or their mean.
    None: the mean with critic_subset, else the minimum."""
    critic_layer_norm: bool = False
    """Whether the critics have layer normalization before each activation."""
    critic_dropout: float = 0.0
    """Share of the critics' hidden outputs that is dropped."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate, and in proportion the three below, changes with env_steps; linear
    reaches 0 at total_env_steps."""
    actor_learning_rate: float | None = None
    """Adam's step size for the actor. None: learning_rate."""
    critic_learning_rate: float | None = None
    """Adam's step size for the critics. None: learning_rate."""
    alpha_learning_rate: float | None = None
    """Adam's step size for the temperature. None: learning_rate."""
    critic_hidden_sizes: tuple[int, ...] | None = None
    """Widths of the critics' hidden layers. None: hidden_sizes, which the actor has."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        require_widths(critic_hidden_sizes=self.critic_hidden_sizes)
        require_positive(
            initial_alpha=self.initial_alpha,
            target_entropy_scale=self.target_entropy_scale,
            tau=self.tau,
            target_update_interval=self.target_update_interval,
            actor_update_interval=self.actor_update_interval,
            num_critics=self.num_critics,
            learning_rate=self.learning_rate,
        )
        require_fraction(
            tau=self.tau,
            target_entropy_scale=self.target_entropy_scale,
            critic_dropout=self.critic_dropout,
        )
        if self.critic_dropout == 1.0:
            raise ConfigError("critic_dropout=1.0 drops everything. Give less, such as 0.01.")
        if self.target_entropy is not None:
            require_finite(target_entropy=self.target_entropy)
        require_noise_color(self.noise_color)
        if self.alpha is not None:
            require_not_negative(alpha=self.alpha)
        for name in ("actor_learning_rate", "critic_learning_rate", "alpha_learning_rate"):
            value = getattr(self, name)
            if value is not None:
                require_positive(**{name: value})
        if self.critic_subset is not None and not 1 <= self.critic_subset <= self.num_critics:
            raise ConfigError(
                f"critic_subset={self.critic_subset} critics cannot be drawn from num_critics="
                f"{self.num_critics}. Give 1 to {self.num_critics}, or None for all."
            )

    @property
    def actor_follows_mean(self) -> bool:
        """Whether the actor maximizes the mean of the critics instead of their minimum."""
        if self.actor_follows is None:
            return self.critic_subset is not None
        return self.actor_follows == "mean"


def actor_loss(value: Tensor, entropy: Tensor, alpha: Tensor) -> Tensor:
    """The soft value of the policy's own actions, negated: -mean(V + alpha * H).

    Haarnoja et al. 2018, eq. 9, where V = min Q(s, a) and H = -log pi(a|s) of one sample a;
    Christodoulou 2019, eq. 12, where both are expectations over the choices.

    Args:
        value: [N] V; carries gradient through the action.
        entropy: [N] H in nats; carries gradient.
        alpha: [] temperature; a constant here.
    """
    return -torch.addcmul(value, alpha, entropy).mean()


def temperature_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: float | Tensor) -> Tensor:
    """What learning alpha minimizes, log alpha * (mean(H) - target): spare entropy lowers alpha.

    Haarnoja et al. 2018, eq. 18, with log alpha in place of alpha.

    Args:
        log_alpha: [] carries gradient.
        entropy: [N] H in nats; a constant here.
        target_entropy: [] in nats.
    """
    return log_alpha * (entropy.mean() - target_entropy)


class Draws(NamedTuple):
    """Everything random in one step.

    Attributes:
        noise: [N, k] standard normal, of the target's actions and, if the actor learns, its.
        members: [M] int64, the critics that make the target; None: all.
    """

    noise: list[Tensor]
    members: Tensor | None


class SAC(OffPolicyActorCritic):
    """SAC for Box actions.

    Args:
        actor: the policy; kept, not copied.
        critic: `num_critics` Q-functions on the same device; kept, its target is a copy.
        config: hyperparameters.
        seed: of everything that updates draw.
    """

    name = "sac"
    Config = SACConfig
    defaults = named.WIDE
    presets = named.SAC
    saved_parameters = ("policy", "critic", "log_alpha")
    metric_names = ("critic_loss", "q_value", "actor_loss", "entropy", "alpha")
    actor_metric_names = ("actor_loss", "entropy")
    backs_up_entropy_by_default = True

    def __init__(self, actor: Any, critic: Critic, config: SACConfig, *, seed: int = 0) -> None:
        super().__init__(actor, critic, config, seed=seed)
        learned = config.alpha is None
        start = config.initial_alpha if config.alpha is None else config.alpha
        log_alpha = math.log(start) if start > 0.0 else -math.inf
        self._log_alpha = torch.tensor(log_alpha, device=self.device, requires_grad=learned)
        self.alpha_optimizer = None
        if learned:
            self.alpha_optimizer = Adam(
                [self._log_alpha], config.alpha_learning_rate or config.learning_rate
            )
        self._target_parameters = list(self.target.parameters()) if self.has_target else []
        self.backs_up_entropy = config.backup_entropy
        if self.backs_up_entropy is None:
            self.backs_up_entropy = self.backs_up_entropy_by_default
        self.target_entropy = config.target_entropy
        if self.target_entropy is None:
            self.target_entropy = self._default_target_entropy()

    @classmethod
    def make(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: SACConfig,
        **settings: Any,
    ) -> SAC:
        """As `OffPolicyActorCritic.make`, for a Box with finite bounds or a Discrete space.

        Raises:
            SpaceError: also if a subclass of one of the two classes is given the other's space.
        """
        discrete = isinstance(action_space, spaces.Discrete)
        kind: Any = DiscreteSAC if cls is SAC and discrete else cls
        if issubclass(kind, DiscreteSAC) != discrete:
            right = DiscreteSAC if discrete else SAC
            raise SpaceError(
                f"{cls.__name__} does not learn from {action_space}: its mathematics is that of "
                f"the other kind of actions. Derive it from redline.algos.sac.{right.__name__}."
            )
        maker: Any = super(SAC, kind)
        return maker.make(observation_space, action_space, config, **settings)

    @classmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: SACConfig,
        **network: Any,
    ) -> SquashedGaussianActor | CategoricalActor:
        """Only the actor, on the CPU; arguments as for `make`."""
        settings = network_settings(cls.name, **network)
        if not isinstance(action_space, (spaces.Box, spaces.Discrete)):
            raise SpaceError(
                f"{cls.name} needs a Box or Discrete action space, got {action_space}. "
                f"{algorithms_for(action_space)}"
            )
        discrete = isinstance(action_space, spaces.Discrete)
        if discrete and config.noise_color:
            raise ConfigError(
                f"noise_color={config.noise_color} is for Box actions: the noise that chooses "
                f"among the {action_space.n} actions of {action_space} is not normal. Leave it at "
                f"0."
            )
        kind: Any = CategoricalActor if discrete else SquashedGaussianActor
        actor = make_actor(kind, observation_space, action_space, **settings.to_dict())
        actor.noise_color = config.noise_color
        return actor

    @staticmethod
    def _critic_settings(actor: Any, config: Any) -> dict[str, Any]:
        discrete = isinstance(actor, CategoricalActor)
        return {
            "num_critics": config.num_critics,
            "hidden_sizes": config.critic_hidden_sizes,
            "action_size": 0 if discrete else actor.action_size,
            "num_choices": actor.num_actions if discrete else 1,
            "layer_norm": config.critic_layer_norm,
            "dropout": config.critic_dropout,
        }

    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """Uniform actions until learning starts: "random" [B] bool."""
        return self._same_for_all(num_envs, random=env_steps < self.config.learning_starts)

    def alpha(self) -> Tensor:
        """[] the present temperature, without gradient."""
        return self._log_alpha.detach().exp()

    def update(self, batch: Any) -> dict[str, Tensor]:
        """One step of the critics and, when it is their turn, of actor, temperature and target.

        Args:
            batch: [N] transitions, with the keys in `data/rollout.py`.

        Returns:
            name -> [] metrics; those of the actor are of its last step. "priority" [N] is
            the mean over the critics of |Q - y|.
        """
        return self.reported(self.learn(batch, self.begin_update()))

    def begin_update(self) -> tuple[bool, ...]:
        """Count it; whether it is the turn of the actor, and of the target critics."""
        self.updates += 1
        actor_learns = self.updates % self.config.actor_update_interval == 0
        return actor_learns, self.updates % self.config.target_update_interval == 0

    def learn(self, batch: Any, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """The whole update, what is random included; nothing here depends on counts.

        Args:
            batch: as for `update`.
            turns: as `begin_update` gave.
        """
        actor_learns, moves = turns
        drawn = self._draw(len(batch["reward"]), 1 + actor_learns)
        metrics, actor_metrics = self.step(batch, drawn, moves)
        return metrics | actor_metrics

    def _draw(self, rows: int, count: int) -> Draws:
        """Everything random in one step: the noise of each sample of actions, and the subset."""
        noise = [self.draw_noise(rows) for _ in range(count)]
        return Draws(noise, self._subset())

    def step(
        self, batch: Any, drawn: Draws, moves: bool
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The update from what was drawn: nothing here depends on counts or generators.

        Args:
            batch: as for `update`.
            drawn: for the critics and, if it is the actor's turn, for the actor.
            moves: whether the target critics follow.

        Returns:
            The critics' metrics and the actor's, which are none if it was not its turn.
        """
        alpha = self.alpha()
        metrics = self._update_critics(batch, alpha, drawn)
        actor_metrics: dict[str, Tensor] = {}
        if len(drawn.noise) > 1:
            actor_metrics = self._update_actor(batch["obs"], alpha, drawn.noise[1])
        if moves:
            self.move_target()
        return metrics | {"alpha": alpha}, actor_metrics

    def move_target(self) -> None:
        """The target critics go a part of the way to the critics."""
        move_towards(self._target_parameters, self.critic_optimizer.parameters, self.config.tau)

    def _update_critics(self, batch: Any, alpha: Tensor, drawn: Draws) -> dict[str, Tensor]:
        with torch.no_grad():
            value, entropy = self._policy_terms(
                batch["next_obs"], self.target, drawn.members, drawn.noise[0], average=False
            )
            value = self.backed_up(value, entropy, alpha)
            target = bootstrapped(batch["reward"], batch["discount"], value)
        values = self._predictions(batch["obs"], batch["action"])
        loss, priority = critic_loss(values, target, batch["weight"])
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        q_value = values.detach().mean()
        return {"critic_loss": loss.detach(), "q_value": q_value, "priority": priority}

    def backed_up(self, value: Tensor, entropy: Tensor, alpha: Tensor) -> Tensor:
        """What the critics' target takes the next state to be worth.

        Haarnoja et al. 2018, eq. 3: the soft value V + alpha * H. Without backup_entropy: V.

        Args:
            value: [N, ...] V.
            entropy: H in nats, of a shape that broadcasts to V's.
            alpha: [] temperature.
        """
        return torch.addcmul(value, alpha, entropy) if self.backs_up_entropy else value

    def _update_actor(self, obs: NestedTensor, alpha: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """One step of the actor, and one of the temperature from the same actions."""
        average = self.config.actor_follows_mean
        value, entropy = self._policy_terms(obs, self.critic, None, noise, average=average)
        loss = actor_loss(value, entropy, alpha)
        self.step_actor(loss)
        entropy = entropy.detach()
        if self.alpha_optimizer is not None:
            self.alpha_optimizer.zero_grad()
            target_entropy = self._target_entropy_at(obs)
            temperature_loss(self._log_alpha, entropy, target_entropy).backward()
            self.alpha_optimizer.step()
        return {"actor_loss": loss.detach(), "entropy": entropy.mean()}

    def _subset(self) -> Tensor | None:
        """Which critics make the target: None for all, else M drawn without replacement."""
        config = self.config
        if config.critic_subset in (None, config.num_critics):
            return None
        order = torch.randperm(config.num_critics, generator=self.generator, device=self.device)
        return order[: config.critic_subset]

    def _default_target_entropy(self) -> float:
        """-dim(A), Haarnoja et al. 2018, table 1."""
        return -float(self.policy.action_size)

    def _target_entropy_at(self, obs: NestedTensor) -> float | Tensor:
        """[] what the mean entropy at these observations is steered to, in nats."""
        del obs  # of Box actions, none is ever forbidden
        return self.target_entropy  # type: ignore[return-value]

    def _predictions(self, obs: NestedTensor, action: Tensor) -> Tensor:
        """[E, N] Q(s, a) of what was done; carries gradient."""
        return self.critic(obs, action)

    def _policy_terms(
        self,
        obs: NestedTensor,
        critic: Critic,
        members: Tensor | None,
        noise: Tensor,
        *,
        average: bool,
    ) -> tuple[Tensor, Tensor]:
        """What the policy is worth under a critic, and its entropy, of one sample of actions.

        Args:
            obs: [N, ...] observations.
            critic: whose judgment counts.
            members: which of its Q-functions; None: all.
            noise: [N, k] standard normal.
            average: whether their mean counts instead of their minimum.

        Returns:
            V and H, each [N], with gradient through the actions.
        """
        with torch.no_grad():
            features = critic.encode(obs)
        action, log_prob = self.policy.sample(obs, noise)
        values = critic.values(features, action, members)
        return (values.mean(dim=0) if average else values.amin(dim=0)), -log_prob

    def _optimizers(self) -> dict[str, Adam]:
        own = {} if self.alpha_optimizer is None else {"alpha_optimizer": self.alpha_optimizer}
        return super()._optimizers() | own

    def state_dict(self) -> dict[str, Any]:
        """As `OffPolicyActorCritic.state_dict`, with the temperature."""
        return super().state_dict() | {"log_alpha": self._log_alpha.detach()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave; a fixed alpha is the config's.

        One that was fixed when the state was saved, and is learned now, begins with that value.
        """
        super().load_state_dict({"alpha_optimizer": {}, **state})
        # What was fixed at 0, whose logarithm no step changes, begins with initial_alpha.
        if self.config.alpha is None and not torch.isneginf(state["log_alpha"]):
            with torch.no_grad():
                self._log_alpha.copy_(state["log_alpha"])


class DiscreteSAC(SAC):
    """SAC for Discrete actions: expectations over all choices instead of a sample.

    Christodoulou 2019, arXiv:1910.07207, eqs. 10 to 12, with the minimum of the critics
    taken choice by choice. The target entropy is target_entropy_scale * log n, the positive
    entropy itself (the paper's 0.98 * -log(1 / n)), with n the choices that the action mask of
    each observation allows: no policy has an entropy above log n. A mask that allows nothing
    counts as one that allows all choices, which the policy then makes equally likely.

    Departs from the paper in two defaults. Its share, 0.98, leaves a policy of few choices next
    to no preference. And the critics' target has no entropy (Asad et al. 2025, arXiv:2509.09838):
    with it an agent is paid for every step that it stays alive, so it hovers instead of landing,
    and where no temperature reaches the target entropy, the temperature rises until the reward
    no longer counts.
    """

    backs_up_entropy_by_default = False

    def _default_target_entropy(self) -> float:
        return self.config.target_entropy_scale * math.log(self.policy.num_actions)

    def _target_entropy_at(self, obs: NestedTensor) -> float | Tensor:
        mask = self.policy.action_mask(obs)
        if mask is None or self.config.target_entropy is not None:
            return super()._target_entropy_at(obs)
        allowed = (mask != 0).sum(dim=1)
        allowed = torch.where(allowed == 0, self.policy.num_actions, allowed)
        return self.config.target_entropy_scale * allowed.log().mean()

    def draw_noise(self, rows: int) -> Tensor:
        """[0]: expectations over the choices need no sample."""
        return torch.empty(0, device=self.device)

    def _predictions(self, obs: NestedTensor, action: Tensor) -> Tensor:
        values = self.critic.choice_values(obs)
        index = action.view(1, -1, 1).expand(len(values), -1, 1)
        return values.gather(2, index).squeeze(2)

    def _policy_terms(
        self,
        obs: NestedTensor,
        critic: Critic,
        members: Tensor | None,
        noise: Tensor,
        *,
        average: bool,
    ) -> tuple[Tensor, Tensor]:
        """V = sum_a pi(a|s) Q(s, a) and H = -sum_a pi(a|s) log pi(a|s), each [N], exactly."""
        with torch.no_grad():
            values = critic.choice_values(obs, members)
            values = values.mean(dim=0) if average else values.amin(dim=0)
        distribution = self.policy.distribution(obs)
        value = (distribution.log_probs.exp() * values).sum(dim=1)
        entropy = distribution.entropy()
        mask = self.policy.action_mask(obs)
        if mask is not None:
            # The distribution calls this entropy 0, for the sake of rows that are no transitions.
            entropy = torch.where((mask != 0).any(dim=1), entropy, math.log(mask.shape[1]))
        return value, entropy

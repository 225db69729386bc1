"""Soft actor-critic (SAC), for Box and for Discrete actions.

Haarnoja et al. 2018, arXiv:1812.05905; Discrete actions: Christodoulou 2019,
arXiv:1910.07207. Reads top to bottom: `actor_loss`, `temperature_loss`, `SAC`,
`DiscreteSAC`; critics, their target and loss are in `algos/critics.py`, hyperparameters in
`algos/configs/sac.py`.

| symbol | shape | meaning |
|---|---|---|
| Q | [E, N] | `num_critics` Q-functions |
| a, log pi | [N, ...], [N] | the action in [-1, 1]^k and its log-density there, not in the bounds |
| alpha | [] | temperature: weight of the entropy |
| y | [N] | R + discount * (min Q'(s', a') - alpha log pi(a'|s')), a' from the policy |

With n_step > 1, R sums n rewards and discount is gamma^n; the entropy of the steps in
between, which the soft value also counts, is left out of y.

Departs from the paper: the temperature's loss is in log alpha (its gradient has the same
sign, and Adam removes most of the difference in scale); a subset of an ensemble, dropout,
layer normalisation and several critic updates per actor update are settings, which give
REDQ (Chen et al. 2021, arXiv:2101.05982) and DroQ (Hiraoka et al. 2022, arXiv:2110.02034).

Cost: one step of the critics per update; one of actor and temperature, from one sample of
actions, per `actor_update_interval` updates. Only Python counters decide which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from redline.algos.algorithm import load_optimizer_state, optimizer_state, set_learning_rate
from redline.algos.configs.sac import SACConfig
from redline.algos.critics import (
    Critic,
    adam,
    bootstrapped,
    critic_loss,
    frozen_copy,
    make_critic,
    move_towards,
)
from redline.algos.networks import network_settings
from redline.data import NestedTensor, Rollout
from redline.errors import SpaceError
from redline.policies import CategoricalActor, SquashedGaussianActor, make_actor


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


def temperature_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """What learning alpha minimises, log alpha * (mean(H) - target): spare entropy lowers alpha.

    Haarnoja et al. 2018, eq. 18, with log alpha in place of alpha.

    Args:
        log_alpha: [] carries gradient.
        entropy: [N] H in nats; a constant here.
        target_entropy: in nats.
    """
    return log_alpha * (entropy.mean() - target_entropy)


class SAC:
    """SAC for Box actions.

    Args:
        actor: the policy; kept, not copied.
        critic: `num_critics` Q-functions on the same device; kept, its target is a copy.
        config: hyperparameters.
        seed: of everything that updates draw.
    """

    metric_names = ("critic_loss", "q_value", "actor_loss", "entropy", "alpha")

    def __init__(self, actor: Any, critic: Critic, config: SACConfig, *, seed: int = 0) -> None:
        self.policy, self.critic, self.config = actor, critic, config
        self.target = frozen_copy(critic)
        self._parameters = [p for p in actor.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._critic_parameters = list(critic.parameters())
        self._target_parameters = list(self.target.parameters())
        self._actor_optimizer = adam(
            self._parameters, config.actor_learning_rate or config.learning_rate
        )
        self._critic_optimizer = adam(
            self._critic_parameters, config.critic_learning_rate or config.learning_rate
        )
        learned = config.alpha is None
        start = config.initial_alpha if config.alpha is None else config.alpha
        log_alpha = math.log(start) if start > 0.0 else -math.inf
        self._log_alpha = torch.tensor(log_alpha, device=self._device, requires_grad=learned)
        self._alpha_optimizer = None
        if learned:
            self._alpha_optimizer = adam(
                [self._log_alpha], config.alpha_learning_rate or config.learning_rate
            )
        self.target_entropy = config.target_entropy
        if self.target_entropy is None:
            self.target_entropy = self._default_target_entropy()
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        self._updates = 0
        # What update reports of the actor until it is that one's turn again.
        zero = torch.zeros((), device=self._device)
        self._actor_metrics = {"actor_loss": zero, "entropy": zero}

    @staticmethod
    def make(
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: SACConfig,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> SAC:
        """SAC with fresh networks, their weights drawn from torch's global generator.

        Args:
            observation_space: of one environment.
            action_space: Box with finite bounds, or Discrete.
            config: hyperparameters.
            seed: of everything that updates draw.
            device: where to act and learn.
            network: settings of the networks, as for `algos.networks.network_settings`.

        Raises:
            SpaceError: if a space cannot be served.
            ConfigError: if a setting of the network is not for SAC.
        """
        actor = SAC.make_policy(observation_space, action_space, config, **network)
        discrete = isinstance(actor, CategoricalActor)
        critic = make_critic(
            observation_space,
            network_settings("sac", **network),
            num_critics=config.num_critics,
            action_size=0 if discrete else actor.action_size,
            num_choices=actor.num_actions if discrete else 1,
            layer_norm=config.critic_layer_norm,
            dropout=config.critic_dropout,
        )
        kind = DiscreteSAC if discrete else SAC
        return kind(actor.to(device), critic.to(device), config, seed=seed)

    @staticmethod
    def make_policy(
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: SACConfig,
        **network: Any,
    ) -> SquashedGaussianActor | CategoricalActor:
        """Only the actor, on the CPU; arguments as for `make`."""
        settings = network_settings("sac", **network)
        if not isinstance(action_space, (spaces.Box, spaces.Discrete)):
            raise SpaceError(
                f"sac needs a Box or Discrete action space, got {action_space}. Use ppo."
            )
        discrete = isinstance(action_space, spaces.Discrete)
        kind: Any = CategoricalActor if discrete else SquashedGaussianActor
        return make_actor(kind, observation_space, action_space, **settings.to_dict())

    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """Uniform actions until learning starts: "random" [B] bool."""
        random = env_steps < self.config.learning_starts
        return {"random": torch.full((num_envs,), random, device=self._device)}

    def initial_priorities(self, rollout: Rollout) -> Tensor | None:
        """None: new transitions get the highest priority that replay has seen."""
        return None

    def alpha(self) -> Tensor:
        """[] the present temperature, without gradient."""
        return self._log_alpha.detach().exp()

    def update(self, batch: Any) -> dict[str, Tensor]:
        """One step of the critics and, when it is their turn, of actor, temperature and target.

        Args:
            batch: [N] transitions, with the keys in `data/batch.py`.

        Returns:
            name -> [] metrics; those of the actor are of its last step. "priority" [N] is
            the mean over the critics of |Q - y|.
        """
        config, alpha = self.config, self.alpha()
        metrics = self._update_critics(batch, alpha)
        self._updates += 1
        if self._updates % config.actor_update_interval == 0:
            self._actor_metrics = self._update_actor(batch["obs"], alpha)
        if self._updates % config.target_update_interval == 0:
            move_towards(self._target_parameters, self._critic_parameters, config.tau)
        return metrics | self._actor_metrics | {"alpha": alpha}

    def _update_critics(self, batch: Any, alpha: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            value, entropy = self._policy_terms(
                batch["next_obs"], self.target, self._subset(), average=False
            )
            soft_value = torch.addcmul(value, alpha, entropy)
            target = bootstrapped(batch["reward"], batch["discount"], soft_value)
        values = self._predictions(batch["obs"], batch["action"])
        loss, priority = critic_loss(values, target, batch["weight"])
        self._critic_optimizer.zero_grad()
        loss.backward()
        self._critic_optimizer.step()
        q_value = values.detach().mean()
        return {"critic_loss": loss.detach(), "q_value": q_value, "priority": priority}

    def _update_actor(self, obs: NestedTensor, alpha: Tensor) -> dict[str, Tensor]:
        """One step of the actor, and one of the temperature from the same actions."""
        average = self.config.critic_subset is not None
        value, entropy = self._policy_terms(obs, self.critic, None, average=average)
        loss = actor_loss(value, entropy, alpha)
        self._actor_optimizer.zero_grad()
        # Backpropagation for these inputs only: no gradient of a critic's weight is computed.
        loss.backward(inputs=self._parameters)
        self._actor_optimizer.step()
        entropy = entropy.detach()
        if self._alpha_optimizer is not None:
            self._alpha_optimizer.zero_grad()
            temperature_loss(self._log_alpha, entropy, self.target_entropy).backward()  # type: ignore[arg-type]
            self._alpha_optimizer.step()
        return {"actor_loss": loss.detach(), "entropy": entropy.mean()}

    def _subset(self) -> Tensor | None:
        """Which critics make the target: None for all, else M drawn without replacement."""
        config = self.config
        if config.critic_subset in (None, config.num_critics):
            return None
        order = torch.randperm(config.num_critics, generator=self._generator, device=self._device)
        return order[: config.critic_subset]

    def _default_target_entropy(self) -> float:
        """-dim(A), Haarnoja et al. 2018, table 1."""
        return -float(self.policy.action_size)

    def _predictions(self, obs: NestedTensor, action: Tensor) -> Tensor:
        """[E, N] Q(s, a) of what was done; carries gradient."""
        return self.critic(obs, action)

    def _policy_terms(
        self, obs: NestedTensor, critic: Critic, members: Tensor | None, *, average: bool
    ) -> tuple[Tensor, Tensor]:
        """What the policy is worth under a critic, and its entropy, of one sample of actions.

        Args:
            obs: [N, ...] observations.
            critic: whose judgement counts.
            members: which of its Q-functions; None: all.
            average: whether their mean counts instead of their minimum.

        Returns:
            V and H, each [N], with gradient through the actions.
        """
        with torch.no_grad():
            features = critic.encode(obs)
        noise = torch.randn(
            (len(features), self.policy.action_size),
            generator=self._generator,
            device=self._device,
        )
        action, log_prob = self.policy.sample(obs, noise)
        values = critic.values(features, action, members)
        return (values.mean(dim=0) if average else values.amin(dim=0)), -log_prob

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedules; all three scale with it."""
        config = self.config
        scale = values.get("learning_rate", config.learning_rate) / config.learning_rate
        for optimizer, own in (
            (self._actor_optimizer, config.actor_learning_rate),
            (self._critic_optimizer, config.critic_learning_rate),
            (self._alpha_optimizer, config.alpha_learning_rate),
        ):
            if optimizer is not None:
                set_learning_rate(optimizer, scale * (own or config.learning_rate))

    def optimizer_steps(self) -> int:
        """Steps of the critics."""
        return self._updates

    def state_dict(self) -> dict[str, Any]:
        """Networks, temperature, optimisers, generator and the count of updates."""
        state = {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "target": self.target.state_dict(),
            "log_alpha": self._log_alpha.detach(),
            "actor_optimizer": optimizer_state(self._actor_optimizer),
            "critic_optimizer": optimizer_state(self._critic_optimizer),
            "actor_metrics": dict(self._actor_metrics),
            "generator": self._generator.get_state(),
            "updates": self._updates,
        }
        if self._alpha_optimizer is not None:
            state["alpha_optimizer"] = optimizer_state(self._alpha_optimizer)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.target.load_state_dict(state["target"])
        with torch.no_grad():
            self._log_alpha.copy_(state["log_alpha"])
        load_optimizer_state(self._actor_optimizer, state["actor_optimizer"])
        load_optimizer_state(self._critic_optimizer, state["critic_optimizer"])
        if self._alpha_optimizer is not None:
            load_optimizer_state(self._alpha_optimizer, state["alpha_optimizer"])
        self._actor_metrics = {
            name: value.to(self._device) for name, value in state["actor_metrics"].items()
        }
        self._generator.set_state(state["generator"].cpu())
        self._updates = state["updates"]


class DiscreteSAC(SAC):
    """SAC for Discrete actions: expectations over all choices instead of a sample.

    Christodoulou 2019, arXiv:1910.07207, eqs. 10 to 12, with the minimum of the critics
    taken choice by choice. The target entropy is target_entropy_scale * log n, the positive
    entropy itself (the paper's 0.98 * -log(1 / n)).
    """

    def _default_target_entropy(self) -> float:
        return self.config.target_entropy_scale * math.log(self.policy.num_actions)

    def _predictions(self, obs: NestedTensor, action: Tensor) -> Tensor:
        values = self.critic.choice_values(obs)
        index = action.view(1, -1, 1).expand(len(values), -1, 1)
        return values.gather(2, index).squeeze(2)

    def _policy_terms(
        self, obs: NestedTensor, critic: Critic, members: Tensor | None, *, average: bool
    ) -> tuple[Tensor, Tensor]:
        """V = sum_a pi(a|s) Q(s, a) and H = -sum_a pi(a|s) log pi(a|s), each [N], exactly."""
        with torch.no_grad():
            values = critic.choice_values(obs, members)
            values = values.mean(dim=0) if average else values.amin(dim=0)
        distribution = self.policy.distribution(obs)
        return (distribution.log_probs.exp() * values).sum(dim=1), distribution.entropy()

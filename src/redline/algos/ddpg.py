"""Deep deterministic policy gradient (DDPG).

Lillicrap et al. 2016, arXiv:1509.02971. Reads top to bottom: `actor_loss`, `DDPG`; the
critic, its target and loss are in `algos/critics.py`, hyperparameters in
`algos/configs/ddpg.py`.

| symbol | shape | meaning |
|---|---|---|
| mu(s) | [N, ...] | the actor's action in [-1, 1]^k |
| Q | [N] | the critic |
| y | [N] | R + discount * Q'(s', mu'(s')), with the targets' networks |

Departs from the paper: independent Gaussian noise instead of an Ornstein-Uhlenbeck process
(Fujimoto et al. 2018, arXiv:1802.09477, found no difference), actions enter the critic's
first layer, no weight decay and no batch normalisation. `n_step` windows have discount
gamma^n.

Cost: one step of the critic and one of the actor per update.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from redline.algos.algorithm import load_optimizer_state, optimizer_state, set_learning_rate
from redline.algos.configs.ddpg import DDPGConfig
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
from redline.data import Rollout
from redline.errors import SpaceError
from redline.policies import DeterministicActor, make_actor


def actor_loss(value: Tensor) -> Tensor:
    """The deterministic policy gradient's objective, negated: -mean(Q(s, mu(s))).

    Lillicrap et al. 2016, eq. 6.

    Args:
        value: [N] Q(s, mu(s)); carries gradient through the action.
    """
    return -value.mean()


class DDPG:
    """DDPG for Box actions.

    Args:
        actor: the policy; kept, its target is a copy.
        critic: one Q-function on the same device; kept, its target is a copy.
        config: hyperparameters.
        seed: not used, since updates draw nothing; there because every algorithm has it.
    """

    metric_names = ("critic_loss", "q_value", "actor_loss")

    def __init__(
        self, actor: DeterministicActor, critic: Critic, config: DDPGConfig, *, seed: int = 0
    ) -> None:
        self.policy, self.critic, self.config = actor, critic, config
        self.target_policy, self.target = frozen_copy(actor), frozen_copy(critic)
        self._parameters = [p for p in actor.parameters() if p.requires_grad]
        self._device = self._parameters[0].device
        self._online = [*actor.parameters(), *critic.parameters()]
        self._targets = [*self.target_policy.parameters(), *self.target.parameters()]
        self._actor_optimizer = adam(
            self._parameters, config.actor_learning_rate or config.learning_rate
        )
        self._critic_optimizer = adam(
            critic.parameters(), config.critic_learning_rate or config.learning_rate
        )
        self._updates = 0

    @staticmethod
    def make(
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: DDPGConfig,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> DDPG:
        """DDPG with fresh networks, their weights drawn from torch's global generator.

        Args:
            observation_space: of one environment.
            action_space: Box with finite bounds.
            config: hyperparameters.
            seed: as for the class.
            device: where to act and learn.
            network: settings of the networks, as for `algos.networks.network_settings`.

        Raises:
            SpaceError: if a space cannot be served.
            ConfigError: if a setting of the network is not for DDPG.
        """
        actor = DDPG.make_policy(observation_space, action_space, config, **network)
        critic = make_critic(
            observation_space,
            network_settings("ddpg", **network),
            num_critics=1,
            action_size=actor.action_size,
        )
        return DDPG(actor.to(device), critic.to(device), config, seed=seed)

    @staticmethod
    def make_policy(
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: DDPGConfig,
        **network: Any,
    ) -> DeterministicActor:
        """Only the actor, on the CPU; arguments as for `make`."""
        settings = network_settings("ddpg", **network)
        if not isinstance(action_space, spaces.Box):
            raise SpaceError(f"ddpg needs a Box action space, got {action_space}. Use dqn or sac.")
        return make_actor(DeterministicActor, observation_space, action_space, **settings.to_dict())

    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """Uniform actions until learning starts, then noise: "random" and "noise_scale" [B]."""
        random = env_steps < self.config.learning_starts
        noise = self.config.exploration_noise
        return {
            "random": torch.full((num_envs,), random, device=self._device),
            "noise_scale": torch.full((num_envs,), noise, device=self._device),
        }

    def initial_priorities(self, rollout: Rollout) -> Tensor | None:
        """None: new transitions get the highest priority that replay has seen."""
        return None

    def update(self, batch: Any) -> dict[str, Tensor]:
        """One step of the critic, one of the actor, and the targets follow.

        Args:
            batch: [N] transitions, with the keys in `data/batch.py`.

        Returns:
            name -> [] metrics, and "priority" [N], |Q - y|.
        """
        with torch.no_grad():
            next_action = self.target_policy(batch["next_obs"])
            next_value = self.target(batch["next_obs"], next_action)[0]
            target = bootstrapped(batch["reward"], batch["discount"], next_value)
        values = self.critic(batch["obs"], batch["action"])
        loss, priority = critic_loss(values, target, batch["weight"])
        self._critic_optimizer.zero_grad()
        loss.backward()
        self._critic_optimizer.step()
        policy_loss = self._update_actor(batch["obs"])
        self._updates += 1
        move_towards(self._targets, self._online, self.config.tau)
        return {
            "critic_loss": loss.detach(),
            "q_value": values.detach().mean(),
            "actor_loss": policy_loss,
            "priority": priority,
        }

    def _update_actor(self, obs: Any) -> Tensor:
        """One step of the actor; its loss [], without gradient."""
        with torch.no_grad():
            features = self.critic.encode(obs)
        loss = actor_loss(self.critic.values(features, self.policy(obs))[0])
        self._actor_optimizer.zero_grad()
        # Backpropagation for these inputs only: no gradient of a critic's weight is computed.
        loss.backward(inputs=self._parameters)
        self._actor_optimizer.step()
        return loss.detach()

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedules; both scale with it."""
        config = self.config
        scale = values.get("learning_rate", config.learning_rate) / config.learning_rate
        for optimizer, own in (
            (self._actor_optimizer, config.actor_learning_rate),
            (self._critic_optimizer, config.critic_learning_rate),
        ):
            set_learning_rate(optimizer, scale * (own or config.learning_rate))

    def optimizer_steps(self) -> int:
        """Steps of the critic."""
        return self._updates

    def state_dict(self) -> dict[str, Any]:
        """Networks, targets, optimisers and the count of updates."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "target_policy": self.target_policy.state_dict(),
            "target": self.target.state_dict(),
            "actor_optimizer": optimizer_state(self._actor_optimizer),
            "critic_optimizer": optimizer_state(self._critic_optimizer),
            "updates": self._updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.critic.load_state_dict(state["critic"])
        self.target_policy.load_state_dict(state["target_policy"])
        self.target.load_state_dict(state["target"])
        load_optimizer_state(self._actor_optimizer, state["actor_optimizer"])
        load_optimizer_state(self._critic_optimizer, state["critic_optimizer"])
        self._updates = state["updates"]

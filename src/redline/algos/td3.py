"""Twin delayed deep deterministic policy gradient (TD3).

Fujimoto et al. 2018, arXiv:1802.09477. Reads top to bottom: `smoothed`, `TD3`; critics,
their target and loss are in `algos/critics.py`, the actor's loss is that of DDPG,
hyperparameters are in `algos/configs/td3.py`.

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

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from redline.algos.algorithm import load_optimizer_state, optimizer_state, set_learning_rate
from redline.algos.configs.td3 import TD3Config
from redline.algos.critics import (
    Critic,
    adam,
    bootstrapped,
    critic_loss,
    frozen_copy,
    make_critic,
    move_towards,
)
from redline.algos.ddpg import actor_loss
from redline.algos.networks import network_settings
from redline.data import Rollout
from redline.errors import SpaceError
from redline.policies import DeterministicActor, make_actor


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


class TD3:
    """TD3 for Box actions.

    Args:
        actor: the policy; kept, its target is a copy.
        critic: `num_critics` Q-functions on the same device; kept, its target is a copy.
        config: hyperparameters.
        seed: of the noise on the target's actions.
    """

    metric_names = ("critic_loss", "q_value", "actor_loss")

    def __init__(
        self, actor: DeterministicActor, critic: Critic, config: TD3Config, *, seed: int = 0
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
        self._generator = torch.Generator(device=self._device).manual_seed(seed)
        self._updates = 0
        # What update reports of the actor until it is that one's turn again.
        self._actor_loss = torch.zeros((), device=self._device)

    @staticmethod
    def make(
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: TD3Config,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> TD3:
        """TD3 with fresh networks, their weights drawn from torch's global generator.

        Args:
            observation_space: of one environment.
            action_space: Box with finite bounds.
            config: hyperparameters.
            seed: of the noise on the target's actions.
            device: where to act and learn.
            network: settings of the networks, as for `algos.networks.network_settings`.

        Raises:
            SpaceError: if a space cannot be served.
            ConfigError: if a setting of the network is not for TD3.
        """
        actor = TD3.make_policy(observation_space, action_space, config, **network)
        critic = make_critic(
            observation_space,
            network_settings("td3", **network),
            num_critics=config.num_critics,
            action_size=actor.action_size,
        )
        return TD3(actor.to(device), critic.to(device), config, seed=seed)

    @staticmethod
    def make_policy(
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: TD3Config,
        **network: Any,
    ) -> DeterministicActor:
        """Only the actor, on the CPU; arguments as for `make`."""
        settings = network_settings("td3", **network)
        if not isinstance(action_space, spaces.Box):
            raise SpaceError(f"td3 needs a Box action space, got {action_space}. Use dqn or sac.")
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
        """One step of the critics and, when it is their turn, of the actor and the targets.

        Args:
            batch: [N] transitions, with the keys in `data/batch.py`.

        Returns:
            name -> [] metrics; that of the actor is of its last step. "priority" [N] is the
            mean over the critics of |Q - y|.
        """
        with torch.no_grad():
            next_value = self.target(batch["next_obs"], self._next_action(batch)).amin(dim=0)
            target = bootstrapped(batch["reward"], batch["discount"], next_value)
        values = self.critic(batch["obs"], batch["action"])
        loss, priority = critic_loss(values, target, batch["weight"])
        self._critic_optimizer.zero_grad()
        loss.backward()
        self._critic_optimizer.step()
        self._updates += 1
        if self._updates % self.config.policy_delay == 0:
            self._actor_loss = self._update_actor(batch["obs"])
            move_towards(self._targets, self._online, self.config.tau)
        return {
            "critic_loss": loss.detach(),
            "q_value": values.detach().mean(),
            "actor_loss": self._actor_loss,
            "priority": priority,
        }

    def _next_action(self, batch: Any) -> Tensor:
        """[N, ...] a' of the target policy, smoothed."""
        action = self.target_policy(batch["next_obs"])
        noise = torch.randn(action.shape, generator=self._generator, device=self._device)
        return smoothed(action, noise, self.config.target_noise, self.config.target_noise_clip)

    def _update_actor(self, obs: Any) -> Tensor:
        """One step of the actor by the first critic; its loss [], without gradient."""
        with torch.no_grad():
            features = self.critic.encode(obs)
        values = self.critic.values(features, self.policy(obs), slice(0, 1))
        loss = actor_loss(values[0])
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
        """Steps of the critics."""
        return self._updates

    def state_dict(self) -> dict[str, Any]:
        """Networks, targets, optimisers, generator and the count of updates."""
        return {
            "policy": self.policy.state_dict(),
            "critic": self.critic.state_dict(),
            "target_policy": self.target_policy.state_dict(),
            "target": self.target.state_dict(),
            "actor_optimizer": optimizer_state(self._actor_optimizer),
            "critic_optimizer": optimizer_state(self._critic_optimizer),
            "actor_loss": self._actor_loss,
            "generator": self._generator.get_state(),
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
        self._actor_loss = state["actor_loss"].to(self._device)
        self._generator.set_state(state["generator"].cpu())
        self._updates = state["updates"]

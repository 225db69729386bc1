"""What DDPG, TD3 and SAC have in common beside their updates: parts, settings, saved state."""

# torch and tensordict leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.algos.algorithm import OffPolicyAlgorithm, saved_count
from redline.algos.critics import Critic, frozen_copy, make_critic, network_settings
from redline.algos.optimizers import Adam
from redline.errors import SpaceError
from redline.generator_states import set_torch_state
from redline.policies import DeterministicActor, make_actor
from redline.policies.alternatives import algorithms_for


class OffPolicyActorCritic(OffPolicyAlgorithm):
    """An actor, a critic with its target, and an optimizer for each of the two.

    Args:
        actor: the policy; kept, not copied.
        critic: Q-functions on the same device; kept, its target is a copy.
        config: hyperparameters.
        seed: of everything that updates draw.

    Attributes:
        name: of the algorithm.
        metric_names: what `update` returns beside "priority".
        actor_metric_names: those of them that are the actor's: `update` reports them until
            it is that one's turn again.
        has_target: whether there are target critics; else `target` is None.
        updates: taken so far.
    """

    saved_parameters = ("policy", "critic")
    metric_names: tuple[str, ...]
    actor_metric_names: ClassVar[tuple[str, ...]] = ("actor_loss",)
    has_target: ClassVar[bool] = True

    def __init__(self, actor: Any, critic: Critic, config: Any, *, seed: int = 0) -> None:
        self.policy, self.critic, self.config = actor, critic, config
        self.target: Any = frozen_copy(critic) if self.has_target else None
        self.parameters = [p for p in actor.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.actor_optimizer = Adam(
            self.parameters, config.actor_learning_rate or config.learning_rate
        )
        self.critic_optimizer = Adam(
            critic.parameters(), config.critic_learning_rate or config.learning_rate
        )
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.updates = 0
        self._conditions: tuple[Any, dict[str, Tensor]] = None, {}
        zero = torch.zeros((), device=self.device)
        self.actor_metrics = dict.fromkeys(self.actor_metric_names, zero)

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
    ) -> Self:
        """The algorithm with fresh networks, their weights from torch's global generator.

        Args:
            observation_space: of one environment.
            action_space: Box with finite bounds.
            config: hyperparameters.
            seed: of everything that updates draw.
            device: where to act and learn.
            network: settings of the networks, as for `algos.critics.network_settings`.

        Raises:
            SpaceError: if a space cannot be served.
            ConfigError: if a setting of the network is not for this algorithm.
        """
        actor = cls.make_policy(observation_space, action_space, config, **network)
        critic = make_critic(
            observation_space,
            network_settings(cls.name, **network),
            **cls._critic_settings(actor, config),
        )
        return cls(actor.to(device), critic.to(device), config, seed=seed)

    @classmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: Any,
        **network: Any,
    ) -> Any:
        """Only the actor, on the CPU; arguments as for `make`."""
        settings = network_settings(cls.name, **network)
        if not isinstance(action_space, spaces.Box):
            raise SpaceError(
                f"{cls.name} needs a Box action space, got {action_space}. "
                f"{algorithms_for(action_space)}"
            )
        actor = make_actor(
            DeterministicActor, observation_space, action_space, **settings.to_dict()
        )
        actor.noise_color = config.noise_color
        return actor

    @staticmethod
    @abstractmethod
    def _critic_settings(actor: Any, config: Any) -> dict[str, Any]:
        """Arguments of `critics.make_critic`."""

    def reported(self, found: dict[str, Any]) -> dict[str, Any]:
        """The metrics found, and those of the actor's last turn if this was not one."""
        self.actor_metrics |= {n: found[n] for n in self.actor_metric_names if n in found}
        return found | self.actor_metrics

    def carried_metrics(self) -> dict[str, Tensor]:
        """The actor's, which are reported until it is its turn again."""
        return self.actor_metrics

    def draw_noise(self, rows: int) -> Tensor:
        """[rows, k] standard normal numbers for the actions of an update."""
        return torch.randn(
            (rows, self.policy.action_size), generator=self.generator, device=self.device
        )

    def step_actor(self, loss: Tensor) -> None:
        """One step of the actor down a loss []; what a callback froze of it stays as it is."""
        self.actor_optimizer.zero_grad()
        learning = [p for p in self.parameters if p.requires_grad]
        if learning:
            # Backpropagation for these inputs only: no gradient of a critic's weight is computed.
            loss.backward(inputs=learning)
            self.actor_optimizer.step()

    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """Uniform actions until learning starts, then noise: "random" and "noise_scale" [B]."""
        random = env_steps < self.config.learning_starts
        return self._same_for_all(
            num_envs, random=random, noise_scale=self.config.exploration_noise
        )

    def _same_for_all(self, num_envs: int, **values: float) -> dict[str, Tensor]:
        """Name -> [B] of one value; the same tensors as long as nothing changes."""
        key = (num_envs, values)
        if key != self._conditions[0]:
            made = {n: torch.full((num_envs,), v, device=self.device) for n, v in values.items()}
            self._conditions = key, made
        return self._conditions[1]

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedules; all optimizers scale with it."""
        config = self.config
        scale = values.get("learning_rate", config.learning_rate) / config.learning_rate
        for name, optimizer in self._optimizers().items():
            own = getattr(config, name.replace("optimizer", "learning_rate"))
            optimizer.set_learning_rate(scale * (own or config.learning_rate))

    def optimizer_steps(self) -> int:
        """Steps of the critics."""
        return self.updates

    def _modules(self) -> dict[str, nn.Module]:
        """Name -> network, as saved."""
        own: dict[str, nn.Module] = {"policy": self.policy, "critic": self.critic}
        return own | {"target": self.target} if self.has_target else own

    def _optimizers(self) -> dict[str, Adam]:
        """Name -> optimizer, as saved."""
        return {
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
        }

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimizers, generator, the actor's metrics and the count of updates."""
        parts = self._modules() | self._optimizers()
        return {name: part.state_dict() for name, part in parts.items()} | {
            "actor_metrics": dict(self.actor_metrics),
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        for name, part in (self._modules() | self._optimizers()).items():
            part.load_state_dict(state[name])
        self.actor_metrics = {
            name: value.to(self.device) for name, value in state["actor_metrics"].items()
        }
        set_torch_state(self.generator, state["generator"])
        self.updates = saved_count(state, "updates")

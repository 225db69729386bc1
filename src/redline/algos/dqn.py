"""The DQN family: double, dueling, n-step, prioritized, distributional, noisy; Rainbow.

Mnih et al. 2015 (Nature 518); double: van Hasselt et al. 2016, arXiv:1509.06461; dueling: Wang
et al. 2016, arXiv:1511.06581; prioritized: Schaul et al. 2016, arXiv:1511.05952; C51: Bellemare et
al. 2017, arXiv:1707.06887; QR-DQN: Dabney et al. 2018, arXiv:1710.10044; IQN: Dabney et al. 2018,
arXiv:1806.06923; noisy: Fortunato et al. 2018, arXiv:1706.10295; all together: Hessel et al.
2018, arXiv:1710.02298.

| symbol | shape | meaning |
|---|---|---|
| R | [N] | `reward`, discounted sum over the window of k rows |
| D | [N] | `discount`: gamma^k, and 0 where the window terminated |
| s' | [N, ...] | `next_obs`, the true successor of the window |
| a* | [N] | argmax_a Q(s', a), of the online network if double, else of the target network |
| Z | | atoms, quantiles or fractions; 1 for the mean |

Every target is R + D * X with X what the target network says of (s', a*): its value, each of its
atoms, or each of its quantiles. An action that the mask of s' forbids is never a*.

Departs from the papers: Adam for all; gradients may be clipped by norm; the quantile losses
are weighted and prioritized like the others.

Cost: one optimizer step per batch. `update` never waits for the device.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos import presets as named
from redline.algos.algorithm import OffPolicyAlgorithm, clip_gradients, saved_count
from redline.algos.config import OnlyIf, OnlyWith, require_finite, require_positive
from redline.algos.distributional import (
    categorical_divergence,
    project_categorical,
    quantile_huber_loss,
)
from redline.algos.optimizers import Adam
from redline.algos.q_learning import (
    Exploration,
    QLearningConfig,
    TargetNetwork,
    huber_loss,
    initial_priorities,
    make_q_policy,
)
from redline.data import Rollout
from redline.errors import ConfigError
from redline.generator_states import set_torch_state
from redline.models.q_heads import (
    CategoricalValueHead,
    ImplicitQuantileHead,
    QHead,
    QuantileHead,
    ScalarHead,
    midpoints,
)
from redline.policies.q_policy import QPolicy, at_action


@dataclass(frozen=True, slots=True, kw_only=True)
class DQNConfig(QLearningConfig):
    """Hyperparameters of DQN and of all that Rainbow (Hessel et al. 2018) adds to it.

    Raises:
        ConfigError: if a value is out of range, or two contradict each other.
    """

    only_with: ClassVar[OnlyWith] = {
        "noisy_std": (OnlyIf("noisy", (True,)),),
        "num_atoms": (OnlyIf("value_distribution", ("categorical",)),),
        "v_min": (OnlyIf("value_distribution", ("categorical",)),),
        "v_max": (OnlyIf("value_distribution", ("categorical",)),),
        "num_quantiles": (OnlyIf("value_distribution", ("quantile",)),),
        "num_fractions": (OnlyIf("value_distribution", ("implicit",)),),
        "num_target_fractions": (OnlyIf("value_distribution", ("implicit",)),),
        "num_acting_fractions": (OnlyIf("value_distribution", ("implicit",)),),
        "huber_threshold": (OnlyIf("value_distribution", never=("categorical",)),),
    }

    batch_size: int = 64
    """Transitions per update. A smaller batch makes more updates: replay_ratio / batch_size per
    env_step."""
    rollout_length: int = 4
    """T, env_steps per environment per iteration; the iteration's updates follow."""
    replay_ratio: float = 32.0
    """Samples consumed by updates per sample collected: updates per iteration =
    replay_ratio * T * B / batch_size. What is left over is carried on."""
    learning_starts: int = 1_000
    """env_steps collected before the first update."""
    learning_rate: float = 2.5e-4
    """Adam's step size."""
    target_update_interval: int = 500
    """Optimizer steps between updates of the target network."""
    noisy: bool = False
    """Whether the layers after the torso have noisy weights (Fortunato et al. 2018). They
    explore by themselves once learning has started: use a small epsilon_final, such as 0."""
    noisy_std: float = 0.5
    """Initial standard deviation of the noisy weights, times the square root of fan-in."""
    value_distribution: Literal["none", "categorical", "quantile", "implicit"] = "none"
    """What is learned of the return: its mean, C51's categorical distribution, QR-DQN's fixed
    quantiles, or IQN's implicit quantile function."""
    num_atoms: int = 51
    """Atoms of the categorical distribution."""
    v_min: float = -10.0
    """Value of its first atom: the least discounted return to tell apart."""
    v_max: float = 10.0
    """Value of its last atom: the greatest."""
    num_quantiles: int = 200
    """Quantiles of the quantile distribution."""
    num_fractions: int = 64
    """Fractions drawn for the predictions of the implicit distribution (N of IQN)."""
    num_target_fractions: int = 64
    """Fractions drawn for its targets (N')."""
    num_acting_fractions: int = 32
    """Evenly spaced fractions whose mean is the value that acts and is maximized (K)."""

    def __post_init__(self) -> None:
        QLearningConfig.__post_init__(self)
        require_positive(
            noisy_std=self.noisy_std,
            num_quantiles=self.num_quantiles,
            num_fractions=self.num_fractions,
            num_target_fractions=self.num_target_fractions,
            num_acting_fractions=self.num_acting_fractions,
        )
        if self.num_atoms < 2:
            raise ConfigError(
                f"num_atoms={self.num_atoms} is no distribution. Use at least 2; 51 is usual."
            )
        require_finite(v_min=self.v_min, v_max=self.v_max)
        if not self.v_min < self.v_max:
            raise ConfigError(
                f"v_min={self.v_min} is not below v_max={self.v_max}: the atoms span the "
                "discounted returns. Give the least and the greatest to tell apart."
            )
        if self.value_distribution in ("quantile", "implicit") and self.huber_threshold is None:
            raise ConfigError(
                f"huber_threshold=None is a squared error, and value_distribution="
                f"{self.value_distribution!r} needs the quantile Huber loss. Give a threshold, "
                "such as 1.0."
            )


class Target(NamedTuple):
    """A distribution of the return to learn from.

    Attributes:
        values: [N, J] where its mass lies.
        probability: [N, J] how much of it; None: equal parts.
    """

    values: Tensor
    probability: Tensor | None

    def mean(self) -> Tensor:
        """[N] its expectation."""
        if self.probability is None:
            return self.values.mean(-1)
        return (self.values * self.probability).sum(-1)


class Fractions(NamedTuple):
    """The random quantile fractions of one step; None without an implicit quantile head.

    Attributes:
        target: [N, N'] of the target network.
        online: [N, N''] of the online one.
    """

    target: Tensor | None
    online: Tensor | None


_NO_FRACTIONS = Fractions(None, None)


class DQN(OffPolicyAlgorithm):
    """A Q-learner of discrete actions.

    Args:
        policy: the online network, which acts and learns.
        target_policy: one of the same make; it becomes equal to the online one.
        config: hyperparameters.
        seed: of the fractions and the weight noise.

    Raises:
        ConfigError: if the policy is recurrent.
    """

    name = "dqn"
    Config = DQNConfig
    defaults = named.DQN_DEFAULTS
    variants = named.DQN_VARIANTS
    variant_presets = named.DQN_VARIANT_PRESETS
    presets = named.DQN
    metric_names = ("loss", "q_mean", "target_mean", "grad_norm")

    def __init__(
        self, policy: QPolicy, target_policy: QPolicy, config: DQNConfig, *, seed: int
    ) -> None:
        if policy.is_recurrent:
            raise ConfigError(
                "DQN learns from single transitions, so its policy cannot be recurrent. Use r2d1, "
                "or core='none'."
            )
        self.policy, self.target_policy, self.config = policy, target_policy, config
        self._head: QHead = policy.head
        self._is_noisy = policy.head.is_noisy
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = Adam(self.parameters, config.learning_rate, eps=config.adam_eps)
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.target_network = TargetNetwork(
            policy, target_policy, config.target_update_interval, config.tau
        )
        self._midpoints = midpoints(self._head.num_values).to(self.device)
        self._exploration = Exploration(config, self.device)
        self._highest_priority = torch.ones((), device=self.device)
        self.updates = 0
        self._draw_noise()

    @classmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: DQNConfig,
        **network: Any,
    ) -> QPolicy:
        """The network of these settings, drawn from torch's global generator, on the CPU.

        Args:
            observation_space: of one environment.
            action_space: of one environment: Discrete.
            config: hyperparameters, which choose the head.
            network: settings as for `algos.q_learning.make_q_policy`.

        Raises:
            SpaceError: if a space cannot be served.
            ConfigError: if a setting does not apply; a core is for R2D1.
        """
        core = network.get("core", "none")
        if core != "none":
            raise ConfigError(
                f"core={core!r} does not go with dqn, which learns from single transitions. Use "
                f"r2d1, which learns from sequences, or core='none'."
            )

        def make_head(features: int, num_actions: int) -> QHead:
            return _make_head(config, features, num_actions)

        return make_q_policy(observation_space, action_space, make_head, **network)

    @classmethod
    def caution(cls, config: Any, changed: frozenset[str], *, clips_reward: bool) -> str | None:
        """Where nobody has chosen the range of returns that C51 tells apart."""
        present, usual = (config.v_min, config.v_max), (DQNConfig().v_min, DQNConfig().v_max)
        is_chosen = present != usual or not changed.isdisjoint(("v_min", "v_max"))
        if config.value_distribution != "categorical" or is_chosen or clips_reward:
            return None
        horizon = "" if config.gamma == 1.0 else f" of some {1.0 / (1.0 - config.gamma):.0f} steps"
        return (
            f"value_distribution='categorical' tells returns apart from v_min={config.v_min:g} to "
            f"v_max={config.v_max:g} only, which suits rewards clipped to 1. Give v_min and v_max: "
            f"the least and the greatest discounted return{horizon} in this environment."
        )

    @classmethod
    def make(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: DQNConfig,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> DQN:
        """DQN on a new network; arguments and errors as for `make_policy`."""
        policy = cls.make_policy(observation_space, action_space, config, **network).to(device)
        return cls(policy, copy.deepcopy(policy), config, seed=seed)

    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """`epsilon` [B] of the next collection."""
        return {"epsilon": self._exploration(env_steps, total_env_steps, num_envs)}

    def initial_priorities(self, rollout: Rollout) -> Tensor | None:
        """[T, B] one-step TD errors of what was just collected.

        None where the loss, and so the priority, is no TD error: with a distribution.
        """
        if self.config.value_distribution != "none":
            return None
        return initial_priorities(
            rollout["reward"],
            rollout["terminated"],
            rollout["truncated"],
            rollout["valid"],
            rollout["q_taken"],
            rollout["q_max"],
            gamma=self.config.gamma,
            highest=self._highest_priority,
        )

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedule."""
        self.optimizer.set_learning_rate(values.get("learning_rate", self.config.learning_rate))

    def update(self, batch: TensorDict) -> dict[str, Any]:
        """One optimizer step.

        Args:
            batch: [N] transitions.

        Returns:
            name -> metrics, each [] or a number, and "priority" [N]: the TD error's size, C51's
            divergence or the quantile loss of each transition.
        """
        return self.learn(batch, self.begin_update())

    def begin_update(self) -> tuple[bool, ...]:
        """Count it; whether the target network follows."""
        self.updates += 1
        return (self.target_network.is_due(self.updates),)

    def learn(self, batch: Any, turns: tuple[bool, ...]) -> dict[str, Any]:
        """The whole update, what is random included; nothing here depends on counts.

        Args:
            batch: as for `update`.
            turns: as `begin_update` gave.
        """
        self._draw_noise()
        drawn = _NO_FRACTIONS
        if isinstance(self._head, ImplicitQuantileHead):
            rows = len(batch["reward"])
            drawn = Fractions(
                self._fractions(rows, self.config.num_target_fractions),
                self._fractions(rows, self.config.num_fractions),
            )
        return self.step(batch, drawn, *turns)

    def step(self, batch: Any, drawn: Fractions, moves: bool) -> dict[str, Any]:
        """The update from what was drawn: nothing here depends on counts or generators.

        Args:
            batch: as for `update`.
            drawn: the fractions of the two networks.
            moves: whether the target network follows.
        """
        target = self.target(batch, drawn.target)
        values = self.policy.evaluate(batch["obs"], fractions=drawn.online)
        chosen = at_action(values.outputs, batch["action"])
        losses, priority = self._losses(chosen, target, drawn.online)
        loss = (batch["weight"] * losses).mean()
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_gradients(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        if moves:
            self.target_network.move()
        priority = priority.detach()
        self.note_priority(priority)
        return {
            "loss": loss.detach(),
            "q_mean": at_action(values.q.detach(), batch["action"]).mean(),
            "target_mean": target.mean().mean(),
            "grad_norm": grad_norm,
            "priority": priority,
        }

    @property
    def highest_priority(self) -> Tensor:
        """[] of all batches so far; always the same memory."""
        return self._highest_priority

    def note_priority(self, priority: Tensor) -> None:
        """Keep the highest priority so far, given those [N] of one batch."""
        torch.maximum(self._highest_priority, priority.amax(), out=self._highest_priority)

    @torch.no_grad()
    def target(self, batch: Any, fractions: Tensor | None = None) -> Target:
        """R + D * X, with X what the target network says of the successor's best action.

        Args:
            batch: [N] transitions.
            fractions: [N, N'] at which an implicit quantile head is asked; None draws them.
        """
        obs = batch["next_obs"]
        if fractions is None:
            fractions = self._fractions(len(batch["reward"]), self.config.num_target_fractions)
        values = self.target_policy.evaluate(obs, fractions=fractions)
        if self.config.double_q:
            best = self.policy.evaluate(obs).best()
        elif fractions is not None:
            # The maximum is over the mean of the fixed fractions, as in acting.
            best = self.target_policy.evaluate(obs).best()
        else:
            best = values.best()
        outputs = at_action(values.outputs, best)
        reward, discount = batch["reward"].unsqueeze(-1), batch["discount"].unsqueeze(-1)
        if isinstance(self._head, CategoricalValueHead):
            return Target(reward + discount * self._head.atoms, outputs.softmax(-1))
        return Target(reward + discount * outputs, None)

    def _losses(
        self, chosen: Tensor, target: Target, fractions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Loss and priority [N] of the outputs [N, Z] at the actions taken."""
        if isinstance(self._head, CategoricalValueHead) and target.probability is not None:
            projected = project_categorical(target.values, target.probability, self._head.atoms)
            divergence = categorical_divergence(chosen, projected)
            return divergence, divergence.clamp(min=0.0)
        if isinstance(self._head, ScalarHead):
            error = (target.values - chosen).squeeze(-1)
            return huber_loss(error, self.config.huber_threshold), error.abs()
        at = self._midpoints if fractions is None else fractions
        threshold = self.config.huber_threshold or 1.0
        loss = quantile_huber_loss(chosen, at, target.values, threshold)
        return loss, loss

    def _fractions(self, rows: int, count: int) -> Tensor | None:
        """[rows, count] uniform numbers for an implicit quantile head; None for others."""
        if not isinstance(self._head, ImplicitQuantileHead):
            return None
        return torch.rand((rows, count), generator=self.generator, device=self.device)

    def _draw_noise(self) -> None:
        """New weight noise, its own for each of the two networks."""
        if self._is_noisy:
            self._head.resample(self.generator)
            self.target_policy.head.resample(self.generator)

    def optimizer_steps(self) -> int:
        """Optimizer steps taken."""
        return self.updates

    def state_dict(self) -> dict[str, Any]:
        """Both networks with their noise, optimizer state, RNG and counts."""
        return {
            "policy": self.policy.state_dict(),
            "target": self.target_policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "highest_priority": self._highest_priority,
            "optimizer_steps": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.target_policy.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        set_torch_state(self.generator, state["generator"])
        self._highest_priority.copy_(state["highest_priority"])
        self.updates = saved_count(state, "optimizer_steps")


def _make_head(config: DQNConfig, features: int, num_actions: int) -> QHead:
    """The head that the config asks for."""
    streams: dict[str, Any] = {
        "dueling": config.dueling,
        "hidden_sizes": config.head_hidden_sizes,
        "noisy_std": config.noisy_std if config.noisy else None,
    }
    match config.value_distribution:
        case "categorical":
            return CategoricalValueHead(
                features,
                num_actions,
                num_atoms=config.num_atoms,
                v_min=config.v_min,
                v_max=config.v_max,
                **streams,
            )
        case "quantile":
            return QuantileHead(features, num_actions, num_values=config.num_quantiles, **streams)
        case "implicit":
            return ImplicitQuantileHead(
                features, num_actions, num_acting_fractions=config.num_acting_fractions, **streams
            )
        case "none":
            return ScalarHead(features, num_actions, **streams)

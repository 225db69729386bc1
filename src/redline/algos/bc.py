"""Behavioral cloning (BC): act as recorded episodes do.

Pomerleau 1991, "Efficient training of artificial neural networks for autonomous navigation". Reads
top to bottom: `BCConfig`, `cloning_loss`, `BC.update`.

| symbol | shape | meaning |
|---|---|---|
| s, a | [1, N] | observations and the actions that were taken there, drawn from the data |
| log pi | [1, N] | log-probability of a under the policy, in nats |

Data: `data=...` names them; `redline collect` writes such. Instead of stepping environments, each
iteration draws a rollout [1, N] of single steps, uniformly and with replacement. So env_steps
count recorded steps that were learned from. Environments are there for evaluation only.

Departs from the paper: the policy is a distribution and learns by maximum likelihood, so that a
run of another algorithm can begin with it (`init_from`).

Cost: one optimizer step per iteration. `update` never waits for the device.
"""

# torch and gymnasium leave many types open.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from torch import Tensor

from redline.algos import presets as named
from redline.algos.algorithm import OnPolicyAlgorithm, clip_gradients, saved_count
from redline.algos.config import require_not_negative, require_positive
from redline.algos.critics import network_settings
from redline.algos.optimizers import Adam
from redline.data import Rollout, map_leaves, masked_mean
from redline.errors import ConfigError
from redline.policies import (
    CategoricalActor,
    Policy,
    SquashedGaussianActor,
    make_actor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BCConfig:
    """Hyperparameters of behavioral cloning.

    Raises:
        ConfigError: if a value is out of range.
    """

    batch_size: int = 256
    """N, recorded steps per update."""
    policy_of: Literal["auto", "sac", "ppo"] = "auto"
    """Whose policy learns, so that a run of that algorithm can begin with it (init_from).
    auto: that of sac for Discrete and for bounded Box actions, that of ppo for others."""
    entropy_coef: float = 1e-3
    """Weight of the entropy bonus, which keeps a policy that explains its data from ruling out
    everything else."""
    learning_rate: float = 1e-3
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""

    def __post_init__(self) -> None:
        require_positive(batch_size=self.batch_size, learning_rate=self.learning_rate)
        require_not_negative(entropy_coef=self.entropy_coef, max_grad_norm=self.max_grad_norm)

    @property
    def num_envs(self) -> int:
        """Columns of a rollout: each is one recorded step."""
        return self.batch_size

    @property
    def rollout_length(self) -> int:
        """Rows of a rollout."""
        return 1

    @property
    def samples_per_update(self) -> int:
        """Recorded steps that one update learns from."""
        return self.batch_size


def cloning_loss(log_prob: Tensor, entropy: Tensor, valid: Tensor, entropy_coef: float) -> Tensor:
    """The negative log-likelihood of the recorded actions, less an entropy bonus.

        loss = -mean(log pi(a|s) + c * H(pi(.|s)))

    Args:
        log_prob: [...] log pi(a|s), in nats; carries gradient.
        entropy: [...] H, in nats; carries gradient.
        valid: [...] bool, the rows to average over.
        entropy_coef: c >= 0, dimensionless.

    Returns:
        The loss [].
    """
    return -masked_mean(log_prob + entropy_coef * entropy, valid)


class BC(OnPolicyAlgorithm):
    """Behavioral cloning of a policy.

    Args:
        policy: acts, and learns to act as the data do.
        config: hyperparameters.
        seed: unused, BC draws nothing; there because all algorithms are made alike.
    """

    name = "bc"
    Config = BCConfig
    defaults = named.BC
    learns_from_data = True
    config: BCConfig

    def __init__(self, policy: Policy, config: BCConfig, seed: int = 0) -> None:
        del seed
        self.policy, self.config = policy, config
        self.parameters = [p for p in policy.parameters() if p.requires_grad]
        self.device = self.parameters[0].device
        self.optimizer = Adam(self.parameters, config.learning_rate)
        self.updates = 0

    @classmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: BCConfig,
        **network: Any,
    ) -> Policy:
        """The policy that the algorithm `policy_of` would have.

        Raises:
            SpaceError: if that algorithm does not act in the space.
            ConfigError: if a setting of the network does not apply.
        """
        if network.get("core", "none") != "none":
            raise ConfigError(
                f"core={network['core']!r}: bc learns from single steps, which hold no recurrent "
                f"state. Use core='none'."
            )
        if config.policy_of == "ppo" or (config.policy_of == "auto" and not _is_sacs(action_space)):
            return super().make_policy(observation_space, action_space, config, **network)
        settings = network_settings("bc", **network)
        discrete = isinstance(action_space, spaces.Discrete)
        kind: Any = CategoricalActor if discrete else SquashedGaussianActor
        return make_actor(kind, observation_space, action_space, **settings.to_dict())

    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Take one optimizer step from one rollout of recorded steps.

        Args:
            rollout: [T, B] with obs, action and valid.

        Returns:
            loss; log_prob and entropy, means in nats; grad_norm, before clipping. Each [].
        """
        return self.learn(rollout, self.begin_update())

    def begin_update(self) -> tuple[bool, ...]:
        """Count one more update; every part has its turn."""
        self.updates += 1
        return ()

    def learn(self, rollout: Rollout, turns: tuple[bool, ...]) -> dict[str, Tensor]:
        """The whole update; nothing here depends on counts.

        Args:
            rollout: as for `update`.
            turns: (), every part has its turn.
        """
        del turns
        obs, action = (map_leaves(_flat, rollout[name]) for name in ("obs", "action"))
        return self.step(obs, action, rollout.valid.flatten())

    def step(self, obs: Any, action: Any, valid: Tensor) -> dict[str, Tensor]:
        """One optimizer step from N recorded steps.

        Args:
            obs: [N, ...] in the space's structure.
            action: [N, ...] as it was recorded.
            valid: [N] bool, the rows to average over.

        Returns:
            As `update`.
        """
        policy: Any = self.policy
        output = policy.evaluate_actions(obs, action)
        loss = cloning_loss(output.log_prob, output.entropy, valid, self.config.entropy_coef)
        self.optimizer.zero_grad()
        loss.backward()
        grad_norm = clip_gradients(self.parameters, self.config.max_grad_norm)
        self.optimizer.step()
        return {
            "loss": loss.detach(),
            "log_prob": masked_mean(output.log_prob.detach(), valid),
            "entropy": masked_mean(output.entropy.detach(), valid),
            "grad_norm": grad_norm,
        }

    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take `learning_rate` from the schedule."""
        self.optimizer.set_learning_rate(values["learning_rate"])

    def optimizer_steps(self) -> int:
        """One per update."""
        return self.updates

    def state_dict(self) -> dict[str, Any]:
        """Policy, optimizer and the count of updates."""
        return {
            "policy": self.policy.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = saved_count(state, "updates")


def _flat(leaf: Tensor) -> Tensor:
    """[T, B, ...] as [T * B, ...]."""
    return leaf.flatten(0, 1)


def _is_sacs(space: spaces.Space[Any]) -> bool:
    """Whether SAC acts in such a space."""
    if isinstance(space, spaces.Box):
        bounded = np.isfinite(space.low).all() and np.isfinite(space.high).all()
        return bool(bounded and space.shape)
    return isinstance(space, spaces.Discrete)

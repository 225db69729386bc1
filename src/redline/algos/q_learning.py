"""What DQN and R2D1 share: the network from settings, exploration, targets, losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.algos.config import (
    OffPolicyConfig,
    OnlyIf,
    OnlyWith,
    require_fraction,
    require_not_negative,
    require_positive,
)
from redline.algos.optimizers import move_towards
from redline.errors import ConfigError
from redline.models import make_core
from redline.models.noisy import NoisyLinear
from redline.models.q_heads import QHead
from redline.policies.make import ModuleFactory, make_torso, refuse_previous
from redline.policies.masks import network_space
from redline.policies.normalizer import ObservationNormalizer
from redline.policies.q_policy import QPolicy, require_discrete
from redline.returns.value_rescaling import rescale, unrescale


@dataclass(frozen=True, slots=True, kw_only=True)
class QLearningConfig(OffPolicyConfig):
    """What every Q-learner of discrete actions has.

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "epsilon_initial": (OnlyIf("epsilon_schedule", ("linear",)),),
        "epsilon_final": (OnlyIf("epsilon_schedule", ("linear",)),),
        "epsilon_fraction": (OnlyIf("epsilon_schedule", ("linear",)),),
        "ape_x_epsilon": (OnlyIf("epsilon_schedule", ("ape-x",)),),
        "ape_x_alpha": (OnlyIf("epsilon_schedule", ("ape-x",)),),
    }

    double_q: bool = False
    """Whether the online network chooses the action that the target network values
    (van Hasselt et al. 2016)."""
    dueling: bool = False
    """Whether Q is a state value plus advantages less their mean over actions
    (Wang et al. 2016)."""
    head_hidden_sizes: tuple[int, ...] = ()
    """Hidden layers of each stream between the torso (or core) and the outputs."""
    huber_threshold: float | None = 1.0
    """TD errors beyond it count linearly; kappa of the quantile losses. None: squared error."""
    learning_rate: float = 1e-4
    """Adam's step size."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """How learning_rate changes with env_steps; linear reaches 0 at total_env_steps."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float = 10.0
    """Gradients are scaled down to this L2 norm; 0 switches clipping off."""
    target_update_interval: int = 1_000
    """Optimizer steps between updates of the target network."""
    tau: float = 1.0
    """Share of the online parameters in each update of the target; 1 copies them."""
    epsilon_schedule: Literal["linear", "ape-x"] = "linear"
    """linear: one epsilon for all environments, falling with global env_steps.
    ape-x: a constant one for each environment, ape_x_epsilon^(1 + ape_x_alpha * i / (B - 1))."""
    epsilon_initial: float = 1.0
    """Share of random actions at the start (linear)."""
    epsilon_final: float = 0.05
    """Share of random actions from epsilon_fraction * total_env_steps on (linear)."""
    epsilon_fraction: float = 0.1
    """Part of total_env_steps in which epsilon falls (linear); 0: epsilon_final at once."""
    ape_x_epsilon: float = 0.4
    """Epsilon of the first environment, the most exploring one (ape-x)."""
    ape_x_alpha: float = 7.0
    """How much less the last environment explores, as an exponent (ape-x)."""

    def __post_init__(self) -> None:
        OffPolicyConfig.__post_init__(self)
        require_positive(
            learning_rate=self.learning_rate,
            adam_eps=self.adam_eps,
            target_update_interval=self.target_update_interval,
            tau=self.tau,
        )
        require_fraction(
            tau=self.tau,
            epsilon_initial=self.epsilon_initial,
            epsilon_final=self.epsilon_final,
            epsilon_fraction=self.epsilon_fraction,
            ape_x_epsilon=self.ape_x_epsilon,
        )
        require_not_negative(max_grad_norm=self.max_grad_norm, ape_x_alpha=self.ape_x_alpha)
        if self.huber_threshold is not None:
            require_positive(huber_threshold=self.huber_threshold)
        for size in self.head_hidden_sizes:
            require_positive(head_hidden_sizes=size)
        if self.epsilon_final > self.epsilon_initial:
            raise ConfigError(
                f"epsilon_final={self.epsilon_final} is above epsilon_initial="
                f"{self.epsilon_initial}: exploration would grow. Exchange them."
            )


_NOT_OF_VALUES = {
    # What of the network's settings only a policy with a distribution has: name -> defaults.
    "shared_encoder": (None, "auto"),
    "distribution": ("auto",),
    "initial_log_std": (0.0,),
    "state_dependent_std": (False,),
}


def make_q_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    make_head: Any,
    *,
    hidden_sizes: Sequence[int] = (64, 64),
    activation: str = "tanh",
    encoder: str | ModuleFactory = "auto",
    core: str = "none",
    core_size: int = 128,
    core_window: int = 32,
    core_layers: int = 1,
    core_heads: int = 4,
    normalize_obs: bool = False,
    **others: Any,
) -> QPolicy:
    """A policy of action values, its weights drawn from torch's global generator.

    Args:
        observation_space: of one environment.
        action_space: of one environment: Discrete.
        make_head: (features, number of actions) -> head.
        hidden_sizes: as for `policies.make_policy`.
        activation: as for `policies.make_policy`.
        encoder: as for `policies.make_policy`.
        core: "none", "lstm" or "gru".
        core_size: H.
        core_window: not looked at.
        core_layers: not looked at.
        core_heads: not looked at.
        normalize_obs: whether float observations are normalized by running statistics.
        others: settings of other policies, at their defaults.

    Raises:
        SpaceError: if a space cannot be served.
        ConfigError: if a setting does not apply.
    """
    num_actions = require_discrete(action_space)
    if core == "transformer":
        raise ConfigError(
            "core='transformer' is not for a Q-network: replay keeps the state before every "
            "sequence, and that of a transformer is its whole window. Use core='lstm' or 'gru', or "
            "ppo for a transformer."
        )
    for name, value in others.items():
        if name not in _NOT_OF_VALUES:
            raise ConfigError(f"{name}={value!r} is no setting of a Q-network. Leave it out.")
        if value not in _NOT_OF_VALUES[name]:
            raise ConfigError(
                f"{name}={value!r} does not apply to a Q-network, which has one torso and no "
                f"action distribution. Leave it at {_NOT_OF_VALUES[name][0]!r}."
            )
    seen = network_space(observation_space)
    if core == "none":
        refuse_previous(seen)
    # Orthogonal layers begin without biases, and a ReLU network without them is linear along
    # every ray from the origin: it tells small observations apart badly.
    torso, features = make_torso(seen, encoder, hidden_sizes, activation, orthogonal=False)
    recurrent = None if core == "none" else make_core(core, features, core_size)
    width = features if recurrent is None else recurrent.out_features
    head: QHead = make_head(width, num_actions)
    return QPolicy(
        observation_space,
        action_space,
        torso=torso,
        head=head,
        core=recurrent,
        normalizer=ObservationNormalizer(seen) if normalize_obs else None,
    )


def exploration(
    config: QLearningConfig, env_steps: int, total_env_steps: int, num_envs: int
) -> Tensor:
    """[B] epsilon of each environment, float32, on the CPU.

    Linear (Mnih et al. 2015): the same everywhere, a function of global env_steps alone.
    Ape-X (Horgan et al. 2018, section 4.1): eps^(1 + alpha * i / (B - 1)), constant; one
    environment by itself has eps.
    """
    if config.epsilon_schedule == "ape-x":
        place = torch.arange(num_envs, dtype=torch.float64) / max(num_envs - 1, 1)
        return (config.ape_x_epsilon ** (1.0 + config.ape_x_alpha * place)).float()
    return torch.full((num_envs,), _linear_epsilon(config, env_steps, total_env_steps))


def _linear_epsilon(config: QLearningConfig, env_steps: int, total_env_steps: int) -> float:
    span = config.epsilon_fraction * total_env_steps
    progress = min(1.0, env_steps / span) if span > 0 else 1.0
    change = config.epsilon_final - config.epsilon_initial
    return config.epsilon_initial + progress * change


class Exploration:
    """`exploration` over a run: the same tensor again while the schedule stands still.

    Args:
        config: what to follow.
        device: where the tensors are to lie.
    """

    def __init__(self, config: QLearningConfig, device: torch.device) -> None:
        self._config, self._device = config, device
        self._made_for: tuple[float, int] | None = None
        self._epsilon = torch.empty(0)

    def __call__(self, env_steps: int, total_env_steps: int, num_envs: int) -> Tensor:
        """[B] epsilon of each environment, float32; not to be written to."""
        present = 0.0  # under Ape-X nothing changes
        if self._config.epsilon_schedule != "ape-x":
            present = _linear_epsilon(self._config, env_steps, total_env_steps)
        if self._made_for != (present, num_envs):
            epsilon = exploration(self._config, env_steps, total_env_steps, num_envs)
            self._epsilon, self._made_for = epsilon.to(self._device), (present, num_envs)
        return self._epsilon


def huber_loss(error: Tensor, threshold: float | None) -> Tensor:
    """Half the square, and beyond the threshold linear with the same slope.

    Huber 1964: error^2 / 2 where |error| <= k, else k (|error| - k / 2).

    Args:
        error: [...] any float.
        threshold: k > 0; None: the square everywhere.

    Returns:
        [...] the loss of each.
    """
    if threshold is None:
        return 0.5 * error.square()
    small = error.abs().clamp(max=threshold)
    return small * (error.abs() - 0.5 * small)


def initial_priorities(
    reward: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    q_taken: Tensor,
    q_max: Tensor,
    *,
    gamma: float,
    highest: Tensor,
    rescaled: bool = False,
    for_sequences: bool = False,
) -> Tensor:
    """One-step TD errors from the values that acting computed anyway.

    Horgan et al. 2018, section 3. With the next row of the same environment as successor:

        |r_t + gamma * (1 - terminated_t) * max_a Q(s_{t+1}, a) - Q(s_t, a_t)|

    They differ from the learner's error in three ways: by the weights that acted, by n = 1,
    and by the maximum over the online values (double or not). Where the successor's value is
    not known (the last row and truncated rows, unless they terminated), the priority is
    `highest`, or the greatest of the known ones here if that is more: such a row is seen
    soon. Rows that are not valid get 0.

    Args:
        reward: [T, B].
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool.
        q_taken: [T, B] Q(s_t, a_t).
        q_max: [T, B] max_a Q(s_t, a).
        gamma: discount per env_step.
        highest: [] the highest priority so far.
        rescaled: whether the values, and so the errors, are of h(return).
        for_sequences: whether they will be mixed over sequences. Nearly each of those holds
            a row that is not known, which must not outweigh the others: it gets the mean of
            its environment's known ones instead, if there are any.

    Returns:
        [T, B] non-negative.
    """
    successor = torch.cat([q_max[1:], torch.zeros_like(q_max[:1])])
    successor = torch.where(terminated, torch.zeros_like(successor), successor)
    if rescaled:
        target = rescale(reward + gamma * unrescale(successor))
    else:
        target = reward + gamma * successor
    known = ~truncated & valid
    known[-1] = False
    known |= terminated & valid
    error = torch.where(known, (target - q_taken).abs(), torch.zeros_like(target))
    unknown = torch.maximum(highest.to(error), error.amax())
    if for_sequences:
        count = known.sum(0)
        unknown = torch.where(count > 0, error.sum(0) / count.clamp(min=1), unknown)
    return torch.where(valid & ~known, unknown, error)


class TargetNetwork:
    """Moves a target network after the online one.

    Parameters move by theta' <- theta' + tau (theta - theta') every `interval` optimizer
    steps; other state (such as running statistics) is copied then. Noise is a network's own.

    Args:
        online: the network that learns.
        target: one of the same make; it becomes equal to the online one.
        interval: optimizer steps between moves.
        tau: in (0, 1]; 1 copies.
    """

    def __init__(self, online: nn.Module, target: nn.Module, interval: int, tau: float) -> None:
        target.load_state_dict(online.state_dict())
        target.requires_grad_(False)
        self._interval, self._tau = interval, tau
        self._online: list[Tensor] = list(online.parameters())
        self._target: list[Tensor] = list(target.parameters())
        self._buffers = list(zip(_shared_buffers(online), _shared_buffers(target), strict=True))

    def is_due(self, optimizer_steps: int) -> bool:
        """Whether it is time to move after so many optimizer steps."""
        return optimizer_steps % self._interval == 0

    @torch.no_grad()
    def move(self) -> None:
        """Go the share `tau` of the way to the online network."""
        if self._tau == 1.0:
            torch._foreach_copy_(self._target, self._online)  # pyright: ignore
        else:
            move_towards(self._target, self._online, self._tau)
        for online, target in self._buffers:
            target.copy_(online)


def _shared_buffers(network: nn.Module) -> list[Tensor]:
    return [
        buffer
        for module in network.modules()
        if not isinstance(module, NoisyLinear)
        for buffer in module.buffers(recurse=False)
    ]

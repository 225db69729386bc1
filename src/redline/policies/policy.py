"""The contract of a policy: what acts, and what updates evaluate again with gradient.

Acting is a pure function of (parameters, observation, state, noise, conditioning). The
noise comes from outside, one stream per environment, so what an environment experiences
does not depend on how many others are batched with it, on the number of workers, or on
the device. Nor does acting need a generator that would have to be saved and restored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor, nn

from redline.data import Array, NestedTensor, Rollout, map_leaves
from redline.errors import ConfigError, PlacementError
from redline.models.observation_encoder import image_layout

if TYPE_CHECKING:
    from redline.policies.export import GreedyPolicy  # which imports this module

State: TypeAlias = dict[str, Tensor]
Conditioning: TypeAlias = Mapping[str, Tensor]


class ActOutput(NamedTuple):
    """What acting gives.

    Attributes:
        action: [B, ...] in the action space's structure (a dict for Dict and Tuple spaces).
            This is what the rollout keeps and what log_prob refers to; the environment
            receives `Policy.env_action(action)`.
        extras: name -> [B, ...] to keep in the rollout: log_prob [B], value [B], ...
        state: the recurrent state after this step, before any reset.
    """

    action: NestedTensor
    extras: dict[str, Tensor]
    state: State


class ActionEvaluation(NamedTuple):
    """What the present network says of a rollout's actions, with gradient.

    Attributes:
        log_prob: [T, B] log-probability of the rollout's actions, in nats.
        entropy: [T, B] of the action distribution, in nats.
        value: [T, B] state value.
        state: the recurrent state after the last row, as acting left it: not yet reset if
            that row ended an episode.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    state: State


class Policy(nn.Module, ABC):
    """Network, action distribution, exploration and recurrent state in one module.

    Attributes:
        noise_size: how many noise numbers one environment's action takes.
        noise_color: how alike a collector makes the noise of neighboring steps, as an exponent of
            its spectrum: 0 is white, where steps are independent, 1 pink, 2 red. Only for
            normally distributed noise.
        is_recurrent: whether there is a state to carry from step to step.
        extras_spec: name -> trailing shape of each extra, e.g. {"log_prob": (), "value": ()}.
        action_space: the space that `act` answers in.
        has_value: whether `value` is there to bootstrap rollouts with.
        learns_normalized: whether what is not `act` takes observations that `normalizer` has seen
            to already, so that the loop normalizes batches of replay.
        samples: whether noise alone, without conditioning, makes `act` do something else than its
            greedy action. What only explores, as by epsilon, does not sample.
        served: what `predict` is made from: its class, and the spaces of one environment.
        conditioning_names: the conditioning that `act` keeps as extras of the same names,
            because `evaluate_rollout`, `value` and updates need it again.
        conditioning_bounds: name -> lowest and highest value of such an extra, where it has them.
    """

    noise_size: int
    noise_color: float = 0.0
    is_recurrent: bool
    extras_spec: dict[str, tuple[int, ...]]
    action_space: Any
    has_value: bool = True
    learns_normalized: bool = False
    conditioning_names: tuple[str, ...] = ()
    conditioning_bounds: Mapping[str, tuple[float, float]] = MappingProxyType({})
    samples: bool = True
    served: tuple[Any, ...] | None = None

    @abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """The state at the start of an episode: zeros [batch_size, ...]; {} if not recurrent."""

    @abstractmethod
    def draw_noise(self, rng: np.random.Generator, length: int) -> Array:
        """[length, noise_size] float32: the noise of one environment's next `length` actions."""

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """The noise that numbers drawn uniformly stand for, on their own device.

        Collectors that never leave a device draw the numbers there, in place of `draw_noise`.

        Args:
            uniform: [..., noise_size] float32 strictly between 0 and 1.

        Returns:
            [..., noise_size] float32.
        """
        raise NotImplementedError(f"{type(self).__name__} draws its noise on the host only")

    @abstractmethod
    def act(
        self,
        obs: NestedTensor,
        state: State,
        noise: Tensor | None = None,
        conditioning: Conditioning | None = None,
    ) -> ActOutput:
        """Choose actions for B environments.

        Args:
            obs: [B, ...] observations.
            state: the recurrent state, already reset where an episode began.
            noise: [B, noise_size]; None acts greedily everywhere.
            conditioning: per-environment inputs; every policy knows "greedy" [B] bool.
        """

    def predict(
        self,
        obs: Any,
        state: Any = None,
        deterministic: bool = True,
        *,
        episode_start: Any = None,
        action_mask: Any = None,
        reward: Any = None,
    ) -> tuple[Any, Any]:
        """Choose the action for what an environment gave, in NumPy: for serving a trained policy.

        Args:
            obs: one observation, as `env.reset()` and `env.step()` give it, or a batch [B, ...].
            state: what `predict` returned the step before; None at the start of an episode.
            deterministic: take the mode of the action distribution, or sample.
            episode_start: [B] bool, where an episode begins in a batch that goes on with `state`.
            action_mask: `info["action_mask"]`, where the environment reports masks there.
            reward: of the action before, where the policy sees it (`observe_previous`).

        Returns:
            What `env.step` takes: one action, or a batch of them; and the state to give next
            time, None for a policy that has none.

        Raises:
            ConfigError: if the policy was not loaded by `redline.load`, or something that it
                needs is missing.
            EnvDataError: if the observation is not one of the environment's.
        """
        predictor = self.__dict__.get("_predictor")
        if predictor is None:
            predictor = self._make_predictor()
        return predictor(
            obs,
            state,
            deterministic,
            episode_start=episode_start,
            action_mask=action_mask,
            reward=reward,
        )

    def _make_predictor(self) -> Any:
        if self.served is None:
            raise ConfigError(
                "predict needs to know the environment's spaces, and this policy was not loaded "
                "by redline.load(RUN).policy(). Make a redline.serving.Predictor(policy, "
                "env.observation_space, env.action_space), and call that."
            )
        kind, *its_spaces = self.served
        predictor = kind(self, *its_spaces)
        vars(self)["_predictor"] = predictor
        return predictor

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or another process gets; it makes a predictor of its own when asked."""
        return {name: part for name, part in self.__dict__.items() if name != "_predictor"}

    def env_action(self, action: Any) -> Any:
        """What the environment receives for the `action` that `act` gave and the rollout keeps.

        The two differ where the action space has bounds and the distribution does not:
        clipped or squashed here. The default is the action itself.

        Args:
            action: [..., *shape] numpy arrays or tensors in the action space's structure.

        Returns:
            The same kind and structure; numpy arrays have the action space's dtype.
        """
        return action

    def stored_action(self, action: Any) -> Any:
        """What the rollout keeps for an `action` that the environment received.

        The inverse of `env_action`, for actions that someone else took. The default is the action
        itself.

        Args:
            action: [..., *shape] numpy arrays in the action space's structure.

        Returns:
            The same structure, as `act` gives it.
        """
        return action

    def value(
        self, obs: NestedTensor, state: State, conditioning: Conditioning | None = None
    ) -> Tensor:
        """[B] value of the observations, given the state that precedes them.

        `conditioning` is what `act` was given with them.

        Collectors ask for it where a rollout must be bootstrapped. A policy without a value
        sets `has_value` to False; its rollouts then carry no bootstrap values.
        """
        raise NotImplementedError(f"{type(self).__name__} has no value")

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        """Run the same module over [T, B] with the same state resets as acting had.

        The state before t = 0 is the rollout's own; it is reset after every step that ended
        an episode and after every row that is not valid (a filler step belongs to no
        episode), and collectors reset it in the same places. Rows that are not valid give
        finite, meaningless numbers. Policies of off-policy algorithms need none: they learn
        from batches of replay.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot evaluate rollouts")

    def shuffleable(self, rollout: Rollout, *columns: str) -> Rollout:
        """A rollout whose environments may be mixed at will, to draw minibatches from.

        A recurrent policy needs whole sequences, so it learns from the rollout as it is. All
        others can learn from each row by itself: their rows become environments with a
        single step, `[1, T * B]`.

        Args:
            rollout: [T, B].
            columns: the entries that the update needs beside what `evaluate_rollout` reads.
        """
        if self.is_recurrent:
            return rollout
        rows = rollout.flatten("obs", "action", "valid", *self.conditioning_names, *columns)
        layout = image_layout(self)
        if layout is None:
            return rows
        # Once here, rather than in each of the several passes over the same images.
        obs = map_leaves(lambda leaf: layout(leaf.squeeze(0)).unsqueeze(0), rows["obs"])
        return rows.with_columns(obs=obs)

    def evaluation_conditioning(self, num_envs: int) -> dict[str, Tensor]:
        """The conditioning, name -> [num_envs, ...], that evaluation acts with; {}: none."""
        return {}

    def export_module(self) -> GreedyPolicy:
        """A copy in evaluation mode that only acts greedily, for `torch.export` and ONNX."""
        raise NotImplementedError(f"{type(self).__name__} cannot be exported")

    def update_normalizer(self, rollout: Rollout) -> None:
        """Take the rollout's valid observations into the running statistics, if there are any.

        Called between updates and the next collection, so that acting and
        `evaluate_rollout` use the same statistics.
        """


class PolicyWrapper(Policy):
    """A policy that holds another one and, unless it says otherwise, does as that one does.

    `act` and `value` are left to the subclass.

    Args:
        policy: the one inside; kept, not copied.

    Attributes:
        policy: as given.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.noise_size, self.is_recurrent = policy.noise_size, policy.is_recurrent
        self.noise_color, self.samples = policy.noise_color, policy.samples
        self.extras_spec, self.has_value = policy.extras_spec, policy.has_value
        self.action_space = policy.action_space
        stored = getattr(policy, "stored_action_space", None)
        if stored is not None:
            self.stored_action_space = stored
        self.conditioning_names = policy.conditioning_names
        self.conditioning_bounds = policy.conditioning_bounds

    def initial_state(self, batch_size: int) -> State:
        """That of the policy inside."""
        return self.policy.initial_state(batch_size)

    def draw_noise(self, rng: np.random.Generator, length: int) -> Array:
        """That of the policy inside."""
        return self.policy.draw_noise(rng, length)

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """That of the policy inside."""
        return self.policy.noise_from_uniform(uniform)

    def env_action(self, action: Any) -> Any:
        """That of the policy inside."""
        return self.policy.env_action(action)

    def stored_action(self, action: Any) -> Any:
        """That of the policy inside."""
        return self.policy.stored_action(action)

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        """That of the policy inside."""
        return self.policy.evaluate_rollout(rollout)

    def export_module(self) -> GreedyPolicy:
        """That of the policy inside."""
        return self.policy.export_module()

    def evaluation_conditioning(self, num_envs: int) -> dict[str, Tensor]:
        """That of the policy inside."""
        return self.policy.evaluation_conditioning(num_envs)

    def update_normalizer(self, rollout: Rollout) -> None:
        """Take the valid observations into the statistics of the policy inside."""
        self.policy.update_normalizer(rollout)


def require_tensors(obs: Any) -> None:
    """Refuse NumPy arrays where a policy's `act` takes tensors.

    Raises:
        PlacementError: saying what takes them.
    """
    leaf = obs
    while isinstance(leaf, dict) and leaf:
        leaf = next(iter(leaf.values()))
    if isinstance(leaf, (np.ndarray, np.generic)):
        raise PlacementError(
            "act takes tensors [B, ...], and the observation is a NumPy array. Use "
            "policy.predict(obs), which takes what an environment gives, or "
            "redline.data.to_tensor(obs)."
        )


def reset_state(state: State, ended: Tensor) -> State:
    """Zero the rows of environments whose episode ended.

    Args:
        state: name -> [B, ...].
        ended: [B] bool.
    """
    return {
        name: leaf.masked_fill(ended.view(-1, *([1] * (leaf.dim() - 1))), 0.0)
        for name, leaf in state.items()
    }

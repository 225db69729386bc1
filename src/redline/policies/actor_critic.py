"""The policy of the on-policy algorithms: an action distribution and a state value.

```
obs -> normalizer -> torso (-> core) -> policy_head -> action_head -> distribution
                  -> critic_torso    -> value_head  -> value
```

Without a torso of its own the critic shares the actor's (and its core, if there is one).
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import Array, NestedTensor, Rollout, map_leaves
from redline.errors import ConfigError
from redline.models import POLICY_GAIN, VALUE_GAIN, orthogonal_
from redline.models.recurrent import Core
from redline.policies.action_heads import ActionHead
from redline.policies.distributions import Distribution
from redline.policies.export import GreedyPolicy
from redline.policies.masks import MASK_KEY, check_mask_space, without_mask
from redline.policies.normalizer import ObservationNormalizer
from redline.policies.policy import (
    ActionEvaluation,
    ActOutput,
    Conditioning,
    Policy,
    State,
    require_tensors,
)


class NetworkOutput(NamedTuple):
    """What the network says of N observations.

    Attributes:
        distribution: over N actions.
        value: [N] state value.
        state: the recurrent state after this step.
    """

    distribution: Distribution
    value: Tensor
    state: State


class ActorCritic(Policy):
    """Actor and critic over any served observation and action space.

    `make_policy` builds one from the spaces and a few settings.

    Args:
        observation_space: of one environment; the key "action_mask" of a Dict is a mask
            over the choices of the action, not an input of the network.
        action_space: of one environment.
        torso: observations [N, ...] without the mask -> features [N, F].
        features: F.
        action_head: the distribution over `action_space`.
        critic_torso: the critic's own torso; None shares the actor's.
        critic_features: of it; None: F.
        core: a recurrent core or a transformer on F features; needs a shared torso.
        normalizer: of observations; None leaves them as they are.

    Raises:
        ConfigError: if a core comes with a critic torso.
        SpaceError: if the mask does not fit the action space.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        torso: nn.Module,
        features: int,
        action_head: ActionHead,
        critic_torso: nn.Module | None = None,
        critic_features: int | None = None,
        core: Core | None = None,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__()
        if core is not None and critic_torso is not None:
            raise ConfigError(
                "a recurrent policy has one core, so actor and critic share their torso: "
                "shared_encoder=False does not go with a core. Use shared_encoder=True or 'auto'."
            )
        self.observation_space = observation_space
        self.action_space = action_space
        self.noise_size = action_head.noise_size
        self.is_recurrent = core is not None
        self.extras_spec = {"log_prob": (), "value": ()}
        self.has_mask = check_mask_space(observation_space, action_space, action_head)
        self.normalizer = normalizer
        self.torso = torso
        self.critic_torso = critic_torso
        self.core = core
        width = features if core is None else core.out_features
        # A small gain: the first actions are near-uniform, so that chance in the initial
        # weights is not taken for a preference.
        self.policy_head = orthogonal_(nn.Linear(width, action_head.num_outputs), POLICY_GAIN)
        critic_width = width if critic_features is None else critic_features
        self.value_head = orthogonal_(nn.Linear(critic_width, 1), VALUE_GAIN)
        self.action_head = action_head

    def initial_state(self, batch_size: int) -> State:
        """Zeros [batch_size, ...]; {} without a core."""
        return {} if self.core is None else self.core.initial_state(batch_size)

    def draw_noise(self, rng: np.random.Generator, length: int) -> Array:
        """[length, noise_size] float32; drawing 7 rows and then 5 equals drawing 12."""
        return self.action_head.draw_noise(rng, length)

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """[..., noise_size] on the device of `uniform`; see `Policy.noise_from_uniform`."""
        return self.action_head.noise_from_uniform(uniform)

    def env_action(self, action: Any) -> Any:
        """Clip or squash what `act` gave to the bounds of the action space."""
        return self.action_head.env_action(action)

    def stored_action(self, action: Any) -> Any:
        """See `Policy.stored_action`."""
        return self.action_head.stored_action(action)

    def evaluate(self, obs: NestedTensor, state: State) -> NetworkOutput:
        """One step of the network, with gradient.

        Args:
            obs: [N, ...] observations.
            state: name -> [N, ...] before the step.
        """
        inputs, mask = self._inputs(obs)
        features, state = self._features(inputs, state)
        distribution = self.action_head.distribution(self.policy_head(features), mask)
        return NetworkOutput(distribution, self._value(inputs, features), state)

    def act_greedily(self, obs: NestedTensor, state: State) -> tuple[NestedTensor, State]:
        """The mode of the action distribution and nothing else, for exporting.

        Args:
            obs: [N, ...] observations.
            state: name -> [N, ...] before the step.

        Returns:
            [N, ...] the action, and the state after the step.
        """
        inputs, mask = self._inputs(obs)
        features, state = self._features(inputs, state)
        distribution = self.action_head.distribution(self.policy_head(features), mask)
        return distribution.mode(), state

    @torch.no_grad()
    def act(
        self,
        obs: NestedTensor,
        state: State,
        noise: Tensor | None = None,
        conditioning: Conditioning | None = None,
    ) -> ActOutput:
        """Choose actions for B environments, without gradient.

        Args:
            obs: [B, ...] observations.
            state: the recurrent state, already reset where an episode began.
            noise: [B, noise_size]; None acts greedily everywhere.
            conditioning: "greedy" [B] bool, where to take the mode.

        Raises:
            ConfigError: if `conditioning` holds anything else.
        """
        require_tensors(obs)
        if conditioning:
            greedy = _greedy(conditioning)
            if noise is not None:
                # Zero noise is the mode of every distribution here.
                noise = noise.masked_fill(greedy.unsqueeze(-1), 0.0)
        distribution, value, state = self.evaluate(obs, state)
        action = distribution.sample(noise)
        return ActOutput(action, {"log_prob": distribution.log_prob(action), "value": value}, state)

    @torch.no_grad()
    def value(
        self, obs: NestedTensor, state: State, conditioning: Conditioning | None = None
    ) -> Tensor:
        """[B] value of the observations, given the state that precedes them; no gradient.

        Of the conditioning nothing matters: what is greedy now need not stay so.
        """
        del conditioning
        inputs, _ = self._inputs(obs)
        # A critic with a torso of its own needs nothing of the actor's.
        shared = None if self.critic_torso is not None else self._features(inputs, state)[0]
        return self._value(inputs, shared)

    def evaluate_actions(self, obs: NestedTensor, action: NestedTensor) -> ActionEvaluation:
        """Evaluate N rows on their own, for minibatches of a policy without state.

        Args:
            obs: [N, ...] observations.
            action: [N, ...] as `act` gave them.

        Returns:
            log_prob, entropy and value, each [N].

        Raises:
            ConfigError: if the policy is recurrent.
        """
        if self.core is not None:
            raise ConfigError(
                "evaluate_actions takes rows out of their order, but this policy is recurrent. "
                "Use evaluate_rollout on whole sequences."
            )
        distribution, value, _ = self.evaluate(obs, {})
        return ActionEvaluation(distribution.log_prob(action), distribution.entropy(), value, {})

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        """Run the same module over [T, B] with the same state resets as acting had.

        Args:
            rollout: whole sequences; any subset of its environments will do.

        Returns:
            log_prob, entropy and value, each [T, B], and the state after the last row, with
            gradient.
        """
        length, num_envs = rollout.rollout_length, rollout.num_envs
        obs = map_leaves(_merge_time, rollout["obs"])
        action = map_leaves(_merge_time, rollout["action"])
        if self.core is None:
            # Without a state each row stands alone: one pass over all of them.
            output = self.evaluate_actions(obs, action)
        else:
            # Only the core goes step by step; torso and heads see all rows at once.
            inputs, mask = self._inputs(obs)
            features, state = self.core.sequence(
                self.torso(inputs).unflatten(0, (length, num_envs)),
                rollout.initial_state,
                resets(rollout),
            )
            features = features.flatten(0, 1)
            distribution = self.action_head.distribution(self.policy_head(features), mask)
            output = ActionEvaluation(
                distribution.log_prob(action),
                distribution.entropy(),
                self._value(inputs, features),
                state,
            )
        return ActionEvaluation(
            output.log_prob.unflatten(0, (length, num_envs)),
            output.entropy.unflatten(0, (length, num_envs)),
            output.value.unflatten(0, (length, num_envs)),
            output.state,
        )

    def update_normalizer(self, rollout: Rollout) -> None:
        """Take the valid observations into the running statistics; nothing in eval mode."""
        if self.normalizer is not None:
            obs = rollout["obs"]
            # A mask is no measurement: its mean says nothing about the state.
            self.normalizer.update(without_mask(obs) if self.has_mask else obs, rollout.valid)

    def export_module(self) -> GreedyPolicy:
        """A copy in evaluation mode that only acts greedily, for `torch.export` and ONNX."""
        return GreedyPolicy(copy.deepcopy(self).eval())

    def _inputs(self, obs: NestedTensor) -> tuple[Any, Any]:
        """What the networks see, and the action mask."""
        mask = None
        if self.has_mask:
            mask, obs = obs[MASK_KEY], without_mask(obs)  # pyright: ignore[reportArgumentType]
        return (obs if self.normalizer is None else self.normalizer(obs)), mask

    def _features(self, inputs: Any, state: State) -> tuple[Tensor, State]:
        """[N, F] of the actor, and the state after this step."""
        features = self.torso(inputs)
        return (features, state) if self.core is None else self.core.step(features, state)

    def _value(self, inputs: Any, features: Tensor | None) -> Tensor:
        """[N], from the critic's own torso or the shared features."""
        if self.critic_torso is not None:
            features = self.critic_torso(inputs)
        return self.value_head(features).squeeze(-1)


def resets(rollout: Rollout) -> Tensor:
    """[T, B] bool: where the recurrent state is zeroed before the step.

    That is after a step that ended an episode, and after a row that is no transition: the
    filler step of a back end that resets late belongs to no episode. The state before
    t = 0 is the rollout's own.
    """
    ended = rollout.done | ~rollout.valid
    # The end of row t clears the state before row t + 1.
    return torch.cat([torch.zeros_like(ended[:1]), ended[:-1]])


def _merge_time(leaf: Tensor) -> Tensor:
    return leaf.flatten(0, 1)


def _greedy(conditioning: Conditioning) -> Tensor:
    if set(conditioning) != {"greedy"}:
        raise ConfigError(
            f"conditioning {sorted(conditioning)} is not understood by ActorCritic, which knows "
            f"only 'greedy' [B] bool. Leave the others out, or use a policy that knows them."
        )
    return conditioning["greedy"]

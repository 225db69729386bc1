"""The policy of the Q-learners: act greedily on action values, or at random.

```
obs -> torso (-> core) -> head -> outputs [N, A, Z] -> action values [N, A]
```

Exploration is per environment: `epsilon` [B] of the time an action that the mask allows,
each with equal probability. Noisy heads explore with the noise they were last given; greedy
environments act on the mean weights.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import Array, NestedTensor, Rollout
from redline.errors import ConfigError, SpaceError
from redline.models.q_heads import ImplicitQuantileHead, QHead
from redline.models.recurrent import RecurrentCore
from redline.policies.action_heads import make_action_head
from redline.policies.alternatives import algorithms_for
from redline.policies.export import GreedyPolicy
from redline.policies.masks import MASK_KEY, check_mask_space, without_mask
from redline.policies.normalizer import ObservationNormalizer
from redline.policies.policy import ActOutput, Conditioning, Policy, State, require_tensors

_KNOWN = {"epsilon", "greedy"}


class ActionValues(NamedTuple):
    """What the network says of N observations.

    Attributes:
        outputs: [N, A, Z] of the head.
        q: [N, A] action values, their mean.
        allowed: [N, A] bool, which actions may be taken; None: all.
    """

    outputs: Tensor
    q: Tensor
    allowed: Tensor | None

    def best(self) -> Tensor:
        """[N] int64 the allowed action of highest value."""
        if self.allowed is None:
            return self.q.argmax(-1)
        return self.q.masked_fill(~self.allowed, -torch.inf).argmax(-1)


class QPolicy(Policy):
    """Epsilon-greedy on action values, over any served observation space.

    Args:
        observation_space: of one environment; the key "action_mask" of a Dict is a mask over
            the actions, not an input of the network.
        action_space: of one environment: Discrete.
        torso: observations [N, ...] without the mask -> features [N, F].
        head: values of the actions, from features [N, F], or [N, H] after a core.
        core: a recurrent core on F features.
        normalizer: of the observations that `act` is given; updates see them normalized already.
            None leaves them as they are.

    Attributes:
        torso: as given.
        head: as given.
        core: as given.

    Raises:
        SpaceError: if actions are not Discrete, or a mask does not fit.
    """

    has_value = False
    learns_normalized = True

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        torso: nn.Module,
        head: QHead,
        core: RecurrentCore | None = None,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__()
        num_actions = require_discrete(action_space)
        if head.num_actions != num_actions:
            raise SpaceError(
                f"the head values {head.num_actions} actions, and the action space {action_space} "
                f"has {num_actions}. Make a head for these."
            )
        self.observation_space = observation_space
        self.action_space = action_space
        self.noise_size = 2  # explore or not; which action
        self.is_recurrent = core is not None
        self.extras_spec = {"q_taken": (), "q_max": ()}
        self.has_mask = check_mask_space(
            observation_space, action_space, make_action_head(action_space)
        )
        self.torso, self.core, self.head = torso, core, head
        self.samples = head.is_noisy
        self.normalizer = normalizer

    def initial_state(self, batch_size: int) -> State:
        """Zeros [batch_size, H]; {} if not recurrent."""
        return {} if self.core is None else self.core.initial_state(batch_size)

    def draw_noise(self, rng: np.random.Generator, length: int) -> Array:
        """[length, 2] float32 uniform in [0, 1); drawing 7 rows and then 5 equals drawing 12."""
        return rng.random((length, self.noise_size), dtype=np.float32)

    def noise_from_uniform(self, uniform: Tensor) -> Tensor:
        """The numbers themselves."""
        return uniform

    def features(self, obs: NestedTensor) -> Tensor:
        """[N, F] of normalized observations [N, ...], before the core."""
        return self.torso(without_mask(obs) if self.has_mask else obs)

    def values(
        self,
        features: Tensor,
        obs: NestedTensor,
        *,
        noisy: bool = True,
        fractions: Tensor | None = None,
    ) -> ActionValues:
        """The head's answer.

        Args:
            features: [N, F], or [N, H] after the core.
            obs: [N, ...] the observations, for their mask.
            noisy: whether noisy layers use their present noise.
            fractions: [N, Z] at which to ask an implicit quantile head; None: the fixed ones.
        """
        if isinstance(self.head, ImplicitQuantileHead):
            outputs = self.head(features, noisy, fractions)
        else:
            outputs = self.head(features, noisy)
        return ActionValues(outputs, self.head.mean(outputs), self._allowed(obs))

    def evaluate(
        self, obs: NestedTensor, *, noisy: bool = True, fractions: Tensor | None = None
    ) -> ActionValues:
        """`features` and `values` of a policy without a core."""
        return self.values(self.features(obs), obs, noisy=noisy, fractions=fractions)

    def act_greedily(self, obs: NestedTensor, state: State) -> tuple[NestedTensor, State]:
        """The action of highest value under the mean weights and nothing else, for exporting.

        Args:
            obs: [N, ...] observations.
            state: name -> [N, H] before the step.

        Returns:
            [N] int64 the action, and the state after the step.
        """
        if self.normalizer is not None:
            obs = self.normalizer(obs)
        features, state = self._step(obs, state)
        return self.values(features, obs, noisy=False).best(), state

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
            noise: [B, 2] uniform; None acts greedily everywhere.
            conditioning: "epsilon" [B], share of random actions (0 if not given), and
                "greedy" [B] bool, where to take the best action under the mean weights.

        Returns:
            The actions [B] int64, with the extras "q_taken" and "q_max" [B]: values of the
            action taken and of the best one.

        Raises:
            ConfigError: if `conditioning` holds anything else.
        """
        require_tensors(obs)
        conditioning = conditioning or {}
        if unknown := sorted(set(conditioning) - _KNOWN):
            raise ConfigError(
                f"conditioning {unknown} is not understood by QPolicy, which knows 'epsilon' [B] "
                f"and 'greedy' [B] bool. Leave the others out, or use a policy that knows them."
            )
        if self.normalizer is not None:
            obs = self.normalizer(obs)
        features, state = self._step(obs, state)
        greedy = conditioning.get("greedy")
        values = self.values(features, obs, noisy=noise is not None)
        # A second pass of the head, only where one batch holds both kinds of environments.
        if noise is not None and greedy is not None and self.head.is_noisy:
            mean = self.values(features, obs, noisy=False)
            values = values._replace(q=torch.where(greedy.unsqueeze(-1), mean.q, values.q))
        best = values.best()
        action = best
        if noise is not None and "epsilon" in conditioning:
            explore = noise[:, 0] < conditioning["epsilon"]
            if greedy is not None:
                explore = explore & ~greedy
            action = torch.where(explore, self._random(noise[:, 1], values), best)
        extras = {"q_taken": at_action(values.q, action), "q_max": at_action(values.q, best)}
        return ActOutput(action, extras, state)

    def update_normalizer(self, rollout: Rollout) -> None:
        """Take the valid observations into the running statistics; nothing in eval mode."""
        if self.normalizer is not None:
            self.normalizer.update(rollout["obs"], rollout.valid)

    def export_module(self) -> GreedyPolicy:
        """A copy in evaluation mode that only acts greedily, for `torch.export` and ONNX."""
        return GreedyPolicy(copy.deepcopy(self).eval())

    def _step(self, obs: NestedTensor, state: State) -> tuple[Tensor, State]:
        """Features of one step, and the state after it."""
        features = self.features(obs)
        return (features, state) if self.core is None else self.core.step(features, state)

    def _allowed(self, obs: NestedTensor) -> Tensor | None:
        if not self.has_mask:
            return None
        allowed: Any = obs[MASK_KEY].bool()  # pyright: ignore
        # The last observation of an episode may allow nothing, and padding is zero: their
        # values count for nothing, but must be finite.
        return allowed | ~allowed.any(-1, keepdim=True)

    def _random(self, uniform: Tensor, values: ActionValues) -> Tensor:
        """[B] an allowed action, each with equal probability, from [B] uniform numbers."""
        if values.allowed is None:
            count = values.q.shape[-1]
            return (uniform * count).long().clamp(max=count - 1)
        # The k-th allowed action, without a loop or a host's look: the ranks of the allowed
        # ones are 1, 2, ..., and as many places come before it as have a rank of k or less.
        rank = values.allowed.cumsum(-1)
        count = rank[:, -1]
        wanted = torch.minimum((uniform * count).long(), count - 1)
        return (rank <= wanted.unsqueeze(-1)).sum(-1)


def at_action(values: Tensor, action: Tensor) -> Tensor:
    """Those [N, ...] of the values [N, A, ...] that belong to actions [N]."""
    index = action.view(-1, *([1] * (values.dim() - 1)))
    return values.gather(1, index.expand(-1, 1, *values.shape[2:])).squeeze(1)


def require_discrete(space: spaces.Space[Any]) -> int:
    """A, how many actions there are.

    Raises:
        SpaceError: if the space is not Discrete.
    """
    if not isinstance(space, spaces.Discrete):
        raise SpaceError(
            f"the action space {space} is not Discrete, and a Q-network values each action by "
            f"itself. {algorithms_for(space)}"
        )
    return int(space.n)

"""A policy reduced to greedy acting, for `torch.export` and ONNX."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from redline.data import NestedTensor, leaves, map_leaves
from redline.models import zero_observation
from redline.policies.policy import State


class ActsGreedily(Protocol):
    """A policy that can be reduced: a `Policy` with its observation space and a greedy step."""

    observation_space: Any

    def initial_state(self, batch_size: int) -> State:
        """As `Policy.initial_state`."""
        ...

    def act_greedily(self, obs: NestedTensor, state: State) -> tuple[NestedTensor, State]:
        """[N, ...] the action as `act` gives it without noise, and the state after the step."""
        ...

    def env_action(self, action: Any) -> Any:
        """As `Policy.env_action`."""
        ...


class GreedyPolicy(nn.Module):
    """Observation to the environment's action: normalized, greedy, clipped or squashed.

    A recurrent one takes the state's parts after the observation and gives the new ones
    after the action. The caller zeroes them where an episode begins.

    Args:
        policy: what to reduce; kept, not copied.

    Attributes:
        input_names: of the flat inputs, ("obs", "hidden", "cell") for an LSTM; the leaves of a
            nested observation are "obs.key".
        output_names: of the flat outputs, e.g. ("action", "new_hidden", "new_cell").
    """

    policy: Any

    def __init__(self, policy: ActsGreedily) -> None:
        super().__init__()
        self.policy = policy
        self._state_names = tuple(policy.initial_state(1))
        obs, *_ = self.example_inputs(1)
        action, _ = policy.act_greedily(obs, policy.initial_state(1))
        self.input_names = (*_leaf_names("obs", obs), *self._state_names)
        self.output_names = (
            *_leaf_names("action", action),
            *(f"new_{name}" for name in self._state_names),
        )

    def example_inputs(self, batch_size: int = 2) -> tuple[Any, ...]:
        """Zeros of the right structure, shapes and dtypes, to trace with."""
        device = next(self.policy.parameters()).device
        obs = zero_observation(self.policy.observation_space, batch_size)
        state = self.policy.initial_state(batch_size)
        return (
            map_leaves(lambda leaf: leaf.to(device), obs),
            *(state[name] for name in self._state_names),
        )

    def forward(
        self,
        obs: Any,
        first: Tensor | None = None,
        second: Tensor | None = None,
        third: Tensor | None = None,
    ) -> Any:
        """Act greedily.

        Args:
            obs: [N, ...] in the observation space's structure.
            first: [N, ...] first part of the state, if there is one.
            second: [N, ...] second part, if there is one.
            third: [N, ...] third part, if there is one.

        Returns:
            [N, ...] the environment's action; with a state, a tuple that begins with it.
        """
        state = {
            name: part
            for name, part in zip(self._state_names, (first, second, third), strict=False)
            if part is not None
        }
        action, state = self.policy.act_greedily(obs, state)
        action = self.policy.env_action(action)
        if not self._state_names:
            return action
        return (action, *(state[name] for name in self._state_names))


def _leaf_names(root: str, tree: Any) -> tuple[str, ...]:
    return tuple(f"{root}.{name}" if name else root for name, _ in leaves(tree))

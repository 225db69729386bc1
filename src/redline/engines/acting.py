"""What acts in a policy's place where a kernel for the CPU can."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from redline.data import Array, NestedTensor
from redline.engines.cpu.packed import Packing
from redline.engines.cpu.single_acting import SingleActor, single_actor
from redline.models.convolution import NatureCNN
from redline.policies.policy import ActOutput, Policy, State

_PACKED_ROWS = 16  # laying out weights anew pays for rollouts of so many rows at least


class PackedActor:
    """`Policy.act` with image networks whose weights are laid out once per rollout.

    Args:
        policy: on the CPU.
        num_envs: B.
    """

    is_rowwise = False

    def __init__(self, policy: Policy, num_envs: int) -> None:
        self._policy, self._num_envs = policy, num_envs

    def serves(self, conditioning: Mapping[str, Tensor] | None) -> bool:
        """Always: the policy itself acts."""
        del conditioning
        return True

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """Lay out the present weights."""
        del conditioning, noise
        self._packing = Packing(self._policy, self._num_envs)

    def act(
        self,
        obs: NestedTensor,
        state: State,
        noise: Tensor | None,
        conditioning: Mapping[str, Tensor] | None,
    ) -> ActOutput:
        """See `Policy.act`."""
        with self._packing:
            return self._policy.act(obs, state, noise, conditioning)


def actor_for(policy: Policy, num_envs: int, rollout_length: int) -> Any:
    """What acts in place of `policy`; None: the policy itself.

    Args:
        policy: may be on any device.
        num_envs: B.
        rollout_length: T.

    Returns:
        For one environment and a plain network of vectors, an actor that goes row by row
        (`is_rowwise`); for image networks and long rollouts, one that replaces `Policy.act`.
    """
    parameter = next(policy.parameters(), None)
    if parameter is not None and parameter.device != torch.device("cpu"):
        return None
    single: SingleActor | None = single_actor(policy) if num_envs == 1 else None
    if single is not None:
        single.is_rowwise = True  # type: ignore[attr-defined]
        return single
    if rollout_length >= _PACKED_ROWS and any(isinstance(m, NatureCNN) for m in policy.modules()):
        return PackedActor(policy, num_envs)
    return None

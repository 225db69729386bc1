"""`DeviceCheck`: a policy whose every input and output is looked at.

Device, dtype and shape are compared with what the policy's spaces and specifications say.
Nothing is read from the device, so a check costs some microseconds and never waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDictBase
from torch import Tensor

from redline.data import NestedTensor
from redline.errors import PlacementError
from redline.policies.policy import ActOutput, Conditioning, Policy, PolicyWrapper, State


class _Leaf(NamedTuple):
    """Trailing shape and dtype of one tensor; None: any."""

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None


class DeviceCheck(PolicyWrapper):
    """Wraps a policy and checks what goes in and comes out of `act` and `value`.

    Args:
        policy: the policy; its own parameters, not a copy.
        device: where all data should be; None: where its parameters are.

    Attributes:
        policy: as given.
        device: as given or found.

    Raises:
        PlacementError: if the parameters are spread over devices, or not on `device`.
    """

    def __init__(self, policy: Policy, device: torch.device | str | None = None) -> None:
        super().__init__(policy)
        parameters = dict(policy.named_parameters()) | dict(policy.named_buffers())
        first = next(iter(parameters.values()), None)
        if device is None:
            device = first.device if first is not None else "cpu"
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0"
        for name, tensor in parameters.items():
            self._require_device(f"the parameter {name!r}", tensor)
        self.observation_space = getattr(policy, "observation_space", None)
        # Actors keep actions in [-1, 1], which is not the environment's space.
        stored = getattr(policy, "stored_action_space", policy.action_space)
        self._action = None if stored is None else _leaves_of(stored)
        self._obs = None if self.observation_space is None else _leaves_of(self.observation_space)
        self._state = {
            name: _Leaf(tuple(leaf.shape[1:]), leaf.dtype)
            for name, leaf in policy.initial_state(1).items()
        }

    def act(
        self,
        obs: NestedTensor,
        state: State,
        noise: Tensor | None = None,
        conditioning: Conditioning | None = None,
    ) -> ActOutput:
        """Choose actions as the policy does; see `Policy.act`.

        Raises:
            PlacementError: if anything has the wrong device, dtype, shape or name.
        """
        batch = self._check_inputs(obs, state, conditioning)
        if noise is not None:
            self._check_leaf("noise", noise, _Leaf((self.noise_size,), torch.float32), batch)
        output = self.policy.act(obs, state, noise, conditioning)
        if self._action is not None:
            self._check_tree("action", output.action, self._action, batch)
        extras = {
            (name,): _Leaf(tuple(shape), torch.float32) for name, shape in self.extras_spec.items()
        }
        self._check_tree("extras", output.extras, extras, batch)
        self._check_state("the state it gave", output.state, batch)
        return output

    def value(
        self, obs: NestedTensor, state: State, conditioning: Conditioning | None = None
    ) -> Tensor:
        """[B] value as the policy gives it; see `Policy.value`.

        Raises:
            PlacementError: if anything has the wrong device, dtype, shape or name.
        """
        batch = self._check_inputs(obs, state, conditioning)
        value = self.policy.value(obs, state, conditioning)
        self._check_leaf("value", value, _Leaf((), torch.float32), batch)
        return value

    def _check_inputs(
        self, obs: NestedTensor, state: State, conditioning: Conditioning | None
    ) -> int:
        first = obs
        while not isinstance(first, Tensor):
            first = first[next(iter(first.keys()))]
        if first.dim() == 0:
            raise PlacementError("obs has no dimensions; give [B, ...], environments first.")
        batch = len(first)
        if self._obs is not None:
            self._check_tree("obs", obs, self._obs, batch)
        self._check_state("state", state, batch)
        for name, value in (conditioning or {}).items():
            self._check_leaf(f"conditioning {name!r}", value, _Leaf(None, None), batch)
        return batch

    def _check_state(self, name: str, state: State, batch: int) -> None:
        self._check_tree(name, state, {(key,): leaf for key, leaf in self._state.items()}, batch)

    def _check_tree(
        self, name: str, tree: Any, expected: Mapping[tuple[str, ...], _Leaf], batch: int
    ) -> None:
        given = dict(_flat(tree))
        if set(given) != set(expected):
            raise PlacementError(
                f"{name} has the keys {sorted(map('.'.join, given))}, expected "
                f"{sorted(map('.'.join, expected))}. Give exactly these."
            )
        for path, leaf in expected.items():
            key = f"{name} {'.'.join(path)!r}" if path else name
            self._check_leaf(key, given[path], leaf, batch)

    def _check_leaf(self, name: str, tensor: Any, expected: _Leaf, batch: int) -> None:
        if not isinstance(tensor, Tensor):
            raise PlacementError(f"{name} is a {type(tensor).__name__}, expected a tensor.")
        self._require_device(name, tensor)
        if tensor.shape[:1] != (batch,) or (
            expected.shape is not None and tuple(tensor.shape[1:]) != expected.shape
        ):
            rest = "..." if expected.shape is None else ", ".join(map(str, expected.shape))
            raise PlacementError(
                f"{name} has the shape {tuple(tensor.shape)}, expected "
                f"[{batch}{', ' if rest else ''}{rest}]: environments first."
            )
        if expected.dtype is not None and tensor.dtype != expected.dtype:
            raise PlacementError(
                f"{name} is {tensor.dtype}, expected {expected.dtype}. Nothing is converted "
                f"silently: convert it where it is made."
            )

    def _require_device(self, name: str, tensor: Tensor) -> None:
        if tensor.device != self.device:
            raise PlacementError(
                f"{name} is on {tensor.device}, expected {self.device}. Move it there with "
                f".to({str(self.device)!r})."
            )


def _flat(tree: Any, path: tuple[str, ...] = ()) -> Any:
    """(path, leaf) of each leaf of a nested mapping."""
    if isinstance(tree, (Mapping, TensorDictBase)):
        for key in tree.keys():  # noqa: SIM118 (iterating a TensorDict gives rows, not keys)
            yield from _flat(tree[key], (*path, str(key)))
    else:
        yield path, tree


def _leaves_of(
    space: spaces.Space[Any], path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], _Leaf]:
    """Path -> what a tensor of that part of the space should be; float64 travels as float32."""
    parts: Any = None
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
    elif isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
    if parts is None:
        dtype = np.dtype(np.float32) if space.dtype == np.float64 else np.dtype(space.dtype)
        return {path: _Leaf(tuple(space.shape or ()), torch.from_numpy(np.zeros(0, dtype)).dtype)}
    return {
        inner: leaf
        for key, sub in parts
        for inner, leaf in _leaves_of(sub, (*path, str(key))).items()
    }

"""Nested data: one array, or a mapping of names to nested data.

Observations and actions of Dict and Tuple spaces travel as mappings (a Tuple's
keys are "0", "1", ...). Three leaf kinds occur: numpy arrays beside the
environments, plain dicts of tensors at the policy, a TensorDict in a rollout.
The functions here treat all of them alike.
"""

# The leaves are arrays of any kind, which no type here can name more closely.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

Array: TypeAlias = npt.NDArray[Any]
NestedArray: TypeAlias = "Array | Mapping[str, NestedArray]"
NestedTensor: TypeAlias = "Tensor | Mapping[str, NestedTensor] | TensorDictBase"


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `function` to each leaf of `tree` and the same leaves of `rest`.

    Mappings and TensorDicts come back as plain dicts with the same keys.

    Raises:
        KeyError: if a tree in `rest` lacks a key of `tree`.
    """
    if isinstance(tree, (Mapping, TensorDictBase)):
        return {
            key: map_leaves(function, tree[key], *(other[key] for other in rest))
            for key in tree.keys()  # noqa: SIM118 (iterating a TensorDict gives rows, not keys)
        }
    return function(tree, *rest)


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, leaf) in key order; the name of a bare leaf is ""."""
    if isinstance(tree, (Mapping, TensorDictBase)):
        for key in tree.keys():  # noqa: SIM118
            yield from leaves(tree[key], f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def to_numpy(tree: Any) -> Any:
    """Tensors to numpy arrays on the CPU, sharing memory where the tensor is there already."""
    return map_leaves(lambda leaf: leaf.detach().cpu().numpy(), tree)


def to_tensor(tree: Any, device: torch.device | str | None = None) -> Any:
    """Numpy arrays to tensors on `device`, sharing memory where that is the CPU.

    float64 becomes float32, the dtype of the networks; all others are kept.
    """

    def convert(leaf: Array) -> Tensor:
        if leaf.dtype == np.float64:
            leaf = leaf.astype(np.float32)
        return torch.from_numpy(leaf).to(device)

    return map_leaves(convert, tree)


def as_tensordict(tree: Any, batch_size: tuple[int, ...]) -> Any:
    """A mapping of tensors as a TensorDict of `batch_size`; a bare tensor stays itself."""
    if isinstance(tree, Mapping):
        return TensorDict(
            {key: as_tensordict(value, batch_size) for key, value in tree.items()},
            batch_size=list(batch_size),
        )
    return tree

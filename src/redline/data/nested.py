"""Nested data as tensors; walking it is in `redline.nested`, which knows no torch."""

# The leaves are arrays of any kind, which no type here can name more closely.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from redline.nested import Array, map_leaves

NestedTensor: TypeAlias = "Tensor | Mapping[str, NestedTensor] | TensorDictBase"


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

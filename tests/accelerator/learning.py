"""Learners on a device, and the places that their batches are moved to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tests.engines.learners import batch, make


def batches(name: str, count: int) -> list[Any]:
    """Different ones on the CPU, all of one untrained learner."""
    learner = make(name)
    return [batch(name, learner, seed) for seed in range(count)]


def host(tree: Any) -> Any:
    """The same structure with its tensors on the CPU."""
    if isinstance(tree, Tensor):
        return tree.detach().cpu()
    if isinstance(tree, Mapping):
        return {name: host(part) for name, part in tree.items()}
    return tree


def largest_difference(a: Any, b: Any) -> float:
    """Of two trees of tensors on the CPU, of the same structure."""
    if isinstance(a, Mapping):
        assert a.keys() == b.keys()
        return max((largest_difference(a[name], b[name]) for name in a), default=0.0)
    if isinstance(a, Tensor) and a.is_floating_point():
        return float((a - b).abs().max()) if a.numel() else 0.0
    return 0.0 if not isinstance(a, Tensor) else float(not torch.equal(a, b))

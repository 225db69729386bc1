"""Gradients in one piece of memory, and the steps that follow them.

An optimizer of the library takes its gradients from `parameter.grad` in eager mode. The updates
here compute them into memory of their own, which one call can scale, and hand them to the same
optimizer, so that updates of both kinds can take turns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from redline.algos.optimizers import move_towards

_ALIGNMENT = 16  # numbers: each gradient begins a cache line of its own


class Gradients:
    """Memory for the gradients of an optimizer's parameters, all in one piece.

    Args:
        parameters: in the optimizer's order.

    Attributes:
        views: one gradient per parameter, of its shape.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        sizes = [-(-p.numel() // _ALIGNMENT) * _ALIGNMENT for p in parameters]
        flat = torch.zeros(sum(sizes))
        self.views = [
            part[: p.numel()].view(p.shape)
            for part, p in zip(flat.split(sizes), parameters, strict=True)
        ]
        self._flat = flat.numpy()
        self._of = dict(zip(parameters, self.views, strict=True))

    def __getitem__(self, parameter: Tensor) -> Tensor:
        """The gradient of this parameter."""
        return self._of[parameter]

    def clip(self, max_norm: float) -> float:
        """Scale all gradients to an L2 norm of at most `max_norm`; return the norm before.

        Args:
            max_norm: 0 leaves the gradients as they are.
        """
        norm = math.sqrt(self._flat.dot(self._flat))
        # Negated, so that a norm that is not a number reaches the parameters, as it does in eager
        # mode, instead of being hidden.
        if max_norm > 0 and not max_norm / (norm + 1e-6) >= 1.0:
            self._flat *= max_norm / (norm + 1e-6)
        return norm


class OptimizerStep:
    """One step of an optimizer of the library, from gradients that lie elsewhere.

    Args:
        optimizer: whose `apply` is called.
        gradients: [...] one per parameter, in its order; their memory is read at each call.
    """

    def __init__(self, optimizer: Any, gradients: Sequence[Tensor]) -> None:
        self._optimizer = optimizer
        self._gradients = list(gradients)

    def __call__(self) -> None:
        """Change the parameters and the optimizer's memory."""
        self._optimizer.apply(self._gradients)


class TargetMove:
    """Moves target networks a part of the way to the online ones.

    Args:
        targets: networks that follow.
        online: networks of the same make, in the same order.
        tau: share of the way, in (0, 1].
    """

    def __init__(
        self, targets: Iterable[nn.Module], online: Iterable[nn.Module], tau: float
    ) -> None:
        self._targets: list[Tensor] = [p for module in targets for p in module.parameters()]
        self._online: list[Tensor] = [p for module in online for p in module.parameters()]
        self._tau = tau

    def __call__(self) -> None:
        """In place, target += tau * (online - target)."""
        move_towards(self._targets, self._online, self._tau)

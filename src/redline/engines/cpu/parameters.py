"""Gradients in one piece of memory, Adam's step and the move of a target network, in C.

An optimizer of the library takes its gradients from `parameter.grad`. The updates here compute
them into memory of their own and change the same parameters and moments in C
(`csrc/parameters.c`), so that updates of both kinds can take turns. Whatever C does not serve goes
through the optimizer's own `step`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from redline.algos.optimizers import Adam

# Up to so many numbers C takes the step. At this size torch's kernel takes 1.1 to 2 times as long
# with one thread and 1.5 times with two (two kinds of AMD EPYC); beyond it nothing was measured.
_MOST_NUMBERS = 200_000
_ALIGNMENT = 16  # numbers: each gradient begins a cache line of its own


def _extension() -> Any:
    """The C module; None without a compiler, or if tensors do not tell C where they lie."""
    try:
        # It looks for the threads of the tensor library, which is loaded by now.
        from redline.engines.cpu import _parameters  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return None
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    try:
        return _parameters if table is not None and _parameters.connect(table) else None
    except ValueError:  # a table of another kind
        return None


_parameters = _extension()


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
        optimizer: `Adam`, which C serves, or another one, whose own `step` is called.
        gradients: [...] one per parameter, in its order; their memory is read at each call.
    """

    def __init__(self, optimizer: Any, gradients: Sequence[Tensor]) -> None:
        self._optimizer, self._gradients = optimizer, list(gradients)
        self._parameters = list(optimizer.parameters)
        self._state: tuple[Any, ...] | None = None
        size = sum(parameter.numel() for parameter in self._parameters)
        if _parameters is not None and type(optimizer) is Adam and size <= _MOST_NUMBERS:
            self._state = _adam_state(optimizer)

    def __call__(self) -> None:
        """Change the parameters and the optimizer's memory."""
        if self._state is not None and _parameters.step(
            self._parameters, self._gradients, *self._state, torch.get_num_threads()
        ):
            increment_version(self._parameters)  # as tensor operations do, for autograd's checks
            return
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            parameter.grad = gradient
        self._optimizer.step()
        self._optimizer.zero_grad()


def _adam_state(adam: Adam) -> tuple[Any, ...]:
    """First and second moments, counts, step size, betas and epsilon, as C takes them."""
    return adam.first, adam.second, adam.counts, adam.learning_rate, *adam.betas, adam.eps


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

    @torch.no_grad()
    def __call__(self) -> None:
        """In place, target += tau * (online - target)."""
        if _parameters is not None and _parameters.move_towards(
            self._targets, self._online, self._tau, torch.get_num_threads()
        ):
            increment_version(self._targets)
            return
        torch._foreach_lerp_(self._targets, self._online, self._tau)  # pyright: ignore[reportPrivateImportUsage]

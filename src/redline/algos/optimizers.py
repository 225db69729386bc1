"""Optimisers of the updates, and moves of target networks: few calls for all parameters.

They differ from `torch.optim`'s in what they leave out: hooks, parameter groups and the gathering
of lists at every step, which on a CPU cost more than a small network's arithmetic; and in what
they take: gradients may be given, from wherever they are. The step size is a tensor, so that a
captured or compiled update sees it change.
"""

# The kernels for many tensors at once have no other names.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

_BETAS = (0.9, 0.999)
# Up to so many parameters C takes the step. Torch's kernel takes 1.1 to 2 times as long at this
# size with one thread, 1.5 times with two (two kinds of AMD EPYC); beyond nothing was measured.
_MOST_NUMBERS = 200_000


def _extension() -> Any:
    """The steps in C; None without a C compiler, or if tensors do not tell C where they lie."""
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


class Optimizer:
    """Parameters, their step size, and where gradients are if they are not given.

    Args:
        parameters: what it changes; all of them take part in each step.
        learning_rate: step size.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self.parameters = list(parameters)
        device = self.parameters[0].device
        # The CPU's kernel reads a double, as it would a Python number; CUDA's reads a float.
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        self._learning_rate = torch.tensor(learning_rate, dtype=dtype, device=device)
        self._present = learning_rate

    def set_learning_rate(self, learning_rate: float) -> None:
        """Take this step size from now on."""
        if learning_rate != self._present:
            self._present = learning_rate
            self._learning_rate.fill_(learning_rate)

    def zero_grad(self) -> None:
        """Drop the parameters' gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, gradients: Sequence[Tensor] | None = None) -> None:
        """One step.

        Args:
            gradients: one per parameter; None takes the `grad` of those that have one.
        """
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """What each parameter's steps leave behind, by its number, named as `torch.optim` does.

        The step size is left out: it comes from the config and the schedules, and a
        checkpoint must not overrule those.
        """
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, in place; an empty state is that before any step."""
        raise NotImplementedError

    def _chosen(self, gradients: Sequence[Tensor] | None) -> tuple[Sequence[int], Sequence[Tensor]]:
        """Numbers of the parameters that change, and their gradients."""
        everything = range(len(self.parameters))
        if gradients is not None:
            return everything, gradients
        found = [p.grad for p in self.parameters]
        chosen = [i for i in everything if found[i] is not None]
        return chosen, [found[i] for i in chosen]  # type: ignore[misc]


def _those(tensors: list[Tensor], chosen: Sequence[int]) -> list[Tensor]:
    return tensors if len(chosen) == len(tensors) else [tensors[i] for i in chosen]


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1), the numbers of `torch.optim.Adam`.

    One kernel for all parameters: torch's, or C for up to 200,000 float32 parameters on the CPU,
    which agrees with torch's to rounding and is the same whatever the number of threads. A step can
    be skipped on the device, by torch's kernel alone.

    Args:
        parameters: what it changes.
        learning_rate: step size.
        eps: added to the root of the second moment.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, *, eps: float = 1e-8
    ) -> None:
        super().__init__(parameters, learning_rate)
        with torch.no_grad():
            self._first = [torch.zeros_like(p) for p in self.parameters]
            self._second = [torch.zeros_like(p) for p in self.parameters]
        self._count = torch.zeros((), device=self.parameters[0].device)
        self._counts = [self._count] * len(self.parameters)
        self._eps = eps
        self._is_small = (
            self._count.is_cpu and sum(p.numel() for p in self.parameters) <= _MOST_NUMBERS
        )

    def step(self, gradients: Sequence[Tensor] | None = None, skip: Tensor | None = None) -> None:
        """One step.

        Args:
            gradients: one per parameter; None takes the `grad` of those that have one.
            skip: [] float32; where 1, nothing changes; None never skips.
        """
        chosen, gradients = self._chosen(gradients)
        if torch.compiler.is_compiling():
            self._compiled_step(chosen, gradients, skip)
        elif skip is not None or not self._native_step(chosen, gradients):
            self._kernel_step(chosen, gradients, skip)

    def _native_step(self, chosen: Sequence[int], gradients: Sequence[Tensor]) -> bool:
        """The step in C; False, and nothing is done, if it does not serve these tensors.

        Served are up to 256 tensors of float32 in main memory without gaps, each laid out as its
        gradient and moments are.
        """
        if _parameters is None or not self._is_small:
            return False
        changed = _those(self.parameters, chosen)
        done = _parameters.step(
            changed,
            list(gradients),
            _those(self._first, chosen),
            _those(self._second, chosen),
            self._count,
            self._learning_rate,
            *_BETAS,
            self._eps,
            torch.get_num_threads(),
        )
        if done:
            increment_version(changed)  # as tensor operations do, for autograd's checks
        return done

    @torch.no_grad()
    def _kernel_step(
        self, chosen: Sequence[int], gradients: Sequence[Tensor], skip: Tensor | None
    ) -> None:
        self._count += 1.0
        torch._fused_adam_(
            _those(self.parameters, chosen),
            gradients,  # type: ignore[arg-type]
            _those(self._first, chosen),
            _those(self._second, chosen),
            [],
            self._counts[: len(chosen)],
            lr=self._learning_rate,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=skip,
        )
        if skip is not None:
            self._count -= skip

    @torch.no_grad()
    def _compiled_step(
        self, chosen: Sequence[int], gradients: Sequence[Tensor], skip: Tensor | None
    ) -> None:
        """The same in operations that a compiler fuses, which the kernel is closed to."""
        self._count += 1.0
        correction = 1.0 - _BETAS[0] ** self._count
        root = (1.0 - _BETAS[1] ** self._count).sqrt()
        size = self._learning_rate.to(correction.dtype) / correction
        for i, gradient in zip(chosen, gradients, strict=True):
            first = torch.lerp(self._first[i], gradient, 1.0 - _BETAS[0])
            second = torch.lerp(self._second[i], gradient.square(), 1.0 - _BETAS[1])
            moved = self.parameters[i] - size * first / (second.sqrt() / root + self._eps)
            for kept, value in (
                (self._first[i], first),
                (self._second[i], second),
                (self.parameters[i], moved),
            ):
                kept.copy_(value if skip is None else torch.where(skip > 0, kept, value))
        if skip is not None:
            self._count -= skip

    def state_dict(self) -> dict[str, Any]:
        """Moments and count of each parameter."""
        return {
            str(i): {"step": self._count, "exp_avg": first, "exp_avg_sq": second}
            for i, (first, second) in enumerate(zip(self._first, self._second, strict=True))
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, in place; an empty state is that before any step."""
        self._count.zero_()
        for i, (first, second) in enumerate(zip(self._first, self._second, strict=True)):
            saved = state.get(str(i))
            if saved is None:
                first.zero_()
                second.zero_()
                continue
            first.copy_(saved["exp_avg"])
            second.copy_(saved["exp_avg_sq"])
            self._count.copy_(saved["step"])


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012, lecture 6.5), the numbers of `torch.optim.RMSprop`.

    Args:
        parameters: what it changes.
        learning_rate: step size.
        smoothing: of the mean of squared gradients.
        eps: added to its root.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float,
        *,
        smoothing: float = 0.99,
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters, learning_rate)
        with torch.no_grad():
            self._square = [torch.zeros_like(p) for p in self.parameters]
        self._smoothing, self._eps = smoothing, eps

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor] | None = None) -> None:
        """With v = s v + (1 - s) g^2, the step is lr g / (sqrt(v) + eps)."""
        chosen, given = self._chosen(gradients)
        square, g = _those(self._square, chosen), list(given)
        torch._foreach_mul_(square, self._smoothing)
        torch._foreach_addcmul_(square, g, g, 1.0 - self._smoothing)
        root = torch._foreach_sqrt(square)
        torch._foreach_add_(root, self._eps)
        moves = torch._foreach_div(g, root)
        torch._foreach_mul_(moves, self._learning_rate)
        torch._foreach_sub_(_those(self.parameters, chosen), moves)

    def state_dict(self) -> dict[str, Any]:
        """The mean square of each parameter's gradient."""
        return {str(i): {"square_avg": square} for i, square in enumerate(self._square)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, in place; an empty state is that before any step."""
        for i, square in enumerate(self._square):
            saved = state.get(str(i))
            if saved is None:
                square.zero_()
            else:
                square.copy_(saved["square_avg"])


@torch.no_grad()
def move_towards(targets: Sequence[Tensor], online: Sequence[Tensor], tau: float) -> None:
    """In place, target += tau * (online - target), in one call for all parameters.

    By torch's kernel, or by C, where that serves these tensors: the two agree to rounding.
    """
    behind, ahead = list(targets), list(online)
    if torch.compiler.is_compiling() or not _native_move(behind, ahead, tau):
        torch._foreach_lerp_(behind, ahead, tau)


def _native_move(targets: list[Tensor], online: list[Tensor], tau: float) -> bool:
    """The move in C; False, and nothing is done, if it does not serve these tensors."""
    if _parameters is None:
        return False
    done = _parameters.move_towards(targets, online, tau, torch.get_num_threads())
    if done:
        increment_version(targets)
    return done

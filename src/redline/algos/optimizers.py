"""Optimizers of the updates, and moves of target networks: few calls for all parameters.

Their numbers are those of `torch.optim`, without its hooks, parameter groups and the gathering of
lists at every step, which on a CPU cost more than a small network's arithmetic. The step size is a
tensor, so that a captured or compiled update sees it change.
"""

# The kernels for many tensors at once have no other names.
# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false
from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Optimizer(ABC):
    """Parameters and their step size.

    Args:
        parameters: what it changes; one without a gradient is left out of a step.
        learning_rate: step size.

    Attributes:
        parameters: a list, in the order of everything else here.
        learning_rate: [] the present step size.
    """

    def __init__(self, parameters: Iterable[Tensor], learning_rate: float) -> None:
        self.parameters = list(parameters)
        device = self.parameters[0].device
        # The CPU's kernel reads a double, as it would a Python number; CUDA's reads a float.
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        self.learning_rate = torch.tensor(learning_rate, dtype=dtype, device=device)
        self._present = learning_rate

    def set_learning_rate(self, learning_rate: float) -> None:
        """Take this step size from now on."""
        if learning_rate != self._present:
            self._present = learning_rate
            self.learning_rate.fill_(learning_rate)

    def zero_grad(self) -> None:
        """Drop the parameters' gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def step(self) -> None:
        """One step with the parameters' gradients, which are dropped.

        With gradients left over, a compiled step would begin from another state than its first
        call did, and be compiled once more.
        """

    @abstractmethod
    def apply(self, gradients: list[Tensor]) -> None:
        """One step with gradients that lie elsewhere than in the parameters.

        Args:
            gradients: one for each parameter, in their order; they are not changed.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """What each parameter's steps leave behind, by its number, named as `torch.optim` does.

        The step size is left out: it comes from the config and the schedules, and a
        checkpoint must not overrule those.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, in place; an empty state is that before any step.

        What another kind of optimizer left is none of its own, and counts as empty.
        """

    def _with_gradient(self) -> tuple[Sequence[int], list[Tensor]]:
        """Numbers of the parameters that have a gradient, and those gradients."""
        found = [(i, p.grad) for i, p in enumerate(self.parameters) if p.grad is not None]
        return [i for i, _ in found], [gradient for _, gradient in found]


def _chosen(tensors: list[Tensor], numbers: Sequence[int]) -> list[Tensor]:
    return tensors if len(numbers) == len(tensors) else [tensors[i] for i in numbers]


# The kernel wakes all threads, however little there is for them. That took a small network's step
# from 20 us to a millisecond; from so many numbers on, two threads are quicker.
_WORTH_THREADS = 1 << 20


@contextlib.contextmanager
def _one_thread() -> Generator[None]:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1), the numbers of `torch.optim.Adam`.

    Args:
        parameters: what it changes.
        learning_rate: step size.
        eps: added to the root of the second moment.

    Attributes:
        first: mean of the gradients of each parameter.
        second: mean of their squares.
        counts: [] steps that each parameter has taken, float32 as the kernel wants it.
        betas: weights of the past in the two means.
        eps: added to the root of the second.
    """

    betas = (0.9, 0.999)

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, *, eps: float = 1e-8
    ) -> None:
        super().__init__(parameters, learning_rate)
        with torch.no_grad():
            self.first = [torch.zeros_like(p) for p in self.parameters]
            self.second = [torch.zeros_like(p) for p in self.parameters]
            # Side by side in one tensor: to add 1 to each by itself took half of a small step.
            self._all_counts = torch.zeros(len(self.parameters), device=self.parameters[0].device)
            self.counts = list(self._all_counts.unbind())
        self.eps = eps
        # The other way to share work among threads is told their number once and for all.
        self._alone = (
            self._all_counts.device.type == "cpu"
            and sum(p.numel() for p in self.parameters) < _WORTH_THREADS
            and "ATen parallel backend: OpenMP" in torch.__config__.parallel_info()
        )

    def step(self, skip: Tensor | None = None) -> None:
        """One step with the parameters' gradients.

        Args:
            skip: [] float32; where 1, nothing changes; None never skips.
        """
        numbers, gradients = self._with_gradient()
        if torch.compiler.is_compiling():
            self._compiled_step(numbers, gradients, skip)
        elif len(numbers) == len(self.parameters):
            self.apply(gradients, skip)
        elif gradients:
            self._step_some(numbers, gradients, skip)
        self.zero_grad()

    def apply(self, gradients: list[Tensor], skip: Tensor | None = None) -> None:
        """One step with gradients that lie elsewhere than in the parameters.

        Args:
            gradients: one for each parameter, in their order; they are not changed.
            skip: [] float32; where 1, nothing changes; None never skips.
        """
        with torch.inference_mode():  # leaves autograd's bookkeeping for each tensor out
            self._all_counts.add_(1.0)
            self._run(self.parameters, gradients, self.first, self.second, self.counts, skip)
            if skip is not None:
                self._all_counts.sub_(skip)

    @torch.no_grad()
    def _step_some(
        self, numbers: Sequence[int], gradients: list[Tensor], skip: Tensor | None
    ) -> None:
        parameters, first, second, counts = (
            [tensors[i] for i in numbers]
            for tensors in (self.parameters, self.first, self.second, self.counts)
        )
        torch._foreach_add_(counts, 1.0)
        self._run(parameters, gradients, first, second, counts, skip)
        if skip is not None:
            torch._foreach_sub_(counts, [skip] * len(counts))

    def _run(self, *arguments: Any) -> None:
        if self._alone and torch.get_num_threads() > 1:
            with _one_thread():
                self._run_kernel(*arguments)
        else:
            self._run_kernel(*arguments)

    def _run_kernel(
        self,
        parameters: list[Tensor],
        gradients: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        counts: list[Tensor],
        skip: Tensor | None,
    ) -> None:
        torch._fused_adam_(
            parameters,
            gradients,
            first,
            second,
            [],
            counts,
            lr=self.learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=None,
            found_inf=skip,
        )

    @torch.no_grad()
    def _compiled_step(
        self, numbers: Sequence[int], gradients: list[Tensor], skip: Tensor | None
    ) -> None:
        """The same in operations that a compiler fuses, which the kernel is closed to."""
        for i, gradient in zip(numbers, gradients, strict=True):
            count = self.counts[i] + 1.0
            correction = 1.0 - self.betas[0] ** count
            root = (1.0 - self.betas[1] ** count).sqrt()
            size = self.learning_rate.to(correction.dtype) / correction
            first = torch.lerp(self.first[i], gradient, 1.0 - self.betas[0])
            second = torch.lerp(self.second[i], gradient.square(), 1.0 - self.betas[1])
            moved = self.parameters[i] - size * first / (second.sqrt() / root + self.eps)
            for present, value in (
                (self.counts[i], count),
                (self.first[i], first),
                (self.second[i], second),
                (self.parameters[i], moved),
            ):
                present.copy_(value if skip is None else torch.where(skip > 0, present, value))

    def state_dict(self) -> dict[str, Any]:
        """Moments and count of each parameter."""
        return {
            str(i): {"step": self.counts[i], "exp_avg": self.first[i], "exp_avg_sq": self.second[i]}
            for i in range(len(self.parameters))
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, in place; an empty state is that before any step."""
        for i in range(len(self.parameters)):
            saved = state.get(str(i), {})
            for present, name in (
                (self.counts[i], "step"),
                (self.first[i], "exp_avg"),
                (self.second[i], "exp_avg_sq"),
            ):
                present.copy_(saved[name]) if name in saved else present.zero_()


class RMSprop(Optimizer):
    """RMSprop (Tieleman and Hinton 2012, lecture 6.5), the numbers of `torch.optim.RMSprop`.

    Args:
        parameters: what it changes.
        learning_rate: step size.
        smoothing: of the mean of squared gradients.
        eps: added to its root.

    Attributes:
        square: mean of the squared gradients of each parameter.
        smoothing: weight of the past in it.
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
            self.square = [torch.zeros_like(p) for p in self.parameters]
        self.smoothing, self.eps = smoothing, eps

    def step(self) -> None:
        """With v = s v + (1 - s) g^2, the step is lr g / (sqrt(v) + eps)."""
        numbers, gradients = self._with_gradient()
        if gradients:
            self._step_some(numbers, gradients)
            self.zero_grad()

    def apply(self, gradients: list[Tensor]) -> None:
        """One step with gradients that lie elsewhere than in the parameters.

        Args:
            gradients: one for each parameter, in their order; they are not changed.
        """
        self._step_some(range(len(self.parameters)), gradients)

    @torch.no_grad()
    def _step_some(self, numbers: Sequence[int], gradients: list[Tensor]) -> None:
        square = _chosen(self.square, numbers)
        torch._foreach_mul_(square, self.smoothing)
        torch._foreach_addcmul_(square, gradients, gradients, 1.0 - self.smoothing)
        root = torch._foreach_sqrt(square)
        torch._foreach_add_(root, self.eps)
        moves = torch._foreach_div(gradients, root)
        torch._foreach_mul_(moves, self.learning_rate)
        torch._foreach_sub_(_chosen(self.parameters, numbers), moves)

    def state_dict(self) -> dict[str, Any]:
        """The mean square of each parameter's gradient."""
        return {str(i): {"square_avg": square} for i, square in enumerate(self.square)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` gave, in place; an empty state is that before any step."""
        for i, square in enumerate(self.square):
            saved = state.get(str(i), {}).get("square_avg")
            square.zero_() if saved is None else square.copy_(saved)


@torch.no_grad()
def move_towards(targets: Sequence[Tensor], online: Sequence[Tensor], tau: float) -> None:
    """In place, target += tau * (online - target), in one call for all parameters."""
    torch._foreach_lerp_(list(targets), list(online), tau)

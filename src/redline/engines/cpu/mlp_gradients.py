"""Perceptrons with hand-derived gradients, in plain tensor operations.

For layers y_l = f(y_{l-1} W_l + b_l) with y_0 the input, and g_l the gradient of the loss with
respect to y_l (Rumelhart et al. 1986):

    d_l = g_l * f'(y_l)        f' from the output: [y > 0] of ReLU, 1 - y^2 of tanh
    dW_l = y_{l-1}^T d_l       db_l = sum over rows of d_l       g_{l-1} = d_l W_l^T

The numbers are those of autograd up to the order of rounding; what is saved is its graph, and
every gradient that nobody asked for. The last layer is linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from redline.engines.cpu.products import affine, matrix_product
from redline.models.ensemble import EnsembleMLP

_SERVED = (nn.ReLU, nn.Tanh)
_FEW = 4  # times as many outputs as inputs: then turning the result costs less than it gains
_ALIGNMENT = 16  # numbers; the beginning of a cache line


@dataclass(slots=True)
class Layer:
    """One dense layer, and where its gradients go.

    Attributes:
        weight: [in, out] view of the parameter.
        bias: [out] view of the parameter.
        weight_grad: [in, out] view, overwritten by `Perceptron.backward`.
        bias_grad: [out] view, likewise.
    """

    weight: Tensor
    bias: Tensor
    weight_grad: Tensor
    bias_grad: Tensor


class Perceptron:
    """Dense layers with ReLU or tanh between them.

    Args:
        layers: from the input to the output.
        tanh: whether tanh is between them; else ReLU.
        activate_output: whether the last layer is followed by it too.
    """

    def __init__(
        self, layers: Sequence[Layer], *, tanh: bool, activate_output: bool = False
    ) -> None:
        self.layers, self.tanh, self.activate_output = list(layers), tanh, activate_output

    def forward(self, x: Tensor) -> list[Tensor]:
        """The input [N, in] and the output of every layer; [N, out] last."""
        kept = [x]
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            active = i < last or self.activate_output
            y = affine(kept[-1], layer.weight, layer.bias, relu=active and not self.tanh)
            kept.append(_tanh_(y) if active and self.tanh else y)
        return kept

    def backward(
        self, kept: list[Tensor], grad: Tensor, *, weights: bool = True, columns: slice | None
    ) -> Tensor | None:
        """Backpropagate.

        Args:
            kept: what `forward` returned.
            grad: [N, out] gradient of the loss with respect to the output.
            weights: whether the gradients of weights and biases are written.
            columns: which of the inputs' gradients to return, side by side; None: none of them.

        Returns:
            [N, columns], or None.
        """
        last = len(self.layers) - 1
        for i in range(last, -1, -1):
            layer = self.layers[i]
            if i < last or self.activate_output:
                grad = self._through_activation(grad, kept[i + 1])
            if weights:
                _weight_grad(kept[i], grad, layer.weight_grad)
                torch.sum(grad, 0, out=layer.bias_grad)
            if i > 0:
                grad = matrix_product(grad, layer.weight.t())
        if columns is None:
            return None
        return matrix_product(grad, self.layers[0].weight[columns].t())

    def _through_activation(self, grad: Tensor, output: Tensor) -> Tensor:
        if self.tanh:
            return torch.ops.aten.tanh_backward(grad, output)
        return torch.ops.aten.threshold_backward(grad, output, 0)


def _tanh_(x: Tensor) -> Tensor:
    """In place; numpy's is ten times faster than the tensor library's on a CPU."""
    if not x.is_cpu or torch.compiler.is_compiling():
        return x.tanh_()
    array = x.numpy()
    np.tanh(array, out=array)
    return x


def _weight_grad(inputs: Tensor, grad: Tensor, out: Tensor) -> None:
    """Out = inputs^T grad, computed the way round in which `out` lies in memory.

    Of few inputs the other way round is twice as quick on a CPU, and worth turning the result.
    """
    if out.is_contiguous():
        matrix_product(inputs.t(), grad, out)
    elif out.is_cpu and _FEW * inputs.shape[1] <= grad.shape[1]:
        out.copy_(matrix_product(inputs.t(), grad))
    else:
        matrix_product(grad.t(), inputs, out.t())


class Gradients:
    """Memory for the gradients of some parameters, all in one piece.

    Args:
        parameters: in the optimiser's order.

    Attributes:
        flat: [total] every gradient, one after the other.
        views: of it, each of its parameter's shape.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        first = parameters[0]
        sizes = [-(-p.numel() // _ALIGNMENT) * _ALIGNMENT for p in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        parts = self.flat.split(sizes)
        self.views = [
            part[: p.numel()].view(p.shape) for part, p in zip(parts, parameters, strict=True)
        ]
        self._of = dict(zip(parameters, self.views, strict=True))

    def __getitem__(self, parameter: Tensor) -> Tensor:
        """The gradient of this parameter."""
        return self._of[parameter]

    def clip(self, max_norm: float) -> Tensor:
        """Scale all to an L2 norm of at most `max_norm` (0: leave them); the norm before, []."""
        norm = torch.linalg.vector_norm(self.flat)
        if max_norm > 0:
            self.flat *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
        return norm


def perceptron_of(
    modules: Sequence[nn.Module], grads: Gradients | None = None
) -> Perceptron | None:
    """A chain of `nn.Linear`, `nn.ReLU` and `nn.Tanh` as a `Perceptron` on the same parameters.

    Args:
        modules: in their order; sequences are taken apart.
        grads: where gradients go; None where none will be asked for.

    Returns:
        None if anything else is among them, or layers and activations do not alternate.
    """
    chain = list(_flat(modules))
    linear = [module for module in chain if type(module) is nn.Linear]
    between = [module for module in chain if type(module) in _SERVED]
    if not linear or len(linear) + len(between) != len(chain):
        return None
    kinds = {type(module) for module in between}
    order = [type(module) is nn.Linear for module in chain]
    if len(kinds) > 1 or order != [i % 2 == 0 for i in range(len(chain))]:
        return None
    if any(module.bias is None for module in linear):
        return None
    layers = [
        _layer(module.weight.detach().t(), module.bias.detach(), module.weight, module.bias, grads)
        for module in linear
    ]
    return Perceptron(layers, tanh=nn.Tanh in kinds, activate_output=len(between) == len(linear))


def perceptrons_of(
    ensemble: EnsembleMLP, grads: Gradients | None = None
) -> list[Perceptron] | None:
    """The members of an ensemble, each as a `Perceptron` on its part of the parameters.

    One after the other they are quicker on a CPU than one batched product.

    Args:
        ensemble: may not have dropout or layer normalisation.
        grads: where gradients go; None where none will be asked for.

    Returns:
        None if the ensemble is not plain.
    """
    if ensemble.dropout or len(ensemble.norm_weights) or type(ensemble.activation) not in _SERVED:
        return None
    pairs = list(zip(ensemble.weights, ensemble.biases, strict=True))
    return [
        Perceptron(
            [
                _layer(w.detach()[e], b.detach()[e, 0], w, b, grads, lambda g, e=e: g[e])
                for w, b in pairs
            ],
            tanh=type(ensemble.activation) is nn.Tanh,
        )
        for e in range(ensemble.num_members)
    ]


def _layer(
    weight: Tensor,
    bias: Tensor,
    weight_parameter: Tensor,
    bias_parameter: Tensor,
    grads: Gradients | None,
    member: Any = None,
) -> Layer:
    """A layer whose gradients lie where `grads` says."""
    if grads is None:
        return Layer(weight, bias, weight.new_empty(0), bias.new_empty(0))
    weight_grad, bias_grad = grads[weight_parameter], grads[bias_parameter]
    if member is None:
        return Layer(weight, bias, weight_grad.t(), bias_grad)
    return Layer(weight, bias, member(weight_grad), member(bias_grad)[0])


def _flat(modules: Sequence[nn.Module]) -> Any:
    """The modules in their order, sequences taken apart."""
    for module in modules:
        if isinstance(module, nn.Sequential):
            yield from _flat(list(module))
        else:
            yield module

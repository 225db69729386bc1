"""Multi-layer perceptrons with gradients derived by hand, in C or numpy.

For layers y_l = f(y_{l-1} W_l + b_l) with y_0 the input, and g_l the gradient of the loss with
respect to y_l (Rumelhart et al. 1986):

    d_l = g_l * f'(y_l)        f' from the output: [y > 0] for ReLU, 1 - y^2 for tanh
    dW_l = y_{l-1}^T d_l       db_l = sum over rows of d_l       g_{l-1} = d_l W_l^T

The numbers equal autograd's up to the order of rounding. What is saved is autograd's graph and the
cost of its calls: with layers of 64 units and 64 rows, nearly all the time of tensor operations is
their calls, some 2 us each, where numpy's take 0.3 to 1 us and C needs one call for a whole pass.
Networks with ReLU go to C (`csrc/dense.c`), which uses the widest vector instructions that the
processor has; numpy computes those with tanh, whose own tanh is ten times faster than torch's, and
all of them where the extension was not built. (Times: AMD EPYC with AVX-512, one thread.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from redline.data import Array
from redline.engines.cpu.known_parts import DenseChain, DenseLayer, NotServedError
from redline.engines.cpu.parameters import Gradients

_dense: Any
try:
    # It looks for the threads of the tensor library, which is loaded by now.
    from redline.engines.cpu import _dense  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # installed without a C compiler
    _dense = None

# Multiplications of the largest product up to which numpy is quicker than torch: calls then
# outweigh what better libraries gain on the arithmetic.
_MOST_NUMPY_MULTIPLICATIONS = 3_000_000
# Up to here C was measured. With layers of 256 units and 256 rows it is compute-bound, where torch
# takes 12 to 45% longer; from 1,024 units on the two are level.
_MOST_WEIGHTS = 2**20  # in one layer
_MOST_ROWS = 4096


def has_extension() -> bool:
    """Whether the C extension was built and could be loaded."""
    return _dense is not None


def instructions_in_use() -> str | None:
    """The widest vector instructions of the C extension here; None without it."""
    return None if _dense is None else str(_dense.instructions[0])


def in_c(chain: DenseChain) -> bool:
    """Whether C computes this network: ReLU, not too many layers, and AVX2 or better."""
    return (
        _dense is not None
        and not chain.is_tanh
        and _dense.instructions[0] != "plain"
        and len(chain.layers) <= _dense.MOST_LAYERS
    )


def require_quick(chains: list[DenseChain], rows: int) -> None:
    """Refuse networks for which torch is the quicker way, for batches of so many rows."""
    for chain in chains:
        largest = max(layer.weight.numel() for layer in chain.layers)
        if rows * largest <= _MOST_NUMPY_MULTIPLICATIONS:
            continue
        if not in_c(chain):
            why = "tanh has no kernel in C" if chain.is_tanh else "C does not serve this network"
            raise NotServedError(
                f"{rows} rows times {largest} weights are too many for numpy, and {why}"
            )
        if rows > _MOST_ROWS or largest > _MOST_WEIGHTS:
            raise NotServedError(
                f"{rows} rows times {largest} weights are more than the kernels are quick for"
            )


class MLP:
    """One network on the memory of its parameters.

    The parameters may be written to, but not be moved, as `share_memory_` does.

    Args:
        chain: the layers.
        gradients: where gradients of the parameters go; None for a network that does not learn.
    """

    def __init__(self, chain: DenseChain, gradients: Gradients | None = None) -> None:
        layers = chain.layers
        self._is_tanh, self._activates_output = chain.is_tanh, chain.activates_output
        self._weights = [layer.weight.numpy() for layer in layers]
        self._biases = [layer.bias.numpy() for layer in layers]
        self._weight_grads: list[Array] = []
        self._bias_grads: list[Array] = []
        if gradients is not None:
            pairs = [_gradients_of(layer, gradients) for layer in layers]
            self._weight_grads = [weight for weight, _ in pairs]
            self._bias_grads = [bias for _, bias in pairs]
        # The maximum with an array takes a quarter of the time of that with a number.
        self._zeros = [np.zeros_like(bias) for bias in self._biases]
        self._hidden_rows = [
            (weight.T, bias, np.empty_like(bias), zeros)
            for weight, bias, zeros in zip(
                self._weights[:-1], self._biases[:-1], self._zeros[:-1], strict=True
            )
        ]
        self._last_weight = self._weights[-1].T
        self.widths = [len(bias) for bias in self._biases]
        self.num_inputs = len(self._weights[0])
        self._native = None
        if in_c(chain):
            self._native = _dense.Network(
                tuple(self._weights),
                tuple(self._biases),
                tuple(self._weight_grads),
                tuple(self._bias_grads),
                chain.activates_output,
            )

    def workspace(self, rows: int, share: list[Array] | None = None) -> list[Array]:
        """Memory for the outputs of every layer, [rows, width] each.

        Args:
            rows: of the batches.
            share: a workspace of so many rows. Where the widths are the same, all layers but the
                last use its memory: the sooner memory is used again, the less often it has left
                the cache.
        """
        arrays = [np.empty((rows, width), np.float32) for width in self.widths]
        if share is not None and [each.shape[1] for each in share[:-1]] == self.widths[:-1]:
            arrays[:-1] = share[:-1]
        return arrays

    def forward(self, x: Array, workspace: list[Array] | None = None) -> list[Array]:
        """The input and the output of every layer; [N, in] first, [N, out] last.

        Args:
            x: [N, in] float32.
            workspace: what `workspace` gave for N rows, to write outputs to; None: new memory.
        """
        if x.strides[-1] != x.itemsize:  # a view of every other column, say
            x = np.ascontiguousarray(x)
        outputs = self.workspace(len(x)) if workspace is None else workspace
        tape = [x, *outputs]
        if self._native is not None:
            self._native.forward(tape, torch.get_num_threads())
            return tape
        last = len(self._weights) - 1
        for i, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            y = np.dot(tape[i], weight, out=outputs[i])
            y += bias
            if i < last or self._activates_output:
                self._activate(y, i)
        return tape

    def backward(self, tape: list[Array], grad: Array) -> None:
        """Write the gradients of weights and biases.

        Args:
            tape: what `forward` returned.
            grad: [N, out] gradient of the loss with respect to the output.
        """
        if self._native is not None:
            self._native.backward(tape, grad, torch.get_num_threads())
            return
        ones = np.ones(len(grad), np.float32)
        last = len(self._weights) - 1
        for i in range(last, -1, -1):
            if i < last or self._activates_output:
                grad = self._through_activation(grad, tape[i + 1])
            _product(tape[i], grad, self._weight_grads[i])
            np.dot(ones, grad, out=self._bias_grads[i])
            if i > 0:
                grad = np.dot(grad, self._weights[i].T)

    def input_gradient(self, tape: list[Array], grad: Array, size: int) -> Array:
        """The gradient [N, size] of the last inputs; those of weights are left as they are.

        Args:
            tape: what `forward` returned.
            grad: [N, out] gradient of the loss with respect to the output.
            size: how many inputs.
        """
        if self._native is not None:
            out = np.empty((len(grad), size), np.float32)
            self._native.backward(tape, grad, torch.get_num_threads(), 0, out)
            return out
        last = len(self._weights) - 1
        for i in range(last, -1, -1):
            if i < last or self._activates_output:
                grad = self._through_activation(grad, tape[i + 1])
            weight = self._weights[i]
            grad = np.dot(grad, (weight if i > 0 else weight[len(weight) - size :]).T)
        return grad

    def row(self, x: Array, out: Array) -> None:
        """The output for a single input.

        Args:
            x: [in] float32.
            out: [out] to write to.
        """
        if self._native is not None:
            self._native.row(x, out)
            return
        # One such call is made per env_step: what it needs of each layer lies ready.
        for weight, bias, y, zeros in self._hidden_rows:
            np.dot(weight, x, out=y)
            y += bias
            if self._is_tanh:
                np.tanh(y, out=y)
            else:
                np.maximum(y, zeros, out=y)
            x = y
        np.dot(self._last_weight, x, out=out)
        out += self._biases[-1]
        if self._activates_output:
            self._activate(out, -1)

    def _activate(self, y: Array, layer: int) -> None:
        if self._is_tanh:
            np.tanh(y, out=y)
        else:
            np.maximum(y, self._zeros[layer], out=y)

    def _through_activation(self, grad: Array, output: Array) -> Array:
        if not self._is_tanh:
            # As autograd: an infinite gradient stops at an inactive unit, and what is no number
            # hands it on.
            return np.where(output <= 0, np.float32(0), grad)
        slope = output * output
        np.subtract(1.0, slope, out=slope)
        slope *= grad
        return slope


def _gradients_of(layer: DenseLayer, gradients: Gradients) -> tuple[Array, Array]:
    """Where the gradients [in, out] and [out] of a layer go."""
    weight = gradients[layer.weight_parameter].numpy()
    bias = gradients[layer.bias_parameter].numpy()
    if layer.member is None:
        return weight.T, bias
    return weight[layer.member], bias[layer.member, 0]


def _product(inputs: Array, grad: Array, out: Array) -> None:
    """Out = inputs^T grad, computed the way round in which `out` lies in memory."""
    if out.flags.c_contiguous:
        np.dot(inputs.T, grad, out=out)
    else:
        np.dot(grad.T, inputs, out=out.T)

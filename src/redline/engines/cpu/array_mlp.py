"""Perceptrons with hand-derived gradients in numpy or C, in main memory.

The formulas are those of `mlp_gradients`, on the same parameters and gradients. For layers of 64
units and minibatches of 64 rows nearly all the time of tensor operations is their calls, some 2 us
each; numpy's take 0.3 to 1 us, and its tanh is ten times faster (measured on an AMD EPYC). Larger
ones are as quick as their multiplications in C, where that serves them.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from threadpoolctl import ThreadpoolController

from redline.data import Array
from redline.engines.cpu.mlp_gradients import Perceptron
from redline.engines.cpu.native_network import is_quick_in_c, native_network

# Multiplications of the largest product up to which this is the quicker way without C: calls then
# outweigh what other libraries gain on the arithmetic.
_MOST_MULTIPLICATIONS = 3_000_000


def suits_arrays(perceptron: Perceptron, rows: int) -> bool:
    """Whether a perceptron is quicker as an `ArrayPerceptron` for batches of so many rows."""
    first = perceptron.layers[0].weight
    if not first.is_cpu or first.dtype != torch.float32:
        return False
    largest = max(layer.weight.numel() for layer in perceptron.layers)
    return rows * largest <= _MOST_MULTIPLICATIONS or is_quick_in_c(perceptron, rows)


@functools.cache
def give_numpy_one_thread() -> None:
    """Let numpy's matrix library work with one thread from now on, once per process.

    Its threads wait by spinning, and so do the tensor library's: with two of each on two cores
    DQN's update took fifteen times as long. What goes through numpy here is too small to share.
    """
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)


class ArrayPerceptron:
    """A `Perceptron` in main memory, computed in C or by numpy.

    Args:
        perceptron: float32 on the CPU; its parameters and gradients are used where they lie, so
            that they may be written to, but not be moved (as `share_memory_` does).
    """

    def __init__(self, perceptron: Perceptron) -> None:
        give_numpy_one_thread()
        self._tanh, self._activate_output = perceptron.tanh, perceptron.activate_output
        self._weights = [layer.weight.numpy() for layer in perceptron.layers]
        self._biases = [layer.bias.numpy() for layer in perceptron.layers]
        self._weight_grads = [layer.weight_grad.numpy() for layer in perceptron.layers]
        self._bias_grads = [layer.bias_grad.numpy() for layer in perceptron.layers]
        # The maximum with an array takes a quarter of the time of that with a number.
        self._zeros = [np.zeros_like(bias) for bias in self._biases]
        self._widths = [len(bias) for bias in self._biases]
        self._native = native_network(perceptron)

    def room(self, rows: int, like: list[Array] | None = None) -> list[Array]:
        """Memory for the outputs of every layer, [rows, width] each.

        Args:
            rows: of the batches.
            like: a room of so many rows. All layers but the last share its memory where they have
                the same widths: the sooner memory is used again, the less often it has left the
                cache.
        """
        made = [np.empty((rows, width), np.float32) for width in self._widths]
        if like is not None and [len(each.T) for each in like[:-1]] == self._widths[:-1]:
            made[:-1] = like[:-1]
        return made

    def forward(self, x: Array, room: list[Array] | None = None) -> list[Array]:
        """The input and the output of every layer; [N, in] first, [N, out] last.

        Args:
            x: [N, in].
            room: what `room` gave for N rows, to write the outputs to; None makes it.
        """
        if x.strides[-1] != x.itemsize:  # an encoder's view of every other column, say
            x = np.ascontiguousarray(x)
        if self._native is not None:
            kept = [x, *(self.room(len(x)) if room is None else room)]
            self._native.forward(kept, torch.get_num_threads())
            return kept
        kept = [x]
        last = len(self._weights) - 1
        for i, (weight, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            y = np.dot(kept[i], weight, out=None if room is None else room[i])
            y += bias
            if i < last or self._activate_output:
                if self._tanh:
                    np.tanh(y, out=y)
                else:
                    np.maximum(y, self._zeros[i], out=y)
            kept.append(y)
        return kept

    def backward(self, kept: list[Array], grad: Array) -> None:
        """Write the gradients of weights and biases.

        Args:
            kept: what `forward` returned.
            grad: [N, out] gradient of the loss with respect to the output.
        """
        if self._native is not None:
            self._native.backward(kept, grad, torch.get_num_threads())
            return
        ones = np.ones(len(grad), np.float32)
        last = len(self._weights) - 1
        for i in range(last, -1, -1):
            if i < last or self._activate_output:
                grad = self._through_activation(grad, kept[i + 1])
            _product(kept[i], grad, self._weight_grads[i])
            np.dot(ones, grad, out=self._bias_grads[i])
            if i > 0:
                grad = np.dot(grad, self._weights[i].T)

    def input_gradient(self, kept: list[Array], grad: Array, size: int) -> Array:
        """The gradient [N, size] of the last inputs; those of weights are left as they are.

        Args:
            kept: what `forward` returned.
            grad: [N, out] gradient of the loss with respect to the output.
            size: how many inputs.
        """
        if self._native is not None:
            out = np.empty((len(grad), size), np.float32)
            self._native.backward(kept, grad, torch.get_num_threads(), 0, out)
            return out
        last = len(self._weights) - 1
        for i in range(last, -1, -1):
            if i < last or self._activate_output:
                grad = self._through_activation(grad, kept[i + 1])
            weight = self._weights[i]
            grad = np.dot(grad, (weight if i > 0 else weight[len(weight) - size :]).T)
        return grad

    def _through_activation(self, grad: Array, output: Array) -> Array:
        if not self._tanh:
            return grad * (output > 0)
        slope = output * output
        np.subtract(1.0, slope, out=slope)
        slope *= grad
        return slope


def _product(inputs: Array, grad: Array, out: Array) -> None:
    """Out = inputs^T grad, computed the way round in which `out` lies in memory."""
    if out.flags.c_contiguous:
        np.dot(inputs.T, grad, out=out)
    else:
        np.dot(grad.T, inputs, out=out.T)

"""Perceptrons with ReLU in C (`csrc/dense.c`), on their own memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from redline.engines.cpu.products import prefers_onednn

if TYPE_CHECKING:
    from redline.engines.cpu.mlp_gradients import Perceptron

_dense: Any
try:
    # It looks for the threads of the tensor library, which is loaded by now.
    from redline.engines.cpu import _dense  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # installed without a C compiler
    _dense = None

_MOST_NUMBERS = 2**20  # in a layer's weight
_MOST_ROWS = 4096  # in batches, for which the passes were measured


def is_served(perceptron: Perceptron) -> bool:
    """Whether there is a `native_network` of it.

    There is none with tanh, of which numpy's is quick, with very many layers, if the extension was
    not built, and on processors without AVX2.
    """
    if _dense is None or perceptron.tanh or _dense.instructions[0] == "plain":
        return False
    if len(perceptron.layers) > _dense.MOST_LAYERS:
        return False
    return all(layer.weight.numel() > 0 for layer in perceptron.layers)


def native_network(perceptron: Perceptron) -> Any:
    """The same in C, on the same memory; None if it is not served.

    A pass is one call, and uses 512-bit units on every processor that has them, which numpy's
    library does on Intel's only: on an AMD EPYC it takes half of numpy's time.
    """
    if not is_served(perceptron):
        return None
    layers, learns = perceptron.layers, perceptron.layers[0].weight_grad.numel() > 0
    return _dense.Network(
        tuple(layer.weight.numpy() for layer in layers),
        tuple(layer.bias.numpy() for layer in layers),
        tuple(layer.weight_grad.numpy() for layer in layers) if learns else (),
        tuple(layer.bias_grad.numpy() for layer in layers) if learns else (),
        perceptron.activate_output,
    )


def is_quick_in_c(perceptron: Perceptron, rows: int) -> bool:
    """Whether C is the quicker way for batches of so many rows, and not the tensor library.

    With layers of 256 units and 256 rows a pass takes what its multiplications take, of the
    tensor library 12 to 45% more (an AMD EPYC with AVX-512, one thread and two). From 1,024 units
    on they are level. On Intel's processors, where the tensor library's own products are as quick
    as any, nothing was measured, and it does them.
    """
    weights = [layer.weight for layer in perceptron.layers]
    if not all(weight.is_cpu and weight.dtype == torch.float32 for weight in weights):
        return False
    if rows > _MOST_ROWS or max(weight.numel() for weight in weights) > _MOST_NUMBERS:
        return False
    return is_served(perceptron) and prefers_onednn()

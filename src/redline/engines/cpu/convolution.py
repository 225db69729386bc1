"""Layers of convolutional networks with gradients: C for convolutions, oneDNN for dense layers.

A convolution with its ReLU is one operation in C (`csrc/convolution.c`), in which one image after
the other goes through a core. Torch converts, lays out and rectifies a whole batch in separate
passes, over tensors that no cache holds; on batches to learn from that takes a quarter longer.

A large dense layer goes to the quicker of torch's two libraries. MKL leaves the 512-bit units of
processors that are not Intel's unused: on an AMD EPYC (Zen 5, one thread, 256 x 256 x 256, float32)
it reaches 105 GFLOP/s and oneDNN 217. A call of oneDNN costs 10 us more, so small products stay
with MKL. With it the dense layer of the Nature network takes half the time, a tenth of an update.
Which library is used depends on the processor and the shapes alone, so that the same run gives the
same numbers.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

try:
    from redline.engines.cpu import _convolution  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # no C compiler: torch does it
    _convolution: Any = None

_CHANNELS_LAST = torch.channels_last
_LEAST_MULTIPLICATIONS = 700_000  # where both libraries took equally long, on the machine above


def is_traced() -> bool:
    """Whether this runs to be compiled or exported; such programs hold plain layers."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None  # pyright: ignore


def serves(layer: nn.Conv2d, image: Tensor) -> bool:
    """Whether `rectified` can take a layer's place for these images.

    It can for float32 on the CPU, square kernels without padding, and numbers of filters and
    channels that fill vector registers. It cannot where a program is compiled or exported, nor
    where torch's threads cannot be used. Images that do not fit the layer are left to the layer,
    whose error says so.
    """
    if _convolution is None or not image.is_cpu or is_traced():
        return False
    weight, bias, kernel = layer.weight, layer.bias, layer.kernel_size[0]
    return (
        image.dtype in (torch.uint8, torch.float32)
        and image.dim() == 4
        and image.shape[1] == layer.in_channels
        and _is_readable(weight)
        and bias is not None
        and _is_readable(bias)
        and layer.kernel_size == (kernel, kernel)
        and layer.stride[0] == layer.stride[1]
        and layer.padding == (0, 0)
        and layer.dilation == (1, 1)
        and layer.groups == 1
        and min(image.shape[2:]) >= kernel
        and _convolution.serves(
            *(layer.in_channels, kernel, layer.out_channels),
            image.requires_grad,
            torch.get_num_threads(),
        )
    )


def _is_readable(weight: Tensor) -> bool:
    return weight.is_cpu and weight.dtype == torch.float32 and weight.is_contiguous()


def rectified(layer: nn.Conv2d, image: Tensor, scale: float = 1.0) -> Tensor:
    """ReLU of a convolution of `scale` times the images.

    Args:
        layer: one that is served.
        image: [N, C, H, W] uint8, or float32, then with gradient. With the channels last in memory
            it is not copied, and has to stay as it is until the backward pass.
        scale: factor on the images, as one on the weights.

    Returns:
        [N, filters, H', W'] float32 with the channels last in memory. It can be differentiated
        once.
    """
    return _RectifiedConvolution.apply(image, layer.weight, layer.bias, layer.stride[0], scale)  # pyright: ignore


class _RectifiedConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, image: Tensor, weight: Tensor, bias: Tensor, stride: int, scale: float
    ) -> Tensor:
        image = image.contiguous(memory_format=_CHANNELS_LAST)
        num_images, channels, height, width = image.shape
        filters, kernel = weight.shape[0], weight.shape[2]
        size = ((height - kernel) // stride + 1, (width - kernel) // stride + 1)
        shape = (num_images, filters, *size)
        out = torch.empty(shape, dtype=weight.dtype, memory_format=_CHANNELS_LAST)
        ctx.sizes = (num_images, height, width, channels, kernel, stride, filters)
        ctx.scale = scale
        _convolution.forward(
            *(image.data_ptr(), image.dtype == torch.uint8, *ctx.sizes),
            *(weight.data_ptr(), scale, bias.data_ptr(), out.data_ptr()),
            torch.get_num_threads(),
        )
        ctx.save_for_backward(image, weight, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        image, weight, out = ctx.saved_tensors
        # Hooks on saved tensors may have laid them out anew.
        image, out, grad = (
            tensor.contiguous(memory_format=_CHANNELS_LAST) for tensor in (image, out, grads[0])
        )
        weight = weight.contiguous()
        to_image = torch.empty_like(image) if ctx.needs_input_grad[0] else None
        to_weight, to_bias = torch.empty_like(weight), weight.new_empty(weight.shape[0])
        _convolution.backward(
            *(image.data_ptr(), image.dtype == torch.uint8, *ctx.sizes),
            *(weight.data_ptr(), ctx.scale, out.data_ptr(), grad.data_ptr()),
            0 if to_image is None else to_image.data_ptr(),
            *(to_weight.data_ptr(), to_bias.data_ptr()),
            torch.get_num_threads(),
        )
        return to_image, to_weight, to_bias, None, None


@functools.cache
def prefers_onednn() -> bool:
    """Whether large float32 products are quicker by oneDNN here: AVX-512, and not Intel's."""
    if not torch.backends.mkldnn.is_available():
        return False
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        return "GenuineIntel" not in Path("/proc/cpuinfo").read_text()
    except OSError:  # no Linux: nothing was measured there
        return False


def is_large(*sizes: int) -> bool:
    """Whether a product [n, k] x [k, m], of sizes (n, k, m), goes to oneDNN on this processor."""
    return math.prod(sizes) >= _LEAST_MULTIPLICATIONS and prefers_onednn()


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """The product a b of float32 matrices [n, k] and [k, m] of any strides, without gradient."""
    if is_large(a.shape[0], a.shape[1], b.shape[1]):
        return torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")
    return torch.mm(a, b)


def affine(x: Tensor, weight: Tensor, bias: Tensor, *, relu: bool = False) -> Tensor:
    """The layer x weight + bias, rectified if asked for, without gradient.

    Args:
        x: [n, k] float32.
        weight: [k, m] float32, of any strides.
        bias: [m].
        relu: whether negative results become 0.
    """
    if is_large(x.shape[0], x.shape[1], weight.shape[1]):
        what = "relu" if relu else "none"
        return torch.ops.mkldnn._linear_pointwise(x, weight.t(), bias, what, [], "")
    result = torch.addmm(bias, x, weight)
    return result.relu_() if relu else result


def dense(layer: nn.Linear, x: Tensor) -> Tensor:
    """What the layer makes of [N, in], by the quicker library."""
    weight, bias = layer.weight, layer.bias
    plain = bias is None or not x.is_cpu or x.dtype != torch.float32 or weight.dtype != x.dtype
    if (
        plain
        or x.dim() != 2
        or is_traced()
        or not is_large(x.shape[0], x.shape[1], layer.out_features)
    ):
        return functional.linear(x, weight, bias)
    return _Affine.apply(x, weight, bias)  # pyright: ignore


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return affine(x, weight.t(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor, Tensor]:
        (grad,), (x, weight) = grads, ctx.saved_tensors
        to_input = matrix_product(grad, weight) if ctx.needs_input_grad[0] else None
        return to_input, matrix_product(grad.t(), x), grad.sum(0)

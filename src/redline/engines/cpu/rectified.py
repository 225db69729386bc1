"""Convolutions with ReLU in C (`csrc/convolution.c`), with gradients, on the CPU.

With the batches that are learned from the tensor library's own take a quarter longer: it converts,
lays out and rectifies in passes of their own over tensors that no cache holds. Here one image after
the other goes through a core.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from redline.engines.cpu.dense import is_traced

try:
    from redline.engines.cpu import _convolution  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # no C compiler: the tensor library does it
    _convolution: Any = None

_CHANNELS_LAST = torch.channels_last


def serves(layer: nn.Conv2d, image: Tensor) -> bool:
    """Whether `rectified` can take a layer's place for these images.

    It can for float32 on the CPU, square kernels without padding, and numbers of filters and
    channels that fill vector registers; not where a program is compiled or exported, which is to
    hold plain layers, nor where the tensor library's threads cannot be used. Images that do not
    fit the layer are left to the layer, which says so.
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

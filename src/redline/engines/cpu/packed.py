"""Networks for images whose weights are laid out once, for many passes over a few images on a CPU.

oneDNN computes with weights in an order of its own, and puts plain ones into it at every pass. With
a batch to learn from that does not show; of the few images that are acted on at a time it takes as
long as a third of the products. While a rollout is collected the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from redline.engines.cpu.dense import Dense
from redline.engines.cpu.products import affine, is_large
from redline.models.convolution import NatureCNN, ScaledConv2d

Layer: TypeAlias = Callable[[Tensor], Tensor]
_SERVED = (nn.Conv2d, ScaledConv2d, nn.Linear, Dense)  # and nothing that computes otherwise


class Packing:
    """A context in which networks compute with the weights that they had when this was made.

    Weights that change afterwards are not seen: make another one. It may be entered again and
    again; outside of it, and with gradients, networks compute as ever. Numbers differ by rounding.
    Within it hooks of single layers are not called, and networks are not to be copied.

    Args:
        networks: of which those of the kind `NatureCNN` are packed that have their weights in
            float32 on the CPU; none are where oneDNN is missing or switched off.
        num_images: N of most batches; any other is served, too.
    """

    def __init__(self, networks: nn.Module, num_images: int) -> None:
        self._packed = [
            (part, PackedNetwork(part, num_images))
            for part in networks.modules()
            if isinstance(part, NatureCNN) and _is_served(part)
        ]

    def __enter__(self) -> None:
        """Let them compute so."""
        for network, packed in self._packed:
            network.packed = packed

    def __exit__(self, *raised: object) -> None:
        """Let them compute as ever."""
        for network, _ in self._packed:
            network.packed = None


def _is_served(network: nn.Module) -> bool:
    onednn = torch.backends.mkldnn
    return (
        onednn.is_available()
        and onednn.enabled
        and all(weight.is_cpu and weight.dtype == torch.float32 for weight in network.parameters())
    )


class PackedNetwork:
    """[N, C, H, W] images to features by weights as they are now, without gradient.

    Args:
        network: its convolutions and dense layers get copies of their weights, and are joined
            with a ReLU that follows; its other layers are called as they are.
        num_images: N of most batches.
    """

    def __init__(self, network: NatureCNN, num_images: int) -> None:
        self._layers: list[Layer] = []
        shape, left = (num_images, *network.shape), list(network.network)
        while left:
            layer = left.pop(0)
            if type(layer) not in _SERVED or layer.bias is None:
                self._layers.append(layer)
                continue
            relu = bool(left) and isinstance(left[0], nn.ReLU)
            if relu:
                left.pop(0)
            if isinstance(layer, nn.Conv2d):
                self._layers.append(_convolution(layer, shape, relu=relu))
                shape = _shape_after(layer, shape)
            elif isinstance(layer, nn.Linear):
                self._layers.append(_dense(layer, num_images, relu=relu))

    def __call__(self, image: Tensor) -> Tensor:
        """[N, out_features]."""
        for layer in self._layers:
            image = layer(image)
        return image


def _convolution(layer: nn.Conv2d, shape: tuple[int, ...], *, relu: bool) -> Layer:
    where = (layer.padding, layer.stride, layer.dilation, layer.groups)
    weight, bias = layer.weight.detach(), layer.bias.detach().clone()  # type: ignore[union-attr]
    if isinstance(layer, ScaledConv2d):
        weight = weight * layer.scale
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *where, shape)
    what = "relu" if relu else "none"

    def convolve(image: Tensor) -> Tensor:
        return torch.ops.mkldnn._convolution_pointwise(image, packed, bias, *where, what, [], "")

    return convolve


def _dense(layer: nn.Linear, num_images: int, *, relu: bool) -> Layer:
    weight, bias = layer.weight.detach(), layer.bias.detach().clone()
    if not is_large(num_images, layer.in_features, layer.out_features):
        # By the library that the plain layer goes to as well: there is nothing to lay out.
        weight = weight.clone().t()
        return lambda features: affine(features, weight, bias, relu=relu)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, num_images)
    what = "relu" if relu else "none"

    def multiply(features: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(features, packed, bias, what, [], "")

    return multiply


def _shape_after(layer: nn.Conv2d, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of what a convolution makes of [N, C, H, W].

    No network here pads. A wrong size would cost time only: the layout is chosen by it.
    """
    sides = zip(shape[2:], layer.kernel_size, layer.stride, strict=True)
    return (
        shape[0],
        layer.out_channels,
        *((side - kernel) // step + 1 for side, kernel, step in sides),
    )

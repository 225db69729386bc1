"""Networks for images whose weights are laid out once, for many passes over a few images on a CPU.

oneDNN computes with weights in an order of its own, and puts plain ones into it at every pass. With
a batch to learn from that does not show; of the few images that are acted on at a time it takes as
long as a third of the products. While a rollout is collected the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor, nn

from redline.models.convolution import NatureCNN, ScaledConv2d

Layer: TypeAlias = Callable[[Tensor], Tensor]


class Packing:
    """A context in which networks compute with the weights that they had when this was made.

    It may be entered again and again; outside of it, and with gradients, networks compute as ever.
    Numbers differ by rounding.

    Args:
        networks: of which those of the kind `NatureCNN` are packed.
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
    weights = list(network.parameters())
    onednn = torch.backends.mkldnn
    return (
        onednn.is_available()
        and onednn.enabled
        and all(weight.is_cpu and weight.dtype == torch.float32 for weight in weights)
    )


class PackedNetwork:
    """[N, C, H, W] images to features by weights as they are now, without gradient.

    Args:
        network: its layers in turn are given packed weights if they are convolutions or dense, and
            joined with a ReLU that follows.
        num_images: N of most batches.
    """

    def __init__(self, network: NatureCNN, num_images: int) -> None:
        self._layers: list[Layer] = []
        shape = (num_images, *network.shape)
        for layer, following in pairwise([*network.network, None]):
            what = "relu" if isinstance(following, nn.ReLU) else "none"
            if isinstance(layer, nn.Conv2d):
                self._layers.append(_convolution(layer, shape, what))
                shape = _shape_after(layer, shape)
            elif isinstance(layer, nn.Linear):
                self._layers.append(_dense(layer, num_images, what))
            elif not isinstance(layer, nn.ReLU):
                self._layers.append(layer)  # pyright: ignore[reportArgumentType]

    def __call__(self, image: Tensor) -> Tensor:
        """[N, out_features]."""
        for layer in self._layers:
            image = layer(image)
        return image


def _convolution(layer: nn.Conv2d, shape: tuple[int, ...], what: str) -> Layer:
    where = (layer.padding, layer.stride, layer.dilation, layer.groups)
    weight, bias = layer.weight.detach(), layer.bias
    if isinstance(layer, ScaledConv2d):
        weight = weight * layer.scale
    packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *where, shape)
    bias = None if bias is None else bias.detach().clone()

    def convolve(image: Tensor) -> Tensor:
        return torch.ops.mkldnn._convolution_pointwise(image, packed, bias, *where, what, [], "")

    return convolve


def _dense(layer: nn.Linear, num_images: int, what: str) -> Layer:
    packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), num_images)
    bias = layer.bias.detach().clone()

    def multiply(features: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(features, packed, bias, what, [], "")

    return multiply


def _shape_after(layer: nn.Conv2d, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of what a convolution makes of [N, C, H, W]."""
    with torch.device("meta"):
        made = nn.functional.conv2d(
            torch.empty(shape),
            torch.empty(layer.weight.shape),
            None,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
        )
    return tuple(made.shape)

"""Networks for images [N, C, H, W].

Images stay in their own dtype (uint8) until they are in the network, on its device; the
conversion never writes into the caller's tensor. Pixels are not scaled, which would take
another pass over the largest tensor of all: the first convolution's weights are. On a CPU
large images go through the network with the channels last in memory, where convolutions take
a third less time; the numbers are the same up to the order of rounding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from redline.errors import SpaceError
from redline.models.mlp import orthogonal_

PIXEL_SCALE = 1.0 / 255.0
_FEW_PLANES = 16


def _is_traced() -> bool:
    """Whether this runs to be compiled or exported, which wants one plain operation."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None  # pyright: ignore


def with_channels_last(image: Tensor, dtype: torch.dtype) -> Tensor:
    """The same images [N, C, H, W], converted, with the channels last in memory.

    Plane by plane where they are few and small numbers: for four planes of 84x84 pixels that takes
    half the time of torch's own way across layouts.
    """
    few = image.dtype == torch.uint8 and image.shape[1] <= _FEW_PLANES and not _is_traced()
    if not few or image.is_contiguous(memory_format=torch.channels_last):
        return image.to(dtype, memory_format=torch.channels_last)
    converted = torch.empty(image.shape, dtype=dtype, memory_format=torch.channels_last)
    for plane, source in zip(converted.unbind(1), image.unbind(1), strict=True):
        plane.copy_(source)
    return converted


class Pixels(nn.Module):
    """[N, C, H, W] of any dtype to float32 of the same shape, in the layout that suits the device.

    Args:
        channels_last: whether large images are meant, for which a CPU wants the channels last
            in memory; else the layout stays.
    """

    def __init__(self, *, channels_last: bool) -> None:
        super().__init__()
        self.channels_last = channels_last

    def forward(self, image: Tensor) -> Tensor:
        """Convert; a tensor that is as wanted already is returned as it is."""
        if self.channels_last and image.is_cpu:
            return with_channels_last(image, torch.float32)
        return image.to(torch.float32)


class ScaledConv2d(nn.Conv2d):
    """A convolution of `scale` times its input.

    Args:
        fan_in: channels of the input.
        fan_out: channels of the output.
        kernel: side of the kernel.
        scale: factor on the input.
        stride: step of the kernel.
        padding: zeros around the input.
    """

    def __init__(
        self,
        fan_in: int,
        fan_out: int,
        kernel: int,
        scale: float,
        stride: int = 1,
        padding: int = 0,
    ) -> None:
        super().__init__(fan_in, fan_out, kernel, stride=stride, padding=padding)
        self.scale = scale

    def forward(self, input: Tensor) -> Tensor:
        """[N, fan_in, H, W] -> [N, fan_out, H', W']."""
        weight = self.weight if self.scale == 1.0 else self.weight * self.scale
        return functional.conv2d(input, weight, self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        """The layer's own, and the scale."""
        return f"{super().extra_repr()}, scale={self.scale:.6g}"


def _flat_size(trunk: nn.Module, shape: tuple[int, ...]) -> int:
    """Number of features that a convolutional trunk makes of one image."""
    with torch.no_grad():
        return trunk(torch.zeros(1, *shape)).numel()


def _network(
    trunk: nn.Sequential, shape: tuple[int, ...], out_features: int, *, channels_last: bool
) -> nn.Sequential:
    """Pixels, a convolutional trunk, a dense layer; weights orthogonal."""
    dense = nn.Linear(_flat_size(trunk, shape), out_features)
    pixels = Pixels(channels_last=channels_last)
    return orthogonal_(nn.Sequential(pixels, *trunk, dense, nn.ReLU(inplace=True)))


def _check_image(name: str, shape: tuple[int, ...], smallest: int) -> None:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise SpaceError(
            f"{name} cannot take an image of shape {shape}: it needs [C, H, W] with H and W at "
            f"least {smallest}. Use another encoder, or resize the observation."
        )


class NatureCNN(nn.Module):
    """Three convolutions and a dense layer.

    Mnih et al. 2015, "Human-level control through deep reinforcement learning",
    Methods: 32 8x8/4, 64 4x4/2, 64 3x3/1, dense 512; ReLU after each.

    Args:
        shape: (C, H, W) of one image, H and W at least 36.
        out_features: width of the dense layer.
        scale: factor on the pixels.

    Raises:
        SpaceError: if the image is too small or not [C, H, W].
    """

    smallest = 36

    def __init__(
        self, shape: tuple[int, ...], out_features: int = 512, scale: float = PIXEL_SCALE
    ) -> None:
        super().__init__()
        _check_image("NatureCNN", shape, self.smallest)
        self.shape, self.out_features = shape, out_features
        trunk = nn.Sequential(
            ScaledConv2d(shape[0], 32, 8, scale, stride=4),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(inplace=True),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(inplace=True),
            nn.Flatten(),
        )
        self.network = _network(trunk, shape, out_features, channels_last=True)

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] pixels -> [N, out_features]."""
        return self.network(image)


class MinAtarCNN(nn.Module):
    """One 3x3 convolution of 16 channels and a dense layer of 128, for images of about 10x10.

    Young & Tian 2019, arXiv:1903.03176, section 4.

    Args:
        shape: (C, H, W) of one image, H and W at least 3.
        out_features: width of the dense layer.
        scale: factor on the pixels; MinAtar's are 0 and 1.

    Raises:
        SpaceError: if the image is too small or not [C, H, W].
    """

    smallest = 3

    def __init__(self, shape: tuple[int, ...], out_features: int = 128, scale: float = 1.0) -> None:
        super().__init__()
        _check_image("MinAtarCNN", shape, self.smallest)
        self.out_features = out_features
        trunk = nn.Sequential(
            ScaledConv2d(shape[0], 16, 3, scale), nn.ReLU(inplace=True), nn.Flatten()
        )
        self.network = _network(trunk, shape, out_features, channels_last=False)

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] pixels -> [N, out_features]."""
        return self.network(image)


class ResidualBlock(nn.Module):
    """ReLU, 3x3, ReLU, 3x3, plus the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] -> the same shape."""
        return image + self.second(torch.relu(self.first(torch.relu(image))))


class ImpalaResNet(nn.Module):
    """The large network of IMPALA: three stages of convolution, pooling and two residual blocks.

    Espeholt et al. 2018, arXiv:1802.01561, figure 3 (right), without its LSTM.

    Args:
        shape: (C, H, W) of one image, H and W at least 8.
        out_features: width of the dense layer.
        scale: factor on the pixels.
        channels: of each stage.

    Raises:
        SpaceError: if the image is too small or not [C, H, W].
    """

    smallest = 8

    def __init__(
        self,
        shape: tuple[int, ...],
        out_features: int = 256,
        scale: float = PIXEL_SCALE,
        channels: tuple[int, ...] = (16, 32, 32),
    ) -> None:
        super().__init__()
        _check_image("ImpalaResNet", shape, self.smallest)
        self.out_features = out_features
        stages: list[nn.Module] = []
        fan_in, factor = shape[0], scale
        for width in channels:
            stages += [
                ScaledConv2d(fan_in, width, 3, factor, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                ResidualBlock(width),
                ResidualBlock(width),
            ]
            fan_in, factor = width, 1.0
        trunk = nn.Sequential(*stages, nn.ReLU(), nn.Flatten())
        self.network = _network(trunk, shape, out_features, channels_last=True)

    def forward(self, image: Tensor) -> Tensor:
        """[N, C, H, W] pixels -> [N, out_features]."""
        return self.network(image)

"""From an observation of any nested space to features [N, F].

| leaf space | becomes |
|---|---|
| Box, an image | the output of a convolutional network |
| Box, other | flattened float32; uint8 times 1 / 255 |
| Discrete, MultiDiscrete | one-hot |
| MultiBinary | float32 |

An image is a Box of uint8 or bool [C, H, W], [H, W, C] with C in (1, 3, 4), or [H, W],
with H and W at least 7. Other numbers of channels have to come first: sizes alone do not tell
[84, 84, 12] from 84 channels of 84 x 12, and a run says at its start what it took such pixels for.
The leaves' features are concatenated in the space's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.data import NestedTensor
from redline.errors import SpaceError, UnknownNameError
from redline.free_memory import require_memory
from redline.models.convolution import (
    PIXEL_SCALE,
    ImpalaResNet,
    MinAtarCNN,
    NatureCNN,
    Pixels,
    with_channels_last,
)

IMAGE_ENCODERS: dict[str, Callable[..., nn.Module]] = {
    "nature": NatureCNN,
    "impala": ImpalaResNet,
    "minatar": MinAtarCNN,
}
ENCODER_NAMES = ("auto", "mlp", *IMAGE_ENCODERS)
SMALLEST_IMAGE = 7  # smaller grids are cheaper and no worse as vectors
_COLOR_CHANNELS = (1, 3, 4)

Path = tuple[str, ...]


def leaf_spaces(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield (keys from the root, space) of each leaf; a Tuple's keys are "0", "1", ..."""
    if isinstance(space, spaces.Dict):
        for key, sub in space.spaces.items():
            yield from leaf_spaces(sub, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for i, sub in enumerate(space.spaces):
            yield from leaf_spaces(sub, (*path, str(i)))
    else:
        yield path, space


def leaf_at(obs: NestedTensor, path: Path) -> Any:
    """The leaf of nested data at `path`."""
    leaf: Any = obs
    for key in path:
        leaf = leaf[key]
    return leaf


def zero_observation(space: spaces.Space[Any], batch_size: int) -> NestedTensor:
    """Zeros [batch_size, ...] in a space's structure, float64 as float32 as observations travel."""
    if isinstance(space, spaces.Dict):
        return {key: zero_observation(sub, batch_size) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(i): zero_observation(sub, batch_size) for i, sub in enumerate(space.spaces)}
    zeros = torch.from_numpy(np.zeros((batch_size, *(space.shape or ())), dtype=space.dtype))
    return zeros.to(torch.float32) if zeros.dtype == torch.float64 else zeros


def image_shape(space: spaces.Space[Any]) -> tuple[int, int, int] | None:
    """(C, H, W) if the space is an image, else None; the module docstring says what is one."""
    if not isinstance(space, spaces.Box) or space.dtype not in (np.uint8, np.bool_):
        return None
    shape = tuple(int(n) for n in space.shape)
    if len(shape) == 2:
        shape = (1, *shape)
    elif len(shape) == 3 and _is_channels_last(shape):
        shape = (shape[2], shape[0], shape[1])
    if len(shape) != 3 or min(shape[1:]) < SMALLEST_IMAGE:
        return None
    return shape


def _is_channels_last(shape: tuple[int, ...]) -> bool:
    return shape[-1] in _COLOR_CHANNELS and shape[0] not in _COLOR_CHANNELS


def _pixel_scale(space: spaces.Box) -> float:
    """1 / 255, or 1 for pixels that are only 0 and 1."""
    return PIXEL_SCALE if float(np.max(space.high)) > 1.0 else 1.0


class FlatLeaf(nn.Module):
    """[N, ...] numbers to [N, prod(...)] float32 times `scale`."""

    def __init__(self, size: int, scale: float = 1.0) -> None:
        super().__init__()
        self.out_features = size
        self.scale = scale

    def forward(self, leaf: Tensor) -> Tensor:
        """Flatten; a new tensor only where dtype or scale ask for one."""
        if leaf.dim() != 2:
            leaf = leaf.reshape(leaf.shape[0], -1)
        if leaf.dtype != torch.float32:
            leaf = leaf.to(torch.float32)
        return leaf if self.scale == 1.0 else leaf * self.scale


_ONE_HOT_BYTES = 24  # column and value, and their parts before they are joined


class OneHotLeaf(nn.Module):
    """[N, ...] integers to concatenated one-hot vectors [N, sum(sizes)] float32.

    A number outside its range gives zeros, so that zero-filled rows of a space that starts
    at 1 do no harm.

    Args:
        sizes: number of values of each integer.
        starts: smallest value of each integer.

    Raises:
        ConfigError: if there are more values than memory holds.
    """

    column: Tensor
    value: Tensor

    def __init__(self, sizes: np.ndarray[Any, Any], starts: np.ndarray[Any, Any]) -> None:
        super().__init__()
        self.out_features = sum(map(int, sizes))  # whole numbers of Python's do not overflow
        require_memory(
            self.out_features * _ONE_HOT_BYTES,
            f"an observation of {len(sizes):,} whole number(s) with {self.out_features:,} values "
            f"in all becomes a vector of as many, whose table of {_ONE_HOT_BYTES} bytes a value",
            "Declare fewer values, or a Box of numbers.",
        )
        column = np.repeat(np.arange(len(sizes)), sizes)
        value = np.concatenate(
            [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        )
        self.register_buffer("column", torch.from_numpy(column), persistent=False)
        self.register_buffer("value", torch.from_numpy(value), persistent=False)

    def forward(self, leaf: Tensor) -> Tensor:
        """Compare each integer with each of its values."""
        # Compared, not scattered: a number out of range must not be an error on the device.
        repeated = leaf.reshape(leaf.shape[0], -1)[:, self.column]
        return (repeated == self.value).to(torch.float32)


class ImageLeaf(nn.Module):
    """Images in any of the accepted layouts, through a network for [N, C, H, W]."""

    def __init__(self, space: spaces.Box, network: nn.Module, out_features: int) -> None:
        super().__init__()
        self.network = network
        self.out_features = out_features
        self.channels_last = len(space.shape) == 3 and _is_channels_last(space.shape)
        self.gray = len(space.shape) == 2

    def forward(self, leaf: Tensor) -> Tensor:
        """[N, *space.shape] -> [N, out_features]."""
        if self.channels_last:
            leaf = leaf.permute(0, 3, 1, 2)
        elif self.gray:
            leaf = leaf.unsqueeze(1)
        return self.network(leaf)


def image_layout(networks: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """What lays images out in memory as networks on the CPU want them.

    They do it themselves at every pass; who makes several passes over the same images can do it
    once beforehand.

    Args:
        networks: those that see the observations.

    Returns:
        [N, C, H, W] -> the same images, and other leaves as they are; None if observations are
        not just one image, or the layout that it comes in is the wanted one.
    """
    encoders = [part for part in networks.modules() if isinstance(part, ObservationEncoder)]
    if not encoders or not all(encoder.image_only for encoder in encoders):
        return None
    leaves = [part for part in networks.modules() if isinstance(part, ImageLeaf)]
    pixels = [part for part in networks.modules() if isinstance(part, Pixels)]
    if any(leaf.channels_last or leaf.gray for leaf in leaves):
        return None
    if not pixels or not all(part.channels_last for part in pixels):
        return None
    return _images_with_channels_last


def _images_with_channels_last(images: Tensor) -> Tensor:
    """On the CPU; elsewhere, and what is no image (an action mask), as it is."""
    if images.dim() != 4 or not images.is_cpu:
        return images
    return with_channels_last(images, images.dtype)


class ObservationEncoder(nn.Module):
    """Each leaf by its kind, then concatenated.

    Args:
        space: the observation space.
        encoder: "auto" (images of 36x36 and more through `NatureCNN`, smaller ones through
            `MinAtarCNN`), "mlp" (images flattened), or the name of a network for images.

    Attributes:
        out_features: F.
        image_only: whether the whole observation is one image behind a convolutional network.

    Raises:
        SpaceError: if a leaf cannot be encoded, or an image network is asked for without images.
        UnknownNameError: if the encoder is not known.
    """

    def __init__(self, space: spaces.Space[Any], encoder: str = "auto") -> None:
        super().__init__()
        if encoder not in ENCODER_NAMES:
            close = get_close_matches(encoder, ENCODER_NAMES, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise UnknownNameError(
                f"encoder={encoder!r} is not known.{hint} Use one of {', '.join(ENCODER_NAMES)}, "
                f"or a callable that makes a module from the observation space."
            )
        found = list(leaf_spaces(space))
        self._paths = [path for path, _ in found]
        self.leaves = nn.ModuleList(_leaf_encoder(path, leaf, encoder) for path, leaf in found)
        self.out_features = sum(int(leaf.out_features) for leaf in self.leaves)  # pyright: ignore[reportArgumentType]
        self.image_only = len(found) == 1 and isinstance(self.leaves[0], ImageLeaf)
        has_image = any(isinstance(leaf, ImageLeaf) for leaf in self.leaves)
        if encoder in IMAGE_ENCODERS and not has_image:
            raise SpaceError(
                f"encoder={encoder!r} needs an image in the observation space, but {space} has "
                f"none: an image is uint8 or bool, [C, H, W], [H, W, C] or [H, W]. Use "
                f"encoder='mlp', or wrap the environment."
            )
        if self.out_features == 0:
            raise SpaceError(
                f"the observation space {space} holds no numbers, so there is nothing to learn "
                f"from. Add a constant to the observation."
            )

    def forward(self, obs: NestedTensor) -> Tensor:
        """Encode observations.

        Args:
            obs: [N, ...] in the space's structure.

        Returns:
            [N, out_features] float32.
        """
        features = [
            leaf(leaf_at(obs, path)) for path, leaf in zip(self._paths, self.leaves, strict=True)
        ]
        return features[0] if len(features) == 1 else torch.cat(features, dim=1)


def _leaf_encoder(path: Path, space: spaces.Space[Any], encoder: str) -> nn.Module:
    """The module for one leaf."""
    if isinstance(space, spaces.Box):
        shape = image_shape(space)
        if shape is not None and encoder != "mlp":
            if encoder == "auto":
                encoder = "nature" if min(shape[1:]) >= NatureCNN.smallest else "minatar"
            network = IMAGE_ENCODERS[encoder](shape, scale=_pixel_scale(space))
            return ImageLeaf(space, network, int(network.out_features))  # pyright: ignore[reportArgumentType]
        scale = _pixel_scale(space) if space.dtype == np.uint8 and space.shape else 1.0
        return FlatLeaf(int(np.prod(space.shape)), scale)
    if isinstance(space, spaces.Discrete):
        return OneHotLeaf(np.array([space.n]), np.array([space.start]))
    if isinstance(space, spaces.MultiDiscrete):
        return OneHotLeaf(space.nvec.reshape(-1), space.start.reshape(-1))
    if isinstance(space, spaces.MultiBinary):
        return FlatLeaf(int(np.prod(space.shape)))
    where = f" at key {'.'.join(path)!r}" if path else ""
    raise SpaceError(
        f"the observation space {space}{where} cannot be encoded: only Box, Discrete, "
        f"MultiDiscrete, MultiBinary and Dict or Tuple of these can. Wrap the environment, or "
        f"give a module factory as the encoder."
    )

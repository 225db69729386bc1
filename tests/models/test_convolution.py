"""Networks for images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from redline.errors import SpaceError
from redline.models import ImpalaResNet, MinAtarCNN, NatureCNN
from redline.models.convolution import with_channels_last


def num_parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_nature_cnn_has_the_published_size() -> None:
    """84x84x4: 84 -> 20 -> 9 -> 7, so the dense layer sees 64 * 7 * 7 = 3136.

    (4*64*32 + 32) + (32*16*64 + 64) + (64*9*64 + 64) + (3136*512 + 512) = 1,684,128
    """
    network = NatureCNN((4, 84, 84))
    assert num_parameters(network) == 1_684_128
    assert network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 512)


def test_minatar_cnn_has_the_published_size() -> None:
    """10x10x4: (4*9*16 + 16) + (16*8*8*128 + 128) = 131,792."""
    network = MinAtarCNN((4, 10, 10))
    assert num_parameters(network) == 131_792
    assert network(torch.zeros(3, 4, 10, 10, dtype=torch.uint8)).shape == (3, 128)


def test_impala_resnet_has_the_published_size() -> None:
    """72x96x3 as in the paper: 15 convolutions, 9x12x32 into 256.

    Stage 1 (3*9*16 + 16) + 4 (16*9*16 + 16) = 448 + 9,280; stage 2 (16*9*32 + 32) +
    4 (32*9*32 + 32) = 4,640 + 36,992; stage 3 9,248 + 36,992; dense 3456*256 + 256.
    """
    network = ImpalaResNet((3, 72, 96))
    assert num_parameters(network) == 448 + 9280 + 4640 + 36992 + 9248 + 36992 + 884_992
    assert sum(isinstance(m, nn.Conv2d) for m in network.modules()) == 15
    assert network(torch.zeros(2, 3, 72, 96, dtype=torch.uint8)).shape == (2, 256)


@pytest.mark.parametrize("network_class", [NatureCNN, ImpalaResNet, MinAtarCNN])
def test_images_are_scaled_without_touching_the_input(network_class: type[nn.Module]) -> None:
    """Elsewhere pixels were divided in place, so that the stored observation changed."""
    scale = 1 / 255
    network = network_class((1, 40, 40), scale=scale)
    image = torch.randint(0, 256, (2, 1, 40, 40), dtype=torch.uint8)
    as_float = image.to(torch.float32)
    kept, kept_float = image.clone(), as_float.clone()
    unscaled = network_class((1, 40, 40), scale=1.0)
    unscaled.load_state_dict(network.state_dict())
    expected = unscaled(as_float / 255.0)
    torch.testing.assert_close(network(image), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(network(as_float), expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(image, kept)
    assert torch.equal(as_float, kept_float)


@pytest.mark.parametrize("network_class", [NatureCNN, ImpalaResNet])
def test_pixels_are_divided_by_255_by_default(network_class: type[nn.Module]) -> None:
    network = network_class((1, 36, 36))
    scale = next(m.scale for m in network.modules() if hasattr(m, "scale"))
    assert scale == 1 / 255


@pytest.mark.parametrize("shape", [(4, 35, 84), (84, 84)])
def test_images_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SpaceError, match="at least 36"):
        NatureCNN(shape)


@pytest.mark.parametrize("channels", [1, 4, 20])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_layout_changes_nothing_but_the_layout(channels: int, dtype: torch.dtype) -> None:
    """By planes (few, of bytes) as by the tensor library's own way."""
    image = torch.arange(2 * channels * 6 * 7).remainder(251).to(dtype)
    image = image.reshape(2, channels, 6, 7)
    for wanted in (dtype, torch.float32):
        made = with_channels_last(image, wanted)
        assert made.dtype == wanted
        assert made.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(made, image.to(wanted))
        assert torch.equal(with_channels_last(made, wanted), made)

"""Networks whose weights are laid out once, held to the plain networks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from redline.engines.cpu import packed
from redline.engines.cpu.packed import Packing
from redline.models import NatureCNN

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)
SHAPE = (3, 40, 52)


def network_and_images(num_images: int = 4) -> tuple[NatureCNN, Tensor]:
    torch.manual_seed(0)
    network = NatureCNN(SHAPE)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.normal_()  # they are zero in the beginning, and would not be missed
    return network, torch.randint(0, 256, (num_images, *SHAPE), dtype=torch.uint8)


@torch.no_grad()
def plain(network: NatureCNN, images: Tensor) -> Tensor:
    """Without looking at what is packed: the layers alone."""
    return network.network(images)


def assert_same(made: Tensor, expected: Tensor) -> None:
    """Features are of order 1: the sums of up to 3,000 products are rounded in another order."""
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


def halve(network: nn.Module) -> None:
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(0.5)


@pytest.mark.parametrize("num_images", [4, 1, 7])
@pytest.mark.parametrize("large", [True, False])
def test_packed_equals_plain(num_images: int, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """For N as packed and for others; with the dense layer by either library."""
    monkeypatch.setattr(packed, "is_large", lambda *shape: large)
    network, images = network_and_images(num_images)
    before, expected = images.clone(), plain(network, images)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode, Packing(network, 4):
            assert network.packed is not None
            assert_same(network(images), expected)
    assert torch.equal(images, before)


def test_with_gradients_the_plain_network_computes() -> None:
    network, images = network_and_images()
    with Packing(network, 4):
        made = network(images)
    assert torch.equal(made, plain(network, images))
    made.sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_outside_the_plain_network_computes() -> None:
    """Also after an error inside."""
    network, images = network_and_images()
    packing = Packing(network, 4)
    with pytest.raises(RuntimeError), torch.no_grad(), packing:
        network(images[:, :2])
    assert network.packed is None
    halve(network)
    with torch.no_grad():
        assert torch.equal(network(images), plain(network, images))


@pytest.mark.parametrize("large", [True, False])
def test_weights_are_those_that_were_packed(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a change in place nothing is seen, in no layer, until another packing is made."""
    monkeypatch.setattr(packed, "is_large", lambda *shape: large)
    network, images = network_and_images()
    packing, expected = Packing(network, 4), plain(network, images)
    halve(network)
    changed = plain(network, images)
    assert (changed - expected).abs().max() > 0.1
    with torch.no_grad():
        with packing:
            assert_same(network(images), expected)
        with Packing(network, 4):
            assert_same(network(images), changed)


def test_all_networks_inside_are_packed_and_other_layers_kept() -> None:
    """A ReLU after no layer that it could be joined with stays a ReLU."""
    first, images = network_and_images()
    second, _ = network_and_images()
    second.network.insert(8, nn.ReLU())
    second.network.insert(8, nn.Tanh())
    second.network.append(nn.Threshold(0.5, -1.0))
    expected = plain(first, images), plain(second, images)
    with torch.no_grad(), Packing(nn.ModuleList([first, second]), 4):
        assert_same(first(images), expected[0])
        assert_same(second(images), expected[1])


def test_other_weights_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another dtype, or with oneDNN switched off."""
    network, _ = network_and_images()
    with Packing(network.double(), 4):
        assert network.packed is None
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with Packing(network.float(), 4):
        assert network.packed is None

"""Convolutions with ReLU in C beside the same arithmetic in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from redline.engines.cpu import convolution
from redline.engines.cpu import images as images_module
from redline.engines.cpu.convolution import rectified, serves
from redline.engines.cpu.images import KernelNetwork
from redline.models import ImpalaResNet, NatureCNN

native = pytest.importorskip(
    "redline.engines.cpu._convolution", reason="built where there is a C compiler"
)

INSTRUCTIONS: list[str] = native.instructions


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Other tests go on with the processor's own instructions and as many threads as before."""
    threads = torch.get_num_threads()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    native.use(native.instructions[0])


def use(instructions: str, threads: int) -> None:
    native.use(instructions)
    if not native.serves(32, 1, 32, True, threads):
        pytest.skip("this build of torch has other threads than GNU's")
    torch.set_num_threads(threads)


@dataclass
class Sizes:
    """Of a convolution and its images."""

    channels: int
    filters: int
    kernel: int
    stride: int
    height: int
    width: int
    scale: float = 1.0

    def layer(self) -> nn.Conv2d:
        return nn.Conv2d(self.channels, self.filters, self.kernel, self.stride)

    def bytes(self, num_images: int) -> Tensor:
        shape = (num_images, self.channels, self.height, self.width)
        return torch.randint(0, 256, shape, dtype=torch.uint8)

    def floats(self, num_images: int) -> Tensor:
        return torch.randn(num_images, self.channels, self.height, self.width, requires_grad=True)


FIRST = Sizes(4, 32, 8, 4, 84, 84, scale=1 / 255)
SIZES = {
    "first of Nature": FIRST,
    "second of Nature": Sizes(32, 64, 4, 2, 20, 20),
    "third of Nature": Sizes(64, 64, 3, 1, 9, 9),
    "not square": Sizes(8, 32, 4, 2, 11, 30),
    "stride 3": Sizes(32, 32, 3, 3, 17, 23, scale=0.5),
    "one place": Sizes(32, 32, 2, 1, 2, 2),
    "gaps": Sizes(32, 32, 1, 4, 6, 7),
}


def assert_same(made: Tensor | None, expected: Tensor | None) -> None:
    assert made is not None
    assert expected is not None
    largest = expected.abs().max().item() if expected.numel() else 0.0
    torch.testing.assert_close(made.double(), expected, rtol=0.0, atol=1e-5 * largest)


def assert_right(layer: nn.Conv2d, image: Tensor, scale: float = 1.0) -> None:
    """Output and gradients are those of the tensor library in float64.

    Where an output is so close to zero that rounding decides about its sign, no gradient flows.
    """
    assert serves(layer, image)
    tensors = (image, *layer.parameters())
    x, weight, bias = (tensor.detach().double().requires_grad_() for tensor in tensors)
    before = functional.conv2d(x * scale, weight, bias, layer.stride)
    expected = torch.relu(before)
    out = rectified(layer, image, scale)
    assert_same(out, expected)
    grad = torch.randn_like(out) * (before.abs() > 1e-4)
    expected.backward(grad.double())
    out.backward(grad)
    for made, other in zip(tensors, (x, weight, bias), strict=True):
        if made.requires_grad:
            assert_same(made.grad, other.grad)


@pytest.mark.parametrize("num_images", [1, 2, 5])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("name", SIZES)
def test_equals_float64(name: str, instructions: str, threads: int, num_images: int) -> None:
    use(instructions, threads)
    sizes = SIZES[name]
    assert_right(sizes.layer(), sizes.bytes(num_images), 1 / 255)
    assert_right(sizes.layer(), sizes.floats(num_images), sizes.scale)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_equals_float64_in_any_shape_and_layout(instructions: str, data: st.DataObject) -> None:
    use(instructions, data.draw(st.sampled_from([1, 2, 3]), "threads"))
    kernel, channels = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([8, 32]))
    height, width = (data.draw(st.integers(kernel, 14)) for _ in range(2))
    filters, stride = data.draw(st.sampled_from([32, 96])), data.draw(st.integers(1, 5))
    sizes = Sizes(channels, filters, kernel, stride, height, width)
    num_images = data.draw(st.integers(0, 4))
    floats = channels == 32 and data.draw(st.booleans())
    image = sizes.floats(num_images) if floats else sizes.bytes(num_images)
    image = image.detach()
    if data.draw(st.booleans(), "channels last"):
        image = image.contiguous(memory_format=torch.channels_last)
    elif data.draw(st.booleans(), "turned"):
        image = image.transpose(2, 3).contiguous().transpose(2, 3)
    assert_right(sizes.layer(), image.requires_grad_(floats), 1.0 if floats else 1 / 255)


def test_a_case_worked_by_hand() -> None:
    """Two places, 2x2 taps, eight filters (f - 2) and 1 on two channels, nothing on two others.

    The first channel's patches sum to 12 and 16, the second's to 4; the bias is 1/2. The first two
    filters give less than zero: (f - 2) 12 + 4.5 and (f - 2) 16 + 4.5.
    """
    native.use("plain")
    layer = nn.Conv2d(4, 8, 2)
    image = torch.zeros(1, 4, 2, 3)
    image[0, 0], image[0, 1] = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), 1.0
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[:, 0] = (torch.arange(8.0) - 2.0).view(8, 1, 1)
        layer.weight[:, 1], layer.bias[:] = 1.0, 0.5  # pyright: ignore
    image.requires_grad_()
    assert serves(layer, image)
    out = rectified(layer, image)
    first = [0.0, 0.0, 4.5, 16.5, 28.5, 40.5, 52.5, 64.5]
    second = [0.0, 0.0, 4.5, 20.5, 36.5, 52.5, 68.5, 84.5]
    assert out[0, :, 0].T.tolist() == [first, second]
    out.sum().backward()
    gradients = [p.grad for p in (layer.bias, layer.weight, image)]  # type: ignore[union-attr]
    to_bias, to_weight, to_image = (grad for grad in gradients if grad is not None)
    nothing = [[0.0, 0.0], [0.0, 0.0]]
    assert to_bias.tolist() == [0.0, 0.0] + [2.0] * 6
    filter_grad = [[[3.0, 5.0], [9.0, 11.0]], [[2.0, 2.0], [2.0, 2.0]], nothing, nothing]
    assert to_weight.tolist() == [[nothing] * 4] * 2 + [filter_grad] * 6
    # 0 + 1 + ... + 5 = 15 and 6 * 1 = 6; both places see the middle.
    assert to_image[0, :2].tolist() == [[[15.0, 30.0, 15.0]] * 2, [[6.0, 12.0, 6.0]] * 2]
    assert not to_image[0, 2:].any()


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_what_is_no_number_stays(instructions: str) -> None:
    native.use(instructions)
    sizes = SIZES["third of Nature"]
    layer, image = sizes.layer(), sizes.floats(2).detach()
    image[0, 3, 4, 5], image[1, 7, 0, 0] = torch.nan, torch.inf
    image.requires_grad_()
    tensors = (image, layer.weight, layer.bias)
    made, expected = rectified(layer, image), torch.relu(layer(image))
    assert made.isnan().any()
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    grads = (torch.autograd.grad(out.sum(), tensors) for out in (made, expected))  # pyright: ignore
    for grad, by_torch in zip(*grads, strict=True):
        torch.testing.assert_close(grad, by_torch, rtol=1e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
def test_outputs_whose_number_squared_is_large(instructions: str) -> None:
    """160,000 places are shared out to a twelfth as many tiles."""
    native.use(instructions)
    sizes = Sizes(8, 32, 1, 1, 402, 402)
    layer, image = sizes.layer().requires_grad_(False), sizes.bytes(1)
    expected = torch.relu(layer(image.float() / 255))
    torch.testing.assert_close(rectified(layer, image, 1 / 255), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_repeats_to_the_bit(threads: int) -> None:
    use(INSTRUCTIONS[0], threads)
    sizes = SIZES["second of Nature"]
    layer, image = sizes.layer(), sizes.floats(5)

    def results() -> list[Tensor]:
        out = rectified(layer, image)
        inputs = (image, layer.weight, layer.bias)
        return [out, *torch.autograd.grad(out.square().sum(), inputs)]  # pyright: ignore

    assert all(torch.equal(a, b) for a, b in zip(results(), results(), strict=True))


@pytest.mark.parametrize("frozen", [("weight",), ("bias",), ("weight", "bias")])
def test_frozen_parameters_get_no_gradient(frozen: tuple[str, ...]) -> None:
    sizes = SIZES["third of Nature"]
    layer, plain_layer = sizes.layer(), sizes.layer()
    plain_layer.load_state_dict(layer.state_dict())
    image = sizes.floats(2)
    plain_image = image.detach().clone().requires_grad_()
    for part in (layer, plain_layer):
        for name in frozen:
            getattr(part, name).requires_grad_(False)
    rectified(layer, image).sum().backward()
    torch.relu(plain_layer(plain_image)).sum().backward()
    pairs = [(image, plain_image), *zip(layer.parameters(), plain_layer.parameters(), strict=True)]
    for made, expected in pairs:
        assert (made.grad is None) == (expected.grad is None)
        if made.grad is not None and expected.grad is not None:
            torch.testing.assert_close(made.grad, expected.grad, rtol=1e-4, atol=1e-4)
    layer.requires_grad_(False)
    assert not rectified(layer, image.detach()).requires_grad


def test_what_was_changed_meanwhile_is_not_differentiated() -> None:
    sizes = SIZES["third of Nature"]
    layer, image = sizes.layer(), sizes.floats(2)
    for changed in (layer.weight, None):
        out = rectified(layer, image)
        with torch.no_grad():
            (out if changed is None else changed).add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_is_differentiated_once_only() -> None:
    sizes = SIZES["third of Nature"]
    layer, image = sizes.layer(), sizes.floats(2)
    out = rectified(layer, image).square().sum()
    (grad,) = torch.autograd.grad(out, image, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_saved_tensors_may_come_back_in_another_layout() -> None:
    sizes = SIZES["third of Nature"]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
        assert_right(sizes.layer(), sizes.floats(2))


def test_what_is_not_served() -> None:
    image = torch.randn(2, 32, 9, 9)
    assert serves(nn.Conv2d(32, 32, 3), image)
    turned = nn.Conv2d(32, 32, 3)
    turned.weight.data = turned.weight.data.contiguous(memory_format=torch.channels_last)
    halved = nn.Conv2d(32, 32, 3)
    halved.bias = nn.Parameter(torch.zeros(64)[::2])
    for layer in (
        *(nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 3, padding="same")),
        *(nn.Conv2d(32, 32, 3, groups=2), nn.Conv2d(32, 32, 3, dilation=2)),
        *(nn.Conv2d(32, 32, 3, bias=False), nn.Conv2d(32, 33, 3), nn.Conv2d(32, 36, 3)),
        *(nn.Conv2d(32, 32, (3, 1)), nn.Conv2d(32, 32, 3, stride=(1, 2))),
        *(nn.Conv2d(32, 32, 10), nn.Conv2d(64, 32, 3), nn.Conv2d(16, 32, 3)),
        *(nn.Conv2d(32, 32, 3).double(), nn.Conv2d(32, 32, 3).to("meta"), turned, halved),
    ):
        assert not serves(layer, image), layer
    layer = nn.Conv2d(32, 32, 3)
    assert not serves(layer, image.double())
    assert not serves(layer, image[0])
    assert not serves(layer, image.to("meta"))
    odd = torch.randn(2, 3, 9, 9)
    assert not serves(nn.Conv2d(3, 32, 3), odd)
    half = torch.randn(2, 4, 9, 9)
    native.use("plain")
    assert serves(nn.Conv2d(4, 8, 3), half)
    assert not serves(nn.Conv2d(4, 8, 3), half.requires_grad_()), "12 floats, for gradients of 8"


class Count:
    """How many convolutions are served."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.served = 0
        monkeypatch.setattr(images_module, "rectified", self)

    def __call__(self, layer: nn.Conv2d, image: Tensor, scale: float) -> Tensor:
        self.served += 1
        return rectified(layer, image, scale)


def results_of(network: nn.Module, images: Tensor) -> list[Tensor]:
    out = network(images)
    return [out, *torch.autograd.grad(out.square().sum(), list(network.parameters()))]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_networks_compute_as_with_plain_layers(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, plain = Count(monkeypatch), NatureCNN((4, 40, 52)).network
    network = KernelNetwork(*plain)
    images = torch.randint(0, 256, (3, 4, 40, 52), dtype=torch.uint8).to(dtype)
    found, expected = results_of(network, images), results_of(plain, images)
    assert count.served == 3
    for one, other in zip(found, expected, strict=True):
        largest = other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0.0, atol=1e-5 * largest)
    assert list(network.state_dict()) == list(plain.state_dict())


def test_convolutions_that_pooling_follows_are_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    count, plain = Count(monkeypatch), ImpalaResNet((4, 24, 24), channels=(32, 32)).network
    images = torch.randint(0, 256, (2, 4, 24, 24), dtype=torch.uint8)
    torch.testing.assert_close(KernelNetwork(*plain)(images), plain(images))
    assert count.served == 0


def test_images_that_do_not_fit_are_refused_by_the_layer() -> None:
    network = KernelNetwork(*NatureCNN((4, 40, 52)).network)
    for shape in ((2, 8, 40, 52), (2, 4, 4, 52)):
        with pytest.raises(RuntimeError):
            network(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize("onednn", [False, True])
def test_both_libraries_multiply_right(monkeypatch: pytest.MonkeyPatch, onednn: bool) -> None:
    """Small integers: every float32 sum is exact, whatever the order."""
    if onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(convolution, "is_large", lambda *sizes: onednn)
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-4, 5, (7, 9), generator=generator).float()
    b = torch.randint(-4, 5, (9, 5), generator=generator).float()
    bias = torch.randint(-4, 5, (5,), generator=generator).float()
    wanted = (a.double() @ b.double()).float()
    for left, right in ((a, b), (a.t().contiguous().t(), b.t().contiguous().t())):
        assert torch.equal(convolution.matrix_product(left, right), wanted)
        assert torch.equal(convolution.affine(left, right, bias), wanted + bias)
        rectified_sum = (wanted + bias).relu()
        assert torch.equal(convolution.affine(left, right, bias, relu=True), rectified_sum)


@pytest.mark.parametrize("onednn", [False, True])
def test_a_dense_layer_has_the_gradients_of_autograd(
    monkeypatch: pytest.MonkeyPatch, onednn: bool
) -> None:
    if onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(convolution, "is_large", lambda *sizes: onednn)
    layer, x = nn.Linear(9, 5), torch.randn(7, 9, requires_grad=True)
    inputs = (x, layer.weight, layer.bias)
    found = torch.autograd.grad(convolution.dense(layer, x).square().sum(), inputs)
    wanted = torch.autograd.grad(layer(x).square().sum(), inputs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)

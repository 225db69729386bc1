"""Hand-derived gradients of perceptrons against autograd's, and a layer worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from redline.engines.cpu import products
from redline.engines.cpu.mlp_gradients import (
    Gradients,
    Layer,
    Perceptron,
    perceptron_of,
    perceptrons_of,
)
from redline.models import EnsembleMLP


def test_two_layers_by_hand() -> None:
    """x = (1, -1), W1 = [[1, -1], [0, 2]], b1 = 0: before ReLU (1, -3), after it (1, 0).

    W2 = (3, 5)^T, b2 = 1: y = 4. With dL/dy = 2: dW2 = 2 * (1, 0), db2 = 2; behind the ReLU
    only the first unit passes anything: d1 = (6, 0), dW1 = x^T d1 = [[6, 0], [-6, 0]],
    db1 = (6, 0), dx = d1 W1^T = (6, 0).
    """
    shapes = (((2, 2), (2,)), ((2, 1), (1,)))
    weights = [torch.tensor([[1.0, -1.0], [0.0, 2.0]]), torch.tensor([[3.0], [5.0]])]
    biases = [torch.zeros(2), torch.ones(1)]
    layers = [
        Layer(w, b, torch.empty(ws), torch.empty(bs))
        for w, b, (ws, bs) in zip(weights, biases, shapes, strict=True)
    ]
    network = Perceptron(layers, tanh=False)
    kept = network.forward(torch.tensor([[1.0, -1.0]]))
    assert kept[-1].tolist() == [[4.0]]
    inputs = network.backward(kept, torch.tensor([[2.0]]), columns=slice(None))
    assert inputs is not None
    assert inputs.tolist() == [[6.0, 0.0]]
    assert layers[1].weight_grad.tolist() == [[2.0], [0.0]]
    assert layers[1].bias_grad.tolist() == [2.0]
    assert layers[0].weight_grad.tolist() == [[6.0, 0.0], [-6.0, 0.0]]
    assert layers[0].bias_grad.tolist() == [6.0, 0.0]


def close(got: Tensor, wanted: Tensor) -> None:
    """Equal up to the order in which float32 numbers are added."""
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
@pytest.mark.parametrize("rows", [1, 5, 200])
@pytest.mark.parametrize("activate_output", [False, True])
def test_a_chain_has_the_gradients_of_autograd(
    activation: type[nn.Module], rows: int, activate_output: bool
) -> None:
    """200 rows of 96 units are enough for the other library of products."""
    torch.manual_seed(0)
    chain = [nn.Linear(5, 96), activation(), nn.Linear(96, 96), activation(), nn.Linear(96, 3)]
    chain += [activation()] if activate_output else []
    module = nn.Sequential(*chain)
    gradients = Gradients(list(module.parameters()))
    network = perceptron_of([module], gradients)
    assert network is not None
    x = torch.randn(rows, 5, requires_grad=True)
    loss_grad = torch.randn(rows, 3)
    wanted = module(x)
    wanted.backward(loss_grad)
    with torch.no_grad():
        kept = network.forward(x)
        got = network.backward(kept, loss_grad, columns=slice(1, 3))
    close(kept[-1], wanted.detach())
    assert x.grad is not None
    assert got is not None
    close(got, x.grad[:, 1:3])
    for parameter in module.parameters():
        assert parameter.grad is not None
        close(gradients[parameter], parameter.grad)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("rows", [4, 150])
def test_an_ensembles_members_have_the_gradients_of_autograd(activation: str, rows: int) -> None:
    torch.manual_seed(1)
    ensemble = EnsembleMLP(3, (6, 80, 80, 2), activation)
    gradients = Gradients(list(ensemble.parameters()))
    members = perceptrons_of(ensemble, gradients)
    assert members is not None
    x = torch.randn(rows, 6, requires_grad=True)
    loss_grad = torch.randn(3, rows, 2)
    wanted = ensemble(x)
    wanted.backward(loss_grad)
    inputs = torch.zeros(rows, 2)
    with torch.no_grad():
        for member, grad, value in zip(members, loss_grad, wanted, strict=True):
            kept = member.forward(x)
            close(kept[-1], value.detach())
            part = member.backward(kept, grad, columns=slice(-2, None))
            assert part is not None
            inputs += part
    assert x.grad is not None
    close(inputs, x.grad[:, -2:])
    for parameter in ensemble.parameters():
        assert parameter.grad is not None
        close(gradients[parameter], parameter.grad)


def test_weights_are_left_alone_where_only_inputs_are_asked_for() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    gradients = Gradients(list(module.parameters()))
    network = perceptron_of([module], gradients)
    assert network is not None
    with torch.no_grad():
        kept = network.forward(torch.randn(2, 3))
        network.backward(kept, torch.ones(2, 1), weights=False, columns=slice(None))
    assert not gradients.flat.any()


@pytest.mark.parametrize(
    "modules",
    [
        [nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)],
        [nn.Linear(2, 2), nn.LayerNorm(2), nn.ReLU()],
        [nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Tanh()],
        [nn.ReLU(), nn.Linear(2, 2)],
        [nn.Linear(2, 2), nn.Linear(2, 2)],
        [nn.Linear(2, 2, bias=False)],
        [nn.Flatten()],
        [],
    ],
)
def test_other_chains_are_not_taken_for_perceptrons(modules: list[nn.Module]) -> None:
    assert perceptron_of(modules) is None


@pytest.mark.parametrize("settings", [{"dropout": 0.1}, {"layer_norm": True}])
def test_other_ensembles_are_not_taken_for_perceptrons(settings: dict[str, float]) -> None:
    assert perceptrons_of(EnsembleMLP(2, (3, 4, 1), **settings)) is None  # type: ignore[arg-type]
    assert perceptrons_of(EnsembleMLP(2, (3, 4, 1), "silu")) is None


def test_clipping_scales_to_the_norm_and_reports_the_one_before() -> None:
    """(3, 4) has norm 5; at most 1 makes it (0.6, 0.8), at most 10 leaves it, 0 too."""
    for limit, wanted in ((1.0, [0.6, 0.8]), (10.0, [3.0, 4.0]), (0.0, [3.0, 4.0])):
        gradients = Gradients([torch.zeros(1), torch.zeros(1)])
        gradients.views[0].fill_(3.0)
        gradients.views[1].fill_(4.0)
        assert gradients.clip(limit).item() == 5.0
        got = torch.cat(gradients.views).tolist()
        assert got == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("onednn", [False, True])
def test_both_libraries_multiply_right(monkeypatch: pytest.MonkeyPatch, onednn: bool) -> None:
    """Small integers: every float32 sum is exact, whatever the order."""
    if onednn and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "is_large", lambda *sizes: onednn)
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(-4, 5, (7, 9), generator=generator).float()
    b = torch.randint(-4, 5, (9, 5), generator=generator).float()
    bias = torch.randint(-4, 5, (5,), generator=generator).float()
    wanted = (a.double() @ b.double()).float()
    for left, right in ((a, b), (a.t().contiguous().t(), b.t().contiguous().t())):
        assert torch.equal(products.matrix_product(left, right), wanted)
        out = torch.empty(7, 5)
        assert products.matrix_product(left, right, out) is out
        assert torch.equal(out, wanted)
        assert torch.equal(products.affine(left, right, bias), wanted + bias)
        assert torch.equal(products.affine(left, right, bias, relu=True), (wanted + bias).relu())

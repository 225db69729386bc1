"""Networks in C and numpy against autograd, and a network worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from redline.engines.cpu import mlp
from redline.engines.cpu.known_parts import DenseChain, NotServedError, _chain
from redline.engines.cpu.mlp import MLP, in_c, require_quick
from redline.engines.cpu.parameters import Gradients


def chain_of(*modules: nn.Module) -> DenseChain:
    return _chain(modules, "network")


def test_two_layers_by_hand() -> None:
    """x = (1, -1), W1 = [[1, -1], [0, 2]], b1 = 0: before ReLU (1, -3), after it (1, 0).

    W2 = (3, 5)^T, b2 = 1: y = 4. With dL/dy = 2: dW2 = 2 * (1, 0), db2 = 2; behind the ReLU
    only the first unit passes anything: d1 = (6, 0), dW1 = x^T d1 = [[6, 0], [-6, 0]],
    db1 = (6, 0), dx = d1 W1^T = (6, 0). (`nn.Linear` keeps the transposed weights.)
    """
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    parameters = list(network.parameters())
    values = ([[1.0, 0.0], [-1.0, 2.0]], [0.0, 0.0], [[3.0, 5.0]], [1.0])
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(torch.tensor(value))
    gradients = Gradients(parameters)
    arrays = MLP(chain_of(network), gradients)
    tape = arrays.forward(np.array([[1.0, -1.0]], np.float32))
    assert tape[-1].tolist() == [[4.0]]
    grad = np.array([[2.0]], np.float32)
    arrays.backward(tape, grad)
    assert arrays.input_gradient(tape, grad, 2).tolist() == [[6.0, 0.0]]
    wanted = [[[6.0, -6.0], [0.0, 0.0]], [6.0, 0.0], [[2.0, 0.0]], [2.0]]
    assert [view.tolist() for view in gradients.views] == wanted


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("activate_output", [False, True])
@pytest.mark.parametrize("compiled", [True, False])
def test_values_and_gradients_equal_autograds(
    activation: type[nn.Module],
    activate_output: bool,
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not compiled:
        monkeypatch.setattr(mlp, "_dense", None)
    torch.manual_seed(0)
    last = [activation()] if activate_output else []
    network = nn.Sequential(nn.Linear(5, 7), activation(), nn.Linear(7, 3), *last)
    parameters = list(network.parameters())
    gradients = Gradients(parameters)
    arrays = MLP(chain_of(network), gradients)
    x, grad = torch.randn(6, 5), torch.randn(6, 3)
    kept = arrays.forward(x.numpy())
    arrays.backward(kept, grad.numpy())
    written = [view.clone() for view in gradients.views]
    to_last_inputs = arrays.input_gradient(kept, grad.numpy(), 2)
    assert all(map(torch.equal, gradients.views, written))
    row = np.empty(3, np.float32)
    arrays.row(x[0].numpy(), row)
    np.testing.assert_allclose(row, kept[-1][0], rtol=1e-5, atol=1e-6)
    x.requires_grad_()
    output = network(x)
    output.backward(grad)
    assert x.grad is not None
    np.testing.assert_allclose(to_last_inputs, x.grad[:, -2:].numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(kept[-1], output.detach().numpy(), rtol=1e-5, atol=1e-6)
    for parameter, found in zip(parameters, gradients.views, strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        parameters[0].zero_()  # in place: it is seen at once
    assert not np.allclose(arrays.forward(x.detach().numpy())[-1], kept[-1])


@pytest.mark.parametrize("compiled", [True, False])
def test_outputs_can_be_written_to_memory_made_before(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes through one workspace, and one through new memory, which nothing changes."""
    if not compiled:
        monkeypatch.setattr(mlp, "_dense", None)
    torch.manual_seed(0)
    arrays = MLP(chain_of(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)))
    one, two = torch.randn(2, 6, 5).numpy()
    space = arrays.workspace(6)
    assert [part.shape for part in space] == [(6, 7), (6, 3)]
    for x in (one, two):
        apart, kept = arrays.forward(x), arrays.forward(x, space)
        assert all(into is part for into, part in zip(kept[1:], space, strict=True))
        for into, part in zip(kept, apart, strict=True):
            np.testing.assert_array_equal(into, part)
    before = apart[-1].copy()
    arrays.forward(one)
    np.testing.assert_array_equal(apart[-1], before)


def test_workspaces_of_the_same_widths_share_all_but_the_last_layer() -> None:
    one, two = (MLP(chain_of(nn.Linear(n, 7), nn.ReLU(), nn.Linear(7, 3))) for n in (5, 2))
    space = one.workspace(6)
    shared = two.workspace(6, space)
    assert shared[0] is space[0]
    assert shared[1] is not space[1]
    other = MLP(chain_of(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)))
    assert other.workspace(6, space)[0].shape == (6, 8)


def test_networks_that_the_extension_does_not_take_are_left_to_numpy() -> None:
    many = MLP(chain_of(*[m for _ in range(20) for m in (nn.Linear(3, 3), nn.ReLU())]))
    assert many.forward(np.ones((2, 3), np.float32))[-1].shape == (2, 3)


def chain(width: int, activation: type[nn.Module] = nn.ReLU) -> DenseChain:
    return chain_of(nn.Linear(3, width), activation(), nn.Linear(width, 2))


def test_large_products_are_served_where_c_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 x 3 x 4,000 multiplications are more than numpy is the quicker way for; C needs ReLU."""
    for is_quick in (False, True):
        monkeypatch.setattr(mlp, "in_c", lambda chain, q=is_quick: q and not chain.is_tanh)
        require_quick([chain(256), chain(256, nn.Tanh)], 32)
        if is_quick:
            require_quick([chain(4_000)], 256)
        else:
            with pytest.raises(NotServedError, match="too many for numpy"):
                require_quick([chain(4_000)], 256)
        with pytest.raises(NotServedError, match="tanh has no kernel in C"):
            require_quick([chain(4_000, nn.Tanh)], 256)
    for width, rows in ((256, 5_000), (400_000, 256)):
        with pytest.raises(NotServedError, match="more than the kernels are quick for"):
            require_quick([chain(width)], rows)


def test_what_c_does_not_serve() -> None:
    if mlp._dense is None or mlp._dense.instructions[0] == "plain":
        pytest.skip("there is no C, or this processor has no AVX2")
    assert in_c(chain(8))
    assert not in_c(chain(8, nn.Tanh))


@pytest.mark.parametrize("compiled", [True, False])
def test_gradients_without_bound_stop_at_inactive_units(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in autograd: y = relu(-1) and relu(2); of d = (inf, 3) the first is 0 and no NaN."""
    if not compiled:
        monkeypatch.setattr(mlp, "_dense", None)
    network = nn.Sequential(nn.Linear(1, 2), nn.ReLU())
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[-1.0], [2.0]]))
        network[0].bias.zero_()
    gradients = Gradients(list(network.parameters()))
    arrays = MLP(chain_of(*network), gradients)
    tape = arrays.forward(np.ones((1, 1), np.float32))
    arrays.backward(tape, np.array([[np.inf, 3.0]], np.float32))
    assert [view.tolist() for view in gradients.views] == [[[0.0], [3.0]], [0.0, 3.0]]

"""Perceptrons in numpy beside those in tensor operations."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from redline.engines.cpu import native_network
from redline.engines.cpu.array_mlp import ArrayPerceptron, suits_arrays
from redline.engines.cpu.mlp_gradients import Gradients, Perceptron, perceptron_of


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
        monkeypatch.setattr("redline.engines.cpu.native_network._dense", None)
    torch.manual_seed(0)
    last = [activation()] if activate_output else []
    network = nn.Sequential(nn.Linear(5, 7), activation(), nn.Linear(7, 3), *last)
    parameters = list(network.parameters())
    gradients = Gradients(parameters)
    perceptron = perceptron_of([network], gradients)
    assert perceptron is not None
    assert suits_arrays(perceptron, 6)
    arrays = ArrayPerceptron(perceptron)
    x, grad = torch.randn(6, 5), torch.randn(6, 3)
    kept = arrays.forward(x.numpy())
    arrays.backward(kept, grad.numpy())
    written = gradients.flat.clone()
    to_last_inputs = arrays.input_gradient(kept, grad.numpy(), 2)
    assert torch.equal(gradients.flat, written)
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
    """Two passes through the same room, and one through its own, which nothing changes later."""
    if not compiled:
        monkeypatch.setattr("redline.engines.cpu.native_network._dense", None)
    torch.manual_seed(0)
    perceptron = perceptron_of([nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)])
    assert perceptron is not None
    arrays = ArrayPerceptron(perceptron)
    one, two = torch.randn(2, 6, 5).numpy()
    room = arrays.room(6)
    assert [part.shape for part in room] == [(6, 7), (6, 3)]
    for x in (one, two):
        apart, kept = arrays.forward(x), arrays.forward(x, room)
        assert all(into is part for into, part in zip(kept[1:], room, strict=True))
        for into, part in zip(kept, apart, strict=True):
            np.testing.assert_array_equal(into, part)
    before = apart[-1].copy()
    arrays.forward(one)
    np.testing.assert_array_equal(apart[-1], before)


def test_rooms_of_the_same_widths_share_all_but_the_last_layer() -> None:
    torch.manual_seed(0)
    made = [perceptron_of([nn.Linear(inputs, 7), nn.ReLU(), nn.Linear(7, 3)]) for inputs in (5, 2)]
    one, two = (ArrayPerceptron(each) for each in made if each is not None)
    room = one.room(6)
    shared = two.room(6, room)
    assert shared[0] is room[0]
    assert shared[1] is not room[1]
    other = perceptron_of([nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)])
    assert other is not None
    assert ArrayPerceptron(other).room(6, room)[0].shape == (6, 8)


def test_networks_that_the_extension_does_not_take_are_left_to_numpy() -> None:
    many = perceptron_of([m for _ in range(20) for m in (nn.Linear(3, 3), nn.ReLU())])
    assert many is not None
    assert ArrayPerceptron(many).forward(np.ones((2, 3), np.float32))[-1].shape == (2, 3)


def chain(width: int, activation: type[nn.Module] = nn.ReLU) -> Perceptron:
    made = perceptron_of([nn.Linear(3, width), activation(), nn.Linear(width, 2)])
    assert made is not None
    return made


def test_large_products_suit_it_where_c_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 x 3 x 256 multiplications are more than numpy is the quicker way for; C needs ReLU."""
    for quick in (False, True):
        monkeypatch.setattr(native_network, "prefers_onednn", lambda quick=quick: quick)
        assert suits_arrays(chain(256), 32)
        assert suits_arrays(chain(256, nn.Tanh), 32)
        in_c = quick and native_network.is_served(chain(256))
        assert suits_arrays(chain(4_000), 256) == in_c
        assert not suits_arrays(chain(4_000, nn.Tanh), 256)
        assert not suits_arrays(chain(256), 5_000)  # rows
        assert not suits_arrays(chain(400_000), 256)  # 3 * 400,000 > 2^20


def test_what_c_does_not_serve() -> None:
    if native_network._dense is None or native_network._dense.instructions[0] == "plain":
        pytest.skip("there is no C, or this processor has no AVX2")
    assert native_network.is_served(chain(8))
    assert not native_network.is_served(chain(8, nn.Tanh))


def test_numpy_gets_one_thread() -> None:
    """With as many as the tensor library has, the two kept each other from working."""
    program = (
        "from threadpoolctl import threadpool_info\n"
        "from redline.engines.cpu.array_mlp import give_numpy_one_thread\n"
        "give_numpy_one_thread()\n"
        "print([i['num_threads'] for i in threadpool_info() if i['internal_api'] == 'openblas'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.strip(" []\n").split(", ")) <= {"1", ""}

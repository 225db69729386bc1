"""Perceptrons in numpy beside those in tensor operations."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from redline.models.array_perceptron import ArrayPerceptron, suits_arrays
from redline.models.mlp_gradients import Gradients, perceptron_of


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
        monkeypatch.setattr("redline.models.native_network._dense", None)
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
    output = network(x)
    output.backward(grad)
    np.testing.assert_allclose(kept[-1], output.detach().numpy(), rtol=1e-5, atol=1e-6)
    for parameter, found in zip(parameters, gradients.views, strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        parameters[0].zero_()  # in place: it is seen at once
    assert not np.allclose(arrays.forward(x.numpy())[-1], kept[-1])


@pytest.mark.parametrize("compiled", [True, False])
def test_outputs_can_be_written_to_memory_made_before(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes through the same room, and one through its own, which nothing changes later."""
    if not compiled:
        monkeypatch.setattr("redline.models.native_network._dense", None)
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


def test_networks_that_the_extension_does_not_take_are_left_to_numpy() -> None:
    many = perceptron_of([m for _ in range(20) for m in (nn.Linear(3, 3), nn.ReLU())])
    assert many is not None
    assert ArrayPerceptron(many).forward(np.ones((2, 3), np.float32))[-1].shape == (2, 3)


def test_large_products_do_not_suit_it() -> None:
    perceptron = perceptron_of([nn.Linear(256, 256)])
    assert perceptron is not None
    assert suits_arrays(perceptron, 32)
    assert not suits_arrays(perceptron, 256)


def test_numpy_gets_one_thread() -> None:
    """With as many as the tensor library has, the two kept each other from working."""
    program = (
        "from threadpoolctl import threadpool_info\n"
        "from redline.models.array_perceptron import give_numpy_one_thread\n"
        "give_numpy_one_thread()\n"
        "print([i['num_threads'] for i in threadpool_info() if i['internal_api'] == 'openblas'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.strip(" []\n").split(", ")) <= {"1", ""}

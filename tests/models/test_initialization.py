"""Orthogonal initial weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from redline.models import orthogonal_


@pytest.mark.parametrize("shape", [(8, 3), (3, 8), (5, 5)])
def test_weights_are_orthogonal_times_the_gain(shape: tuple[int, int]) -> None:
    """The smaller of W W^T and W^T W is gain^2 times the identity."""
    layer = orthogonal_(nn.Linear(shape[1], shape[0]), gain=3.0)
    weight = layer.weight.detach()
    gram = weight @ weight.t() if shape[0] <= shape[1] else weight.t() @ weight
    torch.testing.assert_close(gram, 9.0 * torch.eye(min(shape)), atol=1e-5, rtol=0)
    assert not layer.bias.detach().any()


def test_every_layer_inside_a_module_is_covered() -> None:
    network = orthogonal_(nn.Sequential(nn.Conv2d(3, 4, 2, bias=False), nn.Linear(2, 2)), 1.0)
    kernel = network[0].weight.detach().flatten(1)
    torch.testing.assert_close(kernel @ kernel.t(), torch.eye(4), atol=1e-6, rtol=0)
    assert not network[1].bias.detach().any()

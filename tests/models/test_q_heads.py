"""Heads of action values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from redline.models import (
    CategoricalValueHead,
    ImplicitQuantileHead,
    QHead,
    QuantileHead,
    ScalarHead,
)
from redline.models.q_heads import midpoints


def heads(**streams: Any) -> dict[str, QHead]:
    """One of each kind, on 4 features and 3 actions."""
    return {
        "scalar": ScalarHead(4, 3, **streams),
        "categorical": CategoricalValueHead(4, 3, num_atoms=5, v_min=-1.0, v_max=1.0, **streams),
        "quantile": QuantileHead(4, 3, num_values=7, **streams),
        "implicit": ImplicitQuantileHead(4, 3, num_acting_fractions=6, **streams),
    }


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("noisy_std", [None, 0.5])
@pytest.mark.parametrize("hidden_sizes", [(), (8,)])
def test_shapes(dueling: bool, noisy_std: float | None, hidden_sizes: tuple[int, ...]) -> None:
    made = heads(dueling=dueling, noisy_std=noisy_std, hidden_sizes=hidden_sizes)
    for (kind, head), values in zip(made.items(), (1, 5, 7, 6), strict=True):
        head.resample(torch.Generator().manual_seed(0))
        outputs = head(torch.randn(2, 4))
        assert outputs.shape == (2, 3, values), kind
        assert head.mean(outputs).shape == (2, 3), kind
        assert head.is_noisy == (noisy_std is not None)
        differs = not torch.equal(head(torch.ones(2, 4)), head(torch.ones(2, 4), False))
        assert differs == (noisy_std is not None), kind


def test_dueling_subtracts_the_mean_over_actions_not_over_the_batch() -> None:
    """Elsewhere the mean was over the batch: then one row's value would depend on the others.

    With identity-like weights by hand: features (v, a1, a2, a3); V = v, A = (a1, a2, a3).
    Row (10, 1, 2, 6): mean 3, Q = 8, 9, 13. Row (0, 3, 3, 3): Q = 0, 0, 0.
    """
    head = ScalarHead(4, 3, dueling=True)
    assert head.state_value is not None
    with torch.no_grad():
        head.advantage.layers[0].weight.copy_(torch.eye(4)[1:])
        head.state_value.layers[0].weight.copy_(torch.eye(4)[:1])
        head.advantage.layers[0].bias.zero_()
        head.state_value.layers[0].bias.zero_()
    rows = torch.tensor([[10.0, 1.0, 2.0, 6.0], [0.0, 3.0, 3.0, 3.0]])
    q = head.mean(head(rows))
    assert q.tolist() == [[8.0, 9.0, 13.0], [0.0, 0.0, 0.0]]
    torch.testing.assert_close(head.mean(head(rows[:1])), q[:1])


@pytest.mark.parametrize("kind", ["scalar", "categorical", "quantile", "implicit"])
def test_dueling_outputs_average_to_the_state_value(kind: str) -> None:
    """mean_a Q = V for each atom or quantile by itself, so it has Z values of its own."""
    head = heads(dueling=True)[kind]
    assert head.state_value is not None
    features = torch.randn(6, 4)
    average = head(features).mean(1)
    if kind == "implicit":
        assert isinstance(head, ImplicitQuantileHead)
        cosines = (head.acting_fractions.unsqueeze(-1) * head.frequencies).cos()
        features = features.unsqueeze(1) * head.embedding(cosines).relu()
    value = head.state_value(features, False).reshape(average.shape)
    torch.testing.assert_close(average, value)


def test_means_by_hand() -> None:
    """Atoms -1, 0, 1 with probabilities 1/4, 1/4, 1/2: mean 1/4. Quantiles 1, 2, 6: mean 3."""
    head = CategoricalValueHead(2, 2, num_atoms=3, v_min=-1.0, v_max=1.0)
    logits = torch.tensor([0.25, 0.25, 0.5]).log().expand(1, 2, 3)
    assert head.mean(logits)[0].tolist() == pytest.approx([0.25, 0.25])
    quantiles = torch.tensor([[[1.0, 2.0, 6.0]]])
    assert QuantileHead(2, 1, num_values=3).mean(quantiles).item() == pytest.approx(3.0)


def test_midpoints() -> None:
    assert midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_implicit_quantiles_by_hand() -> None:
    """phi(tau) = relu(sum_i w_i cos(pi i tau) + b): with w on i = 1 only and b = 0.5,
    phi(1/3) = cos(pi/3) + 0.5 = 1 and phi(1) = relu(-1 + 0.5) = 0.

    One feature of value 2 and an output weight of 3: quantiles 6 and 0.
    """
    head = ImplicitQuantileHead(1, 1, num_acting_fractions=2)
    with torch.no_grad():
        head.embedding.weight.zero_()
        head.embedding.weight[0, 1] = 1.0
        head.embedding.bias.fill_(0.5)
        head.advantage.layers[0].weight.fill_(3.0)
        head.advantage.layers[0].bias.zero_()
    fractions = torch.tensor([[1.0 / 3.0, 1.0]])
    outputs = head(torch.tensor([[2.0]]), fractions=fractions)
    assert outputs.flatten().tolist() == pytest.approx([6.0, 0.0], abs=1e-5)
    assert head.frequencies[1].item() == pytest.approx(math.pi)


def test_implicit_quantiles_without_fractions_are_those_at_the_midpoints() -> None:
    head = ImplicitQuantileHead(4, 3, num_acting_fractions=6)
    features = torch.randn(2, 4)
    given = head(features, fractions=midpoints(6).expand(2, -1))
    assert torch.equal(head(features), given)
    assert head(features, fractions=torch.rand(2, 9)).shape == (2, 3, 9)

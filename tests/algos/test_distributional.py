"""Projection and quantile regression against hand-worked numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from redline.algos.distributional import (
    categorical_divergence,
    project_categorical,
    quantile_huber_loss,
)

ATOMS = torch.tensor([0.0, 1.0, 2.0])


def test_projection_by_hand() -> None:
    """Atoms 0, 1, 2.

    Row 0: 0.5 at 0.25 gives 3/8 to 0 and 1/8 to 1; 0.25 at 1.5 gives 1/8 to each of 1 and 2;
           0.25 at 7 is clipped to 2. Together 0.375, 0.25, 0.375.
    Row 1: exactly on atoms: 0.2 at 0, 0.3 at 1, 0.5 at 2 stay (a common mistake loses them).
    Row 2: all three values are -3 and are clipped to 0.
    """
    values = torch.tensor([[0.25, 1.5, 7.0], [0.0, 1.0, 2.0], [-3.0, -3.0, -3.0]])
    probability = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5], [0.1, 0.2, 0.7]])
    expected = torch.tensor([[0.375, 0.25, 0.375], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(project_categorical(values, probability, ATOMS), expected)


@given(st.integers(2, 60), st.floats(-30, 30), st.floats(0, 1), st.integers(0, 2**31))
def test_projection_keeps_mass_and_mean(
    count: int, reward: float, discount: float, seed: int
) -> None:
    """Nothing is lost, and within the atoms' range neither is the mean."""
    generator = torch.Generator().manual_seed(seed)
    atoms = torch.linspace(-10.0, 10.0, count, dtype=torch.float64)
    values = (reward + discount * atoms).expand(3, -1)
    probability = torch.rand(3, count, generator=generator, dtype=torch.float64).softmax(-1)
    projected = project_categorical(values, probability, atoms)
    assert projected.sum(-1).tolist() == pytest.approx([1.0] * 3)
    assert (projected >= 0).all()
    mean = (values.clamp(-10.0, 10.0) * probability).sum(-1)
    assert (projected @ atoms).tolist() == pytest.approx(mean.tolist(), abs=1e-9)


def test_divergence_by_hand() -> None:
    """Target (1/2, 1/2, 0) from a prediction (1/4, 1/2, 1/4): ln 2 / 2; from itself 0."""
    logits = torch.tensor([[0.25, 0.5, 0.25], [0.5, 0.5, 1e-30]]).log()
    target = torch.tensor([[0.5, 0.5, 0.0]]).expand(2, -1)
    got = categorical_divergence(logits, target)
    assert got.tolist() == pytest.approx([0.5 * torch.tensor(2.0).log().item(), 0.0], abs=1e-6)


def test_quantile_huber_loss_by_hand() -> None:
    """kappa = 1, tau = (1/4, 3/4), predictions (0, 2), targets (0.5, 3).

    i=0: u = 0.5, 3:    L = 0.125, 2.5;  weights 1/4, 1/4: mean = 0.65625 / 2 = 0.328125
    i=1: u = -1.5, 1:   L = 1.0, 0.5;    weights |3/4 - 1| = 1/4 and 3/4: (0.25 + 0.375) / 2
                                         = 0.3125
    Sum 0.640625.
    """
    loss = quantile_huber_loss(
        torch.tensor([[0.0, 2.0]]), torch.tensor([0.25, 0.75]), torch.tensor([[0.5, 3.0]]), 1.0
    )
    assert loss.tolist() == pytest.approx([0.640625])


def test_quantile_huber_loss_is_divided_by_the_threshold() -> None:
    """kappa = 1/2, tau = 1/2, u = 2: L = 0.5 (2 - 0.25) = 0.875; 0.5 * 0.875 / 0.5 = 0.875."""
    loss = quantile_huber_loss(torch.zeros(1, 1), torch.tensor([[0.5]]), torch.tensor([[2.0]]), 0.5)
    assert loss.tolist() == pytest.approx([0.875])


def test_the_minimum_of_the_quantile_loss_is_the_quantile() -> None:
    """Of the numbers 0 .. 99 with a small kappa the 3/4 quantile is about 74.5."""
    samples = torch.arange(100.0).unsqueeze(0)
    guesses = torch.arange(0.0, 100.0, 0.5)
    losses = quantile_huber_loss(
        guesses.unsqueeze(-1), torch.tensor([0.75]), samples.expand(len(guesses), -1), 1e-3
    )
    assert guesses[losses.argmin()].item() == pytest.approx(74.5, abs=0.5)

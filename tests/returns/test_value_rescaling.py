"""Value rescaling by hand, and its inverse as a property."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from redline.returns import rescale, unrescale


def test_rescale_by_hand() -> None:
    """sqrt(3 + 1) - 1 = 1, sqrt(8 + 1) - 1 = 2, with epsilon x added.

    h(3) = 1 + 0.003, h(-8) = -2 - 0.008, h(0) = 0.
    """
    x = torch.tensor([3.0, -8.0, 0.0], dtype=torch.float64)
    assert rescale(x).tolist() == pytest.approx([1.003, -2.008, 0.0], abs=1e-12)
    assert rescale(x, epsilon=0.5).tolist() == pytest.approx([2.5, -6.0, 0.0], abs=1e-12)


def test_unrescale_by_hand() -> None:
    """The same numbers backwards."""
    y = torch.tensor([1.003, -2.008, 0.0], dtype=torch.float64)
    assert unrescale(y).tolist() == pytest.approx([3.0, -8.0, 0.0], abs=1e-9)


@given(
    st.floats(-1e6, 1e6, allow_subnormal=False),
    st.sampled_from([1e-3, 1e-2, 0.5]),
)
def test_the_inverse_is_exact(x: float, epsilon: float) -> None:
    there = rescale(torch.tensor(x, dtype=torch.float64), epsilon)
    back = unrescale(there, epsilon)
    assert back.item() == pytest.approx(x, rel=1e-9, abs=1e-12)


@given(st.floats(-1e4, 1e4, width=32, allow_subnormal=False))
def test_single_precision_keeps_its_digits(x: float) -> None:
    """The textbook form (sqrt(1 + 4 eps (...)) - 1) / 2 eps loses three of seven digits here."""
    back = unrescale(rescale(torch.tensor(x)))
    assert back.item() == pytest.approx(x, rel=2e-6, abs=1e-30)


@given(st.floats(-1e5, 1e5), st.floats(-1e5, 1e5))
def test_order_is_kept(a: float, b: float) -> None:
    low, high = sorted((a, b))
    ends = rescale(torch.tensor([low, high], dtype=torch.float64))
    assert ends[0] <= ends[1]

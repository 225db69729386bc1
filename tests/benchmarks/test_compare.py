"""The guard against slow-downs: what it makes of rounds, worked out by hand."""

from __future__ import annotations

import math

import pytest
from benchmarks.compare import judge


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([math.log(1.03)] * 4, "slower"),
        ([0.0] * 4, "not slower"),
        ([-0.1] * 4, "not slower"),
        # Mean 0.02, deviation 0.0082: +- 3.182 * 0.0082 / 2 = 0.013 holds log(1.015) = 0.0149.
        ([0.01, 0.02, 0.02, 0.03], "undecided"),
        # Twice as many: +- 2.365 * 0.0076 / 2.83 = 0.0063 holds it still.
        ([0.01, 0.02, 0.02, 0.03] * 2, "undecided"),
        ([0.02, 0.03, 0.03, 0.04] * 2, "slower"),
    ],
)
def test_a_verdict_needs_an_interval_beside_half_the_threshold(
    rounds: list[float], verdict: str
) -> None:
    found = judge("sac", rounds, 0.03)
    assert found.verdict == verdict
    assert found.rounds == len(rounds)


def test_the_interval_by_hand() -> None:
    """Of 0.01, 0.02, 0.02 and 0.03: Student's t of 3 degrees of freedom, 3.182."""
    found = judge("sac", [0.01, 0.02, 0.02, 0.03], 0.03)
    half = 3.182 * math.sqrt(0.0002 / 3) / 2
    assert found.slowdown == pytest.approx(math.exp(0.02) - 1)
    assert (found.low, found.high) == pytest.approx(
        (math.exp(0.02 - half) - 1, math.exp(0.02 + half) - 1)
    )

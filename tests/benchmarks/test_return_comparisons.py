"""What a comparison of returns may say: few and short runs say nothing."""

from __future__ import annotations

import pytest
from benchmarks.returns import COMPARISONS, verdict


@pytest.mark.parametrize(
    ("total", "seeds", "says_nothing"),
    [(60_000, 3, True), (60_000, 9, True), (60_000, 10, False), (1_000_000, 3, False)],
)
def test_td3_on_halfcheetah_is_compared_at_1m_or_over_ten_seeds(
    total: int, seeds: int, says_nothing: bool
) -> None:
    comparison = COMPARISONS["td3"]

    assert bool(comparison.says_nothing(total, seeds)) is says_nothing
    assert verdict(comparison, total, seeds, True).startswith("No comparison") is says_nothing
    assert verdict(comparison, total, seeds, False).startswith("LOWER") is not says_nothing


def test_no_comparison_says_nothing_by_default() -> None:
    for comparison in COMPARISONS.values():
        assert not comparison.says_nothing(comparison.total_env_steps, comparison.seeds)

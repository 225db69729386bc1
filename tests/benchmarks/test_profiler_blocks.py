"""The cost of recording from blocks of one run, worked by hand."""

from __future__ import annotations

import math

import pytest
from benchmarks.profiler.blocks import cost
from benchmarks.profiler.within import full_table


def test_the_cost_is_the_shift_between_the_two_kinds_of_blocks() -> None:
    found, half_width = cost([1.0, 1.1, 1.1, 1.0] * 6)
    assert found == pytest.approx(0.1)
    assert half_width == pytest.approx(0.0)


def test_disturbed_blocks_change_little() -> None:
    seconds = [1.0, 1.1, 1.1, 1.0] * 6
    for i in (0, 5, 14):  # of both kinds, in a quarter of the pairs
        seconds[i] *= 1.7
    assert cost(seconds)[0] == pytest.approx(0.1)


def test_slow_drift_cancels() -> None:
    seconds = [each * 1.02**i for i, each in enumerate([1.0, 1.1, 1.1, 1.0] * 6)]
    assert cost(seconds)[0] == pytest.approx(0.1, rel=0.01)


def test_the_interval_goes_from_the_lowest_mean_to_the_highest_where_there_are_few() -> None:
    # Differences log 3 and 0; with two of them their three means all lie inside.
    found, half_width = cost([1.0, 3.0, 2.0, 2.0])
    assert found == pytest.approx(math.sqrt(3) - 1)
    assert half_width == pytest.approx((3 - 1) / 2)


def test_the_error_is_what_correction_leaves_of_the_cost() -> None:
    one = {
        "cost": 0.12,
        "taken_out": 0.10,
        "half_width": 0.01,
        "unit_ns": 90.0,
        "ci_ns": [80.0, 100.0],
        "callbacks": 1000,
        "corrected": True,
        "blocks": 48,
        "block_s": 1.0,
        "env_steps_per_block": 10,
    }
    wide = one | {"taken_out": 0.0, "cost": -0.04, "corrected": False}
    table = full_table({"a": one, "b": wide})
    assert "| a | +12.00% | 1.00% | 10.00% | +2.00% | 90 (80 to 100) |" in table
    assert "| b | -4.00% | 1.00% | 0.00% | -4.00% | 90 (80 to 100), not used |" in table
    assert "mean absolute 3.0%, worst 4.0%" in table

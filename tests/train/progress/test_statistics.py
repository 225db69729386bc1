"""`train.progress.statistics`, by hand and against scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from redline.errors import ConfigError
from redline.train.progress.statistics import bootstrap_interval, interquartile_mean


def test_interquartile_mean_by_hand() -> None:
    """Of 1..8, two go at either end: (3 + 4 + 5 + 6) / 4. An outlier among them changes nothing."""
    assert interquartile_mean([8, 1, 7, 2, 6, 3, 5, 4]) == 4.5
    assert interquartile_mean([8000, 1, 7, 2, 6, 3, 5, 4]) == 4.5
    assert interquartile_mean([1, 2, 9]) == 4
    assert interquartile_mean([[1, 10], [3, 20], [5, 90]], axis=1).tolist() == [5.5, 11.5, 47.5]


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_interquartile_mean_is_the_trimmed_mean(values: list[float]) -> None:
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


def test_bootstrap_of_two_values_by_hand() -> None:
    """The mean of two draws from {0, 1} is 0, 1/2, 1 with probability 1/4, 1/2, 1/4."""
    low, high = bootstrap_interval([0.0, 1.0], confidence=0.95)
    assert (low, high) == (0.0, 1.0)
    low, high = bootstrap_interval([0.0, 1.0], confidence=0.4)
    assert (low, high) == (0.5, 0.5)


def test_bootstrap_agrees_with_scipy() -> None:
    values = np.random.default_rng(1).normal(10, 2, size=12)
    low, high = bootstrap_interval(values, resamples=20_000)
    reference = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert low == pytest.approx(reference.low, abs=0.05)
    assert high == pytest.approx(reference.high, abs=0.05)


def test_bootstrap_draws_whole_curves_and_is_seeded() -> None:
    """Second column = 2 * first: were points drawn apart, the ends would not be."""
    first = np.random.default_rng(0).normal(size=7)
    curves = np.stack([first, 2 * first], axis=1)
    low, high = bootstrap_interval(curves, seed=5)
    assert low[1] == pytest.approx(2 * low[0])
    assert high[1] == pytest.approx(2 * high[0])
    again = bootstrap_interval(curves, seed=5)
    assert np.array_equal(again[0], low)
    assert not np.array_equal(bootstrap_interval(curves, seed=6)[0], low)


def test_strata_are_drawn_apart() -> None:
    """Within each stratum all runs are equal, so no resample differs: the interval is a point."""
    values = [1.0, 1.0, 1.0, 9.0]
    assert bootstrap_interval(values, strata=[0, 0, 0, 1]) == (3.0, 3.0)
    low, high = bootstrap_interval(values)
    assert low < high


def test_one_run_has_no_interval() -> None:
    low, high = bootstrap_interval([[1.0, 2.0]])
    assert low.tolist() == high.tolist() == [1.0, 2.0]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        bootstrap_interval([])
    with pytest.raises(ConfigError, match=r"confidence=95"):
        bootstrap_interval([1.0], confidence=95)
    with pytest.raises(ConfigError, match="strata"):
        bootstrap_interval([1.0, 2.0], strata=[0])


def test_the_middle_half_of_weights_by_hand() -> None:
    """Weights 1, 1 and 2 of 4: 1 and 2 hold a quarter each, 4 the upper half."""
    # The middle half is all of the 2's quarter and half of the 4's.
    found = interquartile_mean([4.0, 1.0, 2.0], weights=[2.0, 1.0, 1.0])
    assert found == pytest.approx((2.0 + 4.0) / 2)
    values = np.random.default_rng(0).normal(size=(3, 8))
    equal = interquartile_mean(values, axis=-1, weights=np.ones(8))
    np.testing.assert_allclose(equal, interquartile_mean(values, axis=-1))  # a quarter is whole
    np.testing.assert_allclose(interquartile_mean(values.T, axis=0, weights=np.ones(8)), equal)


def test_strata_count_alike_if_asked_for() -> None:
    """One stratum of one run at 3, one of three runs at 0: the mean is 1.5, and 0.75 by runs."""
    values, strata = [0.0, 0.0, 0.0, 3.0], [0, 0, 0, 1]
    even = bootstrap_interval(values, statistic=np.average, strata=strata, evenly=True)
    assert even == (1.5, 1.5)
    assert bootstrap_interval(values, statistic=np.average, strata=strata) == (0.75, 0.75)
    alone = bootstrap_interval([1.0, 3.0], statistic=np.average, strata=[0, 1], evenly=True)
    assert alone == (2.0, 2.0)

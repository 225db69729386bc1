"""Statistics over runs: the interquartile mean and bootstrap intervals. Numpy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from redline.errors import ConfigError

Array: TypeAlias = npt.NDArray[Any]
Statistic: TypeAlias = Callable[..., Array]

_RESAMPLES_AT_ONCE = 64


def interquartile_mean(values: npt.ArrayLike, axis: int = 0) -> Array:
    """Mean of the middle half: floor(n / 4) of the smallest and of the largest are left out.

    Agarwal et al. 2021, arXiv:2108.13264, section 4.3: less swayed by single runs than the
    mean, more efficient than the median. With fewer than 4 values it is the mean.

    Args:
        values: [..., n, ...] numbers.
        axis: the one of length n.

    Returns:
        [..., ...] without that axis.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=axis)
    count = ordered.shape[axis]
    cut = count // 4
    return np.take(ordered, np.arange(cut, count - cut), axis=axis).mean(axis=axis)


def bootstrap_interval(
    values: npt.ArrayLike,
    *,
    statistic: Statistic = np.mean,
    strata: Sequence[int] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Percentile bootstrap interval of a statistic over runs.

    Efron and Tibshirani 1993, chapter 13; stratified as in Agarwal et al. 2021,
    arXiv:2108.13264, section 4.2: each resample draws as many runs from every stratum
    (environment, say) as there are in it. A run is drawn as a whole, so that a curve's
    points stay together.

    Args:
        values: [n, ...] one row per run.
        statistic: called as statistic(array, axis=1) on [resamples, n, ...].
        strata: [n] which stratum each run belongs to; None puts all into one.
        confidence: in (0, 1), share of resamples inside the interval.
        resamples: number of resamples.
        seed: of the resampling; the same seed gives the same interval.

    Returns:
        Lower and upper end, each [...]; equal where n is 1.

    Raises:
        ConfigError: if there are no runs, or confidence or strata do not fit.
    """
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim == 0 or len(runs) == 0:
        raise ConfigError("a bootstrap interval needs at least one run, got none.")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence={confidence} must lie between 0 and 1, such as 0.95.")
    groups = np.zeros(len(runs), dtype=np.int64) if strata is None else np.asarray(strata)
    if groups.shape != (len(runs),):
        raise ConfigError(f"strata has shape {groups.shape} for {len(runs)} runs. Give one each.")
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    index = np.concatenate(
        [own[rng.integers(len(own), size=(resamples, len(own)))] for own in members], axis=1
    )
    # In portions: all resamples of long curves at once would take gigabytes.
    estimates = np.concatenate(
        [
            statistic(runs[index[start : start + _RESAMPLES_AT_ONCE]], axis=1)
            for start in range(0, resamples, _RESAMPLES_AT_ONCE)
        ]
    )
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(estimates, [tail, 1.0 - tail], axis=0)
    return low, high

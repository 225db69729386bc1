"""Statistics over runs: the interquartile mean and bootstrap intervals, by scipy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from redline.errors import ConfigError

Array: TypeAlias = npt.NDArray[Any]
Statistic: TypeAlias = Callable[..., Array]

FEWEST_FOR_IQM = 4
"""Runs from which on the interquartile mean leaves any out; below, it is the mean."""

_RESAMPLES_AT_ONCE = 64  # all resamples of long curves at once would take gigabytes


def interquartile_mean(
    values: npt.ArrayLike, axis: int = 0, weights: npt.ArrayLike | None = None
) -> Array:
    """Mean of the middle half: floor(n / 4) of the smallest and of the largest are left out.

    Agarwal et al. 2021, arXiv:2108.13264, section 4.3: less swayed by single runs than the
    mean, more efficient than the median. With fewer than `FEWEST_FOR_IQM` values it is the mean.

    Args:
        values: [..., n, ...] numbers.
        axis: the one of length n.
        weights: [n] of the values; None: all count alike. With weights the middle half of the
            weight counts, to the part of a value.

    Returns:
        [..., ...] without that axis.
    """
    from scipy import stats  # a second to import, and only plots need it

    numbers = np.asarray(values, dtype=np.float64)
    if weights is not None:
        return _middle_half(np.moveaxis(numbers, axis, -1), np.asarray(weights, np.float64))
    return np.asarray(stats.trim_mean(numbers, 0.25, axis=axis))


def _middle_half(values: Array, weights: Array) -> Array:
    """[...] the mean of the middle half of the weight of [..., n] values."""
    order = np.argsort(values, axis=-1, kind="stable")
    shares = weights[order] / weights.sum()
    above = np.cumsum(shares, axis=-1)
    counted = np.clip(np.minimum(above, 0.75) - np.maximum(above - shares, 0.25), 0.0, None)
    ordered = np.take_along_axis(values, order, axis=-1)
    return np.asarray((counted * ordered).sum(axis=-1) / counted.sum(axis=-1))


def bootstrap_interval(
    values: npt.ArrayLike,
    *,
    statistic: Statistic = np.mean,
    strata: Sequence[int] | None = None,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    evenly: bool = False,
) -> tuple[Array, Array]:
    """Percentile bootstrap interval of a statistic over runs.

    Efron and Tibshirani 1993, chapter 13; stratified as in Agarwal et al. 2021,
    arXiv:2108.13264, section 4.2: each resample draws as many runs from every stratum
    (environment, say) as there are in it. A run is drawn as a whole, so that a curve's
    points stay together.

    Args:
        values: [n, ...] one row per run.
        statistic: called as statistic(array, axis=-1) on [..., resamples, n].
        strata: [n] which stratum each run belongs to; None puts all into one.
        confidence: in (0, 1), share of resamples inside the interval.
        resamples: number of resamples.
        seed: of the resampling; the same seed gives the same interval.
        evenly: whether strata count alike, however many runs each has. Where their numbers differ
            the statistic is called with `weights` [n], too; see `even_weights`.

    Returns:
        Lower and upper end, each [...]; equal where n is 1.

    Raises:
        ConfigError: if there are no runs, or confidence or strata do not fit.
    """
    from scipy import stats

    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim == 0 or len(runs) == 0:
        raise ConfigError("a bootstrap interval needs at least one run, got none.")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence={confidence} must lie between 0 and 1, such as 0.95.")
    groups = np.zeros(len(runs), dtype=np.int64) if strata is None else np.asarray(strata)
    if groups.shape != (len(runs),):
        raise ConfigError(f"strata has shape {groups.shape} for {len(runs)} runs. Give one each.")
    last = np.moveaxis(runs, 0, -1)  # [..., n]: scipy hands resamples on with the runs last
    members = [last[..., groups == group] for group in np.unique(groups)]
    drawn = [own for own in members if own.shape[-1] > 1]
    fixed = [own for own in members if own.shape[-1] == 1]  # nothing else can be drawn
    weights = even_weights([own.shape[-1] for own in (*drawn, *fixed)]) if evenly else None
    weighted: dict[str, Any] = {} if weights is None else {"weights": weights}
    if not drawn:
        middle = np.asarray(statistic(np.concatenate(fixed, axis=-1), axis=-1, **weighted))
        return middle, middle

    def over_all(*samples: Array, axis: int = -1) -> Array:
        shape = samples[0].shape[:-1]
        alone = [np.broadcast_to(_beside(own, len(shape)), (*shape, 1)) for own in fixed]
        return statistic(np.concatenate([*samples, *alone], axis=-1), axis=axis, **weighted)

    interval = stats.bootstrap(
        drawn,
        over_all,
        n_resamples=resamples,
        batch=_RESAMPLES_AT_ONCE,
        vectorized=True,
        axis=-1,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return np.asarray(interval.low), np.asarray(interval.high)


def even_weights(sizes: Sequence[int]) -> Array | None:
    """[n] weights with which strata of these numbers of runs count alike; None if they do anyway.

    Args:
        sizes: of the strata, which lie one after the other.
    """
    if len(set(sizes)) == 1:
        return None
    return np.concatenate([np.full(size, 1.0 / size) for size in sizes])


def _beside(own: Array, ndim: int) -> Array:
    """[..., 1] with an axis for the resamples, if the others [.., resamples, n] have one."""
    return own if own.ndim == ndim + 1 else own[..., None, :]

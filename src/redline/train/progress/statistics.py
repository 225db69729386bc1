"""Statistics over runs: the interquartile mean and bootstrap intervals, by scipy."""

from __future__ import annotations

import math
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


def interquartile_mean(values: npt.ArrayLike, axis: int = 0) -> Array:
    """Mean of the middle half: floor(n / 4) of the smallest and of the largest are left out.

    Agarwal et al. 2021, arXiv:2108.13264, section 4.3: less swayed by single runs than the
    mean, more efficient than the median. With fewer than `FEWEST_FOR_IQM` values it is the mean.

    Args:
        values: [..., n, ...] numbers.
        axis: the one of length n.

    Returns:
        [..., ...] without that axis.
    """
    from scipy import stats  # a second to import, and only plots need it

    numbers = np.asarray(values, dtype=np.float64)
    return np.asarray(stats.trim_mean(numbers, 0.25, axis=axis))


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
        evenly: whether strata count alike, however many runs each has; see `joined_evenly`.

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
    join = joined_evenly if evenly else _joined
    if not drawn:
        middle = np.asarray(statistic(join(fixed), axis=-1))
        return middle, middle

    def over_all(*samples: Array, axis: int = -1) -> Array:
        shape = samples[0].shape[:-1]
        alone = [np.broadcast_to(_beside(own, len(shape)), (*shape, 1)) for own in fixed]
        return statistic(join([*samples, *alone]), axis=axis)

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


def joined_evenly(strata: Sequence[Array]) -> Array:
    """All strata one after the other, each run as often as makes them equally many.

    Args:
        strata: [..., n] of each; their n may differ.
    """
    length = math.lcm(*(own.shape[-1] for own in strata))
    return _joined([np.repeat(own, length // own.shape[-1], axis=-1) for own in strata])


def _joined(strata: Sequence[Array]) -> Array:
    return np.concatenate(strata, axis=-1)


def _beside(own: Array, ndim: int) -> Array:
    """[..., 1] with an axis for the resamples, if the others [.., resamples, n] have one."""
    return own if own.ndim == ndim + 1 else own[..., None, :]

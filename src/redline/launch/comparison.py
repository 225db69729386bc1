"""Sweeps and runs compared: means, interquartile means, intervals, who is likely better.

Agarwal et al. 2021, arXiv:2108.13264. The environments are the strata: a resample draws as many
runs of each environment as there are.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from redline.errors import ConfigError
from redline.launch.scores import ScoredRun, ScoreKind, scored_runs
from redline.plain_text import csv_cell
from redline.train.checkpoint.atomic_files import atomic_file
from redline.train.progress.statistics import (
    bootstrap_interval,
    even_weights,
    interquartile_mean,
)

Array: TypeAlias = npt.NDArray[np.float64]

OVERALL = "all environments"
"""Stands for the mean over environments, of scores that are scaled to 0..1 in each."""

_RESAMPLES = 2000
_QUANTILES = (0.025, 0.975)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The runs of a group in an environment, or in all of them.

    Attributes:
        env: the environment, or `OVERALL`.
        group: what is compared.
        runs: how many.
        mean, iqm: of their scores; the IQM of fewer than 4 runs is the mean.
        mean_low, mean_high, iqm_low, iqm_high: 95% bootstrap intervals.
        std: of their scores, with n - 1; 0 for one run.
        unfinished: how many of the runs have not come to their end.
    """

    env: str
    group: str
    runs: int
    mean: float
    mean_low: float
    mean_high: float
    iqm: float
    iqm_low: float
    iqm_high: float
    std: float
    unfinished: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """How likely a run of one group scores higher than a run of another.

    Attributes:
        first, second: the groups.
        probability: P(first > second), ties counting half, averaged over environments.
        low, high: 95% bootstrap interval.
    """

    first: str
    second: str
    probability: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `compare` found.

    Attributes:
        score: how runs were scored.
        column: of progress.csv.
        runs: every one that counts.
        summaries: by environment and group; with several environments also over all.
        improvements: of every ordered pair of groups that share an environment.
        files: written ones.
    """

    score: ScoreKind
    column: str
    runs: list[ScoredRun]
    summaries: list[Summary]
    improvements: list[Improvement]
    files: tuple[Path, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "score": self.score,
            "column": self.column,
            "runs": [asdict(run) | {"path": str(run.path)} for run in self.runs],
            "summaries": [asdict(each) for each in self.summaries],
            "improvements": [asdict(each) for each in self.improvements],
            "files": [str(file) for file in self.files],
        }


def compare(
    paths: Sequence[Path | str] | Path | str,
    out: Path | str | None = None,
    *,
    by: Sequence[str] | None = None,
    score: ScoreKind = "final",
    column: str = "return_mean",
    formats: Sequence[str] = ("png", "svg"),
    smooth: int = 1,
    warn: Callable[[str], None] = lambda sentence: None,
) -> Comparison:
    """Compare sweeps and runs; write tables and figures.

    Args:
        paths: folders of sweeps, run directories, or folders with run directories below them.
        out: folder for the files; None writes none.
        by: settings that make groups; None: what varies.
        score: final, area or best; see `scores.score_of`.
        column: of progress.csv.
        formats: of figures: png, svg, pdf.
        smooth: rows over which curves are averaged, backwards.
        warn: takes a sentence about each run that is left out, or that has not finished.

    Raises:
        ConfigError: if a setting, column or format is unknown.
        RunDirectoryError: if there is nothing to compare.
    """
    if smooth < 1:
        raise ConfigError(f"smooth={smooth} must be at least 1 row.")
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    runs = scored_runs(given, by=by, score=score, column=column, warn=warn)
    compared = Comparison(
        score=score,
        column=column,
        runs=runs,
        summaries=summarize(runs),
        improvements=improvements(runs),
    )
    if out is None:
        return compared
    from redline.launch.comparison_figures import write_figures

    folder = Path(out)
    figures = write_figures(compared, folder, formats, smooth=smooth)
    return _write_tables(compared, folder, figures)


def summarize(runs: Sequence[ScoredRun]) -> list[Summary]:
    """One line per environment and group, and per group over all environments."""
    unfinished = Counter((run.env, run.group) for run in runs if run.is_unfinished)
    found = [
        _summary(env, group, scores, None, unfinished[env, group])
        for env, groups in by_env(runs).items()
        for group, scores in groups.items()
    ]
    scaled = _scaled(runs)
    if len(scaled) < 2:
        return found
    for group in dict.fromkeys(run.group for run in runs):
        parts = [groups[group] for groups in scaled.values() if group in groups]
        if len(parts) == len(scaled):  # else it is no mean over the same environments
            strata = [number for number, part in enumerate(parts) for _ in part]
            of_all = sum(n for (_, name), n in unfinished.items() if name == group)
            found.append(_summary(OVERALL, group, np.concatenate(parts), strata, of_all))
    return found


def by_env(runs: Sequence[ScoredRun]) -> dict[str, dict[str, Array]]:
    """Environment -> group -> [n] scores, in the order of the runs."""
    found: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        found.setdefault(run.env, {}).setdefault(run.group, []).append(run.score)
    return {
        env: {group: np.array(scores) for group, scores in groups.items()}
        for env, groups in found.items()
    }


def _scaled(runs: Sequence[ScoredRun]) -> dict[str, dict[str, Array]]:
    """As `by_env`, scaled so that the lowest run of an environment has 0 and the highest 1."""
    found: dict[str, dict[str, Array]] = {}
    for env, groups in by_env(runs).items():
        every = np.concatenate(list(groups.values()))
        low, width = every.min(), np.ptp(every) or 1.0
        found[env] = {group: (scores - low) / width for group, scores in groups.items()}
    return found


def _summary(
    env: str, group: str, scores: Array, strata: Sequence[int] | None, unfinished: int
) -> Summary:
    # Over all environments each counts alike, whichever of them was run more often.
    sizes = [len(scores)] if strata is None else list(Counter(strata).values())
    weights = even_weights(sizes)
    (mean_low, mean_high), (iqm_low, iqm_high) = (
        bootstrap_interval(scores, statistic=each, strata=strata, evenly=True)
        for each in (np.average, interquartile_mean)
    )
    return Summary(
        env=env,
        group=group,
        runs=len(scores),
        mean=float(np.average(scores, weights=weights)),
        mean_low=float(mean_low),
        mean_high=float(mean_high),
        iqm=float(interquartile_mean(scores, weights=weights)),
        iqm_low=float(iqm_low),
        iqm_high=float(iqm_high),
        std=float(scores.std(ddof=1)) if len(scores) > 1 else 0.0,
        unfinished=unfinished,
    )


def improvements(runs: Sequence[ScoredRun], seed: int = 0) -> list[Improvement]:
    """P(first > second) of every ordered pair of groups, over the environments they share.

    Agarwal et al. 2021, arXiv:2108.13264, section 4.3: per environment the Mann-Whitney statistic
    over n * m pairs, averaged over environments; its interval by resampling runs in each.

    Args:
        runs: of all groups.
        seed: of the resampling.
    """
    scores = by_env(runs)
    groups = list(dict.fromkeys(run.group for run in runs))
    found: list[Improvement] = []
    for first in groups:
        for second in groups:
            shared = [(g[first], g[second]) for g in scores.values() if first in g and second in g]
            if first == second or not shared:
                continue
            drawn = _resampled(shared, np.random.default_rng(seed))
            low, high = np.quantile(drawn, _QUANTILES)
            point = float(np.mean([probability_above(a, b) for a, b in shared]))
            found.append(
                Improvement(
                    first=first, second=second, probability=point, low=float(low), high=float(high)
                )
            )
    return found


def probability_above(first: Array, second: Array) -> Array:
    """P(a > b) + P(a = b) / 2 over all pairs.

    Args:
        first: [..., n].
        second: [..., m].

    Returns:
        [...].
    """
    difference = first[..., :, None] - second[..., None, :]
    return ((difference > 0) + 0.5 * (difference == 0)).mean(axis=(-2, -1))


def _resampled(shared: Sequence[tuple[Array, Array]], rng: np.random.Generator) -> Array:
    """[resamples] the mean over environments."""
    total = np.zeros(_RESAMPLES)
    for first, second in shared:
        drawn = [
            part[rng.integers(0, len(part), (_RESAMPLES, len(part)))] for part in (first, second)
        ]
        total += probability_above(drawn[0], drawn[1])
    return total / len(shared)


def _write_tables(compared: Comparison, folder: Path, figures: Sequence[Path]) -> Comparison:
    tables: dict[str, list[Mapping[str, Any]]] = {
        "runs.csv": [asdict(run) for run in compared.runs],
        "summary.csv": [asdict(each) for each in compared.summaries],
        "improvement.csv": [asdict(each) for each in compared.improvements],
    }
    written = list(figures)
    for name, rows in tables.items():
        if rows:
            _write_csv(folder / name, rows)
            written.append(folder / name)
    file = folder / "comparison.json"
    whole = Comparison(
        score=compared.score,
        column=compared.column,
        runs=compared.runs,
        summaries=compared.summaries,
        improvements=compared.improvements,
        files=(*written, file),
    )
    with atomic_file(file) as temporary:
        temporary.write_text(json.dumps(whole.to_json(), indent=1) + "\n", encoding="utf-8")
    return whole


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with atomic_file(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({key: csv_cell(cell) for key, cell in row.items()} for row in rows)

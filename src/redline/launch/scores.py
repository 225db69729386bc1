"""Runs to compare: where they lie, what tells them apart, and one score for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from redline.errors import ConfigError, RunDirectoryError
from redline.launch.state import DATABASE, RUNS, SweepState
from redline.plain_files import read_json
from redline.plain_text import shortened
from redline.train.progress.curves import load_progress, load_setting
from redline.train.runs.summary import find_runs, summarize_run
from redline.train.setting_names import OF_THE_RUN

Array: TypeAlias = npt.NDArray[np.float64]
ScoreKind: TypeAlias = Literal["final", "area", "best"]

_FINAL_SHARE = 0.1  # of the env_steps, whose returns make a final score
_NO_GROUP = ("env", "engine", "threads", "num_threads", "total_env_steps")
_FIRST = ("algorithm", "preset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRun:
    """One run.

    Attributes:
        path: its directory.
        env: its environment, the task.
        group: what is compared: runs of one group differ in seed and environment only.
        seed: of the run; None where its config names none.
        env_steps: how far it got.
        score: see `score_of`.
        state: complete, stopped (by a callback), running, interrupted, failed or killed, as
            `redline runs` says; unknown where the directory does not say it.
    """

    path: Path
    env: str
    group: str
    seed: int | None
    env_steps: int
    score: float
    state: str = "complete"

    @property
    def is_unfinished(self) -> bool:
        """Whether it has not come to its own end, so that its score may be too low."""
        return self.state not in ("complete", "stopped")


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    setting: Mapping[str, Any]
    varies: tuple[str, ...] | None  # what its sweep varies; None outside of one

    def whole(self) -> str:
        """All that bears on what is learned, but for seed and length."""
        left_out = OF_THE_RUN | {*_NO_GROUP, "seed", "changed"}
        own = {name: v for name, v in self.setting.items() if _leaf(name) not in left_out}
        return repr(sorted(own.items()))

    def value(self, name: str) -> Any:
        return next((v for key, v in self.setting.items() if _leaf(key) == name), None)


def score_of(columns: Mapping[str, Array], kind: ScoreKind, column: str = "return_mean") -> float:
    """One number for a run's learning curve; NaN if it has no value of the column.

    Args:
        columns: of its progress.csv.
        kind: final: mean over the rows of the last tenth of its env_steps. area: mean over its
            env_steps by the trapezoidal rule, so that learning early counts. best: the largest.
        column: what is scored.
    """
    steps, values = columns["env_steps"], columns[column]
    there = np.isfinite(values)
    steps, values = steps[there], values[there]
    if len(values) == 0:
        return math.nan
    if kind == "best":
        return float(values.max())
    if kind == "final":
        return float(values[steps > (1.0 - _FINAL_SHARE) * steps[-1]].mean())
    if len(values) == 1:
        return float(values[0])
    # Written out: numpy names this `trapezoid` from 2.0 on, and `trapz` before.
    area = ((values[1:] + values[:-1]) / 2 * np.diff(steps)).sum()
    return float(area / (steps[-1] - steps[0]))


def scored_runs(
    paths: Sequence[Path | str],
    *,
    by: Sequence[str] | None = None,
    score: ScoreKind = "final",
    column: str = "return_mean",
    warn: Callable[[str], None] = lambda sentence: None,
) -> list[ScoredRun]:
    """The runs of sweeps and run directories, grouped by what varies.

    Args:
        paths: folders of sweeps, run directories, or folders with run directories below them.
        by: settings that make groups; None: those that differ between runs of one environment,
            as few as tell the groups apart.
        score: see `score_of`.
        column: of progress.csv.
        warn: takes a sentence about each run that is left out, or that has not finished.

    Raises:
        ConfigError: if a setting or column is unknown.
        RunDirectoryError: if there is no run with a score.
    """
    if score not in get_args(ScoreKind):
        raise ConfigError(f"score={score!r} is unknown. Choose final, area or best.")
    found = [run for path in paths for run in _runs_in(Path(path))]
    names = _grouping(found) if by is None else list(by)
    _check_names(found, names)
    runs: dict[tuple[Any, ...], ScoredRun] = {}
    for each in found:
        run = _scored(each, names, score, column, warn)
        if run is not None:
            seed = run.path if run.seed is None else run.seed
            key = (run.env, run.group, each.whole(), seed)
            runs[key] = run if key not in runs else _longer(runs[key], run, warn)
    if not runs:
        raise RunDirectoryError(
            f"there is no run with a value of {column} in {', '.join(map(str, paths))}. Wait for "
            f"the first episodes to end, or give other folders."
        )
    for run in runs.values():
        if run.is_unfinished:
            warn(
                f"not finished: {run.path} is {run.state} after {run.env_steps:,} env_steps, and "
                f"is scored by what it has"
            )
    return list(runs.values())


def _runs_in(path: Path) -> list[_Found]:
    if (path / DATABASE).is_file():
        with SweepState(path) as state:
            rows = state.runs()
        begun = [(path / RUNS / row.name, tuple(row.varies)) for row in rows]
        return [
            _Found(run, load_setting(run) | {"seed": _seed(run)}, varies)
            for run, varies in begun
            if (run / "config.json").is_file()
        ]
    runs = list(find_runs(path)) if path.is_dir() else []
    if not runs:
        raise RunDirectoryError(
            f"{path} holds no run and no sweep. Give folders that `redline sweep` or `redline "
            f"train` wrote."
        )
    return [_Found(run, load_setting(run) | {"seed": _seed(run)}, None) for run in runs]


def _seed(run: Path) -> int | None:
    try:
        config = read_json(run / "config.json")
    except (OSError, ValueError) as error:
        raise RunDirectoryError(
            f"{run / 'config.json'} cannot be read ({shortened(error)}). Leave this run out."
        ) from error
    own = config.get("run") if isinstance(config, dict) else None
    seed = own.get("seed") if isinstance(own, dict) else None
    return seed if isinstance(seed, int) else None


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _grouping(runs: Sequence[_Found]) -> list[str]:
    """The fewest settings that tell runs of one environment apart, telling ones first."""
    varied = [name for run in runs for name in run.varies or () if name not in _NO_GROUP]
    names = list(dict.fromkeys([*_FIRST, *varied]))
    if any(run.varies is None for run in runs):
        others = sorted({_leaf(key) for run in runs for key in run.setting})
        names += [n for n in others if n not in {*names, *_NO_GROUP, *OF_THE_RUN, "seed"}]
    chosen: list[str] = []
    classes = _classes(runs, chosen)
    for name in names:
        if (more := _classes(runs, [*chosen, name])) > classes:
            chosen, classes = [*chosen, name], more
    return chosen or ["algorithm"]


def _classes(runs: Sequence[_Found], names: Sequence[str]) -> int:
    return len({(run.value("env"), *(repr(run.value(name)) for name in names)) for run in runs})


def _check_names(runs: Sequence[_Found], names: Sequence[str]) -> None:
    known = {_leaf(key) for run in runs for key in run.setting}
    if unknown := [name for name in names if name not in known and name != "algorithm"]:
        raise ConfigError(
            f"no run has a setting {unknown[0]!r} to group by. Settings stand in a run's "
            f"config.json, such as learning_rate."
        )


def _label(run: _Found, names: Sequence[str]) -> str:
    parts = [
        str(run.value(name)) if name == "algorithm" else f"{name}={run.value(name)}"
        for name in names
    ]
    return ", ".join(parts)


def _scored(
    run: _Found,
    names: Sequence[str],
    score: ScoreKind,
    column: str,
    warn: Callable[[str], None],
) -> ScoredRun | None:
    try:
        columns = load_progress(run.path)
    except RunDirectoryError as error:
        warn(f"left out: {error}")
        return None
    if column not in columns:
        raise ConfigError(
            f"{run.path / 'progress.csv'} has no column {column!r}. Choose one of: "
            f"{shortened(', '.join(columns), 1000)}."
        )
    value = score_of(columns, score, column)
    if math.isnan(value):
        warn(f"left out: {run.path} has no value of {column}, as no episode has ended")
        return None
    return ScoredRun(
        path=run.path,
        env=str(run.value("env")),
        group=_label(run, names),
        seed=run.value("seed"),
        env_steps=int(columns["env_steps"][-1]),
        score=value,
        state="unknown" if (summary := summarize_run(run.path)) is None else summary.state,
    )


def _longer(first: ScoredRun, second: ScoredRun, warn: Callable[[str], None]) -> ScoredRun:
    kept, left = (first, second) if first.env_steps >= second.env_steps else (second, first)
    warn(
        f"left out: {left.path} has the same setting and seed {left.seed} as {kept.path}, which "
        f"got as far or further, so the two are not independent runs"
    )
    return kept

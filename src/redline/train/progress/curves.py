"""Learning curves from run directories: one line per setting, several seeds as an interval."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from redline.errors import ConfigError, RunDirectoryError
from redline.plain_files import read_json, read_plain
from redline.plain_text import shortened
from redline.train.checkpoint.atomic_files import atomic_file
from redline.train.progress.statistics import (
    FEWEST_FOR_IQM,
    bootstrap_interval,
    interquartile_mean,
)
from redline.train.setting_names import OF_THE_RUN

Array: TypeAlias = npt.NDArray[np.float64]

SUFFIXES = (".png", ".pdf", ".svg")
_LARGEST_CSV = 2**30  # bytes; a row has some hundreds
_GRID_POINTS = 400
_CONFIDENCE = 0.95

# What differs between runs of one setting, or does not bear on what is learned.
_NOT_SETTINGS = {
    *("seed", "out", "name", "group", "tags", "notes", "quiet"),
    *("engine", "build", "sha256"),  # what config.json says beside the settings
    *("tensorboard", "jsonl", "wandb"),
}
# Many of these hold what a run found on its machine, such as its threads. A resumed run lists in
# "changed" those that it changed.
_OF_NO_CURVE = OF_THE_RUN | {"changed"}
_LENGTH = "total_env_steps"
_FOUND = ("changed", "num_threads", _LENGTH, "log_interval", "checkpoint_interval")
# These name a setting best, so labels try them first.
_TELLING = ("algorithm", "env", "preset")

_AXIS_LABELS = {
    "env_steps": "environment steps",
    "frames": "frames",
    "iteration": "iteration",
    "optimizer_steps": "optimizer steps",
    "wall_time_s": "wall time (s)",
    "sps": "environment steps per second",
    "return_mean": "episode return",
    "episode_length_mean": "episode length (environment steps)",
}

# Okabe and Ito's palette: told apart with any kind of color vision.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_LINE_STYLES = ("-", "--", ":", "-.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of the plot.

    Attributes:
        label: what tells its setting from the others.
        num_runs: how many runs it sums up, each with a seed of its own.
        x: [n] rising.
        y: [n] mean or interquartile mean over the runs.
        low: [n] lower end of the 95% bootstrap interval; equal to y for one run.
        high: [n] its upper end.
        statistic: what y is, mean or iqm; of fewer than 4 runs always the mean.
    """

    label: str
    num_runs: int
    x: Array
    y: Array
    low: Array
    high: Array
    statistic: Literal["mean", "iqm"] = "mean"


_MOST_STEPS = 2**53  # that a float still counts one by one


def load_progress(run_dir: Path | str) -> dict[str, Array]:
    """The columns of a run's progress.csv.

    Returns:
        Column -> [rows] float64, NaN where the cell is empty. A last line that is still
        being written is left out.

    Raises:
        RunDirectoryError: if there is no progress.csv, or no row in it.
    """
    path = Path(run_dir) / "progress.csv"
    try:
        text = read_plain(path, _LARGEST_CSV).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RunDirectoryError(
            f"{run_dir} has no progress.csv that can be read ({shortened(error)}). Give the "
            f"directory of a run, such as runs/ppo-CartPole-v1-seed1."
        ) from error
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        table = list(csv.reader(lines))
    except csv.Error as error:  # such as a field of more than 131,072 characters
        raise _damaged(path, error) from error
    if len(table) < 2:
        raise RunDirectoryError(
            f"{path} has no rows yet. Wait for the first, which comes after log_interval "
            f"env_steps, or leave this run out."
        )
    header, rows = table[0], table[1:]
    try:
        cells = [[float(cell) if cell else math.nan for cell in row] for row in rows]
        columns = np.array(cells, dtype=np.float64).reshape(len(rows), len(header)).T
    except ValueError as error:
        raise _damaged(path, error) from error
    found = dict(zip(header, columns, strict=True))
    steps = found.get("env_steps", np.zeros(1))
    if not ((steps >= 0) & (steps <= _MOST_STEPS)).all():  # neither is NaN
        raise RunDirectoryError(
            f"{path} is damaged: env_steps has a number outside of 0 to {_MOST_STEPS:,}. Leave "
            f"this run out."
        )
    return found


def _damaged(path: Path, error: Exception) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path} is damaged: {shortened(error)}. Resume the run to repair it, or leave it out."
    )


def load_setting(run_dir: Path | str) -> dict[str, Any]:
    """A run's config without what tells seeds of one setting apart.

    Returns:
        Dotted name -> value, such as {"algorithm": "ppo", "run.env": "CartPole-v1", ...}.

    Raises:
        RunDirectoryError: if there is no config.json, or it is not JSON.
    """
    path = Path(run_dir) / "config.json"
    try:
        config = read_json(path)
    except (OSError, ValueError) as error:
        raise RunDirectoryError(
            f"{run_dir} is not a run directory: its config.json cannot be read "
            f"({shortened(error)})."
        ) from error
    return dict(_flatten(config, ""))


def _flatten(value: Any, name: str) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        return [(name, value)]
    pairs: list[tuple[str, Any]] = []
    for key, item in value.items():
        if key not in _NOT_SETTINGS:
            pairs += _flatten(item, f"{name}.{key}" if name else str(key))
    return pairs


def learning_curves(
    run_dirs: Sequence[Path | str],
    *,
    x: str = "env_steps",
    y: str = "return_mean",
    smooth: int = 1,
    statistic: Literal["mean", "iqm"] = "mean",
    warn: Callable[[str], None] | None = None,
) -> list[Curve]:
    """One curve per setting, in the order in which the settings first occur.

    What a resumed run may change, such as devices, threads and length, makes no other setting,
    unless the same seeds were run with several devices or engines: then these are compared.
    Several runs of a setting are interpolated to a common grid over the range that all of
    them cover. The interval is a bootstrap over runs with a fixed seed. Runs of one setting
    with one seed are no independent runs: the one that got furthest counts, the others do not.

    Args:
        run_dirs: run directories.
        x: column of the horizontal axis.
        y: column of the vertical axis; rows without a value are left out.
        smooth: rows over which each run's y is averaged, backwards; 1 leaves it as it is.
        statistic: over the runs, mean or interquartile mean. Of fewer than 4 runs it is the
            mean, whatever is asked for, and the curve says so.
        warn: called with a sentence about each run left out, and where iqm is the mean.

    Raises:
        ConfigError: if a column is unknown, or the runs of a setting share no range of x.
        RunDirectoryError: if a run has no progress or config.
    """
    if not run_dirs:
        raise ConfigError("there are no runs to plot. Give at least one run directory.")
    if smooth < 1:
        raise ConfigError(f"smooth={smooth} must be at least 1 row.")
    if statistic not in ("mean", "iqm"):
        raise ConfigError(f"statistic={statistic!r} is unknown. Choose mean or iqm.")
    warn = warn or (lambda sentence: None)
    groups = _runs_by_setting({Path(each): load_setting(each) for each in run_dirs})
    labels = setting_labels([setting for setting, _ in groups])
    curves: list[Curve] = []
    for label, (_, runs) in zip(labels, groups, strict=True):
        points = {run: run_points(run, x, y, smooth) for run in dict.fromkeys(runs)}
        chosen = _one_per_seed(label, {run: xs[-1] for run, (xs, _) in points.items()}, warn)
        curves.append(curve_over_runs(label, [points[run] for run in chosen], statistic))
        if statistic == "iqm" and len(chosen) < FEWEST_FOR_IQM:
            warn(
                f"{label}: the interquartile mean leaves out a quarter of the runs at either end, "
                f"and of {len(chosen)} that is none. The curve is the mean. Give at least "
                f"{FEWEST_FOR_IQM} seeds."
            )
    return curves


_Setting: TypeAlias = dict[str, Any]


def _runs_by_setting(configs: Mapping[Path, _Setting]) -> list[tuple[_Setting, list[Path]]]:
    """The runs of each setting, in the order in which the settings first occur.

    Where one seed was run on several devices, or by several engines, these are what is compared.
    """
    groups: list[tuple[_Setting, list[Path]]] = []
    for setting, runs in _of_one_length(configs):
        apart = _alike({run: configs[run] for run in runs}, _FOUND)
        seeds = [_seed_of(run) for run in runs]
        one_each = [len({_seed_of(run) for run in own}) == len(own) for _, own in apart]
        is_compared = len(set(seeds)) < len(seeds) and len(apart) > 1 and all(one_each)
        groups += apart if is_compared else [(setting, runs)]
    return groups


def _of_one_length(configs: Mapping[Path, _Setting]) -> list[tuple[_Setting, list[Path]]]:
    """Runs that are alike. Lengths that were asked for are settings; one that grew is none."""
    groups: list[tuple[_Setting, list[Path]]] = []
    for setting, runs in _alike(configs, _OF_NO_CURVE):
        has_grown = any(_LENGTH in (configs[run].get("changed") or ()) for run in runs)
        apart = _alike({run: configs[run] for run in runs}, _OF_NO_CURVE - {_LENGTH})
        groups += [(setting, runs)] if has_grown or len(apart) == 1 else apart
    return groups


def _alike(
    configs: Mapping[Path, _Setting], left_out: Collection[str]
) -> list[tuple[_Setting, list[Path]]]:
    found: dict[str, tuple[_Setting, list[Path]]] = {}
    for run, config in configs.items():
        setting = {name: v for name, v in config.items() if _leaf(name) not in left_out}
        found.setdefault(json.dumps(setting, sort_keys=True), (setting, []))[1].append(run)
    return list(found.values())


def independent_runs(run_dirs: Sequence[Path], warn: Callable[[str], None]) -> list[Path]:
    """The runs that a mean over runs may count, by the rule of `learning_curves`.

    Args:
        run_dirs: run directories.
        warn: called with a sentence about each run left out.

    Raises:
        RunDirectoryError: if a run has no config.
    """
    groups = _runs_by_setting({run: load_setting(run) for run in run_dirs})
    labels = setting_labels([setting for setting, _ in groups])
    found: list[Path] = []
    for label, (_, runs) in zip(labels, groups, strict=True):
        reached = {run: _env_steps(run) for run in runs}
        found += _one_per_seed(label, reached, warn, " of the mean")
    return found


def _env_steps(run: Path) -> float:
    """How far a run got, by its rows; 0 where it has none."""
    try:
        return float(load_progress(run).get("env_steps", np.zeros(1))[-1])
    except RunDirectoryError:
        return 0.0


def _one_per_seed(
    label: str, reached: Mapping[Path, float], warn: Callable[[str], None], where: str = ""
) -> list[Path]:
    """Of the runs of a setting those that are independent: of each seed the one furthest on."""
    chosen: dict[Any, Path] = {}
    for run, last in reached.items():
        seed = _seed_of(run)
        key = run if seed is None else seed
        before = chosen.get(key)
        if before is None:
            chosen[key] = run
            continue
        kept, left = (before, run) if reached[before] >= last else (run, before)
        chosen[key] = kept
        warn(
            f"{label}: {left} has the same seed {seed} as {kept}, so the two are not independent "
            f"runs. It is left out{where}."
        )
    return list(chosen.values())


def _seed_of(run_dir: Path) -> int | None:
    """The run's seed; None where its config.json names none."""
    try:
        config = read_json(run_dir / "config.json")
    except (OSError, ValueError) as error:
        raise RunDirectoryError(
            f"{run_dir / 'config.json'} cannot be read ({shortened(error)}). Give the directory "
            "of a run."
        ) from error
    run = config.get("run") if isinstance(config, Mapping) else None
    return run.get("seed") if isinstance(run, Mapping) else None


def setting_labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A short label for each of several different settings, from what tells them apart.

    Algorithm, env and preset are tried first, then the others by name; one that tells no
    further settings apart is not named. A single setting is labeled by algorithm and env.
    """
    names = sorted({name for setting in settings for name in setting}, key=_by_telling)
    chosen: list[str] = []
    classes = 1
    for name in names:
        split = len({_identity(setting, [*chosen, name]) for setting in settings})
        if split > classes:
            chosen.append(name)
            classes = split
    if not chosen:
        chosen = [name for name in names if _leaf(name) in ("algorithm", "env")]
    return [
        ", ".join(_describe(name, setting[name]) for name in chosen if name in setting) or "run"
        for setting in settings
    ]


def _by_telling(name: str) -> tuple[int, str]:
    leaf = _leaf(name)
    if leaf in _TELLING:
        return _TELLING.index(leaf), name
    # Only runs that are compared by one of these have it; it says nothing of the others.
    return len(_TELLING) + (leaf in _OF_NO_CURVE), name


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _identity(setting: Mapping[str, Any], names: Sequence[str]) -> str:
    return json.dumps([setting.get(name, "absent") for name in names])


def _describe(name: str, value: Any) -> str:
    return str(value) if _leaf(name) in ("algorithm", "env") else f"{_leaf(name)}={value}"


def run_points(run_dir: Path, x: str, y: str, smooth: int) -> tuple[Array, Array]:
    """The rows of a run that have a value, smoothed."""
    columns = load_progress(run_dir)
    for name in (x, y):
        if name not in columns:
            raise ConfigError(
                f"{run_dir / 'progress.csv'} has no column {name!r}. Choose one of: "
                f"{shortened(', '.join(columns), 1000)}."
            )
    has_value = np.isfinite(columns[x]) & np.isfinite(columns[y])
    if not has_value.any():
        raise RunDirectoryError(
            f"{run_dir / 'progress.csv'} has no value of {y} yet: no episode has ended. Wait, or "
            f"leave this run out."
        )
    values = columns[y][has_value]
    total = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - smooth)
    averaged = values if smooth == 1 else (total[ends] - total[starts]) / (ends - starts)
    return columns[x][has_value], averaged


def curve_over_runs(
    label: str,
    runs: Sequence[tuple[Array, Array]],
    statistic: Literal["mean", "iqm"] = "mean",
) -> Curve:
    """One curve of the runs of a setting, over the range that all of them cover.

    Args:
        label: of the curve.
        runs: (x [n] rising, y [n]) of each.
        statistic: over the runs, mean or interquartile mean (iqm), which of fewer than 4 runs
            is the mean.

    Raises:
        ConfigError: if the runs share no range of x.
    """
    if len(runs) == 1:
        x, y = runs[0]
        return Curve(label=label, num_runs=1, x=x, y=y, low=y, high=y)
    first, last = max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs)
    if first > last:
        raise ConfigError(
            f"the {len(runs)} runs of {label} share no range: one begins at {first:g} and one ends "
            f"at {last:g}. Leave out the one that has hardly begun."
        )
    grid = np.linspace(first, last, _GRID_POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in runs])
    if len(runs) < FEWEST_FOR_IQM:
        statistic = "mean"
    summarize = interquartile_mean if statistic == "iqm" else np.mean
    low, high = bootstrap_interval(values, statistic=summarize, confidence=_CONFIDENCE)
    middle = np.asarray(summarize(values, axis=0))
    return Curve(
        label=label,
        num_runs=len(runs),
        x=grid,
        y=middle,
        low=low,
        high=high,
        statistic=statistic,
    )


def plot_runs(
    run_dirs: Sequence[Path | str],
    out: Path | str,
    *,
    x: str = "env_steps",
    y: str = "return_mean",
    smooth: int = 1,
    statistic: Literal["mean", "iqm"] = "mean",
    title: str | None = None,
    warn: Callable[[str], None] | None = None,
) -> Path:
    """Draw learning curves; the same runs always give the same picture.

    Args:
        run_dirs: run directories; those that differ in nothing but the seed, or in what a resumed
            run may change, form one line.
        out: file to write, ending in .png, .pdf or .svg.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        smooth: rows over which each run's y is averaged, backwards; 1 leaves it as it is.
        statistic: over several runs of a setting, mean or interquartile mean.
        title: above the plot; None names algorithm and environment where all share them.
        warn: as for `learning_curves`.

    Returns:
        Where the picture lies.

    Raises:
        ConfigError: if the suffix or a column is unknown.
        RunDirectoryError: if a run has no progress, or `out` cannot be written.
    """
    out = Path(out)
    if out.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"out={str(out)!r} ends in {out.suffix!r}. Curves are drawn as {', '.join(SUFFIXES)}."
        )
    curves = learning_curves(run_dirs, x=x, y=y, smooth=smooth, statistic=statistic, warn=warn)
    if title is None:
        title = _shared_title([load_setting(run_dir) for run_dir in run_dirs])
    import matplotlib

    style: Any = {"svg.hashsalt": "redline", "font.size": 10, "axes.titlesize": 11}
    with matplotlib.rc_context(style):
        figure = _draw(curves, x, y, title)
        with atomic_file(out) as temporary:
            # No date inside, so that equal runs give equal files.
            metadata = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
            figure.savefig(temporary, dpi=160, metadata=metadata.get(out.suffix.lower()))
    return out


def _shared_title(settings: Sequence[Mapping[str, Any]]) -> str:
    shared: list[str] = []
    for wanted in ("algorithm", "env"):
        values = {str(v) for s in settings for name, v in s.items() if _leaf(name) == wanted}
        if len(values) == 1:
            shared.append(values.pop())
    return " on ".join(shared) if len(shared) == 2 else "".join(shared)


def _draw(curves: list[Curve], x: str, y: str, title: str) -> Any:
    # Figure rather than pyplot: no global state, no window system, Agg for pixels.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    draw_curves(axes, curves)
    axes.set_xlabel(_AXIS_LABELS.get(x, x))
    axes.set_ylabel(_AXIS_LABELS.get(y, y))
    if x != "wall_time_s":
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_title(title, loc="left")
    _add_legend(axes, curves)
    return figure


def draw_curves(axes: Any, curves: Sequence[Curve], styles: Sequence[int] | None = None) -> None:
    """Draw the lines and intervals of curves, and what lies behind them.

    Args:
        axes: matplotlib's.
        curves: in the order of the legend.
        styles: number of each one's color and line style, so that a setting looks alike in
            several plots; None: 0, 1, ...
    """
    for index, curve in zip(styles or range(len(curves)), curves, strict=True):
        color = _COLORS[index % len(_COLORS)]
        line_style = _LINE_STYLES[index // len(_COLORS) % len(_LINE_STYLES)]
        runs = f" ({curve.num_runs} runs)" if curve.num_runs > 1 else ""
        marker = "o" if len(curve.x) == 1 else None
        axes.plot(
            curve.x,
            curve.y,
            color=color,
            linestyle=line_style,
            linewidth=1.8,
            marker=marker,
            label=f"{curve.label}{runs}",
        )
        if curve.num_runs > 1:
            axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.2, linewidth=0)
    axes.margins(x=0.01)
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def summary_note(curves: Sequence[Curve]) -> str | None:
    """What lines and bands are, for the legend; None where every curve is one run."""
    shown = {curve.statistic for curve in curves if curve.num_runs > 1}
    if not shown:
        return None
    names = {
        frozenset({"mean"}): "mean",
        frozenset({"iqm"}): "interquartile mean",
        frozenset({"mean", "iqm"}): f"interquartile mean (mean below {FEWEST_FOR_IQM} runs)",
    }
    return f"{names[frozenset(shown)]}, 95% bootstrap interval"


def _add_legend(axes: Any, curves: list[Curve]) -> None:
    note = summary_note(curves)
    if len(curves) == 1 and note is None:
        return
    if len(curves) <= 6:
        axes.legend(frameon=False, title=note, alignment="left", fontsize=9, title_fontsize=9)
    else:
        # Beside the plot: so many would hide the curves.
        axes.legend(
            frameon=False,
            title=note,
            alignment="left",
            fontsize=8,
            title_fontsize=8,
            loc="upper left",
            bbox_to_anchor=(1.0, 1.0),
        )

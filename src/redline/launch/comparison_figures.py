"""Figures of a comparison: curves by env_steps and by wall time, intervals, probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redline.errors import ConfigError, RedlineError
from redline.train.checkpoint.atomic_files import atomic_file
from redline.train.progress.curves import (
    Curve,
    curve_over_runs,
    draw_curves,
    run_points,
    summary_note,
)

if TYPE_CHECKING:
    from redline.launch.comparison import Comparison, Summary

FORMATS = ("png", "svg", "pdf")
_COLUMNS = 3  # panels beside each other
_PANEL = (4.2, 3.1)  # inches
_AXES = {"env_steps": "environment steps", "wall_time_s": "wall time (s)"}
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")

_MEAN: dict[str, Any] = {
    "marker": "D",
    "linestyle": "none",
    "markerfacecolor": "none",
    "markersize": 9,
}


def write_figures(
    compared: Comparison, folder: Path, formats: Sequence[str], *, smooth: int = 1
) -> list[Path]:
    """Write every figure in every format; the same runs always give the same files.

    Raises:
        ConfigError: if a format is unknown.
        RunDirectoryError: if the folder cannot be written.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ConfigError(f"there is no format {unknown[0]!r}. Choose from {', '.join(FORMATS)}.")
    import matplotlib

    figures: dict[str, Any] = {}
    style: Any = {"svg.hashsalt": "redline", "font.size": 10, "axes.titlesize": 11}
    with matplotlib.rc_context(style):
        for x, name in (("env_steps", "curves"), ("wall_time_s", "curves_by_wall_time")):
            figures[name] = _curves(compared, x, smooth)
        figures["scores"] = _scores(compared)
        if compared.improvements:
            figures["improvement"] = _improvement(compared)
        written: list[Path] = []
        for name, figure in figures.items():
            for suffix in formats:
                path = folder / f"{name}.{suffix}"
                # No date inside, so that equal runs give equal files.
                metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(suffix)
                with atomic_file(path) as temporary:
                    figure.savefig(temporary, dpi=160, metadata=metadata)
                written.append(path)
    return written


def _groups(compared: Comparison) -> list[str]:
    return list(dict.fromkeys(run.group for run in compared.runs))


def _panels(titles: Sequence[str]) -> tuple[Any, list[Any]]:
    """A figure with one panel per title."""
    from matplotlib.figure import Figure

    columns = min(_COLUMNS, len(titles))
    rows = -(-len(titles) // columns)
    size = (max(_PANEL[0] * columns, 6.0), _PANEL[1] * rows + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    panels = []
    for number, title in enumerate(titles):
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.set_title(title, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        panels.append(axes)
    return figure, panels


def _curves(compared: Comparison, x: str, smooth: int) -> Any:
    from matplotlib.ticker import EngFormatter

    envs = list(dict.fromkeys(run.env for run in compared.runs))
    groups = _groups(compared)
    figure, panels = _panels(envs)
    drawn: dict[str, list[Curve]] = {group: [] for group in groups}
    lines: dict[str, Any] = {}
    for env, axes in zip(envs, panels, strict=True):
        curves = {g: c for g in groups if (c := _curve(compared, env, g, x, smooth)) is not None}
        draw_curves(axes, list(curves.values()), [groups.index(group) for group in curves])
        for (group, curve), line in zip(curves.items(), axes.get_lines(), strict=True):
            drawn[group].append(curve)
            lines.setdefault(group, line)
        axes.set_xlabel(_AXES[x])
        if x == "env_steps":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0].set_ylabel("episode return" if compared.column == "return_mean" else compared.column)
    figure.legend(
        list(lines.values()),
        [_legend_text(group, drawn[group]) for group in lines],
        loc="outside lower center",
        ncols=min(3, max(1, len(lines))),
        frameon=False,
        fontsize=9,
        title=summary_note([curve for curves in drawn.values() for curve in curves]),
        title_fontsize=9,
    )
    return figure


def _legend_text(group: str, curves: Sequence[Curve]) -> str:
    """The group once, whichever panels it is in, with the number of its runs in each."""
    counts = sorted({curve.num_runs for curve in curves})
    if counts == [1]:
        return group
    several = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{group} ({several} runs)"


def _curve(compared: Comparison, env: str, group: str, x: str, smooth: int) -> Curve | None:
    runs = [run for run in compared.runs if (run.env, run.group) == (env, group)]
    if not runs:
        return None
    points = [run_points(run.path, x, compared.column, smooth) for run in runs]
    try:
        return curve_over_runs(group, points, "iqm")
    except RedlineError:  # they share no range of x, as when one has hardly begun
        return None


def _scores(compared: Comparison) -> Any:
    envs = list(dict.fromkeys(each.env for each in compared.summaries))
    groups = _groups(compared)
    figure, panels = _panels(envs)
    height = max(_PANEL[1], 0.45 * len(groups) + 1.6)
    rows = -(-len(envs) // min(_COLUMNS, len(envs)))
    figure.set_size_inches(figure.get_size_inches()[0], height * rows + 0.4)
    for number, (env, axes) in enumerate(zip(envs, panels, strict=True)):
        shown = {each.group: each for each in compared.summaries if each.env == env}
        _draw_scores(axes, shown, groups)
        overall = env == "all environments"
        axes.set_xlabel("score, 0 to 1 in each environment" if overall else "score")
        first = number % _COLUMNS == 0
        axes.set_yticks(range(len(groups)), groups if first else [""] * len(groups))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.grid(axis="x", color="0.9", linewidth=0.8)
    name = "interquartile mean (mean below 4 runs), 95% interval"
    panels[0].plot([], [], "o", color="0.3", markersize=5, label=name)
    panels[0].plot([], [], **_MEAN, color="0.3", label="mean")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def _draw_scores(axes: Any, shown: dict[str, Summary], groups: Sequence[str]) -> None:
    for row, group in enumerate(groups):
        if group not in shown:
            continue
        each, color = shown[group], _COLORS[row % len(_COLORS)]
        axes.hlines(row, each.iqm_low, each.iqm_high, color=color, linewidth=5, alpha=0.35)
        # The mean is a frame around the IQM: of few runs they are one number.
        axes.plot(each.iqm, row, "o", color=color, markersize=5)
        axes.plot(each.mean, row, **_MEAN, color=color)


def _improvement(compared: Comparison) -> Any:
    from matplotlib.figure import Figure

    groups = _groups(compared)
    order = {group: number for number, group in enumerate(groups)}
    # P(b > a) = 1 - P(a > b), so each pair is shown once.
    shown = [each for each in compared.improvements if order[each.first] < order[each.second]]
    figure = Figure(figsize=(6.5, 0.45 * len(shown) + 1.4), layout="constrained")
    axes = figure.add_subplot()
    for row, each in enumerate(shown):
        axes.hlines(row, each.low, each.high, color=_COLORS[0], linewidth=5, alpha=0.35)
        axes.plot(each.probability, row, "o", color=_COLORS[0])
    axes.axvline(0.5, color="0.5", linewidth=1, linestyle="--")
    axes.set_yticks(range(len(shown)), [f"{each.first}  >  {each.second}" for each in shown])
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("probability of improvement, 95% interval")
    axes.spines[["top", "right"]].set_visible(False)
    return figure

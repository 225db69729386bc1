"""Figures for papers, drawn with matplotlib without a display.

| file | shows |
|---|---|
| `operations-seconds` | time of each operation, stacked by level, sessions side by side |
| `operations-percent` | the same as shares of each session's time |
| `training-time` | time of each session by operation, corrected, and as recorded |
| `processes-NAME` | each process of a session: recorded, CPU, waiting and GPU time, as a tree |
| `transitions` | calls from one level into another per step, where steps are marked |
| `correction-bias` | error of raw and corrected times against unprofiled runs, from `--bias` |

All but the last show corrected times, summed over processes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redline.errors import ConfigError, ProfileError
from redline.profile.analyse.summary import ProcessRow, Summary
from redline.profile.levels import LEVELS
from redline.profile.report.palette import LEVEL_COLORS, SERIES_COLORS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "svg.hashsalt": "redline",
    "pdf.fonttype": 42,
    # Names come from the program: a dollar sign in one is no formula.
    "text.parse_math": False,
}

__all__ = ["Bias", "labels_of", "process_tree", "read_biases", "seconds_by_level", "write_figures"]


@dataclass(frozen=True, slots=True)
class Bias:
    """One workload measured without the profiler and with it."""

    workload: str
    unprofiled_s: float
    raw_s: float
    corrected_s: float

    def percent(self, kind: str) -> float:
        """Error of the `raw` or `corrected` time, in % of the unprofiled time."""
        measured = self.raw_s if kind == "raw" else self.corrected_s
        return 100 * (measured / self.unprofiled_s - 1)


def read_biases(path: Path) -> list[Bias]:
    """Read `[{"workload": ..., "unprofiled_s": ..., "raw_s": ..., "corrected_s": ...}, ...]`.

    Raises:
        ConfigError: if the file is not of this form.
    """
    form = "a list of objects with workload, unprofiled_s, raw_s and corrected_s"
    try:
        rows = json.loads(path.read_text())
        found = [
            Bias(
                str(row["workload"]),
                *(float(row[key]) for key in ("unprofiled_s", "raw_s", "corrected_s")),
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--bias {path} cannot be read ({error!r}). Give {form}") from error
    for bias in found:
        if not bias.unprofiled_s > 0:
            raise ConfigError(
                f"--bias {path}: unprofiled_s of {bias.workload!r} is {bias.unprofiled_s}. "
                "Give the seconds that the run took without the profiler"
            )
    return found


def write_figures(
    summaries: list[Summary], directory: Path, kind: str, *, biases: list[Bias] | None = None
) -> list[Path]:
    """Draw all figures that the sessions have data for.

    Args:
        summaries: of the sessions, in the order to show them in.
        directory: made if it is not there; files of the same names are replaced.
        kind: png, pdf or svg.
        biases: what to draw `correction-bias` from.

    Returns:
        What was written.

    Raises:
        ConfigError: if the directory cannot be made.
        ProfileError: if matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ProfileError(
            "figures need matplotlib, which is not installed. pip install matplotlib"
        ) from error
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {directory}: {error}. Give another directory") from error
    written = []
    for name, draw in _plan(summaries, biases or []):
        with mpl.rc_context(STYLE):  # pyright: ignore[reportArgumentType]
            figure = Figure()
            draw(figure)
            path = directory / f"{name}.{kind}"
            figure.savefig(path, dpi=200, format=kind)
        written.append(path)
    return written


Drawing = Callable[["Figure"], None]


def _plan(summaries: list[Summary], biases: list[Bias]) -> list[tuple[str, Drawing]]:
    labels = labels_of(summaries)
    plan: list[tuple[str, Drawing]] = [
        ("operations-seconds", lambda f: _operations(f, summaries, labels, percent=False)),
        ("operations-percent", lambda f: _operations(f, summaries, labels, percent=True)),
        ("training-time", lambda f: _training_time(f, summaries, labels)),
    ]
    for label, summary in zip(labels, summaries, strict=True):
        safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in label)
        plan.append((f"processes-{safe}", lambda f, s=summary: _processes(f, s)))
    if biases:
        plan.append(("correction-bias", lambda f: _bias(f, biases)))
    return plan


def labels_of(summaries: list[Summary]) -> list[str]:
    """The shortest ends of the sessions' paths that tell them apart."""
    paths = [Path(summary.session).absolute().parts for summary in summaries]
    labels = []
    for number, path in enumerate(paths):
        others = [p for i, p in enumerate(paths) if i != number and p != path]
        depth = next(
            (n for n in range(1, len(path)) if all(p[-n:] != path[-n:] for p in others)), len(path)
        )
        labels.append("/".join(path[-depth:]))
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[: i + 1].count(label)})"
        for i, label in enumerate(labels)
    ]


def seconds_by_level(summary: Summary) -> dict[str, dict[str, float]]:
    """Corrected seconds of each operation and level, summed over processes and phases."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cell in summary.cells:
        found[cell.operation][cell.level] += cell.corrected_s
    return {operation: dict(row) for operation, row in found.items()}


def _order(tables: list[dict[str, dict[str, float]]]) -> list[str]:
    """All operations, that with most time over all sessions first."""
    totals: dict[str, float] = defaultdict(float)
    for table in tables:
        for operation, row in table.items():
            totals[operation] += sum(row.values())
    return sorted(totals, key=lambda operation: -totals[operation])


def _operations(
    figure: Figure, summaries: list[Summary], labels: list[str], *, percent: bool
) -> None:
    tables = [seconds_by_level(summary) for summary in summaries]
    operations = _order(tables)
    number = len(tables)
    figure.set_size_inches(max(4.5, 1.2 + len(operations) * (0.5 + 0.42 * number)), 3.4)
    axes = figure.subplots()
    width = 0.8 / number
    whole = [sum(sum(row.values()) for row in table.values()) or 1.0 for table in tables]
    for level in LEVELS:
        if not any(level in row for table in tables for row in table.values()):
            continue
        for i, table in enumerate(tables):
            scale = 100 / whole[i] if percent else 1.0
            below = LEVELS[: LEVELS.index(level)]
            rows = [table.get(operation, {}) for operation in operations]
            axes.bar(
                [x - 0.4 + (i + 0.5) * width for x in range(len(operations))],
                [row.get(level, 0.0) * scale for row in rows],
                width * 0.92,
                bottom=[sum(row.get(each, 0.0) for each in below) * scale for row in rows],
                color=LEVEL_COLORS[level],
                label=level if i == 0 else None,
            )
    _name_groups(axes, operations, labels)
    axes.set_ylabel("share of the session's time, %" if percent else "time, s")
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    figure.legend(loc="outside upper center", ncols=7, handlelength=1, columnspacing=1.2)


def _name_groups(axes: Axes, operations: list[str], labels: list[str]) -> None:
    number = len(labels)
    axes.set_xticks(range(len(operations)), operations)
    if number == 1:
        return
    axes.set_xticks(
        [x - 0.4 + (i + 0.5) * 0.8 / number for x in range(len(operations)) for i in range(number)],
        labels * len(operations),
        minor=True,
        rotation=90,
        fontsize=7,
    )
    longest = max(map(len, labels))
    axes.tick_params(axis="x", which="major", length=0, pad=10 + 4.2 * longest)


def _training_time(figure: Figure, summaries: list[Summary], labels: list[str]) -> None:
    tables = [seconds_by_level(summary) for summary in summaries]
    operations = _order(tables)
    figure.set_size_inches(6, 1.3 + 0.42 * len(tables))
    axes = figure.subplots()
    rows = range(len(tables))
    left, bars = [0.0] * len(tables), []
    for i, operation in enumerate(operations):
        widths = [sum(table.get(operation, {}).values()) for table in tables]
        color = SERIES_COLORS[i % len(SERIES_COLORS)]
        bars.append(axes.barh(rows, widths, 0.6, left=left, color=color, label=operation))
        left = [a + b for a, b in zip(left, widths, strict=True)]
    raw = [sum(cell.raw_s for cell in summary.cells) for summary in summaries]
    marks = axes.plot(raw, rows, "|", color="black", markersize=14, label="as recorded")
    axes.set_yticks(rows, labels)
    axes.invert_yaxis()
    axes.set_xlabel("time, s, summed over processes")
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    handles = [*bars, *marks]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=1)


def process_tree(processes: list[ProcessRow]) -> list[tuple[ProcessRow, int]]:
    """Processes, each after its parent, with their depth."""
    pids = {process.pid for process in processes}
    found: list[tuple[ProcessRow, int]] = []

    def visit(parent: ProcessRow, depth: int) -> None:
        if any(parent is process for process, _ in found):
            return
        found.append((parent, depth))
        for process in processes:
            if process.parent_pid == parent.pid:
                visit(process, depth + 1)

    for process in processes:
        if process.parent_pid not in pids or process.parent_pid == process.pid:
            visit(process, 0)
    return found


def _processes(figure: Figure, summary: Summary) -> None:
    tree = process_tree(summary.processes)
    kinds = ("recorded", "CPU", "waiting", "GPU busy")
    colors = ("#D0D0D0", SERIES_COLORS[0], "#8A8A8A", SERIES_COLORS[1])
    values = [_times(process, summary) for process, _ in tree]
    shown = [k for k in range(len(kinds)) if k != 3 or any(row[3] for row in values)]
    figure.set_size_inches(6, 1.1 + 0.5 * max(len(tree), 1))
    axes = figure.subplots()
    height = 0.8 / len(shown)
    for place, k in enumerate(shown):
        axes.barh(
            [y - 0.4 + (place + 0.5) * height for y in range(len(tree))],
            [row[k] for row in values],
            height * 0.9,
            color=colors[k],
            label=kinds[k],
        )
    names = [
        f"{'· ' * (depth - 1)}{'└ ' if depth else ''}{process.name} ({process.pid})"
        for process, depth in tree
    ]
    axes.set_yticks(range(len(tree)), names)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("time, s")
    axes.grid(axis="x", linewidth=0.4, alpha=0.5)
    figure.legend(loc="outside upper center", ncols=4, handlelength=1)


def _times(process: ProcessRow, summary: Summary) -> tuple[float, float, float, float]:
    own = [cell for cell in summary.cells if cell.pid == process.pid]
    waiting = sum(cell.corrected_s for cell in own if cell.level == "waiting")
    return (
        process.wall_s,
        process.cpu_s,
        waiting,
        sum(cell.corrected_s for cell in own if cell.gpu_busy),
    )


def _bias(figure: Figure, biases: list[Bias]) -> None:
    figure.set_size_inches(max(4.5, 1.5 + 0.6 * len(biases)), 3.2)
    axes = figure.subplots()
    for place, (kind, color) in enumerate((("raw", "#BBBBBB"), ("corrected", SERIES_COLORS[0]))):
        values = [bias.percent(kind) for bias in biases]
        sizes = [abs(value) for value in values]
        bars: Any = axes.bar(
            [x - 0.2 + 0.4 * place for x in range(len(biases))],
            values,
            0.37,
            color=color,
            label=f"{kind}: mean {sum(sizes) / len(sizes):.1f} %, worst {max(sizes):.1f} %",
        )
        axes.bar_label(bars, fmt="%+.1f", fontsize=7, padding=1)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(biases)), [bias.workload for bias in biases])
    axes.set_ylabel("error of the time, % of unprofiled")
    axes.margins(y=0.15)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    figure.legend(loc="outside upper center", ncols=1, handlelength=1)

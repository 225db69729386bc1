"""Figures for papers, drawn with matplotlib without a display.

| file | shows |
|---|---|
| `operations-seconds` | time of each operation, stacked by level, sessions side by side |
| `operations-percent` | the same as shares of each session's time |
| `training-time` | time of each session by operation, corrected, and as recorded |
| `processes-NAME` | each process of a session: recorded, CPU, waiting and GPU time, as a tree |
| `transitions` | how often Python calls into each level, per step, or per entry of the operation |
| `correction-bias` | error of raw and corrected times against unprofiled runs, from `--bias` |

All but the last show corrected times, summed over processes.
"""

# matplotlib's stubs leave many arguments unknown, which strict checking would report.
# pyright: basic

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from redline.errors import ConfigError, ProfileError
from redline.plain_text import printable
from redline.profile.analyse.summary import ProcessRow, Summary
from redline.profile.levels import LEVELS
from redline.profile.report.bias import Bias, draw_bias
from redline.profile.report.colors import LEVEL_COLORS, SERIES_COLORS

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

__all__ = [
    "labels_of",
    "process_tree",
    "seconds_by_level",
    "transitions_by_level",
    "write_figures",
]


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
Table = dict[str, dict[str, float]]  # {operation: {level: seconds, or a ratio}}


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
    if any(transitions_by_level(summaries)[0]):
        plan.append(("transitions", lambda f: _transitions(f, summaries, labels)))
    if biases:
        plan.append(("correction-bias", lambda f: draw_bias(f, biases)))
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
        labels.append(printable("/".join(path[-depth:])))
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[: i + 1].count(label)})"
        for i, label in enumerate(labels)
    ]


def seconds_by_level(summary: Summary) -> Table:
    """Corrected seconds of each operation and level, summed over processes and phases."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cell in summary.cells:
        found[cell.operation][cell.level] += cell.corrected_s
    return {operation: dict(row) for operation, row in found.items()}


def _order(tables: list[Table]) -> list[str]:
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
    if percent:
        tables = [_scaled(table, 100 / (_total(table) or 1.0)) for table in tables]
    axes = _stacks(figure, tables, operations, labels)
    axes.set_ylabel("share of the session's time, %" if percent else "time, s")


def _transitions(figure: Figure, summaries: list[Summary], labels: list[str]) -> None:
    tables, per_step = transitions_by_level(summaries)
    axes = _stacks(figure, tables, _order(tables), labels)
    axes.set_ylabel(f"calls into native code per {'step' if per_step else 'entry'}")


def transitions_by_level(summaries: list[Summary]) -> tuple[list[Table], bool]:
    """How often Python calls into each level, in each operation, for each session.

    Returns:
        Per step of the program, if all sessions mark any, and True; else per entry of the
        operation, those that are never entered left out, and False.
    """
    per_step = all(any(row.steps for row in summary.transitions) for summary in summaries)
    tables: list[Table] = []
    for summary in summaries:
        table: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        whole: dict[str, float] = defaultdict(float)
        for key, row in {(row.pid, row.operation): row for row in summary.transitions}.items():
            whole[key[1]] += row.steps if per_step else row.entries
        for row in summary.transitions:
            if whole[row.operation]:
                table[row.operation][row.level] += row.count / whole[row.operation]
        tables.append({operation: dict(levels) for operation, levels in table.items()})
    return tables, per_step


def _scaled(table: Table, factor: float) -> Table:
    return {name: {k: v * factor for k, v in row.items()} for name, row in table.items()}


def _total(table: Table) -> float:
    return sum(sum(row.values()) for row in table.values())


def _stacks(figure: Figure, tables: list[Table], operations: list[str], labels: list[str]) -> Axes:
    """A group of bars per operation, a bar per table, stacked by level."""
    number = len(tables)
    figure.set_size_inches(max(4.5, 1.2 + len(operations) * (0.5 + 0.42 * number)), 3.4)
    axes = figure.subplots()
    width = 0.8 / number
    for level in LEVELS:
        if not any(level in row for table in tables for row in table.values()):
            continue
        below = LEVELS[: LEVELS.index(level)]
        for i, table in enumerate(tables):
            rows = [table.get(operation, {}) for operation in operations]
            axes.bar(
                [x - 0.4 + (i + 0.5) * width for x in range(len(operations))],
                [row.get(level, 0.0) for row in rows],
                width * 0.92,
                bottom=[sum(row.get(each, 0.0) for each in below) for row in rows],
                color=LEVEL_COLORS[level],
                label=level if i == 0 else None,
            )
    _name_groups(axes, operations, labels)
    axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    figure.legend(loc="outside upper center", ncols=7, handlelength=1, columnspacing=1.2)
    return axes


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
    for process in processes:  # of a circle, where the system gave a pid again
        visit(process, 0)
    return found


def _processes(figure: Figure, summary: Summary) -> None:
    tree = process_tree(summary.processes)
    kinds = ("recorded", "CPU", "waiting", "GPU, by its windows")
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
    # A GPU is observed in windows only; the time between them is taken to be like them.
    devices = [row for row in summary.gpu_devices if row.pid == process.pid and row.window_ns]
    busy = sum(row.busy_ns / row.window_ns for row in devices)
    return process.wall_s, process.recorded_cpu_s, waiting, busy * process.wall_s

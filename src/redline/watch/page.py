"""The parts of the page as lines of text; `redline watch --once` prints them one below another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from redline.plain_text import printable
from redline.train.progress.console import duration
from redline.train.runs.summary import RunSummary
from redline.watch.chart import chart
from redline.watch.reading import Points, RunView

CHART_HEIGHT = 9  # lines, title and axis left out
_BAR_AT_LEAST, _BAR_AT_MOST = 8, 40
_LARGEST_WRITTEN_OUT = 1e15  # a stranger's may have hundreds of digits
_LONGEST_S = 1e10  # three centuries, likewise
_LONGEST_NAME = 40  # of an operation
_LEAST_SHARE = 0.005  # below, it would be shown as 0%
_KINDS = ("best", "worst")  # in the names of videos
RETURNS, NO_RETURNS = "return of training episodes", "no episode has ended yet"
EVALUATIONS, NO_EVALUATIONS = "return of evaluations", "no evaluation yet"
NO_SHARES = "not recorded: train with --profile light"
FOLDER_COLUMNS = ("run", "state", "env_steps", "done", "return", "SPS", "algorithm", "env", "seed")
RIGHT = {"env_steps", "done", "return", "SPS", "seed"}


def run_page(view: RunView, width: int) -> str:
    """All of a run on one page.

    Args:
        view: of the run.
        width: characters.
    """
    parts = [
        [f"{name(view.summary)}  {view.summary.state}"],
        head(view, width),
        [RETURNS, *(_curve(view, view.returns, width) or [NO_RETURNS])],
        [EVALUATIONS, *(_curve(view, view.evaluations, width) or [NO_EVALUATIONS])],
        ["time by operation", *shares(view, width)],
    ]
    if files(view):
        parts.append(files(view))
    return "\n".join("".join(f"{line.rstrip()}\n" for line in part) for part in parts)


def folder_page(runs: Sequence[RunSummary], folder: Path) -> str:
    """The runs of a folder as a table.

    Args:
        runs: what to list.
        folder: which their paths begin with.
    """
    if not runs:
        return f"no runs in {printable(str(folder))}\n"
    rows = [FOLDER_COLUMNS, *(folder_row(run, folder) for run in runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "".join(
        "  ".join(
            cell.rjust(width) if column in RIGHT else cell.ljust(width)
            for cell, width, column in zip(row, widths, FOLDER_COLUMNS, strict=True)
        ).rstrip()
        + "\n"
        for row in rows
    )


def folder_row(run: RunSummary, folder: Path) -> tuple[str, ...]:
    """The cells of a run in the table, as in `FOLDER_COLUMNS`."""
    path = Path(run.path)
    shown = path.name if path == folder else str(path.relative_to(folder))
    done = run.env_steps / run.total_env_steps if run.total_env_steps > 0 else 0.0
    return (
        printable(shown),
        printable(run.state),
        f"{run.env_steps:,}",
        f"{min(1.0, done):.0%}",
        "" if run.return_mean is None else _number(run.return_mean, 1),
        "" if run.sps is None else _number(run.sps, 0),
        printable(run.algorithm),
        printable(run.env),
        str(run.seed),
    )


def name(run: RunSummary) -> str:
    """What a run is called."""
    return printable(run.name or Path(run.path).name)


def head(view: RunView, width: int) -> list[str]:
    """What runs, how far it is, how fast, and the newest returns."""
    run = view.summary
    lines = [f"{printable(run.algorithm)} on {printable(run.env)}, seed {run.seed}"]
    if run.reason:
        lines.append(printable(run.reason))
    count = f"{run.env_steps:,} of {run.total_env_steps:,} env_steps"
    bar = _bar(view.progress, min(_BAR_AT_MOST, width - len(count) - len("  100%  ")))
    lines.append(f"{bar}  {view.progress:.0%}  {count}" if bar else f"{view.progress:.0%}  {count}")
    lines += _folded([*_pace(view), *_results(view)], width)
    if view.damaged_rows:
        lines.append(f"{view.damaged_rows} damaged rows of progress.csv are left out")
    return lines


def _pace(view: RunView) -> list[str]:
    newest = view.newest
    facts = [f"{_number(newest['sps'], 0)} SPS"] if "sps" in newest else []
    if "wall_time_s" in newest:
        facts.append(f"{_lasting(newest['wall_time_s'])} trained")
    if view.time_left_s is not None:
        facts.append(f"{_lasting(view.time_left_s)} left")
    if view.summary.state == "running" and view.age_s is not None:
        facts.append(f"last row {_lasting(view.age_s)} ago")
    return facts


def _results(view: RunView) -> list[str]:
    newest = {**view.newest}
    if view.returns:
        newest.setdefault("return_mean", view.returns[-1][1])  # no episode ended in the last row
    facts: list[str] = []
    for prefix, title in (("", "return"), ("eval_", "evaluation")):
        if f"{prefix}return_mean" in newest:
            spread = newest.get(f"{prefix}return_std")
            about = "" if spread is None else f" ± {_number(spread, 1)}"
            facts.append(f"{title} {_number(newest[f'{prefix}return_mean'], 1)}{about}")
        if f"{prefix}success_rate" in newest:
            rate = 100 * newest[f"{prefix}success_rate"]
            facts.append(f"{title} success {_number(rate, 0)}%")
    return facts


def _curve(view: RunView, points: Points, width: int) -> list[str]:
    return chart(points, width, CHART_HEIGHT, view.summary.env_steps)


def shares(view: RunView, width: int) -> list[str]:
    """The share of each operation in the time of the run."""
    if not view.shares:
        return [NO_SHARES]
    shown = [
        (printable(operation[:_LONGEST_NAME]), share)
        for operation, share in view.shares.items()
        if share >= _LEAST_SHARE
    ]
    longest = max((len(operation) for operation, _ in shown), default=0)
    room = min(_BAR_AT_MOST, width - longest - len("  100%  "))
    return [
        f"{operation:<{longest}}  {share:>4.0%}  {_filled(share, room)}"
        for operation, share in shown
    ]


def files(view: RunView) -> list[str]:
    """Paths that one may want to open next."""
    others = (("best checkpoint", view.best), ("profile", view.report))
    known = [*_videos(view), *((what, path) for what, path in others if path is not None)]
    longest = max((len(what) for what, _ in known), default=0)
    return [f"{what:<{longest}}  {printable(str(path))}" for what, path in known]


def _videos(view: RunView) -> list[tuple[str, Path]]:
    """The newest video of the best episode, of the worst, and of any other."""
    newest: dict[str, Path] = {}
    for path in view.videos:
        kind = next((f"{word} " for word in _KINDS if word in path.name), "")
        newest.setdefault(f"{kind}video", path)
    return sorted(newest.items())


def _bar(share: float, width: int) -> str:
    if width < _BAR_AT_LEAST:
        return ""
    full = int(share * width)
    return "━" * full + "╌" * (width - full)


def _filled(share: float, width: int) -> str:
    return "█" * round(min(1.0, share) * max(0, width))


def _number(value: float, decimals: int) -> str:
    return f"{value:,.{decimals}f}" if abs(value) < _LARGEST_WRITTEN_OUT else f"{value:.3g}"


def _lasting(seconds: float) -> str:
    return duration(min(max(0.0, seconds), _LONGEST_S))


def _folded(facts: Sequence[str], width: int) -> list[str]:
    """Facts side by side, as many in a line as fit."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= width:
            lines[-1] += f"   {fact}"
        else:
            lines.append(fact)
    return lines

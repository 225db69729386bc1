"""`redline runs DIR`: the runs in a folder."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tyro.conf import Positional

from redline.command_line.options import parse
from redline.errors import RunDirectoryError
from redline.plain_text import printable

if TYPE_CHECKING:
    from redline.train.runs.summary import RunSummary


@dataclass(frozen=True, kw_only=True)
class RunsArguments:
    """The runs in a folder and below it: state, env_steps, return."""

    folder: Positional[Path] = Path("runs")
    """Where to look."""
    tag: str | None = None
    """Only runs with this tag."""
    group: str | None = None
    """Only runs of this group."""
    state: Literal["running", "complete", "stopped", "interrupted", "failed", "killed"] | None = (
        None
    )
    """Only runs in this state."""
    format: Literal["table", "json"] = "table"
    """json: one object per line."""


def list_runs(arguments: list[str]) -> None:
    """Print a table of runs.

    Raises:
        RunDirectoryError: if there is no such folder.
    """
    parsed = parse(RunsArguments, arguments, "runs")
    from redline.train.runs.summary import find_runs, summarize_run

    if not parsed.folder.is_dir():
        raise RunDirectoryError(f"{parsed.folder} is no folder. Give one with runs in it.")
    found = [summarize_run(path) for path in find_runs(parsed.folder)]
    runs = [each for each in found if each is not None and _is_wanted(each, parsed)]
    if parsed.format == "json":
        for each in runs:
            sys.stdout.write(json.dumps(each.to_json()) + "\n")
        return
    sys.stdout.write(as_table(runs, parsed.folder))


def _is_wanted(run: RunSummary, parsed: RunsArguments) -> bool:
    return (
        (parsed.tag is None or parsed.tag in run.tags)
        and (parsed.group is None or parsed.group == run.group)
        and (parsed.state is None or parsed.state == run.state)
    )


def as_table(runs: list[RunSummary], folder: Path) -> str:
    """One line per run, in columns.

    Args:
        runs: what to list.
        folder: which the paths begin with.
    """
    rows: list[tuple[str, ...]] = [
        ("run", "state", "algorithm", "env", "seed", "env_steps", "of", "return", "tags")
    ]
    for run in runs:
        path = Path(run.path)
        shown = "." if path == folder else str(path.relative_to(folder))
        mean = "" if run.return_mean is None else f"{run.return_mean:,.1f}"
        steps, total = f"{run.env_steps:,}", f"{run.total_env_steps:,}"
        words = (shown, run.state, run.algorithm, run.env, str(run.seed), steps, total, mean)
        rows.append((*words, ",".join(run.tags)))
    if len(rows) == 1:
        return printable(f"no runs in {folder}\n")
    rows = [tuple(map(printable, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    numbers = (4, 5, 6, 7)
    lines = (
        "  ".join(
            cell.rjust(width) if number in numbers else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    problems = (printable(f"{run.path}: {run.problem}") for run in runs if run.problem)
    return "".join(f"{line}\n" for line in (*lines, *problems))

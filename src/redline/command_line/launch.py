"""`redline sweep` and `compare`: parse, call, print. Quick until work starts."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from tyro.conf import FlagCreatePairsOff, Positional

from redline.command_line.options import parse, values_of, without
from redline.errors import ConfigError
from redline.plain_text import printable

_REFRESH_S = 1.0


@dataclass(frozen=True, kw_only=True)
class SweepArguments:
    """Train every combination of settings and seeds that a file describes.

    The same command on a finished sweep runs only what the file has that is new.
    """

    file: Positional[Path | None] = None
    """.yaml, .toml or .json file."""
    out: Path | None = None
    """Folder of the sweep. None: sweeps/<name of the file>."""
    resume: Path | None = None
    """Folder of a sweep to go on with, in place of a file."""
    confirm: tuple[str, ...] = ()
    """NAME=VALUE, once for each: what runs reach outside the folder and no file of yours says."""
    slots: int | None = None
    """Runs at a time. None: as many as there are cores for."""
    cores_per_run: int | None = None
    """Cores that each run is pinned to, and its threads. None: 1."""
    gpus: tuple[int, ...] | None = None
    """Indices of GPUs to deal out to the slots."""
    memory_gb: float | None = None
    """GiB that a run may hold before it is ended."""
    retries: int | None = None
    """How often a run that fails is begun again. None: 0."""
    oversubscribe: FlagCreatePairsOff[bool] = False
    """Let there be more slots than cores."""
    on: Literal["local", "ray"] | None = None
    """Where runs take place: on slots of this machine, or as tasks of a Ray cluster."""
    address: str | None = None
    """Of the Ray cluster. None: that of this environment, else one that is started here."""
    quiet: FlagCreatePairsOff[bool] = False
    """Leave out the line about each run."""


@dataclass(frozen=True, kw_only=True)
class StatusArguments:
    """How far a sweep is; in a terminal the table follows a sweep that is at work."""

    folder: Positional[Path]
    """Folder of the sweep."""
    format: Literal["table", "json"] = "table"
    """json: one object, with total, done, failed, running, queued and every run."""
    once: FlagCreatePairsOff[bool] = False
    """Print the table once."""


@dataclass(frozen=True, kw_only=True)
class CompareArguments:
    """Tables and figures over sweeps and runs, grouped by what varies.

    Mean, interquartile mean (IQM), 95% bootstrap intervals and probability of improvement.
    """

    paths: Positional[tuple[Path, ...]]
    """Folders of sweeps, run directories, or folders with run directories below them."""
    out: Path | None = None
    """Folder for figures and tables. None: comparison/ in the first folder."""
    by: tuple[str, ...] | None = None
    """Settings that make groups. None: what varies."""
    score: Literal["final", "area", "best"] = "final"
    """Of a run. final: mean over the last tenth. area: mean over the whole curve. best: largest."""
    column: str = "return_mean"
    """Column of progress.csv that is compared."""
    formats: tuple[Literal["png", "svg", "pdf"], ...] = ("png", "svg")
    """Of the figures."""
    smooth: int = 1
    """Rows that each point of a curve is averaged over."""
    format: Literal["table", "json"] = "table"
    """json: one object with every run, summary and probability."""


def sweep(arguments: list[str]) -> int:
    """`redline sweep`; the exit code is 0 if all runs are done."""
    if arguments and arguments[0] == "status":
        return _status(parse(StatusArguments, arguments[1:], "sweep status"))
    confirm = values_of(arguments, "--confirm")
    parsed = parse(SweepArguments, without(arguments, "--confirm"), "sweep")
    options = given_options(parsed, ("file", "out", "resume", "confirm", "quiet"))
    if (parsed.file is None) == (parsed.resume is None):
        raise ConfigError(
            "give either a file, as in `redline sweep FILE.yaml --out DIR`, or --resume DIR; "
            "`redline sweep status DIR` says how far a sweep is."
        )
    if parsed.resume is not None and parsed.out is not None:
        raise ConfigError("--out is for a new sweep: --resume goes on in its own folder.")
    from redline.launch.sweep import sweep as run_sweep

    done = run_sweep(
        parsed.file,
        out=parsed.out,
        resume=parsed.resume,
        confirm=confirm,
        quiet=parsed.quiet,
        **options,
    )
    if done.exit_code == 1:
        from redline.launch.status import failures, status_of

        sys.stderr.write(failures(status_of(done.folder)))
    return done.exit_code


def _warn(sentence: str) -> None:
    sys.stderr.write(printable(f"{sentence}\n"))


def given_options(parsed: Any, others: Sequence[str]) -> dict[str, Any]:
    """The launcher's options that were given on the command line."""
    given = {field.name: getattr(parsed, field.name) for field in fields(parsed)}
    return {
        name: value
        for name, value in given.items()
        if name not in others and value is not None and value is not False  # 0 is given
    }


def _status(parsed: StatusArguments) -> int:
    from redline.launch.status import status_of

    status = status_of(parsed.folder)
    if parsed.format == "json":
        sys.stdout.write(json.dumps(status.to_json()) + "\n")
        return 0
    from rich.console import Console
    from rich.live import Live

    from redline.launch.status import failures, table

    console = Console()
    if console.is_terminal and status.alive and not parsed.once:
        with Live(table(status), console=console, auto_refresh=False) as live:
            while status.alive:
                time.sleep(_REFRESH_S)
                status = status_of(parsed.folder)
                live.update(table(status), refresh=True)
    else:
        console.print(table(status))
    sys.stdout.write(failures(status))
    return 0


@dataclass(frozen=True, kw_only=True)
class TuneArguments:
    """Search hyperparameters with Optuna; trials run on slots and are pruned by their progress.

    Several of these commands on one folder work on one search.
    """

    file: Positional[Path | None] = None
    """.yaml, .toml or .json file."""
    out: Path | None = None
    """Folder of the search. None: tuning/<name of the file>."""
    resume: Path | None = None
    """Folder of a search to go on with, in place of a file."""
    confirm: tuple[str, ...] = ()
    """NAME=VALUE, once for each: what trials reach outside the folder and no file of yours says."""
    trials: int | None = None
    """Trials in all. None: as the file says, or 30."""
    storage: str | None = None
    """URL of a database that Optuna can use. None: SQLite in the folder."""
    slots: int | None = None
    """Trials at a time. None: as many as there are cores for."""
    cores_per_run: int | None = None
    """Cores that each run is pinned to, and its threads. None: 1."""
    gpus: tuple[int, ...] | None = None
    """Indices of GPUs to deal out to the slots."""
    memory_gb: float | None = None
    """GiB that a run may hold before it is ended."""
    oversubscribe: FlagCreatePairsOff[bool] = False
    """Let there be more slots than cores."""
    on: Literal["local", "ray"] | None = None
    """Where trials take place: on slots of this machine, or as tasks of a Ray cluster."""
    address: str | None = None
    """Of the Ray cluster. None: that of this environment, else one that is started here."""
    quiet: FlagCreatePairsOff[bool] = False
    """Leave out the line about each trial."""


def tune(arguments: list[str]) -> int:
    """`redline tune`; the exit code is 0 if a trial is complete."""
    confirm = values_of(arguments, "--confirm")
    parsed = parse(TuneArguments, without(arguments, "--confirm"), "tune")
    if (parsed.file is None) == (parsed.resume is None):
        raise ConfigError(
            "give either a file, as in `redline tune FILE.yaml --out DIR`, or --resume DIR."
        )
    from redline.launch.sweep import tune as run_tune

    out = parsed.out
    if out is None and parsed.file is not None:
        out = Path("tuning") / parsed.file.stem
    others = ("file", "out", "resume", "confirm", "trials", "storage", "quiet")
    return run_tune(
        parsed.file,
        out=out,
        resume=parsed.resume,
        trials=parsed.trials,
        storage=parsed.storage,
        confirm=confirm,
        quiet=parsed.quiet,
        **given_options(parsed, others),
    ).exit_code


def compare(arguments: list[str]) -> None:
    """`redline compare`."""
    parsed = parse(CompareArguments, arguments, "compare")
    from redline.launch.comparison import compare as compare_runs

    if not parsed.paths:
        raise ConfigError("give at least one folder, as in `redline compare sweeps/first`.")
    found = compare_runs(
        parsed.paths,
        parsed.out or parsed.paths[0] / "comparison",
        by=parsed.by,
        score=parsed.score,
        column=parsed.column,
        formats=parsed.formats,
        smooth=parsed.smooth,
        warn=_warn,
    )
    if parsed.format == "json":
        sys.stdout.write(json.dumps(found.to_json()) + "\n")
        return
    from rich.console import Console

    from redline.launch.comparison_tables import tables

    console = Console()
    for table in tables(found):
        console.print(table)
    sys.stdout.write(printable("".join(f"{file}\n" for file in found.files)))

"""How far a sweep is: a table, or plain data. Reads the database and the runs' last rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redline.launch.run_process import newest_numbers
from redline.launch.state import RUNS, QueuedRun, SweepState, launcher_is_alive
from redline.plain_text import printable

_SHOWN_RUNS = 40
_LARGEST = 2.0**63


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How far one run is.

    Attributes:
        progress: share of its env_steps, 0 to 1; None if its length is not known.
        time_left_s: at its present pace; None if it does not run.
    """

    name: str
    state: str
    slot: str | None
    attempts: int
    env_steps: int
    total_env_steps: int | None
    sps: float | None
    return_mean: float | None
    time_left_s: float | None
    error: str
    traceback: str
    exit_signal: int | None
    exit_code: int | None
    varies: dict[str, Any]
    params_sha256: str | None

    @property
    def progress(self) -> float | None:
        """Share of its env_steps, 0 to 1; None if its length is not known."""
        if not self.total_env_steps:
            return None
        return min(1.0, self.env_steps / self.total_env_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How far a sweep is.

    Attributes:
        folder: of the sweep.
        alive: whether a launcher is at work.
        counts: state -> runs.
        runs: every one, in order.
        time_left_s: of the whole sweep, from the runs that are done; None before the first.
    """

    folder: Path
    alive: bool
    counts: dict[str, int]
    runs: list[RunStatus]
    time_left_s: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain data: `runs`, then total, done, failed, running and queued."""
        runs = [
            {name: getattr(run, name) for name in RunStatus.__slots__}
            | {"progress": run.progress, "run_dir": str(self.folder / RUNS / run.name)}
            for run in self.runs
        ]
        return {
            "folder": str(self.folder),
            "launcher_alive": self.alive,
            "time_left_s": self.time_left_s,
            "runs": runs,
            "total": sum(self.counts.values()),
            **{name: self.counts[name] for name in ("done", "failed", "running", "queued")},
        }


def status_of(folder: Path | str) -> Status:
    """How far the sweep in a folder is.

    Raises:
        SweepStateError: if the folder holds no sweep, or its database cannot be read.
    """
    folder = Path(folder)
    alive = launcher_is_alive(folder)
    with SweepState(folder) as state:
        rows = state.runs()
        last = state.last_errors()
    runs = [_run_status(folder, row, alive, last.get(row.id, {})) for row in rows]
    counts = {name: 0 for name in ("done", "failed", "running", "queued")}
    for run in runs:
        counts[run.state] += 1
    return Status(
        folder=folder,
        alive=alive,
        counts=counts,
        runs=runs,
        time_left_s=_time_left_s(rows, runs, counts) if alive else None,
    )


def _run_status(folder: Path, row: QueuedRun, alive: bool, attempt: dict[str, Any]) -> RunStatus:
    # Without a launcher nothing runs: what it left goes on with --resume.
    state = "queued" if row.state == "running" and not alive else row.state
    begun = row.attempts > 0 and state != "done"
    shown: dict[str, Any] = _newest(folder / RUNS / row.name) if begun else row.result
    total = _number(row.settings.get("total_env_steps"))
    env_steps, sps = int(_number(shown.get("env_steps")) or 0), _number(shown.get("sps"))
    left = None
    if state == "running" and total and sps:
        left = max(0.0, (total - env_steps) / sps)
    failed = state != "done"
    return RunStatus(
        name=row.name,
        state=state,
        slot=row.slot,
        attempts=row.attempts,
        env_steps=env_steps,
        total_env_steps=total,
        sps=sps,
        return_mean=_number(shown.get("return_mean")),
        time_left_s=left,
        error=str(attempt.get("error", "")) if failed else "",
        traceback=str(attempt.get("traceback", "")) if failed else "",
        exit_signal=attempt.get("exit_signal") if failed else None,
        exit_code=attempt.get("exit_code") if failed else None,
        varies=row.varies,
        params_sha256=row.result.get("params_sha256"),
    )


def _newest(run_dir: Path) -> dict[str, Any]:
    """The newest numbers of a run; {} where its progress.csv holds something else."""
    try:
        return newest_numbers(run_dir)
    except ValueError:
        return {}


def _number(value: Any) -> Any:
    """A finite number as it is; None for all else, which only a damaged file holds."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) <= _LARGEST else None


def _time_left_s(
    rows: list[QueuedRun], runs: list[RunStatus], counts: dict[str, int]
) -> float | None:
    took = [each for row in rows if row.state == "done" and (each := _took_s(row)) is not None]
    lanes = max(1, counts["running"])
    running = [run.time_left_s for run in runs if run.time_left_s is not None]
    if counts["queued"] and not took:
        return None
    mean_s = sum(took) / len(took) if took else 0.0
    return (sum(running) + counts["queued"] * mean_s) / lanes


def _took_s(row: QueuedRun) -> float | None:
    """Seconds that a run took, over all its attempts.

    Those that the database noted begin with the last attempt, or with the moment in which a
    launcher found the run complete, and are a clock's that may be set.
    """
    trained_s = _number(row.result.get("wall_time_s"))
    if trained_s is None and row.ended_s is not None and row.started_s is not None:
        trained_s = _number(row.ended_s - row.started_s)
    return None if trained_s is None else max(0.0, trained_s)


def table(status: Status) -> Any:
    """A table for rich to print: the runs that run, failed or ended last, and the sums."""
    from rich.table import Table

    counts = status.counts
    total = sum(counts.values())
    said = ", ".join(f"{counts[name]} {name}" for name in counts if counts[name])
    left = "" if status.time_left_s is None else f"; about {_duration(status.time_left_s)} left"
    who = "" if status.alive or counts["done"] == total else "; no launcher is at work"
    title = printable(f"{status.folder}: {total} runs, {said}{left}{who}")
    shown = Table(title=title, title_justify="left")
    for name in ("run", "state", "progress", "env_steps", "SPS", "return", "left", "slot"):
        text = name in ("run", "state")
        shown.add_column(name, justify="left" if text else "right", overflow="fold")
    order = {"running": 0, "failed": 1, "done": 2, "queued": 3}
    runs = sorted(status.runs, key=lambda run: order[run.state])
    for run in runs[:_SHOWN_RUNS]:
        shown.add_row(*_cells(run))
    if len(runs) > _SHOWN_RUNS:
        shown.add_row(f"... and {len(runs) - _SHOWN_RUNS} more", *[""] * 7)
    return shown


def failures(status: Status) -> str:
    """One line for each run that failed."""
    lines = [
        f"{run.name}: {run.error.splitlines()[0] if run.error else 'no reason is known'}"
        for run in status.runs
        if run.state == "failed"
    ]
    return printable("".join(f"{line}\n" for line in lines[:_SHOWN_RUNS]))


def _cells(run: RunStatus) -> list[str]:
    return [
        printable(run.name),
        run.state,
        "" if run.progress is None else f"{run.progress:.0%}",
        f"{run.env_steps:,}",
        "" if run.sps is None else f"{run.sps:,.0f}",
        "" if run.return_mean is None else f"{run.return_mean:,.1f}",
        "" if run.time_left_s is None else _duration(run.time_left_s),
        run.slot or "",
    ]


def _duration(seconds: float) -> str:
    return (
        time.strftime("%H:%M:%S", time.gmtime(seconds))
        if seconds < 86400
        else (f"{seconds / 86400:.1f} days")
    )

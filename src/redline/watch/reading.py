"""What a page shows of a run, read from its directory while the run goes on.

Nothing is written, and no link is followed: the directory may be a stranger's. A row that is half
written is left for the next reading; one that a kill damaged is left out.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from redline.errors import RunDirectoryError
from redline.plain_files import directory_handle, refuse_special_files
from redline.train.progress.growing_table import GrowingTable
from redline.train.progress.operation_shares import PREFIX
from redline.train.runs.files import CONFIG_FILE, HISTORY_FILE, PROGRESS_FILE
from redline.train.runs.summary import RunSummary, find_runs, is_running, summarize_run

_VIDEO_SUFFIXES = (".mp4", ".gif")

Points = list[tuple[float, float]]
"""(env_steps, value), rising in env_steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run as the page shows it.

    Attributes:
        summary: state, steps and settings, as `redline runs` lists them.
        returns: mean return of training episodes by row; rows without an episode are left out.
        evaluations: mean return of the newest evaluation by row.
        newest: column -> number in the newest row; columns without a finite one are left out.
        shares: operation -> share of the recorded time, of 1; empty unless the run is profiled.
        age_s: seconds since progress.csv changed; None before the first row.
        damaged_rows: rows that could not be read.
        videos: newest first.
        best: the best checkpoint, if one is marked.
        report: the newest page of the profiler, if there is one.
    """

    summary: RunSummary
    returns: Points
    evaluations: Points
    newest: Mapping[str, float]
    shares: Mapping[str, float]
    age_s: float | None
    damaged_rows: int
    videos: tuple[Path, ...]
    best: Path | None
    report: Path | None

    @property
    def progress(self) -> float:
        """Share of its env_steps, 0 to 1."""
        total = self.summary.total_env_steps
        return min(1.0, max(0.0, self.summary.env_steps / total)) if total > 0 else 0.0

    @property
    def time_left_s(self) -> float | None:
        """At the newest SPS; None if the run does not go on or has no row yet."""
        sps = self.newest.get("sps", 0.0)
        if self.summary.state != "running" or sps <= 0:
            return None
        return max(0.0, (self.summary.total_env_steps - self.summary.env_steps) / sps)


def is_run(path: Path) -> bool:
    """Whether a directory is that of a run, rather than a folder of runs."""
    return (path / CONFIG_FILE).exists()


class FolderReader:
    """Reads the runs of a folder again and again; of each only if its files have changed.

    Args:
        folder: where the runs lie, at any depth.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, tuple[object, RunSummary | None]] = {}

    def read(self, is_over: Callable[[], bool] = lambda: False) -> list[RunSummary]:
        """The runs in the order of their names.

        Args:
            is_over: whether nobody waits for the answer any more; asked once for each run.

        Raises:
            RunDirectoryError: if there is no such folder.
        """
        if not self._folder.is_dir():
            raise RunDirectoryError(
                f"{self._folder} is no folder. Give a run, or a folder with runs in it."
            )
        known, self._known = self._known, {}
        for path in find_runs(self._folder):
            if is_over():
                break
            files = _signature(path)
            before = known.get(path)
            if before is None or before[0] != files:
                before = (files, summarize_run(path))
            self._known[path] = before
        return [summary for _, summary in self._known.values() if summary is not None]


def _signature(path: Path) -> object:
    """What differs whenever a run's summary may differ."""
    changed: list[tuple[int, int, int]] = []
    for name in (CONFIG_FILE, PROGRESS_FILE, HISTORY_FILE):
        try:
            file = os.stat(path / name, follow_symlinks=False)
        except OSError:
            changed.append((0, 0, 0))
        else:
            changed.append((file.st_ino, file.st_mtime_ns, file.st_size))
    return (*changed, is_running(path))


class RunReader:
    """Reads a run again and again; of progress.csv only what is new.

    Args:
        path: run directory.
        clock: seconds since the epoch, as the times of files are.

    Raises:
        RunDirectoryError: if the directory holds a link, a fifo, a device or a socket.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        refuse_special_files(path)
        self._path, self._clock = path, clock
        self._rows = _Rows(GrowingTable(path / PROGRESS_FILE))

    def read(self) -> RunView:
        """The run as it now is.

        Raises:
            RunDirectoryError: if the directory holds no run that can be read.
        """
        summary = summarize_run(self._path)
        if summary is None:
            raise RunDirectoryError(
                f"{self._path} holds no run that can be read: its config.json is missing, damaged "
                f"or no regular file. Give the directory that `redline train` printed."
            )
        rows = self._rows
        changed_s = rows.read()
        return RunView(
            summary=summary,
            returns=rows.returns,
            evaluations=rows.evaluations,
            newest=dict(rows.newest),
            shares=rows.shares(),
            age_s=None if changed_s is None else max(0.0, self._clock() - changed_s),
            damaged_rows=rows.damaged,
            videos=_files(self._path / "videos", _VIDEO_SUFFIXES),
            best=next(iter(_files(self._path / "checkpoints" / "best", ("",))), None),
            report=next(iter(_files(self._path / "profile", (".html",))), None),
        )


@dataclass(slots=True)
class _Rows:
    """What is kept of the rows of progress.csv."""

    table: GrowingTable
    returns: Points = field(default_factory=list)
    evaluations: Points = field(default_factory=list)
    newest: dict[str, float] = field(default_factory=dict)
    damaged: int = 0
    _columns: list[str] = field(default_factory=list)
    _shares_s: dict[str, float] = field(default_factory=dict)
    _last_wall_time_s: float = 0.0

    def read(self) -> float | None:
        """Take in the rows that are new; the time of the file's last change, None without one."""
        is_anew, lines = self.table.read()
        if is_anew:
            table = self.table
            self.__init__(table)
        for cells in lines:
            self._take(cells)
        return self.table.changed_s

    def _take(self, cells: list[str]) -> None:
        if not self._columns:
            self._columns = cells
            return
        try:
            pairs = zip(self._columns, cells, strict=True)
            numbers = {name: float(cell) for name, cell in pairs if cell}
            row = {name: value for name, value in numbers.items() if math.isfinite(value)}
            env_steps = row["env_steps"]
        except (ValueError, KeyError):
            self.damaged += 1
            return
        self.newest = row
        for column, points in (
            ("return_mean", self.returns),
            ("eval_return_mean", self.evaluations),
        ):
            if column in row:
                points.append((env_steps, row[column]))
        self._add_shares(row)

    def _add_shares(self, row: Mapping[str, float]) -> None:
        """Add up the seconds of each operation since the row before."""
        now_s = row.get("wall_time_s", self._last_wall_time_s)
        spent_s, self._last_wall_time_s = now_s - self._last_wall_time_s, now_s
        for name, value in row.items():
            if name.startswith(PREFIX):
                operation = name.removeprefix(PREFIX)
                before_s = self._shares_s.get(operation, 0.0)
                self._shares_s[operation] = before_s + value * spent_s

    def shares(self) -> dict[str, float]:
        """Of those that make sense: a stranger's may be negative, and sum to next to nothing."""
        spent_s = {name: seconds for name, seconds in self._shares_s.items() if seconds > 0}
        whole_s = sum(spent_s.values())
        if not math.isfinite(whole_s):
            return {}
        largest_first = sorted(spent_s.items(), key=lambda item: -item[1])
        return {name: seconds / whole_s for name, seconds in largest_first}


def _files(folder: Path, suffixes: tuple[str, ...]) -> tuple[Path, ...]:
    """What lies in a folder, newest first; nothing if it is a link or is not there."""
    try:
        with directory_handle(folder) as handle, os.scandir(handle) as entries:
            found = [
                (entry.stat(follow_symlinks=False).st_mtime_ns, entry.name)
                for entry in entries
                if entry.name.endswith(suffixes) and not entry.is_symlink()
            ]
    except OSError:
        return ()
    return tuple(folder / name for _, name in sorted(found, reverse=True))

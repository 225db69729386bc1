"""The profile sessions in some folders, each in one line."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redline.errors import SessionError
from redline.plain_text import printable
from redline.profile.analyse.progress import progress_of
from redline.profile.analyse.timeline import end_of
from redline.profile.reader import Process, Session, open_session

LAST_UNIX_S = 253_402_300_800  # the year 10,000, which no calendar here has

__all__ = ["SessionRow", "list_sessions", "render_sessions", "rows_to_json"]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session; what cannot be read has a reason and nothing else."""

    directory: str
    created_unix_s: float | None = None
    mode: str = ""
    seconds: float | None = None  # from the first process's start to the last one's end
    processes: int = 0
    events: int = 0
    size_bytes: int = 0
    sealed: bool = False  # and nothing was changed since
    progress: float | None = None  # of 1, of the process that has come farthest
    problem: str = ""


def list_sessions(folders: Sequence[str | Path]) -> list[SessionRow]:
    """Look for sessions in these folders and below, the oldest first.

    Args:
        folders: sessions, or what holds some.

    Raises:
        SessionError: if a folder is none.
    """
    rows = [_row(directory) for directory in dict.fromkeys(_directories(folders))]
    return sorted(rows, key=lambda row: (row.created_unix_s or 0.0, row.directory))


def _directories(folders: Sequence[str | Path]) -> Iterator[Path]:
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise SessionError(f"{folder} is no folder. Give one that holds profile sessions")
        for place, below, names in os.walk(folder):
            if "session.json" in names and "processes" in below:
                below.clear()
                yield Path(place)
            else:
                below.sort()


def _row(directory: Path) -> SessionRow:
    try:
        session = open_session(directory)
    except SessionError as error:
        return SessionRow(str(directory), problem=str(error))
    created: Any = session.manifest.get("created_unix_s")
    shares = [found.share for p in session.processes if (found := progress_of(p.progress))]
    return SessionRow(
        str(directory),
        float(created) if _is_a_time(created) else None,
        session.mode,
        _seconds(session),
        len(session.processes),
        sum(map(_events, session.processes)),
        sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file()),
        bool(session.manifest.get("sealed")) and not session.seal_problems,
        max(shares, default=None),
    )


def _is_a_time(value: Any) -> bool:
    """Whether it is one that a calendar has; another is damage."""
    return type(value) in (int, float) and 0 <= value < LAST_UNIX_S


def _seconds(session: Session) -> float | None:
    if not session.processes:
        return None
    ends = [process.base_ns + end_of(process, 0) for process in session.processes]
    return (max(ends) - min(process.base_ns for process in session.processes)) / 1e9


def _events(process: Process) -> int:
    """As its recorder counted them, or, if it was killed, as they are in its files."""
    known: Any = process.end.get("events") if process.end is not None else None
    if type(known) is int:
        return known
    return sum(len(codes) for source in process.sources for _, codes in source.pieces())


def rows_to_json(rows: list[SessionRow]) -> list[dict[str, Any]]:
    """Plain data for `json.dumps`."""
    return [asdict(row) for row in rows]


def render_sessions(rows: list[SessionRow]) -> str:
    """A table for a terminal."""
    head = ("directory", "when", "mode", "s", "processes", "events", "MB", "sealed", "progress")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    text = ""
    for line in lines:
        shown = [
            cell.ljust(width) if k < 3 else cell.rjust(width)
            for k, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        text += "  ".join(shown).rstrip() + "\n"
    problems = [f"note: {printable(row.problem)}\n" for row in rows if row.problem]
    return text + "".join(problems)


def _cells(row: SessionRow) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.created_unix_s or 0))
    return (
        printable(row.directory),
        when if row.created_unix_s is not None else "-",
        printable(row.mode) or "-",
        "-" if row.seconds is None else f"{row.seconds:.3f}",
        f"{row.processes:,}",
        f"{row.events:,}",
        f"{row.size_bytes / 1e6:.2f}",
        "yes" if row.sealed else "no",
        "-" if row.progress is None else f"{100 * row.progress:.1f}%",
    )

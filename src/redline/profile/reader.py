"""Read a session directory, also one that a crash left behind.

Event files are read in pieces (`Source`), so that a session of any length can be. A shard cut short
gives what it holds up to the cut, and its name is in `Process.problems`. Times of a process are ns
since its `base_ns`; add that for CLOCK_MONOTONIC.

What the files themselves hold is read by `redline.profile.read`, whose public names are here, too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from redline.errors import SessionError
from redline.plain_text import shortened, shown
from redline.profile import layout
from redline.profile.read.notes import (
    LARGEST,
    Counted,
    Name,
    Reported,
    has_numbers,
    printable,
    read_names,
    read_notes,
)
from redline.profile.read.regular import parsed, read_whole, regular_size
from redline.profile.read.shards import (
    PIECE_ROWS,
    Rows,
    Shard,
    ShardClock,
    Source,
    read_rows,
    read_shard,
)
from redline.profile.seal import SealCheck

SHARD_FILE = re.compile(r"thread-\d+\.arrow")
PID_STEP = 1 << 22  # more than the largest process id that Linux gives

__all__ = [
    "LARGEST",
    "PIECE_ROWS",
    "Counted",
    "Name",
    "Process",
    "Reported",
    "Rows",
    "Session",
    "Shard",
    "ShardClock",
    "Source",
    "open_session",
    "printable",
    "read_rows",
    "read_shard",
    "read_whole",
    "regular_size",
]


@dataclass
class Process:
    """One process of a session."""

    directory: Path
    start: dict[str, Any]
    end: dict[str, Any] | None  # None: it was killed, or still runs
    name: str
    metadata: dict[str, Any]
    names: dict[int, Name]
    problems: list[str] = field(default_factory=list)
    event_limit: float = 0.0  # a second, where more came; else 0
    progress: list[Reported] = field(default_factory=list)  # in the order of their lines
    counted: Counted | None = None
    said_main_shard: int | None = None  # by the main thread itself

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self.start["pid"])

    @property
    def parent_pid(self) -> int:
        """Process id of the process that started it."""
        return int(self.start["parent_pid"])

    @property
    def base_ns(self) -> int:
        """CLOCK_MONOTONIC at time 0 of its shards, ns."""
        return int(self.start["base_ns"])

    @cached_property
    def scheduler(self) -> Shard | None:
        """What the system's scheduler did with the threads, if it told."""
        path = self.directory / layout.SCHEDULER_SHARD
        if not path.exists():
            return None
        shard = read_rows(path)
        if shard.problem is not None:
            self.problems.append(f"{path.name}: {shard.problem}")
        return shard

    @cached_property
    def sources(self) -> list[Source]:
        """The shards of its threads, in order of their first events, to be read in pieces."""
        if "threads" in vars(self):
            return [Source(shard) for shard in self.threads]
        found = [p for p in self.directory.iterdir() if SHARD_FILE.fullmatch(p.name)]
        return [Source(path) for path in sorted(found, key=lambda p: (len(p.name), p.name))]

    @property
    def main_shard(self) -> int | None:
        """The index of the main thread's shard, which need not be there; None: nothing tells.

        A thread that begins the recording has the first shard. A recording of an earlier version
        does not say who began it: its main thread is taken to be who had the first event.
        """
        if self.said_main_shard is not None:
            return self.said_main_shard
        if "in_main_thread" in self.start:
            return 0 if self.start["in_main_thread"] is True else None
        return self.sources[0].index if self.sources else None

    @cached_property
    def threads(self) -> list[Shard]:
        """The same shards, whole."""
        return [self._read(source.path) for source in self.sources]

    @cached_property
    def name_tables(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """[MAX_IDS] the kind of each id, 255 where there is none, and its level."""
        kinds = np.full(layout.MAX_IDS, 255, np.uint8)
        name_levels = np.zeros(layout.MAX_IDS, np.uint8)
        for name in self.names.values():
            kinds[name.id] = layout.KINDS[name.kind]
            name_levels[name.id] = name.level
        return kinds, name_levels

    @cached_property
    def operation_codes(self) -> NDArray[np.bool_]:
        """[2 * MAX_IDS] whether a code begins or ends an operation, marked or inferred."""
        kinds = layout.KINDS["operation"], layout.KINDS["inferred"]
        return np.repeat(np.isin(self.name_tables[0], kinds), 2)

    @cached_property
    def monitor(self) -> Shard | None:
        """Heartbeats, memory and CPU time, if it lived to write any."""
        path = self.directory / "monitor.arrow"
        return self._read(path) if path.exists() else None

    @property
    def too_deep(self) -> int:
        """Of the dropped events those that were nested too deeply, once the process ended."""
        found = self.end.get("too_deep", 0) if self.end is not None else 0
        return found if type(found) is int else 0

    @property
    def own_cpu_s(self) -> float:
        """CPU time of the profiler's own threads in it, as far as is known."""
        return self._seconds_at_end("own_cpu_ns")

    @property
    def recorded_own_cpu_s(self) -> float:
        """Of it, in the windows of the recording; all of it where an earlier version recorded."""
        known = self.end is not None and "recorded_own_cpu_ns" in self.end
        return self._seconds_at_end("recorded_own_cpu_ns") if known else self.own_cpu_s

    @cached_property
    def dropped(self) -> int:
        """Events lost because a ring was full, as far as is known."""
        if self.end is not None:
            return int(self.end["dropped"])
        return sum(map(_last_dropped, self.sources))

    def _seconds_at_end(self, key: str) -> float:
        found = self.end.get(key, 0) if self.end is not None else 0
        return found / 1e9 if type(found) is int and 0 <= found < LARGEST else 0.0

    def note(self, problem: str) -> None:
        """Something is wrong with its files; said once."""
        if problem not in self.problems:
            self.problems.append(problem)

    def _read(self, path: Path) -> Shard:
        shard = read_shard(path)
        if shard.problem is not None:
            self.note(f"{path.name}: {shard.problem}")
        return shard


def _last_dropped(source: Source) -> int:
    last = 0
    for deltas, codes in source.pieces():
        found = np.flatnonzero(codes == layout.CODE_DROPPED)
        last = int(deltas[found[-1]]) if len(found) else last
    return last


@dataclass(frozen=True, slots=True)
class Session:
    """A session: its manifest and its processes, in order of their start."""

    directory: Path
    manifest: dict[str, Any]
    processes: list[Process]
    own_problems: list[str] = field(default_factory=list)  # of no process that can be named
    seal: SealCheck | None = None

    def look_at_seal(self) -> None:
        """Let a thread look whether anything was changed, if there is much to read for it."""
        if self.seal is not None:
            self.seal.begin()

    @property
    def seal_problems(self) -> list[str]:
        """What was changed since the recording ended."""
        return [] if self.seal is None else self.seal.problems()

    @property
    def problems(self) -> list[str]:
        """All that is wrong and of no process that can be named."""
        return self.own_problems + self.seal_problems

    @property
    def mode(self) -> str:
        """How it was recorded."""
        return str(self.manifest["mode"])


def _read_process(directory: Path) -> Process | None:
    problems: list[str] = []
    notes = read_notes(directory, problems)
    start, end = notes.get("start"), notes.get("end")
    if start is None:
        return None
    names = read_names(directory, problems)
    if end is None:
        problems.append(
            "it did not end by itself: killed, as daemonic workers are, crashed, or still running"
        )
    elif has_numbers(end, "write_errno") and end["write_errno"]:
        reason = os.strerror(min(end["write_errno"], 4095))
        problems.append(f"not all of it could be written: {reason}")
    if end is not None and has_numbers(end, "lines_lost") and end["lines_lost"]:
        problems.append(f"names and notes that could not be written: {end['lines_lost']:,}")
    name = printable(str(notes["name"]))
    limit: float = notes.get("limit", 0.0)
    counted: Counted | None = notes.get("counters")
    if counted is not None and counted.absent:
        problems.append(counted.absent)
    return Process(
        directory,
        start,
        end,
        name,
        notes["metadata"],
        names,
        problems,
        limit,
        notes["progress"],
        counted,
        notes.get("main_thread"),
    )


def _tell_apart(processes: list[Process]) -> None:
    """Give a pid that comes again another number, as all tables go by it.

    A process that replaces itself (`os.exec*`) keeps its pid; the system gives free ones again.

    Args:
        processes: in order of their start.
    """
    latest: dict[int, int] = {}
    for process in processes:
        process.start["parent_pid"] = latest.get(process.parent_pid, process.parent_pid)
        pid = process.pid
        if pid in latest:
            process.start["pid"] = latest[pid] + PID_STEP
            process.problems.append(
                f"pid {pid} was another program's before (it replaced itself, or has ended): this "
                f"one is shown as {process.pid}"
            )
        latest[pid] = process.pid


def open_session(directory: str | Path) -> Session:
    """Open a session for reading.

    Raises:
        SessionError: if it is not a session, or from a later version of Redline.
    """
    path = Path(directory)
    try:
        content: Any = parsed(read_whole(path / "session.json"))
    except FileNotFoundError:
        raise SessionError(
            f"{path} is not a profile session: it has no session.json. Give the directory that "
            "`redline profile --out` wrote"
        ) from None
    except NotADirectoryError:
        raise SessionError(
            f"{path} is a file, and a profile session is a directory. Give the directory that "
            "`redline profile --out` wrote"
        ) from None
    except (ValueError, OSError) as error:
        raise SessionError(
            f"{path / 'session.json'} cannot be read: {shortened(error)}. Profile again"
        ) from error
    manifest = cast(dict[str, Any], content) if isinstance(content, dict) else {}
    kind = manifest.get("format")
    if kind != layout.FORMAT:
        raise SessionError(f"{path} is a {shown(kind)} directory, no profile session")
    version = manifest.get("version")
    if not isinstance(version, int) or version > layout.VERSION:
        raise SessionError(
            f"{path} has format version {version}; this Redline reads up to {layout.VERSION}. "
            "Upgrade Redline to read it"
        )
    place = path / "processes"
    if "mode" not in manifest or not place.is_dir() or place.is_symlink():
        raise SessionError(f"{path} is not whole: its mode or its processes are missing")
    links = sorted(p.name for p in place.iterdir() if p.is_symlink())
    directories = sorted(p for p in place.iterdir() if p.is_dir() and not p.is_symlink())
    found = {p.name: _read_process(p) for p in directories}
    processes = sorted((p for p in found.values() if p is not None), key=lambda p: p.base_ns)
    _tell_apart(processes)
    problems = [f"{name}: nothing says what it is" for name, p in found.items() if p is None]
    problems += [f"{printable(name)}: a link, which is not followed" for name in links]
    return Session(path, manifest, processes, problems, SealCheck(path, manifest))

"""Read a session directory, also one that a crash left behind.

A shard cut short gives what it holds up to the cut, and its name is in `Process.problems`. Times of
a process are ns since its `base_ns`; add that for CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.errors import SessionError
from redline.profile import layout

__all__ = ["Name", "Process", "Session", "Shard", "open_session"]


@dataclass(frozen=True, slots=True)
class Name:
    """An interned name: of an operation, a phase or a native function."""

    id: int
    kind: str  # operation, inferred, phase or call
    name: str
    level: int  # index into `levels.LEVELS`, of calls
    module: str | None


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows of one file: deltas [N] uint32 and codes [N] uint16."""

    path: Path
    deltas: NDArray[np.uint32]
    codes: NDArray[np.uint16]
    problem: str | None  # what is wrong with its end

    @property
    def index(self) -> int:
        """The thread's number, in order of first events; 0 started the recording."""
        return int(self.path.stem.removeprefix("thread-"))


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
    def threads(self) -> list[Shard]:
        """The shards of its threads, in order of their first events."""
        return [self._read(path) for path in sorted(self.directory.glob("thread-*.arrow"))]

    @cached_property
    def monitor(self) -> Shard | None:
        """Heartbeats, memory and CPU time, if it lived to write any."""
        path = self.directory / "monitor.arrow"
        return self._read(path) if path.exists() else None

    @property
    def dropped(self) -> int:
        """Events lost because a ring was full, as far as is known."""
        if self.end is not None:
            return int(self.end["dropped"])
        return sum(
            int(shard.deltas[np.flatnonzero(shard.codes == layout.CODE_DROPPED)[-1]])
            for shard in self.threads
            if (shard.codes == layout.CODE_DROPPED).any()
        )

    def _read(self, path: Path) -> Shard:
        shard = read_shard(path)
        if shard.problem is not None:
            self.problems.append(f"{path.name}: {shard.problem}")
        return shard


@dataclass(frozen=True, slots=True)
class Session:
    """A session: its manifest and its processes, in order of their start."""

    directory: Path
    manifest: dict[str, Any]
    processes: list[Process]

    @property
    def mode(self) -> str:
        """How it was recorded."""
        return str(self.manifest["mode"])


def read_shard(path: Path) -> Shard:
    """Read an event file up to where it is whole."""
    import pyarrow as pa
    import pyarrow.ipc

    deltas: list[NDArray[np.uint32]] = [np.empty(0, np.uint32)]
    codes: list[NDArray[np.uint16]] = [np.empty(0, np.uint16)]
    problem = None
    try:
        with pa.memory_map(str(path)) as source, pyarrow.ipc.open_stream(source) as stream:
            if stream.schema.names != ["delta_ns", "code"]:
                raise SessionError(f"{path} has the columns {stream.schema.names}: no event file")
            for batch in stream:
                # numpy cannot outlive the map, so that a session can be removed while open.
                deltas.append(batch.column(0).to_numpy().copy())
                codes.append(batch.column(1).to_numpy().copy())
    except (pa.ArrowInvalid, OSError) as error:
        rows = sum(map(len, codes))
        problem = f"cut short after {rows} rows, the rest is lost ({error})"
    return Shard(path, np.concatenate(deltas), np.concatenate(codes), problem)


def _lines(path: Path, problems: list[str]) -> Iterator[Any]:
    if not path.exists():
        problems.append(f"{path.name}: missing")
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            problems.append(f"{path.name}: a torn line, ignored")


def _read_process(directory: Path) -> Process | None:
    problems: list[str] = []
    start = end = None
    name, metadata = "", {}
    for note in _lines(directory / "process.jsonl", problems):
        if note["event"] == "start":
            start, name = note, note["name"]
        elif note["event"] == "end":
            end = note
        elif note["event"] == "name":
            name = note["name"]
        elif note["event"] == "metadata":
            metadata.update(note["values"])
    if start is None:
        return None
    names = {row[0]: Name(*row) for row in _lines(directory / "names.jsonl", problems)}
    if end is None:
        problems.append("it did not end by itself: killed, crashed, or still running")
    return Process(directory, start, end, name, metadata, names, problems)


def open_session(directory: str | Path) -> Session:
    """Open a session for reading.

    Raises:
        SessionError: if it is not a session, or from a later version of Redline.
    """
    path = Path(directory)
    try:
        manifest = json.loads((path / "session.json").read_text())
    except FileNotFoundError:
        raise SessionError(
            f"{path} is not a profile session: it has no session.json. Give the directory that "
            "`redline profile --out` wrote"
        ) from None
    except (json.JSONDecodeError, OSError) as error:
        raise SessionError(
            f"{path / 'session.json'} cannot be read: {error}. Profile again"
        ) from error
    if manifest.get("format") != layout.FORMAT:
        raise SessionError(f"{path} is a {manifest.get('format')!r} directory, no profile session")
    version = manifest.get("version")
    if not isinstance(version, int) or version > layout.VERSION:
        raise SessionError(
            f"{path} has format version {version}; this Redline reads up to {layout.VERSION}. "
            "Upgrade Redline to read it"
        )
    found = [_read_process(p) for p in sorted((path / "processes").iterdir()) if p.is_dir()]
    processes = sorted((p for p in found if p is not None), key=lambda p: p.base_ns)
    return Session(path, manifest, processes)

"""Read a session directory, also one that a crash left behind.

Event files are read in pieces (`Source`), so that a session of any length can be. A shard cut short
gives what it holds up to the cut, and its name is in `Process.problems`. Times of a process are ns
since its `base_ns`; add that for CLOCK_MONOTONIC.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from redline.errors import SessionError
from redline.plain_text import shortened, shown
from redline.profile import layout, levels
from redline.profile.seal import broken_seals

SHARD_FILE = re.compile(r"thread-\d+\.arrow")
READ_NOTES = (
    "start",
    "end",
    "metadata",
    "progress",
    "counters",
)  # and those that may be of any kind
ROW_BYTES = 6  # uint32 and uint16
LARGEST_TEXT = 1 << 30  # bytes of a file of JSON: a day of samples has some 20 MB
LARGEST = 1 << 62  # of times in ns: what is more is no time
PID_STEP = 1 << 22  # more than the largest process id that Linux gives
PIECE_ROWS = 1 << 15  # of a shard, read at once
READ_BYTES = 1 << 20  # of a file, at once
HEADER_BYTES, ROWS_PLACE, BATCH_ROWS = 192, 72, 1 << 15  # of batches, see csrc/arrow_stream.h
ROWS_IN_HEADER = struct.Struct("<Q")
MAP_BYTES = 1 << 25  # of a file, mapped at once: what is mapped counts as memory in use

__all__ = [
    "Counted",
    "Name",
    "Process",
    "Reported",
    "Rows",
    "Session",
    "Shard",
    "Source",
    "open_session",
    "read_rows",
    "read_shard",
    "read_whole",
    "regular_size",
]


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


Rows = tuple[NDArray[np.uint32], NDArray[np.uint16]]  # deltas and codes, both [N]


class Source:
    """A shard as a sequence of pieces, none of them kept.

    Args:
        shard: a file, or its rows.
    """

    def __init__(self, shard: Path | Shard) -> None:
        self.path = shard if isinstance(shard, Path) else shard.path
        self._shard = None if isinstance(shard, Path) else shard
        self.problem: str | None = None  # once all pieces were read

    @property
    def index(self) -> int:
        """As `Shard.index`; 0 of what is no thread's."""
        name = self.path.stem
        return int(name.removeprefix("thread-")) if name.startswith("thread-") else 0

    def pieces(self, piece_rows: int = PIECE_ROWS) -> Iterator[Rows]:
        """Its rows in order, up to where they are sound.

        A piece begins with a timed row, or what gives the absolute time of it; numbers that belong
        to a row are in its piece.

        Args:
            piece_rows: in each, about.
        """
        sound, rows = _Sound(), 0
        for deltas, codes in _regrouped(self.batches(), piece_rows):
            good = sound.rows(deltas, codes)
            rows += good
            if good:
                yield deltas[:good], codes[:good]
            if good < len(codes):
                self.problem = f"damaged after {rows} rows, the rest is lost (time runs backwards)"
                return

    def batches(self) -> Iterator[Rows]:
        """Its rows as they were written, up to where they are whole."""
        if self._shard is not None:
            self.problem = self._shard.problem
            yield self._shard.deltas, self._shard.codes
            return
        rows = at = 0
        pa = _pyarrow()
        try:
            for deltas, codes, end in _framed(self.path):
                rows, at = rows + len(codes), end
                yield deltas, codes
            for batch in _batches(self.path, at, rows):
                # numpy cannot outlive the map, so that a session can be removed while open.
                for at in range(0, batch.num_rows, PIECE_ROWS):
                    part = batch.slice(at, PIECE_ROWS)
                    yield part.column(0).to_numpy().copy(), part.column(1).to_numpy().copy()
                rows += batch.num_rows
        except (pa.ArrowException, OSError, ValueError) as error:
            self.problem = f"cut short after {rows} rows, the rest is lost ({shortened(error)})"


def _regrouped(batches: Iterator[Rows], piece_rows: int) -> Iterator[Rows]:
    held: list[Rows] = []
    number = 0
    for batch in (part for each in batches for part in _parted(each, piece_rows)):
        held.append(batch)
        number += len(batch[1])
        if number < piece_rows:
            continue
        deltas, codes = _joined(held)
        cut = _last_timed(codes) if number < 8 * piece_rows else number
        if cut > 0:
            yield deltas[:cut], codes[:cut]
        held, number = [(deltas[cut:], codes[cut:])], number - cut
    if number:
        yield _joined(held)


def _parted(rows: Rows, most: int) -> Iterator[Rows]:
    for at in range(0, len(rows[1]), most):
        yield rows[0][at : at + most], rows[1][at : at + most]


def _joined(parts: list[Rows]) -> Rows:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([d for d, _ in parts]), np.concatenate([c for _, c in parts])


def _last_timed(codes: NDArray[np.uint16]) -> int:
    """Where the last timed row begins, with its absolute time if it has one."""
    timed = np.flatnonzero((codes < layout.CODE_ANCHOR) | (codes >= layout.CODE_BEAT))
    at = int(timed[-1]) if len(timed) else 0
    if at > 0 and codes[at - 1] == layout.CODE_ANCHOR:
        at -= 1
    if at > 0 and codes[at - 1] == layout.CODE_HIGH:
        at -= 1
    return at


class _Sound:
    """Up to where the absolute times of a shard can be, piece by piece.

    Each must come in two rows, and be no earlier than the one before and what passed since.
    """

    def __init__(self) -> None:
        self._earliest: int | None = None  # of the next absolute time

    def rows(self, deltas: NDArray[np.uint32], codes: NDArray[np.uint16]) -> int:
        """How many of these are sound."""
        anchors = np.flatnonzero(codes == layout.CODE_ANCHOR)
        payloads = (codes >= layout.CODE_ANCHOR) & (codes < layout.CODE_BEAT)
        running = np.concatenate([[0], np.cumsum(np.where(payloads, 0, deltas), dtype=np.int64)])
        if len(anchors):
            before = np.maximum(anchors - 1, 0)
            high = deltas[before].astype(np.int64)
            good = (anchors > 0) & (codes[before] == layout.CODE_HIGH) & (high < 1 << 16)
            absolute = (high << 32) + deltas[anchors]
            good[1:] &= absolute[1:] >= absolute[:-1] + np.diff(running[anchors])
            if self._earliest is not None:
                good[0] &= absolute[0] >= self._earliest + running[anchors[0]]
            bad = np.flatnonzero(~good)
            if len(bad):
                return int(anchors[bad[0]])
            self._earliest = int(absolute[-1] + running[-1] - running[anchors[-1]])
        elif self._earliest is not None:
            self._earliest += int(running[-1])
        return len(codes)


class Reported(NamedTuple):
    """One line of progress, as a program reported it."""

    time_ns: int  # CLOCK_MONOTONIC
    window: int  # of the recording, in which it was said
    done: float
    total: float


@dataclass(frozen=True, slots=True)
class Counted:
    """What a process's counters said, summed over its recorded threads."""

    names: list[str]
    absent: str  # why there are no others
    counts: dict[int, list[float]]  # of each operation's id, 0 for none


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
    def monitor(self) -> Shard | None:
        """Heartbeats, memory and CPU time, if it lived to write any."""
        path = self.directory / "monitor.arrow"
        return self._read(path) if path.exists() else None

    @property
    def too_deep(self) -> int:
        """Of the dropped events those that were nested too deeply, once the process ended."""
        found = self.end.get("too_deep", 0) if self.end is not None else 0
        return found if type(found) is int else 0

    @cached_property
    def dropped(self) -> int:
        """Events lost because a ring was full, as far as is known."""
        if self.end is not None:
            return int(self.end["dropped"])
        return sum(map(_last_dropped, self.sources))

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
    problems: list[str] = field(default_factory=list)  # of no process that can be named
    seal_problems: list[str] = field(default_factory=list)  # of these, what was changed since

    @property
    def mode(self) -> str:
        """How it was recorded."""
        return str(self.manifest["mode"])


def read_shard(path: Path) -> Shard:
    """Read an event file up to where it is sound."""
    source = Source(path)
    return _whole(path, list(source.pieces()), source)


def read_rows(path: Path) -> Shard:
    """Read the two columns of an Arrow stream, up to where it is whole, whatever they mean.

    Only what recordings consist of: a regular file, uncompressed, so that no file unpacks into more
    than its own size.
    """
    source = Source(path)
    return _whole(path, list(source.batches()), source)


def _whole(path: Path, parts: list[Rows], source: Source) -> Shard:
    nothing = np.empty(0, np.uint32), np.empty(0, np.uint16)
    return Shard(path, *_joined([nothing, *parts]), source.problem)


def _pyarrow() -> Any:
    """The package, which has no types.

    Raises:
        SessionError: if it cannot be imported: pyarrow 26 needs numpy 2, and pip does not know.
    """
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise SessionError(
            f"sessions are read by pyarrow, which cannot be imported here ({error}). Install one "
            f"that fits: pip install 'pyarrow>=16,<26' for numpy 1.26, or pip install 'numpy>=2'"
        ) from error


@cache
def _framing() -> tuple[bytes, Callable[[int], bytes]]:
    """What the recorder writes at the beginning of a file, and before a batch of so many rows."""
    try:
        from redline.profile import _sweep
    except ImportError:  # such files are read by the library as well, only slower
        return b"", lambda rows: b""
    return _sweep.arrow_schema(), lru_cache(1 << 14)(_sweep.arrow_header)


def _framed(path: Path) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint16], int]]:
    """The batches at the beginning of a file that are framed to the byte as the recorder does it.

    Each with the place of its end. They are most of a file, and of some hundred rows each: reading
    them through the library would take most of a report's time.
    """
    schema, header_of = _framing()
    regular_size(path)
    with path.open("rb") as file:
        if not schema or file.read(len(schema)) != schema:
            return
        begin, data, at = len(schema), file.read(READ_BYTES), 0
        while len(data) >= at + HEADER_BYTES:
            (rows,) = ROWS_IN_HEADER.unpack_from(data, at + ROWS_PLACE)
            if rows > BATCH_ROWS or data[at : at + HEADER_BYTES] != header_of(rows):
                return
            first, second = at + HEADER_BYTES, at + HEADER_BYTES + (4 * rows + 7 & ~7)
            end = second + (2 * rows + 7 & ~7)
            if end > len(data):
                begin, data, at = begin + at, data[at:] + file.read(READ_BYTES), 0
                if len(data) < end - (first - HEADER_BYTES):
                    return
                continue
            at = end
            yield (
                np.frombuffer(data, np.uint32, rows, first),
                np.frombuffer(data, np.uint16, rows, second),
                begin + end,
            )
            if len(data) < at + HEADER_BYTES:
                begin, data, at = begin + at, data[at:] + file.read(READ_BYTES), 0


def _batches(path: Path, at: int, rows: int) -> Iterator[Any]:
    """The batches from a place in the file on, behind which there are so many rows."""
    pa = _pyarrow()
    ipc: Any = import_module("pyarrow.ipc")
    size = regular_size(path)
    with pa.memory_map(str(path)) as source:
        schema = _schema(ipc.MessageReader.open_stream(source))
        at = at or source.tell()
    while True:
        with pa.memory_map(str(path)) as source:
            source.seek(at)
            messages = ipc.MessageReader.open_stream(source)
            while source.tell() < at + MAP_BYTES:
                try:
                    message = messages.read_next_message()
                except StopIteration:
                    return
                if is_compressed(message.metadata):
                    raise pa.ArrowInvalid("it is compressed, which recordings are not")
                batch: Any = ipc.read_record_batch(message, schema)
                batch.validate()  # else a wrong length would have us read beyond the file
                rows += batch.num_rows
                if rows * ROW_BYTES > size:
                    raise pa.ArrowInvalid("it claims more rows than its size can hold")
                yield batch
            at = source.tell()


def _schema(messages: Any) -> Any:
    pa = _pyarrow()
    ipc: Any = import_module("pyarrow.ipc")
    try:
        schema: Any = ipc.read_schema(messages.read_next_message())
    except StopIteration:
        raise pa.ArrowInvalid("it has no beginning") from None
    if schema.names != ["delta_ns", "code"] or schema.types != [pa.uint32(), pa.uint16()]:
        raise pa.ArrowInvalid(f"no event file: {schema.names}")
    return schema


def regular_size(path: Path) -> int:
    """Bytes of a file, which must be one: no link out of the session, no pipe that never ends.

    Raises:
        OSError: if it is anything else.
    """
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "a special file"
        raise OSError(f"{path.name} is {kind}, which sessions do not hold")
    return found.st_size


def is_compressed(metadata: Any) -> bool:
    """Whether the header of an Arrow message (a flatbuffer) says that its body is compressed.

    Of `Message` the third field is the header, of `RecordBatch` the fourth is the compression; see
    Message.fbs of the Arrow format.

    Raises:
        ValueError: if the header is damaged.
    """
    data = memoryview(metadata).cast("B")
    try:
        (message,) = struct.unpack_from("<I", data, 0)
        header = _field(data, message, 2)
        if header == 0:
            return False
        batch = header + struct.unpack_from("<I", data, header)[0]
        return _field(data, batch, 3) != 0
    except struct.error as error:
        raise ValueError(f"a damaged header: {error}") from error


def _field(data: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table lies; 0 if it is not there."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0 or 4 + 2 * number + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0]
    return table + offset if offset else 0


def _lines(path: Path, problems: list[str]) -> Iterator[Any]:
    try:
        text = read_whole(path)
    except FileNotFoundError:
        problems.append(f"{path.name}: missing")
        return
    except OSError as error:
        problems.append(str(error))
        return
    for line in text.splitlines():
        try:
            yield json.loads(line)
        except (ValueError, RecursionError):
            problems.append(f"{path.name}: a torn line, ignored")


def read_whole(path: Path) -> str:
    """The text of a file that must be a regular one.

    Raises:
        OSError: if it is not, or cannot be read, or is larger than a recording makes it.
    """
    size = regular_size(path)
    if size > LARGEST_TEXT:
        raise OSError(
            f"{path.name} has {size:,} bytes, and such a file has at most {LARGEST_TEXT:,}"
        )
    return path.read_text(errors="replace")


def _has(note: dict[str, Any], *keys: str) -> bool:
    """Whether these are whole numbers that can be times, counts or process ids."""
    return all(type(note.get(key)) is int and 0 <= note[key] < LARGEST for key in keys)


def _read_notes(directory: Path, problems: list[str]) -> dict[str, Any]:
    """What process.jsonl says, by event, as far as it makes sense."""
    found: dict[str, Any] = {"metadata": {}, "progress": []}
    for line in _lines(directory / "process.jsonl", problems):
        note = cast(dict[str, Any], line) if isinstance(line, dict) else {}
        event: Any = note.get("event")
        seconds = isinstance(note.get("cpu_s", 0), int | float)
        if event == "start" and seconds and _has(note, "pid", "parent_pid", "base_ns"):
            found |= {"start": note, "name": note.get("name")}
        elif event == "end" and seconds and _has(note, "time_ns", "dropped"):
            found["end"] = note
        elif event == "limit" and isinstance(note.get("events_per_s"), int | float):
            found["limit"] = float(note["events_per_s"])
        elif event == "lines" and "absent" in note:
            problems.append(printable(str(note["absent"])))
        elif event == "counters" and (counted := _counted(note)) is not None:
            found["counters"] = counted
        elif not _add_said(found, event, note) and (
            not isinstance(event, str) or event in READ_NOTES
        ):
            problems.append("process.jsonl: a line that makes no sense, ignored")
    return found


def _add_said(found: dict[str, Any], event: Any, note: dict[str, Any]) -> bool:
    """Add what the program said of itself, if this is that."""
    if event == "name":
        found["name"] = note.get("name")
    elif event == "metadata" and isinstance(note.get("values"), dict):
        found["metadata"].update(note["values"])
    elif event == "progress" and (line := _reported(note)) is not None:
        found["progress"].append(line)
    else:
        return False
    return True


def _reported(note: dict[str, Any]) -> Reported | None:
    done, total = note.get("done"), note.get("total")
    if not _has(note, "time_ns", "window") or type(done) is not float or type(total) is not float:
        return None
    if not (0 <= done < math.inf and 0 < total < math.inf):
        return None
    return Reported(note["time_ns"], note["window"], done, total)


def _counted(note: dict[str, Any]) -> Counted | None:
    names, counts = note.get("names"), note.get("counts")
    if not isinstance(names, list) or not isinstance(counts, dict):
        return None
    try:
        texts = [printable(name) for name in cast(list[Any], names)]
        rows = {
            int(number): [float(value) for value in values]
            for number, values in cast(dict[str, Any], counts).items()
        }
        sound = all(
            len(row) == len(texts) and all(0 <= value < math.inf for value in row)
            for row in rows.values()
        )
        return Counted(texts, printable(note.get("absent")), rows) if sound else None
    except (TypeError, ValueError):
        return None


def _read_names(directory: Path, problems: list[str]) -> dict[int, Name]:
    names: dict[int, Name] = {}
    for row in _lines(directory / "names.jsonl", problems):
        try:
            number, kind, name, level, module = row
            known = kind in layout.KINDS and level in range(len(levels.LEVELS))
            if known and number in range(layout.MAX_IDS):
                shown = None if module is None else printable(module)
                names[int(number)] = Name(int(number), kind, printable(name), int(level), shown)
                continue
        except (TypeError, ValueError):
            pass
        problems.append("names.jsonl: a line that makes no sense, ignored")
    return names


def _read_process(directory: Path) -> Process | None:
    problems: list[str] = []
    notes = _read_notes(directory, problems)
    start, end = notes.get("start"), notes.get("end")
    if start is None:
        return None
    names = _read_names(directory, problems)
    if end is None:
        problems.append("it did not end by itself: killed, crashed, or still running")
    elif _has(end, "write_errno") and end["write_errno"]:
        reason = os.strerror(min(end["write_errno"], 4095))
        problems.append(f"not all of it could be written: {reason}")
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
    )


def printable(text: Any) -> str:
    """A name for a terminal or a file: control characters and what no file can hold escaped."""
    if not isinstance(text, str):
        raise TypeError(f"a name must be text, not {shown(text)}")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


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
        content: Any = json.loads(read_whole(path / "session.json"))
    except FileNotFoundError:
        raise SessionError(
            f"{path} is not a profile session: it has no session.json. Give the directory that "
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
    changed = broken_seals(path, manifest)
    return Session(path, manifest, processes, problems + changed, changed)

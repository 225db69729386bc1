"""What a process says of itself in lines of JSON, and the names that its events refer to."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

from redline.plain_text import shown
from redline.profile import layout, levels
from redline.profile.read.regular import parsed, read_whole

READ_NOTES = (
    "start",
    "end",
    "metadata",
    "progress",
    "limit",
    "counters",
    "main_thread",
)  # and those that may be of any kind
LOOKING = {"sampler": "samples", "lines": "lines"}  # what says so in a note, and what it wrote
LARGEST = 1 << 62  # of times in ns: what is more is no time

__all__ = [
    "LARGEST",
    "Counted",
    "Name",
    "Reported",
    "has_numbers",
    "printable",
    "read_names",
    "read_notes",
]


@dataclass(frozen=True, slots=True)
class Name:
    """An interned name: of an operation, a phase or a native function."""

    id: int
    kind: str  # operation, inferred, phase or call
    name: str
    level: int  # index into `levels.LEVELS`, of calls
    module: str | None


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
            yield parsed(line)
        except ValueError:
            problems.append(f"{path.name}: a torn line, ignored")


def has_numbers(note: dict[str, Any], *keys: str) -> bool:
    """Whether these are whole numbers that can be times, counts or process ids."""
    return all(type(note.get(key)) is int and 0 <= note[key] < LARGEST for key in keys)


def _is_number(value: Any) -> bool:
    """Whether this can be a time or a count: finite, and a float can hold it."""
    return type(value) in (int, float) and 0 <= value < LARGEST


def read_notes(directory: Path, problems: list[str]) -> dict[str, Any]:
    """What process.jsonl says, by event, as far as it makes sense."""
    found: dict[str, Any] = {"metadata": {}, "progress": []}
    for line in _lines(directory / "process.jsonl", problems):
        note = cast(dict[str, Any], line) if isinstance(line, dict) else {}
        event: Any = note.get("event")
        seconds = _is_number(note.get("cpu_s", 0))
        if event == "start" and seconds and has_numbers(note, "pid", "parent_pid", "base_ns"):
            found |= {"start": note, "name": note.get("name")}
        elif event == "end" and seconds and has_numbers(note, "time_ns", "dropped"):
            found["end"] = note
        elif event == "limit" and _is_number(note.get("events_per_s")):
            found["limit"] = float(note["events_per_s"])
        elif event in ("lines", "generators") and "absent" in note:
            problems.append(printable(str(note["absent"])))
        elif event in LOOKING and has_numbers(note, "write_errno"):
            problems.extend(_of_looking(LOOKING[event], note))
        elif event == "main_thread" and has_numbers(note, "shard"):
            found["main_thread"] = note["shard"]
        elif event == "counters" and (counted := _counted(note)) is not None:
            found["counters"] = counted
        elif not _add_said(found, event, note) and (
            not isinstance(event, str) or event in READ_NOTES
        ):
            problems.append("process.jsonl: a line that makes no sense, ignored")
    return found


def _of_looking(what: str, note: dict[str, Any]) -> Iterator[str]:
    """What a report must know of how the looks at a process went."""
    if note["write_errno"]:
        yield f"not all {what} could be written: {os.strerror(min(note['write_errno'], 4095))}"
    if has_numbers(note, "samples", "unanswered") and note["unanswered"] * 2 > note["samples"]:
        yield (
            f"{note['unanswered']:,} of {note['samples']:,} samples are unattributed: the program "
            f"blocks SIGURG, by which the profiler looks, or has a handler of its own"
        )


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
    if (
        not has_numbers(note, "time_ns", "window")
        or type(done) is not float
        or type(total) is not float
    ):
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
        rows = {int(number): list(row) for number, row in cast(dict[str, Any], counts).items()}
        if not all(len(row) == len(texts) and all(map(_is_number, row)) for row in rows.values()):
            return None
        floats = {number: list(map(float, row)) for number, row in rows.items()}
        return Counted(texts, printable(note.get("absent")), floats)
    except (TypeError, ValueError):
        return None


def read_names(directory: Path, problems: list[str]) -> dict[int, Name]:
    """What names.jsonl says, by id, as far as it makes sense."""
    names: dict[int, Name] = {}
    for row in _lines(directory / "names.jsonl", problems):
        try:
            number, kind, name, level, module = row
            known = kind in layout.KINDS and level in range(len(levels.LEVELS))
            if known and number in range(layout.MAX_IDS):
                place = None if module is None else printable(module)
                names[int(number)] = Name(int(number), kind, printable(name), int(level), place)
                continue
        except (TypeError, ValueError):
            pass
        problems.append("names.jsonl: a line that makes no sense, ignored")
    return names


def printable(text: Any) -> str:
    """A name for a terminal or a file: control characters and what no file can hold escaped."""
    if not isinstance(text, str):
        raise TypeError(f"a name must be text, not {shown(text)}")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)

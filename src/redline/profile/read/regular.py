"""Files that a session may hold: regular ones, no larger than can be read.

A link may lead out of the session, and a pipe may never end, so that neither is ever opened.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

LARGEST_TEXT = 1 << 30  # bytes of a file of JSON that is read as a whole
LONGEST_LINE = 1 << 24  # bytes; a reading of 100,000 processes has some 6 MB

DEEPEST = 64  # lists and objects in each other; what writes a report goes down into each

__all__ = ["LARGEST_TEXT", "LONGEST_LINE", "lines_of", "parsed", "read_whole", "regular_size"]


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


def lines_of(path: Path) -> Iterator[str]:
    """The lines of a file that must be a regular one, of any size; overlong ones come in pieces.

    Raises:
        OSError: if it is not, or cannot be read.
    """
    regular_size(path)
    with open(path, "rb") as file:
        while line := file.readline(LONGEST_LINE):
            yield line.decode(errors="replace")


def parsed(text: str) -> Any:
    """What JSON says.

    Raises:
        ValueError: if it is none, or nested deeper than a recording makes it.
    """
    try:
        found: Any = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    level: list[Any] = [found]
    for _ in range(DEEPEST):
        level = [item for each in level for item in _items(each)]
        if not level:
            return found
    raise ValueError("it is nested too deep")


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast(dict[str, Any], value).values())
    return cast(list[Any], value) if isinstance(value, list) else []

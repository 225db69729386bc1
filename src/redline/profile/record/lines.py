"""A file of JSON lines inside a program that knows nothing of it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard, cast

__all__ = ["Lines", "as_json"]


class Lines:
    """A file to append lines to.

    It must not be the reason that a program fails: a line that cannot be written, on a full disk
    for one, is lost. A program that becomes a daemon closes all file descriptors and opens its own
    files under the same numbers: these are left alone, and the file is opened again.

    Args:
        path: of the file; made if it is not there.

    Raises:
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._identity = -1, (0, 0)
        self._open()

    def append(self, row: Any) -> None:
        """Add one line."""
        text = as_json(row)
        with suppress(OSError):
            if not self._is_open():
                self._open()
            os.write(self._file, text.encode() + b"\n")

    def close(self) -> None:
        """No more lines."""
        if self._is_open():
            os.close(self._file)
        self._file = -1

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o644)
        found = os.fstat(self._file)
        self._identity = found.st_dev, found.st_ino

    def _is_open(self) -> bool:
        try:
            found = os.fstat(self._file)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity


def as_json(value: Any, depth: int = 2) -> str:
    """What JSON can hold as it is, the rest as its `repr`.

    Args:
        value: anything.
        depth: down to where a part is looked for to put as its `repr` in place of the whole.
    """
    try:
        return json.dumps(value, default=_described)
    except (TypeError, ValueError, RecursionError):  # odd keys, or something that holds itself
        if depth and _has_text_keys(value):
            items = value.items()
            pairs = (f"{json.dumps(key)}: {as_json(item, depth - 1)}" for key, item in items)
            return "{" + ", ".join(pairs) + "}"
        return json.dumps(_described(value))


def _has_text_keys(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and all(isinstance(key, str) for key in cast(Any, value))


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  (somebody else's `__repr__`)
        return f"<{type(value).__name__}>"

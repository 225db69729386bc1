"""Append lines of JSON to a file from inside a program that knows nothing of it."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeGuard, cast

MOST_KEPT_BYTES = 1 << 24

__all__ = ["JsonLines"]


class JsonLines:
    """A file of JSON lines inside a program that knows nothing of it.

    It must not be the reason that a program fails: what cannot be written, on a full disk for one,
    waits for the next line or the end. Of what waits no more than `MOST_KEPT_BYTES` are kept. A
    program that becomes a daemon closes all file descriptors and opens its own files under the
    same numbers: these are left alone, and the file is opened again. A forked child writes nothing.

    Args:
        path: of the file; made if it is not there.

    Raises:
        OSError: if it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0  # lines that there was no room to keep
        self._path, self._pid = path, os.getpid()
        self._kept: deque[bytes] = deque()  # the first may be the rest of a line
        self._kept_bytes = 0
        # Nobody waits for it: a signal's handler, which adds a line while one is being written,
        # would wait for ever. Whoever has it writes that line, too.
        self._turn = threading.Lock()
        self._file, self._identity = -1, (0, 0)
        self._open()

    def append(self, row: Any) -> None:
        """Add one line."""
        line = as_json(row).encode() + b"\n"
        size = len(line)  # before the sum, which no other thread may then come into
        if self._kept_bytes + size > MOST_KEPT_BYTES and self.flush():
            self.lost += 1
            return
        self._kept.append(line)
        self._kept_bytes += size
        self.flush()

    def flush(self) -> int:
        """Write what waits; how many lines still do."""
        while self._kept and os.getpid() == self._pid and self._turn.acquire(blocking=False):
            try:
                self._write()
            except OSError:
                break
            finally:
                self._turn.release()
        return len(self._kept)

    def close(self) -> None:
        """No more lines."""
        self.flush()
        if self._is_open():
            with suppress(OSError):
                os.close(self._file)
        self._file = -1

    def _write(self) -> None:
        if not self._is_open():
            self._open()
        while self._kept:
            line = self._kept[0]
            written = os.write(self._file, line)
            self._kept_bytes -= written
            if written < len(line):
                self._kept[0] = line[written:]
            else:
                self._kept.popleft()

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
        return json.dumps(value, default=_described, separators=(",", ":"))
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

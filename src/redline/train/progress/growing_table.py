"""The rows of a progress.csv that its run goes on writing, each of them read once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from redline.plain_files import open_plain

_LARGEST_BYTES = 2**30  # taken in at once; a row has some hundreds
_CHECKED_BYTES = 256  # before the place where reading goes on: are they still those that were read?


class GrowingTable:
    """Follows a table; a row that is half written is left for the next reading.

    Args:
        path: of the file, which may be a stranger's: no link is followed.

    Attributes:
        changed_s: time of the file's last change at the last reading; None without a file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position, self._read_last = 0, b""
        self.changed_s: float | None = None

    def read(self) -> tuple[bool, Iterator[list[str]]]:
        """Take in what is new.

        Returns:
            Whether it begins with the file's first line, as at the first reading and where a resume
            has cut the file or written it with further columns; and the cells of each new line.
        """
        try:
            descriptor = open_plain(self._path)
        except OSError:
            self._position, self._read_last, self.changed_s = 0, b"", None
            return True, iter(())
        with open(descriptor, "rb") as file:
            file.seek(self._position - len(self._read_last))
            if file.read(len(self._read_last)) != self._read_last:
                self._position, self._read_last = 0, b""
                file.seek(0)
            is_anew = self._position == 0
            data = file.read(_LARGEST_BYTES)
            self.changed_s = os.fstat(descriptor).st_mtime
        whole = data[: data.rfind(b"\n") + 1]  # the rest is still being written
        self._position += len(whole)
        self._read_last = (self._read_last + whole)[-_CHECKED_BYTES:]
        lines = whole.decode(errors="replace").split("\n")[:-1]
        # One by one: as lists of cells a table takes ten times its memory. Nothing is quoted.
        return is_anew, (line.rstrip("\r").split(",") for line in lines)

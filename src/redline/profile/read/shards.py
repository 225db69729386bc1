"""Event files as rows, piece by piece or whole, up to where they are sound.

A file cut short gives what it holds up to the cut, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redline.plain_text import shortened
from redline.profile import layout
from redline.profile.read.extension import sweep_extension
from redline.profile.read.framing import framed_batches, library_batches, pyarrow

PIECE_ROWS = 1 << 15  # of a shard, read at once
TAIL_ROWS = 64

__all__ = ["PIECE_ROWS", "Rows", "Shard", "ShardClock", "Source", "read_rows", "read_shard"]


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
        return (rows for _, rows in self.timed_pieces(piece_rows))

    def timed_pieces(self, piece_rows: int) -> Iterator[tuple[int, Rows]]:
        """As `pieces`, each with the time of its first row, ns since the process's base."""
        clock, rows = ShardClock(), 0
        for deltas, codes in _regrouped(self.batches(), piece_rows):
            good = clock.follow((deltas, codes))
            rows += good
            if good:
                yield clock.first_ns, (deltas[:good], codes[:good])
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
        pa = pyarrow()
        try:
            for deltas, codes, end in framed_batches(self.path):
                rows, at = rows + len(codes), end
                yield deltas, codes
            for batch in library_batches(self.path, at, rows):
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
    at = 0
    for begin in (max(len(codes) - TAIL_ROWS, 0), 0):  # it is near the end, mostly
        tail = codes[begin:]
        timed = np.flatnonzero((tail < layout.CODE_ANCHOR) | (tail >= layout.CODE_BEAT))
        if len(timed):
            at = begin + int(timed[-1])
            break
    if at > 0 and codes[at - 1] == layout.CODE_ANCHOR:
        at -= 1
    if at > 0 and codes[at - 1] == layout.CODE_HIGH:
        at -= 1
    return at


class ShardClock:
    """Follows the times of a shard, piece by piece, up to where they can be.

    Each absolute time must come in two rows, and be no earlier than the one before and what passed
    since.

    Attributes:
        first_ns: time of the first row of the last piece that has one, ns since the process's base.
        now_ns: time at the end of the last piece.
    """

    def __init__(self) -> None:
        self.first_ns: int = 0
        self.now_ns: int = 0
        self._is_anchored: bool = False

    def follow(self, rows: Rows) -> int:
        """How many of the next rows are sound.

        Raises:
            ProfileError: if the C extension was not built.
        """
        passed: Any = sweep_extension().pass_rows
        found: tuple[int, int, int, bool] = passed(*rows, self.now_ns, self._is_anchored)
        sound, self.first_ns, self.now_ns, self._is_anchored = found
        return sound


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

"""A curve as lines of text: braille characters, each 2 dots wide and 4 dots high."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence

_EMPTY = 0x2800
# Bit of the dot in column 0 or 1 and row 0 (top) to 3, as Unicode numbers them.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_LEAST_WIDTH, _LEAST_HEIGHT = 12, 3
_LARGEST_IN_G = 1e13  # 9,999G; from here on, digits would fill the page


def chart(
    points: Sequence[tuple[float, float]], width: int, height: int, last: float = 0.0
) -> list[str]:
    """Draw a curve with the ends of its axes.

    Points that fall into one column of dots are averaged, and neighbors are joined.

    Args:
        points: (x, y), finite, x at least 0 and rising.
        width: characters, labels included.
        height: lines, that of the horizontal axis included.
        last: where the horizontal axis ends, if no point lies further; it begins at 0.

    Returns:
        At most `height` lines of at most `width` characters; none without points.
    """
    if not points or width < _LEAST_WIDTH or height < _LEAST_HEIGHT:
        return []
    low, high = _limits([y for _, y in points])
    labels = (short(high), short(low))
    margin = max(map(len, labels)) + 1
    columns, rows = 2 * max(2, width - margin - 1), 4 * (height - 1)
    dots = _Dots(columns, rows)
    last = max(last, points[-1][0])
    shares = [(x, _share(y, low, high)) for x, y in points]
    placed = _averaged(shares, last, columns)
    dots.join([(x, round(share * (rows - 1))) for x, share in placed])
    drawn = dots.lines()
    shown = {0: labels[0], len(drawn) - 1: labels[1]}
    lines = [
        f"{shown.get(number, ''):>{margin - 1}} {'┤' if number in shown else '│'}{line}"
        for number, line in enumerate(drawn)
    ]
    begin, end = "0", f"{short(last)} env_steps"
    gap = width - margin - 1 - len(begin) - len(end)
    axis = f"{begin}{' ' * gap}{end}" if gap > 0 else short(last).rjust(width - margin - 1)
    return [*lines, " " * (margin + 1) + axis]


def short(value: float) -> str:
    """A number in at most some eight characters: 12.5, 1,200, 15k, 2.5M, 1e+308."""
    if abs(value) >= _LARGEST_IN_G:
        return f"{value:.3g}"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if letter == "k" else size)
            return f"{scaled:.3g}{letter}" if abs(scaled) < 1000 else f"{scaled:,.0f}{letter}"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the vertical axis; apart, also where all values are equal."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    room = max(1.0, abs(high) * 0.1)
    return max(low - room, -sys.float_info.max), min(high + room, sys.float_info.max)


def _share(value: float, low: float, high: float) -> float:
    """Where a value lies between the limits, of 1."""
    if math.isfinite(high - low):  # a stranger's may be farther apart than floats go
        return (value - low) / (high - low)
    return (value / 2 - low / 2) / (high / 2 - low / 2)


def _averaged(
    points: Sequence[tuple[float, float]], last: float, columns: int
) -> list[tuple[int, float]]:
    """One point for each column of dots that has any."""
    sums: dict[int, list[float]] = {}
    for x, y in points:
        along = min(1.0, max(0.0, x / last)) if last > 0 else 0.0
        sums.setdefault(round(along * (columns - 1)), []).append(y)
    return [(column, sum(ys) / len(ys)) for column, ys in sorted(sums.items())]


class _Dots:
    """A grid of dots, all off at first."""

    def __init__(self, columns: int, rows: int) -> None:
        self._rows = rows
        self._cells = [[_EMPTY] * (columns // 2) for _ in range(rows // 4)]

    def join(self, points: Sequence[tuple[int, int]]) -> None:
        """Switch on a line through points (column, height above the lowest row)."""
        for x, y in points[:1]:
            self._switch_on(x, y)
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            steps = max(abs(x1 - x0), abs(y1 - y0))
            for step in range(1, steps + 1):
                self._switch_on(
                    round(x0 + (x1 - x0) * step / steps), round(y0 + (y1 - y0) * step / steps)
                )

    def _switch_on(self, x: int, y: int) -> None:
        from_top = self._rows - 1 - y
        self._cells[from_top // 4][x // 2] |= _DOTS[x % 2][from_top % 4]

    def lines(self) -> list[str]:
        return ["".join(map(chr, row)) for row in self._cells]

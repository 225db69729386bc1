"""Which operations the training spent its time on, while the profiler records it.

The profiler's marks keep running totals for the thread that trains; between two rows of progress
their differences make up the whole time. With worker processes, stepping happens elsewhere: the
training's own time is then `collection`, waiting for them.
"""

from __future__ import annotations

from redline.profile import marks

OPERATIONS = (
    "inference",
    "simulation",
    "collection",  # what of collecting is neither of the above
    "replay",
    "learning",  # without backpropagation, if that is told apart
    "backpropagation",
    "logging",
    "evaluation",
    "checkpoint",
    marks.OTHER,
)
PREFIX = "time_share/"
COLUMNS = tuple(PREFIX + name for name in OPERATIONS)

__all__ = ["COLUMNS", "OPERATIONS", "PREFIX", "OperationShares"]


class OperationShares:
    """Shares of the time since the last row, for the thread that makes and asks this."""

    def __init__(self) -> None:
        self._before_ns = marks.operation_times()

    @property
    def recording(self) -> bool:
        """Whether the marks were recorded when this began."""
        return bool(self._before_ns)

    def take(self) -> dict[str, float]:
        """The share of each of `OPERATIONS`, of 1, and a new beginning.

        They sum to 1: `other` is what no mark covers, and what marks of other names do. Empty if
        nothing is recorded.
        """
        now_ns = marks.operation_times()
        if not self._before_ns or not now_ns:
            return {}
        spent_ns = {name: ns - self._before_ns.get(name, 0) for name, ns in now_ns.items()}
        self._before_ns = now_ns
        whole_ns = sum(spent_ns.values())
        if whole_ns <= 0:
            return {}
        shares = {name: spent_ns.get(name, 0) / whole_ns for name in OPERATIONS[:-1]}
        return shares | {marks.OTHER: max(0.0, 1.0 - sum(shares.values()))}

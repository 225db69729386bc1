"""What rows say of the collector: how old its rollouts were, and which workers were replaced."""

from __future__ import annotations

from redline.collect import Collector
from redline.train.progress.console import Console

__all__ = ["CollectorColumns"]


class CollectorColumns:
    """How many versions the rollouts since the last row were behind, if they may be.

    Also how many workers were replaced, where a run goes on without them.

    Attributes:
        staleness: of each rollout since the last row, in versions.
    """

    def __init__(self) -> None:
        self.staleness: list[int] = []
        self._said = 0  # of those who were replaced

    def say_who_was_replaced(self, collector: Collector, console: Console) -> None:
        """Warn of each worker that has died and was replaced since the last look."""
        replaced = collector.replaced or []
        if len(replaced) < self._said:  # of a collector that was made anew
            self._said = 0
        for sentence in replaced[self._said :]:
            console.warning(sentence)
        self._said = len(replaced)

    @staticmethod
    def names(collector: Collector) -> list[str]:
        """Those that a run has."""
        found = ["staleness_mean", "staleness_max"] if collector.max_staleness > 0 else []
        return found + ([] if collector.replaced is None else ["workers_replaced"])

    def take(self, collector: Collector) -> dict[str, float | None]:
        """The columns of a row; and start anew."""
        staleness, self.staleness = self.staleness, []
        columns: dict[str, float | None] = dict.fromkeys(self.names(collector))
        if collector.max_staleness > 0 and staleness:
            columns["staleness_mean"] = sum(staleness) / len(staleness)
            columns["staleness_max"] = max(staleness)
        if collector.replaced is not None:
            columns["workers_replaced"] = len(collector.replaced)
        return columns

    def restore(self, staleness: list[int], collector: Collector) -> None:
        """Go on from a checkpoint, whose collector said already who had been replaced."""
        self.staleness = list(staleness)
        self._said = len(collector.replaced or ())

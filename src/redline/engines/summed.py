"""Captured updates that sum their metrics themselves, so that the host launches nothing more.

To read a metric is to wait for the device, so metrics are summed there and read once for each row
(`train/loops/metric_means.py`). Ten of them are twenty launches of the host, unless the graph adds
them up. The same holds for running statistics of what is learned from, such as those that
normalize observations: forty launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from redline.algos.algorithm import Algorithm, metrics_of
from redline.devices import widest_float
from redline.engines.cudagraph import CapturedStep
from redline.engines.engine import Engine

Learn = Callable[[Any, Any], dict[str, Any]]


class BatchStatistics(Protocol):
    """Running statistics of batches, kept where the update is, so that its graph moves them on."""

    def before(self, batch: Any, /) -> Any:
        """The batch as it is to be learned from; the one given is left as it is."""
        ...

    def after(self, batch: Any, /) -> None:
        """Take in what was learned from."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Name -> the memory of what changes, beside what the algorithm's own state holds."""
        ...


class SummedUpdates:
    """Updates of an algorithm, whose metrics are added up where they are.

    To whoever runs it, it is an algorithm.

    Args:
        algorithm: what learns.
        statistics: of its batches, moved on by every update; None: there are none.

    Attributes:
        inner: where the algorithm is.
        algorithm: as given.
        device: of the algorithm.
        totals: name -> [] sums of each metric since they were last set to 0.
    """

    inner = "algorithm"

    def __init__(self, algorithm: Any, statistics: BatchStatistics | None = None) -> None:
        self.algorithm: Any = algorithm
        self._statistics = statistics
        self.device: torch.device = algorithm.device
        self.totals: dict[str, Tensor] = {}
        self._carried = {name: t.clone() for name, t in algorithm.carried_metrics().items()}

    def update(self, batch: Any) -> dict[str, Tensor]:
        """The update as it is written.

        Args:
            batch: as for the algorithm's `update`.

        Returns:
            "priority", if there is one; metrics are in `totals`.
        """
        batch = self._before(batch)
        found = self._summed(self.algorithm.update(batch))
        self._after(batch)
        return found

    def begin(self) -> Any:
        """Count it; which parts have their turn, as the algorithm's `begin_update`."""
        self.settle()
        return self.algorithm.begin_update()

    def learn(self, batch: Any, turns: Any, learn: Learn) -> dict[str, Tensor]:
        """The same without the counting; nothing here depends on counts.

        Args:
            batch: as for `update`.
            turns: as `begin` gave.
            learn: the algorithm's `learn`, compiled or not.
        """
        batch = self._before(batch)
        found = self._summed(self.algorithm.reported(learn(batch, turns)))
        self._after(batch)
        self.settle()
        return found

    def settle(self) -> None:
        """Let metrics that are reported again lie where every launch looks for them."""
        kept = self.algorithm.carried_metrics()
        for name, memory in self._carried.items():
            if kept[name] is not memory:
                memory.copy_(kept[name])
                kept[name] = memory

    def _before(self, batch: Any) -> Any:
        return batch if self._statistics is None else self._statistics.before(batch)

    def _after(self, batch: Any) -> None:
        if self._statistics is not None:
            self._statistics.after(batch)

    def _summed(self, found: Mapping[str, Any]) -> dict[str, Tensor]:
        metrics = metrics_of(self.algorithm, found)
        priority = metrics.pop("priority", None)
        dtype = widest_float(self.device)
        for name, value in metrics.items():
            if name not in self.totals:
                self.totals[name] = torch.zeros((), dtype=dtype, device=self.device)
            self.totals[name].add_(value.to(dtype) if isinstance(value, Tensor) else value)
        return {} if priority is None else {"priority": priority}

    def state_dict(self) -> dict[str, Any]:
        """The algorithm's, the sums, and the statistics."""
        statistics = {} if self._statistics is None else self._statistics.tensors()
        return self.algorithm.state_dict() | {
            "metrics": dict(self.totals),
            "statistics": statistics,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, in place."""
        own = ("metrics", "statistics")
        self.algorithm.load_state_dict({n: part for n, part in state.items() if n not in own})
        self.settle()
        for name, total in self.totals.items():
            saved = state["metrics"].get(name)
            total.zero_() if saved is None else total.copy_(saved)
        for name, live in self._statistics.tensors().items() if self._statistics else ():
            live.copy_(state["statistics"][name])


def with_sums(
    engine: Engine,
    algorithm: Algorithm,
    *,
    borrows: bool,
    statistics: BatchStatistics | None = None,
) -> tuple[SummedUpdates, Engine] | None:
    """An engine whose graph adds up the metrics, too; None: it captures no whole update.

    Args:
        engine: what was chosen for the algorithm.
        algorithm: what learns.
        borrows: see `CapturedStep`.
        statistics: of its batches, which the graph moves on; None: there are none.
    """
    if engine.learn is None:
        return None
    learn, updates = engine.learn, SummedUpdates(algorithm, statistics)
    captured = CapturedStep(
        lambda batch, turns: updates.learn(batch, turns, learn),
        updates,
        borrows=borrows,
        is_compiled=engine.compiled is not None,
    )

    def update(batch: Any) -> Mapping[str, Any]:
        return captured(batch, updates.begin())

    return updates, replace(engine, update=update, captured=captured)

"""How a run's updates are made: by an engine, held to the written update on the first batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from redline.engines.engine import Engine
from redline.engines.sampled import SampledUpdates, with_sampling
from redline.engines.self_check import CheckedUpdate
from redline.engines.summed import BatchStatistics, with_sums
from redline.train.settings import RunConfig


class Updating:
    """The engine of a run.

    Args:
        config: all settings.
        engine: what was chosen.
        algorithm: what learns.
        report: told the problem, if engine and written update disagree.
        borrows: whether a captured update may read its batches where they are.
        statistics: of batches, which updates that sum their metrics move on; None: there are none.

    Attributes:
        engine: in use.
        update: batch -> metrics that are not in `sums`.
        sums: name -> [] that updates add their metrics to; None: they do not.
    """

    def __init__(
        self,
        config: RunConfig,
        engine: Engine,
        algorithm: Any,
        report: Callable[[str], None],
        *,
        borrows: bool,
        statistics: BatchStatistics | None = None,
    ) -> None:
        self.engine, self._report = engine, report
        self._is_checked = config.run.self_check and bool(engine.checked_at)
        self.sums: dict[str, Tensor] | None = None
        learner, summed = (
            algorithm,
            with_sums(engine, algorithm, borrows=borrows, statistics=statistics),
        )
        if summed is not None:
            learner, self.engine = summed
            self.sums = learner.totals
        self.update: Callable[[Any], Mapping[str, Any]] = self._checked(learner, self.engine)

    def capture(self, updates: SampledUpdates) -> Callable[[int], Any] | None:
        """What makes a number of updates with their draws; None if the engine captures none."""
        engine = with_sampling(self.engine, updates)
        if engine is None:
            return None
        self.engine = engine
        return self._checked(updates, engine)

    def _checked(self, algorithm: Any, engine: Engine) -> Callable[[Any], Mapping[str, Any]]:
        if not self._is_checked:
            return engine.update
        return CheckedUpdate(algorithm, engine, self._report)

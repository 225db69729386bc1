"""Which state of a run is kept as its best one: that which was evaluated, not that of later.

Another process evaluates a copy while learning goes on. Once it tells how good that was, the
learner's weights are others. So what is evaluated there is kept until then.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redline.train.checkpoint.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class Moment:
    """What a checkpoint holds of a run.

    Attributes:
        env_steps: where the run stands.
        state: everything the next iteration depends on.
        metadata: what `redline inspect` shows.
    """

    env_steps: int
    state: dict[str, Any]
    metadata: dict[str, Any]


class BestStates:
    """Keeps the best state of a run.

    Args:
        store: of its checkpoints.
        now: gives the present moment, whose tensors go on learning.
        require_sound: refuses a state that is not finite.
        by_evaluation: whether evaluations decide, without a callback's help.

    Attributes:
        by_evaluation: as it was given.
    """

    def __init__(
        self,
        store: CheckpointStore,
        now: Callable[[], Moment],
        require_sound: Callable[[Moment], None],
        *,
        by_evaluation: bool,
    ) -> None:
        self._store, self._now, self._require_sound = store, now, require_sound
        self.by_evaluation = by_evaluation
        self._sent: Moment | None = None
        self._told: Moment | None = None

    def send(self) -> None:
        """Another process evaluates the present moment."""
        self._sent = copy.deepcopy(self._now())

    @contextmanager
    def told(self, score: float) -> Iterator[None]:
        """An evaluation has ended; inside, `keep` means what was evaluated.

        Args:
            score: what it found; NaN is never the best.
        """
        self._told, self._sent = self._sent, None
        try:
            if self.by_evaluation:
                best = self._store.best_score
                if score > (-float("inf") if best is None else best):
                    self.keep(score)
            yield
        finally:
            self._told = None

    def keep(self, score: float) -> Path:
        """Write a checkpoint as the best one.

        Args:
            score: what makes it the best.

        Raises:
            DivergenceError: if it is not finite.
        """
        moment = self._told or self._now()
        self._require_sound(moment)
        return self._store.save_best(
            moment.env_steps, moment.state, moment.metadata, score=float(score)
        )

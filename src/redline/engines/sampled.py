"""K updates with their draws from replay as one captured graph.

Where replay lies on the learner's device, an iteration's updates need nothing of the host: draws,
learning, priorities, target networks and the sums of metrics are one graph, and the host launches
it once. What changes from launch to launch is read from tensors: the exponent of the importance
weights, step sizes, the number of rows in replay, the positions of the generators.

| changes | is |
|---|---|
| which parts have their turn | a graph of its own for each pattern of K updates |
| K | likewise; more than `MOST_UPDATES` are several launches |
| replay's memory, where that grows | a reason to capture anew |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from redline.algos.algorithm import OffPolicyAlgorithm
from redline.engines.cudagraph import CapturedStep
from redline.engines.engine import Engine
from redline.engines.summed import Learn, SummedUpdates
from redline.replay import Replay

MOST_UPDATES = 32  # of one graph: a hundred operators each, and memory for what each returns
MOST_PATTERNS = 16  # of turns that get a graph of their own; beyond, updates are launched singly

Turns = tuple[tuple[bool, ...], ...]


class SampledUpdates(SummedUpdates):
    """Updates of an algorithm from a replay on its device, whose batch is how many to make.

    Args:
        algorithm: what learns.
        replay: on the algorithm's device.
        generator: draws from replay, on that device.
        batch_size: N.
        beta: [] float64 exponent of the importance weights; whoever made it may change it.
        prepared: batch as drawn -> as learned from.

    Attributes:
        replay: as given.
        generator: as given.
        beta: as given.
    """

    def __init__(
        self,
        algorithm: OffPolicyAlgorithm,
        replay: Replay,
        generator: torch.Generator,
        batch_size: int,
        beta: Tensor,
        prepared: Callable[[Any], Any],
    ) -> None:
        super().__init__(algorithm)
        self.replay, self.generator, self.beta = replay, generator, beta
        self._batch_size, self._prepared = batch_size, prepared

    def update(self, batch: int) -> dict[str, Tensor]:
        """Make that many updates as they are written; their metrics are in `totals`."""
        for _ in range(batch):
            drawn = self._drawn()
            self._give_back(drawn, super().update(self._prepared(drawn)))
        return {}

    def begin_many(self, count: int) -> Turns:
        """Count `count` updates; which parts have their turn in each."""
        return tuple(self.begin() for _ in range(count))

    def learn_many(self, turns: Turns, learn: Learn) -> None:
        """The same updates without their counting; nothing here depends on counts.

        Args:
            turns: as `begin_many` gave.
            learn: the algorithm's `learn`, compiled or not.
        """
        for turn in turns:
            drawn = self._drawn()
            self._give_back(drawn, self.learn(self._prepared(drawn), turn, learn))

    def _drawn(self) -> Any:
        return self.replay.sample(self._batch_size, self.generator, beta=self.beta)

    def _give_back(self, drawn: Any, found: dict[str, Tensor]) -> None:
        if "priority" in found and self.replay.config.prioritized:
            self.replay.update_priorities(self.replay.index_of(drawn), found["priority"])

    def state_dict(self) -> dict[str, Any]:
        """The algorithm's, and what else updates change."""
        return super().state_dict() | {
            "replay_generator": self.generator.get_state(),
            "priorities": self.replay.priorities(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave, in place."""
        own = ("replay_generator", "priorities")
        super().load_state_dict({n: part for n, part in state.items() if n not in own})
        self.generator.set_state(state["replay_generator"])
        for name, live in self.replay.priorities().items():
            live.copy_(state["priorities"][name])


class _Launcher:
    """Makes updates by launching graphs; arguments as for `with_sampling`."""

    def __init__(
        self, updates: SampledUpdates, learn: Callable[..., Any], *, is_compiled: bool
    ) -> None:
        self._updates = updates
        self.captured = CapturedStep(
            lambda turns: updates.learn_many(turns, learn), updates, is_compiled=is_compiled
        )
        self._patterns: set[Turns] = set()
        self._memory = updates.replay.memory_version

    def __call__(self, count: int) -> dict[str, Tensor]:
        turns = self._updates.begin_many(count)
        if self._memory != self._updates.replay.memory_version:
            self._memory = self._updates.replay.memory_version
            self.captured.forget()
        for first in range(0, count, MOST_UPDATES):
            self._launch(turns[first : first + MOST_UPDATES])
        return {}

    def _launch(self, turns: Turns) -> None:
        if turns in self._patterns or len(self._patterns) < MOST_PATTERNS:
            self._patterns.add(turns)
            self.captured(turns)
            return
        for turn in turns:
            self.captured((turn,))


def with_sampling(engine: Engine, updates: SampledUpdates) -> Engine | None:
    """An engine's updates with their draws, as one graph; None: it captures no whole update.

    Args:
        engine: what was chosen for the algorithm.
        updates: of the same algorithm.
    """
    if engine.learn is None:
        return None
    launcher = _Launcher(updates, engine.learn, is_compiled=engine.compiled is not None)
    reason = f"{engine.reason}, with its draws from replay"
    return replace(engine, update=launcher, reason=reason, captured=launcher.captured)

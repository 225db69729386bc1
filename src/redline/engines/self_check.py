"""Every engine is held to the written update on the run's first real batches.

Both learn from the same batch, starting from the same state: the algorithm's own update, then the
engine's. Parameters, optimizer memory, target networks and metrics must agree. If they do, the
engine's result stands and the run goes on as if nothing had happened: the state, and every random
generator that either may draw from, are put back in between. If not, the eager result stands and
the run stays eager.

That is done for the first update, for a few later ones (`Engine.checked_at`), and for the first one
of every other kind: where the actor or a target network has its turn only once in several updates
(`INTERVALS`), the first update would show nothing of it. A check that takes more than a second is
made once.

`engines/differences.py` says what is compared and what is allowed; whole numbers and words that the
algorithm holds beside its state, and the global generators, must be equal. Where they differ by
more, and the written update differs from itself by as much as soon as it begins a few units in the
last place beside (`engines/rounding.py`), nothing was learned about the engine: its result stands,
and the next update is compared in place of this one.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn import Module

from redline.algos.algorithm import metrics_of
from redline.algos.optimizers import Optimizer
from redline.engines.differences import Difference, compare
from redline.engines.engine import Engine, Update, inner_of
from redline.engines.rounding import is_rounding
from redline.engines.snapshot import (
    Snapshot,
    generator_states,
    owners_of,
    restore,
    snapshot,
)
from redline.engines.summed import SummedUpdates
from redline.engines.watch import NetworksWatch
from redline.errors import CaptureError

_LONG_S = 1.0
_IN_A_ROW = 10  # comparisons that said nothing
CANNOT_CAPTURE = "cannot capture"
CANNOT_COMPARE = "cannot be compared"
INTERVALS = ("actor_update_interval", "policy_delay", "target_update_interval")
"""Settings that give a part of the update its turn once in so many updates."""


class CheckedUpdate:
    """An engine's update that compares itself with the written one when it begins.

    Args:
        algorithm: what learns; its batches may be numbers of updates to make, as for
            `SampledUpdates`.
        engine: runs its update.
        report: told one sentence if the two disagree; the engine is not used from then on.

    Attributes:
        engine: runs the update.
        agrees: None before the first comparison that said anything, then whether the two agreed.
    """

    def __init__(self, algorithm: Any, engine: Engine, report: Callable[[str], None]) -> None:
        self._algorithm, self.engine, self._report = algorithm, engine, report
        self._update: Update = engine.update
        self._left, self._calls = set(engine.checked_at), 0
        self._counter, self._watch = inner_of(algorithm), NetworksWatch(algorithm)
        self._turns = _turns(self._counter) if engine.checked_at else {}
        self.agrees: bool | None = None
        self._due: dict[str, int] = {}  # turns that the update which is compared shows
        self._undecided = 0

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """Improve the algorithm from one batch."""
        if self._watch.changed() and self.agrees is not False:
            return self._compare(batch)  # a graph of it is captured anew, or cannot be
        if (self._left or self._turns) and self._is_new(batch):
            return self._compare(batch)
        return self._update(batch)

    def _is_new(self, batch: Any) -> bool:
        """Whether the coming update does anything that has not been compared."""
        call, self._calls = self._calls, self._calls + 1
        made = getattr(self._counter, "updates", call)
        count = batch if isinstance(batch, int) else 1
        turns = self._turns.items()
        self._due = {n: every for n, every in turns if (made + count) // every > made // every}
        for name in self._due:
            del self._turns[name]
        is_new = call in self._left or bool(self._due)
        self._left.discard(call)
        return is_new

    def _compare(self, batch: Any) -> Mapping[str, Any]:
        algorithm = self._algorithm
        began_s = time.perf_counter()
        before = snapshot(algorithm)
        eager_metrics = metrics_of(algorithm, algorithm.update(copy.deepcopy(batch)))
        eager = snapshot(algorithm)
        restore(algorithm, before)
        if time.perf_counter() - began_s > _LONG_S:
            self._left = set()  # what has its turn only later is still looked at once
        try:
            metrics = dict(self._update(batch))
        except CaptureError as error:
            written = algorithm.algorithm if isinstance(algorithm, SummedUpdates) else algorithm
            problem = f"{CANNOT_CAPTURE} {type(written).__name__}: {error}"
            return self._fall_back(eager, eager_metrics, problem)
        except Exception as error:  # noqa: BLE001 - whatever an engine fails with, the run goes on
            return self._fall_back(eager, eager_metrics, f"failed with {error!r}")
        worst = compare(before.state, eager.state, algorithm.state_dict(), eager_metrics, metrics)
        if generator_states(algorithm)[:3] != eager.generators[:3]:
            worst = Difference("the random numbers of torch, numpy or Python", float("inf"))
        if (name := _other_count(algorithm, eager)) is not None:
            worst = Difference(f"the attribute {name}", float("inf"))
        if worst.times <= 1.0:
            self.agrees, self._undecided = True, 0
            return metrics
        ended = snapshot(algorithm)
        name = parameter_name(algorithm, worst.name)
        if is_rounding(algorithm, batch, before, eager, eager_metrics, worst):
            restore(algorithm, ended)
            return self._undecided_by(name, eager, eager_metrics, metrics)
        by = f"by {worst.times:.3g} times what rounding explains" if worst.times < 1e30 else ""
        problem = f"changed {name} otherwise than the update as it is written {by}".rstrip()
        return self._fall_back(eager, eager_metrics, problem)

    def _undecided_by(
        self, name: str, eager: Snapshot, eager_metrics: Mapping[str, Any], metrics: dict[str, Any]
    ) -> Mapping[str, Any]:
        """Look at the next update, and the next of its kind, in place of this one.

        The engine's result stands, as it does where a killed run that goes on compares other
        updates: both end with the same bits.
        """
        self._undecided += 1
        if self._undecided < _IN_A_ROW:
            self._left.add(self._calls)
            self._turns |= self._due
        elif self.agrees is None:
            return self._fall_back(
                eager,
                eager_metrics,
                f"{CANNOT_COMPARE} with the update as it is written: in {_IN_A_ROW} updates "
                f"rounding alone changed {name} by more than is allowed",
            )
        return metrics

    def _fall_back(
        self, eager: Snapshot, metrics: Mapping[str, Any], problem: str
    ) -> Mapping[str, Any]:
        restore(self._algorithm, eager)
        self.agrees, self._update = False, self._algorithm.update
        self._left, self._turns = set(), {}
        self._report(
            f"the {self.engine.name} engine {problem}. The run goes on in eager mode, which is "
            f"right and slower. {_advice(problem)}"
        )
        return metrics


def _advice(problem: str) -> str:
    if problem.startswith(CANNOT_CAPTURE):
        return "docs/gpu.md says what a captured update may not do."
    if problem.startswith(CANNOT_COMPARE):
        return "A smaller learning rate or fewer epochs make the update depend less on it."
    return "Please report this with the run's config.json."


def _other_count(algorithm: Any, eager: Snapshot) -> str | None:
    """The first attribute with another number or word than after the written update.

    A graph holds what Python counted while it was captured, and counts no further. Where the count
    is no part of the state, nothing else would show it.
    """
    owners = owners_of(algorithm)
    for (number, name), (value, _) in eager.attributes.items():
        if isinstance(value, (bool, int, str)) and vars(owners[number]).get(name) != value:
            return name
    return None


def _turns(algorithm: Any) -> dict[str, int]:
    """Name of a setting in `INTERVALS` -> updates between turns."""
    config = getattr(algorithm, "config", None)
    return {name: getattr(config, name) for name in INTERVALS if getattr(config, name, 1) > 1}


def parameter_name(algorithm: Any, entry: str) -> str:
    """What to call an entry of the state: optimizers number their parameters, people name them."""
    part, _, rest = entry.partition(".")
    number, _, what = rest.partition(".")
    for owner in owners_of(algorithm):
        optimizer = getattr(owner, part, None)
        if isinstance(optimizer, Optimizer) and number.isdigit():
            parameter = optimizer.parameters[int(number)]
            for name, module in vars(owner).items():
                for inside, own in module.named_parameters() if isinstance(module, Module) else ():
                    if own is parameter:
                        return f"{name}.{inside} ({what} of its {part})"
    return entry

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

| compared | the engine's may differ by |
|---|---|
| a tensor of the state | 1% of how far the eager update moved it, and 1e-6 of its size (L2 norms) |
| a metric | 1%, and 1e-5 |
| numbers and generators of the state, global generators | nothing |
| whole numbers and words that the algorithm holds beside its state | nothing |

Optimizer memory is part of the state, and that is where most faults show: Adam's first step has
the size of the learning rate whatever the gradient's, but its moments are the gradient's.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from redline.algos.algorithm import metrics_of
from redline.algos.optimizers import Optimizer
from redline.engines.engine import Engine, Update, inner_of
from redline.engines.snapshot import (
    Snapshot,
    generator_states,
    owners_of,
    restore,
    snapshot,
)
from redline.engines.summed import SummedUpdates
from redline.errors import CaptureError

TOLERANCE = 0.01
_ROUNDING = 1e-6  # some units in the last place of float32
_METRIC_ROUNDING = 1e-5
_LONG_S = 1.0
CANNOT_CAPTURE = "cannot capture"
INTERVALS = ("actor_update_interval", "policy_delay", "target_update_interval")
"""Settings that give a part of the update its turn once in so many updates."""


class Difference(NamedTuple):
    """Where two updates differ the most.

    Attributes:
        name: entry of the algorithm's state, or metric.
        times: by how many times of what is allowed; infinite for what must be equal.
    """

    name: str
    times: float


class CheckedUpdate:
    """An engine's update that compares itself with the written one when it begins.

    Args:
        algorithm: what learns; its batches may be numbers of updates to make, as for
            `SampledUpdates`.
        engine: runs its update.
        report: told one sentence if the two disagree; the engine is not used from then on.

    Attributes:
        engine: runs the update.
        agrees: None before the first comparison, then whether the two agreed.
    """

    def __init__(self, algorithm: Any, engine: Engine, report: Callable[[str], None]) -> None:
        self._algorithm, self.engine, self._report = algorithm, engine, report
        self._update: Update = engine.update
        self._left, self._calls = set(engine.checked_at), 0
        self._counter = inner_of(algorithm)
        self._turns = _turns(self._counter) if engine.checked_at else {}
        self.agrees: bool | None = None

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """Improve the algorithm from one batch."""
        if (self._left or self._turns) and self._is_new(batch):
            return self._compare(batch)
        return self._update(batch)

    def _is_new(self, batch: Any) -> bool:
        """Whether the coming update does anything that has not been compared."""
        call, self._calls = self._calls, self._calls + 1
        made = getattr(self._counter, "updates", call)
        count = batch if isinstance(batch, int) else 1
        due = [n for n, every in self._turns.items() if (made + count) // every > made // every]
        for name in due:
            del self._turns[name]
        is_new = call in self._left or bool(due)
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
            self.agrees = True
            return metrics
        by = f"by {worst.times:.3g} times what rounding explains" if worst.times < 1e30 else ""
        name = parameter_name(algorithm, worst.name)
        problem = f"changed {name} otherwise than the update as it is written {by}".rstrip()
        return self._fall_back(eager, eager_metrics, problem)

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


def compare(
    before: Mapping[str, Any],
    eager: Mapping[str, Any],
    engine: Mapping[str, Any],
    eager_metrics: Mapping[str, Any],
    engine_metrics: Mapping[str, Any],
) -> Difference:
    """The greatest difference of two updates, in units of what is allowed.

    Args:
        before: the algorithm's state that both began with.
        eager: its state after the written update.
        engine: its state after the engine's.
        eager_metrics: what the written update returned.
        engine_metrics: what the engine's returned.
    """
    worst = Difference("nothing", 0.0)
    start, found = dict(_leaves(before)), dict(_leaves(engine))
    expected = dict(_leaves(eager))
    if expected.keys() != found.keys():
        return Difference(min(expected.keys() ^ found.keys()), float("inf"))
    for name, value in expected.items():
        worst = max(worst, _state_difference(name, start.get(name), value, found[name]), key=_times)
    if eager_metrics.keys() != engine_metrics.keys():
        missing = min(eager_metrics.keys() ^ engine_metrics.keys())
        return Difference(f"the metric {missing}", float("inf"))
    for name, value in eager_metrics.items():
        times = _metric_difference(value, engine_metrics[name])
        worst = max(worst, Difference(f"the metric {name}", times), key=_times)
    return worst


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


def _times(difference: Difference) -> float:
    return difference.times


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from _leaves(part, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree


def _state_difference(name: str, before: Any, eager: Any, engine: Any) -> Difference:
    if isinstance(eager, np.ndarray):
        before, eager, engine = (torch.as_tensor(each) for each in (before, eager, engine))
    if not isinstance(eager, Tensor):
        return Difference(name, 0.0 if eager == engine else float("inf"))
    if eager.shape != engine.shape:
        return Difference(name, float("inf"))
    if not eager.is_floating_point():
        return Difference(name, 0.0 if torch.equal(eager, engine) else float("inf"))
    eager, engine = eager.double(), engine.double()
    moved = eager - before.double() if isinstance(before, Tensor) else eager
    return Difference(name, _ratio(engine - eager, moved, eager, eager, engine))


def _ratio(error: Tensor, moved: Tensor, size: Tensor, eager: Tensor, engine: Tensor) -> float:
    """Norm of an error over what is allowed; two results that are equally no numbers agree."""
    strange = ~torch.isfinite(eager)
    if not torch.equal(strange, ~torch.isfinite(engine)):
        return float("inf")
    norms = [part.masked_fill(strange, 0.0).norm().item() for part in (error, moved, size)]
    allowed = TOLERANCE * norms[1] + _ROUNDING * norms[2]
    return 0.0 if norms[0] == 0.0 else norms[0] / max(allowed, 1e-30)


def _metric_difference(eager: Any, engine: Any) -> float:
    eager, engine = torch.as_tensor(eager).double().cpu(), torch.as_tensor(engine).double().cpu()
    if eager.shape != engine.shape:
        return float("inf")
    strange = ~torch.isfinite(eager)
    if not torch.equal(strange, ~torch.isfinite(engine)):
        return float("inf")
    error = (engine - eager).masked_fill(strange, 0.0).norm().item()
    size = eager.masked_fill(strange, 0.0).norm().item()
    return error / (TOLERANCE * size + _METRIC_ROUNDING * max(eager.numel(), 1) ** 0.5)

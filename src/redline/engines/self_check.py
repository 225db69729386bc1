"""Every engine is held to the written update on the run's first real batch.

Both learn from that batch, starting from the same state: the algorithm's own update, then the
engine's. Parameters, optimizer memory, target networks and metrics must agree. If they do, the
engine's result stands and the run goes on as if nothing had happened: the state, and every random
generator that either may draw from, are put back in between. If not, the eager result stands and
the run stays eager.

| compared | the engine's may differ by |
|---|---|
| a tensor of the state | 1% of how far the eager update moved it, and float32 rounding |
| a metric | 1%, and 1e-5 |
| numbers and generators of the state | nothing |
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redline.engines.engine import Engine, Update

TOLERANCE = 0.01
_ROUNDING = 1e-6  # some units in the last place of float32
_METRIC_ROUNDING = 1e-5


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
        algorithm: what learns.
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
        self.agrees: bool | None = None

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """Improve the algorithm from one batch."""
        if not self._left:
            return self._update(batch)
        call, self._calls = self._calls, self._calls + 1
        if call not in self._left:
            return self._update(batch)
        self._left.discard(call)
        return self._compare(batch)

    def _compare(self, batch: Any) -> Mapping[str, Any]:
        algorithm = self._algorithm
        before = snapshot(algorithm)
        eager_metrics = dict(algorithm.update(batch))
        eager = snapshot(algorithm)
        restore(algorithm, before)
        try:
            metrics = dict(self._update(batch))
        except Exception as error:  # noqa: BLE001 - whatever an engine fails with, the run goes on
            return self._fall_back(eager, eager_metrics, f"failed with {error!r}")
        worst = compare(before.state, eager.state, algorithm.state_dict(), eager_metrics, metrics)
        if worst.times <= 1.0:
            self.agrees = True
            return metrics
        by = f"by {worst.times:.3g} times what rounding explains" if worst.times < 1e30 else ""
        problem = f"changed {worst.name} otherwise than the update as it is written {by}".rstrip()
        return self._fall_back(eager, eager_metrics, problem)

    def _fall_back(
        self, eager: Snapshot, metrics: Mapping[str, Any], problem: str
    ) -> Mapping[str, Any]:
        restore(self._algorithm, eager)
        self.agrees, self._left, self._update = False, set(), self._algorithm.update
        self._report(
            f"the {self.engine.name} engine {problem}. The run goes on in eager mode, which is "
            f"right and slower. Please report this with the run's config.json."
        )
        return metrics


class Snapshot(NamedTuple):
    """All that an update may depend on.

    Attributes:
        state: of the algorithm, in memory of its own.
        generators: of torch, numpy and Python, which networks and users' code may draw from.
    """

    state: dict[str, Any]
    generators: tuple[Any, ...]


def snapshot(algorithm: Any) -> Snapshot:
    """A copy of an algorithm's state and of the global generators."""
    cuda = torch.cuda.get_rng_state_all() if algorithm.device.type == "cuda" else None
    generators = (torch.get_rng_state(), cuda, np.random.get_state(), random.getstate())
    return Snapshot(_copied(algorithm.state_dict()), generators)


def restore(algorithm: Any, past: Snapshot) -> None:
    """Put everything back as it was."""
    algorithm.load_state_dict(_copied(past.state))
    cpu, cuda, numpy_state, python_state = past.generators
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    np.random.set_state(numpy_state)
    random.setstate(python_state)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(part) for part in value)
    return value


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


def _times(difference: Difference) -> float:
    return difference.times


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from _leaves(part, f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, tree


def _state_difference(name: str, before: Any, eager: Any, engine: Any) -> Difference:
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

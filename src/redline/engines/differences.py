"""By how much two results of one update differ, in units of what is allowed.

| compared | may differ by |
|---|---|
| a tensor of the state | 1% of how far the first update moved it, and 1e-6 of its size (L2 norms) |
| a metric | 1%, and 1e-5 |
| numbers and generators of the state | nothing |

Optimizer memory is part of the state, and that is where most faults show: Adam's first step has
the size of the learning rate whatever the gradient's, but its moments are the gradient's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redline.devices import widest_float

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
    elif isinstance(tree, (list, tuple)):
        yield f"{prefix}.length", len(tree)
        for number, part in enumerate(tree):
            yield from _leaves(part, f"{prefix}.{number}")
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
    wide = widest_float(eager.device)
    eager, engine = eager.to(wide), engine.to(wide)
    moved = eager - before.to(wide) if isinstance(before, Tensor) else eager
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
    eager, engine = torch.as_tensor(eager).cpu().double(), torch.as_tensor(engine).cpu().double()
    if eager.shape != engine.shape:
        return float("inf")
    strange = ~torch.isfinite(eager)
    if not torch.equal(strange, ~torch.isfinite(engine)):
        return float("inf")
    error = (engine - eager).masked_fill(strange, 0.0).norm().item()
    size = eager.masked_fill(strange, 0.0).norm().item()
    return error / (TOLERANCE * size + _METRIC_ROUNDING * max(eager.numel(), 1) ** 0.5)

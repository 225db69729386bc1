"""Whether rounding alone explains that two runs of one update ended apart.

An update of PPO is hundreds of steps of Adam. Most forget a difference in the last digit, some do
not: a row whose probability ratio lies on the edge of the clip range counts or does not, and from
there on the two go different ways. Two correct engines differ by far more than 1% then, and so does
the written update from itself, begun a few units in the last place beside. So that is tried: if it
ends as far apart, the comparison says nothing about the engine.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import torch
from torch.nn import Module

from redline.algos.algorithm import metrics_of
from redline.engines.differences import Difference, compare
from redline.engines.snapshot import Snapshot, owners_of, restore

_SHIFT = 3e-7  # of each parameter: some units in the last place of float32
_TRIES, _FEWEST = 8, 2  # one row may go the other way in one try, and not in the next
_LONG_S = 10.0
_AS_FAR = 10.0
"""By how many times more than the shifted update an engine may differ."""


def is_rounding(
    algorithm: Any,
    batch: Any,
    before: Snapshot,
    eager: Snapshot,
    eager_metrics: Any,
    worst: Difference,
) -> bool:
    """Whether the written update differs about as much from itself, begun a little beside.

    A shift that stays within what is allowed explains nothing, however little the engine is
    outside. Nor does one where the written update differs from itself without a shift: it depends
    on something that is not put back. The algorithm is left in an undefined state.

    Args:
        algorithm: what learns.
        batch: that it learned from.
        before: what both updates began with.
        eager: what the written update ended with.
        eager_metrics: what it returned.
        worst: by how much the engine differs from it.
    """
    if not math.isfinite(worst.times):
        return False
    generator = torch.Generator().manual_seed(0)
    began_s = time.perf_counter()
    for number in range(1 + _TRIES):
        if number > _FEWEST and time.perf_counter() - began_s > _LONG_S:
            return False
        restore(algorithm, before)
        if number > 0:
            _shift(algorithm, generator)
        metrics = metrics_of(algorithm, algorithm.update(copy.deepcopy(batch)))
        state = algorithm.state_dict()
        found = compare(before.state, eager.state, state, eager_metrics, metrics).times
        if number == 0 and found > 1.0:
            return False
        if found > 1.0 and worst.times <= _AS_FAR * found:
            return True
    return False


@torch.no_grad()
def _shift(algorithm: Any, generator: torch.Generator) -> None:
    """Change each parameter by what rounding does, by numbers of our own generator."""
    shifted = set()
    for owner in owners_of(algorithm):
        for module in vars(owner).values():
            for parameter in module.parameters() if isinstance(module, Module) else ():
                if parameter.is_floating_point() and id(parameter) not in shifted:
                    shifted.add(id(parameter))
                    noise = torch.randn(parameter.shape, generator=generator)
                    parameter.mul_(1.0 + _SHIFT * noise.to(parameter))

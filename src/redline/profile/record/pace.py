"""How fast this machine runs Python: the probe's cost is in proportion to it."""

from __future__ import annotations

import time
from functools import cache

ROUNDS = 20
CALLS = 500  # of each round: some ten microseconds

__all__ = ["call_ns"]


@cache
def call_ns() -> float:
    """What a call of a builtin function takes without a probe, ns: the least of some rounds.

    A machine that is busy lengthens most rounds, not all. Measured once, and known in children that
    are forked.
    """
    return min(_round_ns() for _ in range(ROUNDS)) / CALLS


def _round_ns() -> int:
    function, nothing = len, ()
    began = time.perf_counter_ns()
    for _ in range(CALLS):
        function(nothing)
    return time.perf_counter_ns() - began

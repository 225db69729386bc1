"""One program, recorded and not.

    python -m benchmarks.truth.recorded NAME SECONDS SESSION

runs a program for so long without a recording, and for as many rounds with one, and prints one JSON
object: seconds of each part in each stretch that was not recorded. A part is busy (its CPU time is
known) or waits (its duration less its CPU time is, with the time until it has a core again).

Two things move a program's speed: where its code and data happen to lie, and what else the machine
does. So a program that only computes, in one thread, is forked, which leaves everything where it
lies; the twin is not recorded, and both take turns on one core every few milliseconds. Any other
program runs recorded and not in turn, as one process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from benchmarks.truth.clocks import BUSY, forget, so_far, timed
from benchmarks.truth.programs import LONGER, PROGRAMS, Part
from redline import profile

TURNS = 4  # stretches that are recorded
STRETCHES = 32  # after which a twin waits for the other


def one_round(parts: list[Part]) -> None:
    """Every part once."""
    for part in parts:
        if part.inside:
            part.work()
        else:
            with timed(part.name, part.kind):
                part.work()


def taken(parts: list[Part], rounds: int) -> dict[str, float]:
    """What so many rounds took, by part."""
    forget()
    for _ in range(rounds):
        one_round(parts)
    return so_far()


def in_turn(parts: list[Part], rounds: int, session: str) -> tuple[list[dict[str, float]], int]:
    """Unprofiled 1, profiled 2, unprofiled 2, profiled 2, ..., unprofiled 1: what drifts cancels.

    Args:
        parts: of the program.
        rounds: of each of the two kinds, about.
        session: a new directory.

    Returns:
        What each unprofiled stretch took, by part, and how many rounds of each kind there were.
    """
    each = max(rounds // (2 * TURNS), 1)
    found = [taken(parts, each)]
    with profile.session(session) as recorder:
        for turn in range(TURNS):
            if turn:
                recorder._end_window()
                found.append(taken(parts, 2 * each))
                recorder._begin_window()
            taken(parts, 2 * each)
    found.append(taken(parts, each))
    return found, 2 * TURNS * each


def beside_a_twin(
    parts: list[Part], rounds: int, session: str
) -> tuple[list[dict[str, float]], int]:
    """Profiled here, and not in a fork of this process, at the same time.

    Args:
        parts: of a program that `can_have_a_twin`.
        rounds: of each, about.
        session: a new directory.

    Returns:
        As `in_turn`.
    """
    each = max(rounds // STRETCHES, 1)
    go, told = os.pipe(), os.pipe()
    twin = os.fork()
    if twin == 0:
        os.close(go[1])
        os.close(told[0])
        os.write(told[1], json.dumps(_twin(parts, each, go[0])).encode())
        os._exit(0)
    os.close(told[1])
    with profile.session(session):
        for _ in range(STRETCHES):
            os.write(go[1], b".")
            taken(parts, each)
    with os.fdopen(told[0]) as file:
        found = json.load(file)
    os.waitpid(twin, 0)
    return found, STRETCHES * each


def _twin(parts: list[Part], each: int, go: int) -> list[dict[str, float]]:
    """Stretch by stretch, none before the recorded process begins its own."""
    found: list[dict[str, float]] = []
    for _ in range(STRETCHES):
        if not os.read(go, 1):
            os._exit(1)  # the other one has failed
        found.append(taken(parts, each))
    return found


def can_have_a_twin(parts: list[Part]) -> bool:
    """Whether a program computes in one thread, and this process has a single core to share."""
    computes = all(part.kind == BUSY and not part.inside for part in parts)
    return computes and threading.active_count() == 1 and len(os.sched_getaffinity(0)) == 1


def main() -> None:
    """Unprofiled and profiled, side by side or in turn."""
    name, seconds, session = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    seconds *= LONGER.get(name, 1)
    parts = PROGRAMS[name]()
    rounds, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds / 2:
        one_round(parts)
        rounds += 2
    measure = beside_a_twin if can_have_a_twin(parts) else in_turn
    found, rounds = measure(parts, rounds, session)
    kinds = {name: part.kind for part in parts for name in part.inside or (part.name,)}
    shared = measure is beside_a_twin
    print(json.dumps({"rounds": rounds, "unprofiled": found, "kinds": kinds, "shared": shared}))
    sys.stdout.flush()
    os._exit(0)  # threads of some programs wait for ever


if __name__ == "__main__":
    main()

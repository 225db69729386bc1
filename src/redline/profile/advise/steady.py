"""The steady state: which process learns, from when to when, and in how many env steps.

It begins where the program first learns (or, if it never does, first simulates), after a compiler
has done its work, and ends with its last env step. It is cut where bursts of learning begin (or, if
there are none, into equal stretches), so that each stretch is whole iterations.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redline.errors import ProfileError
from redline.profile.advise.counted import UPDATES
from redline.profile.analyse.summary import Summary
from redline.profile.analyse.timeline import Slice
from redline.profile.analyse.transitions import BeginsOutside, begins_of, times_of_begins
from redline.profile.reader import Process, Session

STRETCHES = 20  # at most, or exactly where learning comes in no bursts
MIN_BURSTS = 4
MOST_ENVS = 1 << 30  # that a program says it steps at once; more is damage
DEEPEST = 16  # processes that started each other; more is damage
SAMPLE = 1 << 20  # pauses, of which the usual one is found
LEARNING = ("backpropagation", "learning")
SIMULATION, COMPILE, EVALUATION = "simulation", "compile", "evaluation"

__all__ = [
    "LEARNING",
    "SIMULATION",
    "STRETCHES",
    "Entries",
    "Steady",
    "find_learner",
    "find_steady",
    "learners",
    "once_compiled",
]


class Entries:
    """When simulation, learning and updates began in each process, slice by slice.

    Of simulation what completes an env step counts. That for an evaluation does not: its env steps
    are none that a run learns from.

    Args:
        processes: of the session.
    """

    def __init__(self, processes: list[Process]) -> None:
        self._names = list(dict.fromkeys((SIMULATION, COMPILE, *LEARNING, *UPDATES)))
        self._begins = [[begins_of(process, name) for name in self._names] for process in processes]
        self._steps = [BeginsOutside(each, SIMULATION, EVALUATION) for each in processes]
        # An hour has ten million env steps: these grow in place, and are not copied in the end.
        self._found = [[array("q") for _ in self._names] for _ in processes]

    def add(self, place: int, part: Slice) -> None:
        """The next slice of the process at this place."""
        for name, begins, times in zip(
            self._names, self._begins[place], self._found[place], strict=True
        ):
            is_step = name == SIMULATION
            found = self._steps[place].times(part.threads) if is_step else None
            found = times_of_begins(part.threads, begins) if found is None else found
            times.frombytes(found.tobytes())

    def found(self) -> list[dict[str, NDArray[np.int64]]]:
        """Per process and operation the times, in order, ns since the process's base."""
        return [
            {
                name: np.frombuffer(times, np.int64)
                for name, times in zip(self._names, each, strict=True)
            }
            for each in self._found
        ]


@dataclass(frozen=True, slots=True)
class Steady:
    """Of the process that learns."""

    place: int  # in the session
    workers: list[int]  # places of those that simulate for it
    num_envs: int  # stepped at once, by all processes that do
    num_envs_each: list[int]  # by one mark of each worker
    edges_ns: NDArray[np.int64]  # [N + 1] of its stretches, since the process's base
    env_steps: NDArray[np.int64]  # [N] in each
    entries: dict[str, NDArray[np.int64]]  # of its operations, ns
    steps: list[NDArray[np.int64]]  # per process when it stepped an env


def learners(entries: list[dict[str, NDArray[np.int64]]]) -> list[int]:
    """Places of the processes one of which is the one that learns, as far as entries tell.

    Args:
        entries: per process, see `Entries`.
    """
    learn = [i for i, own in enumerate(entries) if _learns(own)]
    return learn or [i for i, own in enumerate(entries) if len(own[SIMULATION])]


def _learns(own: dict[str, NDArray[np.int64]]) -> bool:
    return any(len(own[name]) for name in LEARNING)


def find_learner(
    session: Session, summary: Summary, entries: list[dict[str, NDArray[np.int64]]]
) -> int:
    """The place of the process that spends most on learning, else of the one that steps most.

    Args:
        session: that was recorded.
        summary: of it.
        entries: per process, see `Entries`.

    Raises:
        ProfileError: if no env step was recorded.
    """
    steps = [each[SIMULATION] for each in entries]
    if not any(map(len, steps)):
        raise _no_step(session)

    def rank(i: int) -> tuple[float, int]:
        pid = session.processes[i].pid
        cells = [c for c in summary.cells if c.pid == pid and c.operation in LEARNING]
        return sum(c.corrected_s for c in cells), len(steps[i])

    return max(range(len(steps)), key=rank)


def _no_step(session: Session) -> ProfileError:
    return ProfileError(
        f"{session.directory} holds no env step, as no environment was recognized, and advice is "
        'per env step. Write `with profile.operation("simulation"):` around each step of yours and '
        "record again"
    )


def find_steady(
    session: Session, place: int, entries: list[dict[str, NDArray[np.int64]]]
) -> Steady:
    """Find the steady state of a process.

    Args:
        session: that was recorded.
        place: of the process in it.
        entries: per process, see `Entries`.

    Raises:
        ProfileError: if no env step was recorded that it makes or learns from, or too few.
    """
    steps = [each[SIMULATION] for each in entries]
    process = session.processes[place]
    own = steps[place]
    workers = _workers(session.processes, place, entries)
    num_envs = _num_envs(process, steps_itself=len(own) > 0, workers=len(workers))
    each = [_num_envs(session.processes[i], steps_itself=True, workers=1) for i in workers]
    if len(own) == 0 and not workers:
        raise _no_step(session)
    if len(own) == 0:  # its envs are stepped elsewhere, and it is not told
        told = [steps[i] + (session.processes[i].base_ns - process.base_ns) for i in workers]
        own, num_envs = np.sort(np.concatenate(told)), sum(each)
        marks = list(zip(told, each, strict=True))
    else:
        marks = [(own, num_envs)]
    learned = _in_order([entries[place][name] for name in LEARNING])
    edges = _steady(once_compiled(learned, entries[place][COMPILE], own), own)
    # Shares of envs may differ by one.
    parts = [np.histogram(times, edges)[0] * of_a_mark for times, of_a_mark in marks]
    counts = np.sum(parts, axis=0)
    if counts.sum() < STRETCHES:
        raise ProfileError(
            f"{session.directory} holds {counts.sum()} env steps in the steady state. Record longer"
        )
    return Steady(place, workers, num_envs, each, edges, counts, entries[place], steps)


def _workers(
    processes: list[Process], place: int, entries: list[dict[str, NDArray[np.int64]]]
) -> list[int]:
    """Places of the processes that step envs for the one at this place.

    A session may hold several programs that learn (ranks, a sweep): these step envs for themselves,
    and the workers that they started step for them. One that no learning process started, as
    actors of Ray are, may step for any.
    """
    parents = {process.pid: process.parent_pid for process in processes}
    learning = {p.pid for p, own in zip(processes, entries, strict=True) if _learns(own)}
    # What a learning process of this one's own line started is part of the same program.
    line = [processes[place].pid, *_ancestors(processes[place].pid, parents)]

    def steps_for_it(i: int) -> bool:
        pid = processes[i].pid
        starter = next((each for each in _ancestors(pid, parents) if each in learning), None)
        return pid not in learning and (starter is None or starter in line)

    steps = [len(own[SIMULATION]) for own in entries]
    others = [i for i in range(len(steps)) if i != place and steps[i] > 2]
    workers = [i for i in others if steps_for_it(i)]
    if workers or steps[place] > 0:
        return workers
    # Who steps no env, and started only processes that learn, is their learner: workers of A3C
    # compute gradients.
    return [i for i in others if processes[place].pid in _ancestors(processes[i].pid, parents)]


def _ancestors(pid: int, parents: dict[int, int]) -> list[int]:
    """Recorded processes above one, the nearest first; in damaged sessions they may form a ring."""
    found: list[int] = []
    while (pid := parents.get(pid, -1)) in parents and len(found) < DEEPEST:
        found.append(pid)
    return found


def _num_envs(process: Process, *, steps_itself: bool, workers: int) -> int:
    """Envs stepped at once: as the program's vector env said, else one, or one for each worker."""
    said = process.metadata.get("num_envs")
    if type(said) is int and 0 < said < MOST_ENVS:
        return said
    return max(workers, 1) if steps_itself else 1


def _in_order(times: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """One column of several, each in order; of one that is not empty nothing is copied."""
    some = [each for each in times if len(each)]
    if len(some) == 1:
        return some[0]
    found = np.concatenate([np.empty(0, np.int64), *some])
    found.sort()
    return found


def once_compiled(
    learned: NDArray[np.int64], compiled: NDArray[np.int64], steps: NDArray[np.int64]
) -> NDArray[np.int64]:
    """When it learned after the compiler was last at work, if half of the env steps come then.

    A program that compiles to its end is in no steady state, and is taken as it is.

    Args:
        learned: [L] ns, in order.
        compiled: [C] ns.
        steps: [S] ns, in order.
    """
    if len(compiled) == 0:
        return learned
    after = learned[np.searchsorted(learned, compiled.max(), side="right") :]
    enough = len(after) > 0 and 2 * _after(steps, int(after[0])) >= len(steps)
    return after if enough else learned


def _after(times: NDArray[np.int64], time_ns: int) -> int:
    """How many of some times, in order, come after one."""
    return len(times) - int(np.searchsorted(times, time_ns, side="right"))


def _steady(learned: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
    """[N + 1] edges of stretches, from the first update on, or the first step, to the last step."""
    begin, end = int(steps[0]), int(steps[-1]) + 1
    if len(learned) and learned[0] < end and _after(steps, int(learned[0])) > STRETCHES:
        begin = int(learned[0])
    # Whole iterations: where learning comes in bursts, it begins and ends with a burst.
    bursts = learned[slice(*np.searchsorted(learned, [begin, end]))]
    pause = np.diff(bursts)
    # An hour has millions of them, and is to be read in little memory.
    if len(pause) and pause.max() > 20 * np.median(pause[:: -(-len(pause) // SAMPLE)]):
        first = bursts[1:][pause > 0.5 * pause.max()]
        if len(first) > MIN_BURSTS:
            return first[:: -(-len(first) // STRETCHES)]
    return np.linspace(begin, end, STRETCHES + 1).astype(np.int64)

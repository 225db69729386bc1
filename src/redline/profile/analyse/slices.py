"""A session in slices of time, so that any length of it can be analysed in bounded memory.

The shards are read three times, and never held whole:

1. when each piece of them begins, which says where to cut;
2. what must be known before a slice can be told: how the gaps at its end are named, where no
   event tells of a wait, where calibration blocks lie (`Outline`);
3. the slices themselves, those of all processes side by side (`slices_of`).

What is summed over slices equals what the whole says, to the nanosecond. A process's slices end at
its own edges: where the scheduler was looked at, if it was, since the time between two looks is
told as one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from redline.profile.analyse import timeline as timelines
from redline.profile.analyse.blocked import SilenceSeeker, Wait
from redline.profile.analyse.decoded import FOREVER, State, Stream
from redline.profile.analyse.gaps import Gaps, GapSeeker
from redline.profile.analyse.own_threads import ProgramThreads
from redline.profile.analyse.scheduling import Settled, Settlers, Ticks
from redline.profile.analyse.timeline import Follower, Slice, Timeline, assemble, end_of
from redline.profile.reader import PIECE_ROWS, Process

SLICE_ROWS = 3 << 17  # of all processes together, each some 150 bytes; two slices are held at once
MANY = 16  # processes: of more, slices are smaller, as each process takes memory of its own

T = TypeVar("T")

__all__ = ["SLICE_ROWS", "Outline", "Step", "follow", "outline", "slices_of"]


@dataclass(frozen=True, slots=True)
class Outline:
    """What is known of a process before its slices are read."""

    process: Process
    begins_ns: list[NDArray[np.int64]]  # per shard when each of its pieces begins
    edges_ns: list[int]  # its slices begin and end there; the first is 0, the last FOREVER
    ticks: dict[int, Settled]
    waits: list[Wait]
    gaps: dict[int, Gaps]
    end_ns: int
    blind: Stream
    num_threads: int  # of the program


@dataclass(frozen=True, slots=True)
class Step:
    """The slices that are next: at most one of each process.

    Attributes:
        places: of the processes in the session.
        timelines: of these.
        until_ns: CLOCK_MONOTONIC up to which all processes are told now.
    """

    places: list[int]
    timelines: list[Timeline]
    until_ns: int


def outline(
    processes: list[Process],
    slice_rows: int = SLICE_ROWS,
    beside: Callable[[int, Slice], None] | None = None,
) -> list[Outline]:
    """Look through the shards of all processes of a session.

    Args:
        processes: of the session.
        slice_rows: of all processes together, in a slice.
        beside: takes the place of a process and what its events say, one slice after the other,
            with waits and gaps as they were recorded.
    """
    begins = [_begins(process) for process in processes]
    if len(processes) > MANY:
        slice_rows //= 3
    edges = _edges(processes, begins, slice_rows)
    found: list[Outline] = []
    for place, (process, own) in enumerate(zip(processes, begins, strict=True)):
        take = partial(beside, place) if beside is not None else None
        found.append(_outline(process, own, edges, take))
    return found


def slices_of(outlines: list[Outline]) -> Iterator[Step]:
    """The slices of all processes, in order of time."""
    return _made_ahead(_steps(outlines))


def _made_ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items, each made by a thread of its own while the one before is used.

    What takes the time lets another thread go on meanwhile: C code, numpy, reading.
    """
    with ThreadPoolExecutor(1, "slices") as thread:

        def begin() -> Future[T | None] | None:
            try:
                return thread.submit(next, items, None)
            except RuntimeError:  # no thread can begin: at a limit, or at the interpreter's end
                return None

        coming = begin()
        while coming is not None:
            item = coming.result()
            if item is None:
                return
            coming = begin()
            yield item
        yield from items


def _steps(outlines: list[Outline]) -> Iterator[Step]:
    walks = [_walk(each) for each in outlines]
    # When slices begin is known before they are read: none is held for longer than needed.
    edges = [_edges_of(each) for each in outlines]
    place = [0] * len(outlines)
    while ahead := [i for i, own in enumerate(edges) if place[i] + 1 < len(own)]:
        until_ns = min(edges[i][place[i] + 1] for i in ahead)
        due = [i for i in ahead if edges[i][place[i]] < until_ns]
        told = [next(walks[i]) for i in due]
        for i in due:
            place[i] += 1
        left = [edges[i][place[i]] for i in ahead if place[i] + 1 < len(edges[i])]
        yield Step(due, told, min([FOREVER, *left]))


def _edges_of(found: Outline) -> list[int]:
    """When the slices of a process begin, CLOCK_MONOTONIC, and FOREVER."""
    return [ns if ns == FOREVER else ns + found.process.base_ns for ns in found.edges_ns]


def follow(outlines: list[Outline], *each: Callable[[int, Timeline], None]) -> None:
    """Walk through a session once, and let all of these have each slice.

    Args:
        outlines: of its processes.
        each: takes the place of a process and the next slice of it, in order of time.
    """
    for step in slices_of(outlines):
        for place, timeline in zip(step.places, step.timelines, strict=True):
            for take in each:
                take(place, timeline)


def _walk(found: Outline) -> Iterator[Timeline]:
    follower = Follower(found.process, found.begins_ns)
    before: dict[int, State | None] = {}
    for begin, until in pairwise(found.edges_ns):
        part = follower.advance(begin, until)
        made = assemble(
            found.process,
            part,
            found.ticks,
            found.waits,
            found.gaps,
            found.end_ns,
            found.blind,
            found.num_threads,
        )
        threads = [replace(each, before=before.get(each.index)) for each in made.threads]
        before |= {each.index: each.last_state() for each in threads}
        yield replace(made, threads=threads)


def _begins(process: Process) -> list[NDArray[np.int64]]:
    """Per shard when each of its pieces begins, ns since the process's base."""
    found: list[NDArray[np.int64]] = []
    for source in process.sources:
        begins = [first_ns for first_ns, _ in source.timed_pieces(PIECE_ROWS)]
        if source.problem is not None:
            process.note(f"{source.path.name}: {source.problem}")
        found.append(np.array(begins, np.int64))
    return found


def _edges(
    processes: list[Process], begins: list[list[NDArray[np.int64]]], slice_rows: int
) -> NDArray[np.int64]:
    """CLOCK_MONOTONIC between the slices: about as many rows are in each."""
    at = [own + p.base_ns for p, found in zip(processes, begins, strict=True) for own in found]
    every = np.sort(np.concatenate([np.empty(0, np.int64), *at]))
    return np.unique(every[:: max(slice_rows // PIECE_ROWS, 1)][1:])


def _outline(
    process: Process,
    begins: list[NDArray[np.int64]],
    edges_ns: NDArray[np.int64],
    beside: Callable[[Slice], None] | None,
) -> Outline:
    ticks = timelines.read_ticks(process)
    settlers = Settlers(ticks)
    own = _own_edges(edges_ns - process.base_ns, ticks, begins)
    follower = Follower(process, begins)
    silences, program = SilenceSeeker(), ProgramThreads(process)
    seekers: dict[int, GapSeeker] = defaultdict(lambda: GapSeeker(process))
    switches: list[Stream] = []
    last_ns = 0
    parts = (follower.advance(*edges) for edges in pairwise(own))
    for (begin, until), part in zip(pairwise(own), _made_ahead(parts), strict=True):
        switches.append(part.switched)
        for thread in part.threads:
            seekers[thread.index].add(thread, begin)
            last_ns = max(last_ns, thread.last_ns)
        settlers.add(part.threads, begin, until)
        program.add(part.threads)
        if not ticks:
            silences.add(part.threads)
        if beside is not None:
            beside(part)
    blind = (
        np.concatenate([times for times, _ in switches]),
        np.concatenate([states for _, states in switches]),
    )
    return Outline(
        process=process,
        begins_ns=begins,
        edges_ns=own,
        ticks=settlers.settled(),
        waits=silences.found(),
        gaps={index: seeker.found() for index, seeker in seekers.items()},
        end_ns=end_of(process, last_ns),
        blind=blind,
        num_threads=program.number(),
    )


def _own_edges(
    edges_ns: NDArray[np.int64], ticks: dict[int, Ticks], begins: list[NDArray[np.int64]]
) -> list[int]:
    """Where the slices of a process begin and end, ns since its base."""
    last = max((int(own[-1]) for own in begins if len(own)), default=0)
    inner = edges_ns[(edges_ns > 0) & (edges_ns <= last)]
    longest = max(ticks.values(), key=lambda each: len(each.begin_ns), default=None)
    if longest is not None and len(longest.begin_ns):
        looks = np.append(longest.begin_ns, longest.end_ns[-1])
        place = np.searchsorted(looks, inner)
        inner = np.where(place < len(looks), looks[np.minimum(place, len(looks) - 1)], inner)
    return [0, *np.unique(inner[inner > 0]).tolist(), FOREVER]

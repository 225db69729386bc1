"""Which CPU cores workers and threads are to use, and how many."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from itertools import pairwise

from redline.errors import ConfigError
from redline.usable_cores import usable_cpus

_FEW_SPINS = 20_000  # of an idle OpenMP thread before it sleeps: some 0.3 ms


def threads_each(num_processes: int) -> int:
    """Threads for each of so many processes that work at the same time; at least 1."""
    return max(1, usable_cpus() // num_processes)


def allowed_cpus() -> list[int]:
    """Numbers of the cores that this process may run on; [] where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))


def first_core_to_pin(num_threads: int) -> int:
    """The first core for a pool that pins each of its threads to the next core.

    The system may wake two threads on one core while an idle thread spins on another. Pinned
    threads share the cores evenly.

    Args:
        num_threads: of the pool.

    Returns:
        0 where there is one thread for every core of the machine, and this process may use them
        all; else -1, for pools that share the machine must not all crowd the first cores.
    """
    everywhere = num_threads == os.cpu_count() and allowed_cpus() == list(range(num_threads))
    return 0 if everywhere else -1


def thread_pool(num_threads: int, num_envs: int, *, tune: bool) -> dict[str, int]:
    """The options of a simulator's pool of threads, as EnvPool and ALE call them.

    Args:
        num_threads: as asked for; 0 means one per environment, at most the usable cores.
        num_envs: B.
        tune: whether threads may be pinned; see `first_core_to_pin`.
    """
    threads = num_threads or min(num_envs, usable_cpus())
    first = first_core_to_pin(threads) if tune else -1
    return {"num_threads": threads, "thread_affinity_offset": first}


@contextlib.contextmanager
def batch_scheduling(wanted: bool = True) -> Iterator[None]:
    """Schedule the threads that are started within as `SCHED_BATCH` (Linux).

    A simulator's step wakes its threads one after the other. A thread of the usual class may
    preempt the one that is still waking the others, so that of two of EnvPool's threads one does
    most of a step. A batch thread does not preempt; its share of a core is the same.

    Nothing is changed where idle OpenMP threads may spin for milliseconds, because batch threads
    would wait for those. They do unless `GOMP_SPINCOUNT` is small, which training sees to.

    Args:
        wanted: false leaves threads as they are.
    """
    # A new thread inherits the class of the thread that starts it, so this one changes its own.
    if not (
        wanted
        and _idle_threads_sleep_soon()
        and _schedule_this_thread("SCHED_OTHER", "SCHED_BATCH")
    ):
        yield
        return
    try:
        yield
    finally:
        _schedule_this_thread("SCHED_BATCH", "SCHED_OTHER")


def _idle_threads_sleep_soon() -> bool:
    spins = os.environ.get("GOMP_SPINCOUNT", "")
    return spins.isdecimal() and int(spins) <= _FEW_SPINS


def _schedule_this_thread(usual: str, wanted: str) -> bool:
    """Whether it is scheduled as `wanted` now; not if it was not as `usual`, or may not be."""
    if not hasattr(os, wanted):
        return False
    try:
        if os.sched_getscheduler(0) != getattr(os, usual):
            return False
        os.sched_setscheduler(0, getattr(os, wanted), os.sched_param(0))
    except OSError:
        return False
    return True


def worker_cpus(affinity: str, num_workers: int) -> list[tuple[int, ...]] | None:
    """The cores that each of W workers is to be pinned to.

    Args:
        affinity: "none"; "auto", all cores that this process may use; or a list of them,
            such as "0-3,6". They are dealt out evenly; where there are more workers than
            cores, several share one.
        num_workers: W.

    Returns:
        W tuples of core numbers, or None for "none".

    Raises:
        ConfigError: if it is no such list, or names a core that this process may not use.
    """
    if affinity == "none":
        return None
    allowed = allowed_cpus()
    if not allowed:
        raise ConfigError(
            f"cpu_affinity={affinity!r}: this system does not pin processes to cores. Use 'none'."
        )
    cpus = allowed if affinity == "auto" else _parse_cpus(affinity)
    if forbidden := sorted(set(cpus) - set(allowed)):
        raise ConfigError(
            f"cpu_affinity={affinity!r} names core {forbidden[0]}, which this process may not use. "
            f"Allowed are {', '.join(map(str, allowed))}."
        )
    if num_workers >= len(cpus):
        return [(cpus[worker % len(cpus)],) for worker in range(num_workers)]
    bounds = [len(cpus) * worker // num_workers for worker in range(num_workers + 1)]
    return [tuple(cpus[begin:end]) for begin, end in pairwise(bounds)]


def _parse_cpus(text: str) -> list[int]:
    """The numbers in a list such as "0-3,6"."""
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            raise ConfigError(
                f"cpu_affinity={text!r} is not 'none', 'auto' or a list of cores. Give one such as "
                f"'0-3,6'."
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise ConfigError(
                f"cpu_affinity={text!r}: {part} runs backwards. Give '{last}-{first}'."
            )
        cpus.update(range(first, last + 1))
    return sorted(cpus)

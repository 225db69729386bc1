"""What the session does not know, measured here: how far other settings change small pieces.

Each rate is a ratio of times of the same work on this machine. Before and after run in turn, so
that what else the machine does meets both alike; work on one thread is timed by that thread's own
clock, which stands still while others run. A rate is a range over several sizes of network and two
rounds, and all together take a second or two. They are measured on as many threads as the session's
program used. On another machine than the session's they say little: `advise` then says so.

Torch takes some 300 MB. So where it is not loaded yet, a process of its own measures:
`python -m redline.profile.advise.rates THREADS` prints the rates as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import redline
from redline.errors import ProfileError
from redline.usable_cores import usable_cpus

WIDTHS = (64, 256)
REPEATS, ROUNDS = 5, 2
LONG_ENOUGH_S = 0.004
LARGER = 8  # times the batch, for the cost of batched inference

Work = Callable[[], object]
Clock = Callable[[], float]

_FAILED = "cannot measure this machine's rates"
_RATES = "rates: "  # begins the line in which the process that measures says them
MEASURED_BY_S = 120.0  # seconds after which the process that measures is given up

__all__ = ["Range", "Rates", "measure_rates", "why_not_measured"]


@dataclass(frozen=True, slots=True)
class Range:
    """A ratio, or a time: lowest and highest of what was found."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Halfway."""
        return (self.low + self.high) / 2


@dataclass(frozen=True, slots=True)
class Rates:
    """Ratios of time after a change to time before it."""

    fused_step: Range  # Adam(fused=True) by Adam's default
    foreach_step: Range  # Adam(foreach=True) by Adam's default
    batched_inference: Range  # a batch of 8 by a batch of 1, one call each
    doubled_batch: Range  # an update of twice the batch by one of the batch
    one_thread: Range  # an update on one thread by the same on torch's default
    ipc_us: Range  # a message to a process and its answer
    threads: int  # torch's default here


def measure_rates(threads: int = 0) -> Rates | None:
    """Measure; None where that cannot be done, see `why_not_measured`. Leaves torch as it was.

    A process asks its machine once for each number of threads.

    Args:
        threads: of torch in the program that is advised; 0: torch's default.
    """
    return _measure_once(threads, usable_cpus())[0]


def why_not_measured(threads: int = 0) -> str:
    """Why `measure_rates` has nothing to say, and what that means; empty where it has."""
    return _measure_once(threads, usable_cpus())[1]


@cache
def _measure_once(threads: int, cpus: int) -> tuple[Rates | None, str]:
    without = "So no remedy is named whose gain is measured here"
    try:
        found = _measure_here(threads, cpus) if "torch" in sys.modules else _measure_apart(threads)
    # Whatever goes wrong there, in the system or in torch, is no reason to have no report.
    except Exception as error:  # noqa: BLE001
        reason = str(error) if isinstance(error, ProfileError) else f"{_FAILED}: {error!r}"
        return None, f"{reason}. {without}"
    return found, "" if found is not None else f"torch is not installed here. {without}"


def _measure_here(threads: int, cpus: int) -> Rates | None:
    """In this process; None where torch is not installed.

    Raises:
        ImportError: if torch is installed and broken.
    """
    try:
        torch: Any = import_module("torch")
    except ModuleNotFoundError as error:
        if error.name == "torch":
            return None
        raise
    before = int(torch.get_num_threads())
    try:
        with torch.random.fork_rng(devices=[]):
            torch.set_num_threads(min(threads, cpus) or before)
            return _measure(torch)
    finally:
        torch.set_num_threads(before)


def _measure_apart(threads: int) -> Rates | None:
    """In a process of its own.

    Raises:
        ProfileError: if that fails, takes too long, or says what is not understood.
    """
    places = [str(Path(redline.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    # -P: what lies in the directory that the user is in is not imported.
    words = [sys.executable, "-P", "-m", "redline.profile.advise.rates", str(threads)]
    try:
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, check=False, timeout=MEASURED_BY_S
        )
    except subprocess.TimeoutExpired as error:
        raise ProfileError(f"{_FAILED}: that took longer than {MEASURED_BY_S:g} s") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise ProfileError(f"{_FAILED}: {reason}. `{' '.join(words)}` says more")
    return _read(done.stdout)


def _read(said: str) -> Rates | None:
    """What the process said; what else was printed there, as by a `sitecustomize`, is passed over.

    Raises:
        ProfileError: if nothing of it is understood.
    """
    lines = [line for line in said.splitlines() if line.startswith(_RATES)]
    try:
        found = json.loads(lines[-1].removeprefix(_RATES))
        if found is None:
            return None
        threads = int(found.pop("threads"))
        ranges = {name: Range(each["low"], each["high"]) for name, each in found.items()}
        return Rates(**ranges, threads=threads)
    except (LookupError, TypeError, ValueError) as error:
        raise ProfileError(f"{_FAILED}: {said[-200:]!r} is not understood") from error


def _measure(torch: Any) -> Rates:
    threads = int(torch.get_num_threads())
    clock = time.thread_time if threads == 1 else time.perf_counter
    networks = [_network(torch, width) for width in WIDTHS]
    steps = [(_step(torch, n), _step(torch, n, fused=True)) for n in networks]
    each = [(_step(torch, n), _step(torch, n, foreach=True)) for n in networks]
    batched = [(_inference(torch, n, 1), _inference(torch, n, LARGER)) for n in networks]
    sizes = [(n, batch) for n in networks for batch in (64, 256)]
    doubled = [(_update(torch, n, batch), _update(torch, n, 2 * batch)) for n, batch in sizes]
    return Rates(
        fused_step=_rate(steps, clock),
        foreach_step=_rate(each, clock),
        batched_inference=_rate(batched, clock),
        doubled_batch=_rate(doubled, clock),
        one_thread=_one_thread(torch, networks, threads),
        ipc_us=_ipc_us(),
        threads=threads,
    )


def _rate(pairs: Iterable[tuple[Work, Work]], clock: Clock) -> Range:
    """Of the second by the first of each pair: the range over all pairs and rounds."""
    found: list[float] = []
    for before, after in pairs:
        for _ in range(ROUNDS):
            one, other = _least_us((before, after), clock)
            found.append(other / one)
    return Range(min(found), max(found))


def _least_us(works: Sequence[Work], clock: Clock) -> list[float]:
    """Of each the least of some repetitions of some milliseconds, in turn; warmed up."""
    rounds: list[int] = []
    for work in works:
        work()
        began, number = clock(), 0
        while number < 3 or clock() - began < LONG_ENOUGH_S:
            work()
            number += 1
        rounds.append(number)
    least = [float("inf")] * len(works)
    for _ in range(REPEATS):
        for place, (work, number) in enumerate(zip(works, rounds, strict=True)):
            began = clock()
            for _ in range(number):
                work()
            least[place] = min(least[place], (clock() - began) / number)
    return [1e6 * each for each in least]


def _network(torch: Any, width: int) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(17, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 6)
    )


def _step(torch: Any, network: Any, **how: bool) -> Work:
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return torch.optim.Adam(network.parameters(), lr=0.0, **how).step


def _inference(torch: Any, network: Any, batch: int) -> Work:
    x = torch.zeros(batch, 17)

    def infer() -> None:
        with torch.no_grad():
            network(x)

    return infer


def _update(torch: Any, network: Any, batch: int) -> Work:
    x = torch.zeros(batch, 17)
    return lambda: network(x).square().mean().backward()


def _one_thread(torch: Any, networks: list[Any], threads: int) -> Range:
    """Of an update on one thread by the same on all of them, by the wall's clock."""
    if threads == 1:
        return Range(1.0, 1.0)
    found: list[float] = []
    for network in networks:
        work, times = _update(torch, network, 256), dict[int, float]()
        for number in (threads, 1):
            torch.set_num_threads(number)
            times[number] = _least_us((work,), time.perf_counter)[0]
        found.append(times[1] / times[threads])
    torch.set_num_threads(threads)
    return Range(min(found), max(found))


def _answer(connection: Any, others: Any) -> None:
    others.close()  # a fork has both ends, and would not see that the other one was killed
    with contextlib.suppress(EOFError, OSError):
        while (message := connection.recv()) is not None:
            connection.send(message)


def _ipc_us() -> Range:
    """An observation's way to another process and back."""
    context = get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_answer, args=(there, here), daemon=True)
    child.start()
    there.close()
    message = bytes(512)

    def ask() -> None:
        here.send(message)
        here.recv()

    try:
        once = _least_us((ask,), time.perf_counter)[0]
    finally:
        here.send(None)
        child.join()
    return Range(once, 2.0 * once)


if __name__ == "__main__":
    measured = _measure_here(int(sys.argv[1]), usable_cpus())
    sys.stdout.write(_RATES + json.dumps(measured and asdict(measured)) + "\n")

"""What the session does not know, measured here: how far other settings change small pieces.

Each rate is a ratio of times of the same work on this machine, a range over several sizes of
network, and takes a fraction of a second. On another machine than the session's they say little:
`advise` then says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from typing import Any

WIDTHS = (64, 256)
REPEATS = 7
LARGER = 8  # times the batch, for the cost of batched inference

__all__ = ["Range", "Rates", "measure_rates"]


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


def measure_rates() -> Rates | None:
    """Measure; None where torch is not installed. Leaves torch's generator as it was."""
    try:
        torch: Any = import_module("torch")
    except ImportError:
        return None
    with torch.random.fork_rng(devices=[]):
        return _measure(torch)


def _measure(torch: Any) -> Rates:
    threads = int(torch.get_num_threads())
    networks = [_network(torch, width) for width in WIDTHS]
    usual = [_step_us(torch, network) for network in networks]
    rates = Rates(
        fused_step=_ratio([_step_us(torch, n, fused=True) for n in networks], usual),
        foreach_step=_ratio([_step_us(torch, n, foreach=True) for n in networks], usual),
        batched_inference=_ratio(
            [_inference_us(torch, n, LARGER) for n in networks],
            [_inference_us(torch, n, 1) for n in networks],
        ),
        doubled_batch=_ratio(
            [_update_us(torch, n, b) for n in networks for b in (128, 512)],
            [_update_us(torch, n, b) for n in networks for b in (64, 256)],
        ),
        one_thread=_one_thread(torch, networks, threads),
        ipc_us=_ipc_us(),
        threads=threads,
    )
    torch.set_num_threads(threads)
    return rates


def _ratio(after: Iterable[float], before: Iterable[float]) -> Range:
    found = [a / b for a, b in zip(after, before, strict=True)]
    return Range(min(found), max(found))


def _least_us(work: Callable[[], object]) -> float:
    """The least of some repetitions, each of some milliseconds; warmed up."""
    work()
    began, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - began < 0.004:
        work()
        rounds += 1
    taken: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(rounds):
            work()
        taken.append((time.perf_counter() - began) / rounds)
    return 1e6 * min(taken)


def _network(torch: Any, width: int) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Linear(17, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 6)
    )


def _step_us(torch: Any, network: Any, **how: bool) -> float:
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return _least_us(torch.optim.Adam(network.parameters(), lr=0.0, **how).step)


def _inference_us(torch: Any, network: Any, batch: int) -> float:
    x = torch.zeros(batch, 17)

    def infer() -> None:
        with torch.no_grad():
            network(x)

    return _least_us(infer)


def _update_us(torch: Any, network: Any, batch: int) -> float:
    x = torch.zeros(batch, 17)
    return _least_us(lambda: network(x).square().mean().backward())


def _one_thread(torch: Any, networks: list[Any], threads: int) -> Range:
    if threads == 1:
        return Range(1.0, 1.0)
    many = [_update_us(torch, network, 256) for network in networks]
    torch.set_num_threads(1)
    return _ratio([_update_us(torch, network, 256) for network in networks], many)


def _answer(connection: Any) -> None:
    while (message := connection.recv()) is not None:
        connection.send(message)


def _ipc_us() -> Range:
    """An observation's way to another process and back."""
    context = get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_answer, args=(there,), daemon=True)
    child.start()
    message = bytes(512)

    def ask() -> None:
        here.send(message)
        here.recv()

    try:
        once = _least_us(ask)
    finally:
        here.send(None)
        child.join()
    return Range(once, 2.0 * once)

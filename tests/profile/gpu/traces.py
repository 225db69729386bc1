"""Kineto traces of launches whose answers are known: drawn by a test, written as CUPTI's would be.

A launch is a call of the CPU and what it sets off on devices. A graph's launch sets off several
kernels under one correlation id; a call of the runtime may have one of the driver inside it, under
the same id.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

PID = 4321
_CALLS = {
    "kernel": ("cuda_runtime", "cudaLaunchKernel"),
    "copy": ("cuda_runtime", "cudaMemcpyAsync"),
    "set": ("cuda_driver", "cuMemsetD32Async"),
    "graph": ("cuda_runtime", "cudaGraphLaunch"),
}
_RUNS = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset", "graph": "kernel"}


@dataclass(frozen=True)
class Ran:
    """What a device did: ns, and where."""

    begin: int
    end: int
    device: int
    stream: int


@dataclass(frozen=True)
class Launch:
    """A call of the CPU.

    Attributes:
        kind: of what it launches: "kernel", "copy", "set" or "graph".
        at: when, ns.
        took: how long the call was, ns.
        ran: what it set off.
        nested: whether the driver's call is recorded inside the runtime's.
        is_recorded: whether the call was; if not, it came before the window.
    """

    kind: str
    at: int
    took: int
    ran: tuple[Ran, ...]
    nested: bool = False
    is_recorded: bool = True

    @property
    def runs_as(self) -> str:
        """The kind of what ran."""
        return "kernel" if self.kind == "graph" else self.kind


def launches(end: int = 60) -> st.SearchStrategy[list[Launch]]:
    """Launches within 0..`end` ns, on two devices of three streams, out of order."""
    ran = st.builds(
        lambda begin, took, device, stream: Ran(begin, begin + took, device, stream),
        st.integers(0, end - 10),
        st.integers(0, 10),
        st.integers(0, 1),
        st.sampled_from([7, 13, 20]),
    )
    several = st.lists(ran, min_size=1, max_size=4).map(tuple)
    one = ran.map(lambda each: (each,))
    when = {
        "at": st.integers(0, end - 10),
        "took": st.integers(0, 10),
        "nested": st.booleans(),
        "is_recorded": st.booleans(),
    }
    graph = st.builds(Launch, st.just("graph"), ran=several, **when)
    others = st.builds(Launch, st.sampled_from(["kernel", "copy", "set"]), ran=one, **when)
    return st.lists(st.one_of(graph, others), max_size=8)


def write(path: Path, made: list[Launch], unix_ns: int = 0, *, last_first: bool = False) -> None:
    """Write a trace.

    Args:
        path: of the file.
        made: launches, whose correlation ids are their places here, from 1 on.
        unix_ns: Unix time of 0.
        last_first: whether records stand in the opposite order, as CUPTI's buffers may come.
    """
    events: list[dict[str, Any]] = []
    for correlation, launch in enumerate(made, start=1):
        category, name = _CALLS[launch.kind]
        if launch.is_recorded:
            events.append(_event(category, name, launch.at, launch.took, correlation=correlation))
            if launch.nested and launch.took > 1:
                inside = launch.at + 1, launch.took - 2
                events.append(_event("cuda_driver", "cu", *inside, correlation=correlation))
        for number, ran in enumerate(launch.ran):
            place = {"device": ran.device, "stream": ran.stream, "correlation": correlation}
            if launch.kind == "graph":
                place["graph node id"] = number
            length = ran.end - ran.begin
            events.append(_event(_RUNS[launch.kind], "k", ran.begin, length, **place))
    if last_first:
        events.reverse()
    trace = {"schemaVersion": 1, "baseTimeNanoseconds": unix_ns, "traceEvents": events}
    path.write_text(json.dumps(trace))


def _event(category: str, name: str, at: int, took: int, **args: int) -> dict[str, Any]:
    where = {"pid": args.get("device", PID), "tid": args.get("stream", PID)}
    times = {"ts": at / 1000, "dur": took / 1000}
    return {"ph": "X", "cat": category, "name": name, **where, **times, "args": args}

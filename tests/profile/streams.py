"""Processes made by hand, of events at known times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from redline.profile import levels
from redline.profile.analyse.cells import compute_cells
from redline.profile.analyse.timeline import build_timeline
from redline.profile.reader import Name, Process, Shard

SIMULATION, INFERENCE, TORCH, SLEEP, WARM_UP, INFERRED = range(8, 14)
NAMES = {
    SIMULATION: Name(SIMULATION, "operation", "simulation", 0, None),
    INFERENCE: Name(INFERENCE, "operation", "inference", 0, None),
    TORCH: Name(TORCH, "call", "add", levels.BACKEND, "torch"),
    SLEEP: Name(SLEEP, "call", "sleep", levels.WAITING, "time"),
    WARM_UP: Name(WARM_UP, "phase", "warm-up", 0, None),
    INFERRED: Name(INFERRED, "inferred", "inference", 0, None),
}


def begin(name: int) -> int:
    return 2 * name


def end(name: int) -> int:
    return 2 * name + 1


def process(*threads: list[tuple[int, int]], end_ns: int = 100) -> Process:
    """A process whose threads hold these (time_ns, code) events."""
    made = Process(
        directory=Path("nowhere"),
        start={"pid": 1, "parent_pid": 0, "base_ns": 0},
        end={"time_ns": end_ns, "cpu_s": 0.0, "dropped": 0},
        name="program",
        metadata={},
        names=NAMES,
    )
    shards = []
    for index, events in enumerate(threads):
        times = np.array([t for t, _ in events])
        codes = np.array([c for _, c in events], np.uint16)
        deltas = np.diff(times, prepend=0).astype(np.uint32)
        shards.append(Shard(Path(f"thread-{index:05d}.arrow"), deltas, codes, None))
    vars(made)["threads"] = shards
    return made


def cells(*threads: list[tuple[int, int]], **settings: Any) -> dict[Any, int]:
    found = compute_cells(build_timeline(process(*threads, **settings))).time_ns
    return {key[:3]: ns for key, ns in found.items()}


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from(
            [f(n) for n in (SIMULATION, INFERENCE, TORCH, SLEEP, WARM_UP) for f in (begin, end)]
        ),
    ),
    max_size=40,
)

"""What a process did in each stretch of its steady state, slice by slice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from redline.profile import levels
from redline.profile.analyse.cells import Key
from redline.profile.analyse.slices import Outline
from redline.profile.analyse.timeline import Timeline
from redline.profile.gpu.activity import Meanwhile, streams_of
from redline.profile.gpu.records import GRAPH, GpuWindow
from redline.profile.reader import Process
from redline.profile.report.bins import CallBins, CellBins

BACKPROPAGATION = "backpropagation"
UPDATE = (BACKPROPAGATION, "learning", "forward")  # operations
BACKWARD = "torch._C._EngineBase.run_backward"

__all__ = ["BACKPROPAGATION", "UPDATE", "OnGpu", "Stretches"]


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What the GPU's windows say of the steady state; nothing where there were none.

    Attributes:
        busy: share of the windows in which a device was busy.
        launching: share of the update in calls that launch work, as far as it lies in windows.
        idle: likewise, with no device busy.
        replays: whether CUDA graphs were launched.
    """

    busy: float = 0.0
    launching: float = 0.0
    idle: float = 0.0
    replays: bool = False


class Stretches:
    """The cells of each stretch, the backward passes in them, and what GPUs did.

    Args:
        found: outline of the process.
        edges: [N + 1] ns since the process's base, of the stretches.
        windows: of the process, in which the GPU was observed.
    """

    def __init__(self, found: Outline, edges: NDArray[np.int64], windows: list[GpuWindow]) -> None:
        process = found.process
        last = max(found.end_ns, int(edges[-1])) + 1
        self._bins = CellBins(np.concatenate([[0], edges, [last]]))
        self._streams = streams_of(windows, process.base_ns)
        self._backward = CallBins(_ids_of(process, BACKWARD), edges)
        inside = _within(windows, edges + process.base_ns)
        self._gpu = Meanwhile(process, inside)
        self._replays = any(map(_launches_graphs, inside))

    def add(self, timeline: Timeline) -> None:
        """The next slice."""
        self._bins.add(timeline, *self._streams)
        self._backward.add(timeline)
        self._gpu.add(timeline)

    def rows(self) -> dict[Key, NDArray[np.float64]]:
        """[N] ns of each cell, as recorded."""
        return {key: row[1:-1].astype(np.float64) for key, row in self._bins.result().items()}

    def backward_share(self, left: dict[Key, float]) -> float:
        """Of backpropagation the share that is backward passes; nan if none was observed.

        Calls are seen outside of calibration blocks alone. So they are compared with what else was
        seen there.

        Args:
            left: of each cell what is left without the probe's cost, of 1. The probe makes the
                optimizer's Python slower, not the native backward pass.
        """
        calls = self._backward.result().values()
        backward_ns = sum(float(each.inclusive_ns.sum()) for each in calls)
        whole_ns = sum(
            float(row[1:-1].sum()) * left.get(key, 1.0)
            for key, row in self._bins.observed().items()
            if key[1] == BACKPROPAGATION
        )
        if backward_ns <= 0 or whole_ns <= 0:
            return math.nan
        return min(backward_ns / whole_ns, 1.0)

    def on_gpu(self) -> OnGpu:
        """What the GPU's windows say."""
        rows = self._gpu.rows()
        whole = sum(row.time_ns for row in rows)
        update = [row for row in rows if row.operation in UPDATE]
        update_ns = sum(row.time_ns for row in update)
        launching = levels.LEVELS[levels.CUDA_API]
        if not whole:
            return OnGpu()
        return OnGpu(
            busy=sum(row.time_ns for row in rows if row.gpu_busy) / whole,
            launching=sum(row.time_ns for row in update if row.level == launching)
            / max(update_ns, 1),
            replays=self._replays,
            idle=sum(row.time_ns for row in update if not row.gpu_busy) / max(update_ns, 1),
        )


def _ids_of(process: Process, function: str) -> list[int]:
    return [
        each.id
        for each in process.names.values()
        if each.kind == "call" and f"{each.module}.{each.name}" == function
    ]


def _launches_graphs(window: GpuWindow) -> bool:
    records = window.records
    begun = (records.begin_ns >= window.begin_ns) & (records.begin_ns < window.end_ns)
    return bool((begun & (records.kinds == GRAPH)).any())


def _within(windows: list[GpuWindow], edges_ns: NDArray[np.int64]) -> list[GpuWindow]:
    """What of the windows lies in the steady state; all of them, if none does.

    Args:
        windows: of a process.
        edges_ns: [N + 1] of its stretches, CLOCK_MONOTONIC.
    """
    begin_ns, end_ns = int(edges_ns[0]), int(edges_ns[-1])
    cut = [
        replace(each, begin_ns=max(each.begin_ns, begin_ns), end_ns=min(each.end_ns, end_ns))
        for each in windows
    ]
    return [each for each in cut if each.end_ns > each.begin_ns] or windows

"""How often the probe was called, by operation: what its cost is in proportion to."""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from redline.profile import layout
from redline.profile.analyse.cells import operation_name
from redline.profile.analyse.decoded import Stream, states_at
from redline.profile.analyse.timeline import Timeline

# (phase, operation): callbacks, marked operation
Charge: TypeAlias = dict[tuple[str, str], tuple[int, str]]

__all__ = ["Charge", "ChargeSums"]


class ChargeSums:
    """Probe callbacks per (phase, operation), slice by slice."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, timeline: Timeline) -> None:
        """The next slice: callbacks of the threads that led when they happened."""
        for thread in timeline.threads:
            chosen = thread.special_codes == layout.CODE_CALLBACKS
            times, values = thread.special_times[chosen], thread.special_values[chosen]
            own = _states_at(thread.stream, times)
            phases = _states_at(timeline.phase, times)
            leads = _states_at(timeline.lead, times)
            keys = (own << 40) | (leads << 16) | phases
            order = np.argsort(keys, kind="stable")
            keys = keys[order]
            begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
            found: list[int] = keys[begins].tolist()
            totals = np.add.reduceat(values[order], begins) if len(begins) else begins
            for key, total in zip(found, totals.tolist(), strict=True):
                state = thread.states[key >> 40]
                lead = timeline.states[key >> 16 & 0xFFFFFF]
                if state is not None and lead.operation == state.operation:
                    phase = timeline.phases[key & 0xFFFF]
                    name = timeline.process.names.get(state.marked)
                    marked = name.name if name is not None else ""
                    self._counts[phase, operation_name(timeline, state)][marked] += total

    def result(self) -> Charge:
        """After the last slice; beside each sum the marked operation most of it fell into."""
        return {
            operation: (sum(found.values()), max(sorted(found), key=lambda name: found[name]))
            for operation, found in sorted(self._counts.items())
        }


def _states_at(stream: Stream, times: NDArray[np.int64]) -> NDArray[np.int64]:
    return states_at(stream, times).astype(np.int64)

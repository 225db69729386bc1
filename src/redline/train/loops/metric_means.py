"""Means of the updates' metrics, which stay on their device until a row is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from redline.devices import widest_float


@dataclass(slots=True)
class MetricMeans:
    """Means of the updates' metrics since the last row, each over the updates that returned it.

    Metrics on a device stay there until the row is written, because reading one would synchronize.
    They are summed as one tensor, and all are read at once.

    Attributes:
        totals: name -> sum of what has been read, and of what was on the host.
        count: updates.
        counts: name -> updates that `totals` has of it.
        names: of `on_device`.
        on_device: sums of the metrics that are on a device.
        device_count: updates that `on_device` has.
        sums: name -> [] sums that captured updates add to by themselves.
        sums_count: updates that `sums` has.
    """

    totals: dict[str, float] = field(default_factory=dict)
    count: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    on_device: Tensor | None = None
    device_count: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)
    sums_count: int = 0

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MetricMeans:
        """Means that go on from what `state_dict` gave."""
        totals, count = dict(state["totals"]), state["count"]
        # Where they are not said, every update returned every metric.
        return cls(totals, count, dict.fromkeys(totals, count) | state.get("counts", {}))

    def state_dict(self) -> dict[str, Any]:
        """Plain data: the sums so far. Waits for the device."""
        totals = self.read()
        fewer = {name: n for name, n in self.counts.items() if n != self.count}
        return {"totals": totals, "count": self.count} | ({"counts": fewer} if fewer else {})

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Take in one update's metrics, each [] or a number."""
        totals, counts, away = self.totals, self.counts, {}
        for name, value in metrics.items():
            if isinstance(value, Tensor) and not value.is_cpu:
                away[name] = value
                continue
            number = value.item() if isinstance(value, Tensor) else value
            if name in totals:
                totals[name] += number
                counts[name] += 1
            else:
                totals[name], counts[name] = number, 1
        if away:
            self._add_on_device(away)
        self.count += 1

    def add_sums(self, sums: dict[str, Tensor], count: int) -> None:
        """Take in `count` updates whose metrics were added to `sums`.

        Args:
            sums: name -> [] on a device; set to 0 when they are read.
            count: updates.
        """
        self.sums = sums
        self.sums_count += count
        self.count += count

    def _add_on_device(self, metrics: dict[str, Tensor]) -> None:
        if self.names != tuple(metrics):  # the first since the last row, or others than before
            self._read()
            self.names = tuple(metrics)
        # A copy: a captured update writes its metrics into the same memory at every replay.
        values = torch.stack([_wide(value) for value in metrics.values()])
        self.on_device = values if self.on_device is None else self.on_device + values
        self.device_count += 1

    def _read(self, also: Mapping[str, Tensor] | None = None) -> dict[str, float]:
        """Bring the sums to the host, and other numbers [] with them."""
        near = {name: float(value) for name, value in (also or {}).items() if value.is_cpu}
        away = {name: value for name, value in (also or {}).items() if name not in near}
        parts = [] if self.on_device is None else [self.on_device]
        if self.sums:
            parts.append(torch.stack(list(self.sums.values())))
        if away:
            parts.append(torch.stack([_wide(value) for value in away.values()]))
        numbers: list[float] = torch.cat(parts).tolist() if parts else []
        summed = (*self.names, *self.sums)
        updates = [self.device_count] * len(self.names) + [self.sums_count] * len(self.sums)
        for name, total, count in zip(summed, numbers, updates, strict=False):
            self.totals[name] = self.totals.get(name, 0.0) + total
            self.counts[name] = self.counts.get(name, 0) + count
        for total in self.sums.values():
            total.zero_()
        self.names, self.on_device, self.device_count = (), None, 0
        self.sums, self.sums_count = {}, 0
        return near | dict(zip(away, numbers[len(summed) :], strict=True))

    def read(self) -> dict[str, float]:
        """The sums so far. Waits for the device."""
        self._read()
        return dict(self.totals)

    def take(self) -> dict[str, float]:
        """The means, and start anew. Waits for the device."""
        return self.take_with({})[0]

    def take_with(self, also: Mapping[str, Tensor]) -> tuple[dict[str, float], dict[str, float]]:
        """The means and other numbers, name -> [], read from the device together."""
        numbers = self._read(also)
        means = {name: total / self.counts[name] for name, total in self.totals.items()}
        self.totals, self.counts, self.count = {}, {}, 0
        return means, numbers


def _wide(value: Tensor) -> Tensor:
    """As a double, or as the widest that its device has."""
    return value.to(widest_float(value.device))

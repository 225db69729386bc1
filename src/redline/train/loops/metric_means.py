"""Means of the updates' metrics, which stay on their device until a row is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from redline.devices import kind_of


@dataclass(slots=True)
class MetricMeans:
    """Means of the updates' metrics since the last row.

    Metrics on a device stay there until the row is written, because reading one would synchronize.
    They are summed as one tensor, and all are read at once.

    Attributes:
        totals: name -> sum of what has been read, and of what was on the host.
        count: updates.
        names: of `on_device`.
        on_device: sums of the metrics that are on a device.
        sums: name -> [] sums that captured updates add to by themselves.
    """

    totals: dict[str, float] = field(default_factory=dict)
    count: int = 0
    names: tuple[str, ...] = ()
    on_device: Tensor | None = None
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, metrics: Mapping[str, Tensor | float]) -> None:
        """Take in one update's metrics, each [] or a number."""
        totals, away = self.totals, {}
        for name, value in metrics.items():
            if isinstance(value, Tensor) and not value.is_cpu:
                away[name] = value
                continue
            number = value.item() if isinstance(value, Tensor) else value
            totals[name] = totals[name] + number if name in totals else number
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
        self.count += count

    def _add_on_device(self, metrics: dict[str, Tensor]) -> None:
        if self.names != tuple(metrics):  # the first since the last row, or others than before
            self._read()
            self.names = tuple(metrics)
        # A copy: a captured update writes its metrics into the same memory at every replay.
        values = torch.stack([_wide(value) for value in metrics.values()])
        self.on_device = values if self.on_device is None else self.on_device + values

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
        for name, total in zip(summed, numbers, strict=False):
            self.totals[name] = self.totals.get(name, 0.0) + total
        for total in self.sums.values():
            total.zero_()
        self.names, self.on_device, self.sums = (), None, {}
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
        means = {name: total / self.count for name, total in self.totals.items()}
        self.totals, self.count = {}, 0
        return means, numbers


def _wide(value: Tensor) -> Tensor:
    """As a double, or as the widest that its device has."""
    wide = torch.float64 if kind_of(value.device).has_float64 else torch.float32
    return value.to(wide)

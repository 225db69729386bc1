"""What updates report, summed until a row of progress is written."""

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
    They are summed as one tensor, and read as one.
    """

    totals: dict[str, float] = field(default_factory=dict)
    count: int = 0
    names: tuple[str, ...] = ()
    on_device: Tensor | None = None

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

    def _add_on_device(self, metrics: dict[str, Tensor]) -> None:
        if self.names != tuple(metrics):  # the first since the last row, or others than before
            self._read()
            self.names = tuple(metrics)
        # A copy: a captured update writes its metrics into the same memory at every replay.
        device = next(iter(metrics.values())).device
        dtype = torch.float64 if kind_of(device).has_float64 else torch.float32
        values = torch.stack([value.to(dtype) for value in metrics.values()])
        self.on_device = values if self.on_device is None else self.on_device + values

    def _read(self, also: Tensor | None = None) -> float | None:
        """Bring the sums to the host, and another number [] with them."""
        if self.on_device is None:
            return None if also is None else float(also)
        sums = self.on_device
        if also is not None:
            sums = torch.cat([sums, also.to(sums.dtype).reshape(1)])
        *totals, last = [*sums.tolist(), *([None] if also is None else [])]
        for name, total in zip(self.names, totals, strict=True):
            self.totals[name] = self.totals.get(name, 0.0) + total
        self.names, self.on_device = (), None
        return last

    def sums(self) -> dict[str, float]:
        """The sums so far. Waits for the device."""
        self._read()
        return dict(self.totals)

    def take(self) -> dict[str, float]:
        """The means, and start anew. Waits for the device."""
        return self.take_with(None)[0]

    def take_with(self, also: Tensor | None) -> tuple[dict[str, float], float | None]:
        """The means and another number [], read from the device together."""
        number = self._read(also)
        means = {name: total / self.count for name, total in self.totals.items()}
        self.totals, self.count = {}, 0
        return means, number

"""Metrics stay on the device until a row is written, and are then read together."""

from __future__ import annotations

import pytest
import torch

from redline.train.loops.metric_means import MetricMeans
from tests.accelerator.stand_in import StandInDevice


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_own_what_they_hold(dtype: torch.dtype) -> None:
    """A captured update overwrites its metrics at the next replay: (1 + 3) / 2, not (3 + 3) / 2."""
    loss = torch.ones((), dtype=dtype).to("standin")
    means = MetricMeans()
    means.add({"loss": loss})
    loss.fill_(3.0)
    means.add({"loss": loss})
    assert means.take() == {"loss": 2.0}


def test_a_row_is_read_at_once(accelerator: StandInDevice) -> None:
    """(1 + 4) / 2 and (2 + 6) / 2 on the device, (5 + 7) / 2 on the host, 9 / 1, and a count."""
    there = [torch.tensor(float(n)).to("standin") for n in (1, 4, 2, 6)]
    steps = torch.tensor(12).to("standin")
    means = MetricMeans()
    means.add({"loss": there[0], "norm": there[2], "rate": 5.0})
    means.add({"loss": there[1], "norm": there[3], "rate": 7.0})
    accelerator.reset()
    means.add_sums({"entropy": torch.tensor(9.0).to("standin")}, 1)
    wanted = {"rate": 6.0, "loss": 2.5, "norm": 4.0, "entropy": 9.0}
    assert means.take_with({"steps": steps}) == (wanted, {"steps": 12.0})
    assert len(accelerator.read_backs) == 1
    assert means.take_with({"steps": steps}) == ({}, {"steps": 12.0})


def test_sums_of_captured_updates_begin_anew_when_they_are_read() -> None:
    """(2 + 4) / 2, then 5 / 1: the memory stays where the graph writes to."""
    memory = torch.zeros((), dtype=torch.float64).to("standin")
    means = MetricMeans()
    for value in (2.0, 4.0):
        memory.add_(value)
        means.add_sums({"loss": memory}, 1)
    assert means.take() == {"loss": 3.0}
    memory.add_(5.0)
    means.add_sums({"loss": memory}, 1)
    assert means.read() == {"loss": 5.0}
    assert means.take() == {"loss": 5.0}


def test_metrics_may_come_and_go() -> None:
    """Each mean is over the updates that returned it: (1 + 1) / 2, and 1 / 1 of the other."""
    one = torch.ones(()).to("standin")
    means = MetricMeans()
    means.add({"loss": one, "actor": one})
    means.add({"loss": one})
    assert means.take() == {"loss": 1.0, "actor": 1.0}

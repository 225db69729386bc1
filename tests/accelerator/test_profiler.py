"""The profiler never waits for a device: neither its marks nor its recorder reads anything back."""

from __future__ import annotations

from pathlib import Path

import torch

from redline import profile
from redline.profile import marks
from tests.accelerator import stand_in
from tests.accelerator.stand_in import StandInDevice


def test_no_mark_waits(accelerator: StandInDevice) -> None:
    """With work under way on the device, in and out of every kind of mark."""
    x = torch.ones(4).to("standin")
    accelerator.reset()
    for step in range(3):
        with profile.operation("inference"), profile.phase("warm-up"):
            x = x * 2.0
            marks.step()
            profile.metadata(number=step)
    assert accelerator.read_backs == []
    assert accelerator.num_launches() == 3
    assert accelerator.copied_bytes == 0


def test_no_call_of_the_recorder_waits(tmp_path: Path, accelerator: StandInDevice) -> None:
    """From its start to its end, while operators of the device are recorded."""
    x = torch.ones(4).to("standin")
    accelerator.reset()
    with profile.session(tmp_path / "session"):
        for _ in range(3):
            with profile.operation("learning"):
                x = x + 1.0
    assert accelerator.read_backs == []
    assert accelerator.num_launches() == 3
    assert stand_in.device.copied_bytes == 0

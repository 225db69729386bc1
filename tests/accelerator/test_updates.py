"""Every algorithm's update on the stand-in: nothing is read back, the numbers are the CPU's."""

from __future__ import annotations

import pytest
import torch

from redline.engines.engine import choose_engine
from tests.accelerator.learning import batches, host, largest_difference
from tests.accelerator.stand_in import StandInDevice
from tests.engines.learners import ALGORITHMS, LEARNERS, ON_POLICY, make

# Their updates draw the same numbers on both devices, for the stand-in's lie on the CPU.
# Returns are summed in another order there.


@pytest.mark.parametrize("name", LEARNERS)
def test_an_eager_update_reads_nothing_back_and_is_the_cpus(
    name: str, accelerator: StandInDevice
) -> None:
    here, there = make(name), make(name, device="standin")
    for data in batches(name, 2):
        moved = data.to("standin")
        accelerator.reset()
        wanted, found = here.update(data), there.update(moved)
        assert [str(each) for each in accelerator.read_backs] == []
        assert accelerator.copied_bytes == 0
        close = 1e-4 if name.startswith(ON_POLICY) else 1e-5
        assert largest_difference(host(found), host(dict(wanted))) < close
    assert largest_difference(host(there.state_dict()), host(here.state_dict())) < 1e-3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_captured_update_is_one_graph(name: str, accelerator: StandInDevice) -> None:
    """From the second time on: one graph and one copy of its metrics, and of its priorities."""
    learner = make(name, device="standin")
    engine = choose_engine(learner, "auto", borrows=True)
    assert engine.name == "cudagraph"
    assert engine.captured is not None
    data = batches(name, 1)[0].to("standin")
    for _ in range(1 if name.startswith(ON_POLICY) else 3):  # every kind of turn has been captured
        engine.update(data)
    captured = engine.captured.num_graphs
    accelerator.reset()
    metrics = engine.update(data)
    assert engine.captured.num_graphs == captured
    assert accelerator.launches["graph"] == 1
    assert accelerator.num_launches() <= 3
    assert not accelerator.read_backs
    assert accelerator.copied_bytes == 0
    kept = {
        name: value.clone() for name, value in metrics.items() if isinstance(value, torch.Tensor)
    }
    engine.update(data)
    assert largest_difference(host(kept), host({k: metrics[k] for k in kept})) == 0.0

"""Captured updates are the eager ones to the bit, on the CPU, where numbers can be compared so.

100 updates of every algorithm, with learning rate and clip range moving, and a state that is
saved and loaded in the middle.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from redline.engines.engine import choose_engine
from tests.accelerator.emulated_graph import capturing_on_the_cpu
from tests.accelerator.learning import batches
from tests.engines.learners import ALGORITHMS, LEARNERS, differing, distance, make, parameters

UPDATES = 100
BATCHES = 5  # different ones, in turn


@pytest.fixture(autouse=True)
def cpu_captures() -> Iterator[None]:
    with capturing_on_the_cpu():
        yield


def moved(step: int, learner: Any) -> dict[str, float]:
    """What the schedules might say."""
    config = getattr(learner, "config", None)
    values = {"learning_rate": 1e-3 * (1.0 - step / UPDATES)}
    if hasattr(config, "clip_range"):
        values["clip_range"] = 0.3 - 0.2 * step / UPDATES
    if hasattr(config, "entropy_coef_schedule"):
        values["entropy_coef"] = 0.1 - 0.1 * step / UPDATES
    return values


def unequal(wanted: Any, found: Any) -> list[str]:
    assert wanted.keys() == found.keys()
    return [
        name
        for name, value in wanted.items()
        if not torch.equal(torch.as_tensor(value), torch.as_tensor(found[name]))
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_hundred_captured_updates_equal_eager_ones_to_the_bit(name: str) -> None:
    eager, captured = make(name), make(name)
    engine = choose_engine(captured, "cudagraph")
    assert engine.captured is not None
    data = batches(name, BATCHES)
    for step in range(UPDATES if not name.startswith(("ppo", "appo")) else UPDATES // 4):
        for learner in (eager, captured):
            learner.set_hyperparameters(moved(step, learner))
        rows = data[step % BATCHES]
        assert unequal(dict(eager.update(rows)), engine.update(rows)) == []
    assert differing(eager.state_dict(), captured.state_dict()) == []
    assert engine.captured.num_graphs <= 2


@pytest.mark.parametrize("name", [name for name in LEARNERS if name not in ALGORITHMS])
def test_variants_equal_eager_ones_to_the_bit(name: str) -> None:
    eager, captured = make(name), make(name)
    engine = choose_engine(captured, "cudagraph")
    for rows in batches(name, 6):
        assert unequal(dict(eager.update(rows)), engine.update(rows)) == []
    assert differing(eager.state_dict(), captured.state_dict()) == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_state_loaded_in_the_middle_goes_on_to_the_bit(name: str) -> None:
    """Both into the learner that was captured, and into a new one."""
    data = batches(name, 4)
    whole = make(name)
    engine = choose_engine(whole, "cudagraph")
    for rows in data[:2]:
        engine.update(rows)
    saved = copy.deepcopy(whole.state_dict())
    for rows in data[2:]:
        engine.update(rows)
    wanted = copy.deepcopy(whole.state_dict())
    whole.load_state_dict(copy.deepcopy(saved))
    other = make(name, seed=1)
    other.load_state_dict(copy.deepcopy(saved))
    again = choose_engine(other, "cudagraph")
    for rows in data[2:]:
        engine.update(rows)
        again.update(rows)
    assert differing(wanted, whole.state_dict()) == []
    assert differing(wanted, other.state_dict()) == []


@pytest.mark.parametrize("name", ["a2c", "ppo-box", "sac"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
def test_compiled_steps_are_captured(name: str) -> None:
    """The whole update as one graph, its step compiled; to rounding, as the compiler reorders.

    Warm-up calls run compiled. Beneath the recorder torch compiles nothing, so what is recorded is
    the eager step, and some steps (of td3 and dqn) fail there; a GPU needs no recorder.
    """
    torch._dynamo.reset()
    eager, captured = make(name), make(name)
    start = parameters(eager)
    engine = choose_engine(captured, "compile+cudagraph", backend="aot_eager")
    assert engine.name == "compile+cudagraph"
    assert engine.captured is not None
    assert engine.compiled is not None
    for rows in batches(name, 6):
        eager.update(rows)
        engine.update(rows)
    wanted = parameters(eager)
    assert distance(parameters(captured), wanted) < 0.01 * distance(start, wanted)
    assert engine.compiled.graphs >= 1
    assert engine.captured.num_graphs >= 1
    assert "launched" in str(engine.captured)


def test_new_shapes_get_a_graph_of_their_own() -> None:
    learner = make("sac-fixed-alpha")
    engine = choose_engine(learner, "cudagraph")
    rows = batches("sac-fixed-alpha", 1)[0]
    assert engine.captured is not None
    engine.update(rows)
    engine.update(rows[:8])
    engine.update(rows)
    assert engine.captured.num_graphs == 2
    assert "2 captured graphs launched 3 times" in str(engine.captured)

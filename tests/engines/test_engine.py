"""Every engine gives the numbers of the update as it is written, or says why it does not serve."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from redline.engines.compile import CompiledStep
from redline.engines.cudagraph import StaticInputs, describe
from redline.engines.engine import MODES, choose_engine, twin
from redline.errors import ConfigError
from tests.engines.learners import (
    LEARNERS,
    batch,
    differing,
    distance,
    make,
    parameters,
)

# The compiler itself uses what torch deprecates, and looks at gradients of inner tensors.
COMPILING = ("ignore::DeprecationWarning", "ignore:The .grad attribute")


class NoReadBack(TorchDispatchMode):
    """Refuses what would make a GPU's caller wait: reading a number, or copying to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"):
            raise AssertionError(f"the update calls {name}, which waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", list(LEARNERS))
@pytest.mark.parametrize("mode", ["eager", "cpu"])
def test_no_update_reads_back_to_the_host(name: str, mode: str) -> None:
    learner = make(name)
    engine = choose_engine(learner, mode)
    if mode == "cpu" and engine.name != "cpu":
        pytest.skip(f"runs eager: {engine.reason}")
    data = batch(name, learner, 0)
    with NoReadBack():
        for _ in range(2):
            engine.update(data)


def test_the_check_for_reading_back_can_fail() -> None:
    with NoReadBack(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(3).sum().item()
    with NoReadBack(), pytest.raises(AssertionError, match="waits for the device"):
        bool(torch.ones(()) > 0)


@pytest.mark.parametrize("name", list(LEARNERS))
@pytest.mark.parametrize("mode", ["cpu", "auto"])
def test_two_updates_have_the_gradients_of_autograd(name: str, mode: str) -> None:
    """From equal states: the same metrics, and parameters that moved alike.

    Adam's first step hides a gradient's size, not its sign; the second one compares sizes.
    """
    eager, other = make(name), make(name)
    engine = choose_engine(other, mode)
    assert engine.name in ("cpu", "eager")
    assert engine.reason
    for seed in range(2):
        data = batch(name, eager, seed)
        wanted, got = eager.update(data), engine.update(data)
        assert got.keys() == wanted.keys()
        for key, value in wanted.items():
            found = torch.as_tensor(got[key])
            torch.testing.assert_close(found, torch.as_tensor(value), rtol=2e-4, atol=2e-5, msg=key)
    moved = parameters(other)
    for key, value in parameters(eager).items():
        torch.testing.assert_close(moved[key], value, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", list(LEARNERS))
def test_a_hundred_updates_follow_autograd(name: str) -> None:
    """Rounding grows with every step; after 100 of them parameters agree to 1%.

    (PPO's updates are 4 steps each, and 30 of them will do.)

    On-policy batches are of one eager learner, so that both learn from the same rows.
    """
    eager, other = make(name), make(name)
    engine = choose_engine(other, "cpu")
    if engine.name != "cpu":
        pytest.skip(f"runs eager: {engine.reason}")
    start = parameters(eager)
    for seed in range(30 if name.startswith(("ppo", "appo")) else 100):
        data = batch(name, eager, seed)
        eager.update(data)
        engine.update(data)
    got = parameters(other)
    wanted = parameters(eager)
    assert distance(got, wanted) < 0.01 * distance(start, wanted)


@pytest.mark.parametrize("name", list(LEARNERS))
def test_eager_and_engine_updates_can_take_turns(name: str) -> None:
    """They own nothing: optimizers, counts and generators are the algorithm's."""
    eager, mixed = make(name), make(name)
    engine = choose_engine(mixed, "cpu")
    for seed in range(6):
        data = batch(name, eager, seed)
        eager.update(data)
        (engine.update if seed % 2 else mixed.update)(data)
    got = parameters(mixed)
    for key, value in parameters(eager).items():
        torch.testing.assert_close(got[key], value, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "diayn"])
def test_steps_learn_the_same_from_memory_that_stays(name: str) -> None:
    """What a captured graph does without a GPU: every call reads from the first one's buffers."""
    plain, static = make(name), make(name)
    known: dict[Any, StaticInputs] = {}

    def from_buffers(*inputs: Any) -> Any:
        tensors: list[Tensor] = []
        key = describe(inputs, tensors)
        if key not in known:
            known[key] = StaticInputs(inputs)
        known[key].load(tensors)
        return static.step(*known[key].values)

    update = twin(static, step=from_buffers).update
    for seed in range(4):
        data = batch(name, plain, seed)
        plain.update(data)
        update(data)
    assert not differing(plain.state_dict(), static.state_dict())
    assert len(known) <= 2  # with and without the actor, or the move of the target


@pytest.mark.filterwarnings(*COMPILING)
@pytest.mark.parametrize(
    ("name", "backend", "graphs"),
    [
        ("sac", "aot_eager", 2),  # with and without the actor
        ("dqn", "aot_eager", 2),  # with and without moving the target
        ("ppo-box", "aot_eager", 1),
        ("r2d1", "aot_eager", None),
        ("a2c", "inductor", 1),
        ("impala", "aot_eager", 1),
        ("reinforce", "aot_eager", 1),
        ("diayn", "aot_eager", None),
    ],
)
def test_compiled_updates_follow_eager_ones(name: str, backend: str, graphs: int | None) -> None:
    """One graph for each set of flags, without breaks.

    Compiling to machine code takes long: `python -m benchmarks.parity` does it for all.
    """
    torch._dynamo.reset()
    eager, compiled = make(name), make(name)
    start = parameters(eager)
    engine = choose_engine(compiled, "compile", backend=backend)
    step = engine.compiled
    assert engine.name == "compile"
    assert isinstance(step, CompiledStep)
    for seed in range(10):
        data = batch(name, eager, seed)
        eager.update(data)
        engine.update(data)
    wanted = parameters(eager)
    assert distance(parameters(compiled), wanted) < 0.01 * distance(start, wanted)
    assert step.compile_s > 0.0
    assert step.graphs >= 1
    assert str(step).startswith(f"compiled {step.graphs} graphs in ")
    if graphs is not None:
        assert step.graph_breaks == 0
        assert step.graphs == graphs


@pytest.mark.filterwarnings(*COMPILING)
def test_a_graph_break_is_counted_and_said() -> None:
    """One break makes two graphs of the step."""

    def broken(x: Tensor) -> Tensor:
        x = x + 1.0
        torch._dynamo.graph_break()
        return x * 2.0

    torch._dynamo.reset()
    step = CompiledStep(broken, torch.device("cpu"), "aot_eager")
    assert step(torch.tensor([1.0, 2.0])).tolist() == [4.0, 6.0]
    assert (step.graphs, step.graph_breaks, step.recompilations) == (2, 1, 0)
    assert str(step).endswith(", 1 graph breaks, 0 recompilations")


@pytest.mark.parametrize("name", list(LEARNERS))
@pytest.mark.parametrize("mode", ["eager", "cpu", "auto", "compile"])
def test_choosing_an_engine_changes_nothing_in_the_algorithm(name: str, mode: str) -> None:
    learner = make(name)
    before, names = learner.update, set(vars(learner))
    engine = choose_engine(learner, mode)
    assert engine.reason
    assert learner.update == before
    assert set(vars(learner)) == names


def test_auto_says_why() -> None:
    engine = choose_engine(make("iqn"), "auto")
    assert engine.name == "eager"
    assert "compile" in engine.reason  # what would be worth trying
    assert choose_engine(make("sac"), "eager").reason == "as asked for"


def test_a_mode_that_cannot_serve_is_refused() -> None:
    for mode in ("cudagraph", "compile+cudagraph"):
        with pytest.raises(ConfigError, match="captures CUDA graphs"):
            choose_engine(make("sac"), mode)
    for mode in ("fast", "derived", ""):
        with pytest.raises(ConfigError, match="is not known"):
            choose_engine(make("sac"), mode)


def test_an_algorithm_without_a_step_is_not_compiled() -> None:
    class WholeUpdate:
        device = torch.device("cpu")

        def update(self, data: Any) -> dict[str, Tensor]:
            return {}

    engine = choose_engine(WholeUpdate(), "compile")
    assert engine.name == "eager"
    assert "WholeUpdate has no `step`" in engine.reason


def test_a_twin_shares_all_that_changes() -> None:
    """An engine's own parts are found first, and what it counts is the algorithm's."""

    class Counter:
        def __init__(self) -> None:
            self.count, self.by = 0, 1

        def update(self) -> int:
            self.count += self.by
            return self.count

    counter = Counter()
    other = twin(counter, by=10)
    assert other.update() == 10
    assert counter.update() == 11
    assert isinstance(other, Counter)
    assert type(counter) is Counter


@pytest.mark.parametrize(("version", "reorders"), [("2.11.0+cu130", False), ("2.13.0", None)])
def test_a_compiler_that_fails_to_reorder_loops_is_not_asked_to(
    version: str, reorders: bool | None, monkeypatch: Any
) -> None:
    """PPO's step, compiled and captured on a GPU by torch 2.11, ended with an AssertionError."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch, "compile", lambda step, *, options, **rest: asked.update(options))
    CompiledStep(len, torch.device("cuda"))
    assert asked.get("loop_ordering_after_fusion") is reorders


# What the compiler recommends on such devices, to every program.
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("mode", [mode for mode in MODES if "cudagraph" in mode])
@pytest.mark.parametrize("name", ["sac", "ppo-box", "dqn"])
def test_captured_updates_follow_eager_ones(name: str, mode: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("CUDA graphs need a CUDA device")
    eager, captured = (to_cuda(make(name)) for _ in range(2))
    start = parameters(eager)
    engine = choose_engine(captured, mode)
    for seed in range(100):
        data = batch(name, make(name), seed).to("cuda")
        eager.update(data)
        engine.update(data)
    wanted = parameters(eager)
    assert distance(parameters(captured), wanted) < 0.01 * distance(start, wanted)


def to_cuda(learner: Any) -> Any:
    """A learner of the same weights on the GPU."""
    policy = learner.policy.to("cuda")
    if hasattr(learner, "critic"):
        return type(learner)(policy, learner.critic.to("cuda"), learner.config)
    if hasattr(learner, "target_policy"):
        return type(learner)(policy, learner.target_policy.to("cuda"), learner.config, seed=0)
    return type(learner)(policy, learner.config)

"""Every way to run an update gives the same numbers, and none reads back to the host."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from redline.engines.accelerate import (
    MODES,
    CompiledStep,
    StaticInputs,
    accelerate,
    choose_mode,
    describe,
)
from redline.engines.cpu.derive import derived
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from redline.errors import ConfigError, RedlineError
from tests.parity.learners import LEARNERS, ON_POLICY, batch, make, parameters

SERVED = (
    "sac", "sac-fixed-alpha", "td3", "ddpg", "dqn", "double-dqn", "ppo-box", "ppo-discrete",
    "ppo-limited", "appo", "a2c", "a2c-box", "impala", "reinforce",
)  # fmt: skip


class NoReadBack(TorchDispatchMode):
    """Refuses what would make a GPU's caller wait: reading a number, or copying to the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name in ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"):
            raise AssertionError(f"the update calls {name}, which waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", list(LEARNERS))
@pytest.mark.parametrize("mode", ["eager", "derived"])
def test_no_update_reads_back_to_the_host(name: str, mode: str) -> None:
    learner = make(name)
    if mode == "derived":
        if name not in SERVED:
            pytest.skip("its networks are not plain perceptrons: it has no derived step")
        accelerate(learner, mode)
    data = batch(name, learner, 0)
    with NoReadBack():
        for _ in range(2):
            learner.update(data)


def test_the_check_for_reading_back_can_fail() -> None:
    with NoReadBack(), pytest.raises(AssertionError, match="waits for the device"):
        torch.ones(3).sum().item()
    with NoReadBack(), pytest.raises(AssertionError, match="waits for the device"):
        bool(torch.ones(()) > 0)


@pytest.mark.parametrize("name", list(LEARNERS))
def test_which_algorithms_have_a_derived_step(name: str) -> None:
    assert (derived(make(name)) is not None) == (name in SERVED)


@pytest.mark.parametrize("name", SERVED)
def test_one_derived_step_has_the_gradients_of_autograd(name: str) -> None:
    """From equal states: the same metrics, and parameters that moved alike.

    Adam's first step hides a gradient's size, not its sign; the second one compares sizes.
    """
    eager, by_hand = make(name), make(name)
    accelerate(by_hand, "derived")
    for seed in range(2):
        data = batch(name, eager, seed)
        wanted, got = eager.update(data), by_hand.update(data)
        assert got.keys() == wanted.keys()
        for key, value in wanted.items():
            found = torch.as_tensor(got[key])
            torch.testing.assert_close(found, value, rtol=2e-4, atol=2e-5, msg=key)
    moved = parameters(by_hand)
    for key, value in parameters(eager).items():
        torch.testing.assert_close(moved[key], value, rtol=1e-4, atol=1e-5, msg=key)


@pytest.mark.parametrize("name", [n for n in SERVED if n.startswith(ON_POLICY)])
def test_one_derived_step_in_tensor_operations_has_the_gradients_of_autograd(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As larger networks have it, and other devices than the CPU."""
    module = "redline.engines.cpu.array_actor_critic"
    monkeypatch.setattr(f"{module}.suits_arrays", lambda *_: False)
    test_one_derived_step_has_the_gradients_of_autograd(name)


@pytest.mark.parametrize("name", ["dqn", "double-dqn"])
def test_one_derived_step_of_dqn_in_tensor_operations_has_the_gradients_of_autograd(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.engines.cpu.dqn.suits_arrays", lambda *_: False)
    test_one_derived_step_has_the_gradients_of_autograd(name)


@pytest.mark.parametrize("name", ["sac", "sac-fixed-alpha", "td3", "ddpg"])
def test_one_derived_step_of_actors_in_tensor_operations_has_the_gradients_of_autograd(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redline.engines.cpu.array_networks._all_suit", lambda *_: False)
    test_one_derived_step_has_the_gradients_of_autograd(name)


@pytest.mark.parametrize("name", SERVED)
def test_a_hundred_derived_updates_follow_autograd(name: str) -> None:
    """Rounding grows with every step; after 100 of them parameters agree to 1%.

    (PPO's updates are 4 steps each, and 30 of them will do.)

    On-policy batches are of one eager learner, so that both learn from the same rows.
    """
    eager, by_hand = make(name), make(name)
    start = parameters(eager)
    accelerate(by_hand, "derived")
    for seed in range(30 if name.startswith(("ppo", "appo")) else 100):
        data = batch(name, eager, seed)
        eager.update(data)
        by_hand.update(data)
    got = parameters(by_hand)
    wanted = parameters(eager)
    assert distance(got, wanted) < 0.01 * distance(start, wanted)


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Euclidean distance of all parameters together."""
    return sum(float((a[key].double() - b[key].double()).square().sum()) for key in a) ** 0.5


def test_eager_and_derived_steps_can_take_turns() -> None:
    """They own nothing: optimisers, counts and generators are the algorithm's."""
    eager, mixed = make("sac"), make("sac")
    own, by_hand = mixed.step, derived(mixed).step
    for seed in range(6):
        data = batch("sac", eager, seed)
        eager.update(data)
        mixed.step = by_hand if seed % 2 else own
        mixed.update(data)
    got = parameters(mixed)
    for key, value in parameters(eager).items():
        torch.testing.assert_close(got[key], value, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize("name", list(LEARNERS))
def test_steps_learn_the_same_from_memory_that_stays(name: str) -> None:
    """What a captured graph does without a GPU: every call reads from the first one's buffers."""
    plain, static = make(name), make(name)
    step, known = static.step, {}

    def from_buffers(*inputs: Any) -> Any:
        tensors: list[Tensor] = []
        key = describe(inputs, tensors)
        if key not in known:
            known[key] = StaticInputs(inputs)
        known[key].load(tensors)
        return step(*known[key].values)

    static.step = from_buffers
    for seed in range(4):
        data = batch(name, plain, seed)
        plain.update(data)
        static.update(data)
    got = parameters(static)
    for key, value in parameters(plain).items():
        assert torch.equal(got[key], value), key
    assert len(known) <= 2  # with and without the actor, or the move of the target


# The compiler itself uses what torch deprecates, and looks at gradients of inner tensors.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
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
    ],
)
def test_compiled_updates_follow_eager_ones(name: str, backend: str, graphs: int | None) -> None:
    """Those with a derived step are one graph for each set of flags, without breaks.

    Compiling to machine code takes long: `python -m benchmarks.parity` does it for all.
    """
    torch._dynamo.reset()
    eager, compiled = make(name), make(name)
    start = parameters(eager)
    step = accelerate(compiled, "compile", backend=backend)
    assert isinstance(step, CompiledStep)
    for seed in range(10):
        data = batch(name, eager, seed)
        eager.update(data)
        compiled.update(data)
    wanted = parameters(eager)
    assert distance(parameters(compiled), wanted) < 0.01 * distance(start, wanted)
    assert step.compile_s > 0.0
    assert step.graphs >= 1
    if graphs is not None:
        assert step.graph_breaks == 0
        assert step.graphs == graphs


def test_auto_takes_what_measures_fastest_and_says_why() -> None:
    assert choose_mode(make("sac"), "auto")[0] == "derived"
    mode, reason = choose_mode(make("iqn"), "auto")
    assert mode == "eager"
    assert reason


def test_a_mode_that_cannot_serve_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs plain perceptrons"):
        accelerate(make("rainbow"), "derived")
    for mode in ("cudagraph", "compile+cudagraph"):
        with pytest.raises(ConfigError, match="captures CUDA graphs"):
            accelerate(make("sac"), mode)
    with pytest.raises(ConfigError, match="is not known"):
        accelerate(make("sac"), "fast")


@pytest.mark.parametrize("name", ["sac", "td3", "dqn", "ppo-box", "a2c"])
@pytest.mark.parametrize("mode", ["derived", "compile"])
@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_an_accelerated_learner_is_not_copied(name: str, mode: str, copied: Any) -> None:
    """The copy's step would change the parameters of the original, or none that anybody sees."""
    learner = make(name)
    accelerate(learner, mode)
    with pytest.raises(RedlineError, match=r"cannot be copied .* state_dict"):
        copied(learner)
    copied(learner.policy)


def test_an_update_is_given_back_faster() -> None:
    """The same as `accelerate(learner, mode)`, by the function that one calls."""
    eager, by_hand = make("sac"), make("sac")
    start, step = parameters(eager), by_hand.step
    update = accelerate(by_hand.update, "derived")
    assert update == by_hand.update
    assert by_hand.step != step
    assert accelerate(eager.update, "eager") == eager.update
    for seed in range(10):
        data = batch("sac", eager, seed)
        eager.update(data)
        update(data)
    wanted = parameters(eager)
    assert distance(parameters(by_hand), wanted) < 0.01 * distance(start, wanted)


def test_functions_of_ones_own_are_accelerated() -> None:
    """y = sum(w x) - 3: with w = (1, 2) and x = (3, 4) that is 8."""

    def update(x: Tensor) -> dict[str, Tensor]:
        return {"loss": (torch.tensor([1.0, 2.0]) * x).sum() - 3.0}

    assert accelerate(update, "eager") is update
    assert accelerate(update, "auto") is update
    compiled = accelerate(update, "compile", backend="aot_eager")
    assert compiled(torch.tensor([3.0, 4.0]))["loss"].item() == 8.0
    assert (compiled.graphs, compiled.graph_breaks) == (1, 0)
    optimizer = torch.optim.SGD([torch.zeros(1)])  # has a `step`, and is no learner
    assert accelerate(optimizer.step, "eager") == optimizer.step
    with pytest.raises(ConfigError, match="has by hand"):
        accelerate(update, "derived")
    with pytest.raises(ConfigError, match="is not known"):
        accelerate(update, "fast")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"no CUDA device\. Use 'compile'"):
            accelerate(update, "compile+cudagraph")


@pytest.mark.parametrize("mode", [mode for mode in MODES if "cudagraph" in mode])
@pytest.mark.parametrize("name", ["sac", "ppo-box", "dqn"])
def test_captured_updates_follow_eager_ones(name: str, mode: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("CUDA graphs need a CUDA device")
    eager, captured = (to_cuda(make(name)) for _ in range(2))
    start = parameters(eager)
    accelerate(captured, mode)
    for seed in range(100):
        data = batch(name, make(name), seed).to("cuda")
        eager.update(data)
        captured.update(data)
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

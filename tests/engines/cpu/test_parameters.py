"""Steps in C against torch's in float64, and what is left to the optimizer itself."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from redline.algos.optimizers import Adam, RMSprop
from redline.engines.cpu import parameters as module
from redline.engines.cpu.parameters import Gradients, OptimizerStep, TargetMove

native = pytest.importorskip(
    "redline.engines.cpu._parameters", reason="built where there is a C compiler"
)
if module._parameters is None:
    pytest.skip("this torch does not tell C where tensors lie", allow_module_level=True)

SHAPES = st.lists(
    st.lists(st.sampled_from([1, 2, 3, 5, 7, 8, 16, 17, 33]), max_size=3), min_size=1, max_size=5
)


@pytest.fixture(autouse=True, scope="module")
def the_quickest_instructions() -> Iterator[None]:
    """Other tests go on with those that the processor has."""
    yield
    native.use(native.instructions[0])


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call of the extension, whether it did the step."""
    answers: list[bool] = []

    class Listener:
        def step(self, *args: Any) -> bool:
            answers.append(native.step(*args))
            return answers[-1]

    monkeypatch.setattr(module, "_parameters", Listener())
    return answers


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Holder(torch.nn.Module):
    """A network of one parameter, in the tensor's own memory."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.parameter = torch.nn.Parameter(tensor, requires_grad=False)
        self.parameter.data = tensor


def move(target: Tensor, online: Tensor, tau: float) -> None:
    """One target network's move."""
    holder = Holder(target)
    version = holder.parameter._version
    TargetMove([holder], [Holder(online)], tau)()
    assert holder.parameter._version > version  # as autograd's checks expect


def in_float64(start: list[Tensor], learning_rate: float, eps: float) -> tuple[Any, list[Tensor]]:
    """Torch's optimizer and its parameters."""
    parameters = [p.detach().double().clone().requires_grad_() for p in start]
    return torch.optim.Adam(parameters, learning_rate, eps=eps, foreach=False), parameters


@settings(deadline=None)
@given(
    shapes=SHAPES,
    learning_rate=st.floats(1e-5, 0.1),
    eps=st.floats(1e-8, 1e-1),
    scale=st.sampled_from([1e-4, 1.0, 1e3]),
    seed=st.integers(0, 2**16),
    instructions=st.sampled_from(native.instructions),
)
@example([[1000], []], 1e-3, 1e-8, 1.0, 0, native.instructions[0])
@example([[3, 0], [2]], 1e-3, 1e-8, 1.0, 0, native.instructions[0])
def test_a_hundred_steps_equal_torchs_in_float64(
    shapes: list[list[int]],
    learning_rate: float,
    eps: float,
    scale: float,
    seed: int,
    instructions: str,
) -> None:
    """A step moves a number by up to lr or so, with some 1e-6 of that lost at each of 100."""
    native.use(instructions)
    parameters = [randn(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
    adam = Adam(parameters, learning_rate, eps=eps)
    reference, wanted = in_float64(parameters, learning_rate, eps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(100):
        grads = [torch.randn(p.shape, generator=generator) * scale for p in parameters]
        OptimizerStep(adam, grads)()
        for p, grad in zip(wanted, grads, strict=True):
            p.grad = grad.double()
        reference.step()
    for found, p in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(
            found.double(), p.detach(), rtol=1e-5, atol=5e-6 + 1e-4 * learning_rate
        )


def test_instructions_and_places_in_memory_do_not_change_a_bit() -> None:
    """A number's step is the same within a vector and in the rest, from any address."""
    results = []
    for name in native.instructions:
        native.use(name)
        for offset in (0, 1, 7):
            memory = [torch.empty(200) for _ in range(2)]
            p, g = (each[offset : offset + 101] for each in memory)
            p.copy_(randn(101))
            adam = Adam([p], 1e-2)
            for step in range(3):
                g.copy_(randn(101, seed=step))
                OptimizerStep(adam, [g])()
            results.append(p.clone())
    assert all(torch.equal(result, results[0]) for result in results)


SHARED = ((3, 50, 301), (301, 103), (7,), (2, 0, 5))  # some 76,000 numbers


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_threads_do_not_change_a_bit(
    set_threads: Callable[[int], None], served: list[bool]
) -> None:
    """Matrices are shared one by one; borders fall within vectors and rows."""
    results = []
    for threads in (1, 2, 5):
        set_threads(threads)
        parameters = [randn(*shape, seed=i) for i, shape in enumerate(SHARED)]
        targets = [randn(*shape, seed=10 + i) for i, shape in enumerate(SHARED)]
        adam = Adam(parameters, 1e-2)
        for step in range(3):
            OptimizerStep(adam, [randn(*shape, seed=step) for shape in SHARED])()
            assert native.move_towards(targets, parameters, 0.1, threads) is True
        results.append([*parameters, *targets])
    for other in results[1:]:
        assert all(map(torch.equal, other, results[0]))
    assert served == [True] * 9


def test_very_many_numbers_move_while_other_threads_run() -> None:
    """A quarter of the way from 1 to 5 is 2."""
    target, online = torch.ones(1_100_000), torch.full((1_100_000,), 5.0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda part: move(part, online[: len(part)], 0.25), [target]))
    assert bool((target == 2.0).all())


@settings(deadline=None)
@given(
    shapes=SHAPES,
    tau=st.one_of(st.floats(0.0, 1.0), st.just(1.0)),
    seed=st.integers(0, 2**16),
    instructions=st.sampled_from(native.instructions),
)
def test_targets_move_as_torchs_do_in_float64(
    shapes: list[list[int]], tau: float, seed: int, instructions: str
) -> None:
    native.use(instructions)
    targets = [randn(*shape, seed=seed + i) for i, shape in enumerate(shapes)]
    online = [randn(*shape, seed=seed - i) for i, shape in enumerate(shapes)]
    wanted = [torch.lerp(a.double(), b.double(), tau) for a, b in zip(targets, online, strict=True)]
    apart = [target.clone() for target in targets]
    assert native.move_towards(apart, online, tau, 1) is True
    for target, ahead in zip(targets, online, strict=True):
        move(target, ahead, tau)
    assert all(map(torch.equal, targets, apart))
    for target, exact in zip(targets, wanted, strict=True):
        torch.testing.assert_close(target.double(), exact, rtol=1e-6, atol=1e-6)
    if tau == 1.0:
        assert all(map(torch.equal, targets, online))


def test_targets_that_c_does_not_serve_move_all_the_same() -> None:
    """(1, 3) moves a quarter of the way to (5, 3): (2, 3)."""
    for dtype, wide in ((torch.float64, False), (torch.float32, True)):
        target = torch.tensor([[1.0, 0.0], [3.0, 0.0]], dtype=dtype)
        target = target[:, 0] if wide else target[:, 0].clone()
        move(target, torch.tensor([5.0, 3.0], dtype=dtype), 0.25)
        assert target.tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    "turned",
    [
        lambda p: p.reshape(8, 3).t(),
        lambda p: p.reshape(2, 2, 2, 3).permute(0, 3, 1, 2),  # channels last
        lambda p: p.reshape(1, 24, 1).transpose(0, 2),
    ],
)
def test_any_order_of_the_axes_is_served(
    turned: Callable[[Tensor], Tensor], served: list[bool]
) -> None:
    flat, parameter = randn(24), turned(randn(24))
    plain, other = Adam([flat], 0.1), Adam([parameter], 0.1)
    for step in range(3):
        OptimizerStep(plain, [randn(24, seed=step)])()
        OptimizerStep(other, [turned(randn(24, seed=step))])()
    assert served == [True] * 6
    assert torch.equal(parameter, turned(flat))


def like(parameter: Tensor) -> Tensor:
    """Zeros with its strides, even if those leave gaps."""
    memory = torch.zeros(100, dtype=parameter.dtype)
    return memory.as_strided(parameter.shape, parameter.stride())


NO_GAPS = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("parameter", "gradient"),
    [
        pytest.param(NO_GAPS, torch.zeros(3, 4).t(), id="other-layout"),
        pytest.param(NO_GAPS, torch.zeros(12), id="other-shape"),
        pytest.param(NO_GAPS, torch.zeros(4, 2), id="too-small"),
        pytest.param(NO_GAPS.double(), torch.zeros(4, 3).double(), id="double"),
        pytest.param(NO_GAPS, torch.zeros(4, 3).double(), id="double-gradient"),
        pytest.param(NO_GAPS, torch.zeros(4, 3).to_sparse(), id="sparse"),
        pytest.param(NO_GAPS, torch.zeros(4, 3, device="meta"), id="no-memory"),
        pytest.param(NO_GAPS, None, id="no-tensor"),
        pytest.param(torch.zeros(4, 6)[:, ::2], torch.zeros(4, 6)[:, ::2], id="gaps"),
        pytest.param(
            torch.zeros(9).as_strided((3, 3), (2, 2)),
            torch.zeros(9).as_strided((3, 3), (2, 2)),
            id="overlap",
        ),
    ],
)
def test_what_is_not_served_is_left_alone(parameter: Tensor, gradient: Any) -> None:
    """Nothing may have changed, as torch's kernel then does the step or refuses it."""
    good, count = torch.ones(3), torch.tensor(4.0)
    moments = [[torch.ones(3), like(parameter)] for _ in range(2)]
    rate = torch.tensor(0.1, dtype=torch.float64)
    lists = ([good, parameter], [torch.ones(3), gradient], *moments)
    assert native.step(*lists, [count], rate, 0.9, 0.999, 1e-8, 1) is False
    assert count.item() == 4.0
    assert torch.equal(good, torch.ones(3))
    assert not parameter.any()


RATE = torch.tensor(0.1, dtype=torch.float64)


@pytest.mark.parametrize(
    ("counts", "rate"),
    [
        ([torch.tensor(1.0)], torch.tensor(0.1)),
        ([torch.tensor(1.0).double()], RATE),
        ([torch.ones(1)], RATE),
        ([torch.tensor(1.0), torch.tensor(2.0)], RATE),
        ([torch.tensor(1.0)] * 257, RATE),
        ([], RATE),
        ((torch.tensor(1.0),), RATE),
    ],
)
def test_counts_or_a_step_size_of_another_kind_are_not_served(counts: Any, rate: Tensor) -> None:
    """Counts that differ too: some parameters have been left out of a step."""
    ones = [torch.ones(3)]
    before = [count.clone() for count in counts]
    assert native.step(ones, ones, ones, ones, counts, rate, 0.9, 0.999, 1e-8, 1) is False
    assert all(map(torch.equal, before, counts))


def test_every_parameter_has_a_count_that_goes_up() -> None:
    """From 4 to 5 steps, with the moments' corrections of the fifth."""
    counts = [torch.tensor(4.0), torch.tensor(4.0)]
    lists = [[torch.ones(3), torch.ones(2)] for _ in range(4)]
    assert native.step(*lists, counts, RATE, 0.9, 0.999, 1e-8, 1) is True
    assert [count.item() for count in counts] == [5.0, 5.0]
    moved = 1.0 - 0.1 / (1.0 - 0.9**5) * (1.0 - 0.999**5) ** 0.5
    torch.testing.assert_close(lists[0][0], torch.full((3,), moved))


@pytest.mark.parametrize(
    ("parameters", "calls"),
    [
        pytest.param([randn(3).double()], [False], id="double"),
        pytest.param([randn(1) for _ in range(257)], [False], id="many-tensors"),
        pytest.param([randn(200_001)], [], id="many-numbers"),
        pytest.param([randn(200_000)], [True], id="just-as-many"),
    ],
)
def test_torchs_kernel_does_what_is_not_served(
    parameters: list[Tensor], calls: list[bool], served: list[bool]
) -> None:
    reference, wanted = in_float64(parameters, 0.1, 1e-8)
    grads = [torch.full_like(p, 2.0) for p in parameters]
    OptimizerStep(Adam(parameters, 0.1), grads)()
    for p, grad in zip(wanted, grads, strict=True):
        p.grad = grad.double()
    reference.step()
    assert served == calls
    for found, p in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(found.double(), p.detach(), rtol=1e-5, atol=1e-6)


def test_it_follows_parameters_that_are_moved(served: list[bool]) -> None:
    moved, still = torch.nn.Parameter(randn(5)), randn(5)
    adam, reference = Adam([moved], 0.1), Adam([still], 0.1)
    grad = randn(5, seed=1)
    before = moved.data
    for move in (
        lambda: None,
        lambda: setattr(moved, "data", moved.data.clone()),
        lambda: moved.data.share_memory_(),
    ):
        move()
        OptimizerStep(adam, [grad])()
        OptimizerStep(reference, [grad])()
        assert torch.equal(moved.detach(), still)
    assert served == [True] * 6
    assert not torch.equal(before, still)


def test_steps_by_c_and_by_the_optimizer_take_turns(served: list[bool]) -> None:
    """Moments and counts are the optimizer's own, also after it has been loaded."""
    parameter = torch.nn.Parameter(randn(5))
    adam = Adam([parameter], 0.1)
    reference, (wanted,) = in_float64([parameter], 0.1, 1e-8)
    grad = torch.empty(5)
    step = OptimizerStep(adam, [grad])
    for i in range(6):
        grad.copy_(randn(5, seed=i))
        if i == 3:
            saved = {name: value.clone() for name, value in adam.state_dict()["0"].items()}
            adam.load_state_dict({"0": saved})
        if i == 5:
            adam.set_learning_rate(0.01)
            reference.param_groups[0]["lr"] = 0.01
        if i % 2:
            parameter.grad = grad.clone()
            adam.step()
        else:
            step()
        wanted.grad = grad.double()
        reference.step()
    torch.testing.assert_close(parameter.double(), wanted, rtol=1e-5, atol=1e-6)
    assert adam.state_dict()["0"]["step"].item() == 6.0
    assert served.count(True) >= 3


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_without_c_the_optimizer_steps_itself(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_parameters", None)
    one, other = (torch.nn.Parameter(randn(4)) for _ in range(2))
    optimizers = kind([one], 0.1), kind([other], 0.1)
    for seed in range(3):
        grad = randn(4, seed=seed)
        OptimizerStep(optimizers[0], [grad])()
        assert one.grad is None
        other.grad = grad
        optimizers[1].step()
    assert torch.equal(one, other)


def test_clipping_scales_to_the_norm_and_reports_the_one_before() -> None:
    """(3, 4) has norm 5; at most 1 makes it (0.6, 0.8), at most 10 leaves it, 0 too."""
    for limit, wanted in ((1.0, [0.6, 0.8]), (10.0, [3.0, 4.0]), (0.0, [3.0, 4.0])):
        gradients = Gradients([torch.zeros(1), torch.zeros(1)])
        gradients.views[0].fill_(3.0)
        gradients.views[1].fill_(4.0)
        assert gradients.clip(limit) == 5.0
        assert torch.cat(gradients.views).tolist() == pytest.approx(wanted, rel=1e-5)


def test_a_norm_that_is_not_a_number_is_not_hidden() -> None:
    gradients = Gradients([torch.zeros(2)])
    gradients.views[0][0] = float("nan")
    gradients.clip(0.5)
    assert gradients.views[0].isnan().all()


def test_autograd_notices_the_change() -> None:
    """A parameter that a graph still needs must not be changed unseen."""
    parameter = torch.nn.Parameter(torch.ones(3))
    loss = (parameter * parameter).sum()
    OptimizerStep(Adam([parameter], 0.1), [torch.ones(3)])()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_table_of_another_version_is_not_asked() -> None:
    """And the one known before goes on to be used."""
    table = (ctypes.c_uint32 * 32)(2, 0)
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    assert native.connect(make(ctypes.addressof(table), b"dlpack_exchange_api", None)) is False
    parameter = torch.zeros(3)
    OptimizerStep(Adam([parameter], 0.5), [torch.ones(3)])()
    torch.testing.assert_close(parameter, torch.full((3,), -0.5))


ONES = [torch.ones(3)]


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        (lambda: native.step(ONES, ONES), TypeError, "10 arguments, not 2"),
        (lambda: native.step(ONES, [], ONES, ONES, *[0.0] * 5, 1), TypeError, "four lists"),
        (lambda: native.step(ONES, (ONES[0],), ONES, ONES, *[0.0] * 5, 1), TypeError, "four lists"),
        (lambda: native.step(*[ONES] * 4, 0, 0, "b", 0, 0, 1), TypeError, "real number"),
        (lambda: native.step(*[ONES] * 4, 0, 0, 0.9, 0.999, 0, "c"), TypeError, "integer"),
        (lambda: native.move_towards(ONES), TypeError, "4 arguments, not 1"),
        (lambda: native.move_towards(ONES, [], 0.5, 1), TypeError, "two lists"),
        (lambda: native.move_towards(ONES, ONES, "tau", 1), TypeError, "real number"),
        (lambda: native.connect(3), ValueError, "PyCapsule"),
        (lambda: native.use("mmx"), ValueError, "no instructions 'mmx'"),
    ],
)
def test_wrong_arguments_are_refused(
    what: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        what()

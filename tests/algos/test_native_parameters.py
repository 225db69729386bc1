"""Steps in C beside torch's in float64, and where torch's kernels take over."""

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

from redline.algos import optimizers
from redline.algos.optimizers import Adam, move_towards

native = pytest.importorskip(
    "redline.engines.cpu._parameters", reason="built where there is a C compiler"
)
if optimizers._parameters is None:
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

    monkeypatch.setattr(optimizers, "_parameters", Listener())
    return answers


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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
        adam.step(grads)
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
                adam.step([g])
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
            adam.step([randn(*shape, seed=step) for shape in SHARED])
            assert native.move_towards(targets, parameters, 0.1, threads) is True
        results.append([*parameters, *targets])
    for other in results[1:]:
        assert all(map(torch.equal, other, results[0]))
    assert served == [True] * 9


def test_very_many_numbers_move_while_other_threads_run() -> None:
    """A quarter of the way from 1 to 5 is 2."""
    target, online = torch.ones(1_100_000), torch.full((1_100_000,), 5.0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda part: move_towards([part], [online[: len(part)]], 0.25), [target]))
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
    versions = [target._version for target in targets]
    move_towards(targets, online, tau)
    assert all(map(torch.equal, targets, apart))
    for target, exact, version in zip(targets, wanted, versions, strict=True):
        torch.testing.assert_close(target.double(), exact, rtol=1e-6, atol=1e-6)
        assert target._version > version  # as autograd's checks expect
    if tau == 1.0:
        assert all(map(torch.equal, targets, online))


def test_targets_that_c_does_not_serve_move_all_the_same() -> None:
    """(1, 3) moves a quarter of the way to (5, 3): (2, 3)."""
    for dtype, wide in ((torch.float64, False), (torch.float32, True)):
        target = torch.tensor([[1.0, 0.0], [3.0, 0.0]], dtype=dtype)
        target = target[:, 0] if wide else target[:, 0].clone()
        move_towards([target], [torch.tensor([5.0, 3.0], dtype=dtype)], 0.25)
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
        plain.step([randn(24, seed=step)])
        other.step([turned(randn(24, seed=step))])
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
    assert native.step(*lists, count, rate, 0.9, 0.999, 1e-8, 1) is False
    assert count.item() == 4.0
    assert torch.equal(good, torch.ones(3))
    assert not parameter.any()


@pytest.mark.parametrize(
    ("count", "rate"),
    [
        (torch.tensor(1.0), torch.tensor(0.1)),
        (torch.tensor(1.0).double(), torch.tensor(0.1).double()),
        (torch.ones(1), torch.tensor(0.1).double()),
    ],
)
def test_a_count_or_step_size_of_another_kind_is_not_served(count: Tensor, rate: Tensor) -> None:
    ones = [torch.ones(3)]
    assert native.step(ones, ones, ones, ones, count, rate, 0.9, 0.999, 1e-8, 1) is False


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
    Adam(parameters, 0.1).step(grads)
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
        adam.step([grad])
        reference.step([grad])
        assert torch.equal(moved.detach(), still)
    assert served == [True] * 6
    assert not torch.equal(before, still)


def test_the_count_is_one_whoever_steps(served: list[bool]) -> None:
    """C, torch's kernel (which alone can skip) and the compiled operations, one after another."""
    parameter = randn(5)
    adam = Adam([parameter], 0.1)
    reference, (wanted,) = in_float64([parameter], 0.1, 1e-8)
    grads = [randn(5, seed=step) for step in range(6)]
    adam.step([grads[0]])
    adam.step([grads[1]], skip=torch.tensor(0.0))
    adam.step([randn(5, seed=9)], skip=torch.tensor(1.0))
    adam.step([grads[2]])
    adam._compiled_step([0], [grads[3]], None)
    adam.load_state_dict(
        {"0": {name: value.clone() for name, value in adam.state_dict()["0"].items()}}
    )
    adam.step([grads[4]])
    adam.set_learning_rate(0.01)
    adam.step([grads[5]])
    for step, grad in enumerate(grads):
        reference.param_groups[0]["lr"] = 0.01 if step == 5 else 0.1
        wanted.grad = grad.double()
        reference.step()
    torch.testing.assert_close(parameter.double(), wanted.detach(), rtol=1e-5, atol=1e-6)
    assert adam.state_dict()["0"]["step"].item() == 6.0
    assert served == [True] * 4


def test_autograd_notices_the_change() -> None:
    """A parameter that a graph still needs must not be changed unseen."""
    parameter = torch.nn.Parameter(torch.ones(3))
    loss = (parameter * parameter).sum()
    Adam([parameter], 0.1).step([torch.ones(3)])
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
    Adam([parameter], 0.5).step([torch.ones(3)])
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

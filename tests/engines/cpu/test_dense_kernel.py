"""ReLU networks in C beside the same arithmetic in float64."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redline.data import Array

dense = pytest.importorskip(
    "redline.engines.cpu._dense", reason="built where there is a C compiler"
)

WIDTHS = st.lists(st.sampled_from([1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 65, 120]), min_size=2,
                  max_size=4)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def the_quickest_instructions() -> Iterator[None]:
    """Other tests go on with those that the processor has."""
    yield
    dense.use(dense.instructions[0])


class Case:
    """A network of some widths, its arrays in either of the two layouts."""

    def __init__(self, widths: list[int], *, seed: int, turned: bool, activate: bool) -> None:
        rng = np.random.default_rng(seed)
        pairs = list(itertools.pairwise(widths))

        def matrix(i: int, o: int, fill: bool = True) -> Array:
            values = rng.standard_normal((i, o)) / np.sqrt(i) if fill else np.zeros((i, o))
            values = values.astype(np.float32)
            return np.ascontiguousarray(values.T).T if turned else values

        self.weights = tuple(matrix(i, o) for i, o in pairs)
        self.biases = tuple(rng.standard_normal(o).astype(np.float32) for _, o in pairs)
        self.weight_grads = tuple(matrix(i, o, fill=False) for i, o in pairs)
        self.bias_grads = tuple(np.zeros(o, np.float32) for _, o in pairs)
        self.activate = activate
        self.rng = rng
        self.network = dense.Network(
            self.weights, self.biases, self.weight_grads, self.bias_grads, activate
        )

    def tape(self, x: Array) -> list[Array]:
        """Memory for a forward pass."""
        return [x, *(np.full((len(x), len(b)), np.nan, np.float32) for b in self.biases)]

    def expected(
        self, x: Array, grad: Array
    ) -> tuple[list[Array], list[Array], list[Array], Array]:
        """Outputs of all layers, gradients of all parameters and of the input, in float64."""
        kept, last = [x.astype(np.float64)], len(self.weights) - 1
        for i, (w, b) in enumerate(zip(self.weights, self.biases, strict=True)):
            y = kept[-1] @ w.astype(np.float64) + b
            kept.append(np.maximum(y, 0.0) if i < last or self.activate else y)
        g, weights, biases = grad.astype(np.float64), [], []
        for i in range(last, -1, -1):
            if i < last or self.activate:
                g = g * (kept[i + 1] > 0)
            weights.insert(0, kept[i].T @ g)
            biases.insert(0, g.sum(0))
            g = g @ self.weights[i].T.astype(np.float64)
        return kept[1:], weights, biases, g


@given(
    widths=WIDTHS,
    rows=st.sampled_from([1, 2, 7, 8, 9, 64, 130]),
    seed=st.integers(0, 2**16),
    turned=st.booleans(),
    activate=st.booleans(),
    instructions=st.sampled_from(dense.instructions),
    last=st.integers(0, 200),
)
def test_values_and_gradients_equal_float64(
    widths: list[int],
    rows: int,
    seed: int,
    turned: bool,
    activate: bool,
    instructions: str,
    last: int,
) -> None:
    dense.use(instructions)
    case = Case(widths, seed=seed, turned=turned, activate=activate)
    x = case.rng.standard_normal((rows, widths[0])).astype(np.float32)
    grad = case.rng.standard_normal((rows, widths[-1])).astype(np.float32)
    tape = case.tape(x)
    case.network.forward(tape)
    # A unit close to 0 may fall on either side of it: such cases say nothing of the gradients.
    outputs, weights, biases, inputs = case.expected(x, grad)
    for found, wanted in zip(tape[1:], outputs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)
    if all(((f > 0) == (w > 0)).all() for f, w in zip(tape[1:], outputs, strict=True)):
        last %= widths[0] + 1
        to_input = np.full((rows, last), np.nan, np.float32)
        case.network.backward(tape, grad, 1, 1, to_input)
        np.testing.assert_allclose(to_input, inputs[:, widths[0] - last :], rtol=1e-3, atol=2e-4)
        for found, wanted in zip(case.weight_grads, weights, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-4)
        for found, wanted in zip(case.bias_grads, biases, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-4)
    out = np.full(widths[-1], np.nan, np.float32)
    case.network.row(x[0], out)
    np.testing.assert_allclose(out, outputs[-1][0], rtol=1e-4, atol=2e-5)


def test_a_network_worked_by_hand() -> None:
    # 2 -> 2 -> 1: hidden (1*1 + 2*0 + 0.5, -1*1 + 1*2 - 3) = (1.5, -2) -> (1.5, 0); 2*1.5 + 1 = 4
    weights = (np.array([[1, -1], [0, 1]], np.float32), np.array([[2], [5]], np.float32))
    biases = (np.array([0.5, -3], np.float32), np.array([1], np.float32))
    weight_grads = tuple(np.zeros_like(w) for w in weights)
    bias_grads = tuple(np.zeros_like(b) for b in biases)
    network = dense.Network(weights, biases, weight_grads, bias_grads, False)
    tape = [np.array([[1, 2]], np.float32), np.empty((1, 2), np.float32)]
    tape.append(np.empty((1, 1), np.float32))
    network.forward(tape)
    assert tape[1].tolist() == [[1.5, 0.0]]
    assert tape[2].tolist() == [[4.0]]
    network.backward(tape, np.array([[3]], np.float32))
    assert weight_grads[1].tolist() == [[4.5], [0.0]]  # 3 * (1.5, 0)
    assert bias_grads[1].tolist() == [3.0]
    assert weight_grads[0].tolist() == [[6.0, 0.0], [12.0, 0.0]]  # 3 * 2 through the first unit
    assert bias_grads[0].tolist() == [6.0, 0.0]


@pytest.mark.parametrize(("outputs", "last"), [(1, 6), (2, 2)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("instructions", dense.instructions)
def test_the_number_of_threads_changes_nothing(
    turned: bool, instructions: str, outputs: int, last: int
) -> None:
    """Rows, and numbers of a gradient, are computed as a whole by one thread each."""
    dense.use(instructions)
    case = Case([23, 200, 130, outputs], seed=0, turned=turned, activate=False)
    x = case.rng.standard_normal((333, 23)).astype(np.float32)
    grad = case.rng.standard_normal((333, outputs)).astype(np.float32)

    def passes(threads: int) -> list[Array]:
        for each in (*case.weight_grads, *case.bias_grads):
            each[...] = np.nan
        tape, to_input = case.tape(x), np.full((333, last), np.nan, np.float32)
        case.network.forward(tape, threads)
        case.network.backward(tape, grad, threads, True, to_input)
        grads = [each.copy() for each in (*case.weight_grads, *case.bias_grads)]
        return [*tape, *grads, to_input]

    wanted = passes(1)
    assert not any(np.isnan(each).any() for each in wanted)
    for threads in (2, 3, 7):
        for found, each in zip(passes(threads), wanted, strict=True):
            np.testing.assert_array_equal(found, each)


@pytest.mark.parametrize("instructions", dense.instructions)
def test_a_row_is_worth_the_same_alone(instructions: str) -> None:
    dense.use(instructions)
    for turned, outputs in itertools.product((False, True), (1, 2)):
        case = Case([40, 33, 5, outputs], seed=1, turned=turned, activate=False)
        x = case.rng.standard_normal((20, 40)).astype(np.float32)
        whole = case.tape(x)
        case.network.forward(whole)
        for i in range(20):
            one = case.tape(x[i : i + 1])
            case.network.forward(one)
            for found, each in zip(one, whole, strict=True):
                np.testing.assert_array_equal(found[0], each[i])


def test_inputs_gradients_alone_need_no_memory_for_those_of_weights() -> None:
    # dy/dx = 2 * 1 * (1, 0) through the first hidden unit, which alone is positive; see below
    weights = (np.array([[1, -1], [0, 1]], np.float32), np.array([[2], [5]], np.float32))
    biases = (np.array([0.5, -3], np.float32), np.array([1], np.float32))
    network = dense.Network(weights, biases, (), (), False)
    tape = [np.array([[1, 2]], np.float32), np.empty((1, 2), np.float32)]
    tape.append(np.empty((1, 1), np.float32))
    network.forward(tape)
    to_input = np.empty((1, 2), np.float32)
    network.backward(tape, np.array([[3]], np.float32), 1, False, to_input)
    assert to_input.tolist() == [[6.0, 0.0]]
    last = np.empty((1, 1), np.float32)
    network.backward(tape, np.array([[3]], np.float32), 1, False, last)
    assert last.tolist() == [[0.0]]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("zero", ["none", "half", "blocks", "all", "all but the last"])
def test_rows_without_a_gradient_are_left_out(threads: int, zero: str) -> None:
    """Of a minimum over critics each has one for its own rows only; the others' are zero."""
    case = Case([12, 200, 130, 2], seed=3, turned=False, activate=False)
    x = case.rng.standard_normal((300, 12)).astype(np.float32)
    grad = case.rng.standard_normal((300, 2)).astype(np.float32)
    rows = np.arange(300)
    without = {
        "none": rows < 0,
        "half": case.rng.random(300) < 0.5,
        "blocks": (rows // 40) % 2 == 0,
        "all": rows >= 0,
        "all but the last": rows < 299,
    }[zero]
    grad[without] = 0.0
    grad[:, 0] *= rows % 3 > 0  # of a row with a gradient some may be zero
    tape = case.tape(x)
    case.network.forward(tape, threads)
    to_input = np.full((300, 5), np.nan, np.float32)
    case.network.backward(tape, grad, threads, 0, to_input)
    whole = np.full((300, 5), np.nan, np.float32)
    case.network.backward(tape, grad, threads, 1, whole)
    np.testing.assert_array_equal(to_input, whole)
    assert (to_input[without] == 0.0).all()
    assert not np.isnan(to_input).any()


def test_what_is_no_number_is_not_rectified_away() -> None:
    case = Case([2, 3, 2], seed=0, turned=True, activate=True)
    x = np.array([[np.nan, 1.0]], np.float32)
    tape = case.tape(x)
    case.network.forward(tape)
    assert np.isnan(tape[-1]).all()
    out = np.zeros(2, np.float32)
    case.network.row(x[0], out)
    assert np.isnan(out).all()


def test_parameters_are_read_where_they_lie() -> None:
    case = Case([2, 2], seed=0, turned=True, activate=False)
    case.weights[0][...] = 0.0
    case.biases[0][...] = (1.0, 2.0)
    tape = case.tape(np.ones((1, 2), np.float32))
    case.network.forward(tape)
    assert tape[-1].tolist() == [[1.0, 2.0]]


def good() -> Case:
    return Case([4, 8, 2], seed=0, turned=True, activate=False)


def forward(tape: list[Any]) -> None:
    good().network.forward(tape)


def backward(*arguments: Any) -> None:
    good().network.backward(*arguments)


ZEROS = {n: np.zeros((3, n), np.float32) for n in (2, 4, 8)}
TAPE = [ZEROS[4], ZEROS[8], ZEROS[2]]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda: forward(TAPE[:2]), "the input and 2 outputs"),
        (lambda: forward([ZEROS[4].astype(np.float64), *TAPE[1:]]), "float32 with 2 axes"),
        (lambda: forward([ZEROS[2], *TAPE[1:]]), r"\[rows, 4\]"),
        (lambda: forward([ZEROS[4][:2], *TAPE[1:]]), r"\[rows, 8\]"),
        (lambda: forward([np.zeros((4, 3), np.float32).T, *TAPE[1:]]), r"\[rows, 4\]"),
        (lambda: backward(TAPE, ZEROS[8]), r"\[rows, outputs\]"),
        (lambda: backward(TAPE, ZEROS[2], 1, 1, ZEROS[8]), "some of the inputs"),
        (lambda: backward(TAPE, ZEROS[2], 1, 1, ZEROS[4][:2]), "some of the inputs"),
        (lambda: backward(TAPE, ZEROS[2], 1, 1, ZEROS[4].astype(int)), "to_input should be"),
        (lambda: backward(TAPE, ZEROS[2], "two"), "integer"),
        (lambda: backward(TAPE), r"backward\(tape, grad"),
        (lambda: good().network.forward(), r"forward\(tape"),
        (lambda: good().network.forward(TAPE, None), "integer"),
        (lambda: good().network.row(ZEROS[4][0, :3], np.zeros(2, np.float32)), r"\[inputs\]"),
        (lambda: good().network.row(ZEROS[4][0], np.zeros(3, np.float32)), r"\[outputs\]"),
        (lambda: dense.use("mmx"), "no instructions 'mmx'"),
        (lambda: dense.use(3), "no instructions 3"),
        (lambda: dense.Network((), (), (), (), False), "1 to 16 layers"),
        (lambda: dense.Network((ZEROS[4],), (), (), (), False), "one of each"),
        (
            lambda: dense.Network((ZEROS[4],), (np.zeros(3, np.float32),), (), (), False),
            "layer 0: shapes",
        ),
    ],
)
def test_what_does_not_fit_is_refused(what: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        what()


def test_gradients_are_refused_where_there_is_no_memory_for_them() -> None:
    case = good()
    network = dense.Network(case.weights, case.biases, (), (), False)
    network.forward(case.tape(ZEROS[4]))
    with pytest.raises(ValueError, match="made without gradients"):
        network.backward(TAPE, ZEROS[2])


def test_no_rows_give_no_gradient() -> None:
    case = good()
    case.weight_grads[0][...] = 1.0
    case.bias_grads[1][...] = 1.0
    tape = [each[:0] for each in TAPE]
    case.network.forward(tape)
    case.network.backward(tape, ZEROS[2][:0])
    assert all((grad == 0).all() for grad in (*case.weight_grads, *case.bias_grads))


def test_long_passes_in_two_threads_do_not_disturb_each_other() -> None:
    """They let go of the interpreter's lock, so each has memory of its own."""
    case = Case([64, 256, 256, 8], seed=0, turned=True, activate=False)
    inputs = [case.rng.standard_normal((512, 64)).astype(np.float32) for _ in range(2)]
    wanted = [case.tape(x) for x in inputs]
    for tape in wanted:
        case.network.forward(tape)

    def check(i: int) -> None:
        for _ in range(10):
            tape = case.tape(inputs[i])
            case.network.forward(tape)
            np.testing.assert_array_equal(tape[-1], wanted[i][-1])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(check, range(2)))


def test_a_read_only_output_is_refused() -> None:
    frozen = np.zeros((3, 2), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        forward([ZEROS[4], np.empty((3, 8), np.float32), frozen])

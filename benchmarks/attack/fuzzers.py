"""Random calls of the C extensions through their Python doors, for `sanitizers`.

Each function makes a few calls that may be right or wrong and says how many were not refused. What
a call must not do is read or write outside of its arrays, overflow, or crash: the sanitizer of the
process says so. Arrays are exactly as large as they should be, and never views into larger ones, so
that one number too far lies outside.

Loading torch here would cost minutes; the extensions that borrow its threads borrow those of GNU's
OpenMP, which `load_openmp` loads as torch does.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from redline.errors import RedlineError

_FAN, _TOP = 16, 4096  # of a tree, as in replay/tree.py, which would load torch
_REFUSALS = (
    ValueError, MemoryError, OverflowError, TypeError, IndexError, BufferError, OSError,
    AttributeError, RuntimeError, RedlineError,
)  # fmt: skip
_NUMBERS = (0, 1, -1, 2, 16, 17, 255, 32767, 32768, 65535, 65536, 2**31 - 1, -(2**31), 2**40)
_STRANGE: tuple[Any, ...] = (
    None, "", "x", b"x", 1.5, (), [], {}, object(), 2**63, -(2**63), 2**100, "\udcff", "a" * 5000,
    True, float("nan"), int, (1, 2), [1, None], np.zeros(3), np.zeros((2, 2), np.float32),
)  # fmt: skip


def load_openmp() -> bool:
    """Load GNU's OpenMP, where the extensions look for it; whether it is here."""
    try:
        ctypes.CDLL("libgomp.so.1")
    except OSError:
        return False
    return True


def accepted(calls: Sequence[Callable[[], Any]]) -> int:
    """Make the calls; how many of them were not refused."""
    count = 0
    for call in calls:
        try:
            call()
        except _REFUSALS:
            continue
        count += 1
    return count


def drawn(rng: random.Random) -> np.random.Generator:
    """A generator of arrays that goes on from one of numbers."""
    return np.random.default_rng(rng.randrange(2**32))


# -- profile/_sweep ---------------------------------------------------------------------------


def decoding(sweep: Any, rng: random.Random) -> int:
    """Random events over random tables of names, in two pieces of which one carries on."""
    from redline.profile import layout

    draw = drawn(rng)
    rows = int(draw.integers(0, 400))
    top = int(draw.choice([8, 64, 2**16]))
    deltas = draw.integers(0, int(draw.choice([2, 1000, 2**32])), rows).astype(np.uint32)
    codes = draw.integers(0, top, rows).astype(np.uint16)
    kinds = draw.integers(0, 256, layout.MAX_IDS).astype(np.uint8)
    levels = draw.integers(0, 256, layout.MAX_IDS).astype(np.uint8)
    cut, until = int(draw.integers(0, rows + 1)), int(draw.integers(0, 2**63))
    end = 2**63 - 1

    def pieces() -> None:
        first = sweep.decode(deltas[:cut], codes[:cut], kinds, levels, b"", 0, until)
        since, carry = first["last_ns"], first["carry"]
        sweep.decode(deltas[cut:], codes[cut:], kinds, levels, carry, since, end)

    torn = draw.integers(0, 256, int(draw.integers(1, 99)), np.uint8).tobytes()
    return accepted([pieces, lambda: sweep.decode(deltas, codes, kinds, levels, torn, 0, end)])


def streams(sweep: Any, rng: random.Random) -> int:
    """Streams of random times and states: merged, summed, and as intervals of labels."""
    draw = drawn(rng)

    def stream(states: int) -> tuple[Any, Any]:
        rows = int(draw.integers(0, 50))
        times = draw.integers(-(2**40), 2**40, rows)
        if draw.random() < 0.8:
            times = np.sort(times)
        return times.astype(np.int64), draw.integers(0, states + 1, rows).astype(np.uint32)

    count = int(draw.integers(1, 4))
    sizes = [int(each) for each in draw.integers(1, 9, count)]
    given = [stream(size) for size in sizes]
    begin = int(draw.integers(-(2**40), 2**40))
    intervals = [np.sort(draw.integers(0, 2**40, (2, 9)), axis=0) for _ in range(count)]
    return accepted(
        [
            lambda: sweep.accumulate(given, sizes, begin, begin + int(draw.integers(0, 2**41))),
            lambda: sweep.lead(stream(5), stream(5), bytes(draw.integers(0, 2, 12).tolist())),
            lambda: sweep.overlap_masks(
                [np.sort(each[0]) for each in intervals], [np.sort(each[1]) for each in intervals]
            ),
        ]
    )


# -- replay/_tree -----------------------------------------------------------------------------


def trees(tree: Any, rng: random.Random) -> int:
    """Write and search trees of random sizes, leaves outside of them included."""
    draw = drawn(rng)
    size = int(draw.integers(1, 5000))
    levels = [-(-(size + 1) // _FAN) * _FAN]
    while len(levels) == 1 or levels[-1] > _TOP:
        levels.append(-(-(levels[-1] // _FAN) // _FAN) * _FAN)
    sums = tuple(np.zeros(length) for length in levels)
    minima = tuple(np.full(length, np.inf) for length in levels[1:])
    low, high = (0, size) if draw.random() < 0.7 else (-3, 2 * size + 3)
    index = draw.integers(low, high, int(draw.integers(0, 40))).astype(np.int64)
    value = draw.choice([0.0, 1.0, 1e-300, 1e300, np.nan, np.inf, -1.0], len(index))
    found = np.zeros(16, np.int64)
    return accepted(
        [
            lambda: tree.set(sums, minima, index, value),
            lambda: tree.find(sums, draw.random(16), found),
        ]
    )


# -- engines/cpu/_dense -----------------------------------------------------------------------


def _matrix(draw: np.random.Generator, rows: int, columns: int) -> Any:
    """Of numbers, seldom none, with either order of memory and sometimes gaps or turned round."""
    made = draw.normal(size=(rows, columns)).astype(np.float32)
    if draw.random() < 0.02 and made.size:
        made.flat[int(draw.integers(made.size))] = draw.choice([np.nan, np.inf, 1e38])
    shape = int(draw.integers(0, 12))
    if shape < 4:
        return np.asfortranarray(made)
    if shape == 4:
        return np.repeat(made, 2, axis=1)[:, ::2]
    return made[::-1] if shape == 5 else made


def _wrong(draw: np.random.Generator, array: Any) -> Any:
    """Now and then another shape, dtype or object."""
    if draw.random() > 0.01:
        return array
    return (array[:-1], array.T, array.view(np.int32), array[..., :0], None, 7)[
        int(draw.integers(6))
    ]


def networks(dense: Any, rng: random.Random) -> int:
    """Passes of random networks, with arrays that fit mostly."""
    draw = drawn(rng)
    dense.use(rng.choice(dense.instructions))
    count = rng.choice((1, 2, 2, 3, 3, 4, dense.MOST_LAYERS, dense.MOST_LAYERS + 1))
    widths = [rng.choice((1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64)) for _ in range(count + 1)]
    if rng.random() < 0.05:
        widths[rng.randrange(count + 1)] = rng.choice((0, 300))
    pairs = list(itertools.pairwise(widths))
    weights = tuple(_wrong(draw, _matrix(draw, *pair)) for pair in pairs)
    biases = tuple(_wrong(draw, draw.normal(size=n).astype(np.float32)) for n in widths[1:])
    learns = rng.random() < 0.8
    weight_grads = tuple(
        np.zeros(pair, np.float32) if rng.random() < 0.5 else np.zeros(pair[::-1], np.float32).T
        for pair in pairs
        if learns
    )
    bias_grads = tuple(np.zeros(n, np.float32) for n in widths[1:] if learns)
    made: list[Any] = []
    count = accepted(
        [
            lambda: made.append(
                dense.Network(weights, biases, weight_grads, bias_grads, rng.random() < 0.5)
            )
        ]
    )
    for network in made:
        for _ in range(rng.randint(1, 4)):
            count += _passes(network, widths, draw, rng)
    return count


def _passes(network: Any, widths: list[int], draw: np.random.Generator, rng: random.Random) -> int:
    rows = rng.choice((0, 1, 2, 3, 5, 8, 16, 33, 70))
    if rng.random() < 0.03:
        rows = 3000  # long enough for threads
    threads = rng.choice((1, 1, 2, 3, 5, -1, 0))
    arrays: list[Any] = [draw.normal(size=(rows, widths[0])).astype(np.float32)]
    arrays += [np.empty((rows, n), np.float32) for n in widths[1:]]
    tape: Any = [_wrong(draw, each) for each in arrays]
    grad: Any = draw.normal(size=(rows, widths[-1])).astype(np.float32)
    grad[draw.random(rows) < 0.3] = 0.0  # rows without a gradient are left out
    grad = _wrong(draw, grad)
    inputs = np.empty((rows, rng.randint(0, widths[0])), np.float32)
    out = np.empty(widths[-1] + (rng.random() < 0.02), np.float32)
    one = draw.normal(size=widths[0]).astype(np.float32)
    return accepted(
        [
            lambda: network.forward(tape, threads),
            lambda: network.backward(tape, grad, threads),
            lambda: network.backward(tape, grad, threads, rng.randrange(2), _wrong(draw, inputs)),
            lambda: network.row(_wrong(draw, one), out),
        ]
    )


# -- engines/cpu/_convolution -----------------------------------------------------------------


def convolutions(convolution: Any, rng: random.Random) -> int:
    """Convolutions as `engines/cpu/convolution.py` asks for them, by addresses that fit."""
    draw = drawn(rng)
    convolution.use(rng.choice(convolution.instructions))
    channels, kernel = rng.choice((1, 2, 3, 4, 8, 16, 32)), rng.choice((1, 2, 3, 4, 8))
    filters, stride = rng.choice((4, 8, 16, 32, 64)), rng.randint(1, 5)
    threads, is_bytes = rng.choice((1, 1, 2, 3)), rng.random() < 0.4
    to_image = not is_bytes and rng.random() < 0.7
    if not convolution.serves(channels, kernel, filters, to_image, threads):
        return 0
    images = rng.choice((0, 1, 2, 3, 7))
    height, width = kernel + rng.randint(0, 12), kernel + rng.randint(0, 12)
    places = ((height - kernel) // stride + 1, (width - kernel) // stride + 1)
    x = draw.integers(0, 256, (images, height, width, channels))
    x = x.astype(np.uint8 if is_bytes else np.float32)
    weight = draw.normal(size=(filters, channels, kernel, kernel)).astype(np.float32)
    bias = draw.normal(size=filters).astype(np.float32)
    y = np.empty((images, *places, filters), np.float32)
    grad = draw.normal(size=y.shape).astype(np.float32)
    dx, dw, db = np.empty(x.shape, np.float32), np.empty_like(weight), np.empty_like(bias)
    sizes = (images, height, width, channels, kernel, stride, filters)
    head = (x.ctypes.data, is_bytes, *sizes, weight.ctypes.data, 1 / 255)
    convolution.forward(*head, bias.ctypes.data, y.ctypes.data, threads)
    convolution.backward(
        *(*head, y.ctypes.data, grad.ctypes.data, dx.ctypes.data if to_image else 0),
        *(dw.ctypes.data, db.ctypes.data, threads),
    )
    return 2


# -- profile/_native --------------------------------------------------------------------------


def _raising() -> None:
    raise ValueError("from below")


def recorder_calls(native: Any, rng: random.Random, place: Path) -> int:
    """A recording in which every function of the recorder is called in any order."""
    place.mkdir()
    words = rng.choice((512, 512, 1024, 2**14, 0, 3))
    budget = rng.choice((0, 1, 2**14, 2**22, -1))
    begun = accepted([lambda: native.start(str(place), words, budget, rng.choice((10**6, 10**8)))])
    if not begun:
        return 0
    count = 0
    try:
        native.set_active(3)
        own = _Named(native, rng)
        others = [  # their names before any of them sets a hook that fails at names
            threading.Thread(target=_any_calls, args=(_Named(native, random.Random(seed)), 60))
            for seed in [rng.random() for _ in range(rng.choice((0, 0, 1, 2)))]
        ]
        for each in others:
            each.start()
        count = _any_calls(own, rng.choice((10, 200)))
        for each in others:
            each.join()
    finally:
        native.set_step_hook(None)
        native.set_name_hook(None)
        native.set_block_hook(None, 0)
        native.set_clock(None)
        native.set_counters([])
        native.set_counts()
        native.stop()
    return count + _read_back(place)


class _Named:
    """The recorder and some names in it, for the calls of one thread."""

    def __init__(self, native: Any, rng: random.Random) -> None:
        self.native, self.rng = native, rng
        choices = ("a", "b", f"n{rng.randrange(300)}", "x" * 3000, "é\n")
        names = [rng.choice(choices) for _ in range(4)]
        self.marks = [native.operation(name) for name in names] + [native.phase(names[0])]


def _any_calls(named: _Named, calls: int) -> int:
    native, rng, marks = named.native, named.rng, named.marks
    ids = [mark.id for mark in marks]
    wrapped: list[Any] = [len, sorted, _raising, int]
    return sum(accepted([_one_call(native, rng, marks, ids, wrapped)]) for _ in range(calls))


def _one_call(
    native: Any, rng: random.Random, marks: list[Any], ids: list[int], wrapped: list[Any]
) -> Callable[[], Any]:
    """One call, with arguments that are right nine times in ten."""
    mark, number = rng.choice(marks), rng.choice((*ids, rng.choice(_NUMBERS)))

    def nested() -> None:
        with mark, rng.choice(marks):
            rng.choice(wrapped)()

    def wrap() -> None:
        made = native.Wrapper(rng.choice(wrapped), number, rng.random() < 0.5, rng.randint(-1, 9))
        wrapped.append(made)
        made([3, 1], *rng.choice(((), (1,))))

    def deep() -> None:
        for _ in range(rng.choice((10, 3000))):
            native.begin(rng.choice(ids))

    names = ("operation", "inferred", "phase", "call", "nothing")
    calls: tuple[Callable[[], Any], ...] = (
        nested, nested, wrap, wrap, deep, native.step, native.flush, native.statistics,
        native.names, native.tallies, native.open_marks, native.thread_index, native.now,
        native.get_active, native.pause_writer, native.resume_writer, native.forget_callables,
        lambda: native.begin(number), lambda: native.end(number),
        lambda: mark.__enter__(), lambda: mark.__exit__(None, None, None),
        lambda: native.begin_marks(native.end_marks(rng.randint(0, 5))),
        lambda: native.begin_marks(tuple(rng.choices(ids, k=3))),
        lambda: native.intern(rng.choice(names), rng.choice("ab"), rng.randint(-1, 9), "m"),
        lambda: native.set_active(rng.randint(0, 3)),
        lambda: native.probe(rng.random() < 0.5, rng.choice((0, 10**9, 2**63))),
        lambda: native.set_block_hook(lambda now: now + 1000, rng.choice((0, native.now()))),
        lambda: native.set_block_anchor(number, rng.choice((0, 10**6, -1))),
        lambda: native.set_step_hook(rng.choice((None, _raising, int))),
        lambda: native.set_name_hook(rng.choice((None, _raising, str))),
        native.counts, lambda: native.try_counter(rng.randint(0, 9), rng.choice(_NUMBERS), True),
        lambda: native.set_counters([(1, 1 + k % 4, True) for k in range(rng.randint(0, 9))]),
        lambda: native.set_counts(*rng.choice(((), (2, 1, (3,)), (0, 0, (1,) * 9)))),
        lambda: _with_strange_arguments(native, rng),
    )  # fmt: skip
    return rng.choice(calls)


_DOORS = (
    "operation", "phase", "begin", "end", "end_marks", "begin_marks", "intern", "Wrapper",
    "set_active", "probe", "set_block_anchor", "start", "set_clock", "set_classifiers",
    "time_release", "set_in_type", "restore_release", "set_counters", "try_counter", "set_counts",
)  # fmt: skip


def _with_strange_arguments(module: Any, rng: random.Random) -> None:
    """Any function, with arguments that it hardly expects; what they leave behind is undone."""
    name = rng.choice(_DOORS)
    values = tuple(rng.choice((*_STRANGE, *_NUMBERS)) for _ in range(rng.randint(0, 4)))
    if name == "start" and values and isinstance(values[0], str):
        return  # a second recording, into any directory
    if name in ("set_in_type", "time_release", "restore_release") and int in values:
        return  # it would change what every number is
    getattr(module, name)(*values)


def _read_back(place: Path) -> int:
    """Whatever was called, the files are event files; how many."""
    from redline.profile.reader import read_rows

    count = 0
    for path in place.glob("thread-*.arrow"):
        problem = read_rows(path).problem
        if problem is not None:
            raise RuntimeError(f"{path.name}: {problem}")
        count += 1
    return count


# -- profile/_native, _sampler and _stacks, as `redline profile` uses them ---------------------


def recordings(rng: random.Random, place: Path) -> int:
    """Record a random program in this process, in a random mode, and report it."""
    from redline.profile.analyse.summary import summarize
    from redline.profile.reader import open_session
    from redline.profile.record.files import create_session
    from redline.profile.record.options import MODES, Options
    from redline.profile.record.recorder import Recorder
    from redline.profile.report.text import render_text

    mode = rng.choice(MODES)
    options = Options(
        mode=mode, sample_hz=rng.choice((0.0, 100.0, 5000.0)), gpu_window_s=0.0,
        memory_mb=rng.choice((0.01, 1.0)), for_steps=rng.choice((0, 0, 3)),
        delay_steps=rng.choice((0, 0, 2)), calibrate=rng.random() < 0.5 or mode != "full",
        lines=rng.random() < 0.7 or mode == "light",  # these have none to leave out
    )  # fmt: skip
    lock = create_session(place, mode=options.mode, command=["fuzzed"])
    recorder = Recorder(place, options)
    recorder.start()
    try:
        _program(rng)
    finally:
        recorder.stop()
        lock.release()
    session = open_session(place)
    if session.problems:
        raise RuntimeError(f"a new session has problems: {session.problems}")
    render_text(summarize(session))
    return 1


def _program(rng: random.Random) -> None:
    """Python that calls native code, raises through it, nests and ends in the middle."""
    from redline.profile import marks

    others = [threading.Thread(target=_work, args=(random.Random(rng.random()), 3))]
    for each in others[: rng.randint(0, 1)]:
        each.start()
    for _ in range(rng.randint(1, 20)):
        with marks.operation(rng.choice("abc")), marks.phase(rng.choice("xy")):
            _work(rng, 4)
        marks.step()
    for each in others:
        if each.ident is not None:
            each.join()


def _work(rng: random.Random, depth: int) -> Any:
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: json.loads(json.dumps([rng.random()] * 50)),
        lambda: sorted(range(200), key=lambda n: -n),
        lambda: np.linalg.norm(np.ones((40, 40)) @ np.ones((40, 40))),
        lambda: accepted([lambda: max([], key=len), lambda: sorted([1, "a"]), _raising]),
        lambda: list(map(str, range(100))),
        lambda: sum(n for n in range(300)),
        lambda: "x".join(str(n) for n in range(50)).encode().decode(),
    )
    for _ in range(rng.randint(1, 3)):
        rng.choice(kinds)()
    return _work(rng, depth - 1) if depth and rng.random() < 0.6 else None

"""States of random generators: those that generators give are taken, all others are refused.

Before, `pos` of MT19937 and `buffer_pos` of Philox went unchecked into C code.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from redline.errors import CorruptCheckpointError
from redline.generator_states import (
    begun_anew,
    checked_torch_state,
    numpy_generator,
    random_state,
    seed_after,
    set_global_numpy_state,
    set_numpy_state,
    set_python_state,
    set_torch_state,
)

KINDS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


@pytest.mark.parametrize("kind", KINDS)
def test_states_at_every_position_are_taken(kind: str) -> None:
    generator = np.random.Generator(getattr(np.random, kind)(3))
    for _ in range(700):  # once around a twister's words
        again = numpy_generator(generator.bit_generator.state)
        expected = generator.integers(0, 2**31, dtype=np.int32)
        assert again.integers(0, 2**31, dtype=np.int32) == expected


def bad_states() -> list[tuple[str, str, Any]]:
    """(kind, dotted field, value out of range)."""
    cases: list[tuple[str, str, Any]] = [
        ("MT19937", "state.pos", value) for value in (-1, 625, 2**31, 2**70, 1.5, True, None)
    ]
    cases += [("Philox", "buffer_pos", value) for value in (-1, 5, 10**9, None)]
    cases += [
        ("MT19937", "state.key", np.zeros(623, np.uint32)),
        ("MT19937", "state.key", np.zeros(624, np.float64)),
        ("Philox", "state.counter", np.zeros(3, np.uint64)),
        ("Philox", "buffer", [0, 1, 2, 2**64]),
        ("SFC64", "state.state", np.zeros((2, 2), np.uint64)),
        ("PCG64", "state.inc", 2**128),
        # These hung in C at the next draw, or ended in a traceback of numpy.
        ("PCG64", "state.inc", 0),
        ("PCG64DXSM", "state.inc", 6),
        ("PCG64", "state.state", np.int64(5)),
        ("MT19937", "state.key", np.zeros(624, np.uint32)),
        ("MT19937", "state.key", [1, *[0] * 623]),
        ("MT19937", "state.key", np.full(624, -1, np.int32)),
        ("PCG64", "has_uint32", 2),
        ("PCG64DXSM", "uinteger", -1),
        ("PCG64", "state", 3),
        ("PCG64", "bit_generator", "BitGenerator"),
        ("PCG64", "bit_generator", "seed"),
    ]
    return cases


@pytest.mark.parametrize(("kind", "field", "value"), bad_states())
def test_a_field_out_of_range_is_named(kind: str, field: str, value: Any) -> None:
    state: Any = getattr(np.random, kind)(3).state
    place = state
    *path, name = field.split(".")
    for key in path:
        place = place[key]
    place[name] = value
    with pytest.raises(CorruptCheckpointError, match=f"{name}="):
        numpy_generator(state)
    with pytest.raises(CorruptCheckpointError):
        set_numpy_state(np.random.default_rng(0), state)


@pytest.mark.parametrize("kind", ["Philox", "PCG64"])
def test_a_generator_takes_only_its_own_kind(kind: str) -> None:
    generator = np.random.Generator(np.random.SFC64(1))
    with pytest.raises(CorruptCheckpointError, match=rf"bit_generator='{kind}'.*'SFC64'"):
        set_numpy_state(generator, getattr(np.random, kind)(3).state)


def test_legacy_states() -> None:
    source = np.random.RandomState(4)
    source.normal()  # leaves a second normal behind
    state = source.get_state(legacy=False)
    assert random_state(state).normal(size=3).tolist() == source.normal(size=3).tolist()
    for name, value in (
        ("has_gauss", 7),
        ("gauss", float("nan")),
        ("gauss", "x"),
        ("gauss", 10**400),
    ):
        with pytest.raises(CorruptCheckpointError, match=name):
            set_global_numpy_state({**state, name: value})
    state["state"]["pos"] = 10**6
    with pytest.raises(CorruptCheckpointError, match="pos=1000000"):
        random_state(state)


def test_torch_states_hold_their_invariant_all_the_way_round() -> None:
    """`left` counts 624 .. 1 while `next` counts 0 .. 624; a fresh one has left = 1, next = 0."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(1300):
        checked_torch_state(generator.get_state())
        torch.randint(9, (1,), generator=generator)
    torch.randn(3, generator=generator)
    state = generator.get_state()
    again = torch.Generator()
    set_torch_state(again, state)
    expected = torch.rand(4, generator=generator)
    assert torch.equal(torch.rand(4, generator=again), expected)


@pytest.mark.parametrize(
    ("offset", "value"),
    [(8, 0), (8, 625), (12, 2), (16, 625), (16, 700), (5040, 2), (5052, 2)],
)
def test_a_torch_state_out_of_range_is_refused(offset: int, value: int) -> None:
    state = torch.Generator().manual_seed(5).get_state()
    state[offset : offset + 1] = value % 256
    if offset in (8, 16):
        state[offset + 1] = value // 256
    with pytest.raises(CorruptCheckpointError, match="torch"):
        set_torch_state(torch.Generator(), state)


def test_a_twister_of_zeros_is_refused() -> None:
    state = torch.Generator().manual_seed(5).get_state()
    state[24 : 24 + 8 * 624] = 0
    with pytest.raises(CorruptCheckpointError, match="words=0"):
        checked_torch_state(state)


def test_words_and_count_of_a_torch_state_must_fit_together() -> None:
    """Each alone is in range; together they read 600 words beyond the end."""
    state = torch.Generator().manual_seed(5).get_state()
    state[8:10] = torch.tensor([624 % 256, 624 // 256], dtype=torch.uint8)
    state[16:18] = torch.tensor([600 % 256, 600 // 256], dtype=torch.uint8)
    with pytest.raises(CorruptCheckpointError, match="next=600"):
        checked_torch_state(state)


@pytest.mark.parametrize(
    "state",
    [
        b"",
        torch.zeros(5055, dtype=torch.uint8),
        torch.zeros(5056),
        torch.zeros(2, 2).byte(),
        torch.zeros(5056, dtype=torch.uint8, device="meta"),
    ],
    ids=["bytes", "short", "float32", "matrix", "meta"],
)
def test_what_is_no_torch_state_is_refused(state: Any) -> None:
    with pytest.raises(CorruptCheckpointError):
        checked_torch_state(state)


def test_a_cuda_state_is_a_seed_and_a_multiple_of_four() -> None:
    state = torch.zeros(16, dtype=torch.uint8)
    checked_torch_state(state, "cuda")
    state[8] = 3
    with pytest.raises(CorruptCheckpointError, match="offset=3"):
        checked_torch_state(state, "cuda")


def test_python_states() -> None:
    before = random.getstate()
    version, words, gauss = before
    try:
        set_python_state(version, list(words), gauss)
        assert random.getstate() == before
        for bad in ((4, list(words), None), (3, list(words[:-1]), None)):
            with pytest.raises(CorruptCheckpointError):
                set_python_state(*bad)
        for position in (-1, 625, 2**40):
            with pytest.raises(CorruptCheckpointError, match="position"):
                set_python_state(3, [*words[:-1], position], None)
        with pytest.raises(CorruptCheckpointError, match="words=0"):
            set_python_state(3, [*[0] * 624, 624], None)
        for odd in ([], "x", float("inf"), 10**400):
            with pytest.raises(CorruptCheckpointError, match="gauss"):
                set_python_state(3, list(words), odd)
    finally:
        random.setstate(before)


def test_numpy_itself_does_not_bound_them() -> None:
    """The reason for this module: in an interpreter of its own, the same state is taken."""
    program = (
        "import numpy as np\nbit = np.random.MT19937(1)\nstate = bit.state\n"
        "state['state']['pos'] = 10**9\nbit.state = state\nprint('taken', flush=True)\n"
        "np.random.Generator(bit).random()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if "taken" not in done.stdout:
        pytest.skip("this numpy checks the position itself")
    assert done.returncode != 0


CUDA_STATE = torch.tensor([7, *[0] * 7, 4, *[0] * 7], dtype=torch.uint8)  # seed 7, offset 4


def test_a_state_of_another_device_is_refused_unless_streams_begin_anew() -> None:
    generator = torch.Generator().manual_seed(1)
    with pytest.raises(CorruptCheckpointError, match="size=16"):
        set_torch_state(generator, CUDA_STATE)
    with begun_anew():
        set_torch_state(generator, CUDA_STATE)
    # The first 8 bytes of SHA-256 of those 16, least first, without the last bit.
    digest = hashlib.sha256(bytes([7, *[0] * 7, 4, *[0] * 7])).digest()
    assert generator.initial_seed() == int.from_bytes(digest[:8], "little") // 2
    with pytest.raises(CorruptCheckpointError, match="size=16"):
        set_torch_state(generator, CUDA_STATE)


def test_another_state_gives_another_seed() -> None:
    further = CUDA_STATE.clone()
    further[8] = 8
    numpys = [np.random.default_rng(seed).bit_generator.state for seed in range(3)]
    twister = np.random.RandomState(3).get_state(legacy=False)
    seeds = [seed_after(state) for state in (CUDA_STATE, further, *numpys, twister)]
    assert len(set(seeds)) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_after(np.random.default_rng(2).bit_generator.state) == seeds[4]
    # What else an altered file holds there is not looked at: it may be nested without end.
    assert seed_after({**numpys[2], "more": [object()], 3: 10**5000}) == seeds[4]


@pytest.mark.parametrize("saved", [None, 3, "x", torch.zeros(3), {"bit_generator": "PCG64"}])
def test_what_is_no_state_gives_no_seed(saved: Any) -> None:
    with begun_anew(), pytest.raises(CorruptCheckpointError):
        seed_after(saved)

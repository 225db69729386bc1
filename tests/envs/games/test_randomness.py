"""The counter-based numbers against plain Python integers and published test vectors."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from redline.envs.games.game import whole_number
from redline.envs.games.randomness import (
    draw_words,
    open_uniforms,
    stream_keys,
    uniforms,
    word_offsets,
)
from redline.errors import ConfigError

WRAP = 1 << 64


def split_mix_64(start: int, count: int) -> list[int]:
    """Vigna's public reference, transcribed."""
    state, out = start, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % WRAP
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WRAP
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WRAP
        out.append(z ^ (z >> 31))
    return out


def signed(number: int) -> int:
    return number - WRAP if number >= WRAP // 2 else number


def words(key: list[int], position: list[int], count: int) -> list[list[int]]:
    drawn = draw_words(torch.tensor(key), torch.tensor(position), count, word_offsets(count, "cpu"))
    return [[number % WRAP for number in row] for row in drawn.t().tolist()]


def test_the_words_are_those_of_splitmix64() -> None:
    """The first outputs for seed 0 and seed 1234567, as published with the generator."""
    assert words([0], [0], 3) == [[0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]]
    assert words([1234567], [0], 2) == [[6457827717110365317, 3203168211198807973]]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, WRAP - 1), min_size=1, max_size=4),
    st.integers(0, 1 << 40),
    st.integers(1, 9),
)
def test_words_equal_the_reference_from_any_position(
    keys: list[int], position: int, count: int
) -> None:
    start = [(key + position * 0x9E3779B97F4A7C15) % WRAP for key in keys]
    expected = [split_mix_64(key, count) for key in start]
    assert words([signed(key) for key in keys], [position] * len(keys), count) == expected


def test_an_environments_key_depends_on_seed_and_index_alone() -> None:
    whole = stream_keys(7, 0, 10, "cpu")
    assert stream_keys(7, 4, 3, "cpu").tolist() == whole[4:7].tolist()
    assert not set(whole.tolist()) & set(stream_keys(8, 0, 10, "cpu").tolist())
    assert not set(whole.tolist()) & set(stream_keys(7, 0, 10, "cpu", stream=1).tolist())
    assert len(set(stream_keys(0, 0, 100_000, "cpu").tolist())) == 100_000


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed=-1 is negative"):
        stream_keys(-1, 0, 1, "cpu")


def test_uniform_numbers_by_hand() -> None:
    """Bits 63 .. 40 and 39 .. 16 of a word, times 2^-24; the open kind takes 23 and a half."""
    word = 0x800001_C00000_FFFF
    tensor = torch.tensor([[signed(word)]])
    assert uniforms(tensor).flatten().tolist() == [(0x800001) / 2**24, 0xC00000 / 2**24]
    assert open_uniforms(tensor).flatten().tolist() == [
        (0x400000 + 0.5) / 2**23,
        (0x600000 + 0.5) / 2**23,
    ]
    ends = torch.tensor([[0, -1]])
    assert uniforms(ends).tolist() == [[0.0, 1 - 2**-24]] * 2
    assert open_uniforms(ends).tolist() == [[2**-24, 1 - 2**-24]] * 2


def test_uniform_numbers_are_uniform_and_independent() -> None:
    """Mean, variance, and correlation of neighbors within four standard errors."""
    n = 1 << 16
    u = uniforms(
        draw_words(stream_keys(3, 0, n, "cpu"), torch.zeros(n, dtype=torch.int64), 2,
                   word_offsets(2, "cpu"))
    ).double()  # fmt: skip
    assert u.shape == (4, n)
    error = 4 / math.sqrt(12 * n)
    assert ((u.mean(1) - 0.5).abs() < error).all()
    assert ((u.var(1) - 1 / 12).abs() < 4 / math.sqrt(180 * n)).all()
    correlations = torch.corrcoef(torch.cat([u, u.roll(1, 1)]))
    off = correlations - torch.eye(8)
    assert (off.abs() < 4.5 / math.sqrt(n)).all()


@given(st.integers(1, 1 << 20), st.integers(0, (1 << 24) - 1))
def test_a_whole_number_is_never_n(n: int, bits: int) -> None:
    u = torch.tensor([bits * 2.0**-24], dtype=torch.float32)
    number = int(whole_number(u, n))
    assert 0 <= number < n
    assert abs(number - math.floor(bits * n / 2**24)) <= 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_numbers_are_the_same_on_a_gpu() -> None:
    keys = stream_keys(5, 0, 1000, "cpu")
    position = torch.arange(1000)
    here = draw_words(keys, position, 7, word_offsets(7, "cpu"))
    there = draw_words(keys.cuda(), position.cuda(), 7, word_offsets(7, "cuda"))
    assert torch.equal(here, there.cpu())

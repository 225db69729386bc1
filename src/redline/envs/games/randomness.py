"""Counter-based random numbers in integer tensor operations, one stream per environment.

Word n of the stream with key k is the n-th output of SplitMix64 started at k (Steele, Lea
and Flood 2014, "Fast splittable pseudorandom number generators", figure 15):

    word(k, n) = mix(k + n * gamma)

It is a pure function of integers: the same on every device, whatever the number of
environments, and restored by restoring the counters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redline.errors import ConfigError

_WRAP = 1 << 64
GAMMA = 0x9E3779B97F4A7C15
_FACTOR_1, _FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_BITS = 24  # of a float32's significand: k * 2^-24 is exact for every k < 2^24
_LOW_BITS = (1 << _BITS) - 1


def _signed(number: int) -> int:
    """The int64 with the same bits as `number` modulo 2^64."""
    number %= _WRAP
    return number - _WRAP if number >= _WRAP // 2 else number


def mix_integer(number: int) -> int:
    """SplitMix64's mixing function of one integer modulo 2^64."""
    number %= _WRAP
    number = (number ^ (number >> 30)) * _FACTOR_1 % _WRAP
    number = (number ^ (number >> 27)) * _FACTOR_2 % _WRAP
    return number ^ (number >> 31)


def _mix(word: Tensor) -> Tensor:
    """The same of int64 tensors, whose products wrap; `word` is overwritten."""
    word ^= _shifted(word, 30)
    word *= _signed(_FACTOR_1)
    word ^= _shifted(word, 27)
    word *= _signed(_FACTOR_2)
    word ^= _shifted(word, 31)
    return word


def _shifted(word: Tensor, places: int) -> Tensor:
    """A logical shift to the right: torch's own repeats the sign."""
    return (word >> places).bitwise_and_((1 << (64 - places)) - 1)


def stream_keys(
    seed: int, first_env_id: int, num_envs: int, device: torch.device | str, *, stream: int = 0
) -> Tensor:
    """[B] int64 keys, each a function of (seed, stream, environment) alone.

    Args:
        seed: the run's seed, at least 0.
        first_env_id: index of the first environment in the whole batch.
        num_envs: B.
        device: where they will be used.
        stream: tells streams of one seed apart: 0 for the games, 1 for action noise.

    Raises:
        ConfigError: if the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"seed={seed} is negative; environments need a seed of at least 0.")
    start = mix_integer(mix_integer(seed + GAMMA) + stream * GAMMA)
    env_id = torch.arange(first_env_id + 1, first_env_id + num_envs + 1, dtype=torch.int64)
    return _mix(env_id * _signed(GAMMA) + _signed(start)).to(device)


def draw_words(key: Tensor, position: Tensor, num_words: int, offsets: Tensor) -> Tensor:
    """[num_words, B] int64: words position + 1 .. position + num_words of each stream.

    Args:
        key: [B] int64.
        position: [B] int64, words already drawn.
        num_words: how many.
        offsets: `word_offsets(num_words, device)`, made once.
    """
    start = position * _signed(GAMMA)
    start += key
    return _mix(start.unsqueeze(0) + offsets[:num_words].unsqueeze(1))


def word_offsets(num_words: int, device: torch.device | str) -> Tensor:
    """[num_words] int64, n * gamma for n = 1 .. num_words."""
    return torch.arange(1, num_words + 1, dtype=torch.int64, device=device) * _signed(GAMMA)


def uniforms(words: Tensor) -> Tensor:
    """[..., 2 * W, B] float32 in [0, 1), two of 24 bits from each word of [..., W, B]."""
    bits = torch.cat([words >> 40, words >> 16], dim=-2)
    return bits.bitwise_and_(_LOW_BITS).to(torch.float32).mul_(2.0**-_BITS)


def open_uniforms(words: Tensor) -> Tensor:
    """[..., 2 * W, B] float32 strictly between 0 and 1, for inverse distribution functions.

    The middles of 2^23 equal intervals: with 24 bits the last one would round to 1.
    """
    bits = torch.cat([words >> 41, words >> 17], dim=-2).bitwise_and_(_LOW_BITS >> 1)
    return bits.to(torch.float32).add_(0.5).mul_(2.0 ** -(_BITS - 1))

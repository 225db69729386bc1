"""Saved states of random generators, checked before a generator takes them.

numpy and torch copy most fields of a state as they are. A position beyond the end of MT19937's 624
words or of Philox's 4 then reads, or crashes the interpreter, at the next draw. A twister whose
words are all 0, or a PCG64 whose increment is even, repeats few numbers for ever: a draw that waits
for another one never returns. A checkpoint may be a stranger's, so nothing else in Redline sets the
state of a generator. Philox and SFC64 count, and so never stand still.

| generator | bounded here |
|---|---|
| numpy PCG64, PCG64DXSM | state, inc < 2^128; inc odd; has_uint32 0 or 1; uinteger < 2^32 |
| numpy MT19937 | 624 words of 32 bits, not all 0; 0 <= pos <= 624; has_gauss 0 or 1, gauss finite |
| numpy Philox | counter 4, key 2, buffer 4 words of 64 bits; 0 <= buffer_pos <= 4 |
| numpy SFC64 | 4 words of 64 bits |
| torch, CPU | size; words not all 0; 1 <= left, next <= 624, left + next <= 625, flags 0 or 1 |
| torch, CUDA | 16 bytes; an offset that is a multiple of 4 |
| Python | 624 words of 32 bits, not all 0; position <= 624; gauss a finite number or None |

A generator of one kind of device cannot take the state of another's. Where a run goes on elsewhere,
inside `begun_anew`, it begins a stream of its own, which depends on nothing but the saved state.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from redline.errors import CorruptCheckpointError

if TYPE_CHECKING:  # environments in workers use this module and load no torch
    import torch
    from torch import Tensor

_WORDS = 624  # of a Mersenne twister
# torch's CPU generator: seed u64, left i32, seeded i32, next u64, 624 words u64, three doubles,
# normal_is_valid i32 and padding, a float and whether that is valid.
_TORCH_BYTES = 5056
_TORCH_HEAD = struct.Struct("<QiiQ")
_TORCH_NORMAL_FLAG, _TORCH_FLOAT_FLAG = 5040, 5052
_TOP_BIT = 1 << 31  # all of a twister's first word that its next words depend on

_ARRAYS = {  # bit generator -> array -> words and their bits
    "MT19937": {"key": (_WORDS, 32)},
    "Philox": {"counter": (4, 64), "key": (2, 64)},
    "SFC64": {"state": (4, 64)},
}
_PCG64 = {"state": 128, "inc": 128}  # field -> bits
_HALF_WORD = {"has_uint32": 1, "uinteger": 32}  # the second half of a 64-bit draw, kept for later
_KINDS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
_begins_anew: ContextVar[bool] = ContextVar("begins_anew", default=False)


@contextmanager
def begun_anew() -> Iterator[None]:
    """Inside, generators of algorithms and replay begin streams of their own at a saved state."""
    token = _begins_anew.set(True)
    try:
        yield
    finally:
        _begins_anew.reset(token)


def begins_anew() -> bool:
    """Whether this is inside `begun_anew`."""
    return _begins_anew.get()


def seed_after(saved: Any) -> int:
    """A seed of 63 bits that stands for a saved state, of whatever kind it is.

    Args:
        saved: what a generator of torch gave, or the state of one of numpy's.

    Raises:
        CorruptCheckpointError: if it is neither.
    """
    if isinstance(saved, Mapping):
        # As numpy keeps it: whatever else a file may hold there plays no part.
        own = numpy_generator(saved).bit_generator.state
        data = json.dumps(own, sort_keys=True, default=lambda words: words.tolist()).encode()
    else:
        data = _torch_state(saved).numpy().tobytes()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") >> 1


def numpy_generator(saved: Any) -> np.random.Generator:
    """A new generator in a saved state.

    Raises:
        CorruptCheckpointError: if a field is missing or out of range.
    """
    _check_numpy(saved)
    bit_generator = getattr(np.random, saved["bit_generator"])()
    bit_generator.state = saved
    return np.random.Generator(bit_generator)


def set_numpy_state(generator: np.random.Generator, saved: Any) -> None:
    """Put a generator into a saved state of its own kind.

    Raises:
        CorruptCheckpointError: if it is of another kind, or a field is missing or out of range.
    """
    _check_numpy(saved)
    own = type(generator.bit_generator).__name__
    if saved["bit_generator"] != own:
        raise _refusal(own, "bit_generator", saved["bit_generator"], f"{own!r}")
    generator.bit_generator.state = saved


def random_state(saved: Any) -> np.random.RandomState:
    """A new legacy generator of numpy in a saved state.

    Raises:
        CorruptCheckpointError: if a field is missing or out of range.
    """
    _check_legacy(saved)
    generator = np.random.RandomState()
    generator.set_state(saved)
    return generator


def set_global_numpy_state(saved: Any) -> None:
    """Put numpy's global generator into a saved state.

    Raises:
        CorruptCheckpointError: if a field is missing or out of range.
    """
    _check_legacy(saved)
    np.random.set_state(saved)


def set_python_state(version: Any, words: Any, gauss: Any) -> None:
    """Put Python's global generator into a saved state.

    Raises:
        CorruptCheckpointError: if a field is missing or out of range.
    """
    if version != 3:
        raise _refusal("Python", "version", version, "3")
    if not isinstance(words, list) or len(words) != _WORDS + 1:
        raise _refusal("Python", "words", words, f"a list of {_WORDS + 1}")
    for word in words[:-1]:
        _check_bits("Python", "words", word, 32)
    _check_moves("Python", "words", words)
    _check_range("Python", "position", words[-1], 0, _WORDS)
    if gauss is not None:
        _check_finite("Python", "gauss", gauss)
    random.setstate((version, tuple(words), gauss))


def set_torch_state(generator: torch.Generator, saved: Any) -> None:
    """Put a generator of torch into a saved state; inside `begun_anew`, seed it by that.

    Raises:
        CorruptCheckpointError: if it is none, or a field is out of range.
    """
    if begins_anew():
        generator.manual_seed(seed_after(saved))
        return
    generator.set_state(checked_torch_state(saved, generator.device.type))


def checked_torch_state(saved: Any, device: str = "cpu") -> Tensor:
    """A saved state of torch, on the CPU, that a generator may take.

    Args:
        saved: what `get_state` gave.
        device: type of the generator's device.

    Raises:
        CorruptCheckpointError: if it is none, or a field is out of range.
    """
    saved = _torch_state(saved)
    data = saved.numpy().tobytes()
    if device == "cuda":
        _check_cuda(data)
    elif device == "cpu":
        _check_cpu(data)
    return saved


def _torch_state(saved: Any) -> Tensor:
    """A state of a torch generator of any device, on the CPU."""
    import torch

    is_tensor = isinstance(saved, torch.Tensor) and not saved.is_meta
    if not is_tensor or saved.dtype != torch.uint8 or saved.dim() != 1:
        raise _refusal("torch", "state", type(saved).__name__, "a vector of uint8")
    return saved.cpu().contiguous()


def _check_cpu(data: bytes) -> None:
    if len(data) != _TORCH_BYTES:
        raise _refusal("torch", "size", len(data), f"{_TORCH_BYTES} bytes")
    _, left, seeded, following = _TORCH_HEAD.unpack_from(data)
    words = np.frombuffer(data, np.uint64, _WORDS, _TORCH_HEAD.size)
    _check_moves("torch", "words", words & np.uint64(2**32 - 1))
    _check_range("torch", "seeded", seeded, 0, 1)
    _check_range("torch", "left", left, 1, _WORDS)
    # The words run from `next` to their end while `left` counts down to 1.
    _check_range("torch", "next", following, 0, min(_WORDS, _WORDS + 1 - left))
    _check_range("torch", "normal_is_valid", _normal_flag(data), 0, 1)
    _check_range("torch", "float_is_valid", data[_TORCH_FLOAT_FLAG], 0, 1)


def _normal_flag(data: bytes) -> int:
    return struct.unpack_from("<i", data, _TORCH_NORMAL_FLAG)[0]


def _check_cuda(data: bytes) -> None:
    if len(data) != 16:
        raise _refusal("torch.cuda", "size", len(data), "16 bytes")
    offset = int.from_bytes(data[8:], "little", signed=True)
    if offset < 0 or offset % 4:
        raise _refusal("torch.cuda", "offset", offset, "a multiple of 4, not negative")


def _check_numpy(saved: Any) -> None:
    kind = saved.get("bit_generator") if isinstance(saved, Mapping) else None
    if kind not in _KINDS:
        raise _refusal("numpy", "bit_generator", kind, f"one of {', '.join(_KINDS)}")
    inner = saved.get("state")
    if not isinstance(inner, Mapping):
        raise _refusal(kind, "state", inner, "a dict")
    for name, (count, bits) in _ARRAYS.get(kind, {}).items():
        _check_words(kind, name, inner.get(name), count, bits)
    if kind == "MT19937":
        _check_moves(kind, "key", inner["key"])
        _check_range(kind, "pos", inner.get("pos"), 0, _WORDS)
        return
    if kind.startswith("PCG64"):
        for name, bits in _PCG64.items():
            _check_bits(kind, name, inner.get(name), bits)
        if inner["inc"] % 2 == 0:
            raise _refusal(kind, "inc", inner["inc"], "odd")
    if kind == "Philox":
        _check_words(kind, "buffer", saved.get("buffer"), 4, 64)
        _check_range(kind, "buffer_pos", saved.get("buffer_pos"), 0, 4)
    for name, bits in _HALF_WORD.items():
        _check_bits(kind, name, saved.get(name), bits)


def _check_legacy(saved: Any) -> None:
    _check_numpy(saved)
    kind = saved["bit_generator"]
    if kind != "MT19937":
        raise _refusal("numpy.random", "bit_generator", kind, "'MT19937'")
    _check_range(kind, "has_gauss", saved.get("has_gauss"), 0, 1)
    _check_finite(kind, "gauss", saved.get("gauss"))


def _check_words(kind: str, name: str, value: Any, count: int, bits: int) -> None:
    """An array of unsigned words, or a list of integers as an older file may hold it."""
    if isinstance(value, np.ndarray):
        if value.shape == (count,) and value.dtype in (f"uint{bits}", f"int{bits}"):
            if value.dtype.kind == "i":
                _check_bits(kind, name, int(value.min()), bits)
            return
        found = f"{value.dtype} of shape {value.shape}"
        raise _refusal(kind, name, found, f"{count} words of {bits} bits")
    if not isinstance(value, list) or len(value) != count:
        raise _refusal(kind, name, value, f"{count} words of {bits} bits")
    for word in value:
        _check_bits(kind, name, word, bits)


def _check_moves(kind: str, name: str, words: Any) -> None:
    """Refuse the words of a twister from which no others follow."""
    if not int(words[0]) & _TOP_BIT and not any(int(word) for word in words[1:_WORDS]):
        raise _refusal(kind, name, 0, "another than 0 in one of its words")


def _check_bits(kind: str, name: str, value: Any, bits: int) -> None:
    _check_range(kind, name, value, 0, 2**bits - 1)


def _check_range(kind: str, name: str, value: Any, low: int, high: int) -> None:
    # numpy's own integers are no integers of 128 bits, and numpy does not take them for such.
    if type(value) is not int or not low <= value <= high:
        raise _refusal(kind, name, value, f"from {low} to {high}")


def _check_finite(kind: str, name: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not -sys.float_info.max <= value <= sys.float_info.max:
        raise _refusal(kind, name, value, "a finite number")


def _refusal(kind: str, name: str, value: Any, expected: str) -> CorruptCheckpointError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return CorruptCheckpointError(
        f"the saved random generator ({kind}) has {name}={shown}, which must be {expected}: the "
        f"state was altered. Use an earlier checkpoint."
    )

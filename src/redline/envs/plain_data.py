"""Python values as plain data and back: dicts, lists, numbers, strings and numeric arrays.

What is saved must open without running code, so nothing here pickles. Values that JSON
or an array file cannot hold as they are become a dict with the one key "__<kind>__".
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np


class NotPlainError(TypeError):
    """A value has no form as plain data; only raised inside this room."""


def encode(value: Any) -> Any:
    """`value` as plain data; arrays are copied.

    Raises:
        NotPlainError: if it, or a part of it, has no such form.
    """
    if value is None or isinstance(value, (bool, int, float, str)) and not _is_numpy(value):
        return value
    if isinstance(value, np.generic):
        return {"__scalar__": encode(np.asarray(value))}
    if isinstance(value, np.ndarray):
        return _encode_array(value)
    if isinstance(value, (bytes, bytearray)):
        return {"__bytes__": np.frombuffer(bytes(value), dtype=np.uint8).copy()}
    if isinstance(value, list):
        return [encode(part) for part in value]
    if type(value) is tuple:
        return {"__tuple__": [encode(part) for part in value]}
    if isinstance(value, (set, frozenset)) and type(value) in (set, frozenset):
        return {"__set__": [encode(part) for part in sorted(value)]}
    if isinstance(value, deque):
        return {"__deque__": [encode(part) for part in value], "maxlen": value.maxlen}
    if isinstance(value, dict):
        return {"__dict__": [[encode(key), encode(part)] for key, part in value.items()]}
    if isinstance(value, np.random.Generator):
        return {"__generator__": encode(value.bit_generator.state)}
    if isinstance(value, np.random.RandomState):
        return {"__random_state__": encode(value.get_state(legacy=False))}
    raise NotPlainError(f"{type(value).__module__}.{type(value).__qualname__}")


def decode(data: Any) -> Any:
    """The value that `encode` turned into `data`; arrays are copied."""
    if isinstance(data, list):
        return [decode(part) for part in data]
    if isinstance(data, np.ndarray):
        return data.copy()
    if not isinstance(data, dict):
        return data
    kind = next(iter(data))
    content = data[kind]
    if kind == "__array__":
        return np.frombuffer(content.tobytes(), dtype=data["dtype"]).reshape(data["shape"]).copy()
    if kind == "__scalar__":
        return decode(content)[()]
    if kind == "__bytes__":
        return content.tobytes()
    if kind == "__tuple__":
        return tuple(decode(part) for part in content)
    if kind == "__set__":
        return {decode(part) for part in content}
    if kind == "__deque__":
        return deque((decode(part) for part in content), maxlen=data["maxlen"])
    if kind == "__dict__":
        return {decode(key): decode(part) for key, part in content}
    if kind == "__generator__":
        return _generator(decode(content))
    if kind == "__random_state__":
        random = np.random.RandomState()
        random.set_state(decode(content))
        return random
    raise ValueError(f"the key {kind!r} is no kind of plain data; the state is damaged.")


def _is_numpy(value: Any) -> bool:
    return isinstance(value, np.generic)


def _encode_array(value: np.ndarray[Any, Any]) -> Any:
    if value.dtype.hasobject:
        raise NotPlainError("an array of Python objects")
    if value.dtype.kind in "biuf" and value.dtype.isnative and value.ndim:
        return value.copy()
    data = np.frombuffer(value.tobytes(), dtype=np.uint8).copy()
    return {"__array__": data, "dtype": value.dtype.str, "shape": list(value.shape)}


def _generator(state: dict[str, Any]) -> np.random.Generator:
    name = state["bit_generator"]
    known = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")
    if name not in known:
        raise ValueError(f"the bit generator {name!r} is none of {', '.join(known)}.")
    bit_generator = getattr(np.random, name)()
    bit_generator.state = state
    return np.random.Generator(bit_generator)

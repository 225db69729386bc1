"""Python values as plain data and back: dicts, lists, numbers, strings and numeric arrays.

What is saved must open without running code, so nothing here pickles. Values that JSON
or an array file cannot hold as they are become a dict with the one key "__<kind>__".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from redline.generator_states import numpy_generator, random_state

_SEVERAL = (list, tuple, set, deque)
_SINGLE = (np.ndarray, bytes, bool, int, float, str)


class NotPlainError(TypeError):
    """A value has no form as plain data; only raised inside this room."""


def encode(value: Any) -> Any:
    """`value` as plain data; arrays are copied.

    Raises:
        NotPlainError: if it, or a part of it, has no such form.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [encode(part) for part in value]
    for kind, encoder in _ENCODERS.items():
        if isinstance(value, kind):
            return encoder(value)
    raise NotPlainError(f"{type(value).__module__}.{type(value).__qualname__}")


def decode(data: Any) -> Any:
    """The value that `encode` turned into `data`; arrays are copied.

    Raises:
        ValueError: if the data is damaged.
    """
    if isinstance(data, list):
        return [decode(part) for part in data]
    if isinstance(data, np.ndarray):
        return data.copy()
    if not isinstance(data, dict):
        return data
    kind = next(iter(data), None)
    if kind not in _DECODERS:
        raise ValueError(f"the key {kind!r} is no kind of plain data; the state is damaged.")
    return _DECODERS[kind](data[kind], data)


def loses_its_class(value: Any) -> bool:
    """Whether `decode` gives a value or a part of it another class than `encode` was given.

    As of a `Counter` or an enumeration of integers, which come back as a dict and an int.
    """
    if isinstance(value, dict):
        parts = [*value, *value.values()]
        return type(value) is not dict or any(map(loses_its_class, parts))
    if isinstance(value, _SEVERAL):
        return type(value) not in _SEVERAL or any(map(loses_its_class, value))
    is_single = isinstance(value, _SINGLE) and not isinstance(value, np.generic)
    return is_single and type(value) not in _SINGLE


def is_same(one: Any, other: Any) -> bool:
    """Whether two values that `encode` gave are equal, kinds of numbers included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _encode_array(value: np.ndarray[Any, Any]) -> Any:
    if value.dtype.hasobject:
        raise NotPlainError("an array of Python objects")
    if value.dtype.kind in "biuf" and value.dtype.isnative and value.ndim:
        return value.copy()
    data = np.frombuffer(value.tobytes(), dtype=np.uint8).copy()
    return {"__array__": data, "dtype": value.dtype.str, "shape": list(value.shape)}


def _encode_tuple(value: tuple[Any, ...]) -> Any:
    if type(value) is not tuple:  # a named tuple's class would be lost
        raise NotPlainError(f"{type(value).__module__}.{type(value).__qualname__}")
    return {"__tuple__": [encode(part) for part in value]}


def _encode_set(value: set[Any]) -> list[Any]:
    """In an order that does not depend on addresses."""
    try:
        return [encode(part) for part in sorted(value)]
    except NotPlainError:
        raise
    except TypeError:  # parts that do not compare, such as None and True
        return sorted((encode(part) for part in value), key=repr)


_ENCODERS: dict[type[Any], Callable[[Any], Any]] = {
    np.ndarray: _encode_array,
    np.generic: lambda value: {"__scalar__": encode(np.asarray(value))},
    bytes: lambda value: {"__bytes__": np.frombuffer(value, dtype=np.uint8).copy()},
    tuple: _encode_tuple,
    set: lambda value: {"__set__": _encode_set(value)},
    deque: lambda value: {"__deque__": [encode(part) for part in value], "maxlen": value.maxlen},
    dict: lambda value: {"__dict__": [[encode(k), encode(part)] for k, part in value.items()]},
    np.random.Generator: lambda value: {"__generator__": encode(value.bit_generator.state)},
    np.random.RandomState: lambda value: {"__random__": encode(value.get_state(legacy=False))},
    # Subclasses, such as an enumeration of integers or NumPy's own str.
    bool: bool,
    int: int,
    float: float,
    str: str,
}


def _decode_array(content: Any, data: dict[str, Any]) -> Any:
    return np.frombuffer(content.tobytes(), dtype=data["dtype"]).reshape(data["shape"]).copy()


_DECODERS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "__array__": _decode_array,
    "__scalar__": lambda content, _: decode(content)[()],
    "__bytes__": lambda content, _: content.tobytes(),
    "__tuple__": lambda content, _: tuple(decode(part) for part in content),
    "__set__": lambda content, _: {decode(part) for part in content},
    "__deque__": lambda content, data: deque(map(decode, content), maxlen=data["maxlen"]),
    "__dict__": lambda content, _: {decode(key): decode(part) for key, part in content},
    "__generator__": lambda content, _: numpy_generator(decode(content)),
    "__random__": lambda content, _: random_state(decode(content)),
}

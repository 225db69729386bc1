"""A state tree as plain JSON plus named arrays, and back, without loss and without pickle.

What a tree may hold, and how it is written:

| in the tree | in JSON |
|---|---|
| None, bool, int of any size, str, finite float | itself |
| nan, inf, -inf | {"$float": "nan"} |
| list | a list |
| list of 1,024 ints or floats and more | {"$list": name}, an array of 64 bits per number |
| dict with str keys, none beginning with "$" | an object |
| dict with other str, int or bool keys | {"$pairs": [[key, value], ...]} |
| tuple | {"$tuple": [...]} |
| torch tensor, numpy array or scalar, bytes | {"$array": name, "kind": ..., "dtype": ...} |

Decoding calls nothing that the data names: it compares strings with the tables here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from redline.errors import CheckpointError
from redline.plain_text import shown

Leaf: TypeAlias = "Tensor | np.ndarray"

DTYPES = frozenset(
    (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    )
)
COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64"}

_MAX_DEPTH = 64
# From here on an array: JSON is read as a whole, and has two to three times the bytes a number.
_LONG_LIST = 1024
_MAX_DIGITS = 4000  # Python refuses to parse longer numbers
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode_tree(tree: Any) -> tuple[Any, dict[str, Leaf]]:
    """Split a tree into plain data and arrays.

    Args:
        tree: as in the module's table. Mappings come back as dicts, parameters as tensors
            without gradient, tensors of any device on the CPU.

    Returns:
        What json.dumps takes, and name -> tensor or array, sharing memory with the tree.

    Raises:
        CheckpointError: if something else is in the tree; names where.
    """
    encoder = _Encoder()
    return encoder.encode(tree, ()), encoder.arrays


def decode_tree(plain: Any, read: Callable[[str], Tensor]) -> Any:
    """The tree that `encode_tree` was given.

    Args:
        plain: from json.loads; not trusted.
        read: name -> the array of that name as a CPU tensor nobody else holds; complex
            arrays as [..., 2] real and imaginary parts.

    Raises:
        ValueError: if `plain` is not what `encode_tree` makes.
        KeyError: if `read` does.
    """
    if plain is None or isinstance(plain, (bool, int, float, str)):
        return plain
    if isinstance(plain, list):
        return [decode_tree(item, read) for item in plain]
    if not isinstance(plain, dict):
        raise ValueError(f"unexpected {type(plain).__name__}")
    marker = next((key for key in plain if key.startswith("$")), None)
    if marker is None:
        return {key: decode_tree(value, read) for key, value in plain.items()}
    return _decode_marked(marker, plain, read)


def _decode_marked(marker: str, plain: dict[str, Any], read: Callable[[str], Tensor]) -> Any:
    body = plain[marker]
    if marker == "$array" and set(plain) == {"$array", "kind", "dtype"} and isinstance(body, str):
        return _decode_array(read(body), plain["kind"], plain["dtype"], body)
    if len(plain) == 1 and marker == "$list" and isinstance(body, str):
        return _decode_list(read(body), body)
    if len(plain) == 1 and marker == "$float" and isinstance(body, str) and body in _FLOATS:
        return _FLOATS[body]
    if len(plain) == 1 and marker == "$tuple" and isinstance(body, list):
        return tuple(decode_tree(item, read) for item in body)
    if len(plain) == 1 and marker == "$pairs" and isinstance(body, list):
        return {_decode_key(pair): decode_tree(pair[1], read) for pair in body}
    raise ValueError(f"unknown or malformed entry {shown(marker)}")


def _decode_key(pair: Any) -> str | int | bool:
    if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], (str, int))):
        raise ValueError("malformed key of a dict")
    return pair[0]


def _decode_list(tensor: Tensor, name: str) -> list[int] | list[float]:
    if tensor.dim() != 1 or dtype_name(tensor) not in ("int64", "float64"):
        raise ValueError(f"array {shown(name)} holds no list of ints or of floats")
    return tensor.tolist()


def _decode_array(tensor: Tensor, kind: Any, dtype: Any, name: str) -> Any:
    known = isinstance(dtype, str) and dtype in DTYPES
    if not known or dtype_name(tensor) != COMPLEX_PARTS.get(dtype, dtype):
        raise ValueError(f"array {shown(name)} has dtype {dtype_name(tensor)}, not {shown(dtype)}")
    if dtype in COMPLEX_PARTS:
        if tensor.dim() == 0 or tensor.shape[-1] != 2:
            raise ValueError(f"array {shown(name)} does not hold complex numbers")
        tensor = torch.view_as_complex(tensor)
    if kind == "torch":
        return tensor
    array = tensor.numpy()
    if kind == "numpy":
        return array
    if kind == "scalar" and array.ndim == 0:
        return array[()]
    if kind == "bytes" and array.ndim == 1 and dtype == "uint8":
        return array.tobytes()
    raise ValueError(f"array {shown(name)} cannot be of kind {shown(kind)}")


def dtype_name(leaf: Leaf) -> str:
    """The dtype's name, the same for torch and numpy: "float32", "bool", ..."""
    return str(leaf.dtype).removeprefix("torch.")


class _Encoder:
    """Walks a tree; the arrays gather in `arrays`."""

    def __init__(self) -> None:
        self.arrays: dict[str, Leaf] = {}

    def encode(self, value: Any, path: tuple[str, ...]) -> Any:
        if len(path) > _MAX_DEPTH:
            raise _refusal(path[:8], f"is nested deeper than {_MAX_DEPTH}; is there a cycle?")
        kind = type(value)
        if value is None or kind is bool or kind is str:
            return value
        if kind is int or kind is float:
            return _encode_number(value, path)
        if isinstance(value, (Tensor, np.ndarray, np.generic)) or kind is bytes:
            return self._encode_array(value, path)
        if kind is list:
            numbers = _as_numbers(value)
            if numbers is not None:
                return {"$list": self._encode_array(numbers, path)["$array"]}
            return self._encode_items(value, path)
        if kind is tuple:
            return {"$tuple": self._encode_items(value, path)}
        if isinstance(value, Mapping):
            return self._encode_mapping(value, path)
        raise _refusal(path, f"is a {kind.__module__}.{kind.__qualname__}, which is not plain data")

    def _encode_items(self, items: Any, path: tuple[str, ...]) -> list[Any]:
        return [self.encode(item, (*path, str(i))) for i, item in enumerate(items)]

    def _encode_mapping(self, value: Mapping[Any, Any], path: tuple[str, ...]) -> Any:
        for key in value:
            if type(key) not in (str, int, bool):
                raise _refusal(path, f"has the key {key!r}, which is neither a str nor an int")
        pairs = [(key, self.encode(item, (*path, str(key)))) for key, item in value.items()]
        if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        return {"$pairs": [list(pair) for pair in pairs]}

    def _encode_array(self, value: Any, path: tuple[str, ...]) -> Any:
        kind = "torch"
        if isinstance(value, bytes):
            kind, value = "bytes", np.frombuffer(value, dtype=np.uint8)
        elif isinstance(value, np.generic):
            kind, value = "scalar", np.asarray(value)
        elif isinstance(value, np.ndarray):
            kind = "numpy"
        elif isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            value = value.detach().cpu()
        _check_array(value, path)
        name = ".".join(path) or "array"
        if name in self.arrays or name.startswith("__"):
            # Keys may hold dots, and safetensors keeps "__metadata__" for itself.
            name = f"{name}#{len(self.arrays)}"
        self.arrays[name] = value
        return {"$array": name, "kind": kind, "dtype": dtype_name(value)}


def _as_numbers(items: list[Any]) -> np.ndarray | None:
    """A long list of nothing but floats, or of ints of 64 bits, as an array; None: it is none."""
    if len(items) < _LONG_LIST:
        return None
    kinds = set(map(type, items))
    if kinds == {float}:
        return np.array(items, dtype=np.float64)
    if kinds == {int} and min(items) >= -(2**63) and max(items) < 2**63:
        return np.array(items, dtype=np.int64)
    return None


def _encode_number(value: int | float, path: tuple[str, ...]) -> Any:
    if isinstance(value, int):
        if value.bit_length() > 3 * _MAX_DIGITS:
            raise _refusal(path, f"is an int of {value.bit_length()} bits, too large for JSON")
        return value
    return value if math.isfinite(value) else {"$float": str(value)}


def _check_array(value: Any, path: tuple[str, ...]) -> None:
    if dtype_name(value) not in DTYPES:
        raise _refusal(path, f"is an array of dtype {value.dtype}, which cannot be saved")
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter) or value.layout != torch.strided:
            raise _refusal(path, f"is a {type(value).__name__} of layout {value.layout}, not dense")
        if value.is_meta:
            raise _refusal(path, "is a tensor on the meta device, which holds no data")
    elif type(value) not in (np.ndarray, np.memmap):
        raise _refusal(path, f"is a {type(value).__name__}, not a plain numpy array")


def _refusal(path: tuple[str, ...], problem: str) -> CheckpointError:
    return CheckpointError(
        f"the state to save cannot be written: {'.'.join(path) or 'the whole'} {problem}. A "
        f"checkpoint holds None, bool, int, float, str, bytes, lists, tuples, dicts, tensors and "
        f"numpy arrays; convert it in the object's state_dict."
    )

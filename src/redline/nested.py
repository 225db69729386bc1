"""Nested data: one array, or a mapping of names to nested data.

Observations and actions of Dict and Tuple spaces travel as mappings (a Tuple's
keys are "0", "1", ...). Three kinds occur: numpy arrays beside the environments,
plain dicts of tensors at the policy, a TensorDict in a rollout. The functions
here treat all of them alike, by asking for `keys` instead of for a type: that
leaves torch out of processes that only step environments, and is several times
quicker than `isinstance` of an abstract class, on every step of acting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from redline.errors import SpaceError

Array: TypeAlias = npt.NDArray[Any]
NestedArray: TypeAlias = "Array | Mapping[str, NestedArray]"


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `function` to each leaf of `tree` and the same leaves of `rest`.

    Mappings and TensorDicts come back as plain dicts with the same keys.

    Raises:
        KeyError: if a tree in `rest` lacks a key of `tree`.
    """
    if hasattr(tree, "keys"):
        return {
            key: map_leaves(function, tree[key], *(other[key] for other in rest))
            for key in tree.keys()  # noqa: SIM118 (iterating a TensorDict gives rows, not keys)
        }
    return function(tree, *rest)


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, leaf) in key order; the name of a bare leaf is ""."""
    if hasattr(tree, "keys"):
        for key in tree.keys():  # noqa: SIM118
            yield from leaves(tree[key], f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def pairs(target: Any, source: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each leaf of `target` with the leaf of `source` of the same keys, in any order.

    Raises:
        SpaceError: if the keys differ.
    """
    own, given = _keys(target), _keys(source)
    if own is None and given is None:
        yield target, source
        return
    if own is None or given is None or set(own) != set(given):
        raise SpaceError(
            f"nested data come as {_named(given)}, where {_named(own)} should be. Give the entries "
            f"that the space declares."
        )
    for key in own:
        yield from pairs(target[key], source[key])


def _keys(tree: Any) -> list[str] | None:
    return list(tree.keys()) if hasattr(tree, "keys") else None


def _named(keys: list[str] | None) -> str:
    return "one array" if keys is None else f"entries {sorted(keys)}"


__all__ = ["Array", "NestedArray", "copy_all", "copy_rows", "leaves", "map_leaves", "pairs"]


def copy_rows(target: NestedArray, source: NestedArray, rows: Array) -> None:
    """Copy the rows [B] bool of every array of `source` to the same place in `target`."""
    for to, of in pairs(target, source):
        to[rows] = of[rows]


def copy_all(target: NestedArray, source: NestedArray) -> None:
    """Copy every array of `source` to the same place in `target`."""
    for to, of in pairs(target, source):
        np.copyto(to, of)

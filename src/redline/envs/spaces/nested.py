"""Nested numpy data without torch, which a process that only steps environments never loads.

The same idea as `redline.data.nested`: one array, or a mapping of names to nested data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
NestedArray: TypeAlias = "Array | Mapping[str, NestedArray]"


def map_leaves(function: Callable[[Array], Any], tree: Any) -> Any:
    """Apply `function` to each array; mappings come back as dicts with the same keys."""
    if isinstance(tree, Mapping):
        return {key: map_leaves(function, part) for key, part in tree.items()}
    return function(tree)


def leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """Yield (dotted name, array) in key order; the name of a bare array is ""."""
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from leaves(part, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, tree


def copy_rows(target: NestedArray, source: NestedArray, rows: Array) -> None:
    """Copy the rows [B] bool of every array of `source` to the same place in `target`."""
    for (_, to), (_, of) in zip(leaves(target), leaves(source), strict=True):
        to[rows] = of[rows]


def copy_all(target: NestedArray, source: NestedArray) -> None:
    """Copy every array of `source` to the same place in `target`."""
    for (_, to), (_, of) in zip(leaves(target), leaves(source), strict=True):
        np.copyto(to, of)

"""Copying nested numpy data in place; without torch, as all that environments' processes load."""

from __future__ import annotations

import numpy as np

from redline.nested import Array, NestedArray, leaves, map_leaves

__all__ = ["Array", "NestedArray", "copy_all", "copy_rows", "leaves", "map_leaves"]


def copy_rows(target: NestedArray, source: NestedArray, rows: Array) -> None:
    """Copy the rows [B] bool of every array of `source` to the same place in `target`."""
    for (_, to), (_, of) in zip(leaves(target), leaves(source), strict=True):
        to[rows] = of[rows]


def copy_all(target: NestedArray, source: NestedArray) -> None:
    """Copy every array of `source` to the same place in `target`."""
    for (_, to), (_, of) in zip(leaves(target), leaves(source), strict=True):
        np.copyto(to, of)

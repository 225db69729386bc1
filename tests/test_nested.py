"""Nested data in which the order of keys means nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redline.errors import SpaceError
from redline.nested import copy_all, copy_rows


def test_leaves_are_copied_to_where_their_keys_are() -> None:
    """The source has its entries the other way round, and all leaves are of one shape."""
    target: Any = {"inner": {"a": np.zeros(2), "b": np.zeros(2)}, "c": np.zeros(2)}
    source: Any = {
        "c": np.array([5, 6]),
        "inner": {"b": np.array([3, 4]), "a": np.array([1, 2])},
    }
    copy_rows(target, source, np.array([False, True]))
    assert target["inner"]["a"].tolist() == [0, 2]
    assert target["inner"]["b"].tolist() == [0, 4]
    assert target["c"].tolist() == [0, 6]
    copy_all(target, source)
    assert target["inner"]["a"].tolist() == [1, 2]
    assert target["inner"]["b"].tolist() == [3, 4]
    assert target["c"].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"a": np.zeros(2), "d": np.zeros(2)}, r"entries \['a', 'd'\], where entries \['a', 'b'\]"),
        ({"a": np.zeros(2)}, r"entries \['a'\], where entries \['a', 'b'\]"),
        (np.zeros(2), r"one array, where entries \['a', 'b'\]"),
    ],
)
def test_other_keys_are_refused(source: Any, said: str) -> None:
    target: Any = {"a": np.zeros(2), "b": np.zeros(2)}
    with pytest.raises(SpaceError, match=said):
        copy_all(target, source)

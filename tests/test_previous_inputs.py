"""The form of previous actions: spaces and columns, worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.errors import SpaceError
from redline.nested import map_leaves
from redline.previous_inputs import ActionColumns, has_previous, with_previous, without_previous

PLACE = spaces.Box(-1.0, 1.0, (2,), np.float32)
# Two actions each, and their rows.
CASES: list[tuple[spaces.Space[Any], Any, list[list[float]]]] = [
    (spaces.Discrete(3), [0, 2], [[1, 0, 0], [0, 0, 1]]),
    (spaces.MultiDiscrete([2, 3]), [[1, 0], [0, 2]], [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
    (spaces.MultiBinary(2), [[1, 0], [1, 1]], [[1, 0], [1, 1]]),
    (PLACE, [[0.5, -1.0], [0.0, 1.0]], [[0.5, -1.0], [0.0, 1.0]]),
    (
        spaces.Dict({"turn": spaces.Discrete(2), "push": PLACE}),
        {"turn": [1, 0], "push": [[0.5, -1.0], [0.0, 1.0]]},
        [[0.5, -1.0, 0, 1], [0.0, 1.0, 1, 0]],  # a Dict space sorts its keys
    ),
]


@pytest.mark.parametrize("place", [np.asarray, torch.as_tensor], ids=["arrays", "tensors"])
@pytest.mark.parametrize(("space", "action", "rows"), CASES, ids=lambda case: str(case)[:20])
def test_actions_become_vectors(space: Any, action: Any, rows: Any, place: Any) -> None:
    columns = ActionColumns(space, lambda array: place(array))
    target = place(np.full((2, columns.size), 9.0, np.float32))
    columns.write(target, map_leaves(place, action))
    assert target.tolist() == rows


def test_spaces_with_and_without_them() -> None:
    """A Dict keeps its entries; anything else lies under "observed" and comes back bare."""
    space = with_previous(PLACE, spaces.Discrete(4))
    assert has_previous(space)
    assert space["previous_action"].shape == (4,)
    assert space["previous_reward"].shape == (1,)
    assert without_previous(space) == PLACE
    nested = spaces.Dict({"obs": PLACE})
    assert not has_previous(nested)
    assert without_previous(nested) is nested
    assert without_previous(with_previous(nested, spaces.Discrete(4))) == nested


@pytest.mark.parametrize("name", ["previous_action", "previous_reward", "observed"])
def test_names_that_are_taken_are_refused(name: str) -> None:
    with pytest.raises(SpaceError, match=rf"\['{name}'\].*Rename"):
        with_previous(spaces.Dict({name: PLACE}), spaces.Discrete(2))

"""Nested data, with and without torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from redline.data import leaves, map_leaves, to_numpy, to_tensor


def test_nested_data_keeps_its_structure() -> None:
    tree: dict[str, Any] = {"x": np.zeros(2), "y": {"z": np.ones(3, np.uint8)}}
    assert [name for name, _ in leaves(tree)] == ["x", "y.z"]
    assert [name for name, _ in leaves(np.zeros(1))] == [""]
    doubled = map_leaves(lambda a, b: a + b, tree, tree)
    assert doubled["y"]["z"].tolist() == [2, 2, 2]
    tensors = to_tensor(tree)
    assert tensors["x"].dtype == torch.float32  # float64 becomes the networks' dtype
    assert tensors["y"]["z"].dtype == torch.uint8  # images stay as they are
    assert to_numpy(tensors)["y"]["z"].dtype == np.uint8


def test_trees_of_different_structure_are_an_error() -> None:
    with pytest.raises(KeyError):
        map_leaves(lambda a, b: a, {"x": np.zeros(1)}, {"y": np.zeros(1)})


def test_a_tensordict_is_walked_as_a_mapping_is() -> None:
    tree = TensorDict({"x": torch.zeros(2), "y": {"z": torch.ones(2, 3)}}, batch_size=[2])
    assert [(name, leaf.dim()) for name, leaf in leaves(tree)] == [("x", 1), ("y.z", 2)]
    plain = map_leaves(lambda leaf: leaf + 1, tree)
    assert type(plain["y"]) is dict
    assert plain["y"]["z"].tolist() == [[2.0] * 3] * 2


def test_walking_needs_no_torch() -> None:
    """Processes that only step environments never load it."""
    code = "import redline.nested, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

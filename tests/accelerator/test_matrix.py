"""The matrix of algorithms, networks, replays and environments: who waits for the device, and when.

0 waits in an update, at most 1 for a logged row, and none for a step of environments on the device.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.accelerator import matrix
from tests.accelerator.matrix import Cell, Waits

COVERING = matrix.covering()


@pytest.mark.parametrize("cell", COVERING, ids=str)
def test_nobody_waits_where_nothing_is_read(cell: Cell, tmp_path: Path) -> None:
    assert matrix.problems(cell, matrix.measure(cell, tmp_path / "run")) == []


def test_every_algorithm_is_in_the_matrix_and_every_reason_is_needed() -> None:
    existing = matrix.cells()
    assert {cell.algorithm for cell in existing} == set(matrix.ALGORITHMS)
    assert {cell.network for cell in existing} == set(matrix.NETWORKS)
    assert {cell.replay for cell in existing} == set(matrix.REPLAYS)
    given = {matrix.why_not(cell) for cell in matrix.all_cells()}
    assert given == {None, *(reason for reason, _ in matrix.REASONS)}


def test_waits_are_complained_of() -> None:
    cell = Cell("dqn", "mlp", "uniform", "device", "device")
    assert matrix.problems(cell, Waits(updates=3, rows=2, logging=2, collecting=8)) == []
    too_many = Waits(updates=3, updating=1, rows=2, logging=3, collecting=16)
    assert len(matrix.problems(cell, too_many)) == 3
    assert matrix.problems(cell, Waits()) != []
    near = Cell("dqn", "mlp", "prioritized", "memory", "host")
    assert matrix.problems(near, Waits(updates=3, updating=3, rows=1)) == []
    assert matrix.problems(near, Waits(updates=3, updating=4, rows=1)) != []

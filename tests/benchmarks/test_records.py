"""Results whose parts are measured at different times name the machine that measured them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.records import merged, require_one_machine

HERE = {"processor": "a", "cores": "2", "memory_gib": "24", "system": "Linux 6", "torch": "2.13"}


def test_parts_of_another_machine_are_not_kept_beside_new_ones(tmp_path: Path) -> None:
    """The page would say that all of them were measured here."""
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"machine": {**HERE, "cores": "16"}, "speed": 1}))
    with pytest.raises(SystemExit, match=r"cores '16', here '2'.*: speed\. Move the file away"):
        require_one_machine(path, {"speed"}, HERE)
    require_one_machine(path, set(), HERE)  # all of it is measured anew


def test_parts_of_the_same_machine_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    require_one_machine(path, set(), HERE)  # nothing is recorded yet
    merged(path, {"machine": {**HERE, "torch": "2.11"}, "speed": 1})
    require_one_machine(path, {"speed"}, HERE)
    assert merged(path, {"kill": 2})["speed"] == 1


def test_another_gpu_is_another_machine(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"machine": {"gpu": "H100", **HERE}, "parts": {}}))
    with pytest.raises(SystemExit, match="gpu 'H100', here 'H200'"):
        require_one_machine(path, {"speed"}, {"gpu": "H200", **HERE})


def test_results_of_another_machine_do_not_stay_beside_new_ones(tmp_path: Path) -> None:
    """All parts are measured again, and it is interrupted after the first."""
    path = tmp_path / "found.json"
    merged(path, {"machine": {**HERE, "cores": "16"}, "speed": 1, "kill": 1})
    assert merged(path, {"machine": HERE, "speed": 2}) == {"machine": HERE, "speed": 2}

"""Atomic writes: whole or not at all."""

import json
from pathlib import Path

import pytest

from redline.errors import ConfigError, RunDirectoryError
from redline.train.checkpoint.atomic_files import (
    atomic_directory,
    atomic_file,
    remove_directory,
    remove_leftovers,
    write_json_atomic,
)


def test_json_is_real_json(tmp_path: Path) -> None:
    """Fault 30: JSON that is `str(dict)`."""
    value = {"a": True, "b": None, "c": [1, 2.5, "x'y"]}
    write_json_atomic(tmp_path / "new" / "config.json", value)
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == value


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": object()}])
def test_what_is_not_json_is_refused_and_leaves_the_old_file(tmp_path: Path, value: object) -> None:
    path = tmp_path / "config.json"
    write_json_atomic(path, {"old": 1})
    with pytest.raises(ConfigError, match=r"config\.json cannot be written as JSON"):
        write_json_atomic(path, value)
    assert json.loads(path.read_text()) == {"old": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["config.json"]


def test_failed_block_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "figure.png"
    path.write_text("old")

    def half_a_file() -> None:
        with atomic_file(path) as temporary:
            assert temporary.suffix == ".png"
            temporary.write_text("half")
            raise RuntimeError

    def half_a_directory() -> None:
        with atomic_directory(tmp_path / "directory") as temporary:
            (temporary / "file").write_text("half")
            raise RuntimeError

    for fail in (half_a_file, half_a_directory):
        with pytest.raises(RuntimeError):
            fail()
    assert [entry.name for entry in tmp_path.iterdir()] == ["figure.png"]
    assert path.read_text() == "old"


def test_parent_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match=r"cannot write .*file/config\.json"):
        write_json_atomic(tmp_path / "file" / "config.json", {})


def test_leftovers_go_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / ".tmp-1-step").mkdir()
    (tmp_path / ".tmp-1-step" / "part").write_text("half")
    (tmp_path / ".tmp-2.json").write_text("half")
    (tmp_path / "kept").mkdir()
    remove_leftovers(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    remove_directory(tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []

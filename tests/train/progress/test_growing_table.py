"""A table that is read while it grows."""

from __future__ import annotations

from pathlib import Path

from redline.train.progress.growing_table import GrowingTable


def read(table: GrowingTable) -> tuple[bool, list[list[str]]]:
    is_anew, lines = table.read()
    return is_anew, list(lines)


def test_each_row_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    table = GrowingTable(path)
    assert read(table) == (True, [])
    assert table.changed_s is None
    path.write_text("a,b\n1,2\n3,")
    assert read(table) == (True, [["a", "b"], ["1", "2"]])
    assert table.changed_s == path.stat().st_mtime
    assert read(table) == (False, [])
    with open(path, "a") as file:
        file.write("4\n5,6\n")
    assert read(table) == (False, [["3", "4"], ["5", "6"]])


def test_a_table_that_was_cut_or_got_further_columns_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    table = GrowingTable(path)
    path.write_text("a,b\n1,2\n3,4\n")
    read(table)
    path.write_text("a,b\n1,2\n")
    assert read(table) == (True, [["a", "b"], ["1", "2"]])
    path.write_text("a,b,c\n1,2,\n5,6,7\n")
    assert read(table) == (True, [["a", "b", "c"], ["1", "2", ""], ["5", "6", "7"]])

"""The list of sessions: what each line says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from redline.errors import SessionError
from redline.profile.commands import main
from redline.profile.session_list import SessionRow, list_sessions, render_sessions

PROGRAM = """
from redline import profile
for k in range(4):
    with profile.operation("work"):
        pass
    profile.progress(k + 1, 8)
"""


def test_each_session_has_a_line(profiled: Any) -> None:
    """Events of the main thread: the window's two ends and four marks of two. Progress: 4 of 8."""
    profiled.run(PROGRAM, mode="light")
    first = profiled.session
    profiled.run(PROGRAM, mode="full")
    rows = list_sessions([profiled.directory])
    assert [row.directory for row in rows] == [str(first), str(profiled.session)]
    light, full = rows
    assert (light.mode, full.mode) == ("light", "full")
    assert (light.processes, light.sealed, light.progress, light.problem) == (1, True, 0.5, "")
    assert light.events >= 10
    assert light.seconds is not None
    assert light.seconds > 0
    inside = [path for path in first.rglob("*") if path.is_file()]
    assert light.size_bytes == sum(path.stat().st_size for path in inside)


def test_a_changed_session_is_not_sealed_and_a_broken_one_has_its_reason(profiled: Any) -> None:
    profiled.run(PROGRAM, mode="light")
    broken = Path(shutil.copytree(profiled.session, profiled.directory / "broken"))
    (broken / "session.json").write_text("{")
    names = next(profiled.session.glob("processes/*/names.jsonl"))
    names.write_text(names.read_text() + "\n")
    rows = {Path(row.directory).name: row for row in list_sessions([profiled.directory])}
    assert not rows[profiled.session.name].sealed
    assert "cannot be read" in rows["broken"].problem


@pytest.mark.parametrize("when", [1e20, float("nan"), -1, True])
def test_a_time_that_no_calendar_has_is_left_out(profiled: Any, when: Any) -> None:
    """One such session ended the list of all of them."""
    profiled.run(PROGRAM, mode="light")
    path = profiled.session / "session.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created_unix_s": when}))
    (row,) = list_sessions([profiled.directory])
    assert "-" in render_sessions([row]).splitlines()[1].split()


def test_the_table() -> None:
    row = SessionRow("runs/a", 0.0, "full", 12.5, 3, 12345, 2_340_000, True, 0.25)
    broken = SessionRow("b", problem="why")
    head, line, _, note = render_sessions([row, broken]).splitlines()
    assert " ".join(head.split()) == "directory when mode s processes events MB sealed progress"
    assert line.split()[0] == "runs/a"
    assert line.split()[3:] == ["full", "12.500", "3", "12,345", "2.34", "yes", "25.0%"]
    assert note == "note: why"


def test_the_command(profiled: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    profiled.run(PROGRAM, mode="light")
    assert main(["sessions", str(profiled.session), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["mode"], row["progress"]) == ("light", 0.5)
    assert main(["sessions", str(profiled.directory)]) == 0
    assert " light " in capsys.readouterr().out
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["sessions", str(empty)]) == 0
    assert capsys.readouterr().out == "no profile sessions there\n"


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="is no folder"):
        list_sessions([tmp_path / "nothing"])

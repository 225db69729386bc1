"""What the profiler's commands say of mistakes: nothing is ignored, no escape sequence is shown."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from redline.errors import ConfigError
from redline.profile.analyse.summary import all_problems
from redline.profile.commands import main
from redline.profile.reader import open_session
from redline.profile.record.files import create_session
from redline.profile.record.options import Options
from redline.profile.runner import run_profiled

ESCAPE = "\x1b[2J"
RECORDED = (
    Path(__file__).parents[1] / "fixtures" / "revision-0.1" / "sessions" / "light" / "session"
)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """In a folder whose name clears the screen."""
    return Path(shutil.copytree(RECORDED, tmp_path / f"a{ESCAPE}" / "session"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["advise", "SESSION", "--remedy", "nope"], "--remedy is of --check"),
        (["advise", "SESSION", "--pairs", "7"], "--pairs is of --check"),
        (["report", "SESSION", "--figure-format", "pdf"], "--figure-format is that of --figures"),
        (["profile", "--mode", "light", "--no-lines", "--", "true"], "no Python lines"),
        (
            ["profile", "--mode", "sample", "--no-calibration", "--", "true"],
            "mode sample has no blocks without the probe",
        ),
        (
            ["profile", "--mode", "light", "--max-events-per-s", "5", "--", "true"],
            "max_events_per_s=5 limits native calls",
        ),
        (
            ["profile", "--mode", "sample", "--gpu-every-s", "5", "--", "true"],
            "gpu_window_s=1 and gpu_every_s=5 are times of the GPU's windows",
        ),
    ],
)
def test_an_option_without_effect_is_refused(
    words: list[str], named: str, session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(session) if word == "SESSION" else word for word in words]) == 2
    assert named in capsys.readouterr().err


def test_the_limit_of_native_calls_is_that_of_mode_full() -> None:
    with pytest.raises(ConfigError, match="mode sample does not observe"):
        Options(mode="sample", max_events_per_s=5.0)
    assert Options(mode="full", max_events_per_s=5.0).max_events_per_s == 5.0
    with pytest.raises(ConfigError, match="max_events_per_s=5 limits nothing without calibration"):
        Options(mode="full", max_events_per_s=5.0, calibrate=False)
    assert not Options(mode="full", max_events_per_s=0.0, calibrate=False).calibrate


def test_windows_of_the_gpu_are_those_of_mode_full() -> None:
    with pytest.raises(ConfigError, match="which mode light has none of"):
        Options(mode="light", gpu_window_s=0.5)
    assert Options(mode="full", gpu_window_s=0.5).gpu_window_s == 0.5
    assert Options(mode="light", gpu_window_s=0.0).gpu_window_s == 0.0  # there are none


@pytest.mark.parametrize("command", ["report", "advise", "inspect-session", "sessions", "diff"])
def test_no_command_shows_the_escapes_of_a_path(
    command: str, session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither of one that is there, nor of one that is not."""
    for path in (str(session), f"nowhere{ESCAPE}"):
        main([command, path, *([path] if command == "diff" else [])])
    said = capsys.readouterr()
    assert said.out + said.err
    assert "\x1b" not in said.out + said.err


def test_what_was_written_is_named_without_escapes(
    session: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = session.parent
    assert main(["report", str(session), "--csv", str(folder / "tables")]) == 0
    assert main(["trace", str(session), "--out", str(folder / "a.json")]) == 0
    said = capsys.readouterr()
    assert "cells.csv" in said.err
    assert "events written to" in said.out
    assert "\x1b" not in said.out + said.err


def test_a_file_in_place_of_a_session_is_named(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text("")
    with pytest.raises(Exception, match=r"program\.py is a file, and a profile session is a dir"):
        open_session(path)


def test_a_problem_of_a_process_is_told_once(session: Path) -> None:
    opened = open_session(session)
    opened.processes[0].problems += ["a line that makes no sense"] * 3
    (said,) = (each for each in all_problems(opened) if "makes no sense" in each)
    assert said.count("(pid ") == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinity")
def test_a_session_says_how_many_cores_could_be_used(tmp_path: Path) -> None:
    """Not how many the machine has: a job may have a few of many."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        create_session(tmp_path / "s", mode="full", command=["x"]).release()
    finally:
        os.sched_setaffinity(0, before)
    assert json.loads((tmp_path / "s" / "session.json").read_text())["cpus"] == 1


def test_a_command_gets_the_descriptors_that_it_was_given(tmp_path: Path) -> None:
    """As of `--config <(make-config)` in a shell; but none of the profiler's own."""
    code = """
import os, sys
told = open(int(sys.argv[1])).read()
kept = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
open(sys.argv[2], "w").write("\\n".join([told, *kept]))
"""
    there, here = os.pipe()
    os.write(here, b"the settings")
    os.close(here)
    os.set_inheritable(there, True)
    told = tmp_path / "told"
    program = [sys.executable, "-I", "-S", "-c", code, str(there), str(told)]
    try:
        assert run_profiled(program, tmp_path / "session", Options(mode="light")) == 0
    finally:
        os.close(there)
    settings, *kept = told.read_text().split("\n")
    assert settings == "the settings"
    assert not [path for path in kept if path.startswith(str(tmp_path / "session"))]


def test_a_command_that_removes_its_session_keeps_its_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import shutil, sys; shutil.rmtree(sys.argv[1]); sys.exit(5)"
    program = [sys.executable, "-I", "-S", "-c", code, str(tmp_path / "session")]
    assert run_profiled(program, tmp_path / "session", Options(mode="light")) == 5
    assert "redline profile: the session is gone: " in capsys.readouterr().err


@pytest.mark.parametrize("written", ["--html", "--csv", "--figures"])
def test_a_session_whose_name_is_no_utf8_is_written(written: str, tmp_path: Path) -> None:
    """A page's title, a column of tables and the labels of figures name it."""
    packages = {"--html": "plotly", "--figures": "matplotlib"}
    if written in packages:
        pytest.importorskip(packages[written], reason=f"{written} needs it")
    latin = [tmp_path / os.fsdecode(name) for name in (b"caf\xe9", b"th\xe9")]
    for session in latin:
        shutil.copytree(RECORDED, session)
    sessions = [str(session) for session in latin]
    out = tmp_path / "out"
    assert main(["report", *sessions[: 1 if written == "--html" else 2], written, str(out)]) == 0
    if written == "--html":
        assert "caf\\udce9</title>" in out.read_text(encoding="utf-8")
    elif written == "--csv":
        assert "caf\\udce9" in (out / "cells.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", ["full", "sample"])
def test_a_session_in_a_folder_whose_name_is_not_utf_8(
    mode: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its child, too, which learns the folder from the environment."""
    session = tmp_path / os.fsdecode(b"caf\xe9")
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    words = ["profile", "--mode", mode, "--out", str(session), "--", sys.executable, "-c", program]
    assert main(words) == 0
    assert "this process is not profiled" not in capfd.readouterr().err
    assert len(open_session(session).processes) == 2

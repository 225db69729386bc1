"""Names and cells that a stranger wrote are shown as what they are."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import redline
from redline.cli import main
from redline.command_line.run_list import as_table
from redline.errors import ConfigError
from redline.launch.comparison_tables import _plain
from redline.plain_text import csv_cell, printable
from redline.train.progress.progress import require_column_name
from redline.train.runs.summary import summarize_run

RUN = Path(__file__).parent / "fixtures" / "revision-0.1" / "training" / "ppo" / "run"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\x00", "a\\rb\\x00"),
        ("exe\u202egpj", "exe\\u202egpj"),
        ("größe π 学", "größe π 学"),
    ],
)
def test_control_characters_are_shown_as_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(1)", "'@SUM(1)"),
        ("+1+1", "'+1+1"),
        ("-a", "'-a"),
        ("-1.5", "-1.5"),
        ("+1e3", "+1e3"),
        ("ppo", "ppo"),
        (-2, -2),
        (None, None),
    ],
)
def test_formulas_become_words(cell: object, written: object) -> None:
    assert csv_cell(cell) == written


def test_a_column_is_named_by_no_formula() -> None:
    with pytest.raises(ConfigError, match="cannot name a column"):
        require_column_name("=cmd|calc")


def test_an_error_shows_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["\x1b[2Jnothing"]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["sweep", "status"], ["runs"], ["report"], ["inspect"], ["plot", "--out", "x.png"]]
)
def test_a_path_that_is_none_is_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before, `redline sweep status` with a name of 5,000 characters ended in a traceback."""
    assert main([*words, "9" * 5000]) in (1, 2)
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said


def test_the_list_of_runs_shows_no_escape_sequence(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[2J"
    folder.mkdir()
    config = json.loads((RUN / "config.json").read_text())
    config["run"]["env"] = "\x1b]0;owned\x07"
    (folder / "config.json").write_text(json.dumps(config))
    found = summarize_run(folder)
    assert found is not None
    shown = as_table([found], tmp_path)
    assert "\\x1b]0;owned" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("name", ["progress.csv", "config.json"])
@pytest.mark.parametrize("command", ["plot", "compare", "runs", "inspect"])
def test_a_fifo_in_a_run_directory_hangs_nothing(
    name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Opening a fifo to read waits for a writer, for ever."""
    run = tmp_path / "run"
    run.mkdir()
    for each in ("progress.csv", "config.json"):
        (run / each).write_bytes((RUN / each).read_bytes())
    (run / name).unlink()
    os.mkfifo(run / name)
    words = {
        "plot": ["plot", str(run), "--out", str(tmp_path / "a.png")],
        "compare": ["compare", str(tmp_path), "--out", str(tmp_path / "c")],
        "runs": ["runs", str(tmp_path)],
        "inspect": ["inspect", str(run)],
    }[command]
    status = main(words)
    assert status == (0 if command == "runs" else 2)
    assert "Traceback" not in capsys.readouterr().err


def test_no_command_shows_escapes_of_a_runs_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil, other = tmp_path / "a\x1b[2J\u202e", tmp_path / "b"
    run = tmp_path / "\x1b[31mrun"
    settings = {"total_env_steps": 256, "num_envs": 2, "rollout_length": 32, "num_minibatches": 1}
    redline.train("ppo", env="CartPole-v1", out=run, quiet=True, hidden_sizes=(4,), **settings)
    for copy in (evil, other):
        shutil.copytree(run, copy)
    named = [str(evil), str(other)]
    figure = str(tmp_path / "\x1b[2J.png")
    assert main(["plot", *named, "--out", figure, "--statistic", "iqm"]) == 0
    assert main(["eval", *named, "--episodes", "1"]) == 0
    assert main(["compare", *named, "--out", str(tmp_path / "\x1b[2Jc")]) == 0
    assert main(["export", str(evil), "--out", f"{evil}.pt2", "--format", "torch"]) == 0
    shown = "".join(capsys.readouterr())
    assert "\\x1b[2J" in shown
    assert "\x1b[2J" not in shown
    assert "\u202e" not in shown


def test_a_comparison_shows_words_of_a_run_as_they_are() -> None:
    """Neither escape sequences nor markup of rich's, by which a link would become one."""
    words = "\x1b[2J[link=http://evil]x"
    assert _plain(words).plain == "\\x1b[2J[link=http://evil]x"

"""Names and cells that a stranger wrote are shown as what they are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.cli import main
from redline.command_line.run_list import as_table
from redline.errors import ConfigError, RedlineError
from redline.launch.comparison_tables import _plain
from redline.plain_text import csv_cell, printable, shortened, shown
from redline.train.progress.curves import load_progress
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


def test_what_is_quoted_has_an_end_and_no_escapes() -> None:
    """By hand: 20 characters of which the last three are dots; one line of it."""
    assert shortened("a\n  b\x1b[2J") == "a b\\x1b[2J"
    assert shortened("x" * 30, 20) == "x" * 17 + "..."
    assert shortened(ValueError("no\x07")) == "no\\x07"
    assert shown("\x1b[2J") == r"'\x1b[2J'"
    assert len(shown("x" * 10**6)) <= 60
    assert len(shown([["x" * 100] * 100] * 100)) <= 60
    assert shown(10**5000) == "a whole number of thousands of digits"


BAD = "\x1b[2J" + "x" * 100_000
"""What a stranger writes where a word belongs."""


def _config(run: Path, part: str | None, name: str, value: object) -> None:
    config = json.loads((run / "config.json").read_text())
    (config if part is None else config[part])[name] = value
    config.pop("sha256", None)
    (run / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        (None, "algorithm", f"x:{BAD}"),
        (None, "algorithm", BAD),
        (None, "format_version", BAD),
        ("run", "env", f"x:{BAD}"),
        ("run", "env", BAD),
        ("run", "env", f"python:{BAD}"),
        ("run", "seed", BAD),
        ("run", "env_kwargs", BAD),
        ("run", "env_kwargs", json.dumps({"file": BAD})),
        ("run", "env_kwargs", json.dumps({f"{BAD}_path": "x"})),
        ("run", "collector", f"x:{BAD}"),
        ("run", "env_backend", f"x:{BAD}"),
        ("run", "callbacks", [f"x:{BAD}"]),
        ("run", "name", BAD),
        ("run", "group", BAD),
        ("run", "preset", BAD),
        ("run", "device", BAD),
        ("run", "collector", BAD),
        ("run", "env_backend", BAD),
        ("run", BAD, 1),
        ("algo", BAD, 1),
        ("algo", "num_epochs", BAD),
        ("policy", "encoder", BAD),
    ],
    ids=lambda value: str(value)[:20].replace("\x1b", "ESC"),
)
def test_a_message_shows_no_escapes_of_a_file_and_ends(
    part: str | None, name: str, value: object, tmp_path: Path
) -> None:
    """Each quoted what a config.json says, as long as it is, to whoever calls Python."""
    run = Path(shutil.copytree(RUN, tmp_path / "run"))
    _config(run, part, name, value)
    given: dict[str, Any] = {"total_env_steps": 600, "quiet": True}  # 512 are done
    said = [_refusal(lambda: redline.train(resume=run, **given))]
    said += [
        _refusal(lambda: redline.train(config=run / "config.json", out=tmp_path / "a", **given))
    ]
    said += [_refusal(lambda: redline.load(run).inspect())]
    assert any(said) or name in ("name", "preset", "callbacks", "group")
    for message in said:
        assert "\x1b" not in message
        assert len(message) < 3000


def _refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except RedlineError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("first", [f"{BAD},1", "\x1b[2J," * 1000])
def test_a_table_is_quoted_likewise(first: str, tmp_path: Path) -> None:
    run = Path(shutil.copytree(RUN, tmp_path / "run"))
    lines = (run / "progress.csv").read_text().splitlines()
    for text in ([first, *lines[1:]], [lines[0], first]):
        (run / "progress.csv").write_text("\n".join(text) + "\n")
        with pytest.raises(RedlineError) as caught:
            load_progress(run)["nothing"]
        assert "\x1b" not in str(caught.value)
        assert len(str(caught.value)) < 2000


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

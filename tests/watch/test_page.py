"""The plain page, and what becomes of a stranger's words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from redline.cli import main
from redline.command_line.completion import completions
from redline.watch import page
from redline.watch.reading import RunReader
from tests.watch.runs import write_run

HEADER = ("env_steps", "wall_time_s", "sps", "return_mean", "eval_return_mean", "success_rate")
SHARES = ("time_share/learning", "time_share/simulation")
ROWS = [(100, 1.0, 100.0, 20.0, "", "", 0.5, 0.5), (300, 2.0, 200.0, "", 60.0, 0.5, 0.5, 0.5)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that failed, with everything there is to show."""
    end = {"state": "failed", "reason": "EnvError: it broke"}
    path = write_run(tmp_path / "runs" / "one", ROWS, header=(*HEADER, *SHARES), end=end)
    (path / "videos").mkdir()
    for step in (100, 300):
        for name in ("", "_worst", "_best"):
            video = path / "videos" / f"step_{step:012d}{name}.mp4"
            video.touch()
            os.utime(video, (step, step))
    return path


def test_once_prints_all_of_a_run(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["watch", str(run), "--once"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert lines[0] == "one  failed"
    assert "ppo on CartPole-v1, seed 7" in lines
    assert "EnvError: it broke" in lines
    assert any(each.endswith("30%  300 of 1,000 env_steps") for each in lines)
    # No episode ended in the last row: the return before it is the newest.
    assert "200 SPS   0:02 trained   return 20.0   return success 50%   evaluation 60.0" in lines
    assert f"learning     50%  {'█' * 20}" in lines
    videos = [each for each in lines if "videos/" in each]
    assert [each.replace(str(run), "") for each in videos] == [
        "best video   /videos/step_000000000300_best.mp4",
        "video        /videos/step_000000000300.mp4",
        "worst video  /videos/step_000000000300_worst.mp4",
    ]


def test_once_prints_a_folder_as_a_table(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run.parent), "--once"]) == 0
    title, row = capsys.readouterr().out.splitlines()
    assert title.split() == list(page.FOLDER_COLUMNS)
    assert row.split() == ["one", "failed", "300", "30%", "20.0", "200", "ppo", "CartPole-v1", "7"]


@pytest.mark.parametrize("width", [40, 60, 120])
def test_pages_fit_their_width(run: Path, width: int) -> None:
    view = RunReader(run).read()
    text = page.run_page(view, width)
    lines = [line for line in text.splitlines() if str(run) not in line]  # paths stay whole
    assert max(map(len, lines)) <= width


def test_a_run_before_its_first_row_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(write_run(tmp_path / "new")), "--once"]) == 0
    shown = capsys.readouterr().out
    for sentence in (page.NO_RETURNS, page.NO_EVALUATIONS, page.NO_SHARES, "0 of 1,000"):
        assert sentence in shown


def test_words_of_a_stranger_are_no_commands_for_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b]0;owned\x07"
    write_run(tmp_path / "run", ROWS, header=(*HEADER, f"time_share/{evil}", "x"), env=evil)
    for path in (tmp_path / "run", tmp_path):
        assert main(["watch", str(path), "--once"]) == 0
    assert main(["runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count("]0;owned") == 4  # the environment thrice, and an operation


SANE = (100, 1.0, 100.0, 20.0)


@pytest.mark.parametrize(
    ("header", "rows", "shown"),
    [
        (  # the sum of both is 4e-9, of which the first is 2.5e8 times as much
            ("time_share/a", "time_share/b"),
            [(*SANE, 1.0, -0.999999996)],
            f"a  100%  {'█' * 40}",
        ),
        (("time_share/a", "time_share/b"), [(*SANE, 1e308, 1e308)], page.NO_SHARES),
        ((), [(100, 1.0, 100.0, 1e308), (200, 2.0, 100.0, -1e308)], "1e+308 ┤"),
        ((), [SANE, (200, 2.0, 5e-324, 1.7e308)], "return 1.7e+308"),
        ((), [SANE, (1e308, 1e308, 1e308, 1.0)], "1e+308 SPS"),
        ((), [(5e-324, 1.0, 1.0, 1.0), (200, 2.0, 1.0, 2.0), (5e-324, 1.0, 1.0, 1.0)], "0 of"),
    ],
    ids=["shares", "whole-of-shares", "span-of-returns", "return", "env-steps", "no-env-steps"],
)
def test_odd_numbers_of_a_stranger_neither_break_nor_fill_the_page(
    header: tuple[str, ...],
    rows: list[tuple[float, ...]],
    shown: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A share of 250 million made a line of 10 GB; returns farther apart than floats go, nan."""
    monkeypatch.setenv("COLUMNS", "100")
    run = write_run(tmp_path / "run", rows, header=(*HEADER[:4], *header))
    assert main(["watch", str(run), "--once"]) == 0
    text = capsys.readouterr().out
    assert shown in text
    assert max(map(len, text.splitlines())) <= 100
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


def test_what_cannot_be_watched_is_refused_with_the_fix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["watch", str(tmp_path / "nowhere")]) == 2
    assert "is no folder" in capsys.readouterr().err
    path = write_run(tmp_path / "run")
    (path / "link").symlink_to("/etc")
    assert main(["watch", str(path), "--once"]) == 2
    assert "link is a symbolic link" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["watch", str(tmp_path)]) == 2
    assert "pip install 'redline[watch]'" in capsys.readouterr().err


def test_completion_knows_the_command() -> None:
    assert "watch" in completions(["wat"])
    assert completions(["watch", "--o"]) == ["--once"]

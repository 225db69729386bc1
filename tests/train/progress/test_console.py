"""What a run shows, on a terminal and elsewhere."""

import io
import re

import pytest

from redline.train.progress.console import Console, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")


ROW = {"env_steps": 2000, "sps": 100.0, "return_mean": 12.34}


def test_without_a_terminal_there_is_one_line_per_row() -> None:
    stream = io.StringIO()
    with Console(10_000, stream=stream) as console:
        assert not console.has_bar
        console.update(1000, sps=100.0, mean_return=3.0)
        console.row(ROW)
        console.row({"env_steps": 3000, "sps": None, "return_mean": None})
        console.message("saved [step] " + "x" * 300)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "2,000/10,000 env_steps  100 SPS  return 12.3  1:20 left"
    assert lines[1] == "3,000/10,000 env_steps"
    assert lines[2] == "saved [step] " + "x" * 300
    assert len(lines) == 3


def test_the_largest_shares_are_shown() -> None:
    shares = {"inference": 0.1, "simulation": 0.52, "learning": 0.25, "replay": 0.13}
    shown = "simulation 52%, learning 25%, replay 13%"
    stream = io.StringIO()
    with Console(10_000, stream=stream) as console:
        console.row(ROW, shares)
    assert stream.getvalue().rstrip().endswith(f"left  {shown}")
    terminal = Terminal()
    with Console(10_000, stream=terminal) as console:
        console.row(ROW, shares)
        console.row(ROW)  # leaves what is shown
    assert shown in terminal.getvalue()


def test_on_a_terminal_there_is_a_bar_and_messages_go_above_it() -> None:
    stream = Terminal()
    with Console(10_000, title="ppo CartPole-v1", stream=stream) as console:
        assert console.has_bar
        console.start()
        console.update(2000, sps=100.0, mean_return=12.34)
        console.row(ROW)
        console.message("checkpoint at 2000")
        console.warning("corrupt checkpoint")
        console.update(10_500, sps=100.0)
    console.close()
    shown = stream.getvalue()
    assert "ppo CartPole-v1" in shown
    assert "0/10,000 env_steps" in shown
    assert "100 SPS" in shown
    assert "return 12.3" in shown
    assert "10,000/10,000 env_steps" in shown
    assert "checkpoint at 2000\n" in shown
    assert "warning: corrupt checkpoint\n" in shown
    assert " left" not in shown, "no plain lines beside the bar"


def test_time_left_of_a_resumed_run_is_not_that_of_a_miracle() -> None:
    """A run resumed at 9,000 has not just done 9,000 env_steps: no speed is known yet."""
    stream = Terminal()
    with Console(10_000, stream=stream) as console:
        console.update(9000)
        console.close()
    assert "9,000/10,000 env_steps   -:--:--" in stream.getvalue().replace("\x1b[36m", "")


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet_shows_warnings_only(stream: io.StringIO) -> None:
    with Console(10_000, quiet=True, stream=stream) as console:
        console.update(100)
        console.row(ROW)
        console.message("hello")
        console.warning("broken")
    assert stream.getvalue() == "warning: broken\n"


def test_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert not Console(10, stream=Terminal()).has_bar


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (7.4, "0:07"), (80, "1:20"), (3723, "1:02:03"), (270_000, "3 d 3:00:00")],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("width", [30, 40, 48, 50, 60, 69, 80, 100])
def test_a_narrow_terminal_shows_less_and_cuts_nothing_off(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    stream = Terminal()
    with Console(1_000_000, title="ppo CartPole-v1", stream=stream) as console:
        console.update(0, sps=1.0, mean_return=0.0)
        console.update(500_000, sps=12345.0, mean_return=-1234.5)
    last = [line for line in plain(stream).splitlines() if line.strip()][-1]
    assert len(last) <= width
    assert "…" not in last
    assert "return -1,234.5" in last
    assert ("50%" in last) == (width < 80)
    assert ("12,345 SPS" in last) == (width >= 48)
    assert ("500,000/1,000,000 env_steps" in last) == (width >= 80)


def plain(stream: io.StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue()).replace("\r", "\n")

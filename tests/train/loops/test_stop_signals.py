"""Signals: a run saves on Ctrl-C, SIGTERM and SIGHUP; before that, a message says what was lost."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import redline
from redline import cli
from redline.train.callbacks import RunState
from redline.train.loops import stop_signal
from redline.train.loops.stop_signal import StopSignal
from redline.train.progress.console import Console
from redline.train.runs.history import RunHistory

_AT_A_TERMINAL = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


@pytest.fixture(autouse=True)
def _handlers_stay() -> Iterator[None]:
    """As at a terminal: under nohup or in the background, the suite itself ignores signals."""
    given = {number: signal.signal(number, usual) for number, usual in _AT_A_TERMINAL.items()}
    yield
    after = {number: signal.signal(number, before) for number, before in given.items()}
    assert after == _AT_A_TERMINAL


class HangsUp:
    """Closes the terminal in the second iteration."""

    def on_iteration(self, state: RunState) -> None:
        if state.iteration == 2:
            os.kill(os.getpid(), signal.SIGHUP)


def test_a_run_saves_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """Before, SIGHUP ended it at once, with everything since the last checkpoint."""
    small = {"num_envs": 1, "rollout_length": 8, "num_minibatches": 1, "hidden_sizes": (4,)}
    run = redline.train(
        "ppo", env="CartPole-v1", out=tmp_path / "run", callbacks=[HangsUp()], quiet=True,
        total_env_steps=800, tensorboard=False, preset="default", **small,
    )  # fmt: skip
    assert run.exit_code == 128 + signal.SIGHUP
    assert [each.name for each in (tmp_path / "run" / "checkpoints").iterdir()] == [
        "step_000000000016"
    ]


def test_a_second_signal_of_one_wish_does_not_end_what_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came when all was saved, and neither history nor terminal said that the run stopped."""
    ended = RunHistory.ended

    def late(history: RunHistory, *about: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        ended(history, *about, **more)

    monkeypatch.setattr(RunHistory, "ended", late)
    small = {"num_envs": 1, "rollout_length": 8, "num_minibatches": 1, "hidden_sizes": (4,)}
    run = redline.train(
        "ppo", env="CartPole-v1", out=tmp_path / "run", callbacks=[HangsUp()],
        total_env_steps=800, tensorboard=False, preset="default", **small,
    )  # fmt: skip
    assert run.exit_code == 128 + signal.SIGHUP
    assert run.history()[-1]["state"] == "interrupted"
    assert "stopped; go on with" in capsys.readouterr().err


def test_it_may_be_entered_within_itself() -> None:
    with StopSignal() as stop:
        with stop:
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.number == signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_is_noted_and_a_second_wish_stops(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(stop_signal, "time", SimpleNamespace(monotonic=lambda: now_s))
    with StopSignal() as stop:
        os.kill(os.getpid(), number)
        assert stop.number == number
        now_s += 1.1
        with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_system_sends_together_is_one_wish(first: signal.Signals) -> None:
    """systemd sends SIGTERM and then SIGHUP, a closed terminal SIGHUP twice: nothing was saved."""
    with StopSignal() as stop:
        for number in (first, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert stop.number == first


def test_a_second_hangup_is_never_a_second_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(stop_signal, "time", SimpleNamespace(monotonic=lambda: now_s))
    with StopSignal() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        now_s += 60.0
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.number == signal.SIGTERM


def test_nohup_stays_in_force() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.number is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]
)
def test_a_signal_before_the_handlers_stand_leaves_a_message(
    number: signal.Signals,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While torch is imported, say; before, SIGTERM ended the program without a word."""
    monkeypatch.setattr(cli, "_command", lambda _: lambda _: os.kill(os.getpid(), number))
    assert cli.main(["train"]) == status
    assert capsys.readouterr().err.startswith(f"stopped by {number.name}; what was not saved")


def test_a_terminal_that_is_gone_ends_no_run() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    console = Console(100, stream=Gone())
    console.message("one")
    console.message("two")

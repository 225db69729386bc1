"""The command line's forms, and that bad input is refused before any work."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from redline import cli
from redline.cli import main
from redline.command_line.train import parse_train_arguments


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("train", "eval", "inspect", "plot", "export"))


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "redline", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage: redline" in done.stdout


@pytest.mark.parametrize(
    "command",
    [["train", "ppo"], ["train", "a2c"], ["eval"], ["inspect"], ["plot"], ["export"], ["watch"]],
)
def test_help_of_every_command_imports_no_torch(command: list[str]) -> None:
    program = (
        "import sys\n"
        "from redline.cli import main\n"
        "try:\n"
        f"    main({[*command, '--help']!r})\n"
        "except SystemExit as exit:\n"
        "    assert exit.code == 0\n"
        f"heavy = ['torch'] + {['tyro'] if command[0] == 'train' else []!r}\n"
        "sys.exit(any(name in sys.modules for name in heavy))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage: redline" in done.stdout


def test_options_win_over_the_preset() -> None:
    config = parse_train_arguments(
        ["ppo", "--env", "CartPole-v1", "--gamma", "0.5", "--num-envs", "4", "--seed=9"]
    )
    assert config.run.preset == "cartpole"
    assert config.algo.gamma == 0.5
    assert config.algo.num_envs == 4
    assert config.run.seed == 9
    assert config.algo.gae_lambda == 0.8


def test_settings_left_open_are_flags_with_an_answer() -> None:
    """Yes, no, or as the protocol says; a value after the name works as before."""

    def asked(*options: str) -> tuple[bool | None, bool | None, bool | None]:
        config = parse_train_arguments(["dqn", "--env", "ALE/Pong-v5", *options])
        return config.run.clip_reward, config.run.episodic_life, config.policy.shared_encoder

    assert asked() == (None, None, None)
    assert asked("--clip-reward", "--no-episodic-life") == (True, False, None)
    assert asked("--no-clip_reward", "--episodic-life=True") == (False, True, None)
    assert asked("--shared-encoder", "False", "--clip-reward", "None") == (None, None, False)


def test_r2d1_sees_its_previous_action_unless_told_otherwise() -> None:
    """On Atari the score itself and whole games, too: rescaled values take clipping's place."""
    run = parse_train_arguments(["r2d1", "--env", "ALE/Pong-v5"]).run
    assert (run.observe_previous, run.clip_reward, run.episodic_life) == (True, False, False)
    assert run.preset == "atari"
    assert not parse_train_arguments(["r2d1", "--no-observe-previous"]).run.observe_previous
    assert not parse_train_arguments(["ppo", "--env", "CartPole-v1"]).run.observe_previous


def test_a_named_preset_is_taken_wherever_it_stands() -> None:
    config = parse_train_arguments(["ppo", "--preset", "mujoco", "--env", "My-v0"])
    assert config.run.preset == "mujoco"
    assert config.policy.normalize_obs
    assert config.run.env == "My-v0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian"], "no command 'trian'"),
        (["train", "ppoo", "--env", "CartPole-v1"], "Did you mean 'ppo' or 'appo'?"),
        (["train", "ppo", "--env", "CartPole-v1", "--preset", "nope"], "no preset 'nope'"),
        (["train", "ppo"], "env is missing"),
        (["inspect", "/nowhere/at/all"], "/nowhere/at/all does not exist"),
        (["eval", "run", "--greedy", "--stochastic"], "contradict each other"),
        (["eval", "run", "other", "run"], "run is given twice"),
        (["train", "--resume", "run", "--total-env-steps", "-5"], "total_env_steps=-5"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_values_out_of_range_end_the_program_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train", "ppo", "--env", "CartPole-v1", "--num-envs", "7", "--num-minibatches", "5"])
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert "does not divide" in " ".join((captured.out + captured.err).split())


def test_a_directory_that_holds_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "--resume", str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_help_of_eval_says_once_what_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    """It said that greedy is the default, and that its default is False."""
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    after = shown.partition("--greedy")[2].partition("--stochastic")
    assert "(the default)" in after[0]
    assert "False" not in after[0]
    assert "default" not in after[2].partition("--video")[0]


def test_a_name_too_long_for_the_disk_is_refused_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["compare", "[" * 4000]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ConfigError: '[[[[")
    assert said.endswith("is no path: File name too long. Give another one.\n")


def test_a_signal_after_the_end_prints_no_traceback() -> None:
    """Ctrl-C twice: the second came while torch tidied up, and its KeyboardInterrupt was shown."""
    text = (
        "import atexit, os, runpy, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may have it ignored
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "sys.argv = ['redline', '--version']\n"
        "runpy.run_module('redline', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


def test_a_mistake_with_an_escape_sequence_shows_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The parser's own message showed the value as it was."""
    with pytest.raises(SystemExit):
        main(["train", "ppo", "--env", "CartPole-v1", "--checkpoints", "\x1b[2J"])
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert "Invalid choice" in said


def test_a_stop_is_told_before_a_further_signal_can_end_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SIGHUP ended it without a word where SIGTERM came while its reason was being written."""
    handlers: list[Any] = []

    class Seen(io.StringIO):
        def write(self, text: str) -> int:
            handlers.append(signal.getsignal(signal.SIGTERM))
            return super().write(text)

    def stopped(_words: list[str]) -> int:
        raise KeyboardInterrupt("SIGHUP")

    said = Seen()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(cli, "_command", lambda _name: stopped)
    before = signal.getsignal(signal.SIGTERM)
    assert before is signal.SIG_DFL
    assert main(["train"]) == 128 + signal.SIGHUP
    assert said.getvalue().startswith("stopped by SIGHUP")
    assert signal.SIG_DFL not in handlers
    assert signal.getsignal(signal.SIGTERM) is before

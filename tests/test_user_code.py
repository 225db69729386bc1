"""`sys.exit` in code of the user's is an error with a place, and never ends a run as complete."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import redline
from redline import cli
from redline.errors import CallbackError, ConfigError, EnvExitError, RedlineError
from redline.user_code import may_not_exit

SMALL: dict[str, Any] = {
    "total_env_steps": 16, "num_envs": 1, "rollout_length": 8, "num_minibatches": 1,
    "hidden_sizes": (4,), "preset": "default", "quiet": True, "tensorboard": False,
}  # fmt: skip


class Leaves:
    """A callback that ends the program."""

    def on_iteration(self, state: Any) -> None:
        sys.exit(0)


class LeavesInClose(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that ends the program when it is closed."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))

    def close(self) -> None:
        sys.exit(0)


@pytest.mark.parametrize(
    "option", ["--env", "--callback", "--collector", "--env-backend", "algorithm"]
)
def test_modules_that_exit_are_named(
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"exits_{option.strip('-').replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["train", "ppo", "--env", "CartPole-v1", "--out", "run", "--quiet"]
    if option == "algorithm":
        words[1] = f"{name}:It"
    elif option == "--env":
        words[3] = f"{name}:It-v0"
    else:
        words += [option, f"{name}:It"]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert f"the module '{name}' of the" in said
    assert f"called sys.exit(0) at {tmp_path / name}.py:2" in said


def test_a_callback_that_exits_ends_the_run_as_failed(tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match="on_iteration raised SystemExit"):
        redline.train("ppo", env="CartPole-v1", out=tmp_path / "run", callbacks=[Leaves()], **SMALL)
    last = json.loads((tmp_path / "run" / "history.jsonl").read_text().splitlines()[-1])
    assert last["state"] == "failed"
    assert list((tmp_path / "run" / "checkpoints").iterdir())  # what was learned is saved


def test_a_network_that_exits_is_an_error(tmp_path: Path) -> None:
    small = {name: value for name, value in SMALL.items() if name != "hidden_sizes"}
    with pytest.raises(RedlineError, match=r"called sys.exit\(0\) at .*test_user_code.py"):
        redline.train(
            "ppo", env="CartPole-v1", out=tmp_path / "run", network=lambda _: sys.exit(0), **small
        )


@pytest.mark.parametrize("collector", ["serial", "central"])
def test_an_environment_that_exits_in_close_is_an_error(collector: str, tmp_path: Path) -> None:
    workers = {} if collector == "serial" else {"num_workers": 1}
    with pytest.raises(EnvExitError, match=r"close\(\) raised SystemExit\(0\)"):
        redline.train(
            "ppo", env=LeavesInClose, out=tmp_path / "run", collector=collector, **workers, **SMALL
        )


def test_the_command_line_turns_any_exit_into_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "_command", lambda _: lambda _: sys.exit(0))
    assert cli.main(["train"]) == 1
    assert "called sys.exit(0) at" in capsys.readouterr().err


def test_exits_of_redline_itself_stay() -> None:
    """Of a program that is recorded, say, after its last window."""
    place = {"__name__": "redline.profile.record.early_exit"}
    with pytest.raises(SystemExit), may_not_exit("it", ConfigError):
        exec("raise SystemExit(0)", place)

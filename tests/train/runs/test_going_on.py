"""Going on with a run: what is asked of the caller, and advice that works when it is followed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import redline
from redline.algos.ppo import PPO
from redline.cli import main
from redline.errors import ConfigError, RunDirectoryError
from redline.train.progress.curves import learning_curves
from redline.train.runs import start
from redline.train.runs.run import Run
from redline.train.runs.run_directory import read_config
from redline.train.runs.sealed_files import write_config

SMALL: dict[str, Any] = {
    "total_env_steps": 1024,
    "num_envs": 4,
    "rollout_length": 32,
    "hidden_sizes": (16,),
    "log_interval": 256,
    "checkpoint_interval": 256,
    "quiet": True,
    "tensorboard": False,
}


def small(out: Path, algorithm: Any = "ppo", env: Any = "CartPole-v1", **settings: Any) -> Run:
    return redline.train(algorithm, env=env, out=out, preset="default", **(SMALL | settings))


class Mine(PPO):
    """An algorithm of a module."""

    name = "mine"


def test_a_class_of_the_program_itself_may_be_named_by_its_module(tmp_path: Path) -> None:
    """A script's class is `__main__`'s while it trains, and its module's once it is imported."""

    class Local(PPO):
        name = "local"

    run = small(tmp_path / "run", algorithm=Local, total_env_steps=128)
    assert run.config.algorithm.startswith("python:")
    assert redline.load(run.out, algorithm=f"{__name__}:Mine").evaluate(1).episodes == 1


def test_one_length_is_given(tmp_path: Path) -> None:
    run = small(tmp_path / "run", total_env_steps=128)
    with pytest.raises(ConfigError, match="contradict each other"):
        redline.train(resume=run.out, total_env_steps=256, set={"total_env_steps": 512})
    again = redline.train(
        resume=run.out, total_env_steps=256, set={"total_env_steps": 256}, quiet=True
    )
    assert again.inspect()["env_steps"] == 256


def test_a_run_that_reached_its_return_goes_on_as_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(tmp_path / "run", stop_at_return=1.0)
    reached = run.inspect()["env_steps"]
    assert reached < 1024
    assert main(["train", "--resume", str(run.out)]) == 0
    advice = capsys.readouterr().err.split("give ")[1].split(".\n")[0]
    assert advice == "--total-env-steps 1024 --set stop_at_return=None"
    assert main(["train", "--resume", str(run.out), "--quiet", *advice.split()]) == 0
    assert Run(run.out, run.config).inspect()["env_steps"] == 1024


def test_a_run_is_held_before_its_checkpoint_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who trained it might write one more in between: that one was removed, as of a later time."""
    run = small(tmp_path / "run")
    inner: list[BaseException] = []
    written = start._why_it_ended

    def meanwhile(*args: Any, **more: Any) -> Any:
        monkeypatch.setattr(start, "_why_it_ended", written)
        with pytest.raises(RunDirectoryError, match="in use by another process") as caught:
            redline.train(resume=run.out, total_env_steps=2048, quiet=True)
        inner.append(caught.value)
        return written(*args, **more)

    monkeypatch.setattr(start, "_why_it_ended", meanwhile)
    again = redline.train(resume=run.out, total_env_steps=1280, quiet=True)
    assert inner
    assert again.inspect()["env_steps"] == 1280


class FailsOnce(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises in one step, while a file is there to take."""

    def __init__(self, at: int, file: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self.at, self.file, self.count = at, file, 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == self.at and self.file.exists():
            self.file.unlink()
            raise RuntimeError("once")
        return self.env.step(action)


@pytest.mark.parametrize(("at", "is_saved"), [(40, False), (100, True)])
def test_a_run_that_failed_before_its_first_checkpoint_begins_again(
    at: int, is_saved: bool, tmp_path: Path
) -> None:
    """It was refused for ever, so that no further attempt of a sweep could mend it."""
    file, out = tmp_path / "file", tmp_path / "run"
    file.touch()

    def make() -> gymnasium.Env[Any, Any]:
        return FailsOnce(at, file)

    with pytest.raises(RuntimeError, match="once"):  # in the env_step 4 * at
        small(out, env=make)
    assert (out / "checkpoints").exists() is is_saved
    if is_saved:
        shutil.rmtree(out / "checkpoints")
        with pytest.raises(RunDirectoryError, match="tells of one at 256 env_steps"):
            redline.train(resume=out, env=make, quiet=True)
    else:
        assert redline.train(resume=out, env=make, quiet=True).inspect()["env_steps"] == 1024


def test_a_run_that_was_killed_after_a_checkpoint_does_not_begin_again(tmp_path: Path) -> None:
    """A kill leaves no line of the session's end. The curve was cut to its header."""
    run = small(tmp_path / "run", total_env_steps=512)
    history = run.out / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    assert [json.loads(line)["event"] for line in lines] == ["started", "saved", "ended"]
    history.write_text("".join(lines[:2]))
    shutil.rmtree(run.out / "checkpoints")
    curve = (run.out / "progress.csv").read_text()
    with pytest.raises(RunDirectoryError, match="tells of one at 256 env_steps"):
        redline.train(resume=run.out, quiet=True)
    assert (run.out / "progress.csv").read_text() == curve


@pytest.mark.parametrize("how", [{"total_env_steps": 512}, {"set": {"total_env_steps": 512}}])
def test_a_run_that_was_made_longer_is_of_its_setting(how: dict[str, Any], tmp_path: Path) -> None:
    """Three seeds of one setting, one of them longer, gave two lines."""
    runs = [small(tmp_path / f"seed{n}", total_env_steps=256, seed=n).out for n in (1, 2, 3)]
    redline.train(resume=runs[0], quiet=True, **how)
    (curve,) = learning_curves(runs)
    assert curve.num_runs == 3


def test_a_progress_file_that_lost_rows_is_told_from_one_that_was_changed(tmp_path: Path) -> None:
    """The option that takes a changed file cannot bring rows back, so it is not advised."""
    run = small(tmp_path / "run", total_env_steps=512)
    path = run.out / "progress.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunDirectoryError, match="bytes are missing") as caught:
        redline.train(resume=run.out, total_env_steps=1024, quiet=True)
    assert "accept" not in str(caught.value)


def test_wandb_can_be_switched_off(tmp_path: Path) -> None:
    """Both asked to confirm what they were to leave out."""
    run = small(tmp_path / "run", total_env_steps=128)
    write_config(run.out, run.config.replace(wandb=True))
    words = ["--config", str(run.out / "config.json"), "--no-wandb", "--out", str(tmp_path / "b")]
    assert main(["train", *words, "--quiet"]) == 0
    assert read_config(tmp_path / "b").run.wandb is False
    words = ["--resume", str(run.out), "--accept-changed-config", "--total-env-steps", "256"]
    assert main(["train", *words, "--quiet"]) == 2  # a directory alone still does not decide it
    assert main(["train", *words, "--quiet", "--set", "wandb=false"]) == 0
    assert read_config(run.out).run.wandb is False


@pytest.mark.parametrize(("said", "expected"), [("true", True), ("false", False)])
def test_a_run_goes_on_as_quietly_as_is_set(
    said: str, expected: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was announced, and the run went on with its messages."""
    run = small(tmp_path / "run", total_env_steps=128, quiet=not expected)
    capsys.readouterr()
    words = ["--resume", str(run.out), "--total-env-steps", "256", "--set", f"quiet={said}"]
    assert main(["train", *words]) == 0
    assert read_config(run.out).run.quiet is expected
    assert ("256 env_steps" in capsys.readouterr().err) is not expected


@pytest.mark.parametrize(("before", "after"), [(1.0, 0.0), (0.0, 1.0)])
def test_native_games_go_on_with_noise_of_another_color(
    before: float, after: float, tmp_path: Path
) -> None:
    """White noise counted a block of colored noise as a state that was altered."""
    run = redline.train(
        "sac", env="redline/Pendulum-v1", out=tmp_path / "run", preset="default", quiet=True,
        tensorboard=False, total_env_steps=160, num_envs=4, hidden_sizes=(8,), learning_starts=64,
        replay_size=512, replay_ratio=8.0, batch_size=16, noise_color=before,
    )  # fmt: skip
    again = redline.train(
        resume=run.out, total_env_steps=320, set={"noise_color": after}, quiet=True
    )
    assert again.inspect()["env_steps"] == 320


@pytest.mark.parametrize(
    ("algorithm", "before", "after", "said"),
    [
        ("ppo", {"num_epochs": 1}, "scale_reward=True", "statistics that scale rewards begin anew"),
        ("a2c", {"optimizer": "adam"}, "optimizer=rmsprop", "which adam did not keep"),
        ("a2c", {"optimizer": "rmsprop"}, "optimizer=adam", "which rmsprop did not keep"),
        ("a2c", {"scale_reward": True}, "scale_reward=False", "scale_reward: True -> False"),
    ],
)
def test_what_the_checkpoint_lacks_begins_anew(
    algorithm: str,
    before: dict[str, Any],
    after: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each ended in a TypeError or KeyError that sent the user for another config.json."""
    run = small(tmp_path / "run", algorithm=algorithm, total_env_steps=256, **before)
    longer = ["--total-env-steps", "512", "--quiet"]
    assert main(["train", "--resume", str(run.out), "--set", after, *longer]) == 0
    assert said in " ".join(capsys.readouterr().err.split())
    again = redline.train(resume=run.out, total_env_steps=768, quiet=True)
    assert again.inspect()["env_steps"] == 768

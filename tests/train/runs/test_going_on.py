"""Going on with a run: what is asked of the caller, and advice that works when it is followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import redline
from redline.algos.ppo import PPO
from redline.cli import main
from redline.errors import ConfigError, RunDirectoryError
from redline.train.runs.run import Run

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


def test_a_progress_file_that_lost_rows_is_told_from_one_that_was_changed(tmp_path: Path) -> None:
    """The option that takes a changed file cannot bring rows back, so it is not advised."""
    run = small(tmp_path / "run", total_env_steps=512)
    path = run.out / "progress.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(RunDirectoryError, match="bytes are missing") as caught:
        redline.train(resume=run.out, total_env_steps=1024, quiet=True)
    assert "accept" not in str(caught.value)

"""Whole runs, small, on native games and with observations delivered to a device."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.warm_workers import WarmSubprocess

import redline
from redline.errors import ConfigError, DeviceError, IncompatibleCheckpointError
from redline.train.presets import family, preset_config
from redline.train.progress.progress import TIME_COLUMNS
from redline.train.runs.given import Given, env_settings
from redline.train.runs.run import Run
from redline.train.runs.video import EpisodeFrames

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SMALL: dict[str, Any] = {
    "total_env_steps": 1024,
    "num_envs": 4,
    "hidden_sizes": (16,),
    "log_interval": 256,
    "checkpoint_interval": 256,
    "num_threads": 1,
    "quiet": True,
    "tensorboard": False,
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ppo": {"rollout_length": 32},
    "a2c": {"rollout_length": 16, "core": "lstm", "core_size": 8, "observe_previous": True},
    "reinforce": {"rollout_length": 64},
    "dqn": {
        "rollout_length": 4, "learning_starts": 64, "batch_size": 16, "replay_size": 600,
        "epsilon_schedule": "ape-x", "target_update_interval": 10,
    },
}  # fmt: skip


def small(out: Path, algorithm: str, env: Any = "redline/CartPole-v1", **settings: Any) -> Run:
    return redline.train(
        algorithm, env=env, out=out, preset="default",
        **(SMALL | ALGORITHMS.get(algorithm, {}) | settings),
    )  # fmt: skip


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open() as file:
        return [
            {k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_in_two_halves_equals_a_whole_one(algorithm: str, tmp_path: Path) -> None:
    whole = small(tmp_path / "whole", algorithm)
    half = small(tmp_path / "half", algorithm, total_env_steps=512)
    resumed = redline.train(resume=half.out, total_env_steps=1024, quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    assert resumed.inspect()["env_steps"] == whole.inspect()["env_steps"] >= 1024


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_killed_run_ends_like_one_never_stopped(
    algorithm: str, tmp_path: Path, warm_subprocess: WarmSubprocess
) -> None:
    """SIGKILL once, after the second checkpoint."""
    settings = SMALL | ALGORITHMS[algorithm] | {"total_env_steps": 2048, "log_interval": 700}
    whole = small(tmp_path / "whole", algorithm, **settings)
    killed = tmp_path / "killed"
    command = [sys.executable, "-m", "redline.cli", "train"]
    options = [algorithm, "--env", "redline/CartPole-v1", "--preset", "default", "--no-tensorboard"]
    for name, value in settings.items():
        if name == "hidden_sizes":
            options += ["--hidden-sizes", *map(str, value)]
        elif not isinstance(value, bool):
            options += [f"--{name.replace('_', '-')}", str(value)]
    process = warm_subprocess.Popen([*command, *options, "--quiet", "--out", str(killed)])
    try:
        while process.poll() is None and len(list((killed / "checkpoints").glob("step_*"))) < 2:
            time.sleep(0.002)
    finally:
        process.kill()
        process.wait()
    warm_subprocess.run([*command, "--resume", str(killed), "--quiet"], check=True)
    assert Run.load(killed).inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    assert rows(killed) == rows(whole.out)


def test_actions_in_a_box_and_scaled_rewards(tmp_path: Path) -> None:
    run = small(tmp_path / "run", "ppo", "redline/Pendulum-v1", scale_reward=True,
                normalize_obs=True, rollout_length=64)  # fmt: skip
    assert run.evaluate(episodes=2).length_mean == 200


def test_any_environment_behind_a_device_learns_what_it_learns_without_one(tmp_path: Path) -> None:
    """Placing it on the CPU changes nothing but where the action noise comes from."""
    run = small(tmp_path / "run", "ppo", "CartPole-v1", env_device="cpu", eval_interval=512,
                eval_episodes=2)  # fmt: skip
    assert run.inspect()["env_steps"] == 1024
    resumed = redline.train(resume=run.out, total_env_steps=1280, quiet=True)
    assert resumed.inspect()["env_steps"] == 1280
    workers = small(tmp_path / "workers", "ppo", collector="workers", num_workers=2)
    assert workers.inspect()["env_steps"] == 1024


def test_an_episode_of_a_native_game_is_drawn_by_its_original(tmp_path: Path) -> None:
    run = small(
        tmp_path / "run", "ppo", "redline/Breakout-v1", total_env_steps=128, hidden_sizes=(64, 64)
    )
    frames = EpisodeFrames(env_settings(run.config, Given()), run.policy(), seed=0)
    assert next(iter(frames)).shape == (160, 160, 3)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"env_device": "cpu", "collector": "workers"}, ConfigError,
         "env_device='cpu' is for collector='serial'"),
        ({"env_backend": "processes"}, ConfigError, "give 'CartPole-v1'"),
        ({"env_kwargs": '{"length": 2}'}, ConfigError, r"\['length'\] are unknown"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_is_written(
    settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        small(tmp_path / "run", "ppo", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("name", ["device", "policy_device", "env_device", "eval_device"])
def test_a_missing_device_is_named_with_its_setting(name: str, tmp_path: Path) -> None:
    option = f"--{name.replace('_', '-')} cpu"
    with pytest.raises(DeviceError, match=f"{name}='cuda' was asked for.*Use {option}"):
        small(tmp_path / "run", "ppo", **{name: "cuda"})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_of_a_missing_device_says_how_it_goes_on(
    has_checkpoint: bool, tmp_path: Path
) -> None:
    run = small(tmp_path / "run", "ppo", total_env_steps=128)
    settings = json.loads((run.out / "config.json").read_text())
    settings["run"]["device"] = "cuda"
    (run.out / "config.json").write_text(json.dumps(settings))
    if not has_checkpoint:
        shutil.rmtree(run.out / "checkpoints")
        (run.out / "history.jsonl").unlink()  # as if it had not begun to train
    resumed: dict[str, Any] = {"resume": run.out, "total_env_steps": 256, "quiet": True}
    resumed["accept_changed_config"] = True
    with pytest.raises(DeviceError, match="Use --set device=cpu"):
        redline.train(**resumed)
    with pytest.raises(DeviceError, match="Use --set device=cpu"):
        redline.train(**resumed, set={"device": "cuda:1"})
    assert redline.train(**resumed, set={"device": "cpu"}).inspect()["env_steps"] == 256


def test_the_original_is_another_environment(tmp_path: Path) -> None:
    run = small(tmp_path / "run", "ppo", total_env_steps=128)
    with pytest.raises(IncompatibleCheckpointError, match="was trained on the environment redline"):
        redline.train(resume=run.out, env="CartPole-v1", quiet=True)


def test_native_games_start_from_their_originals_hyperparameters() -> None:
    assert family("redline/CartPole-v1") == "cartpole"
    assert family("redline/CartPoleHiddenVelocity-v1") == "recurrent"
    assert family("redline/SpaceInvaders-v1") == "minatar"
    assert family("redline/Pendulum-v1") == "pendulum"
    ours = preset_config("ppo", "redline/Breakout-v1", "auto")
    assert ours.algo == preset_config("ppo", "MinAtar/Breakout-v1", "auto").algo


@CUDA
@pytest.mark.parametrize(
    "places",
    [
        {"device": "cuda"},
        {"device": "cuda", "policy_device": "cpu"},
        {"device": "cuda", "env_device": "cpu"},
        {"policy_device": "cuda"},
    ],
)
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
@pytest.mark.parametrize("env", ["redline/CartPole-v1", "CartPole-v1"])
def test_runs_with_the_three_devices_apart(
    algorithm: str, env: str, places: dict[str, str], tmp_path: Path
) -> None:
    run = small(tmp_path / "run", algorithm, env, **places)
    assert run.inspect()["env_steps"] >= 1024

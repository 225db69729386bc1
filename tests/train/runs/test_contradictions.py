"""Settings that are right one by one and contradict each other are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.errors import ConfigError
from redline.launch.tune_file import plan_from
from redline.train.checkpoint.store import CheckpointStore
from redline.train.presets import preset_config
from redline.train.runs.run import Run
from redline.train.runs.start import start_run

SMALL: dict[str, Any] = {"total_env_steps": 64, "quiet": True, "tensorboard": False}


@pytest.mark.parametrize(
    ("algorithm", "env", "settings", "said"),
    [
        ("dqn", "CartPole-v1", {"replay_size": 16, "batch_size": 64, "preset": "default"},
         "replay_size=16 is smaller than batch_size=64"),
        ("sac", "Pendulum-v1", {"replay_size": 16, "batch_size": 17, "preset": "default"},
         "replay_size of at least 17"),
        ("sac", "Pendulum-v1", {"alpha": 0.0, "initial_alpha": 5.0, "learning_starts": 8},
         "initial_alpha=5.0 has no effect"),
        ("ppo", "CartPole-v1", {"checkpoints": "none", "checkpoint_interval": 5},
         "checkpoint_interval=5 has no effect"),
        ("ppo", "CartPole-v1", {"eval_interval": 65},
         "eval_interval=65 is longer than the run, total_env_steps=64"),
        ("ppo", "CartPole-v1",
         {"checkpoints": "gap", "checkpoint_gap": 8, "checkpoint_interval": 9},
         "checkpoint_interval=9 is longer than checkpoint_gap=8"),
        ("ppo", "CartPole-v1",
         {"checkpoints": "last+gap", "checkpoint_gap": 8, "checkpoint_interval": 9},
         "checkpoint_interval=9 is longer than checkpoint_gap=8"),
        ("r2d1", "redline/TMaze-v1", {"burn_in": 100, "sequence_length": 10},
         "burn_in=100 is longer than sequence_length=10"),
        ("ppo", "CartPole-v1", {"num_envs": 2, "rollout_length": 8, "num_minibatches": 16},
         "num_envs=2 \\* rollout_length=8 in num_minibatches=16 leaves one row to each"),
        ("appo", "LunarLander-v3", {"num_envs": 4, "rollout_length": 1, "core": "lstm"},
         "num_minibatches=4 leaves one row"),
        ("ppo", "CartPole-v1", {"preset": "atari"}, "preset='atari' is for environments with im"),
        ("dqn", "CartPole-v1", {"preset": "minatar", "learning_starts": 8, "replay_size": 1000,
         "target_update_interval": 1}, "preset='minatar' is for environments with images"),
        ("ppo", "ale_py:PongNoFrameskip-v4", {}, "old id of ALE/Pong-v5.*Use ALE/Pong-v5"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_before_work(
    algorithm: str, env: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        redline.train(algorithm, env=env, out=tmp_path / "run", **SMALL | settings)
    assert not (tmp_path / "run" / "config.json").exists()


def test_single_rows_are_learned_from_where_advantages_are_not_normalized(tmp_path: Path) -> None:
    one: dict[str, Any] = {"num_envs": 1, "rollout_length": 4, "num_minibatches": 4}
    settings: dict[str, Any] = (
        SMALL | one | {"normalize_advantage": False, "total_env_steps": 8, "num_epochs": 1}
    )
    run = redline.train("ppo", env="CartPole-v1", out=tmp_path / "run", **settings)
    assert run.inspect()["optimizer_steps"] == 8


def test_what_was_begun_with_single_rows_goes_on(tmp_path: Path) -> None:
    """Sweeps begin their later runs, and searches are read, by the rules of their time."""
    one: dict[str, Any] = {"num_envs": 1, "rollout_length": 4, "num_minibatches": 4}
    plain = preset_config("ppo", "CartPole-v1", "default")
    config = plain.replace(**SMALL | one, out=str(tmp_path / "run"))
    assert start_run(config, are_new=False).inspect()["env_steps"] == 64
    search = {"algorithm": "ppo", "base": {"env": "CartPole-v1", **one}, "trials": 1}
    search["search"] = {"learning_rate": {"low": 1e-4, "high": 1e-3}}
    assert plan_from(search, "search.yaml", is_new=False).base["num_minibatches"] == 4
    with pytest.raises(ConfigError, match="leaves one row to each"):
        plan_from(search, "search.yaml")


def test_a_resumed_run_is_not_asked_for_what_it_cannot_reach(tmp_path: Path) -> None:
    settings = SMALL | {"num_envs": 2, "rollout_length": 16, "num_minibatches": 2}
    run = redline.train("ppo", env="CartPole-v1", out=tmp_path / "run", **settings)
    with pytest.raises(
        ConfigError, match="eval_interval=97 is longer than the run, total_env_steps=96"
    ):
        redline.train(resume=run.out, total_env_steps=96, set={"eval_interval": 97}, quiet=True)


def _gap_run(out: Path, **settings: Any) -> Run:
    small = {"num_envs": 2, "rollout_length": 2, "num_minibatches": 1, "hidden_sizes": (4,)}
    return redline.train("ppo", env="CartPole-v1", out=out, **SMALL | small | settings)


def _chosen(run: Run) -> Any:
    return json.loads((run.out / "config.json").read_text())["run"]["checkpoint_interval"]


def test_a_resumed_run_keeps_its_gap(tmp_path: Path) -> None:
    """Of 400 env_steps, 5% are 20; a gap of 8 goes by 8. What is said by name must go with it."""
    run = _gap_run(tmp_path / "run", total_env_steps=400)
    assert _chosen(run) == 20
    changes: dict[str, Any] = {"checkpoints": "gap", "checkpoint_gap": 8}
    with pytest.raises(ConfigError, match="checkpoint_interval=20 is longer than checkpoint_gap=8"):
        redline.train(
            resume=run.out, total_env_steps=440, set=changes | {"checkpoint_interval": 20},
            quiet=True,
        )  # fmt: skip
    again = redline.train(resume=run.out, total_env_steps=440, set=changes, quiet=True)
    assert _chosen(again) == 8
    kept = [int(path.name[5:]) for path in CheckpointStore(run.out / "checkpoints").list()]
    assert [step for step in sorted(kept) if step > 400] == [408, 416, 424, 432, 440]


def test_a_repeated_run_with_a_gap_chooses_its_interval_anew(tmp_path: Path) -> None:
    run = _gap_run(tmp_path / "run", total_env_steps=400)
    settings: dict[str, Any] = {
        "checkpoints": "gap", "checkpoint_gap": 8, "quiet": True, "total_env_steps": 400,
    }  # fmt: skip
    config = run.out / "config.json"
    again = redline.train(config=config, out=tmp_path / "again", **settings)
    assert _chosen(again) == 8
    with pytest.raises(ConfigError, match="checkpoint_interval=19 is longer than checkpoint_gap=8"):
        redline.train(config=config, out=tmp_path / "b", checkpoint_interval=19, **settings)


def test_a_run_that_was_begun_so_goes_on(tmp_path: Path) -> None:
    """Version 0.1 trained with more samples per batch than replay held; its runs still resume."""
    from redline.train.config_files import GivenSettings, config_of
    from redline.train.runs.given import Given
    from redline.train.runs.start import resume_run, start_run

    settings = {
        "env": "CartPole-v1", "preset": "default", "num_envs": 1, "rollout_length": 1,
        "learning_starts": 8, "replay_ratio": 8.0, "target_update_interval": 1, "batch_size": 8,
        "replay_size": 8, "hidden_sizes": (4,), "out": str(tmp_path / "run"), **SMALL,
    }  # fmt: skip
    start_run(config_of(GivenSettings(), algorithm="dqn", **settings), Given())
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"batch_size": 8', '"batch_size": 16'))
    run = resume_run(tmp_path / "run", total_env_steps=80, quiet=True, accept_changed_config=True)
    assert run.exit_code == 0

"""Plain mistakes get a sentence of Redline's, and never a traceback of what they broke."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import redline
from redline import cli
from redline.envs import make_vec
from redline.errors import ConfigError, RedlineError, SweepStateError, UnknownNameError
from redline.launch.state import DATABASE, NewRun, Outcome, SweepState
from redline.launch.status import status_of, table
from redline.launch.sweep import launch_options
from redline.launch.sweep_file import plan_from
from redline.registry import import_place
from redline.train.config_files import value_of
from redline.train.loops.evaluate import Limits, evaluate
from redline.train.progress.curves import load_progress
from redline.train.runs.sealed_files import require_own_hash

SMALL: dict[str, Any] = {
    "total_env_steps": 16, "num_envs": 1, "rollout_length": 8, "num_minibatches": 1,
    "preset": "default", "quiet": True, "tensorboard": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "env_kwargs",
    [
        {"max_episode_steps": 0},
        {"max_episode_steps": -3},
        {"max_episode_steps": "x"},
        {"max_episode_steps": float("nan")},
        {"render_mode": 5},
    ],
)
def test_env_kwargs_that_do_not_fit_are_named(env_kwargs: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"env_kwargs .* do not fit CartPole-v1"):
        make_vec("CartPole-v1", 1, env_kwargs=env_kwargs)


@pytest.mark.parametrize("place", [":X", ".:X", "a..b:X", "json:"])
@pytest.mark.parametrize("option", ["--env", "--callback", "--collector", "--env-backend", ""])
def test_half_a_place_in_code_is_refused(
    option: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "ppo", "--env", "CartPole-v1", "--out", str(tmp_path / "run"), "--quiet"]
    if option == "--env":
        words[3] = place
    elif option:
        words += [option, place]
    else:
        words[1] = place
    assert cli.main(words) == 2
    assert "Give module:Name" in capsys.readouterr().err


def test_half_a_place_is_no_place_for_python_either() -> None:
    with pytest.raises(UnknownNameError, match="is no place in Python code"):
        import_place(":X", "callback")


def test_values_of_any_depth_are_words() -> None:
    """`--set tags=[[[[...` ended in a RecursionError."""
    assert value_of("[" * 100_000) == "[" * 100_000


@pytest.mark.parametrize(
    "options",
    [
        {"slots": "x"},
        {"slots": 1.5},
        {"gpus": "x"},
        {"gpus": 3},
        {"gpus": [0.5]},
        {"memory_gb": float("nan")},
        {"memory_gb": "x"},
        {"retries": "x"},
        {"cores_per_run": None},
    ],
)
def test_options_of_the_launcher_are_of_their_kinds(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(options))}|not iterable"):
        launch_options(options)


def test_the_options_of_a_sweep_are_a_mapping() -> None:
    with pytest.raises(ConfigError, match="launch=5 must be a mapping"):
        plan_from({"algorithm": "ppo", "base": {"env": "CartPole-v1"}, "launch": 5})


def test_a_config_that_is_too_deep_to_hash_is_refused(tmp_path: Path) -> None:
    deep: Any = 0
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConfigError, match="nested too deep"):
        require_own_hash(tmp_path, {"x": deep, "sha256": "0" * 64})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"config": 3}, "config=3 is of type int"),
        ({"collector": 3}, "collector 3 is not a class"),
        ({"env_backend": 3}, "3 is no environment back end"),
        ({"resume": 3}, "resume=3 is no run directory"),
        ({"network": nn.Linear(4, 4)}, "network=Linear.* is of type Linear. Give a function"),
        ({"network": lambda _: Whole()}, "features of torch.int64"),
    ],
)
def test_arguments_of_train_are_of_their_kinds(
    settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        redline.train("ppo", env="CartPole-v1", out=tmp_path / "run", **SMALL, **settings)


class Whole(nn.Module):
    """Gives whole numbers."""

    def forward(self, obs: Any) -> torch.Tensor:
        return obs.to(torch.int64)


@pytest.mark.parametrize("episodes", ["x", 1.5, True, None])
def test_episodes_are_a_whole_number(episodes: Any) -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"episodes=.* must be a whole number"):
        evaluate(nothing, nothing, episodes=episodes, seed=1)
    with pytest.raises(ConfigError, match="max_env_steps='x' must be a whole number"):
        Limits(max_env_steps="x")  # type: ignore[arg-type]


def _sweep(folder: Path) -> None:
    new = NewRun(name="a", key="k", algorithm="ppo", settings={"total_env_steps": 9}, varies={})
    with SweepState(folder, create=True) as state:
        state.add([new])
        state.set_meta(launch={"slots": 1})
        run = state.next_queued()
        assert run is not None
        state.started(run, "0")
        state.ended(run.id, Outcome(result={"env_steps": 9, "sps": 1.0}, exit_code=0), retries=0)


def _put(folder: Path, column: str, value: Any) -> None:
    with sqlite3.connect(folder / DATABASE) as database:
        database.execute(f"UPDATE runs SET {column} = ?", (value,))
    database.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("settings", "{"),
        ("settings", "[" * 100_000),
        ("settings", "[1]"),
        ("result", "5"),
        ("varies", b"\xff"),
        ("state", "odd"),
        ("attempts", "x"),
        ("ended_s", "x"),
        ("name", b"x"),
    ],
)
def test_odd_values_in_the_database_of_a_sweep_are_named(
    column: str, value: Any, tmp_path: Path
) -> None:
    _sweep(tmp_path)
    _put(tmp_path, column, value)
    with pytest.raises(SweepStateError, match=f"{DATABASE} holds {column}="):
        status_of(tmp_path)


@pytest.mark.parametrize("number", ['"x"', "1e999", "NaN", "[]", "-5", "1" * 400])
@pytest.mark.parametrize("name", ["env_steps", "sps", "return_mean", "total_env_steps"])
def test_numbers_that_are_none_are_left_out_of_a_status(
    name: str, number: str, tmp_path: Path
) -> None:
    _sweep(tmp_path)
    column = "settings" if name == "total_env_steps" else "result"
    _put(tmp_path, column, f'{{"{name}": {number}}}')
    table(status_of(tmp_path))


@pytest.mark.parametrize("env_steps", ["inf", "nan", "1e300", "-1"])
def test_env_steps_beyond_all_bounds_are_damage(env_steps: str, tmp_path: Path) -> None:
    """`compare` ended in an OverflowError."""
    (tmp_path / "progress.csv").write_text(f"env_steps,return_mean\n8,1\n{env_steps},2\n")
    with pytest.raises(RedlineError, match="is damaged: env_steps"):
        load_progress(tmp_path)

"""What a run leaves of the program around it, and what it takes from that."""

from __future__ import annotations

import copy
import functools
import json
import os
import pickle
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import redline
from redline.algos.ppo import PPO
from redline.envs.atari import is_atari
from redline.errors import CallbackError, ConfigError, IncompatibleCheckpointError
from redline.registry import may_be_same
from redline.train.presets import family
from redline.train.runs.given import describe_env, is_same_env
from redline.train.runs.run import Run

SMALL = {"total_env_steps": 128, "num_envs": 2, "rollout_length": 16, "num_minibatches": 1,
         "quiet": True, "tensorboard": False, "preset": "default"}  # fmt: skip


def small(out: Path, env: Any = "CartPole-v1", algorithm: Any = "ppo", **settings: Any) -> Run:
    return redline.train(algorithm, env=env, out=out, **(SMALL | settings))


class Hill(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole at a level."""

    def __init__(self, level: float = 1.0) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.level = level


def test_generators_and_threads_are_the_programs_again(tmp_path: Path) -> None:
    """Else each trial of a random search after the first draws the same."""
    drawn: list[Any] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for seed in (1, 1, 1):
            drawn.append((random.random(), np.random.uniform(), float(torch.rand(()))))
            small(tmp_path / str(len(drawn)), seed=seed, num_threads=1)
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert all(len({each[kind] for each in drawn}) == 3 for kind in range(3))


def test_a_failed_run_leaves_them_as_well(tmp_path: Path) -> None:
    class Breaks:
        def on_iteration(self, state: Any) -> None:
            raise ValueError("broken")

    np.random.seed(5)
    expected = np.random.uniform()
    np.random.seed(5)
    with pytest.raises(CallbackError, match="broken"):
        small(tmp_path / "run", callbacks=[Breaks()])
    assert np.random.uniform() == expected


def test_the_function_can_be_sent_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(redline.train)) is redline.train
    assert copy.deepcopy(functools.partial(redline.train, "ppo")).func is redline.train


class Wanders(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A simulator that goes to a working directory of its own."""

    def __init__(self, place: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.place = place

    def step(self, action: Any) -> Any:
        os.chdir(self.place)
        return self.env.step(action)


def test_an_environment_may_change_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    run = small(Path("runs/mine"), env=functools.partial(Wanders, other))
    assert Path.cwd() == other
    assert list(other.iterdir()) == []
    assert {each.name for each in (tmp_path / "runs/mine").iterdir()} >= {
        "checkpoints", "config.json", "history.jsonl", "progress.csv",
    }  # fmt: skip
    assert run.out == Path("runs/mine")
    assert run.inspect()["env_steps"] == 128
    assert "complete" in repr(run)
    assert run.evaluate(episodes=1).episodes == 1


def test_a_callback_knows_the_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Writes:
        def on_end(self, state: Any) -> None:
            (state.out / "mine.txt").write_text("here")

    monkeypatch.chdir(tmp_path)
    run = small(Path("run"), callbacks=[Writes()])
    assert (run.out / "mine.txt").read_text() == "here"


def test_another_default_dtype_is_refused_by_its_name(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match="default dtype to float64"):
            small(tmp_path / "run")
    finally:
        torch.set_default_dtype(torch.float32)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("env", "label"),
    [
        ("CartPole-v1", "CartPole-v1"),
        (Hill, "python:HERE.Hill"),
        (functools.partial(Hill, 2.5), "python:HERE.Hill(2.5)"),
        (functools.partial(Hill, level=2), "python:HERE.Hill(level=2)"),
        (functools.partial(Hill, level=[2]), "python:HERE.Hill(level=[2])"),  # type: ignore[arg-type]
        (functools.partial(Hill, level=object()), "python:HERE.Hill(level=object)"),  # type: ignore[arg-type]
    ],
)
def test_environments_are_told_apart_by_their_arguments(env: Any, label: str) -> None:
    assert describe_env(env) == label.replace("HERE", __name__)


def test_long_arguments_are_told_apart_by_their_ends() -> None:
    left, right = (describe_env(functools.partial(Hill, "x" * 90 + end)) for end in ("a", "b"))  # type: ignore[arg-type]
    assert left != right
    assert len(left) == len(f"python:{__name__}.Hill()") + 80


def test_an_argument_that_is_an_id_chooses_no_preset() -> None:
    label = describe_env(functools.partial(gymnasium.make, "ale_py:ALE/Pong-v5"))
    assert label.endswith("make(ale_py:ALE/Pong-v5)")
    assert family(label) == "default"
    assert not is_atari(label)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("python:__main__.Easy.make", "train:Easy.make", True),
        ("train:Easy.make", "python:__main__.Easy.make", True),
        ("python:__main__.Easy.make", "train:Hard.make", False),
        ("python:__main__.Easy.make", "python:__main__.Hard.make", False),
        ("python:__main__.Mine", "train:NotMine", False),
        ("a:Mine", "b:Mine", False),
    ],
)
def test_a_scripts_label_is_its_modules(one: str, other: str, same: bool) -> None:
    assert may_be_same(one, other) == same


def test_vector_environments_are_told_apart_by_what_they_are_of() -> None:
    env = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync")
    label = describe_env(env)
    assert label.endswith("SyncVectorEnv(CartPole-v1)")
    assert is_same_env(env, label)
    assert is_same_env(env, label.partition("(")[0])  # of a run begun earlier
    assert not is_same_env(env, label.replace("CartPole", "Acrobot"))
    env.close()


def test_a_run_is_gone_on_with_in_the_same_level_only(tmp_path: Path) -> None:
    env = functools.partial(Hill, level=2)
    run = small(tmp_path / "run", env=env)
    with pytest.raises(IncompatibleCheckpointError, match=r"Hill\(level=2\), not on .*level=20"):
        redline.train(resume=run.out, env=functools.partial(Hill, level=20), total_env_steps=256)
    again = redline.train(resume=run.out, env=env, total_env_steps=256, quiet=True)
    assert again.inspect()["env_steps"] == 256
    assert is_same_env(env, "python:functools.partial")  # of a run begun earlier


def test_run_directories_have_names_that_a_shell_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = [
        redline.train("ppo", env=env, **SMALL).out.name
        for env in (lambda: Hill(), functools.partial(Hill, level=0.5))
    ]
    assert made[1].startswith(f"ppo-python-{__name__}.Hill-level=0.5-num_envs=2-")
    assert not set("<>() ") & set("".join(made))


SCRIPT = """
import gymnasium
from redline.algos.ppo import PPO

class Plain(PPO):
    name = "plain"

class Counts:
    def __init__(self):
        self.seen = 0
    def on_iteration(self, state):
        self.seen += 1

def make_env():
    return gymnasium.make("CartPole-v1")
"""


def _imported(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(SCRIPT, vars(module))
    return module


def test_what_a_script_began_goes_on_where_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its classes are `__main__`'s while it runs, and its module's in the notebook of next day."""
    script = _imported("__main__", monkeypatch)
    run = small(
        tmp_path / "run", env=script.make_env, algorithm=script.Plain, callbacks=[script.Counts()]
    )
    run_config = json.loads((run.out / "config.json").read_text())
    assert run_config["algorithm"] == "python:__main__.Plain"
    module = _imported("train_it", monkeypatch)
    counts = module.Counts()
    again = redline.train(
        module.Plain, env=module.make_env, callbacks=[counts], resume=run.out, total_env_steps=256
    )
    assert again.inspect()["env_steps"] == 256
    assert counts.seen == 8  # 4 iterations of 32 env_steps in each session
    said = capsys.readouterr().err
    assert "the algorithm is 'train_it:Plain' now, and was 'python:__main__.Plain'" in said
    with pytest.raises(ConfigError, match=r"is a run of python:__main__\.Plain, not of"):
        redline.train(
            Other, env=module.make_env, callbacks=[counts], resume=run.out, total_env_steps=512
        )


class Other(PPO):
    """Of another name."""

    name = "other"

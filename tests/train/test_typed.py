"""What type checkers and editors know of settings, and what a run shows of itself."""

from __future__ import annotations

import dataclasses
import fcntl
import inspect
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import redline
from redline.algos.registry import BUILT_IN, declaration
from redline.train import typed, write_types
from redline.train.progress.table import ProgressTable


def test_the_types_are_those_of_the_settings() -> None:
    """Fails after a setting was changed: run python -m redline.train.write_types."""
    assert write_types.main(["--check"]) == 0
    for name in BUILT_IN:
        options = getattr(typed, f"{name.upper()}Options")
        fields = {field.name for field in dataclasses.fields(declaration(name).Config)}
        assert fields <= options.__annotations__.keys() | set(typed.RunOptions.__annotations__)


def test_a_type_checker_finds_a_misspelled_setting(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import redline\n"
        "redline.train('ppo', env='CartPole-v1', learning_rate=1e-3, hidden_sizes=(8, 8))\n"
        "redline.train('ppo', env='CartPole-v1', learning_rat=1e-3)\n"
        "redline.train('sac', env='Pendulum-v1', batch_size='many')\n"
        "redline.train(resume='runs/x', set={'gamma': 0.9})\n"
        "class Notes:\n"
        "    def on_episode(self, state: object) -> None: ...\n"
        "redline.train('ppo', env='CartPole-v1', callbacks=Notes())\n"
        "redline.train('ppo', env='CartPole-v1', callbacks=[Notes(), redline.StopAtReturn(9.0)])\n"
    )
    source = Path(redline.__file__).parents[1]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(source)]}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error"]
    command += ["--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {each["range"]["start"]["line"] for each in found} == {2, 3}, done.stdout


def test_public_names_are_shown() -> None:
    assert dir(redline) == sorted(redline.__all__)
    assert {"train", "load", "RunConfig", "StopAtReturn", "Curriculum"} <= set(dir(redline))
    for name in dir(redline):
        assert getattr(redline, name) is not None


def test_train_has_its_real_signature_and_docstring() -> None:
    parameters = inspect.signature(redline.train).parameters
    assert list(parameters)[:2] == ["algorithm", "env"]
    assert {"callbacks", "config", "resume", "settings"} <= set(parameters)
    assert "Returns:" in str(inspect.getdoc(redline.train))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> redline.Run:
    return redline.train(
        "ppo", env="CartPole-v1", out=tmp_path_factory.mktemp("r") / "run", num_envs=2,
        rollout_length=32, total_env_steps=1024, log_interval=64, quiet=True, tensorboard=False,
        num_threads=1,
    )  # fmt: skip


def test_a_run_says_what_it_is(run: redline.Run) -> None:
    text = repr(run)
    assert text.startswith(f"Run({str(run.out)!r}: ppo on CartPole-v1, 1,024 of 1,024 env_steps")
    assert "complete, return" in text
    assert [entry["event"] for entry in run.history()] == ["started", "saved", "ended"]
    with open(run.out / ".lock", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "running" in repr(run)


def test_progress_is_a_table(run: redline.Run) -> None:
    table = run.progress()
    assert table["env_steps"].tolist() == list(range(64, 1025, 64))
    assert table.num_rows == 16
    lines = repr(table).splitlines()
    assert lines[0].split()[:4] == ["env_steps", "wall_time_s", "sps", "return_mean"]
    assert len(lines) == 1 + 5 + 1 + 5 + 1
    assert lines[-1].startswith("16 rows, ")
    assert table.rows()[0]["env_steps"] == 64
    import numpy as np

    gaps = ProgressTable({"env_steps": np.array([1.0, 2.0]), "x": np.array([math.nan, 3.0])})
    assert gaps.rows() == [{"env_steps": 1.0}, {"env_steps": 2.0, "x": 3.0}]

"""Sweeps whole: mistakes, real processes, additions, what is left by those that were killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.cli import main
from redline.errors import ConfigError
from redline.launch.run_process import newest_numbers, read_outcome
from redline.launch.state import SweepState
from redline.launch.sweep import checked_runs
from redline.launch.sweep_file import plan_from

BASE = {
    "env": "CartPole-v1",
    "total_env_steps": 128,
    "num_envs": 2,
    "rollout_length": 32,
    "hidden_sizes": [8],
    "num_minibatches": 2,
    "tensorboard": False,
    "checkpoint_interval": 64,
    "log_interval": 64,
}


def _status(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["sweep", "status", str(folder), "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of one run, which is done."""
    folder = tmp_path_factory.mktemp("sweep") / "first"
    file = folder.parent / "sweep.json"
    plan = {"algorithm": "ppo", "base": BASE, "grid": {"learning_rate": [0.001]}, "seeds": [1]}
    file.write_text(json.dumps(plan))
    assert main(["sweep", str(file), "--out", str(folder), "--slots", "1", "--quiet"]) == 0
    return folder


def test_a_sweep_ends_with_0_and_its_status_says_so(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = _status(finished, capsys)
    assert {n: status[n] for n in ("total", "done", "failed", "running", "queued")} == {
        "total": 1, "done": 1, "failed": 0, "running": 0, "queued": 0,
    }  # fmt: skip
    run = status["runs"][0]
    assert run["progress"] == 1.0
    run_dir = finished / "runs" / "ppo-CartPole-v1-learning_rate=0.001-seed=1"
    assert run["run_dir"] == str(run_dir)
    assert run["params_sha256"] == redline.load(run_dir).inspect()["params_sha256"]
    config = json.loads((run_dir / "config.json").read_text())
    assert config["run"]["num_threads"] == 1
    assert json.loads((run_dir / "order.json").read_text())["cores"][0] in os.sched_getaffinity(0)


def test_the_same_sweep_again_runs_nothing_and_new_seeds_run_alone(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    plan = {"algorithm": "ppo", "base": BASE}
    plan["grid"] = {"learning_rate": [0.001]}
    again = redline.sweep(**plan, seeds=[1], out=folder, slots=1)  # type: ignore[arg-type]
    assert again.exit_code == 0
    assert "0 new runs, 0 to go on with" in capsys.readouterr().out
    with SweepState(folder) as state:
        assert [run.attempts for run in state.runs()] == [1]
    more = redline.sweep(**plan, seeds=[1, 2], out=folder, slots=1, quiet=True)  # type: ignore[arg-type]
    assert more.exit_code == 0
    with SweepState(folder) as state:
        assert [(run.name[-6:], run.attempts) for run in state.runs()] == [
            ("seed=1", 1),
            ("seed=2", 1),
        ]


def test_a_lost_database_costs_no_finished_run(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    (folder / "sweep.sqlite").unlink()
    sweep = redline.sweep(
        algorithm="ppo",
        base=BASE,
        grid={"learning_rate": [0.001]},
        out=folder,
        slots=1,
        quiet=True,
    )
    assert sweep.exit_code == 0
    with SweepState(folder) as state:
        assert state.runs()[0].slot is None
        assert state.counts()["done"] == 1


def test_all_mistakes_of_the_settings_are_listed_at_once(tmp_path: Path) -> None:
    plan = plan_from(
        {
            "algorithm": ["ppo", "sac"],
            "base": {"env": "CartPole-v1", "total_env_steps": 20_000, "learning_rat": 0.1},
            "grid": {"gamma": [0.9, "much"]},
        }
    )
    with pytest.raises(ConfigError) as caught:
        checked_runs(plan, "sweep.yaml")
    message = str(caught.value)
    assert "sweep.yaml has 4 mistakes" in message
    assert "ppo has no setting 'learning_rat' (did you mean learning_rate" in message
    assert "sac has no setting 'learning_rat'" in message
    assert "ppo: gamma='much' has the wrong type" in message


def test_seeds_that_no_run_takes_are_refused_before_the_start() -> None:
    plan = plan_from({"algorithm": "ppo", "base": BASE, "seeds": [1, 2**70]})
    with pytest.raises(ConfigError, match=f"seed={2**70} must be at most"):
        checked_runs(plan, "sweep")


def test_what_only_shows_with_the_environment_is_found_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"td3 on CartPole-v1: .*Box action space"):
        redline.sweep(algorithm="td3", base={"env": "CartPole-v1"}, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    # Neither fits the default of the other.
    plan = plan_from({"algorithm": "ppo", "base": {**BASE, "num_envs": 3, "num_minibatches": 3}})
    assert checked_runs(plan, "sweep")[0].settings["num_envs"] == 3


def test_a_file_of_ones_own_may_name_files_for_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused as if a stranger's run directory had named them."""
    (tmp_path / "env_of_a_file.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "def make(xml_file):\n"
        "    assert xml_file == './a.xml'\n"
        "    return CartPoleEnv()\n"
        "gymnasium.register('OfAFile-v0', make, max_episode_steps=50)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    base = {**BASE, "env": "env_of_a_file:OfAFile-v0", "env_kwargs": '{"xml_file": "./a.xml"}'}
    found = checked_runs(plan_from({"algorithm": "ppo", "base": base}, "mine"), "mine")
    assert [run.settings["env_kwargs"] for run in found] == ['{"xml_file": "./a.xml"}']
    # Without it the user's own code raises; it was a traceback that named no run.
    del base["env_kwargs"]
    with pytest.raises(ConfigError, match="ppo on env_of_a_file:OfAFile-v0: TypeError: make"):
        checked_runs(plan_from({"algorithm": "ppo", "base": base}, "mine"), "mine")


def test_a_run_that_raises_keeps_its_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment can be made once per process: the check's one is the launcher's."""
    (tmp_path / "breaking.py").write_text(
        "import os, gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Breaking(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        raise RuntimeError('this environment breaks')\n"
        "gymnasium.register('Breaking-v0', entry_point='breaking:Breaking')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    base = {**BASE, "env": "breaking:Breaking-v0"}
    sweep = redline.sweep(algorithm="ppo", base=base, out="s", slots=1, quiet=True)
    assert sweep.exit_code == 1
    run = _status(Path("s"), capsys)["runs"][0]
    assert run["state"] == "failed"
    assert run["exit_code"] == 1
    assert "this environment breaks" in run["error"]
    assert "Traceback" in run["traceback"]


def test_a_launcher_that_is_killed_takes_its_run_along_which_goes_on_to_the_bit(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {**BASE, "total_env_steps": 3_000, "checkpoint_interval": 512}
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({"algorithm": "ppo", "base": base}))
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "redline", "sweep", str(file), "--out", str(folder)]
    launcher = subprocess.Popen([*command, "--slots", "1", "--quiet"])
    run_dir = folder / "runs" / "ppo-CartPole-v1-seed=1"
    while not newest_numbers(run_dir) and launcher.poll() is None:
        time.sleep(0.05)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    resumed = redline.sweep(resume=folder, quiet=True)
    assert resumed.exit_code == 0
    with SweepState(folder) as state:
        run = state.runs()[0]
    straight = redline.train(
        "ppo", **base, seed=1, num_threads=1, out=tmp_path / "straight", quiet=True
    )
    assert run.attempts == 2
    assert run.result["params_sha256"] == straight.inspect()["params_sha256"]
    assert read_outcome(run_dir)["result"]["params_sha256"] == run.result["params_sha256"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"file": "s.yaml", "seeds": [1, 2], "base": BASE}, "base=, seeds= beside file='s.yaml'"),
        ({"file": "s.yaml", "algorithm": "ppo"}, "algorithm= beside file='s.yaml'"),
        ({"resume": "s", "algorithm": "ppo", "seeds": 5}, "algorithm=, seeds= beside resume='s'"),
        ({"resume": "s", "file": "s.yaml", "out": "t"}, "file=, out= beside resume='s'"),
        ({"resume": "s", "grid": {}, "zip": {}, "by_algorithm": {}}, "grid=, zip=, by_algorithm="),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said}.* would be ignored"):
        redline.sweep(**given)


def test_bad_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["sweep"], "give either a file"),
        (["sweep", "--resume", str(tmp_path)], "holds no sweep"),
        (["sweep", str(tmp_path / "none.yaml")], "cannot be read"),
        (["sweep", "status", str(tmp_path)], "holds no sweep"),
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err

"""`examples/own_backend.py`: one class that all of Redline steps, in Python and by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import redline
from redline.cli import main
from redline.envs import EnvSettings, make_device_vec, make_vec
from redline.errors import ConfigError, IncompatibleCheckpointError
from redline.train.runs.run import load_run
from tests.envs.recording import record

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME, ENV = "own_backend:PointMass", "PointMass-v0"


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from own_backend import PointMass  # type: ignore[import-not-found]

    return PointMass


def trained(backend: Any, out: Path, **settings: Any) -> Any:
    return redline.train(
        "ppo",
        env=ENV,
        env_backend=backend,
        out=out,
        preset="default",
        num_envs=4,
        rollout_length=32,
        tensorboard=False,
        quiet=True,
        **settings,
    )


def test_a_push_by_hand(backend: Any) -> None:
    """From rest, a force of 1 N for 0.1 s gives 0.1 m/s, and 0.01 m."""
    env = make_vec(ENV, 1, backend=backend)
    x, y = env.reset(0)[0, :2].tolist()
    step = env.step(np.array([[1.0, 0.0]], np.float32))
    np.testing.assert_allclose(step.obs[0], [x + 0.01, y, 0.1, 0.0], rtol=1e-6)
    np.testing.assert_allclose(step.reward, [-np.hypot(x + 0.01, y)], rtol=1e-6)


def test_it_keeps_the_contract_of_every_back_end(backend: Any) -> None:
    """Whole episodes, streams by index alone, and a saved state that goes on bit for bit."""
    env = make_vec(ENV, 3, backend=backend)
    assert (env.backend, env.env_id, env.restorable) == ("point-mass", ENV, None)
    first = env.reset(7).copy()
    np.testing.assert_array_equal(
        make_vec(ENV, 1, backend=backend, first_env_id=2).reset(7)[0], first[2]
    )
    rows = record(env, 75, seed=1)
    records = [episode for row in rows for episode in row[-1]]
    assert [(one.env_id, one.episode_id, one.length) for one in records] == [
        (i, 0, 50) for i in range(3)
    ]
    state, expected = env.state_dict(), record(env, 60, seed=2)
    other = make_vec(ENV, 3, backend=NAME)
    other.load_state_dict(state)
    assert record(other, 60, seed=2) == expected
    with make_device_vec(ENV, 2, device="cpu", backend=backend) as on_device:
        assert on_device.reset(0).shape == (2, 4)


def test_it_is_trained_saved_resumed_and_evaluated(backend: Any, tmp_path: Path) -> None:
    """Stopped half way and resumed, it ends with the parameters of an undisturbed run."""
    whole = trained(backend, tmp_path / "whole", total_env_steps=512)
    trained(backend, tmp_path / "half", total_env_steps=256)
    again = redline.train(
        resume=tmp_path / "half", env_backend=backend, total_env_steps=512, quiet=True
    )
    assert again.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    assert whole.evaluate(episodes=2).length_mean == 50.0


def test_collectors_whose_workers_act_step_it_too(backend: Any, tmp_path: Path) -> None:
    run = trained(backend, tmp_path / "run", total_env_steps=256, collector="workers")
    assert run.inspect()["env_steps"] == 256
    with pytest.raises(ConfigError, match="steps its environments by itself"):
        trained(backend, tmp_path / "central", total_env_steps=256, collector="central")


def test_a_run_directory_alone_imports_nothing(backend: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(backend, out, total_env_steps=128)
    assert json.loads((out / "config.json").read_text())["run"]["env_backend"] == NAME
    for refused in (
        lambda: redline.train(resume=out, total_env_steps=256),
        lambda: load_run(out).policy(),
    ):
        with pytest.raises(ConfigError, match="must not decide what is imported"):
            refused()
    assert load_run(out, env_backend=NAME).policy()
    with pytest.raises(IncompatibleCheckpointError, match="not on gymnasium"):
        redline.train(resume=out, env_backend="gymnasium")


def test_a_class_that_no_module_gives_back_is_wanted_again(backend: Any, tmp_path: Path) -> None:
    class Local(backend):
        """Only this function has it."""

    trained(Local, tmp_path / "run", total_env_steps=128)
    with pytest.raises(ConfigError, match="give it again from Python"):
        redline.train(resume=tmp_path / "run", total_env_steps=256)
    again = redline.train(
        resume=tmp_path / "run", env_backend=Local, total_env_steps=256, quiet=True
    )
    assert again.inspect()["env_steps"] == 256


def test_the_command_line_takes_it_by_module_and_name(
    backend: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    options = ["--env", ENV, "--env-backend", NAME, "--total-env-steps", "2048", "--out", out]
    assert main(["train", "ppo", *options, "--quiet", "--no-tensorboard"]) == 0
    again = ["train", "--resume", out, "--total-env-steps", "4096"]
    assert main(again) == 2
    assert f"name it again: --env-backend {NAME}" in capsys.readouterr().err
    assert main([*again, "--env-backend", NAME]) == 0
    capsys.readouterr()
    assert main(["eval", out, "--episodes", "1", "--env-backend", NAME]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["episodes"] == 1


def test_what_it_does_not_step_is_refused(backend: Any) -> None:
    with pytest.raises(ConfigError, match="steps PointMass-v0 only, not 'CartPole-v1'"):
        EnvSettings(env="CartPole-v1", backend=backend)

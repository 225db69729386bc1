"""Whole runs on the stand-in: collected, learned, evaluated, saved and resumed there."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.collect import Collector
from redline.train.runs.run import Run
from tests.accelerator import stand_in

SMALL: dict[str, Any] = {
    "total_env_steps": 32,
    "num_envs": 2,
    "log_interval": 16,
    "checkpoint_interval": 16,
    "num_threads": 1,
    "quiet": True,
    "tensorboard": False,
    "device": "standin",
    "preset": "default",
}
ON_POLICY: dict[str, Any] = {"rollout_length": 8, "hidden_sizes": (8,)}
PPO: dict[str, Any] = ON_POLICY | {"num_epochs": 1, "num_minibatches": 1}
IMAGES = {name: value for name, value in PPO.items() if name != "hidden_sizes"}
OFF_POLICY: dict[str, Any] = {
    "rollout_length": 4, "learning_starts": 8, "batch_size": 8, "replay_size": 64,
    "replay_ratio": 1.0, "hidden_sizes": (8,),
}  # fmt: skip
# Without schedules, which would reach their ends sooner in half a run.
PRIORITIZED = {"prioritized": True, "priority_beta": 1.0}
Q_LEARNING = OFF_POLICY | {"target_update_interval": 2, "epsilon_schedule": "ape-x"}
ON_DEVICE = OFF_POLICY | {"replay_storage": "device"}
Q_ON_DEVICE = Q_LEARNING | {"replay_storage": "device"}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "redline/CartPole-v1", PPO | {"normalize_obs": True}),
    "ppo-mirrored": ("ppo", "CartPole-v1", PPO | {"env_device": "standin"}),
    "ppo-host-envs": ("ppo", "CartPole-v1", PPO),
    "ppo-images": ("ppo", "redline/Breakout-v1", IMAGES),
    "ppo-lstm": ("ppo", "redline/CartPole-v1", PPO | {"core": "lstm", "core_size": 4}),
    "a2c-gru": ("a2c", "redline/CartPole-v1", ON_POLICY | {"core": "gru", "core_size": 4}),
    "reinforce": ("reinforce", "redline/CartPole-v1", ON_POLICY),
    "dqn-uniform": ("dqn", "redline/CartPole-v1", Q_ON_DEVICE),
    "dqn-prioritized": ("dqn", "redline/CartPole-v1", Q_ON_DEVICE | PRIORITIZED),
    "dqn-host-envs": ("dqn", "CartPole-v1", Q_ON_DEVICE | PRIORITIZED | {"normalize_obs": True}),
    "dqn-host-replay": ("dqn", "redline/CartPole-v1", Q_LEARNING | PRIORITIZED),
    "r2d1-sequences": (
        "r2d1", "redline/CartPole-v1",
        Q_ON_DEVICE | {"burn_in": 1, "sequence_length": 4, "n_step": 2, "core_size": 4,
                       "priority_beta": 1.0, "batch_size": 2,
                       "learning_rate_schedule": "constant"},
    ),
    "sac": ("sac", "redline/Pendulum-v1", ON_DEVICE),
    "td3": ("td3", "redline/Pendulum-v1", ON_DEVICE),
    "ddpg": ("ddpg", "redline/Pendulum-v1", OFF_POLICY),
    "tqc": ("tqc", "redline/Pendulum-v1", ON_DEVICE),
    "crossq": ("crossq", "redline/Pendulum-v1", ON_DEVICE | {"critic_hidden_sizes": (8,)}),
    "diayn": ("diayn", "redline/Pendulum-v1", ON_DEVICE | {"num_skills": 2}),
    "impala": ("impala", "redline/CartPole-v1", ON_POLICY),
    "appo": ("appo", "redline/CartPole-v1", PPO),
}  # fmt: skip


def run(out: Path, name: str, **settings: Any) -> Run:
    algorithm, env, own = RUNS[name]
    return redline.train(algorithm, env=env, out=out, **(SMALL | own | settings))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_captured(name: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", name)
    assert whole.config.run.accelerate == "cudagraph"
    # The self-check, which would have gone on in eager mode, did not object.
    assert json.loads((whole.out / "config.json").read_text())["run"]["accelerate"] == "cudagraph"
    with (whole.out / "progress.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["optimizer_steps"]) > 0


@pytest.mark.parametrize(
    "name", ["ppo", "ppo-mirrored", "a2c-gru", "dqn-prioritized", "sac", "r2d1-sequences"]
)
def test_a_run_is_resumed_to_the_bit(name: str, tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", name)
    half = run(tmp_path / "half", name, total_env_steps=16)
    resumed = redline.train(resume=half.out, total_env_steps=32, quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]


def test_collecting_waits_for_rollouts_not_for_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Environments on the device: twice the steps, and as many waits."""
    waits: dict[int, int] = {}
    collect = Collector.collect

    def counted(self: Collector, conditioning: Any = None) -> Any:
        with stand_in.counted() as device:
            rollout = collect(self, conditioning)
            waits[self.rollout_length] = len(device.read_backs)
        return rollout

    monkeypatch.setattr(Collector, "collect", counted)
    for length in (4, 8):
        run(tmp_path / str(length), "ppo", rollout_length=length, total_env_steps=4 * length)
    assert waits[4] == waits[8] <= 8


@pytest.mark.parametrize("name", ["ppo", "ppo-lstm", "a2c-gru", "reinforce", "impala", "appo"])
def test_a_learner_on_the_cpu_takes_rollouts_of_a_device(name: str, tmp_path: Path) -> None:
    """On a GPU PPO failed: it shuffled rows there by a permutation of the CPU's."""
    settings: dict[str, Any] = {"device": "cpu", "policy_device": "standin"}
    if name != "reinforce":
        settings["scale_reward"] = True
    found = run(tmp_path / "run", name, **settings)
    assert found.inspect()["env_steps"] >= 32
    rows = list(csv.DictReader((found.out / "progress.csv").read_text().splitlines()))
    assert math.isfinite(float(rows[-1]["grad_norm"]))


def test_every_device_of_a_run_can_be_chosen(tmp_path: Path, capsys: Any) -> None:
    """It learns on the device, acts and is evaluated on the CPU, and says what auto chose."""
    made = run(tmp_path / "run", "ppo", policy_device="cpu", env_device="auto", eval_device="cpu",
               eval_interval=16, eval_episodes=1, quiet=False)  # fmt: skip
    assert made.config.run.env_device == "cpu"
    assert "env_device: cpu (no CUDA device can be used" in capsys.readouterr().err

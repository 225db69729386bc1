"""A run whose numbers are no longer finite stops, and keeps the checkpoint from before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import redline
from redline.algos.ppo import PPO
from redline.cli import main
from redline.errors import ConfigError, DivergenceError
from redline.train.checkpoint.store import CheckpointStore
from redline.train.runs.run import Run

GOOD_UPDATES = 4
SMALL: dict[str, Any] = {
    "preset": "default",
    "total_env_steps": 1024,
    "num_envs": 4,
    "rollout_length": 32,
    "hidden_sizes": (8,),
    "num_epochs": 1,
    "log_interval": 256,
    "checkpoint_interval": 256,
    "tensorboard": False,
}


class Breaks(PPO):
    """PPO whose fifth update, that at 640 env_steps of these runs, leaves NaN in one layer."""

    calls = 0

    def update(self, rollout: Any) -> Any:
        metrics = super().update(rollout)
        self.calls += 1
        if self.calls > GOOD_UPDATES:
            with torch.no_grad():
                self.policy.policy_head.weight[0, 0] = torch.nan
        return metrics


class Jackpot(gymnasium.Env[Any, Any]):
    """Rewards of 1, and of 1e30 from the 101st step on, whose square no float32 holds."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = 1.0 if self._steps <= 100 else 1e30
        return np.ones(2, np.float32), reward, self._steps % 10 == 0, False, {}


def breaking(out: Path, env: Any = "CartPole-v1", **settings: Any) -> Run:
    return redline.train(Breaks, env=env, out=out, **(SMALL | settings))


def saved_steps(out: Path) -> list[int]:
    return [int(path.name.split("_")[1]) for path in CheckpointStore(out / "checkpoints").list()]


def test_a_run_stops_and_names_metric_parameter_step_and_help(tmp_path: Path) -> None:
    """The fifth update is at 640 env_steps; the row at 768 has the metrics of the sixth."""
    with pytest.raises(DivergenceError, match="diverged: at 768 env_steps") as caught:
        breaking(tmp_path / "run", max_grad_norm=0.0, learning_rate=1e-3)
    said = str(caught.value)
    assert "the metric policy_loss is nan, and the parameter policy.torso" in said
    assert "step_000000000512" in said
    for helpful in ("learning_rate (it is 0.001)", "max_grad_norm, such as 0.5", "normalize_obs"):
        assert helpful in said
    assert saved_steps(tmp_path / "run") == [256, 512]
    policy = Run.load(tmp_path / "run", algorithm=Breaks).policy()
    assert all(parameter.isfinite().all() for parameter in policy.parameters())


def test_a_broken_state_is_not_saved_before_the_next_row(tmp_path: Path) -> None:
    """Rows every 1,024 and checkpoints every 128 env_steps: the one at 640 would be broken.

    The metrics of the fifth update are those before its step, and finite.
    """
    with pytest.raises(DivergenceError, match="at 640 env_steps the parameter policy"):
        breaking(tmp_path / "run", log_interval=1024, checkpoint_interval=128)
    assert saved_steps(tmp_path / "run") == [384, 512]


class AlwaysBest:
    """A callback to which every state is the best so far."""

    def on_iteration(self, state: Any) -> None:
        state.save_best(float(state.env_steps))


def test_a_broken_state_does_not_become_the_best(tmp_path: Path) -> None:
    """It did: callbacks are called before the row, and before the checkpoint is checked."""
    with pytest.raises(DivergenceError, match="at 640 env_steps the parameter policy"):
        breaking(tmp_path / "run", log_interval=1024, callbacks=[AlwaysBest()])
    best = Run.load(tmp_path / "run", algorithm=Breaks).policy(which="best")
    assert all(parameter.isfinite().all() for parameter in best.parameters())


def test_a_metric_stops_a_run_whose_parameters_are_still_finite(tmp_path: Path) -> None:
    """Steps 101 on are in the fourth rollout: 4 environments of 32 steps each.

    A gradient of infinite norm is scaled to 0, so that the parameters stay.
    """
    with pytest.raises(DivergenceError, match="the metric value_loss is inf; all parameters are"):
        redline.train("ppo", env=Jackpot, out=tmp_path / "run", **SMALL)
    assert saved_steps(tmp_path / "run") == [256]


@pytest.mark.parametrize("placement", [{}, {"collector": "workers"}])
def test_actions_that_are_no_numbers_are_said_to_come_from_divergence(
    placement: dict[str, Any], tmp_path: Path
) -> None:
    """The environment refuses NaN and advises to clip actions, which would not help."""
    with pytest.raises(DivergenceError, match="diverged: at 640 env_steps") as caught:
        breaking(tmp_path / "run", "Pendulum-v1", **placement)
    assert "Clip" not in str(caught.value)
    assert "the parameter policy.policy_head.weight holds nan" in str(caught.value)


PRIORITIZED: dict[str, dict[str, Any]] = {
    "dqn": {"prioritized": True},
    "r2d1": {"sequence_length": 8, "state_interval": 8, "burn_in": 4, "core_size": 4},
}


def with_priorities(out: Path, algorithm: str, env: Any, **settings: Any) -> Run:
    """A run that draws by priority and learns from its 65th env_step on."""
    return redline.train(
        algorithm, env=env, out=out, preset="default", total_env_steps=400, num_envs=2,
        rollout_length=8, batch_size=8, replay_size=400, learning_starts=64, replay_ratio=4.0,
        target_update_interval=2, hidden_sizes=(4,), log_interval=80, checkpoint_interval=80,
        tensorboard=False, **(PRIORITIZED[algorithm] | settings),
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ["dqn", "r2d1"])
def test_a_priority_that_is_no_number_is_said_to_come_from_divergence(
    algorithm: str, tmp_path: Path
) -> None:
    """A step size of 1e30. Replay refused it as a setting: `a priority is NaN` and status 2."""
    with pytest.raises(DivergenceError, match=f"{algorithm} diverged: at [0-9]+ env_steps") as said:
        with_priorities(tmp_path / "run", algorithm, "CartPole-v1", learning_rate=1e30)
    assert "the metric loss is " in str(said.value)
    assert "a smaller learning_rate (it is 1e+30)" in str(said.value)
    assert "ended in" not in str(said.value)


def test_a_metric_since_the_last_row_is_named_where_a_priority_is_infinite(tmp_path: Path) -> None:
    """The sum of three rewards of 3e38 is more than float32 holds, 3.4e38."""

    class Infinite(Jackpot):
        def step(self, action: Any) -> Any:
            obs, reward, *rest = super().step(action)
            return obs, 1.0 if reward == 1.0 else 3e38, *rest

    with pytest.raises(DivergenceError, match=r"the metric [a-z_]+ is (inf|nan)") as said:
        with_priorities(tmp_path / "run", "dqn", Infinite, n_step=3)
    assert "What usually helps" in str(said.value)


@pytest.mark.parametrize("algorithm", ["dqn", "r2d1"])
def test_warn_goes_on_with_the_highest_priority_in_its_place(
    algorithm: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = with_priorities(
        tmp_path / "run", algorithm, "CartPole-v1", learning_rate=1e30, on_divergence="warn"
    )
    assert run.inspect()["env_steps"] == 400
    assert "".join(capfd.readouterr()).count("diverged") == 1


def test_warn_says_it_once_and_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = breaking(tmp_path / "run", on_divergence="warn", log_interval=128)
    assert run.exit_code == 0
    assert run.inspect()["env_steps"] == 1024
    printed = "".join(capfd.readouterr())
    assert printed.count("diverged") == 1
    assert "The run goes on, as on_divergence='warn' says." in printed


def test_an_error_of_another_cause_stays_what_it_is(tmp_path: Path) -> None:
    class Refuses(Jackpot):
        def step(self, action: Any) -> Any:
            raise ConfigError("not today")

    with pytest.raises(ConfigError, match="not today"):
        redline.train("ppo", env=Refuses, out=tmp_path / "run", **SMALL)


def test_a_temperature_of_0_is_no_divergence(tmp_path: Path) -> None:
    """Its logarithm is among the saved parameters, and is -inf from the start."""
    run = redline.train(
        "sac", env="Pendulum-v1", out=tmp_path / "run", preset="default", alpha=0.0,
        total_env_steps=64, learning_starts=32, batch_size=8, replay_ratio=8.0, replay_size=100,
        hidden_sizes=(8,), tensorboard=False, quiet=True,
    )  # fmt: skip
    assert run.inspect()["env_steps"] == 64


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_the_command_line_ends_with_status_1(
    algorithm: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A step size of 1e30: DQN ended with `loss nan` and status 0."""
    out = tmp_path / "run"
    options = {
        "env": "CartPole-v1", "preset": "default", "out": str(out), "total-env-steps": "512",
        "learning-rate": "1e30", "num-envs": "4", "rollout-length": "16", "hidden-sizes": "8",
    }  # fmt: skip
    if algorithm == "dqn":
        options |= {"learning-starts": "64", "replay-size": "512", "target-update-interval": "10"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert main(["train", algorithm, *words, "--no-tensorboard", "--quiet"]) == 1
    assert f"DivergenceError: {algorithm} diverged" in capfd.readouterr().err

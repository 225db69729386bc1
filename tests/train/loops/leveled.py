"""An environment whose reward is an attribute, runs on it, and callbacks that tests share."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import redline
from redline.train.callbacks import RunState
from redline.train.runs.run import Run

SMALL: dict[str, Any] = {
    "total_env_steps": 512,
    "num_envs": 2,
    "rollout_length": 32,
    "log_interval": 128,
    "checkpoint_interval": 128,
    "tensorboard": False,
    "quiet": True,
    "num_threads": 1,
}


class Leveled(gymnasium.Env[Any, Any]):
    """Episodes of 4 steps; the reward is the level, and so is info["level"] at the end."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.level, self._t = 1.0, 0

    def _obs(self) -> Any:
        return np.array([self.level, self._t], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        ended = self._t == 4
        info = {"level": self.level, "success": self.level > 1} if ended else {}
        return self._obs(), float(self.level), ended, False, info


def train(out: Path, **settings: Any) -> Run:
    return redline.train("ppo", env=Leveled, out=out, **SMALL | settings)


def rows(run: Run) -> list[dict[str, str]]:
    with open(run.out / "progress.csv") as file:
        return list(csv.DictReader(file))


def history(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.out / "history.jsonl").read_text().splitlines()]


class Logs:
    """Logs from the third iteration on, after the first row was written."""

    def on_start(self, state: RunState) -> None:
        state.log("nothing", state.mean_return)
        assert not state.mean_return > 0
        assert not state.mean_return < 0

    def on_iteration(self, state: RunState) -> None:
        if state.iteration >= 3:
            state.log("my/steps", state.env_steps)


class KilledAt:
    """Ends the run as a kill after this many iterations does: without a word."""

    class Killed(BaseException):
        pass

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        self.iterations = 0

    def on_iteration(self, state: RunState) -> None:
        if state.iteration == self.iterations:
            raise self.Killed

"""Environments whose every number is known beforehand."""

from __future__ import annotations

import copy
import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Counting(gymnasium.Env):
    """Observation (episode, t), reward t; episodes end at `length` by the end asked for."""

    def __init__(
        self, length: int = 3, end: str = "terminated", reward: float | None = None
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.length, self.end, self.reward = length, end, reward
        self.episode, self.t = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = 0 if seed is not None else self.episode + 1, 0
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.episode, self.t], dtype=np.float32)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.t += 1
        done = self.t >= self.length
        reward = float(self.t) if self.reward is None else self.reward
        terminated, truncated = done and self.end == "terminated", done and self.end == "truncated"
        return self.observe(), reward, terminated, truncated, {}


class Lives(Counting):
    """Counting that loses one of three lives every two steps and ends with the last."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(seed=seed)
        return obs, {"lives": 3}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.t += 1
        lives = 3 - self.t // 2
        return self.observe(), -5.0, lives == 0, False, {"lives": lives}


class Walk(gymnasium.Env):
    """A random walk that keeps its position in an object only a journal can bring back."""

    class Position:
        def __init__(self) -> None:
            self.x = 0.0

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.position = self.Position()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.Position()
        self.position.x = float(self.np_random.normal())
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.array([self.position.x], dtype=np.float32)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.position.x += float(action.sum()) + float(self.np_random.normal())
        ended = abs(self.position.x) > 6
        return self.observe(), self.position.x, ended, False, {}


class SecretDice(Walk):
    """A walk with a generator nobody can see."""

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.position.x += float(np.random.default_rng().normal())
        return self.observe(), 0.0, False, False, {}


class WithState(Counting):
    """Counting with a state of its own making."""

    def get_state(self) -> dict[str, Any]:
        return {"episode": self.episode, "t": self.t, "random": self.np_random}

    def set_state(self, state: dict[str, Any]) -> None:
        self.episode, self.t = state["episode"], state["t"]
        self.np_random = state["random"]


class Spaces(gymnasium.Env):
    """Any observation and action space; observations are drawn, actions are remembered."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space = copy.deepcopy(observation_space)
        self.action_space = copy.deepcopy(action_space)
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.last = self.observation_space.sample()
        return self.last, {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.seen.append(action)
        self.last = self.observation_space.sample()
        return self.last, 0.0, False, False, {}


class Masked(Counting):
    """Counting that allows only the action t % 2."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(seed=seed)
        return obs, {"action_mask": self.mask()}

    def mask(self) -> np.ndarray:
        return np.array([self.t % 2 == 0, self.t % 2 == 1], dtype=np.int8)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"action_mask": self.mask()}


class Faulty(Counting):
    """Counting that goes wrong in step 3."""

    def __init__(self, fault: str) -> None:
        super().__init__(length=100)
        self.fault = fault

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.t == 3:
            obs, reward = self.spoil(obs, reward)
        return obs, reward, terminated, truncated, info

    def spoil(self, obs: Any, reward: Any) -> tuple[Any, Any]:
        if self.fault == "none":
            return obs, reward
        if self.fault == "raise":
            raise KeyError("the door is locked")
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "hang":
            time.sleep(600)
        spoiled = {
            "nan obs": (obs * np.nan, reward),
            "inf obs": (np.array([0, np.inf], np.float32), reward),
            "nan reward": (obs, float("nan")),
            "inf reward": (obs, float("inf")),
            "no reward": (obs, None),
            "array reward": (obs, np.zeros(2)),
            "shape": (np.zeros(3, np.float32), reward),
            "scalar": (np.float32(1.0), reward),
            "dtype": (np.array(["a", "b"]), reward),
        }
        return spoiled[self.fault]


class Echo:
    """A handler for the group alone."""

    def __init__(self, link: Any) -> None:
        self.link = link

    def handle(self, command: str, payload: Any) -> Any:
        if command == "sleep":
            time.sleep(payload)
        if command == "big":
            return b"x" * payload
        if command == "affinity":
            return sorted(os.sched_getaffinity(0))
        return (self.link.index, command, payload)

    def close(self) -> None:
        return


class Ordered(gymnasium.Env[Any, Any]):
    """Entries that sort behind those of `observe_previous`, all of one shape; 3 steps, reward 0.5.

    After t steps "state" is t, "zz" is 10 + t and "agent", which sorts before, is 20 + t.
    """

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        leaf = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.observation_space = spaces.Dict({name: leaf for name in ("zz", "state", "agent")})
        self.action_space = action_space

    def _obs(self) -> dict[str, Any]:
        return {
            name: np.array([start + self._t], np.float32)
            for name, start in (("zz", 10), ("state", 0), ("agent", 20))
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self._t += 1
        return self._obs(), 0.5, False, self._t == 3, {}

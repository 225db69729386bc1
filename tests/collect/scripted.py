"""Environments and a policy whose every number can be told in advance."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from redline.data import Array, EpisodeRecord, Rollout
from redline.envs.vec_env import EnvStep, VecEnv
from redline.policies.policy import ActionEvaluation, ActOutput, Policy, State

CHOICE_OF_TWO = spaces.Discrete(2)


class ScriptedEnv(VecEnv):
    """Episode k of environment i lasts lengths[i][k % len] steps and ends as ends[i] says.

    The observation is 100 * i + 10 * k + steps taken, the reward the steps taken so far + 1.
    `filler` imitates a back end that resets on the next step.
    """

    backend = "scripted"
    env_id = "scripted"
    can_idle = True

    def __init__(
        self, lengths: list[list[int]], ends: list[str], *, filler: bool = False, first: int = 0
    ) -> None:
        self.num_envs = len(lengths)
        self.lengths, self.ends, self.filler, self.first = lengths, ends, filler, first
        self.can_idle = not filler
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(10)
        self.actions: list[Array] = []
        self.closed = False

    def reset(self, seed: int | None = None) -> Array:
        self.steps = np.zeros(self.num_envs, np.int64)
        self.episode = np.zeros(self.num_envs, np.int64)
        self.pending = np.zeros(self.num_envs, bool)
        return self._obs()

    def _obs(self) -> Array:
        ids = np.arange(self.first, self.first + self.num_envs)
        return (100 * ids + 10 * self.episode + self.steps).astype(np.float32)[:, None]

    def step(self, action: Any, active: Array | None = None) -> EnvStep:
        self.actions.append(np.array(action))
        count = self.num_envs
        stepped = np.ones(count, bool) if active is None else active.copy()
        valid = stepped & ~self.pending
        self.episode[self.pending] += 1
        self.steps[self.pending] = 0
        self.pending[:] = False
        self.steps[valid] += 1
        reward = np.where(valid, self.steps, 0).astype(np.float32)
        limit = np.array(
            [ls[k % len(ls)] for ls, k in zip(self.lengths, self.episode, strict=True)]
        )
        ended = valid & (self.steps >= limit)
        kind = np.array(self.ends)
        final = self._obs()
        records = [
            EpisodeRecord(
                env_id=self.first + int(i),
                episode_id=int(self.episode[i]),
                return_=float(limit[i] * (limit[i] + 1) / 2),
                length=int(limit[i]),
            )
            for i in np.flatnonzero(ended)
        ]
        if self.filler:
            self.pending = ended.copy()
        else:
            self.episode[ended] += 1
            self.steps[ended] = 0
        return EnvStep(
            self._obs(),
            reward,
            ended & (kind == "terminated"),
            ended & (kind == "truncated"),
            valid,
            final if ended.any() else None,
            records,
        )

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps.copy(), "episode": self.episode.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> Array:
        self.reset()
        self.steps[:], self.episode[:] = state["steps"], state["episode"]
        return self._obs()

    def close(self) -> None:
        self.closed = True


class CountingPolicy(Policy):
    """V(s, state) = observation + 1000 * steps since the last reset; acts by its noise."""

    noise_size = 1
    is_recurrent = True
    extras_spec: ClassVar[dict[str, tuple[int, ...]]] = {"value": ()}
    action_space = spaces.Discrete(10)

    def __init__(self) -> None:
        super().__init__()
        self.anchor = torch.nn.Parameter(torch.zeros(()))

    def initial_state(self, batch_size: int) -> State:
        return {"steps": torch.zeros(batch_size, 1)}

    def draw_noise(self, rng: np.random.Generator, length: int) -> Any:
        return rng.random((length, 1), dtype=np.float32)

    def act(self, obs: Any, state: State, noise: Any = None, conditioning: Any = None) -> ActOutput:
        action = torch.zeros(len(obs), dtype=torch.int64)
        if noise is not None:
            action = (noise[:, 0] * 10).to(torch.int64)
        if conditioning is not None:
            action = torch.where(conditioning["greedy"], 0, action)
        return ActOutput(action, {"value": self.value(obs, state)}, {"steps": state["steps"] + 1})

    def env_action(self, action: Any) -> Any:
        return action

    def value(self, obs: Any, state: State, conditioning: Any = None) -> Tensor:
        return obs[:, 0] + 1000 * state["steps"][:, 0]

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        raise NotImplementedError


class ExactPolicy(Policy):
    """Acts by its noise alone and says which weight acted: no arithmetic that could differ.

    Args:
        action_space: Discrete, or a Box whose actions are uniform in [-1, 1].
    """

    is_recurrent = True
    extras_spec: ClassVar[dict[str, tuple[int, ...]]] = {"value": (), "weight": ()}

    def __init__(self, action_space: spaces.Space[Any] = CHOICE_OF_TWO) -> None:
        super().__init__()
        self.action_space = action_space
        self.noise_size = int(np.prod(action_space.shape or ()))
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def initial_state(self, batch_size: int) -> State:
        return {"steps": torch.zeros(batch_size, 1)}

    def draw_noise(self, rng: np.random.Generator, length: int) -> Any:
        return rng.random((length, self.noise_size), dtype=np.float32)

    def act(self, obs: Any, state: State, noise: Any = None, conditioning: Any = None) -> ActOutput:
        count = len(state["steps"])
        if noise is None:
            noise = torch.zeros(count, self.noise_size)
        if isinstance(self.action_space, spaces.Discrete):
            action = (noise[:, 0] * int(self.action_space.n)).to(torch.int64)
        else:
            action = 2.0 * noise - 1.0
        if conditioning is not None:
            action = torch.where(conditioning["greedy"], 0, action)
        extras = {"value": self.value(obs, state), "weight": self.weight.expand(count)}
        return ActOutput(action, extras, {"steps": state["steps"] + 1})

    def value(self, obs: Any, state: State, conditioning: Any = None) -> Tensor:
        return state["steps"][:, 0] + self.weight

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        raise NotImplementedError

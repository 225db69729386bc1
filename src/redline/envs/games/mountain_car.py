"""MountainCar-v0 and MountainCarContinuous-v0 (Moore 1990), as Gymnasium has them, in float32.

A car too weak for the slope swings up the valley. The observation is (position, velocity).
Both differ in force, goal, reward and time limit:

| | push | goal | reward | cut after |
|---|---|---|---|---|
| discrete | -0.001, 0, 0.001 | 0.5 | -1 per step | 200 |
| continuous | 0.0015 * action | 0.45 | 100 at the goal, minus 0.1 * action^2 | 999 |
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from redline.envs.games.game import Game, GameState

_LOW, _HIGH, _MAX_SPEED = -1.2, 0.6, 0.07
_SLOPE = 0.0025


class _Valley(Game):
    """What both have in common."""

    reset_draws = 1
    _goal: float

    def __init__(self, device: torch.device | str = "cpu", *, goal_velocity: float = 0.0) -> None:
        super().__init__(device)
        self._goal_velocity = goal_velocity
        low, high = np.array([_LOW, -_MAX_SPEED]), np.array([_HIGH, _MAX_SPEED])
        self.observation_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))

    def reset(self, uniform: Tensor) -> GameState:
        """Position uniform in -0.6 .. -0.4, at rest."""
        position = uniform[0] * 0.2 - 0.6
        return {"position": position, "velocity": torch.zeros_like(position)}

    def _roll(self, state: GameState, push: Tensor) -> tuple[GameState, Tensor]:
        """The state after one step, and whether it is the goal."""
        velocity = state["velocity"] + push
        velocity = torch.sub(velocity, torch.cos(3.0 * state["position"]), alpha=_SLOPE)
        velocity = velocity.clamp_(-_MAX_SPEED, _MAX_SPEED)
        position = (state["position"] + velocity).clamp_(_LOW, _HIGH)
        stopped = (position <= _LOW) & (velocity < 0.0)
        velocity = velocity.masked_fill(stopped, 0.0)
        reached = (position >= self._goal) & (velocity >= self._goal_velocity)
        return {"position": position, "velocity": velocity}, reached

    def observe(self, state: GameState) -> Tensor:
        """[B, 2] float32."""
        return torch.stack((state["position"], state["velocity"]), dim=1)


class MountainCar(_Valley):
    """Push left (0), not at all (1) or right (2).

    Args:
        device: where the tensors are that it will be given.
        goal_velocity: the least velocity that counts as reaching the goal.
    """

    env_id = "redline/MountainCar-v0"
    max_episode_steps = 200
    _goal = 0.5

    def __init__(self, device: torch.device | str = "cpu", *, goal_velocity: float = 0.0) -> None:
        super().__init__(device, goal_velocity=goal_velocity)
        self.action_space = spaces.Discrete(3)

    def step(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One step; costs 1."""
        after, reached = self._roll(state, (action - 1) * 0.001)
        return after, torch.full_like(after["position"], -1.0), reached


class MountainCarContinuous(_Valley):
    """Push by 0.0015 times an action in -1 .. 1.

    Args:
        device: where the tensors are that it will be given.
        goal_velocity: the least velocity that counts as reaching the goal.
    """

    env_id = "redline/MountainCarContinuous-v0"
    max_episode_steps = 999
    _goal = 0.45

    def __init__(self, device: torch.device | str = "cpu", *, goal_velocity: float = 0.0) -> None:
        super().__init__(device, goal_velocity=goal_velocity)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def step(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One step; the goal pays 100, the push costs 0.1 times its square."""
        push = action[:, 0]
        after, reached = self._roll(state, push * 0.0015)
        return after, reached * 100.0 - 0.1 * push.square(), reached

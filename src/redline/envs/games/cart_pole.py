"""CartPole-v1 (Barto, Sutton and Anderson 1983), as Gymnasium has it, in float32.

The observation is (x [m], its velocity [m/s], pole angle [rad], its velocity [rad/s]). The
reward is 1 per step; the episode ends where |x| > 2.4 m or |angle| > 12 degrees, and is cut
after 500 steps.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from redline.envs.games.game import Game, GameState

_GRAVITY = 9.8  # m/s^2
_POLE_MASS, _TOTAL_MASS = 0.1, 1.1  # kg
_HALF_LENGTH = 0.5  # m
_FORCE = 10.0  # N
_TIME_STEP_S = 0.02
_X_LIMIT, _ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360


class CartPole(Game):
    """Balance a pole on a cart by pushing left (0) or right (1)."""

    env_id = "redline/CartPole-v1"
    max_episode_steps = 500
    reset_draws = 4

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        high = np.array([2 * _X_LIMIT, np.inf, 2 * _ANGLE_LIMIT, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, uniform: Tensor) -> GameState:
        """Each of the four uniform in +-0.05."""
        start = uniform * 0.1 - 0.05
        return dict(
            zip(("x", "x_velocity", "angle", "angle_velocity"), start.unbind(), strict=True)
        )

    def step(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One Euler step of 0.02 s."""
        x, angle = state["x"], state["angle"]
        x_velocity, angle_velocity = state["x_velocity"], state["angle_velocity"]
        force = action * (2.0 * _FORCE) - _FORCE
        cos, sin = torch.cos(angle), torch.sin(angle)
        push = torch.addcmul(
            force, angle_velocity.square(), sin, value=_POLE_MASS * _HALF_LENGTH
        ).div_(_TOTAL_MASS)
        inertia = cos.square().mul_(-_HALF_LENGTH * _POLE_MASS / _TOTAL_MASS)
        inertia.add_(_HALF_LENGTH * 4.0 / 3.0)
        angle_acceleration = sin.mul_(_GRAVITY).addcmul_(cos, push, value=-1.0).div_(inertia)
        x_acceleration = push.addcmul_(
            angle_acceleration, cos, value=-_POLE_MASS * _HALF_LENGTH / _TOTAL_MASS
        )
        x = torch.add(x, x_velocity, alpha=_TIME_STEP_S)
        angle = torch.add(angle, angle_velocity, alpha=_TIME_STEP_S)
        after = {
            "x": x,
            "x_velocity": torch.add(x_velocity, x_acceleration, alpha=_TIME_STEP_S),
            "angle": angle,
            "angle_velocity": torch.add(angle_velocity, angle_acceleration, alpha=_TIME_STEP_S),
        }
        terminated = (x.abs() > _X_LIMIT).logical_or_(angle.abs() > _ANGLE_LIMIT)
        return after, torch.ones_like(x), terminated

    def observe(self, state: GameState) -> Tensor:
        """[B, 4] float32."""
        parts = (state["x"], state["x_velocity"], state["angle"], state["angle_velocity"])
        return torch.stack(parts, dim=1)

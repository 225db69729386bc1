"""Pendulum-v1, as Gymnasium has it, in float32.

A rod of 1 m and 1 kg is to stand upright; angle 0 is up. The observation is (cos, sin,
velocity in rad/s), the action a torque within +-2 N m, and the reward
-(angle^2 + 0.1 * velocity^2 + 0.001 * torque^2) of the state before the step, the angle
within +-pi. Never terminal, cut after 200 steps.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from redline.envs.games.game import Game, GameState

_MAX_SPEED, _MAX_TORQUE = 8.0, 2.0  # rad/s, N m
_TIME_STEP_S = 0.05


class Pendulum(Game):
    """Swing up and hold.

    Args:
        device: where the tensors are that it will be given.
        g: acceleration of gravity in m/s^2.
    """

    env_id = "redline/Pendulum-v1"
    max_episode_steps = 200
    reset_draws = 2

    def __init__(self, device: torch.device | str = "cpu", *, g: float = 10.0) -> None:
        super().__init__(device)
        self._gravity = g
        high = np.array([1.0, 1.0, _MAX_SPEED], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Box(-_MAX_TORQUE, _MAX_TORQUE, (1,), np.float32)

    def reset(self, uniform: Tensor) -> GameState:
        """Any angle, velocity uniform in +-1."""
        return {"angle": (uniform[0] * 2.0 - 1.0) * math.pi, "velocity": uniform[1] * 2.0 - 1.0}

    def step(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One step of 0.05 s."""
        angle, velocity, torque = state["angle"], state["velocity"], action[:, 0]
        centered = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        cost = centered.square() + 0.1 * velocity.square() + 0.001 * torque.square()
        acceleration = 1.5 * self._gravity * torch.sin(angle) + 3.0 * torque
        velocity = torch.add(velocity, acceleration, alpha=_TIME_STEP_S)
        velocity = velocity.clamp_(-_MAX_SPEED, _MAX_SPEED)
        angle = torch.add(angle, velocity, alpha=_TIME_STEP_S)
        never = torch.zeros_like(angle, dtype=torch.bool)
        return {"angle": angle, "velocity": velocity}, -cost, never

    def observe(self, state: GameState) -> Tensor:
        """[B, 3] float32."""
        angle = state["angle"]
        return torch.stack((torch.cos(angle), torch.sin(angle), state["velocity"]), dim=1)

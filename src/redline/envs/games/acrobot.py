"""Acrobot-v1 (Sutton 1996), as Gymnasium has it, in float32.

Two links of 1 m and 1 kg hang from a joint; the actuator between them applies -1, 0 or 1
N m. The observation is (cos a1, sin a1, cos a2, sin a2, velocity of a1, of a2) in rad/s,
a2 relative to a1. Each step costs 1 until -cos(a1) - cos(a1 + a2) > 1; cut after 500 steps.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from redline.envs.games.game import Game, GameState

_GRAVITY = 9.8  # m/s^2
_TIME_STEP_S = 0.2
_MAX_VELOCITIES = (4 * math.pi, 9 * math.pi)  # rad/s
_NAMES = ("angle_1", "angle_2", "velocity_1", "velocity_2")


class Acrobot(Game):
    """Swing the free end above the line one link over the joint; actions -1, 0, 1 N m."""

    env_id = "redline/Acrobot-v1"
    max_episode_steps = 500
    reset_draws = 4

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(device)
        high = np.array([1, 1, 1, 1, *_MAX_VELOCITIES], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self.action_space = spaces.Discrete(3)

    def reset(self, uniform: Tensor) -> GameState:
        """Each of the four uniform in +-0.1."""
        return dict(zip(_NAMES, (uniform * 0.2 - 0.1).unbind(), strict=True))

    def step(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One Runge-Kutta step of fourth order and 0.2 s."""
        torque = action.to(torch.float32) - 1.0
        now = torch.stack([state[name] for name in _NAMES])
        k1 = _derivative(now, torque)
        k2 = _derivative(torch.add(now, k1, alpha=_TIME_STEP_S / 2), torque)
        k3 = _derivative(torch.add(now, k2, alpha=_TIME_STEP_S / 2), torque)
        k4 = _derivative(torch.add(now, k3, alpha=_TIME_STEP_S), torque)
        slope = k2.add_(k3).mul_(2.0).add_(k1).add_(k4)
        angle_1, angle_2, velocity_1, velocity_2 = torch.add(
            now, slope, alpha=_TIME_STEP_S / 6
        ).unbind()
        angle_1, angle_2 = _wrapped(angle_1), _wrapped(angle_2)
        velocity_1 = velocity_1.clamp(-_MAX_VELOCITIES[0], _MAX_VELOCITIES[0])
        velocity_2 = velocity_2.clamp(-_MAX_VELOCITIES[1], _MAX_VELOCITIES[1])
        terminated = torch.cos(angle_1) + torch.cos(angle_1 + angle_2) < -1.0
        after = (angle_1, angle_2, velocity_1, velocity_2)
        reward = terminated.to(torch.float32) - 1.0
        return dict(zip(_NAMES, after, strict=True)), reward, terminated

    def observe(self, state: GameState) -> Tensor:
        """[B, 6] float32."""
        first, second = state["angle_1"], state["angle_2"]
        parts = (
            torch.cos(first), torch.sin(first), torch.cos(second), torch.sin(second),
            state["velocity_1"], state["velocity_2"],
        )  # fmt: skip
        return torch.stack(parts, dim=1)


def _derivative(state: Tensor, torque: Tensor) -> Tensor:
    """[4, B] the time derivative of (angles, velocities).

    The equations of motion in Sutton and Barto's book, section 11.3 of the first edition,
    with links of length 1, centers of mass in their middle, and inertia 1.
    """
    angle_1, angle_2, velocity_1, velocity_2 = state.unbind()
    cos_2, sin_2 = torch.cos(angle_2), torch.sin(angle_2)
    d1 = cos_2 + 3.5
    d2 = 0.5 * cos_2 + 1.25
    # cos(a - pi / 2) = sin(a)
    phi_2 = 0.5 * _GRAVITY * torch.sin(angle_1 + angle_2)
    phi_1 = (
        -0.5 * velocity_2 * sin_2 * (velocity_2 + 2.0 * velocity_1)
        + 1.5 * _GRAVITY * torch.sin(angle_1)
        + phi_2
    )
    ratio = d2 / d1
    acceleration_2 = (torque + ratio * phi_1 - 0.5 * velocity_1.square() * sin_2 - phi_2) / (
        1.25 - ratio * d2
    )
    acceleration_1 = -(d2 * acceleration_2 + phi_1) / d1
    return torch.stack([velocity_1, velocity_2, acceleration_1, acceleration_2])


def _wrapped(angle: Tensor) -> Tensor:
    """The same angle in -pi .. pi."""
    return angle - 2 * math.pi * torch.round(angle / (2 * math.pi))

"""What one game supplies: pure functions of tensors, for all environments at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeAlias

import torch
from gymnasium import spaces
from torch import Tensor

from redline.devices import exact_device

GameState: TypeAlias = dict[str, Tensor]
"""Name -> [B, ...] all that the next step depends on."""


class Game(ABC):
    """The rules of one game.

    `reset`, `step` and `observe` keep shapes and dtypes, change nothing in place that they
    were given, and never wait for the device, so that they can be compiled and captured.

    Args:
        device: where the tensors are that it will be given.

    Attributes:
        env_id: as in `ids.GAMES`.
        observation_space: of one environment.
        action_space: of one environment, Discrete from 0 or Box.
        max_episode_steps: truncation after so many steps; None: never.
        reset_draws: how many uniform numbers `reset` takes per environment.
        step_draws: the same of `step`.
    """

    env_id: str
    observation_space: spaces.Box
    action_space: spaces.Discrete | spaces.Box
    max_episode_steps: int | None = None
    reset_draws: int = 0
    step_draws: int = 0

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = exact_device(device)

    @abstractmethod
    def reset(self, uniform: Tensor) -> GameState:
        """The states at the start of an episode.

        Args:
            uniform: [reset_draws, B] float32 in [0, 1).
        """

    @abstractmethod
    def step(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One step everywhere.

        Args:
            state: name -> [B, ...].
            action: [B] int64 in 0 .. n - 1, or [B, ...] float32 within the bounds.
            uniform: [step_draws, B] float32 in [0, 1).

        Returns:
            The next state, the reward [B] float32 and whether it is terminal [B] bool.
        """

    @abstractmethod
    def observe(self, state: GameState) -> Tensor:
        """[B, ...] the observations, in the dtype of the observation space."""

    def _constant(self, values: Any, dtype: torch.dtype) -> Tensor:
        """A table on the device, made once: making it in `step` would wait for a copy."""
        return torch.tensor(values, dtype=dtype, device=self.device)


def pick(mask: Tensor, chosen: Tensor, other: Tensor) -> Tensor:
    """`chosen` in the rows of `mask` [B], else `other`; both [B or 1, ...]."""
    return torch.where(mask.view(-1, *([1] * (other.dim() - 1))), chosen, other)


def pick_state(mask: Tensor, chosen: GameState, other: GameState) -> GameState:
    """The same for each part of a state."""
    return {name: pick(mask, chosen[name], leaf) for name, leaf in other.items()}


def whole_number(uniform: Tensor, n: int) -> Tensor:
    """int32 in 0 .. n - 1 from numbers in [0, 1) of 24 bits: u * n never rounds up to n."""
    return (uniform * n).to(torch.int32)

"""What the five games after MinAtar share (Young and Tian 2019, arXiv:1903.03176).

Sticky actions 0.1, difficulty ramping and the minimal action set, as in the paper.
Observations are uint8 [C, 10, 10], one channel per kind of object, 1 where there is one.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from redline.envs.games.game import Game, GameState
from redline.errors import ConfigError

NONE, LEFT, UP, RIGHT, DOWN, FIRE = range(6)
SIZE = 10  # cells along each side of the board
CELLS = SIZE * SIZE


class MinAtarGame(Game):
    """A game on a board of 10 x 10 cells.

    Args:
        device: where the tensors are that it will be given.
        sticky_action_prob: probability of repeating the last action.
        difficulty_ramping: let games grow harder.

    Attributes:
        actions: what each of the game's actions is, of NONE .. FIRE.
        num_channels: C.

    Raises:
        ConfigError: if the probability is none.
    """

    actions: tuple[int, ...]
    num_channels: int

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        sticky_action_prob: float = 0.1,
        difficulty_ramping: bool = True,
    ) -> None:
        super().__init__(device)
        if not 0.0 <= sticky_action_prob <= 1.0:
            raise ConfigError(f"sticky_action_prob={sticky_action_prob} must be in [0, 1].")
        self._sticky, self.ramping = sticky_action_prob, difficulty_ramping
        self._meaning = self._constant(self.actions, torch.int64)
        shape = (self.num_channels, SIZE, SIZE)
        self.observation_space = spaces.Box(0, 1, shape, dtype=np.uint8)
        self.action_space = spaces.Discrete(len(self.actions))

    def reset(self, uniform: Tensor) -> GameState:
        """A new game; the last action is none."""
        return {**self.begin(uniform), "last_action": none_of(uniform, dtype=torch.int64)}

    def step(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One frame; the first draw decides whether the last action is repeated."""
        meant = self._meaning[action]
        action = torch.where(uniform[0] < self._sticky, state["last_action"], meant)
        after, reward, terminated = self.advance(state, action, uniform[1:])
        return {**after, "last_action": action}, reward, terminated

    @abstractmethod
    def begin(self, uniform: Tensor) -> GameState:
        """The states at the start of a game; `uniform` is [reset_draws, B]."""

    @abstractmethod
    def advance(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One frame; `action` [B] of NONE .. FIRE, `uniform` [step_draws - 1, B]."""

    def board(self, *places: Tensor) -> Tensor:
        """[B, C * 100] uint8 that is 1 at each of `places` and 0 elsewhere.

        Args:
            places: [B] or [B, K] int32, channel * 100 + 10 * y + x.
        """
        columns = [place if place.dim() == 2 else place.unsqueeze(1) for place in places]
        index = torch.cat(columns, dim=1).long()
        empty = torch.zeros(
            len(index), self.num_channels * CELLS, dtype=torch.uint8, device=index.device
        )
        return empty.scatter_(1, index, 1)

    def shaped(self, board: Tensor) -> Tensor:
        """[B, C, 10, 10] of [B, C * 100]."""
        return board.view(-1, self.num_channels, SIZE, SIZE)


def full(uniform: Tensor, value: int) -> Tensor:
    """[B] int32 for draws [n, B], also where n = 0."""
    return torch.full((uniform.shape[1],), value, dtype=torch.int32, device=uniform.device)


def none_of(uniform: Tensor, *shape: int, dtype: torch.dtype = torch.bool) -> Tensor:
    """[B, *shape] zeros for draws [n, B]."""
    return torch.zeros(uniform.shape[1], *shape, dtype=dtype, device=uniform.device)


def sideways(x: Tensor, action: Tensor) -> Tensor:
    """The column after LEFT or RIGHT, kept on the board."""
    return (x + (action == RIGHT).int() - (action == LEFT).int()).clamp_(0, SIZE - 1)


def count_down(timer: Tensor) -> Tensor:
    """One less, down to 0."""
    return (timer - 1).clamp_(min=0)

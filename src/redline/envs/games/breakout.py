"""Breakout after MinAtar: break the three rows of bricks with a ball that a paddle keeps up.

Channels: paddle, ball, trail (where the ball was), bricks. A brick pays 1. The game is over
when the ball gets past the paddle; cleared rows come back when the ball is down.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redline.envs.games.game import GameState
from redline.envs.games.minatar_game import (
    CELLS,
    LEFT,
    NONE,
    RIGHT,
    SIZE,
    MinAtarGame,
    full,
    none_of,
    sideways,
)

_PADDLE, _BALL, _TRAIL, _BRICK = range(4)
_FIRST_ROW, _ROWS = 1, 3  # of bricks
_BRICKS = _ROWS * SIZE
_BOTTOM = SIZE - 1


class Breakout(MinAtarGame):
    """Directions of the ball: 0 up left, 1 up right, 2 down right, 3 down left.

    So a side wall turns d into d ^ 1, a floor or ceiling d into d ^ 3, both d into d ^ 2.
    """

    env_id = "redline/Breakout-v1"
    actions = (NONE, LEFT, RIGHT)
    num_channels = 4
    reset_draws = 1
    step_draws = 1

    def begin(self, uniform: Tensor) -> GameState:
        """The ball starts at either side, on its way down and inwards."""
        right = (uniform[0] * 2).int()
        x, y = 9 * right, full(uniform, 3)
        return {
            "ball_x": x,
            "ball_y": y,
            "last_x": x,
            "last_y": y,
            "direction": 2 + right,
            "paddle": full(uniform, 4),
            "bricks": ~none_of(uniform, _BRICKS),
            "strike": none_of(uniform),
        }

    def advance(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One frame."""
        paddle = sideways(state["paddle"], action)
        last_x, last_y, direction = state["ball_x"], state["ball_y"], state["direction"]
        goes_right = (direction == 1) | (direction == 2)
        x = last_x + 2 * goes_right.int() - 1
        y = last_y + (direction & 2) - 1
        at_wall = (x < 0) | (x >= SIZE)
        x = x.clamp(0, SIZE - 1)
        direction = direction ^ at_wall.int()

        at_ceiling = y < 0
        brick = ((y - _FIRST_ROW) * SIZE + x).long()
        among = (brick >= 0) & (brick < _BRICKS)
        brick = brick.clamp_(0, _BRICKS - 1).unsqueeze(1)
        on_brick = among & state["bricks"].gather(1, brick).squeeze(1)
        struck = on_brick & ~state["strike"]
        bricks = state["bricks"].scatter(
            1, brick, state["bricks"].gather(1, brick) & ~struck.unsqueeze(1)
        )
        down = y == _BOTTOM
        bricks = bricks | (down & ~bricks.any(1)).unsqueeze(1)
        straight = down & (last_x == paddle)
        corner = down & ~straight & (x == paddle)

        direction = direction ^ (3 * (at_ceiling | struck | straight).int()) ^ (2 * corner.int())
        y = torch.where(struck | straight | corner, last_y, y).masked_fill(at_ceiling, 0)
        after = {
            "ball_x": x,
            "ball_y": y,
            "last_x": last_x,
            "last_y": last_y,
            "direction": direction,
            "paddle": paddle,
            "bricks": bricks,
            # A ball that stays among bricks breaks only the first of them.
            "strike": on_brick,
        }
        return after, struck.float(), down & ~straight & ~corner

    def observe(self, state: GameState) -> Tensor:
        """[B, 4, 10, 10] uint8."""
        board = self.board(
            _PADDLE * CELLS + _BOTTOM * SIZE + state["paddle"],
            _BALL * CELLS + SIZE * state["ball_y"] + state["ball_x"],
            _TRAIL * CELLS + SIZE * state["last_y"] + state["last_x"],
        )
        first = _BRICK * CELLS + _FIRST_ROW * SIZE
        board[:, first : first + _BRICKS] = state["bricks"]
        return self.shaped(board)

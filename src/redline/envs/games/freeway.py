"""Freeway after MinAtar: cross eight lanes of traffic, again and again, for 2,500 frames.

Channels: chicken, car, and the cell behind a car in one of five channels for how often it
moves. Each crossing pays 1 and gives the cars new speeds; a car sends the chicken back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redline.envs.games.game import GameState, whole_number
from redline.envs.games.minatar_game import (
    CELLS,
    DOWN,
    NONE,
    SIZE,
    UP,
    MinAtarGame,
    count_down,
    full,
    none_of,
)

_CHICKEN, _CAR = range(2)
_CARS, _SPEEDS = 8, 5
_COLUMN, _START = 4, SIZE - 1  # of the chicken
_REST, _TIME_LIMIT = 3, 2500  # frames


class Freeway(MinAtarGame):
    """Car i drives in row i + 1; its speed is signed, and moves it every |speed| + 1 frames.

    Draws of a reset: 8 speeds, 8 directions; of a step: sticky, and the same again.
    Difficulty does not ramp in this game.
    """

    env_id = "redline/Freeway-v1"
    actions = (NONE, UP, DOWN)
    num_channels = 7
    reset_draws = 2 * _CARS
    step_draws = 1 + 2 * _CARS

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._row = self._constant(range(1, _CARS + 1), torch.int32)

    def begin(self, uniform: Tensor) -> GameState:
        """All cars at the left edge."""
        speed = _speeds(uniform)
        return {
            "position": full(uniform, _START),
            "rest": full(uniform, _REST),
            "frames_left": full(uniform, _TIME_LIMIT),
            "car_x": none_of(uniform, _CARS, dtype=torch.int32),
            "car_timer": speed.abs(),
            "car_speed": speed,
        }

    def advance(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One frame."""
        position, rest = state["position"], state["rest"]
        vertical = (action == DOWN).int() - (action == UP).int()
        walks = (vertical != 0) & (rest == 0)
        position = (position + vertical * walks).clamp_(0, SIZE - 1)
        rest = rest.masked_fill(walks, _REST)

        crossed = position == 0
        fresh = _speeds(uniform)
        speed = torch.where(crossed.unsqueeze(1), fresh, state["car_speed"])
        timer = torch.where(crossed.unsqueeze(1), fresh.abs(), state["car_timer"])
        position = position.masked_fill(crossed, _START)

        # Only the car in the chicken's row can hit it, before or after it has moved.
        x, moves = state["car_x"], timer == 0
        in_row = self._row == position.unsqueeze(1)
        hit = in_row & (x == _COLUMN)
        x = torch.where(moves, torch.remainder(x + speed.sign(), SIZE), x)
        hit = hit | (in_row & (x == _COLUMN))
        position = position.masked_fill(hit.any(1), _START)
        frames_left = state["frames_left"] - 1
        after = {
            "position": position,
            "rest": count_down(rest),
            "frames_left": frames_left,
            "car_x": x,
            "car_timer": torch.where(moves, speed.abs(), timer - 1),
            "car_speed": speed,
        }
        return after, crossed.float(), frames_left < 0

    def observe(self, state: GameState) -> Tensor:
        """[B, 7, 10, 10] uint8."""
        speed, x = state["car_speed"], state["car_x"]
        row = SIZE * self._row
        behind = row + torch.remainder(x - speed.sign(), SIZE)
        return self.shaped(
            self.board(
                _CHICKEN * CELLS + SIZE * state["position"] + _COLUMN,
                _CAR * CELLS + row + x,
                (_CAR + speed.abs()) * CELLS + behind,
            )
        )


def _speeds(uniform: Tensor) -> Tensor:
    """[B, 8] int32 in +-1 .. +-5 from draws [16, B].

    The original gives a car no direction at all where its draw is exactly 1/2; here that
    car drives to the right.
    """
    speed = 1 + whole_number(uniform[:_CARS], _SPEEDS)
    return torch.where(uniform[_CARS:] < 0.5, -speed, speed).t().contiguous()

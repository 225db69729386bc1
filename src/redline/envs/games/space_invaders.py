"""Space Invaders after MinAtar: shoot the aliens before they come down.

Channels: cannon, alien, alien moving left, alien moving right, own bullet, enemy bullet.
An alien pays 1. The fewer are left the faster they move, and each wave begins a little
faster. An alien or a bullet that reaches the cannon, or aliens at the bottom, end the game.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redline.envs.games.game import GameState, pick
from redline.envs.games.minatar_game import (
    FIRE,
    LEFT,
    NONE,
    RIGHT,
    SIZE,
    MinAtarGame,
    count_down,
    full,
    none_of,
    sideways,
)

_BOTTOM = SIZE - 1
_COOL_DOWN, _SHOT_INTERVAL = 5, 10  # frames
_MOVE_INTERVAL, _LEAST_MOVE_INTERVAL = 12, 6
_FAR = 1000  # more than any distance on the board


class SpaceInvaders(MinAtarGame):
    """Nothing but the sticky actions is left to chance."""

    env_id = "redline/SpaceInvaders-v1"
    actions = (NONE, LEFT, RIGHT, FIRE)
    num_channels = 6
    step_draws = 1

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._line = self._constant(range(SIZE), torch.int32)
        wave = torch.zeros(1, SIZE, SIZE, dtype=torch.bool)
        wave[:, 0:4, 2:8] = True
        self._wave = wave.to(self.device)

    def begin(self, uniform: Tensor) -> GameState:
        """A full wave, on its way to the left."""
        empty = none_of(uniform, SIZE, SIZE)
        return {
            "cannon": full(uniform, 5),
            "aliens": empty | self._wave,
            "bullets": empty,
            "enemy_bullets": empty,
            "direction": full(uniform, -1),
            "move_interval": full(uniform, _MOVE_INTERVAL),
            "move_timer": full(uniform, _MOVE_INTERVAL),
            "enemy_shot_timer": full(uniform, _SHOT_INTERVAL),
            "shot_timer": full(uniform, 0),
        }

    def advance(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One frame."""
        cannon = sideways(state["cannon"], action)
        here = self._line == cannon.unsqueeze(1)  # [B, 10] the cannon's column
        fires = (action == FIRE) & (state["shot_timer"] == 0)
        shot_timer = state["shot_timer"].masked_fill(fires, _COOL_DOWN)

        # A new bullet starts in the bottom row and leaves it at once, with all the others.
        bullets = torch.zeros_like(state["bullets"])
        bullets[:, :-1] = state["bullets"][:, 1:]
        bullets[:, _BOTTOM - 1] |= here & fires.unsqueeze(1)
        enemy_bullets = torch.zeros_like(state["enemy_bullets"])
        enemy_bullets[:, 1:] = state["enemy_bullets"][:, :-1]
        over = (enemy_bullets[:, _BOTTOM] & here).any(1)

        aliens, direction, move_timer, landed = _march(state, here)
        over = over | landed

        shoots = state["enemy_shot_timer"] == 0
        enemy_bullets = enemy_bullets | (
            self._nearest_alien(aliens, cannon) & shoots.view(-1, 1, 1)
        )
        killed = aliens & bullets
        aliens, bullets = aliens & ~killed, bullets & ~killed
        cleared = ~aliens.flatten(1).any(1)
        interval = state["move_interval"]
        if self.ramping:
            interval = interval - (cleared & (interval > _LEAST_MOVE_INTERVAL)).int()
        after = {
            "cannon": cannon,
            "aliens": pick(cleared, self._wave, aliens),
            "bullets": bullets,
            "enemy_bullets": enemy_bullets,
            "direction": direction,
            "move_interval": interval,
            "move_timer": move_timer - 1,
            "enemy_shot_timer": (state["enemy_shot_timer"].masked_fill(shoots, _SHOT_INTERVAL) - 1),
            "shot_timer": count_down(shot_timer),
        }
        return after, killed.flatten(1).sum(1).float(), over

    def _nearest_alien(self, aliens: Tensor, cannon: Tensor) -> Tensor:
        """[B, 10, 10] bool: the lowest alien of the nearest column, the left one of two."""
        columns = aliens.any(1)
        offset = self._line - cannon.unsqueeze(1)
        distance = 2 * offset.abs() + (offset > 0).int()
        column = torch.where(columns, distance, _FAR).argmin(1)
        in_column = aliens & (self._line == column.unsqueeze(1)).unsqueeze(1)
        row = torch.where(in_column.any(2), self._line, -1).amax(1)
        return in_column & (self._line == row.unsqueeze(1)).unsqueeze(2)

    def observe(self, state: GameState) -> Tensor:
        """[B, 6, 10, 10] uint8."""
        aliens, cannon = state["aliens"], state["cannon"]
        leftwards = (state["direction"] < 0).view(-1, 1, 1)
        board = torch.empty(
            len(cannon), self.num_channels, SIZE, SIZE, dtype=torch.uint8, device=cannon.device
        )
        board[:, 0, :_BOTTOM].zero_()
        board[:, 0, _BOTTOM] = self._line == cannon.unsqueeze(1)
        board[:, 1] = aliens
        board[:, 2] = aliens & leftwards
        board[:, 3] = aliens & ~leftwards
        board[:, 4] = state["bullets"]
        board[:, 5] = state["enemy_bullets"]
        return board


def _march(state: GameState, here: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Move the aliens where their timer is up.

    Args:
        state: before the frame.
        here: [B, 10] the cannon's column.

    Returns:
        Aliens [B, 10, 10], direction [B], timer [B], and whether one has come too far [B].
    """
    aliens, direction = state["aliens"], state["direction"]
    over = (aliens[:, _BOTTOM] & here).any(1)
    moves = state["move_timer"] == 0
    at_left, at_right = aliens[:, :, 0].any(1), aliens[:, :, -1].any(1)
    turns = moves & ((at_left & (direction < 0)) | (at_right & (direction > 0)))
    over = over | (turns & aliens[:, _BOTTOM].any(1))
    slid = pick(direction < 0, aliens.roll(-1, 2), aliens.roll(1, 2))
    moved = pick(turns, aliens.roll(1, 1), slid)
    left = aliens.flatten(1).sum(1, dtype=torch.int32)
    timer = torch.where(moves, torch.minimum(left, state["move_interval"]), state["move_timer"])
    aliens = pick(moves, moved, aliens)
    over = over | (moves & (aliens[:, _BOTTOM] & here).any(1))
    return aliens, torch.where(turns, -direction, direction), timer, over

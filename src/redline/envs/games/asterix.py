"""Asterix after MinAtar: collect treasure that comes from the sides, avoid the enemies.

Channels: player, enemy, trail (the cell behind a moving thing), gold. Gold pays 1, touching
an enemy ends the game. Row i + 1 holds at most one thing, slot i. Things come and move
faster with time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redline.envs.games.game import GameState
from redline.envs.games.minatar_game import (
    CELLS,
    DOWN,
    LEFT,
    NONE,
    RIGHT,
    SIZE,
    UP,
    MinAtarGame,
    full,
    none_of,
    sideways,
)

_PLAYER, _ENEMY, _TRAIL, _GOLD = range(4)
_SLOTS = 8
_SPAWN_INTERVAL, _MOVE_INTERVAL, _RAMP_INTERVAL = 10, 5, 100


class Asterix(MinAtarGame):
    """Draws of a step: sticky, direction, gold or enemy, slot."""

    env_id = "redline/Asterix-v1"
    actions = (NONE, LEFT, UP, RIGHT, DOWN)
    num_channels = 4
    step_draws = 4

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._slot = self._constant(range(_SLOTS), torch.int32)

    def begin(self, uniform: Tensor) -> GameState:
        """The player in the middle, no things yet."""
        return {
            "player_x": full(uniform, 5),
            "player_y": full(uniform, 5),
            "x": none_of(uniform, _SLOTS, dtype=torch.int32),
            "present": none_of(uniform, _SLOTS),
            "rightwards": none_of(uniform, _SLOTS),
            "gold": none_of(uniform, _SLOTS),
            "spawn_interval": full(uniform, _SPAWN_INTERVAL),
            "spawn_timer": full(uniform, _SPAWN_INTERVAL),
            "move_interval": full(uniform, _MOVE_INTERVAL),
            "move_timer": full(uniform, _MOVE_INTERVAL),
            "ramp_timer": full(uniform, _RAMP_INTERVAL),
            "ramp_index": full(uniform, 0),
        }

    def advance(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One frame."""
        after = dict(state)
        self._spawn(after, uniform)
        after["player_x"] = sideways(state["player_x"], action)
        vertical = (action == DOWN).int() - (action == UP).int()
        # Steps along the edge rows 0 and 9 are not possible: nothing comes along there.
        after["player_y"] = (state["player_y"] + vertical).clamp_(1, _SLOTS)
        reward, caught = self._touch(after)
        moves = (after["move_timer"] == 0).unsqueeze(1) & after["present"]
        direction = 2 * after["rightwards"].int() - 1
        after["x"] = x = after["x"] + direction * moves
        after["present"] = after["present"] & (x >= 0) & (x < SIZE)
        # Where nothing moved, what the player stood on is gone or has already ended the game.
        more, caught_later = self._touch(after)
        after["move_timer"] = torch.where(
            after["move_timer"] == 0, after["move_interval"], after["move_timer"]
        )
        after["spawn_timer"] = after["spawn_timer"] - 1
        after["move_timer"] = after["move_timer"] - 1
        if self.ramping:
            _ramp(after)
        return after, reward + more, caught | caught_later

    def _spawn(self, state: GameState, uniform: Tensor) -> None:
        """Where the timer is up: a thing in a free slot chosen at random, if there is one."""
        due = state["spawn_timer"] == 0
        free = ~state["present"]
        rank = free.cumsum(1)
        count = rank[:, -1]
        chosen = (uniform[2] * count).long() + 1
        here = free & (rank == chosen.unsqueeze(1)) & due.unsqueeze(1)
        rightwards = (uniform[0] < 0.5).unsqueeze(1)
        gold = (uniform[1] < 1 / 3).unsqueeze(1)
        state["x"] = torch.where(here, torch.where(rightwards, 0, SIZE - 1), state["x"]).int()
        state["rightwards"] = torch.where(here, rightwards, state["rightwards"])
        state["gold"] = torch.where(here, gold, state["gold"])
        state["present"] = state["present"] | here
        state["spawn_timer"] = torch.where(due, state["spawn_interval"], state["spawn_timer"])

    def _touch(self, state: GameState) -> tuple[Tensor, Tensor]:
        """Take gold where the player is; the reward, and whether an enemy is there."""
        row = self._slot == (state["player_y"] - 1).unsqueeze(1)
        here = row & state["present"] & (state["x"] == state["player_x"].unsqueeze(1))
        taken = here & state["gold"]
        state["present"] = state["present"] & ~taken
        return taken.any(1).float(), (here & ~state["gold"]).any(1)

    def observe(self, state: GameState) -> Tensor:
        """[B, 4, 10, 10] uint8."""
        player = SIZE * state["player_y"] + state["player_x"] + _PLAYER * CELLS
        at = SIZE * (self._slot + 1) + state["x"]
        behind_x = state["x"] - (2 * state["rightwards"].int() - 1)
        behind = _TRAIL * CELLS + at - state["x"] + behind_x
        shown = state["present"] & (behind_x >= 0) & (behind_x < SIZE)
        kind = torch.where(state["gold"], _GOLD * CELLS, _ENEMY * CELLS).int()
        # What is absent is drawn where the player is, who is always there.
        nowhere = player.unsqueeze(1)
        return self.shaped(
            self.board(
                player,
                torch.where(state["present"], kind + at, nowhere),
                torch.where(shown, behind, nowhere),
            )
        )


def _ramp(state: GameState) -> None:
    """Every 101 frames things come sooner, and every second time they move sooner."""
    spawn, move, index = state["spawn_interval"], state["move_interval"], state["ramp_index"]
    can = (spawn > 1) | (move > 1)
    harder = can & (state["ramp_timer"] < 0)
    timer = state["ramp_timer"] - can.int()
    state["ramp_timer"] = torch.where(harder, _RAMP_INTERVAL, timer).int()
    state["move_interval"] = move - (harder & (move > 1) & (index % 2 == 1)).int()
    state["spawn_interval"] = spawn - (harder & (spawn > 1)).int()
    state["ramp_index"] = index + harder.int()

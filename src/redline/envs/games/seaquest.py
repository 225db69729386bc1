"""Seaquest after MinAtar: a submarine hunts fish and submarines, saves divers, needs air.

Channels: submarine front, submarine back, own bullet, trail (the cell behind a moving
thing), enemy bullet, enemy fish, enemy submarine, oxygen gauge, diver gauge, diver. An
enemy shot pays 1; surfacing with six divers pays a tenth of the oxygen left, 0 .. 10.
Surfacing without a diver, lack of oxygen, and any touch of an enemy end the game.

The original keeps its objects in lists. Here they have slots, as many as there can be:

| objects | slots | why no more fit in |
|---|---|---|
| own bullets | 2 | one per 5 frames, gone after at most 9 |
| divers | 2 | one per 30 frames, gone after 60 |
| enemies | 30 | at best one per frame, and 10 moves of 3 frames to cross |
| enemy bullets | a board per direction | their order does not matter |

Where the order in a list decides what happens, that is kept: own bullets and divers lie in
the order in which they came, and enemies carry the frame in which they did.
"""

from __future__ import annotations

import torch
from torch import Tensor

from redline.envs.games.game import GameState, whole_number
from redline.envs.games.minatar_game import (
    CELLS,
    DOWN,
    FIRE,
    LEFT,
    NONE,
    RIGHT,
    SIZE,
    UP,
    MinAtarGame,
    count_down,
    full,
    none_of,
    sideways,
)

_FRONT, _BACK, _BULLET, _TRAIL, _ENEMY_BULLET, _FISH, _SUB, _OXYGEN, _SAVED, _DIVER = range(10)
_PAIR, _ENEMIES = 2, 30  # slots
_MAX_OXYGEN, _MAX_SAVED = 200, 6
_COOL_DOWN, _ENEMY_COOL_DOWN = 5, 10  # frames
_ENEMY_INTERVAL, _DIVER_INTERVAL = 20, 30  # frames between arrivals
_MOVE_INTERVAL, _LEAST_MOVE_INTERVAL, _DIVER_MOVE_INTERVAL = 5, 2, 5
_NEVER = 1 << 30  # later than any frame


class Seaquest(MinAtarGame):
    """Draws of a step: sticky; the enemy's direction, kind and row; the diver's, without kind."""

    env_id = "redline/Seaquest-v1"
    actions = (NONE, LEFT, UP, RIGHT, DOWN, FIRE)
    num_channels = 10
    step_draws = 6

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._slot = self._constant(range(_ENEMIES), torch.int32)
        self._pair = self._constant(range(_PAIR), torch.int32)
        self._line = self._constant(range(SIZE), torch.int32)

    def begin(self, uniform: Tensor) -> GameState:
        """At the surface with all the oxygen, alone."""
        whole = torch.int32
        return {
            "x": full(uniform, 5),
            "y": full(uniform, 0),
            "rightwards": none_of(uniform),
            "oxygen": full(uniform, _MAX_OXYGEN),
            "saved": full(uniform, 0),
            "surfaced": ~none_of(uniform),
            "shot_timer": full(uniform, 0),
            "frame": full(uniform, 0),
            "enemy_interval": full(uniform, _ENEMY_INTERVAL),
            "enemy_timer": full(uniform, _ENEMY_INTERVAL),
            "diver_timer": full(uniform, _DIVER_INTERVAL),
            "move_interval": full(uniform, _MOVE_INTERVAL),
            "ramp_index": full(uniform, 0),
            "bullet_present": none_of(uniform, _PAIR),
            "bullet_x": none_of(uniform, _PAIR, dtype=whole),
            "bullet_y": none_of(uniform, _PAIR, dtype=whole),
            "bullet_rightwards": none_of(uniform, _PAIR),
            "diver_present": none_of(uniform, _PAIR),
            "diver_x": none_of(uniform, _PAIR, dtype=whole),
            "diver_y": none_of(uniform, _PAIR, dtype=whole),
            "diver_rightwards": none_of(uniform, _PAIR),
            "diver_move_timer": none_of(uniform, _PAIR, dtype=whole),
            "enemy_present": none_of(uniform, _ENEMIES),
            "enemy_x": none_of(uniform, _ENEMIES, dtype=whole),
            "enemy_y": none_of(uniform, _ENEMIES, dtype=whole),
            "enemy_rightwards": none_of(uniform, _ENEMIES),
            "enemy_is_sub": none_of(uniform, _ENEMIES),
            "enemy_move_timer": none_of(uniform, _ENEMIES, dtype=whole),
            "enemy_shot_timer": none_of(uniform, _ENEMIES, dtype=whole),
            "enemy_born": none_of(uniform, _ENEMIES, dtype=whole),
            "enemy_bullets": none_of(uniform, 2, SIZE, SIZE),
        }

    def advance(
        self, state: GameState, action: Tensor, uniform: Tensor
    ) -> tuple[GameState, Tensor, Tensor]:
        """One frame, in the original's order."""
        after = dict(state)
        self._spawn_enemy(after, uniform[:3])
        self._spawn_diver(after, uniform[3:])
        self._move_player(after, action)
        reward = self._move_bullets(after)
        _move_divers(after)
        hits, over = self._move_enemies(after, among_subs=True)
        over = over | _move_enemy_bullets(after)
        more_hits, caught = self._move_enemies(after, among_subs=False)
        reward = reward + hits + more_hits
        _close_gap(after, "bullet", ("x", "y", "rightwards"))
        for timer in ("enemy_timer", "diver_timer", "shot_timer"):
            after[timer] = count_down(after[timer])
        prize, drowned = _breathe(after, ramping=self.ramping)
        after["frame"] = after["frame"] + 1
        return after, (reward + prize).float(), over | caught | drowned

    def _spawn_enemy(self, state: GameState, uniform: Tensor) -> None:
        """Unless something comes the other way in the row that was drawn."""
        due = state["enemy_timer"] == 0
        rightwards = uniform[0] < 0.5
        row = 1 + whole_number(uniform[2], 8)
        against = (state["enemy_y"] == row.unsqueeze(1)) & (
            state["enemy_rightwards"] != rightwards.unsqueeze(1)
        )
        spawns = due & ~(against & state["enemy_present"]).any(1)
        slot = state["enemy_present"].int().argmin(1)
        here = (self._slot == slot.unsqueeze(1)) & spawns.unsqueeze(1)
        for name, value in (
            ("x", torch.where(rightwards, 0, SIZE - 1).int()),
            ("y", row),
            ("rightwards", rightwards),
            ("is_sub", uniform[1] < 1 / 3),
            ("move_timer", state["move_interval"]),
            ("shot_timer", torch.full_like(row, _ENEMY_COOL_DOWN)),
            ("born", state["frame"]),
        ):
            key = f"enemy_{name}"
            state[key] = torch.where(here, value.unsqueeze(1), state[key])
        state["enemy_present"] = state["enemy_present"] | here
        state["enemy_timer"] = torch.where(due, state["enemy_interval"], state["enemy_timer"])

    def _spawn_diver(self, state: GameState, uniform: Tensor) -> None:
        due = state["diver_timer"] == 0
        rightwards = uniform[0] < 0.5
        row = 1 + whole_number(uniform[1], 8)
        slot = state["diver_present"].int().sum(1)
        here = (self._pair == slot.unsqueeze(1)) & due.unsqueeze(1)
        for name, value in (
            ("x", torch.where(rightwards, 0, SIZE - 1).int()),
            ("y", row),
            ("rightwards", rightwards),
            ("move_timer", torch.full_like(row, _DIVER_MOVE_INTERVAL)),
        ):
            key = f"diver_{name}"
            state[key] = torch.where(here, value.unsqueeze(1), state[key])
        state["diver_present"] = state["diver_present"] | here
        state["diver_timer"] = state["diver_timer"].masked_fill(due, _DIVER_INTERVAL)

    def _move_player(self, state: GameState, action: Tensor) -> None:
        fires = (action == FIRE) & (state["shot_timer"] == 0)
        slot = state["bullet_present"].int().sum(1)
        here = (self._pair == slot.unsqueeze(1)) & fires.unsqueeze(1)
        for name in ("x", "y", "rightwards"):
            key = f"bullet_{name}"
            state[key] = torch.where(here, state[name].unsqueeze(1), state[key])
        state["bullet_present"] = state["bullet_present"] | here
        state["shot_timer"] = state["shot_timer"].masked_fill(fires, _COOL_DOWN)
        left, right = action == LEFT, action == RIGHT
        state["x"] = sideways(state["x"], action)
        state["rightwards"] = (state["rightwards"] | right) & ~left
        vertical = (action == DOWN).int() - (action == UP).int()
        state["y"] = (state["y"] + vertical).clamp_(0, SIZE - 2)

    def _move_bullets(self, state: GameState) -> Tensor:
        """The player's own: one cell on, the newer first; returns how many hit [B] int32.

        A bullet takes the oldest fish in its cell, or else the oldest submarine.
        """
        state["bullet_x"] = x = state["bullet_x"] + 2 * state["bullet_rightwards"].int() - 1
        state["bullet_present"] = state["bullet_present"] & (x >= 0) & (x < SIZE)
        present, order = state["enemy_present"], state["enemy_born"]
        order = order + (_NEVER // 2) * state["enemy_is_sub"].int()
        hits = torch.zeros_like(state["x"])
        for slot in reversed(range(_PAIR)):
            candidates = present & self._at_bullet(state, slot)
            hit = candidates.any(1)
            oldest = torch.where(candidates, order, _NEVER).argmin(1)
            present = present & ~((self._slot == oldest.unsqueeze(1)) & hit.unsqueeze(1))
            state["bullet_present"] = _without(state["bullet_present"], slot, hit)
            hits = hits + hit.int()
        state["enemy_present"] = present
        return hits

    def _move_enemies(self, state: GameState, *, among_subs: bool) -> tuple[Tensor, Tensor]:
        """Submarines or fish: move, run into the player or into bullets; submarines shoot.

        Returns:
            How many ran into bullets [B] int32, and whether one touched the player [B].
        """
        kind = state["enemy_is_sub"] if among_subs else ~state["enemy_is_sub"]
        mine = state["enemy_present"] & kind
        player_x, player_y = state["x"].unsqueeze(1), state["y"].unsqueeze(1)
        in_row = mine & (state["enemy_y"] == player_y)
        touches = in_row & (state["enemy_x"] == player_x)
        moves = mine & (state["enemy_move_timer"] == 0)
        direction = 2 * state["enemy_rightwards"].int() - 1
        state["enemy_x"] = x = state["enemy_x"] + direction * moves
        state["enemy_move_timer"] = torch.where(
            moves, state["move_interval"].unsqueeze(1), state["enemy_move_timer"] - mine.int()
        )
        present = state["enemy_present"] & (x >= 0) & (x < SIZE)
        at_player = in_row & (x == player_x)
        meets, hits = moves & present & ~at_player, torch.zeros_like(state["x"])
        for slot in range(_PAIR):
            candidates = meets & present & self._at_bullet(state, slot)
            hit = candidates.any(1)
            # The newest comes first: the original goes through its list from the end.
            newest = torch.where(candidates, state["enemy_born"], -1).argmax(1)
            struck = (self._slot == newest.unsqueeze(1)) & hit.unsqueeze(1)
            present = present & ~struck
            state["bullet_present"] = _without(state["bullet_present"], slot, hit)
            hits = hits + hit.int()
        state["enemy_present"] = present
        if among_subs:
            # Also one that was struck in this very frame still shoots, as in the original.
            self._shoot(state, mine)
        return hits, (touches | (moves & at_player)).any(1)

    def _at_bullet(self, state: GameState, slot: int) -> Tensor:
        """[B, 30] bool: the enemies in the cell of the bullet in `slot`, if there is one."""
        return (
            state["bullet_present"][:, slot, None]
            & (state["enemy_x"] == state["bullet_x"][:, slot, None])
            & (state["enemy_y"] == state["bullet_y"][:, slot, None])
        )

    def _shoot(self, state: GameState, mine: Tensor) -> None:
        """Submarines whose timer is up leave a bullet where they are."""
        x = state["enemy_x"]
        shoots = mine & (state["enemy_shot_timer"] == 0)
        lands = shoots & (x >= 0) & (x < SIZE)
        place = CELLS * state["enemy_rightwards"].int() + SIZE * state["enemy_y"] + x
        # One cell more than the boards have takes what is not there.
        place = torch.where(lands, place, 2 * CELLS).long()
        fired = torch.zeros(len(x), 2 * CELLS + 1, dtype=torch.bool, device=x.device)
        fired = fired.scatter_(1, place, True)[:, :-1].view_as(state["enemy_bullets"])
        state["enemy_bullets"] = state["enemy_bullets"] | fired
        state["enemy_shot_timer"] = torch.where(
            shoots, _ENEMY_COOL_DOWN, state["enemy_shot_timer"] - mine.int()
        ).int()

    def observe(self, state: GameState) -> Tensor:
        """[B, 10, 10, 10] uint8."""
        front = SIZE * state["y"] + state["x"]
        back = _BACK * CELLS + front + 1 - 2 * state["rightwards"].int()
        nowhere = front.unsqueeze(1)  # what is absent is drawn where the player is
        places = [front, back]
        kinds = torch.where(state["enemy_is_sub"], _SUB * CELLS, _FISH * CELLS).int()
        for name, channel in (
            ("bullet", _BULLET * CELLS),
            ("diver", _DIVER * CELLS),
            ("enemy", kinds),
        ):
            present, x = state[f"{name}_present"], state[f"{name}_x"]
            at = SIZE * state[f"{name}_y"] + x
            places.append(torch.where(present, channel + at, nowhere))
            if name != "bullet":
                step = 1 - 2 * state[f"{name}_rightwards"].int()
                shown = present & (x + step >= 0) & (x + step < SIZE)
                places.append(torch.where(shown, _TRAIL * CELLS + at + step, nowhere))
        board = self.shaped(self.board(*places))
        board[:, _ENEMY_BULLET] = state["enemy_bullets"].any(1)
        tenths = state["oxygen"].clamp(min=0) * SIZE // _MAX_OXYGEN
        board[:, _OXYGEN, -1] = self._line < tenths.unsqueeze(1)
        saved = (self._line >= SIZE - 1 - state["saved"].unsqueeze(1)) & (self._line < SIZE - 1)
        board[:, _SAVED, -1] = saved
        return board


def _without(present: Tensor, slot: int, gone: Tensor) -> Tensor:
    """`present` [B, 2] after what was in `slot` has vanished in the rows `gone` [B]."""
    columns = list(present.unbind(1))
    columns[slot] = columns[slot] & ~gone
    return torch.stack(columns, dim=1)


def _close_gap(state: GameState, kind: str, parts: tuple[str, ...]) -> None:
    """Move the second of a pair up where the first is gone."""
    present = state[f"{kind}_present"]
    moves_up = present[:, 1] & ~present[:, 0]
    state[f"{kind}_present"] = torch.stack(
        [present[:, 0] | moves_up, present[:, 1] & ~moves_up], dim=1
    )
    for part in parts:
        value = state[f"{kind}_{part}"]
        first = torch.where(moves_up, value[:, 1], value[:, 0])
        state[f"{kind}_{part}"] = torch.stack([first, value[:, 1]], dim=1)


def _move_divers(state: GameState) -> None:
    """Saved where the player is, before or after a move; the newer first."""
    for slot in reversed(range(_PAIR)):
        present, x = state["diver_present"][:, slot], state["diver_x"][:, slot]
        in_row = present & (state["diver_y"][:, slot] == state["y"])
        room = state["saved"] < _MAX_SAVED
        saved_before = in_row & (x == state["x"]) & room
        swims = present & ~saved_before
        timer = state["diver_move_timer"][:, slot]
        moves = swims & (timer == 0)
        x = x + (2 * state["diver_rightwards"][:, slot].int() - 1) * moves
        saved = saved_before | (moves & in_row & (x == state["x"]) & room)
        timer = torch.where(moves, _DIVER_MOVE_INTERVAL, timer - swims.int()).int()
        state["saved"] = state["saved"] + saved.int()
        gone = saved | (x < 0) | (x >= SIZE)
        state["diver_present"] = _without(state["diver_present"], slot, gone)
        for name, value in (("diver_x", x), ("diver_move_timer", timer)):
            columns = list(state[name].unbind(1))
            columns[slot] = value
            state[name] = torch.stack(columns, dim=1)
    _close_gap(state, "diver", ("x", "y", "rightwards", "move_timer"))


def _move_enemy_bullets(state: GameState) -> Tensor:
    """One cell on; returns whether one touches the player before or after that [B]."""
    bullets = state["enemy_bullets"]
    place = (SIZE * state["y"] + state["x"]).long().unsqueeze(1)
    before = bullets.any(1).flatten(1).gather(1, place)
    moved = torch.zeros_like(bullets)
    moved[:, 0, :, :-1] = bullets[:, 0, :, 1:]
    moved[:, 1, :, 1:] = bullets[:, 1, :, :-1]
    state["enemy_bullets"] = moved
    return (before | moved.any(1).flatten(1).gather(1, place)).squeeze(1)


def _breathe(state: GameState, *, ramping: bool) -> tuple[Tensor, Tensor]:
    """Oxygen, and what happens at the surface.

    Returns:
        The prize for six divers [B] int32, and whether the player drowned [B].

    As in the original, surfacing with six divers leaves their number at -1.
    """
    oxygen, saved = state["oxygen"], state["saved"]
    below = state["y"] > 0
    drowned = oxygen <= 0
    arrives = ~below & ~state["surfaced"]
    drowned = drowned | (arrives & (saved == 0))
    relieved = arrives & (saved != 0)
    complete = relieved & (saved == _MAX_SAVED)
    prize = torch.where(complete, oxygen * 10 // _MAX_OXYGEN, 0).int()
    state["oxygen"] = (oxygen - below.int()).masked_fill(relieved, _MAX_OXYGEN)
    state["saved"] = saved.masked_fill(complete, 0) - relieved.int()
    state["surfaced"] = (state["surfaced"] | relieved) & ~below
    if ramping:
        spawn, move, index = state["enemy_interval"], state["move_interval"], state["ramp_index"]
        can_move = move > _LEAST_MOVE_INTERVAL
        harder = relieved & ((spawn > 1) | can_move)
        state["move_interval"] = move - (harder & can_move & (index % 2 == 1)).int()
        state["enemy_interval"] = spawn - (harder & (spawn > 1)).int()
        state["ramp_index"] = index + harder.int()
    return prize, drowned

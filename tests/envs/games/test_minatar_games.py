"""The five games step by step against the MinAtar package, with the same random numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from redline.envs.games.game import Game, pick_state
from redline.envs.games.native import make_game
from redline.errors import ConfigError
from tests.envs.games.minatar_twins import ORIGINAL_NAMES, Twin

B = 8


class Duel:
    """B of our games and B originals, with the same actions and the same draws."""

    def __init__(
        self, env_id: str, seed: int, *, sticky: float = 0.1, ramping: bool = True
    ) -> None:
        kwargs = {"sticky_action_prob": sticky, "difficulty_ramping": ramping}
        self.game: Game = make_game(env_id, "cpu", kwargs)
        self.twins = [Twin(env_id, sticky, ramping) for _ in range(B)]
        self.rng = np.random.default_rng(seed)
        self.seen: Counter[str] = Counter()
        self.all_rightwards = False
        self.state = self.game.reset(self._begin(range(B)))

    def draw(self, count: int) -> np.ndarray:
        """[count, B] numbers of 24 bits, as the device draws them."""
        return (self.rng.integers(0, 1 << 24, (count, B)) * 2.0**-24).astype(np.float32)

    def _begin(self, which: Any) -> torch.Tensor:
        draws = self.draw(self.game.reset_draws)
        for i in which:
            self.twins[i].reset(draws[:, i])
        return torch.from_numpy(draws)

    def step(self, choose: Any) -> None:
        """One frame everywhere; raises where anything differs from the original."""
        draws = self.draw(self.game.step_draws)
        if self.all_rightwards:
            draws[1] /= 2  # the direction of what spawns
        chosen = [choose(self, i, draws[:, i]) for i in range(B)]
        self.state, reward, terminated = self.game.step(
            self.state, torch.tensor(chosen), torch.from_numpy(draws)
        )
        meanings = self.game.actions  # type: ignore[attr-defined]
        theirs = [
            twin.act(meanings[action], draws[:, i])
            for i, (twin, action) in enumerate(zip(self.twins, chosen, strict=True))
        ]
        assert reward.tolist() == [row[0] for row in theirs]
        assert terminated.tolist() == [row[1] for row in theirs]
        self.compare()
        self.seen["reward"] += int(reward.sum())
        self.seen["most reward"] = max(self.seen["most reward"], int(reward.max()))
        self.seen["ends"] += int(terminated.sum())
        if terminated.any():
            fresh = self.game.reset(self._begin(np.flatnonzero(terminated.numpy())))
            self.state = pick_state(terminated, fresh, self.state)
            self.compare()

    def compare(self) -> None:
        theirs = np.stack([twin.observe() for twin in self.twins])
        ours = self.game.observe(self.state)
        assert ours.dtype == torch.uint8
        np.testing.assert_array_equal(ours.numpy(), theirs)

    def put(self, i: int, **values: int) -> None:
        """Set parts of our state and of the original's alike: ours__theirs=value."""
        for name, value in values.items():
            ours, _, theirs = name.partition("__")
            self.put_ours(ours, i, value)
            setattr(self.twins[i].outer.env, theirs or ours, value)

    def put_ours(self, name: str, i: int, value: Any) -> None:
        self.state[name] = self.state[name].clone()
        self.state[name][i] = torch.as_tensor(value)


def at_random(duel: Duel, i: int, row: np.ndarray) -> int:
    return int(duel.rng.integers(int(duel.game.action_space.n)))  # type: ignore[union-attr]


def with_care(duel: Duel, i: int, row: np.ndarray) -> int:
    """At random, but not an action that ends the game at once, if there is another one."""
    order = duel.rng.permutation(int(duel.game.action_space.n)).tolist()  # type: ignore[union-attr]
    meanings = duel.game.actions  # type: ignore[attr-defined]
    for action in order:
        if duel.twins[i].survives(meanings[action], row):
            return action
    return order[0]


@pytest.mark.parametrize("env_id", ORIGINAL_NAMES)
@pytest.mark.parametrize(("sticky", "ramping"), [(0.1, True), (0.5, False)])
def test_random_play_equals_the_original(env_id: str, sticky: float, ramping: bool) -> None:
    duel = Duel(env_id, 1, sticky=sticky, ramping=ramping)
    duel.compare()
    for _ in range(500):
        duel.step(at_random)
    assert duel.seen["ends"] > 20 or env_id == "redline/Freeway-v1"


def test_long_games_of_asterix_grow_harder_as_in_the_original() -> None:
    duel = Duel("redline/Asterix-v1", 2)
    hardest = 0
    for _ in range(1000):
        duel.step(with_care)
        hardest = max(hardest, max(twin.outer.env.ramp_index for twin in duel.twins))
        assert duel.state["ramp_index"].tolist() == [t.outer.env.ramp_index for t in duel.twins]
    assert hardest >= 4
    assert duel.seen["reward"] > 50


def test_the_hardest_asterix_equals_the_original() -> None:
    """Everything comes and moves in every frame; often all rows are full."""
    duel = Duel("redline/Asterix-v1", 3)
    for t in range(400):
        if t % 20 == 0:
            for i in range(B):
                duel.put(
                    i, spawn_interval__spawn_speed=1, move_interval__move_speed=1 + t % 3,
                    spawn_timer=1,
                )  # fmt: skip
        duel.step(with_care)
    assert duel.seen["ends"] > 0


def test_breakout_cleared_again_and_again_equals_the_original() -> None:
    """The paddle follows the ball, and now and then all but a few bricks are taken away."""

    def follow(duel: Duel, i: int, row: np.ndarray) -> int:
        env = duel.twins[i].outer.env
        ahead = duel.rng.choice((0, 1 if env.ball_dir in (1, 2) else -1))
        aim = np.clip(env.ball_x + ahead, 0, 9)
        return 0 if aim == env.pos else 1 if aim < env.pos else 2

    duel = Duel("redline/Breakout-v1", 4, sticky=0.0)
    cleared = 0
    for t in range(1200):
        if t % 100 == 0:
            for i in range(B):
                bricks = duel.rng.random((3, 10)) < 0.1
                duel.twins[i].outer.env.brick_map[1:4] = bricks
                duel.put_ours("bricks", i, bricks.reshape(-1))
        before = duel.state["bricks"].sum(1)
        duel.step(follow)
        cleared += int(((duel.state["bricks"].sum(1) == 30) & (before == 0)).sum())
    assert cleared >= 10


def test_freeway_to_the_time_limit_equals_the_original() -> None:
    """2,501 frames of a chicken that mostly walks up: crossings, collisions, and the end."""

    def walk(duel: Duel, i: int, row: np.ndarray) -> int:
        return int(duel.rng.choice(3, p=[0.1, 0.8, 0.1]))

    duel = Duel("redline/Freeway-v1", 5)
    for _ in range(2501):
        duel.step(walk)
    assert duel.seen["ends"] == B
    assert duel.seen["reward"] > 100


def test_whole_waves_of_space_invaders_equal_the_original() -> None:
    def hunt(duel: Duel, i: int, row: np.ndarray) -> int:
        if duel.rng.random() < 0.4 and duel.twins[i].survives(5, row):
            return 3
        return with_care(duel, i, row)

    duel = Duel("redline/SpaceInvaders-v1", 6)
    fastest = 12
    for t in range(800):
        if t % 100 == 50:  # only a few aliens left, so that waves end and later ones come
            for i in range(B):
                left = duel.twins[i].outer.env.alien_map * (duel.rng.random((10, 10)) < 0.3)
                if left.any():
                    duel.twins[i].outer.env.alien_map = left
                    duel.put_ours("aliens", i, left.astype(bool))
        duel.step(hunt)
        intervals = [twin.outer.env.enemy_move_interval for twin in duel.twins]
        assert duel.state["move_interval"].tolist() == intervals
        fastest = min(fastest, *intervals)
    assert fastest <= 9
    assert duel.seen["reward"] > 200


def test_long_games_of_seaquest_equal_the_original() -> None:
    """Careful play, with divers enough on board now and then to surface with some or with six."""
    duel = Duel("redline/Seaquest-v1", 7)
    hardest = 0
    for t in range(1500):
        if t % 150 == 75:
            for i in range(B):
                # At the surface without leaving it, a diver more or less changes nothing yet.
                duel.put(i, saved__diver_count=(1, 3, 6, 6, 5, 2, 6, 4)[i])
        duel.step(with_care)
        envs = [twin.outer.env for twin in duel.twins]
        assert duel.state["saved"].tolist() == [env.diver_count for env in envs]
        assert duel.state["oxygen"].tolist() == [env.oxygen for env in envs]
        assert duel.state["ramp_index"].tolist() == [env.ramp_index for env in envs]
        hardest = max(hardest, *(env.ramp_index for env in envs))
    assert hardest >= 3
    assert duel.seen["most reward"] >= 5  # surfacing with six divers pays by the oxygen left


def test_seaquest_at_its_fullest_equals_the_original() -> None:
    """An enemy in every frame, at the highest speed: all thirty slots are taken.

    The player stays at the surface, where nothing can touch it, and shoots along row 0; from
    time to time one of them dives into the crowd.
    """

    def stay_up(duel: Duel, i: int, row: np.ndarray) -> int:
        if i % 2 and duel.rng.random() < 0.05:
            return with_care(duel, i, row)
        return int(duel.rng.choice((0, 1, 3, 5)))

    duel = Duel("redline/Seaquest-v1", 8)
    duel.all_rightwards = True  # else what comes the other way keeps some from coming
    most = most_bullets = most_divers = 0
    for _ in range(300):
        for i in range(B):
            if duel.twins[i].outer.env.e_spawn_speed == 20:  # a new game
                duel.put(
                    i, enemy_interval__e_spawn_speed=1, enemy_timer__e_spawn_timer=1,
                    move_interval__move_speed=2,
                )  # fmt: skip
        duel.step(stay_up)
        envs = [twin.outer.env for twin in duel.twins]
        counts = [len(env.e_fish) + len(env.e_subs) for env in envs]
        assert duel.state["enemy_present"].sum(1).tolist() == counts
        most = max(most, *counts)
        most_bullets = max(most_bullets, *(len(env.f_bullets) for env in envs))
        most_divers = max(most_divers, *(len(env.divers) for env in envs))
    assert (most, most_bullets, most_divers) == (
        29,
        2,
        2,
    )  # one more comes in the next frame before one leaves


def test_seaquest_among_a_crowd_of_targets_equals_the_original() -> None:
    """Diving below with an enemy every other frame: bullets, ties and deaths of all kinds."""

    def shoot(duel: Duel, i: int, row: np.ndarray) -> int:
        meanings = duel.game.actions  # type: ignore[attr-defined]
        if duel.rng.random() < 0.5 and duel.twins[i].survives(meanings[5], row):
            return 5
        return with_care(duel, i, row)

    duel = Duel("redline/Seaquest-v1", 9)
    for _ in range(600):
        for i in range(B):
            if duel.twins[i].outer.env.e_spawn_speed > 2:
                duel.put(i, enemy_interval__e_spawn_speed=2, move_interval__move_speed=2)
        duel.step(shoot)
    assert duel.seen["reward"] > 150
    assert duel.seen["ends"] > 10


def test_a_probability_outside_0_and_1_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sticky_action_prob=1.5 must be in \[0, 1\]"):
        make_game("redline/Breakout-v1", "cpu", {"sticky_action_prob": 1.5})


def test_unknown_arguments_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"\['size'\] are unknown to redline/Freeway-v1"):
        make_game("redline/Freeway-v1", "cpu", {"size": 3})

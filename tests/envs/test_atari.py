"""Atari protocols: one game in process, ALE's vector environment, and the resize."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.envs import make_vec, single_env
from redline.envs.atari import PRESETS, AreaResize, AtariGame, id_of_today
from redline.errors import ActionError, ConfigError, EnvError, UnknownNameError
from tests.envs.recording import check_plain, draw_actions, record
from tests.envs.test_snapshot import go_on

BREAKOUT = "ALE/Breakout-v5"


def overlap_mean(image: np.ndarray) -> np.ndarray:
    """The definition, with fractions in float64 and one target pixel at a time."""
    height, width = image.shape
    out = np.zeros((84, 84))
    for y in range(84):
        for x in range(84):
            top, bottom = y * height / 84, (y + 1) * height / 84
            left, right = x * width / 84, (x + 1) * width / 84
            rows = np.arange(int(top), int(np.ceil(bottom - 1e-9)))
            columns = np.arange(int(left), int(np.ceil(right - 1e-9)))
            down = np.minimum(rows + 1, bottom) - np.maximum(rows, top)
            across = np.minimum(columns + 1, right) - np.maximum(columns, left)
            part = image[np.ix_(rows, columns)]
            out[y, x] = down @ part @ across / (down.sum() * across.sum())
    return out


@pytest.mark.parametrize("shape", [(210, 160), (250, 160), (84, 84)])
def test_area_resize_is_the_overlap_weighted_mean(shape: tuple[int, int]) -> None:
    """FAULTS 14: a resize whose interpolation flag is misplaced."""
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    kept = image.copy()
    resized = AreaResize(*shape)(image)
    assert resized.dtype == np.uint8
    assert np.abs(resized - overlap_mean(image)).max() <= 0.5 + 1e-9
    np.testing.assert_array_equal(image, kept)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 255))
def test_area_resize_keeps_a_flat_image(gray: int) -> None:
    resized = AreaResize(210, 160)(np.full((210, 160), gray, dtype=np.uint8))
    np.testing.assert_array_equal(resized, np.full((84, 84), gray))


@pytest.mark.parametrize("backend", ["gymnasium", "ale"])
@pytest.mark.parametrize(("preset", "num_actions"), [("dqn-2015", 4), ("machado-2018", 18)])
def test_protocols_set_spaces_and_frame_skip(backend: str, preset: str, num_actions: int) -> None:
    with make_vec(BREAKOUT, 2, backend=backend, preset=preset) as env:
        assert env.preset == preset
        assert env.frame_skip == 4
        assert env.action_space == gymnasium.spaces.Discrete(num_actions)
        obs = env.reset(0)
        assert obs.shape == (2, 4, 84, 84)
        assert obs.dtype == np.uint8
        assert obs.max() > 100  # not scaled


def test_ale_is_chosen_for_games_and_dqn_2015_is_the_default() -> None:
    with make_vec(BREAKOUT, 1) as env:
        assert (env.backend, env.preset) == ("ale", "dqn-2015")


@pytest.mark.parametrize("backend", ["gymnasium", "ale"])
def test_lost_lives_and_clipped_rewards_leave_the_score(backend: str) -> None:
    """FAULTS 12. Breakout has five lives: four ends for the learner alone, then the game's."""
    with make_vec(BREAKOUT, 1, backend=backend) as env:
        env.reset(0)
        ends, total, records, rng = 0, 0.0, [], np.random.default_rng(0)
        while not records:
            step = env.step(rng.integers(0, 4, 1))
            total += float(step.reward[0])
            assert step.reward[0] in (0.0, 1.0)
            if step.terminated[0]:
                ends += 1
                assert step.final_obs is not None
                if not step.episodes:  # the game goes on: nothing was reset
                    np.testing.assert_array_equal(step.final_obs, step.obs)
                else:
                    assert not np.array_equal(step.final_obs, step.obs)
            records += step.episodes
        assert ends == 5
        assert records[0].return_ >= total


def test_the_sum_of_raw_rewards_is_the_score() -> None:
    """Seaquest gives 20 a hit, which the learner sees as 1."""
    with make_vec("ALE/Seaquest-v5", 1, backend="gymnasium") as env:
        env.reset(1)
        hits, rng, records = 0.0, np.random.default_rng(0), []
        while not records:
            step = env.step(draw_actions(env, rng))
            hits += float(step.reward[0])
            records += step.episodes
    assert hits > 0
    assert records[0].return_ == 20.0 * hits


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("backend", ["gymnasium", "ale"])
def test_games_go_on_bit_for_bit(backend: str, preset: str) -> None:
    def make() -> Any:
        return make_vec(BREAKOUT, 2, backend=backend, preset=preset)

    assert make().restorable is None
    go_on(make(), make(), 60, 60)


def test_ale_games_go_on_past_ends_and_with_journals_of_unequal_length() -> None:
    """About 130 steps a game, so that after 150 the journals differ and some games are new."""
    go_on(make_vec(BREAKOUT, 3), make_vec(BREAKOUT, 3), 150, 30)


def test_ale_goes_on_from_the_step_in_which_a_game_ended() -> None:
    """Its journal is empty and it has just been reset."""
    first, second = make_vec(BREAKOUT, 2), make_vec(BREAKOUT, 2)
    first.reset(0)
    rng = np.random.default_rng(0)
    while not first.step(draw_actions(first, rng)).episodes:
        pass
    state = first.state_dict()
    check_plain(state)
    assert 0 in state["simulators"]["journal"]["length"]
    second.load_state_dict(state)
    assert record(second, 20, seed=1) == record(first, 20, seed=1)
    first.close()
    second.close()


def test_a_changed_ale_journal_is_found_out() -> None:
    env = make_vec("ALE/Pong-v5", 1)
    env.reset(0)
    record(env, 30, seed=0)
    state = env.state_dict()
    state["simulators"]["obs"][0, 0, 0, 0] ^= 1
    with pytest.raises(EnvError, match="did not reproduce the saved observation"):
        env.load_state_dict(state)
    env.close()


def test_ale_streams_depend_on_the_environments_index_alone() -> None:
    """FAULTS 24."""
    whole, part = make_vec(BREAKOUT, 3), make_vec(BREAKOUT, 1, first_env_id=2)
    np.testing.assert_array_equal(whole.reset(5)[2:], part.reset(5))
    rng = np.random.default_rng(0)
    for _ in range(170):  # past the end of a game
        action = draw_actions(whole, rng)
        a, b = whole.step(action), part.step(action[2:])
        np.testing.assert_array_equal(a.obs[2:], b.obs)
        np.testing.assert_array_equal(a.terminated[2:], b.terminated)
        assert [record for record in a.episodes if record.env_id == 2] == b.episodes
    whole.close()
    part.close()


def test_actions_ale_would_hang_on_are_refused() -> None:
    """ALE's threads die of an action number out of range, and the caller waits for ever."""
    with make_vec(BREAKOUT, 2) as env:
        env.reset(0)
        with pytest.raises(ActionError, match="environment 1: action is 4"):
            env.step(np.array([0, 4]))


def test_sticky_actions_repeat_a_quarter_of_the_frames() -> None:
    game = make_vec(BREAKOUT, 1, backend="gymnasium", preset="machado-2018")
    game.reset(0)
    inner = game._backend._envs[0]
    played = []
    ale = inner._ale

    class Watching:
        def act(self, action: Any) -> int:
            played.append(action)
            return ale.act(action)

        def __getattr__(self, name: str) -> Any:
            return getattr(ale, name)

    inner._ale = Watching()
    for t in range(200):
        inner.step(2 + t % 2)  # alternating, so that a repeated action can be told
    wanted = [inner._actions[2 + t % 2] for t in range(200)]
    repeated = [action != want for action, want in zip(played[::4], wanted, strict=True)]
    assert 0.15 < np.mean(repeated) < 0.35


def test_what_a_protocol_fixes_cannot_be_set() -> None:
    with pytest.raises(ConfigError, match="fixed by the preset"):
        make_vec(BREAKOUT, 1, backend="gymnasium", env_kwargs={"frameskip": 2})
    with pytest.raises(ConfigError, match="cannot be given to the ale back end"):
        make_vec(BREAKOUT, 1, env_kwargs={"mode": 4})
    with make_vec(BREAKOUT, 1, backend="gymnasium", env_kwargs={"mode": 4}) as env:
        env.reset(0)


def test_unknown_games_and_presets_are_named() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'ALE/Breakout-v5'"):
        make_vec("ALE/Brekout-v5", 1)
    with pytest.raises(UnknownNameError, match="Choose one of dqn-2015, machado-2018"):
        make_vec(BREAKOUT, 1, preset="dqn-2016")


@pytest.mark.parametrize("backend", ["auto", "gymnasium", "processes", "envpool"])
def test_an_id_with_its_module_is_the_same_game(backend: str) -> None:
    """`module:Id` is Gymnasium's own notation; the game was given raw, 210 x 160 x 3."""
    with make_vec("ale_py:ALE/Breakout-v5", 1, backend=backend) as env:
        env.reset(0)
        assert env.observation_space.shape == (4, 84, 84)
        assert env.frame_skip == 4
        assert env.backend == ("ale" if backend == "auto" else backend)


@pytest.mark.parametrize(
    ("old", "today"), [("BreakoutNoFrameskip-v4", BREAKOUT), ("MsPacman-v0", "ALE/MsPacman-v5")]
)
def test_an_old_id_of_a_game_is_told_of_the_one_of_today(old: str, today: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{today}'"):
        raise single_env._unknown(old, "not registered")
    assert id_of_today(f"ale_py:{old}") == today
    assert id_of_today(today) is None
    assert id_of_today("CartPole-v1") is None


def test_a_sticky_game_outside_the_protocols_says_that_it_cannot_be_restored() -> None:
    def make() -> Any:
        import ale_py

        gymnasium.register_envs(ale_py)
        return gymnasium.make("ALE/Pong-v5", obs_type="ram")

    env = make_vec(make, 1)
    env.reset(0)
    assert "Use the preset 'machado-2018'" in str(env.restorable)
    with pytest.raises(EnvError, match="sticky actions"):
        env.state_dict()


@pytest.mark.parametrize("backend", ["gymnasium", "ale", "envpool"])
def test_rewards_and_lives_as_asked_for_in_place_of_the_protocols(backend: str) -> None:
    """Seaquest gives 20 a hit and has 4 lives; R2D1 wants the score itself, and whole games.

    A death costs no more than the learner's discount, and the last one ends both episodes.
    """
    with make_vec(
        "ALE/Seaquest-v5", 1, backend=backend, clip_reward=False, episodic_life=False
    ) as env:
        env.reset(0)
        ends, total, records, rng = 0, 0.0, [], np.random.default_rng(0)
        while not records:
            step = env.step(draw_actions(env, rng))
            total += float(step.reward[0])
            ends += int(step.terminated[0])
            records += step.episodes
    assert total == records[0].return_ >= 20.0
    assert ends == 1


@pytest.mark.parametrize("backend", ["gymnasium", "ale", "envpool"])
def test_clipping_changes_what_is_learned_from_and_not_the_score(backend: str) -> None:
    """FAULTS 12: the same game twice; a hit of 20 is 1 to the learner, and 20 in the return."""

    def game(clip_reward: bool) -> tuple[np.ndarray, float]:
        with make_vec(
            "ALE/Seaquest-v5", 1, backend=backend, clip_reward=clip_reward, episodic_life=False
        ) as env:
            env.reset(0)
            rewards, records, rng = [], [], np.random.default_rng(0)
            while not records:
                step = env.step(draw_actions(env, rng))
                rewards.append(float(step.reward[0]))
                records += step.episodes
        return np.array(rewards), records[0].return_

    (score, whole), (clipped, counted) = game(False), game(True)
    np.testing.assert_array_equal(clipped, np.sign(score))
    assert counted == whole == score.sum() >= 20.0
    assert clipped.sum() < score.sum()


@pytest.mark.parametrize("skip", [1, 2, 5])
def test_frames_are_skipped_as_asked_for(skip: int) -> None:
    """The same in ALE's own environment and one by one: one frame of 0, 40 frames later."""
    screens = []
    for backend in ("gymnasium", "ale"):
        with make_vec(
            "ALE/Pong-v5", 1, backend=backend, frame_skip=skip, noop_max=0, sticky_actions=0.0
        ) as env:
            assert env.frame_skip == skip
            env.reset(0)
            for _ in range(40):
                step = env.step(np.zeros(1, np.int64))
            screens.append(step.obs[0].astype(np.int16))
    # OpenCV rounds the means of ALE's own environment a little differently.
    assert np.abs(screens[0] - screens[1]).max() <= 2
    assert screens[0].std() > 1.0


class Bands:
    """A game whose frame n shows one bright band, the n-th; it is over after 7 frames."""

    frame = 0

    def act(self, action: Any) -> int:
        self.frame += 1
        return 0

    def game_over(self, with_truncation: bool = True) -> bool:
        return self.frame >= 7

    def getScreenGrayscale(self, out: np.ndarray) -> None:  # noqa: N802 (ALE's own name)
        out[:] = 0
        out[:, 20 * self.frame : 20 * self.frame + 20] = 255

    def getScreenDims(self) -> tuple[int, int]:  # noqa: N802 (ALE's own name)
        return 210, 160

    def lives(self) -> int:
        return 0

    def game_truncated(self) -> bool:
        return False


def test_a_game_that_ends_in_the_last_frame_but_one_shows_nothing_of_the_step_before() -> None:
    """Frames 3 and 4 of the first step were shown once more, beside frame 7 of the second."""
    game = SimpleNamespace(
        ale=Bands(), get_action_meanings=lambda: ["NOOP"], _action_set=[0], render_mode=None,
        metadata={}, spec=None, reset=lambda **_: None,
    )  # fmt: skip
    atari = AtariGame(game, PRESETS["machado-2018"])
    atari.reset(seed=0)

    def bands(obs: np.ndarray) -> list[int]:
        return [n for n in range(8) if obs[-1][:, int(10.5 * n) + 5].max()]

    assert bands(atari.step(0)[0]) == [3, 4]
    assert bands(atari.step(0)[0]) == [7]


def test_no_ops_and_sticky_actions_as_asked_for() -> None:
    """Without either, two games with seeds of their own are one game; with one of them, two."""

    def differ(**settings: Any) -> bool:
        with make_vec(
            "ALE/Pong-v5",
            2,
            backend="gymnasium",
            **{"noop_max": 0, "sticky_actions": 0.0} | settings,
        ) as env:
            env.reset(0)
            rng = np.random.default_rng(0)
            for _ in range(30):
                step = env.step(np.full(2, rng.integers(0, 6)))
            return not np.array_equal(step.obs[0], step.obs[1])

    assert not differ()
    assert differ(noop_max=30)
    assert differ(sticky_actions=0.5)


def test_what_was_asked_for_leaves_the_protocol_and_its_saved_games_alone() -> None:
    def make() -> Any:
        return make_vec(
            BREAKOUT, 2, preset="machado-2018", episodic_life=True, noop_max=10, frame_skip=3
        )

    with make() as env:
        assert (env.preset, env.frame_skip) == ("machado-2018", 3)
        assert env.action_space == gymnasium.spaces.Discrete(18)
    go_on(make(), make(), 40, 40)

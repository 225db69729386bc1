"""The in-process back end and the layers above every back end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from redline.data import EpisodeRecord
from redline.envs import make_vec
from redline.envs.backends.env_loop import EnvLoop
from redline.envs.batched import BatchedEnv
from redline.errors import ConfigError, EnvDataError, EnvError
from tests.envs.scripted import Counting, Faulty, Lives

ZERO = np.zeros(2, dtype=np.int64)


def test_the_last_observation_and_the_next_first_one_are_kept_apart() -> None:
    """FAULTS 2: the reset observation was used as the successor of an episode's last step.

    Length 2: after step 2 the episode's successor is (0, 2), to act on is (1, 0).
    """
    env = make_vec(lambda: Counting(length=2), 2)
    np.testing.assert_array_equal(env.reset(0), [[0, 0], [0, 0]])
    first = env.step(ZERO)
    assert first.final_obs is None
    np.testing.assert_array_equal(first.obs, [[0, 1], [0, 1]])
    second = env.step(ZERO)
    np.testing.assert_array_equal(second.obs, [[1, 0], [1, 0]])
    np.testing.assert_array_equal(second.final_obs, [[0, 2], [0, 2]])
    assert second.terminated.all()
    assert not second.truncated.any()
    assert second.valid.all()


def test_truncation_is_not_termination() -> None:
    """FAULTS 1: truncation treated as termination, or its reward altered."""
    env = make_vec(lambda: Counting(length=2, end="truncated"), 2)
    env.reset(0)
    env.step(ZERO)
    step = env.step(ZERO)
    assert step.truncated.all()
    assert not step.terminated.any()
    np.testing.assert_array_equal(step.reward, [2, 2])


def test_time_limit_of_a_registered_environment_truncates() -> None:
    env = make_vec("Pendulum-v1", 2)
    env.reset(0)
    zero = np.zeros((2, 1), dtype=np.float32)
    for _ in range(199):
        step = env.step(zero)
        assert not step.truncated.any()
    step = env.step(zero)
    assert step.truncated.all()
    assert not step.terminated.any()
    assert [record.length for record in step.episodes] == [200, 200]


def test_episodes_are_recorded_with_stable_ids() -> None:
    """FAULTS 21: rows that cannot be traced to their env once one has ended.

    Rewards 1 + 2 of a length-2 episode, 1 + 2 + 3 of a length-3 one; environment 5 is the
    first of this part of the batch.
    """
    lengths = iter([2, 3, 1])  # the third is only looked at
    env = make_vec(lambda: Counting(length=next(lengths)), 2, first_env_id=5)
    env.reset(0)
    records = [record for _ in range(6) for record in env.step(ZERO).episodes]
    assert records == [
        EpisodeRecord(env_id=5, episode_id=0, return_=3.0, length=2),
        EpisodeRecord(env_id=6, episode_id=0, return_=6.0, length=3),
        EpisodeRecord(env_id=5, episode_id=1, return_=3.0, length=2),
        EpisodeRecord(env_id=5, episode_id=2, return_=3.0, length=2),
        EpisodeRecord(env_id=6, episode_id=1, return_=6.0, length=3),
    ]


def test_clipped_rewards_leave_the_score_alone() -> None:
    """FAULTS 12: rewards clamped silently; the clipped return reported as the game score."""
    env = make_vec(lambda: Counting(length=2, reward=-7.5), 2, clip_reward=True)
    env.reset(0)
    np.testing.assert_array_equal(env.step(ZERO).reward, [-1, -1])
    step = env.step(ZERO)
    assert [record.return_ for record in step.episodes] == [-15.0, -15.0]


def test_rewards_are_not_clipped_unless_asked() -> None:
    env = make_vec(lambda: Counting(length=9, reward=-7.5), 2)
    env.reset(0)
    np.testing.assert_array_equal(env.step(ZERO).reward, np.float32([-7.5, -7.5]))


def test_a_lost_life_ends_the_learners_episode_but_not_the_game() -> None:
    """Lives 3, one lost every second step: the learner sees ends at t = 2, 4, 6, the game at 6."""
    loop = EnvLoop(Lives, 1, env_id="Lives")
    env = BatchedEnv(loop, "Lives", clip_reward=True, episodic_life=True)
    env.reset(0)
    ends, records = [], []
    for t in range(1, 9):
        step = env.step(np.zeros(1, dtype=np.int64))
        ends.append(bool(step.terminated[0]))
        records += step.episodes
        assert not step.truncated[0]
        assert step.reward[0] == -1.0
        if t in (2, 4):
            np.testing.assert_array_equal(step.obs, [[0, t]])  # no reset
            np.testing.assert_array_equal(step.final_obs, [[0, t]])
        if t == 6:
            np.testing.assert_array_equal(step.obs, [[1, 0]])
            np.testing.assert_array_equal(step.final_obs, [[0, 6]])
    assert ends == [False, True, False, True, False, True, False, True]
    assert records == [EpisodeRecord(env_id=0, episode_id=0, return_=-30.0, length=6)]


def test_idle_environments_stand_still() -> None:
    """FAULTS 13 and 20: an idle row is zero and not valid, never stale, and nothing moves."""
    env = make_vec(lambda: Counting(length=3), 2)
    env.reset(0)
    env.step(ZERO)
    step = env.step(ZERO, active=np.array([True, False]))
    np.testing.assert_array_equal(step.obs, [[0, 2], [0, 1]])
    np.testing.assert_array_equal(step.reward, [2, 0])
    np.testing.assert_array_equal(step.valid, [True, False])
    step = env.step(ZERO, active=np.array([True, False]))
    np.testing.assert_array_equal(step.terminated, [True, False])
    assert [record.length for record in step.episodes] == [3]
    step = env.step(ZERO)
    np.testing.assert_array_equal(step.valid, [True, True])
    step = env.step(ZERO)
    assert [(r.env_id, r.length) for r in step.episodes] == [(1, 3)]


def test_idle_environments_may_be_given_any_action() -> None:
    env = make_vec(lambda: Counting(), 2)
    env.reset(0)
    env.step(np.array([1, 99]), active=np.array([True, False]))


@pytest.mark.parametrize("active", [np.ones(3, bool), np.ones(2), [True]])
def test_a_malformed_active_mask_is_refused(active: Any) -> None:
    env = make_vec(lambda: Counting(), 2)
    env.reset(0)
    with pytest.raises(ConfigError, match="active must be bool of shape"):
        env.step(ZERO, active=active)


def test_an_environments_stream_depends_on_its_index_alone() -> None:
    """FAULTS 24: streams that depend on the number of environments or workers beside them."""
    whole = make_vec("CartPole-v1", 5)
    part = make_vec("CartPole-v1", 2, first_env_id=3)
    np.testing.assert_array_equal(whole.reset(11)[3:], part.reset(11))
    rng = np.random.default_rng(0)
    for _ in range(60):
        action = rng.integers(0, 2, 5)
        a, b = whole.step(action), part.step(action[3:])
        np.testing.assert_array_equal(a.obs[3:], b.obs)
        assert [record for record in a.episodes if record.env_id >= 3] == b.episodes


def test_same_seed_same_stream_other_seed_other_stream() -> None:
    env = make_vec("CartPole-v1", 2)
    first = env.reset(1).copy()
    assert not np.array_equal(first, env.reset(2))
    np.testing.assert_array_equal(first, env.reset(1))
    assert not np.array_equal(first, env.reset())


def test_observations_keep_their_dtype_and_values() -> None:
    """FAULTS 14: image observations scaled in place; uint8 turned to float32 in storage."""
    image = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)

    class Images(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = gymnasium.spaces.Box(0, 255, (3, 3, 3), np.uint8)

        def observe(self) -> np.ndarray:
            return image

    env = make_vec(Images, 2)
    obs = env.reset(0)
    assert obs.dtype == np.uint8
    np.testing.assert_array_equal(env.step(ZERO).obs, np.stack([image, image]))
    np.testing.assert_array_equal(image.ravel(), np.arange(27))


def test_float64_observations_are_carried_as_float32() -> None:
    env = make_vec("HalfCheetah-v5", 1)
    assert env.observation_space.dtype == np.float32
    assert env.reset(0).dtype == np.float32
    env.close()


def test_an_environment_may_reuse_its_observation_array() -> None:
    class Reusing(Counting):
        def __init__(self) -> None:
            super().__init__(length=2)
            self.array = np.zeros(2, np.float32)

        def observe(self) -> np.ndarray:
            self.array[:] = self.episode, self.t
            return self.array

    env = make_vec(Reusing, 2)
    env.reset(0)
    env.step(ZERO)
    step = env.step(ZERO)
    np.testing.assert_array_equal(step.obs, [[1, 0], [1, 0]])
    np.testing.assert_array_equal(step.final_obs, [[0, 2], [0, 2]])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan obs", r"environment 0, step 3: the observation\[0\] is nan"),
        ("inf obs", r"environment 0, step 3: the observation\[1\] is inf"),
        ("nan reward", "environment 0, step 3: the reward is nan"),
        ("inf reward", "environment 0, step 3: the reward is inf"),
        ("no reward", "environment 0.*reward is"),
        ("array reward", "environment 0: reward is array"),
        ("shape", r"environment 0: observation has shape \(3,\), but the space declares \(2,\)"),
        ("scalar", r"environment 0: observation has shape \(\), but the space declares \(2,\)"),
        ("dtype", "environment 0: observation has dtype <U1"),
    ],
)
def test_bad_data_is_refused_with_environment_step_and_value(fault: str, message: str) -> None:
    env = make_vec(lambda: Faulty(fault), 2)
    env.reset(0)
    env.step(ZERO)
    env.step(ZERO)
    with pytest.raises(EnvDataError, match=message):
        env.step(ZERO)


def test_a_nan_in_a_last_observation_is_found() -> None:
    class Ending(Counting):
        def observe(self) -> np.ndarray:
            obs = super().observe()
            return obs * np.nan if self.t == self.length else obs

    env = make_vec(lambda: Ending(length=1), 2)
    env.reset(0)
    with pytest.raises(EnvDataError, match="last observation of an episode"):
        env.step(ZERO)


def test_a_nan_in_a_reset_is_found() -> None:
    class Starting(Counting):
        def observe(self) -> np.ndarray:
            return super().observe() * np.nan

    with pytest.raises(EnvDataError, match=r"step 0: the observation of reset\(\)"):
        make_vec(Starting, 2).reset(0)


def test_checks_can_be_left_out() -> None:
    env = make_vec(lambda: Faulty("nan obs"), 1, check=False)
    env.reset(0)
    for _ in range(3):
        step = env.step(ZERO[:1])
    assert np.isnan(step.obs).all()


def test_an_exception_of_the_environment_arrives_as_it_is() -> None:
    env = make_vec(lambda: Faulty("raise"), 1)
    env.reset(0)
    env.step(ZERO[:1])
    env.step(ZERO[:1])
    with pytest.raises(KeyError, match="the door is locked"):
        env.step(ZERO[:1])


def test_step_needs_reset_and_an_open_batch() -> None:
    env = make_vec(lambda: Counting(), 2)
    with pytest.raises(ConfigError, match="before reset"):
        env.step(ZERO)
    with pytest.raises(EnvError, match="before reset"):
        env.state_dict()
    env.reset(0)
    env.close()
    env.close()
    with pytest.raises(EnvError, match="closed"):
        env.step(ZERO)
    with pytest.raises(EnvError, match="closed"):
        env.reset(0)


@pytest.mark.parametrize("value", [1e30, -3e38])
def test_huge_but_finite_numbers_pass(value: float) -> None:
    """Their squares overflow, which must not be taken for an infinity."""

    class Huge(Counting):
        def observe(self) -> np.ndarray:
            return np.array([value, 0.0], dtype=np.float32)

    env = make_vec(lambda: Huge(reward=value), 2)
    env.reset(0)
    np.testing.assert_array_equal(env.step(ZERO).obs, np.float32([[value, 0], [value, 0]]))

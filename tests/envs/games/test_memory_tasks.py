"""The T-maze, step by step."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from redline.envs import make_vec
from redline.envs.games.memory_tasks import TMaze
from redline.errors import ConfigError


def walk(env: TMaze, steps: int) -> list[float]:
    return [float(env.step(0)[1]) for _ in range(steps)]


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_gymnasium_accepts_it() -> None:
    check_env(TMaze(3), skip_render_check=True)


def test_the_cue_is_seen_at_the_start_only_and_decides_the_reward() -> None:
    env = TMaze(2)
    seen = set()
    for seed in range(20):
        first, _ = env.reset(seed=seed)
        assert first[2:].tolist() == [0, 0]
        up = bool(first[0])
        assert first[:2].tolist() == [float(up), float(not up)]
        assert env.step(0)[0].tolist() == [0, 0, 1, 0]
        assert env.step(0)[0].tolist() == [0, 0, 0, 1]
        _, reward, terminated, truncated, _ = env.step(1 if seed % 2 else 2)
        assert (terminated, truncated) == (True, False)
        assert reward == float(up == bool(seed % 2))
        seen.add((up, reward))
    assert len(seen) == 4


def test_walls_cost_and_time_runs_out() -> None:
    env = TMaze(2)
    env.reset(seed=0)
    assert env.step(1)[1] == -0.1  # a turn in the corridor
    assert walk(env, 2) == [0.0, 0.0]
    results = [env.step(0) for _ in range(5)]  # forward at the junction
    assert [result[1] for result in results] == [-0.1] * 5
    assert [result[3] for result in results] == [False] * 4 + [True]  # step 8 = 4 * 2
    assert not any(result[2] for result in results)


def test_it_is_known_by_its_id_and_goes_on_exactly_from_a_saved_state() -> None:
    with make_vec("redline/TMaze-v1", 3, env_kwargs={"corridor_length": 2}) as env:
        assert env.restorable is None
        env.reset(4)
        saved = env.state_dict()
        actions = np.random.default_rng(0).integers(0, 3, (40, 3))
        expected = []
        for row in actions:
            step = env.step(row)  # holds until the next one
            expected.append((np.array(step.obs), step.reward.copy()))
        env.load_state_dict(saved)
        for row, (obs, reward) in zip(actions, expected, strict=True):
            step = env.step(row)
            np.testing.assert_array_equal(step.reward, reward)
            np.testing.assert_array_equal(np.array(step.obs), obs)
    assert "redline/TMaze-v1" in gymnasium.registry


def test_a_corridor_needs_a_length() -> None:
    with pytest.raises(ConfigError, match="corridor_length=0"):
        TMaze(0)

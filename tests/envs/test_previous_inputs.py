"""The action before and its reward beside observations, by hand; FAULTS 13."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from redline.envs import make_vec
from redline.envs.previous_inputs import PreviousInputs
from redline.envs.vec_env import VecEnv
from redline.errors import EnvError
from redline.previous_inputs import ACTION, PLAIN, REWARD, has_previous, without_previous
from tests.collect.scripted import ScriptedEnv
from tests.envs.scripted import Lives, Masked
from tests.envs.test_snapshot import go_on

NONE = (None, 0.0)
PLACE = spaces.Box(-1.0, 1.0, (2,), np.float32)


def shown(obs: Any) -> list[tuple[int | None, float]]:
    """(action, reward) before, environment by environment; the action None where it is zeros."""
    return [
        (int(row.argmax()) if row.any() else None, float(reward[0]))
        for row, reward in zip(obs[ACTION], obs[REWARD], strict=True)
    ]


def test_first_next_and_last_observations() -> None:
    """Environment 0 terminates after two steps, environment 1 is truncated after three.

    Rewards are 1, 2, 3, ... in each episode; the actions are those given.
    """
    env = PreviousInputs(ScriptedEnv([[2], [3]], ["terminated", "truncated"]))
    obs = env.reset(0)
    assert obs[PLAIN][:, 0].tolist() == [0.0, 100.0]
    assert shown(obs) == [NONE, NONE]
    step = env.step(np.array([4, 5]))
    assert shown(step.obs) == [(4, 1.0), (5, 1.0)]
    assert step.final_obs is None
    step = env.step(np.array([6, 7]))  # environment 0 ends: its next observation is a first one
    assert shown(step.obs) == [NONE, (7, 2.0)]
    assert shown(step.final_obs)[0] == (6, 2.0)
    assert step.final_obs[PLAIN][0, 0] == 2.0
    step = env.step(np.array([8, 9]))
    assert shown(step.obs) == [(8, 1.0), NONE]
    assert shown(step.final_obs)[1] == (9, 3.0)
    assert shown(env.reset(None)) == [NONE, NONE]


def test_filler_rows_and_what_follows_them_show_zeros() -> None:
    """After the end in step 2 a filler step resets: its action 8 is in no observation."""
    env = PreviousInputs(ScriptedEnv([[2]], ["truncated"], filler=True))
    env.reset(0)
    env.step(np.array([5]))
    step = env.step(np.array([6]))
    assert shown(step.obs) == [NONE]
    assert shown(step.final_obs) == [(6, 2.0)]
    step = env.step(np.array([8]))
    assert not step.valid[0]
    assert shown(step.obs) == [NONE]
    assert shown(env.step(np.array([7])).obs) == [(7, 1.0)]


def test_idle_environments_keep_what_they_show() -> None:
    env = PreviousInputs(ScriptedEnv([[9], [9]], ["terminated"] * 2))
    env.reset(0)
    env.step(np.array([1, 2]))
    step = env.step(np.array([3, 4]), np.array([True, False]))
    assert shown(step.obs) == [(3, 2.0), (2, 1.0)]


def test_a_lost_life_is_an_end() -> None:
    """It ends the learner's episode in step 2: zeros follow, though nothing was reset.

    The reward, -5, is seen as the learner sees it: clipped.
    """
    inner = make_vec(Lives, 1, clip_reward=True)
    inner._book._episodic_life = True  # what a protocol of ALE's switches on
    env = PreviousInputs(inner)
    env.reset(0)
    assert shown(env.step(np.array([1])).obs) == [(1, -1.0)]
    step = env.step(np.array([0]))
    assert step.terminated[0]
    assert not step.episodes
    assert shown(step.obs) == [NONE]
    assert shown(step.final_obs) == [(0, -1.0)]


def test_masks_stay_where_policies_find_them() -> None:
    with make_vec(Masked, 2, observe_previous=True) as env:
        assert isinstance(env.observation_space, spaces.Dict)
        assert set(env.observation_space.spaces) == {"obs", "action_mask", ACTION, REWARD}
        env.reset(0)
        step = env.step(np.array([0, 0]))
        assert step.obs["action_mask"].tolist() == [[0, 1], [0, 1]]
        assert shown(step.obs) == [(0, 1.0), (0, 1.0)]
        assert env.observation_space.contains({k: v[0] for k, v in step.obs.items()})


@pytest.mark.parametrize("backend", ["gymnasium", "processes"])
def test_going_on_from_a_saved_state_is_exact(backend: str) -> None:
    def make() -> Any:
        return make_vec("CartPole-v1", 3, backend=backend, observe_previous=True)

    go_on(make(), make(), 33, 40)


def test_a_state_without_them_is_refused() -> None:
    with make_vec("CartPole-v1", 1) as plain, make_vec("CartPole-v1", 1) as other:
        plain.reset(0)
        with pytest.raises(EnvError, match="holds no previous action"):
            PreviousInputs(other).load_state_dict(plain.state_dict())


def test_nothing_of_an_environment_is_left_out() -> None:
    """All but the quiet steps, which it does not offer."""
    own = {name for name, value in vars(VecEnv).items() if callable(value) and name[0] != "_"}
    assert own - set(vars(PreviousInputs)) == {"step_quietly", "settle"}
    with make_vec("CartPole-v1", 2, observe_previous=True, clip_reward=True) as env:
        assert not env.can_step_quietly
        assert env.clips_reward
        env.reset(0)
        env.step(np.zeros(2, np.int64))
        assert [each.length for each in env.running()] == [1, 1]


def test_an_environments_own_entries_of_these_names_are_its_own() -> None:
    """Nobody asked for ours, so nothing is taken for ours."""
    names = spaces.Dict({name: PLACE for name in ("previous_action", "previous_reward")})
    assert not has_previous(names)
    assert without_previous(names) is names

"""Every space there and back: observations into arrays, actions to single environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.envs import make_vec
from redline.envs.spaces.actions import make_codec
from redline.envs.spaces.layout import carried_space, make_writer
from redline.envs.vec_env import zeros_like_space
from redline.errors import ActionError, EnvDataError, SpaceError
from redline.nested import leaves
from tests.envs.recording import stack
from tests.envs.scripted import Counting, Masked, Spaces

NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (2, 3), np.uint8),
        "speed": spaces.Box(-1, 1, (2,), np.float64),
        "gear": spaces.Discrete(5, start=-2),
        "switches": spaces.MultiBinary(3),
        "wheels": spaces.MultiDiscrete([2, 3], start=[1, 10]),
        "pair": spaces.Tuple((spaces.Discrete(2), spaces.Dict({"x": spaces.Box(0, 1, ())}))),
    }
)
ACTIONS = [
    spaces.Discrete(4),
    spaces.Discrete(4, start=3),
    spaces.Box(-2.0, 1.0, (3,), np.float32),
    spaces.Box(-0.4, 0.4, (3,), np.float64),
    spaces.Box(np.array([1.0, 5.0], np.float32), np.array([2.0, 6.0], np.float32)),
    spaces.MultiDiscrete([2, 5]),
    spaces.MultiDiscrete([2, 5], start=[1, -3]),
    spaces.MultiDiscrete([3, 3], dtype=np.uint8, start=[1, 2]),
    spaces.MultiBinary(4),
    spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "fire": spaces.Discrete(2, start=1)}),
    spaces.Dict({"a": spaces.Dict({"b": spaces.MultiDiscrete([3, 3])})}),
    spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,)))),
]


def carry(space: Any, value: Any) -> Any:
    """A value as it should be carried, the slow way."""
    if isinstance(space, spaces.Dict):
        return {key: carry(sub, value[key]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(i): carry(sub, value[i]) for i, sub in enumerate(space.spaces)}
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return np.asarray(value) - space.start
    return np.asarray(value)


def assert_same(found: Any, wanted: Any) -> None:
    found, wanted = dict(leaves(found)), dict(leaves(wanted))
    assert found.keys() == wanted.keys()
    for key in wanted:
        np.testing.assert_array_equal(found[key], wanted[key].astype(found[key].dtype))


def test_nested_observations_of_every_kind() -> None:
    env = make_vec(lambda: Spaces(NESTED, spaces.Discrete(2)), 2)
    dtypes = {key: str(leaf.dtype) for key, leaf in leaves(env.reset(3))}
    assert dtypes == {
        "camera": "uint8",
        "gear": "int64",
        "pair.0": "int64",
        "pair.1.x": "float32",
        "speed": "float32",
        "switches": "int8",
        "wheels": "int64",
    }
    for _ in range(5):
        step = env.step(np.zeros(2, dtype=np.int64))
        for i, single in enumerate(env._backend._envs):
            row = {key: leaf[i] for key, leaf in leaves(step.obs)}
            assert_same(row, dict(leaves(carry(NESTED, single.last))))
            assert env.observation_space["gear"].contains(int(step.obs["gear"][i]))


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_reach_each_environment_in_its_own_form(space: Any) -> None:
    """`start` is added, and a batch is never passed where one action belongs."""
    env = make_vec(lambda: Spaces(spaces.Box(0, 1, (1,)), space), 3)
    env.reset(0)
    env.action_space.seed(1)
    for _ in range(5):
        batch = stack([env.action_space.sample() for _ in range(3)])
        env.step(batch)
        for i, single in enumerate(env._backend._envs):
            sent = carry(space, single.seen[-1])
            for (_, a), (_, b) in zip(leaves(sent), leaves(_row(batch, i)), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6)


def _row(batch: Any, i: int) -> Any:
    return {key: _row(b, i) for key, b in batch.items()} if isinstance(batch, dict) else batch[i]


def test_float32_bounds_do_not_push_a_float64_action_out() -> None:
    """float32(0.4) is more than 0.4; the environment must not see that."""
    codec = make_codec(spaces.Box(-0.4, 0.4, (1,), np.float64), 1, str)
    native = codec.encode(np.full((1, 1), np.float32(0.4)))
    assert native[0, 0] == 0.4
    assert native.dtype == np.float64


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (spaces.Discrete(3), [0, 3], "environment 1: action is 3, outside 0 .. 2"),
        (spaces.Discrete(3), [-1, 0], "environment 0: action is -1"),
        (spaces.Discrete(3, start=7), [0, 7], "zero-based"),
        (spaces.Discrete(3), [0.0, 1.0], "must be integers of shape"),
        (spaces.Discrete(3), [0], r"shape \(2,\).*got int64 of shape \(1,\)"),
        (spaces.Box(-1, 1, (1,)), [[0.0], [1.5]], r"environment 1: action\[0\] is 1.5, outside"),
        (spaces.Box(-1, 1, (1,)), [[np.nan], [0.0]], r"environment 0: action\[0\] is nan"),
        (spaces.MultiDiscrete([2, 3]), [[0, 0], [1, 3]], r"environment 1: action\[1\] is 3"),
        (spaces.MultiDiscrete([2, 3]), [[0.0, 0.0], [1.0, 2.0]], "must be integers"),
        (spaces.MultiBinary(2), [[0, 2], [0, 0]], r"environment 0: action\[1\] is 2"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": [0, 0]}, r"keys \['a'\], got \['b'\]"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"a": [0, 5]}, "environment 1: action key 'a'"),
    ],
)
def test_actions_out_of_bounds_are_named(space: Any, action: Any, message: str) -> None:
    env = make_vec(lambda: Spaces(spaces.Box(0, 1, (1,)), space), 2)
    env.reset(0)
    batch = (
        {key: np.array(part) for key, part in action.items()}
        if isinstance(action, dict)
        else np.array(action)
    )
    with pytest.raises(ActionError, match=message):
        env.step(batch)


def test_the_callers_action_array_is_left_alone() -> None:
    action = np.array([0, 1])
    env = make_vec(lambda: Spaces(spaces.Box(0, 1, (1,)), spaces.Discrete(2, start=5)), 2)
    env.reset(0)
    env.step(action)
    np.testing.assert_array_equal(action, [0, 1])
    assert [single.seen for single in env._backend._envs] == [[5], [6]]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(-50, 50), st.lists(st.integers(-60, 60), min_size=1))
def test_discrete_codec_accepts_exactly_the_zero_based_range(
    n: int, start: int, values: list[int]
) -> None:
    codec = make_codec(spaces.Discrete(n, start=start), len(values), str)
    action = np.array(values)
    if all(0 <= value < n for value in values):
        assert codec.rows(codec.encode(action)) == [value + start for value in values]
    else:
        with pytest.raises(ActionError):
            codec.encode(action)


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": 1}, "must be a dict with the keys"),
        (spaces.Tuple((spaces.Discrete(2),)), (1, 2), "must be a tuple of 1 parts"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([300]), "which uint8 cannot hold"),
        (spaces.Box(-128, 127, (1,), np.int8), np.array([200]), "which int8 cannot hold"),
        (spaces.Box(0, 255, (1,), np.uint8), np.array([0.5]), "has dtype float64"),
        (spaces.Dict({"a": spaces.Box(0, 1, (2,))}), {"a": np.zeros(1)}, "key 'a' has shape"),
    ],
)
def test_observations_that_do_not_fit_are_refused(space: Any, value: Any, message: str) -> None:
    buffer = zeros_like_space(carried_space(space), 1)
    with pytest.raises(EnvDataError, match=message):
        make_writer(space, buffer, lambda i: f"environment {i}")(0, value)


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Sequence(spaces.Discrete(2))])
def test_spaces_without_array_form_are_refused(space: Any) -> None:
    with pytest.raises(SpaceError, match="no array form"):
        make_vec(lambda: Spaces(space, spaces.Discrete(2)), 1)
    with pytest.raises(SpaceError, match="not served"):
        make_vec(lambda: Spaces(spaces.Discrete(2), space), 1)


def test_action_masks_of_info_become_part_of_the_observation() -> None:
    env = make_vec(lambda: Masked(length=3), 2)
    assert env.observation_space["action_mask"] == spaces.Box(0, 1, (2,), np.int8)
    obs = env.reset(0)
    np.testing.assert_array_equal(obs["action_mask"], [[1, 0], [1, 0]])
    step = env.step(np.zeros(2, dtype=np.int64))
    np.testing.assert_array_equal(step.obs["action_mask"], [[0, 1], [0, 1]])
    env.step(np.zeros(2, dtype=np.int64))
    step = env.step(np.zeros(2, dtype=np.int64))
    np.testing.assert_array_equal(step.final_obs["action_mask"], [[0, 1], [0, 1]])
    np.testing.assert_array_equal(step.obs["action_mask"], [[1, 0], [1, 0]])


def test_a_declared_action_mask_is_left_as_it_is() -> None:
    declared = spaces.Dict({"board": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)})
    env = make_vec(lambda: Spaces(declared, spaces.Discrete(2)), 1)
    assert set(env.observation_space.spaces) == {"board", "action_mask"}


def test_taxi_offers_its_mask() -> None:
    env = make_vec("Taxi-v4", 2)
    obs = env.reset(0)
    assert obs["obs"].shape == (2,)
    assert obs["action_mask"].shape == (2, 6)


def test_a_mask_that_vanishes_is_refused() -> None:
    class Forgetful(Masked):
        def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
            return Counting.step(self, action)

    env = make_vec(Forgetful, 1)
    env.reset(0)
    with pytest.raises(EnvDataError, match="action_mask"):
        env.step(np.zeros(1, dtype=np.int64))


class AsksByMethod(gymnasium.Env[Any, Any]):
    """Masks as sb3-contrib's MaskablePPO asks for them; step t allows action t % 2 alone."""

    observation_space = spaces.Box(0, 9, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def action_masks(self) -> list[bool]:
        return [self._t % 2 == 0, self._t % 2 == 1]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self._t += 1
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_masks_of_a_method_are_taken_too() -> None:
    """They were ignored silently; also where a wrapper lies over the environment."""
    with make_vec(lambda: gymnasium.wrappers.TimeLimit(AsksByMethod(), 9), 2) as env:
        obs: Any = env.reset(seed=1)
        assert obs["action_mask"].tolist() == [[1, 0], [1, 0]]
        step: Any = env.step(np.zeros(2, np.int64))
        assert step.obs["action_mask"].tolist() == [[0, 1], [0, 1]]


class MasksByInfo(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Allows the second action alone."""

    def reset(self, **more: Any) -> Any:
        obs, info = self.env.reset(**more)
        return obs, info | {"action_mask": np.array([0, 1], np.int8)}

    def step(self, action: Any) -> Any:
        *rest, info = self.env.step(action)
        return *rest, info | {"action_mask": np.array([0, 1], np.int8)}


class MasksByMethod(gymnasium.Wrapper[Any, Any, Any, Any]):
    def action_masks(self) -> Any:
        return np.array([0, 1], np.int8)


@pytest.mark.parametrize("wrapper", [MasksByInfo, MasksByMethod])
def test_a_wrappers_masks_are_taken_whatever_is_inside(wrapper: Any) -> None:
    """Around Gymnasium's own environments they were ignored silently."""
    with make_vec(lambda: wrapper(gymnasium.make("CartPole-v1")), 1) as env:
        obs: Any = env.reset(seed=1)
        assert obs["action_mask"].tolist() == [[0, 1]]
        step: Any = env.step(np.ones(1, np.int64))
        assert step.obs["action_mask"].tolist() == [[0, 1]]


def test_multi_discrete_observations_are_zero_based_whole_numbers() -> None:
    """3 is two above the start of 1, whatever the dtype."""
    space = spaces.MultiDiscrete([3, 3], dtype=np.int32, start=[1, 1])
    row = np.zeros((1, 2), np.int64)
    make_writer(space, row, str)(0, np.array([1, 3], np.int32))
    assert carried_space(space) == spaces.MultiDiscrete([3, 3])
    assert row.tolist() == [[0, 2]]

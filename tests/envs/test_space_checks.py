"""What leaves its space is named: in the first episode at each step, now and then after it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import redline.envs.space_checks as space_checks
from redline.envs import make_vec
from redline.envs.space_checks import LONGEST_LOOK, SpaceWatch, outside_of, require_same_spaces
from redline.errors import ConfigError, EnvDataError, EnvError

INSIDE = np.zeros(3, np.float32)
OUTSIDE = np.array([0.0, 5.0, 0.0], np.float32)


class Scripted(gymnasium.Env[Any, Any]):
    """Episodes of 4 steps; from its `bad_from`th step on it does something that is wrong."""

    bad_from = 1
    mask: Any = None

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space: spaces.Space[Any] = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        return INSIDE, self.info()

    def info(self) -> dict[str, Any]:
        if self.mask is None:
            return {}
        return {"action_mask": self.mask if self.is_bad() else np.ones_like(self.mask)}

    def is_bad(self) -> bool:
        return self.steps >= self.bad_from

    def observation(self) -> Any:
        return OUTSIDE if self.is_bad() else INSIDE

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self.observation(), 1.0, self.steps % 4 == 0, False, self.info()


class Masked(Scripted):
    mask = np.zeros(2, np.int8)

    def observation(self) -> Any:
        return INSIDE


class MaskedAtTheEnd(Masked):
    def is_bad(self) -> bool:
        return self.steps > 0 and self.steps % 4 == 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return INSIDE, {"action_mask": np.ones(2, np.int8)}


class TwoMasks(Masked):
    mask = np.array([0, 1, 1, 0, 0, 0], np.int8)

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([3, 3])


class ChangingSpace(Scripted):
    def observation(self) -> Any:
        if self.is_bad():
            self.observation_space = spaces.Box(-2, 2, (3,), np.float32)
        return INSIDE


class ChangingActions(Scripted):
    def observation(self) -> Any:
        if self.is_bad():
            self.action_space = spaces.Discrete(7)
        return INSIDE


def steps(kind: type[Scripted], number: int, *, num_envs: int = 2, **settings: Any) -> None:
    with make_vec(kind, num_envs, **settings) as env:
        env.reset(1)
        action = np.zeros(env.action_space.shape or (), np.int64)
        for _ in range(number):
            env.step(np.stack([action] * num_envs))


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Scripted, "environment 0: observation[1] is 5.0, outside of -1.0 to 1.0"),
        (Masked, "the action mask (all 0) allows no action"),
        (TwoMasks, "the action mask of action 1 allows no action"),
        (ChangingSpace, "observation_space was Box(-1.0, 1.0, (3,), float32) and has become Box("),
        (ChangingActions, "action_space was Discrete(2) and has become Discrete(7)"),
    ],
)
def test_the_first_episode_is_looked_at_in_full(
    kind: type[Scripted], said: str, num_envs: int
) -> None:
    with pytest.raises(EnvError) as refused:
        steps(type("Late", (kind,), {"bad_from": 3}), 3, num_envs=num_envs)
    assert said in str(refused.value)
    steps(type("Late", (kind,), {"bad_from": 3}), 2, num_envs=num_envs)


def test_a_mask_of_the_last_observation_may_allow_nothing() -> None:
    steps(MaskedAtTheEnd, 9)


def test_off_looks_at_nothing_and_always_at_every_step() -> None:
    late = type("Late", (Scripted,), {"bad_from": 9})
    steps(Scripted, 20, check_env="off")
    steps(late, 20, check_env="first")
    with pytest.raises(EnvDataError, match="outside"):
        steps(late, 9, check_env="always")


@pytest.mark.parametrize("num_envs", [1, 2])
def test_first_looks_now_and_then_later(num_envs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every 5th step after the first episode of 4: the 5th itself, then the 10th."""
    monkeypatch.setattr(space_checks, "INTERVAL", 5)
    steps(type("Late", (Scripted,), {"bad_from": 6}), 9, num_envs=num_envs)
    with pytest.raises(EnvDataError, match="outside"):
        steps(type("Late", (Scripted,), {"bad_from": 6}), 10, num_envs=num_envs)


def test_an_episode_without_end_is_not_looked_at_for_ever() -> None:
    watch = SpaceWatch([Scripted()], "first", str)
    due = [watch.is_due() for _ in range(LONGEST_LOOK + 2000)]
    assert all(due[: LONGEST_LOOK + 1])
    assert sum(due[LONGEST_LOOK + 1 :]) in (1, 2)


def test_gymnasiums_own_environments_may_leave_their_space() -> None:
    env = gymnasium.make("CartPole-v1")
    SpaceWatch([env], "always", str).look(0, np.full(4, 1e9, np.float32), is_last=False)


class Declares(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Positions between -1 and 1, as it says."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-1, 1, (4,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation


class Rewards(gymnasium.RewardWrapper[Any, Any]):
    def reward(self, reward: Any) -> Any:
        return reward


def test_what_a_wrapper_around_gymnasiums_own_declares_is_compared() -> None:
    """CartPole's space is not the user's, whose wrapper only changes rewards."""
    far = np.array([0, 0, 5, 0], np.float32)
    inherits = Rewards(gymnasium.make("CartPole-v1"))
    SpaceWatch([inherits], "always", str).look(0, far, is_last=False)
    declares = gymnasium.wrappers.TimeLimit(Declares(gymnasium.make("CartPole-v1")), 9)
    with pytest.raises(EnvDataError, match=r"observation\[2\] is 5.0, outside of -1.0 to 1.0"):
        SpaceWatch([declares], "always", str).look(0, far, is_last=False)


class AppendsTime(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Copies the bounds of what is inside, and declares one element of its own, 0 to 1."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        inner = env.observation_space
        low, high = (
            np.append(b, e).astype(np.float32) for b, e in ((inner.low, 0), (inner.high, 1))
        )
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        return np.append(observation, 0)


class UnderAKey(gymnasium.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"seen": env.observation_space})

    def observation(self, observation: Any) -> Any:
        return {"seen": observation}


def test_bounds_that_a_wrapper_copies_may_be_left_as_well() -> None:
    """CartPole's position ends at 4.8; runs in an installed wrapper ended, which nobody mends."""
    env = AppendsTime(gymnasium.make("CartPole-v1"))
    watch = SpaceWatch([env], "always", str)
    watch.look(0, np.array([9, 0, 0, 0, 1], np.float32), is_last=False)
    with pytest.raises(EnvDataError, match=r"observation\[4\] is 2.0, outside of 0.0 to 1.0"):
        watch.look(0, np.array([9, 0, 0, 0, 2], np.float32), is_last=False)
    watch = SpaceWatch([UnderAKey(gymnasium.make("CartPole-v1"))], "always", str)
    watch.look(0, {"seen": np.array([9, 0, 0, 0], np.float32)}, is_last=False)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="check_env='sometimes': choose one of off, first"):
        make_vec("CartPole-v1", 1, check_env="sometimes")  # type: ignore[arg-type]


def test_looking_draws_nothing() -> None:
    """Same seed, same bits: observations with and without are equal."""

    def observations(mode: Any) -> bytes:
        with make_vec("CartPole-v1", 2, check_env=mode) as env:
            found = [np.array(env.reset(7))]
            found += [np.array(env.step(np.ones(2, np.int64)).obs) for _ in range(40)]
        return np.stack(found).tobytes()

    before = np.random.get_state()[1].tobytes()  # type: ignore[union-attr]
    assert observations("off") == observations("first") == observations("always")
    assert np.random.get_state()[1].tobytes() == before  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("space", "inside", "outside", "said"),
    [
        (spaces.Box(0, 9, (), np.float64), 9.0, 9.5, " is 9.5, outside of 0.0 to 9.0"),
        (spaces.Box(0, 1, (2,), np.float32), [0.0, 1 + 1e-12], [0.0, 1.1], "[1] is 1.1"),
        (spaces.Box(0, 9, (1, 2), np.int64), [[0, 9]], [[0, 10]], "[0, 1] is 10"),
        (spaces.Discrete(3, start=2), 4, 5, " is 5, outside of 2 to 4"),
        (spaces.MultiDiscrete([2, 3]), [1, 2], [1, 3], "[1] is 3, outside of 0 to 2"),
        (spaces.MultiBinary(2), [0, 1], [0, 2], "[1] is 2, outside of 0 to 1"),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": 1}, {"a": 2}, " key 'a' is 2"),
        (spaces.Tuple([spaces.Discrete(2)]), (1,), (-1,), " key 0 is -1"),
    ],
)
def test_every_kind_of_space_has_its_bounds(
    space: Any, inside: Any, outside: Any, said: str
) -> None:
    look = outside_of(space)
    assert look is not None
    assert look(inside) is None
    assert said in str(look(outside))


@pytest.mark.parametrize(
    "space", [spaces.Box(0, 255, (2,), np.uint8), spaces.Box(-np.inf, np.inf, (2,), np.float32)]
)
def test_spaces_that_nothing_can_leave_are_not_looked_at(space: Any) -> None:
    assert outside_of(space) is None


def test_workers_whose_spaces_differ_are_refused() -> None:
    def copy(high: float) -> Any:
        return spaces.Box(-1, high, (3,), np.float32), spaces.Discrete(2)

    require_same_spaces([copy(1), copy(1)], "Odd", "worker")
    with pytest.raises(EnvError, match=r"Odd: observation_space of worker 1 is Box\(-1.0, 2.0"):
        require_same_spaces([copy(1), copy(2)], "Odd", "worker")

"""Environments that do not keep to the interface get one sentence, not a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from redline.envs import make_vec
from redline.errors import EnvDataError, EnvError, EnvExitError, RedlineError

OBS = np.zeros(3, np.float32)


class Plain(gymnasium.Env[Any, Any]):
    """Does nothing for ten steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.steps = 0
        return OBS, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return OBS, 1.0, self.steps == 10, False, {}


def leaves_by(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    def step(self: Any, action: Any) -> Any:
        raise error

    return step


def gives(outcome: Any) -> Callable[..., Any]:
    return lambda self, *_, **__: outcome


def run(changes: dict[str, Any], num_envs: int = 2, steps: int = 1) -> None:
    kind = type("Odd", (Plain,), changes)
    with make_vec(lambda: kind(), num_envs) as env:
        env.reset(1)
        for _ in range(steps):
            env.step(np.zeros(num_envs, np.int64))


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    ("method", "outcome", "said"),
    [
        ("step", (OBS, 1.0, False, {}), "step() returned a tuple of 4"),
        ("step", (OBS, 1.0, False), "step() returned a tuple of 3"),
        ("step", None, "step() returned None"),
        ("step", (OBS, 1.0, False, False, None), "the info that step() returned is None"),
        ("step", (OBS, 1.0, np.array([True, False]), False, {}), "terminated is array"),
        ("step", (OBS, 1.0, np.array([False]), False, {}), "terminated is array"),
        ("step", (OBS, 1.0, "no", False, {}), "terminated is 'no' of type str"),
        ("step", (OBS, 1.0, False, None, {}), "truncated is None"),
        ("step", (OBS, "1", False, False, {}), "reward is '1' of type str"),
        ("step", (OBS, None, False, False, {}), "reward is None"),
        ("step", (OBS, -1e300, False, False, {}), "1e+300 does not fit into float32"),
        ("reset", OBS, "reset() returned one ndarray"),
        ("reset", None, "reset() returned None"),
        ("reset", (OBS, None), "the info that reset() returned is None"),
    ],
)
def test_an_odd_outcome_is_named(method: str, outcome: Any, said: str, num_envs: int) -> None:
    with pytest.raises(EnvDataError) as raised:
        run({method: gives(outcome)}, num_envs)
    assert said in str(raised.value)


def test_a_reset_without_a_seed_is_named() -> None:
    with pytest.raises(EnvError, match=r"unexpected keyword argument 'seed'.*seed=None"):
        run({"reset": lambda self: (OBS, {})})


@pytest.mark.parametrize("error", [SystemExit(0), StopIteration])
def test_an_environment_that_leaves_does_not_end_the_run_as_complete(error: Any) -> None:
    """SystemExit(0) ended training with exit code 0."""
    with pytest.raises(EnvError, match=r"step\(\) raised"):
        run({"step": leaves_by(error)})


def test_also_after_the_first_episode() -> None:
    def step(self: Any, action: Any) -> Any:
        if self.spent:
            sys.exit(0)
        self.spent = True
        return OBS, 1.0, True, False, {}

    with pytest.raises(EnvError, match="SystemExit"):
        run({"step": step, "spent": False}, steps=2)


def test_copies_with_other_spaces_are_named() -> None:
    made: list[int] = []

    def init(self: Any) -> None:
        Plain.__init__(self)
        made.append(0)
        self.observation_space = spaces.Box(-1, 1, (2 + len(made),), np.float32)

    with pytest.raises(EnvError, match="observation_space of environment 1 is"):
        run({"__init__": init})


def test_numbers_and_flags_of_numpy_are_served() -> None:
    run({"step": gives((OBS, np.float32(1.0), np.bool_(False), 0, {}))}, steps=3)


def test_all_are_of_the_one_tree() -> None:
    assert issubclass(EnvDataError, RedlineError)
    assert issubclass(EnvError, RedlineError)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward": 10**400}, "a whole number of hundreds of digits"),
        ({"info": 7}, "the info that step() returned is 7"),
        ({"outcome": (OBS, 1.0, False, {})}, "step() returned a tuple of 4"),
        ({"outcome": None}, "step() returned None"),
        ({"terminated": np.array([True, False])}, "terminated is array"),
    ],
)
def test_what_becomes_odd_later_is_told_as_well(
    changes: dict[str, Any], said: str, num_envs: int
) -> None:
    """After the first episode, when outcomes are no longer looked at one by one."""

    def step(self: Any, action: Any) -> Any:
        self.steps += 1
        self.total = getattr(self, "total", 0) + 1
        parts = {"reward": 1.0, "terminated": self.steps == 10, "info": {}}
        if self.total < 15:
            return OBS, parts["reward"], parts["terminated"], False, parts["info"]
        if "outcome" in changes:
            return changes["outcome"]
        parts |= changes
        return OBS, parts["reward"], parts["terminated"], False, parts["info"]

    with pytest.raises(EnvDataError) as refused:
        run({"step": step}, num_envs, steps=16)
    assert said in str(refused.value)


@pytest.mark.parametrize("error", [SystemExit(0), StopIteration(), GeneratorExit()])
def test_a_constructor_that_leaves_is_told(error: BaseException) -> None:
    def init(self: Any) -> None:
        raise error

    with pytest.raises(EnvError, match="the constructor raised"):
        run({"__init__": init})


def test_a_number_in_place_of_a_tuple_is_told() -> None:
    def init(self: Any) -> None:
        Plain.__init__(self)
        self.observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])

    with pytest.raises(EnvDataError, match="must be a tuple of 2 parts, got ndarray of length 1"):
        run({"__init__": init, "reset": gives((np.array(3.0), {}))})


@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_a_space_that_leaves_is_told(name: str) -> None:
    def leaves(self: Any) -> Any:
        sys.exit(0)

    parts: dict[str, Any] = {
        "observation_space": spaces.Box(-1, 1, (3,), np.float32),
        "action_space": spaces.Discrete(2),
    }
    with pytest.raises(EnvExitError, match=r"reading a space raised SystemExit\(0\)"):
        run({**parts, name: property(leaves), "__init__": lambda self: None})


def test_a_space_that_leaves_later_is_told() -> None:
    def space(self: Any) -> Any:
        if self.steps > 1:
            sys.exit(0)
        return spaces.Box(-1, 1, (3,), np.float32)

    def init(self: Any) -> None:
        self.steps, self.action_space = 0, spaces.Discrete(2)

    with pytest.raises(EnvExitError, match=r"reading observation_space raised SystemExit\(0\)"):
        run({"observation_space": property(space), "__init__": init}, steps=4)


def test_a_close_that_leaves_is_told_and_the_others_are_closed() -> None:
    closed: list[int] = []

    def close(self: Any) -> None:
        closed.append(0)
        sys.exit(0)

    with pytest.raises(EnvExitError, match=r"close\(\) raised SystemExit\(0\)"):
        run({"close": close}, num_envs=3)
    assert len(closed) >= 3


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("reward", [1e39, -1e39, np.float64(4e38)])
def test_a_reward_too_large_is_told_after_the_first_episode(reward: Any, num_envs: int) -> None:
    """It became infinity, and the run a DivergenceError that advised on the learning rate."""

    def step(self: Any, action: Any) -> Any:
        self.steps += 1
        self.total = getattr(self, "total", 0) + 1
        return OBS, reward if self.total == 15 else 1.0, self.steps == 10, False, {}

    with pytest.raises(EnvDataError, match=r"step 15: a reward of size .* does not fit"):
        run({"step": step}, num_envs, steps=16)


def test_the_largest_reward_that_fits_is_taken() -> None:
    run({"step": gives((OBS, float(np.finfo(np.float32).max), False, False, {}))}, 3, steps=5)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("wrapped", [False, True])
def test_one_environment_in_place_of_several_is_refused(num_envs: int, wrapped: bool) -> None:
    """It trained, with environments that stepped and reset each other."""
    shared = Plain()
    with pytest.raises(EnvError, match=r"gave the same environment as number 0 and as number 1"):
        make_vec(lambda: gymnasium.Wrapper(shared) if wrapped else shared, num_envs)

"""Environments that a program defines itself: known by how their first step is answered."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

from redline.profile.advise.iteration import read_iteration
from redline.profile.advise.report import render_advice
from redline.profile.analyse.summary import summarize
from redline.profile.record.own_envs import is_env_answer

INFO: dict[str, Any] = {}


@pytest.mark.parametrize(
    "answer",
    [
        (0, 1.0, False, INFO),
        (0, 1, False, True, INFO),
        (np.zeros(3), np.float32(1), np.bool_(True), False, INFO),
        (np.zeros((2, 3)), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), INFO),
        (np.zeros((2, 3)), [0.0, 1.0], [False, True], [INFO, INFO]),
    ],
)
def test_what_an_env_answers(answer: Any) -> None:
    assert is_env_answer(answer)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        1.0,
        [0, 1.0, False, INFO],
        (0, 1.0, INFO),
        (0, 1.0, False, False, False, INFO),
        (0, 1.0, 0.5, INFO),  # an agent: action, value, log probability and state
        (0, 1.0, False, np.zeros(3)),
        (0, True, False, INFO),
        (0, "reward", False, INFO),
        (0, 1.0, False, []),
        (0, [], False, INFO),
    ],
)
def test_what_an_env_does_not_answer(answer: Any) -> None:
    assert not is_env_answer(answer)


PROGRAM = """
import mujoco, torch
from redline import profile

class World:
    def reset(self):
        mujoco.spin(1_000_000)
        return 0

class Corridor(World):
    def step(self, action):
        mujoco.spin(2_000_000)
        return 0, 1.0, False, {}

class Agent:
    def reset(self):
        pass
    def step(self, obs):  # action, value, log probability, state
        torch.spin(1_000_000)
        return 0, 1.0, -0.5, {}

class Twice(Corridor):
    def step(self, action):
        super().step(action)
        return super().step(action)

env, agent, twice = Corridor(), Agent(), Twice()
kept = env.step
twice.step(0), twice.step(0)  # this class's second step is its first that counts
for i in range(100):
    obs = env.reset() if i % 10 == 0 else env.step(agent.step(0)[0])[0]
    kept(0)
    if i >= 20:
        with profile.operation("learning"):
            torch.spin(500_000)
"""


@pytest.mark.parametrize("mode", ["full", "light"])
def test_a_class_of_the_programs_own(profiled: Any, mode: str) -> None:
    """190 steps of 2 ms, 10 resets of 1, and of Twice one of 4; of first steps what they call.

    Twice's first step calls Corridor's first and its second, of 2 ms, which counts.
    """
    profiled.run(PROGRAM, calibrate=mode != "full", mode=mode)
    summary = summarize(profiled.session)
    (process,) = summary.processes
    assert process.metadata["inferred_envs"] == ["__main__.Corridor", "__main__.Twice"]
    spent_s = sum(cell.raw_s for cell in summary.cells if cell.operation == "simulation")
    assert spent_s >= 0.99 * 0.396  # a busy machine may stretch what was spun
    (found,) = {t.entries for t in summary.transitions if t.operation == "simulation"} or {202}
    assert found == 202
    it = read_iteration(profiled.session)
    assert "env steps are inferred: __main__.Corridor, __main__.Twice" in it.problems[-1]
    assert it.problems[-1] in render_advice(it, [])


TRAVELS = """
import cloudpickle, inspect, types

class Corridor:
    def reset(self):
        return 0
    def step(self, action, gain=1.0):
        return action, gain, False, {}

def again():
    made = cloudpickle.loads(cloudpickle.dumps(Corridor))
    assert type(vars(made)["step"]) is types.FunctionType
    assert made().step(3) == (3, 1.0, False, {})

assert list(inspect.signature(Corridor.step).parameters) == ["self", "action", "gain"]
assert Corridor.step.__qualname__ == "Corridor.step"
again()
Corridor().step(1)
again()
assert Corridor().step(2, gain=2.0) == (2, 2.0, False, {})
"""


def test_a_class_that_travels_by_value_is_the_programs_own(profiled: Any) -> None:
    """As to the workers of Stable-Baselines3, before its first step and after it."""
    pytest.importorskip("cloudpickle")
    profiled.run(TRAVELS)


def test_classes_are_built_as_before_afterwards() -> None:
    assert builtins.__build_class__.__name__ == "__build_class__"


LOOKS_BACK = """
import sys
class Meta(type):
    def __new__(cls, name, bases, namespace):
        made = super().__new__(cls, name, bases, namespace)
        made.maker = sys._getframe(1).f_code.co_name
        return made

def define():
    class Made(metaclass=Meta, **{}):
        pass
    return Made

assert define().maker == "define"
try:
    class Broken(3):
        pass
except TypeError:
    pass
"""


def test_a_metaclass_sees_who_defines_the_class(profiled: Any) -> None:
    profiled.run(LOOKS_BACK)

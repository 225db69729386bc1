"""What counts as an env step, of environments as libraries have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redline.profile.advise.iteration import read_iteration
from redline.profile.analyse.timeline import build_timeline
from redline.profile.analyse.transitions import begins_of, times_of_begins
from redline.profile.reader import open_session

MODULES = {
    "gym/core.py": """
class Env:
    pass
""",
    "envpool/python/envpool.py": """
class EnvPoolMixin:
    num_envs = 2
    def reset(self):
        self.send(None)
        return self.recv()
    def step(self, action):
        self.send(action)
        return self.recv()
    def send(self, action):
        pass
    def recv(self):
        return 0
    def async_reset(self):
        pass
""",
    "pettingzoo/utils/env.py": """
class AECEnv:
    def last(self):
        return self.observe("either")
class ParallelEnv:
    pass
""",
    "dm_env/_environment.py": """
import abc
class Environment(metaclass=abc.ABCMeta):
    @abc.abstractmethod
    def reset(self):
        pass
    @abc.abstractmethod
    def step(self, action):
        pass
""",
    "stable_baselines3/common/vec_env/base_vec_env.py": """
class VecEnv:
    def step(self, action):
        self.step_async(action)
        return self.step_wait()
""",
    "stable_baselines3/common/evaluation.py": """
def evaluate_policy(env):
    env.reset()
    for _ in range(50):
        env.step(0)
""",
    "stable_baselines3/common/callbacks.py": """
from stable_baselines3.common.evaluation import evaluate_policy
class EvalCallback:
    def __init__(self, env):
        self.env = env
    def on_step(self):
        evaluate_policy(self.env)
""",
}

EPISODES = """
from gym.core import Env
class World(Env):
    def reset(self):
        for _ in range(3):
            self.step(0)  # whatever happens in a reset is no decision
    def step(self, action):
        return 0
env = World()
for _ in range(10):
    env.reset()
    for _ in range(4):
        env.step(0)
"""

HALVES = """
from envpool.python.envpool import EnvPoolMixin
pool = EnvPoolMixin()
pool.reset()
for _ in range(30):
    pool.send(0)
    pool.recv()
for _ in range(10):
    pool.step(0)
"""

TURNS = """
from pettingzoo.utils.env import AECEnv, ParallelEnv
class Chess(AECEnv):
    def reset(self, seed=None):
        pass
    def observe(self, agent):
        return 0
    def step(self, action):
        pass
class Tag(ParallelEnv):
    def reset(self, seed=None):
        pass
    def step(self, actions):
        return {}, {}, {}, {}, {}
chess, tag = Chess(), Tag()
chess.reset()
for _ in range(20):
    chess.last()
    chess.step(0)
    chess.step(action=0)
for _ in range(2):
    chess.step(None)  # as PettingZoo has each agent that has ended leave the game
    chess.step(action=None)
tag.reset()
for _ in range(5):
    tag.step({})
"""

CONTROL = """
from dm_env._environment import Environment
class Cartpole(Environment):
    def reset(self):
        return 0
    def step(self, action):
        return 0
env = Cartpole()
env.reset()
for _ in range(25):
    env.step(0)
"""

EVALUATIONS = """
from stable_baselines3.common.vec_env.base_vec_env import VecEnv
from stable_baselines3.common.callbacks import EvalCallback
class DummyVecEnv(VecEnv):
    def __init__(self, num_envs):
        self.num_envs = num_envs
    def reset(self):
        return 0
    def step_async(self, action):
        pass
    def step_wait(self):
        return 0
env, callback = DummyVecEnv(4), EvalCallback(DummyVecEnv(1))
env.reset()
for i in range(25):
    env.step(0)
    if i % 10 == 5:
        callback.on_step()
"""


@pytest.mark.parametrize(
    ("program", "env_steps", "entries"),
    [
        (EPISODES, 10 * 4, 10 + 10 * 4),
        (HALVES, 2 * (30 + 10), 1 + 2 * 30 + 10),
        (EVALUATIONS, 4 * 25, 1 + 25 + 2 * (1 + 50)),
        (TURNS, 2 * 20 + 5, 1 + 3 * 20 + 2 * 2 + 1 + 5),
        (CONTROL, 25, 1 + 25),
    ],
    ids=["resets", "halves", "evaluations", "turns", "control"],
)
def test_decisions_are_env_steps(profiled: Any, program: str, env_steps: int, entries: int) -> None:
    """Resets, halves, turns of the dead and evaluations are none; all are simulation."""
    _write_modules(profiled.directory)
    profiled.run(program, calibrate=False)
    assert read_iteration(profiled.session).env_steps == env_steps
    (process,) = open_session(profiled.session).processes
    begins = times_of_begins(build_timeline(process).threads, begins_of(process, "simulation"))
    assert len(begins) == entries


def _write_modules(directory: Path) -> None:
    for name, text in MODULES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(directory).parents[:-1]:
            (directory / folder / "__init__.py").touch()  # before what is installed


TRAVELS = """
import cloudpickle, types
from pettingzoo.utils.env import AECEnv
class Chess(AECEnv):
    def step(self, action):
        return action
assert Chess().step(3) == 3
made = cloudpickle.loads(cloudpickle.dumps(vars(Chess)["step"]))
assert type(made) is types.FunctionType
assert made(None, 4) == 4
"""


def test_a_turn_travels_as_the_method_it_stands_for(profiled: Any) -> None:
    """As to the workers of PettingZoo's vectorized environments."""
    pytest.importorskip("cloudpickle")
    _write_modules(profiled.directory)
    profiled.run(TRAVELS, calibrate=False)

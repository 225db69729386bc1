"""EnvPool and ready vector environments: what resets on the next step, or in other ways."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from redline.data import EpisodeRecord
from redline.envs import env_seed, make_vec
from redline.envs.single_env import name_of
from redline.errors import ConfigError, EnvDataError, EnvError, UnknownNameError
from tests.envs.recording import draw_actions, record
from tests.envs.scripted import Counting, Masked, Spaces
from tests.envs.test_settings import needs_batch
from tests.envs.test_spaces import ACTIONS, NESTED

ZERO = np.zeros(2, dtype=np.int64)
MODES = list(AutoresetMode)


def counting(
    mode: AutoresetMode, lengths: tuple[int, ...] = (2, 3), env: Any = Counting, **kwargs: Any
) -> SyncVectorEnv:
    makers = [lambda n=n: env(length=n, **kwargs) for n in lengths]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def test_the_filler_step_is_not_valid_and_counts_for_nothing() -> None:
    """FAULTS 2: the filler step of a next-step autoreset trained on.

    Environment 0 has length 2: at t = 2 it ends, at t = 3 it only resets. Its last
    observation (0, 2) is also what the ignored action answers. Environment 1 has length 3.
    """
    env = make_vec(counting(AutoresetMode.NEXT_STEP), 2)
    env.reset(0)
    env.step(ZERO)
    end = env.step(ZERO)
    np.testing.assert_array_equal(end.terminated, [True, False])
    np.testing.assert_array_equal(end.final_obs[0], [0, 2])
    np.testing.assert_array_equal(end.obs[0], [0, 2])
    assert end.valid.all()
    assert end.episodes == [EpisodeRecord(env_id=0, episode_id=0, return_=3.0, length=2)]
    filler = env.step(ZERO)
    np.testing.assert_array_equal(filler.valid, [False, True])
    np.testing.assert_array_equal(filler.reward, [0, 3])
    np.testing.assert_array_equal(filler.terminated, [False, True])
    np.testing.assert_array_equal(filler.obs[0], [1, 0])
    assert filler.episodes == [EpisodeRecord(env_id=1, episode_id=0, return_=6.0, length=3)]
    env.step(ZERO)
    again = env.step(ZERO)
    assert again.episodes == [EpisodeRecord(env_id=0, episode_id=1, return_=3.0, length=2)]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_modes_without_filler_steps_equal_the_in_process_back_end(
    mode: AutoresetMode, end: str
) -> None:
    lengths = iter([2, 3, 1])
    ours = make_vec(lambda: Counting(length=next(lengths), end=end), 2)
    theirs = make_vec(counting(mode, end=end), 2)
    assert theirs.backend == "vector"
    np.testing.assert_array_equal(theirs.reset(0), ours.reset(0))
    assert record(theirs, 12, seed=1) == record(ours, 12, seed=1)


def test_sync_vector_environments_are_seeded_one_by_one() -> None:
    vector = make_vec(SyncVectorEnv([lambda: _cartpole()] * 3), 3)
    ours = make_vec("CartPole-v1", 3)
    np.testing.assert_array_equal(vector.reset(4), ours.reset(4))


def _cartpole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_every_space_passes_through_a_vector_environment(space: Any) -> None:
    ours = make_vec(lambda: Spaces(NESTED, space), 2)
    theirs = make_vec(SyncVectorEnv([lambda: Spaces(NESTED, space)] * 2), 2)
    assert theirs.observation_space == ours.observation_space
    assert theirs.action_space == ours.action_space
    ours.reset(1)
    theirs.reset(1)
    assert record(theirs, 4, seed=0) == record(ours, 4, seed=0)


@pytest.mark.parametrize("mode", MODES)
def test_action_masks_of_a_vector_environment_are_seen(mode: AutoresetMode) -> None:
    """Length 2: the mask of the last observation (t = 2) allows action 0, as at the start."""
    env = make_vec(counting(mode, lengths=(2, 2), env=Masked), 2)
    np.testing.assert_array_equal(env.reset(0)["action_mask"], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(env.step(ZERO).obs["action_mask"], [[0, 1], [0, 1]])
    step = env.step(ZERO)
    np.testing.assert_array_equal(step.final_obs["action_mask"], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(step.obs["action_mask"], [[1, 0], [1, 0]])


class _Odd(VectorEnv):
    """A vector environment that breaks the contract in one way."""

    def __init__(self, fault: str) -> None:
        self.num_envs, self.fault = 2, fault
        self.single_observation_space = spaces.Box(-1, 1, (3,))
        self.single_action_space = spaces.Discrete(2)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        if fault == "mode":
            self.metadata = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert seed is None or isinstance(seed, int)
        return np.zeros((2, 3), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs = np.zeros((2, 2 if self.fault == "shape" else 3), np.float32)
        if self.fault == "dtype":
            obs = obs.astype(np.complex64)
        reward = np.zeros((2, 1) if self.fault == "reward" else 2)
        ended = np.array([self.fault == "final", False])
        return obs, reward, ended, np.zeros(2, bool), {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", r"shape \(2, 2\), but the space declares \(2, 3\)"),
        ("dtype", "dtype complex64"),
        ("reward", r"reward has shape \(2, 1\)"),
        ("final", "info has no 'final_obs'"),
    ],
)
def test_vector_environments_that_break_the_contract_are_refused(fault: str, message: str) -> None:
    env = make_vec(_Odd(fault), 2)
    env.reset(0)
    with pytest.raises(EnvDataError, match=message):
        env.step(ZERO)


def test_vector_environments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not say how it resets"):
        make_vec(_Odd("mode"), 2)
    with pytest.raises(ConfigError, match="Set num_envs=2"):
        make_vec(_Odd(""), 3)
    with pytest.raises(ConfigError, match="cannot step a ready _Odd"):
        make_vec(_Odd(""), 2, backend="processes")
    env = make_vec(_Odd(""), 2)
    env.reset(0)
    with pytest.raises(EnvError, match="no way to save its state"):
        env.state_dict()
    with pytest.raises(ConfigError, match="cannot leave environments idle"):
        env.step(ZERO, active=np.array([True, False]))
    assert name_of(_Odd("")) == "_Odd"


def test_envpool_filler_rows_carry_nothing() -> None:
    """FAULTS 2 and 13, on the real thing: CartPole under random actions ends every 20 steps."""
    with make_vec("CartPole-v1", 3, backend="envpool") as env:
        env.reset(0)
        rng, ended = np.random.default_rng(0), np.zeros(3, bool)
        lengths, records = np.zeros(3, int), []
        for _ in range(200):
            before = np.array(env._backend.buffers.obs)
            step = env.step(rng.integers(0, 2, 3))
            np.testing.assert_array_equal(step.valid, ~ended)
            assert (step.reward[ended] == 0).all()
            assert not (step.terminated | step.truncated)[ended].any()
            assert (np.abs(step.obs[ended]) <= 0.05).all()  # a first observation
            lengths += ~ended
            ended = step.terminated | step.truncated
            if ended.any():
                np.testing.assert_array_equal(step.final_obs[ended], step.obs[ended])
                assert (np.abs(step.final_obs - before)[ended] < 1).all()
            for one in step.episodes:
                assert one.length == lengths[one.env_id] == one.return_
                lengths[one.env_id] = 0
            records += step.episodes
        assert len(records) > 15


def test_envpool_time_limits_truncate() -> None:
    """FAULTS 1."""
    with make_vec(
        "HalfCheetah-v5", 1, backend="envpool", env_kwargs={"max_episode_steps": 5}
    ) as env:
        assert env.observation_space.dtype == np.float32
        env.reset(0)
        for _ in range(5):
            step = env.step(np.zeros((1, 6), np.float32))
        assert step.truncated.all()
        assert not step.terminated.any()


def test_envpool_streams_depend_on_the_environments_index_alone() -> None:
    """FAULTS 24."""
    with (
        make_vec("CartPole-v1", 4, backend="envpool", num_threads=2) as whole,
        make_vec("CartPole-v1", 1, backend="envpool", first_env_id=3) as part,
    ):
        np.testing.assert_array_equal(whole.reset(6)[3:], part.reset(6))
        first = whole.reset(6).copy()
        assert not np.array_equal(first, whole.reset(7))
        assert whole.reset().shape == (4, 4)
        np.testing.assert_array_equal(whole.reset(6), first)


PINNED = """
import json, os, sys
from pathlib import Path
from redline.envs import make_vec

def cores():
    return {
        int(task.name): sorted(os.sched_getaffinity(int(task.name)))
        for task in Path("/proc/self/task").iterdir()
    }

before = cores()
env = make_vec("ALE/Breakout-v5", num_envs=2, backend=sys.argv[1], **json.loads(sys.argv[2]))
env.reset(0)
print(json.dumps(sorted(found for task, found in cores().items() if task not in before)))
env.close()
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no threads")
@pytest.mark.parametrize("backend", ["envpool", "ale"])
def test_pools_that_fill_the_machine_pin_their_threads(backend: str) -> None:
    """One core each where there is a thread for every core; else they run where they like."""
    cores = sorted(os.sched_getaffinity(0))

    def pinned_to(options: dict[str, Any]) -> list[list[int]]:
        command = [sys.executable, "-c", PINNED, backend, json.dumps(options)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [found for found in json.loads(done.stdout) if len(found) < len(cores)]

    fills = cores == list(range(os.cpu_count() or 0)) and len(cores) > 1
    every = [[core] for core in cores]
    assert pinned_to({"num_threads": len(cores)}) == (every if fills else [])
    assert pinned_to({"num_threads": len(cores) + 1}) == []
    if backend == "envpool":
        free = {"num_threads": len(cores), "env_kwargs": {"thread_affinity_offset": -1}}
        assert pinned_to(free) == []


PATIENT = """
import os, sys
from redline.envs import make_vec

make_vec("ALE/Breakout-v5", num_envs=1, num_threads=1, backend=sys.argv[1]).close()  # imports
before = set(os.listdir("/proc/self/task"))
with make_vec("ALE/Breakout-v5", num_envs=2, num_threads=2, backend=sys.argv[1]) as env:
    env.reset(0)
    made = set(os.listdir("/proc/self/task")) - before
    print(*[os.sched_getscheduler(int(thread)) for thread in made])
"""


@needs_batch
@pytest.mark.parametrize("backend", ["envpool", "ale"])
def test_threads_of_pools_do_not_push_off_who_wakes_them(backend: str) -> None:
    def scheduled(looks: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", PATIENT, backend],
            env=os.environ | {"GOMP_SPINCOUNT": looks},
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.split()

    patient, plain = scheduled("10000"), scheduled("300000")
    assert len(patient) >= 2
    assert set(patient) == {str(os.SCHED_BATCH)}
    assert set(plain) == {str(os.SCHED_OTHER)}


def test_envpool_plays_atari_by_the_protocols() -> None:
    with make_vec("ALE/Breakout-v5", 2, backend="envpool") as env:
        assert (env.preset, env.frame_skip) == ("dqn-2015", 4)
        assert env.reset(0).shape == (2, 4, 84, 84)
        rng, ends, records = np.random.default_rng(0), 0, []
        while not records:
            step = env.step(draw_actions(env, rng))
            ends += int(step.terminated[0])
            records = [one for one in step.episodes if one.env_id == 0]
        assert ends == 5
    with make_vec("ALE/Breakout-v5", 1, backend="envpool", preset="machado-2018") as env:
        assert env.action_space == spaces.Discrete(18)


def test_envpool_says_what_it_cannot_do() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean .*'CartPole-v1'"):
        make_vec("CartPol-v1", 1, backend="envpool")
    with pytest.raises(ConfigError, match="does not take"):
        make_vec("CartPole-v1", 1, backend="envpool", env_kwargs={"gravity": 3})
    with make_vec("CartPole-v1", 1, backend="envpool") as env:
        assert env.restorable == "EnvPool cannot save its state"
        env.reset(0)
        with pytest.raises(EnvError, match="EnvPool cannot save its state"):
            env.state_dict()


def test_seeds_are_pure_functions_of_run_and_index() -> None:
    seeds = [env_seed(0, i) for i in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds == [env_seed(0, i) for i in range(100)]
    with pytest.raises(ConfigError, match="negative"):
        env_seed(-1, 0)

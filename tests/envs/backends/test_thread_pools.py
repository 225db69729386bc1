"""EnvPool, and the threads of EnvPool and ALE."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from redline.envs import make_vec
from redline.errors import ConfigError, EnvError, UnknownNameError
from tests.envs.recording import draw_actions
from tests.envs.test_cpus import needs_batch


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

found = []
for options in json.loads(sys.argv[2]):
    before = cores()
    env = make_vec("ALE/Breakout-v5", num_envs=2, backend=sys.argv[1], **options)
    env.reset(0)
    found.append(sorted(on for task, on in cores().items() if task not in before))
    env.close()
print(json.dumps(found))
"""


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system pins no threads")
@pytest.mark.parametrize("backend", ["envpool", "ale"])
def test_pools_that_fill_the_machine_pin_their_threads(backend: str) -> None:
    """One core each where there is a thread for every core; else they run where they like."""
    cores = sorted(os.sched_getaffinity(0))

    threads = len(cores)
    several: list[dict[str, Any]] = [
        {"num_threads": threads},
        {"num_threads": threads + 1},
        {"num_threads": threads, "tune_process": False},
    ]
    if backend == "envpool":
        unpinned = {"thread_affinity_offset": -1}
        several.append({"num_threads": threads, "env_kwargs": unpinned})
    command = [sys.executable, "-c", PINNED, backend, json.dumps(several)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    filling, *others = [
        [found for found in each if len(found) < threads] for each in json.loads(done.stdout)
    ]
    fills = cores == list(range(os.cpu_count() or 0)) and threads > 1
    assert filling == ([[core] for core in cores] if fills else [])
    assert others == [[]] * (len(several) - 1)


SCHEDULED = """
import json, os, sys
from redline.envs import make_vec

make_vec("ALE/Breakout-v5", num_envs=1, num_threads=1, backend=sys.argv[1]).close()  # imports
for tune in json.loads(sys.argv[2]):
    before = set(os.listdir("/proc/self/task"))
    options = {"num_threads": 2, "backend": sys.argv[1], "tune_process": tune}
    with make_vec("ALE/Breakout-v5", num_envs=2, **options) as env:
        env.reset(0)
        started = set(os.listdir("/proc/self/task")) - before
        print(*[os.sched_getscheduler(int(thread)) for thread in started])
"""


@needs_batch
@pytest.mark.parametrize("backend", ["envpool", "ale"])
def test_threads_of_pools_do_not_preempt_the_thread_that_wakes_them(backend: str) -> None:
    def scheduled(spins: str, tune: list[bool]) -> list[list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", SCHEDULED, backend, json.dumps(tune)],
            env=os.environ | {"GOMP_SPINCOUNT": spins},
            check=True,
            capture_output=True,
            text=True,
        )
        return [line.split() for line in done.stdout.splitlines()]

    tuned, untuned = scheduled("10000", [True, False])
    assert len(tuned) >= 2
    assert set(tuned) == {str(os.SCHED_BATCH)}
    assert set(untuned) == {str(os.SCHED_OTHER)}
    (by_the_user,) = scheduled("300000", [True])
    assert set(by_the_user) == {str(os.SCHED_OTHER)}


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
    with pytest.raises(ConfigError, match=r"noop_max=0 .* draws 1 to noop_max"):
        make_vec("ALE/Breakout-v5", 1, backend="envpool", noop_max=0)
    with make_vec("CartPole-v1", 1, backend="envpool") as env:
        assert env.restorable == "EnvPool cannot save its state"
        env.reset(0)
        with pytest.raises(EnvError, match="EnvPool cannot save its state"):
            env.state_dict()

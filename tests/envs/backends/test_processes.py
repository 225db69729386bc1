"""Worker processes: the same steps as in process, and nothing left whatever goes wrong."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from redline.envs import make_vec
from redline.envs.backends.processes import split_evenly
from redline.errors import ConfigError, EnvDataError, EnvError, WorkerError
from tests.envs.recording import record
from tests.envs.scripted import Counting, Faulty, Walk
from tests.envs.workers.processes import alive, named_memory, wait_until_gone

ZERO = np.zeros(3, dtype=np.int64)


def pids_of(env: Any) -> list[int]:
    return [worker.process.pid for worker in env._backend._group._workers]


def test_workers_give_the_same_steps_as_one_process() -> None:
    """FAULTS 24; also idle environments, and saving in one number of workers for another."""
    before = named_memory(os.getpid())
    serial = make_vec("CartPole-v1", 5)
    with make_vec("CartPole-v1", 5, backend="processes", num_workers=2) as env:
        np.testing.assert_array_equal(env.reset(9), serial.reset(9))
        assert record(env, 60, seed=1) == record(serial, 60, seed=1)
        active = np.array([True, False, True, False, True])
        action = np.zeros(5, dtype=np.int64)
        for _ in range(12):
            ours, theirs = env.step(action, active), serial.step(action, active)
            for a, b in zip(ours[:5], theirs[:5], strict=True):
                np.testing.assert_array_equal(a, b)
            assert ours.episodes == theirs.episodes
        assert named_memory(os.getpid(), *pids_of(env)) == before  # it is shared without a name
        state = env.state_dict()
        expected = record(serial, 40, seed=2)
    with make_vec("CartPole-v1", 5, backend="processes", num_workers=1) as env:
        env.load_state_dict(state)
        assert record(env, 40, seed=2) == expected
    with (
        make_vec("CartPole-v1", 4, backend="processes", num_workers=1) as other,
        pytest.raises(EnvError, match="of 5 environments, this run has 4"),
    ):
        other.load_state_dict(state)


class Global(Walk):
    """Its reward comes from the generators that all of a process share."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, np.random.rand() + random.random(), *rest


class GlobalOfTorch(Walk):
    """Its reward comes from torch's global generator."""

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, torch.rand(()).item(), *rest


@pytest.mark.parametrize("kind", [Global, GlobalOfTorch])
def test_what_environments_draw_from_global_generators_repeats_with_the_seed(
    kind: type[Walk],
) -> None:
    """In this process the training loop seeds them; a worker is another process."""
    drawn = []
    for seed in (3, np.int64(3), 4):
        with make_vec(kind, 4, backend="processes", num_workers=2) as env:
            env.reset(seed)
            step = env.step(np.zeros((4, 2), np.float32))
            drawn.append(np.array(step.reward))

    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert len(set(drawn[0].tolist())) == 4  # workers have generators of their own


def test_journals_and_refusals_cross_the_process_border() -> None:
    """A RedlineError of a worker is raised as it is, and the workers go on."""
    with make_vec(Walk, 2, backend="processes", num_workers=1) as env:
        assert env.restorable is None
        env.reset(0)
        record(env, 20, seed=1)
        state = env.state_dict()
        expected = record(env, 20, seed=2)
        env.load_state_dict(state)
        assert record(env, 20, seed=2) == expected
        state["simulators"]["obs"][""] += 1
        with pytest.raises(EnvError, match="did not reproduce") as caught:
            env.load_state_dict(state)
        assert "worker 0" in caught.value.__notes__[0]
        env.reset(1)
        env.step(np.zeros((2, 2), np.float32))


def fail_in_step_3(fault: str, timeout_s: float = 60.0) -> tuple[WorkerError, list[int], float]:
    before = named_memory(os.getpid())
    env = make_vec(
        lambda: Faulty("none" if fault == "kill" else fault),
        3,
        backend="processes",
        num_workers=2,
        worker_timeout_s=timeout_s,
    )
    pids = pids_of(env)
    env.reset(0)
    env.step(ZERO)
    env.step(ZERO)
    assert named_memory(os.getpid(), *pids) == before
    if fault == "kill":
        os.kill(pids[1], signal.SIGKILL)
    begin = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        env.step(ZERO)
    took = time.monotonic() - begin
    assert not any(map(alive, pids))
    with pytest.raises(WorkerError, match="closed"):
        env.step(ZERO)
    env.close()
    return caught.value, pids, took


def test_a_raising_worker_reaches_the_parent_with_its_traceback() -> None:
    """FAULTS 16: a worker exception that leaves the parent hung for ever."""
    error, _, took = fail_in_step_3("raise")
    assert "KeyError: 'the door is locked'" in str(error)
    assert "scripted.py" in str(error)
    assert "environment" in str(error)
    assert took < 10


def test_a_killed_worker_reaches_the_parent_with_its_signal() -> None:
    error, _, took = fail_in_step_3("kill")
    assert "worker 1 (environments 1 .. 2 of " in str(error)
    assert "was killed by SIGKILL" in str(error)
    assert took < 10


def test_an_exiting_worker_reaches_the_parent_with_its_status() -> None:
    error, _, took = fail_in_step_3("exit")
    assert "exited with status 7" in str(error)
    assert took < 10


def test_a_hanging_worker_is_ended_and_its_stack_shown() -> None:
    error, _, took = fail_in_step_3("hang", timeout_s=1.0)
    assert "did not answer 'step' within worker_timeout_s=1 s" in str(error)
    assert "in spoil" in str(error)
    assert took < 10


def hang(where: str, wanted: str) -> None:
    if where == wanted:
        time.sleep(600)


class HangsEarly(Walk):
    """Blocks while it is made, or in the first reset after the one that looks for a mask."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        hang(where, "start")

    def reset(self, **options: Any) -> Any:
        if options["seed"]:  # 0 in the reset that looks for a mask
            hang(self._where, "reset")
        return super().reset(**options)


@pytest.mark.parametrize("where", ["start", "reset"])
def test_a_worker_that_stands_still_is_found_though_starting_may_take_long(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two minutes are allowed for these, but not without any work done."""
    monkeypatch.setattr("redline.envs.workers.supervisor._LEAST_STANDSTILL_S", 4.0)
    begin = time.monotonic()
    with pytest.raises(WorkerError) as caught:  # noqa: PT012 (which call fails is the case)
        env = make_vec(
            lambda: HangsEarly(where), 2, backend="processes", num_workers=2, worker_timeout_s=4.0
        )
        env.reset(0)
    assert f"stood still in '{where}': no answer and no work done for" in str(caught.value)
    assert "in hang" in str(caught.value)
    assert time.monotonic() - begin < 60


def test_bad_data_in_a_worker_is_named_by_its_place_in_the_whole_batch() -> None:
    with make_vec(lambda: Faulty("shape"), 2, backend="processes", num_workers=2) as env:
        env.reset(0)
        env.step(ZERO[:2])
        env.step(ZERO[:2])
        with pytest.raises(EnvDataError, match="environment 0: observation has shape"):
            env.step(ZERO[:2])


def test_a_factory_that_raises_or_cannot_travel_is_reported() -> None:
    def broken() -> None:
        raise OSError("no such level")

    with pytest.raises(WorkerError, match="no such level"):
        make_vec(broken, 1, backend="processes")
    lock = threading.Lock()
    with pytest.raises(ConfigError, match="cannot be sent"):
        make_vec(lambda: Counting(lock), 1, backend="processes")


SCRIPT = """
import sys, time
import gymnasium, numpy as np
{setup}
class Mine(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {{}}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, False, {{}}
from redline.envs import make_vec
env = make_vec(Mine, 2, backend="processes", num_workers=2)
env.reset(0)
env.step(np.zeros(2, dtype=np.int64))
print(*[worker.process.pid for worker in env._backend._group._workers], flush=True)
{end}
"""


def run_script(tmp_path: Path, setup: str, end: str) -> subprocess.Popen:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(setup=setup, end=end))
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_any_start_method_and_no_main_guard(tmp_path: Path, method: str) -> None:
    """FAULTS 26 and 18: code that works only under fork; a script that ends without closing."""
    setup = f"import multiprocessing; multiprocessing.set_start_method({method!r})"
    script = run_script(tmp_path, setup, "")
    out, _ = script.communicate(timeout=120)
    assert script.returncode == 0
    pids = [int(word) for word in out.split()]
    assert len(pids) == 2
    wait_until_gone(pids)


def test_workers_die_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = run_script(tmp_path, "", "time.sleep(600)")
    assert script.stdout is not None
    pids = [int(word) for word in script.stdout.readline().split()]
    assert len(pids) == 2
    assert not named_memory(script.pid, *pids)
    script.kill()
    script.wait()
    script.stdout.close()
    wait_until_gone(pids)


def test_shares_are_contiguous_and_even() -> None:
    assert split_evenly(5, 2) == [(0, 2), (2, 5)]
    assert split_evenly(3, 3) == [(0, 1), (1, 2), (2, 3)]

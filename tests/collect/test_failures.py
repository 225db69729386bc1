"""Whatever goes wrong in a worker, the parent ends with the cause and nothing is left."""

from __future__ import annotations

import sys
import time
from typing import Any

import gymnasium
import pytest

from redline.errors import EnvDataError, WorkerError
from tests.collect.placements import children, make, shared_memory
from tests.collect.scripted import ExactPolicy
from tests.collect.test_workers import LIMITS_S, Misbehaving, alive
from tests.warm_workers import WarmSubprocess


@pytest.mark.parametrize(
    ("placement", "deed", "message"),
    [
        ("central", "raise", "the simulator has lost its balance"),
        ("central", "kill", "was killed by SIGKILL"),
        ("alternating", "raise", "the simulator has lost its balance"),
        ("alternating", "hang", "in step"),
        ("async", "kill", "was killed by SIGKILL"),
        ("async", "hang", "in step"),
    ],
)
def test_a_worker_that_fails_ends_the_collection(placement: str, deed: str, message: str) -> None:
    """At step 10; the async workers are by then ahead of what the parent waits for."""
    shared, before = shared_memory(), children()
    settings: dict[str, Any] = {"timeout_s": LIMITS_S[deed], "rollout_length": 6}
    collector = make(placement, ExactPolicy(), lambda: Misbehaving(deed), **settings)

    def collect_18_steps() -> None:
        for _ in range(3):
            collector.collect()
            assert shared_memory() <= shared  # it has no name

    with collector, pytest.raises(WorkerError, match=message):
        collect_18_steps()
    assert not children() - before  # others may end meanwhile
    assert shared_memory() <= shared


@pytest.mark.parametrize("placement", ["alternating", "async"])
def test_workers_end_when_the_learner_is_killed(
    placement: str, warm_subprocess: WarmSubprocess
) -> None:
    """kill -9 in the middle of collecting gives it no chance to clean up."""
    program = (
        "import os, sys; sys.path.insert(0, '.')\n"
        "from tests.collect.placements import children, make\n"
        "from tests.collect.scripted import ExactPolicy\n"
        f"c = make({placement!r}, ExactPolicy())\n"
        "print(*children(), flush=True)\n"
        "while True: c.collect()\n"
    )
    parent = warm_subprocess.Popen(
        [sys.executable, "-c", program], stdout=warm_subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "a worker outlived the learner"
        time.sleep(0.05)


class Broken(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose 10th reward is no number."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self.count = 0

    def step(self, action: Any) -> Any:
        self.count += 1
        obs, reward, *rest = self.env.step(action)
        return obs, float("nan") if self.count == 10 else reward, *rest


@pytest.mark.parametrize("placement", ["serial", "alternating", "async"])
def test_a_broken_environment_is_named_and_the_workers_go_on(placement: str) -> None:
    """Step 10 is in the second rollout of 6: all environments break their contract at once."""
    with make(placement, ExactPolicy(), Broken, rollout_length=6) as collector:
        assert collector.collect().num_valid() == 24
        with pytest.raises(EnvDataError, match="nan"):
            collector.collect()
        for _ in range(3):
            assert collector.collect().num_valid() == 24

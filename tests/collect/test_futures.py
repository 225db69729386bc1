"""Collecting beside the caller: poll, wait with a limit, look, and change weights meanwhile."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from redline.collect import Collector, SerialCollector
from redline.data import Array
from redline.envs.vec_env import EnvStep
from redline.errors import ConfigError, RedlineError
from tests.collect.placements import assert_equal, copied, make
from tests.collect.scripted import ExactPolicy, ScriptedEnv


class GatedEnv(ScriptedEnv):
    """Takes a step only when the test lets it."""

    def __init__(self) -> None:
        super().__init__([[3], [9]], ["truncated", "terminated"])
        self.gate = threading.Semaphore(0)

    def step(self, action: Any, active: Array | None = None) -> EnvStep:
        if not self.gate.acquire(timeout=30):
            raise TimeoutError("the test did not open the gate")
        return super().step(action, active)


def wait_for_rows(collector: Collector, future: Any, rows: int) -> Any:
    """The partial rollout as soon as it has so many rows."""
    deadline = time.monotonic() + 20
    while (partial := future.partial()).num_valid() < rows * collector.num_envs:
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.002)
    return partial


def test_a_future_is_polled_waited_for_and_looked_at() -> None:
    """Two of six rows are there: they are right, the others zero and not valid."""
    env = GatedEnv()
    with SerialCollector(env, ExactPolicy(), rollout_length=6) as collector:
        future = collector.collect_async()
        assert not future.done
        assert not future.wait(0.05)
        env.gate.release(2)
        partial = wait_for_rows(collector, future, 2)
        assert partial["obs"][:, 0, 0].tolist() == [0, 1, 0, 0, 0, 0]
        assert partial["obs"][:, 1, 0].tolist() == [100, 101, 0, 0, 0, 0]
        assert partial["valid"][:, 0].tolist() == [True] * 2 + [False] * 4
        assert partial["env_id"][:, 1].tolist() == [1] * 6
        env.gate.release(4)
        assert future.wait(20)
        rollout = future.result()
        assert rollout["obs"][:, 0, 0].tolist() == [0, 1, 2, 10, 11, 12]
        assert partial["obs"][:, 0, 0].tolist() == [0, 1, 0, 0, 0, 0]  # a copy, not a view
        env.gate.release(6)
        assert collector.collect()["obs"][0, 0, 0].item() == 20  # and on with the next


def test_weights_changed_meanwhile_reach_the_next_rollout() -> None:
    """FAULTS 19 and 23: an in-place step shows mid-rollout; an update swallows the result."""
    env, policy = GatedEnv(), ExactPolicy()
    with SerialCollector(env, policy, rollout_length=6) as collector:
        collector.update_weights(4)
        future = collector.collect_async()
        env.gate.release(2)
        wait_for_rows(collector, future, 2)
        with torch.no_grad():
            policy.weight.fill_(5.0)
        collector.update_weights(5)
        env.gate.release(4)
        rollout = future.result()
        assert (rollout["weight"] == 0).all()
        assert rollout.version == 4
        env.gate.release(12)
        rollout = collector.collect_async().result()
        assert (rollout["weight"] == 5).all()
        assert rollout.version == 5
        assert (collector.collect()["weight"] == 5).all()


def test_a_busy_collector_refuses_other_work_and_can_be_closed() -> None:
    env = GatedEnv()
    collector = SerialCollector(env, ExactPolicy(), rollout_length=6)
    future = collector.collect_async()
    for ask in (
        collector.collect,
        collector.collect_async,
        collector.state_dict,
        lambda: collector.begin_episodes(2),
    ):
        with pytest.raises(ConfigError, match=r"Wait for its future first"):
            ask()
    env.gate.release(1)

    def go_on_once_it_is_cancelled() -> None:
        for _ in range(60_000):
            if collector._cancelled:
                break
            time.sleep(0.001)
        env.gate.release(5)

    threading.Thread(target=go_on_once_it_is_cancelled, daemon=True).start()
    collector.close()
    assert env.closed
    with pytest.raises(RedlineError, match="closed while it collected"):
        future.result()


def test_an_error_comes_out_of_the_future() -> None:
    env = GatedEnv()
    env.step = lambda action, active=None: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    with SerialCollector(env, ExactPolicy(), rollout_length=6) as collector:
        future = collector.collect_async()
        assert future.wait(20)
        with pytest.raises(ZeroDivisionError):
            future.result()


@pytest.mark.parametrize("placement", ["device", "alternating", "async"])
def test_futures_of_every_placement_give_the_rollouts_of_collect(placement: str) -> None:
    """And weights exchanged meanwhile, more often than there are slots for them, do no harm."""
    policy = ExactPolicy()
    with make("serial", policy) as serial:
        expected = [copied(serial.collect()) for _ in range(2)]
    with make(placement, policy, num_workers=2) as collector:
        future = collector.collect_async()
        for _ in range(4):
            collector.update_weights(0)
            rows = future.partial()["valid"].numpy()
            assert (np.diff(rows.astype(int), axis=0) <= 0).all()  # done rows come first
        assert_equal(copied(future.result()), expected[0])
        assert future.done
        assert_equal(copied(collector.collect()), expected[1])
        future = collector.collect_async()
    assert future.done  # complete, or ended by the end of the block


@pytest.mark.parametrize("placement", ["serial", "device", "central", "workers", "async"])
def test_a_complete_rollout_can_be_looked_at(placement: str) -> None:
    """Workers had an IndexError, and async showed the next rollout."""
    with make(placement, ExactPolicy(), num_workers=2) as collector:
        collector.collect()
        collector.update_weights(1)
        collector.collect()
        collector.update_weights(2)
        future = collector.collect_async()
        assert future.wait(60)
        partial, rollout = future.partial(), future.result()
        assert partial.num_valid() == rollout.num_valid() == 80
        assert partial.version == rollout.version
        assert torch.equal(partial["obs"], rollout["obs"])

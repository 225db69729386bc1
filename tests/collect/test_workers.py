"""Workers that act: the same rollouts as the serial collector, and no way to hang or leak."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from redline.collect import SerialCollector, WorkersCollector
from redline.envs import EnvSettings
from redline.envs.workers.supervisor import WorkerGroup
from redline.errors import ConfigError, WorkerError
from redline.policies import make_policy
from tests.collect.placements import children, shared_memory
from tests.envs.workers.processes import named_memory
from tests.warm_workers import WarmSubprocess


def cartpole_policy(core: str = "none") -> Any:
    torch.manual_seed(0)
    env = gymnasium.make("CartPole-v1")
    return make_policy(env.observation_space, env.action_space, hidden_sizes=(16,), core=core)


def workers(policy: Any, env: Any = "CartPole-v1", **settings: Any) -> WorkersCollector:
    defaults = {"num_envs": 4, "num_workers": 2, "rollout_length": 40, "seed": 3}
    return WorkersCollector(EnvSettings(env=env), policy, **(defaults | settings))


def test_what_cannot_wait_is_said_before_a_worker_is_asked() -> None:
    """A worker's refusal would come as that of a worker that failed, with its traceback.

    The environments of ALE's own vector environment, and of EnvPool, step all at once.
    """
    pytest.importorskip("ale_py")
    settings = EnvSettings(env="ALE/Breakout-v5", backend="ale")
    with settings.make(1) as env:
        policy = make_policy(env.observation_space, env.action_space)
    with pytest.raises(
        ConfigError, match="reset_mode='wait' needs environments that can stay idle"
    ):
        WorkersCollector(
            settings, policy, num_envs=2, num_workers=1, rollout_length=4, reset_mode="wait"
        )
    with WorkersCollector(
        settings, policy, num_envs=2, num_workers=1, rollout_length=4
    ) as collector:
        with pytest.raises(ConfigError, match="a number of episodes needs"):
            collector.begin_episodes(2)
        assert collector.collect().num_valid() == 8  # it goes on


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_workers_give_the_rollouts_of_the_serial_collector(core: str) -> None:
    """Over two rollouts with a change of weights in between, ends of episodes included."""
    policy = cartpole_policy(core)
    serial = SerialCollector(
        EnvSettings(env="CartPole-v1").make(4), policy, rollout_length=40, seed=3
    )
    with workers(policy) as parallel:
        for version in (0, 1):
            expected, rollout = serial.collect(), parallel.collect()
            assert rollout["terminated"].any()
            for name in expected.steps.keys():  # noqa: SIM118
                torch.testing.assert_close(rollout[name], expected[name], rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(rollout.last_obs, expected.last_obs)
            for name, leaf in expected.initial_state.items():
                torch.testing.assert_close(rollout.initial_state[name], leaf)
            assert sorted(rollout.episodes, key=lambda e: (e.env_id, e.episode_id)) == sorted(
                expected.episodes, key=lambda e: (e.env_id, e.episode_id)
            )
            assert rollout.version == version
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.add_(0.05 * torch.sign(parameter))
            serial.update_weights(1)
            parallel.update_weights(1)


def test_weights_reach_the_workers_only_when_they_are_sent() -> None:
    """Weights were once shared by accident, elsewhere never sent at all."""
    policy = cartpole_policy()
    with workers(policy) as collector:
        before = collector.collect()["value"].clone()
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.fill_(0.0)
        unsent = collector.collect()
        assert (unsent["value"] != 0).any()
        assert unsent.version == 0
        collector.update_weights(7)
        sent = collector.collect()
        assert (sent["value"] == 0).all()
        assert sent.version == 7
    assert (before != 0).any()


def test_state_dict_continues_bit_for_bit() -> None:
    policy = cartpole_policy("gru")
    with workers(policy) as collector:
        collector.collect()
        saved = collector.state_dict()
        expected = collector.collect().steps.clone()
    with workers(policy) as other:
        other.load_state_dict(saved)
        rollout = other.collect()
        for name in expected.keys():  # noqa: SIM118
            assert torch.equal(rollout[name], expected[name]), name


def test_more_workers_than_environments_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers=5 is more than num_envs=4"):
        workers(cartpole_policy(), num_workers=5)


class Misbehaving(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that does something bad at step 10."""

    def __init__(self, deed: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self.deed, self.count = deed, 0

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == 10 and self.deed == "raise":
            raise RuntimeError("the simulator has lost its balance")
        if self.count == 10 and self.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.count >= 10 and self.deed == "hang":
            time.sleep(1000)
        if self.deed == "slow":
            time.sleep(0.1)
        return self.env.step(action)


# A hang must last as long. What fails at once may first be slow, on a busy machine.
LIMITS_S = {"raise": 60.0, "kill": 60.0, "hang": 2.0}


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("raise", "the simulator has lost its balance"),
        ("kill", "was killed by SIGKILL"),
        ("hang", "time.sleep"),
    ],
)
def test_a_worker_that_fails_ends_the_collection(deed: str, message: str) -> None:
    """A worker's exception once left the parent waiting for ever.

    The parent ends with the cause (for a hang, with the line where the worker stands), no
    process is left, and nothing lies in shared memory: it has no name.
    """
    shared = shared_memory()
    before = children()
    collector = workers(cartpole_policy(), env=lambda: Misbehaving(deed), timeout_s=LIMITS_S[deed])
    assert shared_memory() <= shared
    with pytest.raises(WorkerError) as caught:
        collector.collect()
    collector.close()
    if deed == "hang":
        assert "did not answer 'collect' within worker_timeout_s=2 s" in str(caught.value)
        assert "in step" in str(caught.value)
    else:
        assert message in str(caught.value)
    assert not children() - before  # others may end meanwhile
    assert shared_memory() <= shared


def test_slow_steps_are_not_a_hang() -> None:
    """45 steps of 0.1 s and more take longer than the timeout, but each one is progress."""
    slow = {"num_envs": 2, "rollout_length": 45, "timeout_s": 4.0}
    with workers(cartpole_policy(), env=lambda: Misbehaving("slow"), **slow) as collector:
        assert collector.collect().num_valid() == 90


def test_workers_end_when_the_parent_is_killed(warm_subprocess: WarmSubprocess) -> None:
    """kill -9 gives the parent no chance to clean up."""
    program = (
        "import sys, time; sys.path.insert(0, '.')\n"
        "from tests.collect.test_workers import workers, cartpole_policy\n"
        "c = workers(cartpole_policy())\n"
        "print(*[w.process.pid for w in c._group._workers], flush=True)\n"
        "while True: c.collect()\n"
    )
    parent = warm_subprocess.Popen(
        [sys.executable, "-c", program], stdout=warm_subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    named = named_memory(parent.pid, *pids)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in pids)
    assert not named  # so that nothing lies in shared memory


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_noise_does_not_depend_on_the_number_of_workers() -> None:
    """Greedy-free acting over a table is exact, so the rollouts are identical."""
    policy = cartpole_policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.fill_(0.0)
    rollouts = []
    for count in (1, 2, 4):
        with workers(policy, num_workers=count) as collector:
            rollouts.append(collector.collect().steps.clone())
    for other in rollouts[1:]:
        assert torch.equal(other["action"], rollouts[0]["action"])
        np.testing.assert_array_equal(other["obs"].numpy(), rollouts[0]["obs"].numpy())


class Dithering(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole whose reward comes from torch's global generator."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))

    def step(self, action: Any) -> Any:
        obs, _, *rest = self.env.step(action)
        return obs, torch.rand(()).item(), *rest


def test_what_draws_from_torchs_global_generator_repeats_with_the_seed() -> None:
    """As a network with dropout does; each worker has a stream of its own."""
    drawn = []
    for seed in (3, 3, 4):
        with workers(cartpole_policy(), env=Dithering, seed=seed, rollout_length=1) as collector:
            drawn.append(collector.collect()["reward"][0].tolist())
    assert drawn[0] == drawn[1]
    assert not set(drawn[0]) & set(drawn[2])
    assert len(set(drawn[0])) == 4


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(60.0, 120.0), (300.0, 300.0)])
def test_first_resets_may_take_longer_than_a_step(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, limit_s: float
) -> None:
    """They had to fit into the time of a step; and a time of 300 s was cut down to 120 s."""
    limits: dict[str, float] = {}
    gather = WorkerGroup._gather

    def recorded(group: Any, asked: Any, timeout_s: float, command: str, **more: Any) -> Any:
        limits[command] = timeout_s
        return gather(group, asked, timeout_s, command, **more)

    monkeypatch.setattr(WorkerGroup, "_gather", recorded)
    few = {"num_envs": 2, "num_workers": 1, "rollout_length": 2, "timeout_s": timeout_s}
    with workers(cartpole_policy(), **few) as collector:
        assert collector.collect().num_valid() == 4
        collector.begin_episodes(2)
    assert {name: limits[name] for name in ("begin", "collect", "limit")} == {
        "begin": limit_s,
        "collect": timeout_s,
        "limit": limit_s,
    }

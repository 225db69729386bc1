"""Workers that act on a device: the CPU's rollouts, and one wait of the host for each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import redline
from redline.collect import SerialCollector
from redline.collect.acting_worker import ActingHandler, ActingJob, CollectRequest
from redline.collect.buffer import RolloutBuffer
from redline.engines.captured_acting import CapturedActing
from redline.envs import EnvSettings
from redline.errors import ConfigError
from redline.policies import make_policy
from redline.policies.policy import Policy
from tests.accelerator import stand_in
from tests.accelerator.test_runs import PPO, SMALL
from tests.accelerator.worker_envs import cartpole
from tests.collect.placements import assert_equal, copied, make
from tests.collect.scripted import ExactPolicy

SETTINGS: dict[str, Any] = {"num_envs": 3, "num_workers": 2, "rollout_length": 15, "seed": 3}
CAPTURED = CapturedActing(None, captures=True)


@pytest.mark.parametrize("placement", ["workers", "async"])
def test_workers_on_a_device_give_the_rollouts_of_the_cpu(placement: str) -> None:
    """Of an exact recurrent policy, also after a change of weights and in a restored collector.

    Those of `workers` act by themselves, those of `async` by a captured graph.
    """
    policy = ExactPolicy()
    actor_for = CAPTURED if placement == "async" else None
    placed = SETTINGS | {"actor_for": actor_for, "policy_device": stand_in.NAME}
    serial = SerialCollector(
        EnvSettings(env=cartpole).make(3), policy, rollout_length=15, seed=SETTINGS["seed"]
    )
    with serial, _made(placement, policy, placed) as workers:
        assert_equal(copied(workers.collect()), copied(serial.collect()))
        if placement == "workers":  # the others made the next rollout with the weights of before
            with torch.no_grad():
                policy.weight.add_(1.0)
            for collector in (serial, workers):
                collector.update_weights(1)
        saved = workers.state_dict()
        wanted = copied(serial.collect())
        assert_equal(copied(workers.collect()), wanted)
    with _made(placement, policy, placed) as restored:
        assert restored.load_state_dict(saved) is None
        restored.update_weights(saved["version"])
        assert_equal(copied(restored.collect()), wanted)


def _made(placement: str, policy: Policy, settings: dict[str, Any]) -> Any:
    return make(placement, policy, cartpole, **settings)


@pytest.mark.parametrize(("captured", "waits"), [(True, 1), (False, 3)])
def test_waits_of_a_worker_for_its_device(captured: bool, waits: int) -> None:
    """Captured, all comes back in one copy; else action, log_prob and value each in its own."""
    with gymnasium.make("CartPole-v1") as env:
        spaces = env.observation_space, env.action_space
    policy = make_policy(*spaces, hidden_sizes=(8,), core="lstm", core_size=4)
    found = {}
    for length in (4, 8):
        job = ActingJob(
            EnvSettings(env=cartpole), policy, 0, 2, 0, "immediate", 1,
            CAPTURED if captured else None, stand_in.NAME,
        )  # fmt: skip
        link: Any = None
        handler = ActingHandler(job, job.make_envs(), link)
        handler._use(
            [RolloutBuffer.create(length, 2, *spaces, policy.extras_spec)],
            np.zeros(8, np.int64),
            alone=True,
        )
        handler._stamp = 1  # the weights are there
        for number in (1, 2, 3):  # the first ones warm up and capture
            with stand_in.counted() as device:
                handler.handle("collect", CollectRequest(number, 0, 0, 1, None))
                found[length] = len(device.read_backs)
        handler.close()
    assert found[8] - found[4] == 4 * waits


def test_a_run_whose_workers_act_on_a_device_is_resumed_to_the_bit(tmp_path: Path) -> None:
    """Recurrent, learning on the CPU."""
    settings: dict[str, Any] = SMALL | PPO | {
        "device": "cpu", "policy_device": stand_in.NAME, "collector": "workers",
        "num_workers": 1, "core": "gru", "core_size": 4,
    }  # fmt: skip
    whole = redline.train("ppo", env=cartpole, out=tmp_path / "whole", **settings)
    settings["total_env_steps"] = 16
    half = redline.train("ppo", env=cartpole, out=tmp_path / "half", **settings)
    resumed = redline.train(resume=half.out, env=cartpole, total_env_steps=32, quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]


@pytest.mark.parametrize("collector", ["central", "alternating"])
def test_collectors_that_act_in_this_process_say_where(collector: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = SMALL | PPO | {
        "collector": collector, "policy_device": stand_in.NAME,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"acts in the learner's process.*collector='workers'"):
        redline.train("ppo", env=cartpole, out=tmp_path / "run", **settings)


def test_workers_on_a_device_are_not_held_to_deterministic_operators(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"with deterministic=True: workers act in processes"):
        redline.train(
            "ppo",
            env="CartPole-v1",
            collector="workers",
            policy_device=stand_in.NAME,
            deterministic=True,
            out=tmp_path / "run",
        )

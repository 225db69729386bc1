"""The same rollouts wherever environments step and policies act, in three kinds of environments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from redline.collect import Collector
from redline.envs import EnvSettings
from redline.policies import make_policy
from redline.policies.policy import Policy
from tests.collect.placements import assert_equal, copied, make
from tests.collect.scripted import ExactPolicy

# Environment, core of the network, and steps enough for ends of episodes where they are short.
KINDS = [
    pytest.param("CartPole-v1", "lstm", 40, id="CartPole"),
    pytest.param("HalfCheetah-v5", "none", 8, id="HalfCheetah"),
    pytest.param("ALE/Breakout-v5", "none", 6, id="Breakout"),
]


def network(env_id: str, **settings: Any) -> Policy:
    torch.manual_seed(0)
    with EnvSettings(env=env_id, backend="gymnasium").make(1) as env:
        return make_policy(
            env.observation_space, env.action_space, hidden_sizes=(16,), core_size=8, **settings
        )


def change_weights(policy: Policy, version: int, *collectors: Collector) -> None:
    """All of them a little, in the learner, and make them known."""
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.sign(parameter))
    for collector in collectors:
        collector.update_weights(version)


@pytest.mark.parametrize(("env_id", "core", "length"), KINDS)
def test_central_equals_serial_to_the_bit(env_id: str, core: str, length: int) -> None:
    """Over two rollouts with a change of weights in between, ends of episodes included."""
    policy = network(env_id, core=core)
    settings: dict[str, Any] = {"num_envs": 3, "rollout_length": length}
    with (
        make("serial", policy, env_id, **settings) as serial,
        make("central", policy, env_id, **settings) as central,
    ):
        for version in (1, 2):
            assert_equal(copied(central.collect()), copied(serial.collect()))
            change_weights(policy, version, serial, central)


def test_alternating_equals_serial_up_to_the_batch_of_the_policy() -> None:
    policy = network("CartPole-v1", core="gru")
    with make("serial", policy) as serial, make("alternating", policy) as alternating:
        assert_close(alternating, serial)


@pytest.mark.parametrize("num_workers", [2, 4])  # one has the batch of the serial collector
@pytest.mark.parametrize(("env_id", "core", "length"), KINDS)
def test_workers_equal_serial_up_to_the_batch_of_the_policy(
    env_id: str, core: str, length: int, num_workers: int
) -> None:
    """A policy of floats rounds differently for 4 rows than for 1, 2 or 3."""
    policy = network(env_id, core=core)
    settings: dict[str, Any] = {"num_envs": 4, "rollout_length": length}
    with (
        make("serial", policy, env_id, **settings) as serial,
        make("workers", policy, env_id, num_workers=num_workers, **settings) as workers,
    ):
        for version in (1, 2):
            assert_close(workers, serial)
            change_weights(policy, version, serial, workers)


@pytest.mark.parametrize("num_workers", [1, 2, 4])
@pytest.mark.parametrize(("env_id", "core", "length"), KINDS)
def test_workers_equal_serial_for_an_exact_policy(
    env_id: str, core: str, length: int, num_workers: int
) -> None:
    """The order of episodes included, which several workers finish at different times."""
    with EnvSettings(env=env_id, backend="gymnasium").make(1) as env:
        policy = ExactPolicy(env.action_space)
    settings: dict[str, Any] = {"num_envs": 4, "rollout_length": length}
    with (
        make("serial", policy, env_id, **settings) as serial,
        make("workers", policy, env_id, num_workers=num_workers, **settings) as workers,
    ):
        for _ in range(2):
            assert_equal(copied(workers.collect()), copied(serial.collect()))


def assert_close(collector: Collector, serial: Collector) -> None:
    """The next rollouts of two collectors, up to rounding; what was done is the same."""
    rollout, expected = copied(collector.collect()), copied(serial.collect())
    assert rollout.keys() == expected.keys()
    for name, part in expected.items():
        if not isinstance(part, torch.Tensor):
            assert rollout[name] == part, name
        elif part.is_floating_point():
            torch.testing.assert_close(rollout[name], part, rtol=1e-4, atol=1e-5, msg=name)
        else:
            assert torch.equal(rollout[name], part), name

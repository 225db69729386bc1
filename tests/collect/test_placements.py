"""The same rollouts wherever environments step and policies act."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from redline.collect import (
    AlternatingCollector,
    AsyncCollector,
    CentralCollector,
    SerialCollector,
)
from redline.data import Rollout
from redline.envs import EnvSettings, make_vec
from redline.errors import ConfigError
from tests.collect.placements import assert_equal, copied, make
from tests.collect.scripted import ExactPolicy


@pytest.mark.parametrize(("overlap", "num_groups"), [(True, 2), (False, 3)])
def test_alternating_equals_serial_for_an_exact_policy(overlap: bool, num_groups: int) -> None:
    """5 environments in groups of unequal size; also saved and restored in between."""
    policy = ExactPolicy()
    settings: dict[str, Any] = {"num_envs": 5, "num_workers": 3}
    with make("serial", policy, **settings) as serial:
        expected = [copied(serial.collect()) for _ in range(3)]
    with make(
        "alternating", policy, overlap=overlap, num_groups=num_groups, **settings
    ) as collector:
        assert_equal(copied(collector.collect()), expected[0])
        saved = collector.state_dict()
        assert_equal(copied(collector.collect()), expected[1])
        assert collector.load_state_dict(saved) is None
        assert_equal(copied(collector.collect()), expected[1])
        assert_equal(copied(collector.collect()), expected[2])
    assert any(len(rollout["episodes"]) > 1 for rollout in expected)


@pytest.mark.parametrize(
    ("env_id", "backend"), [("CartPole-v1", "envpool"), ("ALE/Breakout-v5", "ale")]
)
def test_alternating_groups_of_threads_equal_serial(env_id: str, backend: str) -> None:
    """5 environments, 2 groups of unequal size, which step in threads of this process."""
    pytest.importorskip({"envpool": "envpool", "ale": "ale_py"}[backend])
    settings = EnvSettings(env=env_id, backend=backend)
    some: dict[str, Any] = {"rollout_length": 30, "seed": 3}
    with settings.make(1) as probe:
        policy = ExactPolicy(probe.action_space)
    with SerialCollector(settings.make(5), policy, **some) as serial:
        expected = [copied(serial.collect()) for _ in range(3)]
    some |= {"num_envs": 5, "num_workers": 1}  # which threads have no use for
    with AlternatingCollector(settings, policy, **some) as collector:
        assert_equal(copied(collector.collect()), expected[0])
        saved = collector.state_dict()
        assert_equal(copied(collector.collect()), expected[1])
        reason = collector.load_state_dict(saved)
        if backend == "ale":
            assert reason is None
            assert_equal(copied(collector.collect()), expected[1])
            assert_equal(copied(collector.collect()), expected[2])
        else:
            assert reason == "EnvPool cannot save its state"
    with pytest.raises(ConfigError, match="pins worker processes"):
        AlternatingCollector(settings, policy, cpus=[(0,)], **some)


class FailingPolicy(ExactPolicy):
    """Raises at one of its acts what is no error of Redline's."""

    fails_at = 10**9

    def act(self, *args: Any, **named: Any) -> Any:
        self.fails_at -= 1
        if self.fails_at == 0:
            raise ValueError("a mistake in a network")
        return super().act(*args, **named)


@pytest.mark.parametrize("backend", ["gymnasium", "ale"])
def test_a_step_that_nobody_waited_for_does_not_answer_the_next_question(backend: str) -> None:
    """The policy fails for one group while the other steps; then the collector goes on."""
    env_id = "CartPole-v1" if backend == "gymnasium" else "ALE/Breakout-v5"
    settings = EnvSettings(env=env_id, backend=backend)
    with settings.make(1) as probe:
        policy = FailingPolicy(probe.action_space)
    some: dict[str, Any] = {"num_envs": 4, "num_workers": 2, "rollout_length": 10, "seed": 3}
    with AlternatingCollector(settings, policy, **some) as collector:
        collector.collect()
        saved = collector.state_dict()
        expected = copied(collector.collect())
        for acts in (2, 5):
            policy.fails_at = acts
            with pytest.raises(ValueError, match="a mistake in a network"):
                collector.collect()
            assert collector.load_state_dict(saved) is None
            assert_equal(copied(collector.collect()), expected)


@pytest.mark.parametrize("backend", ["envpool", "ale"])
def test_threads_are_waited_for_before_they_get_another_task(backend: str) -> None:
    env_id = {"envpool": "CartPole-v1", "ale": "ALE/Breakout-v5"}[backend]
    pytest.importorskip({"envpool": "envpool", "ale": "ale_py"}[backend])
    action, other = np.array([0, 1]), np.array([1, 0])
    with (
        make_vec(env_id, 2, backend=backend) as env,
        make_vec(env_id, 2, backend=backend) as plain,
    ):
        for each in (env, plain):
            each.reset(1)
        env.begin_step(action)
        env.begin_step(other)  # the first answer is lost, not its effect
        plain.step(action)
        assert np.array_equal(env.finish_step().obs, plain.step(other).obs)
        env.begin_step(action)
        env.reset(None)
        plain.step(action)
        plain.reset(None)
        assert np.array_equal(env.step(other).obs, plain.step(other).obs)


@pytest.mark.parametrize("max_staleness", [1, 2])
def test_async_rollouts_are_made_with_the_weights_of_so_many_versions_before(
    max_staleness: int,
) -> None:
    """Rollout k acts with version max(k - M, 0), never later, never torn, whoever is faster.

    That is what a serial collector does whose weights are exchanged so late: its rollouts are
    the same to the bit. Weight v of version v is written into every row.
    """
    policy, late = ExactPolicy(), ExactPolicy()
    with (
        make("serial", late) as serial,
        make("async", policy, num_workers=1, max_staleness=max_staleness) as collector,
    ):
        for k in range(6):
            rollout, version = collector.collect(), max(k - max_staleness, 0)
            set_weight(late, version)
            serial.update_weights(version)
            assert_equal(copied(rollout), copied(serial.collect()))
            assert (rollout["weight"] == version).all()
            set_weight(policy, 77.0)  # in the middle of an update: nobody may see it
            set_weight(policy, k + 1)
            collector.update_weights(k + 1)


def test_async_goes_on_from_a_checkpoint_with_the_rollouts_made_ahead() -> None:
    """Saved after two rollouts of a run with M = 1; the third was being made with version 1."""
    policy = ExactPolicy()
    with make("async", policy, num_workers=1) as collector:
        for version in (1, 2):
            collector.collect()
            set_weight(policy, version)
            collector.update_weights(version)
        saved = collector.state_dict()
        expected = [copied(collector.collect()) for _ in range(3)]
    assert expected[0]["weight"].unique().tolist() == [1.0]
    assert expected[1]["weight"].unique().tolist() == [2.0]
    with make("async", policy, num_workers=1) as other:
        other.collect()
        assert other.load_state_dict(saved) is None
        other.update_weights(2)
        for part in expected:
            assert_equal(copied(other.collect()), part)
        too_many = saved | {"ahead": 2 * saved["ahead"]}
        with pytest.raises(ConfigError, match="holds 2 rollouts made ahead"):
            other.load_state_dict(too_many)


def set_weight(policy: ExactPolicy, weight: float) -> None:
    with torch.no_grad():
        policy.weight.fill_(weight)


def greedy_envs(rollout: Rollout) -> list[int]:
    """Environments that always took action 0."""
    return (rollout["action"] == 0).all(0).nonzero().flatten().tolist()


@pytest.mark.parametrize("placement", ["serial", "alternating", "workers"])
def test_conditioning_changes_at_every_collection(placement: str) -> None:
    masks = [torch.tensor([i in chosen for i in range(4)]) for chosen in ({0, 3}, {2}, set())]
    with make(placement, ExactPolicy()) as collector:
        found = [greedy_envs(collector.collect({"greedy": mask})) for mask in masks]
        assert found == [[0, 3], [2], []]
        assert greedy_envs(collector.collect()) == []


def test_conditioning_of_async_belongs_to_the_rollout_begun_with_it() -> None:
    """The first call begins two rollouts, each later one the next: M = 1."""
    masks = [torch.tensor([i in chosen for i in range(4)]) for chosen in ({0, 3}, {2}, {1})]
    with make("async", ExactPolicy()) as collector:
        found = [greedy_envs(collector.collect({"greedy": mask})) for mask in masks]
    assert found == [[0, 3], [0, 3], [2]]


class Meddler(ExactPolicy):
    """While it acts, somebody changes the mapping that it was collected with."""

    def __init__(self) -> None:
        super().__init__()
        self.told = {"greedy": torch.zeros(4, dtype=torch.bool)}

    def act(self, *args: Any, **kwargs: Any) -> Any:
        self.told["greedy"] = torch.ones(4, dtype=torch.bool)
        return super().act(*args, **kwargs)


@pytest.mark.parametrize("placement", ["serial", "alternating"])
def test_a_mapping_that_is_changed_meanwhile_is_for_the_next_rollout(placement: str) -> None:
    policy = Meddler()
    with make(placement, policy) as collector:
        assert greedy_envs(collector.collect(policy.told)) == []
        assert greedy_envs(collector.collect(policy.told)) == [0, 1, 2, 3]


@pytest.mark.parametrize("placement", ["alternating", "async"])
def test_waiting_environments_are_idle_in_every_placement(placement: str) -> None:
    """One episode each, then zeros, as in the serial collector."""
    policy = ExactPolicy()
    settings: dict[str, Any] = {"rollout_length": 60, "reset_mode": "wait"}
    with make("serial", policy, **settings) as serial:
        expected = [copied(serial.collect()) for _ in range(2)]
    with make(placement, policy, **settings) as collector:
        for part in expected:
            assert_equal(copied(collector.collect()), part)
    assert not expected[0]["valid"].all()


def test_impossible_placements_are_refused() -> None:
    settings, policy = EnvSettings(env="CartPole-v1"), ExactPolicy()
    some: dict[str, Any] = {"num_envs": 4, "rollout_length": 5}
    with pytest.raises(ConfigError, match="num_workers=1 is less than num_groups=2"):
        AlternatingCollector(settings, policy, num_workers=1, **some)
    with pytest.raises(ConfigError, match="num_groups=1: alternating takes at least 2"):
        AlternatingCollector(settings, policy, num_workers=2, num_groups=1, **some)
    with pytest.raises(ConfigError, match="num_workers=5 is more than num_envs=4"):
        CentralCollector(settings, policy, num_workers=5, **some)
    with pytest.raises(ConfigError, match="max_staleness=0"):
        AsyncCollector(settings, policy, num_workers=1, max_staleness=0, **some)
    vector = EnvSettings(env="ALE/Breakout-v5")
    with pytest.raises(ConfigError, match="back end 'ale' steps its environments by itself"):
        CentralCollector(vector, policy, num_workers=1, **some)

"""The serial collector on scripted environments: every number is known in advance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.collect import SerialCollector
from redline.data import Array, Rollout
from redline.engines.acting import actor_for
from redline.engines.cpu.images import PackedNetwork
from redline.errors import ConfigError
from redline.models import NatureCNN
from redline.policies import make_policy
from redline.profile import marks
from tests.collect.scripted import CountingPolicy, ScriptedEnv


def rows(rollout: Rollout, name: str, env: int = 0) -> list[float]:
    tensor = rollout[name]
    return tensor[:, env].reshape(len(tensor), -1)[:, 0].tolist()


class ImageEnv(ScriptedEnv):
    """Every observation is another image."""

    def __init__(self, lengths: list[list[int]], ends: list[str]) -> None:
        super().__init__(lengths, ends)
        self.observation_space = spaces.Box(0, 255, (4, 36, 36), np.uint8)
        self.rng = np.random.default_rng(0)

    def _obs(self) -> Array:
        return self.rng.integers(0, 256, (self.num_envs, 4, 36, 36), np.uint8)


def test_a_profile_is_told_what_one_simulation_mark_stands_for() -> None:
    """Else a step of two environments would count as one env step."""
    env = ScriptedEnv([[3], [2]], ["truncated", "terminated"])
    with SerialCollector(env, CountingPolicy(), rollout_length=5, seed=0):
        assert marks.known_metadata()["num_envs"] == 2


def test_an_episode_end_inside_a_rollout() -> None:
    """Environment 0: episodes of 3 steps that truncate; environment 1: of 2 that terminate.

    Observations are 100 i + 10 episode + step. V(successor) where truncated is the true last
    observation 3 with 3 steps of state: 3003; at the end of the rollout of 5 steps,
    environment 0 is 2 steps into episode 1: 12 + 2000.
    """
    env = ScriptedEnv([[3], [2]], ["truncated", "terminated"])
    with SerialCollector(env, CountingPolicy(), rollout_length=5, seed=0) as collector:
        rollout = collector.collect()
    assert rows(rollout, "obs") == [0, 1, 2, 10, 11]
    assert rows(rollout, "obs", 1) == [100, 101, 110, 111, 120]
    assert rows(rollout, "reward") == [1, 2, 3, 1, 2]
    assert rows(rollout, "truncated") == [False, False, True, False, False]
    assert rows(rollout, "terminated", 1) == [False, True, False, True, False]
    assert rows(rollout, "final_obs") == [0, 0, 3, 0, 0]
    assert rows(rollout, "final_obs", 1) == [0, 102, 0, 112, 0]
    assert rows(rollout, "bootstrap_value") == [0, 0, 3003, 0, 2012]
    assert rows(rollout, "bootstrap_value", 1) == [0, 0, 0, 0, 1121]
    assert rows(rollout, "value") == [0, 1001, 2002, 10, 1011]
    assert rows(rollout, "env_id", 1) == [1] * 5
    assert rows(rollout, "episode_id") == [0, 0, 0, 1, 1]
    assert rollout["valid"].all()
    assert rollout.last_obs.squeeze(1).tolist() == [12, 121]  # type: ignore[union-attr]
    assert [(e.env_id, e.episode_id, e.return_, e.length) for e in rollout.episodes] == [
        (1, 0, 3.0, 2),
        (0, 0, 6.0, 3),
        (1, 1, 3.0, 2),
    ]
    assert env.closed


def test_the_next_rollout_goes_on_and_starts_clean() -> None:
    """State, episode ids and observations carry over; last time's marks are gone."""
    env = ScriptedEnv([[3]], ["truncated"])
    collector = SerialCollector(env, CountingPolicy(), rollout_length=4, seed=0)
    collector.collect()
    rollout = collector.collect()
    assert rollout.initial_state["steps"].item() == 1.0
    assert rows(rollout, "obs") == [11, 12, 20, 21]
    assert rows(rollout, "final_obs") == [0, 13, 0, 0]
    assert rows(rollout, "bootstrap_value") == [0, 3013, 0, 2022]
    assert rows(rollout, "episode_id") == [1, 1, 2, 2]


def test_a_filler_step_is_not_valid_and_all_zero() -> None:
    """A back end that resets on the next step: the row after an end is no transition."""
    env = ScriptedEnv([[2]], ["truncated"], filler=True)
    rollout = SerialCollector(env, CountingPolicy(), rollout_length=6, seed=0).collect()
    assert rows(rollout, "valid") == [True, True, False, True, True, False]
    assert rows(rollout, "obs") == [0, 1, 0, 10, 11, 0]
    assert rows(rollout, "final_obs") == [0, 2, 0, 0, 12, 0]
    assert rows(rollout, "bootstrap_value") == [0, 2002, 0, 0, 2012, 0]
    assert rows(rollout, "value") == [0, 1001, 0, 10, 1011, 0]
    assert rows(rollout, "action")[2] == 0
    assert rollout.num_valid() == 4


def test_waiting_environments_are_idle_until_the_rollout_is_over() -> None:
    """Each gives one episode; the idle rows are zero although the slots were used before."""
    env = ScriptedEnv([[2], [4]], ["terminated", "truncated"])
    collector = SerialCollector(env, CountingPolicy(), rollout_length=6, seed=0, reset_mode="wait")
    for episode in range(2):
        rollout = collector.collect()
        assert rows(rollout, "valid") == [True, True, False, False, False, False]
        assert rows(rollout, "valid", 1) == [True] * 4 + [False] * 2
        assert rows(rollout, "obs") == [10 * episode, 10 * episode + 1, 0, 0, 0, 0]
        assert rows(rollout, "reward", 1) == [1, 2, 3, 4, 0, 0]
        assert rows(rollout, "value", 1)[4:] == [0, 0]
        for env_id in (0, 1):  # also of the idle rows, which would be nobody's otherwise
            assert rows(rollout, "env_id", env_id) == [env_id] * 6
        assert rows(rollout, "episode_id") == [episode] * 2 + [episode + 1] * 4
        assert rollout.initial_state["steps"].tolist() == [[0.0], [0.0]]
        assert len(rollout.episodes) == 2
        assert rollout.num_valid() == 6


def test_a_waiting_episode_longer_than_the_rollout_goes_on() -> None:
    """5 steps in rollouts of 3: rows 0-2, bootstrapped, then rows 3-4."""
    env = ScriptedEnv([[5]], ["terminated"])
    collector = SerialCollector(env, CountingPolicy(), rollout_length=3, seed=0, reset_mode="wait")
    first = collector.collect()
    assert rows(first, "bootstrap_value") == [0, 0, 3003]
    second = collector.collect()
    assert second.initial_state["steps"].item() == 3.0
    assert rows(second, "valid") == [True, True, False]
    assert rows(second, "episode_id") == [0, 0, 1]


def test_waiting_needs_a_back_end_that_can_idle() -> None:
    env = ScriptedEnv([[2]], ["terminated"], filler=True)
    with pytest.raises(ConfigError, match="can stay idle"):
        SerialCollector(env, CountingPolicy(), rollout_length=3, reset_mode="wait")


def test_noise_of_an_environment_does_not_depend_on_the_others() -> None:
    """Sampling that depends on the batch could not be reproduced with other workers."""
    alone = ScriptedEnv([[3]], ["truncated"])
    many = ScriptedEnv([[3], [3], [3]], ["truncated"] * 3)
    first = SerialCollector(alone, CountingPolicy(), rollout_length=8, seed=5).collect()
    second = SerialCollector(many, CountingPolicy(), rollout_length=8, seed=5).collect()
    assert rows(first, "action") == rows(second, "action")
    assert rows(second, "action") != rows(second, "action", 1)
    other = SerialCollector(alone, CountingPolicy(), rollout_length=8, seed=6).collect()
    assert rows(other, "action") != rows(first, "action")


def test_conditioning_reaches_the_policy_for_one_rollout() -> None:
    env = ScriptedEnv([[9], [9]], ["truncated"] * 2)
    collector = SerialCollector(env, CountingPolicy(), rollout_length=8, seed=1)
    rollout = collector.collect({"greedy": torch.tensor([True, False])})
    assert rows(rollout, "action") == [0] * 8
    assert any(rows(rollout, "action", 1))
    assert any(rows(collector.collect(), "action"))


def test_state_dict_continues_bit_for_bit() -> None:
    lengths, ends = [[3], [4, 2]], ["truncated", "terminated"]
    env = ScriptedEnv(lengths, ends)
    collector = SerialCollector(env, CountingPolicy(), rollout_length=5, seed=2)
    collector.collect()
    saved = collector.state_dict()
    expected = collector.collect().steps.clone()
    other = SerialCollector(ScriptedEnv(lengths, ends), CountingPolicy(), rollout_length=5, seed=2)
    other.load_state_dict(saved)
    rollout = other.collect()
    for name in expected.keys():  # noqa: SIM118
        assert torch.equal(rollout[name], expected[name]), name
    assert np.array_equal(rollout.initial_state["steps"], saved["actors"][0]["state"]["steps"])


def test_environments_that_cannot_be_saved_begin_fresh_episodes() -> None:
    env = ScriptedEnv([[3]], ["truncated"])
    env.restorable = "scripted cannot save its state"
    collector = SerialCollector(env, CountingPolicy(), rollout_length=4, seed=2)
    collector.collect()
    saved = collector.state_dict()
    assert "env" not in saved["actors"][0]
    collector.load_state_dict(saved)
    rollout = collector.collect()
    assert rows(rollout, "obs") == [0, 1, 2, 10]
    assert rollout.initial_state["steps"].item() == 0.0


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@pytest.mark.parametrize("shared_encoder", [True, False])
def test_images_are_acted_on_with_the_weights_of_now(
    shared_encoder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are laid out once per rollout: those of the rollout before would be seen in its rows."""
    passes, plainly = [], PackedNetwork.forward

    def counted(network: PackedNetwork, image: torch.Tensor) -> torch.Tensor:
        passes.append(len(image))
        return plainly(network, image)

    monkeypatch.setattr(PackedNetwork, "forward", counted)
    torch.manual_seed(0)
    env = ImageEnv([[5], [7], [50]], ["truncated", "terminated", "truncated"])
    policy = make_policy(
        env.observation_space, env.action_space, shared_encoder=shared_encoder, hidden_sizes=()
    )
    networks = [part for part in policy.modules() if isinstance(part, NatureCNN)]
    some: Any = {"rollout_length": 16, "seed": 0, "actor_for": actor_for}
    with SerialCollector(env, policy, **some) as collector:
        for _ in range(2):
            passes.clear()
            steps = collector.collect().steps.flatten()
            assert passes == [3] * 16 * len(networks)
            assert not any(isinstance(part, PackedNetwork) for part in policy.modules())
            with torch.no_grad():
                told = policy.evaluate_actions(steps["obs"], steps["action"])
                for name, expected in (("log_prob", told.log_prob), ("value", told.value)):
                    torch.testing.assert_close(steps[name], expected, rtol=1e-4, atol=1e-4)
                for parameter in policy.parameters():
                    parameter.mul_(1.3)
                changed = policy.evaluate_actions(steps["obs"], steps["action"])
                assert (changed.value - told.value).abs().min() > 1e-2

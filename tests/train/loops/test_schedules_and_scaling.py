"""Schedules in global env_steps, and reward scaling by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from redline.algos.ppo import PPOConfig
from redline.data import Rollout
from redline.train.loops.metric_means import MetricMeans
from redline.train.loops.reward_scaling import DeviceRewardScaler, RewardScaler
from redline.train.loops.schedules import are_constant, scheduled, scheduled_hyperparameters


def test_linear_schedule_by_hand() -> None:
    assert scheduled("linear", 0.4, 0, 100) == 0.4
    assert scheduled("linear", 0.4, 25, 100) == pytest.approx(0.3)
    assert scheduled("linear", 0.4, 100, 100) == 0.0
    assert scheduled("linear", 0.4, 130, 100) == 0.0
    assert scheduled("constant", 0.4, 99, 100) == 0.4


def test_schedules_govern_what_the_config_says() -> None:
    config = PPOConfig(learning_rate=1.0, learning_rate_schedule="linear", clip_range=0.2)
    values = scheduled_hyperparameters(config, 50, 200)
    assert values == {"learning_rate": 0.75, "clip_range": 0.2, "entropy_coef": 0.0}


def test_one_schedule_that_moves_is_enough() -> None:
    names = ("learning_rate", "clip_range", "entropy_coef")
    constant = {f"{name}_schedule": "constant" for name in names}
    assert are_constant(PPOConfig(**constant))
    for name in constant:
        assert not are_constant(PPOConfig(**(constant | {name: "linear"})))


def test_means_are_of_tensors_and_numbers_alike() -> None:
    """(1 + 2) / 2 and (4 + 8) / 2; an integer's tensor counts as its number."""
    means = MetricMeans()
    means.add({"loss": 1.0, "norm": torch.tensor(4.0)})
    means.add({"loss": torch.tensor(2), "norm": 8.0})
    assert means.take() == {"loss": 1.5, "norm": 6.0}
    means.add({"loss": 3.0})
    assert means.take() == {"loss": 3.0}


def test_a_metric_of_some_updates_is_the_mean_of_these() -> None:
    """4 in the first and third of four updates: (4 + 4) / 2; the other one (1 + 2 + 3 + 4) / 4."""
    means = MetricMeans()
    for number in (1.0, 2.0):
        means.add({"critic": number} | ({"actor": 4.0} if number % 2 else {}))
    means = MetricMeans.from_state(means.state_dict())
    for number in (3.0, 4.0):
        means.add({"critic": number} | ({"actor": 4.0} if number % 2 else {}))
    assert means.state_dict()["counts"] == {"actor": 2}
    assert means.take() == {"critic": 2.5, "actor": 4.0}


def test_means_of_an_earlier_state_go_on() -> None:
    """Where no counts are saved, each metric has one value per update: (6 + 3) / 3."""
    means = MetricMeans.from_state({"totals": {"loss": 6.0}, "count": 2})
    means.add({"loss": 3.0})
    assert means.state_dict() == {"totals": {"loss": 9.0}, "count": 3}
    assert means.take() == {"loss": 3.0}


def test_means_own_what_they_hold() -> None:
    """A captured update overwrites its metrics at the next replay: (1 + 3) / 2, not (3 + 3) / 2.

    float64 is the total's own dtype, where a conversion alone would not copy. (On a device:
    tests/accelerator.)
    """
    loss = torch.tensor(1.0, dtype=torch.float64)
    means = MetricMeans()
    means.add({"loss": loss})
    loss.fill_(3.0)
    means.add({"loss": loss})
    assert means.take() == {"loss": 2.0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_own_what_they_hold_on_a_device(dtype: torch.dtype) -> None:
    loss = torch.tensor(1.0, dtype=dtype, device="cuda")
    means = MetricMeans()
    means.add({"loss": loss})
    loss.fill_(3.0)
    means.add({"loss": loss})
    assert means.take() == {"loss": 2.0}


def rollout(reward: list[list[float]], done: list[list[int]], valid: list[list[int]]) -> Rollout:
    shape = (len(reward), len(reward[0]))
    steps = TensorDict(
        {
            "reward": torch.tensor(reward),
            "terminated": torch.tensor(done, dtype=torch.bool),
            "truncated": torch.zeros(shape, dtype=torch.bool),
            "valid": torch.tensor(valid, dtype=torch.bool),
        },
        batch_size=shape,
    )
    return Rollout(steps=steps, initial_state={}, last_obs={})


def test_rewards_are_divided_by_the_spread_of_the_discounted_return() -> None:
    """gamma = 1/2. R: 1, then 1/2 + 2 = 5/2 (ends), then 4. Mean 2.5, variance (2.25+0+2.25)/3.

    The filler row in between (not valid) changes nothing and stays 0.
    """
    scaler = RewardScaler(1, gamma=0.5)
    made = rollout([[1.0], [2.0], [0.0], [4.0]], [[0], [1], [0], [0]], [[1], [1], [0], [1]])
    scaler.scale(made)
    expected = np.array([1.0, 2.0, 0.0, 4.0]) / np.sqrt(1.5)
    np.testing.assert_allclose(made["reward"][:, 0].numpy(), expected, rtol=1e-6)


def test_the_discounted_return_goes_on_in_the_next_rollout() -> None:
    """In two rollouts or in one, the statistics are the same."""
    rewards = np.random.default_rng(0).normal(size=(6, 2)).tolist()
    none, all_valid = [[0, 0]] * 6, [[1, 1]] * 6
    whole = RewardScaler(2, gamma=0.9)
    whole.scale(rollout(rewards, none, all_valid))
    halves = RewardScaler(2, gamma=0.9)
    halves.scale(rollout(rewards[:3], none[:3], all_valid[:3]))
    copy = RewardScaler(2, gamma=0.9)
    copy.load_state_dict(halves.state_dict())
    copy.scale(rollout(rewards[3:], none[3:], all_valid[3:]))
    assert copy.deviation() == pytest.approx(whole.deviation(), rel=1e-6)


def test_scaled_rewards_are_bounded() -> None:
    """+-1e6 among 998 small ones: the deviation is 44,721, and +-22 would be left of them."""
    rewards = [[0.001]] * 998 + [[1e6], [-1e6]]
    made = rollout(rewards, [[0]] * 1000, [[1]] * 1000)
    there = DeviceRewardScaler(1, 0.0, torch.device("cpu")).scaled(made)["reward"]
    RewardScaler(1, gamma=0.0).scale(made)
    for found in (made["reward"], there):
        assert found[-2:, 0].tolist() == [10.0, -10.0]
        assert 0.0 < found[0, 0].item() < 1e-6


def test_a_device_scales_as_the_host_does() -> None:
    """Ends, filler rows and episodes that go on in the next rollout; but for rounding the same."""
    generator = np.random.default_rng(0)
    near, there = RewardScaler(3, 0.9), DeviceRewardScaler(3, 0.9, torch.device("cpu"))
    for _ in range(3):
        done, valid = generator.random((7, 3)) < 0.2, generator.random((7, 3)) < 0.8
        reward = (generator.normal(size=(7, 3)) * valid).tolist()
        made = rollout(reward, done.tolist(), valid.tolist())
        given = made["reward"].clone()
        found = there.scaled(made)["reward"]
        assert torch.equal(made["reward"], given)
        near.scale(made)
        torch.testing.assert_close(found, made["reward"], rtol=1e-6, atol=0.0)
    again = RewardScaler(3, 0.9)
    again.load_state_dict(there.state_dict())
    assert again.deviation() == pytest.approx(near.deviation(), rel=1e-12)
    moved_back = DeviceRewardScaler(3, 0.9, torch.device("cpu"))
    moved_back.load_state_dict(again.state_dict())
    assert torch.equal(moved_back.deviation(), there.deviation())


def test_a_device_s_rewards_by_hand() -> None:
    """The same numbers as above: R is 1, 5/2, (filler), 4; variance 3/2."""
    made = rollout([[1.0], [2.0], [0.0], [4.0]], [[0], [1], [0], [0]], [[1], [1], [0], [1]])
    scaler = DeviceRewardScaler(1, 0.5, torch.device("cpu"))
    expected = np.array([1.0, 2.0, 0.0, 4.0]) / np.sqrt(1.5)
    np.testing.assert_allclose(scaler.scaled(made)["reward"][:, 0], expected, rtol=1e-6)
    assert scaler.state_dict()["count"] == 3

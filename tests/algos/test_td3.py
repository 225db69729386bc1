"""TD3 against hand-worked numbers."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from gymnasium import spaces

from redline.algos.td3 import TD3, TD3Config, smoothed
from redline.errors import ConfigError, SpaceError
from redline.policies import make_actor
from redline.policies.actors import DeterministicActor
from tests.algos.off_policy_batches import (
    ACT,
    OBS,
    assert_round_trip,
    assert_same,
    linear_critic,
    moved,
    random_batch,
    set_head,
    three_rows,
)


def hand_made(**settings: Any) -> TD3:
    """mu(s) = 1/2, Q_1 = s_0 + 2 s_1 + 4 a + 1, Q_2 = 2 s_0 + s_1 + 4 a + 1."""
    actor = make_actor(DeterministicActor, OBS, ACT, hidden_sizes=(4,))
    set_head(actor, [math.atanh(0.5)])
    critic = linear_critic([[1.0, 2.0, 4.0], [2.0, 1.0, 4.0]], [1.0, 1.0])
    return TD3(actor, critic, TD3Config(**settings), seed=0)


def made(seed: int = 0, **settings: Any) -> TD3:
    return TD3.make(OBS, ACT, TD3Config(**settings), seed=seed, hidden_sizes=(8,))


def test_smoothed_by_hand() -> None:
    """scale = 0.2, c = 0.5.

    0 + 0.2 * 1 = 0.2; 0 + clip(0.2 * 5) = 0.5; 0 + clip(0.2 * -5) = -0.5;
    0.9 + 0.2 = 1.1, within bounds 1; -0.9 - 0.5 = -1.4, within bounds -1
    """
    action = torch.tensor([0.0, 0.0, 0.0, 0.9, -0.9])
    noise = torch.tensor([1.0, 5.0, -5.0, 1.0, -5.0])
    got = smoothed(action, noise, 0.2, 0.5)
    torch.testing.assert_close(got, torch.tensor([0.2, 0.5, -0.5, 1.0, -1.0]))


def test_update_by_hand() -> None:
    """Without noise: min Q' = min(s'_0 + 2 s'_1, 2 s'_0 + s'_1) + 2 + 1.

    y_0 = 1 (terminated); y_1 = 2 + (min(2, 4) + 3) / 2 = 4.5; y_2 = 7 + (min(8, 4) + 3) / 8 = 7.875
    Q_1 = 4, 1, 8; Q_2 = 2 + 0 + 2 + 1 = 5, 0 + 1 - 2 + 1 = 0, 2 + 1 + 4 + 1 = 8
    |Q_1 - y| = 3, 3.5, 0.125; |Q_2 - y| = 4, 4.5, 0.125
    """
    algorithm = hand_made(target_noise=0.0, learning_rate=1e-9, policy_delay=1)
    metrics = algorithm.update(three_rows())
    torch.testing.assert_close(metrics["priority"], torch.tensor([3.5, 4.0, 0.125]))
    squares = 9 + 12.25 + 0.015625 + 16 + 20.25 + 0.015625
    assert metrics["critic_loss"].item() == pytest.approx(squares / 6, rel=1e-5)
    # The actor follows the first critic: Q_1(s, mu(s)) = 1 + 3, 2 + 3, 3 + 3.
    assert metrics["actor_loss"].item() == pytest.approx(-5.0)
    assert set(metrics) == {*algorithm.metric_names, "priority"}
    assert not any(value.requires_grad for value in metrics.values())


def test_the_targets_noise_is_that_of_its_own_generator() -> None:
    """y_1 = 2 + (2 + 4 a' + 1) / 2 with a' = clip(1/2 + clip(0.2 e)), e the generator's."""
    algorithm = hand_made(learning_rate=1e-9)
    noise = torch.randn((3, 1), generator=torch.Generator().manual_seed(0))
    action = (0.5 + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1).squeeze(1)
    y = torch.tensor([1.0, 2.0, 7.0])
    y += torch.tensor([0.0, 0.5, 0.125]) * (torch.tensor([0.0, 2.0, 4.0]) + 4 * action + 1)
    values = torch.tensor([[4.0, 1.0, 8.0], [5.0, 0.0, 8.0]])
    metrics = algorithm.update(three_rows())
    torch.testing.assert_close(metrics["priority"], (values - y).abs().mean(dim=0))


def test_actor_and_targets_wait_for_policy_delay() -> None:
    algorithm = made(policy_delay=3)
    assert_same(dict(algorithm.target.state_dict()), dict(algorithm.critic.state_dict()))
    assert_same(dict(algorithm.target_policy.state_dict()), dict(algorithm.policy.state_dict()))
    before = copy.deepcopy(algorithm.state_dict())
    for i in range(2):
        algorithm.update(random_batch(i))
        for name in ("policy", "target", "target_policy"):
            assert_same(dict(algorithm.state_dict()[name]), dict(before[name]))
        assert moved(before["critic"], algorithm.state_dict()["critic"]) > 0
    algorithm.update(random_batch(2))
    for name in ("policy", "target", "target_policy"):
        assert moved(before[name], algorithm.state_dict()[name]) > 0
    assert algorithm.optimizer_steps() == 3


@pytest.mark.parametrize("part", ["policy", "critic"])
def test_each_learning_rate_is_used(part: str) -> None:
    """Adam's first step moves each parameter by its step size. Elsewhere it was ignored."""
    name = {"policy": "actor_learning_rate", "critic": "critic_learning_rate"}[part]
    settings: dict[str, Any] = {"learning_rate": 1e-3, "policy_delay": 1, name: 0.03}
    algorithm = made(**settings)
    before = copy.deepcopy(algorithm.state_dict())
    algorithm.set_hyperparameters({"learning_rate": 5e-4})
    algorithm.update(random_batch(0))
    for other in ("policy", "critic"):
        expected = 0.015 if other == part else 5e-4
        change = moved(before[other], algorithm.state_dict()[other])
        assert change == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("num_critics", [1, 2, 5])
def test_state_round_trip_is_exact(num_critics: int) -> None:
    def make(seed: int) -> TD3:
        return made(seed, num_critics=num_critics)

    # An odd number before saving: the delay's counter must be kept.
    assert_round_trip(make, [random_batch(i) for i in range(6)])


def test_make_policy_fits_what_was_saved() -> None:
    algorithm = made()
    policy = TD3.make_policy(OBS, ACT, algorithm.config, hidden_sizes=(8,))
    policy.load_state_dict(algorithm.state_dict()["policy"])


def test_conditioning() -> None:
    algorithm = made(learning_starts=10, exploration_noise=0.3)
    assert algorithm.conditioning(9, 100, 2)["random"].tolist() == [True, True]
    after = algorithm.conditioning(10, 100, 2)
    assert after["random"].tolist() == [False, False]
    torch.testing.assert_close(after["noise_scale"], torch.full((2,), 0.3))


def test_wrong_spaces_and_settings_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"td3 needs a Box action space, got Discrete\(2\)"):
        TD3.make(OBS, spaces.Discrete(2), TD3Config())
    with pytest.raises(ConfigError, match="core='gru' is not for td3"):
        TD3.make(OBS, ACT, TD3Config(), core="gru")
    with pytest.raises(ConfigError, match="policy_delay"):
        TD3Config(policy_delay=0)
    with pytest.raises(ConfigError, match="target_noise_clip"):
        TD3Config(target_noise_clip=-1.0)

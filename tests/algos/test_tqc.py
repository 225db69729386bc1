"""TQC against hand-worked numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from redline.algos.tqc import TQC, TQCConfig, truncated
from redline.errors import ConfigError, SpaceError
from tests.algos.off_policy_batches import ACT, OBS, assert_round_trip, random_batch


def made(seed: int = 0, **settings: Any) -> TQC:
    torch.manual_seed(seed)
    learner = TQC.make(OBS, ACT, TQCConfig(**settings), seed=seed, hidden_sizes=(8,))
    assert type(learner) is TQC
    return learner


def test_the_largest_quantiles_of_all_critics_are_left_out() -> None:
    """Two critics of three quantiles, one left out of each: the four smallest of all six."""
    quantiles = torch.tensor([[[1.0, 9.0, 5.0]], [[8.0, 2.0, 0.0]]])
    assert truncated(quantiles, 1).tolist() == [[0.0, 1.0, 2.0, 5.0]]
    assert truncated(quantiles, 0).tolist() == [[0.0, 1.0, 2.0, 5.0, 8.0, 9.0]]


@pytest.mark.parametrize(("settings", "counted"), [({}, 1.0), ({"backup_entropy": False}, 0.0)])
def test_targets_by_hand(settings: dict[str, Any], counted: float) -> None:
    """Constant quantiles 1, 3 and 2, 6 with one left out of each: 1 and 2 are kept.

    y = R + discount * (z - alpha log pi), or R + discount * z without backup_entropy.
    """
    learner = made(num_critics=2, num_quantiles=2, dropped_quantiles=1, **settings)
    with torch.no_grad():
        for weight in learner.target.ensemble.weights:
            weight.zero_()
        learner.target.ensemble.biases[-1].copy_(torch.tensor([[[1.0, 3.0]], [[2.0, 6.0]]]))
    batch = random_batch(0, 4)
    noise = learner.draw_noise(4)
    _, log_prob = learner.policy.sample(batch["next_obs"], noise)
    alpha = torch.tensor(0.5)
    wanted = batch["reward"][:, None] + batch["discount"][:, None] * (
        torch.tensor([1.0, 2.0]) - counted * 0.5 * log_prob.detach()[:, None]
    )
    torch.testing.assert_close(learner._targets(batch, alpha, noise), wanted)


def test_the_critics_loss_by_hand() -> None:
    """One critic with quantiles 0 and 4 at the fractions 1/4 and 3/4, and the target 1 twice.

    u = 1 for the first: 1/4 * 1/2. u = -3 for the second: (1 - 3/4) * (3 - 1/2). Their mean is
    (0.125 + 0.625) / 2.
    """
    learner = made(num_critics=1, num_quantiles=2, dropped_quantiles=0, critic_learning_rate=1e-12)
    with torch.no_grad():
        for module, last in ((learner.critic, [0.0, 4.0]), (learner.target, [0.0, 0.0])):
            for weight in module.ensemble.weights:
                weight.zero_()
            module.ensemble.biases[-1].copy_(torch.tensor([[last]]))
    batch = random_batch(0, 3)
    batch["reward"].fill_(1.0)
    batch["discount"].zero_()
    batch["weight"].fill_(1.0)
    metrics = learner.update(batch)
    assert metrics["critic_loss"].item() == pytest.approx(0.375)
    assert metrics["q_value"].item() == pytest.approx(2.0)
    assert metrics["priority"].tolist() == pytest.approx([1.0] * 3)


def test_the_actor_follows_the_mean_of_all_quantiles() -> None:
    learner = made(num_critics=2, num_quantiles=3)
    batch = random_batch(0, 5)
    noise = learner.draw_noise(5)
    value, entropy = learner._policy_terms(batch["obs"], learner.critic, None, noise, average=True)
    action, log_prob = learner.policy.sample(batch["obs"], noise)
    quantiles = learner.critic(batch["obs"], action)
    assert quantiles.shape == (2, 5, 3)
    torch.testing.assert_close(value, quantiles.mean(dim=(0, 2)))
    torch.testing.assert_close(entropy, -log_prob)


def test_saved_state_goes_on_exactly() -> None:
    batches = [random_batch(i) for i in range(6)]
    assert_round_trip(lambda seed: made(seed, num_critics=2, num_quantiles=3), batches)


@pytest.mark.parametrize(
    "settings",
    [
        {"dropped_quantiles": 25},
        {"num_quantiles": 0},
        {"num_quantiles": 1, "dropped_quantiles": 0},
        {"critic_subset": 2},
        {"actor_follows": "min"},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TQCConfig(**settings)


def test_only_boxes_are_served() -> None:
    with pytest.raises(SpaceError, match="tqc needs a Box"):
        TQC.make(OBS, spaces.Discrete(3), TQCConfig())

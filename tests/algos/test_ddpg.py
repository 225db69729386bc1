"""DDPG against hand-worked numbers, and the critics that TD3 and SAC have too."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from redline.algos.critics import bootstrapped, critic_loss, make_critic, network_settings
from redline.algos.ddpg import DDPG, DDPGConfig, actor_loss
from redline.algos.optimizers import move_towards
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


def hand_made(**settings: Any) -> DDPG:
    """mu(s) = 1/2 everywhere and Q(s, a) = s_0 + 2 s_1 + 4 a + 1."""
    actor = make_actor(DeterministicActor, OBS, ACT, hidden_sizes=(4,))
    set_head(actor, [math.atanh(0.5)])
    critic = linear_critic([[1.0, 2.0, 4.0]], [1.0])
    return DDPG(actor, critic, DDPGConfig(**settings))


def made(seed: int = 0, **settings: Any) -> DDPG:
    return DDPG.make(OBS, ACT, DDPGConfig(**settings), seed=seed, hidden_sizes=(8,))


def test_bootstrapped_by_hand() -> None:
    """V = 100, 4, 16: 1 + 0 * 100 = 1; 2 + 4 / 2 = 4; 7 + 16 / 8 = 9.

    The terminal row takes nothing of its successor, the truncated row does, and the window
    of three rows takes gamma^3 (elsewhere gamma^n was left out).
    """
    rows = three_rows()
    target = bootstrapped(rows["reward"], rows["discount"], torch.tensor([100.0, 4.0, 16.0]))
    assert target.tolist() == [1.0, 4.0, 9.0]


def test_critic_loss_by_hand() -> None:
    """Two critics, y = 1, 2, 3, w = 1, 1/2, 2.

    Q_1 - y = 1, 0, -1; Q_2 - y = -3, 2, 1; squares summed over critics: 10, 4, 2
    loss = (1 * 10 + 1/2 * 4 + 2 * 2) / 2 / 3 = 8 / 3; mean |error| = 2, 1, 1
    d loss / d Q = w * (Q - y) / 3
    """
    values = torch.tensor([[2.0, 2.0, 2.0], [-2.0, 4.0, 4.0]], requires_grad=True)
    weight = torch.tensor([1.0, 0.5, 2.0])
    loss, priority = critic_loss(values, torch.tensor([1.0, 2.0, 3.0]), weight)
    loss.backward()
    assert loss.item() == pytest.approx(8 / 3)
    assert priority.tolist() == [2.0, 1.0, 1.0]
    assert isinstance(values.grad, Tensor)
    torch.testing.assert_close(values.grad, torch.tensor([[1, 0, -2], [-3, 1, 2]]) / 3)


def test_actor_loss_by_hand() -> None:
    assert actor_loss(torch.tensor([1.0, 2.0, 6.0])).item() == -3.0


def test_update_by_hand() -> None:
    """mu' = 1/2 and Q' = s'_0 + 2 s'_1 + 4 / 2 + 1:

    y_0 = 1 (terminated); y_1 = 2 + (2 + 3) / 2 = 4.5; y_2 = 7 + (8 + 3) / 8 = 8.375
    Q = 1 + 0 + 2 + 1 = 4; 0 + 2 - 2 + 1 = 1; 1 + 2 + 4 + 1 = 8
    |Q - y| = 3, 3.5, 0.375; loss = (9 + 12.25 + 0.140625) / 6
    """
    algorithm = hand_made(gamma=0.5, n_step=3, learning_rate=1e-9)
    metrics = algorithm.update(three_rows())
    torch.testing.assert_close(metrics["priority"], torch.tensor([3.0, 3.5, 0.375]))
    assert metrics["critic_loss"].item() == pytest.approx((9 + 12.25 + 0.140625) / 6, rel=1e-5)
    assert metrics["q_value"].item() == pytest.approx(13 / 3)
    # Q(s, mu(s)) = 1 + 3, 2 + 3, 3 + 3
    assert metrics["actor_loss"].item() == pytest.approx(-5.0)
    assert set(metrics) == {*algorithm.metric_names, "priority"}
    assert not any(value.requires_grad for value in metrics.values())


def test_the_actor_climbs_the_critic() -> None:
    """Q rises with a, so the actor's action must; none of it reaches the critic's gradient."""
    algorithm = hand_made(learning_rate=1e-2)
    before = algorithm.policy(torch.zeros(1, 2)).item()
    critic = copy.deepcopy(algorithm.critic.state_dict())
    for _ in range(5):
        algorithm._update_actor(three_rows()["obs"])
    assert algorithm.policy(torch.zeros(1, 2)).item() > before
    assert_same(dict(algorithm.critic.state_dict()), dict(critic))
    assert all(p.grad is None for p in algorithm.critic.parameters())


def test_importance_weights_scale_the_gradient_of_their_row() -> None:
    """A row of weight 0 might as well have any reward."""
    torch.manual_seed(0)
    one = made()
    other = made()
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    batch = random_batch(0)
    batch["weight"][3] = 0.0
    changed = batch.clone()
    changed["reward"][3] = 1000.0
    one.update(batch)
    other.update(changed)
    assert_same(dict(one.critic.state_dict()), dict(other.critic.state_dict()))


def test_targets_start_equal_and_follow_by_tau() -> None:
    algorithm = made(tau=0.25)
    for online, target in (
        (algorithm.critic, algorithm.target),
        (algorithm.policy, algorithm.target_policy),
    ):
        assert_same(dict(target.state_dict()), dict(online.state_dict()))
        assert not any(p.requires_grad for p in target.parameters())
        assert not {p.data_ptr() for p in online.parameters()} & {
            p.data_ptr() for p in target.parameters()
        }
    start = copy.deepcopy(algorithm.critic.state_dict())
    algorithm.update(random_batch(0))
    for name, value in algorithm.target.state_dict().items():
        expected = 0.75 * start[name] + 0.25 * algorithm.critic.state_dict()[name]
        torch.testing.assert_close(value, expected)


def test_move_towards_by_hand() -> None:
    """0 + 1/4 * (8 - 0) = 2; 4 + 1/4 * (0 - 4) = 3."""
    targets = [torch.tensor([0.0]), torch.tensor([4.0])]
    move_towards(targets, [torch.tensor([8.0]), torch.tensor([0.0])], 0.25)
    assert [t.item() for t in targets] == [2.0, 3.0]


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        ("policy", {"actor_learning_rate": 0.03}),
        ("critic", {"critic_learning_rate": 0.03}),
    ],
)
def test_each_learning_rate_is_used(part: str, settings: dict[str, Any]) -> None:
    """Adam's first step moves each parameter by its step size: the sign of the gradient."""
    algorithm = made(learning_rate=1e-3, **settings)
    before = copy.deepcopy(algorithm.state_dict())
    algorithm.update(random_batch(0))
    for name in ("policy", "critic"):
        expected = 0.03 if name == part else 1e-3
        assert moved(before[name], algorithm.state_dict()[name]) == pytest.approx(
            expected, rel=0.01
        )


def test_the_schedule_scales_both_learning_rates() -> None:
    algorithm = made(learning_rate=1e-3, critic_learning_rate=0.04)
    algorithm.set_hyperparameters({"learning_rate": 5e-4})
    before = copy.deepcopy(algorithm.state_dict())
    algorithm.update(random_batch(0))
    after = algorithm.state_dict()
    assert moved(before["policy"], after["policy"]) == pytest.approx(5e-4, rel=0.01)
    assert moved(before["critic"], after["critic"]) == pytest.approx(0.02, rel=0.01)


def test_state_round_trip_is_exact() -> None:
    assert_round_trip(lambda seed: made(seed), [random_batch(i) for i in range(6)])


def test_conditioning() -> None:
    algorithm = made(learning_starts=10, exploration_noise=0.3)
    before, after = algorithm.conditioning(9, 100, 2), algorithm.conditioning(10, 100, 2)
    assert before["random"].tolist() == [True, True]
    assert after["random"].tolist() == [False, False]
    torch.testing.assert_close(after["noise_scale"], torch.full((2,), 0.3))
    noise = torch.from_numpy(algorithm.policy.draw_noise(np.random.default_rng(0), 2))
    algorithm.policy.act(torch.zeros(2, 2), {}, noise, after)


def test_make_policy_fits_what_was_saved() -> None:
    algorithm = made()
    policy = DDPG.make_policy(OBS, ACT, algorithm.config, hidden_sizes=(8,))
    policy.load_state_dict(algorithm.state_dict()["policy"])
    obs = torch.randn(3, 2)
    torch.testing.assert_close(policy.act(obs, {}).action, algorithm.policy.act(obs, {}).action)


def test_other_action_spaces_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"ddpg needs a Box action space, got Discrete\(2\)"):
        DDPG.make(OBS, spaces.Discrete(2), DDPGConfig())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"core": "lstm"}, "core='lstm' is not for ddpg"),
        ({"distribution": "gaussian"}, "distribution='gaussian' is not for ddpg"),
        ({"shared_encoder": True}, "shared_encoder=True is not for ddpg"),
        ({"initial_log_std": -1.0}, "initial_log_std=-1.0 is not for ddpg"),
    ],
)
def test_network_settings_that_mean_nothing_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        DDPG.make(OBS, ACT, DDPGConfig(), **settings)


@pytest.mark.parametrize("name", ["tau", "learning_rate", "actor_learning_rate"])
def test_bad_hyperparameters_are_refused(name: str) -> None:
    settings: dict[str, Any] = {name: -1.0}
    with pytest.raises(ConfigError, match=name):
        DDPGConfig(**settings)


# -- critics -------------------------------------------------------------------------------


def test_critics_of_images_share_one_encoder_and_take_the_action_behind_it() -> None:
    space = spaces.Box(0, 255, (1, 10, 10), np.uint8)
    critic = make_critic(space, network_settings("ddpg"), num_critics=3, action_size=2)
    obs = torch.randint(0, 255, (4, 1, 10, 10)).to(torch.uint8)
    action = torch.zeros(4, 2, requires_grad=True)
    values = critic(obs, action)
    assert values.shape == (3, 4)
    values.sum().backward()
    assert isinstance(action.grad, Tensor)
    assert action.grad.abs().min() > 0
    features = critic.encode(obs)
    assert features.shape[1] + 2 == critic.ensemble.weights[0].shape[1]
    torch.testing.assert_close(critic.values(features, action), values)


def test_critics_of_nested_observations_with_a_module_of_ones_own() -> None:
    space = spaces.Dict(a=OBS, b=spaces.Discrete(3))

    class Own(torch.nn.Module):
        out_features = 2

        def forward(self, obs: Any) -> Tensor:
            return obs["a"]

    algorithm = DDPG.make(space, ACT, DDPGConfig(), encoder=lambda space: Own())
    rows = random_batch(0)
    for name in ("obs", "next_obs"):
        nested = {"a": rows[name], "b": torch.zeros(16, dtype=torch.int64)}
        rows[name] = nested
    assert algorithm.update(rows)["priority"].shape == (16,)

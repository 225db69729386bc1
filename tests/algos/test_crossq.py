"""CrossQ against hand-worked numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

import redline
from redline.algos.crossq import CrossQ, CrossQConfig
from redline.errors import ConfigError, SpaceError
from redline.models.batch_renorm import EPS
from tests.algos.off_policy_batches import ACT, OBS, assert_round_trip, random_batch


def made(seed: int = 0, **settings: Any) -> CrossQ:
    torch.manual_seed(seed)
    settings = {"critic_hidden_sizes": (8,)} | settings
    config = CrossQConfig(**settings)
    return CrossQ.make(OBS, ACT, config, seed=seed, hidden_sizes=(8,))


def norms(learner: CrossQ) -> Any:
    ensemble: Any = learner.critic.ensemble
    return ensemble.norms


def linear(**settings: Any) -> CrossQ:
    """Two critics that know one input, x = the first number of [s, a]: Q = 2 x' and Q = 3 x'.

    x' is x after two renormalizations: the hidden layer hands on x' + 100, whose ReLU does
    nothing and whose mean the second one takes away.
    """
    learner = made(critic_hidden_sizes=(1,), **settings)
    ensemble = learner.critic.ensemble
    with torch.no_grad():
        for weight, bias in zip(ensemble.weights, ensemble.biases, strict=True):
            weight.zero_()
            bias.zero_()
        ensemble.weights[0][:, 0] = 1.0
        ensemble.biases[0].fill_(100.0)
        ensemble.weights[1].copy_(torch.tensor([2.0, 3.0]).view(2, 1, 1))
    return learner


def two_rows() -> TensorDict:
    """x is -1 and 1 before the step and 3 and -3 after it: of all four, mean 0, variance 5."""
    return TensorDict(
        {
            "obs": torch.tensor([[-1.0, 0.0], [1.0, 0.0]]),
            "action": torch.zeros(2, 1),
            "reward": torch.tensor([1.0, 2.0]),
            "discount": torch.tensor([0.5, 0.0]),
            "num_steps": torch.ones(2, dtype=torch.int64),
            "next_obs": torch.tensor([[3.0, 0.0], [-3.0, 0.0]]),
            "weight": torch.ones(2),
        },
        batch_size=2,
    )


def twice_normalized(x: float) -> float:
    """x / sqrt(5 + eps), and that by its own deviation, sqrt(5 / (5 + eps)) with eps again."""
    first = x / (5.0 + EPS) ** 0.5
    return first / (5.0 / (5.0 + EPS) + EPS) ** 0.5


def test_both_halves_are_normalized_together_and_one_has_gradient() -> None:
    """Alone, the rows of (s, a) have variance 1: x' would be -1 and 1 instead of 1 / sqrt 5."""
    learner = linear()
    values, next_values = learner._joint_values(two_rows(), torch.zeros(2, 1))
    assert values.requires_grad
    assert not next_values.requires_grad
    x, later = twice_normalized(1.0), twice_normalized(3.0)
    assert x == pytest.approx(0.4470, abs=1e-4)
    expected = [[-2 * x, 2 * x], [-3 * x, 3 * x]]
    torch.testing.assert_close(values.detach(), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    expected = [[2 * later, -2 * later], [3 * later, -3 * later]]
    torch.testing.assert_close(next_values, torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_the_joint_target_by_hand() -> None:
    """alpha = 0: y = 1 + 1/2 * 2 * 3 x' in row 0, of the smaller critic, and 2 in row 1.

    With x = 0.447 and x' of 3 = 1.341, y = (2.341, 2). Q is (-0.894, 0.894) and (-1.341, 1.341),
    the errors are (-3.235, -1.106) and (-3.682, -0.659).
    """
    learner = linear(alpha=0.0)
    metrics = learner.update(two_rows())
    x, later = twice_normalized(1.0), twice_normalized(3.0)
    errors = torch.tensor(
        [[-2 * x - 1 - later, 2 * x - 2], [-3 * x - 1 - later, 3 * x - 2]], dtype=torch.float64
    )
    assert errors.flatten().tolist() == pytest.approx([-3.235, -1.106, -3.682, -0.659], abs=1e-3)
    expected = 0.5 * errors.square().sum(dim=0).mean().item()
    assert metrics["critic_loss"].item() == pytest.approx(expected, rel=1e-4)  # float32
    expected_priority = errors.abs().mean(dim=0).tolist()
    assert metrics["priority"].tolist() == pytest.approx(expected_priority, rel=1e-4)
    # The running statistics saw all four rows: M = 0, S^2 = 0.99 * 1 + 0.01 * 5.
    assert norms(learner)[0].running_var[0, 0, 0].item() == pytest.approx(1.04)


def test_the_joint_target_has_no_entropy_without_backup_entropy() -> None:
    """Then whatever the temperature, y is that of alpha = 0."""
    losses = [
        linear(alpha=alpha, backup_entropy=counts).update(two_rows())["critic_loss"].item()
        for alpha, counts in ((0.0, True), (2.0, False), (2.0, True))
    ]
    assert losses[0] == losses[1] != losses[2]


def test_there_are_no_target_networks() -> None:
    learner = made()
    assert learner.target is None
    assert not [name for name in learner.state_dict() if "target" in name]
    assert learner.begin_update() == (False, False)


def test_the_actor_learns_at_every_third_update() -> None:
    learner = made()
    actor: Any = learner.policy
    moved: list[bool] = []
    batches: list[int] = []
    for i in range(6):
        before = actor.head.weight.detach().clone()
        learner.update(random_batch(i))
        moved.append(not torch.equal(before, actor.head.weight))
        batches.append(int(actor.torso[1].norms[0].batches))
    assert moved == [False, False, True, False, False, True]
    assert batches == [0, 0, 1, 1, 1, 2]  # the actor's statistics follow with it
    assert int(norms(learner)[0].batches) == 6


def test_the_actors_update_leaves_the_critics_as_they_are() -> None:
    learner = made()
    critic = {n: v.clone() for n, v in learner.critic.state_dict().items()}
    learner._update_actor(random_batch(0)["obs"], learner.alpha(), learner.draw_noise(16))
    assert all(torch.equal(critic[n], v) for n, v in learner.critic.state_dict().items())
    assert all(p.grad is None for p in learner.critic.parameters())


def test_acting_uses_running_statistics_and_changes_nothing() -> None:
    """One observation has no deviation: only statistics from before can tell it from another."""
    learner = made()
    for i in range(3):
        learner.update(random_batch(i))
    actor: Any = learner.policy.train()  # collecting leaves the policy in this mode
    state = {n: v.clone() for n, v in actor.state_dict().items()}
    obs = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    together = actor.act(obs, {}).action
    one_by_one = torch.cat([actor.act(row.unsqueeze(0), {}).action for row in obs])
    torch.testing.assert_close(together, one_by_one)
    assert len(set(together.flatten().tolist())) == 4
    assert all(torch.equal(state[n], v) for n, v in actor.state_dict().items())
    exported: Tensor = actor.export_module()(obs)
    torch.testing.assert_close(exported, 2.0 * together)  # scaled to the bounds of ACT


def test_adam_forgets_the_gradient_faster() -> None:
    learner = made(adam_momentum=0.25)
    assert learner.actor_optimizer.betas == (0.25, 0.999)
    assert learner.critic_optimizer.betas == (0.25, 0.999)
    assert learner.alpha_optimizer is not None
    assert learner.alpha_optimizer.betas == (0.9, 0.999)


def test_saved_state_goes_on_exactly() -> None:
    assert_round_trip(lambda seed: made(seed, renorm_warmup=2), [random_batch(i) for i in range(6)])


def test_the_paper_s_values_are_the_defaults() -> None:
    config = CrossQConfig()
    assert config.critic_hidden_sizes == (2048, 2048)
    assert (config.learning_rate, config.adam_momentum) == (1e-3, 0.5)
    assert (config.actor_update_interval, config.num_critics) == (3, 2)
    assert config.replay_ratio == config.batch_size == 256  # one update per env_step
    assert (config.renorm_momentum, config.renorm_warmup) == (0.99, 100_000)


@pytest.mark.parametrize(
    "settings",
    [
        {"tau": 0.01},
        {"target_update_interval": 2},
        {"critic_subset": 2},
        {"critic_layer_norm": True},
        {"critic_dropout": 0.1},
        {"adam_momentum": 1.0},
        {"renorm_momentum": 1.5},
        {"renorm_warmup": -1},
        {"critic_hidden_sizes": ()},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        CrossQConfig(**settings)


def test_only_boxes_are_served() -> None:
    with pytest.raises(SpaceError, match="crossq needs a Box"):
        CrossQ.make(OBS, spaces.Discrete(3), CrossQConfig())


def test_it_learns_pendulum(tmp_path: Path) -> None:
    """A random policy's return is about -1,200, one that swings up and stays is above -300."""
    run = redline.train(
        "crossq",
        env="redline/Pendulum-v1",
        total_env_steps=12_000,
        num_envs=4,
        batch_size=64,
        replay_ratio=32.0,
        hidden_sizes=(32, 32),
        critic_hidden_sizes=(64, 64),
        learning_starts=500,
        out=tmp_path / "run",
        quiet=True,
    )
    assert run.evaluate(10).return_mean > -400.0

"""PPO's losses against hand-worked numbers, and its update on hand-written rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos.ppo import PPO, PPOConfig, clipped_policy_loss, value_loss
from redline.data import Rollout
from redline.errors import ConfigError
from redline.policies import make_policy

ALL = torch.ones(3, dtype=torch.bool)


def test_clipped_policy_loss_by_hand() -> None:
    """Ratios 1.5, 0.5, 1.1 with eps = 0.2 and advantages 2, 2, -1.

    min(1.5 * 2, 1.2 * 2) = 2.4; min(0.5 * 2, 0.8 * 2) = 1.0; min(-1.1, -1.1) = -1.1
    loss = -(2.4 + 1.0 - 1.1) / 3; two of three ratios lie outside [0.8, 1.2].
    """
    ratio = torch.tensor([1.5, 0.5, 1.1])
    loss, outside = clipped_policy_loss(
        ratio.log(), torch.zeros(3), torch.tensor([2.0, 2.0, -1.0]), ALL, 0.2
    )
    assert loss.item() == pytest.approx(-2.3 / 3)
    assert outside.item() == pytest.approx(2 / 3)


def test_clip_bounds_are_on_both_sides_of_one() -> None:
    """Elsewhere the clamp was to (1 - eps, 1 - eps), which removes the gradient for A > 0.

    With a ratio of exactly 1 nothing is clipped: d loss / d log_prob = -A * r / N.
    """
    log_prob = torch.zeros(3, requires_grad=True)
    loss, outside = clipped_policy_loss(
        log_prob, torch.zeros(3), torch.tensor([3.0, -3.0, 6.0]), ALL, 0.2
    )
    loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [-1.0, 1.0, -2.0]
    assert outside.item() == 0.0


def test_losses_ignore_rows_that_are_not_valid_even_if_nan() -> None:
    """Masks by multiplication let NaN through: 0 * NaN is NaN."""
    valid = torch.tensor([True, True, False])
    nan = float("nan")
    loss, _ = clipped_policy_loss(
        torch.tensor([0.0, 0.0, nan]), torch.zeros(3), torch.tensor([1.0, 3.0, nan]), valid, 0.2
    )
    assert loss.item() == pytest.approx(-2.0)
    critic = value_loss(
        torch.tensor([1.0, 2.0, nan]), torch.zeros(3), torch.tensor([0.0, 0.0, nan]), valid, None
    )
    assert critic.item() == pytest.approx(0.5 * (1 + 4) / 2)


def test_clipped_value_loss_by_hand() -> None:
    """eps = 0.5, old values 0; V = 2 and 0.2 and -1, targets 3, 0, -1.

    V=2: (2-3)^2 = 1, clipped to 0.5: (0.5-3)^2 = 6.25 -> 6.25
    V=0.2: 0.04, not clipped -> 0.04
    V=-1: 0, clipped to -0.5: 0.25 -> 0.25
    """
    loss = value_loss(
        torch.tensor([2.0, 0.2, -1.0]), torch.zeros(3), torch.tensor([3.0, 0.0, -1.0]), ALL, 0.5
    )
    assert loss.item() == pytest.approx(0.5 * (6.25 + 0.04 + 0.25) / 3)


def made_rollout(policy_seed: int = 0, length: int = 4, num_envs: int = 2) -> tuple[PPO, Rollout]:
    """A PPO on two-dimensional observations and two actions, and a rollout it acted in."""
    torch.manual_seed(policy_seed)
    policy = make_policy(
        spaces.Box(-1, 1, (2,)), spaces.Discrete(2), hidden_sizes=(8,), activation="tanh"
    )
    config = PPOConfig(
        num_envs=num_envs, rollout_length=length, num_epochs=2, num_minibatches=2, entropy_coef=0.1
    )
    return PPO(policy, config, seed=3), acted_rollout(policy, length, num_envs)


def acted_rollout(
    policy: torch.nn.Module, length: int, num_envs: int, obs: Tensor | None = None
) -> Rollout:
    rng = np.random.default_rng(0)
    if obs is None:
        obs = torch.from_numpy(rng.normal(size=(length, num_envs, 2)).astype(np.float32))
    shape = (length, num_envs)
    rows: dict[str, Tensor] = {
        "action": torch.zeros(shape, dtype=torch.int64),
        "log_prob": torch.zeros(shape),
        "value": torch.zeros(shape),
    }
    for t in range(length):
        noise = torch.from_numpy(policy.draw_noise(rng, num_envs))
        with torch.no_grad():
            output = policy.act(obs[t], {}, noise)
        rows["action"][t] = output.action
        for name in ("log_prob", "value"):
            rows[name][t] = output.extras[name]
    steps = TensorDict(
        {
            "obs": obs,
            **rows,
            "reward": (rows["action"] == 0).float(),
            "terminated": torch.ones(shape, dtype=torch.bool),
            "truncated": torch.zeros(shape, dtype=torch.bool),
            "valid": torch.ones(shape, dtype=torch.bool),
            "bootstrap_value": torch.zeros(shape),
        },
        batch_size=shape,
    )
    return Rollout(steps=steps, initial_state={}, last_obs=obs[-1])


def test_first_minibatch_has_ratio_one() -> None:
    """Before any step the policy is the one that acted: no ratio is clipped, the KL is 0."""
    ppo, rollout = made_rollout()
    output = ppo.policy.evaluate_rollout(rollout)
    torch.testing.assert_close(output.log_prob.detach(), rollout["log_prob"])
    torch.testing.assert_close(output.value.detach(), rollout["value"])


def test_update_counts_its_steps_and_changes_every_parameter() -> None:
    """2 epochs of 2 minibatches are 4 optimizer steps."""
    ppo, rollout = made_rollout()
    before = {name: p.clone() for name, p in ppo.policy.named_parameters()}
    metrics = ppo.update(rollout)
    assert ppo.optimizer_steps() == 4
    assert all(not torch.equal(p, before[name]) for name, p in ppo.policy.named_parameters())
    assert all(value.shape == () and torch.isfinite(value) for value in metrics.values())


def test_update_raises_the_probability_of_the_rewarded_action() -> None:
    """Episodes of one step; action 0 earns 1, action 1 nothing: action 0 becomes likelier."""
    ppo, rollout = made_rollout(length=16)
    ppo.set_hyperparameters({"learning_rate": 0.01})
    obs = rollout["obs"].reshape(-1, 2)
    zeros = torch.zeros(len(obs), dtype=torch.int64)

    def probability() -> float:
        with torch.no_grad():
            return float(ppo.policy.evaluate_actions(obs, zeros).log_prob.exp().mean())

    before = probability()
    for _ in range(10):
        ppo.update(acted_rollout(ppo.policy, 16, 2))
    assert probability() > max(0.8, before)


def test_kl_limit_skips_the_steps_after_it_is_passed() -> None:
    """Any step moves the policy, so with a tiny limit only the first two steps can happen.

    Step 1 sees KL 0 and is taken; step 2 sees KL > 0, is taken, and stops the rest.
    """
    ppo, rollout = made_rollout()
    limited = PPO(ppo.policy, PPOConfig(
        num_envs=2, rollout_length=4, num_epochs=3, num_minibatches=1, target_kl=1e-12,
        learning_rate=0.1,
    ))  # fmt: skip
    metrics = limited.update(rollout)
    assert limited.optimizer_steps() == 2
    assert metrics["stopped_early"].item() == 1.0
    frozen = {name: p.clone() for name, p in ppo.policy.named_parameters()}
    columns = rollout.with_columns(advantage=torch.ones(4, 2), target=torch.ones(4, 2))
    limited.step(columns, torch.ones(()))
    assert all(torch.equal(p, frozen[name]) for name, p in ppo.policy.named_parameters())


def test_learning_rate_is_obeyed() -> None:
    """A learning-rate argument was once ignored: with 0 nothing may move."""
    ppo, rollout = made_rollout()
    before = {name: p.clone() for name, p in ppo.policy.named_parameters()}
    ppo.set_hyperparameters({"learning_rate": 0.0, "clip_range": 0.2})
    ppo.update(rollout)
    assert all(torch.equal(p, before[name]) for name, p in ppo.policy.named_parameters())


def test_state_dict_continues_bit_for_bit() -> None:
    """Two updates in a row equal one, a save, a load into a fresh object, and another."""
    ppo, rollout = made_rollout()
    ppo.update(rollout)
    state = {k: v for k, v in ppo.state_dict().items()}
    saved = torch.utils._pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, state)
    ppo.update(rollout)
    other, _ = made_rollout(policy_seed=9)
    other.load_state_dict(saved)
    other.update(rollout)
    for (name, p), (_, q) in zip(
        ppo.policy.named_parameters(), other.policy.named_parameters(), strict=True
    ):
        assert torch.equal(p, q), name
    assert other.optimizer_steps() == ppo.optimizer_steps() == 8


@pytest.mark.parametrize(
    ("num_envs", "length", "samples", "environments"),
    [
        (8, 256, 32, 4),  # 2048 samples: 32 parts of 64; 8 environments: 4 parts of 2
        (3, 100, 4, 3),  # 300 samples: not 3 parts of 64 or more and less than 5, 300 / 4 = 75
        (1, 127, 1, 1),  # 127 is prime
        (7, 2, 1, 1),  # fewer than 64 samples; 7 is prime
    ],
)
def test_minibatches_have_at_least_64_samples(
    num_envs: int, length: int, samples: int, environments: int
) -> None:
    config = PPOConfig(num_envs=num_envs, rollout_length=length)

    assert config.minibatches(recurrent=False) == samples
    assert config.minibatches(recurrent=True) == environments
    given = PPOConfig(num_envs=num_envs, rollout_length=length, num_minibatches=1)
    assert given.minibatches(recurrent=False) == given.minibatches(recurrent=True) == 1


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"8 \* 128 = 1024 samples, 4 left over"):
        PPOConfig(num_envs=8, rollout_length=128, num_minibatches=5)
    policy = make_policy(spaces.Box(-1, 1, (2,)), spaces.Discrete(2), core="gru", core_size=4)
    with pytest.raises(ConfigError, match="does not divide num_envs"):
        PPO(policy, PPOConfig(num_envs=6, rollout_length=4, num_minibatches=4))


@pytest.mark.parametrize(
    ("name", "value"),
    [("gamma", 1.5), ("clip_range", 0.0), ("learning_rate", -1.0), ("num_envs", 0),
     ("learning_rate", math.nan), ("learning_rate", math.inf), ("target_kl", 0.0)],
)  # fmt: skip
def test_values_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        PPOConfig(**{name: value})  # type: ignore[arg-type]

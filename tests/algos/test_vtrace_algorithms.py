"""IMPALA-style A2C and APPO: stale rollouts by hand, fresh ones as A2C and PPO."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos.a2c import A2C, A2CConfig
from redline.algos.appo import APPO, APPOConfig
from redline.algos.impala import Impala, ImpalaConfig, corrected
from redline.algos.ppo import PPO, PPOConfig
from redline.data import Rollout
from redline.errors import ConfigError
from redline.policies import make_policy
from tests.algos.test_a2c_reinforce import TwoNumberPolicy
from tests.policies.rollouts import act_out

OBS, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(3)
HALF = math.log(0.5)


def stale_rollout() -> Rollout:
    """Two rows of one environment, both actions 1, which goes on afterwards.

    A `TwoNumberPolicy` of logit 0 gives them probability 1/2 now; those that collected gave
    them 1 and 1/8, so the ratios are 1/2 and 4. The values kept are of those weights, too.
    """
    shape = (2, 1)
    steps = TensorDict(
        {
            "obs": torch.zeros(*shape, 1),
            "action": torch.ones(shape, dtype=torch.int64),
            "reward": torch.tensor([[1.0], [3.0]]),
            "log_prob": torch.tensor([[0.0], [math.log(1 / 8)]]),
            "value": torch.full(shape, 77.0),
            "bootstrap_value": torch.tensor([[0.0], [88.0]]),
            "terminated": torch.zeros(shape, dtype=torch.bool),
            "truncated": torch.zeros(shape, dtype=torch.bool),
            "valid": torch.ones(shape, dtype=torch.bool),
        },
        batch_size=shape,
    )
    return Rollout(steps=steps, initial_state={}, last_obs=torch.zeros(1, 1))


def test_stale_targets_by_hand() -> None:
    """gamma = 1/2, V = 2 everywhere now, the last observation's included.

    t=1: delta = 1 (3 + 2/2 - 2) = 2,      v = 4
    t=0: delta = 1/2 (1 + 2/2 - 2) = 0,    v = 2 + 0 + 1/2 * 1/2 * 2 = 5/2
    A_1 = 2;  A_0 = 1/2 (1 + 4/2 - 2) = 1/2
    """
    policy, rollout = TwoNumberPolicy(logit=0.0, value=2.0), stale_rollout()
    config = ImpalaConfig(num_envs=1, rollout_length=2, gamma=0.5)
    result, metrics = corrected(policy, rollout, policy.evaluate_rollout(rollout), config)
    assert result.target.squeeze(1).tolist() == [2.5, 4.0]
    assert result.advantage.squeeze(1).tolist() == [0.5, 2.0]
    assert metrics["rho"].item() == pytest.approx(0.75)
    assert metrics["behavior_kl"].item() == pytest.approx((0 - HALF - math.log(8) - HALF) / 2)


def test_a_truncated_last_row_keeps_the_value_of_its_own_successor() -> None:
    """The last observation is of the next episode then: t=1 is worth 3 + 88/2."""
    policy, rollout = TwoNumberPolicy(logit=0.0, value=2.0), stale_rollout()
    rollout["truncated"][1] = True
    config = ImpalaConfig(num_envs=1, rollout_length=2, gamma=0.5)
    result, _ = corrected(policy, rollout, policy.evaluate_rollout(rollout), config)
    assert result.target[1].item() == 47.0


def test_impala_gradient_by_hand() -> None:
    """The case above; d log pi / d logit = 1/2, so with SGD of step 0.1:

    d policy_loss = -(1/2 * 1/2 + 2 * 1/2) / 2 = -5/8
    d value_loss / d V = ((2 - 5/2) + (2 - 4)) / 2 = -5/4, times value_coef 1/2
    """
    policy = TwoNumberPolicy(logit=0.0, value=2.0)
    config = ImpalaConfig(
        num_envs=1, rollout_length=2, gamma=0.5, entropy_coef=0.0, max_grad_norm=0.0
    )
    impala = Impala(policy, config)
    impala.optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    impala.update(stale_rollout())
    assert policy.logit.item() == pytest.approx(0.1 * 5 / 8)
    assert policy.baseline.item() == pytest.approx(2.0 + 0.1 * 0.5 * 5 / 4)


def test_appo_gradient_by_hand_and_its_clip_range_is_around_the_learner() -> None:
    """At the first step r = 1 whatever mu was: d loss / d logit = -mean(A / 2) = -5/8.

    Around mu the ratio 4 of row 1, with A > 0, would lie outside and give no gradient.
    """
    policy = TwoNumberPolicy(logit=0.0, value=2.0)
    config = APPOConfig(
        num_envs=1, rollout_length=2, num_epochs=1, num_minibatches=1, gamma=0.5, gae_lambda=1.0,
        normalize_advantage=False, max_grad_norm=0.0,
    )  # fmt: skip
    appo = APPO(policy, config)
    appo.optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    rollout = stale_rollout()
    kept = rollout.steps.clone()
    metrics = appo.update(rollout)
    assert policy.logit.item() == pytest.approx(0.1 * 5 / 8)
    assert metrics["clip_fraction"].item() == 0.0
    assert metrics["rho"].item() == pytest.approx(0.75)
    assert (rollout.steps == kept).all(), "the collector's memory is not the learner's to change"


def fresh_rollout(policy: Any) -> Rollout:
    """What the policy itself did, with ends, fillers, and its own values to bootstrap from."""
    rollout = act_out(policy, OBS, 8, 4)
    steps = rollout.steps
    steps["reward"] = torch.randn(8, 4).masked_fill(~rollout.valid, 0.0)
    bootstrap = torch.randn(8, 4).masked_fill(~steps["truncated"], 0.0)
    state = policy.evaluate_rollout(rollout).state
    last: Tensor = policy.value(rollout.last_obs, state)
    steps["bootstrap_value"] = bootstrap
    steps["bootstrap_value"][-1] = torch.where(steps["truncated"][-1], bootstrap[-1], last)
    return rollout


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(
    ("plain", "plain_config", "corrected_one", "corrected_config"),
    [(A2C, A2CConfig, Impala, ImpalaConfig), (PPO, PPOConfig, APPO, APPOConfig)],
)
def test_with_fresh_rollouts_the_update_is_that_of_the_plain_algorithm(
    core: str, plain: Any, plain_config: Any, corrected_one: Any, corrected_config: Any
) -> None:
    torch.manual_seed(0)
    policy = make_policy(OBS, ACTIONS, hidden_sizes=(8,), core=core, core_size=6)
    rollout = fresh_rollout(policy)
    settings = {"num_envs": 4, "rollout_length": 8, "gae_lambda": 0.7, "entropy_coef": 0.01}
    one = plain(copy.deepcopy(policy), plain_config(**settings), seed=3)
    other = corrected_one(copy.deepcopy(policy), corrected_config(**settings), seed=3)
    expected, metrics = one.update(rollout), other.update(rollout)
    assert metrics["rho"].item() == pytest.approx(1.0, abs=1e-4)
    for name, value in expected.items():
        torch.testing.assert_close(metrics[name], value, rtol=1e-3, atol=1e-4)
    for before, a, b in zip(
        policy.parameters(), one.policy.parameters(), other.policy.parameters(), strict=True
    ):
        assert not torch.equal(before, a)
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("config", [ImpalaConfig, APPOConfig])
def test_bounds_are_checked(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"c_bar=2\.0 is above rho_bar=1\.0"):
        config(c_bar=2.0)
    with pytest.raises(ConfigError, match="rho_bar=0"):
        config(rho_bar=0.0)

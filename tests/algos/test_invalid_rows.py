"""What rows that are no transitions hold changes no update, whatever the algorithm."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from gymnasium import spaces

from redline.algos.a2c import A2C, A2CConfig
from redline.algos.appo import APPO, APPOConfig
from redline.algos.impala import Impala, ImpalaConfig
from redline.algos.ppo import PPO, PPOConfig
from redline.algos.reinforce import Reinforce, ReinforceConfig
from redline.data import Rollout
from redline.engines.cpu import update_for
from redline.policies import make_policy
from tests.policies.rollouts import act_out

OBS, ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(3)


def with_stale_rows(rollout: Rollout) -> Rollout:
    """The rollout with what an earlier use of the slot could have left in idle rows."""
    steps = rollout.steps.clone()
    idle = ~rollout.valid
    assert idle.any()
    stale = {"obs": 30.0, "action": 2, "reward": 1e3, "log_prob": -50.0, "value": -1e3}
    for name, value in stale.items():
        steps[name][idle] = value
    steps["bootstrap_value"][idle] = 1e3
    return Rollout(steps=steps, initial_state=rollout.initial_state, last_obs=rollout.last_obs)


ALGORITHMS = [
    (PPO, PPOConfig),
    (A2C, A2CConfig),
    (Reinforce, ReinforceConfig),
    (Impala, ImpalaConfig),
    (APPO, APPOConfig),
]


@pytest.mark.parametrize("core", ["none", "lstm", "transformer", "none, cpu"])
@pytest.mark.parametrize(("algorithm", "config"), ALGORITHMS)
def test_stale_data_in_idle_rows_changes_no_update(algorithm: Any, config: Any, core: str) -> None:
    """Elsewhere padding was what the slot had held before, and was learned from."""
    torch.manual_seed(0)
    core, _, mode = core.partition(", ")
    policy = make_policy(OBS, ACTIONS, hidden_sizes=(8,), core=core, core_size=8)
    rollout = act_out(policy, OBS, 12, 4)
    shape = rollout.valid.shape
    rollout.steps["reward"] = torch.randn(shape).masked_fill(~rollout.valid, 0.0)
    rollout.steps["bootstrap_value"] = torch.zeros(shape)
    results = []
    for given in (rollout, with_stale_rows(rollout)):
        learner = algorithm(copy.deepcopy(policy), config(num_envs=4, rollout_length=12), seed=0)
        update = update_for(learner)[0] if mode == "cpu" else learner.update
        assert update is not None
        metrics = update(given)
        results.append((metrics, learner.policy.state_dict()))
    (metrics, parameters), (stale_metrics, stale_parameters) = results
    for name, value in metrics.items():
        torch.testing.assert_close(stale_metrics[name], value, rtol=1e-4, atol=1e-6)
    for name, value in parameters.items():
        torch.testing.assert_close(stale_parameters[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "squashed", "gaussian, cpu"])
@pytest.mark.parametrize(("algorithm", "config"), ALGORITHMS)
def test_an_idle_row_whose_ratio_overflows_changes_no_update(
    algorithm: Any, config: Any, kind: str
) -> None:
    """Zeros in row (7, 1) of 16 x 4, among them its log-probability, and 24 dimensions.

    With means near 0 and a log standard deviation of -5 the log-probability of zeros is near
    24 * (5 - log(2 pi) / 2) = 98, so the ratio is e^98, beyond float32's e^88. Infinity times a
    weight of 0 is no number: the mask has to come before the exponential.
    """
    torch.manual_seed(0)
    kind, _, mode = kind.partition(", ")
    space = spaces.Box(-1, 1, (24,))
    policy = make_policy(
        OBS, space, hidden_sizes=(8,), initial_log_std=-5.0,
        distribution="squashed" if kind == "squashed" else "auto",
    )  # fmt: skip
    steps = (rollout := act_out(policy, OBS, 16, 4)).steps
    steps["valid"] = torch.ones(16, 4, dtype=torch.bool)
    steps["reward"], steps["bootstrap_value"] = torch.randn(16, 4), torch.zeros(16, 4)
    for name in ("obs", "action", "log_prob", "reward", "valid"):
        steps[name][7, 1] = 0
    log_prob = policy.evaluate_rollout(rollout).log_prob[7, 1]
    assert log_prob.exp().isinf()  # at the row that does not count
    learner = algorithm(policy, config(num_envs=4, rollout_length=16), seed=0)
    update = update_for(learner)[0] if mode == "cpu" else learner.update
    assert update is not None
    metrics = update(rollout)
    assert all(torch.as_tensor(value).isfinite().all() for value in metrics.values()), metrics
    assert all(p.isfinite().all() for p in learner.policy.parameters())

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


@pytest.mark.parametrize("core", ["none", "lstm", "transformer", "none, cpu"])
@pytest.mark.parametrize(
    ("algorithm", "config"),
    [
        (PPO, PPOConfig),
        (A2C, A2CConfig),
        (Reinforce, ReinforceConfig),
        (Impala, ImpalaConfig),
        (APPO, APPOConfig),
    ],
)
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

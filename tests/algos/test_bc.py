"""Behavioral cloning: its loss by hand, and its policies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict

from redline.algos.bc import BC, BCConfig, cloning_loss
from redline.data import Rollout
from redline.errors import ConfigError

OBS = spaces.Box(-1, 1, (2,))


def rollout(obs: Any, action: Any) -> Rollout:
    steps = {
        "obs": torch.as_tensor(obs)[None],
        "action": torch.as_tensor(action)[None],
        "valid": torch.ones(1, len(obs), dtype=torch.bool),
    }
    return Rollout(steps=TensorDict(steps, batch_size=[1, len(obs)]), initial_state={}, last_obs={})


def learner(space: spaces.Space[Any], **config: Any) -> BC:
    torch.manual_seed(0)
    return BC.make(OBS, space, BCConfig(**config), seed=0, hidden_sizes=(8,), activation="relu")


def test_the_loss_is_the_negative_log_likelihood_less_the_bonus() -> None:
    """p = 1/2 and 1/4, entropies 1 and 3, c = 1/10; the third row is not valid.

    loss = -((log 1/2 + 0.1) + (log 1/4 + 0.3)) / 2 = (3 log 2 - 0.4) / 2
    """
    log_prob = torch.tensor([0.5, 0.25, 1e-9]).log()
    valid = torch.tensor([True, True, False])
    loss = cloning_loss(log_prob, torch.tensor([1.0, 3.0, 9.0]), valid, 0.1)
    assert loss.item() == pytest.approx((3 * math.log(2) - 0.4) / 2)


def test_discrete_actions_by_hand() -> None:
    """Logits (0, log 3) for every observation: pi = (1/4, 3/4)."""
    algorithm = learner(spaces.Discrete(2))
    with torch.no_grad():
        algorithm.policy.head.weight.zero_()
        algorithm.policy.head.bias.copy_(torch.tensor([0.0, math.log(3.0)]))
    found = algorithm.update(rollout(np.zeros((2, 2), np.float32), [0, 1]))
    assert found["log_prob"].item() == pytest.approx((math.log(0.25) + math.log(0.75)) / 2)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert found["entropy"].item() == pytest.approx(entropy)
    expected = -found["log_prob"] - 1e-3 * found["entropy"]
    assert found["loss"].item() == pytest.approx(expected.item())


def test_gaussian_actions_by_hand() -> None:
    """u ~ N(0, 1) and a = tanh(u): log p(a) = -u^2 / 2 - log(2 pi) / 2 - log(1 - a^2)."""
    algorithm = learner(spaces.Box(-1, 1, (1,)))
    with torch.no_grad():
        algorithm.policy.head.weight.zero_()
        algorithm.policy.head.bias.zero_()
    found = algorithm.update(rollout(np.zeros((1, 2), np.float32), [[0.5]]))
    u = math.atanh(0.5)
    expected = -(u**2) / 2 - math.log(2 * math.pi) / 2 - math.log(1 - 0.25)
    assert found["log_prob"].item() == pytest.approx(expected, abs=1e-5)


def test_an_action_at_its_bound_has_a_finite_loss() -> None:
    algorithm = learner(spaces.Box(-1, 1, (1,)))
    found = algorithm.update(rollout(np.zeros((2, 2), np.float32), [[1.0], [-1.0]]))
    assert all(torch.isfinite(value) for value in found.values())


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3), [0, 1, 2, 1]),
        (spaces.MultiDiscrete([2, 3]), [[0, 1], [1, 2], [0, 0], [1, 0]]),
        (spaces.Box(-2, 2, (1,)), [[0.3], [-0.3], [0.9], [0.1]]),
        (spaces.Box(-np.inf, np.inf, (1,)), [[0.3], [-0.3], [5.0], [0.1]]),
    ],
)
def test_repeated_updates_make_the_recorded_actions_likelier(
    space: spaces.Space[Any], actions: list[Any]
) -> None:
    algorithm = learner(space, learning_rate=1e-2)
    obs = np.array([[0, 1], [1, 0], [-1, 0], [0, -1]], np.float32)
    kind = np.float32 if isinstance(space, spaces.Box) else np.int64
    data = rollout(obs, np.array(actions, kind))
    found = [algorithm.update(data)["log_prob"].item() for _ in range(60)]
    assert found[-1] > found[0] + 0.5


def test_the_policy_is_that_of_the_algorithm_asked_for() -> None:
    assert type(learner(spaces.Discrete(2)).policy).__name__ == "CategoricalActor"
    assert type(learner(spaces.Discrete(2), policy_of="ppo").policy).__name__ == "ActorCritic"
    for other in (spaces.MultiDiscrete([2]), spaces.Box(-1, 1, ())):  # SAC acts in neither
        assert type(learner(other).policy).__name__ == "ActorCritic"


def test_a_core_is_refused() -> None:
    with pytest.raises(ConfigError, match="no recurrent state"):
        BC.make_policy(OBS, spaces.Discrete(2), BCConfig(), core="lstm")


def test_stored_actions_undo_env_actions() -> None:
    """For the squashed actor exactly, for PPO's squashed head up to its largest tanh."""
    space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)
    taken = np.array([[1.0, 2.5], [-1.9, 9.9]])
    for policy in (
        learner(space).policy,
        BC.make_policy(OBS, space, BCConfig(policy_of="ppo"), distribution="squashed"),
    ):
        stored = policy.stored_action(taken)
        assert stored.dtype == np.float32
        assert np.allclose(policy.env_action(stored), taken, atol=1e-4)

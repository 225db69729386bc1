"""A2C and REINFORCE: losses by hand, and one update on hand-written rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import Tensor, nn

from redline.algos.a2c import A2C, A2CConfig, policy_gradient_loss
from redline.algos.reinforce import Reinforce, ReinforceConfig
from redline.data import Rollout
from redline.errors import ConfigError
from redline.policies.policy import ActionEvaluation, ActOutput, Policy, State


class TwoNumberPolicy(Policy):
    """log pi(1) = log sigmoid(logit), V = value, the same everywhere: gradients by hand."""

    noise_size = 1
    is_recurrent = False
    extras_spec: ClassVar[dict[str, tuple[int, ...]]] = {"log_prob": (), "value": ()}

    def __init__(self, logit: float = 0.0, value: float = 0.0) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(logit))
        self.baseline = nn.Parameter(torch.tensor(value))

    def initial_state(self, batch_size: int) -> State:
        return {}

    def draw_noise(self, rng: np.random.Generator, length: int) -> Any:
        return rng.random((length, 1), dtype=np.float32)

    def act(self, obs: Any, state: State, noise: Any = None, conditioning: Any = None) -> ActOutput:
        raise NotImplementedError

    def env_action(self, action: Any) -> Any:
        return action

    def value(self, obs: Any, state: State, conditioning: Any = None) -> Tensor:
        return self.baseline.expand(len(obs))

    def evaluate_rollout(self, rollout: Rollout) -> ActionEvaluation:
        sign = rollout["action"].float() * 2 - 1
        log_prob = torch.nn.functional.logsigmoid(self.logit * sign)
        p = torch.sigmoid(self.logit)
        entropy = -(p * p.log() + (1 - p) * (1 - p).log())
        shape = log_prob.shape
        return ActionEvaluation(log_prob, entropy.expand(shape), self.baseline.expand(shape), {})


def rollout_of(
    action: list[int], reward: list[float], terminated: list[int], valid: list[int], value: float
) -> Rollout:
    """One environment; nothing truncated, nothing to bootstrap."""
    column = (len(action), 1)
    steps = TensorDict(
        {
            "obs": torch.zeros(*column, 1),
            "action": torch.tensor(action)[:, None],
            "reward": torch.tensor(reward)[:, None],
            "value": torch.full(column, value),
            "bootstrap_value": torch.zeros(column),
            "terminated": torch.tensor(terminated, dtype=torch.bool)[:, None],
            "truncated": torch.zeros(column, dtype=torch.bool),
            "valid": torch.tensor(valid, dtype=torch.bool)[:, None],
        },
        batch_size=column,
    )
    return Rollout(steps=steps, initial_state={}, last_obs=torch.zeros(1, 1))


def test_policy_gradient_loss_by_hand() -> None:
    """-(log 0.5 * 2 + log 0.25 * -1) / 2, the third row not valid and NaN."""
    log_prob = torch.tensor([0.5, 0.25, float("nan")]).log()
    loss = policy_gradient_loss(
        log_prob, torch.tensor([2.0, -1.0, float("nan")]), torch.tensor([True, True, False])
    )
    assert loss.item() == pytest.approx(-(2 * np.log(0.5) - np.log(0.25)) / 2)


def test_a2c_gradient_by_hand() -> None:
    """Two steps, gamma = 1/2, V = 1, logit 0, actions 1 and 0, rewards 1 and 3, the last ends.

    A_1 = 3 - 1 = 2; A_0 = 1 + 3/2 - 1 = 3/2. Targets 3 and 5/2.
    d log pi / d logit = 1/2 for action 1, -1/2 for action 0:
        d policy_loss = -(3/2 * 1/2 - 2 * 1/2) / 2 = 1/8
        d value_loss / d V = ((1 - 5/2) + (1 - 3)) / 2 = -7/4, times value_coef 1/2
    With SGD in place of the optimizer the step is -lr times that.
    """
    policy = TwoNumberPolicy(logit=0.0, value=1.0)
    config = A2CConfig(
        num_envs=1, rollout_length=2, gamma=0.5, entropy_coef=0.0, value_coef=0.5, max_grad_norm=0.0
    )
    a2c = A2C(policy, config)
    a2c.optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    metrics = a2c.update(rollout_of([1, 0], [1.0, 3.0], [0, 1], [1, 1], 1.0))
    assert policy.logit.item() == pytest.approx(-0.1 / 8)
    assert policy.baseline.item() == pytest.approx(1.0 + 0.1 * 0.5 * 7 / 4)
    assert metrics["value_loss"].item() == pytest.approx(0.5 * (1.5**2 + 2**2) / 2)
    assert metrics["entropy"].item() == pytest.approx(np.log(2))


def test_reinforce_gradient_by_hand() -> None:
    """Returns-to-go 1 + 3 = 4 and 3 (gamma 1), baseline 1, logit 0, actions 1, 1; third row idle.

    d policy_loss / d logit = -(3 * 1/2 + 2 * 1/2) / 2 = -5/4.
    """
    policy = TwoNumberPolicy(logit=0.0, value=1.0)
    config = ReinforceConfig(
        num_envs=1, rollout_length=3, gamma=1.0, normalize_advantage=False, max_grad_norm=0.0
    )
    reinforce = Reinforce(policy, config)
    reinforce.optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    reinforce.update(rollout_of([1, 1, 0], [1.0, 3.0, 0.0], [0, 1, 0], [1, 1, 0], 1.0))
    assert policy.logit.item() == pytest.approx(0.1 * 5 / 4)
    assert policy.baseline.item() == pytest.approx(1.0 + 0.1 * 0.5 * (3 + 2) / 2)


def test_reinforce_returns_by_hand() -> None:
    """gamma 1/2, V = 1. One env ends after its second step: G = 1 + 3/2, 3. The other is cut
    there, and its successor is worth 8: G = 1 + (3 + 8/2) / 2, 3 + 8/2."""
    config = ReinforceConfig(num_envs=2, rollout_length=2, gamma=0.5, normalize_advantage=False)
    reinforce = Reinforce(TwoNumberPolicy(), config)
    cut = torch.tensor([[False, False], [False, True]])
    steps = TensorDict(
        {
            "obs": torch.zeros(2, 2, 1),
            "action": torch.ones(2, 2, dtype=torch.int64),
            "reward": torch.tensor([[1.0, 1.0], [3.0, 3.0]]),
            "value": torch.ones(2, 2),
            "bootstrap_value": torch.tensor([[0.0, 0.0], [8.0, 8.0]]),
            "terminated": cut.flip(1),
            "truncated": cut,
            "valid": torch.ones(2, 2, dtype=torch.bool),
        },
        batch_size=(2, 2),
    )
    rollout = Rollout(steps=steps, initial_state={}, last_obs=torch.zeros(2, 1))
    advantage, target, _ = reinforce.estimate(rollout, reinforce.policy.evaluate_rollout(rollout))
    assert target.tolist() == [[2.5, 4.5], [3.0, 7.0]]
    assert advantage.tolist() == [[1.5, 3.5], [2.0, 6.0]]


def test_gradient_norm_is_clipped() -> None:
    """The gradient (1/8, -7/8) of the A2C case has norm sqrt(50)/8; it is scaled to 0.1."""
    policy = TwoNumberPolicy(logit=0.0, value=1.0)
    config = A2CConfig(num_envs=1, rollout_length=2, gamma=0.5, entropy_coef=0.0, max_grad_norm=0.1)
    a2c = A2C(policy, config)
    a2c.optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    metrics = a2c.update(rollout_of([1, 0], [1.0, 3.0], [0, 1], [1, 1], 1.0))
    moved = np.hypot(policy.logit.item(), policy.baseline.item() - 1.0)
    assert metrics["grad_norm"].item() == pytest.approx(np.sqrt(50) / 8)
    assert moved == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize("kind", ["a2c-rmsprop", "a2c-adam", "reinforce"])
def test_state_dict_continues_bit_for_bit(kind: str) -> None:
    def made() -> A2C | Reinforce:
        if kind == "reinforce":
            return Reinforce(TwoNumberPolicy(), ReinforceConfig())
        return A2C(TwoNumberPolicy(), A2CConfig(optimizer=kind.removeprefix("a2c-")))  # type: ignore[arg-type]

    rollout = rollout_of([1, 0, 1], [1.0, 3.0, 0.5], [0, 1, 0], [1, 1, 1], 0.0)
    first = made()
    first.update(rollout)
    saved = torch.utils._pytree.tree_map(
        lambda v: v.clone() if isinstance(v, Tensor) else v, first.state_dict()
    )
    first.update(rollout)
    second = made()
    second.load_state_dict(saved)
    second.update(rollout)
    assert torch.equal(first.policy.logit, second.policy.logit)  # type: ignore[attr-defined]
    assert first.optimizer_steps() == second.optimizer_steps() == 2


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="gae_lambda"):
        A2CConfig(gae_lambda=-0.1)
    with pytest.raises(ConfigError, match="rollout_length"):
        ReinforceConfig(rollout_length=0)

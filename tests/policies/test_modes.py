"""Evaluation for a while leaves each part of a policy in the mode that it was in."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import redline
from redline.policies.modes import copy_modes, evaluation_mode
from redline.serving import Predictor


class Frozen(nn.Module):
    """A network whose normalization is to keep its statistics."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        assert space.shape is not None
        self.norm = nn.BatchNorm1d(space.shape[0])
        self.norm.eval()
        self.out = nn.Linear(space.shape[0], 8)

    def forward(self, obs: Tensor) -> Tensor:
        return self.out(self.norm(obs))


def modes(module: nn.Module) -> list[bool]:
    return [part.training for part in module.modules()]


def test_each_part_is_in_its_own_mode_afterwards() -> None:
    network = Frozen(spaces.Box(-1, 1, (3,)))
    before = modes(network)
    assert before == [True, False, True]

    def fail() -> None:
        with evaluation_mode(network):
            assert modes(network) == [False] * 3
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert modes(network) == before
    copied = copy.deepcopy(network).train()
    copy_modes(copied, network)
    assert modes(copied) == before


def test_a_module_s_own_method_is_called() -> None:
    """As one that merges weights while it is in evaluation mode."""
    called: list[bool] = []

    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> Any:
            called.append(mode)
            return super().train(mode)

    with evaluation_mode(Merging(1, 1)):
        pass
    assert called == [False, True]


class Look:
    """A callback that notes the normalization's mode, and asks for an action."""

    def __init__(self, predicts: bool) -> None:
        self.predicts, self.seen = predicts, list[tuple[bool, int]]()

    def on_iteration(self, state: Any) -> None:
        norm = state.policy.torso.norm
        self.seen.append((norm.training, int(norm.num_batches_tracked)))
        assert state.policy.training
        if self.predicts:
            env = gymnasium.make("CartPole-v1")
            obs, _ = env.reset(seed=1)
            Predictor(state.policy, env.observation_space, env.action_space)(obs)


@pytest.mark.parametrize("predicts", [False, True])
def test_what_is_frozen_stays_so_through_evaluations(predicts: bool, tmp_path: Path) -> None:
    """After the first evaluation its statistics were learned; after a predictor none were."""
    look = Look(predicts)
    evaluations: dict[str, Any] = {} if predicts else {"eval_interval": 64, "eval_episodes": 2}
    redline.train(
        "ppo", env="CartPole-v1", network=Frozen, num_envs=2, rollout_length=16,
        total_env_steps=128, preset="default", num_minibatches=1, callbacks=[look],
        out=tmp_path / "run", quiet=True, tensorboard=False, **evaluations,
    )  # fmt: skip
    assert look.seen == [(False, 0)] * 4


def test_a_predictor_s_policy_acts_in_evaluation_mode() -> None:
    policy = redline.make_policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), encoder=Dropping)
    predictor = Predictor(policy, spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    obs = torch.rand(4, generator=torch.Generator().manual_seed(0)).numpy()
    seen: list[bool] = []
    policy.torso.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    assert len({int(predictor(obs)[0]) for _ in range(50)}) == 1
    assert set(seen) == {False}
    assert policy.torso.training


class Dropping(nn.Module):
    """Features that are dropped at random while it trains."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.9))

    def forward(self, obs: Tensor) -> Tensor:
        return self.out(obs)

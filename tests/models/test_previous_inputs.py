"""Features joined by the action before and its reward."""

from __future__ import annotations

import torch
from torch import nn

from redline.models.previous_inputs import PreviousBesideFeatures


def test_features_then_action_then_reward() -> None:
    obs = {
        "observed": torch.tensor([[1.0, 2.0]]),
        "previous_action": torch.tensor([[0.0, 1.0, 0.0]]),
        "previous_reward": torch.tensor([[-3.0]]),
    }
    assert PreviousBesideFeatures(nn.Identity())(obs).tolist() == [[1, 2, 0, 1, 0, -3]]


def test_a_nested_observation_keeps_its_structure() -> None:
    class Sum(nn.Module):
        def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
            assert set(obs) == {"a", "b"}
            return obs["a"] + obs["b"]

    obs = {
        "a": torch.ones(1, 1),
        "b": torch.ones(1, 1),
        "previous_action": torch.zeros(1, 2),
        "previous_reward": torch.zeros(1, 1),
    }
    assert PreviousBesideFeatures(Sum())(obs).tolist() == [[2, 0, 0, 0]]

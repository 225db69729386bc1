"""Action masks in Dict observations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.errors import SpaceError
from redline.policies import make_policy

VECTOR = spaces.Box(-1, 1, (3,))


def masked_space(size: int) -> spaces.Dict:
    return spaces.Dict(obs=VECTOR, action_mask=spaces.Box(0, 1, (size,), np.int8))


def test_the_mask_limits_actions_and_is_no_input() -> None:
    policy = make_policy(masked_space(4), spaces.Discrete(4), normalize_obs=True)
    assert policy.torso[0].out_features == 3
    obs: Any = {
        "obs": torch.zeros(400, 3),
        "action_mask": torch.tensor([0, 1, 0, 1], dtype=torch.int8).expand(400, 4),
    }
    noise = torch.from_numpy(policy.draw_noise(np.random.default_rng(0), 400))
    actions = policy.act(obs, {}, noise).action
    assert isinstance(actions, torch.Tensor)
    assert set(actions.tolist()) == {1, 3}


def test_masks_of_nested_actions_go_by_name_and_may_be_partial() -> None:
    action_space = spaces.Dict(
        move=spaces.Discrete(3), push=spaces.Box(-1, 1, (2,)), use=spaces.MultiDiscrete([2, 2])
    )
    mask_space = spaces.Dict(move=spaces.MultiBinary(3), use=spaces.MultiBinary(4))
    policy = make_policy(spaces.Dict(x=VECTOR, action_mask=mask_space), action_space)
    obs: Any = {
        "x": torch.zeros(2, 3),
        "action_mask": {
            "move": torch.tensor([[0, 0, 1], [0, 1, 0]], dtype=torch.int8),
            "use": torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1]], dtype=torch.int8),
        },
    }
    action: Any = policy.act(obs, {}).action
    assert action["move"].tolist() == [2, 1]
    assert action["use"].tolist() == [[1, 0], [0, 1]]


def test_rows_without_choices_stay_finite() -> None:
    """Rows that are not valid hold zeros, the mask too."""
    policy = make_policy(masked_space(4), spaces.Discrete(4))
    obs = {"obs": torch.zeros(2, 3), "action_mask": torch.zeros(2, 4, dtype=torch.int8)}
    output = policy.evaluate_actions(obs, torch.zeros(2, dtype=torch.int64))
    (output.log_prob.sum() + output.entropy.sum() + output.value.sum()).backward()
    assert all(torch.isfinite(part).all() for part in output[:3])
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.grad is not None)


def test_a_component_masked_out_whole_acts_within_its_own_choices() -> None:
    """Elsewhere it chose among the places of the largest component: index 4 of 2."""
    space = spaces.MultiDiscrete([5, 2])
    policy = make_policy(masked_space(7), space)
    obs: Any = {
        "obs": torch.zeros(400, 3),
        "action_mask": torch.tensor([1, 1, 1, 1, 1, 0, 0], dtype=torch.int8).expand(400, 7),
    }
    noise = torch.from_numpy(policy.draw_noise(np.random.default_rng(0), 400))
    output = policy.act(obs, {}, noise)
    assert isinstance(output.action, torch.Tensor)
    assert all(space.contains(row) for row in output.action.numpy())
    told = policy.evaluate_actions(obs, output.action)
    assert torch.equal(told.log_prob, output.extras["log_prob"])


@pytest.mark.parametrize(
    ("mask", "action_space", "message"),
    [
        (spaces.MultiBinary(3), spaces.Discrete(4), "vector of 4"),
        (spaces.MultiBinary((2, 2)), spaces.Discrete(4), "vector of 4"),
        (spaces.MultiBinary(2), spaces.Box(-1, 1, (2,)), "no mask"),
        (spaces.Dict(y=spaces.MultiBinary(2)), spaces.Dict(x=spaces.Discrete(2)), "counterpart"),
    ],
)
def test_masks_that_do_not_fit_are_refused(mask: Any, action_space: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        make_policy(spaces.Dict(obs=VECTOR, action_mask=mask), action_space)


def test_a_mask_alone_is_no_observation() -> None:
    with pytest.raises(SpaceError, match="nothing else"):
        make_policy(spaces.Dict(action_mask=spaces.MultiBinary(2)), spaces.Discrete(2))

"""The contract's own helpers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.data import Rollout, leaves
from redline.policies import SkillPolicy, make_policy, reset_state, with_skill
from tests.policies.rollouts import act_out

VECTOR = spaces.Box(-1.0, 1.0, (3,))
NESTED = spaces.Dict({"a": VECTOR, "action_mask": spaces.MultiBinary(4)})
IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)


def test_reset_state_zeroes_only_the_ended_rows() -> None:
    """Elsewhere what an episode left behind was cleared in one collector and not in another."""
    state = {"hidden": torch.ones(3, 2), "memory": torch.full((3, 2, 2), torch.nan)}
    got = reset_state(state, torch.tensor([True, False, True]))
    assert got["hidden"].tolist() == [[0, 0], [1, 1], [0, 0]]
    assert not got["memory"][[0, 2]].any()
    assert got["memory"][1].isnan().all()
    assert state["hidden"].all()


@pytest.mark.parametrize("space", [VECTOR, NESTED, IMAGE], ids=["vector", "mask", "image"])
def test_minibatches_of_rows_evaluate_as_the_rows_of_the_rollout(space: spaces.Space[Any]) -> None:
    policy = make_policy(space, spaces.Discrete(4))
    rollout = act_out(policy, space, 4, 3)
    rows = policy.shuffleable(rollout, "log_prob")
    assert set(rows.steps.keys()) == {"obs", "action", "valid", "log_prob"}
    order = torch.tensor([7, 2, 11, 0, 1, 10, 3, 9, 4, 6, 5, 8])
    with torch.no_grad():
        whole = policy.evaluate_rollout(rollout).log_prob.flatten()
        parts = list(rows.minibatches(order, 3))
        found = [policy.evaluate_rollout(part).log_prob for part in parts]
    torch.testing.assert_close(torch.cat(found, dim=1).squeeze(0), whole[order])
    told = torch.cat([part["log_prob"] for part in parts], dim=1).squeeze(0)
    assert torch.equal(told, rollout["log_prob"].flatten()[order])


def test_images_are_laid_out_once_for_all_minibatches() -> None:
    policy = make_policy(IMAGE, spaces.Discrete(4))
    rows = policy.shuffleable(act_out(policy, IMAGE, 2, 2))
    for part in rows.minibatches(torch.tensor([3, 1, 2, 0]), 2):
        assert part["obs"].squeeze(0).is_contiguous(memory_format=torch.channels_last)


def test_a_recurrent_policy_learns_from_whole_sequences() -> None:
    policy = make_policy(VECTOR, spaces.Discrete(2), core="gru", core_size=4)
    rollout = act_out(policy, VECTOR, 4, 2)
    assert policy.shuffleable(rollout, "log_prob") is rollout
    with torch.no_grad():
        whole = policy.evaluate_rollout(rollout).value
        second, first = rollout.minibatches(torch.tensor([1, 0]), 2)
        torch.testing.assert_close(policy.evaluate_rollout(first).value, whole[:, :1])
        torch.testing.assert_close(policy.evaluate_rollout(second).value, whole[:, 1:])


def test_conditioning_stays_with_its_rows() -> None:
    policy = SkillPolicy(make_policy(with_skill(VECTOR, 3), spaces.Discrete(4)), VECTOR, 3)
    inside = act_out(policy.policy, with_skill(VECTOR, 3), 4, 3)
    obs, skill = inside["obs"]["observation"], inside["obs"]["skill"]
    steps = inside.steps.copy().set("obs", obs).set("skill", skill.float())
    rollout = Rollout(steps=steps, initial_state={}, last_obs={})
    order = torch.randperm(12)
    with torch.no_grad():
        whole = policy.evaluate_rollout(rollout).value.flatten()
        rows = policy.shuffleable(rollout)
        parts = [policy.evaluate_rollout(part).value for part in rows.minibatches(order, 4)]
    torch.testing.assert_close(torch.cat(parts, dim=1).squeeze(0), whole[order])
    assert "skill" in dict(leaves(rows.steps))

"""What holds for every algorithm: its learning rate is used, targets begin as what they follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from redline.algos.algorithm import clip_gradients
from tests.engines.learners import LEARNERS, batch, make, parts_of

SMALL, LARGE = 1e-5, 1e-4
FOLLOWED = {"target": ("critic", "policy"), "target_policy": ("policy",)}
"""Part that follows -> what it may follow: DQN's and R2D1's targets are policies."""


def with_rate(standard: Any, rate: float) -> Any:
    """The algorithm's class with another default of `learning_rate`."""

    @dataclass(frozen=True, kw_only=True)
    class Config(standard.Config):
        learning_rate: float = rate

    return type(standard.__name__, (standard,), {"Config": Config})


def weights(learner: Any) -> dict[str, dict[str, Tensor]]:
    """Part -> name -> what gradients change in it, or in what it follows."""
    return {
        part: {name: value.detach().clone() for name, value in module.named_parameters()}
        for part, module in parts_of(learner).items()
    }


def moved(name: str, rate: float) -> dict[str, float]:
    """Part of the learner -> how far updates move it, summed over its parameters."""
    learner = make(name, with_rate(LEARNERS[name][0], rate))
    before = weights(learner)
    for seed in (1, 2, 3):  # CrossQ's actor has every third turn
        learner.update(batch(name, learner, seed))
    after = weights(learner)
    return {
        part: sum(float((after[part][key] - value).abs().sum()) for key, value in values.items())
        for part, values in before.items()
        if part not in FOLLOWED
    }


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_the_learning_rate_of_the_config_is_used(name: str) -> None:
    """FAULTS 5: steps of Adam and RMSprop are proportional to it, so ten times it moves each part
    ten times as far (a tenth more or less: later gradients differ a little).
    """
    small, large = moved(name, SMALL), moved(name, LARGE)

    assert small
    for part, distance in small.items():
        assert distance > 0, part
        assert large[part] / distance == pytest.approx(LARGE / SMALL, rel=0.1), part


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_targets_begin_equal_to_what_they_follow(name: str) -> None:
    """FAULTS 5."""
    parts = weights(make(name))

    for target, candidates in FOLLOWED.items():
        if target in parts:
            source = next(parts[part] for part in candidates if part in parts)
            assert parts[target].keys() == source.keys()
            for key, value in source.items():
                assert torch.equal(parts[target][key], value), key
    has_target = {"sac", "redq", "tqc", "td3", "ddpg", "diayn", "dqn", "double-dqn", "rainbow",
                  "iqn", "r2d1", "sac-fixed-alpha", "sac-discrete", "sac-discrete-soft-target",
                  "sac-hard-target", "sac-critic-widths", "td3-critic-widths"}  # fmt: skip
    assert (name in has_target) is bool(parts.keys() & FOLLOWED.keys())


@pytest.mark.parametrize("name", sorted(LEARNERS))
def test_what_is_frozen_midway_stays_and_the_rest_learns(name: str) -> None:
    """Actors that learn apart from their critics asked for gradients of what has none."""
    learner = make(name)
    first = next(learner.policy.parameters())
    for seed in range(6):  # CrossQ's actor has every third turn
        if seed == 3:
            first.requires_grad_(False)
            kept, before = first.clone(), weights(learner)["policy"]
        learner.update(batch(name, learner, seed))
    assert torch.equal(first, kept)
    after = weights(learner)["policy"]
    assert any(not torch.equal(after[key], value) for key, value in before.items())


@pytest.mark.parametrize("name", ["sac", "sac-discrete", "tqc", "crossq", "td3", "ddpg"])
def test_critics_learn_on_beside_an_actor_that_is_frozen_as_a_whole(name: str) -> None:
    learner = make(name)
    learner.policy.requires_grad_(False)
    before = weights(learner)
    for seed in range(3):
        learner.update(batch(name, learner, seed))
    after = weights(learner)
    for part, is_kept in (("policy", True), ("critic", False)):
        same = [torch.equal(after[part][key], value) for key, value in before[part].items()]
        assert all(same) == is_kept


def test_gradients_are_clipped_where_torch_takes_no_lists() -> None:
    """MPS is such a device, and so is meta: asked for lists, torch refuses both.

    On the CPU: of norm 5, clipped to 1.
    """
    for device in ("meta", "cpu"):
        weight = torch.zeros(2, device=device, requires_grad=True)
        weight.grad = torch.tensor([3.0, 4.0]).to(device)
        norm = clip_gradients([weight], 1.0)
        assert (norm.device.type, norm.shape) == (device, ())
    assert float(norm) == 5.0
    assert weight.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)

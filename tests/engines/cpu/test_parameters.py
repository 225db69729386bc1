"""Steps from gradients that lie elsewhere, against the optimizer's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from redline.algos.optimizers import Adam, RMSprop
from redline.engines.cpu.parameters import Gradients, OptimizerStep, TargetMove


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(*rows: list[float]) -> torch.nn.Linear:
    """Without a bias, with these weights."""
    module = torch.nn.Linear(len(rows[0]), len(rows), bias=False)
    module.weight.data = torch.tensor(rows)
    return module.requires_grad_(False)


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_steps_by_it_and_by_the_optimizer_take_turns(kind: Any) -> None:
    """Moments and counts are the optimizer's own, and no gradient is left behind."""
    one, other = (torch.nn.Parameter(randn(4)) for _ in range(2))
    optimizers = kind([one], 0.1), kind([other], 0.1)
    grad = torch.empty(4)
    step = OptimizerStep(optimizers[0], [grad])
    for seed in range(4):
        grad.copy_(randn(4, seed=seed))
        if seed == 2:
            one.grad = grad.clone()
            optimizers[0].step()
        else:
            step()
        assert one.grad is None
        other.grad = grad.clone()
        optimizers[1].step()
    assert torch.equal(one, other)


def test_it_follows_parameters_that_are_moved() -> None:
    moved, still = torch.nn.Parameter(randn(5)), torch.nn.Parameter(randn(5))
    grad = randn(5, seed=1)
    steps = [OptimizerStep(Adam([parameter], 0.1), [grad]) for parameter in (moved, still)]
    for _ in range(2):
        for step in steps:
            step()
        assert torch.equal(moved, still)
        moved.data = moved.data.clone()


def test_targets_move_a_part_of_the_way() -> None:
    """(1, 3) moves a quarter of the way to (5, 3): (2, 3). With tau 1 it arrives."""
    target, online = layer([1.0, 3.0]), layer([5.0, 3.0])
    TargetMove([target], [online], 0.25)()
    assert target.weight.tolist() == [[2.0, 3.0]]
    TargetMove([target], [online], 1.0)()
    assert target.weight.tolist() == [[5.0, 3.0]]


def test_clipping_scales_to_the_norm_and_reports_the_one_before() -> None:
    """(3, 4) has norm 5; at most 1 makes it (0.6, 0.8), at most 10 leaves it, 0 too."""
    for limit, wanted in ((1.0, [0.6, 0.8]), (10.0, [3.0, 4.0]), (0.0, [3.0, 4.0])):
        gradients = Gradients([torch.zeros(1), torch.zeros(1)])
        gradients.views[0].fill_(3.0)
        gradients.views[1].fill_(4.0)
        assert gradients.clip(limit) == 5.0
        assert torch.cat(gradients.views).tolist() == pytest.approx(wanted, rel=1e-5)


def test_a_norm_that_is_not_a_number_is_not_hidden() -> None:
    gradients = Gradients([torch.zeros(2)])
    gradients.views[0][0] = float("nan")
    gradients.clip(0.5)
    assert gradients.views[0].isnan().all()

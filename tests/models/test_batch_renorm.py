"""Batch renormalization against hand-worked numbers. eps is 0.001."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from redline.errors import ConfigError
from redline.models import batch_renorm
from redline.models.batch_renorm import (
    EPS,
    BatchRenorm,
    Renormalization,
    RenormalizedEnsemble,
    RenormalizedMLP,
)

ROWS = torch.tensor([[1.0], [3.0]])  # mean 2, variance 1 (divided by N, not by N - 1)
STD = (1.0 + EPS) ** 0.5


def layer(mean: float = 0.0, var: float = 1.0, warmup: int = 0) -> BatchRenorm:
    made = BatchRenorm(1, how=Renormalization(momentum=0.75, warmup=warmup))
    with torch.no_grad():
        made.running_mean.fill_(mean)
        made.running_var.fill_(var)
    return made


def numbers(tensor: Tensor) -> list[float]:
    return tensor.detach().flatten().tolist()


def test_within_the_bounds_learning_gives_what_acting_gave() -> None:
    """M = 1, S^2 = 4: r = s / S and d = 1 / S, so x' = (x - m) / S + (m - M) / S = (x - 1) / S."""
    made = layer(mean=1.0, var=4.0)
    before = numbers(made(ROWS))
    assert before == pytest.approx([0.0, 2.0 / (4.0 + EPS) ** 0.5])
    assert numbers(made.learn(ROWS)) == pytest.approx(before, abs=1e-6)  # float32's rounding


def test_r_and_d_are_clipped() -> None:
    """M = -100 and S^2 = 0.0001: s / S is 30, cut to 3; 102 / S is cut to 5.

    x' = -1 / s * 3 + 5 and 1 / s * 3 + 5, with s^2 = 1.001.
    """
    made = layer(mean=-100.0, var=0.0001)
    assert numbers(made.learn(ROWS)) == pytest.approx([5.0 - 3.0 / STD, 5.0 + 3.0 / STD])


def test_they_are_clipped_from_below() -> None:
    """M = 100 and S = 10: s / S is 0.1, raised to 1/3; -98 / 10 is raised to -5."""
    made = layer(mean=100.0, var=100.0)
    expected = [-5.0 - 1 / (3 * STD), -5.0 + 1 / (3 * STD)]
    assert numbers(made.learn(ROWS)) == pytest.approx(expected)


def test_the_first_batches_are_only_normalized() -> None:
    """A warm-up of two batches: x' = -1 / s and 1 / s whatever M; the third is cut to 5 + 3 / s."""
    made = layer(mean=-100.0, var=0.0001, warmup=2)
    for _ in range(2):
        assert numbers(made.learn(ROWS)) == pytest.approx([-1 / STD, 1 / STD])
    assert made.batches.item() == 2
    assert numbers(made.learn(ROWS))[0] > 0.0


def test_running_statistics_follow_the_batches() -> None:
    """Momentum 3/4, from M = 0 and S^2 = 5: M = 2 / 4; S^2 = 5 * 3/4 + 1 / 4 = 4."""
    made = layer(var=5.0)
    made.learn(ROWS)
    assert numbers(made.running_mean) == pytest.approx([0.5])
    assert numbers(made.running_var) == pytest.approx([4.0])
    made(ROWS)
    assert made.batches.item() == 1  # acting counts nothing
    assert numbers(made.running_mean) == pytest.approx([0.5])


def test_ranks_act_by_the_same_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank's batch has mean 4 and variance 3: M takes in 3 and S^2 takes in 2."""
    other = torch.tensor([4.0, 3.0, 1.0]).view(3, 1, 1)
    monkeypatch.setattr(batch_renorm, "are_several", lambda: True)
    monkeypatch.setattr(batch_renorm, "sum_over_ranks", lambda own: own + other)
    made = BatchRenorm(1, how=Renormalization(momentum=0.0))
    made.learn(ROWS)
    assert numbers(made.running_mean) == pytest.approx([3.0])
    assert numbers(made.running_var) == pytest.approx([2.0])


def test_r_and_d_are_constants_to_the_gradient() -> None:
    """A batch's mean of x' is d whatever the inputs, so its gradient is 0; else it were 1 / S."""
    rows = ROWS.clone().requires_grad_()
    layer(mean=1.0, var=4.0).learn(rows).sum().backward()
    assert rows.grad is not None
    assert numbers(rows.grad) == pytest.approx([0.0, 0.0], abs=1e-6)


def test_weight_and_bias_come_last() -> None:
    made = layer(warmup=1)
    with torch.no_grad():
        made.weight.fill_(2.0)
        made.bias.fill_(7.0)
    assert numbers(made.learn(ROWS)) == pytest.approx([7.0 - 2 / STD, 7.0 + 2 / STD])


def test_members_have_statistics_of_their_own() -> None:
    made = BatchRenorm(1, members=2, how=Renormalization(momentum=0.0))
    made.learn(torch.stack([ROWS, 10 * ROWS]))
    assert numbers(made.running_mean) == pytest.approx([2.0, 20.0])
    assert numbers(made.running_var) == pytest.approx([1.0, 100.0])
    assert made(ROWS).shape == (2, 2, 1)
    assert torch.equal(made(ROWS, torch.tensor([1])), made(ROWS)[1:])


def test_an_ensemble_computes_what_its_members_would() -> None:
    torch.manual_seed(0)
    ensemble = RenormalizedEnsemble(2, (3, 4, 1))
    rows = torch.randn(5, 3)
    for learns in (True, False):
        both = ensemble.learn(rows) if learns else ensemble(rows)
        for member in range(2):
            alone = _member(ensemble, member, learns)
            torch.testing.assert_close(both[member], alone(rows))
    torch.testing.assert_close(ensemble(rows, torch.tensor([1])), ensemble(rows)[1:])


def _member(
    ensemble: RenormalizedEnsemble, member: int, learns: bool
) -> Callable[[Tensor], Tensor]:
    """One member by the formulas of batch normalization, as in the warm-up, or by M and S."""

    norms: Any = ensemble.norms

    def run(x: Tensor) -> Tensor:
        for i, norm in enumerate(norms):
            mean, var = x.mean(0), x.var(0, correction=0)
            if not learns:
                mean, var = norm.running_mean[member, 0], norm.running_var[member, 0]
            x = (x - mean) / (var + EPS).sqrt()
            x = x @ ensemble.weights[i][member] + ensemble.biases[i][member]
            x = torch.relu(x) if i == 0 else x
        return x

    return run


def test_the_last_thing_of_an_mlp_is_renormalization() -> None:
    torch.manual_seed(0)
    net = RenormalizedMLP((3, 4))
    learned = net.learn(torch.randn(64, 3))
    assert learned.shape == (64, 4)
    torch.testing.assert_close(learned.mean(0), torch.zeros(4), atol=1e-5, rtol=0)  # sums of 64
    norms: Any = net.norms
    assert [norm.batches.item() for norm in norms] == [1, 1]


@pytest.mark.parametrize("how", [Renormalization(momentum=1.0), Renormalization(warmup=-1)])
def test_impossible_numbers_are_refused(how: Renormalization) -> None:
    with pytest.raises(ConfigError, match="momentum="):
        BatchRenorm(1, how=how)

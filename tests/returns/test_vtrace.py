"""V-trace by hand, against the sum it is defined by, and against GAE where it must agree."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from redline.returns import gae, vtrace


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def test_targets_and_advantages_by_hand() -> None:
    """gamma = 1/2, both bounds 1; ratios 1/2 and 4, the second one cut to 1; worth 8 at the end.

    t=1: delta = 1 (3 + 8/2 - 4) = 3,       v = 4 + 3 = 7
    t=0: delta = 1/2 (1 + 4/2 - 2) = 1/2,   v = 2 + 1/2 + 1/2 * 1/2 * 3 = 13/4
    A_1 = 1 (3 + 8/2 - 4) = 3;  A_0 = 1/2 (1 + 7/2 - 2) = 5/4
    """
    result = vtrace(
        column(1, 3), column(2, 4), column(0, 8), flags(0, 0), flags(0, 0), flags(1, 1),
        column(0.5, 4).log(), gamma=0.5,
    )  # fmt: skip
    assert result.target.squeeze(1).tolist() == [3.25, 7.0]
    assert result.advantage.squeeze(1).tolist() == [1.25, 3.0]
    assert result.rho.squeeze(1).tolist() == [0.5, 1.0]


def test_the_two_bounds_have_each_their_own_place() -> None:
    """The case above with ratios 4 and 4, rho_bar = 2 and c_bar = 1/2.

    t=1: delta = 2 * 3 = 6, v = 10;  t=0: delta = 2 * 1 = 2, v = 2 + 2 + 1/2 * 1/2 * 6 = 11/2
    A_1 = 2 * 3;  A_0 = 2 (1 + 10/2 - 2)
    """
    result = vtrace(
        column(1, 3), column(2, 4), column(0, 8), flags(0, 0), flags(0, 0), flags(1, 1),
        column(4, 4).log(), gamma=0.5, rho_bar=2.0, c_bar=0.5,
    )  # fmt: skip
    assert result.target.squeeze(1).tolist() == pytest.approx([5.5, 10.0])
    assert result.advantage.squeeze(1).tolist() == pytest.approx([8.0, 6.0])


def test_nothing_leaks_across_ends_and_filler_rows() -> None:
    """Rows: truncated (worth 5), a filler whose log ratio is NaN, terminated, last (worth 9).

    gamma = 1, V = 0 but 50 in the filler and 100 after it; ratios 1 but 1/2 in the third.
    v_0 = 1 + 5; v_2 = 100 + 1/2 (1 - 100) = 50.5; v_3 = 1 + 9.
    """
    result = vtrace(
        column(1, 0, 1, 1), column(0, 50, 100, 0), column(5, 0, 0, 9), flags(0, 0, 1, 0),
        flags(1, 0, 0, 0), flags(1, 0, 1, 1), column(0, math.nan, math.log(0.5), 0), gamma=1.0,
    )  # fmt: skip
    assert result.target.squeeze(1).tolist() == [6.0, 0.0, 50.5, 10.0]
    assert result.advantage.squeeze(1).tolist() == [6.0, 0.0, -49.5, 10.0]
    assert result.rho.squeeze(1).tolist() == [1.0, 0.0, 0.5, 1.0]


def test_a_ratio_too_large_for_its_exponential_is_cut_like_any_other() -> None:
    result = vtrace(
        column(1), column(2), column(4), flags(0), flags(0), flags(1), column(1e4), gamma=1.0
    )
    assert result.target.item() == 5.0
    assert result.advantage.item() == 3.0


class Row(NamedTuple):
    reward: float
    value: float
    bootstrap: float
    terminated: bool
    truncated: bool
    valid: bool
    log_ratio: float


number = st.floats(-10, 10, width=32)
rows_of_one_env = st.lists(
    st.builds(Row, *[number] * 3, *[st.booleans()] * 3, st.floats(-2, 2)), min_size=1, max_size=10
)


def arguments(rows: list[Row]) -> list[Tensor]:
    dtypes = [torch.float64] * 3 + [torch.bool] * 3 + [torch.float64]
    columns = zip(*rows, strict=True)
    return [torch.tensor(c, dtype=d)[:, None] for c, d in zip(columns, dtypes, strict=True)]


def successor(rows: list[Row], t: int) -> float:
    if rows[t].terminated:
        return 0.0
    if rows[t].truncated or t == len(rows) - 1:
        return rows[t].bootstrap
    return rows[t + 1].value


def summed(
    rows: list[Row], s: int, gamma: float, lam: float, rho_bar: float, c_bar: float
) -> float:
    """Espeholt et al. 2018, eq. 1, term by term: no recursion."""
    total, product = rows[s].value, 1.0
    for t in range(s, len(rows)):
        row = rows[t]
        if not row.valid:
            break
        ratio = math.exp(row.log_ratio)
        delta = row.reward + gamma * successor(rows, t) - row.value
        total += gamma ** (t - s) * product * min(rho_bar, ratio) * delta
        product *= lam * min(c_bar, ratio)
        if row.terminated or row.truncated:
            break
    return total


bound = st.floats(0.1, 3) | st.just(math.inf)


@settings(deadline=None)
@given(rows_of_one_env, st.floats(0, 1), st.floats(0, 1), bound, bound)
def test_vtrace_equals_its_definition(
    rows: list[Row], gamma: float, lam: float, rho_bar: float, c_bar: float
) -> None:
    got = vtrace(*arguments(rows), gamma=gamma, gae_lambda=lam, rho_bar=rho_bar, c_bar=c_bar)
    targets = [summed(rows, s, gamma, lam, rho_bar, c_bar) for s in range(len(rows))]
    advantages = []
    for t, row in enumerate(rows):
        following = successor(rows, t)
        goes_on = not row.terminated and not row.truncated and t < len(rows) - 1
        if goes_on and rows[t + 1].valid:
            following = lam * targets[t + 1] + (1 - lam) * following
        rho = min(rho_bar, math.exp(row.log_ratio))
        advantages.append(rho * (row.reward + gamma * following - row.value))
    valid = np.array([row.valid for row in rows])
    for result, expected in ((got.target, targets), (got.advantage, advantages)):
        np.testing.assert_allclose(
            result[:, 0].numpy(), np.where(valid, expected, 0.0), rtol=1e-9, atol=1e-8
        )


@settings(deadline=None)
@given(rows_of_one_env, st.floats(0, 1), st.floats(0, 1), st.floats(1, 3), st.floats(1, 3))
def test_on_policy_vtrace_is_gae(
    rows: list[Row], gamma: float, lam: float, rho_bar: float, c_bar: float
) -> None:
    """Remark 2 of the paper (lambda = 1: n-step returns), and its extension to every lambda."""
    *common, log_ratio = arguments(rows)
    got = vtrace(
        *common, torch.zeros_like(log_ratio), gamma=gamma, gae_lambda=lam, rho_bar=rho_bar,
        c_bar=c_bar,
    )  # fmt: skip
    advantage, target = gae(*common, gamma=gamma, gae_lambda=lam)
    torch.testing.assert_close(got.advantage, advantage, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(got.target, target, rtol=1e-9, atol=1e-8)

"""Estimators against hand-worked numbers and against a plain recursion in float64."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from redline.returns import discounted_return, gae


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32).unsqueeze(1)


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool).unsqueeze(1)


def test_gae_bootstraps_at_truncation_but_not_at_termination() -> None:
    """One environment, three steps, worked by hand with gamma = lambda = 1/2.

    t=2 terminates: delta = 1 + 0   - 2 = -1, A = -1
    t=1 truncates:  delta = 1 + 4/2 - 2 =  1, A =  1      (nothing flows back from t=2)
    t=0 continues:  delta = 1 + 2/2 - 2 =  0, A =  0 + 1/4 * 1
    """
    advantage, target = gae(
        reward=column(1, 1, 1),
        value=column(2, 2, 2),
        bootstrap_value=column(0, 4, 0),
        terminated=flags(0, 0, 1),
        truncated=flags(0, 1, 0),
        valid=flags(1, 1, 1),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantage.squeeze(1).tolist() == [0.25, 1.0, -1.0]
    assert target.squeeze(1).tolist() == [2.25, 3.0, 1.0]


def test_gae_uses_the_value_after_the_last_row() -> None:
    """t=1 is last and goes on: delta = 1 + 10 - 3 = 8; t=0: 1 + 3 - 2 = 2, A = 2 + 8."""
    advantage, _ = gae(
        column(1, 1), column(2, 3), column(0, 10), flags(0, 0), flags(0, 0), flags(1, 1),
        gamma=1.0, gae_lambda=1.0,
    )  # fmt: skip
    assert advantage.squeeze(1).tolist() == [10.0, 8.0]


def test_advantage_does_not_leak_across_an_episode_end() -> None:
    """V(next episode) = 100 once turned advantages 2, 1 into 102, 101.

    gamma = lambda = 1, V = 0 in the first episode, rewards 1, 1, then a termination.
    """
    advantage, _ = gae(
        column(1, 1, 0), column(0, 0, 100), column(0, 0, 100), flags(0, 1, 0), flags(0, 0, 0),
        flags(1, 1, 1), gamma=1.0, gae_lambda=1.0,
    )  # fmt: skip
    assert advantage.squeeze(1).tolist() == [2.0, 1.0, 0.0]


def test_a_filler_row_gives_nothing_and_passes_nothing() -> None:
    """Row 1 is the reset of a back end that resets on the next step; its value is not used."""
    advantage, target = gae(
        column(1, 0, 1), column(0, 50, 0), column(5, 0, 0), flags(0, 0, 1), flags(1, 0, 0),
        flags(1, 0, 1), gamma=1.0, gae_lambda=1.0,
    )  # fmt: skip
    assert advantage.squeeze(1).tolist() == [6.0, 0.0, 1.0]
    assert target.squeeze(1).tolist() == [6.0, 0.0, 1.0]


def test_termination_wins_over_a_simultaneous_truncation() -> None:
    """Both flags at once: the state is terminal, its successor has no value."""
    advantage, _ = gae(
        column(1), column(0), column(7), flags(1), flags(1), flags(1), gamma=1.0, gae_lambda=1.0
    )
    assert advantage.item() == 1.0
    returns = discounted_return(column(1), column(7), flags(1), flags(1), flags(1), gamma=1.0)
    assert returns.item() == 1.0


def test_discounted_return_by_hand() -> None:
    """gamma = 1/2. Rows: 1, 2 (terminates), 3, 4 (truncates, worth 8), 5 (last, worth 6).

    G_1 = 2; G_0 = 1 + 1; G_3 = 4 + 4; G_2 = 3 + 4; G_4 = 5 + 3.
    """
    returns = discounted_return(
        column(1, 2, 3, 4, 5), column(0, 0, 0, 8, 6), flags(0, 1, 0, 0, 0), flags(0, 0, 0, 1, 0),
        flags(1, 1, 1, 1, 1), gamma=0.5,
    )  # fmt: skip
    assert returns.squeeze(1).tolist() == [2.0, 2.0, 7.0, 8.0, 8.0]


def plain_gae(
    rows: list[tuple[float, float, float, bool, bool, bool]], gamma: float, lam: float
) -> list[float]:
    """The definition, one row at a time, in Python floats."""
    result = [0.0] * len(rows)
    following = 0.0
    for t in reversed(range(len(rows))):
        reward, value, bootstrap, terminated, truncated, valid = rows[t]
        if not valid:
            following = 0.0
            continue
        if terminated:
            successor = 0.0
        elif truncated or t == len(rows) - 1:
            successor = bootstrap
        else:
            successor = rows[t + 1][1]
        carried = 0.0 if terminated or truncated else gamma * lam * following
        following = reward + gamma * successor - value + carried
        result[t] = following
    return result


number = st.floats(-10, 10, width=32)
row = st.tuples(number, number, number, st.booleans(), st.booleans(), st.booleans())


@settings(deadline=None)
@given(st.lists(row, min_size=1, max_size=12), st.floats(0, 1), st.floats(0, 1))
def test_gae_equals_its_definition(
    rows: list[tuple[float, float, float, bool, bool, bool]], gamma: float, lam: float
) -> None:
    columns = list(zip(*rows, strict=True))
    reward, value, bootstrap = (torch.tensor(c, dtype=torch.float64)[:, None] for c in columns[:3])
    terminated, truncated, valid = (torch.tensor(c)[:, None] for c in columns[3:])
    advantage, target = gae(
        reward, value, bootstrap, terminated, truncated, valid, gamma=gamma, gae_lambda=lam
    )
    expected = np.array(plain_gae(rows, gamma, lam))
    np.testing.assert_allclose(advantage[:, 0].numpy(), expected, rtol=1e-9, atol=1e-9)
    kept = np.array(columns[5])
    np.testing.assert_allclose(
        target[:, 0].numpy(), np.where(kept, expected + np.array(columns[1]), 0), atol=1e-9
    )


@settings(deadline=None)
@given(st.lists(row, min_size=1, max_size=12), st.floats(0, 1))
def test_lambda_one_is_return_minus_value(
    rows: list[tuple[float, float, float, bool, bool, bool]], gamma: float
) -> None:
    """GAE(1) telescopes to G_t - V(s_t) where a filler row follows only an ended one."""
    kept: list[tuple[float, float, float, bool, bool, bool]] = []
    for r in rows:
        may_be_filler = bool(kept) and (kept[-1][3] or kept[-1][4])
        kept.append((*r[:5], r[5] or not may_be_filler))
    columns = list(zip(*kept, strict=True))
    reward, value, bootstrap = (torch.tensor(c, dtype=torch.float64)[:, None] for c in columns[:3])
    terminated, truncated, valid = (torch.tensor(c)[:, None] for c in columns[3:])
    _, target = gae(
        reward, value, bootstrap, terminated, truncated, valid, gamma=gamma, gae_lambda=1.0
    )
    returns = discounted_return(reward, bootstrap, terminated, truncated, valid, gamma=gamma)
    torch.testing.assert_close(target, returns, rtol=1e-9, atol=1e-9)


def test_returns_of_rewards_with_gradient() -> None:
    """Two steps, gamma 0.5: G_0 = r_0 + r_1 / 2, G_1 = r_1, so d(G_0 + G_1) is 1 and 1.5."""
    reward = torch.tensor([[1.0], [2.0]], requires_grad=True)
    no = torch.zeros(2, 1, dtype=torch.bool)
    found = discounted_return(
        reward, torch.zeros(2, 1), no, no, torch.ones(2, 1, dtype=torch.bool), gamma=0.5
    )
    assert found.tolist() == [[2.0], [2.0]]
    found.sum().backward()
    assert reward.grad is not None
    assert reward.grad.tolist() == [[1.0], [1.5]]


def test_advantages_of_values_with_gradient() -> None:
    """gamma 0.5, lambda 1: A_0 = r_0 - v_0 + (r_1 + b / 2) / 2, A_1 = r_1 + b / 2 - v_1."""
    value = torch.tensor([[3.0], [4.0]], requires_grad=True)
    bootstrap = torch.tensor([[0.0], [8.0]], requires_grad=True)
    no = torch.zeros(2, 1, dtype=torch.bool)
    advantage, _ = gae(
        torch.tensor([[1.0], [2.0]]), value, bootstrap, no, no, ~no, gamma=0.5, gae_lambda=1.0
    )
    assert advantage.tolist() == [[1.0], [2.0]]
    advantage.sum().backward()
    assert value.grad is not None
    assert bootstrap.grad is not None
    assert value.grad.tolist() == [[-1.0], [-1.0]]
    assert bootstrap.grad.tolist() == [[0.0], [0.75]]

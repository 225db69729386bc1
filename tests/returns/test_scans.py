"""The three ways to compute a return's recursion: for few environments, many, and on a device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from redline.returns import discounted, gae
from redline.returns.discounted import _scan_columns, _scan_doubling, _scan_rows
from redline.train.loops.reward_scaling import RewardScaler

Scan = Callable[[Tensor, Tensor], Tensor]
SCANS = (_scan_columns, _scan_rows, _scan_doubling)


@pytest.mark.parametrize("scan", SCANS)
def test_nothing_flows_over_the_end_of_an_episode(scan: Scan) -> None:
    """x_t = addend_t + decay_t x_{t+1}; environment 1 ends its episode at t = 1.

    Environment 0, decay 1/2: 3; 2 + 3/2 = 3.5; 1 + 3.5/2 = 2.75.
    Environment 1, the same with decay 0 at t = 1: 300; 20; 10 + 20/2 = 20.
    """
    addend = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 300.0]])
    decay = torch.tensor([[0.5, 0.5], [0.5, 0.0], [0.5, 0.5]])

    assert scan(addend, decay).tolist() == [[2.75, 20.0], [3.5, 20.0], [3.0, 300.0]]


@settings(max_examples=25, deadline=None)
@given(
    length=st.integers(1, 40), num_envs=st.sampled_from((1, 2, 17)), seed=st.integers(0, 2**32 - 1)
)
def test_all_scans_equal_the_recursion(length: int, num_envs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    addend = rng.normal(size=(length, num_envs))
    decay = 0.99 * (rng.random((length, num_envs)) > 0.2)
    expected, running = np.zeros_like(addend), np.zeros(num_envs)
    for t in reversed(range(length)):
        running = addend[t] + decay[t] * running
        expected[t] = running

    for scan in SCANS:
        got = scan(torch.tensor(addend, dtype=torch.float32), torch.tensor(decay).float())
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_the_compiled_scan_of_one_row_is_not_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch refuses an operator whose result is an argument of it; a device doubles no row."""
    monkeypatch.setattr(discounted, "_scan", _scan_doubling)
    addend = torch.tensor([[1.0, 10.0]])
    got = discounted._closed_scan(addend, torch.tensor([[0.5, 0.5]]))
    assert got.tolist() == [[1.0, 10.0]]
    assert got.data_ptr() != addend.data_ptr()


@pytest.mark.parametrize("num_envs", [1, 17])
def test_gae_of_many_environments_is_that_of_each(num_envs: int) -> None:
    """More than 16 environments go another way than one."""
    torch.manual_seed(0)
    shape = (9, num_envs)
    reward, value, bootstrap = torch.randn(shape), torch.randn(shape), torch.randn(shape)
    terminated, truncated = torch.rand(shape) < 0.2, torch.rand(shape) < 0.2
    valid = torch.rand(shape) < 0.9
    parts = (reward, value, bootstrap, terminated, truncated, valid)

    whole = gae(*parts, gamma=0.9, gae_lambda=0.8)

    for b in range(num_envs):
        alone = gae(*(part[:, b : b + 1] for part in parts), gamma=0.9, gae_lambda=0.8)
        for one, many in zip(alone, whole, strict=True):
            torch.testing.assert_close(one[:, 0], many[:, b])


def test_rewards_of_many_environments_are_scaled_as_those_of_each() -> None:
    """More than 16 environments go another way: 1, 1 + 1/2, then 1 anew after the episode's end."""
    reward = np.ones((3, 17), np.float32)
    done = np.zeros((3, 17), np.bool_)
    done[1] = True
    valid = np.ones((3, 17), np.bool_)
    valid[2, 5] = False  # a filler row adds nothing

    many = RewardScaler(17, 0.5)._discounted(reward, done, valid)

    expected = np.array([[1.0] * 17, [1.5] * 17, [1.0] * 17])
    expected[2, 5] = 0.0
    np.testing.assert_array_equal(many, expected)
    for b in range(17):
        alone = RewardScaler(1, 0.5)._discounted(*(p[:, b : b + 1] for p in (reward, done, valid)))
        np.testing.assert_array_equal(alone[:, 0], many[:, b])

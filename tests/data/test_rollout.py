"""Rollouts, their minibatches and masked statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from redline.data import (
    Rollout,
    as_tensordict,
    masked_mean,
    masked_mean_std,
)
from redline.errors import ConfigError


def rollout() -> Rollout:
    """T = 3, B = 2; obs nested; the entry at (t, b) is 10 t + b."""
    number = (10.0 * torch.arange(3)[:, None] + torch.arange(2)[None, :]).unsqueeze(-1)
    steps = TensorDict(
        {
            "obs": as_tensordict({"a": number, "b": number.int()}, (3, 2)),
            "reward": number.squeeze(-1),
            "terminated": torch.tensor([[0, 0], [1, 0], [0, 0]], dtype=torch.bool),
            "truncated": torch.tensor([[0, 1], [0, 0], [0, 0]], dtype=torch.bool),
            "valid": torch.tensor([[1, 1], [1, 0], [1, 1]], dtype=torch.bool),
        },
        batch_size=[3, 2],
    )
    return Rollout(
        steps=steps,
        initial_state={"hidden": torch.tensor([[1.0], [2.0]])},
        last_obs={"a": torch.tensor([[30.0], [31.0]])},
        version=4,
    )


def test_sizes_flags_and_count() -> None:
    steps = rollout()
    assert (steps.rollout_length, steps.num_envs, steps.num_valid()) == (3, 2, 5)
    assert steps.done.tolist() == [[False, True], [True, False], [False, False]]


def test_select_envs_keeps_sequences_and_their_states() -> None:
    part = rollout().select_envs(torch.tensor([1]))
    assert part["reward"].tolist() == [[1.0], [11.0], [21.0]]
    assert part["obs"]["b"].squeeze().tolist() == [1, 11, 21]
    assert part.initial_state["hidden"].tolist() == [[2.0]]
    assert part.last_obs["a"].tolist() == [[31.0]]
    assert part.version == 4


def test_flatten_puts_all_rows_side_by_side() -> None:
    flat = rollout().flatten("obs", "reward")
    assert flat["reward"].tolist() == [[0.0, 1.0, 10.0, 11.0, 20.0, 21.0]]
    assert flat["obs"]["a"].shape == (1, 6, 1)
    assert set(flat.steps.keys()) == {"obs", "reward"}


def test_with_columns_leaves_the_rollout_as_it_was() -> None:
    before = rollout()
    after = before.with_columns(advantage=before["reward"] + 1.0, reward=before["reward"] * 0.0)
    assert after["advantage"][2].tolist() == [21.0, 22.0]
    assert after["reward"].sum() == 0.0
    assert "advantage" not in before.steps
    assert before["reward"][2].tolist() == [20.0, 21.0]
    assert after["obs"]["a"] is before["obs"]["a"]  # nothing is copied
    assert (after.version, after.initial_state) == (4, before.initial_state)


def test_minibatches_of_sequences_by_hand() -> None:
    """Environment 1 first, with its own state; no step leaves its place in time."""
    second, first = rollout().minibatches(torch.tensor([1, 0]), 2)
    assert second["reward"].tolist() == [[1.0], [11.0], [21.0]]
    assert second.initial_state["hidden"].tolist() == [[2.0]]
    assert first["obs"]["b"].squeeze().tolist() == [0, 10, 20]
    assert first.initial_state["hidden"].tolist() == [[1.0]]
    assert first["reward"].is_contiguous()


def test_minibatches_of_one_step_keep_the_recurrent_state() -> None:
    whole = rollout()
    whole.steps = whole.steps[:1]
    parts = list(whole.minibatches(torch.tensor([1, 0]), 2))
    assert [part.initial_state["hidden"].item() for part in parts] == [2.0, 1.0]


def test_minibatches_of_rows_by_hand() -> None:
    """Row t * B + b holds 10 t + b, so order [5, 0, 3, 2, 1, 4] gives 21, 0, 11 | 10, 1, 20."""
    flat = rollout().flatten("obs", "reward", "valid")
    parts = list(flat.minibatches(torch.tensor([5, 0, 3, 2, 1, 4]), 2))
    assert [part["reward"].tolist() for part in parts] == [[[21.0, 0.0, 11.0]], [[10.0, 1.0, 20.0]]]
    assert parts[0]["obs"]["b"].squeeze(-1).tolist() == [[21, 0, 11]]
    assert parts[0].valid.tolist() == [[True, True, False]]
    assert (parts[1].rollout_length, parts[1].num_envs, parts[1].version) == (1, 3, 4)


def test_minibatches_of_rows_are_views_of_one_gather() -> None:
    flat = rollout().flatten("reward")
    one, other = flat.minibatches(torch.arange(6), 2)
    assert (
        one["reward"].untyped_storage().data_ptr() == other["reward"].untyped_storage().data_ptr()
    )


@pytest.mark.parametrize("shape", [(3, 5, 5), (1, 4, 4)])
def test_minibatches_keep_the_memory_layout_of_images(shape: tuple[int, ...]) -> None:
    images = torch.rand(8, *shape).to(memory_format=torch.channels_last)
    steps = TensorDict({"obs": images.unsqueeze(0)}, batch_size=[1, 8])
    flat = Rollout(steps=steps, initial_state={}, last_obs={})
    order = torch.randperm(8)
    parts = [part["obs"].squeeze(0) for part in flat.minibatches(order, 4)]
    assert torch.equal(torch.cat(parts), images[order])
    assert all(part.is_contiguous(memory_format=torch.channels_last) for part in parts)


@pytest.mark.parametrize("num_minibatches", [4, 7])
def test_unequal_minibatches_are_refused(num_minibatches: int) -> None:
    flat = rollout().flatten("reward")
    with pytest.raises(ConfigError, match="Use a divisor of 6"):
        list(flat.minibatches(torch.arange(6), num_minibatches))


def test_masked_statistics_by_hand() -> None:
    """1, 3, and a NaN that is not valid: mean 2, standard deviation 1."""
    value = torch.tensor([1.0, float("nan"), 3.0])
    valid = torch.tensor([True, False, True])
    assert masked_mean(value, valid).item() == 2.0
    mean, std = masked_mean_std(value, valid)
    assert (mean.item(), std.item()) == (2.0, 1.0)
    assert masked_mean(value, torch.zeros(3, dtype=torch.bool)).item() == 0.0


@given(st.lists(st.tuples(st.floats(-100, 100, width=32), st.booleans()), min_size=1))
def test_masked_statistics_equal_those_of_the_valid_rows(rows: list[tuple[float, bool]]) -> None:
    value = torch.tensor([v for v, _ in rows], dtype=torch.float64)
    valid = torch.tensor([m for _, m in rows])
    kept = np.array([v for v, m in rows if m])
    mean, std = masked_mean_std(value, valid)
    assert mean.item() == pytest.approx(kept.mean() if len(kept) else 0.0, abs=1e-9)
    assert std.item() == pytest.approx(kept.std() if len(kept) else 0.0, abs=1e-6)


def test_nothing_leaks_through_a_mask_into_the_gradient() -> None:
    """The gradient of an invalid row is exactly 0, also where its value is huge."""
    value = torch.tensor([1.0, 1e30, 3.0], requires_grad=True)
    masked_mean(value, torch.tensor([True, False, True])).backward()
    assert value.grad is not None
    assert value.grad.tolist() == [0.5, 0.0, 0.5]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_bad_row_that_is_not_valid_reaches_no_gradient(bad: float) -> None:
    """Of values 1, bad, 3: d mean = 1/2 each, d std = (v - mean) / (2 std) = -1/2, 0, 1/2."""
    value = torch.tensor([1.0, bad, 3.0], requires_grad=True)
    mean, std = masked_mean_std(value, torch.tensor([True, False, True]))
    (mean + std).backward()
    assert value.grad is not None
    assert value.grad.tolist() == [0.0, 0.0, 1.0]

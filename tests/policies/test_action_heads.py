"""From action spaces to distributions, noise and what environments receive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributions as reference
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from redline.errors import SpaceError, UnknownNameError
from redline.policies import make_action_head

NESTED = spaces.Dict(
    a=spaces.Discrete(3),
    b=spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2))),
    c=spaces.MultiDiscrete([2, 4]),
)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), nvec=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_multi_discrete_equals_one_categorical_per_choice(seed: int, nvec: list[int]) -> None:
    torch.manual_seed(seed)
    head = make_action_head(spaces.MultiDiscrete(nvec))
    outputs = torch.randn(3, sum(nvec))
    got = head.distribution(outputs)
    parts = [reference.Categorical(logits=part) for part in outputs.split(nvec, dim=1)]
    action = torch.stack([part.sample() for part in parts], dim=1)
    expected = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(got.log_prob(action), expected)
    torch.testing.assert_close(got.log_prob(action.to(torch.int8)), expected)
    torch.testing.assert_close(got.entropy(), sum(part.entropy() for part in parts))
    noise = torch.from_numpy(head.draw_noise(np.random.default_rng(seed), 3))
    scores = (outputs + noise).split(nvec, dim=1)
    assert torch.equal(got.sample(noise), torch.stack([s.argmax(1) for s in scores], dim=1))


def test_multi_discrete_masks_are_side_by_side() -> None:
    head = make_action_head(spaces.MultiDiscrete([2, 3]))
    mask = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 1, 1, 1]], dtype=torch.int8)
    got = head.distribution(torch.zeros(2, 5), mask)
    assert got.mode().tolist() == [[1, 0], [0, 0]]
    torch.testing.assert_close(got.entropy(), torch.tensor([0.0, np.log(3)], dtype=torch.float32))


def test_multi_discrete_of_any_shape() -> None:
    head = make_action_head(spaces.MultiDiscrete([[2, 3], [4, 1]]))
    outputs = torch.zeros(1, 10)
    outputs[0, [1, 4, 8]] = 1.0
    assert head.distribution(outputs).mode().tolist() == [[[1, 2], [3, 0]]]


@pytest.mark.parametrize(
    ("space", "law"),
    [
        (spaces.Discrete(2), "gumbel_r"),
        (spaces.MultiDiscrete([2, 2]), "gumbel_r"),
        (spaces.MultiBinary(2), "logistic"),
        (spaces.Box(-1, 1, (2,)), "norm"),
    ],
)
def test_noise_has_its_law(space: Any, law: str) -> None:
    noise = make_action_head(space).draw_noise(np.random.default_rng(3), 20_000)
    assert noise.dtype == np.float32
    for column in noise.T:
        assert stats.kstest(column, law).pvalue > 1e-3
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.03


def test_joint_noise_gives_each_part_its_law() -> None:
    head = make_action_head(NESTED)
    noise = head.draw_noise(np.random.default_rng(4), 20_000)
    assert noise.shape == (20_000, 3 + 2 + 2 + 6)
    for column, law in ((0, "gumbel_r"), (3, "norm"), (5, "logistic"), (7, "gumbel_r")):
        assert stats.kstest(noise[:, column], law).pvalue > 1e-3


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(-1, 1, (2,)), NESTED])
def test_noise_does_not_depend_on_how_many_rows_are_drawn_at_once(space: Any) -> None:
    """Elsewhere sampling depended on the rollout's length or the number of workers."""
    head = make_action_head(space)
    once = head.draw_noise(np.random.default_rng(5), 12)
    rng = np.random.default_rng(5)
    parts = [head.draw_noise(rng, 7), head.draw_noise(rng, 5)]
    assert np.array_equal(once, np.concatenate(parts))


def test_noise_is_finite_at_the_ends_of_the_generator() -> None:
    head = make_action_head(NESTED)

    class Extreme:
        """A generator that gives only its least and its greatest number."""

        def random(self, shape: tuple[int, int]) -> np.ndarray:
            return np.where(np.arange(shape[0]) % 2, 0.0, 1.0 - 2.0**-53)[:, None] * np.ones(shape)

    noise = head.draw_noise(Extreme(), 2)  # type: ignore[arg-type]
    assert np.isfinite(noise).all()


# what the environment receives


def test_gaussian_actions_are_clipped_per_dimension() -> None:
    space = spaces.Box(np.array([-1, -np.inf, 0], np.float32), np.array([1, 2, np.inf], np.float32))
    head = make_action_head(space)
    action = np.array([[-3.0, -9.0, -1.0], [0.5, 5.0, 7.0]], np.float32)
    expected = [[-1.0, -9.0, 0.0], [0.5, 2.0, 7.0]]
    assert head.env_action(action).tolist() == expected
    assert head.env_action(torch.from_numpy(action)).tolist() == expected
    assert action[0, 0] == -3.0


def test_unbounded_actions_pass_unchanged() -> None:
    head = make_action_head(spaces.Box(-np.inf, np.inf, (2,)))
    action = torch.tensor([[1e9, -1e9]])
    assert head.env_action(action) is action
    assert head.env_action(action.numpy()).tolist() == action.tolist()


@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_env_actions_lie_in_the_space(distribution: str, dtype: Any) -> None:
    """A float64 bound such as 0.1 or -0.7 rounded to float32 lies outside the space."""
    space = spaces.Box(np.array([-0.7, -0.1], dtype), np.array([0.1, 0.3], dtype), dtype=dtype)
    head = make_action_head(space, distribution)
    for extreme in (-1e6, 1e6):
        action = head.env_action(np.full((3, 2), extreme, np.float32))
        assert action.dtype == dtype
        assert all(space.contains(row) for row in action)


def test_squashed_actions_are_scaled_per_dimension() -> None:
    """low (-1, 0), high (1, 10): a = (tanh u, 5 + 5 tanh u)."""
    head = make_action_head(
        spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32)), "squashed"
    )
    u = np.array([[0.5, 0.0], [-0.2, 1.0]], np.float32)
    expected = np.stack([np.tanh(u[:, 0]), 5 + 5 * np.tanh(u[:, 1])], axis=1)
    np.testing.assert_allclose(head.env_action(u), expected, rtol=1e-6)
    np.testing.assert_allclose(head.env_action(torch.from_numpy(u)).numpy(), expected, rtol=1e-6)


def test_squashed_log_prob_counts_the_width_of_each_dimension() -> None:
    """The density over (0, 10) is a fifth of that over (-1, 1)."""
    narrow = make_action_head(spaces.Box(-1, 1, (1,)), "squashed")
    wide = make_action_head(spaces.Box(0, 10, (1,)), "squashed")
    outputs, u = torch.tensor([[0.3]]), torch.tensor([[0.8]])
    ratio = narrow.distribution(outputs).log_prob(u) - wide.distribution(outputs).log_prob(u)
    assert ratio.item() == pytest.approx(np.log(5.0), rel=1e-6)


def test_log_prob_is_of_the_action_as_drawn() -> None:
    """Elsewhere the log-probability was of the clipped action, which was never drawn."""
    head = make_action_head(spaces.Box(-1, 1, (1,)))
    got = head.distribution(torch.zeros(1, 1))
    drawn = got.sample(torch.tensor([[3.0]]))
    assert drawn.item() == 3.0
    assert got.log_prob(drawn).item() == pytest.approx(-4.5 - 0.5 * np.log(2 * np.pi))
    assert head.env_action(drawn).item() == 1.0


def test_nested_actions_keep_their_structure() -> None:
    head = make_action_head(NESTED)
    action = head.distribution(torch.zeros(2, head.num_outputs)).sample(None)
    received = head.env_action(action)
    assert set(received) == {"a", "b", "c"}
    assert received["b"]["0"].shape == (2, 2)
    assert received["b"]["1"].dtype == torch.int8


def test_state_dependent_std_comes_from_the_outputs() -> None:
    head = make_action_head(spaces.Box(-1, 1, (1,)), initial_log_std=0.5, state_dependent_std=True)
    assert not list(head.parameters())
    got = head.distribution(torch.tensor([[2.0, -0.5], [2.0, 100.0]]))
    sample = got.sample(torch.ones(2, 1))
    torch.testing.assert_close(sample, torch.tensor([[3.0], [2.0 + float(np.exp(2.0))]]))


def test_initial_log_std_is_a_parameter_per_dimension() -> None:
    (log_std,) = make_action_head(spaces.Box(-1, 1, (2, 2)), initial_log_std=-1.0).parameters()
    assert log_std.tolist() == [-1.0] * 4


@pytest.mark.parametrize(
    ("space", "distribution", "message"),
    [
        (spaces.Text(3), "auto", "Text.*cannot be served"),
        (spaces.Box(0, 5, (2,), np.int32), "auto", "MultiDiscrete"),
        (spaces.Box(-1, 1, (0,)), "auto", "no dimensions"),
        (spaces.Box(-np.inf, np.inf, (2,)), "squashed", "finite bounds"),
        (spaces.Discrete(2), "squashed", "for Box actions"),
        (spaces.Dict(), "auto", "empty"),
        (spaces.Dict(x=spaces.Text(3)), "auto", "cannot be served"),
    ],
)
def test_spaces_that_cannot_be_served_are_refused(
    space: Any, distribution: str, message: str
) -> None:
    with pytest.raises(SpaceError, match=message):
        make_action_head(space, distribution)


def test_an_unknown_distribution_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'gaussian'"):
        make_action_head(spaces.Box(-1, 1, (1,)), "gausian")

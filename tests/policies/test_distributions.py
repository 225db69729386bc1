"""Action distributions against torch.distributions, closed forms and frequencies."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.distributions as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from redline.engines.cpu.distributions import squashed_log_prob as kernel_squashed_log_prob
from redline.policies.distributions import (
    Bernoulli,
    Categorical,
    Gaussian,
    Joint,
    MultiCategorical,
    SquashedGaussian,
    gauss_hermite,
    log_tanh_slope,
)

SEEDS = st.integers(0, 2**31)


def gumbel(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.gumbel(size=shape).astype(np.float32))


def chi_square_p(counts: np.ndarray, probabilities: np.ndarray) -> float:
    expected = counts.sum() * probabilities / probabilities.sum()
    return float(stats.chisquare(counts, expected).pvalue)


# Categorical


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 9), rows=st.integers(1, 5))
def test_categorical_equals_torch(seed: int, n: int, rows: int) -> None:
    torch.manual_seed(seed)
    logits = 5 * torch.randn(rows, n)
    action = torch.randint(n, (rows,))
    expected = reference.Categorical(logits=logits)
    got = Categorical(logits)
    torch.testing.assert_close(got.log_prob(action), expected.log_prob(action))
    torch.testing.assert_close(got.entropy(), expected.entropy())
    assert torch.equal(got.mode(), logits.argmax(-1))


def test_categorical_by_hand() -> None:
    """Logits log(1, 2, 5): probabilities 1/8, 2/8, 5/8."""
    got = Categorical(torch.tensor([[1.0, 2.0, 5.0]]).log())
    assert got.log_prob(torch.tensor([1])).item() == pytest.approx(math.log(0.25))
    p = [0.125, 0.25, 0.625]
    assert got.entropy().item() == pytest.approx(-sum(x * math.log(x) for x in p))
    assert got.sample(None).tolist() == [2]


def test_categorical_frequencies() -> None:
    rng = np.random.default_rng(0)
    probabilities = np.array([0.05, 0.6, 0.1, 0.25])
    got = Categorical(torch.from_numpy(np.log(probabilities).astype(np.float32))[None])
    draws = got.sample(gumbel(rng, 40_000, 4)).numpy()
    assert chi_square_p(np.bincount(draws, minlength=4), probabilities) > 1e-3


def test_the_noise_alone_decides_a_sample() -> None:
    """Elsewhere a global generator made samples depend on what else was batched."""
    rng = np.random.default_rng(0)
    logits, noise = torch.randn(6, 3), gumbel(rng, 6, 3)
    together = Categorical(logits).sample(noise)
    alone = [Categorical(logits[i : i + 1]).sample(noise[i : i + 1]).item() for i in range(6)]
    assert together.tolist() == alone


# masks


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n=st.integers(2, 6))
def test_masked_categorical_equals_one_over_the_allowed(seed: int, n: int) -> None:
    torch.manual_seed(seed)
    logits, mask = torch.randn(1, n), torch.rand(1, n) < 0.5
    mask[0, seed % n] = True
    allowed = mask[0].nonzero().squeeze(1)
    got, expected = Categorical(logits, mask), reference.Categorical(logits=logits[:, allowed])
    torch.testing.assert_close(got.entropy(), expected.entropy())
    for place, action in enumerate(allowed):
        expected_log_prob = expected.log_prob(torch.tensor([place]))
        torch.testing.assert_close(got.log_prob(action[None]), expected_log_prob)


def test_forbidden_choices_never_happen() -> None:
    rng = np.random.default_rng(1)
    logits = torch.tensor([[50.0, 0.0, 1.0, 0.5]])
    mask = torch.tensor([[0, 1, 1, 0]], dtype=torch.int8)
    draws = Categorical(logits, mask).sample(gumbel(rng, 20_000, 4)).numpy()
    counts = np.bincount(draws, minlength=4)
    assert counts[0] == counts[3] == 0
    assert chi_square_p(counts[1:3], np.exp([0.0, 1.0])) > 1e-3
    assert Categorical(logits, mask).mode().tolist() == [2]


def test_a_row_without_choices_gives_no_nan() -> None:
    """Elsewhere a mask was a multiplication or an infinity, and NaN reached every weight."""
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    mask = torch.tensor([[0, 0], [1, 0]], dtype=torch.int8)
    got = Categorical(logits, mask)
    action = got.sample(torch.tensor([[0.5, 3.0], [0.0, 9.0]]))
    loss = got.log_prob(action).sum() + got.entropy().sum()
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    torch.testing.assert_close(got.log_prob(action), torch.tensor([-math.log(2.0), 0.0]))
    assert got.entropy().tolist() == [0.0, 0.0]
    assert action[1] == 0


def multi_categorical(logits: Tensor, mask: Tensor | None) -> MultiCategorical:
    """Choices of 2 and 4."""
    index = torch.tensor([[0, 1, 0, 0], [2, 3, 4, 5]])
    present = torch.tensor([[True, True, False, False], [True] * 4])
    return MultiCategorical(logits, index, present, mask, (2,))


def test_a_component_without_choices_takes_only_choices_that_exist() -> None:
    """The mask forbids both choices of the first component: 1/2 each, entropy 0.

    Elsewhere places beyond its choices had their share too: 1/4, and index 3 was sampled.
    """
    logits = torch.randn(4_000, 6, requires_grad=True)
    mask = torch.tensor([0, 0, 1, 0, 0, 1]).expand(4_000, 6)
    got = multi_categorical(logits, mask)
    action = got.sample(gumbel(np.random.default_rng(3), 4_000, 6))
    assert set(action[:, 0].tolist()) == {0, 1}
    assert set(action[:, 1].tolist()) == {0, 3}
    assert stats.binomtest(int(action[:, 0].sum()), 4_000, 0.5).pvalue > 1e-3
    second = reference.Categorical(logits=logits[:, [2, 5]])
    expected = second.log_prob((action[:, 1] == 3).long())
    torch.testing.assert_close(got.log_prob(action), expected - math.log(2.0))
    torch.testing.assert_close(got.entropy(), second.entropy())
    (got.log_prob(action).sum() + got.entropy().sum()).backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert not logits.grad[:, :2].any()
    assert not logits.grad[:, 3:5].any()


@pytest.mark.parametrize("masked", [False, True])
def test_components_of_different_sizes_equal_torch(masked: bool) -> None:
    torch.manual_seed(0)
    logits, action = torch.randn(5, 6), torch.tensor([[0, 3], [1, 0], [1, 1], [0, 2], [1, 3]])
    parts = [
        reference.Categorical(logits=logits[:, :2]),
        reference.Categorical(logits=logits[:, 2:]),
    ]
    got = multi_categorical(logits, torch.ones(5, 6) if masked else None)
    expected = parts[0].log_prob(action[:, 0]) + parts[1].log_prob(action[:, 1])
    torch.testing.assert_close(got.log_prob(action), expected)
    torch.testing.assert_close(got.entropy(), parts[0].entropy() + parts[1].entropy())


# Bernoulli


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 5))
def test_bernoulli_equals_torch(seed: int, n: int) -> None:
    torch.manual_seed(seed)
    logits, action = 5 * torch.randn(3, n), torch.randint(2, (3, n), dtype=torch.int8)
    expected = reference.Independent(reference.Bernoulli(logits=logits), 1)
    got = Bernoulli(logits, (n,))
    torch.testing.assert_close(got.log_prob(action), expected.log_prob(action.float()))
    torch.testing.assert_close(got.entropy(), expected.entropy())


def test_bernoulli_frequencies_and_shape() -> None:
    rng = np.random.default_rng(2)
    probabilities = np.array([0.1, 0.5, 0.9, 0.7])
    logits = torch.from_numpy(np.log(probabilities / (1 - probabilities)).astype(np.float32))
    noise = torch.from_numpy(rng.logistic(size=(20_000, 4)).astype(np.float32))
    draws = Bernoulli(logits.expand(20_000, 4), (2, 2)).sample(noise)
    assert draws.shape == (20_000, 2, 2)
    assert draws.dtype == torch.int8
    ones = draws.flatten(1).to(torch.int64).sum(0).numpy()
    for count, p in zip(ones, probabilities, strict=True):
        assert stats.binomtest(int(count), 20_000, p).pvalue > 1e-3


# Gaussian


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 5), dependent=st.booleans())
def test_gaussian_equals_torch(seed: int, n: int, dependent: bool) -> None:
    torch.manual_seed(seed)
    mean, action = torch.randn(3, n), torch.randn(3, n)
    log_std = torch.randn(3, n) if dependent else torch.randn(n)
    expected = reference.Independent(reference.Normal(mean, log_std.exp().expand(3, n)), 1)
    got = Gaussian(mean, log_std, (n,))
    torch.testing.assert_close(got.log_prob(action), expected.log_prob(action))
    torch.testing.assert_close(got.entropy(), expected.entropy())
    assert got.mode() is mean


def test_gaussian_samples_are_mean_plus_std_times_noise() -> None:
    got = Gaussian(torch.tensor([[1.0, -1.0]]), torch.tensor([2.0, 0.5]).log(), (2,))
    torch.testing.assert_close(got.sample(torch.tensor([[1.0, -4.0]])), torch.tensor([[3.0, -3.0]]))


def test_gaussian_sums_over_dimensions_and_not_over_the_batch() -> None:
    """Elsewhere a statistic was taken over the batch instead of over the actions."""
    got = Gaussian(torch.zeros(4, 2), torch.zeros(2), (2,))
    action = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [1.0, 2.0]])
    expected = -0.5 * torch.tensor([0.0, 1.0, 4.0, 5.0]) - math.log(2 * math.pi)
    torch.testing.assert_close(got.log_prob(action), expected)
    assert got.entropy().shape == (4,)


# squashed Gaussian


def squashed_reference(
    mean: Tensor, log_std: Tensor, log_half_width: Tensor
) -> reference.TransformedDistribution:
    """torch's own, for a center at 0."""
    transforms = [
        reference.TanhTransform(cache_size=1),
        reference.AffineTransform(0.0, log_half_width.exp(), cache_size=1),
    ]
    return reference.TransformedDistribution(reference.Normal(mean, log_std.exp()), transforms)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n=st.integers(1, 4))
def test_squashed_log_prob_equals_torch(seed: int, n: int) -> None:
    torch.manual_seed(seed)
    mean, log_std = torch.randn(3, n, dtype=torch.float64), torch.randn(n, dtype=torch.float64)
    log_half_width = torch.randn(n, dtype=torch.float64)
    u = mean + torch.randn(3, n)
    a = log_half_width.exp() * torch.tanh(u)
    expected = squashed_reference(mean, log_std, log_half_width).log_prob(a).sum(1)
    got = SquashedGaussian(mean, log_std, log_half_width, (n,), gauss_hermite()).log_prob(u)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("u", [-1000.0, -50.0, -10.0, 0.0, 10.0, 50.0, 1000.0])
def test_squashed_log_prob_is_finite_and_right_at_the_bounds(u: float) -> None:
    """Elsewhere log(1 - tanh(u)^2 + 1e-6) was wrong, or infinite, near the bounds.

    log(1 - tanh(u)^2) = -2 * log cosh(u) = 2 * (log 2 - |u| - log(1 + exp(-2 |u|))).
    """
    exact = 2 * (math.log(2) - abs(u) - math.log1p(math.exp(-2 * abs(u))))
    x = torch.tensor([[u]], requires_grad=True)
    assert log_tanh_slope(x).item() == pytest.approx(exact, rel=1e-6, abs=1e-6)
    got = SquashedGaussian(x, torch.zeros(1), torch.zeros(1), (1,), gauss_hermite())
    total = got.log_prob(x.detach()).sum()
    total.backward()
    assert total.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - exact, rel=1e-6)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("u", [-1000.0, -50.0, -10.0, 0.0, 10.0, 50.0, 1000.0])
def test_the_kernel_s_squashed_log_prob_is_right_at_the_bounds(u: float) -> None:
    """As above, with noise 2 and log_std -1: log N(2) + 1 - log(1 - tanh(u)^2)."""
    exact = 2 * (math.log(2) - abs(u) - math.log1p(math.exp(-2 * abs(u))))
    noise, log_std = np.full((1, 1), 2.0, np.float32), np.full((1, 1), -1.0, np.float32)

    got = kernel_squashed_log_prob(noise, log_std, np.full((1, 1), u, np.float32))

    normal = -0.5 * 2.0**2 - 0.5 * math.log(2 * math.pi) + 1.0
    assert got.item() == pytest.approx(normal - exact, rel=1e-6, abs=1e-5)


def test_squashed_density_integrates_to_one_over_the_bounds() -> None:
    """Over a in (-3, 3): the integral of exp(log p(a)) da is 1."""
    a = torch.linspace(-2.9999, 2.9999, 2001, dtype=torch.float64)
    mean, log_std = torch.full((2001, 1), 0.4, dtype=torch.float64), torch.tensor([-0.3])
    got = SquashedGaussian(mean, log_std, torch.tensor([3.0]).log(), (1,), gauss_hermite())
    density = got.log_prob(torch.atanh(a / 3).unsqueeze(1)).exp()
    assert torch.trapezoid(density, a).item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize(
    ("std", "tolerance"), [(0.05, 1e-3), (1.0, 1e-3), (2.0, 1e-3), (5.0, 3e-2)]
)
def test_squashed_entropy_equals_numerical_integration(std: float, tolerance: float) -> None:
    for mean in (0.0, 0.7, 3.0):

        def integrand(u: float, mean: float = mean) -> float:
            slope = 2 * (math.log(2) - u - np.logaddexp(0, -2 * u))
            return slope * stats.norm.pdf(u, mean, std)

        slope, _ = integrate.quad(integrand, mean - 12 * std, mean + 12 * std, limit=500)
        expected = slope + math.log(std) + 0.5 * math.log(2 * math.pi * math.e) + math.log(2.5)
        got = SquashedGaussian(
            torch.tensor([[mean]]),
            torch.tensor([std]).log(),
            torch.tensor([2.5]).log(),
            (1,),
            gauss_hermite(),
        )
        assert got.entropy().item() == pytest.approx(expected, abs=tolerance)


def test_squashed_entropy_has_a_gradient_that_keeps_std_from_growing() -> None:
    """Of a wide u, most mass lies at the bounds: widening it further lowers the entropy."""
    log_std = torch.tensor([2.0]).log().requires_grad_()
    SquashedGaussian(
        torch.zeros(1, 1), log_std, torch.zeros(1), (1,), gauss_hermite()
    ).entropy().backward()
    assert log_std.grad is not None
    assert log_std.grad.item() < 0


# joint


def test_joint_sums_its_parts() -> None:
    parts = {
        "move": Categorical(torch.zeros(2, 4)),
        "push": Gaussian(torch.zeros(2, 1), torch.zeros(1), (1,)),
    }
    joint = Joint(parts, [4, 1])
    noise = torch.tensor([[0.0, 3, 0, 0, 2.0], [0, 0, 0, 1, -1]])
    action = joint.sample(noise)
    assert action["move"].tolist() == [1, 3]
    assert action["push"].tolist() == [[2.0], [-1.0]]
    half_log = 0.5 * math.log(2 * math.pi)
    expected = torch.tensor([-math.log(4) - half_log - 2, -math.log(4) - half_log - 0.5])
    torch.testing.assert_close(joint.log_prob(action), expected)
    entropy = math.log(4) + half_log + 0.5
    torch.testing.assert_close(joint.entropy(), torch.tensor([entropy, entropy]))
    assert joint.mode()["push"].tolist() == [[0.0], [0.0]]

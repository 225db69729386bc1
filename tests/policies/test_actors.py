"""The actors of DDPG, TD3 and SAC: densities, noise, bounds, conditioning, export."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from redline.errors import ConfigError, SpaceError
from redline.policies import (
    CategoricalActor,
    DeterministicActor,
    SquashedGaussianActor,
    make_actor,
)
from redline.policies.actors import BoxBounds, squashed_log_prob

VECTOR = spaces.Box(-1, 1, (3,))
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
GRID = spaces.Box(-3.0, 5.0, (2, 2))
DISCRETE = spaces.Discrete(4)
KINDS: list[tuple[Any, Any]] = [
    (SquashedGaussianActor, BOX),
    (SquashedGaussianActor, GRID),
    (DeterministicActor, BOX),
    (DeterministicActor, GRID),
    (CategoricalActor, DISCRETE),
]
Continuous = SquashedGaussianActor | DeterministicActor


def made(kind: Any, action_space: Any, space: Any = VECTOR) -> Any:
    torch.manual_seed(0)
    return make_actor(kind, space, action_space, hidden_sizes=(16,))


def drawn(actor: Any, rows: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(actor.draw_noise(np.random.default_rng(seed), rows))


# -- the density ---------------------------------------------------------------------------


def test_log_prob_equals_torch_distributions() -> None:
    """Reference: torch's TransformedDistribution in float64."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    log_std = torch.rand(50, 3, generator=generator, dtype=torch.float64) - 1.0
    noise = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    u = mean + log_std.exp() * noise
    reference = TransformedDistribution(
        Independent(Normal(mean, log_std.exp()), 1), [TanhTransform(cache_size=1)]
    )
    got = squashed_log_prob(noise, log_std, u)
    torch.testing.assert_close(got, reference.log_prob(torch.tanh(u)))


@pytest.mark.parametrize("u", [-20.0, 20.0])
def test_log_prob_is_finite_at_the_bounds_with_its_gradient(u: float) -> None:
    """At |u| = 20 tanh is exactly 1 in float32, where log(1 - a^2) would be -infinity.

    By hand, with mean 0 and standard deviation 1: log N(u) = -200 - log(2 pi) / 2, and
    log(1 - tanh(u)^2) = log(4 e^(-40)) up to e^(-40) = log 4 - 40.
    """
    at = torch.full((1, 1), u, requires_grad=True)
    log_prob = squashed_log_prob(at, torch.zeros(1, 1), at)
    expected = -200.0 - 0.5 * math.log(2 * math.pi) - (math.log(4.0) - 40.0)
    assert log_prob.item() == pytest.approx(expected, rel=1e-6)
    (gradient,) = torch.autograd.grad(log_prob.sum(), at)
    # d/du (-u^2 / 2 + 2 log cosh u) = -u + 2 tanh(u)
    assert gradient.item() == pytest.approx(-u + 2.0 * math.copysign(1.0, u))


def test_the_density_belongs_to_the_squashed_action_and_integrates_to_one() -> None:
    """Reference: the sum over a grid of actions in (-1, 1), each of width 2 / 20,000."""
    action = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    middle = ((action[1:] + action[:-1]) / 2).unsqueeze(1)
    u = torch.atanh(middle)
    log_std = torch.full_like(u, math.log(0.6))
    density = squashed_log_prob((u - 0.3) / 0.6, log_std, u).exp()
    assert (density.sum() * 1e-4).item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("space", [BOX, GRID])
def test_sample_gives_what_acting_gives_with_its_density(space: Any) -> None:
    actor = made(SquashedGaussianActor, space)
    obs, noise = torch.randn(6, 3), drawn(actor, 6)
    action, log_prob = actor.sample(obs, noise)
    assert action.shape == (6, *space.shape)
    assert log_prob.shape == (6,)
    torch.testing.assert_close(action.detach(), actor.act(obs, {}, noise).action)
    log_prob.sum().backward()
    assert all(p.grad is not None for p in actor.parameters())


def test_log_std_is_cut_off() -> None:
    actor = made(SquashedGaussianActor, BOX)
    with torch.no_grad():
        actor.head.bias.copy_(torch.tensor([0.0, 0.0, 50.0, -50.0]))
    log_std = actor.distribution(torch.zeros(1, 3)).log_std
    assert log_std.tolist() == [[2.0, -20.0]]


# -- noise and conditioning ----------------------------------------------------------------


@pytest.mark.parametrize(("kind", "space"), KINDS)
def test_noise_comes_in_rows_of_one_stream(kind: Any, space: Any) -> None:
    actor = made(kind, space)
    rng, other = np.random.default_rng(5), np.random.default_rng(5)
    parts = np.concatenate([actor.draw_noise(rng, 7), actor.draw_noise(rng, 5)])
    whole = actor.draw_noise(other, 12)
    assert whole.dtype == np.float32
    assert whole.shape == (12, actor.noise_size)
    np.testing.assert_array_equal(parts, whole)


@pytest.mark.parametrize(("kind", "space"), KINDS)
def test_an_environments_action_does_not_depend_on_its_neighbours(kind: Any, space: Any) -> None:
    actor = made(kind, space)
    obs, noise = torch.randn(5, 3), drawn(actor, 5)
    random = torch.tensor([True, False, True, False, False])
    together = actor.act(obs, {}, noise, {"random": random}).action
    for i in range(5):
        row = slice(i, i + 1)
        alone = actor.act(obs[row], {}, noise[row], {"random": random[row]}).action
        torch.testing.assert_close(alone, together[row])


@pytest.mark.parametrize(("kind", "space"), KINDS)
def test_greedy_rows_take_no_noise_and_come_before_random_ones(kind: Any, space: Any) -> None:
    actor = made(kind, space)
    obs, noise = torch.randn(64, 3), drawn(actor, 64)
    greedy = torch.arange(64) % 2 == 0
    scale = {"noise_scale": torch.ones(64)} if kind is DeterministicActor else {}
    everywhere = torch.ones(64, dtype=torch.bool)
    plain = actor.act(obs, {}).action
    torch.testing.assert_close(actor.act_greedily(obs, {})[0], plain)
    for conditioning in (
        {"greedy": greedy, **scale},
        {"greedy": greedy, "random": everywhere, **scale},
    ):
        action = actor.act(obs, {}, noise, conditioning).action
        torch.testing.assert_close(action[greedy], plain[greedy])
        assert not torch.equal(action[~greedy], plain[~greedy])


@pytest.mark.parametrize("kind", [SquashedGaussianActor, DeterministicActor])
def test_random_rows_are_uniform_whatever_the_network_says(kind: Any) -> None:
    """Reference: the uniform law's quantiles, to 3 standard errors (0.011) of 20,000 draws."""
    actor = made(kind, BOX)
    with torch.no_grad():
        actor.head.bias.fill_(3.0)
    rows = torch.ones(20_000, dtype=torch.bool)
    action = actor.act(torch.randn(20_000, 3), {}, drawn(actor, 20_000), {"random": rows}).action
    assert action.dtype == torch.float32
    assert action.abs().max() <= 1.0
    for quantile in (0.1, 0.25, 0.5, 0.75, 0.9):
        below = (action < 2 * quantile - 1).float().mean(dim=0)
        torch.testing.assert_close(below, torch.full((2,), quantile), atol=0.011, rtol=0)
    assert abs(torch.corrcoef(action.T)[0, 1].item()) < 0.03


def test_random_choices_are_uniform_over_what_the_mask_allows() -> None:
    """4 choices, one forbidden: 1/3 each to 3 standard errors (0.012) of 15,000 draws."""
    space = spaces.Dict(action_mask=spaces.MultiBinary(4), x=VECTOR)
    actor = made(CategoricalActor, DISCRETE, space)
    with torch.no_grad():
        actor.head.bias.copy_(torch.tensor([5.0, 9.0, 0.0, 0.0]))
    mask = torch.tensor([1, 0, 1, 1], dtype=torch.int8).expand(15_000, 4)
    obs = {"x": torch.randn(15_000, 3), "action_mask": mask}
    rows = torch.ones(15_000, dtype=torch.bool)
    action = actor.act(obs, {}, drawn(actor, 15_000), {"random": rows}).action
    assert action.dtype == torch.int64
    share = torch.bincount(action, minlength=4) / 15_000
    torch.testing.assert_close(share, torch.tensor([1, 0, 1, 1]) / 3, atol=0.012, rtol=0)
    assert set(actor.act(obs, {}).action.tolist()) == {0}
    assert 1 not in actor.act(obs, {}, drawn(actor, 15_000)).action


def test_deterministic_noise_has_the_asked_spread_per_environment_and_stays_inside() -> None:
    """The network answers tanh(0.5) = 0.4621; the noise is 0, 0.1 and 1 per row."""
    actor = made(DeterministicActor, BOX)
    with torch.no_grad():
        actor.head.weight.zero_()
        actor.head.bias.fill_(0.5)
    scale = torch.tensor([0.0, 0.1, 1.0]).repeat(10_000)
    action = actor.act(
        torch.zeros(30_000, 3), {}, drawn(actor, 30_000), {"noise_scale": scale}
    ).action
    none, small, large = (action[i::3] for i in range(3))
    assert none.unique().tolist() == pytest.approx([math.tanh(0.5)])
    assert small.std().item() == pytest.approx(0.1, rel=0.03)
    assert small.mean().item() == pytest.approx(math.tanh(0.5), abs=0.005)
    assert large.max() == 1.0
    assert large.min() == -1.0
    torch.testing.assert_close(actor.act(torch.zeros(3, 3), {}, drawn(actor, 3)).action, none[:3])


@pytest.mark.parametrize(("kind", "space"), KINDS)
def test_unknown_conditioning_is_refused(kind: Any, space: Any) -> None:
    actor = made(kind, space)
    with pytest.raises(ConfigError, match=r"epsilon.*knows greedy"):
        actor.act(torch.zeros(1, 3), {}, drawn(actor, 1), {"epsilon": torch.zeros(1)})


@pytest.mark.parametrize(("kind", "space"), KINDS)
def test_contract_of_a_policy_without_value(kind: Any, space: Any) -> None:
    actor = made(kind, space)
    output = actor.act(torch.zeros(2, 3), actor.initial_state(2), drawn(actor, 2))
    assert (output.extras, output.state) == ({}, {})
    assert (actor.has_value, actor.is_recurrent, actor.extras_spec) == (False, False, {})
    assert actor.stored_action_space.contains(output.action[0].numpy())


# -- bounds --------------------------------------------------------------------------------


def test_env_action_reaches_each_dimensions_own_bounds() -> None:
    """Bounds [-2, 2] and [0, 10]: -1, 0, 1/2 and 1 become (-2, 0), (0, 5), (1, 7.5), (2, 10)."""
    actor = made(DeterministicActor, BOX)
    action = np.array([[-1, -1], [0, 0], [0.5, 0.5], [1, 1]], np.float32)
    expected = np.array([[-2, 0], [0, 5], [1, 7.5], [2, 10]], np.float32)
    scaled = actor.env_action(action)
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, expected)
    tensors = actor.env_action(torch.from_numpy(action))
    assert tensors.dtype == torch.float32
    np.testing.assert_array_equal(tensors.numpy(), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    low=st.floats(-(2.0**100), 2.0**100, width=32),
    high=st.floats(-(2.0**100), 2.0**100, width=32),
    action=st.floats(-1, 1, width=32),
)
@settings(deadline=None, max_examples=60)
def test_env_action_never_leaves_the_space(
    dtype: Any, low: float, high: float, action: float
) -> None:
    low, high = min(low, high), max(low, high)
    space = spaces.Box(np.array([low], dtype), np.array([high], dtype), dtype=dtype)
    bounds = BoxBounds(space)
    for value in (action, -1.0, 1.0):
        array = bounds.scaled(np.array([value], np.float32))
        tensor = bounds.scaled(torch.tensor([value]))
        assert space.contains(array)
        assert space.contains(tensor.numpy())
        exact = low / 2 + high / 2 + value * (high / 2 - low / 2)
        assert array[0] == pytest.approx(exact, rel=1e-5, abs=1e-6 * max(abs(low), abs(high)))


@pytest.mark.parametrize("kind", [SquashedGaussianActor, DeterministicActor])
@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(-1.0, np.inf, (2,)), "infinite bound"),
        (spaces.Discrete(3), "Discrete"),
        (spaces.Box(0, 255, (2,), np.uint8), "uint8"),
        (spaces.Box(-1.0, 1.0, (0,)), "no dimensions"),
    ],
)
def test_spaces_that_cannot_be_scaled_to_are_refused(kind: Any, space: Any, said: str) -> None:
    with pytest.raises(SpaceError, match=said):
        made(kind, space)


def test_a_categorical_actor_refuses_a_box() -> None:
    with pytest.raises(SpaceError, match="SquashedGaussianActor"):
        made(CategoricalActor, BOX)


def test_a_mask_does_not_go_with_a_box() -> None:
    space = spaces.Dict(action_mask=spaces.MultiBinary(2), x=VECTOR)
    with pytest.raises(SpaceError, match="mask"):
        made(SquashedGaussianActor, BOX, space)


# -- networks ------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "space"), KINDS)
def test_nested_observations_and_saving(kind: Any, space: Any) -> None:
    seen = spaces.Dict(camera=spaces.Box(0, 255, (1, 10, 10), np.uint8), x=VECTOR)
    actor, other = made(kind, space, seen), made(kind, space, seen)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    other.load_state_dict(actor.state_dict())
    obs = {"camera": torch.randint(0, 255, (2, 1, 10, 10)).to(torch.uint8), "x": torch.ones(2, 3)}
    torch.testing.assert_close(other.act(obs, {}).action, actor.act(obs, {}).action)


@pytest.mark.parametrize(("kind", "space"), KINDS)
def test_export_module_gives_the_environments_action(kind: Any, space: Any) -> None:
    actor = made(kind, space)
    module = actor.export_module()
    obs = torch.randn(4, 3)
    assert module.input_names == ("obs",)
    assert module.output_names == ("action",)
    expected = actor.env_action(actor.act(obs, {}).action)
    torch.testing.assert_close(module(obs), expected)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(module, (torch.randn(2, 3),), dynamic_shapes=({0: batch},))
    torch.testing.assert_close(program.module()(obs), expected)

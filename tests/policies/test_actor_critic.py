"""The actor-critic: acting, evaluating, saving."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.data import Rollout, map_leaves
from redline.errors import ConfigError
from redline.policies import ActorCritic, make_policy, reset_state, resets
from tests.policies.rollouts import act_out, sampled

VECTOR = spaces.Box(-1, 1, (3,))
IMAGE = spaces.Box(0, 1, (2, 10, 10), np.uint8)
NESTED = spaces.Dict(
    x=VECTOR, pair=spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiDiscrete([2, 3])))
)
ACTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "discrete": (spaces.Discrete(4), {}),
    "multi_discrete": (spaces.MultiDiscrete([2, 4, 3]), {}),
    "multi_binary": (spaces.MultiBinary(3), {}),
    "gaussian": (spaces.Box(-0.5, 0.5, (2,)), {}),
    "gaussian_scalar": (spaces.Box(-0.5, 0.5, ()), {"state_dependent_std": True}),
    "squashed": (spaces.Box(-2, 5, (2, 2)), {"distribution": "squashed"}),
    "nested": (
        spaces.Dict(a=spaces.Discrete(2), b=spaces.Tuple((spaces.Box(-1, 1, (2,)),) * 2)),
        {},
    ),
}


def assert_evaluation_equals_acting(policy: ActorCritic, rollout: Rollout) -> None:
    with torch.no_grad():
        output = policy.evaluate_rollout(rollout)
    valid = rollout.valid
    for got, acted in ((output.log_prob, rollout["log_prob"]), (output.value, rollout["value"])):
        assert got.shape == valid.shape
        torch.testing.assert_close(got[valid], acted[valid], rtol=1e-5, atol=1e-5)
        assert torch.isfinite(got).all()
    assert output.entropy.shape == valid.shape
    assert torch.isfinite(output.entropy).all()


def larger_heads(policy: ActorCritic) -> ActorCritic:
    """Make actions depend on the state, and the state on the past of zero observations.

    The initial policy head is nearly zero, and without biases zero in gives zero out.
    """
    with torch.no_grad():
        policy.policy_head.weight.mul_(100)
        for parameter in policy.parameters():
            if parameter.dim() == 1:
                parameter.normal_(0.0, 0.3)
    return policy


@pytest.mark.parametrize(
    ("action", "core"), [*product(ACTIONS, ("none", "lstm", "gru", "transformer"))]
)
def test_evaluation_equals_acting_for_every_action_space(action: str, core: str) -> None:
    """Episode ends, filler rows and a state that is not zero at t = 0 all occur."""
    torch.manual_seed(0)
    action_space, options = ACTIONS[action]
    policy = larger_heads(make_policy(VECTOR, action_space, core=core, core_size=8, **options))
    rollout = act_out(policy, VECTOR, 12, 5)
    assert rollout.done.any()
    assert not rollout.valid.all()
    assert_evaluation_equals_acting(policy, rollout)


@pytest.mark.parametrize(
    ("space", "encoder", "core", "shared"),
    [
        (IMAGE, "auto", "none", "auto"),
        (IMAGE, "auto", "lstm", "auto"),
        (IMAGE, "impala", "gru", "auto"),
        (IMAGE, "mlp", "none", "auto"),
        (IMAGE, "auto", "none", False),
        (NESTED, "auto", "none", True),
        (NESTED, "auto", "lstm", "auto"),
        (NESTED, "auto", "transformer", "auto"),
        (spaces.Dict(x=VECTOR, camera=IMAGE), "minatar", "gru", "auto"),
        (spaces.Box(0, 255, (36, 40, 3), np.uint8), "nature", "lstm", "auto"),
    ],
)
def test_evaluation_equals_acting_for_every_encoder(
    space: Any, encoder: str, core: str, shared: Any
) -> None:
    torch.manual_seed(0)
    policy = larger_heads(
        make_policy(
            space,
            spaces.Discrete(4),
            encoder=encoder,
            core=core,
            core_size=8,
            shared_encoder=shared,
            normalize_obs=True,
        )
    )
    first = act_out(policy, space, 6, 3)
    assert_evaluation_equals_acting(policy, first)
    policy.update_normalizer(first)
    assert_evaluation_equals_acting(policy, act_out(policy, space, 6, 3))


@pytest.mark.parametrize(
    ("action_space", "mask_size"), [(spaces.Discrete(4), 4), (spaces.MultiDiscrete([2, 3]), 5)]
)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_evaluation_equals_acting_under_masks(action_space: Any, mask_size: int, core: str) -> None:
    """The masks are random, so some rows allow nothing."""
    torch.manual_seed(0)
    space = spaces.Dict(obs=VECTOR, action_mask=spaces.MultiBinary(mask_size))
    policy = larger_heads(make_policy(space, action_space, core=core, core_size=8))
    assert_evaluation_equals_acting(policy, act_out(policy, space, 12, 5))


@pytest.mark.parametrize("core", ["none", "lstm", "transformer"])
def test_any_subset_of_the_environments_evaluates_alike(core: str) -> None:
    torch.manual_seed(0)
    policy = make_policy(VECTOR, spaces.Discrete(4), core=core, core_size=8)
    rollout = act_out(policy, VECTOR, 7, 6)
    index = torch.tensor([4, 1, 5])
    part = Rollout(
        steps=rollout.steps[:, index],
        initial_state={name: leaf[index] for name, leaf in rollout.initial_state.items()},
        last_obs=map_leaves(lambda leaf: leaf[index], rollout.last_obs),
    )
    *whole, whole_state = policy.evaluate_rollout(rollout)
    *own, own_state = policy.evaluate_rollout(part)
    for every, some in zip(whole, own, strict=True):
        torch.testing.assert_close(every[:, index], some)
    for name, leaf in own_state.items():
        torch.testing.assert_close(whole_state[name][index], leaf)


def test_evaluation_resets_after_ends_and_rows_that_are_not_valid() -> None:
    """Elsewhere the state of one episode went on into the next."""
    policy = make_policy(VECTOR, spaces.Discrete(2), core="gru", core_size=4)
    rollout = act_out(policy, VECTOR, 4, 3)
    rollout.steps["terminated"] = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1]]) > 0
    rollout.steps["truncated"] = torch.tensor([[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]) > 0
    rollout.steps["valid"] = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]]) > 0
    expected = torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]]) > 0
    assert torch.equal(resets(rollout), expected)


def test_a_bad_row_does_not_reach_the_next_episode() -> None:
    """Elsewhere masks were multiplications: 0 * NaN is NaN."""
    policy = make_policy(VECTOR, spaces.Discrete(2), core="lstm", core_size=4)
    rollout = act_out(policy, VECTOR, 4, 1)
    rollout.steps["valid"] = torch.tensor([[1], [0], [1], [1]]) > 0
    rollout.steps["obs"][1] = torch.nan
    output = policy.evaluate_rollout(rollout)
    assert torch.isfinite(output.value[2:]).all()
    assert torch.isfinite(output.log_prob[2:]).all()


def test_evaluate_actions_takes_rows_in_any_order() -> None:
    policy = make_policy(NESTED, spaces.Discrete(4))
    rollout = act_out(policy, NESTED, 4, 3)
    order = torch.randperm(12)
    flat = rollout.steps.reshape(12)[order]
    with torch.no_grad():
        rows = policy.evaluate_actions(flat["obs"], flat["action"])
        whole = policy.evaluate_rollout(rollout)
    for row, all_of_it in zip(rows[:3], whole[:3], strict=True):
        torch.testing.assert_close(row, all_of_it.flatten()[order])


def test_evaluate_actions_refuses_a_recurrent_policy() -> None:
    policy = make_policy(VECTOR, spaces.Discrete(4), core="gru")
    with pytest.raises(ConfigError, match="Use evaluate_rollout"):
        policy.evaluate_actions(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("action", ACTIONS)
def test_greedy_and_sampling_environments_mix_in_one_batch(action: str) -> None:
    torch.manual_seed(0)
    action_space, options = ACTIONS[action]
    policy = make_policy(VECTOR, action_space, **options)
    obs = torch.randn(6, 3)
    noise = torch.from_numpy(policy.draw_noise(np.random.default_rng(0), 6))
    greedy = torch.tensor([True, False] * 3)
    mixed = policy.act(obs, {}, noise, {"greedy": greedy}).action
    modes, samples = policy.act(obs, {}).action, policy.act(obs, {}, noise).action

    def check(got: torch.Tensor, mode: torch.Tensor, sample: torch.Tensor) -> None:
        torch.testing.assert_close(got[greedy], mode[greedy])
        torch.testing.assert_close(got[~greedy], sample[~greedy])

    map_leaves(check, mixed, modes, samples)


def test_unknown_conditioning_is_refused() -> None:
    policy = make_policy(VECTOR, spaces.Discrete(4))
    with pytest.raises(ConfigError, match="epsilon"):
        policy.act(torch.zeros(1, 3), {}, None, {"epsilon": torch.zeros(1)})


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_acting_does_not_depend_on_who_else_is_in_the_batch(core: str) -> None:
    """Elsewhere states and samples depended on the number of workers."""
    torch.manual_seed(0)
    policy = make_policy(VECTOR, spaces.Discrete(4), core=core, core_size=8)
    obs = torch.randn(5, 3)
    noise = torch.from_numpy(policy.draw_noise(np.random.default_rng(0), 5))
    state = {name: torch.randn_like(part) for name, part in policy.initial_state(5).items()}
    together = policy.act(obs, state, noise)
    for i in range(5):
        own = {name: part[i : i + 1] for name, part in state.items()}
        alone = policy.act(obs[i : i + 1], own, noise[i : i + 1])
        assert alone.action == together.action[i]  # type: ignore[index]
        for name, part in alone.state.items():
            torch.testing.assert_close(part[0], together.state[name][i])


def test_an_ended_episode_leaves_nothing_behind() -> None:
    """Elsewhere the previous action and reward survived the reset in one collector."""
    policy = make_policy(VECTOR, spaces.Discrete(4), core="lstm", core_size=8)
    obs = torch.randn(2, 3)
    output = policy.act(obs, policy.initial_state(2))
    after = reset_state(output.state, torch.tensor([True, False]))
    fresh = policy.act(obs, policy.initial_state(2))
    again = policy.act(obs, after)
    torch.testing.assert_close(again.extras["value"][0], fresh.extras["value"][0])
    assert again.extras["value"][1] != fresh.extras["value"][1]


def test_value_equals_what_acting_says() -> None:
    for core, shared in (("none", False), ("none", True), ("gru", True)):
        policy = make_policy(VECTOR, spaces.Discrete(4), core=core, shared_encoder=shared)
        obs, state = torch.randn(3, 3), policy.initial_state(3)
        torch.testing.assert_close(policy.value(obs, state), policy.act(obs, state).extras["value"])


def test_acting_leaves_its_arguments_alone() -> None:
    policy = make_policy(NESTED, spaces.Discrete(4), core="lstm", normalize_obs=True)
    policy.update_normalizer(act_out(policy, NESTED, 4, 3))
    obs = sampled(NESTED, np.random.default_rng(0), 3)
    kept = map_leaves(torch.clone, obs)
    state, noise = policy.initial_state(3), torch.zeros(3, 4)
    policy.act(obs, state, noise, {"greedy": torch.ones(3, dtype=torch.bool)})
    map_leaves(lambda got, was: torch.testing.assert_close(got, was), obs, kept)
    assert not any(part.any() for part in state.values())


def test_every_parameter_gets_a_gradient() -> None:
    for core, options in (
        ("none", {}),
        ("lstm", {}),
        ("transformer", {}),
        ("none", {"shared_encoder": True}),
    ):
        policy = make_policy(VECTOR, ACTIONS["nested"][0], core=core, **options)
        output = policy.evaluate_rollout(act_out(policy, VECTOR, 4, 3))
        (output.log_prob.sum() + output.entropy.sum() + output.value.sum()).backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.parameters())


def test_the_initial_policy_is_nearly_uniform() -> None:
    torch.manual_seed(0)
    policy = make_policy(VECTOR, spaces.Discrete(4))
    output = policy.evaluate_actions(torch.randn(50, 3), torch.zeros(50, dtype=torch.int64))
    torch.testing.assert_close(
        output.entropy, torch.full((50,), np.log(4.0)).float(), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize(
    "options",
    [
        {"normalize_obs": True},
        {"core": "lstm", "normalize_obs": True},
        {"distribution": "squashed", "state_dependent_std": True},
    ],
)
def test_a_saved_policy_loads_and_acts_the_same(options: dict[str, Any]) -> None:
    """Elsewhere a policy's own state_dict did not load back."""
    action_space = spaces.Box(-2, 3, (2,))
    torch.manual_seed(0)
    policy = make_policy(VECTOR, action_space, **options)
    policy.update_normalizer(act_out(policy, VECTOR, 9, 4))
    torch.manual_seed(1)
    other = make_policy(VECTOR, action_space, **options)
    obs, state, noise = torch.randn(5, 3), policy.initial_state(5), torch.randn(5, 2)
    expected = policy.act(obs, state, noise)
    assert not torch.equal(other.act(obs, state, noise).extras["value"], expected.extras["value"])
    other.load_state_dict({name: value.clone() for name, value in policy.state_dict().items()})
    got = other.act(obs, state, noise)
    assert torch.equal(got.action, expected.action)  # type: ignore[arg-type]
    for name, extra in expected.extras.items():
        assert torch.equal(got.extras[name], extra)


def test_recurrent_sequences_of_one_step() -> None:
    policy = make_policy(VECTOR, spaces.Discrete(4), core="lstm", core_size=8)
    assert_evaluation_equals_acting(policy, act_out(policy, VECTOR, 1, 3))

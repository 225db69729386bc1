"""Acting on action values: greedy, epsilon-greedy, masked, noisy, recurrent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.errors import ConfigError, SpaceError
from redline.models import ImplicitQuantileHead, ScalarHead, make_core
from redline.policies import QPolicy

VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)


class Identity(nn.Module):
    """Features are the observation."""

    def forward(self, obs: Any) -> Tensor:
        """[N, 4]."""
        return obs if isinstance(obs, Tensor) else obs["x"]


def identity_policy(space: spaces.Space[Any] = VECTOR, **head: Any) -> QPolicy:
    """Four actions whose values are the four numbers of the observation."""
    made = ScalarHead(4, 4, **head)
    with torch.no_grad():
        made.advantage.layers[0].weight.copy_(torch.eye(4))
        made.advantage.layers[0].bias.zero_()
    return QPolicy(space, spaces.Discrete(4), torso=Identity(), head=made)


def masked_space() -> spaces.Dict:
    return spaces.Dict({"x": VECTOR, "action_mask": spaces.MultiBinary(4)})


def test_greedy_action_and_its_extras_by_hand() -> None:
    """Values 1, 3, 2, 0: the best is 1 with 3. Exploring takes action floor(4 u) = 3 with 0."""
    policy = identity_policy()
    obs = torch.tensor([[1.0, 3.0, 2.0, 0.0]]).expand(4, -1)
    noise = torch.tensor([[0.49, 0.9], [0.51, 0.9], [0.0, 0.0], [0.49, 0.9]])
    conditioning = {
        "epsilon": torch.tensor([0.5, 0.5, 0.0, 0.5]),
        "greedy": torch.tensor([False, False, False, True]),
    }
    output = policy.act(obs, {}, noise, conditioning)
    assert output.action.tolist() == [3, 1, 1, 1]
    assert output.action.dtype == torch.int64
    assert output.extras["q_taken"].tolist() == [0.0, 3.0, 3.0, 3.0]
    assert output.extras["q_max"].tolist() == [3.0] * 4
    assert policy.act(obs, {}, None, conditioning).action.tolist() == [1] * 4
    assert policy.act(obs, {}, noise).action.tolist() == [1] * 4
    assert policy.act_greedily(obs, {})[0].tolist() == [1] * 4
    assert not policy.has_value
    assert policy.extras_spec == {"q_taken": (), "q_max": ()}


def test_frequencies_of_epsilon_greedy() -> None:
    """epsilon = 0.4: the best action 0.6 + 0.1, each other 0.1; 40,000 draws, 5 sigma."""
    policy, draws = identity_policy(), 40_000
    noise = torch.from_numpy(policy.draw_noise(np.random.default_rng(0), draws))
    obs = torch.tensor([[0.0, 0.0, 1.0, 0.0]]).expand(draws, -1)
    action = policy.act(obs, {}, noise, {"epsilon": torch.full((draws,), 0.4)}).action
    share = torch.bincount(action, minlength=4) / draws
    for got, expected in zip(share.tolist(), (0.1, 0.1, 0.7, 0.1), strict=True):
        assert abs(got - expected) < 5 * (expected * (1 - expected) / draws) ** 0.5


def test_masked_actions_are_never_taken() -> None:
    """Actions 0 and 2 are allowed; 1 has the highest value. Exploring: one half each."""
    policy, draws = identity_policy(masked_space()), 20_000
    noise = torch.from_numpy(policy.draw_noise(np.random.default_rng(1), draws))
    obs = {
        "x": torch.tensor([[1.0, 9.0, 2.0, 0.0]]).expand(draws, -1),
        "action_mask": torch.tensor([[1, 0, 1, 0]], dtype=torch.int8).expand(draws, -1),
    }
    greedy = policy.act(obs, {})
    assert (greedy.action == 2).all()
    assert (greedy.extras["q_max"] == 2.0).all()
    action = policy.act(obs, {}, noise, {"epsilon": torch.ones(draws)}).action
    share = torch.bincount(action, minlength=4) / draws
    assert share[1] == 0
    assert share[3] == 0
    assert abs(share[0].item() - 0.5) < 5 * 0.5 / draws**0.5


def test_a_mask_that_allows_nothing_gives_finite_values() -> None:
    """As the last observation of an episode may have it: -inf times a discount of 0 is NaN."""
    policy = identity_policy(masked_space())
    obs = {"x": torch.ones(1, 4), "action_mask": torch.zeros(1, 4, dtype=torch.int8)}
    output = policy.act(obs, {}, torch.zeros(1, 2), {"epsilon": torch.ones(1)})
    assert output.extras["q_max"].isfinite().all()
    assert 0 <= output.action.item() < 4


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2.0**-24])
@pytest.mark.parametrize("masked", [False, True])
def test_the_ends_of_the_noise_give_actions_that_are_there(uniform: float, masked: bool) -> None:
    policy = identity_policy(masked_space() if masked else VECTOR)
    x = torch.zeros(1, 4)
    mask = torch.tensor([[0, 1, 1, 0]], dtype=torch.int8)
    noise = torch.tensor([[0.0, uniform]])
    action = policy.act(
        {"x": x, "action_mask": mask} if masked else x, {}, noise, {"epsilon": torch.ones(1)}
    ).action.item()
    expected = (1, 2) if masked else (0, 3)
    assert action == expected[uniform > 0]


def test_noise_is_the_same_in_pieces() -> None:
    policy = identity_policy()
    whole = policy.draw_noise(np.random.default_rng(5), 12)
    rng = np.random.default_rng(5)
    pieces = np.concatenate([policy.draw_noise(rng, 7), policy.draw_noise(rng, 5)])
    assert np.array_equal(whole, pieces)
    assert whole.dtype == np.float32
    assert whole.shape == (12, 2)


def test_unknown_conditioning_is_refused() -> None:
    with pytest.raises(ConfigError, match="temperature"):
        identity_policy().act(torch.zeros(1, 4), {}, None, {"temperature": torch.ones(1)})


def test_noisy_heads_explore_and_greedy_environments_do_not() -> None:
    """Rows act on the present noise, or on the mean weights where greedy; also in one batch."""
    policy = identity_policy(noisy_std=50.0)
    policy.head.resample(torch.Generator().manual_seed(0))
    obs = torch.tensor([[0.0, 1.0, 0.5, 0.2]]).expand(2, -1)
    noise = torch.ones(2, 2) * 0.5
    mean = policy.act(obs, {})
    assert mean.action.tolist() == [1, 1]
    mixed = policy.act(obs, {}, noise, {"greedy": torch.tensor([True, False])})
    assert mixed.action[0] == 1
    assert mixed.extras["q_max"][0] == 1.0
    assert mixed.extras["q_max"][1] != 1.0
    before = policy.act(obs, {}, noise).extras["q_max"]
    assert torch.equal(policy.act(obs, {}, noise).extras["q_max"], before)
    policy.head.resample(torch.Generator().manual_seed(1))
    assert not torch.equal(policy.act(obs, {}, noise).extras["q_max"], before)
    assert policy.act_greedily(obs, {})[0].tolist() == [1, 1]


def test_implicit_quantiles_act_alike_every_time() -> None:
    head = ImplicitQuantileHead(4, 3, num_acting_fractions=8)
    policy = QPolicy(VECTOR, spaces.Discrete(3), torso=Identity(), head=head)
    obs = torch.randn(6, 4)
    first, second = policy.act(obs, {}), policy.act(obs, {})
    assert torch.equal(first.extras["q_max"], second.extras["q_max"])


def test_recurrent_policy_carries_its_state() -> None:
    core = make_core("gru", 4, 5)
    policy = QPolicy(VECTOR, spaces.Discrete(3), torso=Identity(), head=ScalarHead(5, 3), core=core)
    state = policy.initial_state(2)
    obs = torch.randn(2, 4)
    output = policy.act(obs, state)
    expected, _ = core.step(obs, state)
    torch.testing.assert_close(output.state["hidden"], expected.detach())
    assert policy.is_recurrent


def test_export_acts_as_the_policy_does() -> None:
    policy = identity_policy()
    obs = torch.randn(7, 4)
    assert torch.equal(policy.export_module()(obs), policy.act(obs, {}).action)


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(3)],
)
def test_other_action_spaces_are_refused_with_alternatives(space: spaces.Space[Any]) -> None:
    with pytest.raises(SpaceError, match=r"Use (sac, td3 or )?ppo"):
        QPolicy(VECTOR, space, torso=Identity(), head=ScalarHead(4, 2))


def test_a_head_or_mask_of_another_size_is_refused() -> None:
    with pytest.raises(SpaceError, match="values 3 actions"):
        QPolicy(VECTOR, spaces.Discrete(4), torso=Identity(), head=ScalarHead(4, 3))
    space = spaces.Dict({"x": VECTOR, "action_mask": spaces.MultiBinary(3)})
    with pytest.raises(SpaceError, match="mask"):
        identity_policy(space)

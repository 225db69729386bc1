"""make_policy: settings, defaults and refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrizations

from redline.algos.dqn import DQN, DQNConfig
from redline.errors import ConfigError, SpaceError, UnknownNameError
from redline.policies import (
    CategoricalActor,
    DeterministicActor,
    SquashedGaussianActor,
    make_actor,
    make_policy,
)
from redline.previous_inputs import with_previous

VECTOR = spaces.Box(-1, 1, (3,))
IMAGE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
FLIP = spaces.Discrete(2)


class Custom(nn.Module):
    """A user's network without a declared width."""

    def __init__(self, space: spaces.Space[Any], width: int = 7) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.dense = nn.Linear(3, width)

    def forward(self, obs: Tensor) -> Tensor:
        """[N, 3] -> [N, width]."""
        return self.dense(self.norm(obs))


def test_vectors_get_two_torsos_and_images_share_one() -> None:
    assert make_policy(VECTOR, FLIP).critic_torso is not None
    assert make_policy(IMAGE, FLIP).critic_torso is None
    assert make_policy(VECTOR, FLIP, core="lstm").critic_torso is None
    assert make_policy(VECTOR, FLIP, shared_encoder=True).critic_torso is None


def test_number_of_parameters_by_hand() -> None:
    """Two torsos 3-64-64, heads of 2 and 1: 2 * (256 + 4160) + 130 + 65."""
    assert sum(p.numel() for p in make_policy(VECTOR, FLIP).parameters()) == 9027


def test_a_critic_with_widths_of_its_own_by_hand() -> None:
    """3 -> 8 -> 2 logits for the policy: 32 + 18; 3 -> 16 -> 3 -> 1 for the value: 64 + 51 + 4."""
    policy = make_policy(VECTOR, FLIP, hidden_sizes=(8,), critic_hidden_sizes=(16, 3))
    assert sum(p.numel() for p in policy.parameters()) == 32 + 18 + 64 + 51 + 4
    assert policy.value_head.in_features == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"shared_encoder": True}, "Give shared_encoder=False"), ({"core": "gru"}, "Without a core")],
)
def test_a_shared_torso_has_no_widths_of_the_critic(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=rf"critic_hidden_sizes=\(16,\) are .* {said}"):
        make_policy(VECTOR, FLIP, critic_hidden_sizes=(16,), **settings)


def test_image_policies_end_in_the_networks_own_layer() -> None:
    policy = make_policy(IMAGE, FLIP)
    assert policy.policy_head.in_features == 512
    assert sum(p.numel() for p in policy.parameters()) == 1_684_128 + 513 * 3


def test_the_same_seed_gives_the_same_weights() -> None:
    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return [p.detach() for p in make_policy(VECTOR, FLIP, core="gru").parameters()]

    first, again, other = weights(3), weights(3), weights(4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("core", ["none", "gru"])
def test_a_custom_network_is_a_factory(core: str) -> None:
    seen = []

    def factory(space: spaces.Space[Any]) -> nn.Module:
        seen.append(space)
        return Custom(space)

    observation_space = spaces.Dict(obs=VECTOR, action_mask=spaces.MultiBinary(2))

    class FromDict(Custom):
        def forward(self, obs: Any) -> Tensor:
            return super().forward(obs["obs"])

    policy = make_policy(observation_space, FLIP, encoder=lambda space: FromDict(space), core=core)
    obs = {"obs": torch.zeros(4, 3), "action_mask": torch.ones(4, 2)}
    assert policy.act(obs, policy.initial_state(4)).extras["value"].shape == (4,)

    policy = make_policy(VECTOR, FLIP, encoder=factory, core=core)
    assert seen == [VECTOR]
    if core == "none":
        assert policy.policy_head.in_features == 7


def test_the_dry_run_leaves_a_custom_network_as_it_was() -> None:
    """Its zeros must not reach running statistics, nor change the mode."""
    policy = make_policy(VECTOR, FLIP, encoder=Custom)
    assert isinstance(policy.torso, Custom)
    assert policy.torso.training
    assert policy.torso.norm.num_batches_tracked == 0


def test_the_dry_run_keeps_the_mode_of_every_part() -> None:
    """A user's frozen backbone stays in evaluation mode although the whole is training."""

    def factory(space: spaces.Space[Any]) -> nn.Module:
        network = Custom(space)
        network.norm.eval()
        return network

    torso = make_policy(VECTOR, FLIP, encoder=factory).torso
    assert isinstance(torso, Custom)
    assert (torso.training, torso.dense.training, torso.norm.training) == (True, True, False)


def test_the_dry_run_draws_nothing() -> None:
    """The heads' first weights are those that a network of known width would leave."""

    class Noisy(nn.Module):
        def forward(self, obs: Tensor) -> Tensor:
            return obs + torch.randn_like(obs)

    torch.manual_seed(0)
    noisy = make_policy(VECTOR, FLIP, encoder=lambda _: Noisy())
    torch.manual_seed(0)
    plain = make_policy(VECTOR, FLIP, encoder=lambda _: nn.Identity())
    assert torch.equal(noisy.policy_head.weight, plain.policy_head.weight)


class Declared(nn.Identity):
    """Declares a width that it does not have."""

    out_features = 5


class MadeWhenCalled(nn.Module):
    """Makes its layer in the first call, and declares its width."""

    out_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.dense: nn.Linear | None = None

    def forward(self, obs: Tensor) -> Tensor:
        """[N, F] -> [N, 6]."""
        if self.dense is None:
            self.dense = nn.Linear(obs.shape[1], 6)
        return self.dense(obs)


class Tied(nn.Module):
    """The same layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(3, 3)

    def forward(self, obs: Tensor) -> Tensor:
        """[N, 3] -> [N, 3]."""
        return self.second(self.first(obs).tanh())


def frozen() -> nn.Module:
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 6))
    network[0].requires_grad_(False)
    return network


CUSTOM: dict[str, Callable[[], nn.Module]] = {
    "lazy": lambda: nn.Sequential(nn.LazyLinear(5), nn.LazyBatchNorm1d(), nn.LazyLinear(6)),
    "made when called": MadeWhenCalled,
    "tied": Tied,
    "frozen": frozen,
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(3, 6)),
    "spectral norm by hook": lambda: nn.utils.spectral_norm(nn.Linear(3, 6)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(3, 6)),
    "dropout": lambda: nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.5)),
}


@pytest.mark.parametrize("name", CUSTOM)
@pytest.mark.parametrize("shared", [True, False])
def test_a_custom_network_is_complete_before_it_acts(name: str, shared: bool) -> None:
    policy = make_policy(VECTOR, FLIP, encoder=lambda _: CUSTOM[name](), shared_encoder=shared)
    assert not any(is_lazy(tensor) for tensor in policy.parameters())
    before = {id(parameter) for parameter in policy.parameters()}
    assert all(
        torch.equal(tensor, other)
        for tensor, other in zip(
            policy.state_dict().values(), copy.deepcopy(policy).state_dict().values(), strict=True
        )
    )
    output = policy.evaluate_actions(torch.randn(8, 3), torch.randint(2, (8,)))
    (output.log_prob.sum() + output.value.sum()).backward()
    assert {id(parameter) for parameter in policy.parameters()} == before
    for parameter in policy.parameters():
        assert (parameter.grad is not None) == parameter.requires_grad


@pytest.mark.parametrize("name", CUSTOM)
@pytest.mark.parametrize("kind", [SquashedGaussianActor, DeterministicActor])
def test_a_custom_network_is_complete_in_an_actor(name: str, kind: Any) -> None:
    actor = make_actor(kind, VECTOR, VECTOR, encoder=lambda _: CUSTOM[name]())
    assert not any(is_lazy(tensor) for tensor in actor.parameters())
    before = {id(parameter) for parameter in actor.parameters()}
    actor.outputs(torch.randn(8, 3)).sum().backward()
    assert {id(parameter) for parameter in actor.parameters()} == before


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"encoder": "natture"}, UnknownNameError, "Did you mean 'nature'"),
        ({"encoder": "nature"}, SpaceError, "needs an image"),
        ({"core": "rnn"}, UnknownNameError, "none, lstm, gru"),
        ({"core": "lstm", "shared_encoder": False}, ConfigError, "shared_encoder=False"),
        ({"core": "lstm", "core_size": 0}, ConfigError, "size 0"),
        ({"activation": "swish"}, UnknownNameError, "swish"),
        ({"hidden_sizes": (64, -1)}, ConfigError, "-1"),
        ({"distribution": "squashed"}, SpaceError, "for Box actions"),
        ({"encoder": lambda _: 3}, ConfigError, "not a torch.nn.Module"),
        ({"encoder": lambda _: nn.Unflatten(1, (3, 1))}, ConfigError, r"\(2, 3, 1\)"),
        ({"encoder": lambda _: Declared()}, ConfigError, "declares out_features=5, but gives 3"),
    ],
)
def test_bad_settings_are_refused(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_policy(VECTOR, FLIP, **settings)


def test_previous_actions_need_a_core_and_go_around_custom_encoders() -> None:
    """The factory is given the environment's own space; its 3 features are joined by 2 + 1."""
    space = with_previous(spaces.Box(-1.0, 1.0, (5,), np.float32), spaces.Discrete(2))
    seen = []

    def factory(given: spaces.Space[Any]) -> nn.Module:
        seen.append(given)
        return nn.Linear(5, 3)

    policy = make_policy(space, spaces.Discrete(2), encoder=factory, core="gru", core_size=4)
    assert seen == [spaces.Box(-1.0, 1.0, (5,), np.float32)]
    assert policy.core.in_features == 3 + 2 + 1
    for make in (
        lambda: make_policy(space, spaces.Discrete(2)),
        lambda: make_actor(CategoricalActor, space, spaces.Discrete(2)),
        lambda: DQN.make_policy(space, spaces.Discrete(2), DQNConfig()),
    ):
        with pytest.raises(ConfigError, match=r"observe_previous=True.*no core.*core='lstm'"):
            make()


def test_previous_actions_join_an_image_behind_its_convolutions() -> None:
    """As in R2D2: 512 convolutional features, 6 actions and a reward go into the LSTM."""
    space = with_previous(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6))
    policy = make_policy(space, spaces.Discrete(6), core="lstm", core_size=4)
    assert policy.core.in_features == 512 + 6 + 1

"""make_policy: settings, defaults and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from redline.errors import ConfigError, SpaceError, UnknownNameError
from redline.policies import make_policy

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


def test_a_declared_width_needs_no_dry_run() -> None:
    class Declared(nn.Module):
        out_features = 5

        def forward(self, obs: Tensor) -> Tensor:
            raise AssertionError("not called while building")

    assert make_policy(VECTOR, FLIP, encoder=lambda _: Declared()).policy_head.in_features == 5


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
    ],
)
def test_bad_settings_are_refused(
    settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_policy(VECTOR, FLIP, **settings)

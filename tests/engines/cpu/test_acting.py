"""Acting for one environment in numpy against `Policy.act`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.algos.dqn import DQN, DQNConfig
from redline.engines.cpu import actor_for
from redline.policies import DeterministicActor, SquashedGaussianActor, make_actor, make_policy
from redline.policies.policy import Policy

VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
BOX = spaces.Box(-2.0, 3.0, (2, 2), np.float32)


def q_policy(**settings: Any) -> Policy:
    return DQN.make_policy(VECTOR, spaces.Discrete(3), DQNConfig(**settings), hidden_sizes=(8, 8))


def normalized_policy() -> Policy:
    policy = make_policy(VECTOR, BOX, normalize_obs=True)
    rows = torch.randn(1, 40, 5) * 3.0 + 1.0
    policy.normalizer.update(rows, torch.ones(1, 40, dtype=torch.bool))
    return policy


POLICIES = {
    "squashed": lambda: make_actor(SquashedGaussianActor, VECTOR, BOX, hidden_sizes=(8, 8)),
    "deterministic": lambda: make_actor(DeterministicActor, VECTOR, BOX, activation="tanh"),
    "q": q_policy,
    "gaussian": lambda: make_policy(VECTOR, BOX, initial_log_std=-0.5),
    "normalized": normalized_policy,
    "categorical": lambda: make_policy(VECTOR, spaces.Discrete(4)),
}
CONDITIONS: dict[str, list[dict[str, Any]]] = {
    "squashed": [{}, {"random": True}, {"random": False}],
    "deterministic": [{}, {"random": True, "noise_scale": 0.5}, {"noise_scale": 0.7}],
    "q": [{}, {"epsilon": 0.0}, {"epsilon": 1.0}, {"epsilon": 0.4}],
}


@pytest.mark.parametrize("name", list(POLICIES))
def test_acts_as_the_policy_does(name: str) -> None:
    torch.manual_seed(3)
    policy = POLICIES[name]()
    single = actor_for(policy, 1, 8)
    assert single is not None
    assert single.is_rowwise
    rng = np.random.default_rng(1)
    for conditions in CONDITIONS.get(name, [{}]):
        conditioning = {key: torch.tensor([value]) for key, value in conditions.items()}
        assert single.serves(conditioning)
        obs = rng.normal(size=(20, 1, 5)).astype(np.float32)
        noise = policy.draw_noise(rng, 20)[:, None]
        single.begin(conditioning, noise)
        wanted = [
            policy.act(torch.from_numpy(o), {}, torch.from_numpy(n), conditioning or None)
            for o, n in zip(obs, noise, strict=True)
        ]
        first = wanted[0].action.numpy()
        action = np.zeros((20, *first.shape), first.dtype)
        extras = {key: np.zeros((20, 1), np.float32) for key in policy.extras_spec}
        for t in range(20):
            single.act(t, obs[t], action[t])
        single.end(obs, action, extras)
        for t, output in enumerate(wanted):
            np.testing.assert_allclose(action[t], output.action.numpy(), rtol=1e-5, atol=1e-6)
            for key, value in output.extras.items():
                np.testing.assert_allclose(extras[key][t], value.numpy(), rtol=1e-4, atol=1e-5)


def test_sees_the_parameters_change() -> None:
    """It reads the policy's own memory: an update is seen at once."""
    policy = q_policy()
    single = actor_for(policy, 1, 8)
    assert single is not None
    single.begin(None, np.ones((1, 1, 2), np.float32))
    extras = {name: np.zeros((1, 1), np.float32) for name in ("q_taken", "q_max")}
    obs, action = np.ones((1, 1, 5), np.float32), np.zeros((1, 1), np.int64)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.zero_()
        policy.head.advantage.layers[-1].bias.copy_(torch.tensor([0.0, 7.0, 1.0]))
    single.act(0, obs[0], action[0])
    single.end(obs, action, extras)
    assert action.tolist() == [[1]]
    assert extras["q_max"].tolist() == extras["q_taken"].tolist() == [[7.0]]


@pytest.mark.parametrize(
    "policy",
    [
        make_policy(VECTOR, BOX, core="lstm"),
        make_policy(VECTOR, BOX, distribution="squashed"),
        make_policy(VECTOR, BOX, shared_encoder=True),
        make_policy(VECTOR, BOX, activation="silu"),
        make_policy(spaces.Dict({"a": VECTOR}), BOX),
        make_policy(spaces.Box(0, 255, (4,), np.uint8), BOX),
        q_policy(dueling=True),
        q_policy(noisy=True),
        q_policy(value_distribution="categorical"),
        q_policy(head_hidden_sizes=(4,)),
    ],
)
def test_other_policies_act_for_themselves(policy: Policy) -> None:
    assert actor_for(policy, 1, 8) is None


class Doubled(SquashedGaussianActor):
    def act(self, *args: Any, **kwargs: Any) -> Any:
        return super().act(*args, **kwargs)


def test_changed_policies_act_for_themselves() -> None:
    own = make_policy(VECTOR, BOX)
    own.act = own.act  # type: ignore[method-assign]
    hooked = make_policy(VECTOR, BOX)
    hooked.torso.register_forward_hook(lambda *_: None)
    for policy in (own, hooked, make_actor(Doubled, VECTOR, BOX)):
        assert actor_for(policy, 1, 8) is None
    assert actor_for(make_policy(VECTOR, BOX), 2, 8) is None


def test_conditioning_that_is_not_known_is_left_to_the_policy() -> None:
    single = actor_for(q_policy(), 1, 8)
    assert single is not None
    assert not single.serves({"greedy": torch.ones(1, dtype=torch.bool)})

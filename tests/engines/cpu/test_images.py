"""Updates and acting on images: what is written, with other kernels below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from redline.algos.a2c import A2C, A2CConfig
from redline.algos.dqn import DQN, DQNConfig
from redline.algos.ppo import PPO, PPOConfig
from redline.algos.sac import SAC, SACConfig
from redline.data import Rollout
from redline.engines.cpu import actor_for, convolution, images, update_for
from redline.models import NatureCNN
from redline.policies import make_policy
from tests.engines.cpu.test_updates import assert_same_state

OBS = spaces.Box(0, 255, (4, 40, 52), np.uint8)
CHOICE = spaces.Discrete(3)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
T, B = 4, 2

needs_kernels = pytest.mark.skipif(
    convolution._convolution is None and not convolution.prefers_onednn(),
    reason="built where there is a C compiler",
)
needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)


def pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, (*shape, *OBS.shape), dtype=torch.uint8)


def rollout(seed: int) -> Rollout:
    torch.manual_seed(seed)
    ends = torch.rand(T, B) < 0.2
    steps = {
        "obs": pixels(T, B),
        "action": torch.randint(3, (T, B)),
        "reward": torch.randn(T, B),
        "terminated": ends,
        "truncated": torch.zeros_like(ends),
        "valid": torch.ones_like(ends),
        "bootstrap_value": torch.zeros(T, B),
        "log_prob": torch.full((T, B), -1.1),
        "value": torch.randn(T, B),
    }
    return Rollout(steps=TensorDict(steps, batch_size=[T, B]), initial_state={}, last_obs=pixels(B))


def transitions(seed: int, action: Tensor) -> TensorDict:
    torch.manual_seed(seed)
    rows = len(action)
    return TensorDict(
        {
            "obs": pixels(rows),
            "next_obs": pixels(rows),
            "action": action,
            "reward": torch.randn(rows),
            "discount": torch.full((rows,), 0.9),
            "weight": torch.rand(rows),
        },
        batch_size=[rows],
    )


def discrete(seed: int) -> TensorDict:
    return transitions(seed, torch.randint(3, (4,)))


def ppo() -> PPO:
    settings: Any = {"num_envs": B, "rollout_length": T, "num_epochs": 2, "num_minibatches": 2}
    return PPO(make_policy(OBS, CHOICE), PPOConfig(**settings))


RAINBOW: dict[str, Any] = {
    "dueling": True, "noisy": True, "value_distribution": "categorical",
    "target_update_interval": 2,
}  # fmt: skip
LEARNERS: dict[str, tuple[Callable[[], Any], Callable[[int], Any]]] = {
    "ppo": (ppo, rollout),
    "a2c": (
        lambda: A2C(make_policy(OBS, CHOICE), A2CConfig(num_envs=B, rollout_length=T)),
        rollout,
    ),
    "rainbow": (lambda: DQN.make(OBS, CHOICE, DQNConfig(**RAINBOW), seed=0), discrete),
    "sac": (
        lambda: SAC.make(OBS, BOX, SACConfig(), hidden_sizes=(8,)),
        lambda seed: transitions(seed, torch.rand(4, 2)),
    ),
}


def make(name: str) -> Any:
    torch.manual_seed(3)
    return LEARNERS[name][0]()


@needs_kernels
@pytest.mark.parametrize("name", list(LEARNERS))
def test_updates_equal_the_written_ones_and_take_turns(name: str) -> None:
    eager, other = make(name), make(name)
    update, reason = update_for(other)
    assert update is not None, reason
    attributes = dict(vars(other))
    modules = [type(module) for module in other.policy.modules()]
    for seed in range(3):
        batch = LEARNERS[name][1](seed)
        wanted = eager.update(batch)
        got = (other.update if seed == 1 else update)(batch)
        assert got.keys() == wanted.keys()
        for key, value in wanted.items():
            torch.testing.assert_close(got[key], value, rtol=2e-3, atol=2e-4, msg=key)
    assert_same_state(other, eager, rtol=2e-3, atol=2e-4)
    assert attributes.keys() == vars(other).keys()
    assert all(
        vars(other)[key] is attributes[key] for key in ("policy", "optimizer") if key in attributes
    )
    assert modules == [type(module) for module in other.policy.modules()]


class Own(PPO):
    """An algorithm of somebody's own."""


def changed(change: Callable[[Any], Any]) -> PPO:
    learner = ppo()
    change(learner.policy)
    return learner


@pytest.mark.parametrize(
    ("learner", "sentence"),
    [
        (lambda: Own(ppo().policy, ppo().config), "Own has no update on the CPU's kernels"),
        (
            lambda: changed(lambda p: p.torso.register_forward_hook(lambda *_: None)),
            "policy.torso has a forward hook",
        ),
        (
            lambda: changed(lambda p: p.torso.leaves[0].network.network.append(nn.Dropout())),
            "policy.torso.leaves.0.network.network.10 is Dropout, which the kernels do not know",
        ),
        (
            lambda: changed(lambda p: nn.utils.parametrizations.weight_norm(p.policy_head)),
            "policy.policy_head is ParametrizedLinear, which the kernels do not know",
        ),
    ],
)
def test_what_is_custom_is_refused(learner: Callable[[], Any], sentence: str) -> None:
    assert update_for(learner()) == (None, sentence)


def acted(policy: Any, actor: Any, num_images: int) -> tuple[Any, Any]:
    obs, noise = pixels(num_images), torch.rand(num_images, 3)
    return actor.act(obs, {}, noise), policy.act(obs, {}, noise)


def assert_alike(got: Any, wanted: Any) -> None:
    assert torch.equal(got.action, wanted.action)
    for key, value in wanted.extras.items():
        torch.testing.assert_close(got.extras[key], value, rtol=1e-4, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("num_images", [4, 1, 7])
@pytest.mark.parametrize("large", [True, False])
def test_acting_equals_the_policys(
    num_images: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For as many images as were expected and for others; the dense layer by either library."""
    monkeypatch.setattr(images, "is_large", lambda *shape: large)
    torch.manual_seed(0)
    policy = make_policy(OBS, CHOICE)
    actor = actor_for(policy, 4, 16)
    assert actor is not None
    assert not actor.is_rowwise
    assert actor.serves({"greedy": torch.ones(4, dtype=torch.bool)})
    for _ in range(2):
        actor.begin(None, np.zeros((16, 4, 3), np.float32))
        assert_alike(*acted(policy, actor, num_images))
        with torch.no_grad():  # the next rollout sees weights that have changed since
            for parameter in policy.parameters():
                parameter.mul_(0.5)
    assert not any(isinstance(part, images.PackedNetwork) for part in policy.modules())


@needs_onednn
def test_weights_are_those_of_the_rollouts_beginning() -> None:
    torch.manual_seed(0)
    policy = make_policy(OBS, CHOICE)
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.dim() == 1:
                parameter.normal_()  # zero in the beginning, so they would not be missed
    actor, inputs = actor_for(policy, 4, 16), pixels(4)
    assert actor is not None
    actor.begin(None, np.zeros((16, 4, 3), np.float32))
    (network,) = (part for part in policy.modules() if isinstance(part, NatureCNN))
    (packed,) = (part for part in actor._copy.modules() if isinstance(part, NatureCNN))
    with torch.no_grad():
        before = network(inputs)
        for parameter in network.parameters():
            parameter.mul_(0.5)
        torch.testing.assert_close(packed(inputs), before, rtol=1e-4, atol=1e-4)
        assert (network(inputs) - before).abs().max() > 0.1


def test_where_the_policy_acts_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(OBS, CHOICE)
    assert actor_for(policy, 4, 15) is None
    assert actor_for(make_policy(OBS, CHOICE).double(), 4, 16) is None
    hooked = make_policy(OBS, CHOICE)
    hooked.torso.register_forward_hook(lambda *_: None)
    assert actor_for(hooked, 4, 16) is None
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    assert actor_for(policy, 4, 16) is None

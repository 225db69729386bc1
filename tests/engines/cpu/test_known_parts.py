"""Whatever somebody changed is refused, in one sentence that names it, and is left as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from redline.algos.dqn import DQN, DQNConfig
from redline.algos.ppo import PPO, PPOConfig
from redline.algos.sac import SAC, SACConfig
from redline.engines.cpu import update_for
from redline.policies import SquashedGaussianActor, make_actor, make_policy
from redline.policies.actor_critic import ActorCritic

OBS = spaces.Box(-1.0, 1.0, (4,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Residual(nn.Sequential):
    """A sequence whose own `forward` adds the input."""

    def forward(self, input: Tensor) -> Tensor:
        return input + super().forward(input)


class OtherLoss(PPO):
    """An algorithm of somebody's own."""


class OwnPolicy(ActorCritic):
    """A policy of somebody's own."""


class OwnActor(SquashedGaussianActor):
    """Samples otherwise."""

    def sample(self, obs: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob = super().sample(obs, noise)
        return 0.5 * action, log_prob


class OwnNormalizer(nn.Module):
    def forward(self, obs: Tensor) -> Tensor:
        return obs


def ppo(policy: Any = None, kind: type[PPO] = PPO, **settings: Any) -> PPO:
    defaults: dict[str, Any] = {"hidden_sizes": (8, 8)}
    policy = policy or make_policy(OBS, BOX, **(defaults | settings))
    return kind(policy, PPOConfig(num_envs=4, rollout_length=8))


def sac(**settings: Any) -> SAC:
    return SAC.make(OBS, BOX, SACConfig(**settings), hidden_sizes=(8, 8))


def dqn(**settings: Any) -> DQN:
    return DQN.make(OBS, spaces.Discrete(3), DQNConfig(**settings), seed=0, hidden_sizes=(8,))


def changed(change: Callable[[Any], Any], learner: Any = None) -> Any:
    """A learner after a change of its policy's body."""
    learner = learner or ppo()
    change(learner.policy.torso[1])
    return learner


def residual() -> Any:
    policy = make_policy(OBS, BOX, hidden_sizes=(8, 8))
    policy.torso[1] = nn.Sequential(nn.Linear(4, 8), Residual(nn.Tanh(), nn.Linear(8, 8)))
    return ppo(policy)


def tied() -> Any:
    policy = make_policy(OBS, BOX, hidden_sizes=(8, 8))
    policy.critic_torso[1][2].weight = policy.torso[1][2].weight  # type: ignore[index]
    return ppo(policy)


def same_memory() -> Any:
    policy = make_policy(OBS, BOX, hidden_sizes=(8, 8))
    policy.critic_torso[1][2].weight.data = policy.torso[1][2].weight.data  # type: ignore[index]
    return ppo(policy)


def frozen() -> Any:
    policy = make_policy(OBS, BOX, hidden_sizes=(8, 8))
    policy.torso[1][0].weight.requires_grad_(False)
    return ppo(policy)


def parametrized() -> Any:
    policy = make_policy(OBS, BOX, hidden_sizes=(8, 8))
    nn.utils.parametrizations.spectral_norm(policy.torso[1][0])
    return ppo(policy)


def of_actor(actor: Any) -> Any:
    like = sac()
    return SAC(actor, like.critic, like.config)


def own_policy() -> Any:
    policy = make_policy(OBS, BOX, hidden_sizes=(8, 8))
    policy.__class__ = OwnPolicy
    return ppo(policy)


def own_forward(body: nn.Sequential) -> None:
    body[0].forward = body[0].forward  # type: ignore[method-assign]


def own_method(learner: Any, name: str) -> Any:
    setattr(learner, name, getattr(learner, name))
    return learner


def own_normalizer() -> Any:
    policy = make_policy(OBS, BOX, hidden_sizes=(8, 8))
    policy.normalizer = OwnNormalizer()  # type: ignore[assignment]
    return ppo(policy)


def fewer_parameters() -> Any:
    learner = ppo()
    learner.optimizer.parameters = learner.optimizer.parameters[:-1]
    return learner


def late_hook(parameter: Tensor) -> None:
    parameter.register_post_accumulate_grad_hook(lambda _: None)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "subclass": (lambda: ppo(kind=OtherLoss), "OtherLoss has no update on the CPU's kernels"),
    "own policy": (own_policy, "policy is OwnPolicy, not ActorCritic"),
    "own sample": (
        lambda: of_actor(make_actor(OwnActor, OBS, BOX, hidden_sizes=(8, 8))),
        "policy is OwnActor, not SquashedGaussianActor",
    ),
    "instance's sample": (
        lambda: of_actor(own_method(make_actor(SquashedGaussianActor, OBS, BOX), "sample")),
        "policy.sample is overridden on the instance",
    ),
    "instance's update": (
        lambda: own_method(ppo(), "update"),
        "the algorithm.update is overridden on the instance",
    ),
    "instance's step": (
        lambda: own_method(sac(), "alpha"),
        "the algorithm.alpha is overridden on the instance",
    ),
    "instance's forward": (
        lambda: changed(own_forward),
        "policy.torso.1.0.forward is overridden on the instance",
    ),
    "residual": (residual, "policy.torso.1.1 is Residual, which the kernels do not know"),
    "tied": (tied, "policy.torso.1.2.weight and policy.critic_torso.1.2.weight share one weight"),
    "same memory": (
        same_memory,
        "policy.torso.1.2.weight and policy.critic_torso.1.2.weight share one weight",
    ),
    "frozen": (frozen, "policy.torso.1.0.weight is frozen"),
    "spectral norm": (
        parametrized,
        "policy.torso.1.0 is ParametrizedLinear, which the kernels do not know",
    ),
    "old spectral norm": (
        lambda: changed(lambda body: nn.utils.spectral_norm(body[0])),
        "policy.torso.1.0 has a forward pre-hook",
    ),
    "hook": (
        lambda: changed(lambda body: body[2].register_forward_hook(lambda *_: None)),
        "policy.torso.1.2 has a forward hook",
    ),
    "backward hook": (
        lambda: changed(lambda body: body[2].register_full_backward_hook(lambda *_: None)),
        "policy.torso.1.2 has a backward hook",
    ),
    "gradient hook": (
        lambda: changed(lambda body: body[2].bias.register_hook(lambda grad: grad)),
        "policy.torso.1.2.bias has a gradient hook",
    ),
    "late gradient hook": (
        lambda: changed(lambda body: late_hook(body[2].bias)),
        "policy.torso.1.2.bias has a gradient hook",
    ),
    "dropout": (
        lambda: changed(lambda body: body.append(nn.Dropout(0.1))),
        "policy.torso.1.4 is Dropout, which the kernels do not know",
    ),
    "elu": (
        lambda: ppo(activation="elu"),
        "policy.torso.1.1 is ELU, which the kernels do not know",
    ),
    "layer norm": (
        lambda: changed(lambda body: body.insert(1, nn.LayerNorm(8))),
        "policy.torso.1.1 is LayerNorm, which the kernels do not know",
    ),
    "two activations": (
        lambda: changed(lambda body: body.append(nn.ReLU())),
        "policy.torso is no chain of linear layers with activations between them",
    ),
    "mixed activations": (
        lambda: changed(lambda body: body.__setitem__(1, nn.ReLU())),
        "policy.torso mixes ReLU and Tanh",
    ),
    "own normalizer": (
        own_normalizer,
        "policy.normalizer is OwnNormalizer, which the kernels do not know",
    ),
    "shared": (
        lambda: ppo(shared_encoder=True),
        "policy shares one torso between actor and critic",
    ),
    "recurrent": (lambda: ppo(core="lstm"), "policy has a recurrent core"),
    "squashed": (
        lambda: ppo(distribution="squashed"),
        "policy.action_head is SquashedGaussianHead, not CategoricalHead or GaussianHead",
    ),
    "own std": (
        lambda: ppo(state_dependent_std=True),
        "policy computes its standard deviation from observations",
    ),
    "large": (
        lambda: ppo(hidden_sizes=(700, 700)),
        "32 rows times 490000 weights are too many for numpy, and tanh has no kernel in C",
    ),
    "double": (
        lambda: ppo(make_policy(OBS, BOX, hidden_sizes=(8,)).double()),
        "policy.torso.1.0.weight is torch.float64, not float32",
    ),
    "half an optimizer": (
        fewer_parameters,
        "optimizer does not change each parameter of its network once",
    ),
    "critic's dropout": (lambda: sac(critic_dropout=0.1), "critic uses dropout"),
    "critic's norm": (lambda: sac(critic_layer_norm=True), "critic uses layer normalization"),
    "subset": (
        lambda: sac(num_critics=3, critic_subset=2),
        "the target takes the minimum of a drawn subset of the critics",
    ),
    "distribution": (
        lambda: dqn(value_distribution="quantile"),
        "returns are learned as a quantile distribution",
    ),
    "dueling": (lambda: dqn(dueling=True), "policy.head is dueling"),
    "noisy": (lambda: dqn(noisy=True), "policy.head is noisy"),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the old spectral norm
@pytest.mark.parametrize("case", list(CASES))
def test_what_is_custom_is_refused_by_name(case: str) -> None:
    make, sentence = CASES[case]
    update, reason = update_for(make())
    assert update is None
    assert reason == sentence


def test_hooks_on_all_modules_are_seen() -> None:
    handle = register_module_forward_hook(lambda *_: None)
    try:
        assert update_for(ppo()) == (None, "a hook is registered for all modules")
    finally:
        handle.remove()
    assert update_for(ppo())[0] is not None


def test_a_target_network_that_was_changed_is_refused() -> None:
    learner = sac()
    learner.target.encoder.register_forward_hook(lambda *_: None)
    assert update_for(learner) == (None, "target.encoder has a forward hook")


def test_nothing_is_replaced_in_what_is_served() -> None:
    learner = sac()
    before = copy.copy(vars(learner)), [copy.copy(vars(m)) for m in learner.policy.modules()]
    update, _ = update_for(learner)
    assert update is not None
    after = vars(learner), [vars(module) for module in learner.policy.modules()]
    assert all(before[0][name] is value for name, value in after[0].items())
    for one, other in zip(before[1], after[1], strict=True):
        assert one.keys() == other.keys()
        assert all(one[name] is value for name, value in other.items())


def test_an_own_network_is_the_reason_and_not_that_it_is_shared() -> None:
    """An encoder of one's own is shared by actor and critic, which was given as the reason."""

    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    for own, said in (
        (Mine(), "policy.torso is Mine"),
        (nn.Sequential(nn.Linear(4, 8), nn.Tanh()), "policy.torso is a network of your own"),
    ):
        policy = make_policy(OBS, spaces.Discrete(2), encoder=lambda _, own=own: own)
        update, reason = update_for(PPO(policy, PPOConfig()))
        assert update is None
        assert said in reason
        assert "shares" not in reason

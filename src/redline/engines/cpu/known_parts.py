"""Whether the kernels know every part of an algorithm, and what they need to know of it.

The kernels compute a network from its numbers. They see no `forward`, no hook and no
parametrization, so they may serve only what has none but the library's own. The rule is: every
object on the way is of an *exactly* known type, nothing on an instance covers a method of its
class, no hooks, and each parameter is a plain one that occurs once and that the optimizer changes.
Everything else raises `NotServedError`, whose message is the sentence that the run prints; the
doors in `__init__` catch it.

The answer is taken when a run starts, and again once something is different: `serving` looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from redline.algos.critics import Critic
from redline.algos.optimizers import Adam, RMSprop
from redline.models.ensemble import EnsembleMLP
from redline.models.observation_encoder import FlatLeaf, ObservationEncoder, OneHotLeaf
from redline.models.q_heads import ScalarHead, Stream
from redline.policies.action_heads import CategoricalHead, GaussianHead
from redline.policies.actor_critic import ActorCritic
from redline.policies.actors import BoxBounds, DeterministicActor, SquashedGaussianActor
from redline.policies.normalizer import ObservationNormalizer, RunningMoments
from redline.policies.q_policy import QPolicy

_ACTIVATIONS = (nn.ReLU, nn.Tanh)
_DENSE_PARTS = frozenset(
    (nn.Sequential, nn.ModuleList, nn.ParameterList, nn.Linear, *_ACTIVATIONS)
)  # fmt: skip
_ENCODER_PARTS = frozenset((ObservationEncoder, FlatLeaf, OneHotLeaf))
_POLICIES = (ActorCritic, QPolicy, SquashedGaussianActor, DeterministicActor)
_OTHER_PARTS = frozenset(
    (
        *_POLICIES,
        Critic,
        EnsembleMLP,
        ScalarHead,
        Stream,
        CategoricalHead,
        GaussianHead,
        BoxBounds,
        ObservationNormalizer,
        RunningMoments,
    )
)
VECTOR_PARTS = _DENSE_PARTS | _ENCODER_PARTS | _OTHER_PARTS

_HOOKS = {
    "_forward_hooks": "a forward hook",
    "_forward_pre_hooks": "a forward pre-hook",
    "_backward_hooks": "a backward hook",
    "_backward_pre_hooks": "a backward pre-hook",
}


class NotServedError(Exception):
    """The kernels do not serve this; the message says what is custom, or why."""


@dataclass(frozen=True, slots=True)
class DenseLayer:
    """One layer y = x W + b of a network.

    Attributes:
        weight: [in, out] view of the parameter's memory.
        bias: [out] view likewise.
        weight_parameter: whose gradient is wanted.
        bias_parameter: likewise.
        member: which member of an ensemble's parameters [E, ...] the views show; None: they are
            those of an `nn.Linear`, whose weight is [out, in].
    """

    weight: Tensor
    bias: Tensor
    weight_parameter: Tensor
    bias_parameter: Tensor
    member: int | None = None


@dataclass(frozen=True, slots=True)
class DenseChain:
    """Dense layers with one kind of activation between them.

    Attributes:
        layers: from the input to the output.
        is_tanh: whether the activation is tanh; else ReLU.
        activates_output: whether the last layer is followed by it too.
    """

    layers: tuple[DenseLayer, ...]
    is_tanh: bool
    activates_output: bool


@dataclass(frozen=True, slots=True)
class KnownActor:
    """A policy's encoder, which has no parameters, and the layers behind it.

    Attributes:
        encoder: observations to [N, F].
        chain: from there to what an action is made of.
        is_vector: whether the encoder gives observations as they are, but for their dtype.
        is_identity: whether even the dtype stays, float32.
    """

    encoder: nn.Module
    chain: DenseChain
    is_vector: bool
    is_identity: bool


@dataclass(frozen=True, slots=True)
class KnownCritic:
    """The critic of SAC, TD3 or DDPG.

    Attributes:
        critic: the module, for `encode`.
        members: one chain for each Q-function, from [features, action].
        is_vector: as for `KnownActor`.
    """

    critic: Critic
    members: tuple[DenseChain, ...]
    is_vector: bool


@dataclass(frozen=True, slots=True)
class KnownActorCritic:
    """The policy of the on-policy algorithms.

    Attributes:
        policy: the module, for its normalizer.
        actor: from observations to the distribution's parameters.
        critic: from observations to the value.
        log_std: [k] parameter of a Gaussian distribution; None: the distribution is categorical.
    """

    policy: ActorCritic
    actor: KnownActor
    critic: KnownActor
    log_std: Tensor | None


def require_type(thing: Any, kind: type | tuple[type, ...], path: str) -> None:
    """Refuse anything but an instance of exactly this type, or with a method of its own."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if type(thing) not in kinds:
        names = " or ".join(each.__name__ for each in kinds)
        raise NotServedError(f"{path} is {type(thing).__name__}, not {names}")
    _require_own_methods(thing, path)


def _require_own_methods(thing: Any, path: str) -> None:
    """Refuse an instance on which something callable covers an attribute of its class."""
    for name, value in vars(thing).items():
        if callable(value) and hasattr(type(thing), name):
            raise NotServedError(f"{path}.{name} is overridden on the instance")


def require_modules(modules: Mapping[str, nn.Module], known: frozenset[type]) -> None:
    """Refuse modules of unknown types, with hooks or with methods of their own.

    Args:
        modules: name -> module, with all that it holds.
        known: types whose computation the kernels know.
    """
    for name, hooks in vars(module_hooks).items():
        if name.startswith("_global_") and name.endswith("_hooks") and hooks:
            raise NotServedError("a hook is registered for all modules")
    for root, top in modules.items():
        for inner, module in top.named_modules(remove_duplicate=False):
            path = f"{root}.{inner}" if inner else root
            if type(module) not in known:
                raise NotServedError(
                    f"{path} is {type(module).__name__}, which the kernels do not know"
                )
            for attribute, what in _HOOKS.items():
                if getattr(module, attribute):
                    raise NotServedError(f"{path} has {what}")
            _require_own_methods(module, path)


def require_parameters(modules: Mapping[str, nn.Module], *, trainable: bool = True) -> None:
    """Refuse parameters that are frozen, shared, hooked, or not plain float32 on the CPU.

    Args:
        modules: name -> module whose parameters are meant.
        trainable: whether all must be; a target network's are not.
    """
    seen: dict[int, str] = {}
    for root, module in modules.items():
        for name, parameter in module.named_parameters(remove_duplicate=False):
            path = f"{root}.{name}"
            _require_plain(parameter, path, trainable=trainable)
            # Two parameters that share memory are tied as well.
            first = seen.setdefault(parameter.data_ptr(), path)
            if first != path:
                raise NotServedError(f"{first} and {path} share one weight")


def _require_plain(parameter: Tensor, path: str, *, trainable: bool) -> None:
    if trainable and not parameter.requires_grad:
        raise NotServedError(f"{path} is frozen")
    if type(parameter) is not nn.Parameter:
        raise NotServedError(f"{path} is {type(parameter).__name__}, not Parameter")
    if not parameter.is_cpu:
        raise NotServedError(f"{path} is on {parameter.device}, not on the CPU")
    if parameter.dtype != torch.float32:
        raise NotServedError(f"{path} is {parameter.dtype}, not float32")
    if not parameter.is_contiguous() or parameter.numel() == 0:
        raise NotServedError(f"{path} is empty or has gaps in its memory")
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise NotServedError(f"{path} has a gradient hook")


def require_optimizer(optimizer: Any, modules: Iterable[nn.Module], path: str) -> None:
    """Refuse an optimizer that is not the library's, or changes anything but these parameters."""
    require_type(optimizer, (Adam, RMSprop), path)
    if "step" in vars(optimizer):  # the kernels call `apply`
        raise NotServedError(f"{path} has a `step` of its own")
    changed = [id(parameter) for parameter in optimizer.parameters]
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    if len(changed) != len(own) or set(changed) != own:
        raise NotServedError(f"{path} does not change each parameter of its network once")


def known_actor(policy: Any, kinds: type | tuple[type, ...], path: str = "policy") -> KnownActor:
    """The parts of an actor of DDPG, TD3 or SAC."""
    require_type(policy, kinds, path)
    _require_plain_input(policy, path)
    return _dense_network(policy, policy.torso, [policy.head], path, "torso")


def _require_plain_input(policy: Any, path: str) -> None:
    if policy.has_mask:
        raise NotServedError(f"{path} has an action mask")
    if policy.normalizer is not None:
        raise NotServedError(f"{path} normalizes observations")


def known_q_policy(policy: Any, path: str = "policy") -> KnownActor:
    """The parts of a Q-network with one plain value per action."""
    require_type(policy, QPolicy, path)
    head = policy.head
    require_type(head, ScalarHead, f"{path}.head")
    if policy.core is not None:
        raise NotServedError(f"{path} has a recurrent core")
    _require_plain_input(policy, path)
    if head.state_value is not None:
        raise NotServedError(f"{path}.head is dueling")
    if head.is_noisy:
        raise NotServedError(f"{path}.head is noisy")
    # Between its layers a stream applies ReLU, which is no module there.
    if len(head.advantage.layers) > 1:
        raise NotServedError(f"{path}.head has hidden layers")
    return _dense_network(policy, policy.torso, list(head.advantage.layers), path, "torso")


def known_actor_critic(policy: Any, path: str = "policy") -> KnownActorCritic:
    """The parts of an actor-critic whose two networks share nothing."""
    require_type(policy, ActorCritic, path)
    if policy.core is not None:
        raise NotServedError(f"{path} has a recurrent core")
    if policy.has_mask:
        raise NotServedError(f"{path} has an action mask")
    require_type(policy.action_head, (CategoricalHead, GaussianHead), f"{path}.action_head")
    if policy.critic_torso is None:
        # Where the user's own network is why they share it, that one is the reason to give.
        _dense_network(policy, policy.torso, [policy.policy_head], path, "torso")
        raise NotServedError(f"{path} shares one torso between actor and critic")
    log_std = None
    if type(policy.action_head) is GaussianHead:
        log_std = policy.action_head.log_std
        if log_std is None:
            raise NotServedError(f"{path} computes its standard deviation from observations")
    actor = _dense_network(policy, policy.torso, [policy.policy_head], path, "torso")
    critic = _dense_network(policy, policy.critic_torso, [policy.value_head], path, "critic_torso")
    return KnownActorCritic(policy, actor, critic, log_std)


def known_critic(critic: Any, space: spaces.Space[Any], path: str) -> KnownCritic:
    """The parts of an ensemble of Q-functions without dropout or layer normalization."""
    require_type(critic, Critic, path)
    ensemble = critic.ensemble
    require_type(ensemble, EnsembleMLP, f"{path}.ensemble")
    if critic.has_mask:
        raise NotServedError(f"{path} has an action mask")
    if ensemble.dropout > 0.0:
        raise NotServedError(f"{path} uses dropout")
    if len(ensemble.norm_weights):
        raise NotServedError(f"{path} uses layer normalization")
    activation = type(ensemble.activation)
    if activation not in _ACTIVATIONS:
        raise NotServedError(f"{path} uses {activation.__name__}, not ReLU or Tanh")
    require_modules({path: critic}, VECTOR_PARTS)
    require_type(critic.encoder, ObservationEncoder, f"{path}.encoder")
    pairs = list(zip(ensemble.weights, ensemble.biases, strict=True))
    members = tuple(
        DenseChain(
            tuple(DenseLayer(w.detach()[e], b.detach()[e, 0], w, b, e) for w, b in pairs),
            is_tanh=activation is nn.Tanh,
            activates_output=False,
        )
        for e in range(ensemble.num_members)
    )
    return KnownCritic(critic, members, _is_vector(critic.encoder, space))


def _dense_network(
    policy: Any, torso: nn.Module, heads: Sequence[nn.Module], path: str, name: str
) -> KnownActor:
    """An encoder and one chain of layers; a torso is either both, or the encoder alone."""
    require_modules({path: policy}, VECTOR_PARTS)
    path = f"{path}.{name}"
    encoder, body = torso, []
    if type(torso) is nn.Sequential and len(torso):
        encoder, *body = torso
    if not isinstance(encoder, ObservationEncoder):
        raise NotServedError(
            f"{path} is a network of your own, which begins with {type(encoder).__name__}: it has "
            f"no kernel"
        )
    require_type(encoder, ObservationEncoder, f"the first part of {path}")
    is_vector = _is_vector(encoder, policy.observation_space)
    is_identity = is_vector and policy.observation_space.dtype == np.float32
    return KnownActor(encoder, _chain([*body, *heads], path), is_vector, is_identity)


def _is_vector(encoder: Any, space: spaces.Space[Any]) -> bool:
    """Whether an encoder gives observations of one vector as they are, but for their dtype."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1 or len(encoder.leaves) != 1:
        return False
    leaf = encoder.leaves[0]
    return type(leaf) is FlatLeaf and leaf.scale == 1.0


def _chain(modules: Sequence[nn.Module], path: str) -> DenseChain:
    """Linear layers that alternate with one kind of activation."""
    parts = list(_flat(modules))
    linear = [part for part in parts if type(part) is nn.Linear]
    kinds = {type(part) for part in parts[1::2]}
    alternates = all((type(part) is nn.Linear) == (i % 2 == 0) for i, part in enumerate(parts))
    if not linear or not alternates or not kinds <= set(_ACTIVATIONS):
        raise NotServedError(f"{path} is no chain of linear layers with activations between them")
    if len(kinds) > 1:
        raise NotServedError(f"{path} mixes ReLU and Tanh")
    if any(layer.bias is None for layer in linear):
        raise NotServedError(f"{path} has a layer without bias")
    layers = tuple(
        DenseLayer(layer.weight.detach().t(), layer.bias.detach(), layer.weight, layer.bias)
        for layer in linear
    )
    return DenseChain(layers, is_tanh=nn.Tanh in kinds, activates_output=len(parts) % 2 == 0)


def _flat(modules: Sequence[nn.Module]) -> Iterable[nn.Module]:
    """The modules in their order, plain sequences taken apart."""
    for module in modules:
        if type(module) is nn.Sequential:
            yield from _flat(list(module))
        else:
            yield module

"""`make_policy` and `make_actor`: policies from the spaces and a few settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from redline.data import map_leaves
from redline.errors import ConfigError
from redline.models import (
    Core,
    ObservationEncoder,
    TransformerCore,
    image_shape,
    leaf_spaces,
    make_core,
    mlp,
    zero_observation,
)
from redline.models.previous_inputs import PreviousBesideFeatures
from redline.policies.action_heads import make_action_head
from redline.policies.actor_critic import ActorCritic
from redline.policies.actors import CategoricalActor, DeterministicActor, SquashedGaussianActor
from redline.policies.masks import network_space
from redline.policies.modes import evaluation_mode
from redline.policies.normalizer import ObservationNormalizer
from redline.policies.skills import SkillBesideFeatures, SkillSpace, without_skill
from redline.previous_inputs import ACTION, REWARD, has_previous, without_previous

ModuleFactory: TypeAlias = Callable[[spaces.Space[Any]], nn.Module]
ActorT = TypeVar("ActorT", SquashedGaussianActor, DeterministicActor, CategoricalActor)


def make_policy(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    hidden_sizes: Sequence[int] = (64, 64),
    critic_hidden_sizes: Sequence[int] | None = None,
    activation: str = "tanh",
    encoder: str | ModuleFactory = "auto",
    core: str = "none",
    core_size: int = 128,
    core_window: int = 32,
    core_layers: int = 1,
    core_heads: int = 4,
    shared_encoder: bool | Literal["auto"] = "auto",
    normalize_obs: bool = False,
    distribution: str = "auto",
    initial_log_std: float = 0.0,
    state_dependent_std: bool = False,
) -> ActorCritic:
    """An actor-critic for these spaces, its weights drawn from torch's global generator.

    Args:
        observation_space: of one environment, as it is carried in a rollout.
        action_space: of one environment.
        hidden_sizes: widths of the dense layers after vectors. An observation that is only
            an image ends in its convolutional network's own dense layer instead.
        critic_hidden_sizes: those of the critic, where it has a torso of its own; None: the same.
        activation: between dense layers; a name in `redline.models.mlp.ACTIVATIONS`.
        encoder: "auto" (images by size, all else flattened), "mlp" (everything flattened),
            "nature", "impala" or "minatar" for images; or a callable that makes, from the
            observation space without its action mask, a module from observations [N, ...] as
            carried to features [N, F], which then replaces the dense layers too. Any module
            will do: lazy, frozen or tied layers, parametrizations, hooks. It is run once on
            zeros, as rows that are not valid are zeros too.
        core: "none", "lstm", "gru" or "transformer".
        core_size: units of the core.
        core_window: steps that each layer of a transformer attends to.
        core_layers: of a transformer.
        core_heads: of each of its layers.
        shared_encoder: whether actor and critic share all but their heads; "auto" shares for
            images, custom modules and recurrent policies.
        normalize_obs: whether float observations are normalized by running statistics.
        distribution: of Box actions: "gaussian" (clipped), "squashed" (tanh); "auto" is
            "gaussian".
        initial_log_std: log of the initial standard deviation of Box actions.
        state_dependent_std: whether the network gives that standard deviation.

    Raises:
        SpaceError: if a space cannot be served.
        UnknownNameError: if a name is not known.
        ConfigError: if two settings contradict each other.
    """
    seen = network_space(observation_space)
    if core == "none":
        refuse_previous(seen)
    head = make_action_head(
        action_space,
        distribution,
        initial_log_std=initial_log_std,
        state_dependent_std=state_dependent_std,
    )
    torso, features = make_torso(seen, encoder, hidden_sizes, activation)
    past: Core | None = None
    if core == "transformer":
        past = TransformerCore(
            features, core_size, window=core_window, layers=core_layers, heads=core_heads
        )
    elif core != "none":
        past = make_core(core, features, core_size)
    if shared_encoder == "auto":
        shared_encoder = past is not None or _is_costly(seen, encoder)
    critic_torso, critic_features = None, None
    if not shared_encoder:
        widths = hidden_sizes if critic_hidden_sizes is None else critic_hidden_sizes
        critic_torso, critic_features = make_torso(seen, encoder, widths, activation)
    elif critic_hidden_sizes is not None:
        advice = "Give" if past is None else "Without a core give"
        raise ConfigError(
            f"critic_hidden_sizes={tuple(critic_hidden_sizes)} are the widths of a critic's own "
            f"layers, and here it shares those of the policy. {advice} shared_encoder=False, or "
            f"leave critic_hidden_sizes out."
        )
    return ActorCritic(
        observation_space,
        action_space,
        torso=torso,
        features=features,
        action_head=head,
        critic_torso=critic_torso,
        critic_features=critic_features,
        core=past,
        normalizer=ObservationNormalizer(seen) if normalize_obs else None,
    )


def make_actor(
    kind: type[ActorT],
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    hidden_sizes: Sequence[int] = (256, 256),
    activation: str = "relu",
    encoder: str | ModuleFactory = "auto",
    normalize_obs: bool = False,
) -> ActorT:
    """An actor without a value, its weights drawn from torch's global generator.

    Args:
        kind: `SquashedGaussianActor`, `DeterministicActor` or `CategoricalActor`.
        observation_space: as for `make_policy`.
        action_space: as for `kind`.
        hidden_sizes: as for `make_policy`.
        activation: as for `make_policy`.
        encoder: as for `make_policy`.
        normalize_obs: as for `make_policy`.

    Raises:
        SpaceError: if a space cannot be served.
        UnknownNameError: if a name is not known.
    """
    seen = network_space(observation_space)
    refuse_previous(seen)
    torso, features = make_torso(seen, encoder, hidden_sizes, activation, orthogonal=False)
    normalizer = ObservationNormalizer(seen) if normalize_obs else None
    return kind(
        observation_space, action_space, torso=torso, features=features, normalizer=normalizer
    )


def refuse_previous(space: spaces.Space[Any]) -> None:
    """Refuse the action before and its reward as inputs of a policy without a memory.

    Raises:
        ConfigError: if the observation holds them.
    """
    if has_previous(space):
        raise ConfigError(
            "observe_previous=True is for policies that remember, and this one has no core. Give "
            "it one with core='lstm' or 'gru' (ppo, a2c, r2d1, ...), or leave observe_previous "
            "out."
        )


def _is_costly(space: spaces.Space[Any], encoder: str | ModuleFactory) -> bool:
    """Whether the encoder is worth sharing between actor and critic."""
    if encoder == "mlp":
        return False
    if not isinstance(encoder, str):
        return True
    return any(image_shape(leaf) is not None for _, leaf in leaf_spaces(space))


def make_torso(
    space: spaces.Space[Any],
    encoder: str | ModuleFactory,
    hidden_sizes: Sequence[int],
    activation: str,
    *,
    orthogonal: bool = True,
) -> tuple[nn.Module, int]:
    """A module from observations to features, and how many features.

    Args:
        space: of the observations, without an action mask. What `previous_inputs` put there
            goes around the encoder, so that a custom one sees the environment's own space. So
            does a skill that a custom one does not take.
        encoder: as for `make_policy`.
        hidden_sizes: as for `make_policy`.
        activation: as for `make_policy`.
        orthogonal: whether the dense layers after the encoder start orthogonal, as is
            customary on-policy, or as `nn.Linear` does, as is customary off-policy.
    """
    if isinstance(space, spaces.Dict) and has_previous(space):
        rest = without_previous(space)
        torso, features = make_torso(rest, encoder, hidden_sizes, activation, orthogonal=orthogonal)
        added = sum(int(np.prod(space[key].shape or ())) for key in (ACTION, REWARD))
        return PreviousBesideFeatures(torso), features + added
    if not isinstance(encoder, str):
        if isinstance(encoder, nn.Module) or not callable(encoder):
            raise ConfigError(
                f"network={encoder!r} is of type {type(encoder).__name__}. Give a function that "
                f"takes an observation space and returns a torch.nn.Module."
            )
        return _custom_torso(space, encoder)
    encoded = ObservationEncoder(space, encoder)
    if encoded.image_only or not hidden_sizes:
        return encoded, encoded.out_features
    body = mlp((encoded.out_features, *hidden_sizes), activation)
    if not orthogonal:
        for layer in body:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    return nn.Sequential(encoded, body), hidden_sizes[-1]


def _custom_torso(space: spaces.Space[Any], factory: ModuleFactory) -> tuple[nn.Module, int]:
    """A custom module, and how many features it gives.

    One that takes a skill as a part of the observation is given it. Any other one sees the
    environment's own observation, and the skill goes around it.
    """
    state = torch.get_rng_state()
    try:
        module = factory(space)
        return module, _count_features(module, space)
    except Exception:
        if not isinstance(space, SkillSpace):
            raise
    torch.set_rng_state(state)
    torso, features = _custom_torso(without_skill(space), factory)
    beside = SkillBesideFeatures(torso, space)
    return beside, features + beside.num_skills


def _count_features(module: Any, space: spaces.Space[Any]) -> int:
    """F of a custom module, found by running it once on two zero observations.

    The run also makes the parameters of lazy layers, and of layers that the first call
    makes: an optimizer, a target network and a checkpoint can only hold what exists. A
    declared `out_features` does not replace it, for the same reason.

    Nothing else is left behind: every part keeps its mode, running statistics see no zeros,
    and torch's global generator stays where it was, unless it gave new parameters their
    first values.

    Raises:
        ConfigError: if it is no module, gives anything but float [N, F], or declares
            another F.
    """
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"the network factory returned {module!r}, which is not a torch.nn.Module. Return a "
            f"module that maps observations [N, ...] to features [N, F]."
        )
    try:
        features = _dry_run(module, space)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        if "deterministic" in str(error):
            raise  # the run names the operator
        raise ConfigError(
            f"the network factory's module fails on 2 observations of {space}: {error}. Give one "
            f"that takes a tensor [N, ...] of them."
        ) from error
    if not isinstance(features, Tensor) or features.dim() != 2 or features.shape[0] != 2:
        got = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ConfigError(
            f"the network factory's module gave {got} for 2 observations of {space}; features "
            f"are a tensor [2, F]. Flatten its output to one row per observation."
        )
    if not features.is_floating_point():
        raise ConfigError(
            f"the network factory's module gave features of {features.dtype}, through which no "
            f"gradient flows. Give floating point numbers, such as by x.float()."
        )
    width = int(features.shape[1])
    declared = getattr(module, "out_features", width)
    if isinstance(declared, int) and declared != width:
        raise ConfigError(
            f"the network factory's module declares out_features={declared}, but gives {width} "
            f"features for an observation of {space}. Declare {width}, or leave it out."
        )
    return width


def _dry_run(module: nn.Module, space: spaces.Space[Any]) -> Any:
    """What the module gives for two zero observations, in evaluation mode."""
    before = list(module.parameters())
    # Lazy parameters have a device too, though no shape yet.
    device = before[0].device if before else torch.device("cpu")
    obs = map_leaves(lambda leaf: leaf.to(device), zero_observation(space, 2))
    incomplete = any(is_lazy(parameter) for parameter in before)
    state = torch.get_rng_state()
    with torch.no_grad(), evaluation_mode(module):
        features = module(obs)
    if not incomplete and len(list(module.parameters())) == len(before):
        torch.set_rng_state(state)
    return features

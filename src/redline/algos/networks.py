"""Which of a policy's settings the actor-critic algorithms that learn from replay take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from redline.errors import ConfigError
from redline.policies.make import ModuleFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """Of the actor and of each critic, which share nothing.

    Attributes:
        hidden_sizes: widths of the dense layers. Those of an actor that sees only an image
            are its convolutional network's own; critics have these behind it all the same.
        activation: between them.
        encoder: as for `policies.make_policy`.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: str = "relu"
    encoder: str | ModuleFactory = "auto"

    def to_dict(self) -> dict[str, Any]:
        """As keyword arguments of `policies.make_actor`."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def network_settings(
    algorithm: str,
    *,
    hidden_sizes: Sequence[int] = (256, 256),
    activation: str = "relu",
    encoder: str | ModuleFactory = "auto",
    core: str = "none",
    core_size: int = 128,
    core_window: int = 32,
    core_layers: int = 1,
    core_heads: int = 4,
    shared_encoder: bool | None = None,
    normalize_obs: bool = False,
    distribution: str = "auto",
    initial_log_std: float = 0.0,
) -> NetworkSettings:
    """What applies of a run's policy settings; a core's own mean nothing without one.

    Args:
        algorithm: whose name the errors give.
        hidden_sizes: widths of the dense layers.
        activation: between them.
        encoder: as for `policies.make_policy`.
        core: only "none".
        core_size: not looked at.
        core_window: not looked at.
        core_layers: not looked at.
        core_heads: not looked at.
        shared_encoder: None or False.
        normalize_obs: only False.
        distribution: "auto" or "squashed", which are the same here.
        initial_log_std: only 0.

    Raises:
        ConfigError: if a setting is given that the algorithm does not have.
    """
    reasons = {
        f"core={core!r}": (core != "none")
        and "it learns from single transitions, which hold no recurrent state. Use core='none', "
        "or r2d1 or ppo for a recurrent policy.",
        "shared_encoder=True": shared_encoder is True
        and "actor and critics have encoders of their own. Leave it out.",
        "normalize_obs=True": normalize_obs
        and "replay mixes observations of all times, and statistics that move would change what "
        "each of them means. Use normalize_obs=False, and scale in the environment where "
        "needed, for example with gymnasium.wrappers.TransformObservation.",
        f"distribution={distribution!r}": distribution not in ("auto", "squashed")
        and "its Box actions are always squashed into their bounds by tanh. Use "
        "distribution='auto'.",
        f"initial_log_std={initial_log_std}": initial_log_std != 0.0
        and "no parameter of its own is its actor's standard deviation. Leave it out.",
    }
    for setting, reason in reasons.items():
        if reason:
            raise ConfigError(f"{setting} is not for {algorithm}: {reason}")
    return NetworkSettings(hidden_sizes=tuple(hidden_sizes), activation=activation, encoder=encoder)

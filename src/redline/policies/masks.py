"""Action masks: the key "action_mask" of a Dict observation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from redline.errors import SpaceError
from redline.policies.action_heads import ActionHead, JointHead

MASK_KEY = "action_mask"


def without_mask(obs: Any) -> dict[str, Any]:
    """The observation [N, ...] without its action mask."""
    return {key: obs[key] for key in obs.keys() if key != MASK_KEY}  # noqa: SIM118


def network_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The observation space that the networks see: without the action mask.

    Raises:
        SpaceError: if nothing is left.
    """
    if not isinstance(space, spaces.Dict) or MASK_KEY not in space.spaces:
        return space
    if len(space.spaces) == 1:
        raise SpaceError(
            f"the observation space {space} holds an action mask and nothing else. Add an "
            f"observation."
        )
    return type(space)(without_mask(space.spaces))


def check_mask_space(
    observation_space: spaces.Space[Any], action_space: spaces.Space[Any], head: ActionHead
) -> bool:
    """Whether there is a mask, having checked that it fits the action space.

    Raises:
        SpaceError: if it does not fit.
    """
    if not isinstance(observation_space, spaces.Dict) or MASK_KEY not in observation_space.spaces:
        return False
    _check_mask(observation_space.spaces[MASK_KEY], action_space, head, MASK_KEY)
    return True


def _check_mask(
    mask: spaces.Space[Any], action_space: spaces.Space[Any], head: ActionHead, where: str
) -> None:
    if isinstance(head, JointHead) and isinstance(mask, (spaces.Dict, spaces.Tuple)):
        parts = head.named_parts()
        for name, sub in _named_spaces(mask).items():
            if name not in parts:
                raise SpaceError(
                    f"the mask at {where}.{name} has no counterpart in the action space "
                    f"{action_space}. Name masks as the parts of the action space are named."
                )
            _check_mask(sub, _named_spaces(action_space)[name], parts[name], f"{where}.{name}")
        return
    # -1 fits no head: a mask must be flat, as the choices are numbered.
    size = int(np.prod(mask.shape)) if mask.shape is not None and len(mask.shape) == 1 else -1
    if head.mask_size == 0 or size != head.mask_size:
        needed = (
            f"a vector of {head.mask_size} zeros and ones, one per choice"
            if head.mask_size
            else "no mask, since only Discrete and MultiDiscrete actions have choices to mask"
        )
        raise SpaceError(
            f"the mask space {mask} at {where} does not fit the action space {action_space}, "
            f"which takes {needed}. Change the mask, or leave it out of the observation."
        )


def _named_spaces(space: spaces.Space[Any]) -> Mapping[str, spaces.Space[Any]]:
    if isinstance(space, spaces.Dict):
        return space.spaces
    if isinstance(space, spaces.Tuple):
        return {str(i): sub for i, sub in enumerate(space.spaces)}
    return {}

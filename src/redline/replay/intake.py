"""What a rollout must be to be taken into a buffer, and how it joins what is there."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from redline.data import Array, Rollout
from redline.errors import ConfigError
from redline.replay.config import ReplayConfig
from redline.replay.continuity import Links
from redline.replay.observations import LeafRows, ObservationLeaf
from redline.replay.spec import LeafSpec, ReplaySpec, dotted, flatten
from redline.replay.spec import Path as KeyPath


def stacked_paths(config: ReplayConfig, spec: ReplaySpec) -> set[KeyPath]:
    """Which observations are stacks of `frame_stack` frames.

    Raises:
        ConfigError: if the setting leaves it open, or names what is not there.
    """
    if config.frame_stack == 1:
        return set()
    if not config.stacked_keys:
        if len(spec.obs) > 1:
            raise ConfigError(
                f"frame_stack={config.frame_stack} with several observations "
                f"{[dotted(path) for path in spec.obs]}: name the stacked ones in stacked_keys."
            )
        return set(spec.obs)
    names = {dotted(path): path for path in spec.obs}
    unknown = [key for key in config.stacked_keys if key not in names]
    if unknown:
        raise ConfigError(
            f"stacked_keys={config.stacked_keys}: there is no observation {unknown}, "
            f"only {sorted(names)}."
        )
    return {names[key] for key in config.stacked_keys}


def require_rollout(
    rollout: Rollout, priorities: Tensor | None, config: ReplayConfig, spec: ReplaySpec, rows: int
) -> None:
    """Refuse a rollout that does not fit the buffer.

    Args:
        rollout: [T, B].
        priorities: [T, B] or None.
        config: the buffer's.
        spec: the buffer's.
        rows: L.

    Raises:
        ConfigError: names what differs, or the bad priority.
    """
    length = rollout.rollout_length
    if rollout.num_envs != spec.num_envs:
        raise ConfigError(
            f"the rollout has num_envs={rollout.num_envs}, but this replay was made for "
            f"{spec.num_envs}. Make one replay per set of environments."
        )
    if length > rows:
        raise ConfigError(
            f"rollout_length={length} exceeds the {rows} rows of a replay of "
            f"capacity={config.capacity} with num_envs={spec.num_envs}. "
            f"Use a capacity of at least {length * spec.num_envs}."
        )
    parts = [
        ("obs", spec.obs, flatten(rollout["obs"]), 2),
        ("action", spec.action, flatten(rollout["action"]), 2),
        ("extras", spec.extras, {name: rollout.steps.get(name) for name in spec.extras}, 2),
    ]
    if config.is_sequential:
        parts.append(("initial_state", spec.state, rollout.initial_state, 1))
    for kind, wanted, values, leading in parts:
        given = {
            key: None if value is None else LeafSpec(tuple(value.shape[leading:]), value.dtype)
            for key, value in values.items()
        }
        if given != wanted:
            raise ConfigError(
                f"{kind} of the rollout is {given}, but this replay was made for {wanted}. "
                "Nothing is converted silently: make the collector, the policy and the spec "
                "agree."
            )
    if rollout["reward"].dtype != torch.float32:
        raise ConfigError(
            f"reward is {rollout['reward'].dtype}, but a rollout's is torch.float32. "
            "Nothing is converted silently: convert it in the collector."
        )
    if priorities is None:
        return
    if priorities.shape != rollout.steps.batch_size:
        raise ConfigError(
            f"priorities of shape {tuple(priorities.shape)} should be one per row, "
            f"{tuple(rollout.steps.batch_size)}."
        )
    counted = torch.where(rollout.valid.to(priorities.device), priorities, 0.0)
    if not bool((counted.isfinite() & (counted >= 0)).all()):
        raise ConfigError(
            "an initial priority is NaN, infinite or negative. Priorities are absolute TD errors."
        )


def follows_stored(
    rollout: Rollout, leaves: dict[KeyPath, ObservationLeaf], head: int, device: torch.device
) -> Array:
    """[B] whether the stored observation to act on is where this rollout carries on.

    It must be the first valid row's, or still be the one to act on if there is none.
    """
    num_envs = rollout.num_envs
    if head == 0:
        return np.zeros(num_envs, dtype=bool)
    row = rollout.valid.int().argmax(0)
    any_valid = rollout.valid.any(0)
    env = torch.arange(num_envs, device=row.device)
    here = head * num_envs + torch.arange(num_envs, device=device)
    follows = torch.ones(num_envs, dtype=torch.bool, device=device)
    last_obs = flatten(rollout.last_obs)
    for path, leaf in flatten(rollout["obs"]).items():
        stored = leaves[path].fetch(leaves[path].slots(here))
        first = leaf[row, env]
        given = torch.where(_like(any_valid, first), first, last_obs[path]).to(device)
        follows &= (stored == given).reshape(num_envs, -1).all(1)
    return follows.cpu().numpy()


def prepare_obs(
    rollout: Rollout, links: Links, leaves: dict[KeyPath, ObservationLeaf]
) -> dict[KeyPath, LeafRows]:
    """Each observation leaf with the true successors of ended and cut rows, checked.

    Raises:
        ConfigError: if a stack of frames does not shift where it should.
    """
    t, b = np.nonzero(links.ended | links.cut)
    ended = torch.from_numpy(links.ended[t, b])
    source = links.cut_source[t, b]
    source = torch.from_numpy(np.where(links.cut[t, b], source, 0))
    at = (torch.from_numpy(t), torch.from_numpy(b))
    last, final = flatten(rollout.last_obs), flatten(rollout["final_obs"])
    prepared: dict[KeyPath, LeafRows] = {}
    for path, value in flatten(rollout["obs"]).items():
        obs = zero_invalid(value, links)
        inside = obs[source.clamp(max=len(obs) - 1), at[1]]
        cut = torch.where(_like(source == len(obs), inside), last[path][at[1]], inside)
        kept = torch.where(_like(ended, inside), final[path][at], cut)
        rows = LeafRows(obs, last[path], np.zeros_like(links.valid), (t, b), kept)
        prepared[path] = leaves[path].prepare(rows, links)
    return prepared


def _like(mask: Tensor, value: Tensor) -> Tensor:
    """[n] mask with the trailing axes of `value` [n, ...], on its device."""
    return mask.to(value.device).view(-1, *([1] * (value.dim() - 1)))


def zero_invalid(value: Tensor, links: Links) -> Tensor:
    """[T, B, ...] with zeros in the rows that are not valid, whatever a collector left there."""
    if links.valid.all():
        return value
    invalid = torch.from_numpy(~links.valid).to(value.device)
    return value.masked_fill(invalid.view(*invalid.shape, *([1] * (value.dim() - 2))), 0)

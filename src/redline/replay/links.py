"""What a rollout must be, and how its rows hang together.

A row's successor is the observation of the next row, with two exceptions. Where an episode
ended, it is the true last observation. Where the chain of rows is cut, it is the observation
that the row was left with. A chain is cut where an episode goes on but the next row is not
valid (an environment left idle), or is not its continuation (fresh episodes after a resume).
A cut row is bootstrapped like a truncated one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from redline.data import Array, Rollout
from redline.errors import ConfigError
from redline.replay.config import ReplayConfig
from redline.replay.priorities import UnsoundPriorityError
from redline.replay.spec import LeafSpec, Path, ReplaySpec, flatten

# Bits of a row's flags.
VALID = 1
TERMINATED = 2
TRUNCATED = 4
CUT = 8  # the chain breaks here without an end of the episode
FIRST = 16  # the first valid row of an episode
ENDED = TERMINATED | TRUNCATED | CUT


class Links(NamedTuple):
    """How the rows of a rollout hang together, on the host.

    Attributes:
        valid: [T, B] bool.
        goes_on: [T, B] bool, valid and neither ended nor cut.
        ended: [T, B] bool, valid and terminated or truncated.
        cut: [T, B] bool, valid, its episode goes on, but the next row is not valid.
        cut_source: [T, B] int64, the row with a cut row's successor; T means `last_obs`.
        flags: [T, B] uint8 as stored.
    """

    valid: Array
    goes_on: Array
    ended: Array
    cut: Array
    cut_source: Array
    flags: Array


class ChainState(NamedTuple):
    """What is left open between two rollouts.

    Attributes:
        newest_goes_on: [B] bool, the newest row is valid and its episode goes on.
        episode_open: [B] bool, the episode of the last valid row goes on.
    """

    newest_goes_on: Array
    episode_open: Array


class LeafRows(NamedTuple):
    """One observation leaf of a rollout, ready to be written.

    Attributes:
        obs: [T, B, ...], zero where not valid.
        last_obs: [B, ...] to act on after the last row.
        end_t: [n] int64, time of the ended and cut rows, ascending.
        end_b: [n] int64, their environment.
        end_obs: [n, ...] their true successors.
    """

    obs: Tensor
    last_obs: Tensor
    end_t: Array
    end_b: Array
    end_obs: Tensor


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
        UnsoundPriorityError: if a priority is NaN or infinite.
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
    _require_leaves("obs", spec.obs, flatten(rollout["obs"]))
    _require_leaves("action", spec.action, flatten(rollout["action"]))
    extras = {name: rollout.steps.get(name) for name in spec.extras}
    _require_leaves("extras", spec.extras, extras)
    if config.is_sequential:
        _require_leaves("initial_state", spec.state, rollout.initial_state, leading=1)
    if rollout["reward"].dtype != torch.float32:
        raise ConfigError(
            f"reward is {rollout['reward'].dtype}, but a rollout's is torch.float32. "
            "Nothing is converted silently: convert it in the collector."
        )
    if priorities is not None:
        _require_priorities(rollout, priorities)


def _require_leaves(
    kind: str, wanted: Mapping[Any, LeafSpec], values: Mapping[Any, Any], leading: int = 2
) -> None:
    given = {
        key: None if value is None else LeafSpec(tuple(value.shape[leading:]), value.dtype)
        for key, value in values.items()
    }
    if given != wanted:
        raise ConfigError(
            f"{kind} of the rollout is {given}, but this replay was made for {wanted}. "
            "Nothing is converted silently: make the collector, the policy and the spec agree."
        )


def _require_priorities(rollout: Rollout, priorities: Tensor) -> None:
    if priorities.shape != rollout.steps.batch_size:
        raise ConfigError(
            f"priorities of shape {tuple(priorities.shape)} should be one per row, "
            f"{tuple(rollout.steps.batch_size)}."
        )
    counted = torch.where(rollout.valid.to(priorities.device), priorities, 0.0)
    if not bool((counted.isfinite() & (counted >= 0)).all()):
        kind = ConfigError if bool(counted.isfinite().all()) else UnsoundPriorityError
        raise kind(
            "an initial priority is NaN, infinite or negative. Priorities are absolute TD errors."
        )


def link_rows(rollout: Rollout, continues: Array) -> Links:
    """Find ends, cuts and beginnings.

    Args:
        rollout: [T, B].
        continues: [B] bool, the environment's first valid row carries on the episode that
            was open before this rollout.

    Raises:
        ConfigError: if an episode gives way to another without having ended.
    """
    valid = _host(rollout.valid)
    terminated = _host(rollout["terminated"]) & valid
    truncated = _host(rollout["truncated"]) & valid
    ended = terminated | truncated
    open_row = valid & ~ended

    next_valid, last_valid = _valid_neighbors(valid)
    _require_whole_episodes(open_row, next_valid, _host(rollout["episode_id"]))
    cut = open_row.copy()
    cut[:-1] &= ~valid[1:]
    cut[-1] = False
    before = ended[np.maximum(last_valid, 0), np.arange(valid.shape[1])]
    first = valid & np.where(last_valid >= 0, before, ~continues)
    flags = (
        VALID * valid + TERMINATED * terminated + TRUNCATED * truncated + CUT * cut + FIRST * first
    ).astype(np.uint8)
    return Links(valid, open_row & ~cut, ended, cut, next_valid, flags)


def next_chain_state(state: ChainState, links: Links, follows: Array) -> ChainState:
    """The chain after this rollout.

    Args:
        state: the chain before it.
        links: its rows.
        follows: [B] bool, it begins where the one before left off; without a valid row, the
            observation to act on has not changed.
    """
    length = len(links.valid)
    any_valid = links.valid.any(axis=0)
    last = length - 1 - np.argmax(links.valid[::-1], axis=0)
    ended = links.ended[last, np.arange(len(last))]
    return ChainState(
        newest_goes_on=links.goes_on[-1],
        episode_open=np.where(any_valid, ~ended, state.episode_open & follows),
    )


def first_obs(rollout: Rollout) -> dict[Path, Tensor]:
    """Path -> [B, ...] what each environment acted on first: `last_obs` if it has no valid row."""
    row, any_valid = rollout.valid.int().argmax(0), rollout.valid.any(0)
    env = torch.arange(rollout.num_envs, device=row.device)
    last_obs = flatten(rollout.last_obs)
    return {
        path: torch.where(_expand(any_valid, leaf[0]), leaf[row, env], last_obs[path])
        for path, leaf in flatten(rollout["obs"]).items()
    }


def leaf_rows(rollout: Rollout, links: Links) -> dict[Path, LeafRows]:
    """Each observation leaf with the true successors of its ended and cut rows."""
    t, b = np.nonzero(links.ended | links.cut)
    ended = torch.from_numpy(links.ended[t, b])
    source = torch.from_numpy(np.where(links.cut[t, b], links.cut_source[t, b], 0))
    at = (torch.from_numpy(t), torch.from_numpy(b))
    last, final = flatten(rollout.last_obs), flatten(rollout["final_obs"])
    found: dict[Path, LeafRows] = {}
    for path, value in flatten(rollout["obs"]).items():
        obs = zero_invalid(value, links)
        inside = obs[source.clamp(max=len(obs) - 1), at[1]]
        cut = torch.where(_expand(source == len(obs), inside), last[path][at[1]], inside)
        end_obs = torch.where(_expand(ended, inside), final[path][at], cut)
        found[path] = LeafRows(obs, last[path], t, b, end_obs)
    return found


def zero_invalid(value: Tensor, links: Links) -> Tensor:
    """[T, B, ...] with zeros in the rows that are not valid, whatever a collector left there."""
    if links.valid.all():
        return value
    invalid = torch.from_numpy(~links.valid).to(value.device)
    return value.masked_fill(invalid.view(*invalid.shape, *([1] * (value.dim() - 2))), 0)


def _expand(mask: Tensor, value: Tensor) -> Tensor:
    """[n] mask with the trailing axes of `value` [n, ...], on its device."""
    return mask.to(value.device).view(-1, *([1] * (value.dim() - 1)))


def _valid_neighbors(valid: Array) -> tuple[Array, Array]:
    """[T, B] the next valid row after each (T if there is none), and the last before (or -1)."""
    length = len(valid)
    row = np.arange(length)[:, None]
    if valid.all():
        return np.broadcast_to(row + 1, valid.shape), np.broadcast_to(row - 1, valid.shape)
    next_valid, last_valid = np.full(valid.shape, length), np.full(valid.shape, -1)
    at_valid = np.where(valid, row, length)
    next_valid[:-1] = np.minimum.accumulate(at_valid[::-1], axis=0)[::-1][1:]
    last_valid[1:] = np.maximum.accumulate(np.where(valid, row, -1), axis=0)[:-1]
    return next_valid, last_valid


def _require_whole_episodes(open_row: Array, next_valid: Array, episode_id: Array) -> None:
    length, num_envs = open_row.shape
    follows = episode_id[np.minimum(next_valid, length - 1), np.arange(num_envs)]
    wrong = open_row & (next_valid < length) & (follows != episode_id)
    if wrong.any():
        t, b = (int(i[0]) for i in np.nonzero(wrong))
        raise ConfigError(
            f"row t={t} of environment {b} belongs to episode {episode_id[t, b]}, which has not "
            f"ended, but the next valid row to episode {follows[t, b]}. "
            "A collector must mark the row as terminated or truncated."
        )


def _host(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()

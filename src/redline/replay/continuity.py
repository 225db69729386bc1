"""Where, in a rollout, episodes begin and end and the chain of rows is cut.

A row's successor is the observation of the next row, except where the episode ended, and
where the chain is cut: a row whose episode goes on, followed by a row that is not valid (an
environment left idle), or by one that is not its continuation (after a resume with fresh
episodes). A cut row is bootstrapped like a truncated one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from redline.data import Array, Rollout
from redline.errors import ConfigError
from redline.replay.windows import CUT, FIRST, TERMINATED, TRUNCATED, VALID


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
    num_envs = valid.shape[1]
    ended = terminated | truncated
    open_row = valid & ~ended

    next_valid, last_valid = _valid_neighbors(valid)
    env = np.arange(num_envs)
    _require_whole_episodes(open_row, next_valid, _host(rollout["episode_id"]))
    cut = open_row.copy()
    cut[:-1] &= ~valid[1:]
    cut[-1] = False
    before = ended[np.maximum(last_valid, 0), env]
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


def _host(tensor: object) -> Array:
    return tensor.detach().cpu().numpy()  # pyright: ignore[reportAttributeAccessIssue]

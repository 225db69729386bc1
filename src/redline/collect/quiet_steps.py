"""The fast path of a single environment: most steps give a reward and an observation, no more.

A simple environment steps in a microsecond or two, and writing all that may have happened in
a step takes twice that. While nothing else happens, only the observation and the action are
written step by step. The rewards wait in the environment, and `_settle` writes them for many
steps at once: when an episode ends, when the rollout is over, when something raises, and
every 10 ms, so that whoever looks at an unfinished rollout sees it grow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from redline.envs.vec_env import EnvStep
from redline.profile.marks import operation

if TYPE_CHECKING:
    from redline.collect.acting_loop import ActingLoop, FastActor

_INFERENCE, _SIMULATION = operation("inference"), operation("simulation")
_MAX_DELAY_S = 0.01  # by so much a look at an unfinished rollout may be late


def step_quietly(
    loop: ActingLoop, actor: FastActor, before_each: Callable[[], None] | None
) -> EnvStep | None:
    """Step until an episode ends or the rollout is over.

    Args:
        loop: whose single environment can step quietly.
        actor: acts for it, row by row.
        before_each: called before every step; may raise.

    Returns:
        The step in which something happened, still to be kept; None if the rollout is over.
    """
    # Local names: each look-up of an attribute shows in the time of such a step.
    obs, obs_rows, action_rows = loop.last_obs, loop.memory.obs, loop.memory.action
    act, env_action, env_step = actor.act, loop.policy.env_action, loop.env.step_quietly
    due_s = time.monotonic() + _MAX_DELAY_S
    try:
        for t in range(loop.t, loop.memory.rollout_length):
            if time.monotonic() > due_s:
                _settle(loop)
                due_s = time.monotonic() + _MAX_DELAY_S
            if before_each is not None:
                before_each()
            obs_row, action = obs_rows[t], action_rows[t]
            obs_row[...] = obs  # the environment writes each observation where the last one lay
            with _INFERENCE:
                act(t, obs_row, action)
            with _SIMULATION:
                if not env_step(env_action(action)):
                    _settle(loop)
                    return loop.env.finish_step()
            loop.progress[0] += 1
        return None
    finally:
        _settle(loop)


def _settle(loop: ActingLoop) -> None:
    """Write the rows of the quiet steps since the last time; the environment has counted them."""
    rewards = loop.env.settle()
    if len(rewards) == 0:
        return
    loop.memory.write_quiet_steps(loop.t, rewards, loop.episodes.ids)
    loop.episodes.record_quiet_steps()
    loop.t += len(rewards)
    loop.progress[1] += len(rewards)
    loop.is_over = loop.t == loop.memory.rollout_length

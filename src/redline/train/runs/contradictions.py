"""Settings of a new run that are right one by one and contradict each other.

A config's own class refuses what can never work (`__post_init__`). Here is what works and is
hardly meant: runs of before that were begun so keep loading and resuming.
"""

from __future__ import annotations

from collections.abc import Collection

from redline.algos.config import OffPolicyConfig
from redline.algos.ppo import PPOConfig
from redline.envs import VecEnv
from redline.envs.atari import id_of_today
from redline.errors import ConfigError
from redline.models import image_shape, leaf_spaces
from redline.train.runs.given import Given
from redline.train.settings import RunConfig

_IMAGE_PRESETS = ("atari", "minatar")


def refuse_contradictions(config: RunConfig, *, are_new: bool = True) -> None:
    """Refuse a new run whose settings contradict each other.

    Args:
        config: all settings.
        are_new: whether single rows are refused. They were not always.

    Raises:
        ConfigError: naming both, and what to change.
    """
    algo = config.algo
    if isinstance(algo, OffPolicyConfig) and algo.replay_size < algo.batch_size:
        raise ConfigError(
            f"replay_size={algo.replay_size} is smaller than batch_size={algo.batch_size}, so that "
            f"every batch would hold transitions twice. Use a replay_size of at least "
            f"{algo.batch_size}, or a smaller batch_size."
        )
    burn_in, length = getattr(algo, "burn_in", 0), getattr(algo, "sequence_length", 0)
    if burn_in > length:
        raise ConfigError(
            f"burn_in={burn_in} is longer than sequence_length={length}: more rows would only "
            f"warm up the recurrent state than are learned from. Use a burn_in of at most {length}."
        )
    if are_new and isinstance(algo, PPOConfig) and algo.normalize_advantage:
        _refuse_single_rows(algo, recurrent=config.policy.core != "none")


def _refuse_single_rows(algo: PPOConfig, *, recurrent: bool) -> None:
    """Refuse minibatches whose only advantage is its own mean, so that it becomes 0."""
    parts = algo.minibatches(recurrent=recurrent)
    if algo.num_envs * algo.rollout_length == parts:
        raise ConfigError(
            f"num_envs={algo.num_envs} * rollout_length={algo.rollout_length} in "
            f"num_minibatches={parts} leaves one row to each minibatch, whose advantage is 0 once "
            f"it is normalized, so that the policy would never learn. Use fewer minibatches or "
            f"longer rollouts, or normalize_advantage=False."
        )


def in_time(config: RunConfig, given: Collection[str], *, are_new: bool = True) -> RunConfig:
    """The settings of a new run, with evaluations and checkpoints that do not come too late.

    Args:
        config: all settings.
        given: names of those that the caller gave.
        are_new: whether what the caller gave is refused if it comes too late. It was not always.

    Raises:
        ConfigError: as `evaluated_in_time` and `checkpointed_in_time`.
    """
    for each, name in (
        (evaluated_in_time, "eval_interval"),
        (checkpointed_in_time, "checkpoint_interval"),
    ):
        if are_new or name not in given:
            config = each(config, given)
    return config


def evaluated_in_time(config: RunConfig, given: Collection[str]) -> RunConfig:
    """The settings, with an evaluation at the end where a preset's would come too late.

    Args:
        config: all settings.
        given: names of those that the caller gave.

    Raises:
        ConfigError: if the caller gave an `eval_interval` that the run does not reach.
    """
    every, total = config.run.eval_interval, config.run.total_env_steps
    if every <= total:
        return config
    if "eval_interval" in given:
        raise ConfigError(
            f"eval_interval={every} is longer than the run, total_env_steps={total}, so that it "
            f"would never be evaluated. Use an eval_interval of at most {total}, or train longer."
        )
    return config.replace(eval_interval=total)


def checkpointed_in_time(config: RunConfig, given: Collection[str]) -> RunConfig:
    """The settings, with an interval left to be chosen where one that was would be too long.

    Args:
        config: all settings.
        given: names of those that the caller gave. Others are what a complete file says, which
            does not tell what was chosen once.

    Raises:
        ConfigError: if the caller gave a `checkpoint_interval` longer than `checkpoint_gap`.
    """
    run = config.run
    every, gap = run.checkpoint_interval, run.checkpoint_gap
    if "gap" not in run.checkpoints or every is None or gap is None or every <= gap:
        return config
    if "checkpoint_interval" in given:
        raise ConfigError(
            f"checkpoint_interval={every} is longer than checkpoint_gap={gap}, so that checkpoints "
            f"would lie {every} env_steps apart. Leave checkpoint_interval out, or give at most "
            f"{gap}."
        )
    return config.replace(checkpoint_interval=None)


def refuse_image_preset(config: RunConfig, env: VecEnv) -> None:
    """Refuse a preset for images where the policy sees none.

    Args:
        config: as the caller gave it.
        env: some of the run's environments.

    Raises:
        ConfigError: naming the preset and what the environment gives.
    """
    preset = config.run.preset
    if preset not in _IMAGE_PRESETS:
        return
    if any(image_shape(leaf) is not None for _, leaf in leaf_spaces(env.observation_space)):
        return
    raise ConfigError(
        f"preset={preset!r} is for environments with images, and {config.run.env} has "
        f"observations {env.observation_space}. Leave preset out, or use preset='default'."
    )


def refuse_raw_game(given: Given, made: VecEnv) -> None:
    """Refuse an old id of an Atari game, whose frames no protocol would prepare.

    Args:
        given: with the environment that the caller named; one that they made themselves may
            prepare them.
        made: some of the run's environments.

    Raises:
        ConfigError: naming the id that is meant.
    """
    env = given.env
    today = id_of_today(env) if given.are_new and isinstance(env, str) else None
    frames = any(len(leaf.shape or ()) > 1 for _, leaf in leaf_spaces(made.observation_space))
    if today is not None and frames:
        raise ConfigError(
            f"{env} is an old id of {today}: its frames would be learned from as they are, large, "
            f"in color and one at a time. Use {today}, which is played by an Atari protocol, or "
            f"from Python a callable that makes the game as you want it."
        )

"""From settings to what surrounds the learner: collector, callbacks, logger, store, evaluation."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from redline.algos.algorithm import Algorithm
from redline.algos.config import OffPolicyConfig
from redline.collect import ActorFor, Collector, CollectorSetup
from redline.engines.acting import actor_for
from redline.engines.captured_acting import CapturedActing
from redline.envs import EnvSettings, VecEnv
from redline.envs.cpus import worker_cpus
from redline.errors import ConfigError
from redline.models.observation_encoder import SMALLEST_IMAGE, image_shape, leaf_spaces
from redline.plain_text import shortened, shown
from redline.policies import Policy
from redline.policies.action_heads import GaussianHead, JointHead
from redline.policies.masks import network_space
from redline.previous_inputs import without_previous
from redline.registry import may_be_same
from redline.train.checkpoint.store import Checkpoint, CheckpointStore
from redline.train.loops.background_evaluation import BackgroundEvaluation
from redline.train.loops.callback_calls import callback_label, find_callback
from redline.train.loops.evaluate import Evaluation, Limits, evaluate, evaluation_seed
from redline.train.loops.logged_values import own_columns, require_free_names
from redline.train.progress.progress import ProgressLogger
from redline.train.runs.given import Given
from redline.train.settings import RunConfig, RunSettings

_SLOW_ON_A_CPU = 2_048 * 2_048  # weights of a critic between its hidden layers
_FAR, _WIDE = 2.5, 50.0  # standard deviations; beyond 2.5 lies one number in 160


def resolve(config: RunConfig, env: VecEnv, *, waits_for_episodes: bool = False) -> RunConfig:
    """Put numbers in place of settings left to be chosen, so that `config.json` has all."""
    run = config.run
    total = run.total_env_steps
    reset_mode = run.reset_mode
    if reset_mode == "auto":
        reset_mode = "wait" if waits_for_episodes and env.can_idle else "immediate"
    return config.replace(
        log_interval=run.log_interval or max(1, total // 100),
        checkpoint_interval=run.checkpoint_interval or _checkpoint_interval(run),
        checkpoint_gap=run.checkpoint_gap or max(1, total // 5),
        reset_mode=reset_mode,
    )


def _checkpoint_interval(run: RunSettings) -> int:
    """env_steps between checkpoints, or between the questions whether one is to be written."""
    usual, gap = max(1, run.total_env_steps // 20), run.checkpoint_gap
    if gap is None or "gap" not in run.checkpoints:
        return usual
    parts = -(-gap // usual)
    return -(-gap // parts)  # so that a multiple of it is the gap, or just above


def said_at_start(
    config: RunConfig, env: VecEnv, algorithm: type[Algorithm], changed: frozenset[str]
) -> list[str]:
    """Warnings about what a new run will do that its caller may not expect.

    Args:
        config: as the caller gave it.
        env: some of the run's environments.
        algorithm: its class.
        changed: names of the settings that the caller changed from those of the preset.
    """
    said = [algorithm.caution(config.algo, changed, clips_reward=env.clips_reward)]
    if not algorithm.learns_from_data and not config.run.data:
        said.append(_said_of_late_start(config, changed))
    said.append(_said_of_wide_critics(config, changed))
    if algorithm.waits_for_episodes and config.run.reset_mode == "auto" and not env.can_idle:
        said.append(
            f"{config.algorithm} learns from whole episodes, but the back end {env.backend!r} "
            f"steps all environments at once, so that none can wait for the others: the ends of "
            f"rollouts cut episodes. With env_backend='gymnasium' or 'processes' they wait."
        )
    return [sentence for sentence in said if sentence]


def _said_of_late_start(config: RunConfig, changed: frozenset[str]) -> str | None:
    algo, total = config.algo, config.run.total_env_steps
    if not isinstance(algo, OffPolicyConfig) or "learning_starts" in changed:
        return None
    if algo.learning_starts <= total / 4:
        return None
    return (
        f"the first update comes after learning_starts={algo.learning_starts} of "
        f"total_env_steps={total} env_steps. Give a smaller learning_starts to learn in more of "
        f"them, or train longer."
    )


def _said_of_wide_critics(config: RunConfig, changed: frozenset[str]) -> str | None:
    sizes = getattr(config.algo, "critic_hidden_sizes", None) or ()
    weights = sum(before * after for before, after in itertools.pairwise(sizes))
    on_cpu = config.run.device.startswith("cpu")
    if not on_cpu or weights < _SLOW_ON_A_CPU or "critic_hidden_sizes" in changed:
        return None
    return (
        f"critic_hidden_sizes={','.join(map(str, sizes))} take a second or so per update on a CPU. "
        f"Give narrower ones, such as 256,256, or device=cuda."
    )


def said_of_images(config: RunConfig, env: VecEnv) -> list[str]:
    """Warnings about pixels whose axes are not those of an image as networks take them.

    Which axis is which cannot be told by sizes alone, and what a saved run took them for must stay.

    Args:
        config: all settings; the network is Redline's.
        env: some of the run's environments.
    """
    if config.policy.encoder == "mlp" or config.run.network is not None:
        return []
    seen = without_previous(network_space(env.observation_space))
    return [
        f"observations {leaf.shape} of {leaf.dtype}{_at(path)} are {taken_for}. {way}"
        for path, leaf in leaf_spaces(seen)
        for taken_for, way in _doubtful_pixels(leaf)
    ]


def _at(path: tuple[str, ...]) -> str:
    return f" at key {'.'.join(path)!r}" if path else ""


def _doubtful_pixels(leaf: Any) -> Iterator[tuple[str, str]]:
    """What pixels are taken for, and what to do if they are images; nothing if that is clear."""
    shape: tuple[int, ...] = getattr(leaf, "shape", None) or ()
    if not isinstance(leaf, spaces.Box) or leaf.dtype not in (np.uint8, np.bool_):
        return
    image = image_shape(leaf)
    taken_for = f"no image as the networks take one: they are {math.prod(shape)} separate numbers"
    if len(shape) == 3 and shape[-1] < min(shape[:-1]) and image in (None, shape):
        if min(shape[:-1]) < SMALLEST_IMAGE:
            return
        if image is not None:
            taken_for = f"taken for {shape[0]} channels of {shape[1]} x {shape[2]} pixels"
        yield (
            taken_for,
            f"If the {shape[2]} are the channels, put them first: gymnasium.wrappers."
            f"TransformObservation with np.moveaxis(obs, -1, 0).",
        )
    elif len(shape) > 3 and sum(size >= SMALLEST_IMAGE for size in shape) >= 2:
        yield (
            taken_for,
            "If they are stacked images, make one of them, with all channels first: gymnasium."
            "wrappers.TransformObservation; or stack gray ones, by GrayscaleObservation before "
            "FrameStackObservation.",
        )


def said_of_bounds(policy: Policy, *, fresh: bool) -> list[str]:
    """A warning where a Gaussian begins so far from its actions' bounds that nothing is learned.

    Args:
        policy: of a new run.
        fresh: whether it is as it was built: its means are near 0, and it learns from what it does.
    """
    space = policy.action_space
    gaussians = list(_gaussians(getattr(policy, "action_head", None), space)) if fresh else []
    all_bounded = all(np.isfinite((box.low, box.high)).all() for _, box in gaussians)
    for head, box in gaussians:
        if head.log_std is None:  # the network says it, for each state
            continue
        std = head.log_std.detach().exp().numpy(force=True).reshape(box.shape)
        outside = (box.low > _FAR * std) | (box.high < -_FAR * std)
        with np.errstate(over="ignore", invalid="ignore"):
            wide = (box.high - box.low > _WIDE * std) & np.isfinite(box.low) & np.isfinite(box.high)
        if not (outside | wide).any():
            continue
        what = (
            "nearly all of them are clipped to the same bound, from which nothing can be learned"
            if outside.any()
            else "they reach a small part of what there is between the bounds"
        )
        ways = ["give --distribution squashed, which begins between the bounds"] * all_bounded
        wrapper = "RescaleAction" if all_bounded and box is space else "TransformAction"
        ways.append(f"wrap the environment by gymnasium.wrappers.{wrapper}, so that 0 is inside")
        return [
            f"actions are first drawn with mean 0 and standard deviation {float(std.max()):.3g}, "
            f"and in {shortened(' '.join(str(box).split()))} {what}. To mend it, "
            f"{', or '.join(ways)}."
        ]
    return []


def _gaussians(head: Any, space: gymnasium.Space[Any]) -> Iterator[tuple[GaussianHead, spaces.Box]]:
    """The Gaussians without tanh in an action head, and the boxes that they act in."""
    if type(head) is GaussianHead and isinstance(space, spaces.Box):
        yield head, space
    elif type(head) is JointHead and isinstance(space, (spaces.Dict, spaces.Tuple)):
        for name, part in head.named_parts().items():
            key: Any = name if isinstance(space, spaces.Dict) else int(name)
            yield from _gaussians(part, space[key])


def make_some(settings: EnvSettings, num_envs: int) -> VecEnv:
    """Environments beside those that train: fewer, so fewer worker processes too.

    A ready VectorEnv always gives all of its own.
    """
    if isinstance(settings.env, gymnasium.vector.VectorEnv):
        return settings.make(settings.env.num_envs)
    if settings.num_workers is not None and settings.num_workers > num_envs:
        settings = dataclasses.replace(settings, num_workers=num_envs)
    return settings.make(num_envs)


def make_collector(
    kind: type[Collector],
    config: RunConfig,
    settings: EnvSettings,
    env: VecEnv,
    policy: Policy,
    acting: CapturedActing,
) -> Collector:
    """The run's collector.

    Args:
        kind: its class.
        config: all settings.
        settings: how to make more environments.
        env: taken over, or closed where workers make their own.
        policy: the learner's.
        acting: gives what acts in the policy's place in this process.
    """
    run, given = config.run, acting
    if kind.workers == "acting":  # in processes of their own, whatever acts here
        given = _acting_in_workers(run, acting)
    cpus = None if kind.workers == "none" else worker_cpus(run.cpu_affinity, run.num_workers)
    return kind.make(
        CollectorSetup(
            env=env,
            settings=settings,
            policy=policy,
            num_envs=config.algo.num_envs,
            rollout_length=config.algo.rollout_length,
            seed=run.seed,
            reset_mode=run.reset_mode,  # type: ignore[arg-type]
            num_workers=run.num_workers,
            num_groups=run.num_groups,
            overlap=run.overlap_groups,
            max_staleness=run.max_staleness,
            timeout_s=run.worker_timeout_s,
            cpus=cpus,
            device=run.device,
            env_device=run.env_device,
            policy_device=run.policy_device,
            actor_for=given,
            rollouts_for=acting.rollouts,
        )
    )


def _acting_in_workers(run: RunSettings, acting: CapturedActing) -> ActorFor | None:
    """What acts in the policy's place in worker processes, where they act."""
    if torch.device(run.policy_device or "cpu").type != "cpu":
        there = CapturedActing(None, captures=acting.captures)
        there.report = _say_to_stderr  # the console is the learner's
        return there
    return actor_for if run.cpu_acting else None


def _say_to_stderr(problem: str) -> None:
    sys.stderr.write(f"redline: a worker: {problem}\n")
    sys.stderr.flush()


def make_callbacks(config: RunConfig, given: Given) -> list[Any]:
    """The user's callbacks.

    Raises:
        ConfigError: if those that the config names are not given again.
    """
    labels = tuple(map(callback_label, given.callbacks))
    had = config.run.callbacks
    if len(labels) != len(had) or not all(map(may_be_same, labels, had)):
        again = (
            " ".join(f"--callback {shortened(label)}" for label in config.run.callbacks) or "none"
        )
        raise ConfigError(
            f"the callbacks of this run are {shown(list(config.run.callbacks), 400)}, and given "
            "are "
            f"{list(labels)}. They are Python code, which a run directory alone must not import: "
            f"give the same ones again ({again}; from Python callbacks=[...])."
        )
    return [find_callback(each) for each in given.callbacks]


def require_log_info(config: RunConfig, algorithm: Algorithm, *, resumed: bool = False) -> None:
    """Refuse values of infos under names of the run's own columns, as far as they are known.

    Args:
        config: all settings.
        algorithm: of the run.
        resumed: whether the run has these columns already.

    Raises:
        ConfigError: if there is one, or one that cannot name a column.
    """
    if resumed:
        return
    columns = own_columns(config) | {*getattr(algorithm, "metric_names", ())}
    require_free_names(config.run.log_info, columns, config.algorithm)


def make_logger(config: RunConfig, out: Path, *, resumed: bool) -> ProgressLogger:
    """Writes progress.csv and whatever else was asked for; a new run's W&B session has begun."""
    writers = ["csv"]
    writers += [name for name in ("tensorboard", "jsonl", "wandb") if getattr(config.run, name)]
    run = config.run
    about: dict[str, Any] = {
        "name": run.name or f"{config.algorithm}-{run.env}-seed{run.seed}",
        "config": config.to_json(),
    }
    if run.group is not None:
        about["group"] = run.group
    if run.tags:
        about["tags"] = list(run.tags)
    logger = ProgressLogger(out, writers=writers, wandb_settings=about)
    if not resumed:  # else once its rows are known
        logger.begin()
    return logger


def make_store(config: RunConfig, out: Path, checkpoint: Checkpoint | None) -> CheckpointStore:
    """Keeps the run's checkpoints; `checkpoint` is the one that it goes on from."""
    store = CheckpointStore(
        out / "checkpoints",
        mode=config.run.checkpoints,
        gap=config.run.checkpoint_gap,
        score_of="evaluations" if config.run.eval_interval else "training episodes",
    )
    if checkpoint is not None:
        store.go_on_from(checkpoint.path)
    return store


def make_background_evaluation(
    config: RunConfig, settings: EnvSettings, policy: Policy
) -> BackgroundEvaluation:
    """Evaluates the learner's policy in another process."""
    if settings.backend == "processes":
        settings = dataclasses.replace(settings, backend="gymnasium")  # it is in a process already
    return BackgroundEvaluation(
        settings,
        policy,
        episodes=config.run.eval_episodes,
        limits=Limits(max_episode_steps=config.run.eval_max_episode_steps),
        timeout_s=config.run.worker_timeout_s,
        device=config.run.eval_device or "cpu",
    )


def make_evaluator(
    config: RunConfig, settings: EnvSettings, policy: Policy
) -> Callable[[int], Evaluation]:
    """Evaluates the learner's policy on separate environments; each salt has its own seeds."""
    device = config.run.eval_device
    is_elsewhere = device is not None and torch.device(device) != torch.device(config.run.device)

    def evaluator(salt: int) -> Evaluation:
        return evaluate(
            lambda num_envs: make_some(settings, num_envs),
            copy.deepcopy(policy).to(device) if is_elsewhere else policy,
            episodes=config.run.eval_episodes,
            seed=evaluation_seed(config.run.seed, salt),
            limits=Limits(max_episode_steps=config.run.eval_max_episode_steps),
        )

    return evaluator

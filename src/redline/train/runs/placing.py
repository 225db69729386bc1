"""Which devices and how many threads a run uses."""

from __future__ import annotations

from typing import Any

import gymnasium
import torch

from redline.collect import Collector
from redline.devices import choose_device, require_device
from redline.envs import VecEnv
from redline.envs.cpus import threads_each
from redline.errors import ConfigError
from redline.train.ranks import ALONE, Ranks
from redline.train.settings import DEVICE_SETTINGS, PLACING_SETTINGS, RunConfig, RunSettings
from redline.train.threads import busy_cores, choose_threads, update_multiplications


def check_devices(
    run: RunSettings,
    collector: type[Collector],
    *,
    resumed: bool = False,
    tried: bool = False,
) -> None:
    """Refuse devices that are not there, or that the collector cannot use.

    Args:
        run: its settings.
        collector: what collects.
        resumed: whether the run goes on; for the message.
        tried: whether `device` is tried, which starts it in this process. The others are not,
            as long as they are named: what acts or evaluates there may be another process. What
            "auto" stands for is chosen by trying.

    Raises:
        DeviceError: naming the reason and the fix.
        ConfigError: if environments or acting are placed where the collector has no say.
    """
    for name in DEVICE_SETTINGS:
        device = getattr(run, name)
        if device is not None:
            require_device(device, name, resumed=resumed, tried=tried and name == "device")
        if name in PLACING_SETTINGS and device is not None:
            _require_placeable(name, device, run, collector)


def _require_placeable(
    name: str, device: str, run: RunSettings, collector: type[Collector]
) -> None:
    """Refuse to place what the collector has no say in."""
    acts_there = name == "policy_device" and collector.takes_policy_device
    if acts_there and run.deterministic and torch.device(device).type != "cpu":
        raise ConfigError(
            f"{name}={device!r} with deterministic=True: workers act in processes of their own, "
            f"which are not held to deterministic operators. Leave one of the two out."
        )
    if collector.takes_devices or acts_there:
        return
    if name == "policy_device" and collector.workers == "stepping":
        raise ConfigError(
            f"{name}={device!r}: the {run.collector} collector acts in the learner's process, on "
            f"device={run.device!r}. Leave {name} out, or act elsewhere with collector='workers', "
            f"'async' or 'serial'."
        )
    itself = "environments" if collector.takes_policy_device else "environments and acting"
    raise ConfigError(
        f"{name}={device!r} is for collector='serial'; the {run.collector} collector "
        f"places {itself} itself. Leave {name} out."
    )


def require_deterministic_replay(config: RunConfig) -> None:
    """Refuse a deterministic run whose priorities lie on a GPU, where none could be written.

    Of other devices nobody knows; the first priority that is written shows it.

    Args:
        config: with the device that "auto" stands for.

    Raises:
        ConfigError: naming what to do instead.
    """
    run, algo = config.run, config.algo
    is_there = getattr(algo, "replay_storage", "") == "device" and run.device.startswith("cuda")
    if run.deterministic and is_there and getattr(algo, "prioritized", False):
        raise ConfigError(
            f"deterministic=True with prioritized=True and replay_storage='device': priorities "
            f"are added up by cumsum, which has no deterministic form on {run.device}. Use "
            f"replay_storage='memory' (--replay-storage memory), or leave --deterministic out."
        )


def resolve_devices(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Put devices in place of "auto"; also one sentence for each, why that one."""
    chosen: dict[str, str] = {}
    said: list[str] = []
    for name in DEVICE_SETTINGS:
        asked = getattr(config.run, name)
        if asked == "auto":
            chosen[name], reason = choose_device(asked)
            said.append(f"{name}: {chosen[name]} ({reason})")
    return config.replace(**chosen), said


def initial_threads(run: RunSettings, env: VecEnv, collector: type[Collector]) -> int:
    """Threads before there is an algorithm whose work could be told."""
    if run.num_threads != "auto":
        return run.num_threads
    return _learner_cores(run, collector) if _has_images(env) else 1


def resolve_threads(
    config: RunConfig, env: VecEnv, collector: type[Collector], algorithm: Any, ranks: Ranks = ALONE
) -> tuple[RunConfig, str]:
    """Put a number in place of `num_threads="auto"`; also one sentence why.

    Args:
        config: of the whole run.
        env: some of its environments.
        collector: what collects.
        algorithm: whose updates the threads share.
        ranks: each of which learns from its part of every batch.
    """
    run, algo = config.run, config.algo
    if run.num_threads != "auto":
        return config, "as the settings say"
    threads = initial_threads(run, env, collector)
    reason = "all cores of this process, for images"
    if not _has_images(env):
        rows = getattr(algo, "samples_per_update", None)
        if rows is None:
            minibatches = getattr(algorithm, "num_minibatches", 1)
            rows = algo.num_envs * algo.rollout_length / minibatches
        own_rows = rows / ranks.size
        work = update_multiplications(algorithm, own_rows) if run.device == "cpu" else 0.0
        cores = _learner_cores(run, collector)
        busy = busy_cores() if choose_threads(work, cores, 0.0) > 1 else 0.0
        threads = choose_threads(work, cores, busy)
        reason = f"{work / 1e6:,.0f} million multiplications per update, {cores} cores"
        if busy >= 0.5:
            reason += f", {busy:.1f} of them busy with other processes"
    return config.replace(num_threads=threads), reason


def _learner_cores(run: RunSettings, collector: type[Collector]) -> int:
    # Where workers act while the learner learns, all want cores at the same time.
    return threads_each(run.num_workers + 1 if collector.works_ahead else 1)


def _has_images(env: VecEnv) -> bool:
    return any(
        space.dtype == "uint8" and len(space.shape or ()) == 3
        for space in _leaf_spaces(env.observation_space)
    )


def _leaf_spaces(space: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    if isinstance(space, gymnasium.spaces.Dict):
        return [leaf for sub in space.spaces.values() for leaf in _leaf_spaces(sub)]
    if isinstance(space, gymnasium.spaces.Tuple):
        return [leaf for sub in space.spaces for leaf in _leaf_spaces(sub)]
    return [space]

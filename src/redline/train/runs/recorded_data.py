"""What a run does with recorded episodes: replay begins with them, or all is learned from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from redline.algos.algorithm import Algorithm, OffPolicyAlgorithm
from redline.collect.recorded import RecordedCollector
from redline.envs import VecEnv
from redline.errors import ConfigError
from redline.offline import CarriedSpaces, RecordedEpisodes, as_rollouts, read_episodes
from redline.plain_text import shown
from redline.policies import Policy
from redline.registry import PYTHON_ONLY
from redline.replay import Replay
from redline.replay.hindsight import HindsightReplay
from redline.train.runs.outside_settings import require_confirmed_source
from redline.train.settings import RunConfig

_ROWS = 1024  # of replay that are filled at a time


def data_label(data: Any) -> str:
    """What `config.json` says of the caller's data."""
    if isinstance(data, (str, Path)):
        return str(data)
    return f"{PYTHON_ONLY}{type(data).__module__}.{type(data).__qualname__}"


class RunData:
    """The recorded episodes of a run, read before anything is built.

    Args:
        config: of the run.
        given: the caller's data: Python objects, or what the config says once more; None: only the
            run directory names them.
        algorithm: its class.
        resumed: whether the run goes on from a checkpoint, which holds the replay.

    Raises:
        ConfigError: if data are missing, cannot be read, or mean nothing to the algorithm.
        MissingExtraError: if it takes Minari to read them, and it is not installed.
    """

    def __init__(
        self, config: RunConfig, given: Any, algorithm: type[Algorithm], *, resumed: bool
    ) -> None:
        self._label, self._config = config.run.data, config
        self.learns = algorithm.learns_from_data
        self._episodes: RecordedEpisodes | None = None
        self._said: list[str] = []
        _require_sense(config, algorithm)
        if self._label is None or (resumed and not self.learns):
            return
        if given is None and self._label.startswith(PYTHON_ONLY):
            raise ConfigError(
                f"the data of this run were given as a Python object ({self._label}), which no "
                f"file can hold. Call redline.train(resume=..., data=...) with the same data."
            )
        if given is None:
            require_confirmed_source(config, "data", None)
        self._episodes = read_episodes(self._label if given is None else given)

    def collector(self, env: VecEnv, policy: Policy) -> RecordedCollector:
        """What draws the rollouts of an algorithm that learns from data."""
        episodes, about = self._carried(env), self._about()
        self._said = [f"learns from {episodes.num_steps:,} steps of {about}"]
        self._episodes = None  # the collector has them
        return RecordedCollector(
            episodes,
            policy,
            rows=self._config.algo.num_envs,
            seed=self._config.run.seed,
        )

    def fill(self, replay: Replay, env: VecEnv, policy: Policy) -> list[str]:
        """Let the replay begin with the data; what to say of it.

        Raises:
            ConfigError: if it cannot hold them, or they lack what it stores besides.
        """
        if self._episodes is None:
            return []
        _require_plain(replay, policy)
        whole, about = self._carried(env), self._about()
        episodes = whole.with_successors(terminal=isinstance(replay, HindsightReplay))
        left_out = whole.num_steps - episodes.num_steps
        if episodes.num_steps == 0:
            raise ConfigError(
                f"data={shown(self._label, 200)} hold no transition: each episode is one step, "
                "and what came after it is not known. Add next_observations."
            )
        if episodes.num_steps > replay.config.capacity:
            raise ConfigError(
                f"data={shown(self._label, 200)} hold {episodes.num_steps:,} transitions, and "
                "replay_size="
                f"{replay.config.capacity:,}. Give a larger replay_size, or fewer episodes."
            )
        episodes = episodes.with_stand_ins(replay.frames)
        action = policy.stored_action(episodes.action)
        stored = dataclasses.replace(episodes, action=action)
        for rollout in as_rollouts(stored, replay.num_envs, rows=min(_ROWS, replay.ring_rows)):
            replay.add(rollout)
        replay.break_chain()  # what is collected first is no continuation
        self._episodes = None  # a second copy is of no use
        said = f"replay begins with {episodes.num_steps:,} transitions of {about}"
        if left_out:
            said += (
                f"; {left_out:,} steps are left out, which end their episodes: what came after "
                f"them is not known"
            )
        return [said]

    def describe(self) -> list[str]:
        """What to say when all is learned from the data."""
        return self._said

    def _carried(self, env: VecEnv) -> RecordedEpisodes:
        if self._episodes is None:
            raise ConfigError("there are no recorded episodes. Give data.")
        return CarriedSpaces.of(env).carried(self._episodes, self._label or "data")

    def _about(self) -> str:
        """Their number, and their return by the environment's own rewards."""
        if self._episodes is None:
            return ""
        returns = self._episodes.returns
        return (
            f"{self._episodes.num_episodes:,} recorded episodes ({self._label}), whose return is "
            f"{float(np.mean(returns)):,.1f} +- {float(np.std(returns)):,.1f}"
        )


def _require_sense(config: RunConfig, algorithm: type[Algorithm]) -> None:
    """Refuse an algorithm without the data that it needs, and data that it has no use for."""
    run = config.run
    if algorithm.learns_from_data:
        if run.data is None:
            raise ConfigError(
                f"data is missing: {config.algorithm} learns from recorded episodes. Give an .npz "
                f"file or a Minari dataset, such as --data DATA; `redline collect RUN --out DATA` "
                f"writes one."
            )
        if run.collector != "serial":
            raise ConfigError(
                f"collector={run.collector!r} has nothing to collect: {config.algorithm} learns "
                f"from recorded episodes. Leave it out."
            )
    elif run.data is not None and not issubclass(algorithm, OffPolicyAlgorithm):
        raise ConfigError(
            f"data={shown(run.data, 200)}: {config.algorithm} learns only from what its own "
            "policy has just "
            f"collected. Use bc, or an off-policy algorithm, whose replay begins with the data."
        )


def _require_plain(replay: Replay, policy: Policy) -> None:
    """Refuse a replay that stores more than an environment gives."""
    wanted: Mapping[str, Any] = {**replay.spec.extras, **replay.spec.state}
    if wanted:
        raise ConfigError(
            f"this replay stores {', '.join(sorted(wanted))} with each transition, which recorded "
            f"episodes do not hold. Leave data out, or use an algorithm without a core and without "
            f"skills, such as sac, td3 or dqn."
        )

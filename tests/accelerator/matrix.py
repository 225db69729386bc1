"""Every algorithm with every network, replay and kind of environment, on the stand-in.

A cell is one of each; `why_not` says why one cannot exist. `measure` trains the others for two
iterations in eager mode, whose operators a captured run launches as they are, and counts when the
host waits for the device. `python -m benchmarks.matrix` measures all and records them; the tests
take as many as it needs for every pair of choices to occur.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
from gymnasium import spaces

import redline
from redline.algos.registry import algorithm_names
from redline.collect import Collector
from redline.train.loops.loop import TrainLoop
from redline.train.loops.off_policy_loop import OffPolicyLoop
from redline.train.loops.on_policy_loop import OnPolicyLoop
from tests.accelerator import stand_in

ON_POLICY = ("ppo", "a2c", "reinforce", "impala", "appo")
BOUNDED = ("ddpg", "td3", "tqc", "crossq", "diayn")  # they act in boxes alone
ALGORITHMS = tuple(algorithm_names())
NETWORKS = ("mlp", "images", "lstm", "gru", "transformer")
REPLAYS = ("none", "uniform", "prioritized", "frames", "hindsight")
STORAGES = ("none", "device", "memory")
ENVS = ("device", "mirrored", "host", "data")
T, B = 16, 2
MOST_PER_ROLLOUT = 8  # reads of a rollout with environments on the device: fewer than its steps


@dataclass(frozen=True)
class Cell:
    """One choice of each.

    Attributes:
        algorithm: by its name.
        network: what sees the observations.
        replay: what batches are drawn by; of r2d1, sequences.
        storage: where replay lies.
        envs: where environments are stepped and their data lie; data: recorded episodes.
    """

    algorithm: str
    network: str
    replay: str
    storage: str
    envs: str

    def __str__(self) -> str:
        return "-".join(getattr(self, field.name) for field in fields(self))


# First those that say the most. A part of a cell that is named by no reason exists.
REASONS: tuple[tuple[str, Callable[[Cell], bool]], ...] = (
    ("bc learns from recorded steps, and nothing else does without environments",
     lambda c: (c.algorithm == "bc") != (c.envs == "data")),
    ("on-policy algorithms have no replay",
     lambda c: c.algorithm in (*ON_POLICY, "bc") and (c.replay, c.storage) != ("none", "none")),
    ("off-policy algorithms draw from replay, which lies somewhere",
     lambda c: c.algorithm not in (*ON_POLICY, "bc") and "none" in (c.replay, c.storage)),
    ("bc learns from single steps, which hold no recurrent state",
     lambda c: c.algorithm == "bc" and c.network not in ("mlp", "images")),
    ("of the off-policy algorithms r2d1 alone learns from sequences, and always",
     lambda c: c.algorithm not in (*ON_POLICY, "bc")
     and (c.algorithm == "r2d1") != (c.network in ("lstm", "gru", "transformer"))),
    ("replay would keep the whole window of a transformer for each sequence",
     lambda c: c.algorithm == "r2d1" and c.network == "transformer"),
    ("frames are stored once where observations are stacks of images",
     lambda c: c.replay == "frames" and c.network != "images"),
    ("native games with images do not stack them",
     lambda c: c.replay == "frames" and c.envs == "device"),
    ("native games with images have discrete actions",
     lambda c: c.network == "images" and c.envs == "device" and c.algorithm in BOUNDED),
    ("diayn tells skills apart by vectors",
     lambda c: c.algorithm == "diayn" and c.network == "images"),
    ("diayn is rewarded for its skills, whatever the goal",
     lambda c: c.algorithm == "diayn" and c.replay == "hindsight"),
    ("hindsight replaces vectors, in single transitions",
     lambda c: c.replay == "hindsight" and c.network != "mlp"),
    ("hindsight asks the environment's Python code for rewards, in main memory",
     lambda c: c.replay == "hindsight" and c.storage == "device"),
    ("native games name no goals",
     lambda c: c.replay == "hindsight" and c.envs == "device"),
)  # fmt: skip


def why_not(cell: Cell) -> str | None:
    """Why a cell cannot exist; None: it does."""
    return next((reason for reason, applies in REASONS if applies(cell)), None)


def all_cells() -> Iterator[Cell]:
    """The whole matrix, with the cells that cannot exist."""
    for choice in itertools.product(ALGORITHMS, NETWORKS, REPLAYS, STORAGES, ENVS):
        yield Cell(*choice)


def cells() -> list[Cell]:
    """Those that exist."""
    return [cell for cell in all_cells() if why_not(cell) is None]


def covering() -> list[Cell]:
    """Some cells in which every pair of choices occurs that occurs in any."""
    left, chosen = cells(), []
    missing = set().union(*map(_pairs, left))
    while missing:
        best = max(left, key=lambda cell: len(_pairs(cell) & missing))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(cell: Cell) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    choices = [(field.name, getattr(cell, field.name)) for field in fields(cell)]
    return set(itertools.combinations(choices, 2))


class Pixels(gymnasium.Env[Any, Any]):
    """Two stacked frames of noise; an episode takes 7 steps."""

    def __init__(self, *, bounded: bool) -> None:
        self.observation_space = spaces.Box(0, 255, (2, 10, 10), np.uint8)
        self.action_space: Any = spaces.Discrete(3)
        if bounded:
            self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        self._stack = np.repeat(self._frame(), 2, axis=0)
        return self._stack, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._stack = np.concatenate([self._stack[1:], self._frame()])
        return self._stack, float(self._steps % 3), self._steps == 7, False, {}

    def _frame(self) -> Any:
        return self.np_random.integers(0, 256, (1, 10, 10), dtype=np.uint8)


class Reaching(gymnasium.Env[Any, Any]):
    """A goal on a line, reached or not by chance; an episode takes 5 steps."""

    def __init__(self, *, bounded: bool) -> None:
        place = spaces.Box(-9.0, 9.0, (1,), np.float32)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, place))
        self.action_space: Any = spaces.Discrete(3)
        if bounded:
            self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._steps = 0

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        return -(np.abs(achieved - desired).sum(-1) > 1.0).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps, self._goal = 0, self._place()
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        seen = self._seen()
        reward = self.compute_reward(seen["achieved_goal"], self._goal, {})
        return seen, float(reward), False, self._steps == 5, {}

    def _place(self) -> Any:
        return self.np_random.uniform(-3.0, 3.0, 1).astype(np.float32)

    def _seen(self) -> dict[str, Any]:
        place = self._place()
        return {"observation": place, "achieved_goal": place, "desired_goal": self._goal}


def _env(cell: Cell) -> Any:
    bounded = cell.algorithm in BOUNDED
    if cell.replay == "hindsight":
        return lambda: Reaching(bounded=bounded)
    if cell.network == "images":
        return "redline/Breakout-v1" if cell.envs == "device" else lambda: Pixels(bounded=bounded)
    name = "Pendulum-v1" if bounded or cell.algorithm == "sac" else "CartPole-v1"
    return f"redline/{name}" if cell.envs == "device" else name


def _network(cell: Cell) -> dict[str, Any]:
    if cell.network == "images":
        return {}
    if cell.network == "mlp":
        return {"hidden_sizes": (8,)}
    size: dict[str, Any] = {"hidden_sizes": (8,), "core": cell.network, "core_size": 4}
    return size | ({"core_window": 8, "core_heads": 2} if cell.network == "transformer" else {})


def _learning(cell: Cell) -> dict[str, Any]:
    if cell.algorithm == "bc":
        return {"batch_size": 8}
    shape = {"num_envs": B, "rollout_length": T}
    if cell.algorithm in ON_POLICY:
        is_ppo = cell.algorithm in ("ppo", "appo")
        return shape | ({"num_epochs": 1, "num_minibatches": 2} if is_ppo else {})
    settings: dict[str, Any] = shape | {
        "learning_starts": 1, "batch_size": 4, "replay_size": 128, "replay_storage": cell.storage,
        "replay_ratio": 0.5, "prioritized": cell.replay == "prioritized",
    }  # fmt: skip
    if cell.replay == "frames":
        settings["replay_frame_stack"] = 2
    if cell.replay == "hindsight":
        settings["replay"] = "her"
    if cell.algorithm == "diayn":
        settings["num_skills"] = 2
    if cell.algorithm in ("dqn", "r2d1"):
        settings["target_update_interval"] = 2
    if cell.algorithm == "r2d1":
        settings |= {"burn_in": 1, "state_interval": T, "sequence_length": 4, "n_step": 2,
                     "batch_size": 2, "learning_rate_schedule": "constant"}  # fmt: skip
    return settings


def _data(cell: Cell) -> dict[str, Any]:
    """Two recorded episodes of 8 steps."""
    generator = np.random.default_rng(0)
    size = (2, 10, 10) if cell.network == "images" else (4,)
    obs = generator.integers(0, 256, (16, *size)).astype(np.uint8)
    ended = np.arange(16) % 8 == 7
    return {
        "observations": obs if cell.network == "images" else obs.astype(np.float32),
        "actions": generator.integers(0, 2, 16),
        "rewards": np.ones(16, np.float32),
        "terminations": ended,
        "truncations": np.zeros(16, bool),
    }


@dataclass
class Waits:
    """How often the host waited for the device.

    Attributes:
        updates: made.
        updating: while they were made, draws and priorities included.
        rows: logged.
        logging: while they were.
        collecting: in the rollout in which it did most.
    """

    updates: int = 0
    updating: int = 0
    rows: int = 0
    logging: int = 0
    collecting: int = 0


def measure(cell: Cell, out: Path) -> Waits:
    """Train two iterations of a cell and count.

    Args:
        cell: one that exists.
        out: run directory.
    """
    waits = Waits()

    def counted(function: Callable[..., Any], note: Callable[[int, Any], None]) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            before = len(stand_in.device.read_backs)
            result = function(*args, **kwargs)
            note(len(stand_in.device.read_backs) - before, args)
            return result

        return call

    def update(count: int, args: Any) -> None:
        waits.updates += args[1] if isinstance(args[1], int) else 1
        waits.updating += count

    def row(count: int, args: Any) -> None:
        waits.rows += 1
        waits.logging += count

    def collection(count: int, args: Any) -> None:
        waits.collecting = max(waits.collecting, count)

    settings: dict[str, Any] = {
        "total_env_steps": 2 * T * B, "log_interval": T * B, "num_threads": 1, "quiet": True,
        "tensorboard": False, "device": stand_in.NAME, "preset": "default", "accelerate": "eager",
        "checkpoints": "none",
        "normalize_obs": cell.network == "mlp"
        and cell.replay != "hindsight"
        and cell.algorithm != "diayn",
    }  # fmt: skip
    settings |= _network(cell) | _learning(cell)
    if cell.envs == "mirrored":
        settings["env_device"] = stand_in.NAME
    if cell.envs == "data":
        settings |= {"data": _data(cell)}
        if cell.network == "mlp":
            settings["env"] = "CartPole-v1"
        else:
            settings["env"] = lambda: Pixels(bounded=False)
    else:
        settings["env"] = _env(cell)
    with (
        mock.patch.object(Collector, "collect", counted(Collector.collect, collection)),
        mock.patch.object(OffPolicyLoop, "_make", counted(OffPolicyLoop._make, update)),
        mock.patch.object(OnPolicyLoop, "_learn", counted(OnPolicyLoop._learn, update)),
        mock.patch.object(TrainLoop, "_write_row", counted(TrainLoop._write_row, row)),
    ):
        redline.train(cell.algorithm, out=out, **settings)
    return waits


def problems(cell: Cell, waits: Waits) -> list[str]:
    """What the counts are not allowed to be."""
    found = []
    # The next draw from main memory goes by the priorities of the last batch.
    is_asked_for = cell.replay == "prioritized" and cell.storage == "memory"
    if not waits.updates or not waits.rows:
        found.append("it made no update, or logged no row")
    if waits.updating != (waits.updates if is_asked_for else 0):
        found.append(f"{waits.updating} waits in {waits.updates} updates")
    if waits.logging > waits.rows:
        found.append(f"{waits.logging} waits for {waits.rows} rows")
    if cell.envs == "device" and waits.collecting > MOST_PER_ROLLOUT:
        found.append(f"{waits.collecting} waits in a rollout of {T} steps")
    return found

"""The configurations that are killed, stopped and left without a disk, and how each ends.

They are all algorithms, placements and kinds of checkpoints, as small as they can be.
"""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import redline
from benchmarks.attack.forks import Command, Ended

TIME_COLUMNS = ("wall_time_s", "sps")
BASE: dict[str, Any] = {
    "num_envs": 2, "rollout_length": 16, "hidden_sizes": (8,), "log_interval": 64,
    "checkpoint_interval": 64, "total_env_steps": 512, "preset": "default", "quiet": True,
    "tensorboard": False, "num_threads": 1, "tune_process": False,
}  # fmt: skip
_REPLAY: dict[str, Any] = {
    "rollout_length": 4, "replay_size": 400, "batch_size": 8, "replay_ratio": 1.0,
    "learning_starts": 32,
}  # fmt: skip
_Q: dict[str, Any] = _REPLAY | {"target_update_interval": 4}
_WORKERS = {"num_workers": 2, "total_env_steps": 384}
Outcome: TypeAlias = tuple[str, list[dict[str, str]]]
"""Parameters' hash, and the rows of progress.csv without columns of time."""
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", {"num_minibatches": 2}),
    "ppo recurrent": ("ppo", "redline/TMaze-v1", {"core": "gru", "core_size": 8,
                      "num_minibatches": 2}),
    "ppo, every checkpoint": ("ppo", "CartPole-v1", {"checkpoints": "every"}),
    "ppo, checkpoints apart": ("ppo", "CartPole-v1", {"checkpoints": "last+gap",
                               "checkpoint_gap": 200}),
    "ppo, best checkpoint": ("ppo", "CartPole-v1", {"checkpoints": "best"}),
    "a2c": ("a2c", "CartPole-v1", {}),
    "reinforce": ("reinforce", "CartPole-v1", {"rollout_length": 64}),
    "impala": ("impala", "CartPole-v1", {}),
    "appo": ("appo", "CartPole-v1", {"num_minibatches": 2}),
    "dqn": ("dqn", "CartPole-v1", _Q),
    "dqn, prioritized, n-step": ("dqn", "CartPole-v1", _Q | {"prioritized": True, "n_step": 3}),
    "dqn, replay in a file": ("dqn", "CartPole-v1", _Q | {"replay_storage": "memmap"}),
    "r2d1": ("r2d1", "redline/TMaze-v1", _Q | {"sequence_length": 4, "state_interval": 4,
             "burn_in": 4, "core_size": 8}),
    "sac": ("sac", "Pendulum-v1", _REPLAY),
    "tqc": ("tqc", "Pendulum-v1", _REPLAY),
    "crossq": ("crossq", "Pendulum-v1", _REPLAY | {"critic_hidden_sizes": (8,)}),
    "td3": ("td3", "Pendulum-v1", _REPLAY),
    "ddpg": ("ddpg", "Pendulum-v1", _REPLAY),
    "diayn": ("diayn", "Pendulum-v1", _REPLAY),
    "bc": ("bc", "CartPole-v1", {"data": "episodes.npz", "batch_size": 16, "num_envs": None,
           "rollout_length": None}),
    "ppo, central": ("ppo", "CartPole-v1", _WORKERS | {"collector": "central",
                     "num_minibatches": 2}),
    "sac, alternating": ("sac", "Pendulum-v1", _REPLAY | _WORKERS | {"collector": "alternating"}),
    "ppo, workers": ("ppo", "CartPole-v1", _WORKERS | {"collector": "workers",
                     "num_minibatches": 2}),
    "ppo, device": ("ppo", "redline/CartPole-v1", {"num_minibatches": 2}),
    "impala, async": ("impala", "CartPole-v1", _WORKERS | {"collector": "async"}),
    "dqn, processes": ("dqn", "CartPole-v1", _Q | _WORKERS | {"env_backend": "processes"}),
}  # fmt: skip
UNREPEATED = ("impala, async",)  # two runs of it differ even without a kill


def write_episodes(path: Path) -> None:
    """Eight recorded episodes of 20 steps of CartPole, of observations that mean nothing."""
    draw = np.random.default_rng(25)
    last = np.tile(np.arange(20) == 19, 8)
    np.savez(
        path,
        observations=draw.normal(size=(160, 4)).astype(np.float32),
        actions=draw.integers(0, 2, 160),
        rewards=np.ones(160, np.float32),
        terminations=last,
        truncations=np.zeros(160, bool),
    )


def outcome(run: Path) -> Outcome:
    """The parameters' hash, and progress.csv without the columns of time."""
    sha = str(redline.load(run).inspect()["params_sha256"])
    with (run / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    return sha, [{k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in rows]


def is_complete(name: str, found: Outcome) -> bool:
    """Whether a run of `CASES` has taken all its env_steps."""
    return float(found[1][-1]["env_steps"]) >= (BASE | CASES[name][2])["total_env_steps"]


def begin_words(name: str, run: Path) -> list[str]:
    """The command line that begins a run of `CASES`."""
    algorithm, env, settings = CASES[name]
    words = ["train", algorithm, "--env", env, "--out", str(run)]
    for key, value in (BASE | settings).items():
        option = key.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{option}", *map(str, values)]
    return words


def start(name: str, run: Path, folder: Path, **how: Any) -> Command:
    """Begin a run of `CASES` in a fork, or go on with it.

    Args:
        name: of the case.
        run: its directory.
        folder: to call the command in: it holds what `write_episodes` writes.
        how: as for `Command`.
    """
    is_begun = (run / "config.json").exists()
    words = ["train", "--resume", str(run), "--quiet"] if is_begun else begin_words(name, run)
    if is_begun and (data := CASES[name][2].get("data")):
        words += ["--data", data]  # a run directory alone may name no file outside
    return Command(words, folder, workers=True, cpu_s=None, **how)


class References:
    """How runs end that are left alone, and how long they take; each is run when it is asked for.

    Args:
        folder: to run them in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Outcome, float, Path]] = {}

    def of(self, name: str) -> tuple[Outcome, float, Path]:
        """Outcome, seconds, and the directory.

        Raises:
            RuntimeError: if the run alone fails.
        """
        if name not in self._known:
            run = self._folder / f"whole-{len(self._known)}"
            began_s = time.monotonic()
            ended = start(name, run, self._folder).wait()
            if ended.status != 0:
                raise RuntimeError(f"{name} alone ended with {ended.status}\n{ended.said[-1500:]}")
            self._known[name] = outcome(run), time.monotonic() - began_s, run
        return self._known[name]


def compare(name: str, run: Path, expected: Outcome) -> str | None:
    """What differs between the end of a run and that of one that was left alone; None if nothing.

    Of `UNREPEATED` it is enough that the run is complete.
    """
    actual = outcome(run)
    if name in UNREPEATED:
        return None if is_complete(name, actual) else "not complete"
    if actual == expected:
        return None
    return "other parameters" if actual[0] != expected[0] else "another progress.csv"


def said_by(ended: Ended) -> str:
    """For a verdict: the status, and the end of what was said."""
    return f"status {ended.status}\n{ended.said[-1500:]}"

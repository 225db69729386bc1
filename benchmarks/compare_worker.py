"""The measured process of `benchmarks.compare`: it trains, and stops after every block.

The brake is in the environment, so that nothing of Redline but `redline.train` is relied on
and any revision can be driven. The environments have the spaces of HalfCheetah and CartPole
but cost next to nothing: what is measured is Redline.

Talks over its standard streams: writes the nanoseconds spent so far at the end of every block, then
waits for a line. With one thread they are processor time; several threads may idle at the run's
cost, so there they are the wall's, without the waits.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


@dataclass(frozen=True)
class Workload:
    """What is trained.

    Attributes:
        algorithm: its name.
        observation_size: numbers in an observation.
        action: how many: numbers of a Box, or choices if `discrete`.
        discrete: whether actions are choices.
        warm_up: env_steps before the first block.
        block: env_steps per block, a whole number of iterations of about 0.1 s.
        settings: of the run.
    """

    algorithm: str
    observation_size: int
    action: int
    discrete: bool
    warm_up: int
    block: int
    settings: dict[str, Any]


_OFF_POLICY: dict[str, Any] = {"num_envs": 1, "learning_starts": 100, "replay_size": 100_000}
_ON_POLICY: dict[str, Any] = {"num_envs": 1}
# Defaults of version 0.1, written down: revisions with other defaults must do the same work.
_DQN: dict[str, Any] = {"batch_size": 32, "replay_ratio": 8.0, "rollout_length": 1}
_DQN |= {"target_update_interval": 1_000}
_R2D1: dict[str, Any] = {"num_envs": 4, "learning_starts": 1600, "batch_size": 8}
_R2D1 |= {"replay_ratio": 1.0, "sequence_length": 80, "burn_in": 40, "state_interval": 40}
_R2D1 |= {"rollout_length": 40, "target_update_interval": 2_500}
_PPO: dict[str, Any] = {"num_envs": 1, "rollout_length": 256, "num_epochs": 4, "num_minibatches": 4}
WORKLOADS = {
    "sac": Workload("sac", 17, 6, False, 200, 16, _OFF_POLICY | {"hidden_sizes": (256, 256)}),
    "td3": Workload("td3", 17, 6, False, 200, 24, _OFF_POLICY | {"hidden_sizes": (256, 256)}),
    "dqn": Workload("dqn", 4, 2, True, 400, 256, _OFF_POLICY | _DQN),
    "ppo": Workload("ppo", 17, 6, False, 512, 256, _PPO),
    "a2c": Workload("a2c", 4, 2, True, 400, 400, _ON_POLICY | {"rollout_length": 8}),
    # The rest: nobody's first choice on a CPU, but none may become slow unseen.
    "ddpg": Workload("ddpg", 17, 6, False, 200, 24, _OFF_POLICY | {"hidden_sizes": (256, 256)}),
    "sac-discrete": Workload("sac", 4, 2, True, 200, 16, _OFF_POLICY | {"hidden_sizes": (64, 64)}),
    "diayn": Workload("diayn", 17, 6, False, 200, 12, _OFF_POLICY),
    "rainbow": Workload("dqn", 4, 2, True, 400, 64, _OFF_POLICY | _DQN | {"preset": "rainbow"}),
    "r2d1": Workload("r2d1", 4, 2, True, 3200, 160, _R2D1),
    "reinforce": Workload("reinforce", 4, 2, True, 1600, 1600, {"num_envs": 1}),
    "impala": Workload("impala", 4, 2, True, 400, 400, _ON_POLICY | {"rollout_length": 20}),
    "appo": Workload("appo", 17, 6, False, 512, 256, _PPO),
}
FIVE = ("sac", "td3", "dqn", "ppo", "a2c")
"""The ones that are compared unless others are named."""


class Brake(gymnasium.Env[Any, Any]):
    """An environment that costs nothing, and stops its process after every block.

    Args:
        workload: says how long a block is.
        plant: how much of the process's own time to waste beside it, 0.03 for 3%.
        threads: of the process.
    """

    def __init__(self, workload: Workload, plant: float, threads: int) -> None:
        bound = np.full(workload.observation_size, np.inf, np.float32)
        self.observation_space = spaces.Box(-bound, bound, dtype=np.float32)
        if workload.discrete:
            self.action_space = spaces.Discrete(workload.action)
        else:
            self.action_space = spaces.Box(-1.0, 1.0, (workload.action,), np.float32)
        self._workload, self._plant, self._threads = workload, plant, threads
        self._left = workload.warm_up
        self._steps = 0
        self._cpu_ns, self._waited_ns = time.process_time_ns(), 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """The first observation."""
        super().reset(seed=seed)
        self._steps = 0
        table = self.np_random.normal(size=(64, self._workload.observation_size))
        self._observations = table.astype(np.float32)
        return self._observations[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One env_step; at the end of a block, wait to be told to go on."""
        self._steps += 1
        self._left -= 1
        if self._left == 0:
            self._left = self._workload.block
            self._waste()
            self._say_time()
        return self._observations[self._steps % 64], 1.0, False, self._steps == 200, {}

    def _say_time(self) -> None:
        """The clock of work alone, and wait: processor time, or with several threads the wall's."""
        if self._threads == 1:
            print(time.process_time_ns(), flush=True)
            sys.stdin.readline()
            return
        before = time.monotonic_ns()
        print(before - self._waited_ns, flush=True)
        sys.stdin.readline()
        self._waited_ns += time.monotonic_ns() - before

    def _waste(self) -> None:
        """Spend the planted share of the processor time since the last block.

        Once for the whole block: to ask for the time takes a microsecond, which after every step
        would be a slow-down of its own.
        """
        now = time.process_time_ns()
        end = now + int(self._plant * (now - self._cpu_ns))
        while time.process_time_ns() < end:
            pass
        self._cpu_ns = time.process_time_ns()


def main() -> None:
    """Train until killed."""
    import redline

    name, plant, threads = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory(prefix="redline-compare-run-") as directory:
        redline.train(
            workload.algorithm,
            env=lambda: Brake(workload, plant, threads),
            total_env_steps=10**9,
            log_interval=10**9,
            checkpoints="none",
            out=f"{directory}/run",
            quiet=True,
            seed=1,
            num_threads=threads,
            **workload.settings,
        )


if __name__ == "__main__":
    main()

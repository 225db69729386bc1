"""What light mode costs, told apart from the machine's own ups and downs.

Whole programs differ by several percent from run to run, which hides a cost of one. Here one
program trains on, and its marks are recorded in every other block of a few tenths of a second, in
the order off, on, on, off. Blocks hold a whole number of the algorithm's iterations, so that all do
the same work; the cost is the mean over the groups of four of log(on / off), with a 95% interval.
In the blocks that are off the wrapped functions stay wrapped, which a program without the profiler
does not have: some 50 ns for each call of `step`.

    PYTHON -m benchmarks.profiler.blocks --program "redline dqn" --blocks 80
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import gymnasium

from benchmarks.profiler.programs import PROGRAMS, Program

MARKS = 1  # what light mode records, in `_native.set_active`


@dataclass(frozen=True, slots=True)
class Plan:
    """How a program is cut.

    Attributes:
        warmup: env_steps before the first block.
        steps: env_steps of a block.
    """

    warmup: int
    steps: int


PLANS = {
    "redline ppo": Plan(8192, 4096),
    "redline a2c": Plan(8000, 4000),
    "redline dqn": Plan(3000, 3000),
    "redline sac": Plan(1200, 120),
    "redline td3": Plan(1200, 160),
    "stable-baselines3 ppo": Plan(4096, 2048),
    "stable-baselines3 sac": Plan(200, 30),
    "plain gymnasium and torch": Plan(2304, 2304),
}


class DoneError(BaseException):
    """All blocks are over; no program catches it."""


class Blocks:
    """Counts env_steps, and switches recording at the end of each block.

    Args:
        plan: of the program.
        number: blocks, a multiple of 4.
    """

    def __init__(self, plan: Plan, number: int) -> None:
        self._left, self._steps, self._number = plan.warmup, plan.steps, number
        self._began = 0.0
        self.seconds: list[float] = []

    def count(self) -> None:
        """One env_step more."""
        self._left -= 1
        if self._left == 0:
            self._turn()

    def _turn(self) -> None:
        from redline.profile import _native

        if self._began:
            self.seconds.append(time.perf_counter() - self._began)
        if len(self.seconds) == self._number:
            _native.set_active(MARKS)  # type: ignore[union-attr]
            raise DoneError
        is_on = len(self.seconds) % 4 in (1, 2)
        _native.set_active(MARKS if is_on else 0)  # type: ignore[union-attr]
        self._left, self._began = self._steps, time.perf_counter()


def counted(env_id: str, blocks: Blocks) -> None:
    """Let every step of an environment be counted."""
    kind = type(gymnasium.make(env_id).unwrapped)
    step = kind.step

    def counting(self: Any, action: Any) -> Any:
        blocks.count()
        return step(self, action)

    kind.step = counting  # type: ignore[method-assign]


def train(program: Program, directory: str) -> None:
    """The program, for as long as nobody stops it."""
    forever = 10**8
    if program.kind == "redline":
        import redline

        settings = {"num_threads": 1, "quiet": True, "tensorboard": False, "out": f"{directory}/r"}
        redline.train(program.algorithm, env=program.env, total_env_steps=forever, **settings)
        return
    import torch

    torch.set_num_threads(1)
    if program.kind == "plain":
        import sys

        from benchmarks.peers import plain_loop

        sys.argv = ["plain_loop", "--env", program.env, "--env-steps", str(forever)]
        plain_loop.main()
        return
    from stable_baselines3 import PPO, SAC

    kind = {"ppo": PPO, "sac": SAC}[program.algorithm]
    kind("MlpPolicy", program.env, seed=0, device="cpu").learn(forever)


def cost(seconds: list[float]) -> tuple[float, float]:
    """Relative cost and half its 95% interval, of blocks off, on, on, off, off, on, ..."""
    logs = [math.log(each) for each in seconds]
    groups = [logs[i : i + 4] for i in range(0, len(logs) - 3, 4)]
    found = [(b + c - a - d) / 2.0 for a, b, c, d in groups]
    error = statistics.stdev(found) / math.sqrt(len(found))
    return math.expm1(statistics.mean(found)), 2.1 * error


def main() -> None:
    """Run one program and print what its light mode costs, as one JSON object."""
    from redline import profile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=sorted(PROGRAMS), required=True)
    parser.add_argument("--blocks", type=int, default=80)
    options = parser.parse_args()
    program, plan = PROGRAMS[options.program], PLANS[options.program]
    blocks = Blocks(plan, options.blocks // 4 * 4)
    with (
        tempfile.TemporaryDirectory() as directory,
        profile.session(f"{directory}/session", mode="light"),
        contextlib.suppress(DoneError),
    ):
        counted(program.env, blocks)
        train(program, directory)
    relative, half = cost(blocks.seconds)
    print(
        json.dumps(
            {
                "cost": relative,
                "half_width": half,
                "blocks": len(blocks.seconds),
                "block_s": statistics.median(blocks.seconds),
                "env_steps_per_block": plan.steps,
            }
        )
    )


if __name__ == "__main__":
    main()

"""What recording costs, told apart from the machine's own ups and downs.

Whole programs differ by several percent from run to run, which hides a cost of one. Here one
program trains on, and is recorded in every other block, in the order off, on, on, off. Blocks hold
a whole number of the algorithm's iterations, so that all do the same work, and neighbors are
compared, with a 95% interval. What lies directly behind a switch is in no block: in full mode
functions are instrumented anew there, in a session once. In the blocks that are off the wrapped
functions stay wrapped, which a program without the profiler does not have: some 50 ns for each call
of `step`. The probe of full mode is calibrated as in the first seconds of a session, in which it
rests for a fifth of the time (before Python 3.12 a quarter); in long sessions that is seldom, and
full mode costs as much more (before 3.12 it rests for a third, and full mode costs less).

In full mode the session is then read, and what its report takes out of a block of its own
accord shows how far corrected times are from those that were not recorded.

    PYTHON -m benchmarks.profiler.blocks --program "redline dqn" --mode full --blocks 32
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
from pathlib import Path
from typing import Any

import gymnasium

from benchmarks.profiler.programs import PROGRAMS, Program

MARKS = 1  # what light mode records, in `_native.set_active`
LIGHT, FULL = "light", "full"


@dataclass(frozen=True, slots=True)
class Plan:
    """How a program is cut.

    Attributes:
        warmup: env_steps before the first block.
        steps: env_steps of a block of light mode, and of the pause behind a switch in full mode.
        repeats: how many such make a block of full mode, which takes long enough for the
            calibration that goes on in it.
    """

    warmup: int
    steps: int
    repeats: int


PLANS = {
    "redline ppo": Plan(8192, 4096, 5),
    "redline a2c": Plan(8000, 4000, 5),
    "redline dqn": Plan(3200, 800, 4),
    "redline sac": Plan(1200, 120, 6),
    "redline td3": Plan(1200, 160, 8),
    "stable-baselines3 ppo": Plan(4096, 2048, 1),
    "stable-baselines3 sac": Plan(200, 30, 3),
    "plain gymnasium and torch": Plan(2304, 2304, 6),
}


class DoneError(BaseException):
    """All blocks are over; no program catches it."""


class Blocks:
    """Counts env_steps, and switches recording at the end of each block.

    Args:
        plan: of the program.
        number: blocks, a multiple of 4.
        mode: light or full.
        recorder: of the session.
    """

    def __init__(self, plan: Plan, number: int, mode: str, recorder: Any) -> None:
        self._left, self._number, self._recorder = plan.warmup, number, recorder
        self._is_full = mode == FULL
        self.steps = plan.steps * (plan.repeats if self._is_full else 1)
        self._pause = plan.steps if self._is_full else 0
        self._settles, self._began = False, 0.0
        self.seconds: list[float] = []
        self.share = self.steps / (self.steps + self._pause)  # of what is recorded, in blocks

    def count(self) -> None:
        """One env_step more."""
        self._left -= 1
        if self._left > 0:
            return
        if self._settles:
            self._settles = False
            self._left, self._began = self.steps, time.perf_counter()
        else:
            self._turn()

    def _turn(self) -> None:
        if self._began:
            self.seconds.append(time.perf_counter() - self._began)
        is_over = len(self.seconds) == self._number
        self._record(not is_over and len(self.seconds) % 4 in (1, 2))
        if is_over:
            raise DoneError
        self._settles = self._pause > 0
        self._left, self._began = self._pause or self.steps, time.perf_counter()

    def _record(self, is_on: bool) -> None:
        from redline.profile import _native

        if not self._is_full:
            _native.set_active(MARKS if is_on else 0)  # type: ignore[union-attr]
        elif is_on != bool(_native.get_active()):  # type: ignore[union-attr]
            self._recorder._begin_window() if is_on else self._recorder._end_window()


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
    """Relative cost and half its 95% interval, of blocks off, on, on, off, off, on, ...

    Of the differences between the logarithms of neighbors the center by Hodges and Lehmann 1963,
    the median of the means of all pairs, with the interval that belongs to the signed-rank test:
    neither slow drift nor a disturbance of one difference in four matters.
    """
    logs = [math.log(each) for each in seconds]
    found: list[float] = []
    for a, b, c, d in (logs[i : i + 4] for i in range(0, len(logs) - 3, 4)):
        found += [b - a, c - d]
    n = len(found)
    means = sorted((found[i] + found[j]) / 2.0 for i in range(n) for j in range(i, n))
    spread = 1.96 * math.sqrt(n * (n + 1) * (2 * n + 1) / 24.0)
    outside = max(math.floor(n * (n + 1) / 4.0 - spread), 0)
    low, high = means[outside], means[-1 - outside]
    half = (math.expm1(high) - math.expm1(low)) / 2.0
    return math.expm1(statistics.median(means)), half


def taken_out(session: Path, blocks: Blocks) -> dict[str, Any]:
    """What the session's report takes out of one recorded block, relative to one that is not.

    Callbacks are shared out by env_steps between the blocks and what lies behind the switches. As
    calibration begins 0.3 s after a switch, blocks hold some 2% fewer of them than that.
    """
    from redline.profile.analyse.summary import summarize
    from redline.profile.reader import open_session

    summary = summarize(open_session(session))
    (found,) = summary.overhead
    own = [cell for cell in summary.cells if cell.pid == summary.processes[0].pid]
    in_blocks_s = sum(cell.raw_s - cell.corrected_s for cell in own) * blocks.share
    off_s = statistics.median(s for i, s in enumerate(blocks.seconds) if i % 4 in (0, 3))
    return {
        "taken_out": in_blocks_s / (len(blocks.seconds) / 2) / off_s,
        "unit_ns": found.unit_ns,
        "ci_ns": [found.ci_low_ns, found.ci_high_ns],
        "callbacks": found.count,
        "cycles": found.cycles,
        "corrected": found.corrected,
        "dropped_events": summary.dropped_events,
    }


def main() -> None:
    """Run one program and print what recording it costs, as one JSON object."""
    from redline import profile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", choices=sorted(PROGRAMS), required=True)
    parser.add_argument("--mode", choices=(LIGHT, FULL), default=LIGHT)
    parser.add_argument("--blocks", type=int, default=80, help="at least 12, of which 6 are on")
    options = parser.parse_args()
    if options.blocks < 12:
        parser.error(f"--blocks {options.blocks}: an interval of 95% takes at least 12")
    program, plan = PROGRAMS[options.program], PLANS[options.program]
    with tempfile.TemporaryDirectory() as directory:
        session = Path(directory, "session")
        with (
            profile.session(session, mode=options.mode) as recorder,
            contextlib.suppress(DoneError),
        ):
            recorder._end_window()
            blocks = Blocks(plan, options.blocks // 4 * 4, options.mode, recorder)
            counted(program.env, blocks)
            train(program, directory)
        relative, half = cost(blocks.seconds)
        found = {
            "cost": relative,
            "half_width": half,
            "blocks": len(blocks.seconds),
            "block_s": statistics.median(blocks.seconds),
            "env_steps_per_block": blocks.steps,
            "seconds": [round(each, 5) for each in blocks.seconds],
        }
        if options.mode == FULL:
            found |= taken_out(session, blocks)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

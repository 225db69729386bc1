"""Replay beside Stable-Baselines3's and torchrl's, in alternating pairs.

    python -m benchmarks.replay                     # all cases, printed
    python -m benchmarks.replay --record            # and written to benchmarks/results/replay.*
    python -m benchmarks.replay --resident          # what a buffer of 1M Atari steps really takes
    python -m benchmarks.replay --capacity 2000 --pairs 2 --seconds 0.01    # does it run?

Each case fills both buffers with the same data, then times a block of calls of one and of
the other, by turns; who goes first alternates. The ratio is the median over the pairs, with
the range of the middle half. Needs: pip install stable-baselines3 torchrl.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tensordict import TensorDict

from benchmarks.machine import as_markdown
from redline.data import Rollout
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.spec import LeafSpec

RESULTS = Path(__file__).parent / "results"
NUM_ENVS, LENGTH, BATCH = 8, 32, 256


@dataclass(frozen=True)
class Result:
    """One case: operations per second of both, and the ratio."""

    case: str
    operation: str
    redline_per_s: float
    other_per_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    redline_bytes: float
    other_bytes: float


@dataclass
class Contender:
    """One buffer: how to add a rollout's worth of rows, and how to draw a batch."""

    insert: Callable[[], Any]
    sample: Callable[[], Any]
    bytes_per_transition: float
    transitions_per_insert: int


def atari_rollouts(rng: np.random.Generator, rollouts: int = 6) -> list[Rollout]:
    """A game of 192 steps over and over; a life lost every 40 steps, the first frame repeated."""
    steps = rollouts * LENGTH
    frames = rng.integers(0, 256, (steps + 1, NUM_ENVS, 84, 84), dtype=np.uint8)
    shown = np.maximum(np.arange(steps + 1)[:, None] + np.arange(-3, 1), 0)
    found = []
    for start in range(0, steps, LENGTH):
        stacks = frames[shown[start : start + LENGTH + 1]].transpose(0, 2, 1, 3, 4)
        rollout = rollout_of(torch.from_numpy(stacks.copy()), torch.int64, (), rng)
        t = torch.arange(start + 1, start + LENGTH + 1)
        over, lost = t == steps, t % 40 == 0
        rollout.steps["truncated"][:] = over[:, None]
        rollout.steps["terminated"][:] = (lost & ~over)[:, None]
        following = torch.cat([rollout["obs"][1:], torch.from_numpy(stacks[-1:])])
        ended = (over | lost).view(-1, 1, 1, 1, 1)
        rollout.steps["final_obs"] = torch.where(ended, following, 0)
        rollout.last_obs = following[-1]
        found.append(rollout)
    found[-1].last_obs = found[0]["obs"][0]
    return found


def cheetah_rollouts(
    rng: np.random.Generator, length: int = LENGTH, num_envs: int = NUM_ENVS
) -> list[Rollout]:
    """Vectors of HalfCheetah's sizes; an episode of one step never ends."""
    obs = rng.normal(size=(length + 1, num_envs, 17)).astype(np.float32)
    rollout = rollout_of(torch.from_numpy(obs), torch.float32, (6,), rng)
    rollout.steps["truncated"] &= length > 1
    return [rollout]


def rollout_of(
    obs: torch.Tensor, dtype: torch.dtype, action: tuple[int, ...], rng: np.random.Generator
) -> Rollout:
    """A rollout with these [T + 1, B, ...] observations."""
    shape = (len(obs) - 1, obs.shape[1])
    false = torch.zeros(shape, dtype=torch.bool)
    truncated = false.clone()
    truncated[-1] = True
    final = torch.zeros_like(obs[:-1])
    final[-1] = obs[-1]
    return Rollout(
        steps=TensorDict(
            {
                "obs": obs[:-1],
                "action": torch.zeros((*shape, *action), dtype=dtype),
                "reward": torch.from_numpy(rng.normal(size=shape).astype(np.float32)),
                "terminated": false,
                "truncated": truncated,
                "valid": ~false,
                "final_obs": final,
                "env_id": torch.arange(shape[1]).expand(shape),
                "episode_id": torch.zeros(shape, dtype=torch.int64),
            },
            batch_size=list(shape),
        ),
        initial_state={},
        last_obs=obs[0],
    )


def redline_buffer(rollouts: list[Rollout], capacity: int, **settings: Any) -> Contender:
    """Ours, full."""
    replay = Replay(
        ReplayConfig(capacity=capacity, **settings), ReplaySpec.from_rollout(rollouts[0])
    )
    rng, source = np.random.default_rng(0), itertools.cycle(rollouts)
    while replay.head < replay.ring_rows:
        replay.add(next(source))
    batch = replay.sample(BATCH, rng)

    def sample() -> None:
        nonlocal batch
        batch = replay.sample(BATCH, rng, beta=0.5, out=batch)
        if settings.get("prioritized"):
            replay.update_priorities(batch["index"], torch.rand(BATCH))

    rows = rollouts[0].done.numel()
    return Contender(lambda: replay.add(next(source)), sample, replay.nbytes / capacity, rows)


def successors(rollout: Rollout) -> torch.Tensor:
    """[T, B, ...] the observation after each step, as other libraries store it."""
    last = rollout.last_obs
    following = torch.cat([rollout["obs"][1:], last[None]])  # pyright: ignore
    done = rollout.done.view(*rollout.done.shape, *([1] * (following.dim() - 2)))
    return torch.where(done, rollout["final_obs"], following)


def sb3_buffer(rollouts: list[Rollout], capacity: int) -> Contender:
    """Stable-Baselines3's, full. It takes one step of all environments at a time."""
    from stable_baselines3.common.buffers import ReplayBuffer

    obs, action = rollouts[0]["obs"].numpy(), rollouts[0]["action"].numpy()
    length, num_envs = obs.shape[:2]
    images = obs.dtype == np.uint8
    box = gymnasium.spaces.Box
    buffer = ReplayBuffer(
        capacity,
        box(0 if images else -np.inf, 255 if images else np.inf, obs.shape[2:], obs.dtype.type),
        gymnasium.spaces.Discrete(6) if images else box(-1, 1, action.shape[2:], np.float32),
        device="cpu",
        n_envs=num_envs,
    )
    infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
    sources = itertools.cycle(
        [
            tuple(
                value.numpy()
                for value in (
                    rollout["obs"],
                    successors(rollout),
                    rollout["action"],
                    rollout["reward"],
                    rollout.done.float(),
                )
            )
            for rollout in rollouts
        ]
    )

    def insert() -> None:
        columns = next(sources)
        for t in range(length):
            buffer.add(*(column[t] for column in columns), infos)

    while not buffer.full:
        insert()
    arrays = (value for value in vars(buffer).values() if isinstance(value, np.ndarray))
    size = sum(array.nbytes for array in arrays)
    rows = rollouts[0].done.numel()
    return Contender(insert, lambda: buffer.sample(BATCH), size / capacity, rows)


def torchrl_buffer(rollouts: list[Rollout], capacity: int) -> Contender:
    """The prioritized one of torchrl, full, with what its loaders need for one-step targets."""
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.5, storage=LazyTensorStorage(capacity), batch_size=BATCH
    )
    size = list(rollouts[0].steps.batch_size)
    rows = [
        TensorDict(
            {
                "obs": rollout["obs"],
                "action": rollout["action"],
                "td_error": torch.ones(size),
                "next": TensorDict(
                    {"obs": successors(rollout), "reward": rollout["reward"], "done": rollout.done},
                    batch_size=size,
                ),
            },
            batch_size=size,
        ).reshape(-1)
        for rollout in rollouts
    ]
    source = itertools.cycle(rows)
    leaves = [leaf for leaf in rows[0].values(True, True) if isinstance(leaf, torch.Tensor)]
    row_bytes = sum(leaf.nbytes for leaf in leaves) / rows[0].shape[0]

    def sample() -> None:
        batch = buffer.sample()
        batch["td_error"] = torch.rand(BATCH)
        buffer.update_tensordict_priority(batch)

    while len(buffer) < capacity:
        buffer.extend(next(source))
    return Contender(lambda: buffer.extend(next(source)), sample, row_bytes, rows[0].shape[0])


def absent() -> dict[str, str]:
    """Libraries that cannot be compared with -> what to do about it."""
    found: dict[str, str] = {}
    if not importlib.util.find_spec("stable_baselines3"):
        found["stable_baselines3"] = "pip install stable-baselines3"
    if not importlib.util.find_spec("torchrl"):
        found["torchrl"] = "pip install torchrl"
    else:
        try:
            importlib.import_module("torchrl._torchrl")
        except ImportError as error:
            found["torchrl"] = (
                f"its compiled trees do not load with torch {torch.__version__} "
                f"({str(error)[:80]}...): install the torchrl made for this torch, or build it "
                "with pip install --no-build-isolation git+https://github.com/pytorch/rl"
            )
    return found


def calls_per_s(call: Callable[[], Any], seconds: float) -> float:
    """How often a call runs per second, over at least `seconds`."""
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return calls / elapsed


def compare(
    case: str, ours: Contender, other: Contender, pairs: int, seconds: float
) -> list[Result]:
    """Alternating pairs of both operations."""
    results = []
    for operation, scale in (("insert", ours.transitions_per_insert), ("sample", BATCH)):
        calls = [getattr(ours, operation), getattr(other, operation)]
        rates: list[list[float]] = [[], []]
        for call in calls:
            call()
        for pair in range(pairs):
            for which in (0, 1) if pair % 2 == 0 else (1, 0):
                rates[which].append(scale * calls_per_s(calls[which], seconds))
        ratios = sorted(a / b for a, b in zip(*rates, strict=True))
        quarter = len(ratios) // 4
        results.append(
            Result(
                case,
                operation,
                statistics.median(rates[0]),
                statistics.median(rates[1]),
                statistics.median(ratios),
                ratios[quarter],
                ratios[-1 - quarter],
                ours.bytes_per_transition,
                other.bytes_per_transition,
            )
        )
        print(as_row(results[-1]), flush=True)
    return results


def as_row(result: Result) -> str:
    """A line of the table."""
    return (
        f"| {result.case} | {result.operation} | {result.redline_per_s:,.0f} | "
        f"{result.other_per_s:,.0f} | {result.ratio:.2f} "
        f"({result.ratio_low:.2f} to {result.ratio_high:.2f}) | "
        f"{result.redline_bytes:,.0f} | {result.other_bytes:,.0f} |"
    )


HEADER = (
    "| case | operation | Redline, transitions/s | other, transitions/s | ratio (middle half) | "
    "Redline, bytes/transition | other |\n|---|---|---|---|---|---|---|"
)


def run(capacity: int, pairs: int, seconds: float, skipped: Collection[str]) -> list[Result]:
    """All cases for which the other library is there."""
    rng = np.random.default_rng(0)
    atari, cheetah = atari_rollouts(rng), cheetah_rollouts(rng)
    small = capacity * 10
    print(HEADER)
    results: list[Result] = []
    for name, rollouts, size, stack in (
        ("Atari stacks, frame-deduplicating", atari, capacity, 4),
        ("Atari stacks, plain", atari, capacity, 1),
        ("HalfCheetah", cheetah, small, 1),
        ("HalfCheetah, 1 env, 1 step", cheetah_rollouts(rng, 1, 1), small, 1),
    ):
        settings: dict[str, Any] = {"frame_stack": stack}
        if "stable_baselines3" not in skipped:
            ours = redline_buffer(rollouts, size, **settings)
            other = sb3_buffer(rollouts, size)
            results += compare(f"{name}, uniform, SB3", ours, other, pairs, seconds)
            del ours, other
        if "torchrl" not in skipped:
            ours = redline_buffer(rollouts, size, prioritized=True, **settings)
            other = torchrl_buffer(rollouts, size)
            results += compare(f"{name}, prioritized, torchrl", ours, other, pairs, seconds)
            del ours, other
    return results


def resident() -> None:
    """Fill a deduplicating buffer of a million Atari steps and ask the system what it takes."""

    def resident_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    source = itertools.cycle(atari_rollouts(np.random.default_rng(0)))
    spec = ReplaySpec(
        num_envs=NUM_ENVS,
        obs={(): LeafSpec((4, 84, 84), torch.uint8)},
        action={(): LeafSpec((), torch.int64)},
        extras={},
        state={},
    )
    before, start = resident_bytes(), time.perf_counter()
    replay = Replay(
        ReplayConfig(capacity=1_000_000, frame_stack=4, prioritized=True, n_step=3), spec
    )
    while replay.head < replay.ring_rows:
        replay.add(next(source))
    print(
        f"1,000,000 transitions: {(resident_bytes() - before) / 1e9:.3f} GB resident, "
        f"{replay.nbytes / 1e9:.3f} GB by arithmetic, filled in "
        f"{time.perf_counter() - start:.0f} s; games of 192 steps, lives of 40"
    )


def main() -> None:
    """Parse, measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--capacity", type=int, default=20_480, help="Atari transitions")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3, help="per block")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/replay.*")
    parser.add_argument("--resident", action="store_true", help="only measure 1M Atari steps")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.resident:
        resident()
        return
    skipped = absent()
    for library, remedy in skipped.items():
        print(f"left out: {library}: {remedy}")
    results = run(options.capacity, options.pairs, options.seconds, skipped)
    if options.record and results:
        RESULTS.mkdir(exist_ok=True)
        rows = "\n".join([HEADER, *(as_row(result) for result in results)])
        setting = f"{options.threads} thread(s), batches of {BATCH}, {options.pairs} pairs"
        text = f"# Replay\n\n{setting}. Command: `python -m benchmarks.replay --record`.\n\n"
        (RESULTS / "replay.md").write_text(f"{text}{rows}\n\n{as_markdown()}")
        (RESULTS / "replay.json").write_text(
            json.dumps([asdict(result) for result in results], indent=1)
        )


if __name__ == "__main__":
    main()

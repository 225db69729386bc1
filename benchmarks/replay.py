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


def atari_rollout(rng: np.random.Generator) -> Rollout:
    """Stacks of four frames that shift by one, an episode's end now and then."""
    frames = rng.integers(0, 256, (LENGTH + 4, NUM_ENVS, 84, 84), dtype=np.uint8)
    stacks = np.stack([frames[i : LENGTH + 1 + i] for i in range(4)], axis=2)
    return rollout_of(torch.from_numpy(stacks), torch.int64, (), rng)


def cheetah_rollout(rng: np.random.Generator) -> Rollout:
    """Vectors of HalfCheetah's sizes."""
    obs = rng.normal(size=(LENGTH + 1, NUM_ENVS, 17)).astype(np.float32)
    return rollout_of(torch.from_numpy(obs), torch.float32, (6,), rng)


def rollout_of(
    obs: torch.Tensor, dtype: torch.dtype, action: tuple[int, ...], rng: np.random.Generator
) -> Rollout:
    """A rollout with these LENGTH + 1 observations."""
    shape = (LENGTH, NUM_ENVS)
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
                "env_id": torch.arange(NUM_ENVS).expand(shape),
                "episode_id": torch.zeros(shape, dtype=torch.int64),
            },
            batch_size=list(shape),
        ),
        initial_state={},
        last_obs=obs[0],
    )


def redline_buffer(rollout: Rollout, capacity: int, **settings: Any) -> Contender:
    """Ours, full."""
    replay = Replay(ReplayConfig(capacity=capacity, **settings), ReplaySpec.from_rollout(rollout))
    rng = np.random.default_rng(0)
    for _ in range(-(-capacity // (LENGTH * NUM_ENVS))):
        replay.add(rollout)

    batch = replay.sample(BATCH, rng)

    def sample() -> None:
        nonlocal batch
        batch = replay.sample(BATCH, rng, beta=0.5, out=batch)
        if settings.get("prioritized"):
            replay.update_priorities(batch["index"], torch.rand(BATCH))

    return Contender(lambda: replay.add(rollout), sample, replay.nbytes / capacity)


def sb3_buffer(rollout: Rollout, capacity: int) -> Contender:
    """Stable-Baselines3's, full. It takes one step of all environments at a time."""
    from stable_baselines3.common.buffers import ReplayBuffer

    obs, action = rollout["obs"].numpy(), rollout["action"].numpy()
    high = 255 if obs.dtype == np.uint8 else np.inf
    low = 0 if obs.dtype == np.uint8 else -np.inf
    discrete = action.ndim == 2
    buffer = ReplayBuffer(
        capacity,
        gymnasium.spaces.Box(low, high, obs.shape[2:], obs.dtype.type),
        gymnasium.spaces.Discrete(6)
        if discrete
        else gymnasium.spaces.Box(-1, 1, action.shape[2:], np.float32),
        device="cpu",
        n_envs=NUM_ENVS,
    )
    following = np.concatenate([obs[1:], rollout["final_obs"][-1:].numpy()])
    reward, done = rollout["reward"].numpy(), rollout["truncated"].numpy().astype(np.float32)
    infos: list[dict[str, Any]] = [{} for _ in range(NUM_ENVS)]

    def insert() -> None:
        for t in range(LENGTH):
            buffer.add(obs[t], following[t], action[t], reward[t], done[t], infos)

    for _ in range(-(-capacity // (LENGTH * NUM_ENVS))):
        insert()
    arrays = (value for value in vars(buffer).values() if isinstance(value, np.ndarray))
    size = sum(array.nbytes for array in arrays)
    return Contender(insert, lambda: buffer.sample(BATCH), size / capacity)


def torchrl_buffer(rollout: Rollout, capacity: int) -> Contender:
    """The prioritized one of torchrl, full, with what its loaders need for one-step targets."""
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6, beta=0.5, storage=LazyTensorStorage(capacity), batch_size=BATCH
    )
    steps = rollout.steps
    following = torch.cat([rollout["obs"][1:], rollout["final_obs"][-1:]])
    rows = TensorDict(
        {
            "obs": steps["obs"],
            "action": steps["action"],
            "td_error": torch.ones(steps.batch_size),
            "next": TensorDict(
                {"obs": following, "reward": steps["reward"], "done": steps["truncated"]},
                batch_size=steps.batch_size,
            ),
        },
        batch_size=steps.batch_size,
    ).reshape(-1)
    leaves = [leaf for leaf in rows.values(True, True) if isinstance(leaf, torch.Tensor)]
    size = sum(leaf.nbytes for leaf in leaves) / rows.shape[0]

    def sample() -> None:
        batch = buffer.sample()
        batch["td_error"] = torch.rand(BATCH)
        buffer.update_tensordict_priority(batch)

    for _ in range(-(-capacity // (LENGTH * NUM_ENVS))):
        buffer.extend(rows)
    return Contender(lambda: buffer.extend(rows), sample, size)


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
    for operation, scale in (("insert", LENGTH * NUM_ENVS), ("sample", BATCH)):
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
    atari, cheetah = atari_rollout(rng), cheetah_rollout(rng)
    small = capacity * 10
    print(HEADER)
    results: list[Result] = []
    for name, rollout, size, stack in (
        ("Atari stacks, frame-deduplicating", atari, capacity, 4),
        ("Atari stacks, plain", atari, capacity, 1),
        ("HalfCheetah", cheetah, small, 1),
    ):
        settings: dict[str, Any] = {"frame_stack": stack}
        if "stable_baselines3" not in skipped:
            ours = redline_buffer(rollout, size, **settings)
            other = sb3_buffer(rollout, size)
            results += compare(f"{name}, uniform, SB3", ours, other, pairs, seconds)
            del ours, other
        if "torchrl" not in skipped:
            ours = redline_buffer(rollout, size, prioritized=True, **settings)
            other = torchrl_buffer(rollout, size)
            results += compare(f"{name}, prioritized, torchrl", ours, other, pairs, seconds)
            del ours, other
    return results


def resident() -> None:
    """Fill a deduplicating buffer of a million Atari steps and ask the system what it takes."""

    def resident_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    rollout = atari_rollout(np.random.default_rng(0))
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
        replay.add(rollout)
    print(
        f"1,000,000 transitions: {(resident_bytes() - before) / 1e9:.3f} GB resident, "
        f"{replay.nbytes / 1e9:.3f} GB by arithmetic, filled in "
        f"{time.perf_counter() - start:.0f} s; episodes of {LENGTH} steps"
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

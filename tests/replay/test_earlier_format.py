"""Snapshots of format 1 still load, and give the batches that they gave.

Format 1 stored every observation once, with links to true last observations, and the queue
of a uniform sampler in any case. `fixtures/` was written with Redline 0.1.0 by
`python -m tests.replay.test_earlier_format`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from redline.replay import Replay, ReplayConfig, ReplaySpec
from tests.replay.streams import Stream

FIXTURES = Path(__file__).parent / "fixtures"
SEQUENCES = {"sequence_length": 3, "burn_in": 1, "state_interval": 4}
# Name -> settings, and the stream's frames, rate of idle rows, and rollouts added.
CASES: dict[str, tuple[dict[str, Any], int, float, int]] = {
    "plain": ({}, 1, 0.0, 30),
    "idle": ({"n_step": 3, "extras": ("log_prob",)}, 1, 0.2, 30),
    "partly_filled": ({}, 1, 0.0, 3),
    "prioritized": ({"prioritized": True, "n_step": 2}, 1, 0.1, 30),
    "frames": ({"frame_stack": 3, "n_step": 2}, 3, 0.1, 30),
    "sequences": ({**SEQUENCES, "prioritized": True, "n_step": 2}, 1, 0.1, 30),
}


def filled(case: str) -> tuple[Replay, Stream]:
    """A replay that was added to, and whose priorities were updated."""
    settings, frames, idle_rate, rollouts = CASES[case]
    stream = Stream(7, frames=frames, end_rate=0.2, idle_rate=idle_rate, break_rate=0.1)
    rollout = stream.rollout(4)
    config = ReplayConfig(capacity=40, gamma=0.9, chunk_bytes=4096, **settings)
    replay = Replay(config, ReplaySpec.from_rollout(rollout, config.extras))
    replay.add(rollout)
    for _ in range(rollouts):
        replay.add(stream.rollout(4))
    if config.prioritized:
        index = drawn(replay, 0)["index"]
        priority = np.random.default_rng(1).exponential(size=len(index))
        replay.update_priorities(torch.from_numpy(index), torch.from_numpy(priority))
    return replay, stream


def drawn(replay: Replay, seed: int) -> dict[str, Any]:
    """A batch as arrays."""
    batch = replay.sample(32, np.random.default_rng(seed), beta=0.5)
    if hasattr(batch, "keys"):
        return {key: value.numpy() for key, value in batch.items()}
    steps = {key: value.numpy() for key, value in batch.steps.items()}
    state = {key: value.numpy() for key, value in batch.initial_state.items()}
    return {**steps, **state, "index": batch.index.numpy(), "weight": batch.weight.numpy()}


def after_load(replay: Replay, stream: Stream) -> list[dict[str, Any]]:
    """What is drawn from it, and again after more was added, around the ring's end."""
    batches = [drawn(replay, 5)]
    for seed in range(4):
        replay.add(stream.rollout(4))
        batches.append(drawn(replay, seed))
    return batches


@pytest.mark.parametrize("case", CASES)
def test_an_earlier_snapshot_continues_as_it_would_have(case: str, tmp_path: Path) -> None:
    replay, stream = filled(case)
    replay.clear()
    replay.load(FIXTURES / case / "snapshot")
    replay.save(tmp_path / "again")
    batches = after_load(replay, stream)
    with np.load(FIXTURES / case / "batches.npz") as expected:
        names = {f"{i}/{key}" for i, batch in enumerate(batches) for key in batch}
        assert names == set(expected.files)
        for name in names:
            number, key = name.split("/")
            value, wanted = batches[int(number)][key], expected[name]
            if key == "weight":  # was divided by the buffer's largest, not the batch's
                assert np.allclose(value, wanted / wanted.max(), rtol=1e-6, atol=0.0)
            else:
                assert np.array_equal(value, wanted), name
    again, _ = filled(case)
    again.load(tmp_path / "again")
    first = drawn(again, 5)
    assert all(np.array_equal(first[key], batches[0][key]) for key in first)


def main() -> None:
    """Write the fixtures; to be run with the code that wrote format 1."""
    for case in CASES:
        replay, stream = filled(case)
        replay.save(FIXTURES / case / "snapshot")
        batches = after_load(replay, stream)
        arrays = {f"{i}/{key}": v for i, batch in enumerate(batches) for key, v in batch.items()}
        np.savez_compressed(FIXTURES / case / "batches.npz", **arrays)


if __name__ == "__main__":
    main()

"""Save and load: bit for bit, at the cost of what changed, and damage is found."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from redline.errors import ConfigError, CorruptCheckpointError, IncompatibleCheckpointError
from redline.replay import Replay, ReplayConfig, ReplaySpec, verify_snapshot
from redline.replay.snapshot import MANIFEST, SavedFile
from redline.replay.storage import Arena, ArrayPlan, StoredArray
from tests.replay.streams import Stream

KINDS = [
    {"prioritized": prioritized, "frame_stack": frames, **sequence}
    for prioritized in (False, True)
    for frames in (1, 3)
    for sequence in ({}, {"sequence_length": 3, "burn_in": 1, "state_interval": 4})
]


@pytest.mark.parametrize(
    ("row_bytes", "start", "stop", "chunks"),
    [(8, 0, 10, {0}), (8, 511, 513, {0, 1}), (8, 512, 512, set()), (6000, 1, 2, {1, 2})],
)
def test_the_chunks_that_are_written_are_recorded(
    row_bytes: int, start: int, stop: int, chunks: set[int]
) -> None:
    """Chunks of 4096 bytes: row 511 of 8 bytes is the first's last, row 1 of 6000 spans two."""
    plan = ArrayPlan(name="a", rows=1000, shape=(row_bytes,), dtype=torch.uint8)
    for whole in (True, False):
        tensor = torch.zeros(1000, row_bytes, dtype=torch.uint8)
        array = StoredArray(plan, tensor, rows=1000, chunk_bytes=4096)
        if whole:
            array.touch(start, stop)
        else:
            array.touch_rows(np.arange(start, stop, dtype=np.int32))
        assert set(np.flatnonzero(array.changed).tolist()) == chunks
        assert set(np.flatnonzero(array.written).tolist()) == chunks


def make(capacity: int = 64, seed: int = 0, **settings_: Any) -> tuple[Replay, Stream]:
    stream = Stream(seed, frames=3, end_rate=0.2, idle_rate=0.1, break_rate=0.1)
    rollout = stream.rollout(4)
    config = ReplayConfig(capacity=capacity, n_step=2, **settings_)
    replay = Replay(config, ReplaySpec.from_rollout(rollout))
    replay.add(rollout)
    return replay, stream


def draw(replay: Replay, seed: int) -> dict[str, torch.Tensor]:
    batch = replay.sample(40, np.random.default_rng(seed), beta=0.5)
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        return dict(batch.items())
    return {
        **dict(batch.steps.items()),
        **batch.initial_state,
        "index": batch.index,
        "weight": batch.weight,
    }


def work(replay: Replay, stream: Stream, rollouts: int) -> list[dict[str, torch.Tensor]]:
    """Add, draw, and give priorities back, as a training loop does."""
    batches = []
    for i in range(rollouts):
        replay.add(stream.rollout(4))
        batches.append(draw(replay, i))
        if replay.config.prioritized:
            priority = np.random.default_rng(i).exponential(size=40)
            replay.update_priorities(batches[-1]["index"], torch.from_numpy(priority))
    return batches


def equal(a: list[dict[str, torch.Tensor]], b: list[dict[str, torch.Tensor]]) -> bool:
    return all(
        x.keys() == y.keys() and all(torch.equal(x[key], y[key]) for key in x)
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_continues_bit_for_bit(kind: dict[str, Any], tmp_path: Path) -> None:
    """Fault 27: a checkpoint without replay, or one that nothing loads."""
    replay, stream = make(**kind)
    work(replay, stream, 25)  # the ring has wrapped
    files = replay.save(tmp_path / "a")
    check_files(tmp_path / "a", files)
    other, _ = make(seed=1, **kind)  # whatever it held is replaced
    work(other, Stream(9, frames=3), 3)
    other.load(tmp_path / "a")
    rng = np.random.default_rng(5)
    state = rng.bit_generator.state
    following = [stream.rollout(4) for _ in range(10)]
    results = []
    for buffer in (replay, other):
        rng.bit_generator.state = state
        batches = []
        for i, rollout in enumerate(following):
            buffer.add(rollout)
            batches.append(draw(buffer, i))
            if buffer.config.prioritized:
                buffer.update_priorities(
                    batches[-1]["index"], torch.from_numpy(rng.exponential(size=40))
                )
        results.append(batches)
    assert equal(*results)
    # The two write the very same files.
    saves = [r.save(tmp_path / name) for r, name in ((replay, "b"), (other, "c"))]
    assert [f.name for f in saves[0]] == [f.name for f in saves[1]]


def check_files(directory: Path, files: list[SavedFile]) -> None:
    assert {file.name for file in files} == {path.name for path in directory.iterdir()}
    for file in files:
        content = (directory / file.name).read_bytes()
        assert len(content) == file.size_bytes
        assert hashlib.sha256(content).hexdigest() == file.sha256
    verify_snapshot(directory)


@given(seed=st.integers(0, 2**20), steps=st.lists(st.integers(0, 3), min_size=2, max_size=5))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_chain_of_incremental_saves_equals_a_full_one(
    seed: int, steps: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("chain")
    replay, stream = make(capacity=512, seed=seed, frame_stack=3, chunk_bytes=4096)
    previous = None
    for number, rollouts in enumerate(steps):
        work(replay, stream, rollouts)
        if number == 2:  # a resumed process goes on with the chain
            resumed, _ = make(capacity=512, frame_stack=3, chunk_bytes=4096)
            assert previous is not None
            replay.save(root / "resume", previous)
            resumed.load(root / "resume")
            replay, previous = resumed, root / "resume"
        directory = root / str(number)
        files = replay.save(directory, previous)
        check_files(directory, files)
        full = replay.save(root / f"full{number}")
        assert [f[:3] for f in files] == [f[:3] for f in full]
        previous = directory
    shutil.rmtree(root)


def test_a_save_costs_what_changed(tmp_path: Path) -> None:
    """A large, full buffer, a small change: few bytes are new, the rest is linked."""
    stream = Stream(0, num_envs=4, frames=1, end_rate=0.01)
    rollout = stream.rollout(8)
    config = ReplayConfig(capacity=80_000, chunk_bytes=4096)
    replay = Replay(config, ReplaySpec.from_rollout(rollout))
    for _ in range(2510):  # the ring is full
        replay.add(rollout)
    first = replay.save(tmp_path / "a")
    replay.add(rollout)
    second = replay.save(tmp_path / "b", previous=tmp_path / "a")
    new = sum(f.size_bytes for f in second if f.is_new and f.name != MANIFEST)
    total = sum(f.size_bytes for f in first)
    assert total > 1_500_000
    # Each array's changed rows lie in one or two chunks; the host arrays are small.
    assert new < 20 * 4096 + 8 * 20_000
    check_files(tmp_path / "b", second)
    linked = next(f for f in second if not f.is_new)
    assert (tmp_path / "a" / linked.name).stat().st_ino == (
        tmp_path / "b" / linked.name
    ).stat().st_ino
    # Removing the old checkpoint does no harm to the new one.
    shutil.rmtree(tmp_path / "a")
    verify_snapshot(tmp_path / "b")
    # An unused buffer costs next to nothing, however large.
    empty = Replay(config, ReplaySpec.from_rollout(rollout)).save(tmp_path / "empty")
    assert sum(f.size_bytes for f in empty) < 300_000


def test_priorities_changed_between_saves_are_saved(tmp_path: Path) -> None:
    """Nothing was added in between: only what `update_priorities` wrote is new."""
    replay, stream = make(prioritized=True)
    replay.add(stream.rollout(8))
    replay.save(tmp_path / "a")
    index = replay.sample(4, np.random.default_rng(0))["index"]
    replay.update_priorities(index, torch.tensor([5.0, 6.0, 7.0, 8.0]))
    replay.save(tmp_path / "b", tmp_path / "a")
    other, _ = make(prioritized=True)
    other.load(tmp_path / "b")
    for name, array in replay._arena.arrays.items():
        assert torch.equal(array.tensor, other._arena.arrays[name].tensor), name


def test_what_crosses_chunks_is_saved(tmp_path: Path) -> None:
    """Writes longer than a chunk, and around the ring's end; compared byte by byte."""
    stream = Stream(0, frames=3, end_rate=0.3)
    rollouts = [stream.rollout(700) for _ in range(4)]
    config = ReplayConfig(capacity=4000, frame_stack=3, chunk_bytes=4096)
    spec = ReplaySpec.from_rollout(rollouts[0])
    replay, other = Replay(config, spec), Replay(config, spec)
    for number, rollout in enumerate(rollouts):
        replay.add(rollout)
        replay.save(tmp_path / str(number), tmp_path / str(number - 1))
        other.load(tmp_path / str(number))
        for name, array in replay._arena.arrays.items():
            assert torch.equal(array.tensor, other._arena[name]), name


def test_a_save_does_not_alter_an_earlier_one(tmp_path: Path) -> None:
    """Links share content: a file in use must never be written into."""
    replay, stream = make(capacity=64, prioritized=True)
    replay.save(tmp_path / "a")
    before = {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()}
    replay.save(tmp_path / "b", tmp_path / "a")
    work(replay, stream, 5)
    replay.save(tmp_path / "b", tmp_path / "a")  # the same directory again
    assert {p.name: p.read_bytes() for p in (tmp_path / "a").iterdir()} == before


def test_growing_pools_are_saved(tmp_path: Path) -> None:
    """Buffers of other sizes than at the start: many short episodes."""
    stream = Stream(0, frames=3, end_rate=0.9)
    rollout = stream.rollout(10)
    spec = ReplaySpec.from_rollout(rollout)
    for storage in ("memory", "memmap"):
        config = ReplayConfig(
            capacity=400, frame_stack=3, storage=storage, storage_dir=tmp_path / "disk"
        )
        replay, other = Replay(config, spec), Replay(config, spec)
        size = replay.nbytes
        for _ in range(40):
            replay.add(stream.rollout(10))
        assert replay.nbytes > size
        replay.save(tmp_path / storage)
        other.load(tmp_path / storage)
        assert equal([draw(replay, 0)], [draw(other, 0)])
        assert other.nbytes == replay.nbytes


def as_on_a_device(arena: Arena, plan: ArrayPlan, config: ReplayConfig) -> tuple[Tensor, None]:
    """No room for growth, as on a device, though in main memory."""
    del arena, config
    return torch.zeros((plan.rows, *plan.shape), dtype=plan.dtype), None


@pytest.mark.parametrize("version", ["present", "earlier"])
def test_frames_go_where_nothing_is_reserved(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk in main memory held the rows reserved for growth, which no array on a device has.

    Version 0.2 saved the one chunk of 4096 bytes at the length that was reserved. Now it ends with
    the rows that are in use, 4 bytes each.
    """
    stream = Stream(0, frames=3, end_rate=0.05)
    rollout = stream.rollout(10)
    config = ReplayConfig(capacity=80, frame_stack=3, chunk_bytes=4096)
    spec = ReplaySpec.from_rollout(rollout)
    replay = Replay(config, spec)
    replay.add(rollout)
    if version == "earlier":
        with monkeypatch.context() as earlier:
            earlier.setattr(StoredArray, "chunk_range", whole_chunk)
            replay.save(tmp_path / "a")
    else:
        replay.save(tmp_path / "a")
    with monkeypatch.context() as device:
        device.setattr(Arena, "_allocate", as_on_a_device)
        there = Replay(config, spec)
        there.load(tmp_path / "a")
        assert equal([draw(replay, 0)], [draw(there, 0)])
        there.save(tmp_path / "b", tmp_path / "a")
    back = Replay(config, spec)
    for name in ("a", "b"):
        back.load(tmp_path / name)
        assert equal([draw(replay, 0)], [draw(back, 0)])
    files = back.save(tmp_path / "c", tmp_path / "b")
    sizes = {file.name[:2]: file.size_bytes for file in files}
    assert sizes["00"] == replay._arena.arrays["obs/frames"].rows * 4


def whole_chunk(array: StoredArray, chunk: int) -> tuple[int, int]:
    """What a chunk was until version 0.2: up to the end of what is reserved."""
    total = array.tensor.shape[0] * array.row_bytes
    return chunk * array.chunk_bytes, min((chunk + 1) * array.chunk_bytes, total)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "manifest", "torn manifest"])
def test_damage_is_found_and_leaves_the_buffer_empty(damage: str, tmp_path: Path) -> None:
    replay, stream = make(prioritized=True)
    work(replay, stream, 5)
    files = replay.save(tmp_path / "a")
    victim = tmp_path / "a" / files[0].name
    manifest = tmp_path / "a" / MANIFEST
    content = victim.read_bytes()
    if damage == "flip":
        victim.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "truncate":
        victim.write_bytes(content[:-1])
    elif damage == "remove":
        victim.unlink()
    elif damage == "manifest":
        manifest.write_text(manifest.read_text().replace('"head": ', '"head": 1'))
    else:
        manifest.write_bytes(manifest.read_bytes()[:-30])
    named = MANIFEST if "manifest" in damage else victim.name
    with pytest.raises(CorruptCheckpointError, match=named):
        verify_snapshot(tmp_path / "a")
    other, _ = make(prioritized=True)
    with pytest.raises(CorruptCheckpointError, match=named):
        other.load(tmp_path / "a")
    if "manifest" not in damage:
        assert len(other) == 0
        with pytest.raises(ConfigError, match="nothing to draw"):
            other.sample(1, np.random.default_rng(0))
        # It can be used again, e.g. for the checkpoint before.
        replay.save(tmp_path / "b")
        other.load(tmp_path / "b")
        assert equal([draw(replay, 0)], [draw(other, 0)])


def test_another_layout_is_refused(tmp_path: Path) -> None:
    replay, _ = make()
    replay.save(tmp_path / "a")
    for settings_ in (
        {"capacity": 32},
        {"frame_stack": 3},
        {"prioritized": True},
        {"sequence_length": 2, "state_interval": 4},
    ):
        other, _ = make(**settings_)
        with pytest.raises(IncompatibleCheckpointError, match="Resume with the settings"):
            other.load(tmp_path / "a")
        assert other.head == 4
    manifest = tmp_path / "a" / MANIFEST
    outer = json.loads(manifest.read_text())
    outer["content"]["format_version"] = 99
    body = json.dumps(outer["content"], sort_keys=True).encode()
    outer["sha256"] = hashlib.sha256(body).hexdigest()
    manifest.write_text(json.dumps(outer))
    with pytest.raises(IncompatibleCheckpointError, match="version 99"):
        replay.load(tmp_path / "a")


def test_another_chunk_size_still_loads(tmp_path: Path) -> None:
    replay, stream = make(capacity=2000, chunk_bytes=4096)
    work(replay, stream, 30)
    replay.save(tmp_path / "a")
    other, _ = make(capacity=2000, chunk_bytes=10_000)
    other.load(tmp_path / "a")
    assert equal([draw(replay, 0)], [draw(other, 0)])
    check_files(tmp_path / "b", other.save(tmp_path / "b", tmp_path / "a"))


def test_clear_forgets_everything(tmp_path: Path) -> None:
    replay, stream = make(prioritized=True, frame_stack=3)
    work(replay, stream, 10)
    replay.clear()
    assert len(replay) == 0
    fresh, _ = make(prioritized=True, frame_stack=3)
    fresh.clear()
    rollouts = [Stream(4, frames=3).rollout(4)]
    for buffer in (replay, fresh):
        buffer.add(rollouts[0])
    assert equal([draw(replay, 0)], [draw(fresh, 0)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head": 2**70}, "head is"),
        ({"head": "x"}, "head is 'x'"),
        ({"head": -5}, "head is -5"),
        ({"oldest": 2**40}, "oldest is"),
        (None, "bytes by its shape"),
    ],
)
def test_signed_counts_and_shapes_are_checked(
    change: dict[str, Any] | None, said: str, tmp_path: Path
) -> None:
    """Some ended in raw errors or asked for terabytes, others ran on without a word."""
    replay, stream = make()
    work(replay, stream, 4)
    replay.save(tmp_path / "a")
    path = tmp_path / "a" / MANIFEST
    body = json.loads(path.read_text())["content"]
    if change is None:
        next(iter(body["host_arrays"].values()))["shape"] = [2**40]
    else:
        body["header"].update(change)
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps({"sha256": digest, "content": body}))
    with pytest.raises(CorruptCheckpointError, match=said):
        replay.load(tmp_path / "a")

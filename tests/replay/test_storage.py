"""What there is to use, read from /proc and the control groups, and the refusal."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import redline.replay.storage as storage_module
from redline import devices
from redline.devices import DeviceKind
from redline.errors import ConfigError, DeviceError
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.spec import LeafSpec
from redline.replay.storage import available_disk, available_memory
from tests.replay.streams import Stream

ATARI = ReplaySpec(
    num_envs=8,
    obs={(): LeafSpec((4, 84, 84), torch.uint8)},
    action={(): LeafSpec((), torch.int64)},
    extras={},
    state={},
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_machine_memory(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert available_memory(tmp_path)[0] == 4000 * 1024


def test_control_group_version_2(tmp_path: Path) -> None:
    """The tightest group above the process counts; cache that can be dropped is free."""
    write(tmp_path / "proc/meminfo", "MemAvailable: 40000000 kB\n")
    write(tmp_path / "proc/self/cgroup", "0::/job/task\n")
    group = tmp_path / "sys/fs/cgroup/job"
    write(group / "memory.max", "1000000\n")
    write(group / "memory.current", "700000\n")
    write(group / "memory.stat", "anon 1\ninactive_file 200000\n")
    write(group / "task/memory.max", "max\n")
    write(group / "task/memory.current", "600000\n")
    free, source = available_memory(tmp_path)
    assert free == 1_000_000 - (700_000 - 200_000)
    assert "memory.max" in source
    assert "job" in source


def test_control_group_version_1(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", "MemAvailable: 40000000 kB\n")
    write(tmp_path / "proc/self/cgroup", "5:cpu,cpuacct:/\n3:memory:/box\n")
    group = tmp_path / "sys/fs/cgroup/memory/box"
    write(group / "memory.limit_in_bytes", "500000\n")
    write(group / "memory.usage_in_bytes", "100000\n")
    assert available_memory(tmp_path)[0] == 400_000


def test_without_proc_the_machine_is_asked(tmp_path: Path) -> None:
    assert available_memory(tmp_path)[0] > 2**20


def test_a_buffer_that_cannot_fit_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fault 28: elsewhere found out hours later. The message carries the arithmetic."""
    monkeypatch.setattr(storage_module, "available_memory", lambda: (int(12e9), "a test"))
    with pytest.raises(ConfigError) as refusal:
        Replay(ReplayConfig(capacity=1_000_000), ATARI)
    message = str(refusal.value)
    for part in ("capacity=1,000,000", "GB", "bytes (obs", "12.00 GB", "a test", "memmap"):
        assert part in message
    most = int(message.split("at most ")[1].split(" ")[0].rstrip(",").replace(",", ""))
    assert 400_000 < most < 430_000
    Replay(ReplayConfig(capacity=most - 1000), ATARI)
    Replay(ReplayConfig(capacity=1_000_000, frame_stack=4), ATARI)

    monkeypatch.setattr(storage_module, "available_disk", lambda _: (int(1e9), "a test"))
    with pytest.raises(ConfigError, match="larger disk"):
        Replay(ReplayConfig(capacity=1_000_000, storage="memmap", storage_dir=tmp_path), ATARI)


def test_ranks_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """FAULTS 28: what one process was refused, two ranks took in two halves."""
    config = ReplayConfig(capacity=1000)
    needed = Replay(config, ATARI).nbytes
    monkeypatch.setattr(storage_module, "available_memory", lambda: (2 * needed - 2, "a test"))
    Replay(config, ATARI)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(ConfigError, match="a test, for each of 2 ranks"):
        Replay(config, ATARI)
    monkeypatch.setattr(storage_module, "available_memory", lambda: (2 * needed, "a test"))
    Replay(config, ATARI)


def test_growth_beyond_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It named the frames to be added as the capacity, and advised that many less."""
    from tests.replay.streams import Stream

    stream = Stream(0, frames=3, end_rate=1.0)
    rollout = stream.rollout(16)
    config = ReplayConfig(capacity=400, frame_stack=3)
    replay = Replay(config, ReplaySpec.from_rollout(rollout))
    monkeypatch.setattr(storage_module, "available_memory", lambda: (10, "a test"))
    with pytest.raises(ConfigError, match="ends of episodes") as refusal:
        replay.add(rollout)
    message = str(refusal.value)
    assert message.startswith("replay of capacity=400 transitions must grow by ")
    assert "x 4 bytes (obs/frames)" in message
    assert "0.00 GB is available (a test). Use a smaller capacity, or storage='memmap'." in message


PICTURES = ReplaySpec(
    num_envs=2,
    obs={(): LeafSpec((80, 80), torch.uint8)},
    action={(): LeafSpec((), torch.int64)},
    extras={},
    state={},
)


def test_short_episodes_that_may_not_fit_are_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 transitions of 6,400 bytes: 65 rows of 2, a zero and 2 ends are 133 frames at first.

    With an end in each row they are 131 + 128 + 2 = 261; the rest is 128 x (4 + 8 + 4 + 1) bytes.
    """
    config = ReplayConfig(capacity=128)
    rest = Replay(config, PICTURES).nbytes - 133 * 6_400
    assert rest >= 128 * 17
    most = 261 * 6_400 + rest
    monkeypatch.setattr(storage_module, "available_memory", lambda: (most, "a test"))
    assert Replay(config, PICTURES).caution is None
    monkeypatch.setattr(storage_module, "available_memory", lambda: (most - 1, "a test"))
    caution = Replay(config, PICTURES).caution
    assert caution is not None
    assert "an end of an episode in every 64 transitions" in caution
    assert "A capacity of at most 127 fits" in caution


def test_a_buffer_grows_to_what_short_episodes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half as much again, each time, went past it, and was refused where that did not fit."""
    config = ReplayConfig(capacity=128)
    replay = Replay(config, PICTURES)
    free = 128 * 6_400  # the frames that are missing, and no more
    grown: list[int] = []

    def available() -> tuple[int, str]:
        return free - (replay.nbytes - begun), "a test"

    begun = replay.nbytes
    monkeypatch.setattr(storage_module, "available_memory", available)
    store: Any = replay._obs[()]
    for row in range(64):
        store.take(np.full(2, row), "last")
        grown.append(replay.nbytes - begun)
    assert grown[-1] <= free


def test_memory_is_committed_as_it_is_used() -> None:
    """Reserved address space costs nothing until rows are written."""

    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    before = resident()
    replay = Replay(ReplayConfig(capacity=100_000, frame_stack=4), ATARI)
    assert replay.nbytes > 700e6
    assert resident() - before < 50e6


def test_a_missing_device_is_named() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(DeviceError, match="no CUDA device"):
        Replay(ReplayConfig(capacity=100, storage="device", device="cuda"), ATARI)


def test_a_device_without_doubles_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws and priorities are doubles, which MPS refuses one by one, with a TypeError."""

    class WithoutDoubles(DeviceKind):
        has_float64 = False

    monkeypatch.setitem(devices._KINDS, "meta", WithoutDoubles())
    with pytest.raises(DeviceError, match=r"device='meta'.*float64.*Use storage='memory'"):
        Replay(ReplayConfig(capacity=100, storage="device", device="meta"), ATARI)


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="storage_dir"):
        Replay(ReplayConfig(capacity=100, storage="memmap", storage_dir=tmp_path / "file"), ATARI)


def test_disk(tmp_path: Path) -> None:
    assert available_disk(tmp_path)[0] > 0


def test_a_disk_that_takes_no_such_file_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of the file was set without a word for what the system answers."""
    opened: list[int] = []

    def refuse(descriptor: int, size: int) -> None:
        opened.append(descriptor)
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))

    monkeypatch.setattr(os, "ftruncate", refuse)
    rollout = Stream(0).rollout(4)
    config = ReplayConfig(capacity=64, storage="memmap", storage_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"cannot hold .* File too large.*larger disk"):
        Replay(config, ReplaySpec.from_rollout(rollout))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])  # it is given back

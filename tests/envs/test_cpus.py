"""Counting cores, pinning threads to them, and scheduling them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from redline.envs import cpus
from redline.envs.cpus import batch_scheduling, first_core_to_pin
from redline.usable_cores import usable_cpus


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ({}, 64),
    ],
)
def test_cores_are_counted_by_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    """FAULTS 25: all cores taken, whatever the cpuset or control group allows."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(100, 164)))
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert usable_cpus(tmp_path) == expected


@pytest.mark.parametrize(
    ("own", "whole", "quota", "expected"),
    [
        (8, 8, "max", 2),
        (8, 8, "600000", 1),  # 6 cores' time over 4 ranks
        (3, 3, "max", 1),
        (2, 8, "max", 2),  # torchrun gave each rank 2 of 8
        (32, 64, "max", 16),  # two ranks on each half of the machine
    ],
)
def test_ranks_on_one_machine_share_its_cores(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    own: int,
    whole: int,
    quota: str,
    expected: int,
) -> None:
    """FAULTS 25: each of 4 ranks counted 8 cores as its own, 32 threads in all."""
    parent = os.getppid()
    monkeypatch.setattr(
        "os.sched_getaffinity", lambda pid: set(range(whole if pid == parent else own))
    )
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # alone it says nothing of ranks
    alone = usable_cpus(tmp_path)
    assert alone == min(own, 6 if quota != "max" else own)
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("RANK", "5")
    assert usable_cpus(tmp_path) == expected


@pytest.mark.parametrize(("world", "here"), [("", "4"), ("2", "0"), ("2", ""), ("many", "4")])
def test_variables_that_say_nothing_of_ranks_are_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: str, here: str
) -> None:
    """As `export WORLD_SIZE=$SLURM_NTASKS` leaves them outside a job."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", world)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert usable_cpus(tmp_path) == 8


@pytest.mark.parametrize(
    ("membership", "files", "expected"),
    [
        ("0::/a.slice/b.scope\n", {"a.slice/b.scope/cpu.max": "200000 100000"}, 2),
        ("0::/a.slice/b.scope\n", {"a.slice/cpu.max": "300000 100000"}, 3),
        (
            "0::/a.slice/b.scope\n",
            {"a.slice/cpu.max": "300000 100000", "a.slice/b.scope/cpu.max": "max 100000"},
            3,
        ),
        ("0::/a.slice\n", {"other.slice/cpu.max": "200000 100000"}, 64),
        ("0::/not/seen/here\n", {"cpu.max": "200000 100000"}, 2),
        (
            "4:memory:/box\n2:cpu,cpuacct:/job/task\n0::/\n",
            {
                "cpu/job/cpu.cfs_quota_us": "400000",
                "cpu/job/cpu.cfs_period_us": "100000",
                "cpu/box/cpu.cfs_quota_us": "100000",
                "cpu/box/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        ("no such line", {}, 64),
    ],
)
def test_the_quota_of_each_group_above_this_process_counts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    membership: str,
    files: dict[str, str],
    expected: int,
) -> None:
    """Only the root was asked, so that 64 workers met on 2 cores' time."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(100, 164)))
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert usable_cpus(tmp_path / "cgroup", tmp_path / "membership") == expected


@pytest.mark.parametrize(
    ("threads", "cores", "allowed", "first"),
    [
        (4, 4, [0, 1, 2, 3], 0),
        (2, 4, [0, 1, 2, 3], -1),  # other pools would take the same two
        (8, 4, [0, 1, 2, 3], -1),
        (2, 4, [2, 3], -1),  # cores 0 and 1 are somebody else's
        (2, 4, [0, 1], -1),
        (4, 4, [], -1),  # the system does not say
        (1, None, [], -1),
    ],
)
def test_threads_are_pinned_where_they_have_every_core_to_themselves(
    monkeypatch: pytest.MonkeyPatch,
    threads: int,
    cores: int | None,
    allowed: list[int],
    first: int,
) -> None:
    monkeypatch.setattr(cpus.os, "cpu_count", lambda: cores)
    monkeypatch.setattr(cpus, "allowed_cpus", lambda: allowed)
    assert first_core_to_pin(threads) == first


def can_be_batch_scheduled() -> bool:
    """Whether this system lets plain threads be scheduled as a batch, found in one of its own."""
    found: list[bool] = []
    thread = threading.Thread(
        target=lambda: found.append(cpus._schedule_this_thread("SCHED_OTHER", "SCHED_BATCH"))
    )
    thread.start()
    thread.join()
    return found[0]


needs_batch = pytest.mark.skipif(not can_be_batch_scheduled(), reason="no batch scheduling")


def policies(looks: str, monkeypatch: pytest.MonkeyPatch, before: str | None = None) -> list[int]:
    """How a thread is scheduled within, one that it makes there, and it afterwards."""
    seen: list[int] = []
    monkeypatch.setenv("GOMP_SPINCOUNT", looks)

    def schedule() -> None:
        if before is not None:
            os.sched_setscheduler(0, getattr(os, before), os.sched_param(0))
        with batch_scheduling():
            seen.append(os.sched_getscheduler(0))
            within = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
            within.start()
            within.join()
        seen.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=schedule)
    thread.start()
    thread.join()
    return seen


@needs_batch
def test_threads_are_batch_scheduled_where_nothing_else_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a thread of its own: how it is scheduled is what this is about."""
    batch, other = os.SCHED_BATCH, os.SCHED_OTHER
    assert policies("10000", monkeypatch) == [batch, batch, other]
    assert policies("10000", monkeypatch, "SCHED_IDLE") == [os.SCHED_IDLE] * 3
    # Beside idle threads that hold a core for long, batch threads would wait for them.
    for looks in ("300000", "infinity", ""):
        assert policies(looks, monkeypatch) == [other] * 3


@needs_batch
@pytest.mark.parametrize("name", ["sched_getscheduler", "sched_setscheduler"])
def test_threads_are_plain_where_the_system_refuses(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    refused: list[str] = []

    def refuse(*arguments: object) -> None:
        refused.append(name)
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    monkeypatch.setattr(os, name, refuse)
    with batch_scheduling():
        pass
    assert refused == [name]


def test_threads_are_plain_where_there_is_one_kind_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "10000")
    monkeypatch.delattr(os, "SCHED_BATCH", raising=False)
    with batch_scheduling():
        pass

"""Cores, GPUs and memory, dealt out to slots."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from redline.envs import cpus
from redline.errors import ConfigError
from redline.launch import slots as slots_module
from redline.launch.slots import make_slots


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Cores 8 to 15 by affinity, no control group."""
    for module in (cpus, slots_module):
        monkeypatch.setattr(module, "allowed_cpus", lambda: list(range(8, 16)))
    monkeypatch.setattr(slots_module, "usable_cpus", lambda cgroup: 8)
    return tmp_path


def test_slots_have_cores_of_their_own(eight_cores: Path) -> None:
    slots = make_slots(3, cores_per_run=2, cgroup=eight_cores)
    assert [slot.cores for slot in slots] == [(8, 9), (10, 11), (12, 13)]
    assert {slot.threads for slot in slots} == {2}
    assert slots[0].environment() == {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}


def test_as_many_slots_as_fit(eight_cores: Path) -> None:
    assert len(make_slots(cores_per_run=3, cgroup=eight_cores)) == 2


def test_more_slots_than_cores_are_refused_unless_asked_for(eight_cores: Path) -> None:
    with pytest.raises(ConfigError, match="5 slots of 2 cores each need 10 cores") as caught:
        make_slots(5, cores_per_run=2, cgroup=eight_cores)
    assert "--slots 4" in str(caught.value)
    assert "--oversubscribe" in str(caught.value)
    slots = make_slots(5, cores_per_run=2, cgroup=eight_cores, oversubscribe=True)
    assert slots[4].cores == (8, 9)


def test_the_quota_of_a_control_group_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text("200000 100000")
    assert len(make_slots(cgroup=tmp_path)) == 2
    with pytest.raises(ConfigError, match="may use 2"):
        make_slots(3, cgroup=tmp_path)


def test_gpus_are_dealt_out_by_index(eight_cores: Path) -> None:
    def gpus(count: int, given: list[int]) -> list[tuple[int, ...] | None]:
        return [slot.gpus for slot in make_slots(count, gpus=given, cgroup=eight_cores)]

    assert gpus(2, [0, 1]) == [(0,), (1,)]
    assert gpus(4, [0, 3]) == [(0,), (3,), (0,), (3,)]
    assert gpus(2, [0, 1, 2, 3]) == [(0, 2), (1, 3)]
    slot = make_slots(1, gpus=[2], cgroup=eight_cores)[0]
    assert slot.environment()["CUDA_VISIBLE_DEVICES"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in make_slots(1, cgroup=eight_cores)[0].environment()


def test_memory_must_suffice_for_all_slots(eight_cores: Path) -> None:
    (eight_cores / "memory.max").write_text(str(3 * 2**30))
    assert make_slots(2, memory_gb=1.5, cgroup=eight_cores)[0].memory_bytes == 3 * 2**29
    with pytest.raises(ConfigError, match=r"2 slots of 2 GiB each need 4 GiB"):
        make_slots(2, memory_gb=2, cgroup=eight_cores)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux only")
def test_memory_of_a_session_is_measured() -> None:
    held = slots_module.held_bytes(os.getsid(0))
    assert held > 10 * 2**20
    assert slots_module.held_bytes(-1) == 0


def test_more_slots_than_memory_holds_are_refused(eight_cores: Path) -> None:
    """A thousand million slots took minutes to list."""
    with pytest.raises(ConfigError, match="slots=1000000000: 1,000,000,000 runs at a time x"):
        make_slots(10**9, oversubscribe=True, cgroup=eight_cores)

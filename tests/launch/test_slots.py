"""Cores, GPUs and memory, dealt out to slots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.command_line.launch import SweepArguments, given_options
from redline.command_line.options import parse
from redline.envs import cpus
from redline.errors import ConfigError
from redline.launch import slots as slots_module
from redline.launch.slots import make_slots
from redline.launch.sweep import LaunchOptions, launch_options
from redline.launch.sweep_file import overlaid


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
    # Every container of the machine may use all eight: on the first two they would all meet.
    found = {tuple(slot.cores for slot in make_slots(cgroup=tmp_path)) for _ in range(50)}
    assert len(found) > 1  # of 28 pairs
    assert all(0 <= first < second < 8 for (first,), (second,) in found)
    with pytest.raises(ConfigError, match="may use 2"):
        make_slots(3, cgroup=tmp_path)


def test_gpus_are_dealt_out_by_index(eight_cores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus(count: int, given: list[int]) -> list[tuple[int, ...] | None]:
        return [slot.gpus for slot in make_slots(count, gpus=given, cgroup=eight_cores)]

    assert gpus(2, [0, 1]) == [(0,), (1,)]
    assert gpus(4, [0, 3]) == [(0,), (3,), (0,), (3,)]
    assert gpus(2, [0, 1, 2, 3]) == [(0, 2), (1, 3)]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    slot = make_slots(1, gpus=[2], cgroup=eight_cores)[0]
    assert slot.environment()["CUDA_VISIBLE_DEVICES"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in make_slots(1, cgroup=eight_cores)[0].environment()


@pytest.mark.parametrize(
    ("seen", "expected"), [("3,5", "5"), ("GPU-aa, GPU-bb", "GPU-bb"), ("", "1")]
)
def test_gpus_are_among_those_that_the_launcher_sees(
    seen: str, expected: str, eight_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of GPUs 3 and 5 the second one is 5, and not 1, which is somebody else's."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    slot = make_slots(1, gpus=[1], cgroup=eight_cores)[0]
    assert slot.environment()["CUDA_VISIBLE_DEVICES"] == expected


def test_memory_must_suffice_for_all_slots(eight_cores: Path) -> None:
    (eight_cores / "memory.max").write_text(str(3 * 2**30))
    assert make_slots(2, memory_gb=1.5, cgroup=eight_cores)[0].memory_bytes == 3 * 2**29
    with pytest.raises(ConfigError, match=r"2 slots of 2 GiB each need 4 GiB"):
        make_slots(2, memory_gb=2, cgroup=eight_cores)


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("0::/job/step\n", {"job/memory.max": "4096", "job/step/memory.max": "max"}, 4096),
        ("0::/job/step\n", {"job/memory.max": "4096", "memory.max": "8192"}, 4096),
        ("3:memory:/job\n", {"memory/job/memory.limit_in_bytes": "4096"}, 4096),
    ],
)
def test_the_memory_of_each_group_above_this_process_counts(
    membership: str, limits: dict[str, str], expected: int, tmp_path: Path
) -> None:
    """A Slurm job's limit stands in a nested group; only the root was asked."""
    (tmp_path / "membership").write_text(membership)
    for name, text in limits.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    found = slots_module.usable_memory_bytes(tmp_path / "cgroup", tmp_path / "membership")
    assert found == expected


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux only")
def test_memory_of_a_session_is_measured() -> None:
    held = slots_module.held_bytes([os.getsid(0), -1])
    assert held[os.getsid(0)] > 10 * 2**20
    assert held[-1] == 0


def test_the_table_of_processes_is_read_once_for_all_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 64 limited runs each look opened the files of each process 64 times."""
    for pid, session, kib in ((10, 10, 3), (11, 10, 4), (20, 20, 5), (30, 30, 6)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a (b) c) S 1 {pid} {session} 0 -1")
        (tmp_path / str(pid) / "smaps_rollup").write_text(f"Rss: 99 kB\nPss: {kib} kB\n")
    opened: list[str] = []
    read_text = Path.read_text

    def reading(path: Path) -> str:
        opened.append(str(path.relative_to(tmp_path)))
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", reading)
    held = slots_module.held_bytes([10, 20, 40], tmp_path)
    assert held == {10: 7 * 1024, 20: 5 * 1024, 40: 0}
    stats = [f"{pid}/stat" for pid in (10, 11, 20, 30)]
    assert sorted(opened) == sorted([*stats, *(f"{p}/smaps_rollup" for p in (10, 11, 20))])


def test_more_slots_than_memory_holds_are_refused(eight_cores: Path) -> None:
    """A thousand million slots took minutes to list."""
    with pytest.raises(ConfigError, match="slots=1000000000: 1,000,000,000 runs at a time x"):
        make_slots(10**9, oversubscribe=True, cgroup=eight_cores)


@pytest.mark.parametrize("name", ["slots", "cores_per_run"])
def test_no_slots_are_refused_wherever_runs_take_place(name: str) -> None:
    """On Ray a sweep of 0 slots started nothing and reported success."""
    with pytest.raises(ConfigError, match=f"{name}=0 must be at least 1"):
        LaunchOptions(on="ray", **{name: 0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "head:6379"}, r"address='head:6379' is of a Ray cluster.*Give --on ray"),
        ({"on": "ray", "oversubscribe": True}, "oversubscribe=True is for slots of this machine"),
    ],
)
def test_what_says_nothing_where_runs_take_place_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """With an address alone everything ran on this machine."""
    base = {"env": "CartPole-v1", "total_env_steps": 100}
    with pytest.raises(ConfigError, match=message):
        redline.sweep(algorithm="ppo", base=base, out=tmp_path / "s", quiet=True, **options)
    pytest.importorskip("optuna")
    plan = {"algorithm": "ppo", "base": base, "launch": options}
    with pytest.raises(ConfigError, match=message):
        redline.tune(plan, out=tmp_path / "t", quiet=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("before", "given", "is_saved", "expected"),
    [
        ({"on": "ray", "address": "h:1"}, {"on": "local"}, False, {"on": "local"}),
        ({"oversubscribe": True}, {"on": "ray"}, False, {"on": "ray"}),
        ({"address": "h:1"}, {"slots": 2}, False, {"address": "h:1", "slots": 2}),
        ({"address": "h:1"}, {"on": "ray"}, False, {"address": "h:1", "on": "ray"}),
        ({"on": "local", "address": "h:1"}, {}, True, {"on": "local"}),
        ({"on": "local"}, {"address": "h:1"}, True, {"on": "local", "address": "h:1"}),
    ],
)
def test_runs_move_to_another_place(
    before: dict[str, Any], given: dict[str, Any], is_saved: bool, expected: dict[str, Any]
) -> None:
    """What the caller gives stays, and is refused later; what only the old place had goes."""
    assert overlaid(before, given, is_saved=is_saved) == expected


def test_a_number_is_no_list_of_gpus() -> None:
    """0 counted as none."""
    with pytest.raises(ConfigError, match="gpus=0 must be a list"):
        launch_options({"gpus": 0})
    assert launch_options({"gpus": None}).gpus == ()


def test_a_zero_on_the_command_line_is_given() -> None:
    """`--retries 0` left the file's 3."""
    parsed = parse(SweepArguments, ["a.yaml", "--retries", "0"], "sweep")
    assert given_options(parsed, ("file", "confirm")) == {"retries": 0}

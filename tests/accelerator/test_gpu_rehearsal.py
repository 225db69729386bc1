"""`benchmarks.gpu`, rehearsed on the stand-in: every part runs, is recorded, is gone on with."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu_parts import PARTS, Entries, Part, Sizes
from benchmarks.workloads import WORKLOADS, Workload

from benchmarks import gpu, gpu_parts

SMALLEST = Sizes(
    updates=2,
    rounds=1,
    share=1.0,
    num_envs=4,
    rollout_length=4,
    turns=("cudagraph", "leanrl", "eager", "cleanrl"),
    workloads=("sac", "ppo-continuous"),
    algorithms=("sac", "a2c"),
    compiled=(),
)
SMALL: dict[str, dict[str, Any]] = {
    "sac": {
        "env": "redline/Pendulum-v1", "preset": "default", "num_envs": 1, "rollout_length": 8,
        "batch_size": 8, "replay_size": 64, "replay_ratio": 1.0, "learning_starts": 8,
        "hidden_sizes": (8,),
    },
    "ppo-continuous": {
        "env": "redline/Pendulum-v1", "preset": "default", "num_envs": 2, "rollout_length": 8,
        "num_epochs": 1, "num_minibatches": 1, "hidden_sizes": (8,),
    },
}  # fmt: skip
# What the parts start as programs of their own knows no stand-in.
PROGRAM = """
import sys
assert {wanted!r} in sys.argv, sys.argv
assert "--fails" not in sys.argv
print({said!r}, file=sys.stderr)
"""


def options(out: Path, **changes: Any) -> gpu.Options:
    settings = {"sizes": SMALLEST, "in_process": True} | changes
    return gpu.Options(device="standin", out=out, **settings)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two workloads of some steps, and programs in place of the scripts; where those are."""
    for name, settings in SMALL.items():
        changes = {"settings": settings, "warmup": 16, "measured": 16, "script": f"{name}.py",
                   "script_options": ()}  # fmt: skip
        known = {part: getattr(WORKLOADS[name], part) for part in Workload.__dataclass_fields__}
        monkeypatch.setitem(WORKLOADS, name, Workload(**known | changes))
        (tmp_path / f"{name}.py").write_text(PROGRAM.format(wanted="--device", said=""))
    monkeypatch.setattr(gpu_parts, "SCRIPTS", tmp_path)
    for project, suffix, said in (
        ("leanrl", "_torchcompile", " 12.5 sps, loss\n speed:  70.3 sps, loss"),
        ("cleanrl", "", "SPS: 41"),
    ):
        (tmp_path / project).mkdir()
        for name in ("sac_continuous_action", "ppo_continuous_action"):
            program = PROGRAM.format(wanted="--total-timesteps", said=said)
            (tmp_path / project / f"{name}{suffix}.py").write_text(program)
    return tmp_path


def test_every_part_runs_and_is_recorded(tmp_path: Path, small: Path) -> None:
    peers = {name: str(small) for name in ("leanrl", "cleanrl")}
    found = gpu.run_all(options(tmp_path, peers=peers))
    assert {name: part["status"] for name, part in found["parts"].items()} == dict.fromkeys(
        PARTS, "ok"
    ), found
    values = {
        name: {key: each["value"] for key, each in part["entries"].items()}
        for name, part in found["parts"].items()
    }
    assert all(values["capture"][name]["apart"] < 1e-6 for name in SMALLEST.algorithms)
    assert values["deterministic"] == {"ppo equal to the bit": True}
    assert values["device_envs"]["ppo CartPole SPS"] > 0
    assert set(values["replay"]) == {"uniform", "prioritized"}
    assert list(values["workloads"])[:4] == [
        "sac cudagraph", "ppo-continuous cudagraph", "sac leanrl", "ppo-continuous leanrl",
    ]  # fmt: skip
    assert values["workloads"]["sac leanrl"] == 70.3
    assert values["workloads"]["ppo-continuous cleanrl"] == 41.0
    assert set(values["scripts"]) == {
        f"{name}.py{option}" for name in SMALL for option in ("", " --cudagraphs")
    }
    assert values["profiler"]["a run of ppo"]["processes"] == 1
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"].keys() == PARTS.keys()
    text = (tmp_path / "gpu.md").read_text()
    assert "## capture: ok" in text
    assert "| sac leanrl | 70.3 |" in text


def part(calls: list[str], name: str, fails: tuple[str, ...] = ()) -> Part:
    """Three entries, of which some fail when they are first asked for."""

    def measured(key: str) -> int:
        calls.append(f"{name} {key}")
        if key in fails and calls.count(f"{name} {key}") == 1:
            raise ValueError("no such kernel")
        return len(calls)

    def entries(device: str, sizes: Sizes, peers: Any) -> Entries:
        for key in "abc":
            yield key, lambda key=key: measured(key)

    return Part("", 10, entries)


def test_a_part_of_which_some_was_chosen_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other workloads are measured by a later call, and those that are there are kept."""
    calls: list[str] = []

    def entries(device: str, sizes: Sizes, peers: Any) -> Entries:
        for key in sizes.workloads:
            yield key, lambda key=key: calls.append(key)

    monkeypatch.setattr(gpu, "PARTS", {"first": Part("", 10, entries)})
    for workloads in (("sac",), ("sac", "td3"), ("td3",)):
        gpu.run_all(options(tmp_path, parts=("first",), sizes=Sizes(workloads=workloads)))
    assert calls == ["sac", "td3"]


def test_what_fails_is_recorded_and_alone_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    parts = {"first": part(calls, "first", ("b",)), "second": part(calls, "second")}
    monkeypatch.setattr(gpu, "PARTS", parts)
    chosen = options(tmp_path, parts=("first", "second"))
    found = gpu.run_all(chosen)
    assert found["parts"]["first"]["status"] == "failed"
    assert "no such kernel" in found["parts"]["first"]["entries"]["b"]["error"]
    assert "| b | failed: ValueError: no such kernel |" in (tmp_path / "gpu.md").read_text()
    assert gpu.run_all(chosen)["parts"]["first"]["status"] == "ok"
    assert [call for call in calls if "first" in call][3:] == ["first b"]
    assert len(calls) == 7
    none_left = options(tmp_path / "late", parts=("first",), limit_s=1.0)
    assert gpu.run_all(none_left)["parts"] == {}


def test_a_part_that_takes_too_long_is_stopped_with_all_it_started(tmp_path: Path) -> None:
    file = tmp_path / "child"
    command = ["sh", "-c", f"sleep 60 & echo $! > {file}; wait"]
    assert gpu._stopped_in_time(command, 3.0) == "took more than 3 s"
    child = int(file.read_text())
    for _ in range(100):
        if not _is_running(child):
            break
        time.sleep(0.02)
    assert not _is_running(child)


def test_a_part_that_crashes_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is told the part, the device, the peers and what is known."""
    program = """
import json, pathlib, sys
assert sys.argv[1:3] == ["--only", "updates"], sys.argv
assert sys.argv[5:7] == ["--device", "standin"], sys.argv
assert sys.argv[7::2] == ["--workloads", "--turns", "--leanrl"], sys.argv
assert sys.argv[12] == "there", sys.argv
into = pathlib.Path(sys.argv[sys.argv.index("--into") + 1])
assert json.loads((into / "known").read_text()) == ["b"]
(into / "entries").write_text(json.dumps({"a": {"value": 1}}) + chr(10))
sys.exit("out of memory")
"""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "gpu.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.chdir(tmp_path)
    chosen = options(tmp_path, peers={"leanrl": "there"}, in_process=False)
    entries, problem = gpu._apart("updates", chosen, 60.0, {"b": {"value": 2}})
    assert problem is not None
    assert "out of memory" in problem
    assert entries == {"a": {"value": 1}}


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_process_of_a_part_records_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `_apart` starts it; what is known is left out."""
    calls: list[str] = []
    monkeypatch.setattr(gpu, "PARTS", {"first": part(calls, "first", ("c",))})
    (tmp_path / "known").write_text('["a"]')
    gpu._only("first", options(tmp_path), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "entries").read_text().splitlines()]
    assert [list(line) for line in lines] == [["b"], ["c"]]
    assert "no such kernel" in lines[1]["c"]["error"]


def test_every_part_has_its_time_within_ten_minutes() -> None:
    assert list(PARTS)[:2] == ["capture", "workloads"]
    assert sum(part.limit_s for part in PARTS.values()) <= gpu.LIMIT_S < 600

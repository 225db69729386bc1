"""`benchmarks.gpu`, rehearsed on the stand-in: every part runs, is recorded, is gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.gpu_parts import PARTS, Part, Sizes

from benchmarks import gpu, gpu_parts

SMALLEST = Sizes(
    updates=3,
    rounds=1,
    share=0.0,
    num_envs=4,
    rollout_length=4,
    engines=("eager", "cudagraph"),
    workloads=(),
    algorithms=("sac", "a2c"),
    scripts=(),
)
# Programs of their own know no stand-in.
REHEARSED = tuple(name for name in PARTS if name != "profiler")


def options(out: Path, **changes: Any) -> gpu.Options:
    settings = {"parts": REHEARSED, "sizes": SMALLEST, "in_process": True} | changes
    return gpu.Options(device="standin", out=out, **settings)


def test_every_part_runs_and_is_recorded(tmp_path: Path) -> None:
    found = gpu.run_all(options(tmp_path))
    assert {name: part["status"] for name, part in found["parts"].items()} == dict.fromkeys(
        REHEARSED, "ok"
    ), [part.get("error") for part in found["parts"].values()]
    results = {name: part["result"] for name, part in found["parts"].items()}
    assert all(results["capture"][name]["apart"] < 1e-6 for name in SMALLEST.algorithms)
    assert results["deterministic"] == {"ppo equal to the bit": True}
    assert results["device_envs"]["ppo CartPole SPS"] > 0
    assert set(results["replay"]) == {"uniform", "prioritized"}
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"].keys() == set(REHEARSED)
    assert "## capture: ok" in (tmp_path / "gpu.md").read_text()


def test_a_part_that_fails_is_recorded_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def part(name: str, *, fails: bool = False) -> Part:
        def run(device: str, sizes: Sizes, peers: Any) -> dict[str, Any]:
            calls.append(name)
            if fails and calls.count(name) == 1:
                raise ValueError("no such kernel")
            return {"n": 1}

        return Part("", 10, run)

    parts = {"first": part("first", fails=True), "second": part("second")}
    monkeypatch.setattr(gpu, "PARTS", parts)
    chosen = options(tmp_path, parts=("first", "second"))
    found = gpu.run_all(chosen)
    assert found["parts"]["first"]["status"] == "failed"
    assert "no such kernel" in found["parts"]["first"]["error"]
    assert gpu.run_all(chosen)["parts"]["first"]["status"] == "ok"
    assert calls == ["first", "second", "first"]
    none_left = options(tmp_path / "late", parts=("first",), limit_s=1.0)
    assert gpu.run_all(none_left)["parts"] == {}


def test_the_most_important_comes_first() -> None:
    assert list(gpu_parts.PARTS)[:3] == ["capture", "updates", "workloads"]

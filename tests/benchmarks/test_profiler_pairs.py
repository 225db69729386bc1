"""The figures of whole programs with and without the recorder, worked by hand."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.profiler import importing
from benchmarks.profiler.pairs import bias, cost, pairs_table, run
from benchmarks.third_party import CLEANRL, NAMES, command


def pair(plain_s: float, full_s: float, taken_s: float) -> dict[str, Any]:
    spent = {"wall_s": full_s, "cpu_s": 2 * full_s}
    full = {**spent, **{f"recorded_{name}": each for name, each in spent.items()}}
    full |= {"taken_wall_s": taken_s, "corrected": True}
    plain = {"wall_s": plain_s, "cpu_s": 2 * plain_s}
    return {
        "unprofiled": {**plain, **{f"inside_{name}": each for name, each in plain.items()}},
        "full": {**full, "taken_cpu_s": 3 * taken_s},
        "cores": "2",
    }


PAIRS = [pair(10, 12, 1.5), pair(10, 11, 1.5), pair(10, 13, 1.0)]


def test_the_bias_is_what_the_correction_leaves() -> None:
    """12 s less 1.5 against 10; of CPU time 24 less 4.5 against 20."""
    assert cost(PAIRS[0], "wall_s") == pytest.approx(0.2)
    assert bias(PAIRS[0], "wall_s") == pytest.approx(0.05)
    assert bias(PAIRS[0], "cpu_s") == pytest.approx(-0.025)


def test_an_unprofiled_run_is_clocked_inside_of_the_interpreter(tmp_path: Path) -> None:
    """Its 0.3 s of sleep, and what it and its child compute, but no more than the whole run."""
    code = (
        "import subprocess, sys, time; time.sleep(0.3); subprocess.run([sys.executable, '-c', '']) "
    )
    found = run([sys.executable, "-c", code], tmp_path, None, clocked=True)

    assert 0.3 <= found["inside_wall_s"] <= found["wall_s"]
    assert 0.0 < found["inside_cpu_s"] <= found["cpu_s"]


def test_what_a_program_leaves_behind_counts_and_other_children_do_not(tmp_path: Path) -> None:
    """Its grandchild computes for 0.3 s after its parent has ended; a child of this process that
    lives on is not waited for."""
    spin = "import time\nwhile time.process_time() < 0.3: pass"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}])"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as lasting:
        found = run([sys.executable, "-c", code], tmp_path, None, clocked=True)
        assert lasting.poll() is None
        lasting.kill()
    assert found["inside_cpu_s"] >= 0.3


def test_a_program_counts_by_its_median() -> None:
    """Biases of 5, -5 and 20% have the median 5%; two programs of 5 and 0% the mean 2.5%."""
    table = pairs_table({"a": PAIRS, "b": [pair(10, 10, 0)]})
    assert "| +5.0% (-5.0% to +20.0%) |" in table
    assert "3 of 3" in table
    assert "| b | 2 | 1 | 10.00 |" in table
    assert "Bias, wall: mean 2.5% (target 3%), worst 5.0% (target 6%)." in table


@pytest.mark.parametrize(("cores", "compares"), [("1", True), ("2", False)])
def test_wall_times_of_pairs_at_once_are_compared_on_one_core(cores: str, compares: bool) -> None:
    """On several the one waits for cores that the other's processes have."""
    ready = {"recorded_ready_s": 0.0, "taken_ready_s": 0.0, "inside_ready_s": 0.0}
    pairs = [
        each
        | {"at_once": True, "cores": cores}
        | {side: each[side] | ready for side in ("full", "unprofiled")}
        for each in PAIRS
    ]
    table = pairs_table({"a": pairs})
    assert ("Bias, wall: mean 5.0%" in table) == compares
    assert "Bias, CPU" in table


def test_every_program_has_a_command(tmp_path: Path) -> None:
    (tmp_path / "cleanrl").mkdir()
    for script, _, _ in CLEANRL.values():
        (tmp_path / "cleanrl" / f"{script}.py").touch()
    commands = {name: command(name, tmp_path, 0.5) for name in NAMES}
    assert commands["CleanRL PPO"][1:] == [
        *(str(tmp_path / "cleanrl" / "ppo.py"), "--no-cuda", "--total-timesteps", "6144")
    ]
    assert commands["EnvPool"][-2:] == ["--env-steps", "7680"]
    with pytest.raises(SystemExit, match="Clone"):
        command("CleanRL PPO", None)


def test_what_imports_cost_is_measured_on_one_core_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """On two a pair's runs do not slow each other, and what the one adds is not told."""
    monkeypatch.setattr(importing, "describe", lambda: {"cores": "2"})
    with pytest.raises(SystemExit, match=r"2 cores.*taskset"):
        importing.measure_imports(Namespace(pairs=1))

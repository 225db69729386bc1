"""`redline train --profile`: the run is the same, and a report lies beside it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from redline.cli import main

ARGUMENTS = shlex.split(
    "train dqn --env CartPole-v1 --preset default --num-envs 2 --rollout-length 8 "
    "--batch-size 8 --replay-ratio 8 --learning-starts 32 --replay-size 500 --hidden-sizes 8 "
    "--quiet --no-tensorboard"
)


def test_a_profiled_run_is_the_same_run_with_a_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plain, run = tmp_path / "plain", tmp_path / "run"
    assert main([*ARGUMENTS, "--total-env-steps", "320", "--out", str(plain)]) == 0
    assert main([*ARGUMENTS, "--total-env-steps", "320", "--out", str(run), "--profile=light"]) == 0
    hashes = []
    for directory in (plain, run):
        capfd.readouterr()
        assert main(["inspect", str(directory)]) == 0
        hashes.append(json.loads(capfd.readouterr().out.splitlines()[-1])["params_sha256"])
    assert hashes[0] == hashes[1]
    report = (run / "profile" / "report-1.txt").read_text()
    for operation in ("simulation", "inference", "replay", "learning", "backpropagation"):
        assert operation in report
    assert (run / "profile" / "report-1.html").exists()

    resume = ["train", "--resume", str(run), "--total-env-steps", "480", "--quiet"]
    assert main([*resume, "--profile", "light"]) == 0
    assert (run / "profile" / "session-2").is_dir()


def test_operations_reach_the_json_report(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = [*ARGUMENTS, "--total-env-steps", "320", "--out", str(run), "--profile", "light"]
    assert main(arguments) == 0
    capfd.readouterr()
    assert main(["report", str(run / "profile" / "session-1"), "--format", "json"]) == 0
    report = json.loads(capfd.readouterr().out)
    found = {row["operation"] for row in report["cells"]}
    assert {"collection", "inference", "simulation"} <= found


def test_an_unknown_mode_is_refused_before_any_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main([*ARGUMENTS, "--out", str(out), "--profile", "fast"]) == 2
    assert "no profile mode 'fast'. Choose one of: light, full, sample" in capfd.readouterr().err
    assert not out.exists()

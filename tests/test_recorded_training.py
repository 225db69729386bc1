"""`redline train --profile`: the run is the same, and a report lies beside it."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from redline.cli import main
from redline.recorded_training import recording
from redline.train.progress.operation_shares import COLUMNS

ARGUMENTS = shlex.split(
    "train dqn --env CartPole-v1 --preset default --num-envs 2 --rollout-length 8 "
    "--batch-size 8 --replay-ratio 8 --learning-starts 32 --replay-size 500 --hidden-sizes 8 "
    "--target-update-interval 10 --quiet --no-tensorboard --accelerate eager"
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
    page = (run / "profile" / "report-1.html").read_text(encoding="utf-8")
    assert '"verdict":"' in page  # the advice

    resume = ["train", "--resume", str(run), "--total-env-steps", "480", "--quiet"]
    assert main([*resume, "--profile", "light"]) == 0
    assert (run / "profile" / "session-2").is_dir()

    # Counting those that are left gave the second one's number again, which was refused.
    shutil.rmtree(run / "profile" / "session-1")
    resume = ["train", "--resume", str(run), "--total-env-steps", "640", "--quiet"]
    assert main([*resume, "--profile", "light"]) == 0
    names = {path.name for path in (run / "profile").iterdir() if path.is_dir()}
    assert names == {"session-2", "session-3"}
    assert (run / "profile" / "report-3.html").is_file()


def test_a_run_that_fails_says_how_to_report_its_session(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def training() -> None:
        with recording("light")(tmp_path / "a run"):
            raise RuntimeError("it diverged")

    with pytest.raises(RuntimeError, match="it diverged"):
        training()
    session = tmp_path / "a run" / "profile" / "session-1"
    command = f"redline report '{session}'"
    assert f"profile: read what was recorded with: {command}\n" in capfd.readouterr().err
    assert main(shlex.split(command)[1:]) == 0


def test_updates_of_the_cpu_engine_are_learning_as_a_whole(tmp_path: Path) -> None:
    """No call of autograd or of an optimizer tells their backpropagation apart."""
    arguments = ["cpu" if word == "eager" else word for word in ARGUMENTS]
    run = tmp_path / "run"
    end = ["--total-env-steps", "320", "--out", str(run), "--profile", "light"]
    assert main([*arguments, *end]) == 0
    last = rows_of(run)[-1]
    assert float(last["time_share/learning"]) > 0.0
    assert float(last["time_share/backpropagation"]) == 0.0


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_shares_of_operations_are_logged_from_the_first_row_on(tmp_path: Path) -> None:
    """320 env_steps with a row every 64, some before the first update; then resumed unprofiled."""
    run = tmp_path / "run"
    arguments = [*ARGUMENTS, "--log-interval", "64", "--out", str(run)]
    arguments.remove("--no-tensorboard")
    assert main([*arguments, "--total-env-steps", "320", "--profile", "light"]) == 0
    rows = rows_of(run)
    assert len(rows) == 5
    for row in rows:
        shares = {name: float(row[name]) for name in COLUMNS}
        assert sum(shares.values()) == pytest.approx(1.0)
        assert min(shares.values()) >= 0.0
        assert shares["time_share/simulation"] > 0.0
    assert float(rows[-1]["time_share/backpropagation"]) > 0.0
    events = b"".join(path.read_bytes() for path in (run / "tensorboard").iterdir())
    assert b"time_share/simulation" in events

    assert main(["train", "--resume", str(run), "--total-env-steps", "384", "--quiet"]) == 0
    last = rows_of(run)[-1]
    assert last["env_steps"] == "384"
    assert last["time_share/simulation"] == ""


def test_worker_processes_are_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    arguments = [*ARGUMENTS, "--env-backend", "processes", "--total-env-steps", "96"]
    assert main([*arguments, "--out", str(run), "--profile", "light"]) == 0
    capfd.readouterr()
    assert main(["report", str(run / "profile" / "session-1"), "--format", "json"]) == 0
    report = json.loads(capfd.readouterr().out)
    trainer, *workers = report["processes"]
    assert workers
    assert all(worker["parent_pid"] == trainer["pid"] and worker["ended"] for worker in workers)
    stepping = {row["pid"] for row in report["cells"] if row["operation"] == "simulation"}
    assert {worker["pid"] for worker in workers} <= stepping


def test_a_run_in_a_folder_whose_name_is_not_utf_8(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / os.fsdecode(b"caf\xe9")
    assert main([*ARGUMENTS, "--total-env-steps", "96", "--out", str(run), "--profile=sample"]) == 0
    assert "this process is not profiled" not in capfd.readouterr().err
    report = (run / "profile" / "report-1.txt").read_text(encoding="utf-8")
    assert report.startswith("session ")
    assert "caf\\udce9" in report
    assert "simulation" in report


def test_a_run_begun_without_shares_goes_on_without_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    arguments = [*ARGUMENTS, "--log-interval", "64", "--out", str(run)]
    arguments.remove("--quiet")
    assert main([*arguments, "--total-env-steps", "320"]) == 0
    assert not set(COLUMNS) & set(rows_of(run)[0])
    capfd.readouterr()
    resume = ["train", "--resume", str(run), "--total-env-steps", "384", "--profile", "light"]
    assert main(resume) == 0
    shown = capfd.readouterr().err
    assert "begun without shares of operations: they are shown, not logged" in shown
    assert re.search(r"\w+ \d+%, \w+ \d+%", shown)
    assert rows_of(run)[-1]["env_steps"] == "384"
    assert not set(COLUMNS) & set(rows_of(run)[-1])


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--profile-sample-hz", "50"], "--profile-sample-hz is for profiled runs"),
        (["--profile", "--profile-sample-hz", "often"], "often is not a number"),
        (["--profile", "--profile-gpu-window-s"], "--profile-gpu-window-s  is not a number"),
        (["--profile", "light", "--profile-sample-hz=-2"], "sample_hz=-2.0 is negative"),
        (["--profile", "--profile-gpu-every-s", "0.1"], "does not fit into gpu_every_s=0.1"),
    ],
)
def test_wrong_options_of_the_profile_are_refused_before_any_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    out = tmp_path / "run"
    assert main([*ARGUMENTS, "--out", str(out), *options]) == 2
    assert message in capfd.readouterr().err
    assert not out.exists()


def test_the_sampler_of_a_training_run_is_in_its_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = [*ARGUMENTS, "--total-env-steps", "320", "--out", str(run)]
    assert main([*arguments, "--profile", "--profile-sample-hz", "200"]) == 0
    report = (run / "profile" / "report-1.txt").read_text()
    assert "samples saw it" in report
    assert "operation other" in report

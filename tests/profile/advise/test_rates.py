"""What this machine is asked for the advice."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from redline.errors import ProfileError
from redline.profile.advise import rates
from redline.profile.advise.iteration import torch_threads_of
from tests.profile.streams import process

# Says how much the command took, and whether it loaded torch itself.
COMMAND = """
import sys
from redline.profile.commands import COMMANDS
status = COMMANDS[sys.argv[1]](sys.argv[2:])
sys.exit(status or ("torch" in sys.modules and "torch was loaded"))
"""

WITHOUT_RATES = """
import sys
from redline.profile.advise import rates
from redline.profile.commands import COMMANDS
rates.MEASURED_BY_S = 0.01
sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
"""

PROGRAM = """
import mujoco, torch
from redline import profile
for i in range(40):
    with profile.operation("simulation"):
        mujoco.spin(500_000)
    with profile.operation("learning"):
        torch.spin(500_000)
"""


def test_a_process_of_its_own_measures_the_same_rates() -> None:
    """On one thread nothing is gained by using one; a batch of 8 costs more than one of 1 but not
    8 times as much; twice the batch at least as much."""
    found = rates._measure_apart(1)
    assert found is not None
    assert found.threads == 1
    assert found.one_thread == rates.Range(1.0, 1.0)
    assert 0.5 < found.batched_inference.low < found.batched_inference.high < 8.0
    assert 0.0 < found.fused_step.low <= found.fused_step.high
    assert 0.0 < found.ipc_us.low < found.ipc_us.high


def test_what_lies_beside_the_user_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the directory')\n")
    monkeypatch.chdir(tmp_path)
    assert rates._measure_apart(1) is not None


def test_a_process_that_fails_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(ProfileError, match=r"cannot measure this machine's rates: .* says more"):
        rates._measure_apart(1)


def test_one_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MEASURED_BY_S", 0.01)
    with pytest.raises(ProfileError, match=r"cannot measure this machine's rates: .*than 0.01 s$"):
        rates._measure_apart(1)


def test_what_else_is_printed_there_is_passed_over() -> None:
    """A `sitecustomize` may print at the end of every process."""
    said = '{"low": 1.0, "high": 2.0}'
    names = [f'"{name}": {said}' for name in rates.Rates.__slots__ if name != "threads"]
    found = rates._read(f'hello\nrates: {{{", ".join(names)}, "threads": 2}}\ngoodbye\n')
    assert found is not None
    assert (found.threads, found.ipc_us) == (2, rates.Range(1.0, 2.0))
    assert rates._read("hello\nrates: null\n") is None


@pytest.mark.parametrize("said", ["", "hello\n", "rates: {}\n", "rates: [1]\n", "rates: 3, 4\n"])
def test_what_is_not_understood_is_told(said: str) -> None:
    with pytest.raises(ProfileError, match="is not understood"):
        rates._read(said)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BlockingIOError("no more processes"), "cannot measure .*no more processes"),
        (ImportError("libcublas.so.12: cannot open"), "cannot measure .*libcublas"),
        (None, "torch is not installed here"),
    ],
)
def test_why_nothing_was_measured_is_told(
    error: Exception | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*_: int) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(rates, "_measure_here", measure)
    monkeypatch.setattr(rates, "_measure_apart", measure)
    rates._measure_once.cache_clear()
    try:
        assert rates.measure_rates(7) is None
        assert re.match(reason, rates.why_not_measured(7))
    finally:
        rates._measure_once.cache_clear()


def test_a_torch_that_cannot_be_loaded_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcublas.so.12: cannot open')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ProfileError, match=r"libcublas\.so\.12: cannot open"):
        rates._measure_apart(1)


@pytest.mark.parametrize("command", ["report", "advise"])
def test_without_rates_there_is_a_report_that_says_so(
    command: str, profiled: Any, tmp_path: Path
) -> None:
    """A table of a session is worth reading, whatever this machine cannot be asked."""
    profiled.run(PROGRAM)
    page = tmp_path / "page.html"
    options = ["--html", str(page)] if command == "report" else []
    words = [sys.executable, "-c", WITHOUT_RATES, command, str(profiled.session), *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = page.read_text() if command == "report" else done.stdout
    assert "no remedy is named whose gain is measured here" in said


@pytest.mark.parametrize("command", ["report", "advise"])
def test_a_report_of_a_long_session_has_no_room_for_torch(
    command: str, profiled: Any, tmp_path: Path
) -> None:
    """Beside the tables of a session, torch would take half of the memory that a report may."""
    profiled.run(PROGRAM)
    options = ["--html", str(tmp_path / "page.html")] if command == "report" else []
    words = [sys.executable, "-c", COMMAND, command, str(profiled.session), *options]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_rates_are_measured_on_the_threads_of_who_learns() -> None:
    """The first process that has an optimizer tells them; a worker has none."""
    worker, learner, other = (process([]) for _ in range(3))
    learner.metadata["torch_threads"] = 3
    other.metadata["torch_threads"] = 1
    assert torch_threads_of(SimpleNamespace(processes=[worker])) == 0
    assert torch_threads_of(SimpleNamespace(processes=[worker, learner, other])) == 3

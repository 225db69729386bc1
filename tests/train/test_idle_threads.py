"""What OpenMP's threads do when there is nothing to do, as the environment tells them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


def spin_count(command: list[str], **environment: str) -> str:
    """What a fresh process prints."""
    own = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(
        [sys.executable, *command],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_they_sleep_sooner_in_a_process_that_trains() -> None:
    assert spin_count(["-c", f"import redline; redline.train; {SHOW}"]) == "10000"


@pytest.mark.parametrize(
    ("program", "environment", "count"),
    [
        ("redline.train", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("redline.train", {"OMP_WAIT_POLICY": "active"}, "None"),
        ("import torch; redline.train", {}, "None"),  # too late: the library has read it
        ("import redline.profile", {}, "None"),
    ],
)
def test_settings_of_others_hold(program: str, environment: dict[str, str], count: str) -> None:
    assert spin_count(["-c", f"import redline; {program}; {SHOW}"], **environment) == count


def test_profiled_programs_are_left_as_they_are(tmp_path: Path) -> None:
    """What is measured must not run otherwise for being measured."""
    found = tmp_path / "found"
    program = f"import os; open({str(found)!r}, 'w').write(str(os.environ.get('GOMP_SPINCOUNT')))"
    session = str(tmp_path / "session")
    spin_count(["-m", "redline", "profile", "--out", session, "--", sys.executable, "-c", program])
    assert found.read_text() == "None"

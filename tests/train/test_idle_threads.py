"""What OpenMP's threads do when there is nothing to do, as the environment tells them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OWN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SHOW = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


def spin_count(command: list[str], **environment: str) -> str:
    """What a fresh process prints."""
    inherited = {name: value for name, value in os.environ.items() if name not in OWN}
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


def test_the_library_reads_it_on_the_way_to_training() -> None:
    """Nothing loads the tensor library before it is told."""
    inherited = {name: value for name, value in os.environ.items() if name not in OWN}
    done = subprocess.run(
        [sys.executable, "-c", "import redline.cli, redline.train.runs.start"],
        env=inherited | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
    )
    if "GOMP_" not in done.stderr:
        pytest.skip("the tensor library has no threads of GNU's OpenMP here")
    counts = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    assert counts
    assert all("'10000'" in line for line in counts)


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

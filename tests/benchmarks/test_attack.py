"""A slice of `python -m benchmarks.attack`, with a seed that is new each time and printed."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.attack import sanitizers
from benchmarks.attack.__main__ import attack_of, entries, verdicts
from benchmarks.attack.series import FAULT, HangError, Verdict, limited, note, run_series
from benchmarks.soak import slope

# A fresh seed finds new faults in what nobody has touched: REDLINE_ATTACK_SEED=fresh asks for one.
_ASKED = os.environ.get("REDLINE_ATTACK_SEED", "20261123")
SEED = random.SystemRandom().randrange(2**31) if _ASKED == "fresh" else int(_ASKED)
SLICE = {"corruptions": 8, "inputs": 16, "directories": 8, "envs": 20, "sessions": 8}
"""Attempts of each kind. Kills fork, which a process with the threads of other tests must not."""


@pytest.fixture(autouse=True)
def _any_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Odd environments make libraries warn; a warning is not what is looked for."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("kind", SLICE)
def test_a_slice_of_each_attack_finds_nothing(kind: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    run_series(attack_of(kind), SEED, range(SLICE[kind]), tmp_path, log)
    found = verdicts(log, kind)
    assert len(found) == SLICE[kind]
    for entry in found:
        again = f"python -m benchmarks.attack --seed {SEED} --replay {kind} {entry['number']}"
        assert entry["verdict"] != FAULT, f"{again}\n{entry['what']}\n{entry['detail']}"


def test_a_fault_is_one(tmp_path: Path) -> None:
    """An attempt that raises, and one that hangs, are faults, and the series goes on."""

    class Broken:
        kind = "broken"
        wait_s = 9.0

        def prepare(self, folder: Path) -> None:
            """Nothing."""

        def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
            if number == 0:
                raise KeyError("a traceback")
            if number == 1:
                raise HangError("too long")
            return Verdict(self.kind, number, "", "ran")

    run_series(Broken(), 1, range(3), tmp_path, tmp_path / "log")
    assert [e["verdict"] for e in verdicts(tmp_path / "log", "broken")] == [FAULT, FAULT, "ran"]


def test_a_wait_without_end_is_ended() -> None:
    with pytest.raises(HangError, match="SIGALRM"), limited(0.05):
        subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(9)"], check=False)


def test_a_log_that_was_cut_in_the_middle_of_a_line_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    note(log, {"kind": "a", "number": 0, "verdict": "ran"})
    with log.open("a") as file:
        file.write(json.dumps({"kind": "a", "number": 1})[:9] + "\n")
    assert [entry["number"] for entry in entries(log)] == [0]


def test_the_c_code_is_clean_under_sanitizers() -> None:
    reason = sanitizers.why_not()
    if reason is not None:
        pytest.skip(reason)
    status, said = sanitizers.check(3.0, SEED)
    assert status == 0, said
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", said)}
    for name in ("decode", "streams", "tree", "sessions"):
        assert counts[name] > 0, said


def test_the_slope_of_memory_by_hand() -> None:
    """0, 2, 4, 6, 8 KiB at 0, 1, 2, 3, 4 hours: 2 KiB an hour, exactly, so it is no noise."""
    found = slope([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 4.0, 6.0, 8.0])
    assert found.kib_per_hour == pytest.approx(2.0)
    assert found.error == pytest.approx(0.0, abs=1e-6)
    steep = slope([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 1e3, 2e3, 3e3, 4e3])
    assert not steep.is_noise
    level = slope([0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 4.0, 5.0, 6.0, 5.0])
    assert level.is_noise

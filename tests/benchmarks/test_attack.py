"""A minute of `python -m benchmarks.attack`, with a seed that is new each time and printed."""

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
from benchmarks.attack.__main__ import KINDS, MINUTE, entries, record, verdicts
from benchmarks.attack.series import FAULT, HangError, Verdict, limited, note, run_series
from benchmarks.soak import slope

ROOT = Path(__file__).parents[2]
SEED = int(os.environ["REDLINE_ATTACK_SEED"])  # new each time; tests/conftest.py prints it
HALVES = (  # each half takes a core
    ("kills", "signals", "disks"),
    ("directories", "corruptions", "inputs", "envs", "sessions"),
)
FUZZED = (
    "decode", "streams", "tree", "dense", "convolution", "recorder", "recordings", "sessions",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _any_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Odd environments make libraries warn; a warning is not what is looked for."""
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("kinds", HALVES, ids="-".join)
def test_a_minute_of_attacks_with_a_fresh_seed_finds_nothing(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    """In a process of its own, for it forks, which one with the threads of other tests must not."""
    words = ["--minute", "--seed", str(SEED), "--only", *kinds, "--log", str(tmp_path / "log")]
    env = dict(os.environ) | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.attack", *words],
        env=env, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    for kind in kinds:
        found = verdicts(tmp_path / "log", kind)
        assert len(found) >= MINUTE[kind]


def test_every_kind_has_its_share_of_the_minute() -> None:
    assert set(MINUTE) == set(KINDS) == {kind for half in HALVES for kind in half}


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
    with pytest.raises(HangError, match="SIGALRM"), limited(1.0):
        subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(9)"], check=False)


def test_a_log_that_was_cut_in_the_middle_of_a_line_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    note(log, {"kind": "a", "number": 0, "verdict": "ran"})
    with log.open("a") as file:
        file.write(json.dumps({"kind": "a", "number": 1})[:9] + "\n")
    assert [entry["number"] for entry in entries(log)] == [0]


def test_series_that_ran_apart_are_counted_together(tmp_path: Path) -> None:
    """Kills count one by one; two logs of one kind stay apart, for their seeds differ."""
    for name, seed, count in (("a", 7, 3), ("b", 8, 5)):
        note(tmp_path / name, {"kind": "kills", "seed": seed})
        note(tmp_path / name, {"kind": "kills", "begin": 0})
        note(tmp_path / name, {"kind": "kills", "number": 0, "verdict": "identical", "group": "ppo",
                               "count": count})  # fmt: skip
    record([tmp_path / "a", tmp_path / "b"], tmp_path / "attack.md")
    found = json.loads((tmp_path / "attack.json").read_text())["attacks"]
    assert [(each["seed"], each["count"], each["verdicts"]) for each in found] == [
        (7, 3, {"identical": 3}), (8, 5, {"identical": 5}),
    ]  # fmt: skip
    written = (tmp_path / "attack.md").read_text()
    assert "| kills | 8 | ppo | 5 | 5 identical |" in written
    assert "Notes" not in written


def test_kinds_that_were_not_made_again_stay_recorded(tmp_path: Path) -> None:
    """Of kills there is a newer log, of signals none."""
    for kind, count in (("kills", 3), ("signals", 4)):
        note(tmp_path / "old", {"kind": kind, "number": 0, "verdict": "identical", "group": "ppo",
                                "count": count})  # fmt: skip
    note(tmp_path / "new", {"kind": "kills", "number": 0, "verdict": "identical", "group": "sac",
                            "count": 9})  # fmt: skip
    for log in ("old", "new"):
        record([tmp_path / log], tmp_path / "attack.md")
    found = json.loads((tmp_path / "attack.json").read_text())["attacks"]
    assert [(each["kind"], each["of"], each["count"]) for each in found] == [
        ("kills", "sac", 9), ("signals", "ppo", 4),
    ]  # fmt: skip


def test_notes_below_the_counts_stay(tmp_path: Path) -> None:
    note(tmp_path / "a", {"kind": "kills", "number": 0, "verdict": "identical", "group": "ppo",
                          "count": 3})  # fmt: skip
    (tmp_path / "attack.md").write_text("# Of before\n\n## Notes\n\nFound: nothing.\n")
    for _ in range(2):
        record([tmp_path / "a"], tmp_path / "attack.md")
        written = (tmp_path / "attack.md").read_text()
        assert written.endswith("|\n\n## Notes\n\nFound: nothing.\n")
        assert written.count("## Notes") == 1
        assert "Of before" not in written


def test_the_c_code_is_clean_under_sanitizers() -> None:
    reason = sanitizers.why_not()
    if reason is not None:
        pytest.skip(reason)
    status, said = sanitizers.check(3.0, SEED, "-O0")
    assert status == 0, said
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", said)}
    for name in FUZZED:
        assert counts[name] > 0, said


def test_every_extension_is_fuzzed() -> None:
    """A new one must be added to the fuzzers, and its counter here."""
    assert {name.rpartition(".")[2] for name in sanitizers.extensions()} == {
        "_native", "_sweep", "_sampler", "_stacks", "_tree", "_dense", "_convolution",
    }  # fmt: skip


def test_the_slope_of_memory_by_hand() -> None:
    """0, 2, 4, 6, 8 KiB at 0, 1, 2, 3, 4 hours: 2 KiB an hour, exactly, so it is no noise."""
    found = slope([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 2.0, 4.0, 6.0, 8.0])
    assert found.kib_per_hour == pytest.approx(2.0)
    assert found.error == pytest.approx(0.0, abs=1e-6)
    steep = slope([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 1e3, 2e3, 3e3, 4e3])
    assert not steep.is_noise
    level = slope([0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 4.0, 5.0, 6.0, 5.0])
    assert level.is_noise

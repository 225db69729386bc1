"""Memory that is freed and taken again, by the page faults that it costs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from redline.train.freed_memory import keep_freed_memory

PROGRAM = """
import resource, sys
import numpy as np
from redline.train.freed_memory import keep_freed_memory

kept = sys.argv[1] == "keep" and keep_freed_memory()

def use():
    blocks = [np.ones(20 * 2**20, np.uint8) for _ in range(4)]
    return sum(int(block[0]) for block in blocks)

use()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

is_glibc = sys.platform == "linux" and "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")


def run(what: str, **environment: str) -> tuple[int, int]:
    """Whether memory is kept, and the page faults of 5 times 80 MiB."""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
    inherited = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, what],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    kept, faults = done.stdout.split()
    return int(kept), int(faults)


@pytest.mark.skipif(not is_glibc, reason="needs glibc")
def test_kept_memory_is_not_mapped_anew() -> None:
    """80 MiB are 20,480 pages of 4 KiB, 40 of 2 MiB: at the least 5 x 40 faults if mapped anew."""
    kept, faults = run("keep")
    assert kept == 1
    assert faults < 100
    kept, faults = run("leave")
    assert kept == 0
    assert faults >= 200


@pytest.mark.skipif(not is_glibc, reason="needs glibc")
@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_settings_of_the_user_hold(environment: dict[str, str]) -> None:
    kept, faults = run("keep", **environment)
    assert kept == 0
    assert faults >= 200


@pytest.mark.skipif(not is_glibc, reason="needs glibc")
def test_a_threshold_that_is_refused_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """To set the other one alone would make every block of 128 KiB and more slower."""
    asked: list[int] = []

    class Refusing:
        def mallopt(self, parameter: int, _value: int) -> int:
            asked.append(parameter)
            return 0

    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: Refusing())
    assert not keep_freed_memory()
    assert asked == [-3]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown, raising=False)
    assert not keep_freed_memory()

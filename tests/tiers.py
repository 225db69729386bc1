"""Which tests `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

LONG = Path(__file__).parent / "long.txt"
ROOT = Path(__file__).parents[1]
# Said by a test: an error while tests are collected says nothing where several processes do it.
UNKNOWN = pytest.StashKey[list[str]]()


def long_tests(text: str) -> list[str]:
    """The names in a list of long tests: a line each, without comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def split(
    items: Sequence[pytest.Item], names: Sequence[str]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Short tests and long ones."""
    listed = set(names)
    short = [item for item in items if item.nodeid not in listed]
    return short, [item for item in items if item.nodeid in listed]


def unknown(names: Sequence[str], collected: Sequence[str]) -> list[str]:
    """The names that no test has, of the files of which anything was collected."""
    there = set(collected)
    files = {name.split("::")[0] for name in there}
    return [name for name in names if name.split("::")[0] in files and name not in there]


def leave_out_long_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the long tests where the whole suite is asked for, and not `--all`."""
    names = long_tests(LONG.read_text(encoding="utf-8"))
    short, long = split(items, names)
    whole = config.args == [str(ROOT / "tests")] or list(config.args) == ["tests"]
    chosen = any(config.getoption(name, False) for name in ("keyword", "markexpr", "lf", "all"))
    if whole and not chosen:  # who names a test or a file gets it
        config.stash[UNKNOWN] = unknown(names, [item.nodeid for item in items])
        items[:] = short
        config.hook.pytest_deselected(items=long)

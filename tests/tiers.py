"""Which tests `make test` leaves to `make test-all`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

LONG = Path(__file__).parent / "long.txt"
ROOT = Path(__file__).parents[1]


def long_tests(text: str) -> list[str]:
    """The names in a list of long tests: a line each, without comments."""
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def split(
    items: Sequence[pytest.Item], names: Sequence[str]
) -> tuple[list[pytest.Item], list[pytest.Item], list[str]]:
    """Short tests, long tests, and the names that no test of a collected file has."""
    listed = set(names)
    short = [item for item in items if item.nodeid not in listed]
    long = [item for item in items if item.nodeid in listed]
    files = {item.nodeid.split("::")[0] for item in items}
    found = {item.nodeid for item in long}
    unknown = [name for name in names if name.split("::")[0] in files and name not in found]
    return short, long, unknown


def leave_out_long_tests(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the long tests where the whole suite is asked for, and not `--all`."""
    short, long, unknown = split(items, long_tests(LONG.read_text(encoding="utf-8")))
    whole = config.args == [str(ROOT / "tests")] or list(config.args) == ["tests"]
    if not whole or config.getoption("keyword") or config.getoption("markexpr"):
        return  # who names a test or a file gets it
    if unknown:
        raise pytest.UsageError(
            f"{LONG.name} names tests that there are not: {', '.join(unknown)}. Correct or remove "
            "the lines"
        )
    if not config.getoption("all"):
        items[:] = short
        config.hook.pytest_deselected(items=long)

"""The page of results: what it advises for what people try first is what was measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from benchmarks.published.experiments import FIRST

PAGE = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
TAKE, DO_NOT = "take", "do not take"
ENVIRONMENTS = sorted({experiment.env for experiment in FIRST})


def _table(first_column: str) -> list[dict[str, str]]:
    """The rows of the page's table whose first column is so named, by column."""
    lines = PAGE[PAGE.index(f"| {first_column} |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = cells[0]
    return [dict(zip(names, row, strict=True)) for row in cells[2:]]


def _named(cell: str) -> set[str]:
    """Algorithms that a cell names, each in code spans: `ppo`, `sac --replay her`."""
    return set(re.findall(r"`([a-z0-9]+)", cell))


def _advice(env: str) -> dict[str, str]:
    name = re.sub(r"-v\d+$", "", env).replace("/", " ")
    (row,) = [row for row in _table("environment") if name in row["environment"].split(",")]
    return row


def _verdicts(env: str) -> dict[str, str]:
    """Algorithm -> what the page says of its returns beside the zoo's, where it was run."""
    rows = _table("algorithm")
    return {
        row["algorithm"]: row["beside the zoo's interval"]
        for row in rows
        if row["environment"] == env
    }


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_each_algorithm_is_advised_or_advised_against(env: str) -> None:
    advice = _advice(env)
    able = {experiment.algorithm for experiment in FIRST if experiment.env == env}

    assert able <= _named(advice[TAKE]) | _named(advice[DO_NOT])


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_only_what_was_measured_is_advised(env: str) -> None:
    assert _named(_advice(env)[TAKE]) <= set(_verdicts(env))


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_what_is_below_the_published_interval_is_advised_against(env: str) -> None:
    below = {name for name, verdict in _verdicts(env).items() if "below" in verdict}

    assert below <= _named(_advice(env)[DO_NOT])

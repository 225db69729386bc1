"""Options that the text and its tables name are options that there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from redline.algos.registry import BUILT_IN
from redline.train.config_files import GivenSettings, config_of
from tests.docs.snippets import PAGES, PIECE, REPOSITORY

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z_-]+")
CODE = re.compile(r"`([^`\n]+)`")
FIELD = re.compile(r"^    (\w+): .+$", re.MULTILINE)
STRING = re.compile(r"[\"\'](--[a-z][a-z_-]*)")
OTHER_PROGRAMS = {
    *("--lr", "--n-steps"),  # of other libraries, whose users are told the names here
    *("--gpus-per-node", "--requeue", "--shm-size"),  # of Slurm and Docker
}
SOURCES = ("src/redline/command_line", "src/redline/profile", "scripts", "benchmarks")


def of_training() -> Iterator[str]:
    for algorithm in BUILT_IN:
        config = config_of(
            GivenSettings(), algorithm=algorithm, preset=None, env="CartPole-v1", for_help=True
        )
        for name in config.names():
            yield from (f"--{name}", f"--no-{name}")


def of_other_commands() -> Iterator[str]:
    """Fields of classes, and strings that begin with --, in the files of commands."""
    for path in (path for folder in SOURCES for path in (REPOSITORY / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield from (f"--{name}" for name in FIELD.findall(text))
        yield from STRING.findall(text)


@pytest.fixture(scope="module")
def options() -> set[str]:
    found = {*of_training(), *of_other_commands(), *OTHER_PROGRAMS}
    return {option.replace("_", "-") for option in found}


@pytest.mark.parametrize("page", PAGES, ids=[p.relative_to(REPOSITORY).as_posix() for p in PAGES])
def test_named_options_exist(page: Path, options: set[str]) -> None:
    text = PIECE.sub("", page.read_text(encoding="utf-8"))
    if page.parent.name == "coming_from":  # the first column is the other library's
        text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE)
    named = {option for code in CODE.findall(text) for option in OPTION.findall(code)}
    assert {option for option in named if option.replace("_", "-") not in options} == set()

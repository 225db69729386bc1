"""Every block of the pages and the README runs, or is read by what it is meant for.

Python runs page by page, in one namespace, as a reader types it, with small budgets. What is saved
as a file is a module of its own, whose names the blocks after it do not have. Commands go
through the real command line up to where the work would begin. Files are read, and errors raised.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
import tyro
import yaml

from redline.cli import main
from redline.errors import RedlineError
from redline.train.runs import start
from redline.train.runs.run import Run
from tests.docs.snippets import PAGES, REPOSITORY, Snippet, commands_of, snippets_of

SNIPPETS = {page: snippets_of(page) for page in PAGES}
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
SHELL, PYTHON = ("bash", "sh"), ("python", "before")


def pages_with(*kinds: str) -> Any:
    found = [page for page, blocks in SNIPPETS.items() if any(b.kind in kinds for b in blocks)]
    return pytest.mark.parametrize(
        "page", found, ids=[page.relative_to(REPOSITORY).as_posix() for page in found]
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, in which modules are found as in a user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def write_file(snippet: Snippet, folder: Path) -> None:
    if snippet.file_name is not None:
        (folder / snippet.file_name).write_text(snippet.text)


# ---------------------------------------------------------------------- Python


@pytest.fixture
def small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few iterations, evaluations of two episodes."""
    begin, go_on, evaluate = start.start_run, start.resume_run, Run.evaluate

    def start_run(config: Any, *arguments: Any, **options: Any) -> Run:
        names, settings = config.names(), {"num_threads": 1, "quiet": True, "tensorboard": False}
        settings["total_env_steps"] = min(config.run.total_env_steps, 400)
        settings["eval_interval"] = min(config.run.eval_interval, settings["total_env_steps"])
        if "learning_starts" in names:
            settings["learning_starts"] = min(config.algo.learning_starts, 100)
            settings["replay_ratio"] = min(config.algo.replay_ratio, 8.0)
            if "target_update_interval" in names:
                settings["target_update_interval"] = min(config.algo.target_update_interval, 10)
        elif config.algorithm in ("ppo", "a2c"):
            settings["rollout_length"] = min(config.algo.rollout_length, 32)
        return begin(config.replace(**settings), *arguments, **options)

    def resume_run(out: Path, given: Any = None, **options: Any) -> Run:
        options |= {"quiet": True}
        if options.get("total_env_steps") is not None:
            options["total_env_steps"] = min(options["total_env_steps"], 800)
        return go_on(out, given, **options)

    monkeypatch.setattr(start, "start_run", start_run)
    monkeypatch.setattr(start, "resume_run", resume_run)
    monkeypatch.setattr(
        Run,
        "evaluate",
        lambda run, *_, **options: evaluate(
            run, 2, **{name: value for name, value in options.items() if name != "episodes"}
        ),
    )


@pytest.fixture
def own_registry() -> Iterator[None]:
    """Environments that a page registers are gone after it: examples register the same names.

    Libraries register theirs by words, when they are first imported; those stay.
    """
    before = set(gymnasium.registry)
    yield
    for name in set(gymnasium.registry) - before:
        if callable(gymnasium.registry[name].entry_point):
            del gymnasium.registry[name]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("own_registry")
@pages_with("python", "error of")
def test_python_runs(page: Path, folder: Path, small_budgets: None) -> None:
    namespace: dict[str, Any] = {"__name__": "snippet"}
    error: str | None = None
    for snippet in SNIPPETS[page]:
        if snippet.kind in PYTHON:
            write_file(snippet, folder)
            run(snippet, namespace)
            if snippet.file_name is not None:
                namespace = {"__name__": "snippet"}
        elif snippet.kind == "error of":
            error = error_of(snippet, namespace)
        elif error is not None:
            parts = " ".join(snippet.text.split()).split("...")  # what another version words
            assert re.fullmatch(".*".join(map(re.escape, parts)), error), (snippet.place, error)
            error = None


def run(snippet: Snippet, namespace: dict[str, Any]) -> None:
    code = "\n" * snippet.line + snippet.text  # so that a traceback names the page's line
    exec(compile(code, str(REPOSITORY / snippet.page), "exec", dont_inherit=True), namespace)


def error_of(snippet: Snippet, namespace: dict[str, Any]) -> str:
    """The error that a snippet raises, as the command line prints it, in one line."""
    try:
        run(snippet, namespace)
    except RedlineError as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    raise AssertionError(f"{snippet.place} raises nothing")


# -------------------------------------------------------------------- commands


class ReadToTheEnd(BaseException):
    """A command's options are right; the work would begin here."""


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command reads its options, and ends where its work would begin."""

    def only_read(original: Callable[..., Any]) -> Callable[..., Any]:
        def read(*arguments: Any, **options: Any) -> Any:
            original(*arguments, **options)
            raise ReadToTheEnd

        return read

    parse_train_options = tyro.cli

    def parse(kind: Any, **options: Any) -> Any:
        parsed = parse_train_options(kind, **options)
        if kind.__name__ != "TrainArguments":  # settings that contradict each other come later
            raise ReadToTheEnd
        return parsed

    monkeypatch.setattr(tyro, "cli", parse)
    monkeypatch.setattr(
        argparse.ArgumentParser, "parse_args", only_read(argparse.ArgumentParser.parse_args)
    )
    monkeypatch.setattr(start, "start_run", lambda *_, **__: SimpleNamespace(exit_code=0))


@pages_with(*SHELL)
def test_commands_are_understood(
    page: Path, folder: Path, nothing_starts: None, capsys: pytest.CaptureFixture[str]
) -> None:
    for snippet in SNIPPETS[page]:
        write_file(snippet, folder)
    for snippet in SNIPPETS[page]:
        for command in commands_of(snippet.text) if snippet.kind in SHELL else ():
            if command[:2] == ["redline", "tune"] and "--out" in command:
                write_best_trial(folder / command[command.index("--out") + 1])
            status = understood(command)
            said = capsys.readouterr().err
            assert status == 0, f"{snippet.place}: {' '.join(command)}\n{said}"


def write_best_trial(search: Path) -> None:
    """What a search leaves behind, for the commands after it."""
    search.mkdir(parents=True)
    (search / "best.yaml").write_text("algorithm: ppo\nenv: CartPole-v1\n")


def understood(command: list[str]) -> int:
    """0 if a command is understood as far as it can be without doing its work."""
    if command[0] == "make":
        return int(not {word for word in command[1:] if "=" not in word} <= MAKE_TARGETS)
    if "redline" in command and (command[0] in ("redline", "torchrun", "srun", "eval")):
        return redline_status(command[command.index("redline") + 1 :])
    if command[:2] == ["python", "-m"]:
        if command[2] in ("redline", "redline.cli"):
            return redline_status(command[3:])
        return int(importlib.util.find_spec(command[2]) is None)
    if command[0] == "python" and len(command) > 1 and "/" in command[1]:
        return int(not (REPOSITORY / command[1]).exists())
    return 0


def redline_status(arguments: list[str]) -> int:
    if any(word in ("$ARGUMENTS", "${@:5}") for word in arguments):  # words that a script puts in
        return 0
    try:
        return main(arguments)
    except ReadToTheEnd:
        return 0
    except SystemExit as exit:
        return 0 if exit.code is None else 2


# ----------------------------------------------------------------------- files


def read_yaml(text: str) -> Any:
    return yaml.safe_load(text)


READERS: dict[str, Callable[[str], Any]] = {
    "yaml": read_yaml,
    "toml": tomllib.loads,
    "json": json.loads,
}


FILES = [block for blocks in SNIPPETS.values() for block in blocks if block.kind in READERS]


@pytest.mark.parametrize("snippet", FILES, ids=lambda snippet: snippet.place)
def test_files_are_read(snippet: Snippet) -> None:
    assert READERS[snippet.kind](snippet.text)


def test_every_block_has_a_language() -> None:
    """A block without one would not be run: `text` is for what is only shown."""
    known = {"bash", "sh", "python", "before", "error of", "yaml", "toml", "json", "text"}
    strange = [b.place for blocks in SNIPPETS.values() for b in blocks if b.kind not in known]
    assert not strange, os.linesep.join(strange)

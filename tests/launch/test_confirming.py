"""Folders of sweeps and searches that a stranger may have written: nothing is run or written."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redline
from redline.cli import main
from redline.errors import ConfigError, RedlineError, RunDirectoryError, SweepStateError
from redline.launch import local, locks, sweep
from redline.launch.confirming import Confirmed
from redline.launch.launcher import launch
from redline.launch.state import NewRun, SweepState, launcher_is_alive
from redline.launch.status import status_of
from redline.launch.tuning import tune

BASE = {"env": "CartPole-v1", "total_env_steps": 64, "hidden_sizes": [4]}
EVIL = "open('EXECUTED', 'w').close()\n\n\nclass Mine:\n    pass\n"


def _folder(path: Path, algorithm: str = "ppo", /, *, name: str = "x", **settings: Any) -> Path:
    """A sweep whose database holds one run, as a stranger may write it."""
    with SweepState(path, create=True) as state:
        run = {**BASE, **settings, "seed": 1, "key": "k"}
        state.add([NewRun(name="x", key="k", algorithm=algorithm, settings=run, varies={})])
    if name != "x":
        with sqlite3.connect(path / "sweep.sqlite") as database:
            database.execute("UPDATE runs SET name = ?", (name,))
        database.close()
    return path


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs that a sweep would have begun; none really begins."""
    names: list[str] = []

    def play(state: SweepState, places: Any, *, check: Callable[[Any], None], **_: Any) -> None:
        del places
        for run in state.runs("queued"):
            check(run)
            names.append(run.name)

    monkeypatch.setattr(sweep, "launch", play)
    return names


REACHING = [
    ("ppo", {"callbacks": ["evil_one:Mine"]}, "callbacks=evil_one:Mine"),
    ("ppo", {"collector": "evil_one:Mine"}, "collector=evil_one:Mine"),
    ("ppo", {"network": "evil_one:Mine"}, "network=evil_one:Mine"),
    ("ppo", {"env_backend": "evil_one:Mine"}, "env_backend=evil_one:Mine"),
    ("ppo", {"env": "evil_one:Mine"}, "env=evil_one:Mine"),
    ("ppo", {"algorithm": "evil_one:Mine"}, "algorithm=evil_one:Mine"),
    ("evil_one:Mine", {}, "algorithm=evil_one:Mine"),
    ("ppo", {"wandb": True}, "wandb=true"),
    ("ppo", {"accelerate": "compile"}, "accelerate=compile"),
    ("sac", {"data": "/x.npz"}, "data=/x.npz"),
    ("ppo", {"init_from": "/runs/x"}, "init_from=/runs/x"),
    ("ppo", {"env_kwargs": '{"xml_file": "/x.xml"}'}, 'env_kwargs={"xml_file": "/x.xml"}'),
]


@pytest.mark.parametrize(("algorithm", "settings", "word"), REACHING)
def test_what_a_sweeps_database_reaches_must_be_said_by_the_caller(
    tmp_path: Path, begun: list[str], algorithm: str, settings: dict[str, Any], word: str
) -> None:
    (tmp_path / "evil_one.py").write_text(EVIL)
    folder = _folder(tmp_path / "sweep", algorithm, **settings)
    with pytest.raises(ConfigError, match="a folder alone must not decide") as caught:
        redline.sweep(resume=folder, slots=1, quiet=True)
    assert word in str(caught.value)
    # A file of the caller's that says nothing of it gives no leave either.
    with pytest.raises(ConfigError, match="a folder alone must not decide"):
        redline.sweep(algorithm="ppo", base=BASE, out=folder, slots=1, quiet=True)
    assert begun == []
    assert not (tmp_path / "EXECUTED").exists()
    assert "evil_one" not in sys.modules


def test_a_confirmed_sweep_goes_on(tmp_path: Path, begun: list[str]) -> None:
    folder = _folder(tmp_path / "sweep", callbacks=["theirs:Mine"], wandb=True)
    confirmed = ["--confirm", "callbacks=theirs:Mine", "--confirm", "wandb=True"]
    command = ["sweep", "--resume", str(folder), "--slots", "1", "--quiet", *confirmed]
    main(command)
    assert begun == ["x"]
    assert main([*command[:-1], "wandb=false"]) == 2
    assert main([*command[:-1], "wandb"]) == 2


def test_the_file_given_again_says_all_that_its_runs_reach(
    tmp_path: Path, begun: list[str]
) -> None:
    (tmp_path / "own_one.py").write_text("class Mine:\n    pass\n")
    base = {**BASE, "callbacks": ["own_one:Mine"]}
    folder = tmp_path / "sweep"
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"algorithm": "ppo", "base": base, "seeds": [1]}))
    command = ["sweep", str(plan), "--out", str(folder), "--slots", "1", "--quiet"]
    main(command)
    main(command)
    assert begun == ["ppo-CartPole-v1-seed=1"] * 2


def test_a_run_that_changes_after_the_look_is_not_begun(tmp_path: Path) -> None:
    """A trigger of the database could change its rows once the launcher has read them."""
    folder = _folder(tmp_path / "sweep", wandb=True)
    confirmed = Confirmed(folder)
    with SweepState(folder) as state, pytest.raises(ConfigError, match="wandb=true of run x"):
        launch(
            state,
            _NoPlace(),  # type: ignore[arg-type]
            check=lambda run: confirmed.require(f"run {run.name}", run.algorithm, run.settings),
        )


class _NoPlace:
    """A place where no run must ever begin."""

    def free(self) -> str:
        return "a slot"

    def ended(self) -> list[Any]:
        return []

    def close(self, grace_s: float) -> list[Any]:
        return []


def test_a_cluster_that_only_the_folder_names_is_not_asked(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "sweep")
    with SweepState(folder) as state:
        state.set_meta(launch={"on": "ray", "address": "evil.example:6379"})
    with pytest.raises(ConfigError, match=r"address=evil\.example:6379 of the launcher"):
        redline.sweep(resume=folder, quiet=True)


@pytest.mark.parametrize("name", ["../../outside", "/tmp/outside", "..", "", "a/b", "a\x1b[2J"])
def test_a_runs_name_is_one_part_of_a_path(tmp_path: Path, begun: list[str], name: str) -> None:
    folder = _folder(tmp_path / "sweep", name=name)
    for use in (lambda: redline.sweep(resume=folder, slots=1), lambda: status_of(folder)):
        with pytest.raises(SweepStateError, match="is no name of a directory"):
            use()
    assert begun == []


LINKS = [".launcher.lock", "runs/x/.process.lock", "runs/x/output.txt", "runs/x/.stop", "runs"]


@pytest.mark.parametrize("name", LINKS)
def test_a_sweeps_folder_with_a_link_is_refused(tmp_path: Path, name: str) -> None:
    folder = _folder(tmp_path / "sweep")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(RunDirectoryError, match="a symbolic link"):
        redline.sweep(resume=folder, slots=1)
    with pytest.raises(RunDirectoryError, match="a symbolic link"):
        redline.sweep(algorithm="ppo", base=BASE, out=folder, slots=1)
    assert not (tmp_path / "outside").exists()


def test_a_sweep_keeps_the_links_of_weights_and_biases(tmp_path: Path, begun: list[str]) -> None:
    folder = _folder(tmp_path / "sweep")
    logs = folder / "runs" / "x" / "wandb" / "run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug-core.log").symlink_to(tmp_path / "cache" / "core-debug.log")
    (folder / "runs" / "x" / "wandb" / "latest-run").symlink_to("run-1")
    redline.sweep(resume=folder, slots=1, quiet=True)
    assert begun == ["x"]


def test_a_linked_database_is_not_followed(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "sweep")
    os.rename(folder / "sweep.sqlite", tmp_path / "elsewhere.sqlite")
    (folder / "sweep.sqlite").symlink_to(tmp_path / "elsewhere.sqlite")
    with pytest.raises(RedlineError, match="no regular file"):
        status_of(folder)


def test_locks_and_output_follow_no_link(tmp_path: Path) -> None:
    """Also where a link appears after the folder was looked through."""
    outside, link = tmp_path / "outside", tmp_path / ".launcher.lock"
    outside.write_text("precious")
    link.symlink_to(outside)
    assert not launcher_is_alive(tmp_path)
    for use in (locks.take, local.appending):
        with pytest.raises(OSError, match="symbolic links"):
            use(link)
    assert outside.read_text() == "precious"


def test_what_a_search_in_a_folder_reaches_must_be_said(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "evil_two.py").write_text(EVIL)
    base = {**BASE, "callbacks": ["evil_two:Mine"]}
    for plan in ({"algorithm": "ppo", "base": base}, {"algorithm": "evil_two:Mine", "base": BASE}):
        (tmp_path / "tune.json").write_text(json.dumps(plan))
        with pytest.raises(ConfigError, match=r"of the search .* is Python code"):
            redline.tune(resume=tmp_path, slots=1, quiet=True)
    assert not (tmp_path / "EXECUTED").exists()
    assert "evil_two" not in sys.modules
    (tmp_path / "tune.json").write_text(json.dumps({"algorithm": "ppo", "base": BASE}))
    (tmp_path / "tuners").symlink_to(tmp_path / "outside")
    with pytest.raises(RunDirectoryError, match="a symbolic link"):
        redline.tune(resume=tmp_path, slots=1, quiet=True)


def test_a_choice_of_a_search_is_said_by_its_file_but_not_by_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    plan = {"algorithm": "ppo", "base": BASE, "search": {"wandb": [True]}, "trials": 1}
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "tune.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match="wandb=true of trial 0"):
        tune(resume=tmp_path / "plan", places=lambda options: _NoPlace())  # type: ignore[return-value]
    with pytest.raises(AttributeError, match="start"):  # it gets as far as the place
        tune(plan, out=tmp_path / "own", places=lambda options: _NoPlace())  # type: ignore[return-value]

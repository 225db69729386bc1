"""Merged sessions: the same numbers as apart, and what does not fit is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ProfileError, SessionError
from redline.profile.analyse.summary import Cell, summarize
from redline.profile.commands import main
from redline.profile.merge import merge_sessions
from redline.profile.reader import open_session
from redline.profile.seal import UNSEALED, seal

PROGRAM = """
import sys
from redline import profile
profile.process_name({name!r})
with profile.operation("work"):
    sum(range(100_000))
profile.step()
"""

Pair = tuple[Path, Path]


@pytest.fixture
def pair(profiled: Any) -> Pair:
    profiled.run(PROGRAM.format(name="learner"), mode="light")
    first = profiled.session
    profiled.run(PROGRAM.format(name="actor"), mode="light")
    return first, profiled.session


def cells_of(directory: Path) -> list[Cell]:
    return sorted(summarize(directory).cells, key=lambda cell: (cell.pid, cell.operation))


def resealed(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest as its recorder could have written it."""
    path = directory / "session.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    for key in ("files", "sha256"):
        manifest.pop(key)
    path.write_text(json.dumps({**manifest, **UNSEALED}))
    seal(directory)


def test_a_merged_session_has_the_numbers_of_both(pair: Pair, tmp_path: Path) -> None:
    first, second = pair
    apart = sorted(cells_of(first) + cells_of(second), key=lambda cell: (cell.pid, cell.operation))
    merged = tmp_path / "merged"
    assert main(["merge-sessions", str(first), str(second), "--out", str(merged)]) == 0
    assert cells_of(merged) == apart
    summary = summarize(merged)
    assert [process.name for process in summary.processes] == ["learner", "actor"]
    assert [process.steps for process in summary.processes] == [1, 1]
    begin, end = open_session(first).processes[0], open_session(second).processes[0]
    assert end.end is not None
    assert summary.wall_s == pytest.approx((end.end["time_ns"] - begin.base_ns) / 1e9)
    assert summary.problems == []  # sealed, and as it was sealed


def test_a_merged_session_says_what_was_to_be_watched(pair: Pair, tmp_path: Path) -> None:
    """A name that no process has imported is told, as before the merge."""
    first, second = pair
    resealed(first, lambda manifest: manifest.update(watch=["statistics:mean", "nope:a"]))
    resealed(second, lambda manifest: manifest.update(watch=["nope:a", "nope:b"]))
    merged = merge_sessions(pair, tmp_path / "merged")
    manifest = json.loads((merged / "session.json").read_text())
    assert manifest["watch"] == ["statistics:mean", "nope:a", "nope:b"]
    assert any("--watch nope:b" in problem for problem in summarize(merged).problems)


def test_a_merged_session_is_sealed_anew(pair: Pair, tmp_path: Path) -> None:
    merged = merge_sessions(pair, tmp_path / "merged")
    names = next(merged.glob("processes/*/names.jsonl"))
    names.write_text(names.read_text() + "[]")
    assert "has grown by 2 bytes" in open_session(merged).seal_problems[0]
    manifest = json.loads((merged / "session.json").read_text())
    sources = [json.loads((each / "session.json").read_text()) for each in pair]
    assert [each["sha256"] for each in manifest["merged"]] == [s["sha256"] for s in sources]
    assert manifest["created_unix_s"] == sources[0]["created_unix_s"]
    assert manifest["command"] == [*sources[0]["command"], "&", *sources[1]["command"]]


def test_readings_of_the_machine_are_in_order(pair: Pair, tmp_path: Path) -> None:
    for directory, times in zip(pair, ((10, 30), (20, 40)), strict=True):
        rows = [{"event": "start", "cores": [0]}, *({"time_ns": t, "cpu": [0.5]} for t in times)]
        text = "\n".join(["7", *map(json.dumps, rows)])  # the last line has no end
        (directory / "samples.jsonl").write_text(text)
        resealed(directory, lambda manifest: None)
    merged = merge_sessions(pair, tmp_path / "merged")
    rows = [json.loads(line) for line in (merged / "samples.jsonl").read_text().splitlines()]
    assert rows[0]["event"] == "start"
    assert [row["time_ns"] for row in rows[1:]] == [10, 20, 30, 40]  # the start is there once


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("mode", "full", "are of different modes: mode is 'light' and 'full'"),
        ("machine", "another", "are of different machines"),
        ("boot_id", "another", "are of different starts of a machine"),
        ("boot_id", "", "does not say since which start"),
    ],
)
def test_what_does_not_fit_is_refused(
    pair: Pair, tmp_path: Path, key: str, value: str, reason: str
) -> None:
    resealed(pair[1], lambda manifest: manifest.update({key: value}))
    with pytest.raises(ProfileError, match=reason):
        merge_sessions(pair, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_pid_in_both_is_refused(pair: Pair, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(pair[0], tmp_path / "copy"))
    with pytest.raises(ProfileError, match="is in two of the sessions"):
        merge_sessions([pair[0], copy], tmp_path / "merged")


def test_one_session_is_not_merged(pair: Pair, tmp_path: Path) -> None:
    for directories in ([pair[0]], [pair[0], pair[0]]):
        with pytest.raises(ProfileError, match="two sessions or more"):
            merge_sessions(directories, tmp_path / "merged")


def test_a_changed_or_unsealed_session_is_refused(pair: Pair, tmp_path: Path) -> None:
    manifest = json.loads((pair[1] / "session.json").read_text())
    names = next(pair[0].glob("processes/*/names.jsonl"))
    text = names.read_text()
    names.write_text(text + "[]")
    with pytest.raises(SessionError, match=r"cannot be merged: .*has grown by 2 bytes"):
        merge_sessions(pair, tmp_path / "merged")
    names.write_text(text)
    for key in ("files", "sha256"):
        manifest.pop(key)
    (pair[1] / "session.json").write_text(json.dumps({**manifest, **UNSEALED}))
    with pytest.raises(SessionError, match="it is not sealed"):
        merge_sessions(pair, tmp_path / "merged")


def test_a_used_directory_is_refused(pair: Pair) -> None:
    with pytest.raises(SessionError, match="already holds a session"):
        merge_sessions(pair, pair[0])

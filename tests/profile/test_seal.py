"""Files of a session that are changed after the recording are named, whatever was changed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from redline.profile.analyse.summary import summarize
from redline.profile.reader import open_session
from redline.profile.record.files import create_session
from redline.profile.seal import broken_seals, seal

RECORDED = (
    Path(__file__).parents[1] / "fixtures" / "revision-0.1" / "sessions" / "light" / "session"
)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session whose recording has just ended."""
    copy = Path(shutil.copytree(RECORDED, tmp_path / "session"))
    seal(copy)
    return copy


def problems(session: Path) -> list[str]:
    manifest = json.loads((session / "session.json").read_text())
    return broken_seals(session, manifest)


def test_what_was_not_changed_is_not_named(session: Path) -> None:
    assert problems(session) == []
    (session / "report.html").write_text("a report may be written beside it")
    with (next((session / "processes").iterdir()) / "process.jsonl").open("a") as file:
        file.write("{}\n")  # a process that outlives the recording
    assert problems(session) == []


def test_every_bit_counts(session: Path) -> None:
    """Before, a flipped bit of a reading gave other figures without a word."""
    files = [p for p in session.rglob("*") if p.is_file() and p.name != "session.json"]
    assert len(files) >= 5
    for path in files:
        whole = path.read_bytes()
        for at in (0, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            (said,) = problems(session)
            assert path.name in said
            assert "was changed" in said
        path.write_bytes(whole[:-1])
        assert "was changed" in problems(session)[0]
        path.unlink()
        assert "is missing" in problems(session)[0]
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [("machine", "another"), ("files", {}), ("files", 7), ("sha256", "0"), ("mode", "full")],
)
def test_the_manifest_is_sealed_too(name: str, value: Any, session: Path) -> None:
    manifest = json.loads((session / "session.json").read_text())
    assert broken_seals(session, {**manifest, name: value}) == [
        "session.json was changed since the recording ended"
    ]


@pytest.mark.parametrize("entry", [7, {}, {"size_bytes": -1, "sha256": "0"}, {"size_bytes": 2**80}])
def test_entries_that_make_no_sense_are_named(entry: Any, session: Path) -> None:
    manifest = json.loads((session / "session.json").read_text()) | {"files": {"../x": entry}}
    del manifest["sha256"]
    own = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    said = broken_seals(session, manifest | {"sha256": own})
    assert said == ["'../x' is missing since the recording ended"]


def test_the_report_names_it(session: Path) -> None:
    path = session / "samples.jsonl"
    path.write_text(path.read_text().replace("1", "2", 1))
    assert any("samples.jsonl" in each for each in summarize(open_session(session)).problems)


def test_a_recording_seals_when_it_ends(tmp_path: Path) -> None:
    lock = create_session(tmp_path / "new", mode="light", command=["x"])
    (tmp_path / "new" / "samples.jsonl").write_text("{}")
    lock.release()
    assert problems(tmp_path / "new") == []
    (tmp_path / "new" / "samples.jsonl").write_text("[]")
    assert problems(tmp_path / "new") == ["'samples.jsonl' was changed since the recording ended"]


def test_a_session_without_seal_is_read_as_it_is() -> None:
    assert broken_seals(RECORDED, json.loads((RECORDED / "session.json").read_text())) == []

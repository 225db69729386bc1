"""Files of a session that are changed after the recording are named, whatever was changed."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest

from redline.errors import SessionError
from redline.profile import seal as profile_seal
from redline.profile.analyse.summary import summarize
from redline.profile.reader import open_session
from redline.profile.record.files import create_session
from redline.profile.seal import broken_seals, seal, seal_process

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
    (session / "lock").write_text("")
    assert problems(session) == []


def test_every_added_byte_is_named(session: Path) -> None:
    """Before, a file could be given a second time, or a torn line, and the figures were others."""
    (process,) = (session / "processes").iterdir()
    for path in (*sorted(process.iterdir()), session / "samples.jsonl"):
        whole = path.read_bytes()
        for added in (whole, b"{}\n", b"x"):
            path.write_bytes(whole + added)
            (said,) = problems(session)
            assert f"{path.name}' has grown by {len(added)} bytes" in said
        path.write_bytes(whole)
    assert problems(session) == []


@pytest.mark.parametrize("name", ["processes/x/thread-00009.arrow", "processes/lock"])
def test_files_that_came_after_the_end_are_named(name: str, session: Path) -> None:
    path = session / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    assert problems(session) == [f"{name!r} is not sealed: it came after the end of the recording"]


def test_a_process_that_outlives_the_recording_seals_its_own_files(session: Path) -> None:
    """The recording of pid 1 ends after the session's; a byte that was changed stays changed."""
    outliving = session / "processes" / "1-2"
    outliving.mkdir()
    (outliving / "process.jsonl").write_text("{}\n")
    samples = session / "samples.jsonl"
    whole = samples.read_bytes()
    samples.write_bytes(whole + b"x")
    assert len(problems(session)) == 2
    seal_process(session, outliving)
    (said,) = problems(session)
    assert "'samples.jsonl' has grown" in said
    samples.write_bytes(whole)
    assert problems(session) == []


def test_a_damaged_manifest_is_not_sealed_again(session: Path) -> None:
    manifest = json.loads((session / "session.json").read_text()) | {"mode": "full"}
    (session / "session.json").write_text(json.dumps(manifest))
    seal_process(session, next((session / "processes").iterdir()))
    assert problems(session) == ["session.json was changed since the recording ended"]


def test_a_process_seals_nothing_before_the_recording_ends(tmp_path: Path) -> None:
    lock = create_session(tmp_path / "new", mode="light", command=["x"])
    before = (tmp_path / "new" / "session.json").read_bytes()
    seal_process(tmp_path / "new", tmp_path / "new" / "processes")
    assert (tmp_path / "new" / "session.json").read_bytes() == before
    assert problems(tmp_path / "new") == [
        "it is not sealed: its recorder still records, or was killed. A later change of its files "
        "cannot be found"
    ]
    lock.release()
    assert problems(tmp_path / "new") == []


def test_a_seal_cannot_be_taken_off_without_a_word(session: Path) -> None:
    manifest = json.loads((session / "session.json").read_text())
    del manifest["files"], manifest["sha256"]
    (said,) = broken_seals(session, manifest)
    assert said == "session.json was changed since the recording ended"


@pytest.mark.parametrize("what", ["processes", "process"])
def test_links_in_place_of_directories_are_not_followed(
    what: str, session: Path, tmp_path: Path
) -> None:
    """What a link leads to may have the right hashes; it was left out without a word."""
    found = session / "processes"
    found = found if what == "processes" else next(found.iterdir())
    found.rename(tmp_path / "moved")
    found.symlink_to(tmp_path / "moved")
    if what == "processes":
        with pytest.raises(SessionError, match="not whole"):
            open_session(session)
    else:
        assert f"{found.name}: a link, which is not followed" in open_session(session).problems


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
    first, *rest = broken_seals(session, manifest | {"sha256": own})
    assert first == "'../x' is missing since the recording ended"
    assert all("is not sealed" in each for each in rest)  # the files that are there


@pytest.mark.parametrize("large", [0, 2**26])
def test_the_report_names_it(session: Path, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a thread of its own looks, as large sessions have it."""
    monkeypatch.setattr(profile_seal, "_LARGE", large)
    path = session / "samples.jsonl"
    path.write_text(path.read_text().replace("1", "2", 1))
    assert any("samples.jsonl" in each for each in summarize(open_session(session)).problems)


def test_what_a_thread_cannot_see_is_looked_at_when_asked(
    session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session can be sent to another process, and read in a forked child; errors are not lost."""
    monkeypatch.setattr(profile_seal, "_LARGE", 0)
    (session / "samples.jsonl").write_text("changed")
    opened = open_session(session)
    opened.look_at_seal()
    (said,) = pickle.loads(pickle.dumps(opened)).seal_problems
    assert "samples.jsonl" in said
    assert opened.seal is not None
    monkeypatch.setattr(opened.seal, "_pid", -1)  # as in a child, which has no such thread
    assert opened.seal_problems == [said]

    def fail(*_: Any) -> list[str]:
        raise OSError("it is gone")

    other = open_session(session)
    monkeypatch.setattr(profile_seal, "broken_seals", fail)
    other.look_at_seal()
    with pytest.raises(OSError, match="it is gone"):
        other.problems  # noqa: B018


def test_a_recording_seals_when_it_ends(tmp_path: Path) -> None:
    lock = create_session(tmp_path / "new", mode="light", command=["x"])
    (tmp_path / "new" / "samples.jsonl").write_text("{}")
    lock.release()
    assert problems(tmp_path / "new") == []
    (tmp_path / "new" / "samples.jsonl").write_text("[]")
    assert problems(tmp_path / "new") == ["'samples.jsonl' was changed since the recording ended"]


def test_a_session_without_seal_is_read_as_it_is() -> None:
    assert broken_seals(RECORDED, json.loads((RECORDED / "session.json").read_text())) == []

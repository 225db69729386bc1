"""Profile sessions that earlier revisions recorded are reported with the same figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redline.profile.commands import report_main

FIXTURES = Path(__file__).parents[1] / "fixtures"
OLD_SESSIONS = sorted(FIXTURES.glob("revision-*/sessions/*"))


def test_there_are_old_sessions() -> None:
    assert len(OLD_SESSIONS) >= 2


@pytest.mark.parametrize("fixture", OLD_SESSIONS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_an_old_session_is_reported_as_before(
    fixture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every figure that the report had, exactly: it is computed in whole nanoseconds.

    It may say more than it did, also where it could not say anything.
    """
    assert report_main([str(fixture / "session"), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = json.loads((fixture / "expected.json").read_text())
    del expected["session"]  # where it lies
    assert differences(found, expected) == []


def differences(found: Any, expected: Any, place: str = "report") -> list[str]:
    """Where `found` says something else than `expected`, or nothing."""
    if expected is None:
        return []
    if isinstance(expected, dict) and isinstance(found, dict):
        return [
            each
            for key, value in expected.items()
            for each in differences(found.get(key), value, f"{place}.{key}")
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [
            each
            for i, (one, other) in enumerate(zip(found, expected, strict=True))
            for each in differences(one, other, f"{place}[{i}]")
        ]
    return [] if found == expected else [f"{place} was {expected!r} and is {found!r}"]


@pytest.mark.parametrize("fixture", OLD_SESSIONS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_an_old_session_is_rendered(
    fixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert report_main([str(fixture / "session"), "--format", "text", "--html", str(page)]) == 0
    assert "operation" in capsys.readouterr().out
    assert page.stat().st_size > 0

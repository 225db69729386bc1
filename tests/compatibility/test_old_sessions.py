"""Profile sessions that earlier revisions recorded are reported with the same figures."""

from __future__ import annotations

import json
from pathlib import Path

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
    """Every figure of the report, exactly: it is computed in whole nanoseconds."""
    assert report_main([str(fixture / "session"), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = json.loads((fixture / "expected.json").read_text())
    for report in (found, expected):
        del report["session"]  # where it lies
    assert found == expected


@pytest.mark.parametrize("fixture", OLD_SESSIONS, ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_an_old_session_is_rendered(
    fixture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert report_main([str(fixture / "session"), "--format", "text", "--html", str(page)]) == 0
    assert "operation" in capsys.readouterr().out
    assert page.stat().st_size > 0

"""What the source archive holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of its files."""
    place = tmp_path_factory.mktemp("egg")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(place)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return set((place / "redline.egg-info" / "SOURCES.txt").read_text().split())


def test_the_source_archive_holds_every_c_file_and_header(listed: set[str]) -> None:
    """One header that is missing, and a wheel built from it silently lacks an extension."""
    needed = {str(path.relative_to(ROOT)) for path in ROOT.glob("src/redline/**/csrc/*.[ch]")}
    assert len(needed) >= 20
    assert needed - listed == set()


def test_the_source_archive_holds_what_its_makefile_and_pages_need(listed: set[str]) -> None:
    """The site's settings name a file in scripts/, which the pages link to as well."""
    needed = {str(path.relative_to(ROOT)) for path in ROOT.glob("scripts/*.*")}
    assert len(needed) >= 12
    assert needed | {"mkdocs.yml", "docs/stylesheets/site.css", "SECURITY.md"} <= listed

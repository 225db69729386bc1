"""The pictures of the pages are those that the script draws."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PICTURES = runpy.run_path(str(REPOSITORY / "scripts" / "docs_pictures.py"))["PICTURES"]


@pytest.mark.parametrize("name", PICTURES)
def test_the_script_draws_the_picture(name: str) -> None:
    assert (REPOSITORY / "docs" / "images" / name).read_text() == str(PICTURES[name]())


def test_every_room_is_in_the_picture() -> None:
    folders = {path.parent.name for path in (REPOSITORY / "src" / "redline").glob("*/__init__.py")}
    picture = str(PICTURES["rooms.svg"]())
    assert [name for name in sorted(folders) if name not in picture] == []

"""The page in a terminal that textual plays: what it shows as runs go on, and its keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textual", reason="the extra watch is not installed")

from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from redline.watch.app import Curve, FolderScreen, RunScreen, WatchApp
from tests.watch.runs import line, write_run

FIRST = (100, 1.0, 100.0, 20.0, 2.0, "")
SECOND = (300, 2.0, 200.0, 50.0, 5.0, 60.0)


@pytest.fixture(autouse=True)
def _no_period(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that the page begins by itself, before a change, would stand for the test's own."""
    monkeypatch.setattr("redline.watch.app.PERIOD_S", 3600.0)


def played(
    path: Path, does: Callable[[WatchApp, Pilot[Any]], Awaitable[None]], width: int = 120
) -> None:
    """Show a page while something is done with it."""

    async def play() -> None:
        app = WatchApp(path)
        async with app.run_test(size=(width, 45)) as pilot:
            await settled(app, pilot)
            await does(app, pilot)

    asyncio.run(play())


async def settled(app: WatchApp, pilot: Pilot[Any]) -> None:
    """Wait until what was read last is shown."""
    await pilot.pause()
    await app.workers.wait_for_complete()
    await pilot.pause()


async def read_again(app: WatchApp, pilot: Pilot[Any]) -> None:
    """Read now rather than after the period."""
    app.screen.follow()  # type: ignore[attr-defined]
    await settled(app, pilot)


def text(app: WatchApp, part: str) -> str:
    return str(app.screen.query_one(part, Static).render())


def test_a_run_is_followed(tmp_path: Path) -> None:
    """Its curve and numbers change with its rows; a directory that goes says so."""
    path = write_run(tmp_path / "run", [FIRST])

    async def does(app: WatchApp, pilot: Pilot[Any]) -> None:
        assert isinstance(app.screen, RunScreen)
        assert "100 of 1,000 env_steps" in text(app, "#head")
        assert "killed" in text(app, "#head")
        assert not app.screen.query_one("#evaluations", Curve).display
        with open(path / "progress.csv", "a") as file:
            file.write(line(SECOND))
        await read_again(app, pilot)
        assert "300 of 1,000 env_steps" in text(app, "#head")
        assert "evaluation 60.0" in text(app, "#head")
        assert text(app, "#returns").count("┤") == 2
        assert app.screen.query_one("#evaluations", Curve).display
        assert "--profile light" in text(app, "#shares")
        (path / "config.json").unlink()
        await read_again(app, pilot)
        assert "config.json is missing" in text(app, "#head")
        assert not app.screen.check_action("back", ())
        await pilot.press("escape")
        assert isinstance(app.screen, RunScreen)

    played(path, does)


@pytest.mark.parametrize(("width", "beside"), [(120, True), (60, False)])
def test_curves_lie_side_by_side_where_there_is_room(
    tmp_path: Path, width: int, beside: bool
) -> None:
    async def does(app: WatchApp, pilot: Pilot[Any]) -> None:
        returns, evaluations = (app.screen.query_one(each) for each in ("#returns", "#evaluations"))
        await pilot.pause()
        assert (returns.region.y == evaluations.region.y) is beside
        assert evaluations.region.right <= width
        assert "redline" in app.export_screenshot()

    played(write_run(tmp_path / "run", [FIRST, SECOND]), does, width)


def test_a_folder_is_listed_and_a_run_opened(tmp_path: Path) -> None:
    """The cursor stays on its run while numbers change and runs join; escape goes back."""
    write_run(tmp_path / "b", [FIRST])
    write_run(tmp_path / "c", [FIRST, SECOND], end={"state": "complete"})

    async def does(app: WatchApp, pilot: Pilot[Any]) -> None:
        table = app.screen.query_one(DataTable)
        assert "2 runs, 0 running" in text(app, "#said")
        assert [str(cell) for cell in table.get_row_at(1)[:5]] == [
            "c", "complete", "300", "30%", "50.0",
        ]  # fmt: skip
        await pilot.press("down")
        with open(tmp_path / "b" / "progress.csv", "a") as file:
            file.write(line(SECOND))
        await read_again(app, pilot)
        assert str(table.get_cell(str(tmp_path / "b"), "env_steps")) == "300"
        write_run(tmp_path / "a", [FIRST])
        await read_again(app, pilot)
        assert table.row_count == 3
        assert str(table.get_row_at(table.cursor_row)[0]) == "c"
        await pilot.press("enter")
        await settled(app, pilot)
        assert isinstance(app.screen, RunScreen)
        assert "complete" in text(app, "#head")
        await pilot.press("escape")
        await settled(app, pilot)
        assert isinstance(app.screen, FolderScreen)

    played(tmp_path, does)


def test_a_run_with_a_link_is_not_opened_but_said(tmp_path: Path) -> None:
    """And words in square brackets are text, not markup."""
    (write_run(tmp_path / "[red]run", [FIRST]) / "link").symlink_to("/etc")

    async def does(app: WatchApp, pilot: Pilot[Any]) -> None:
        assert str(app.screen.query_one(DataTable).get_row_at(0)[0]) == "[red]run"
        await pilot.press("enter")
        await settled(app, pilot)
        assert "link is a symbolic link" in text(app, "#head")

    played(tmp_path, does)


def test_an_empty_folder_waits_for_runs(tmp_path: Path) -> None:
    async def does(app: WatchApp, pilot: Pilot[Any]) -> None:
        assert "no runs yet" in text(app, "#said")
        write_run(tmp_path / "run")
        await read_again(app, pilot)
        assert app.screen.query_one(DataTable).row_count == 1
        await pilot.press("q")

    played(tmp_path, does)

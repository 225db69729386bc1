"""The page that follows a run or a folder of runs in a terminal, by textual (extra: watch).

Directories are read in a thread, so that keys are answered while a large folder is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Container, VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static
from textual.worker import get_current_worker

from redline.errors import RedlineError
from redline.plain_text import printable
from redline.train.runs.summary import RunSummary
from redline.watch import page
from redline.watch.chart import chart
from redline.watch.reading import FolderReader, Points, RunReader, RunView, is_run

PERIOD_S = 1.0
"""Seconds between two readings."""

_STATE_STYLES = {
    "running": "bold green",
    "complete": "bold cyan",
    "stopped": "bold yellow",
    "interrupted": "bold yellow",
    "failed": "bold red",
    "killed": "bold red",
}


class Curve(Static):
    """A learning curve that fills its widget."""

    def __init__(self, title: str, empty: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.border_title, self._empty = title, empty
        self._points: Points = []
        self._last = 0.0

    def show(self, points: Points, last: float) -> None:
        """Draw other points, on an axis that ends at `last` env_steps."""
        self._points, self._last = points, last
        self.refresh()

    def render(self) -> Text:
        """The curve in the size that the widget has."""
        lines = chart(self._points, self.size.width, self.size.height, self._last)
        return Text("\n".join(lines) or self._empty, no_wrap=bool(lines))


class _Following(Screen[None]):
    """A screen that reads something again and again, in a thread, and shows it."""

    def __init__(self) -> None:
        super().__init__()
        self._is_reading = False

    def on_mount(self) -> None:
        self.set_interval(PERIOD_S, self.follow)
        self.follow()

    def follow(self) -> None:
        """Read once more, unless the last reading is still under way."""
        if not self._is_reading:
            self._is_reading = True
            self.run_worker(self._read, thread=True)

    def _read(self) -> None:
        worker = get_current_worker()
        try:
            show = self.read()
        except (RedlineError, OSError) as error:
            message = printable(str(error))
            show = lambda: self.say(message)  # noqa: E731
        if not worker.is_cancelled:
            self.app.call_from_thread(self._show, show)

    def _show(self, show: Callable[[], None]) -> None:
        self._is_reading = False
        if self.is_attached:
            show()

    def read(self) -> Callable[[], None]:
        """Read, in a thread; what then shows it, called by the page."""
        raise NotImplementedError

    def say(self, sentence: str) -> None:
        """Show why there is nothing else to show."""
        raise NotImplementedError


class RunScreen(_Following):
    """One run: state, progress, curves, time by operation, files.

    Args:
        path: run directory.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "back", "back")]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._reader: RunReader | None = None

    def compose(self) -> ComposeResult:
        """The parts of the page."""
        with VerticalScroll(id="run"):
            yield Static(id="head")
            with Container(id="curves"):
                yield Curve(page.RETURNS, page.NO_RETURNS, id="returns")
                yield Curve(page.EVALUATIONS, page.NO_EVALUATIONS, id="evaluations")
            yield Static(id="shares", markup=False)
            yield Static(id="files", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        """Name the parts, and begin to follow."""
        self.query_one("#shares").border_title = "time by operation"
        self.query_one("#files").border_title = "files"
        super().on_mount()

    def read(self) -> Callable[[], None]:
        """Read the run."""
        self._reader = self._reader or RunReader(self._path)
        view = self._reader.read()
        # Copies: the reader goes on with its own while these are drawn.
        returns, evaluations = list(view.returns), list(view.evaluations)
        return lambda: self.show(view, returns, evaluations)

    def show(self, view: RunView, returns: Points, evaluations: Points) -> None:
        """Show a run as it was read."""
        run, head = view.summary, self.query_one("#head", Static)
        head.border_title = Text(page.name(run)).markup
        width = max(20, head.content_size.width)
        state = Text(run.state, style=_STATE_STYLES.get(run.state, "bold"))
        head.update(Text("\n").join([state, *map(Text, page.head(view, width))]))
        self.query_one("#returns", Curve).show(returns, run.env_steps)
        second = self.query_one("#evaluations", Curve)
        second.show(evaluations, run.env_steps)
        second.display = bool(evaluations)
        self.query_one("#curves").set_class(bool(evaluations), "two")
        shares, files = self.query_one("#shares", Static), self.query_one("#files", Static)
        shares.update("\n".join(page.shares(view, max(20, shares.content_size.width))))
        lines = page.files(view)
        files.display = bool(lines)
        files.update("\n".join(lines))

    def say(self, sentence: str) -> None:
        """Say it in the head."""
        self.query_one("#head", Static).update(Text(sentence))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Going back is offered if the page began with a list of runs."""
        del parameters
        return action != "back" or isinstance(self.app.screen_stack[-2], FolderScreen)

    def action_back(self) -> None:
        """To the list of runs."""
        self.app.pop_screen()


class FolderScreen(_Following):
    """The runs of a folder; Enter opens one.

    Args:
        folder: where they lie.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._reader = folder, FolderReader(folder)
        self._shown: dict[str, tuple[str, ...]] = {}

    def compose(self) -> ComposeResult:
        """A line about the folder, and the table."""
        yield Static(id="said", markup=False)
        table: DataTable[Text] = DataTable(cursor_type="row", zebra_stripes=True)
        table.add_columns(*((Text(name), name) for name in page.FOLDER_COLUMNS))
        yield table
        yield Footer()

    def read(self) -> Callable[[], None]:
        """Read the folder."""
        worker = get_current_worker()
        runs = self._reader.read(lambda: worker.is_cancelled)
        return lambda: self.show(runs)

    def show(self, runs: Sequence[RunSummary]) -> None:
        """Show the runs; the cursor stays where it is."""
        running = sum(run.state == "running" for run in runs)
        about = f"{len(runs)} runs, {running} running" if runs else "no runs yet"
        self.say(f"{printable(str(self._folder))}: {about}")
        rows = {run.path: page.folder_row(run, self._folder) for run in runs}
        shown, self._shown = self._shown, rows
        table = self.query_one(DataTable)
        if list(shown) != list(rows):
            self._list(table, list(shown), rows)
            return
        for path, cells in rows.items():
            if cells != shown[path]:
                for column, cell in zip(page.FOLDER_COLUMNS, _styled(cells), strict=True):
                    table.update_cell(path, column, cell, update_width=True)

    def _list(
        self, table: DataTable[Text], before: list[str], rows: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Put other runs into the table, with the cursor on the one where it was."""
        at = before[table.cursor_row] if before else ""
        table.clear()
        for path, cells in rows.items():
            table.add_row(*_styled(cells), key=path)
        table.move_cursor(row=list(rows).index(at) if at in rows else 0)

    def say(self, sentence: str) -> None:
        """Say it above the table."""
        self.query_one("#said", Static).update(sentence)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the run under the cursor."""
        if event.row_key.value is not None:
            self.app.push_screen(RunScreen(Path(event.row_key.value)))


def _styled(cells: Sequence[str]) -> list[Text]:
    """The cells of a run: numbers to the right, the state in its color."""
    named = dict(zip(page.FOLDER_COLUMNS, cells, strict=True))
    styles = {"state": _STATE_STYLES.get(named["state"], "")}
    return [
        Text(cell, style=styles.get(name, ""), justify="right" if name in page.RIGHT else "left")
        for name, cell in named.items()
    ]


class WatchApp(App[None]):
    """The page.

    Args:
        path: run directory, or a folder of runs.
    """

    TITLE = "redline watch"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS: ClassVar = [(0, "-narrow"), (90, "-wide")]
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "quit"), ("ctrl+c", "quit", "")]
    CSS = """
    #head, #shares, #files, Curve {
        border: round $surface-lighten-2; border-title-color: $text; padding: 0 1;
    }
    #head, #shares, #files { height: auto; }
    #curves { layout: grid; grid-size: 1; grid-rows: 12; height: auto; }
    .-wide #curves.two { grid-size: 2; }
    Curve { height: 12; color: $accent; }
    #said { padding: 0 1; text-style: bold; }
    DataTable { height: 1fr; }
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def on_mount(self) -> None:
        """Show the run or the folder."""
        screen = RunScreen if is_run(self._path) else FolderScreen
        self.push_screen(screen(self._path))

"""What a run shows while it goes on: a progress bar, or plain lines where there is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TextIO

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from redline.plain_text import printable

SHOWN_SHARES = 3  # operations
_LEAST_WIDTH = 48  # of a terminal for a bar beside speed, return and time left
_LEAST_BAR = 8


class Console:
    """Shows how far a run is.

    On a terminal: a bar with env_steps, SPS, mean return and time left. Elsewhere: one
    line per logging interval. All of it goes to stderr, so that stdout holds results only.
    Warnings are shown even if `quiet`.

    Args:
        total_env_steps: length of the run.
        title: what is being trained.
        quiet: show neither progress nor messages.
        stream: where to; None is stderr.
    """

    def __init__(
        self,
        total_env_steps: int,
        *,
        title: str = "",
        quiet: bool = False,
        stream: TextIO | None = None,
    ) -> None:
        self._total = total_env_steps
        self._title = printable(title)
        self._quiet = quiet
        self._stream = sys.stderr if stream is None else stream
        self._rich = RichConsole(file=self._stream, highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._updated = False
        self._mean_return = self._busiest = ""

    @property
    def has_bar(self) -> bool:
        """Whether a bar is drawn: on a terminal, unless quiet."""
        return self._rich.is_terminal and not self._rich.is_dumb_terminal and not self._quiet

    @property
    def is_drawing(self) -> bool:
        """Whether there is a bar now, so that `update` has something to show."""
        return self._bar is not None

    def start(self, env_steps: int = 0) -> None:
        """Begin to show progress.

        Args:
            env_steps: where the run begins; above 0 if it was resumed.
        """
        if not self.has_bar or self._bar is not None:
            return
        self._bar = Progress(
            *_columns(self._rich.width, self._title, self._total),
            console=self._rich,
            refresh_per_second=4,
            expand=True,
            # Output that goes elsewhere than the terminal must not be drawn into the bar.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(
            self._title, total=self._total, completed=env_steps, sps="", facts=""
        )
        self._bar.start()

    def update(
        self, env_steps: int, *, sps: float | None = None, mean_return: float | None = None
    ) -> None:
        """Move the bar; without a bar this does nothing. Cheap: it is redrawn 4 times a second.

        Args:
            env_steps: so far.
            sps: env_steps per second; None leaves what is shown.
            mean_return: moving mean over episodes; None leaves what is shown.
        """
        if self._bar is None:
            return
        shown: dict[str, Any] = {}
        if sps is not None:
            shown["sps"] = f"{sps:,.0f} SPS"
        if mean_return is not None:
            self._mean_return = f"return {mean_return:,.1f}"
            shown["facts"] = self._facts()
        if not self._updated:
            # What a resumed run begins with was not done just now: it says nothing of the speed.
            self._bar.reset(self._task, completed=min(env_steps, self._total))
            self._updated = True
        self._bar.update(self._task, completed=min(env_steps, self._total), **shown)

    def row(
        self,
        row: Mapping[str, int | float | None],
        shares: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Print a logged row as one line; a bar only shows the shares.

        Args:
            row: with env_steps, and sps and return_mean where there are any.
            shares: of the time since the last row, of 1, by operation; the largest are shown.
        """
        largest = sorted(shares.items(), key=lambda item: -item[1])[:SHOWN_SHARES]
        busiest = ", ".join(f"{name} {share:.0%}" for name, share in largest)
        if self._bar is not None and busiest:
            self._busiest = busiest
            self._bar.update(self._task, facts=self._facts())
        if self._bar is not None or self._quiet:
            return
        env_steps = row["env_steps"] or 0
        parts = [f"{env_steps:,}/{self._total:,} env_steps"]
        sps, mean_return = row.get("sps"), row.get("return_mean")
        if sps:
            parts.append(f"{sps:,.0f} SPS")
        if mean_return is not None:
            parts.append(f"return {mean_return:,.1f}")
        if sps:
            parts.append(f"{duration(max(0.0, self._total - env_steps) / sps)} left")
        if busiest:
            parts.append(busiest)
        self._line("  ".join(parts))

    def message(self, text: str) -> None:
        """Show a message above the bar, unless quiet."""
        if not self._quiet:
            self._line(text)

    def warning(self, text: str) -> None:
        """Show a warning, in any case."""
        self._line(f"warning: {text}")

    def close(self) -> None:
        """Leave the bar as it stands. Calling it twice does no harm."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Console:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _facts(self) -> str:
        return "  ".join(filter(None, (self._mean_return, self._busiest)))

    def _line(self, text: str) -> None:
        try:
            # soft_wrap: lines in a file must not be folded at a terminal's width.
            self._rich.print(printable(text), markup=False, soft_wrap=True)
        except OSError:
            # The terminal has been closed: the run is to save and leave, not to fail.
            self._quiet = True


def _columns(width: int, title: str, total: int) -> list[ProgressColumn]:
    """What a bar shows in so many columns: on a narrow terminal the most important, whole.

    Args:
        width: of the terminal, in characters.
        title: what is being trained.
        total: length of the run in env_steps.
    """
    steps = 2 * len(f"{total:,}") + len("/ env_steps")
    facts = len("100,000 SPS return 10,000.0 0:00:00 ") + 4
    text: list[ProgressColumn] = [TextColumn("{task.fields[sps]}", table_column=_whole())]
    text.append(TextColumn("{task.fields[facts]}", table_column=_whole()))
    if width < _LEAST_WIDTH:
        return [TextColumn("{task.percentage:.0f}%", table_column=_whole()), text[1]]
    bar, left = BarColumn(bar_width=None), TimeRemainingColumn(compact=True)
    if width < steps + facts + _LEAST_BAR:
        return [TextColumn("{task.percentage:.0f}%", table_column=_whole()), bar, *text, left]
    count = TextColumn("{task.completed:,.0f}/{task.total:,.0f} env_steps", table_column=_whole())
    if width < len(title) + steps + facts + _LEAST_BAR:
        return [bar, count, *text, left]
    described = TextColumn("{task.description}", table_column=_whole())
    return [described, bar, count, *text, TimeRemainingColumn()]


def _whole() -> Column:
    """A column that the bar makes room for."""
    return Column(no_wrap=True)


def duration(seconds: float) -> str:
    """Whole seconds as 0:07, 1:02:03 or 2 d 3:00:00."""
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    clock = f"{hours}:{minutes:02}:{rest:02}" if hours or days else f"{minutes}:{rest:02}"
    return f"{days} d {clock}" if days else clock

"""`redline watch RUN|FOLDER`: follow a run, or a folder of runs, in the terminal."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tyro.conf import FlagCreatePairsOff, Positional

from redline.command_line.options import parse
from redline.errors import ConfigError, MissingExtraError, RunDirectoryError

_NARROWEST, _WIDEST = 40, 120  # characters of the plain page


@dataclass(frozen=True, kw_only=True)
class WatchArguments:
    """Follow a run, or a folder of runs: state, progress, curves, time by operation."""

    path: Positional[Path] = Path("runs")
    """Run directory, or a folder with runs in it."""
    once: FlagCreatePairsOff[bool] = False
    """Print one page of plain text and end; needs no extra."""


def watch(arguments: list[str]) -> None:
    """Show the page until `q` is pressed, or print it once.

    Raises:
        RunDirectoryError: if there is no such directory, or it holds links or special files.
        MissingExtraError: if textual is not installed.
        ConfigError: if there is no terminal to show the page on.
    """
    parsed = parse(WatchArguments, arguments, "watch")
    if not parsed.path.is_dir():
        raise RunDirectoryError(
            f"{parsed.path} is no folder. Give a run, or a folder with runs in it."
        )
    if parsed.once:
        _print_once(parsed.path)
        return
    if importlib.util.find_spec("textual") is None:
        raise MissingExtraError(
            "textual", "watch", "following runs on the terminal (--once goes without it)"
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("redline watch needs a terminal. Add --once to print one page of text.")
    from redline.plain_files import refuse_special_files
    from redline.watch.app import WatchApp
    from redline.watch.reading import is_run

    if is_run(parsed.path):
        refuse_special_files(parsed.path)
    WatchApp(parsed.path).run()


def _print_once(path: Path) -> None:
    from redline.watch.page import folder_page, run_page
    from redline.watch.reading import FolderReader, RunReader, is_run

    if is_run(path):
        width = min(_WIDEST, max(_NARROWEST, shutil.get_terminal_size().columns))
        text = run_page(RunReader(path).read(), width)
    else:
        text = folder_page(FolderReader(path).read(), path)
    encoding = sys.stdout.encoding or "utf-8"  # one that knows no braille shows question marks
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))

"""Training under the profiler: what `redline train --profile` does.

It stands above both halves: training knows the profiler's marks only, and the profiler knows
nothing of training.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from redline.plain_text import printable
from redline.profile.record.options import Options

ProfileRecording: TypeAlias = Callable[[Path], AbstractContextManager[None]]
_NUMBERED = re.compile(r"(?:session|report)-(\d+)")


def recording(mode: str, **options: Any) -> ProfileRecording:
    """Run directory -> what records the training in it and writes its report.

    The session goes to `profile/session-<n>`, one for each time the run is started or
    resumed; beside it lie `report-<n>.txt` and `report-<n>.html`. Training that fails leaves the
    session alone, and the command that reports it is printed.

    Args:
        mode: "light", "full" or "sample".
        **options: further ones of `Options`: sample_hz, gpu_window_s, gpu_every_s, ...

    Raises:
        UnknownNameError: if there is no such mode.
        ConfigError: if another option is wrong.
    """
    Options(mode=mode, **options)

    @contextmanager
    def record(out: Path) -> Iterator[None]:
        from redline.profile.record.recorder import session

        folder = out / "profile"
        number = _next_number(folder)
        directory = folder / f"session-{number}"
        with session(directory, mode=mode, **options):
            try:
                yield
            except BaseException:
                # No report: it may take minutes, and a failure of its own would hide this one.
                command = f"redline report {shlex.quote(str(directory))}"
                sys.stderr.write(printable(f"profile: read what was recorded with: {command}\n"))
                raise
        _write_report(directory, folder, number)

    return record


def _next_number(folder: Path) -> int:
    """One more than the largest that was given: earlier sessions may have been removed."""
    given = (_NUMBERED.match(path.name) for path in folder.glob("*-*"))
    return 1 + max((int(found[1]) for found in given if found), default=0)


def _write_report(directory: Path, folder: Path, number: int) -> None:
    from redline.profile.advise.reading import read_session, render_page
    from redline.profile.reader import open_session
    from redline.profile.report.text import render_text

    reading = read_session(open_session(directory))
    text, page = folder / f"report-{number}.txt", folder / f"report-{number}.html"
    rendered, opening = render_page(reading)
    page.write_text(rendered, encoding="utf-8")
    text.write_text(printable(render_text(reading.summary, opening)), encoding="utf-8")
    sys.stderr.write(printable(f"profile: {text}, {page}\n"))

"""The profiler's commands, for the command line to call; none imports torch.

Each takes its arguments as a list and returns an exit status:

| function | command |
|---|---|
| `profile_main` | `redline profile [--out DIR] [--mode MODE] ... -- COMMAND...` |
| `report_main` | `redline report DIR... [--format F] [--html FILE] [--figures DIR] ...` |
| `trace_main` | `redline trace DIR --out FILE.pftrace`, `.json` or `.speedscope.json` |
| `advise_main` | `redline advise DIR` or `redline advise --check "CMD A" "CMD B"` |
| `diff_main` | `redline diff DIR_A DIR_B` |
| `inspect_main` | `redline inspect-session DIR` |
| `sessions_main` | `redline sessions [DIR...]` |
| `merge_main` | `redline merge-sessions DIR DIR... --out DIR` |
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from redline.errors import ConfigError, ProfileError, RedlineError, UnknownNameError
from redline.kept_memory import keep_freed_memory
from redline.plain_text import printable
from redline.profile.arguments import add_options, options_of

if TYPE_CHECKING:
    from redline.profile.advise.reading import Reading
    from redline.profile.reader import Session

STDERR = 2  # its descriptor
PAIRS = 5  # of runs that `redline advise --check` makes

__all__ = [
    "COMMANDS",
    "advise_main",
    "diff_main",
    "inspect_main",
    "main",
    "merge_main",
    "profile_main",
    "report_main",
    "sessions_main",
    "trace_main",
]


class Parser(argparse.ArgumentParser):
    """What it says of a mistaken argument shows no escape sequence of it."""

    def error(self, message: str) -> NoReturn:
        """Print and exit with 2."""
        super().error(printable(message))


def profile_main(argv: Sequence[str]) -> int:
    """`redline profile`: run a command and record it; returns the command's status."""
    from redline.profile.runner import run_profiled

    own, command = _split(list(argv))
    arguments = _profile_parser().parse_args(own)
    directory = Path(arguments.out or time.strftime("profile-%Y%m%d-%H%M%S"))
    status = run_profiled(command, directory, options_of(arguments))
    place = printable(str(directory))
    sys.stderr.write(f"redline profile: recorded to {place}; see: redline report {place}\n")
    return status


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    if "--" in argv:
        at = argv.index("--")
        return argv[:at], argv[at + 1 :]
    return argv, []


def _profile_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="redline profile",
        usage="redline profile [options] -- python program.py [arguments]",
        description="Record where the time of a program, and of the Python processes it starts, "
        "goes. The program needs no change.",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="new session directory (default: profile-DATE-TIME)"
    )
    add_options(parser.add_argument)
    return parser


def report_main(argv: Sequence[str]) -> int:
    """`redline report`: where the time went."""
    arguments = _report_parser().parse_args(list(argv))
    sessions = arguments.directory
    if arguments.html and len(sessions) > 1:
        raise ConfigError(
            f"--html shows one session, and {len(sessions)} are given. Give one, or compare them "
            "with --figures"
        )
    if arguments.sampled and len(sessions) > 1:
        raise ConfigError(
            f"--sampled is compared with one session, and {len(sessions)} are given. Give one"
        )
    if arguments.bias and not arguments.figures:
        raise ConfigError("--bias is drawn by --figures. Give --figures DIR as well")
    if arguments.figure_format and not arguments.figures:
        raise ConfigError("--figure-format is that of --figures. Give --figures DIR as well")
    keep_freed_memory()  # the next slice of the session is as large as the last
    from redline.profile.advise.reading import read_session
    from redline.profile.reader import open_session

    sampled = open_session(arguments.sampled) if arguments.sampled else None
    opened = [open_session(directory) for directory in sessions]
    if arguments.html:
        _measure_first(opened[0])
    readings = [read_session(session, sampled) for session in opened]
    try:
        written = _write_reports(arguments, readings)
    except OSError as error:
        raise ConfigError(f"cannot write the report: {error}. Give another path") from error
    for path in written:
        sys.stderr.write(printable(f"wrote {path}\n"))
    if arguments.format or not written:
        _print_reports(arguments.format or "text", readings)
    return 0


def _measure_first(session: Session) -> None:
    """What the advice will ask of this machine, before the session's tables take memory."""
    from redline.profile.advise.iteration import torch_threads_of
    from redline.profile.advise.rates import measure_rates

    threads = torch_threads_of(session)
    if threads:
        measure_rates(threads)


def _report_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="redline report",
        description="Where the time went. Prints text where no option asks for something else.",
    )
    add = parser.add_argument
    add("directory", metavar="DIR", nargs="+", help="session directory; several to compare them")
    add("--format", choices=("text", "json", "csv"), help="print this (csv: the cells)")
    add(
        "--sampled",
        metavar="DIR",
        help="session of the same program in sample mode, to compare the shares with (default: "
        "the session's own samples, if it holds any)",
    )
    add("--html", metavar="FILE", help="write one self-contained page, for a browser")
    add("--csv", metavar="DIR", help="write each table of the report as a CSV file")
    add("--figures", metavar="DIR", help="write figures, of all sessions side by side")
    add(
        "--figure-format",
        choices=("png", "pdf", "svg"),
        help="of --figures (default: png)",
    )
    add(
        "--bias",
        metavar="FILE.json",
        help="measured times with and without the profiler, to draw among the figures",
    )
    return parser


def _write_reports(arguments: argparse.Namespace, readings: list[Reading]) -> list[Path]:
    written: list[Path] = []
    summaries = [reading.summary for reading in readings]
    if arguments.html:
        from redline.profile.advise.reading import render_page

        page = Path(arguments.html)
        page.write_text(render_page(readings[0])[0], encoding="utf-8")
        written.append(page)
    if arguments.csv:
        from redline.profile.report.tables import write_tables

        written += write_tables(summaries, Path(arguments.csv))
    if arguments.figures:
        from redline.profile.report.bias import read_biases
        from redline.profile.report.figures import write_figures

        biases = read_biases(Path(arguments.bias)) if arguments.bias else []
        written += write_figures(
            summaries, Path(arguments.figures), arguments.figure_format or "png", biases=biases
        )
    return written


def _print_reports(kind: str, readings: list[Reading]) -> None:
    summaries = [reading.summary for reading in readings]
    if kind == "json":
        found = [summary.to_json() for summary in summaries]
        sys.stdout.write(json.dumps(found[0] if len(found) == 1 else found) + "\n")
    elif kind == "csv":
        from redline.profile.report.tables import write_table

        write_table("cells", summaries, sys.stdout)
    else:
        from redline.profile.advise.reading import find_iteration
        from redline.profile.report.text import render_text

        texts = [render_text(each.summary, find_iteration(each)) for each in readings]
        sys.stdout.write(printable("\n".join(texts)))


def inspect_main(argv: Sequence[str]) -> int:
    """`redline inspect-session`: what a session directory holds; the last line is JSON."""
    parser = Parser(prog="redline inspect-session", description="What a session directory holds.")
    parser.add_argument("directory", metavar="DIR", help="session directory")
    arguments = parser.parse_args(list(argv))
    from redline.profile.reader import Source, open_session

    session = open_session(arguments.directory)
    rows: list[dict[str, Any]] = []
    for process in session.processes:
        monitor = process.directory / "monitor.arrow"
        sources = [*process.sources, *([Source(monitor)] if monitor.exists() else [])]
        size = sum(source.path.lstat().st_size for source in sources)
        events = sum(len(codes) for source in sources for _, codes in source.pieces())
        for source in sources:
            if source.problem is not None:
                process.note(f"{source.path.name}: {source.problem}")
        rows.append(
            {
                "name": process.name,
                "pid": process.pid,
                "threads": len(process.sources),
                "rows": events,
                "bytes": size,
                "dropped": process.dropped,
                "ended": process.end is not None,
                "problems": process.problems,
            }
        )
        sys.stdout.write(
            printable(
                f"{process.name} (pid {process.pid}): {len(process.sources)} threads, {events} "
                f"rows, {size} bytes{''.join(f'; {p}' for p in process.problems)}\n"
            )
        )
    summary = {"version": session.manifest["version"], "mode": session.mode, "processes": rows}
    sys.stdout.write(json.dumps(summary) + "\n")
    return 0


def sessions_main(argv: Sequence[str]) -> int:
    """`redline sessions`: the sessions in some folders, each in a line."""
    parser = Parser(
        prog="redline sessions",
        description="The profile sessions in folders and below, the oldest first.",
    )
    parser.add_argument(
        "directory", metavar="DIR", nargs="*", default=["."], help="folder (default: this one)"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="print this (default: text)"
    )
    arguments = parser.parse_args(list(argv))
    from redline.profile.session_list import list_sessions, render_sessions, rows_to_json

    rows = list_sessions(arguments.directory)
    if arguments.format == "json":
        sys.stdout.write(json.dumps(rows_to_json(rows)) + "\n")
    elif rows:
        sys.stdout.write(printable(render_sessions(rows)))
    else:
        sys.stdout.write("no profile sessions there\n")
    return 0


def merge_main(argv: Sequence[str]) -> int:
    """`redline merge-sessions`: one session out of several of the same machine."""
    parser = Parser(
        prog="redline merge-sessions",
        description="Write one session that holds the processes of several, which were recorded "
        "on one machine without a restart in between. They stay as they are.",
    )
    parser.add_argument("directory", metavar="DIR", nargs="+", help="session directory")
    parser.add_argument("--out", required=True, metavar="DIR", help="new session directory")
    arguments = parser.parse_args(list(argv))
    from redline.profile.merge import merge_sessions

    merged = merge_sessions(arguments.directory, arguments.out)
    place = printable(str(merged))
    sys.stderr.write(f"redline merge-sessions: wrote {place}; see: redline report {place}\n")
    return 0


def trace_main(argv: Sequence[str]) -> int:
    """`redline trace`: a file for ui.perfetto.dev or speedscope.app."""
    parser = Parser(
        prog="redline trace",
        description="Write a file that opens in ui.perfetto.dev or speedscope.app.",
    )
    parser.add_argument("directory", metavar="DIR", help="session directory")
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="file to write: .pftrace (Perfetto's own, smaller), .json (Trace Event Format), or "
        ".speedscope.json (sampled Python stacks)",
    )
    arguments = parser.parse_args(list(argv))
    output = Path(arguments.out)
    if output.suffix not in (".json", ".pftrace"):
        raise UnknownNameError(
            f"no trace format {output.suffix!r}. Give a file that ends in .pftrace, .json or "
            ".speedscope.json"
        )
    from redline.profile.reader import open_session

    viewer = "https://ui.perfetto.dev"
    if output.name.endswith(".speedscope.json"):
        from redline.profile.report.speedscope import write_speedscope as write_trace

        viewer = "https://www.speedscope.app"
    elif output.suffix == ".json":
        from redline.profile.report.trace import write_trace
    else:
        from redline.profile.report.perfetto import write_perfetto as write_trace

    count = write_trace(open_session(arguments.directory), output)
    sys.stdout.write(printable(f"{count} events written to {output}; open it at {viewer}\n"))
    return 0


def diff_main(argv: Sequence[str]) -> int:
    """`redline diff`: what got slower between two sessions."""
    parser = Parser(
        prog="redline diff",
        description="Compare two sessions, the largest change first: per env step, or per "
        "profile.step(), with intervals; then the seconds of the whole sessions.",
    )
    parser.add_argument("before", metavar="DIR_A", help="session directory")
    parser.add_argument("after", metavar="DIR_B", help="session directory to compare with it")
    arguments = parser.parse_args(list(argv))
    keep_freed_memory()
    from redline.profile.advise.per_step import inferred_operations, read_per_step
    from redline.profile.analyse.summary import summarize
    from redline.profile.reader import open_session
    from redline.profile.report.diff import render_diff, render_step_diff

    before, after = open_session(arguments.before), open_session(arguments.after)
    try:
        text = render_step_diff(read_per_step(before), read_per_step(after))
        sys.stdout.write(printable(f"{text}\n"))
    except ProfileError as error:
        sys.stdout.write(printable(f"not per step: {error}\n\n"))
    sys.stdout.write("the whole sessions, all processes\n")
    summaries = summarize(before), summarize(after)
    inferred = inferred_operations(before) | inferred_operations(after)
    sys.stdout.write(printable(render_diff(*summaries, inferred)))
    return 0


def advise_main(argv: Sequence[str]) -> int:
    """`redline advise`: what to change, and what it would gain; or whether it did."""
    parser = Parser(
        prog="redline advise",
        description="What holds a program back, what to change, and the time per env step that is "
        "predicted then.",
    )
    add = parser.add_argument
    add("directory", metavar="DIR", nargs="?", help="session directory, recorded in full")
    add(
        "--check",
        nargs=2,
        metavar=("CMD_A", "CMD_B"),
        help="instead: run two commands in turn, and put the prediction for the change beside what "
        "is measured",
    )
    add("--remedy", metavar="NAME", help="the change from A to B (default: told by their words)")
    add("--pairs", type=int, metavar="N", help="of runs with --check (default: 5)")
    add("--format", choices=("text", "json"), default="text", help="print this (default: text)")
    arguments = parser.parse_args(list(argv))
    if (arguments.directory is None) == (arguments.check is None):
        raise ConfigError(
            'give one session directory, or --check "COMMAND A" "COMMAND B", and not both'
        )
    if arguments.check is not None:
        return _check_advice(arguments)
    for option in ("remedy", "pairs"):
        if getattr(arguments, option) is not None:
            raise ConfigError(
                f"--{option} is of --check, which runs two commands. Leave it out, or give --check "
                '"COMMAND A" "COMMAND B" instead of a session'
            )
    keep_freed_memory()
    from redline.profile.advise.iteration import read_iteration
    from redline.profile.advise.reading import advise_here
    from redline.profile.advise.report import advice_to_json, render_advice
    from redline.profile.reader import open_session

    session = open_session(arguments.directory)
    _measure_first(session)
    iteration, found = advise_here(read_iteration(session))
    if arguments.format == "json":
        sys.stdout.write(json.dumps(advice_to_json(iteration, found)) + "\n")
    else:
        sys.stdout.write(printable(render_advice(iteration, found)))
    return 0


def _say(text: str) -> None:
    sys.stderr.write(printable(f"redline advise: {text}\n"))


def _check_advice(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from redline.profile.advise.check import check, render_check

    checked = check(
        *arguments.check,
        remedy=arguments.remedy,
        pairs=PAIRS if arguments.pairs is None else arguments.pairs,
        progress=_say,
        # Only JSON is to be in ours.
        output=STDERR if arguments.format == "json" else None,
    )
    if arguments.format == "json":
        content = {**asdict(checked), "measured_us": checked.measured_us}
        sys.stdout.write(json.dumps({**content, "verdict": checked.verdict}) + "\n")
    else:
        sys.stdout.write(printable(render_check(checked)))
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "profile": profile_main,
    "report": report_main,
    "trace": trace_main,
    "advise": advise_main,
    "diff": diff_main,
    "inspect-session": inspect_main,
    "sessions": sessions_main,
    "merge-sessions": merge_main,
}


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m redline.profile COMMAND ...`: the profiler without the rest of Redline."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] not in COMMANDS:
        sys.stderr.write(f"usage: python -m redline.profile {{{','.join(COMMANDS)}}} ...\n")
        return 2
    try:
        return COMMANDS[arguments[0]](arguments[1:])
    except RedlineError as error:
        kind = "profile error" if isinstance(error, ProfileError) else "error"
        sys.stderr.write(printable(f"redline {arguments[0]}: {kind}: {error}\n"))
        return 2

"""The options of a recording for any argument parser, and a session begun from them.

For a script of one's own, two lines:

    profile.add_arguments(parser)
    arguments = parser.parse_args()
    profile.start_from(arguments)  # to the end of the program; or: with profile.start_from(...):

`python script.py --profile DIR` then records it. The same options, without `profile-` in their
names, are those of `redline profile`.
"""

from __future__ import annotations

import argparse
import atexit
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from typing import Any

from redline.errors import ConfigError
from redline.profile.record.options import MODES, Options

PREFIX = "profile"

__all__ = ["add_arguments", "add_options", "options_of", "start_from"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--profile DIR` and the options of a recording, each with `--profile-` before its name.

    Args:
        parser: of a script.
    """
    group = parser.add_argument_group(
        "profiler", "record where the time of this program goes; see: redline report DIR"
    )
    group.add_argument(f"--{PREFIX}", metavar="DIR", help="record into this new session directory")

    def add(name: str, action: str = "store", **how: Any) -> None:
        group.add_argument(name, action=_ACTIONS[action], **how)

    add_options(add, f"{PREFIX}-")


class _Given(argparse.Action):
    """Stores a value, and notes that it was given: a script may have other defaults than ours."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        value = self.value(namespace, values)
        shown = "" if value is True else f" {values!r}"
        given = [*getattr(namespace, _GIVEN, []), f"{self.option_strings[0]}{shown}"]
        setattr(namespace, _GIVEN, given)
        setattr(namespace, self.dest, value)

    def value(self, namespace: argparse.Namespace, values: Any) -> Any:
        """What is stored."""
        return values


class _GivenToo(_Given):
    """Each of them."""

    def value(self, namespace: argparse.Namespace, values: Any) -> Any:
        return [*getattr(namespace, self.dest), values]


class _Flag(_Given):
    def __init__(self, option_strings: list[str], dest: str, **how: Any) -> None:
        how.setdefault("default", False)
        super().__init__(option_strings, dest, nargs=0, **how)

    def value(self, namespace: argparse.Namespace, values: Any) -> Any:
        return True


_ACTIONS = {"store": _Given, "append": _GivenToo, "store_true": _Flag}
_GIVEN = f"{PREFIX}_given"  # of a namespace, once an option was given: what, as texts


def start_from(arguments: argparse.Namespace) -> ExitStack:
    """Begin to record if the arguments say so.

    Args:
        arguments: parsed by a parser that `add_arguments` was given.

    Returns:
        What ends the session: by `close()`, by `with`, or else at the program's end. Where
        `--profile` was not given it does nothing.

    Raises:
        ConfigError: if an option is wrong, or given without `--profile`.
        ProfileError: as `redline.profile.session`.
    """
    running = ExitStack()
    directory = getattr(arguments, PREFIX)
    options = options_of(arguments, f"{PREFIX}_")
    if directory is None:
        _refuse_unused(getattr(arguments, _GIVEN, []))
        return running
    from redline.profile.record.recorder import session

    values = {field.name: getattr(options, field.name) for field in fields(options)}
    running.enter_context(session(directory, **values))
    own = os.getpid()

    def close_at_exit() -> None:
        if os.getpid() == own:  # not of a forked child, which ends its own recording
            running.close()

    atexit.register(close_at_exit)
    return running


def _refuse_unused(given: list[str]) -> None:
    if given:
        raise ConfigError(
            f"{given[0]} has no effect without --{PREFIX}, which names the session to record. "
            f"Add --{PREFIX} DIR, or leave it out"
        )


def options_of(arguments: argparse.Namespace, prefix: str = "") -> Options:
    """What was parsed by the options of `add_options`.

    Raises:
        ConfigError: if an option is wrong.
    """
    known = vars(arguments)
    values: dict[str, Any] = {
        field.name: known[prefix + field.name]
        for field in fields(Options)
        if prefix + field.name in known
    }
    values["watch"] = tuple(values["watch"])
    values["lines"] = not known[f"{prefix}no_lines"]
    values["calibrate"] = not known[f"{prefix}no_calibration"]
    return Options(**values)


def add_options(add_argument: Callable[..., Any], prefix: str = "") -> None:
    """Add the options of a recording.

    Args:
        add_argument: of a parser or of a group of its arguments.
        prefix: before each name.
    """
    usual = Options()

    def add(name: str, **how: Any) -> None:
        plain = name.removeprefix("--")
        known = plain.replace("-", "_")
        if hasattr(usual, known) and "action" not in how:
            how.setdefault("default", getattr(usual, known))
            how.setdefault("type", type(how["default"]))
        add_argument(f"--{prefix}{plain}", **how)

    _add_what(add)
    _add_windows(add)
    _add_limits(add)


def _add_what(add: Callable[..., None]) -> None:
    add(
        "--mode",
        choices=MODES,
        help="light: marks, env calls, backward and optimizers; full: native calls, too; "
        "sample: a sampler that checks the shares of full (default: full)",
    )
    add(
        "--watch",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="count this function as simulator; may be repeated",
    )


def _add_windows(add: Callable[..., None]) -> None:
    add("--delay-s", metavar="X", help="start X seconds late (default: 0)")
    add("--for-s", metavar="X", help="record X seconds (default: 0, all)")
    add("--delay-steps", metavar="N", help="start after N calls of profile.step() (default: 0)")
    add("--for-steps", metavar="N", help="record N steps (default: 0, all)")
    add(
        "--every-s",
        metavar="X",
        help="record again, X seconds after the begin of the window before (default: 0, once)",
    )
    add("--every-steps", metavar="N", help="the same in steps (default: 0, once)")
    add("--repeat", metavar="N", help="windows in all (default: 0, until the program ends)")
    add(
        "--exit-after-window",
        action="store_true",
        help="end the program after the last window: by SIGTERM if it handles that, else by "
        "SystemExit(0) in its main thread",
    )


def _add_limits(add: Callable[..., None]) -> None:
    add(
        "--memory-mb",
        metavar="X",
        help="bound of the event buffers per process, MB (default: 64)",
    )
    add(
        "--max-events-per-s",
        metavar="X",
        help="mode full: events of a process, on average; where more come, native calls are "
        "observed part of the time, and the report says so; 0: any number (default: 300000)",
    )
    add(
        "--sample-hz",
        metavar="X",
        help="look X times a second, in any mode, or less often where that would cost over 5%% of "
        "a core (default: 100 at 1%% in mode sample, else not)",
    )
    add(
        "--gpu-window-s",
        metavar="X",
        help="mode full: seconds of each window in which the GPU is observed; 0 for none "
        "(default: 1)",
    )
    add(
        "--gpu-every-s",
        metavar="X",
        help="seconds from the begin of one such window to the next (default: 20)",
    )
    add(
        "--counters",
        action="store_true",
        help="count instructions, cycles, cache misses, page faults and more by operation, where "
        "the machine lets one; costs two system calls per mark",
    )
    add(
        "--no-lines",
        action="store_true",
        help="modes full and sample: do not look for the hottest Python lines, 100 times a second",
    )
    add(
        "--no-calibration",
        action="store_true",
        help="mode full: leave out the short blocks without the probe, from which its cost is "
        "estimated",
    )

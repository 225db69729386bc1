"""Run a command with every Python process of it recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType

from redline.errors import ConfigError, ProfileError
from redline.profile.record.files import create_session
from redline.profile.record.machine import MachineThread
from redline.profile.record.options import Options
from redline.profile.record.recorder import environment

__all__ = ["run_profiled"]


def run_profiled(
    command: list[str], directory: Path, options: Options, *, output: int | None = None
) -> int:
    """Run a command, unmodified, recording it and the Python processes it starts.

    Interrupts go to the command; this process waits for its end, whatever it is.

    Args:
        command: program and arguments.
        directory: of the new session.
        options: what to record.
        output: a descriptor that what the command prints goes to; None: to this program's.

    Returns:
        The command's exit status; 128 + n when signal n ended it.

    Raises:
        ConfigError: if the command is empty or not found.
        SessionError: if the directory is in use or cannot be written.
        ProfileError: if the C extension is missing.
    """
    if not command:
        raise ConfigError("there is no command to profile. Give it after --: -- python train.py")
    try:
        import_module("redline.profile._native")
    except ImportError as error:
        raise ProfileError(
            "the C extension redline.profile._native was not built, and nothing can be recorded "
            "without it. Install a C compiler and run `pip install --force-reinstall redline`"
        ) from error
    lock = create_session(directory, mode=options.mode, command=command, watch=options.watch)
    try:
        added = environment(directory, options)
        # A shell's <(...) is a descriptor that the command is to inherit; ours all close by exec.
        child = subprocess.Popen(
            command, env={**os.environ, **added}, stdout=output, close_fds=False
        )
    except OSError as error:
        lock.discard()
        raise ConfigError(f"cannot run {command[0]!r}: {error}. Check the command") from error

    machine = MachineThread(directory)

    def forward(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGHUP)}
    # The terminal sends an interrupt to the whole group: the command gets it by itself.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        machine.stop()
        lock.release()
    _say_what_is_missing(directory)
    return status if status >= 0 else 128 - status


def _say_what_is_missing(directory: Path) -> None:
    try:
        if any((directory / "processes").iterdir()):
            return
        missing = (
            "no Python process joined the session. Was the command Python, and started without "
            "-I, -E and -S?"
        )
    except OSError as error:
        missing = f"the session is gone: {error}. It must stay in place until the program ends"
    sys.stderr.write(f"redline profile: {missing}\n")

"""The command line: finds the command, calls it, and turns errors into exit codes.

Help must answer at once, so a command's module is imported when the command is given, and none
of them imports torch before there is work to do.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import NoReturn

from redline.command_line import COMMANDS
from redline.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    RedlineError,
    UnknownNameError,
)
from redline.plain_text import printable
from redline.user_code import exit_message, exit_place

_PATH_MISTAKES = (errno.ENAMETOOLONG, errno.ELOOP)
_STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
USAGE = """usage: redline COMMAND ...

Deep reinforcement learning in PyTorch.

commands:
  train ALGORITHM --env ID   train an agent:{algorithms}
  train --config FILE        the same with settings from a file, such as a run's config.json
  train --resume RUN_DIR     go on with a run that was stopped
  runs [DIR]                 the runs in a folder: state, env_steps, return
  watch RUN|FOLDER           follow a run, or a folder of runs, in the terminal
  presets ALGORITHM          named hyperparameters, and what each sets
  eval RUN_DIR...            run whole episodes with trained agents
  collect RUN_DIR --out F    record episodes of a trained agent, to learn from
  inspect RUN_DIR            what the newest checkpoint holds
  plot RUN_DIR... --out F    learning curves as .png, .pdf or .svg
  export RUN_DIR --out F     the policy as ONNX or torch.export program
  sweep FILE --out DIR       many runs: settings x seeds, on slots of cores and GPUs
  sweep status DIR           how far a sweep is
  tune FILE --out DIR        search hyperparameters with Optuna, on the same slots
  compare DIR...             tables and figures over sweeps and runs
  profile [...] -- COMMAND   record where a program's time goes, by process and level
  report DIR                 what a recorded session says; also trace, diff, inspect-session
  sessions [DIR...]          the recorded sessions in folders; also merge-sessions
  advise DIR                 what to change in the program, and what it would gain
  completion bash|zsh        a script that completes commands and options

`redline COMMAND --help` explains the options. A first run:
  redline train ppo --env CartPole-v1
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code is 0, 2 for bad input, 1 for a failed run."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from redline import __version__

        sys.stdout.write(f"redline {__version__}\n")
        return 0
    try:
        return _run(arguments)
    except RedlineError as error:
        sys.stderr.write(printable(f"{type(error).__name__}: {error}\n"))
        bad_input = (ConfigError, DeviceError, CheckpointError, ImportError, OSError)
        return 2 if isinstance(error, bad_input) else 1
    except BrokenPipeError:
        # Whoever read the output has left, as `redline ... | head` does: nothing to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in _PATH_MISTAKES:
            raise  # of an environment, say: its author needs the traceback
        shown = str(error.filename)
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        why = f"ConfigError: {shown!r} is no path: {error.strerror}. Give another one.\n"
        sys.stderr.write(printable(why))
        return 2
    except SystemExit as error:
        place = exit_place(error)
        if place is None:
            raise  # after help, or a mistake in the options
        said = exit_message("code that redline called", error, place)
        sys.stderr.write(printable(f"RedlineError: {said}\n"))
        return 1
    except KeyboardInterrupt as error:  # a further one, while that was told
        return _stopped_by(error)


def _run(arguments: list[str]) -> int:
    with _signals_raise():
        try:
            return _command(arguments[0])(arguments[1:]) or 0
        except KeyboardInterrupt as error:  # told before a further signal can end the process
            return _stopped_by(error)


def _stopped_by(error: KeyboardInterrupt) -> int:
    """Say so; the exit code.

    A run that trains saves on its first signal (`StopSignal`), so this one came before or after
    that, or was the second.
    """
    name = error.args[0] if error.args and error.args[0] in _STOPPING else "SIGINT"
    sys.stderr.write(f"stopped by {name}; what was not saved before is not saved now\n")
    return 128 + signal.Signals[name]


def run_and_exit() -> NoReturn:
    """The command line as a process.

    When everything is done, a further Ctrl-C ends the process without a word. Python's own handler
    would raise in what libraries do at the end of an interpreter, which prints a traceback.
    """
    status = main()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt, so that a command cleans up and says so.

    Those that somebody has given another meaning, or that are ignored, keep it.
    """

    def stop(number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    taken: list[int] = []
    if threading.current_thread() is threading.main_thread():
        taken = [
            signal.Signals[name]
            for name in ("SIGTERM", "SIGHUP")
            if signal.getsignal(signal.Signals[name]) is signal.SIG_DFL
        ]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _usage() -> str:
    from redline.algos.registry import BUILT_IN

    indent = " " * 29
    names = textwrap.fill(", ".join(BUILT_IN), 60, initial_indent=indent, subsequent_indent=indent)
    return USAGE.format(
        algorithms=f"\n{names},\n{indent}an installed package's, or module:Name of your own"
    )


def _command(name: str) -> Callable[[list[str]], int | None]:
    if name not in COMMANDS:
        raise UnknownNameError(
            f"there is no command {name!r}. Choose one of: {', '.join(COMMANDS)}."
        )
    module, _, function = COMMANDS[name].partition(":")
    return getattr(importlib.import_module(module), function)


if __name__ == "__main__":
    run_and_exit()

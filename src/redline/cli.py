"""The command line: finds the command, calls it, and turns errors into exit codes.

Help must answer at once, so a command's module is imported when the command is given, and none
of them imports torch before there is work to do.
"""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Sequence

from redline.command_line import COMMANDS
from redline.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    RedlineError,
    UnknownNameError,
)

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
  inspect RUN_DIR            what the newest checkpoint holds
  plot RUN_DIR... --out F    learning curves as .png, .pdf or .svg
  export RUN_DIR --out F     the policy as ONNX or torch.export program
  sweep FILE --out DIR       many runs: settings x seeds, on slots of cores and GPUs
  sweep status DIR           how far a sweep is
  tune FILE --out DIR        search hyperparameters with Optuna, on the same slots
  compare DIR...             tables and figures over sweeps and runs
  profile [...] -- COMMAND   record where a program's time goes, by process and level
  report DIR                 what a recorded session says; also trace, diff, inspect-session
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
        return _command(arguments[0])(arguments[1:]) or 0
    except RedlineError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        bad_input = (ConfigError, DeviceError, CheckpointError, ImportError, OSError)
        return 2 if isinstance(error, bad_input) else 1
    except BrokenPipeError:
        # Whoever read the output has left, as `redline ... | head` does: nothing to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        return 130


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
    sys.exit(main())

"""`redline train --resume RUN`: go on with a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import FlagCreatePairsOff

from redline.command_line.options import as_parsed, kinds_of, parse


@dataclass(frozen=True, kw_only=True)
class ResumeArguments:
    """Go on with a run that was stopped."""

    resume: Path
    """Run directory. A run stopped before its first checkpoint starts again."""
    total_env_steps: int | None = None
    """New length of the run in env_steps. None: as it was."""
    env: str | None = None
    """Refuse to go on unless the run's environment is this one."""
    env_backend: str | None = None
    """The run's back end again, where it is `module:Name`, so that the module is imported."""
    collector: str | None = None
    """Likewise its collector."""
    quiet: FlagCreatePairsOff[bool] = False
    """Leave out the progress bar and messages."""


def resume(arguments: list[str], recording: Any) -> int:
    """Go on with the run that the arguments name; its exit code.

    Args:
        arguments: the algorithm, where it is the user's own, and options.
        recording: run directory -> context in which the training takes place; or None.
    """
    algorithm = None
    if not arguments[0].startswith("-"):
        algorithm, arguments = arguments[0], arguments[1:]
    words = as_parsed(arguments, kinds_of(ResumeArguments), "train --resume")
    parsed = parse(ResumeArguments, words, "train")
    from redline.train.runs.building import Given
    from redline.train.runs.start import resume_run

    run = resume_run(
        parsed.resume,
        Given(
            algorithm=algorithm,
            env=parsed.env,
            env_backend=parsed.env_backend,
            collector=parsed.collector,
        ),
        total_env_steps=parsed.total_env_steps,
        quiet=parsed.quiet,
        recording=recording,
    )
    return run.exit_code

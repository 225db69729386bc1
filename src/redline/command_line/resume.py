"""`redline train --resume RUN`: go on with a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tyro.conf import FlagCreatePairsOff

from redline.command_line.options import (
    RESUMING,
    as_parsed,
    parse,
    refuse_repeated,
    values_of,
    without,
)
from redline.command_line.profile_options import ALONE, ProfileOptions
from redline.errors import ConfigError
from redline.train.outlines import kinds_of


@dataclass(frozen=True, kw_only=True)
class ResumeArguments(ProfileOptions):
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
    network: str | None = None
    """Likewise its network."""
    data: str | None = None
    """The run's recorded episodes again, where it reads them again; they may lie elsewhere now."""
    init_from: str | None = None
    """Confirm the run directory that this run begins with, where it has no checkpoint yet."""
    callbacks: tuple[str, ...] = ()
    """Each of the run's callbacks again, in their order, as `module:Name`."""
    set: tuple[str, ...] = ()
    """A setting to go on with instead, such as learning_rate=1e-4 or device=cpu; once for each. The
    run no longer repeats to the bit then; history.jsonl says so."""
    wandb: FlagCreatePairsOff[bool] = False
    """Confirm that the run may send settings and metrics to Weights & Biases again."""
    accelerate: str | None = None
    """Confirm the run's engine, where it runs a compiler."""
    env_kwargs: str | None = None
    """Confirm the environment's arguments, where they name files; as JSON."""
    accept_changed_config: FlagCreatePairsOff[bool] = False
    """Go on although config.json or progress.csv were changed since Redline wrote them."""
    quiet: FlagCreatePairsOff[bool] = False
    """Leave out the progress bar and messages."""


def resume(arguments: list[str]) -> int:
    """Go on with the run that the arguments name; its exit code.

    Args:
        arguments: the algorithm, where it is the user's own, and options.
    """
    algorithm = None
    if not arguments[0].startswith("-"):
        algorithm, arguments = arguments[0], arguments[1:]
    refuse_repeated(arguments, many=("--callback", "--set"))
    changes = _changes(values_of(arguments, "--set"))
    callbacks = tuple(values_of(arguments, "--callback"))
    arguments = without(without(arguments, "--set"), "--callback")
    words = as_parsed(arguments, kinds_of(ResumeArguments), RESUMING, alone=ALONE)
    parsed = parse(ResumeArguments, words, RESUMING)
    recording = parsed.recording()
    from redline.train.runs.given import Given
    from redline.train.runs.start import resume_run

    run = resume_run(
        parsed.resume,
        Given(
            algorithm=algorithm,
            data=parsed.data,
            env=parsed.env,
            env_backend=parsed.env_backend,
            collector=parsed.collector,
            network=parsed.network,
            callbacks=(*callbacks, *parsed.callbacks),
            confirmed={
                "wandb": parsed.wandb or None,
                "accelerate": parsed.accelerate,
                "env_kwargs": parsed.env_kwargs,
                "init_from": parsed.init_from,
            },
        ),
        changes=changes,
        total_env_steps=parsed.total_env_steps,
        quiet=parsed.quiet,
        accept_changed_config=parsed.accept_changed_config,
        recording=recording,
    )
    return run.exit_code


def _changes(words: list[str]) -> dict[str, Any]:
    """Setting -> value, of NAME=VALUE words.

    Raises:
        ConfigError: if a word has another form, or a setting is given twice.
    """
    from redline.train.config_files import value_of
    from redline.train.setting_values import types_of
    from redline.train.settings import RunSettings

    kinds = types_of(RunSettings)
    changes: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ConfigError(f"--set {word} is not NAME=VALUE. Give such as learning_rate=1e-4.")
        name = name.replace("-", "_")
        if name in changes:
            raise ConfigError(f"--set {name} is given twice. Leave one of them out.")
        changes[name] = value_of(value, kinds.get(name))
    return changes

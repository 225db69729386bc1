"""`redline train`: its arguments become a run's settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redline.command_line.options import (
    as_parsed,
    parse,
    peek,
    refuse_repeated,
    values_of,
    without,
)
from redline.command_line.profile_options import ALONE, ProfileOptions
from redline.errors import ConfigError
from redline.train.outlines import kinds_of

if TYPE_CHECKING:
    from redline.train.settings import RunConfig

PARTS = ("run", "policy", "algo")


def train(arguments: list[str]) -> int:
    """Train an agent, or go on with a run; the exit code of the run."""
    from redline.train.process import before_torch_loads

    if not arguments or arguments[0] in ("-h", "--help"):
        from redline.command_line.train_help import overview

        sys.stdout.write(overview())
        return 0 if arguments else 2
    resumes = any(a == "--resume" or a.startswith("--resume=") for a in arguments)
    if {"-h", "--help", "--help-all"} & set(arguments):
        return _help(arguments, resumes=resumes)
    if "--print-config" in arguments:
        return _print_config([word for word in arguments if word != "--print-config"])
    # Before the options are parsed: an algorithm's file holds its options, and loads torch.
    if not {"--no-tune-process", "--no-tune_process"} & set(arguments):
        is_said = {"--tune-process", "--tune_process"} & set(arguments)  # it wins over the file
        config = None if is_said else peek(arguments, "--config")
        before_torch_loads(peek(arguments, "--resume"), config)
    if resumes:
        from redline.command_line.resume import resume

        return resume(arguments)
    request = train_request(arguments)
    recording = request.profiling.recording()
    from redline.train.runs.start import start_run

    return start_run(request.config, base=request.base, recording=recording).exit_code


def _help(arguments: list[str], *, resumes: bool) -> int:
    from redline.command_line.train_help import algorithm_help, resume_help

    if resumes:
        sys.stdout.write(resume_help())
        return 0
    asked = [word for word in arguments if word not in ("-h", "--help", "--help-all")]
    request = train_request(asked, for_help=True)
    sys.stdout.write(algorithm_help(request.config, everything="--help-all" in arguments))
    return 0


def _print_config(arguments: list[str]) -> int:
    """Print the settings that the run would begin with, as `--config` reads them."""
    config = train_request(arguments, for_help=True).config
    sys.stdout.write(json.dumps(config.to_json(), indent=2) + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """What `redline train` is asked for.

    Attributes:
        config: all settings.
        base: those of a complete file that it began with; None where there was none.
        profiling: what is to be recorded.
    """

    config: RunConfig
    base: RunConfig | None = None
    profiling: ProfileOptions = field(default_factory=ProfileOptions)


def parse_train_arguments(arguments: list[str]) -> RunConfig:
    """The config that `redline train` arguments describe; see `train_request`."""
    return train_request(arguments).config


def train_request(arguments: list[str], *, for_help: bool = False) -> TrainRequest:
    """What `redline train` arguments ask for.

    Args:
        arguments: the algorithm, then options; the preset and the file give their defaults.
        for_help: whether a built-in algorithm's outline will do, which needs no torch.

    Raises:
        ConfigError: if a name or value is wrong.
    """
    from redline.train.settings import RunConfig

    algorithm, options = None, list(arguments)
    if options and not options[0].startswith("-"):
        algorithm, options = options[0], options[1:]
    refuse_repeated(options, many=("--callback",))
    default, complete = _default(algorithm, options, for_help=for_help)
    for name in ("--preset", "--config"):
        options = without(options, name)
    options = _one_list(options, "--callback", "--callbacks")
    values: dict[str, Any] = {name: getattr(default, name) for name in PARTS}
    values["profiling"] = ProfileOptions()
    kind = make_dataclass(
        "TrainArguments", [(name, type(part)) for name, part in values.items()], frozen=True
    )
    command = f"train {default.algorithm}"
    words = as_parsed(options, kinds_of(*values.values()), command, alone=ALONE)
    parsed = parse(kind, words, command, kind(**values)) if words else kind(**values)
    config = RunConfig(
        algorithm=default.algorithm, run=parsed.run, policy=parsed.policy, algo=parsed.algo
    )
    return TrainRequest(config, default if complete else None, parsed.profiling)


def _default(
    algorithm: str | None, options: Sequence[str], *, for_help: bool
) -> tuple[RunConfig, bool]:
    """The settings before the options, and whether they are those of a complete file."""
    from redline.train.config_files import GivenSettings, config_of, given_settings, value_of
    from redline.train.presets import COUPLED

    path, preset = peek(options, "--config"), peek(options, "--preset")
    given = given_settings(Path(path)) if path is not None else GivenSettings()
    if algorithm is None and given.algorithm is None:
        if path is None:
            raise ConfigError(
                "the algorithm is missing. Give one first, such as redline train ppo --env "
                "CartPole-v1."
            )
        raise ConfigError(
            f"{path} names no algorithm. Write one into it, such as algorithm: ppo, or give it "
            f"first: redline train ppo --config {path}."
        )
    # What decides about the preset, and what may be Python code, is the caller's own word.
    names = ("env", "env_kwargs", "env_backend", "collector", "network")
    if given.complete is not None:  # what reaches outside, too
        names += ("accelerate", "data", "init_from")
    own: dict[str, Any] = {
        n: text for n in names if (text := peek(options, f"--{n.replace('_', '-')}"))
    }
    if callbacks := values_of(options, "--callback"):
        own["callbacks"] = ",".join(callbacks)
    if given.complete is not None:
        for word, says in (("--wandb", True), ("--no-wandb", False)):
            if word in options:
                own["wandb"] = says
    said = {n: peek(options, f"--{n.replace('_', '-')}") for n in COUPLED}
    later = {name: value_of(text) for name, text in said.items() if text is not None}
    config = config_of(
        given, algorithm=algorithm, preset=preset, for_help=for_help, options=later, **own
    )
    return config, given.complete is not None


def _one_list(options: list[str], one: str, many: str) -> list[str]:
    """An option that is given once for each value as one with all of them."""
    values = values_of(options, one)
    return [*without(options, one), f"{many}={','.join(values)}"] if values else options

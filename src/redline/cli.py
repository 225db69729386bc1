"""The command line: parses, calls, prints. Imports torch only to do work, never for help."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional

from redline.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    RedlineError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from redline.train.loops.evaluate import Evaluation
    from redline.train.settings import RunConfig

USAGE = """usage: redline COMMAND ...

Deep reinforcement learning in PyTorch.

commands:
  train ALGORITHM --env ID   train an agent: {algorithms}
  train --resume RUN_DIR     go on with a run that was stopped
  eval RUN_DIR...            run whole episodes with trained agents
  inspect RUN_DIR            what the newest checkpoint holds
  plot RUN_DIR... --out F    learning curves as .png, .pdf or .svg
  export RUN_DIR --out F     the policy as ONNX or torch.export program
  profile [...] -- COMMAND   record where a program's time goes, by process and level
  report DIR                 what a recorded session says; also trace, diff, inspect-session

`redline COMMAND --help` explains every option. A first run:
  redline train ppo --env CartPole-v1
"""

PROFILE_OPTIONS = ("sample_hz", "gpu_window_s", "gpu_every_s")  # of --profile; see its Options


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
    from redline.algos.registry import algorithm_names

    indent = " " * 29
    names = textwrap.fill(
        ", ".join(algorithm_names()), 60, initial_indent=indent, subsequent_indent=indent
    )
    return USAGE.format(algorithms=f"\n{names},\n{indent}or module:Name of your own")


def _command(name: str) -> Callable[[list[str]], int | None]:
    commands: dict[str, Callable[[list[str]], int | None] | Callable[[Sequence[str]], int]] = {
        "train": _train,
        "eval": _eval,
        "inspect": _inspect,
        "plot": _plot,
        "export": _export,
    }
    if name not in commands:
        from redline.profile.commands import COMMANDS

        commands |= COMMANDS
    if name not in commands:
        raise UnknownNameError(
            f"there is no command {name!r}. Choose one of: {', '.join(commands)}."
        )
    return commands[name]


def _parse(kind: Any, arguments: list[str], command: str, default: Any = None) -> Any:
    """Parse options into a dataclass with tyro; help and mistakes end the program."""
    extra = {} if default is None else {"default": default}
    return tyro.cli(
        kind, args=arguments, prog=f"redline {command}", config=(OmitArgPrefixes,), **extra
    )


# -- train --------------------------------------------------------------------------------


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


def _train(arguments: list[str]) -> int:
    from redline.algos.registry import algorithm_names
    from redline.train.process import before_torch_loads

    names = ",".join(algorithm_names())
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(
            f"usage: redline train {{{names}}} --env ID [options]\n"
            "       redline train --resume RUN_DIR [--total-env-steps N] [--quiet]\n"
            "       redline train ... --profile [light|full|sample] [--profile-sample-hz X]\n"
            "                         [--profile-gpu-window-s X] [--profile-gpu-every-s X]\n\n"
            "Train an agent, or go on with a run that was stopped. --profile records where the\n"
            "time goes (full: native calls, too) and writes a report into RUN_DIR/profile.\n"
            "`redline train ALGORITHM --help` explains every option.\n"
        )
        return 0 if arguments else 2
    # Before the options are parsed: an algorithm's file holds its options, and loads torch.
    if not {"--no-tune-process", "--no-tune_process"} & set(arguments):
        before_torch_loads(_peek(arguments, "--resume"))
    mode, arguments = _take_profile(arguments)
    options, arguments = _take_profile_options(arguments, mode)
    recording = None
    if mode is not None:
        from redline.recorded_training import recording as recording_of

        recording = recording_of(mode, **options)
    if any(a == "--resume" or a.startswith("--resume=") for a in arguments):
        return _resume(arguments, recording)
    config = parse_train_arguments(arguments)
    from redline.train.runs.start import start_run

    return start_run(config, recording=recording).exit_code


def _take_profile(arguments: list[str]) -> tuple[str | None, list[str]]:
    """The mode that `--profile` asks for (full, if it stands alone), and the other arguments."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name != "--profile":
            continue
        before, after = arguments[:index], arguments[index + 1 :]
        if equals:
            return value, before + after
        if after and not after[0].startswith("-"):
            return after[0], before + after[1:]
        return "full", before + after
    return None, arguments


def _take_profile_options(
    arguments: list[str], mode: str | None
) -> tuple[dict[str, float], list[str]]:
    """What `--profile-sample-hz X` and the like ask for, and the other arguments.

    Raises:
        ConfigError: if a value is missing or no number, or nothing is to be profiled.
    """
    found: dict[str, float] = {}
    rest = list(arguments)
    for option in PROFILE_OPTIONS:
        name = f"--profile-{option.replace('_', '-')}"
        text = _peek(rest, name)
        if text is None and name not in rest:
            continue
        if mode is None:
            raise ConfigError(f"{name} is for profiled runs. Give --profile as well")
        try:
            found[option] = float(text or "")
        except ValueError:
            raise ConfigError(f"{name} {text or ''} is not a number. Give one") from None
        rest = _without(rest, name)
    return found, rest


def _resume(arguments: list[str], recording: Any) -> int:
    algorithm = None
    if not arguments[0].startswith("-"):
        algorithm, arguments = arguments[0], arguments[1:]
    parsed = _parse(ResumeArguments, arguments, "train")
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


def parse_train_arguments(arguments: list[str]) -> RunConfig:
    """The config that `redline train` arguments describe.

    Args:
        arguments: the algorithm, then options; a preset gives the options' defaults.

    Raises:
        ConfigError: if a name or value is wrong.
    """
    from dataclasses import make_dataclass

    from redline.algos.registry import declaration
    from redline.train.presets import preset_config
    from redline.train.settings import RunConfig

    options = arguments[1:]
    said = declaration(arguments[0], for_help="-h" in options or "--help" in options)
    default = preset_config(
        said, _peek(options, "--env") or "", _peek(options, "--preset") or "auto"
    )
    parts = ("run", "policy", "algo")
    kind = make_dataclass(
        "TrainArguments", [(name, type(getattr(default, name))) for name in parts], frozen=True
    )
    kind.__doc__ = (
        f"Train an agent with {said.name}. Defaults are those of the preset in force. "
        f"--preset NAME chooses another; --profile records where the time goes."
    )
    values = kind(**{name: getattr(default, name) for name in parts})
    options = _with_answers(_without(options, "--preset"), parts, values)
    parsed = _parse(kind, options, f"train {said.label}", values)
    return RunConfig(algorithm=said.label, run=parsed.run, policy=parsed.policy, algo=parsed.algo)


def _with_answers(options: list[str], parts: Sequence[str], values: Any) -> list[str]:
    """The options, where a setting that is yes, no or left open is a flag with its answer.

    `--clip-reward` and `--no-clip-reward` then work as those of settings that are yes or no.
    """
    open_ones = {
        f.name.replace("_", "-")
        for part in parts
        for f in fields(getattr(values, part))
        if f.type in ("bool | None", bool | None)
    }
    answered: list[str] = []
    for index, option in enumerate(options):
        name = option.removeprefix("--").replace("_", "-") if option.startswith("--") else ""
        following = options[index + 1] if index + 1 < len(options) else ""
        if name in open_ones and following not in ("True", "False", "None"):
            answered += [f"--{name}", "True"]
        elif name.startswith("no-") and name[3:] in open_ones:
            answered += [f"--{name[3:]}", "False"]
        else:
            answered.append(option)
    return answered


def _peek(options: list[str], name: str) -> str | None:
    """The value of an option, before the options are parsed."""
    for index, option in enumerate(options):
        if option == name and index + 1 < len(options):
            return options[index + 1]
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
    return None


def _without(options: list[str], name: str) -> list[str]:
    """The options without one that has been dealt with."""
    kept: list[str] = []
    skip = False
    for option in options:
        if skip:
            skip = False
        elif option == name:
            skip = True
        elif not option.startswith(f"{name}="):
            kept.append(option)
    return kept


# -- eval, inspect, plot, export ----------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Run episodes with trained agents; the last line printed is one JSON object.

    Several runs make a table, and that object holds each of them and the mean over them.
    """

    run_dirs: Positional[tuple[Path, ...]]
    """Run directories."""
    which: Literal["latest", "best"] = "latest"
    """Which checkpoint."""
    algorithm: str | None = None
    """The run's algorithm again, where it is `module:Name` of your own."""
    env: str | None = None
    """The run's environment again, where it is `module:Id`, so that the module is imported."""
    env_backend: str | None = None
    """Likewise the back end that steps it, where it is `module:Name`."""
    episodes: int = 10
    """Number of episodes of each run, exactly."""
    max_episode_steps: int | None = None
    """env_steps after which an episode is cut; it counts with the return it has then."""
    max_env_steps: int | None = None
    """env_steps of a run's episodes together; those that have not ended then are left out."""
    seed: int | None = None
    """Seed of environments and action noise.
    None: one derived from the run's seed, which no training environment has."""
    greedy: FlagCreatePairsOff[bool] = False
    """Act with the mode of the action distribution. The default."""
    stochastic: FlagCreatePairsOff[bool] = False
    """Sample actions as in training."""
    video: FlagCreatePairsOff[bool] = False
    """Write a video of one episode into RUN_DIR/videos (extra: video)."""


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """What the newest checkpoint holds; the last line printed is one JSON object."""

    run_dir: Positional[Path]
    """Run directory."""
    algorithm: str | None = None
    """The run's algorithm again, where it is `module:Name` of your own."""


@dataclass(frozen=True, kw_only=True)
class PlotArguments:
    """Learning curves; several seeds of one setting become a mean with a bootstrap interval."""

    run_dirs: Positional[tuple[Path, ...]]
    """Run directories."""
    out: Path
    """File to write: .png, .pdf or .svg."""
    x: str = "env_steps"
    """Column of progress.csv along the horizontal axis."""
    y: str = "return_mean"
    """Column along the vertical axis."""
    smooth: int = 1
    """Rows that each point is averaged over."""
    statistic: Literal["mean", "iqm"] = "mean"
    """Over seeds: the mean, or from 4 seeds on the interquartile mean."""


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """The greedy policy, normalization included, for use without Redline."""

    run_dir: Positional[Path]
    """Run directory."""
    out: Path
    """File to write."""
    which: Literal["latest", "best"] = "latest"
    """Which checkpoint."""
    algorithm: str | None = None
    """The run's algorithm again, where it is `module:Name` of your own."""
    env: str | None = None
    """The run's environment again, where it is `module:Id`, so that the module is imported."""
    env_backend: str | None = None
    """Likewise the back end that steps it, where it is `module:Name`."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx (extra: onnx), or torch for a torch.export program."""


def _eval(arguments: list[str]) -> None:
    parsed = _parse(EvalArguments, arguments, "eval")
    if parsed.greedy and parsed.stochastic:
        raise ConfigError("--greedy and --stochastic contradict each other. Give one of them.")
    if not parsed.run_dirs:
        raise ConfigError("no run is given. Give a run directory, such as runs/ppo-CartPole-v1.")
    twice = {str(each) for each in parsed.run_dirs if parsed.run_dirs.count(each) > 1}
    if twice:
        raise ConfigError(f"{min(twice)} is given twice. Give each run once.")
    if parsed.video:
        from redline.train.runs.video import require_video

        require_video(".mp4")
    results = {str(run_dir): _evaluated(run_dir, parsed) for run_dir in parsed.run_dirs}
    if len(parsed.run_dirs) == 1:
        _print_json(next(iter(results.values())).to_json())
        return
    from redline.train.loops.evaluate import as_table, over_runs

    sys.stdout.write(as_table(results))
    _print_json(over_runs(results))


def _evaluated(run_dir: Path, parsed: EvalArguments) -> Evaluation:
    """The evaluation of one run, and its video if that was asked for."""
    from redline.train.runs.run import load_run

    run = load_run(
        run_dir,
        algorithm=parsed.algorithm,
        env=parsed.env,
        env_backend=parsed.env_backend,
    )
    greedy = not parsed.stochastic
    result = run.evaluate(
        parsed.episodes,
        seed=parsed.seed,
        greedy=greedy,
        which=parsed.which,
        max_episode_steps=parsed.max_episode_steps,
        max_env_steps=parsed.max_env_steps,
    )
    if parsed.video:
        path = run.record_video(seed=parsed.seed, greedy=greedy, which=parsed.which)
        sys.stdout.write(f"video: {path}\n")
    return result


def _inspect(arguments: list[str]) -> None:
    parsed = _parse(InspectArguments, arguments, "inspect")
    from redline.train.runs.run import load_run

    _print_json(load_run(parsed.run_dir, algorithm=parsed.algorithm).inspect())


def _plot(arguments: list[str]) -> None:
    parsed = _parse(PlotArguments, arguments, "plot")
    from redline.train.progress.curves import plot_runs

    plot_runs(
        list(parsed.run_dirs),
        parsed.out,
        x=parsed.x,
        y=parsed.y,
        smooth=parsed.smooth,
        statistic=parsed.statistic,
        warn=lambda sentence: sys.stderr.write(f"warning: {sentence}\n"),
    )
    sys.stdout.write(f"{parsed.out}\n")


def _export(arguments: list[str]) -> None:
    parsed = _parse(ExportArguments, arguments, "export")
    from redline.train.runs.run import load_run

    run = load_run(
        parsed.run_dir,
        algorithm=parsed.algorithm,
        env=parsed.env,
        env_backend=parsed.env_backend,
    )
    path = run.export(parsed.out, format=parsed.format, which=parsed.which)
    sys.stdout.write(f"{path}\n")


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""Commands about runs that exist: eval, collect, inspect, plot, export."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import FlagCreatePairsOff, Positional, arg

from redline.command_line.options import parse
from redline.errors import ConfigError
from redline.plain_text import printable

if TYPE_CHECKING:
    from redline.train.loops.evaluate import Evaluation
    from redline.train.runs.run import Run


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Run episodes with trained agents; the last line printed is one JSON object.

    Several runs make a table, and that object holds each of them and the mean over them. Of runs of
    one setting with one seed the mean counts the one that got furthest.
    """

    run_dirs: Positional[tuple[Path, ...]]
    """Run directories."""
    which: Literal["latest", "best"] | int = "latest"
    """Which checkpoint; a number is the env_steps of one that the run keeps."""
    algorithm: str | None = None
    """The run's algorithm again, where it is `module:Name` of your own."""
    env: str | None = None
    """The run's environment again, where it is `module:Id`, so that the module is imported."""
    env_backend: str | None = None
    """Likewise the back end that steps it, where it is `module:Name`."""
    env_kwargs: str | None = None
    """Likewise its arguments, as JSON, where they name files."""
    network: str | None = None
    """The run's network again, where it is `module:Name` of your own."""
    accept_changed_config: FlagCreatePairsOff[bool] = False
    """Take config.json although it was changed since Redline wrote it."""
    episodes: int = 10
    """Number of episodes of each run, exactly."""
    max_episode_steps: int | None = None
    """env_steps after which an episode is cut; it counts with the return it has then."""
    max_env_steps: int | None = None
    """env_steps of a run's episodes together; those that have not ended then are left out."""
    seed: int | None = None
    """Seed of environments and action noise; None: the run's.
    Training with the same seed has other environments."""
    log_info: str | None = None
    """Names of values in the last info of each episode whose means are printed, separated by
    commas. None: those that training logged."""
    greedy: Annotated[FlagCreatePairsOff[bool], arg(help_behavior_hint="(the default)")] = False
    """Act with the mode of the action distribution."""
    stochastic: Annotated[FlagCreatePairsOff[bool], arg(help_behavior_hint="")] = False
    """Sample actions as in training, instead of taking the mode."""
    video: FlagCreatePairsOff[bool] = False
    """Write videos of the best and the worst of these episodes into RUN_DIR/videos (extra:
    video)."""
    render: Literal["human"] | None = None
    """human: show the episodes in a window, one after another."""


@dataclass(frozen=True, kw_only=True)
class CollectArguments:
    """Record whole episodes of a trained agent; the last line printed is one JSON object."""

    run_dir: Positional[Path]
    """Run directory."""
    out: Path
    """What to write: a name that ends in .npz is such a file, any other the folder of a Minari
    dataset (extra: minari)."""
    episodes: int = 10
    """Number of episodes, exactly."""
    which: Literal["latest", "best"] | int = "latest"
    """Which checkpoint; a number is the env_steps of one that the run keeps."""
    seed: int | None = None
    """Seed of environments and action noise; None: the run's.
    Training with the same seed has other environments."""
    stochastic: FlagCreatePairsOff[bool] = False
    """Sample actions as in training, instead of taking the mode of their distribution."""
    algorithm: str | None = None
    """The run's algorithm again, where it is `module:Name` of your own."""
    env: str | None = None
    """The run's environment again, where it is `module:Id`, so that the module is imported."""
    env_backend: str | None = None
    """Likewise the back end that steps it, where it is `module:Name`."""
    env_kwargs: str | None = None
    """Likewise its arguments, as JSON, where they name files."""
    network: str | None = None
    """The run's network again, where it is `module:Name` of your own."""
    accept_changed_config: FlagCreatePairsOff[bool] = False
    """Take config.json although it was changed since Redline wrote it."""


@dataclass(frozen=True, kw_only=True)
class InspectArguments:
    """What the newest checkpoint holds; the last line printed is one JSON object."""

    run_dir: Positional[Path]
    """Run directory."""
    algorithm: str | None = None
    """The run's algorithm again, where it is `module:Name` of your own."""
    accept_changed_config: FlagCreatePairsOff[bool] = False
    """Take config.json although it was changed since Redline wrote it."""


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
    which: Literal["latest", "best"] | int = "latest"
    """Which checkpoint; a number is the env_steps of one that the run keeps."""
    algorithm: str | None = None
    """The run's algorithm again, where it is `module:Name` of your own."""
    env: str | None = None
    """The run's environment again, where it is `module:Id`, so that the module is imported."""
    env_backend: str | None = None
    """Likewise the back end that steps it, where it is `module:Name`."""
    env_kwargs: str | None = None
    """Likewise its arguments, as JSON, where they name files."""
    network: str | None = None
    """The run's network again, where it is `module:Name` of your own."""
    accept_changed_config: FlagCreatePairsOff[bool] = False
    """Take config.json although it was changed since Redline wrote it."""
    format: Literal["onnx", "torch"] = "onnx"
    """onnx (extra: onnx), or torch for a torch.export program."""


def eval_runs(arguments: list[str]) -> None:
    """Run episodes with trained agents, and print what came of them."""
    parsed = parse(EvalArguments, arguments, "eval")
    if parsed.greedy and parsed.stochastic:
        raise ConfigError("--greedy and --stochastic contradict each other. Give one of them.")
    if not parsed.run_dirs:
        raise ConfigError("no run is given. Give a run directory, such as runs/ppo-CartPole-v1.")
    places = [each.resolve() for each in parsed.run_dirs]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise ConfigError(f"{parsed.run_dirs[number]} is given twice. Give each run once.")
    if parsed.video:
        from redline.train.runs.video import require_video

        require_video(".mp4")
    # All are opened before the first is evaluated, which may take long.
    runs = {run_dir: _opened(run_dir, parsed) for run_dir in parsed.run_dirs}
    results = {str(run_dir): _evaluated(run, parsed) for run_dir, run in runs.items()}
    if len(parsed.run_dirs) == 1:
        _print_json(next(iter(results.values())).to_json())
        return
    from redline.train.loops.evaluate import as_table, over_runs
    from redline.train.progress.curves import independent_runs

    independent = [str(run_dir) for run_dir in independent_runs(parsed.run_dirs, _warn)]
    sys.stdout.write(as_table(results, independent))
    _print_json(over_runs(results, independent))


def _opened(run_dir: Path, parsed: EvalArguments) -> Run:
    from redline.train.runs.run import load_run

    run = load_run(
        run_dir,
        algorithm=parsed.algorithm,
        env=parsed.env,
        env_backend=parsed.env_backend,
        env_kwargs=parsed.env_kwargs,
        network=parsed.network,
        accept_changed_config=parsed.accept_changed_config,
    )
    run.require_checkpoint(parsed.which)
    return run


def _evaluated(run: Run, parsed: EvalArguments) -> Evaluation:
    """The evaluation of one run, and its video if that was asked for."""
    from redline.train.loops.evaluate import explain_greedy

    greedy = not parsed.stochastic
    records: list[Any] = []
    result = run.evaluate(
        parsed.episodes,
        seed=parsed.seed,
        greedy=greedy,
        which=parsed.which,
        max_episode_steps=parsed.max_episode_steps,
        max_env_steps=parsed.max_env_steps,
        log_info=parsed.log_info,
        render=parsed.render,
        on_episodes=records.extend,
    )
    training = run.last_training_return()
    # The returns are those of the newest weights.
    may_explain = greedy and not isinstance(parsed.which, int)
    note = explain_greedy(result, *training) if may_explain else None
    if note is not None and not run.policy(parsed.which).samples:
        note = explain_greedy(result, *training, samples=False)
    if note is not None:
        sys.stderr.write(printable(f"note: {note}\n"))
    if parsed.video:
        written = run.record_best_and_worst(
            records,
            seed=parsed.seed,
            greedy=greedy,
            which=parsed.which,
            max_episode_steps=parsed.max_episode_steps,
        )
        for path in written.values():
            sys.stdout.write(printable(f"video: {path}\n"))
    return result


def _loaded(parsed: CollectArguments | ExportArguments) -> Run:
    """The run that a command line names, with what it says again of code and settings."""
    from redline.train.runs.run import load_run

    return load_run(
        parsed.run_dir,
        algorithm=parsed.algorithm,
        env=parsed.env,
        env_backend=parsed.env_backend,
        env_kwargs=parsed.env_kwargs,
        network=parsed.network,
        accept_changed_config=parsed.accept_changed_config,
    )


def collect(arguments: list[str]) -> None:
    """Record episodes of a trained agent into a file or folder."""
    parsed = parse(CollectArguments, arguments, "collect")
    run = _loaded(parsed)
    episodes = run.collect(
        parsed.episodes,
        parsed.out,
        seed=parsed.seed,
        greedy=not parsed.stochastic,
        which=parsed.which,
    )
    returns = episodes.returns
    _print_json(
        {
            "out": str(parsed.out),
            "episodes": episodes.num_episodes,
            "steps": episodes.num_steps,
            "return_mean": float(returns.mean()),
            "return_std": float(returns.std()),
        }
    )


def inspect_run(arguments: list[str]) -> None:
    """Print what the newest checkpoint of a run holds."""
    parsed = parse(InspectArguments, arguments, "inspect")
    from redline.train.runs.run import load_run

    run = load_run(
        parsed.run_dir,
        algorithm=parsed.algorithm,
        accept_changed_config=parsed.accept_changed_config,
    )
    _print_json(run.inspect())


def plot(arguments: list[str]) -> None:
    """Draw learning curves into a file."""
    parsed = parse(PlotArguments, arguments, "plot")
    from redline.train.progress.curves import plot_runs

    plot_runs(
        list(parsed.run_dirs),
        parsed.out,
        x=parsed.x,
        y=parsed.y,
        smooth=parsed.smooth,
        statistic=parsed.statistic,
        warn=_warn,
    )
    sys.stdout.write(printable(f"{parsed.out}\n"))


def _warn(sentence: str) -> None:
    sys.stderr.write(printable(f"warning: {sentence}\n"))


def export(arguments: list[str]) -> None:
    """Write the policy of a run for use without Redline."""
    parsed = parse(ExportArguments, arguments, "export")
    run = _loaded(parsed)
    path = run.export(parsed.out, format=parsed.format, which=parsed.which)
    sys.stdout.write(printable(f"{path}\n"))


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")

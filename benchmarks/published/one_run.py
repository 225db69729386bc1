"""One seed of one experiment, from its beginning or from where it was stopped, to its result.

    python -m benchmarks.published.one_run --experiment ppo-LunarLander-v3 --seed 1 --out RUN

Meant for `running`, which starts one such process per group of cores. The process trains with
`redline train`, or goes on with `redline train --resume` if it was killed, and then evaluates
the greedy policy on seeds that training never saw. What the run directory holds beside the
run's own files:

| file | written | holds |
|---|---|---|
| experiment.json | before training | the settings that it starts with |
| result.json | at the very end, at once | the greedy returns; a run that has it is finished |
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.published.experiments import SUITES, Experiment

RESULT, SETTINGS = "result.json", "experiment.json"
_PATIENCE_S = 120.0  # for the process before this one, which may still write its last checkpoint
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)
# Not part of what makes a setting: where and as which seed it runs, and what it prints.
_NOT_SETTINGS = ("seed", "out", "quiet", "tensorboard")
PLACES = ("device", "policy_device", "env_device", "eval_device", "replay_storage")
"""Options of `redline train` that say where a run computes.

They change rounding and which random numbers are drawn, not what is learned from.
"""


_EARLIER: dict[str, tuple[str, Any]] = {"backup_entropy": ("Discrete", True)}
"""Setting -> (kind of actions, what it was for them before it could be chosen)."""


def settings_of(experiment: Experiment, place: Sequence[str] = ()) -> dict[str, Any]:
    """All settings that the experiment's command means today, presets included."""
    from redline.command_line.train import parse_train_arguments

    config = parse_train_arguments([*experiment.arguments(1, "run")[1:], *place])
    # As it is read back from a file: tuples are lists there.
    plain = json.loads(json.dumps(config.to_json()))
    for name in _NOT_SETTINGS:
        plain["run"].pop(name)
    return plain


def settings_that_differ(
    then: dict[str, Any], now: dict[str, Any], plain: dict[str, Any]
) -> list[str]:
    """Names of the settings that two configs have unlike.

    Args:
        then: the config that a run began with.
        now: the one that it would begin with today.
        plain: setting -> default. One that is new since then changes nothing at its default.

    Returns:
        Without `PLACES`: a GPU's seed stands beside those of a CPU. Without what has no effect on
        the actions of the environment: SAC's share of the largest entropy, where they are a Box.
    """
    found = []
    for part in ("run", "policy", "algo"):
        for name in sorted((then[part].keys() | now[part].keys()) - set(PLACES)):
            own = then[part]
            before = own[name] if name in own else _before_it_was_there(name, plain, now)
            if name not in now[part] or before != now[part][name]:
                found.append(name)
    return [name for name in found if not _is_of_other_actions(name, now)]


def _before_it_was_there(name: str, plain: dict[str, Any], config: dict[str, Any]) -> Any:
    """What a setting was for a run that lacks it: its default, but for those of `_EARLIER`."""
    if name in _EARLIER and "algorithm" in config:
        actions, value = _EARLIER[name]
        if _actions_of(config) == actions:
            return value
    return plain.get(name)


def _actions_of(config: dict[str, Any]) -> str:
    """The kind of action space that a config's environment has, such as "Discrete"."""
    from redline.envs import EnvSettings

    run = config["run"]
    with EnvSettings(env=run["env"], env_kwargs=json.loads(run["env_kwargs"])).make(1) as env:
        return type(env.action_space).__name__


def _is_of_other_actions(name: str, config: dict[str, Any]) -> bool:
    """Whether a setting of the algorithm belongs to another kind of actions than a run has."""
    from redline.algos.registry import declaration

    if "algorithm" not in config:
        return False
    conditions = declaration(config["algorithm"]).Config.only_with.get(name, ())
    needed = [each for each in conditions if each.name == "actions"]
    if not needed:
        return False
    kind = _actions_of(config)
    return not all(each.holds(kind) for each in needed)


def plain_defaults(experiment: Experiment) -> dict[str, Any]:
    """Setting -> default, of the run, the network and the algorithm."""
    from redline.algos.registry import declaration
    from redline.train.settings import PolicySettings, RunSettings

    kinds = (RunSettings, PolicySettings, declaration(experiment.algorithm).Config)
    return json.loads(json.dumps({n: v for kind in kinds for n, v in asdict(kind()).items()}))


def require_same_settings(run: Path, experiment: Experiment) -> None:
    """Refuse to go on with a run that began with other settings than its experiment has now.

    Raises:
        SystemExit: naming the settings.
    """
    then = json.loads((run / SETTINGS).read_text())
    differing = settings_that_differ(then, settings_of(experiment), plain_defaults(experiment))
    if differing:
        raise SystemExit(
            f"{run} began with other settings of {', '.join(differing)} than this version has. "
            f"Remove it to start again, or give another --out."
        )


def write_whole(path: Path, content: dict[str, Any]) -> None:
    """JSON that is there as a whole or not at all, whenever the process is killed."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(content, indent=1) + "\n")
    unfinished.replace(path)


def train(experiment: Experiment, seed: int, run: Path, place: Sequence[str] = ()) -> int:
    """Train, or go on with it where it was; the exit code is 0 once training is complete."""
    from redline.train.process import before_torch_loads

    before_torch_loads()
    from redline.cli import main as redline
    from redline.train.runs.run_directory import CONFIG_FILE

    wait_until_free(run)
    if (run / CONFIG_FILE).exists():
        require_same_settings(run, experiment)
        return redline(["train", "--resume", str(run), "--quiet"])
    write_whole(run / SETTINGS, settings_of(experiment, place))
    return redline([*experiment.arguments(seed, str(run)), *place, "--quiet", "--no-tensorboard"])


def wait_until_free(run: Path) -> None:
    """Wait while another process holds the run: one left over that is about to end.

    Raises:
        RunDirectoryError: if it does not end in two minutes.
    """
    from redline.errors import RunDirectoryError
    from redline.train.runs.run_directory import RunLock

    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with RunLock(run):
                return
        except RunDirectoryError:
            if time.monotonic() > until:
                raise
            time.sleep(1.0)


def evaluate(experiment: Experiment, seed: int, run: Path) -> dict[str, Any]:
    """The returns of the greedy policy, and what made them."""
    from redline.envs.cpus import allowed_cpus
    from redline.train.progress.curves import load_progress
    from redline.train.runs.run import load_run
    from redline.train.runs.run_directory import CONFIG_FILE

    found = load_run(run).evaluate(experiment.episodes)
    progress = load_progress(run)
    config = json.loads((run / CONFIG_FILE).read_text())  # has the device that "auto" chose
    place = place_of(config, experiment)
    shown = shlex.join(["redline", *experiment.arguments(seed, "RUN"), *place])
    return {
        "experiment": experiment.name,
        "settings": json.loads((run / SETTINGS).read_text()),
        "seed": seed,
        "command": shown,
        **found.to_json(),
        "env_steps": int(progress["env_steps"][-1]),
        "wall_time_s": float(progress["wall_time_s"][-1]),
        "finished": time.strftime("%Y-%m-%d", time.gmtime()),
        "revision": revision(),
        # Sums depend on the number of threads; the settings may say "auto" only.
        "threads": config["run"]["num_threads"],
        "cores": len(allowed_cpus()),
        # This process is pinned to its cores; the machine may have more.
        "machine": describe() | {"cores": str(os.cpu_count() or 1)} | gpu_of(config),
        "place": " ".join(place),
    }


def place_of(config: dict[str, Any], experiment: Experiment) -> list[str]:
    """The options that placed a run elsewhere than its experiment's command does."""
    usual = settings_of(experiment)
    then, now = config["run"] | config["algo"], usual["run"] | usual["algo"]
    moved = [name for name in PLACES if name in then and then[name] != now.get(name)]
    return [word for name in moved for word in (f"--{name.replace('_', '-')}", str(then[name]))]


def gpu_of(config: dict[str, Any]) -> dict[str, str]:
    """The names of the GPUs that a run used."""
    import torch

    devices = {str(config["run"].get(name)) for name in PLACES}
    used = sorted(device for device in devices if device.startswith("cuda"))
    return {"gpu": ", ".join(torch.cuda.get_device_name(each) for each in used)} if used else {}


def revision() -> str:
    """The commit of this repository, "" where that cannot be told."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def end_with_parent() -> None:
    """On Linux: be told to stop when the suite's process is gone, however that ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(signal.SIGTERM), 0, 0, 0)


def pin(cores: list[int] | None) -> None:
    """Keep to some cores, where the system can."""
    if cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))


def place(text: str) -> list[str]:
    """Options that place a run, such as "--device cuda --policy-device cpu", as a list.

    Raises:
        argparse.ArgumentTypeError: if one of them says something else.
    """
    known = [f"--{name.replace('_', '-')}" for name in PLACES]
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is not closed
        words = [text]
    if len(words) % 2 or not set(words[::2]) <= set(known):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be pairs of an option and a value; the options are {', '.join(known)}."
        )
    return words


def main() -> int:
    """Train and evaluate one seed; 0 once its result is written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--experiment", required=True, choices=[e.name for e in SUITES["published"]]
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="run directory")
    parser.add_argument("--cores", type=int, nargs="+", help="keep to these cores")
    parser.add_argument("--parent", type=int, help="process id to end with")
    parser.add_argument("--place", type=place, default=[], help="as '--device cuda'")
    options = parser.parse_args()
    pin(options.cores)
    if options.parent is not None:
        end_with_parent()
        if os.getppid() != options.parent:  # it ended before it could be waited for
            return 1
    experiment = next(e for e in SUITES["published"] if e.name == options.experiment)
    options.out.mkdir(parents=True, exist_ok=True)
    exit_code = train(experiment, options.seed, options.out, options.place)
    if exit_code == 0:
        write_whole(options.out / RESULT, evaluate(experiment, options.seed, options.out))
    return exit_code


if __name__ == "__main__":
    sys.exit(main())

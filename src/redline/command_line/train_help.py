"""Help of `redline train`: the options that people use, and all of them by what they are for."""

from __future__ import annotations

import dataclasses
import shutil
import textwrap
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from redline.algos.registry import BUILT_IN, algorithm_names
from redline.command_line.profile_options import ALONE, ProfileOptions
from redline.train.outlines import choices_of, kinds_of, setting_docs
from redline.train.settings import RunConfig

OFTEN_USED = (
    "env",
    "data",
    "total_env_steps",
    "seed",
    "out",
    "name",
    "num_envs",
    "rollout_length",
    "batch_size",
    "learning_starts",
    "replay_ratio",
    "replay_size",
    "learning_rate",
    "gamma",
    "n_step",
    "num_epochs",
    "num_minibatches",
    "entropy_coef",
    "hidden_sizes",
    "core",
    "normalize_obs",
    "collector",
    "num_workers",
    "device",
    "eval_interval",
    "checkpoint_interval",
    "stop_at_return",
    "wandb",
    "quiet",
)
"""What short help shows, as far as the algorithm has it: about twenty."""

GROUPS: dict[str, tuple[str, ...]] = {
    "run": ("env", "total_env_steps", "seed", "out", "name", "group", "tags"),
    "environments": (
        "env_backend",
        "env_kwargs",
        "check_env",
        "num_envs",
        "observe_previous",
        "reset_mode",
        "scale_reward",
    ),
    "Atari": (
        "atari_preset",
        "clip_reward",
        "episodic_life",
        "sticky_actions",
        "noop_max",
        "frame_skip",
    ),
    "collecting": (
        "rollout_length",
        "collector",
        "num_workers",
        "num_groups",
        "overlap_groups",
        "max_staleness",
        "cpu_affinity",
        "worker_timeout_s",
        "on_worker_failure",
        "max_worker_restarts",
    ),
    "network": (
        "network",
        "hidden_sizes",
        "critic_hidden_sizes",
        "activation",
        "encoder",
        "core",
        "core_size",
        "core_window",
        "core_layers",
        "core_heads",
        "shared_encoder",
        "normalize_obs",
        "distribution",
        "initial_log_std",
    ),
    "speed and devices": (
        "device",
        "policy_device",
        "env_device",
        "eval_device",
        "deterministic",
        "accelerate",
        "cpu_acting",
        "self_check",
        "num_threads",
        "tune_process",
    ),
    "evaluation": ("eval_interval", "eval_episodes", "eval_max_episode_steps", "eval_async"),
    "logs": ("log_interval", "log_info", "tensorboard", "jsonl", "wandb", "quiet"),
    "callbacks": ("callbacks", "stop_at_return"),
    "checkpoints": (
        "checkpoints",
        "checkpoint_interval",
        "checkpoint_gap",
        "on_divergence",
        "init_from",
        "init_parts",
    ),
    "recorded episodes": ("data",),
}
"""Group of --help-all -> its settings. What stands in none belongs to the algorithm or replay."""

_OWN = (
    ("--config FILE", "Settings from a file: .yaml, .toml, .json, or a run's config.json."),
    ("--preset NAME", "Named hyperparameters to start from; `redline presets` lists them."),
    ("--print-config", "Print all settings, as --config reads them, and leave."),
    ("--help-all", "Every option, by what it is for."),
)
_COLUMN = 30


def overview() -> str:
    """Help of `redline train` without an algorithm."""
    names = ",".join(algorithm_names())
    return (
        f"usage: redline train {{{names}}} --env ID [options]\n"
        "       redline train [ALGORITHM] --config FILE [options]\n"
        "       redline train --resume RUN_DIR [--total-env-steps N] [--set NAME=VALUE] [--quiet]\n"
        "       redline train ... --print-config\n"
        "       redline train ... --profile [light|full|sample] [--profile-sample-hz X]\n"
        "                         [--profile-gpu-window-s X] [--profile-gpu-every-s X]\n\n"
        "Train an agent, or go on with a run that was stopped. --profile records where the\n"
        "time goes (full: native calls, too) and writes a report into RUN_DIR/profile.\n"
        "`redline train ALGORITHM --help` shows the options that people use, --help-all all.\n"
    )


def algorithm_help(config: RunConfig, *, everything: bool) -> str:
    """Help of `redline train ALGORITHM`.

    Args:
        config: defaults, as the preset, the file and the options before `--help` give them.
        everything: every option in groups, or the ones that people use.
    """
    entries = _entries(config)
    lines = [
        f"usage: redline train {config.algorithm} --env ID [options]\n\n",
        f"Train an agent with {config.algorithm}. In brackets stands the value without the "
        f"option, by preset {config.run.preset!r}.\n",
    ]
    if everything:
        for title, names in grouped(entries):
            lines.append(f"\n{title}:\n")
            lines += [_line(*entries[name]) for name in names]
    else:
        lines.append("\noptions that people use:\n")
        own = [] if config.algorithm in BUILT_IN else _own_names(config)
        shown = dict.fromkeys([*OFTEN_USED, *own])
        lines += [_line(*entries[name]) for name in shown if name in entries]
    lines.append("\nbeside settings:\n")
    profiling = _profiling()
    lines += [_line(*own) for own in (*_OWN, *(profiling if everything else profiling[:1]))]
    return "".join(lines)


def resume_help() -> str:
    """Help of `redline train --resume`."""
    from redline.command_line.resume import ResumeArguments

    kinds, docs = kinds_of(ResumeArguments), setting_docs(ResumeArguments)
    own = kinds.keys() - kinds_of(ProfileOptions).keys()
    words = {
        "resume": "--resume RUN_DIR",
        "callbacks": "--callback TEXT",
        "set": "--set NAME=VALUE",
    }
    lines = ["usage: redline train --resume RUN_DIR [options]\n\n"]
    lines.append("Go on with a run that was stopped.\n\noptions:\n")
    for name in (name for name in kinds if name in own):
        option = f"--{name.replace('_', '-')} {metavar(kinds[name])}".rstrip()
        lines.append(_line(words.get(name, option), docs[name]))
    return "".join([*lines, *(_line(*option) for option in _profiling())])


def grouped(names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Titles and the settings under them, of those that there are."""
    left = dict.fromkeys(name for name in names if name != "preset")
    for title, wanted in GROUPS.items():
        found = [name for name in wanted if name in left]
        for name in found:
            del left[name]
        if found:
            yield title, found
    replay = [n for n in left if n.startswith(("replay", "priorit", "her_", "learning_starts"))]
    yield "algorithm", [name for name in left if name not in replay]
    if replay:
        yield "replay", replay


def _profiling() -> list[tuple[str, str]]:
    """The options that record where the time goes, `--profile` first."""
    kinds, docs = kinds_of(ProfileOptions), setting_docs(ProfileOptions)
    options: list[tuple[str, str]] = []
    for name, kind in kinds.items():
        value = "[MODE]" if name in ALONE else metavar(kind)
        options.append((f"--{name.replace('_', '-')} {value}", docs[name]))
    return options


def _own_names(config: RunConfig) -> list[str]:
    """The settings of an algorithm of the user's own: nobody else knows which of them are used."""
    return [field.name for field in dataclasses.fields(config.algo)]


def _entries(config: RunConfig) -> dict[str, tuple[str, str]]:
    """Setting -> its option, and what help says of it."""
    entries: dict[str, tuple[str, str]] = {}
    for part in (config.run, config.policy, config.algo):
        kinds, docs = kinds_of(part), setting_docs(type(part))
        for field in dataclasses.fields(part):
            name, kind = field.name, kinds[field.name]
            flag = "--callback" if name == "callbacks" else f"--{name.replace('_', '-')}"
            shown = f"{flag} {metavar(kind)}".rstrip()
            value = getattr(part, name)
            default = "" if value in (None, (), "") else f" [{_shown(value)}]"
            entries[name] = (shown, docs.get(name, "") + default)
    return entries


def metavar(kind: Any) -> str:
    """What stands for a value of a type in help; "" for one that is yes or no."""
    words: list[str] = []
    for each in choices_of(kind):
        if typing.get_origin(each) is tuple:
            words.append(metavar(typing.get_args(each)[0]) + ",...")
        elif typing.get_origin(each) is typing.Literal:
            words += map(str, typing.get_args(each))
        elif each not in (type(None), bool):
            words.append(str({int: "N", float: "X", str: "TEXT"}.get(each, each)))
    return "|".join(words)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _line(option: str, text: str) -> str:
    width = min(shutil.get_terminal_size().columns, 100)
    indent = " " * _COLUMN
    body = textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)
    head = f"  {option}"
    if len(head) < _COLUMN - 1:
        return f"{head:<{_COLUMN}}{body.lstrip()}\n"
    return f"{head}\n{body}\n"

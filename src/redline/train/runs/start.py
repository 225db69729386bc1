"""Beginning a run, and going on with one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from redline.algos.algorithm import Algorithm
from redline.algos.config import OffPolicyConfig, require_positive
from redline.algos.q_learning import QLearningConfig, exploration
from redline.algos.registry import algorithm_label
from redline.collect import Collector, collector_label
from redline.envs.backends.backend import Backend
from redline.envs.backends.registry import backend_label
from redline.errors import (
    ConfigError,
    CorruptCheckpointError,
    IncompatibleCheckpointError,
    RunDirectoryError,
)
from redline.models.registry import NetworkFactory, network_label
from redline.plain_text import shortened, shown
from redline.registry import PYTHON_ONLY, may_be_same
from redline.train.callbacks import RETURN_REACHED
from redline.train.checkpoint.checkpoint import Checkpoint, load_checkpoint, read_manifest
from redline.train.checkpoint.store import CheckpointStore
from redline.train.config_files import GivenSettings, config_of, given_settings, repeated_config
from redline.train.loops.callback_calls import callback_label, callbacks_given
from redline.train.loops.saved_progress import require_sound_metadata
from redline.train.progress.console import Console
from redline.train.ranks import ALONE, Ranks, joined_ranks
from redline.train.runs.changes import changed_config, differences, told_of_changes
from redline.train.runs.contradictions import (
    checkpointed_in_time,
    evaluated_in_time,
    in_time,
    refuse_contradictions,
)
from redline.train.runs.execution import ProfileRecording, execute
from redline.train.runs.files import CONFIG_FILE, HISTORY_FILE
from redline.train.runs.given import (
    EnvArgument,
    Given,
    describe_env,
    is_same_env,
    require_same_algorithm,
    require_same_network,
)
from redline.train.runs.history import saved
from redline.train.runs.idle_settings import changed_settings, settings_beside_preset
from redline.train.runs.outside_settings import require_confirmed
from redline.train.runs.recorded_data import data_label
from redline.train.runs.run import Run
from redline.train.runs.run_directory import (
    RunLock,
    read_config,
    recorded_engine,
    run_directory,
)
from redline.train.runs.sealed_files import require_same_config, require_same_rows
from redline.train.settings import DEVICE_SETTINGS, RunConfig
from redline.user_code import may_not_exit

_CONFIRMED = frozenset({"wandb", "accelerate", "env_kwargs", "init_from"})
"""Settings that a run directory alone must not decide; see `outside_settings`."""


def train(
    algorithm: str | type[Algorithm] | None = None,
    *,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Train an agent, or go on with a run.

    Args:
        algorithm: its name, such as "ppo" or "sac", a class of your own, or "module:Name" of one.
            With `resume` only needed where the run's is your own.
        env: a Gymnasium id, a callable that makes a `gymnasium.Env`, or a
            `gymnasium.vector.VectorEnv`.
        network: observation space -> module from observations to features, in place of the
            built-in encoders: a function, a class, or "module:Name" of one. With `resume` again.
        data: recorded episodes to learn from, or that replay begins with: a file or folder, the
            name of a Minari dataset, a mapping of arrays (observations, actions, rewards,
            terminations, truncations), or a `minari.MinariDataset`. With `resume` needed again
            where the run reads them again: where it learns from nothing else, or has no checkpoint.
        env_backend: what steps the environments: a name, a class of your own, or "module:Name" of
            one; None is "auto". With `resume` only needed where the run's is your own.
        collector: what collects, likewise; None is "serial".
        callbacks: objects with some of the methods that `redline.train.callbacks` lists, or
            "module:Name" of them; one alone needs no list. With `resume` the same ones again.
        config: settings to begin with: a file (.yaml, .toml, .json, or a run's `config.json`), what
            such a file holds, or a `RunConfig`. What is given beside it wins.
        resume: run directory to go on with.
        preset: named hyperparameters to start from; None: the file's, else by the environment.
        set: with `resume`, settings to go on with instead; the run no longer repeats to the bit.
        settings: any setting of the run, the policy or the algorithm by its name, such as
            `total_env_steps`, `seed`, `out`, `num_envs`, `learning_rate`, `core`. With `resume`
            only `total_env_steps` and `quiet`; `wandb`, `accelerate`, `env_kwargs` and `init_from`
            to confirm those of the run; and `accept_changed_config` to take an edited
            `config.json`.

    Returns:
        The run; `run.evaluate(episodes=20)` tests its agent. Also where Ctrl-C or a signal stopped
        it: then `run.exit_code` is not 0, and a program with several runs should end, or go on
        with `resume=run.out`.

    Raises:
        RedlineError: if a setting is wrong; nothing has been written then.
    """
    given = Given(
        algorithm=algorithm,
        env=env,
        network=network,
        data=data,
        env_backend=env_backend,
        collector=collector,
        callbacks=callbacks_given(callbacks),
    )
    if resume is not None:
        if not isinstance(resume, (str, os.PathLike)):
            raise ConfigError(f"resume={resume!r} is no run directory. Give the path of one.")
        return _resumed(Path(resume), given, set, settings)
    if set is not None:
        raise ConfigError("set is for resume=RUN. Give settings of a new run by their names.")
    said = GivenSettings() if config is None else given_settings(config)
    if algorithm is None and said.algorithm is None:
        raise ConfigError("algorithm is missing. Give one, such as redline.train('ppo', ...).")
    if env is None and config is None:
        raise ConfigError("env is missing. Give one, such as env='CartPole-v1'.")
    settings = _named_settings(settings, given)
    made = config_of(said, algorithm=algorithm, preset=preset, **settings)
    return start_run(made, given, base=repeated_config(said, algorithm))


def _named_settings(settings: dict[str, Any], given: Given) -> dict[str, Any]:
    """The caller's settings, with what `config.json` says of its Python objects."""
    if isinstance(given.env, gymnasium.vector.VectorEnv):
        settings.setdefault("num_envs", given.env.num_envs)
    for name in ("out", "init_from"):
        if settings.get(name) is not None:
            settings[name] = str(settings[name])
    if given.env is not None:
        settings["env"] = describe_env(given.env)
    if given.data is not None:
        settings["data"] = data_label(given.data)
    if given.env_backend is not None:
        settings["env_backend"] = backend_label(given.env_backend)
    if given.collector is not None:
        settings["collector"] = collector_label(given.collector)
    if given.network is not None:
        settings["network"] = network_label(given.network)
    if given.callbacks:
        settings["callbacks"] = tuple(map(callback_label, given.callbacks))
    return settings


def _resumed(
    out: Path, given: Given, changes: Mapping[str, Any] | None, settings: dict[str, Any]
) -> Run:
    """Go on with a run, with settings by their names."""
    allowed = {"total_env_steps", "quiet"}
    if unknown := settings.keys() - allowed - _CONFIRMED - {"accept_changed_config"}:
        raise ConfigError(
            f"{', '.join(sorted(unknown))} cannot be changed when a run is resumed: it would "
            f"not be the same run. To change it all the same, give set={{...}}."
        )
    confirmed = {name: settings.pop(name) for name in _CONFIRMED & settings.keys()}
    if isinstance(confirmed.get("env_kwargs"), Mapping):
        confirmed["env_kwargs"] = json.dumps(confirmed["env_kwargs"])
    if confirmed.get("init_from") is not None:
        confirmed["init_from"] = str(confirmed["init_from"])
    given = dataclasses.replace(given, confirmed=confirmed)
    return resume_run(out, given, changes=changes, **settings)


def start_run(
    config: RunConfig,
    given: Given | None = None,
    *,
    base: RunConfig | None = None,
    recording: ProfileRecording | None = None,
    are_new: bool = True,
) -> Run:
    """Begin a run in a new directory and train until it is complete or stopped.

    Args:
        config: all settings.
        given: what the caller gives as Python objects.
        base: the settings of another run that this one repeats with changes.
        recording: run directory -> context in which the training takes place.
        are_new: whether the settings are; False: a sweep or a search was begun with them, and
            checked them by the rules of that time.

    Raises:
        RedlineError: if a setting is wrong; nothing has been written then.
    """
    refuse_contradictions(config, are_new=are_new)
    check_updates(config)
    given = given or Given()
    # Named by the caller, not by a file: their modules may be imported.
    given = dataclasses.replace(
        given,
        algorithm=given.algorithm or config.algorithm,
        env=given.env if given.env is not None else config.run.env or None,
        env_backend=given.env_backend or config.run.env_backend,
        confirmed={"env_kwargs": config.run.env_kwargs, "init_from": config.run.init_from},
        data=_said_data(config, given),
        collector=given.collector or config.run.collector,
        network=given.network or config.run.network,
        callbacks=given.callbacks or config.run.callbacks,
        changed=changed_settings(config, given.algorithm or config.algorithm, base),
        are_new=are_new,
    )
    named = settings_beside_preset(config, given.algorithm or config.algorithm, base)
    config = in_time(config, given.changed, are_new=are_new)
    with joined_ranks(*(getattr(config.run, name) for name in DEVICE_SETTINGS)) as ranks:
        if not ranks.is_first:
            out = Path(ranks.from_first(None))
            return _executed(config, out, given, None, recording, ranks=ranks)
        with run_directory(config, named) as out:
            ranks.from_first(str(out))
            return _executed(config, out, given, None, recording, ranks=ranks)


def _said_data(config: RunConfig, given: Given) -> Any:
    """The data of a new run: what the caller gave, or named."""
    label = config.run.data
    if given.data is not None or label is None or label.startswith(PYTHON_ONLY):
        return given.data
    return label


def resume_run(
    out: Path,
    given: Given | None = None,
    *,
    total_env_steps: int | None = None,
    changes: Mapping[str, Any] | None = None,
    quiet: bool = False,
    accept_changed_config: bool = False,
    recording: ProfileRecording | None = None,
) -> Run:
    """Go on with a run from its newest whole checkpoint.

    Args:
        out: run directory.
        given: what the caller gives as Python objects; it must be what the run was begun with.
            What Redline knows by name may be left out.
        total_env_steps: new length of the run; None: as it was.
        changes: settings to go on with instead; the run no longer repeats to the bit then.
        quiet: leave out the progress bar and messages.
        accept_changed_config: go on also if config.json or progress.csv were changed since the
            checkpoint was written.
        recording: run directory -> context in which the training takes place.

    Raises:
        RedlineError: if the directory holds no run, or a different one.
    """
    if total_env_steps is not None:
        require_positive(total_env_steps=total_env_steps)
    given = dataclasses.replace(given or Given(), are_new=False)
    _require_one_length(total_env_steps, changes or {})
    read_config(out, given.algorithm, accept_changed=accept_changed_config)  # there is a run
    # Before its checkpoint is read: whoever trains it still may write one more.
    is_locked = os.environ.get("RANK", "0") == "0"  # the others have directories of their own
    with RunLock(out) if is_locked else contextlib.nullcontext():
        return _gone_on(
            out,
            given,
            total_env_steps=total_env_steps,
            changes=changes,
            quiet=quiet,
            accept_changed_config=accept_changed_config,
            recording=recording,
            is_locked=is_locked,
        )


def _gone_on(
    out: Path,
    given: Given,
    *,
    total_env_steps: int | None,
    changes: Mapping[str, Any] | None,
    quiet: bool,
    accept_changed_config: bool,
    recording: ProfileRecording | None,
    is_locked: bool,
) -> Run:
    """See `resume_run`; nobody else trains in the directory now."""
    config = read_config(out, given.algorithm, accept_changed=accept_changed_config)
    doubts = _check_same(config, out, given)
    require_confirmed(config.replace(**_own_word(changes or {})), given.confirmed)
    before = config
    if changes:
        config = changed_config(config, changes, recorded_engine(out))
        quiet = quiet or ("quiet" in changes and config.run.quiet)
    total = total_env_steps or config.run.total_env_steps
    console = Console(total, quiet=quiet)
    checkpoint = CheckpointStore(out / "checkpoints").latest(console.warning, with_replay=True)
    if checkpoint is not None:
        if not accept_changed_config:
            require_same_config(out, checkpoint.run_files)
            require_same_rows(out, checkpoint.run_files)
        require_sound_metadata(checkpoint.metadata)
        _check_same_env(config, checkpoint)
        asked = total_env_steps is not None or bool(changes)
        if (why := _why_it_ended(out, checkpoint, config, total, asked=asked)) is not None:
            console.message(why)
            return Run(out, before, given)
        env_steps = checkpoint.metadata["env_steps"]
        if change := _stretched_schedules(before, config, total, env_steps):
            console.warning(change)
    else:
        _require_nothing_saved(out)
    changed = differences(before, config)
    given = dataclasses.replace(given, changed=frozenset(changed))
    if changed:
        _tell_of_changes(before, config, changes or {}, console)
    config = config.replace(total_env_steps=total, quiet=quiet)
    if "eval_interval" in changed:
        evaluated_in_time(config, changed)
    if changed.keys() & {"checkpoints", "checkpoint_gap", "checkpoint_interval"}:
        config = checkpointed_in_time(config, changes or {})
    config = _with_network(config, out, given, console, doubts)
    with joined_ranks(*(getattr(config.run, name) for name in DEVICE_SETTINGS)) as ranks:
        if checkpoint is not None:
            ranks.check_checkpoint(checkpoint.metadata, out)
            checkpoint = _own_checkpoint(checkpoint, out, ranks)
        return _executed(
            config, out, given, checkpoint, recording, changed, ranks, is_locked=is_locked
        )


def _own_word(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that reach outside where the caller puts others in place of the run's."""
    engine = {"accelerate": "auto"} if "accelerate" in changes else {}
    return engine | ({"wandb": False} if changes.get("wandb") is False else {})


def _why_it_ended(
    out: Path, checkpoint: Checkpoint, config: RunConfig, total: int, *, asked: bool
) -> str | None:
    """Why there is nothing left to do, and how to train on; None if there is.

    Args:
        out: run directory.
        checkpoint: its newest.
        config: of the run, with what is changed.
        total: env_steps to train to.
        asked: whether the caller gave a length or changed a setting.
    """
    env_steps, reason = checkpoint.metadata["env_steps"], checkpoint.metadata.get("stop_reason")
    if env_steps >= total:
        return (
            f"{out} is already complete: {env_steps:,} of {total:,} env_steps. To train longer, "
            f"give a larger --total-env-steps."
        )
    if reason is None or asked:
        return None
    how = f"--total-env-steps {total}"
    if str(reason).startswith(RETURN_REACHED):
        by_setting = config.run.stop_at_return is not None
        how += " --set stop_at_return=None" if by_setting else " and StopAtReturn a larger return"
    return (
        f"{out} was ended by a callback at {env_steps:,} env_steps: {reason}. To train on all the "
        f"same, give {how}."
    )


def _require_one_length(total: int | None, changes: Mapping[str, Any]) -> None:
    asked = changes.get("total_env_steps", total)
    if total is not None and asked != total:
        raise ConfigError(
            f"--total-env-steps {total} and --set total_env_steps={shown(asked)} contradict each "
            f"other. Give one of them."
        )


def _require_nothing_saved(out: Path) -> None:
    """Refuse to begin a run anew in its directory once it has written a checkpoint.

    One that failed or was killed before its first checkpoint may begin again.

    Raises:
        RunDirectoryError: if its checkpoints are gone.
    """
    if env_steps := saved(out):
        raise RunDirectoryError(
            f"{out} has no checkpoint, and its {HISTORY_FILE} tells of one at {env_steps:,} "
            f"env_steps: to go on would be to begin anew, over its curve. Put its checkpoints "
            f"back, or train again in another directory: "
            f"redline train --config {out / CONFIG_FILE} --out OTHER."
        )


def _own_checkpoint(first: Checkpoint, out: Path, ranks: Ranks) -> Checkpoint:
    """This rank's checkpoint of the newest moment that every rank has saved.

    Raises:
        CorruptCheckpointError: if there is no such moment.
    """
    if ranks.size == 1:
        return first
    store = CheckpointStore(ranks.folder(out) / "checkpoints")
    paths: dict[int, Path] = {}
    for path in store.list():
        with contextlib.suppress(CorruptCheckpointError):
            paths[read_manifest(path)["step"]] = path
    for step in ranks.common(list(paths)):
        found: Checkpoint | None = None
        with contextlib.suppress(CorruptCheckpointError):
            found = load_checkpoint(paths[step], with_replay=True)
        if ranks.all_true(found is not None) and found is not None:
            return found
    raise CorruptCheckpointError(
        f"{out} has no whole checkpoint that all {ranks.size} ranks have written. Begin a new "
        f"run; --init-from {out} takes its weights."
    )


def _check_same(config: RunConfig, out: Path, given: Given) -> list[str]:
    """Refuse to go on with anything else than what the run was begun with, as far as names tell.

    Returns:
        A sentence for each name that is another one, and may be of the same.

    Raises:
        ConfigError: if the algorithm is another one.
        IncompatibleCheckpointError: if the environments are, or what steps or collects them.
    """
    require_same_algorithm(config, out, given.algorithm)
    run, env = config.run, given.env
    if env is not None and not is_same_env(env, run.env):
        raise _another("environment", out, run.env, describe_env(env))
    backend, collector = given.env_backend, given.collector
    parts = (
        ("back end", backend_label(run.env_backend), backend and backend_label(backend)),
        ("collector", collector_label(run.collector), collector and collector_label(collector)),
    )
    for what, present, label in parts:
        if label is not None and not may_be_same(label, present):
            raise _another(what, out, present, label)
    algorithm = given.algorithm and algorithm_label(given.algorithm)
    compared = (
        ("algorithm", config.algorithm, algorithm),
        ("environment", run.env, None if env is None else describe_env(env)),
        *parts,
        *(
            ("callback", had, callback_label(callback))
            for had, callback in zip(run.callbacks, given.callbacks, strict=False)
        ),
    )
    return [
        f"the {what} is {shown(label, 200)} now, and was {shown(present, 200)} when the run began: "
        f"names cannot tell whether they are the same"
        for what, present, label in compared
        if label is not None and label != present
    ]


def _another(what: str, out: Path, present: str, label: str) -> IncompatibleCheckpointError:
    return IncompatibleCheckpointError(
        f"{out} was trained on the {what} {present}, not on {label}. Resume it with the same "
        f"{what}, or start a new run."
    )


def _with_network(
    config: RunConfig, out: Path, given: Given, console: Console, doubts: Sequence[str]
) -> RunConfig:
    """The settings, with the network's name also where the run began before there was one.

    Doubts whether what was given is what the run had are told, the network's last.

    Raises:
        IncompatibleCheckpointError: if the caller gave another network than the run has.
    """
    network_doubt = require_same_network(config, out, given)
    for doubt in (*doubts, *([] if network_doubt is None else [network_doubt])):
        console.warning(doubt)
    if config.run.network is None and given.network is not None:
        return config.replace(network=network_label(given.network))
    return config


def _executed(
    config: RunConfig,
    out: Path,
    given: Given,
    checkpoint: Checkpoint | None,
    recording: ProfileRecording | None,
    changed: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
    *,
    is_locked: bool = False,
) -> Run:
    place = out.absolute()
    with may_not_exit("code that the run was given"):  # a network, or an algorithm of one's own
        config, stopped_by = execute(
            config,
            out,
            given,
            checkpoint=checkpoint,
            recording=recording,
            changed=changed,
            ranks=ranks,
            is_locked=is_locked,
        )
    exit_code = 0 if stopped_by is None else 128 + stopped_by
    return Run(out, config, given, exit_code=exit_code, place=place)


def check_updates(config: RunConfig) -> None:
    """Refuse a run that would end without an update, or without a move of its target or actor.

    Raises:
        ConfigError: with the arithmetic.
    """
    algo, total = config.algo, config.run.total_env_steps
    if not isinstance(algo, OffPolicyConfig):
        return
    updates = algo.expected_updates(total)
    arithmetic = (
        f"learning_starts={algo.learning_starts} env_steps come first, then replay_ratio="
        f"{algo.replay_ratio:g} / {algo.samples_per_update} samples per update makes "
        f"{algo.replay_ratio / algo.samples_per_update:.3g} updates per env_step"
    )
    if updates < 1.0:
        raise ConfigError(
            f"total_env_steps={total} ends before the first update: {arithmetic}. Train longer, "
            f"or give a smaller learning_starts or a larger replay_ratio."
        )
    for name, what in algo.move_intervals.items():
        interval = getattr(algo, name, 1)
        if updates < interval:
            raise ConfigError(
                f"total_env_steps={total} ends before {what} moves for the first time, after "
                f"{name}={interval} updates: {arithmetic}, {updates:.0f} in all. Train longer, or "
                f"give a smaller {name} or learning_starts, or a larger replay_ratio."
            )


def _tell_of_changes(
    before: RunConfig, config: RunConfig, given: Mapping[str, Any], console: Console
) -> None:
    changed = differences(before, config)
    told = ", ".join(f"{name}: {old} -> {new}" for name, (old, new) in changed.items())
    console.warning(
        f"goes on with other settings ({told}). From here on the run is no longer the one that "
        f"its first settings give to the bit; {HISTORY_FILE} says so."
    )
    for sentence in told_of_changes(before, config, given):
        console.warning(sentence)


def _stretched_schedules(
    before: RunConfig, config: RunConfig, total: int, env_steps: int
) -> str | None:
    """What a new length of the run does to its schedules; None if nothing.

    Args:
        before: the run's settings.
        config: those that it goes on with.
        total: its new length.
        env_steps: how far it is.
    """
    old = before.run.total_env_steps
    algo = config.algo
    if total == old:
        return None
    names = [
        name
        for name in type(algo).__dataclass_fields__
        if name.endswith("_schedule") and getattr(algo, name) == "linear"
    ]
    if getattr(algo, "prioritized", False):
        names.append("priority_beta")
    said: list[str] = []
    if isinstance(algo, QLearningConfig) and "epsilon_schedule" in names:
        names.remove("epsilon_schedule")
        said.append(_stretched_epsilon(before, algo, total, env_steps))
    if names:
        said.insert(
            0,
            f"{', '.join(names)}: schedules of the run now reach their end at {total:,} instead of "
            f"{old:,} env_steps, so their present values change.",
        )
    return " ".join(said) or None


def _stretched_epsilon(before: RunConfig, algo: QLearningConfig, total: int, env_steps: int) -> str:
    """What a new length does to the share of random actions, which has an end of its own."""
    old, theirs = before.run.total_env_steps, before.algo
    now, share = exploration(algo, env_steps, total, 1).item(), algo.epsilon_fraction
    end, present = f"{share * total:,.0f}", f"is {now:.3g}"
    if isinstance(theirs, QLearningConfig) and theirs.epsilon_schedule == "linear":
        was = exploration(theirs, env_steps, old, 1).item()
        end += f" instead of {theirs.epsilon_fraction * old:,.0f}"
        present = f"stays {now:.3g}" if now == was else f"{present} instead of {was:.3g}"
    return (
        f"epsilon: its schedule now reaches its end at {end} env_steps "
        f"(epsilon_fraction={share:g}), so epsilon {present} at present."
    )


def _check_same_env(config: RunConfig, checkpoint: Checkpoint) -> None:
    if checkpoint.metadata["env"] != config.run.env:
        raise IncompatibleCheckpointError(
            f"{checkpoint.path} was trained on {shortened(checkpoint.metadata['env'])}, but the "
            f"run's {CONFIG_FILE} says {shortened(config.run.env)}. Put "
            f"{shortened(checkpoint.metadata['env'])} back into {CONFIG_FILE}."
        )

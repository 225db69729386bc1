"""One stretch of training: build what the settings say, train, close everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import torch

from redline.algos.algorithm import Algorithm, OffPolicyAlgorithm
from redline.collect import Collector
from redline.devices import kind_of, kind_of_name
from redline.engines.acting import actor_for, describe_acting
from redline.engines.build import build_description, other_build
from redline.engines.captured_acting import CapturedActing
from redline.engines.engine import Engine, choose_engine
from redline.envs import EnvSettings, VecEnv
from redline.errors import ConfigError, IncompatibleCheckpointError, RedlineError
from redline.generator_states import begun_anew
from redline.plain_text import shown
from redline.policies import Policy
from redline.profile import marks
from redline.replay import Replay
from redline.train.checkpoint.checkpoint import Checkpoint
from redline.train.loops.determinism import only_deterministic
from redline.train.loops.loop import TrainLoop
from redline.train.loops.off_policy_loop import OffPolicyLoop
from redline.train.loops.on_policy_loop import OnPolicyLoop
from redline.train.loops.randomness import seeded_globally
from redline.train.loops.rollout_statistics import RolloutStatistics
from redline.train.process import tune_process
from redline.train.progress.console import Console, duration
from redline.train.progress.writers import require_writer
from redline.train.ranks import ALONE, Ranks, average_gradients
from redline.train.runs.building import (
    make_background_evaluation,
    make_callbacks,
    make_collector,
    make_evaluator,
    make_logger,
    make_some,
    make_store,
    require_log_info,
    resolve,
    said_at_start,
    said_of_bounds,
    said_of_images,
)
from redline.train.runs.contradictions import refuse_image_preset, refuse_raw_game
from redline.train.runs.files import CONFIG_FILE
from redline.train.runs.given import Given, algorithm_of, collector_of, env_settings
from redline.train.runs.history import RunHistory
from redline.train.runs.idle_settings import refuse_idle_settings
from redline.train.runs.learner import build_algorithm, build_replay
from redline.train.runs.memory_checks import require_rollout_fits, require_workers_fit
from redline.train.runs.outside_settings import require_confirmed_source
from redline.train.runs.placing import (
    check_devices,
    initial_threads,
    require_deterministic_replay,
    resolve_devices,
    resolve_threads,
)
from redline.train.runs.recorded_data import RunData
from redline.train.runs.run_directory import (
    RunLock,
    recorded_build,
    recorded_changes,
    recorded_engine,
    recorded_length,
)
from redline.train.runs.sealed_files import write_config
from redline.train.runs.updating import Updating
from redline.train.runs.warm_start import (
    see_replay,
    source_checkpoint,
    take_over,
    take_replay,
)
from redline.train.settings import RunConfig, RunSettings

_RESTART_SEEDS = 1_000_003  # apart, so that no seeds of environments meet
ProfileRecording: TypeAlias = Callable[[Path], AbstractContextManager[None]]


def execute(
    config: RunConfig,
    out: Path,
    given: Given,
    *,
    checkpoint: Checkpoint | None,
    recording: ProfileRecording | None,
    changed: Mapping[str, Any] | None = None,
    ranks: Ranks = ALONE,
    is_locked: bool = False,
) -> tuple[RunConfig, int | None]:
    """Build everything, train, and close everything whatever happens.

    Args:
        config: all settings.
        out: run directory.
        given: what the caller gave as Python objects.
        checkpoint: what to go on from.
        recording: run directory -> context in which the training takes place.
        changed: setting -> (before, now), where a resumed run goes on with others.
        ranks: the processes that learn together; each calls this.
        is_locked: whether the caller holds the run directory for this process.

    Returns:
        The settings with what was chosen, and the number of the signal that stopped the run,
        None if it is complete.

    Raises:
        RedlineError: if a setting is wrong; nothing has been written then.
    """
    collector_kind = collector_of(config, given)
    config = ranks.own_device(config)
    check_devices(config.run, collector_kind, resumed=changed is not None, tried=True)
    config, devices_said = resolve_devices(config)
    require_deterministic_replay(config)
    ranks.check(config, resumed=changed is not None, is_new=checkpoint is None)
    config, told_out = ranks.quiet(config), ranks.folder(out)
    out = told_out.absolute()  # an environment, or a callback, may change the working directory
    callbacks = make_callbacks(config, given)
    _require_writers(config.run)
    settings = env_settings(config, given, collector_kind)
    kind = algorithm_of(config, given)
    began_with = _source(config, kind, given) if checkpoint is None else None
    data = RunData(config, given.data, kind, resumed=checkpoint is not None)
    own = nullcontext() if is_locked else RunLock(out)
    with ExitStack() as closing:
        if recording is not None:
            # Around everything, so that worker processes are recorded from their start to their
            # end. It writes into the run directory, which otherwise is left alone until the
            # settings have proved right.
            closing.enter_context(own)
            closing.enter_context(recording(out))
        backend = settings.backend_class
        settings.require_fit(ranks.share(config).algo.num_envs)
        require_workers_fit(config, collector_kind, backend)
        probe = (
            make_some(settings, 1)  # to look at: nothing is stepped
            if data.learns
            else _some_envs(settings, ranks, ranks.share(config), collector_kind)
        )
        closing.callback(probe.close)
        require_rollout_fits(ranks.share(config), probe)
        refuse_idle_settings(config, given, kind, collector_kind, backend, probe)
        if checkpoint is None:
            refuse_image_preset(config, probe)
            refuse_raw_game(given, probe)
        cautions = said_at_start(config, probe, kind, given.changed)
        cautions += said_of_images(config, probe) if given.network is None else []
        config = resolve(config, probe, waits_for_episodes=kind.waits_for_episodes)
        closing.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(initial_threads(config.run, probe, collector_kind))
        tune_process(config.run)
        closing.enter_context(seeded_globally(config.run.seed))
        closing.enter_context(only_deterministic(wanted=config.run.deterministic))
        algorithm = build_algorithm(ranks.own_seed(ranks.share(config)), probe, given)
        require_log_info(config, algorithm, resumed=checkpoint is not None)
        fresh = began_with is None and not data.learns
        cautions += said_of_bounds(algorithm.policy, fresh=fresh)
        closing.callback(average_gradients(algorithm, ranks))
        taken = _take_over(algorithm, began_with, config.run)
        config, threads_reason = resolve_threads(config, probe, collector_kind, algorithm, ranks)
        torch.set_num_threads(int(config.run.num_threads))
        config = ranks.eager(config)
        asked = config.run.accelerate
        recorded = out if checkpoint and "accelerate" not in (changed or ()) else None
        engine, config = _choose_engine(config, algorithm, recorded)
        local = ranks.share(config)  # after the choice, which also says who acts
        learning: dict[str, Any] = {}
        if issubclass(kind, OffPolicyAlgorithm):
            learning["replay"] = build_replay(local, probe, algorithm.policy, out, settings)
            ranks.all_true(mine=True)  # all have seen what is free before one fills its part
            carried = began_with if "replay" in config.run.init_parts else None
            taken += _begin_replay(
                learning["replay"], carried, data, probe, algorithm.policy, config
            )
        if collector_kind.workers != "none":  # numbers its environments from 0 on each rank
            local = ranks.own_seed(local)
        acting = CapturedActing(
            actor_for if config.run.cpu_acting else None, captures="cudagraph" in engine.name
        )
        if data.learns:
            collector: Collector = data.collector(probe, algorithm.policy)
        else:
            collector = make_collector(
                collector_kind, local, settings, probe, algorithm.policy, acting
            )
        opened = [collector]  # the present one: a run of weeks may restart its workers often
        closing.callback(lambda: opened[0].close())
        remake = _remaker(local, settings, collector_kind, algorithm.policy, ranks, opened, acting)
        if recording is None:
            closing.enter_context(own)
        moved = None
        if checkpoint is not None:
            moved = _moved_from(checkpoint, config, changed or {})
            cautions = _said_at_resume(out, asked, engine, moved)
        # Before config.json is written: W&B may refuse, and the corrected run begins here again.
        logger = closing.enter_context(make_logger(config, out, resumed=checkpoint is not None))
        sealed = SealedRunFiles(out, changed or ())
        if checkpoint is None:
            sealed.write(config, engine.reason)
        console = closing.enter_context(
            Console(
                config.run.total_env_steps,
                title=f"{config.algorithm} {config.run.env}",
                quiet=config.run.quiet,
            )
        )
        evaluation = _make_evaluation(config, settings, algorithm.policy, closing)
        acting.report = console.warning
        report = _report_to(console, sealed, config)
        borrows = _batches_stay(config)
        statistics = None if learning else _statistics(config, collector, algorithm.policy)
        updating = Updating(
            config, engine, algorithm, report, borrows=borrows, statistics=statistics
        )
        loop_kind = OffPolicyLoop if learning else OnPolicyLoop
        learning |= {"capture": updating.capture} if learning else {"statistics": statistics}
        loop: TrainLoop = loop_kind(
            config,
            **learning,
            algorithm=algorithm,
            collector=collector,
            logger=logger,
            store=make_store(config, out, checkpoint),
            console=console,
            frame_skip=probe.frame_skip,
            update=updating.update,
            sums=updating.sums,
            **evaluation,
            callbacks=callbacks,
            run_files=lambda: sealed.entries | logger.run_files(),
            ranks=ranks,
            remake_collector=remake,
        )
        del collector  # so that workers that are restarted leave no memory behind
        closing.callback(loop.release)
        rollouts = "recorded data" if data.learns else _collecting(config, probe.backend)
        cautions += _said_of_growth(learning.get("replay"))
        _announce(console, config, rollouts, told_out, cautions)
        reasons = [
            *taken,
            *data.describe(),
            *devices_said,
            f"updates: {engine.name} ({updating.engine.reason})",
            *([] if data.learns else [f"acting: {_acting(local, collector_kind, algorithm)}"]),
            f"threads: {config.run.num_threads} ({threads_reason})",
        ]
        console.message("\n".join(reasons))
        if checkpoint is not None:
            with begun_anew() if moved is not None else nullcontext():
                _restore(loop, checkpoint)
            _give_up_overrides(loop, _changed_since(checkpoint, config, changed), console)
            # Only now is it certain that the saved state fits settings that were changed.
            sealed.write(config, engine.reason)
        marks.metadata(  # for `redline advise`
            collector=config.run.collector,
            replay_is_near=_replay_stays(config.algo),
        )
        event = "started" if checkpoint is None else "resumed"
        begun = loop.counters.env_steps
        source = None if began_with is None else str(began_with.path)
        # Until all is said: a second signal of one wish must not end it in between.
        with loop.stop_signal:
            with RunHistory(
                out, event, begun, changed=changed or None, init_from=source
            ) as history:
                stopped_by = _train(loop, history)
            console.close()
            console.message(_summary(loop, updating.engine))
            _say_why_it_ended(console, loop, stopped_by, told_out)
    return config, stopped_by


def _some_envs(
    settings: EnvSettings, ranks: Ranks, local: RunConfig, collector: type[Collector]
) -> VecEnv:
    """The environments of this rank, or one to look at where the collector makes its own.

    Raises:
        ConfigError: if a ready VectorEnv is to be split over ranks.
    """
    if collector.workers != "none":
        return settings.make(1)
    if ranks.size > 1 and isinstance(settings.env, gymnasium.vector.VectorEnv):
        raise ConfigError(
            f"a VectorEnv object cannot be split over {ranks.size} ranks. Give an id, or a "
            f"callable that makes one gymnasium.Env."
        )
    return settings.make(local.algo.num_envs, ranks.first_env_id(local))


def _remaker(
    config: RunConfig,
    settings: EnvSettings,
    kind: type[Collector],
    policy: Policy,
    ranks: Ranks,
    opened: list[Collector],
    acting: CapturedActing,
) -> Callable[[int], Collector] | None:
    """What starts workers anew, if the run wants that; they take their place in `opened`.

    Raises:
        ConfigError: if several ranks learn together: the others would wait for ever.
    """
    if config.run.on_worker_failure == "end":
        return None
    if ranks.size > 1:
        raise ConfigError(
            f"on_worker_failure='restart' is for a run of one process, and {ranks.size} ranks "
            f"learn together. Leave it out."
        )

    def remake(restarts: int) -> Collector:
        # Other episodes than those that the run began with, which may be why a worker failed.
        seed = (config.run.seed + _RESTART_SEEDS * restarts) % 2**63
        env = _some_envs(settings, ranks, config, kind)
        made = make_collector(kind, config.replace(seed=seed), settings, env, policy, acting)
        opened[0] = made  # the one before is closed, and nothing else holds its memory
        return made

    return remake


def _replay_stays(algo: Any) -> bool:
    """Whether replay lies with the learner already, or cannot."""
    storage, kind = getattr(algo, "replay_storage", ""), getattr(algo, "replay", "")
    return storage == "device" or kind == "her"


def _train(loop: TrainLoop, history: RunHistory) -> int | None:
    """Train, and note in the run's history how it ended; the number of a signal that stopped it."""
    loop.on_save = history.has_saved
    try:
        stopped_by = loop.run()
    finally:
        history.env_steps = loop.counters.env_steps
    state = "complete" if loop.stop_reason is None else "stopped"
    if stopped_by is not None:
        state = "interrupted"
    history.ended(
        state, loop.counters.env_steps, loop.stop_reason, worker_restarts=loop.worker_restarts
    )
    return stopped_by


def _say_why_it_ended(console: Console, loop: TrainLoop, stopped_by: int | None, out: Path) -> None:
    if loop.stop_reason is not None:
        console.message(f"a callback ended the run: {loop.stop_reason}")
    if stopped_by is not None:
        console.message(f"stopped; go on with: redline train --resume {out}")


def _require_writers(run: RunSettings) -> None:
    for name in ("tensorboard", "jsonl", "wandb"):
        if getattr(run, name):
            require_writer(name)


def _make_evaluation(
    config: RunConfig, settings: EnvSettings, policy: Policy, closing: ExitStack
) -> dict[str, Any]:
    """What evaluates during training, as an argument of the loop."""
    if not config.run.eval_interval:
        return {}
    if not config.run.eval_async:
        return {"evaluate": make_evaluator(config, settings, policy)}
    background = make_background_evaluation(config, settings, policy)
    closing.callback(background.close)
    return {"background": background}


def _source(config: RunConfig, kind: type[Algorithm], given: Given) -> Checkpoint | None:
    """The checkpoint of another run that this one begins with."""
    run = config.run
    if run.init_from is None:
        return None
    require_confirmed_source(config, "init_from", given.confirmed.get("init_from"))
    if "replay" in run.init_parts and not issubclass(kind, OffPolicyAlgorithm):
        raise ConfigError(
            f"init_parts has replay, and {kind.name} keeps none. Leave it out, or use an "
            f"off-policy algorithm."
        )
    return source_checkpoint(Path(run.init_from), run.init_parts)


def _begin_replay(
    replay: Replay,
    source: Checkpoint | None,
    data: RunData,
    probe: VecEnv,
    policy: Policy,
    config: RunConfig,
) -> list[str]:
    """Begin with another run's transitions, or with recorded ones; what to say of it."""
    taken = []
    if source is not None:
        taken = take_replay(replay, source, config, clips_reward=probe.clips_reward)
    said = data.fill(replay, probe, policy)
    return taken + said + (see_replay(policy, replay) if said or source is not None else [])


def _said_of_growth(replay: Replay | None) -> list[str]:
    """A warning where short episodes may need more memory than there is."""
    return [] if replay is None or replay.caution is None else [replay.caution]


def _take_over(algorithm: Any, checkpoint: Checkpoint | None, run: RunSettings) -> list[str]:
    """Begin with another run's weights; what to say of it."""
    if checkpoint is None or not {"weights", "normalizer"} & set(run.init_parts):
        return []
    taken = take_over(algorithm, checkpoint, run.init_parts)
    return list(taken.sentences(Path(run.init_from or "")))


def _moved_from(
    checkpoint: Checkpoint, config: RunConfig, changed: Mapping[str, Any]
) -> str | None:
    """The kind of device that wrote a checkpoint, if the run goes on with another one.

    What was changed tells it only where the checkpoint does not, as of version 0.1: a run may have
    been killed after a change, before its next checkpoint.
    """
    before, _ = changed.get("device", (config.run.device, None))
    settings = checkpoint.run_files.get(CONFIG_FILE, {}).get("settings", {})
    then = kind_of_name(settings.get("run", {}).get("device", before))
    return then if then != kind_of_name(config.run.device) else None


def _said_at_resume(out: Path, asked: str, engine: Engine, moved: str | None) -> list[str]:
    """Warnings where another build, engine or device goes on with a run than wrote it."""
    said = [other_build(recorded_build(out))]
    if moved is not None:
        said.append(
            f"{shown(moved)} made the newest checkpoint, and the run goes on elsewhere. What was "
            f"drawn there is drawn from new streams: a generator follows none of another kind of "
            f"device."
        )
    if engine.name != asked and asked != "auto":
        said.append(
            f"the engine {shown(asked)} wrote this run, and {engine.name!r} goes on with it: "
            f"{engine.reason}. Parameters will agree to rounding only, not to the bit."
        )
    return [sentence for sentence in said if sentence]


class SealedRunFiles:
    """Writes `config.json`, and knows what checkpoints say of it.

    Args:
        out: run directory.
        changed: names of the settings that a resumed run goes on with instead of its own.
    """

    def __init__(self, out: Path, changed: Iterable[str]) -> None:
        self._out = out
        # Those of earlier resumes, too: the newest checkpoint may be from before them.
        self._changed = {*changed, *recorded_changes(out)}
        self._length = recorded_length(out)
        self.entries: dict[str, Any] = {}

    def write(self, config: RunConfig, engine: str) -> None:
        """Write the settings, and why updates run as they do."""
        if self._length not in (None, config.run.total_env_steps):  # by --total-env-steps
            self._changed.add("total_env_steps")
        changed = sorted(self._changed)
        entry = write_config(
            self._out, config, engine=engine, build=build_description(), changed=changed
        )
        self.entries = {CONFIG_FILE: entry}


def _announce(
    console: Console, config: RunConfig, rollouts: str, out: Path, cautions: list[str]
) -> None:
    """Say what begins or goes on, and what of it the caller may not expect."""
    run = config.run
    console.message(f"{config.algorithm} on {run.env} ({rollouts}, preset {run.preset}): {out}")
    for caution in cautions:
        console.warning(caution)


def _collecting(config: RunConfig, backend: str) -> str:
    """Where rollouts come from, in a few words."""
    return f"{backend}, {config.algo.num_envs} environments, {config.run.collector} collector"


def _report_to(
    console: Console, sealed: SealedRunFiles, config: RunConfig
) -> Callable[[str], None]:
    """What to do with the problem of an engine that failed its check."""

    def report(problem: str) -> None:
        console.warning(problem)
        # A resumed run goes on as this one does.
        sealed.write(config.replace(accelerate="eager"), problem)

    return report


def _choose_engine(
    config: RunConfig, algorithm: Any, resumed: Path | None
) -> tuple[Engine, RunConfig]:
    """The engine, and the settings with what was chosen, which a resumed run keeps.

    Args:
        config: all settings.
        algorithm: what learns.
        resumed: the run directory that says why this engine was chosen; None: the run is new.
    """
    asked = config.run.accelerate
    engine = choose_engine(algorithm, asked, borrows=_batches_stay(config))
    if resumed is not None and engine.name == asked:
        engine = replace(engine, reason=recorded_engine(resumed) or engine.reason)
    may_act = config.run.cpu_acting
    if may_act is None:
        may_act = asked in ("auto", "cpu")
    return engine, config.replace(accelerate=engine.name, cpu_acting=may_act)


def _statistics(config: RunConfig, collector: Collector, policy: Policy) -> RolloutStatistics:
    """What an on-policy run keeps of its rollouts, where it learns."""
    algo = config.algo
    gamma = algo.gamma if getattr(algo, "scale_reward", False) else None
    return RolloutStatistics(policy, collector.num_envs, gamma, torch.device(config.run.device))


def _batches_stay(config: RunConfig) -> bool:
    """Whether every batch lies in the same memory, and nobody needs what was there before.

    On a device: collected or drawn there, or brought there by `StagedCopies`.
    """
    return config.run.device != "cpu"


def _acting(config: RunConfig, collector: type[Collector], algorithm: Any) -> str:
    """How the policy acts, in a few words."""
    here = "cpu" if collector.workers == "acting" else config.run.device
    place = config.run.policy_device or here
    if "cudagraph" in config.run.accelerate and kind_of(place).captures:
        return "the policy, captured as a graph"
    if not config.run.cpu_acting or torch.device(place).type != "cpu":
        return "the policy as it is written"
    workers = config.run.num_workers if collector.workers == "acting" else 1
    envs = max(1, config.algo.num_envs // workers)
    return describe_acting(algorithm.policy, envs, config.algo.rollout_length)


def _restore(loop: TrainLoop, checkpoint: Checkpoint) -> None:
    try:
        loop.restore(checkpoint)
    except RedlineError:
        raise
    except Exception as error:  # what a state of another kind than the settings' ends in
        raise IncompatibleCheckpointError(
            f"{checkpoint.path} does not fit the run's settings ({type(error).__name__}: "
            f"{error!s:.200}). Resume with the network "
            f"and the {CONFIG_FILE} that it was trained with."
        ) from error


def _give_up_overrides(loop: TrainLoop, changed: set[str], console: Console) -> None:
    for sentence in loop.give_up_overrides(changed):
        console.message(sentence)


def _changed_since(
    checkpoint: Checkpoint, config: RunConfig, changed: Mapping[str, Any] | None
) -> set[str]:
    """Hyperparameters that are others than when a checkpoint was written.

    A run may have been resumed with them before, and killed before its next checkpoint.
    """
    entry = checkpoint.run_files.get(CONFIG_FILE, {})
    then, now = entry.get("settings", {}).get("algo", {}), config.to_json()["algo"]
    return {*(changed or ()), *(n for n, value in now.items() if n in then and then[n] != value)}


def _summary(loop: TrainLoop, engine: Engine) -> str:
    counters = loop.counters
    text = f"{counters.env_steps:,} env_steps in {duration(counters.wall_time_s)}"
    text += f" ({counters.env_steps / max(counters.wall_time_s, 1e-9):,.0f} SPS)"
    if loop.mean_return is not None:
        text += f", mean return of recent episodes {loop.mean_return:,.1f}"
    said = [str(part) for part in (engine.compiled, engine.captured) if part is not None]
    return f"{text}; updates: {', '.join(said)}" if said else text

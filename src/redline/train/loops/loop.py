"""The training loop: collect, learn, log, save, until enough env_steps are taken.

`TrainLoop` holds what every run does; `OnPolicyLoop` and `OffPolicyLoop` say how to learn.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from redline.algos.algorithm import OffPolicyAlgorithm, OnPolicyAlgorithm
from redline.collect import Collector
from redline.data import EpisodeRecord, Rollout
from redline.engines.snapshot import owners_of
from redline.engines.watch import may_have_changed
from redline.errors import (
    CallbackError,
    ConfigError,
    EnvError,
    EnvExitError,
    RedlineError,
    WorkerError,
)
from redline.profile import marks
from redline.replay import Replay
from redline.train.callbacks import RunState, StopAtReturn
from redline.train.checkpoint.store import Checkpoint, CheckpointStore
from redline.train.loops.background_evaluation import BackgroundEvaluation
from redline.train.loops.best_states import BestStates, Moment
from redline.train.loops.callback_calls import CallbackCalls, TrainingEnvironments
from redline.train.loops.divergence import DivergenceCheck
from redline.train.loops.episode_numbers import EpisodeNumbers
from redline.train.loops.evaluate import Evaluation
from redline.train.loops.evaluations import Evaluations
from redline.train.loops.hyperparameters import Hyperparameters
from redline.train.loops.randomness import rng_state, set_rng_state
from redline.train.loops.rows import Counters, Rows
from redline.train.loops.saved_progress import require_sound_progress
from redline.train.loops.stop_signal import StopSignal
from redline.train.progress.console import Console
from redline.train.progress.progress import EpisodeStatistics, ProgressLogger
from redline.train.ranks import ALONE, Ranks, learned_by
from redline.train.settings import RunConfig
from redline.user_code import is_a_users

_COLLECTION, _CHECKPOINT = marks.operation("collection"), marks.operation("checkpoint")
_LOGGING = marks.operation("logging")
_MOST_EMPTY_ROLLOUTS = 8
_WORKER_FAILURES = (WorkerError, EnvExitError)  # what new workers may not meet again


class TrainLoop(ABC):
    """One run of an algorithm.

    Args:
        config: all settings of the run.
        algorithm: learns.
        collector: gathers.
        logger: writes progress rows.
        store: keeps checkpoints.
        console: shows progress and messages.
        frame_skip: simulator frames per env_step.
        update: batch -> metrics; how an engine runs the algorithm's update. It changes the
            algorithm in place. None: `algorithm.update` itself.
        sums: name -> [] that `update` adds its metrics to instead; None: it returns them.
        evaluate: salt -> Evaluation on separate environments; None: no evaluation.
        background: evaluates in another process instead; None: none does.
        callbacks: of the user's, made already; see `train.callbacks`. Of several ranks only the
            first calls them.
        run_files: what a checkpoint says of the files beside it; None: nothing.
        ranks: the processes that learn together.
        remake_collector: number of restarts so far -> a collector with new workers, whose
            environments begin fresh episodes; None: a worker that fails ends the run.

    Attributes:
        counters: where the run stands.
        environments: what callbacks may do to the training environments.
        stop_reason: why a callback ended the run before its length; None if none did.
        worker_restarts: how often all workers were restarted, in earlier sessions too.
        on_save: told the env_steps of each checkpoint, once it is written.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        algorithm: OnPolicyAlgorithm | OffPolicyAlgorithm,
        collector: Collector,
        logger: ProgressLogger,
        store: CheckpointStore,
        console: Console,
        frame_skip: int,
        update: Callable[[Any], Mapping[str, Tensor]] | None = None,
        sums: dict[str, Tensor] | None = None,
        evaluate: Callable[[int], Evaluation] | None = None,
        background: BackgroundEvaluation | None = None,
        callbacks: Sequence[Any] = (),
        run_files: Callable[[], Mapping[str, Any]] | None = None,
        ranks: Ranks = ALONE,
        remake_collector: Callable[[int], Collector] | None = None,
    ) -> None:
        self._ranks = ranks
        self._remake_collector = remake_collector
        self.worker_restarts = self._restarts_in_a_row = 0
        self.stop_signal = StopSignal()
        self._agreed_signal: int | None = None
        self._agreed_stop: str | None = None
        self.config, self.algorithm, self.collector = config, algorithm, collector
        self._update_algorithm: Callable[[Any], Mapping[str, Tensor]] = update or algorithm.update
        self._learns_by_a_users_code = any(map(is_a_users, owners_of(algorithm)))
        self.counters = Counters()
        self._store, self._console = store, console
        self._run_files = run_files or dict
        self._frame_skip, self._sums = frame_skip, sums
        self._episodes = EpisodeStatistics(info_names=config.run.log_info)
        self._evaluations = Evaluations(
            config.run,
            evaluate,
            background,
            console,
            self._episodes,
            samples=algorithm.policy.samples,
        )
        self._evaluates_copies = background is not None
        self._best = BestStates(
            store,
            self._moment,
            self._require_sound,
            by_evaluation=store.mode == "best" and self._evaluations.take_place,
        )
        self._session_start_s = 0.0
        self._saved_at = -1
        self.on_save: Callable[[int], None] | None = None
        self._saved_reason: str | None = None
        self._hyperparameters = Hyperparameters(config)
        self._replay: Replay | None = None
        self._empty_rollouts = 0  # in a row
        self._episode_numbers = EpisodeNumbers(outlives=remake_collector is not None)
        self._divergence = DivergenceCheck(config, algorithm, store, console)
        self._rows = Rows(
            config,
            algorithm,
            logger,
            console,
            ranks=ranks,
            episodes=self._episodes,
            evaluations=self._evaluations,
            hyperparameters=self._hyperparameters,
            divergence=self._divergence,
            frame_skip=frame_skip,
        )
        self.environments = TrainingEnvironments(collector, self._restart_workers)
        self._is_over = False
        threshold = config.run.stop_at_return
        own = [] if threshold is None else [StopAtReturn(threshold)]
        called = callbacks if ranks.is_first else ()
        self._callbacks = CallbackCalls(called, RunState(self), own)

    # -- the loop -------------------------------------------------------------------------

    def run(self) -> int | None:
        """Train until total_env_steps, or until a stop signal.

        Returns:
            The number of the signal that stopped the run; None if it is complete.

        Raises:
            ConfigError: if metrics or values of `log_info` have names of other columns.
            DivergenceError: if metrics or parameters are no longer finite, unless
                `on_divergence="warn"`.
            CallbackError: if a callback raises; the run has been saved then.
            RedlineError: if the process that evaluates fails; likewise.
        """
        total = self.config.run.total_env_steps
        self._session_start_s = time.monotonic() - self.counters.wall_time_s
        self._rows.begin(self.collector)
        with self.stop_signal:
            try:
                self._run_until(total)
            except RedlineError as error:
                # What is in memory is whole: callbacks and evaluations come between iterations.
                if isinstance(error, CallbackError) or self._evaluations.have_failed:
                    self._save_after_failure()
                raise
        is_complete = self.counters.env_steps >= total or self.stop_reason is not None
        return None if is_complete else self._signal

    def _save_after_failure(self) -> None:
        """Save what a callback or an evaluation ended; if that fails, too, their error stands.

        Of several ranks only this one may know of it, and all would have to save.
        """
        is_saved = self._saved_at == self.counters.env_steps
        if self._ranks.size > 1 or self.counters.iteration == 0 or is_saved:
            return
        try:
            self._save(final=True)
        except _WORKER_FAILURES as error:
            self._console.warning(f"the run could not be saved as it is: {error}")

    def release(self) -> None:
        """Let the loop and all it holds be freed as soon as nobody uses them any more.

        What callbacks are given knows the loop, which knows the callbacks: a cycle. So do what
        keeps the best state, which asks the loop for the present one, and what callbacks may do to
        the environments, which asks it for new workers.
        """
        del self._callbacks, self._best, self.environments

    @property
    def _signal(self) -> int | None:
        """The signal that asks to stop; of several ranks all must know before one does."""
        return self.stop_signal.number if self._ranks.size == 1 else self._agreed_signal

    def _run_until(self, total: int) -> None:
        """Iterate until the length, a stop signal, or a callback's wish to stop."""
        for sentence in self._callbacks.unsaved():
            self._console.message(sentence)
        self._callbacks.call("on_start")
        while self._goes_on(total):
            try:
                self._advance(total)
            except CallbackError:
                raise
            except Exception as error:
                self._divergence.explain(error, self._rows.metrics.read, self.counters.env_steps)
                raise
        if self._saved_at != self.counters.env_steps and self.counters.iteration > 0:
            self.save(final=True)
        if self.stop_reason is not None and self._saved_reason is None:
            self._end_after_checkpoint()
        self._is_over = True
        self._callbacks.call("on_end")

    def _end_after_checkpoint(self) -> None:
        """Write what `_advance` could not know of: `on_checkpoint`, called at its end, stops."""
        if self.counters.iteration == 0:
            return
        if self._rows.env_steps != self.counters.env_steps:
            self._write_row()
        self._save(final=True)  # once more: this one says why the run ended

    def _goes_on(self, total: int) -> bool:
        self._follow_first_rank()
        return self.counters.env_steps < total and self._signal is None and not self.stop_reason

    @property
    def stop_reason(self) -> str | None:
        """Why a callback ended the run before its length; None if none did."""
        return (
            self._agreed_stop if self._has_remote_callbacks else self._callbacks.state.stop_reason
        )

    @property
    def _has_remote_callbacks(self) -> bool:
        """Whether callbacks are called on the first of several ranks, for all of them."""
        return self._ranks.size > 1 and bool(self.config.run.callbacks)

    def _follow_first_rank(self) -> None:
        """Take over what the callbacks of the first rank did; the others have none."""
        if not self._has_remote_callbacks:
            return
        state = self._callbacks.state
        done = {
            "stop": state.stop_reason,
            "hyperparameters": self._hyperparameters.overrides,
            "env_attributes": self.environments.state_dict(),
            "learns": [each.requires_grad for each in learned_by(self.algorithm)],
        }
        done = self._ranks.from_first(done)
        self._agreed_stop = state.stop_reason = done["stop"]
        self._hyperparameters.follow(done["hyperparameters"])
        self.environments.follow(done["env_attributes"])
        for parameter, learns in zip(learned_by(self.algorithm), done["learns"], strict=True):
            parameter.requires_grad_(learns)

    def _advance(self, total: int) -> None:
        """One iteration, and what is due after it."""
        before = self.counters.env_steps
        self._iterate()
        self._maybe_evaluate(before)
        due = self._crossed(before, self.config.run.checkpoint_interval)
        if due and self._store.wants(self.counters.env_steps):
            self._take_evaluation(wait=True)  # what is under way could not be saved
        self._callbacks.call("on_iteration")
        self._follow_first_rank()
        complete = self.counters.env_steps >= total or self.stop_reason is not None
        if complete:
            self._take_evaluation(wait=True)
        if complete or self._crossed(before, self.config.run.log_interval):
            self._write_row()
        if complete or due:
            self.save(final=complete)

    def _iterate(self) -> None:
        """One collection, the updates that follow it, and the counting."""
        marks.step()
        if self._callbacks.may_have_changed_networks():
            self.collector.update_weights(self.counters.iteration)  # it may act with copies
        with _COLLECTION:
            rollout = self._collected()
        seen = self._rows.of_collector
        seen.staleness.append(self.counters.iteration - rollout.version)
        seen.say_who_was_replaced(self.collector, self._console)
        collected, self._agreed_signal, episodes = self._ranks.total(
            rollout.num_valid(), self.stop_signal.number, rollout.episodes
        )
        # One is usual: short rollouts of back ends that need a row to begin an episode.
        self._empty_rollouts = 0 if collected else self._empty_rollouts + 1
        if self._empty_rollouts > _MOST_EMPTY_ROLLOUTS:
            raise EnvError(
                f"no environment took a step in {self._empty_rollouts} rollouts, so the run would "
                "never end. Were they limited to a number of episodes (collector.begin_episodes, "
                "or a checkpoint of a collector that was)? Begin a new run, with --init-from for "
                "its weights."
            )
        self.counters.env_steps += collected
        self.counters.iteration += 1
        self._episodes.add(episodes)
        self._learn(rollout, collected)
        if self._learns_by_a_users_code:
            may_have_changed()  # what acts may be made of these networks
        self.collector.update_weights(self.counters.iteration)
        self.counters.wall_time_s = time.monotonic() - self._session_start_s
        if self._console.is_drawing:
            self._console.update(
                self.counters.env_steps,
                sps=self._rows.sps(self.counters),
                mean_return=self._episodes.moving_mean,
            )
        if self._callbacks.wants("on_episode"):
            self._call_on_episodes(episodes)

    def _collected(self) -> Rollout:
        """A rollout, by restarted workers if the ones before have failed and the run allows it."""
        while True:
            try:
                rollout = self.collector.collect(self._conditioning())
            except _WORKER_FAILURES as error:
                self._restart_workers(error)
            else:
                self._restarts_in_a_row = 0
                self._episode_numbers.number(rollout)
                return rollout

    def _restart_workers(self, error: WorkerError | EnvExitError) -> None:
        """Go on with new workers and fresh episodes, or raise what ended the old ones."""
        if self._remake_collector is None:
            raise error
        most = self.config.run.max_worker_restarts
        if self._restarts_in_a_row >= most:
            raise WorkerError(
                f"workers failed again after {most} restarts in a row (max_worker_restarts). The "
                f"last failure: {error}"
            ) from error
        self._restarts_in_a_row += 1
        self.worker_restarts += 1
        self._console.warning(
            f"{error}\nRestart {self.worker_restarts}: all workers are started anew and begin "
            f"fresh episodes; from here on the run does not repeat to the bit."
        )
        self.collector.close()
        self._episode_numbers.begin_anew()
        try:
            self.collector = self._remake_collector(self.worker_restarts)
        except _WORKER_FAILURES as again:
            self._restart_workers(again)
            return
        self.collector.update_weights(self.counters.iteration)
        self._begin_fresh_episodes()
        self.environments.set_again(self.collector)

    def _call_on_episodes(self, episodes: Sequence[EpisodeRecord]) -> None:
        state = self._callbacks.state
        for state.episode in episodes:
            self._callbacks.call("on_episode")
        state.episode = None

    def _updated(self, batch: Any) -> Mapping[str, Any]:
        """What one update returned, whose metrics have been taken in."""
        found = self._update_algorithm(batch)
        if self._sums is not None:
            self._rows.metrics.add_sums(self._sums, 1)
        else:
            self._rows.add_metrics(found, self.collector)
        return found

    @abstractmethod
    def _learn(self, rollout: Rollout, collected: int) -> None:
        """Learn from what was collected; metrics go to `self._rows`.

        Args:
            rollout: where the collector left it.
            collected: its env_steps, with those of other ranks, which are counted already.
        """

    def _set_hyperparameters(self, env_steps: int) -> None:
        """Give the algorithm what the schedules say after so many env_steps."""
        changed = self._hyperparameters.changed(env_steps)
        if changed is not None:
            self.algorithm.set_hyperparameters(changed)

    # -- what callbacks may do ------------------------------------------------------------

    def hyperparameters(self) -> dict[str, float]:
        """Present values of what schedules and callbacks can change."""
        return self._hyperparameters.at(self.counters.env_steps)

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Change a hyperparameter from the next update on; see `RunState.set_hyperparameter`."""
        self._hyperparameters.set(name, value)

    def give_up_overrides(self, names: Collection[str]) -> list[str]:
        """Follow changed settings, not what callbacks had set; see `Hyperparameters.give_up`."""
        return self._hyperparameters.give_up(names)

    def log(self, name: str, value: float) -> None:
        """Log a number in the next row; see `RunState.log`."""
        if self._is_over:
            raise ConfigError(
                f"{name} cannot be logged when the run is over: no row follows. Log it in "
                f"on_iteration."
            )
        self._rows.log(name, value)

    def save_best(self, score: float) -> Path:
        """Write a checkpoint as the best one; see `RunState.save_best`."""
        with _CHECKPOINT:
            return self._best.keep(score)

    def _conditioning(self) -> dict[str, Tensor] | None:
        """Per-environment inputs of the policy for the next collection."""
        return None

    def _crossed(self, before: int, interval: int | None) -> bool:
        """Whether the last iteration reached a multiple of `interval`."""
        return bool(interval) and self.counters.env_steps // interval > before // interval

    def _maybe_evaluate(self, before: int) -> None:
        self._take_evaluation()
        if self._crossed(before, self.config.run.eval_interval):
            self._take_evaluation(wait=True)
            self._send_to_evaluation()
            self._tell_evaluation(self._evaluations.make(self.counters.env_steps))

    def _take_evaluation(self, *, wait: bool = False) -> None:
        self._tell_evaluation(self._evaluations.take(wait=wait))

    def _tell_evaluation(self, result: Evaluation | None) -> None:
        if result is None:
            return
        self._callbacks.state.evaluation = result
        with self._best.told(result.return_mean):
            self._callbacks.call("on_evaluation")

    def _send_to_evaluation(self) -> None:
        """Keep what another process evaluates, if it may become the best."""
        may = self._best.by_evaluation or self._callbacks.wants("on_evaluation")
        if self._evaluates_copies and may:
            with _CHECKPOINT:
                self._best.send()

    @property
    def mean_return(self) -> float | None:
        """Mean return of the most recent episodes; None before the first has ended."""
        return self._episodes.moving_mean

    @property
    def out(self) -> Path:
        """The run directory."""
        return self._store.directory.parent

    @property
    def recent_episodes(self) -> int:
        """How many episodes that is the mean of."""
        return self._episodes.recent

    # -- rows and checkpoints -------------------------------------------------------------

    @_LOGGING  # around its own columns, too: some compute on the device
    def _write_row(self) -> None:
        self._rows.write(
            self.counters,
            self.collector,
            own=self._own_columns(),
            tensors=self._row_tensors(),
            worker_restarts=self.worker_restarts,
        )

    def _own_columns(self) -> dict[str, float | None]:
        """Further columns of a row."""
        return {}

    def _row_tensors(self) -> dict[str, Tensor]:
        """Further columns of a row as tensors [], to be read with the metrics."""
        return {}

    def save(self, *, final: bool = False) -> None:
        """Write a checkpoint of everything the next iteration depends on, if the mode wants one.

        Raises:
            DivergenceError: if it would hold what is not finite, unless `on_divergence="warn"`.
            CallbackError: if a callback raises, after it is written.
        """
        path = self._save(final=final)
        if path is not None:
            self._callbacks.state.checkpoint = path
            self._callbacks.call("on_checkpoint")

    def _save(self, *, final: bool) -> Path | None:
        if not self._store.wants(self.counters.env_steps, final=final):
            return None
        self._take_evaluation(wait=True)  # what is under way could not be saved
        self._ranks.check_equal(self.algorithm)
        # Where the run is evaluated, the best state is kept as it is evaluated.
        score = None if self._evaluations.take_place else self._episodes.moving_mean
        with _CHECKPOINT:
            moment = self._moment()
            self._require_sound(moment)
            self._saved_at, self._saved_reason = self.counters.env_steps, self.stop_reason
            path = self._store.save(
                moment.env_steps,
                moment.state,
                moment.metadata,
                score=score,
                final=final,
                replay=self._replay,
                run_files=self._run_files(),
            )
        if path is not None and self.on_save is not None:
            self.on_save(self.counters.env_steps)
        if path is not None and final:
            self._console.message(f"checkpoint: {path}")
        return path

    def _metadata(self) -> dict[str, Any]:
        """What `redline inspect` shows without loading a policy."""
        return {
            "algorithm": self.config.algorithm,
            "env": self.config.run.env,
            "env_steps": self.counters.env_steps,
            "frames": self.counters.env_steps * self._frame_skip,
            "iteration": self.counters.iteration,
            "optimizer_steps": self.algorithm.optimizer_steps(),
            **({} if self._ranks.size == 1 else {"ranks": self._ranks.size}),
            **({} if self.stop_reason is None else {"stop_reason": self.stop_reason}),
        }

    def _moment(self) -> Moment:
        """What a checkpoint holds; workers that fail meanwhile are restarted, as they always are.

        Workers that collect ahead are waited for here, so this is where such a failure shows.
        """
        while True:
            try:
                return Moment(self.counters.env_steps, self.state_dict(), self._metadata())
            except _WORKER_FAILURES as error:
                self._restart_workers(error)

    def _require_sound(self, moment: Moment) -> None:
        """Refuse to replace what is saved by what is not finite.

        Raises:
            DivergenceError: if the run is to stop then.
        """
        state = moment.state
        totals = state["metrics"]["totals"]
        self._divergence.check_state(state["algorithm"], totals, moment.env_steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything the next iteration depends on, as plain data and tensors."""
        return {
            "counters": {
                "iteration": self.counters.iteration,
                "env_steps": self.counters.env_steps,
                "wall_time_s": self.counters.wall_time_s,
                "row_env_steps": self._rows.env_steps,
                "row_wall_time_s": self._rows.wall_time_s,
            },
            "algorithm": self.algorithm.state_dict(),
            "collector": self.collector.state_dict(),
            **self._rows.state_dict(),
            "learning": self._learning_state(),
            "last_evaluation": dict(self._evaluations.last),
            # Only where there were any: other states stay as they always were.
            **({"worker_restarts": self.worker_restarts} if self.worker_restarts else {}),
            **self._episode_numbers.state_dict(),
            "rng": rng_state(),
            "callbacks": {
                "states": self._callbacks.state_dict(),
                "hyperparameters": dict(self._hyperparameters.overrides),
                "logged": self._rows.logged.state_dict(),
                "env_attributes": self.environments.state_dict(),
                **self._newest_evaluation(),
            },
        }

    def _newest_evaluation(self) -> dict[str, Any]:
        """What callbacks see of it; nothing before the first."""
        newest = self._callbacks.state.evaluation
        return {} if newest is None else {"evaluation": newest.to_state()}

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint, bit for bit where the environments can be saved.

        Raises:
            CorruptCheckpointError: if counters, sums or lists hold something else.
        """
        state = checkpoint.state
        require_sound_progress(state)
        counters = state["counters"]
        self.counters = Counters(
            counters["iteration"], counters["env_steps"], counters["wall_time_s"]
        )
        self.algorithm.load_state_dict(state["algorithm"])
        began_anew = self.collector.load_state_dict(state["collector"])
        self._episode_numbers.load_state_dict(state, self.collector.num_envs)
        self.collector.update_weights(self.counters.iteration)
        self._rows.load_state_dict(state, self.collector)
        self._restore_learning(checkpoint)
        self._evaluations.last = dict(state["last_evaluation"])
        self.worker_restarts = int(state.get("worker_restarts", 0))
        self._restore_callbacks(state.get("callbacks"))
        set_rng_state(state["rng"])
        if began_anew is not None:
            self._episode_numbers.begin_anew(len(state["collector"].get("ahead", ())))
            self._begin_fresh_episodes()
            self.environments.set_again()
            self._console.warning(
                f"the environments begin fresh episodes: {began_anew.rstrip('.')}. The run goes on "
                f"from the same weights, but not bit for bit."
            )

    def _restore_callbacks(self, saved: Mapping[str, Any] | None) -> None:
        """Go on from what callbacks held and did; None: the run is of version 0.1."""
        if saved is None:
            return
        if self._ranks.is_first:
            self._callbacks.load_state_dict(saved["states"])
        overrides: Mapping[str, Any] = saved["hyperparameters"]
        self._hyperparameters.overrides = {name: float(value) for name, value in overrides.items()}
        self._rows.logged.load_state_dict(saved["logged"])
        self.environments.load_state_dict(saved["env_attributes"])
        if "evaluation" in saved:
            self._callbacks.state.evaluation = Evaluation.from_state(saved["evaluation"])

    @abstractmethod
    def _learning_state(self) -> dict[str, Any]:
        """What learning depends on beside the algorithm's own state."""

    @abstractmethod
    def _restore_learning(self, checkpoint: Checkpoint) -> None:
        """Go on from what `_learning_state` and the replay saved."""

    @abstractmethod
    def _begin_fresh_episodes(self) -> None:
        """The environments could not be restored: they start new episodes."""

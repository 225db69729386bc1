"""Searching hyperparameters with Optuna: trials are runs on slots, pruned by their progress.

```
DIR/tune.json        what is searched and how, for --resume
DIR/study.sqlite     Optuna's storage, unless --storage names another database
DIR/tuners/          a lock for each process that works on the study
DIR/runs/trial-0000/ run directories, as `redline train` writes them
DIR/best.yaml        settings of the best trial, for `redline train --config`
DIR/history.png, importance.png
```

A trial belongs to the process that began it. When that process is gone, another one that works on
the study takes the trial over, and its run goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redline.errors import MissingExtraError, RedlineError, SweepStateError
from redline.launch import locks
from redline.launch.checking import starting_config, typed_settings
from redline.launch.confirming import Confirmed
from redline.launch.launcher import StopRequest
from redline.launch.places import Places
from redline.launch.run_process import GRACE_S, ORDER, is_of_another
from redline.launch.scores import score_of
from redline.launch.search_spaces import Choice
from redline.launch.starting import start
from redline.launch.state import RUNS, Outcome
from redline.launch.sweep_file import overlaid
from redline.launch.trial_returns import TrialReturns
from redline.launch.tune_file import (
    TunePlan,
    described,
    keep_plan,
    plan_from,
    require_same_search,
    require_storage,
    study_elsewhere,
    study_name,
)
from redline.launch.variants import Variant
from redline.plain_files import read_json, refuse_special_files
from redline.train.checkpoint.atomic_files import atomic_file
from redline.train.progress.curves import load_progress

DATABASE = "study.sqlite"

_STEPS = 100  # in which a trial reports: hundredths of its run
# Attributes of a study; those of earlier versions lack them, and go on as they were.
_REPORTS_STEPS = "reports_steps"
_KEEPS_UPDATES = "keeps_updates"
_POLL_S = 0.2
_ASK_S = 5.0  # between looks for work where there was none
_MAKING, _MAKING_S = "making.lock", 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a search found.

    Attributes:
        folder: of the search.
        best_value: score of the best trial; None if none is complete.
        best_params: what was drawn for it.
        best_file: for `redline train --config`; None likewise.
        counts: state -> trials, such as complete, pruned, fail.
        exit_code: 0, or 1 if no trial is complete, or 128 + the signal that stopped it.
    """

    folder: Path
    best_value: float | None
    best_params: Mapping[str, Any]
    best_file: Path | None
    counts: Mapping[str, int]
    exit_code: int


def tune(
    file: str | Path | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    trials: int | None = None,
    storage: str | None = None,
    options: Mapping[str, Any] | None = None,
    places: Callable[[Mapping[str, Any]], Places],
    say: Callable[[str], None] = lambda line: None,
    confirmed: Confirmed | None = None,
) -> Tuning:
    """Search hyperparameters, or go on with a search.

    Args:
        file: .yaml, .toml or .json file, or what it holds.
        out: folder.
        resume: folder of a search to go on with, in place of both.
        trials: how many in all; None: as the file says.
        storage: URL of a database in place of SQLite in the folder.
        options: the launcher's, in place of the plan's.
        places: the launcher's options -> where runs take place.
        say: takes one line about each trial that ends.
        confirmed: what the caller confirms of a folder's trials; None: nothing.

    Raises:
        ConfigError: listing all mistakes.
        MissingExtraError: without Optuna.
        SweepStateError: if the folder or the database cannot be used.
    """
    _require_optuna()
    folder = Path(resume or out or "")
    confirmed = confirmed or Confirmed(folder, command="tune")
    refuse_special_files(folder)
    from_folder = resume is not None or file is None
    data, source = described(file, folder, from_folder=from_folder)
    if from_folder:
        _check_described(data, confirmed)  # before anything is imported
    # A folder's plan was checked as its search began, and may be a stranger's: what it searches
    # is imported trial by trial, as far as the caller says it.
    plan = plan_from(data, source, is_new=not from_folder)
    if not from_folder:
        require_same_search(folder, data)
        _say_plan(plan, confirmed)
    require_storage(folder, storage, has_study=(folder / DATABASE).exists())
    if trials is not None:
        plan = dataclasses.replace(plan, trials=trials)
    launch = overlaid(plan.launch, options, is_saved=from_folder)
    if from_folder and "address" not in (options or {}):
        confirmed.require_address(launch)
    where = places(launch)
    kept = functools.partial(keep_plan, folder, data, trials=plan.trials, launch=launch)
    with _tuner(folder) as own, _named_errors(folder, storage):
        study = _study(folder, plan, storage, kept)
        if not study.user_attrs.get(_KEEPS_UPDATES):
            plan = dataclasses.replace(plan, scaled={})
        resume = _resume(folder, storage)
        search = _Search(study, plan, folder, where, own, say, confirmed, resume)
        with StopRequest() as stop, contextlib.ExitStack() as closing:
            closing.callback(search.close)
            search.run(lambda: stop.number is not None)
        return _finished(study, plan, folder, stop.number, say, confirmed, resume)


def _check_described(data: Mapping[str, Any], confirmed: Confirmed) -> None:
    """Refuse a plan in a folder that reaches outside by what the caller has not said."""
    algorithm, base = data.get("algorithm"), data.get("base") or {}
    if isinstance(algorithm, str) and isinstance(base, Mapping):
        confirmed.require("the search", algorithm, {str(k): v for k, v in base.items()})


def _say_plan(plan: TunePlan, confirmed: Confirmed) -> None:
    """Count what the caller's own file says, and each choice in it, as said."""
    confirmed.say_all(plan.algorithm, plan.base)
    for name, span in plan.space.items():
        for value in span.values if isinstance(span, Choice) else ():
            confirmed.say(name, value)


def _require_optuna() -> None:
    try:
        import optuna
    except ImportError as error:
        raise MissingExtraError("optuna", "tune", "`redline tune`") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _resume(folder: Path, storage: str | None) -> str:
    """The command that goes on; the address of a database may hold a password."""
    return f"redline tune --resume {folder}{'' if storage is None else ' --storage URL'}"


@contextlib.contextmanager
def _tuner(folder: Path) -> Iterator[str]:
    """A lock that says that this process is at work; its name."""
    name = uuid.uuid4().hex
    path = folder / "tuners" / f"{name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = locks.take(path)
    except SweepStateError:
        path.unlink(missing_ok=True)
        raise  # there are no locks
    except OSError as error:
        raise SweepStateError(
            f"{folder} cannot be written ({error.strerror}). Give a folder you may write to as "
            f"--out."
        ) from error
    try:
        yield name
    finally:
        path.unlink(missing_ok=True)
        if descriptor is not None:
            os.close(descriptor)


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """Held while the study or a trial is made: one in between looks like nobody's."""
    held = locks.take(folder / "tuners" / _MAKING, _MAKING_S)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _is_at_work(folder: Path, tuner: str) -> bool:
    # The name comes from the database, which may be a stranger's.
    return tuner.isalnum() and locks.is_held(folder / "tuners" / f"{tuner}.lock")


def _study(folder: Path, plan: TunePlan, storage: str | None, keep: Callable[..., None]) -> Any:
    """The study of a search, which is made if there is none; its folder then knows it."""
    import optuna

    url = _url(folder, storage)
    samplers = {
        "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    }
    pruners = {
        "median": lambda: optuna.pruners.MedianPruner(n_startup_trials=5),
        "hyperband": optuna.pruners.HyperbandPruner,
        "none": optuna.pruners.NopPruner,
    }
    # Two processes that begin at the same moment would both make the tables, and one would fail.
    with _one_at_a_time(folder):
        keep(study=study_elsewhere(folder))
        name = study_name(folder, storage)
        study = optuna.create_study(
            storage=url,
            study_name=name,
            load_if_exists=True,
            direction="maximize",
            pruner=pruners[plan.pruner](),
        )
        if storage is not None:
            keep(study=name)  # only now: the address may be wrong
        # Each process that works on the study draws numbers of its own; the first those of `seed`.
        before = int(study.user_attrs.get("tuners", 0))
        study.set_user_attr("tuners", before + 1)
        if before == 0:
            study.set_user_attr(_REPORTS_STEPS, True)
            study.set_user_attr(_KEEPS_UPDATES, True)
    study.sampler = samplers[plan.sampler](plan.seed + before)
    return study


def _url(folder: Path, storage: str | None) -> str:
    return storage or f"sqlite:///{(folder / DATABASE).absolute()}"


@contextlib.contextmanager
def _named_errors(folder: Path, storage: str | None) -> Iterator[None]:
    """Errors of the study's database say which it is and that nothing is lost."""
    import optuna.exceptions
    import sqlalchemy.exc

    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise SweepStateError(
            f"the study's database {_url(folder, storage)} cannot be used ({reason}). What the "
            f"trials reached lies in {folder / RUNS}; mend the database, then go on with: "
            f"{_resume(folder, storage)}"
        ) from error


@dataclass(slots=True)
class _Trial:
    """A trial under way.

    Attributes:
        trial: Optuna's.
        run_dir: of its run.
        returns: of its run, as they come.
        length: env_steps that are compared in hundredths; None: as they are.
        reported: step of the last report.
        env_steps: of the row that was reported last.
        pruned: whether its run was told to stop for good.
    """

    trial: Any
    run_dir: Path
    returns: TrialReturns
    length: int | None
    reported: int = -1
    env_steps: int = 0
    pruned: bool = False


class _Search:
    """Asks for trials, runs them on places, prunes them, and tells how they ended."""

    def __init__(
        self,
        study: Any,
        plan: TunePlan,
        folder: Path,
        places: Places,
        tuner: str,
        say: Callable[[str], None],
        confirmed: Confirmed,
        resume: str,
    ) -> None:
        self._confirmed, self._resume = confirmed, resume
        self._ask_again_s = 0.0  # for work, though nothing has ended
        self._study, self._plan, self._folder, self._places = study, plan, folder, places
        self._tuner, self._say = tuner, say
        self._running: dict[int, _Trial] = {}

    def run(self, stopped: Callable[[], bool]) -> None:
        """Until there are enough trials, or until asked to stop."""
        while not stopped():
            ended = self._places.ended()
            for number, outcome in ended:
                self._note(number, outcome)
            begun = 0
            if ended or not self._running or time.monotonic() >= self._ask_again_s:
                begun = self._begin()
            for each in self._running.values():
                self._report(each)
            if not self._running and not begun:
                return
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Stop what runs; its trials stay open, so that a resumed search goes on with them.

        A trial that had just been pruned is pruned: its run has been told to stop for good.
        """
        for number, outcome in self._places.close(GRACE_S):
            if not outcome.stopped or self._running[number].pruned:
                self._note(number, outcome)

    def _begin(self) -> int:
        begun = 0
        while (place := self._places.free()) is not None:
            with _one_at_a_time(self._folder):
                trial = self._taken_over() or self._new()
            if trial is None:
                # Each look takes the lock and asks the database, which others need as well.
                self._ask_again_s = time.monotonic() + _ASK_S
                break
            # Not `study.trials`: that copies all of them.
            known = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
            reported = max(known, default=-1)
            settings = self._plan.settings(trial.params)
            self._confirmed.require(f"trial {trial.number}", self._plan.algorithm, settings)
            order = self._order(trial.number, settings)
            run_dir = _run_dir(self._folder, trial.number, order)
            length = self._length(settings)
            others = bool(self._running)
            self._running[trial.number] = _Trial(
                trial, run_dir, TrialReturns(run_dir), length, reported
            )
            outcome = start(
                self._places, trial.number, run_dir, order, place,
                others=others, resume=self._resume,
            )  # fmt: skip
            begun += 1
            if outcome is not None and outcome.stopped:
                del self._running[trial.number]
                trial.set_user_attr("tuner", "")  # nobody's: whoever has room takes it over
                self._say(f"trial {trial.number}: {outcome.error}; tried again")
                self._ask_again_s = time.monotonic() + _ASK_S
                break
            if outcome is not None:
                self._note(trial.number, outcome)
        return begun

    def _order(self, number: int, settings: dict[str, Any]) -> dict[str, Any]:
        """What the process of a trial's run is to do."""
        algorithm, seed = self._plan.algorithm, self._plan.seed
        with contextlib.suppress(RedlineError):  # the run itself says what is wrong
            settings = typed_settings(algorithm, settings)
        key = Variant(algorithm=algorithm, settings=settings, varies={}).key(seed)
        return {
            "algorithm": algorithm,
            "settings": settings,
            "seed": seed,
            # The settings too: a folder whose database was lost has the runs of other trials.
            "key": f"trial-{number}-{key}",
        }

    def _length(self, settings: Mapping[str, Any]) -> int | None:
        """The env_steps whose hundredths a trial reports, so that trials have steps in common.

        Optuna compares values of the very same step, and rows lie where iterations happen to end.
        A study of an earlier version goes on with the env_steps that its trials have reported.
        """
        if not self._study.user_attrs.get(_REPORTS_STEPS):
            return None
        name, span = "total_env_steps", self._plan.space.get("total_env_steps")
        lengths = () if span is None else span.values if isinstance(span, Choice) else (span.high,)
        drawable = [{**settings, name: length} for length in lengths] or [dict(settings)]
        with contextlib.suppress(RedlineError):  # the run itself says what is wrong
            configs = [starting_config(self._plan.algorithm, each) for each in drawable]
            return max(config.run.total_env_steps for config in configs)
        return None

    def _taken_over(self) -> Any:
        """An open trial whose process is gone, if there is one."""
        import optuna

        running = self._study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,))
        for frozen in running:
            tuner = str(frozen.user_attrs.get("tuner", ""))
            if tuner != self._tuner and not _is_at_work(self._folder, tuner):
                return self._owned(optuna.trial.Trial(self._study, frozen._trial_id))
        return None

    def _new(self) -> Any:
        import optuna

        state = optuna.trial.TrialState
        counted = (state.COMPLETE, state.PRUNED, state.RUNNING, state.FAIL)
        if len(self._study.get_trials(deepcopy=False, states=counted)) >= self._plan.trials:
            return None
        return self._owned(self._study.ask())

    def _owned(self, trial: Any) -> Any:
        """A trial as this process's own, with a value for every setting that is searched.

        One that was taken over keeps the values it has; its process may have ended before it had
        them all.
        """
        trial.set_user_attr("tuner", self._tuner)
        for name, span in self._plan.space.items():
            span.suggest(trial, name)
        return trial

    def _report(self, each: _Trial) -> None:
        """Tell the study how far a trial is, and stop it if that is not far enough."""
        if each.pruned:
            return
        for env_steps, values in _reports(each.returns.read(), each.length):
            new = {step: value for step, value in values.items() if step > each.reported}
            for step, value in new.items():
                each.trial.report(value, step)
                each.reported = step
            each.env_steps = env_steps
            if new and each.trial.should_prune():
                each.pruned = True
                self._places.stop(each.trial.number)
                return

    def _note(self, number: int, outcome: Outcome) -> None:
        import optuna

        each = self._running.pop(number)
        state = optuna.trial.TrialState
        if each.pruned and outcome.result is None:
            self._study.tell(each.trial, state=state.PRUNED)
            self._say(f"trial {number}: pruned at {each.env_steps:,} env_steps")
            return
        value = _value(each.run_dir, self._plan.score) if outcome.result is not None else None
        if value is None:
            self._study.tell(each.trial, state=state.FAIL)
            reason = (outcome.error or "no episode has ended").splitlines()[0]
            self._say(f"trial {number}: failed ({reason})")
            return
        self._study.tell(each.trial, value)
        self._say(f"trial {number}: {value:,.2f}  {_shown(each.trial.params)}")


def _run_dir(folder: Path, number: int, order: Mapping[str, Any]) -> Path:
    """Where a trial's run lies: beside one of the same number that a lost database has left."""
    first = folder / RUNS / f"trial-{number:04d}"
    if _is_of_version_0_2(first, number, order):
        return first
    later = (first.with_name(f"{first.name}-{again}") for again in itertools.count(2))
    return next(d for d in itertools.chain([first], later) if not is_of_another(d, order["key"]))


def _is_of_version_0_2(run_dir: Path, number: int, order: Mapping[str, Any]) -> bool:
    """Whether a directory holds the same trial by its number alone, as it was called then."""
    try:
        before = read_json(run_dir / ORDER)
        settings = typed_settings(before["algorithm"], before["settings"])
    except (OSError, ValueError, LookupError, TypeError, RedlineError):
        return False
    same = before["algorithm"] == order["algorithm"] and before.get("seed") == order["seed"]
    return before.get("key") == f"trial-{number}" and same and settings == order["settings"]


def _shown(params: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in params.items()
    )


def _reports(
    rows: list[tuple[int, float]], length: int | None
) -> Iterator[tuple[int, dict[int, float]]]:
    """What each row adds to what is known of a run: step -> return.

    A step that no row falls into has the return of the row before; of several rows in one step,
    the first counts.

    Args:
        rows: env_steps and return.
        length: env_steps whose hundredths are the steps; None: each number of env_steps is one.

    Yields:
        The row's env_steps, and its steps in rising order.
    """
    last: tuple[int, float] | None = None
    for env_steps, value in rows:
        step = env_steps if length is None else min(_STEPS * env_steps // length, _STEPS)
        added: dict[int, float] = {}
        if last is not None and length is not None:
            added = dict.fromkeys(range(last[0] + 1, step), last[1])
        if last is None or step > last[0]:
            added[step] = value
        last = (step, value)
        yield env_steps, added


def _value(run_dir: Path, score: Any) -> float | None:
    found = score_of(load_progress(run_dir), score)
    return None if found != found else found  # NaN: no episode has ended


def _finished(
    study: Any,
    plan: TunePlan,
    folder: Path,
    stopped_by: int | None,
    say: Callable[[str], None],
    confirmed: Confirmed,
    resume: str,
) -> Tuning:
    trials = study.get_trials(deepcopy=False)
    counts: dict[str, int] = {}
    for trial in trials:
        counts[trial.state.name.lower()] = counts.get(trial.state.name.lower(), 0) + 1
    complete = counts.get("complete", 0)
    best_file = None
    if complete:
        # Trained with on Redline's advice, so held to what a trial is held to.
        best = plan.settings(study.best_params)
        confirmed.require(f"trial {study.best_trial.number}", plan.algorithm, best)
        best_file = _write_best(study, plan, folder)
        _draw(study, folder, complete)
        say(f"best: {study.best_value:,.2f}  {_shown(study.best_params)}")
        say(f"train with it: redline train --config {best_file}")
    said = ", ".join(f"{count} {name}" for name, count in counts.items())
    say(f"{folder}: {len(trials)} trials, {said}")
    code = 0 if complete else 1
    if stopped_by is not None:
        say(f"stopped; go on with: {resume}")
        code = 128 + stopped_by
    return Tuning(
        folder=folder,
        best_value=study.best_value if complete else None,
        best_params=study.best_params if complete else {},
        best_file=best_file,
        counts=counts,
        exit_code=code,
    )


def _write_best(study: Any, plan: TunePlan, folder: Path) -> Path:
    import yaml

    path = folder / "best.yaml"
    said = {"algorithm": plan.algorithm, **plan.settings(study.best_params)}
    text = (
        f"# Trial {study.best_trial.number}: {plan.score} of return_mean {study.best_value:.6g}\n"
    )
    with atomic_file(path) as temporary:
        temporary.write_text(text + yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    return path


def _draw(study: Any, folder: Path, complete: int) -> None:
    """Optuna's own plots of the history and, from two trials on, of what mattered."""
    import warnings

    import matplotlib as mpl
    from optuna.importance import PedAnovaImportanceEvaluator
    from optuna.visualization import matplotlib as plots

    before = mpl.get_backend()
    mpl.use("Agg")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its plots are marked as experimental
            _save(plots.plot_optimization_history(study), folder / "history.png")
            if complete > 1:
                evaluator = PedAnovaImportanceEvaluator()
                axes = plots.plot_param_importances(_hashed(study), evaluator=evaluator)
                _save(axes, folder / "importance.png")
    finally:
        mpl.use(before)


def _hashed(study: Any) -> Any:
    """The complete trials, with text for choices that are lists or mappings.

    Optuna's importance of a parameter takes the hash of its choices.
    """
    from optuna import create_study
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    found = create_study(direction="maximize")
    for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
        params, spans = dict(trial.params), dict(trial.distributions)
        for name, span in trial.distributions.items():
            if isinstance(span, CategoricalDistribution):
                spans[name] = CategoricalDistribution([json.dumps(each) for each in span.choices])
                params[name] = json.dumps(params[name])
        found.add_trial(create_trial(value=trial.value, params=params, distributions=spans))
    return found


def _save(axes: Any, path: Path) -> None:
    from matplotlib import pyplot

    with atomic_file(path) as temporary:
        axes.figure.savefig(temporary, dpi=160, bbox_inches="tight")
    pyplot.close(axes.figure)

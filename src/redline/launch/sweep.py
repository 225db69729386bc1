"""Sweeps and searches: from a file or from Python, begun, gone on with, added to."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redline.errors import ConfigError, RunDirectoryError
from redline.launch.confirming import Confirmed
from redline.launch.launcher import StopRequest, launch
from redline.launch.local import LocalSlots
from redline.launch.places import Places
from redline.launch.run_process import finished_result
from redline.launch.slots import make_slots
from redline.launch.state import (
    DATABASE,
    RUNS,
    LauncherLock,
    NewRun,
    Outcome,
    QueuedRun,
    SweepState,
)
from redline.launch.status import Status, status_of
from redline.launch.sweep_file import SweepPlan, overlaid, plan_from, refuse
from redline.launch.variants import Variant, expand
from redline.plain_files import refuse_special_files
from redline.plain_text import printable, shown
from redline.train.config_files import read_mapping

if TYPE_CHECKING:
    from redline.launch.comparison import Comparison
    from redline.launch.tuning import Tuning


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """Where the runs of a sweep take place.

    Attributes:
        slots: runs at a time; None: as many as fit.
        cores_per_run: cores and threads of each.
        gpus: indices to deal out.
        memory_gb: GiB that a run may hold before it is ended.
        retries: how often a run that fails is begun again.
        oversubscribe: whether slots may share cores; on this machine only.
        on: "local" or "ray".
        address: of a Ray cluster, with on="ray" only; None: the one of this environment, else one
            that is started.
    """

    slots: int | None = None
    cores_per_run: int = 1
    gpus: Sequence[int] = ()
    memory_gb: float | None = None
    retries: int = 0
    oversubscribe: bool = False
    on: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        for name in ("slots", "cores_per_run", "retries"):
            value = getattr(self, name)
            if not _is_whole(value) and not (name == "slots" and value is None):
                raise ConfigError(f"{name}={shown(value)} must be a whole number, such as 2.")
        for name in ("slots", "cores_per_run"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1.")
        if not isinstance(self.gpus, Sequence) or not all(map(_is_whole, self.gpus)):
            raise ConfigError(f"gpus={shown(self.gpus)} must be a list of indices, such as [0, 1].")
        memory = self.memory_gb
        if memory is not None and not (isinstance(memory, Real) and 0 < memory < math.inf):
            raise ConfigError(f"memory_gb={shown(memory)} must be a number of GiB, such as 2.5.")
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries} must be 0 or more.")
        if self.on not in ("local", "ray"):
            raise ConfigError(f"on={shown(self.on)} is unknown. Choose local or ray.")
        self._refuse_idle()

    def _refuse_idle(self) -> None:
        """Refuse what says nothing where the runs take place."""
        if self.address is not None and self.on != "ray":
            raise ConfigError(
                f"address={shown(self.address)} is of a Ray cluster, and on={self.on!r} runs all "
                f"on this machine. Give --on ray (on='ray') with it, or leave it out."
            )
        if self.oversubscribe and self.on == "ray":
            raise ConfigError(
                "oversubscribe=True is for slots of this machine, and with on='ray' the cluster "
                "deals out its CPUs. Leave it out, or give fewer --cores-per-run."
            )

    def places(self) -> Places:
        """The slots of this machine, or a cluster.

        Raises:
            ConfigError: if more is asked for than there is.
        """
        if self.on == "ray":
            from redline.launch.ray_places import RayPlaces

            return RayPlaces(
                slots=self.slots,
                cores_per_run=self.cores_per_run,
                gpus_per_run=1 if self.gpus else 0,
                memory_gb=self.memory_gb,
                address=self.address,
            )
        self._check_gpus()
        return LocalSlots(
            make_slots(
                self.slots,
                cores_per_run=self.cores_per_run,
                gpus=self.gpus,
                memory_gb=self.memory_gb,
                oversubscribe=self.oversubscribe,
            )
        )

    def _check_gpus(self) -> None:
        if not self.gpus:
            return
        import torch

        there = torch.cuda.device_count()
        if missing := [gpu for gpu in self.gpus if not 0 <= gpu < there]:
            raise ConfigError(
                f"gpus={list(self.gpus)} names GPU {missing[0]}, and this machine has {there}. "
                f"Give indices from 0 to {there - 1}, or none."
            )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


class Sweep:
    """A sweep in its folder.

    Attributes:
        folder: it.
        exit_code: 0 if all runs are done, 1 if some failed, 128 + the signal that stopped it.
    """

    def __init__(self, folder: str | Path, *, exit_code: int = 0) -> None:
        self.folder, self.exit_code = Path(folder), exit_code

    def status(self) -> Status:
        """How far it is."""
        return status_of(self.folder)

    @property
    def run_dirs(self) -> list[Path]:
        """The directories of the runs that are done, in order."""
        with SweepState(self.folder) as state:
            return [self.folder / RUNS / run.name for run in state.runs("done")]

    def compare(self, out: str | Path | None = None, **options: Any) -> Comparison:
        """Tables and figures over the runs; see `launch.comparison.compare`."""
        from redline.launch.comparison import compare

        return compare([self.folder], out, **options)


def sweep(
    file: str | Path | None = None,
    *,
    algorithm: str | Sequence[str] | None = None,
    base: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
    zip: Mapping[str, Sequence[Any]] | None = None,
    by_algorithm: Mapping[str, Mapping[str, Any]] | None = None,
    seeds: Sequence[int] | int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    confirm: Sequence[str] = (),
    quiet: bool = False,
    **options: Any,
) -> Sweep:
    """Run a sweep, add runs to one, or go on with one.

    ```python
    redline.sweep(
        algorithm="ppo",
        base={"env": "CartPole-v1", "total_env_steps": 20_000},
        grid={"learning_rate": [1e-3, 3e-4]},
        seeds=[1, 2],
        out="sweeps/first",
        slots=2,
    )
    ```

    Args:
        file: .yaml, .toml or .json file; the arguments from `algorithm` to `seeds` are refused
            beside it.
        algorithm: one, or several.
        base: settings of every run.
        grid: setting -> values; every combination is run.
        zip: setting -> values of one length; the n-th go together.
        by_algorithm: algorithm -> settings of its runs.
        seeds: each variant is run with every one; a number n stands for 1 to n. None: 1 only.
        out: folder; None: sweeps/<name of the file>.
        resume: folder of a sweep to go on with; all the above are refused beside it.
        confirm: NAME=VALUE of what runs in the folder reach outside of it, and the arguments above
            do not say: Python code, `wandb`, paths. A folder alone does not decide that.
        quiet: leave out the line about each run.
        options: of `LaunchOptions`, such as `slots`, `retries`, `gpus`.

    Returns:
        The sweep; its `exit_code` is 0 if all runs are done.

    Raises:
        ConfigError: listing all mistakes; nothing has been started then.
        SweepStateError: if the folder cannot be used.
    """
    say = _silent if quiet else _print_line
    described = {
        **{"algorithm": algorithm, "base": base, "grid": grid, "zip": zip},
        **{"by_algorithm": by_algorithm, "seeds": seeds},
    }
    if resume is not None:
        _refuse_beside("resume", resume, {"file": file, **described, "out": out})
        return resume_sweep(Path(resume), options, say=say, confirm=confirm)
    if file is not None:
        _refuse_beside("file", file, described)
        data, source = read_mapping(file), str(file)
    else:
        seeds = (1,) if seeds is None else seeds
        data = _as_data(algorithm, base, grid, zip, by_algorithm, seeds)
        source = "the sweep"
    folder = Path(out) if out is not None else Path("sweeps") / (Path(file).stem if file else "")
    if out is None and file is None:
        raise ConfigError("out is missing. Give the sweep a folder, such as out='sweeps/first'.")
    plan = plan_from(data, source)
    return start_sweep(plan, folder, options, say=say, source=source, confirm=confirm)


def _refuse_beside(name: str, value: str | Path, others: Mapping[str, Any]) -> None:
    """Refuse arguments that would say nothing, because the folder or the file says it all."""
    given = ", ".join(f"{other}=" for other, each in others.items() if each is not None)
    if given:
        raise ConfigError(
            f"{given} beside {name}={shown(str(value))} would be ignored: that says what is run. "
            f"Give one or the other."
        )


def _as_data(algorithm: Any, base: Any, grid: Any, zipped: Any, own: Any, seeds: Any) -> Any:
    def listed(value: Any) -> Any:
        return list(value) if isinstance(value, (tuple, range)) else value

    return {
        "algorithm": listed(algorithm),
        "base": base,
        "grid": {name: listed(values) for name, values in (grid or {}).items()},
        "zip": {name: listed(values) for name, values in (zipped or {}).items()},
        "by_algorithm": own,
        "seeds": listed(seeds),
    }


def start_sweep(
    plan: SweepPlan,
    folder: Path,
    options: Mapping[str, Any] | None = None,
    *,
    say: Callable[[str], None],
    source: str = "the sweep",
    confirm: Sequence[str] = (),
) -> Sweep:
    """Check a plan, queue those of its runs that are new, and run all that is queued.

    Raises:
        ConfigError: listing all mistakes; nothing has been written then.
    """
    launching = launch_options(overlaid(plan.launch, options))
    new = checked_runs(plan, source)
    places = launching.places()
    if (folder / "config.json").exists():
        raise RunDirectoryError(f"{folder} holds a run, not a sweep. Give another --out.")
    exists = (folder / DATABASE).exists()
    refuse_special_files(folder)
    confirmed = Confirmed(folder, confirm)
    for run in new:
        confirmed.say_all(run.algorithm, run.settings)
    with LauncherLock(folder), SweepState(folder, create=True) as state:
        _check_confirmed(state, confirmed)
        added = state.add(new)
        adopted = _adopt(state)
        state.set_meta(launch=dataclasses.asdict(launching))
        requeued = state.requeue()
        if exists:
            say(f"{folder}: {added} new runs, {requeued} to go on with")
        if adopted:
            say(f"{folder}: {adopted} runs were complete already")
        return _launched(state, places, launching, say, confirmed)


def resume_sweep(
    folder: Path,
    options: Mapping[str, Any] | None = None,
    *,
    say: Callable[[str], None],
    confirm: Sequence[str] = (),
) -> Sweep:
    """Go on with a sweep: what was interrupted, what failed, what is queued.

    Args:
        folder: of the sweep.
        options: those that differ from when it was begun.
        say: takes one line about each run that ends.
        confirm: NAME=VALUE of what its runs reach outside the folder; see `confirming`.
    """
    refuse_special_files(folder)
    confirmed = Confirmed(folder, confirm)
    with SweepState(folder) as state:
        before = dict(state.meta("launch", {}))
        _check_confirmed(state, confirmed)
        wanted = overlaid(before, options, is_saved=True)
        if "address" not in (options or {}):
            confirmed.require_address(wanted)
        launching = launch_options(wanted)
        places = launching.places()
        with LauncherLock(folder):
            state.set_meta(launch=dataclasses.asdict(launching))
            _adopt(state)
            state.requeue()
            return _launched(state, places, launching, say, confirmed)


def tune(
    file: str | Path | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    trials: int | None = None,
    storage: str | None = None,
    confirm: Sequence[str] = (),
    quiet: bool = False,
    **options: Any,
) -> Tuning:
    """Search hyperparameters with Optuna, or go on with a search.

    Args:
        file: .yaml, .toml or .json file, or what such a file holds.
        out: folder.
        resume: folder of a search to go on with; both are refused beside it.
        trials: how many in all; None: as the file says, or 30.
        storage: URL of a database in place of SQLite in the folder.
        confirm: NAME=VALUE of what trials in the folder reach outside of it, and the file does not
            say: Python code, `wandb`, paths. A folder alone does not decide that.
        quiet: leave out the line about each trial.
        options: of `LaunchOptions`, such as `slots`.

    Returns:
        What was found; `best_file` is for `redline train --config`.

    Raises:
        ConfigError: listing all mistakes; nothing has been started then.
        SweepStateError: if the folder or the database cannot be used.
    """
    from redline.launch import tuning
    from redline.launch.tune_file import NO_RETRIES

    if (out is None) == (resume is None):
        raise ConfigError("give a folder for the search: either out=, or resume= to go on.")
    if resume is not None:
        _refuse_beside("resume", resume, {"file": file})
    if options.get("retries"):
        raise ConfigError(f"{NO_RETRIES}.")
    confirmed = Confirmed(Path(resume or out or ""), confirm, "tune")

    return tuning.tune(
        file,
        out=out,
        resume=resume,
        trials=trials,
        storage=storage,
        options=options,
        places=lambda launch: launch_options(launch).places(),
        confirmed=confirmed,
        say=_silent if quiet else _print_line,
    )


def launch_options(values: Mapping[str, Any]) -> LaunchOptions:
    """Options by name.

    Raises:
        ConfigError: if a name is unknown or a value of the wrong kind.
    """
    try:
        gpus = values.get("gpus")
        listed = () if gpus is None else tuple(gpus) if hasattr(gpus, "__iter__") else gpus
        return LaunchOptions(**{**values, "gpus": listed})
    except TypeError as error:
        known = ", ".join(field.name for field in dataclasses.fields(LaunchOptions))
        raise ConfigError(f"{error}. Options of the launcher are {known}.") from error


def checked_runs(plan: SweepPlan, source: str) -> list[NewRun]:
    """The runs of a plan, every setting checked.

    Raises:
        ConfigError: listing all mistakes.
    """
    from redline.launch.checking import checked_settings, seed_mistakes

    checked: list[Variant] = []
    mistakes = [mistake for seed in plan.seeds for mistake in seed_mistakes(seed)]
    for variant in expand(plan):
        settings, found = checked_settings(variant)
        mistakes += found
        varies = {name: settings.get(name, value) for name, value in variant.varies.items()}
        checked.append(dataclasses.replace(variant, settings=settings, varies=varies))
    refuse(mistakes, source)
    return [_new_run(variant, seed) for seed in plan.seeds for variant in checked]


def _new_run(variant: Variant, seed: int) -> NewRun:
    key = variant.key(seed)
    return NewRun(
        name=variant.name(seed),
        key=key,
        algorithm=variant.algorithm,
        settings={**variant.settings, "seed": seed, "key": key},
        varies=dict(variant.varies),
    )


def _adopt(state: SweepState) -> int:
    """Note the runs whose directories say that they are complete; how many."""
    adopted = 0
    for kind in ("queued", "running"):
        for run in state.runs(kind):
            run_dir = state.folder / RUNS / run.name
            result = finished_result(run_dir, run.settings["key"])
            if result is not None:
                if kind == "queued":
                    state.started(run, "")
                state.ended(run.id, Outcome(result=result, exit_code=0), retries=0)
                adopted += 1
    return adopted


def _check_confirmed(state: SweepState, confirmed: Confirmed) -> None:
    """Refuse a database whose open runs reach outside by what the caller has not said."""
    for run in state.runs():
        if run.state != "done":
            _check_run(run, confirmed)


def _check_run(run: QueuedRun, confirmed: Confirmed) -> None:
    confirmed.require(f"run {run.name}", run.algorithm, run.settings)


def _launched(
    state: SweepState,
    places: Places,
    options: LaunchOptions,
    say: Callable[[str], None],
    confirmed: Confirmed,
) -> Sweep:
    with StopRequest() as stop:
        launch(
            state,
            places,
            retries=options.retries,
            say=say,
            stopped=lambda: stop.number is not None,
            # Once more: between the look above and this one the database could change itself.
            check=lambda run: _check_run(run, confirmed),
        )
    counts = state.counts()
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    say(f"{state.folder}: {said}")
    code = 1 if counts["failed"] else 0
    if stop.number is not None:
        say(f"stopped; go on with: redline sweep --resume {state.folder}")
        code = 128 + stop.number
    return Sweep(state.folder, exit_code=code)


def _silent(line: str) -> None:
    del line


def _print_line(line: str) -> None:
    sys.stdout.write(printable(f"{line}\n"))
    sys.stdout.flush()

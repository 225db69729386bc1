"""Searches: the file, trials on places that are played, pruning, a process that is gone."""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import os
import random
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import redline
from redline.algos.dqn import DQN
from redline.algos.ppo import PPO, PPOConfig
from redline.algos.sac import SAC
from redline.cli import main
from redline.errors import ConfigError, RedlineError, SweepStateError
from redline.launch import locks
from redline.launch.search_spaces import Choice, Span, space_from
from redline.launch.state import Outcome
from redline.launch.tune_file import keep_plan, plan_from
from redline.launch.tuning import DATABASE, _reports, _study, tune
from redline.train.config_files import config_of, given_settings

optuna = pytest.importorskip("optuna")

PLAN = {
    "algorithm": "ppo",
    "base": {"env": "CartPole-v1", "total_env_steps": 1000},
    "search": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}},
    "trials": 12,
    "sampler": "random",
}


class Played:
    """One place whose runs write a row per look; their returns grow with the learning rate."""

    def __init__(self, stop_after: int | None = None, apart: int = 0) -> None:
        self._apart = apart  # env_steps by which the rows of each trial lie later
        self.running: dict[int, tuple[Path, float, int]] = {}
        self.started: list[str] = []
        self.ordered: list[Mapping[str, Any]] = []
        self._stopped: set[int] = set()
        self._left = stop_after

    def free(self) -> str | None:
        return None if self.running or self._left == 0 else "a slot"

    def start(self, run_id: int, run_dir: Path, order: Mapping[str, Any], place: str) -> None:
        del place
        run_dir.mkdir(parents=True, exist_ok=True)
        (run_dir / "progress.csv").write_text("env_steps,return_mean\n")
        self.running[run_id] = (run_dir, order["settings"]["learning_rate"], 0)
        self.started.append(run_dir.name)
        self.ordered.append(order)

    def ended(self) -> list[tuple[int, Outcome]]:
        found = []
        for run_id, (run_dir, rate, rows) in list(self.running.items()):
            if run_id in self._stopped:
                found.append((run_id, Outcome(exit_signal=15, stopped=True)))
            elif rows == 5:
                found.append((run_id, Outcome(result={}, exit_code=0)))
            else:
                with open(run_dir / "progress.csv", "a") as file:
                    later = self._apart * run_id
                    file.write(f"{200 * (rows + 1) + later},{1e4 * rate}\n")
                self.running[run_id] = (run_dir, rate, rows + 1)
                if self._left:
                    self._left -= 1
                    if self._left == 0:
                        raise KeyboardInterrupt
        for run_id, _ in found:
            del self.running[run_id]
        return found

    def stop(self, run_id: int) -> None:
        self._stopped.add(run_id)

    def close(self, grace_s: float) -> list[tuple[int, Outcome]]:
        del grace_s
        found = [(run_id, Outcome(exit_signal=15, stopped=True)) for run_id in self.running]
        self.running = {}
        return found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redline.launch.tuning._POLL_S", 0.0)


def test_trials_are_pruned_and_the_best_one_becomes_a_file_for_train(tmp_path: Path) -> None:
    places = Played()
    lines: list[str] = []
    found = tune(PLAN, out=tmp_path, places=lambda launch: places, say=lines.append)
    assert found.exit_code == 0
    assert sum(found.counts.values()) == 12
    # The median rule needs five complete trials first.
    assert found.counts["complete"] >= 5
    assert found.counts["pruned"] >= 1
    rates = [order["settings"]["learning_rate"] for order in places.ordered]
    assert found.best_value == pytest.approx(1e4 * max(rates))
    assert found.best_file is not None
    said = yaml.safe_load(found.best_file.read_text())
    config = config_of(given_settings(found.best_file))
    assert config.algo.learning_rate == said["learning_rate"] == max(rates)  # type: ignore[attr-defined]
    assert (config.algorithm, config.run.env) == ("ppo", "CartPole-v1")
    for name in ("history.png", "importance.png"):
        assert (tmp_path / name).stat().st_size > 1000


def test_trials_whose_rows_lie_apart_are_pruned(tmp_path: Path) -> None:
    """Optuna compares values of the very same step, and no two trials had one in common."""
    lines: list[str] = []
    found = tune(PLAN, out=tmp_path, places=lambda launch: Played(apart=1), say=lines.append)
    assert found.counts["pruned"] >= 1
    # The 200 env_steps of the first row, and one more for each trial before.
    said = [line for line in lines if "pruned at" in line]
    numbers = [int(line.split()[1].rstrip(":")) for line in said]
    assert said == [f"trial {n}: pruned at {200 + n:,} env_steps" for n in numbers]
    study = optuna.load_study(study_name="redline", storage=f"sqlite:///{tmp_path / DATABASE}")
    assert max(study.trials[0].intermediate_values) == 100  # hundredths of 1,000 env_steps


def test_rows_are_reported_at_hundredths_of_the_run() -> None:
    """Of 1,000 env_steps: 25 and 29 are in step 2, 51 in step 5, the last one is past the end."""
    rows = [(25, 1.0), (29, 2.0), (51, 3.0), (995, 4.0), (1_024, 5.0)]
    filled = dict.fromkeys(range(6, 99), 3.0)
    assert list(_reports(rows, 1_000)) == [
        (25, {2: 1.0}),
        (29, {}),
        (51, {3: 2.0, 4: 2.0, 5: 3.0}),
        (995, {**filled, 99: 4.0}),
        (1_024, {100: 5.0}),
    ]


def test_a_search_of_an_earlier_version_goes_on_with_env_steps(tmp_path: Path) -> None:
    """Its trials have reported at them; hundredths beside them would compare with nothing."""
    plan = {**PLAN, "trials": 2}
    with pytest.raises(KeyboardInterrupt):
        tune(plan, out=tmp_path, places=lambda launch: Played(stop_after=3))
    storage = f"sqlite:///{tmp_path / DATABASE}"
    optuna.delete_study(study_name="redline", storage=storage)
    study = optuna.create_study(study_name="redline", storage=storage, direction="maximize")
    study.set_user_attr("tuners", 1)
    study.ask().report(1.0, 200)
    assert tune(resume=tmp_path, places=lambda launch: Played()).counts == {"complete": 2}
    known = [list(trial.intermediate_values) for trial in study.trials]
    assert known == [[200, 400, 600, 800, 1000]] * 2


@pytest.mark.parametrize("lengths", [[4000, 1000], {"low": 1000, "high": 4000}])
def test_lengths_that_are_searched_are_compared_at_the_same_env_steps(
    lengths: Any, tmp_path: Path
) -> None:
    """1,000 env_steps are 25 hundredths of the longest run."""
    plan = {**PLAN, "base": {"env": "CartPole-v1"}, "trials": 1}
    plan["search"] = {**PLAN["search"], "total_env_steps": lengths}  # type: ignore[dict-item]
    tune(plan, out=tmp_path, places=lambda launch: Played())
    study = optuna.load_study(study_name="redline", storage=f"sqlite:///{tmp_path / DATABASE}")
    assert max(study.trials[0].intermediate_values) == 25


def test_a_trial_whose_process_is_gone_is_taken_over(tmp_path: Path) -> None:
    plan = {**PLAN, "trials": 3}
    with pytest.raises(KeyboardInterrupt):
        tune(plan, out=tmp_path, places=lambda launch: Played(stop_after=8))
    places = Played()
    found = tune(resume=tmp_path, places=lambda launch: places)
    assert found.counts == {"complete": 3}
    assert places.started[0] == "trial-0001"  # the first was complete, the second under way


@pytest.mark.filterwarnings("ignore:Choices for a categorical distribution")
def test_a_trial_whose_choices_are_tuples_is_taken_over(tmp_path: Path) -> None:
    """The study keeps them as lists, and Optuna refused the tuples as other choices."""
    sizes = {"hidden_sizes": [(64, 64), (256, 256)]}
    plan = {**PLAN, "search": {**PLAN["search"], **sizes}, "trials": 2}  # type: ignore[dict-item]
    with pytest.raises(KeyboardInterrupt):
        tune(plan, out=tmp_path, places=lambda launch: Played(stop_after=3))
    places = Played()
    assert tune(plan, out=tmp_path, places=lambda launch: places).counts == {"complete": 2}
    assert places.ordered[0]["settings"]["hidden_sizes"] in ([64, 64], [256, 256])
    assert (tmp_path / "importance.png").stat().st_size > 1000  # the lists were a TypeError there


def test_choices_are_kept_as_a_study_gives_them_back() -> None:
    found = space_from({"x": [(1, (2, 3)), {"a": (1, 2)}, None, "ab"]}, [])
    assert found == {"x": Choice(([1, [2, 3]], {"a": [1, 2]}, None, "ab"))}


def test_a_trial_that_is_pruned_as_the_search_stops_stays_pruned(tmp_path: Path) -> None:
    """It stayed open, and a resumed search trained it to the end."""

    class StoppedAtOnce(Played):
        def stop(self, run_id: int) -> None:
            super().stop(run_id)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(PLAN, out=tmp_path, places=lambda launch: StoppedAtOnce())
    study = optuna.load_study(study_name="redline", storage=f"sqlite:///{tmp_path / DATABASE}")
    *earlier, last = [trial.state.name for trial in study.trials]
    assert set(earlier) == {"COMPLETE"}
    assert last == "PRUNED"


def test_a_trial_that_has_no_values_yet_gets_them(tmp_path: Path) -> None:
    """Its process ended, or another one looked, between asking for it and drawing its values."""
    tune({**PLAN, "trials": 1}, out=tmp_path, places=lambda launch: Played())
    study = optuna.load_study(study_name="redline", storage=f"sqlite:///{tmp_path / DATABASE}")
    study.ask()
    places = Played()
    found = tune({**PLAN, "trials": 2}, out=tmp_path, places=lambda launch: places)
    assert places.started == ["trial-0001"]
    assert found.counts == {"complete": 2}
    assert "learning_rate" in places.ordered[0]["settings"]


def test_the_same_seed_draws_the_same_trials(tmp_path: Path) -> None:
    drawn = []
    for name in ("a", "b"):
        places = Played()
        tune({**PLAN, "trials": 2}, out=tmp_path / name, places=lambda launch, p=places: p)
        drawn.append([order["settings"] for order in places.ordered])
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"base": 5}, "base=5 must be a mapping"),
        ({"search": [1]}, "search=.* must be a mapping"),
        ({"launch": "two"}, "launch='two' must be a mapping"),
        ({"seed": "x"}, "seed='x' must be a whole number"),
        ({"search": {"seed": [1, 2]}}, "'seed' is no setting in base or search"),
    ],
)
def test_a_part_of_the_wrong_kind_is_named(part: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_from({**PLAN, **part}, "search.yaml")


def test_every_mistake_is_listed() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_from(
            {
                "algorithm": "ppo",
                "base": {"env": "CartPole-v1", "gamma": 0.9},
                "search": {"gamma": [0.9], "tau": [0.1], "learning_rate": {"low": 1, "high": 0}},
                "trials": 0,
                "pruner": "best",
                "trails": 3,
            },
            "tune.yaml",
        )
    for part in (
        "'trails' (did you mean trials?)",
        "pruner='best' is unknown",
        "trials=0",
        "learning_rate from 1 to 0 is no range",
        "'gamma' is given in base and in search",
        "ppo has no setting 'tau'",
    ):
        assert part in str(caught.value), part


@pytest.mark.parametrize(
    ("search", "messages"),
    [
        ({"gamma": {"low": 0.9, "high": 1.2}}, ["search: gamma=1.2 must lie between 0 and 1"]),
        ({"gamma": [1.2], "clip_range": [0.1, 0.2]}, ["search: gamma=1.2 must lie"]),
        (
            {"activation": ["relu", "tanhh"], "learning_rate": ["a", 1e-3]},
            ["search: activation='tanhh' has", "search: learning_rate='a' has"],
        ),
        ({"num_epochs": {"low": 1, "high": 1e1}}, ["num_epochs=1.009 has", "num_epochs=9.991 has"]),
        ({"learning_rate": {"low": 0.1, "high": 10**400}}, ["is no range"]),
        # 256 or 512 rows.
        (
            {"num_minibatches": [4, 1000], "num_envs": [8, 16], "activation": ["relu", "tanhh"]},
            ["num_minibatches=1000 does not divide", "search: activation='tanhh' has"],
        ),
        ({"num_minibatches": [64], "num_envs": [5]}, ["num_minibatches=64 does not divide"]),
        ({"network": [None, "no_such_module:make"]}, ["there is no module 'no_such_module'"]),
        ({"callbacks": [[], ["no_such_module:Mine"]]}, ["there is no module 'no_such_module'"]),
        ({"collector": ["serial", "seriall"]}, ["search: there is no collector 'seriall'"]),
        ({"env_backend": ["auto", "vectr"]}, ["there is no environment back end 'vectr'"]),
    ],
)
def test_what_is_searched_is_checked_before_the_first_trial(
    search: dict[str, Any], messages: list[str], tmp_path: Path
) -> None:
    """It failed trial by trial, each after it had begun."""
    places = Played()
    with pytest.raises(ConfigError) as caught:
        tune({**PLAN, "search": search}, out=tmp_path / "t", places=lambda launch: places)
    assert f"{len(messages)} mistake" in str(caught.value)
    for message in messages:
        assert message in str(caught.value)
    assert not places.started
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize(
    "search",
    [
        {"core": ["none", "lstm"], "core_size": [64, 256]},
        {"num_envs": [8, 16], "num_minibatches": [4, 512]},  # 512 rows with 16 environments
        {"num_envs": {"low": 4, "high": 20}, "num_minibatches": [4, 96]},  # 384 rows with 12
        {"num_envs": [9], "rollout_length": [100], "num_minibatches": [45]},  # 900 rows
        {"learning_rate": {"low": 0.0, "high": 0.01}},  # 0 itself is hardly ever drawn
        {"collector": ["serial", "alternating"], "num_groups": [2, 4]},
        {"hidden_sizes": [[64, 64], [256]]},
    ],
)
def test_a_value_that_others_of_the_search_make_right_is_taken(search: dict[str, Any]) -> None:
    assert set(plan_from({**PLAN, "search": search}, "tune.yaml").space) == set(search)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("low", "high"), [(1, 3), (0.5, 4.0)])
def test_draws_stay_within_their_bounds(low: float, high: float, log: bool) -> None:
    span = Span(low=low, high=high, log=log)
    draws = random.Random(3)
    drawn = [span.draw(draws) for _ in range(200)]
    assert low <= min(drawn) < max(drawn) <= high
    assert ({type(value) for value in drawn} == {int}) == isinstance(low, int)
    if isinstance(low, int):
        assert set(drawn) == {1, 2, 3}


def test_a_folder_does_not_have_its_search_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may be a stranger's, so its choices are imported only once the caller confirms."""
    trace = tmp_path / "imported"
    (tmp_path / "searched_trap.py").write_text(f"open({str(trace)!r}, 'w').close()")
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = {**PLAN, "search": {"network": ["searched_trap:make"]}}
    folder = tmp_path / "search"
    folder.mkdir()
    (folder / "tune.json").write_text(json.dumps(plan))
    with pytest.raises(RedlineError, match="a folder alone must not decide"):
        tune(resume=folder, places=lambda launch: Played())
    assert not trace.exists()
    with pytest.raises(ConfigError, match="searched_trap"):
        plan_from(plan, "tune.yaml")  # the caller's own
    assert trace.exists()


def test_default_spaces_follow_the_algorithm() -> None:
    base = {"env": "Pendulum-v1", "total_env_steps": 20_000, "gamma": 0.9}
    space = plan_from({"algorithm": "sac", "base": base}, "x").space
    assert set(space) == {"learning_rate", "batch_size", "tau"}
    assert space["learning_rate"] == Span(low=1e-5, high=1e-2, log=True)
    assert isinstance(space["batch_size"], Choice)


SEARCHED_DQN: dict[str, Any] = {
    "algorithm": "dqn", "base": {"env": "CartPole-v1", "total_env_steps": 5_000}, "trials": 6,
    "sampler": "random", "pruner": "none",
}  # fmt: skip


def test_batch_sizes_are_searched_at_equal_updates_per_env_step(tmp_path: Path) -> None:
    """The preset's 32 / 128 are 0.25; with a ratio of 32, batches of 32 had one per env_step."""
    places = Played()
    found = tune(SEARCHED_DQN, out=tmp_path, places=lambda launch: places)
    tried = [order["settings"] for order in places.ordered]
    assert len({each["batch_size"] for each in tried}) > 1
    for each in tried:
        assert each["replay_ratio"] == 0.25 * each["batch_size"]
    assert "replay_ratio" not in found.best_params
    assert found.best_file is not None
    best: Any = config_of(given_settings(found.best_file)).algo
    assert best.batch_size == found.best_params["batch_size"]
    assert best.replay_ratio == 0.25 * best.batch_size


@pytest.mark.parametrize(
    "changes",
    [
        {"base": {**SEARCHED_DQN["base"], "replay_ratio": 16.0}},
        {"base": {**SEARCHED_DQN["base"], "batch_size": 64}},
        {"search": {"batch_size": [32, 64], "learning_rate": [1e-3]}},
    ],
)
def test_ratios_and_batch_sizes_that_are_said_stay(changes: dict[str, Any]) -> None:
    plan = plan_from({**SEARCHED_DQN, **changes}, "x")
    drawn = {"learning_rate": 1e-3, "batch_size": plan.base.get("batch_size", 32)}
    ratio = plan.base.get("replay_ratio")
    assert plan.settings(drawn).get("replay_ratio") == ratio


def test_a_search_of_an_earlier_version_keeps_its_ratio(tmp_path: Path) -> None:
    """Its trials had the same ratio with every batch size; others would compare with nothing."""
    with pytest.raises(KeyboardInterrupt):
        tune(SEARCHED_DQN, out=tmp_path, places=lambda launch: Played(stop_after=1))
    storage = f"sqlite:///{tmp_path / DATABASE}"
    optuna.delete_study(study_name="redline", storage=storage)
    study = optuna.create_study(study_name="redline", storage=storage, direction="maximize")
    study.set_user_attr("tuners", 1)
    places = Played()
    found = tune(resume=tmp_path, places=lambda launch: places)
    assert not any("replay_ratio" in order["settings"] for order in places.ordered)
    assert found.best_file is not None
    assert "replay_ratio" not in yaml.safe_load(found.best_file.read_text())


class OwnSAC(SAC):
    name = "own-sac"


class OwnDQN(DQN):
    name = "own-dqn"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyingConfig(PPOConfig):
    target_update_interval: int = 100


class Copying(PPO):
    """Has a target of its own, and never heard of tau."""

    name = "copying"
    Config = CopyingConfig


@pytest.mark.parametrize(
    ("algorithm", "env", "given", "searched"),
    [
        ("sac", "Pendulum-v1", {}, {"tau"}),
        ("diayn", "Pendulum-v1", {}, {"tau"}),
        ("td3", "Pendulum-v1", {}, {"tau"}),
        ("dqn", "CartPole-v1", {}, {"target_update_interval"}),
        ("r2d1", "CartPole-v1", {}, {"target_update_interval"}),
        ("crossq", "Pendulum-v1", {}, set()),
        (f"{__name__}:OwnSAC", "Pendulum-v1", {}, {"tau"}),
        (f"{__name__}:OwnDQN", "CartPole-v1", {}, {"target_update_interval"}),
        (f"{__name__}:Copying", "CartPole-v1", {}, {"target_update_interval"}),
        ("dqn", "CartPole-v1", {"tau": 0.01, "target_update_interval": 1}, set()),
    ],
)
def test_targets_are_searched_by_distance_or_by_interval(
    algorithm: str, env: str, given: dict[str, float], searched: set[str]
) -> None:
    """With tau 0.005 drawn beside an interval of 250, a target moved 9% of the way in a run."""
    base = {"env": env, "total_env_steps": 20_000, **given}
    space = plan_from({"algorithm": algorithm, "base": base}, "x").space
    assert set(space) & {"tau", "target_update_interval"} == searched


def test_bad_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune"]) == 2
    assert "give either a file" in capsys.readouterr().err
    assert main(["tune", "--resume", str(tmp_path)]) == 2
    assert "holds no search" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SweepStateError, match=r"file/x cannot be written .*Not a directory"):
        tune(PLAN, out=tmp_path / "file" / "x", places=lambda launch: Played())


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search went on without its lock, and waited a minute for each trial."""

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    said = r"\.lock cannot be locked \(No locks available\).* or give another --out"
    with pytest.raises(SweepStateError, match=said):
        tune(PLAN, out=tmp_path, places=lambda launch: Played())
    assert not list((tmp_path / "tuners").iterdir())
    with pytest.raises(SweepStateError, match="cannot be locked"):
        locks.is_held(Path(__file__))


class Refusing(Played):
    """Places on which some starts fail: of the n-th start, with this error."""

    def __init__(self, errors: Mapping[int, int]) -> None:
        super().__init__()
        self._errors, self._starts = errors, 0

    def free(self) -> str | None:
        return "a slot" if len(self.running) < 2 else None

    def start(self, run_id: int, run_dir: Path, order: Mapping[str, Any], place: str) -> None:
        self._starts += 1
        if number := self._errors.get(self._starts):
            raise OSError(number, os.strerror(number))
        super().start(run_id, run_dir, order, place)


def test_a_trial_that_cannot_be_started_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """Its error ended the search, with a bare traceback."""
    lines: list[str] = []
    places = Refusing({1: errno.EACCES})
    plan = {**PLAN, "trials": 3, "pruner": "none"}
    found = tune(plan, out=tmp_path, places=lambda launch: places, say=lines.append)
    assert found.counts == {"fail": 1, "complete": 2}
    assert lines[0] == "trial 0: failed (could not be started: [Errno 13] Permission denied)"


def test_a_trial_without_room_for_its_process_is_tried_again(tmp_path: Path) -> None:
    places = Refusing({2: errno.EAGAIN})
    plan = {**PLAN, "trials": 3, "pruner": "none"}
    assert tune(plan, out=tmp_path, places=lambda launch: places).counts == {"complete": 3}
    assert places.started == ["trial-0000", "trial-0001", "trial-0002"]


def test_a_search_that_can_start_nothing_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(SweepStateError, match=r"no room on the disk .*: redline tune --resume"):
        tune(PLAN, out=tmp_path, places=lambda launch: Refusing({1: errno.ENOSPC}))


def test_a_search_that_has_no_work_left_asks_for_it_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked the database at each look, under the lock that others wait for."""
    asked: list[str] = []
    take = locks.take

    def counted(path: Path, *more: Any) -> int | None:
        asked.append(path.name)
        return take(path, *more)

    monkeypatch.setattr(locks, "take", counted)
    monkeypatch.setattr("redline.launch.tuning._ASK_S", 3600.0)
    tune({**PLAN, "trials": 1}, out=tmp_path, places=lambda launch: Refusing({}))
    # For the study, for the trial, for a second one, and once it had ended.
    assert asked.count("making.lock") == 4


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.sqlite").write_text("this is no database at all, whatever its name says")
    with pytest.raises(SweepStateError, match=r"study\.sqlite cannot be used .*not a database"):
        tune(PLAN, out=tmp_path, places=lambda launch: Played())


def test_searches_that_begin_together_make_the_study_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere both made the tables, and one failed: UNIQUE constraint failed."""
    (tmp_path / "tuners").mkdir()
    held = locks.take(tmp_path / "tuners" / "making.lock")
    assert held is not None
    made: list[Any] = []
    plan = plan_from(PLAN, "a test")
    keep = functools.partial(keep_plan, tmp_path, PLAN, trials=1, launch={})
    asked, take = threading.Event(), locks.take

    def take_and_tell(path: Path, *more: Any) -> int | None:
        asked.set()
        return take(path, *more)

    monkeypatch.setattr(locks, "take", take_and_tell)
    making = threading.Thread(target=lambda: made.append(_study(tmp_path, plan, None, keep)))
    making.start()
    assert asked.wait(60)
    making.join(0.3)
    assert not (tmp_path / "study.sqlite").exists()
    os.close(held)
    making.join(60)
    assert made[0].study_name == "redline"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"base": {"env": "Acrobot-v1", "total_env_steps": 1000}}, "base"),
        ({"search": {"gamma": [0.9, 0.99]}, "seed": 2}, "search, seed"),
        ({"algorithm": "a2c"}, "algorithm"),
        ({"seed": 0}, "seed"),
        ({"score": "final"}, "score"),
    ],
)
def test_a_folder_holds_one_search(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    """The best of the first one was written with the second one's environment."""
    tune({**PLAN, "trials": 1}, out=tmp_path, places=lambda launch: Played())
    best = (tmp_path / "best.yaml").read_text()
    with pytest.raises(SweepStateError, match=f"holds a search of another {named}, and"):
        tune(PLAN | change, out=tmp_path, places=lambda launch: Played())
    assert (tmp_path / "best.yaml").read_text() == best
    # More trials of the same one are welcome, however its numbers are written.
    same = PLAN | {"base": {"env": "CartPole-v1", "total_env_steps": 1e3}, "trials": 2}
    assert tune(same, out=tmp_path, places=lambda launch: Played()).counts == {"complete": 2}


def test_going_on_knows_what_was_asked_for(tmp_path: Path) -> None:
    """`--trials` and the launcher's options were forgotten."""
    asked: list[Mapping[str, Any]] = []

    def places(launch: Mapping[str, Any]) -> Played:
        asked.append(launch)
        return Played(stop_after=8 if len(asked) == 1 else None)

    plan = {**PLAN, "trials": 1, "launch": {"slots": 2, "memory_gb": 1}}
    with pytest.raises(KeyboardInterrupt):
        tune(plan, out=tmp_path, trials=3, options={"memory_gb": 2}, places=places)
    assert tune(resume=tmp_path, places=places).counts == {"complete": 3}
    assert asked == [{"slots": 2, "memory_gb": 2}] * 2


def test_a_study_in_another_database_is_asked_for(tmp_path: Path) -> None:
    """A second study was begun, which took the runs of the first for its own."""
    folder, url = tmp_path / "search", f"sqlite:///{tmp_path / 'other.sqlite'}"
    plan, said = {**PLAN, "trials": 1}, list[str]()
    tune(plan, out=folder, storage=url, places=lambda launch: Played(), say=said.append)
    with pytest.raises(SweepStateError, match=r"lies in another database.*--storage URL"):
        tune(resume=folder, places=lambda launch: Played())
    assert not (folder / DATABASE).exists()
    assert "other.sqlite" not in (folder / "tune.json").read_text()  # it may hold a password
    with pytest.raises(SweepStateError, match="cannot be used"):  # it is down for a moment
        tune(
            resume=folder, storage=f"sqlite:///{tmp_path / 'no' / 'such.db'}",
            places=lambda launch: Played(),
        )  # fmt: skip
    with pytest.raises(SweepStateError, match="lies in another database"):
        tune(resume=folder, places=lambda launch: Played())
    more = tune(
        resume=folder, storage=url, trials=2, places=lambda launch: Played(), say=said.append
    )
    assert more.counts == {"complete": 2}
    own = tmp_path / "own"
    tune(plan, out=own, places=lambda launch: Played())
    with pytest.raises(SweepStateError, match="lies in the folder itself"):
        tune(resume=own, storage=url, places=lambda launch: Played())


def test_two_searches_in_one_database_are_two_studies(tmp_path: Path) -> None:
    """The second one counted the first one's trials as its own, and wrote a best.yaml of both."""
    url = f"sqlite:///{tmp_path / 'all.sqlite'}"
    first, second = Played(), Played()
    plan = {**PLAN, "trials": 1}
    tune(plan, out=tmp_path / "a", storage=url, places=lambda launch: first)
    tune({**plan, "seed": 5}, out=tmp_path / "b", storage=url, places=lambda launch: second)
    assert (first.started, second.started) == (["trial-0000"], ["trial-0000"])
    assert first.ordered[0]["seed"] != second.ordered[0]["seed"]
    more = tune(resume=tmp_path / "a", storage=url, trials=3, places=lambda launch: first)
    assert more.counts == {"complete": 3}
    assert first.started == ["trial-0000", "trial-0001", "trial-0002"]
    assert len(optuna.get_all_study_names(url)) == 2


def test_a_search_that_an_earlier_version_began_in_another_database_goes_on(tmp_path: Path) -> None:
    """Each was the study `redline` there, and tune.json said only that it lies elsewhere."""
    folder, url = tmp_path / "search", f"sqlite:///{tmp_path / 'other.sqlite'}"
    study = optuna.create_study(study_name="redline", storage=url, direction="maximize")
    study.add_trial(optuna.trial.create_trial(value=1.0))
    folder.mkdir()
    (folder / "tune.json").write_text(json.dumps({**PLAN, "trials": 2, "study": "elsewhere"}))
    for trials in (2, 3):
        found = tune(resume=folder, storage=url, trials=trials, places=lambda launch: Played())
        assert found.counts == {"complete": trials}
    assert optuna.get_all_study_names(url) == ["redline"]


def test_a_lost_database_leaves_runs_that_are_not_taken_for_others(tmp_path: Path) -> None:
    """Their keys were the trials' numbers, so that new trials had the scores of old ones."""
    first, second = Played(), Played()
    tune({**PLAN, "trials": 1}, out=tmp_path, places=lambda launch: first)
    (tmp_path / "runs" / "trial-0000" / "order.json").write_text(json.dumps(first.ordered[0]))
    tune(resume=tmp_path, places=lambda launch: second)  # nothing to do
    assert second.started == []
    (tmp_path / DATABASE).unlink()
    tune(resume=tmp_path, places=lambda launch: second)  # the same seed draws the same trial
    assert second.started == ["trial-0000"]
    (tmp_path / DATABASE).unlink()
    (tmp_path / "runs" / "trial-0000" / "order.json").write_text(
        json.dumps({**first.ordered[0], "key": "trial-0-of-another"})
    )
    tune(resume=tmp_path, places=lambda launch: second)
    assert second.started == ["trial-0000", "trial-0000-2"]


def test_a_trial_that_an_earlier_version_had_begun_goes_on_in_its_directory(
    tmp_path: Path,
) -> None:
    """It was called by its number alone; its settings tell whether it is the same."""
    first, second = Played(), Played()
    tune({**PLAN, "trials": 1}, out=tmp_path, places=lambda launch: first)
    order = {**first.ordered[0], "key": "trial-0"}
    order["settings"] = {**order["settings"], "total_env_steps": 1e3}  # as it was written
    path = tmp_path / "runs" / "trial-0000" / "order.json"
    path.write_text(json.dumps(order))
    (tmp_path / DATABASE).unlink()
    tune(resume=tmp_path, places=lambda launch: second)
    assert second.started == ["trial-0000"]
    (tmp_path / DATABASE).unlink()
    path.write_text(json.dumps({**order, "seed": 2}))
    tune(resume=tmp_path, places=lambda launch: second)
    assert second.started == ["trial-0000", "trial-0000-2"]


def test_an_address_that_cannot_be_used_marks_no_folder(tmp_path: Path) -> None:
    plan = {**PLAN, "trials": 1}
    with pytest.raises(SweepStateError, match="cannot be used"):
        tune(
            plan, out=tmp_path, storage=f"sqlite:///{tmp_path / 'no' / 'such.db'}",
            places=lambda launch: Played(),
        )  # fmt: skip
    found = tune(plan, out=tmp_path, places=lambda launch: Played())
    assert found.counts == {"complete": 1}


def test_settings_reach_trials_as_sweeps_give_them(tmp_path: Path) -> None:
    """One callback as a word, sections, and the like passed the check and failed in each trial."""
    places = Played()
    plan = {
        **PLAN,
        "base": {"run": {"env": "CartPole-v1", "total_env_steps": 1e3}, "log_info": "x"},
        "search": {**PLAN["search"], "callbacks": ["redline.train.callbacks:SaveBest"]},  # type: ignore[dict-item]
        "trials": 1,
    }
    found = tune(plan, out=tmp_path, places=lambda launch: places)
    settings = places.ordered[0]["settings"]
    assert settings["env"] == "CartPole-v1"
    assert (settings["total_env_steps"], settings["log_info"]) == (1000, ["x"])
    assert settings["callbacks"] == ["redline.train.callbacks:SaveBest"]
    assert found.best_file is not None
    assert given_settings(found.best_file).settings["env"] == "CartPole-v1"


@pytest.mark.parametrize("where", ["run", "base"])
def test_a_seed_in_a_section_is_named(where: str) -> None:
    base = {"env": "CartPole-v1", "run": {"seed": 3}} if where == "run" else {"seed": 3}
    with pytest.raises(ConfigError, match="'seed' is no setting in base or search"):
        plan_from({**PLAN, "base": {"env": "CartPole-v1"} | base}, "search.yaml")


def test_a_file_beside_a_folder_to_go_on_with_is_refused(tmp_path: Path) -> None:
    """It was never opened."""
    with pytest.raises(ConfigError, match=r"file= beside resume='.*' would be ignored"):
        redline.tune("other.yaml", resume=tmp_path)


def test_retries_are_for_sweeps(tmp_path: Path) -> None:
    """They were taken, and nothing was tried again."""
    with pytest.raises(ConfigError, match="launch: retries belongs to sweeps"):
        plan_from({**PLAN, "launch": {"retries": 2}}, "search.yaml")
    with pytest.raises(ConfigError, match="retries belongs to sweeps"):
        redline.tune(PLAN, out=tmp_path, retries=2)


def test_a_folder_alone_names_no_cluster(tmp_path: Path) -> None:
    """It did where the folder was given as `out`, without a file."""
    folder = tmp_path / "search"
    folder.mkdir()
    launch = {"on": "ray", "address": "10.0.0.9:6379"}
    (folder / "tune.json").write_text(json.dumps({**PLAN, "launch": launch}))
    for which in ("out", "resume"):
        with pytest.raises(ConfigError, match=r"address=10\.0\.0\.9:6379 .* folder alone"):
            redline.tune(**{which: folder})  # type: ignore[arg-type]

"""What callbacks and infos put into rows, and the names that they may not take."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.train.loops.leveled import SMALL, KilledAt, Leveled, Logs, rows, train

import redline
from redline.algos.ppo import PPO
from redline.collect.serial import SerialCollector
from redline.errors import (
    CallbackError,
    ConfigError,
)
from redline.train.callbacks import Curriculum, RunState
from redline.train.loops.collector_columns import CollectorColumns
from redline.train.loops.logged_values import LoggedValues
from redline.train.presets import preset_config
from redline.train.runs.checking import check_buildable
from redline.train.runs.given import Given


def test_logged_values_join_every_log(tmp_path: Path) -> None:
    """Rows after iterations 2, 4, 6 and 8; in the second one stands the mean of 192 and 256."""
    run = train(tmp_path / "r", callbacks=[Logs()], jsonl=True, tensorboard=True)
    assert [row["my/steps"] for row in rows(run)] == ["", "224.0", "352.0", "480.0"]
    lines = (run.out / "progress.jsonl").read_text().splitlines()
    assert [json.loads(line).get("my/steps") for line in lines] == [None, 224.0, 352.0, 480.0]
    assert {row["nothing"] for row in rows(run)} == {""}, "NaN is no value"
    events = EventAccumulator(str(run.out / "tensorboard")).Reload()
    found = [(each.step, each.value) for each in events.Scalars("my/steps")]
    assert found == [(256, 224.0), (384, 352.0), (512, 480.0)]


class LogsLate:
    """Logs from iteration 5 on: behind the checkpoint of the fourth."""

    def on_iteration(self, state: RunState) -> None:
        if state.iteration >= 5:
            state.log("late", state.iteration)


def test_an_own_evaluation_may_have_the_names_of_one_that_does_not_take_place() -> None:
    logged = LoggedValues()
    logged.add("eval/return_mean", 3.0, ("entropy",))
    assert logged.take(("env_steps", "entropy"), ()) == {"eval/return_mean": 3.0}
    logged.refuse_taken()
    logged.add("eval/return_mean", 3.0, ())
    assert logged.take(("eval_return_mean",), ()) == {}, "the run's evaluations have begun"
    with pytest.raises(CallbackError, match="call the column eval_return_mean"):
        logged.refuse_taken()


def test_columns_that_stand_beside_each_other_in_an_older_run_go_on_so() -> None:
    logged = LoggedValues()
    logged.load_state_dict({"names": ["loss/entropy"], "totals": {}, "counts": {}})
    logged.add("loss/entropy", 2.0, ("entropy", "loss/entropy"))
    assert logged.take(("entropy",), ("entropy", "loss/entropy")) == {"loss/entropy": 2.0}
    logged.refuse_taken()


def test_columns_that_joined_after_the_checkpoint_join_again(tmp_path: Path) -> None:
    """The file has them when the run is resumed, and the checkpoint's hash is of one without."""
    whole = train(tmp_path / "a", callbacks=[LogsLate(), KilledAt(0)])
    for name, iterations in (("b", 7), ("c", 8)):  # resumed at iteration 6 with it, 4 without
        with pytest.raises(KilledAt.Killed):
            train(
                tmp_path / name, callbacks=[LogsLate(), KilledAt(iterations)],
                checkpoint_interval=128 if name == "b" else 256,
            )  # fmt: skip
        assert "late" in rows(redline.load(tmp_path / name, env=Leveled))[0]
        resumed = redline.train(
            resume=tmp_path / name, env=Leveled, callbacks=[LogsLate(), KilledAt(0)], quiet=True
        )
        assert [row["late"] for row in rows(resumed)] == ["", "", "5.5", "7.5"]
        assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]


@pytest.mark.parametrize(
    "name", ["learning_rate", "success_rate", "eval_return_mean", "episodes", 'a"b']
)
def test_infos_that_cannot_have_a_column_are_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    reason = "cannot name a column" if '"' in name else f"log_info='{name}': progress"
    with pytest.raises(ConfigError, match=reason):
        train(tmp_path / "r", log_info=(name,))
    assert list(tmp_path.iterdir()) == []
    config = preset_config("ppo", "CartPole-v1", "default").replace(log_info=(name,))
    with pytest.raises(ConfigError, match=reason):
        check_buildable(config, Given(algorithm="ppo", env="CartPole-v1"))


def test_infos_cannot_take_the_place_of_metrics(tmp_path: Path) -> None:
    """PPO's metrics are known at the first row."""
    with pytest.raises(ConfigError, match="log_info='entropy': progress"):
        train(tmp_path / "r", log_info=("entropy",))


class TakesAPlace(PPO):
    metric = "return_mean"

    def update(self, rollout: Any) -> dict[str, Any]:
        return super().update(rollout) | {self.metric: 1.0}


@pytest.mark.parametrize("name", ["return_mean", "episodes", "learning_rate", "eval/return_mean"])
def test_metrics_cannot_take_the_place_of_the_run_s_own_columns(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TakesAPlace, "metric", name)
    with pytest.raises(ConfigError, match=rf"TakesAPlace\.update returns the metric '{name}'"):
        redline.train(TakesAPlace, env=Leveled, out=tmp_path / "r", **SMALL)


@pytest.mark.parametrize("name", ["staleness_mean", "staleness_max"])
def test_metrics_cannot_take_the_place_of_the_collector_s_columns(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a collector that works ahead writes them."""
    monkeypatch.setattr(TakesAPlace, "metric", name)
    with pytest.raises(ConfigError, match=rf"TakesAPlace\.update returns the metric '{name}'"):
        redline.train(
            TakesAPlace, env=Leveled, out=tmp_path / "r", collector="async", num_workers=1, **SMALL
        )
    run = redline.train(TakesAPlace, env=Leveled, out=tmp_path / "s", **SMALL)
    assert rows(run)[-1][name] == "1.0"


def test_workers_that_are_replaced_have_a_column() -> None:
    class LosesWorkers(SerialCollector):
        max_staleness, replaced = 2, ["worker 1 died"]

    collector: Any = LosesWorkers
    names = ["staleness_mean", "staleness_max", "workers_replaced"]
    assert CollectorColumns.names(collector) == names
    assert CollectorColumns().take(collector) == dict(zip(names, (None, None, 1), strict=True))


class LogsEntropy:
    name = "entropy"

    def on_iteration(self, state: RunState) -> None:
        state.log(self.name, 1.0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("entropy", "a callback logs 'entropy': progress.csv has a column of that name"),
        ("loss/entropy", "'loss/entropy': that is what .* call the column entropy"),
        ("episode/return_mean", "that is what .* call the column return_mean"),
    ],
)
def test_a_refused_name_leaves_a_whole_row_and_checkpoint(
    tmp_path: Path, name: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row at 128 has the run's own numbers, and the next one begins there."""
    monkeypatch.setattr(LogsEntropy, "name", name)
    with pytest.raises(CallbackError, match=reason):
        train(tmp_path / "r", callbacks=[LogsEntropy()])
    if name == "episode/return_mean":  # known before the first row
        return
    (row,) = rows(redline.load(tmp_path / "r", env=Leveled))
    assert row["env_steps"] == "128"
    assert 0.5 < float(row["entropy"]) < 0.7  # of two actions, chosen about evenly
    assert row["return_mean"] == "4.0"


@pytest.mark.parametrize(
    "place",
    [
        {},
        {"policy_device": "cpu"},
        {"env_device": "cpu", "observe_previous": True, "core": "gru", "core_size": 8},
    ],
)
def test_infos_and_success_are_logged(
    place: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The level is 1 in rows 1 and 2 and 2 thereafter; a level above 1 is a success.

    Where environments or acting had a place, training rows had neither.
    """
    run = train(
        tmp_path / "r",
        **place,
        log_info="level,missing",
        callbacks=[Curriculum("level", [1, 2], at_env_steps=[256])],
        eval_interval=256,
        eval_episodes=2,
    )
    assert capsys.readouterr().err.count("the last info of no episode so far has missing") == 1
    table = rows(run)
    assert [row["level"] for row in table] == ["1.0", "1.0", "2.0", "2.0"]
    assert [row["success_rate"] for row in table] == ["0.0", "0.0", "1.0", "1.0"]
    assert [row["missing"] for row in table] == ["", "", "", ""]
    assert [row["eval_level"] for row in table] == ["", "1.0", "1.0", "1.0"]
    assert [row["eval_success_rate"] for row in table] == ["", "0.0", "0.0", "0.0"]
    result = run.evaluate(episodes=2)
    assert result.info == {"level": 1.0}
    assert result.to_json()["level"] == 1.0


def test_infos_pass_through_worker_processes(tmp_path: Path) -> None:
    run = train(
        tmp_path / "r",
        total_env_steps=128,
        collector="central",
        num_workers=1,
        log_info="level",
        callbacks=[Curriculum("level", [3, 4], at_env_steps=[64])],
    )
    assert rows(run)[-1]["level"] == "3.5"
    assert rows(run)[-1]["return_mean"] == "14.0"


def test_infos_of_a_vector_environment(tmp_path: Path) -> None:
    envs = gymnasium.vector.SyncVectorEnv(
        [Leveled] * 2, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    settings = SMALL | {"total_env_steps": 128, "log_info": "level"}
    callbacks = [Curriculum("level", [1, 3], at_env_steps=[64])]
    run = redline.train("ppo", env=envs, out=tmp_path / "r", callbacks=callbacks, **settings)
    assert rows(run)[-1]["level"] == "2.0"


def test_odd_infos_are_refused(tmp_path: Path) -> None:
    class Odd(Leveled):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            *rest, info = super().step(action)
            return (*rest, info and {"level": [1, 2]})  # type: ignore[return-value]

    with pytest.raises(redline.errors.EnvDataError, match="takes means over episodes"):
        redline.train("ppo", env=Odd, out=tmp_path / "r", log_info="level", **SMALL)
    with pytest.raises(ConfigError, match="does not give"):
        redline.train(
            "ppo", env="redline/CartPole-v1", out=tmp_path / "s", log_info="level", **SMALL
        )
    with pytest.raises(ConfigError, match="has a column of that name"):
        train(tmp_path / "t", log_info="episodes")

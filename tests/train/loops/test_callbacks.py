"""Callbacks: when they are called, what they may do, and that a resumed run repeats them."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.loops.leveled import SMALL, KilledAt, Leveled, Logs, history, rows, train

import redline
from redline.algos.registry import declaration
from redline.cli import main
from redline.data import EpisodeRecord
from redline.errors import (
    CallbackError,
    ConfigError,
    CorruptCheckpointError,
    IncompatibleCheckpointError,
)
from redline.train.callbacks import Callback, RunState, SaveBest, StopAtReturn
from redline.train.loops.callback_calls import CallbackCalls, TrainingEnvironments, callbacks_given
from redline.train.loops.evaluate import Evaluation
from redline.train.presets import preset_config
from redline.train.runs.changes import changed_config


class Recorder:
    """Which methods were called, with what."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_start(self, state: RunState) -> None:
        self.calls.append(f"start {state.env_steps}")

    def on_episode(self, state: RunState) -> None:
        assert state.episode is not None
        self.calls.append(f"episode {state.episode.length}")

    def on_evaluation(self, state: RunState) -> None:
        assert state.evaluation is not None
        self.calls.append(f"evaluation {state.evaluation.episodes}")

    def on_iteration(self, state: RunState) -> None:
        self.calls.append(f"iteration {state.iteration} {state.env_steps} {state.mean_return}")

    def on_checkpoint(self, state: RunState) -> None:
        assert state.checkpoint is not None
        assert state.checkpoint.is_dir()
        self.calls.append("checkpoint")

    def on_end(self, state: RunState) -> None:
        self.calls.append(f"end {state.stop_reason}")


def test_each_method_is_called_in_its_turn(tmp_path: Path) -> None:
    """Two iterations of 2 x 32 steps: 16 episodes of 4 steps each, with a return of 4 x 1."""
    recorder = Recorder()
    train(
        tmp_path / "r",
        total_env_steps=128,
        callbacks=[recorder],
        eval_interval=128,
        eval_episodes=3,
    )
    episodes = ["episode 4"] * 16
    assert recorder.calls == [
        "start 0",
        *episodes,
        "iteration 1 64 4.0",
        *episodes,
        "evaluation 3",
        "iteration 2 128 4.0",
        "checkpoint",
        "end None",
    ]
    assert isinstance(recorder, Callback)


class StopsAt:
    def on_iteration(self, state: RunState) -> None:
        if state.env_steps >= 192:
            state.stop("seen enough")


def test_a_stopped_run_ends_with_a_row_and_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "r", callbacks=[StopsAt()], quiet=False)
    assert run.exit_code == 0
    assert rows(run)[-1]["env_steps"] == "192"
    assert run.inspect()["env_steps"] == 192
    assert history(run)[-1]["state"] == "stopped"
    assert history(run)[-1]["reason"] == "seen enough"
    assert "a callback ended the run: seen enough" in capsys.readouterr().err
    redline.train(resume=run.out, env=Leveled, callbacks=[StopsAt()])
    assert "was ended by a callback at 192 env_steps" in capsys.readouterr().err
    assert len(history(run)) == 3


class ChangesWeights:
    """Makes the policy decided at the start, and more so after each iteration."""

    def on_start(self, state: RunState) -> None:
        self._scale(state, 20.0 if state.env_steps == 0 else 1.0)

    def on_iteration(self, state: RunState) -> None:
        self._scale(state, 1.5)

    @staticmethod
    def _scale(state: RunState, factor: float) -> None:
        with torch.no_grad():
            for parameter in state.policy.parameters():
                parameter.mul_(factor)


def test_workers_act_with_the_weights_that_a_callback_left(tmp_path: Path) -> None:
    """They act with copies, which were made before: of a pretrained policy they knew nothing."""
    given: dict[str, Any] = {
        "env": "CartPole-v1", "num_envs": 2, "rollout_length": 64, "total_env_steps": 512,
        "log_interval": 128, "hidden_sizes": (8,), "num_epochs": 1, "num_minibatches": 1,
        "preset": "default", "quiet": True, "tensorboard": False, "accelerate": "eager",
        "callbacks": [ChangesWeights()],
    }  # fmt: skip
    here = redline.train("ppo", out=tmp_path / "here", **given)
    there = redline.train(
        "ppo", out=tmp_path / "there", collector="workers", num_workers=1, **given
    )
    lengths = [[row["return_mean"] for row in rows(run)] for run in (here, there)]
    assert lengths[0] == lengths[1]
    for one, other in zip(here.policy().parameters(), there.policy().parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


class StopsAtCheckpoint:
    def on_checkpoint(self, state: RunState) -> None:
        state.stop("it is saved")


def test_a_stop_in_on_checkpoint_ends_as_any_other(tmp_path: Path) -> None:
    """It used to leave no row, and no reason in the checkpoint, so that a resume went on."""
    run = train(tmp_path / "r", callbacks=[StopsAtCheckpoint()], log_interval=192)
    assert [row["env_steps"] for row in rows(run)] == ["128"]
    assert [path.name for path in (run.out / "checkpoints").iterdir()] == ["step_000000000128-1"]
    again = redline.train(resume=run.out, env=Leveled, callbacks=[StopsAtCheckpoint()], quiet=True)
    assert again.inspect()["env_steps"] == 128


def test_stop_at_return(tmp_path: Path) -> None:
    """32 episodes of return 4 in the second iteration; the mean must cover 20."""
    run = train(tmp_path / "r", stop_at_return=4)
    assert run.inspect()["env_steps"] == 128
    with pytest.raises(AssertionError):
        assert train(tmp_path / "s", stop_at_return=5).inspect()["env_steps"] == 128
    few = train(tmp_path / "t", callbacks=[StopAtReturn(4, min_episodes=1)])
    assert few.inspect()["env_steps"] == 64


def test_a_larger_return_holds_at_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Episodes return 4. The callback used to be given its old threshold, and stopped at once."""
    run = train(tmp_path / "r", callbacks=[StopAtReturn(4)], total_env_steps=256)
    assert run.inspect()["env_steps"] == 128
    again: dict[str, Any] = {"resume": run.out, "env": Leveled}
    redline.train(**again, callbacks=[StopAtReturn(5)])
    assert "give --total-env-steps 256 and StopAtReturn a larger" in capsys.readouterr().err
    redline.train(**again, callbacks=[StopAtReturn(5)], total_env_steps=256, quiet=True)
    assert run.inspect()["env_steps"] == 256


class StopsLater(StopAtReturn):
    """Of a user's own: raises what it was given, which is progress then."""


def test_all_of_a_class_derived_from_redlines_is_restored() -> None:
    saved = CallbackCalls([StopsLater(4)], state=None).state_dict()  # type: ignore[arg-type]
    resumed = StopsLater(5)
    CallbackCalls([resumed], state=None).load_state_dict(saved)  # type: ignore[arg-type]
    assert resumed.threshold == 4.0


def test_arguments_of_save_best_hold_and_its_progress_goes_on() -> None:
    before, resumed = SaveBest(every_env_steps=64), SaveBest(every_env_steps=32, min_episodes=1)
    before.best, before.looked_at = 7.0, 128
    saved = CallbackCalls([before], state=None).state_dict()  # type: ignore[arg-type]
    CallbackCalls([resumed], state=None).load_state_dict(saved)  # type: ignore[arg-type]
    assert vars(resumed) == {
        "every_env_steps": 32, "min_episodes": 1, "best": 7.0, "looked_at": 128,
        "by_evaluation": None,
    }  # fmt: skip


class Fails:
    def on_iteration(self, state: RunState) -> None:
        if state.iteration == 3:
            raise ZeroDivisionError("mine")


def test_an_exception_ends_the_run_with_a_checkpoint_and_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(CallbackError, match=r"Fails\.on_iteration raised Zero") as caught:
        train(tmp_path / "r", callbacks=[Fails()])
    assert 'raise ZeroDivisionError("mine")' in str(caught.value)
    run = redline.load(tmp_path / "r", env=Leveled)
    assert run.inspect()["env_steps"] == 192
    assert history(run)[-1]["state"] == "failed"
    assert "ZeroDivisionError" in history(run)[-1]["reason"]


class Changes:
    """Halves the learning rate, raises the level and logs, and counts in its own attributes."""

    def __init__(self) -> None:
        self.count, self.seen = 0, np.zeros(3)

    def on_iteration(self, state: RunState) -> None:
        self.count += 1
        self.seen[self.count % 3] += state.env_steps
        if self.count % 2 == 0:
            state.set_hyperparameter("learning_rate", 1e-3 / self.count)
        if self.count in (3, 5):
            state.envs.set_attr("level", float(self.count))
        state.log("count", self.count + self.seen[0])


class KilledNext(KilledAt):
    """A kill after the first iteration of a resumed run."""

    # As the one that the run was begun with.
    __module__, __qualname__ = KilledAt.__module__, "KilledAt"

    def __init__(self) -> None:
        super().__init__(0)

    def on_iteration(self, state: RunState) -> None:
        raise self.Killed


@pytest.mark.parametrize("collector", ["serial", "async"])
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path: Path, collector: str) -> None:
    """The kill comes in iteration 6, the checkpoint is of the fourth; level 5 is set between."""
    options: dict[str, Any] = {"collector": collector}
    if collector == "async":
        options |= {"num_workers": 1}
    whole = train(tmp_path / "a", callbacks=[Changes(), KilledAt(0)], **options)
    with pytest.raises(KilledAt.Killed):
        train(tmp_path / "b", callbacks=[Changes(), KilledAt(6)], **options)
    resumed = redline.train(
        resume=tmp_path / "b", env=Leveled, callbacks=[Changes(), KilledAt(0)], quiet=True
    )
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    for one, other in zip(rows(resumed), rows(whole), strict=True):
        same = {name for name in one if name not in ("wall_time_s", "sps")}
        assert {n: one[n] for n in same} == {n: other[n] for n in same}
    assert rows(whole)[-1]["return_mean"] == "20.0"
    assert rows(whole)[-1]["learning_rate"] == str(1e-3 / 6)


def test_other_callbacks_are_refused_when_a_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(CallbackError):
        train(tmp_path / "r", callbacks=[Logs(), Fails()])
    with pytest.raises(ConfigError, match="give the same ones again"):
        redline.train(resume=tmp_path / "r", env=Leveled)
    with pytest.raises(ConfigError, match="give the same ones again"):
        redline.train(resume=tmp_path / "r", env=Leveled, callbacks=[Fails(), Logs()])


class Wrong:
    def __init__(self, what: str) -> None:
        self.what = what

    def on_iteration(self, state: RunState) -> None:
        if self.what == "attribute":
            state.envs.set_attr("levle", 1)
        elif self.what == "value":
            state.envs.set_attr("level", object())
        elif self.what == "column":
            state.log("sps", 1)
        elif self.what == "metric":
            state.log("entropy", 1)
        elif self.what == "rate":
            state.log("learning_rate", 1)
        elif self.what == "late":
            state.log("success_rate", 1)
        elif self.what == "number":
            state.log("mine", "high")  # type: ignore[arg-type]
        elif self.what == "comma":
            state.log("a,b", 1)
        else:
            state.set_hyperparameter("gamma", 0.5)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("attribute", "has no attribute 'levle'"),
        ("value", "a checkpoint cannot hold"),
        ("column", "has a column of that name"),
        ("metric", "a callback logs 'entropy': progress.csv has a column of that name"),
        ("rate", "a callback logs 'learning_rate'"),
        ("late", "cannot log 'success_rate'"),
        ("number", "it is no number"),
        ("comma", "cannot name a column"),
        ("gamma", "clip_range, entropy_coef and learning_rate can"),
    ],
)
def test_misuse_is_told(tmp_path: Path, what: str, message: str) -> None:
    with pytest.raises(CallbackError, match=message):
        train(tmp_path / "r", callbacks=[Wrong(what)])


@pytest.mark.parametrize(
    "given", [StopAtReturn(4.0, min_episodes=1), [StopAtReturn(4.0, min_episodes=1)]]
)
def test_one_callback_needs_no_list(tmp_path: Path, given: Any) -> None:
    """The first 16 episodes return 4, so the run ends after its first 64 env_steps."""
    assert train(tmp_path / "r", callbacks=given).inspect()["env_steps"] == 64


def test_what_stands_for_callbacks() -> None:
    one = Recorder()
    assert callbacks_given(None) == ()
    assert callbacks_given(Recorder) == (Recorder,)
    assert callbacks_given((one, "a:B")) == (one, "a:B")
    assert callbacks_given("a:B, c:D") == ("a:B", "c:D")
    with pytest.raises(ConfigError, match="callbacks=3 has none of the methods"):
        callbacks_given(3)


@pytest.mark.parametrize(
    ("callback", "message"),
    [(3, "none of the methods"), ("nowhere", "not module:Name"), (Wrong, "without arguments")],
)
def test_what_is_no_callback_is_refused(tmp_path: Path, callback: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "r", callbacks=[callback])
    assert not (tmp_path / "r").exists()


def test_a_callback_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own_callback.py").write_text(
        "class Mine:\n    def on_iteration(self, state):\n        state.stop('at once')\n"
    )
    options = ["--total-env-steps", "512", "--num-envs", "2", "--rollout-length", "32", "--quiet"]
    command = ["train", "ppo", "--env", "CartPole-v1", *options, "--no-tensorboard", "--out", "r"]
    assert main([*command, "--callback", "own_callback:Mine", "--tags", "a,b"]) == 0
    run = redline.load("r")
    assert run.inspect()["env_steps"] == 64
    assert run.config.run.callbacks == ("own_callback:Mine",)
    assert run.config.run.tags == ("a", "b")
    assert main(["train", "--resume", "r", "--total-env-steps", "576", "--quiet"]) == 2
    again = ["train", "--resume", "r", "--callback", "own_callback:Mine", "--quiet"]
    assert main([*again, "--total-env-steps", "576"]) == 0
    assert redline.load("r").inspect()["env_steps"] == 128
    plural = ["train", "--resume", "r", "--callbacks", "own_callback:Mine", "--quiet"]
    assert main([*plural, "--total-env-steps", "640"]) == 0


class LooksBack:
    """Logs what it sees of the newest evaluation in each iteration."""

    def on_iteration(self, state: RunState) -> None:
        found = state.evaluation
        state.log("seen", -1.0 if found is None else found.returns[-1] + found.lengths[0])


def test_the_newest_evaluation_is_there_after_resuming(tmp_path: Path) -> None:
    """Saved at 384 between the evaluations at 256 and 512, whose episodes pay 4 in 4 steps.

    A row is
    of two iterations: of those of the second, one saw none, one 8.
    """
    settings: dict[str, Any] = {"eval_interval": 256, "eval_episodes": 2}
    train(tmp_path / "r", callbacks=[LooksBack()], total_env_steps=384, **settings)
    run = redline.train(
        resume=tmp_path / "r", env=Leveled, callbacks=[LooksBack()], total_env_steps=512, quiet=True
    )
    assert [row["seen"] for row in rows(run)] == ["-1.0", "3.5", "8.0", "8.0"]


def test_a_broken_evaluation_is_a_broken_checkpoint() -> None:
    record = EpisodeRecord(env_id=0, episode_id=0, return_=1.0, length=4, info={"a": 2.0})
    state = Evaluation.of([record]).to_state()
    assert Evaluation.from_state(state).to_state() == state
    for broken in ({}, 3, state | {"returns": ["high"]}, state | {"info": 1}):
        with pytest.raises(CorruptCheckpointError, match="last evaluation makes no sense"):
            Evaluation.from_state(broken)


class StopsAtEvaluation:
    def on_evaluation(self, state: RunState) -> None:
        state.stop("seen enough")


def test_an_evaluation_beside_training_that_ends_the_run_is_in_its_last_row(
    tmp_path: Path,
) -> None:
    """It was waited for after the row had been written."""
    run = train(
        tmp_path / "r", callbacks=[StopsAtEvaluation()], eval_interval=128, eval_episodes=1,
        eval_async=True, log_interval=192,
    )  # fmt: skip
    last = rows(run)[-1]
    assert (last["env_steps"], last["eval_return_mean"]) == ("128", "4.0")


def test_save_best_keeps_the_best_policy(tmp_path: Path) -> None:
    """The level falls, so the first policy that is looked at stays the best."""

    class Falling:
        def on_iteration(self, state: RunState) -> None:
            state.envs.set_attr("level", 1.0 / state.iteration)

    best = SaveBest(every_env_steps=64, min_episodes=1)
    run = train(tmp_path / "r", callbacks=[Falling(), best])
    assert run.checkpoint("best").step == 64
    assert run.checkpoint().step == 512
    assert best.best == 4.0
    assert run.evaluate(episodes=1, which="best").return_mean == 4.0
    second = train(tmp_path / "s", callbacks=[Falling(), best])
    assert second.checkpoint("best").step == 64, "the first run's best score is no measure of it"


def test_set_changes_a_resumed_run_and_its_history_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = redline.train("ppo", env="CartPole-v1", out=tmp_path / "r", **SMALL)
    command = ["train", "--resume", str(run.out), "--total-env-steps", "640", "--quiet"]
    assert main([*command, "--set", "learning_rate=1e-5", "--set", "eval-interval=64"]) == 0
    assert "no longer the one" in capsys.readouterr().err
    (changed,) = [each["changed"] for each in history(run) if each["event"] == "resumed"]
    before = run.config.algo.learning_rate
    assert changed == {"learning_rate": [before, 1e-5], "eval_interval": [0, 64]}
    assert redline.load(run.out).config.algo.learning_rate == 1e-5
    assert rows(run)[-1]["eval_return_mean"] != ""
    for wrong in ("num_envs=4", "hidden_sizes=[8]", "env=Other-v0"):
        assert main([*command, "--set", wrong]) == 2
        assert "cannot be changed" in capsys.readouterr().err
    longer = [word.replace("640", "704") for word in command]
    for cores in ("3", "0-3"):  # the first is a number to YAML, and was refused as none
        assert main([*longer, "--set", f"cpu_affinity={cores}"]) == 2
        assert f"cpu_affinity='{cores}' has no effect in this run" in capsys.readouterr().err
    assert main([*longer, "--set", "worker_timeout_s=9"]) == 2
    assert "has no effect in this run" in capsys.readouterr().err
    assert main([*command, "--set", "lr=1"]) == 2
    assert "did you mean learning_rate" in capsys.readouterr().err
    assert main([*command, "--set", "gamma"]) == 2


class SetsLater:
    def on_iteration(self, state: RunState) -> None:
        if state.env_steps == 24:
            state.set_hyperparameter("learning_rate", 5e-4)


def test_rows_of_an_off_policy_run_show_what_a_callback_has_set(tmp_path: Path) -> None:
    run = redline.train(
        "ddpg", env="Pendulum-v1", out=tmp_path / "r", callbacks=[SetsLater()], total_env_steps=40,
        num_envs=1, rollout_length=4, learning_starts=8, log_interval=8, batch_size=8,
        hidden_sizes=[8], learning_rate=1e-3, replay_ratio=8.0, tensorboard=False, quiet=True,
        num_threads=1,
    )  # fmt: skip
    rates = [row["learning_rate"] for row in rows(run)]
    assert rates == ["0.001", "0.001", "0.001", "0.0005", "0.0005"]


class SetsRate:
    def on_iteration(self, state: RunState) -> None:
        if state.iteration == 1:
            state.set_hyperparameter("learning_rate", 5e-4)


def test_set_wins_over_what_a_callback_had_set(tmp_path: Path) -> None:
    """Also when the run was killed after that resume and before its next checkpoint."""
    run = train(tmp_path / "r", callbacks=[SetsRate(), KilledAt(0)], total_env_steps=128)
    assert rows(run)[-1]["learning_rate"] == "0.0005"
    again: dict[str, Any] = {"resume": run.out, "env": Leveled, "quiet": True}
    with pytest.raises(KilledAt.Killed):
        redline.train(
            **again, callbacks=[SetsRate(), KilledNext()],
            set={"learning_rate": 1e-5, "total_env_steps": 256},
        )  # fmt: skip
    redline.train(**again, callbacks=[SetsRate(), KilledAt(0)])
    assert [row["learning_rate"] for row in rows(run)] == ["0.0005", "1e-05"]


def test_set_refuses_what_only_begins_a_run_and_fixes_a_temperature() -> None:
    config = preset_config(declaration("sac"), "Pendulum-v1", "default")
    with pytest.raises(ConfigError, match=r"initial_alpha cannot be .* what a run begins with"):
        changed_config(config, {"initial_alpha": 7.0})
    assert changed_config(config, {"alpha": 0.2}).algo.alpha == 0.2  # type: ignore[attr-defined]


def test_ranks_follow_attributes_that_are_arrays() -> None:
    """An array equals another one as a whole; which parts do is no truth value."""
    given: list[Any] = []
    collector: Any = SimpleNamespace(set_env_attr=lambda _, value: given.append(value.tolist()))
    environments = TrainingEnvironments(collector)
    for array in (np.arange(2), np.arange(2), np.arange(3)):
        environments.follow({"level": array})
    assert given == [[0, 1], [0, 1, 2]]


class Plain:
    level = 0

    def on_iteration(self, state: RunState) -> None: ...


@pytest.mark.parametrize("name", ["on_iteration", "__class__", "__dict__"])
def test_a_checkpoint_sets_only_data_of_a_callback(name: str) -> None:
    callback = Plain()
    calls = CallbackCalls([callback], state=None)  # type: ignore[arg-type]
    saved = {"callback": calls.state_dict()[0]["callback"], "attributes": {"level": 3, "new": 1}}
    calls.load_state_dict([saved])
    assert vars(callback) == {"level": 3, "new": 1}
    with pytest.raises(IncompatibleCheckpointError, match="holds no data"):
        calls.load_state_dict([{**saved, "attributes": {name: {}}}])


class Derived:
    def __init__(self) -> None:
        self.seen: Any = Counter(a=2)
        self.color = IntEnum("Color", "RED").RED
        self.nested = [OrderedDict(a=1)]
        self.plain = [{"a": (1, np.float64(2.0), np.ones(2))}, {3}, deque([4.0])]

    def on_iteration(self, state: RunState) -> None: ...


def test_what_would_come_back_as_another_class_is_not_saved() -> None:
    """A Counter that has become a dict would end the resumed run at its next new key."""
    calls = CallbackCalls([Derived()], state=None)  # type: ignore[arg-type]
    (sentence,) = calls.unsaved()
    assert ": seen, color, nested cannot be saved" in sentence
    (saved,) = calls.state_dict()
    assert list(saved["attributes"]) == ["plain"]
    resumed = Derived()
    CallbackCalls([resumed], state=None).load_state_dict([saved])  # type: ignore[arg-type]
    resumed.seen["b"] += 1
    assert resumed.seen == {"a": 2, "b": 1}


@dataclass(slots=True)
class Slotted:
    count: int = 0
    code: Any = None

    def on_iteration(self, state: RunState) -> None: ...


@dataclass(frozen=True)
class Frozen:
    count: int = 0

    def on_iteration(self, state: RunState) -> None: ...


@pytest.mark.parametrize("kind", [Slotted, Frozen])
def test_attributes_in_slots_and_of_frozen_classes_are_saved(kind: Any) -> None:
    calls = CallbackCalls([kind(count=3)], state=None)  # type: ignore[arg-type]
    assert calls.unsaved() == []
    resumed = kind()
    CallbackCalls([resumed], state=None).load_state_dict(calls.state_dict())  # type: ignore[arg-type]
    assert resumed.count == 3


def test_slots_that_cannot_be_saved_are_named() -> None:
    calls = CallbackCalls([Slotted(code=Slotted)], state=None)  # type: ignore[arg-type]
    (sentence,) = calls.unsaved()
    assert ": code cannot be saved" in sentence


def test_the_state_of_other_callbacks_is_refused() -> None:
    calls = CallbackCalls([Logs()], state=None)  # type: ignore[arg-type]
    with pytest.raises(IncompatibleCheckpointError, match="in the same order"):
        calls.load_state_dict([])

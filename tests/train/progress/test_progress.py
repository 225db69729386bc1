"""Rows: statistics by hand, exact columns, and resuming to the same file."""

import csv
import errno
import json
import math
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

import redline
from redline.data import EpisodeRecord
from redline.errors import ConfigError, MissingExtraError, RunDirectoryError, UnknownNameError
from redline.plain_files import refuse_special_files
from redline.train.progress.progress import BASE_COLUMNS, EpisodeStatistics, ProgressLogger
from redline.train.runs.files import LOCK_FILE


def episode(return_: float, length: int) -> EpisodeRecord:
    return EpisodeRecord(env_id=0, episode_id=0, return_=return_, length=length)


def test_statistics_by_hand() -> None:
    """Returns 1, 2, 6: mean 3, population variance (4 + 1 + 9) / 3; lengths 10, 20, 60."""
    statistics = EpisodeStatistics(window=2)
    assert statistics.moving_mean is None
    statistics.add([episode(1, 10), episode(2, 20)])
    statistics.add([episode(6, 60)])
    assert statistics.take_row() == {
        "return_mean": 3.0,
        "return_std": pytest.approx(math.sqrt(14 / 3)),
        "return_min": 1.0,
        "return_max": 6.0,
        "episode_length_mean": 30.0,
        "episodes": 3,
    }
    assert statistics.moving_mean == 4.0
    row = statistics.take_row()
    assert row["episodes"] == 0
    assert [value for name, value in row.items() if name != "episodes"] == [None] * 5
    assert statistics.moving_mean == 4.0


def test_statistics_go_on_from_their_state() -> None:
    first = EpisodeStatistics(window=3)
    first.add([episode(0.1, 1), episode(0.2, 2)])
    second = EpisodeStatistics(window=3)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for statistics in (first, second):
        statistics.add([episode(0.7, 3), episode(0.9, 4)])
    assert first.moving_mean == second.moving_mean
    assert first.take_row() == second.take_row()


def test_episodes_that_say_nothing_are_no_successes_once_one_has_said_so() -> None:
    """As in evaluations: an environment may report its successes alone."""
    statistics = EpisodeStatistics()

    def ended(*successes: bool | None) -> float | None:
        statistics.add([replace(episode(1, 1), success=each) for each in successes])
        return statistics.take_success_rate()

    assert ended(None, None) is None
    assert ended(None, True, None, True) == 0.5
    assert ended() is None
    saved = json.loads(json.dumps(statistics.state_dict()))
    statistics = EpisodeStatistics()
    statistics.load_state_dict(saved)
    assert ended(None, None) == 0.0
    statistics.add([episode(1, 1), replace(episode(1, 1), success=True)])
    saved = statistics.state_dict()
    statistics = EpisodeStatistics()
    statistics.load_state_dict(saved)
    assert ended(None, None) == 0.25


def make_row(index: int, **metrics: Any) -> dict[str, Any]:
    base = {
        "iteration": index,
        "env_steps": 100 * index,
        "frames": 400 * index,
        "optimizer_steps": 3 * index,
        "wall_time_s": 0.1 * index,
        "sps": 1000.0 / 3,
        **EpisodeStatistics().take_row(),
    }
    return {**base, "loss/policy": 1 / (3 + index), **metrics}


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_columns_are_stable_and_floats_exact(tmp_path: Path) -> None:
    """Floats read back bit for bit; where no episode ended the cells are empty."""
    with ProgressLogger(tmp_path, writers=["csv"]) as logger:
        logger.write(make_row(1, grad_norm=float("nan")))
        logger.write(dict(reversed(make_row(2, return_mean=0.1 + 0.2).items())))
        rows = read(tmp_path / "progress.csv")  # flushed while the logger is open
    assert tuple(rows[0]) == (*BASE_COLUMNS, "loss/policy", "grad_norm")
    assert tuple(rows[0])[:6] == (
        "iteration",
        "env_steps",
        "frames",
        "optimizer_steps",
        "wall_time_s",
        "sps",
    )
    assert rows[0]["return_mean"] == ""
    assert rows[0]["grad_norm"] == "nan"
    assert rows[1]["grad_norm"] == ""
    assert float(rows[1]["return_mean"]) == 0.1 + 0.2
    assert float(rows[1]["loss/policy"]) == 1 / 5
    assert rows[1]["env_steps"] == "200"


def test_tensors_and_numpy_scalars_are_read_when_logged(tmp_path: Path) -> None:
    """Fault 31: metrics stay tensors until here, once per row."""
    values = {"a": torch.tensor(0.5), "b": np.float32(0.25), "c": torch.tensor(3), "d": True}
    with ProgressLogger(tmp_path, writers=["csv"]) as logger:
        written = logger.write(make_row(1, **values))
    assert [(type(written[name]), written[name]) for name in "abcd"] == [
        (float, 0.5),
        (float, 0.25),
        (int, 3),
        (int, 1),
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (make_row(2, surprise=1), "row 2 has the new column 'surprise'"),
        (make_row(2, env_steps=None), "row 2 has no env_steps"),
        ({**make_row(2), "loss/policy": "low"}, "loss/policy='low' cannot be logged"),
        ({**make_row(2), "loss/policy": torch.ones(2)}, "cannot be logged: it is a Tensor"),
    ],
)
def test_bad_rows_are_refused_and_leave_the_file(
    tmp_path: Path, row: dict[str, Any], message: str
) -> None:
    with ProgressLogger(tmp_path, writers=["csv"]) as logger:
        logger.write(make_row(1))
        with pytest.raises(ConfigError, match=message):
            logger.write(row)
        logger.write(make_row(2))
    assert [row["iteration"] for row in read(tmp_path / "progress.csv")] == ["1", "2"]


@pytest.mark.parametrize("name", ["", "a,b", 'a"b', "a\nb"])
def test_metric_names_that_break_the_file_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot name a column"):
        ProgressLogger(tmp_path).write(make_row(1, **{name: 1}))


def test_unknown_writer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'xml'.*csv, tensorboard, jsonl, wandb"):
        ProgressLogger(tmp_path, writers=["xml"])


@pytest.mark.parametrize("torn", ["", "4,400,16", "4,400\n5,500\n6,"])
@pytest.mark.parametrize("saved_at", [0, 1, 2])
def test_resumed_file_equals_one_never_stopped(tmp_path: Path, saved_at: int, torn: str) -> None:
    """Fault 27: rows twice or missing after a resume; a last line torn by a kill."""
    names = ["csv", "jsonl"]
    with ProgressLogger(tmp_path / "whole", writers=names) as logger:
        for index in range(1, 6):
            logger.write(make_row(index))
    with ProgressLogger(tmp_path / "stopped", writers=names) as logger:
        state = logger.state_dict()
        for index in range(1, 4):
            logger.write(make_row(index))
            if index == saved_at:
                state = logger.state_dict()
    for name in ("progress.csv", "progress.jsonl"):
        with open(tmp_path / "stopped" / name, "a") as file:
            file.write(torn)
    with ProgressLogger(tmp_path / "stopped", writers=names) as logger:
        logger.load_state_dict(json.loads(json.dumps(state)))
        assert logger.rows == saved_at
        for index in range(saved_at + 1, 6):
            logger.write(make_row(index))
    for name in ("progress.csv", "progress.jsonl"):
        assert (tmp_path / "stopped" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_a_resume_that_does_not_fit_the_file_is_refused(tmp_path: Path) -> None:
    with ProgressLogger(tmp_path, writers=["csv"]) as logger:
        logger.write(make_row(1))
        logger.write(make_row(2))
        state = logger.state_dict()
    with pytest.raises(RunDirectoryError, match=r"has 2 rows, but .* counts 3"):
        ProgressLogger(tmp_path, writers=["csv"]).load_state_dict({**state, "rows": 3})
    with pytest.raises(RunDirectoryError, match="begins with the columns"):
        ProgressLogger(tmp_path, writers=["csv"]).load_state_dict({**state, "columns": ["a"]})
    (tmp_path / "progress.csv").unlink()
    with pytest.raises(RunDirectoryError, match=r"progress\.csv is missing"):
        ProgressLogger(tmp_path, writers=["csv"]).load_state_dict(state)


def test_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunDirectoryError, match="cannot write"):
        ProgressLogger(tmp_path / "run", writers=["csv"]).write(make_row(1))


@pytest.mark.parametrize("is_full_at", ["row", "end"])
def test_a_full_disk_is_said_once_and_every_file_is_closed(
    is_full_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a file holds back is written again when it is closed, and fails again."""
    closed: list[str] = []

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def close(self: Any) -> None:
        closed.append(type(self).__name__)
        self._file.close()
        fail()

    def write_rows(rows: list[dict[str, Any]]) -> None:
        with logger:
            for row in rows:
                logger.write(row)

    logger = ProgressLogger(tmp_path, writers=("csv", "jsonl"))
    logger.write(make_row(1))
    written = logger._writers
    for kind in {type(each) for each in written}:
        monkeypatch.setattr(kind, "close", close)
        if is_full_at == "row":
            monkeypatch.setattr(kind, "write", fail)
    with pytest.raises(RunDirectoryError, match=r"No space left.*the disk has room"):
        write_rows([make_row(2)] if is_full_at == "row" else [])
    assert closed == [type(each).__name__ for each in written]
    assert len(closed) == 2


def test_json_lines_are_real_json(tmp_path: Path) -> None:
    """Fault 30: JSON that is `str(dict)`, or holds NaN, which JSON does not know."""
    with ProgressLogger(tmp_path, writers=["jsonl"]) as logger:
        logger.write(make_row(1, a=float("nan"), b=float("inf"), c=0.1))

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    line = (tmp_path / "progress.jsonl").read_text()
    row = json.loads(line, parse_constant=refuse)
    assert (row["a"], row["b"], row["c"], row["return_mean"]) == (None, None, 0.1, None)
    assert (tmp_path / "progress.csv").exists()


@pytest.mark.parametrize("torn", ["", "\0" * 2**21], ids=["short", "zeros"])
def test_json_lines_that_a_resumed_run_asks_for_begin_with_its_rows(
    torn: str, tmp_path: Path
) -> None:
    with ProgressLogger(tmp_path / "one", writers=["csv"]) as logger:
        logger.write(make_row(1, a=0.1, b=float("inf")))
        logger.write(make_row(2, a=1 / 3, b=None))
        state = logger.state_dict()
    late = ProgressLogger(tmp_path / "one", writers=["csv", "jsonl"])
    # As after a time without them: a row is missing.
    (tmp_path / "one" / "progress.jsonl").write_text('{"iteration": 1}\n' + torn)
    late.load_state_dict(state)
    with ProgressLogger(tmp_path / "two", writers=["csv", "jsonl"]) as whole:
        whole.write(make_row(1, a=0.1, b=float("inf")))
        whole.write(make_row(2, a=1 / 3, b=None))
        for logger in (late, whole):
            logger.write(make_row(3, a=2.0, b=7))
    late.close()
    one, two = ((tmp_path / each / "progress.jsonl").read_text() for each in ("one", "two"))
    assert one == two


def test_tensorboard_hides_what_was_written_after_the_checkpoint(tmp_path: Path) -> None:
    with ProgressLogger(tmp_path) as logger:
        logger.write(make_row(1, return_mean=1.0))
        state = logger.state_dict()
        logger.write(make_row(2, return_mean=-2.0))
        logger.write(make_row(3, return_mean=-3.0))
    with ProgressLogger(tmp_path) as logger:
        logger.load_state_dict(state)
        logger.write(make_row(2, return_mean=2.0))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    scalars = events.Scalars("episode/return_mean")
    assert [(event.step, event.value) for event in scalars] == [(100, 1.0), (200, 2.0)]
    assert "loss/policy" in events.Tags()["scalars"]


def test_tensorboard_shows_the_return_first(tmp_path: Path) -> None:
    """Sections as people know them; the first tag written, and the first chart, is the return."""
    metrics = {"eval_return_mean": 5.0, "policy_loss": 0.1, "mine/reward": 2.0, "episodes": 1}
    metrics |= {"worker_restarts": 1, "height": 3.0}  # a counter, and a name without a section
    values = {"return_mean": 1.0, "episode_length_mean": 10.0, **metrics}
    with ProgressLogger(tmp_path) as logger:
        logger.write(make_row(1, **values))
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = events.Tags()["scalars"]
    assert tags[0] == sorted(tags)[0] == "episode/return_mean"
    assert {name: events.Scalars(name)[0].value for name in tags} == {
        "episode/return_mean": 1.0,
        "episode/steps_mean": 10.0,
        "eval/return_mean": 5.0,
        "loss/policy": 0.25,
        "loss/policy_loss": pytest.approx(0.1),
        "time/iteration": 1.0,
        "time/frames": 400.0,
        "time/optimizer_steps": 3.0,
        "time/wall_time_s": pytest.approx(0.1),
        "time/sps": pytest.approx(1000 / 3),
        "time/episodes": 1.0,
        "time/worker_restarts": 1.0,
        "loss/height": 3.0,
        "mine/reward": 2.0,
    }
    layout = layout_pb2.Layout()
    (event,) = events.Tensors("custom_scalars__config__")
    layout.ParseFromString(event.tensor_proto.string_val[0])
    chart = layout.category[0].chart[0]
    assert list(chart.multiline.tag) == ["episode/return_mean", "eval/return_mean"]


class FakeWandbRun:
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.metrics: list[tuple[Any, ...]] = []
        self.finished = False

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def finish(self) -> None:
        self.finished = True


def test_wandb_gets_rows_over_env_steps_and_goes_on_with_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inits: list[dict[str, Any]] = []
    runs: list[FakeWandbRun] = []

    def init(**settings: Any) -> FakeWandbRun:
        inits.append(settings)
        runs.append(FakeWandbRun())
        return runs[-1]

    module = types.ModuleType("wandb")
    module.__dict__["init"] = init
    module.__spec__ = types.SimpleNamespace(name="wandb")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "wandb", module)
    settings = {"project": "mine", "config": {"lr": 1}}
    with ProgressLogger(tmp_path, writers=["wandb"], wandb_settings=settings) as logger:
        logger.write(make_row(1))
        state = logger.state_dict()
    with ProgressLogger(tmp_path, writers=["wandb"], wandb_settings=settings) as logger:
        logger.load_state_dict(state)
        logger.write(make_row(2))
    assert inits[0]["project"] == "mine"
    assert inits[0]["config"] == {"lr": 1}
    assert inits[0]["id"] == inits[1]["id"]
    assert inits[1]["resume"] == "allow"
    assert runs[0].finished
    assert ("*", "env_steps") in runs[0].metrics
    assert [run.rows[0]["env_steps"] for run in runs] == [100, 200]
    assert "episode/return_mean" not in runs[0].rows[0]
    assert runs[0].rows[0]["time/sps"] == 1000.0 / 3
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    monkeypatch.setenv("WANDB_RUN_ID", "their-id")
    with ProgressLogger(tmp_path, writers=["wandb"], wandb_settings=settings) as logger:
        logger.write(make_row(1))
    assert {"project", "id"}.isdisjoint(inits[2])


def test_a_session_that_wandb_refuses_is_told_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the run is left, so that the corrected command may use the directory."""
    runs = [FakeWandbRun()]

    def init(**settings: Any) -> FakeWandbRun:
        if not runs:
            (Path(settings["dir"]) / "wandb").mkdir()
            (Path(settings["dir"]) / "wandb" / "debug.log").write_text("it begins\n")
            raise KeyError("No API key configured")
        return runs[0]

    module = types.ModuleType("wandb")
    module.__dict__["init"] = init
    module.__spec__ = types.SimpleNamespace(name="wandb")  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "wandb", module)
    with ProgressLogger(tmp_path, writers=["wandb"]) as logger:
        logger.begin()
        (run,) = runs
        runs.clear()  # one session serves the whole run
        logger.write(make_row(1))
        state = logger.state_dict()
    assert (run.rows[0]["env_steps"], run.finished) == (100, True)
    with (
        ProgressLogger(tmp_path, writers=["wandb"]) as logger,
        pytest.raises(ConfigError, match=r"No API key configured.*wandb login"),
    ):
        logger.load_state_dict(state)
    out = tmp_path / "r"
    with pytest.raises(ConfigError, match=r"No API key configured.*wandb login"):
        redline.train("ppo", env="CartPole-v1", wandb=True, out=out, quiet=True)
    assert [path.name for path in out.iterdir()] == [LOCK_FILE]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"No API key configured.*wandb login"):
        redline.train("ppo", env="CartPole-v1", wandb=True, quiet=True)
    assert not (tmp_path / "runs").exists()


def test_a_file_that_cannot_be_gone_on_with_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("redline.train.progress.progress.open_writer", refused)
    with pytest.raises(RunDirectoryError, match=r"cannot write progress in .*Permission denied"):
        ProgressLogger(tmp_path, writers=[]).load_state_dict(
            {"rows": 1, "columns": ["env_steps"], "last_env_steps": 100}
        )


def test_the_real_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B's own environment variables win; the run file holds the rows by our tags.

    The links that it leaves do not close the run directory to Redline.
    """
    monkeypatch.setattr(sys, "exit", sys.exit)  # wandb replaces it, for the tests that follow too
    wandb = pytest.importorskip("wandb")
    for variable, value in {
        "WANDB_MODE": "offline",
        "WANDB_PROJECT": "theirs",
        "WANDB_RUN_GROUP": "seeds",
        "WANDB_SILENT": "true",
    }.items():
        monkeypatch.setenv(variable, value)
    settings = {"project": "mine", "name": "first", "config": {"lr": 1}}
    with ProgressLogger(tmp_path, writers=["wandb"], wandb_settings=settings) as logger:
        logger.write(make_row(1, return_mean=3.0))
        assert (wandb.run.project, wandb.run.group, wandb.run.name) == ("theirs", "seeds", "first")
        assert wandb.run.config["lr"] == 1
        assert wandb.run.summary["episode/return_mean"] == 3.0
    (file,) = tmp_path.rglob("*.wandb")
    # Protocol buffers, whose strings stand there as they are; W&B's own process writes them.
    expected = [b"env_steps", b"episode/return_mean", b"loss/policy", b"time/sps"]
    deadline_s = time.monotonic() + 30.0
    while not all(text in file.read_bytes() for text in expected):
        assert time.monotonic() < deadline_s, file.read_bytes()
        time.sleep(0.05)
    refuse_special_files(tmp_path)


def test_missing_wandb_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'redline\[wandb\]'"):
        ProgressLogger(tmp_path, writers=["wandb"])

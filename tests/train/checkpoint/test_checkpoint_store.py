"""Which checkpoints are kept, what is used when one is damaged, and killing at any moment."""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.replay.streams import Stream
from tests.warm_workers import WarmSubprocess

from redline.errors import ConfigError, CorruptCheckpointError, UnknownNameError
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.train.checkpoint.checkpoint import load_checkpoint
from redline.train.checkpoint.store import CheckpointStore, SnapshotMode


def steps(store: CheckpointStore) -> list[int]:
    return [load_checkpoint(path).step for path in store.list()]


def run(store: CheckpointStore, upto: int, every: int = 10, *, final: bool = True) -> None:
    for step in range(every, upto + 1, every):
        store.save(step, {"w": torch.full((3,), step)}, {}, final=final and step == upto)


def fail(problem: str) -> None:
    raise AssertionError(problem)


@pytest.mark.parametrize(
    ("mode", "kept"),
    [
        ("none", [90]),
        ("last", [80, 90]),
        ("every", [10, 20, 30, 40, 50, 60, 70, 80, 90]),
        ("gap", [30, 60, 90]),
        ("last+gap", [30, 60, 80, 90]),
        ("best", [80, 90]),
    ],
)
def test_modes_keep_what_they_say(tmp_path: Path, mode: str, kept: list[int]) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", cast(SnapshotMode, mode), gap=25)
    run(store, 90)
    assert steps(store) == kept
    latest = store.latest(fail)
    assert latest is not None
    assert latest.state["w"].tolist() == [90, 90, 90]


def test_final_is_saved_in_every_mode_and_gap_goes_on_from_it(tmp_path: Path) -> None:
    """The final state at 70 is not 25 after 50, so a longer run replaces it."""
    for mode in ("none", "gap"):
        store = CheckpointStore(tmp_path / mode, mode, gap=25)
        run(store, 60, final=False)
        assert steps(store) == ([] if mode == "none" else [30, 60])
        assert not store.wants(70)
        assert store.wants(70, final=True)
        assert store.save(70, {}, {}) is None
        assert store.save(70, {}, {}, final=True) is not None
        assert store.save(90, {}, {}, final=True) is not None
        assert steps(store) == ([90] if mode == "none" else [30, 60, 90])


def test_names_and_keep(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "last", keep=1)
    path = store.save(12345, {}, {"env": "X"})
    assert path == tmp_path / "step_000000012345"
    store.save(10**13, {}, {})
    assert [path.name for path in store.list()] == ["step_10000000000000"]


def test_best_is_the_highest_score_and_outlives_the_newest(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "best")
    assert store.best() is None
    scores = [None, 1.0, 5.0, 5.0, float("nan"), 2.0, -1.0]
    for step, score in enumerate(scores):
        store.save(step, {"step": step}, {}, score=score)
    best = store.best()
    assert best is not None
    assert (best.step, best.score, best.state) == (2, 5.0, {"step": 2})
    assert steps(store) == [5, 6]
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step_000000000002"]
    store.save(7, {"step": 7}, {}, score=6.0)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["step_000000000007"]
    best = store.best()
    assert best is not None
    assert best.score == 6.0
    (best.path / "manifest.json").write_text("{")
    store.save(8, {"step": 8}, {}, score=0.5)
    best = store.best()
    assert best is not None
    assert best.step == 8, "a corrupt best one is replaced"


def test_saving_a_step_again_replaces_it_without_a_gap(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "last")
    for attempt in range(3):
        store.save(10, {"attempt": attempt}, {})
        latest = store.latest(fail)
        assert latest is not None
        assert latest.state == {"attempt": attempt}
        assert len(store.list()) == 1


def test_saving_supersedes_later_steps(tmp_path: Path) -> None:
    """A run that went on from step 10 must not later be resumed from the 30 it abandoned."""
    store = CheckpointStore(tmp_path, "every")
    run(store, 30)
    store.save(15, {}, {})
    assert steps(store) == [10, 15]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_corrupt_newest_is_reported_and_the_one_before_used(tmp_path: Path) -> None:
    """Fault 27: silently loading damaged state, or giving up although an older one is whole."""
    store = CheckpointStore(tmp_path, "every")
    run(store, 40)
    newest = store.list()
    flip(newest[-1] / "tensors.safetensors")
    (newest[-2] / "state.json").unlink()
    problems: list[str] = []
    latest = store.latest(problems.append)
    assert latest is not None
    assert latest.step == 20
    assert len(problems) == 2
    assert "step_000000000040/tensors.safetensors was altered" in problems[0]
    assert "step_000000000030/state.json is missing" in problems[1]
    assert all("Falling back to step_000000000020" in problem for problem in problems)


def test_damage_that_was_found_is_not_linked_into_what_is_saved_next(tmp_path: Path) -> None:
    """Chunk by chunk the course repeats to the bit, so the damaged file has the name of a good one.

    Step 200 has a chunk that step 100 has not. It is damaged at its full size; the run goes back to
    100 and saves 200 again, then 300, in which that chunk has not changed.
    """
    stream = Stream(0, end_rate=0.0)
    first, second = stream.rollout(4), stream.rollout(4)
    config = ReplayConfig(capacity=64)
    replay = Replay(config, ReplaySpec.from_rollout(first))
    replay.add(first)
    store = CheckpointStore(tmp_path, "last")
    store.save(100, {}, {}, replay=replay)
    replay.add(second)
    damaged = store.save(200, {}, {}, replay=replay)
    assert damaged is not None
    for file in (damaged / "replay").glob("*.bin"):
        if file.stat().st_nlink == 1:
            file.write_bytes(bytes(file.stat().st_size))

    resumed = CheckpointStore(tmp_path, "last")
    found = resumed.latest(lambda _: None, with_replay=True)
    assert found is not None
    assert (found.step, found.replay is not None) == (100, True)
    resumed.go_on_from(found.path)
    again = Replay(config, replay.spec)
    again.load(cast(Path, found.replay))
    again.add(second)
    saved = [resumed.save(step, {}, {}, replay=again) for step in (200, 300)]
    assert resumed.list() == saved
    for path in resumed.list():
        load_checkpoint(path, with_replay=True)


def test_what_is_newer_than_where_the_run_goes_on_is_no_fallback(tmp_path: Path) -> None:
    """The next save may come later than the damaged one: 20 is left, 10 and 25 are kept."""
    store = CheckpointStore(tmp_path, "last")
    run(store, 20)
    flip(store.list()[-1] / "tensors.safetensors")
    found = store.latest(lambda _: None)
    assert found is not None
    store.go_on_from(found.path)
    assert steps(store) == [10]
    store.save(25, {}, {})
    assert steps(CheckpointStore(tmp_path)) == [10, 25]


def test_all_corrupt_lists_each(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, "last")
    run(store, 30)
    for path in store.list():
        flip(path / "tensors.safetensors")
    with pytest.raises(
        CorruptCheckpointError, match=r"none of the 2.*0030/.*0020/.*Put whole ones"
    ):
        store.latest(fail)


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path / "absent").latest(fail) is None
    (tmp_path / "step_x").mkdir()
    (tmp_path / "notes").mkdir()
    assert CheckpointStore(tmp_path).latest(fail) is None


def test_bad_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"'newest'.*last\+gap"):
        CheckpointStore(tmp_path, cast(Any, "newest"))
    with pytest.raises(ConfigError, match="gap=None must be at least 1"):
        CheckpointStore(tmp_path, "last+gap")
    with pytest.raises(ConfigError, match="keep=0"):
        CheckpointStore(tmp_path, keep=0)


SAVING = """
import sys, torch
from redline.train.checkpoint.store import CheckpointStore
store = CheckpointStore(sys.argv[1], sys.argv[2], gap=3)
latest = store.latest(lambda problem: sys.exit("corrupt: " + problem))
step = 0 if latest is None else latest.step
print("ready", flush=True)
while True:
    step += 1
    state = {str(i): torch.full((2000,), step) for i in range(20)}
    store.save(step, state, {"step": step}, score=float(step % 7))
    print(step, flush=True)
"""


@pytest.mark.parametrize("mode", ["last+gap", "best"])
def test_kill_at_any_moment_leaves_the_old_or_the_new(
    tmp_path: Path, mode: str, warm_subprocess: WarmSubprocess
) -> None:
    """Fault 27: a kill in the middle of a save must not cost the run."""
    rng = random.Random(0)
    store = CheckpointStore(tmp_path, cast(SnapshotMode, mode), gap=3)
    for _ in range(4):
        process = warm_subprocess.Popen(
            [sys.executable, "-c", SAVING, str(tmp_path), mode],
            stdout=warm_subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdout.readline()
        time.sleep(rng.uniform(0, 0.1))
        process.send_signal(signal.SIGKILL)
        told = process.stdout.read().split()
        process.stdout.close()
        process.wait()
        latest = store.latest(fail)
        assert latest is not None
        assert all(leaf.tolist() == [latest.step] * 2000 for leaf in latest.state.values())
        # Lines may be cut; what was printed had been saved, so no older one may be found.
        assert latest.step >= max((int(line) for line in told[:-1]), default=1)
        for path in store.list():
            load_checkpoint(path)
        if mode == "best":
            assert store.best() is not None
    fresh = CheckpointStore(tmp_path, cast(SnapshotMode, mode), gap=3)
    fresh.clean_leftovers()
    assert not list(tmp_path.rglob(".tmp-*"))


def test_kill_between_any_two_system_calls_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, without chance: stop at the n-th sync or rename, for every n."""

    class Killed(BaseException):
        pass

    calls = 0
    stop_at = 0

    def wrap(function: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls >= stop_at:
                raise Killed
            return function(*args, **kwargs)

        return counted

    for name in ("fsync", "rename", "replace", "link", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
    finished = False
    n = 0
    while not finished:
        n += 1
        directory = tmp_path / str(n)
        stop_at = sys.maxsize
        store = CheckpointStore(directory, "best")
        run(store, 30)
        calls, stop_at = 0, n
        try:
            store.save(40, {"w": torch.full((3,), 40)}, {}, score=1.0)
            finished = True
        except Killed:
            pass
        stop_at = sys.maxsize
        latest = CheckpointStore(directory, "best").latest(fail)
        assert latest is not None
        assert latest.state["w"].tolist() == [latest.step] * 3
        assert latest.step in ((30, 40) if not finished else (40,))
    assert n > 8


def test_scores_of_different_things_are_not_compared(tmp_path: Path) -> None:
    """5 of evaluations are more than 9 of training, and the other way round; unknown ones count."""

    def store(score_of: str | None) -> CheckpointStore:
        return CheckpointStore(tmp_path / "c", "best", score_of=score_of)

    store(None).save(1, {}, {}, score=4.0)
    store("training").save(2, {}, {}, score=3.0)
    assert store("training").best_score == 4.0
    store("training").save(3, {}, {}, score=9.0)
    assert (store("training").best_score, store(None).best_score) == (9.0, 9.0)
    assert store("evaluations").best_score == -float("inf")
    store("evaluations").save(4, {}, {}, score=5.0)
    assert store("evaluations").best_score == 5.0
    store("training").save(5, {}, {}, score=None)
    assert store("evaluations").best_score == 5.0
    store("training").save(6, {}, {}, score=2.0)
    assert store("training").best_score == 2.0

"""Which run goes where, with places that are played."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from redline.errors import SweepStateError
from redline.launch.launcher import launch
from redline.launch.run_process import stop_with_launcher
from redline.launch.state import NewRun, Outcome, SweepState


class Played:
    """Places whose runs end at the next look, as `outcomes` says; else well."""

    def __init__(self, size: int, outcomes: Mapping[str, list[Outcome]] | None = None) -> None:
        self.size = size
        self.outcomes = {name: list(each) for name, each in (outcomes or {}).items()}
        self.running: dict[int, str] = {}
        self.order: list[str] = []
        self.grace_s = 0.0
        self.refused: dict[str, list[int]] = {}  # run -> errors of its next starts

    def free(self) -> str | None:
        return "a slot" if len(self.running) < self.size else None

    def start(self, run_id: int, run_dir: Path, order: Mapping[str, Any], place: str) -> None:
        del order, place
        if errors := self.refused.get(run_dir.name):
            number = errors.pop(0)
            raise OSError(number, os.strerror(number), "order.json")
        self.running[run_id] = run_dir.name
        self.order.append(run_dir.name)

    def ended(self) -> list[tuple[int, Outcome]]:
        found = []
        for run_id, name in self.running.items():
            left = self.outcomes.get(name)
            found.append((run_id, left.pop(0) if left else Outcome(result={}, exit_code=0)))
        self.running = {}
        return found

    def stop(self, run_id: int) -> None:
        raise NotImplementedError

    def close(self, grace_s: float) -> list[tuple[int, Outcome]]:
        self.grace_s = grace_s
        found = [(run_id, Outcome(exit_signal=15, stopped=True)) for run_id in self.running]
        self.running = {}
        return found


@pytest.fixture
def state(tmp_path: Path) -> SweepState:
    state = SweepState(tmp_path, create=True)
    state.add(
        NewRun(
            name=f"run{i}",
            key=str(i),
            algorithm="ppo",
            settings={"seed": i, "key": str(i)},
            varies={},
        )
        for i in range(4)
    )
    return state


def test_every_run_is_done_once(state: SweepState) -> None:
    places = Played(2)
    launch(state, places, poll_s=0.0)
    assert places.order == ["run0", "run1", "run2", "run3"]
    assert state.counts()["done"] == 4


def test_a_run_that_fails_holds_nobody_up_and_is_retried(state: SweepState) -> None:
    failure = Outcome(exit_code=1, error="ValueError: no")
    places = Played(1, {"run0": [failure, failure], "run1": [failure] * 3})
    lines: list[str] = []
    launch(state, places, retries=2, say=lines.append, poll_s=0.0)
    assert places.order == ["run0", "run1", "run2", "run3", "run0", "run1", "run0", "run1"]
    assert [run.state for run in state.runs()] == ["done", "failed", "done", "done"]
    assert "run1: failed (ValueError: no)" in lines[-1]


def test_a_launcher_that_is_stopped_leaves_its_runs_queued(state: SweepState) -> None:
    looks = iter([False, True])
    launch(state, Played(2), stopped=lambda: next(looks), poll_s=0.0)
    assert [run.state for run in state.runs()] == ["queued", "queued", "queued", "queued"]
    assert state.attempts(1)[0]["exit_signal"] == 15


def test_runs_have_as_long_for_checkpoints_as_the_page_on_slurm_gives_them(
    state: SweepState,
) -> None:
    """The job is killed 180 s after the signal; 30 of them are for the launcher itself."""
    page = (Path(__file__).parents[2] / "docs/slurm.md").read_text()
    assert "--signal=B:TERM@180" in page
    assert "Runs have 150 seconds" in page
    places = Played(2)
    launch(state, places, stopped=lambda: True, poll_s=0.0)
    assert places.grace_s == 150.0
    assert inspect.signature(stop_with_launcher).parameters["grace_s"].default == 150.0


def test_torchrun_leaves_ranks_what_the_page_on_slurm_gives_them() -> None:
    """Without the variable it kills them 30 s after the signal."""
    page = (Path(__file__).parents[2] / "docs/slurm.md").read_text()
    script = page[: page.index("srun torchrun")]
    assert "--signal=TERM@120" in script
    assert "export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=100" in script


def test_an_error_of_the_launcher_stops_its_runs(state: SweepState) -> None:
    def broken() -> None:
        raise RuntimeError("the watch broke")

    places = Played(2)
    with pytest.raises(RuntimeError, match="the watch broke"):
        launch(state, places, watch=broken, poll_s=0.0)
    assert places.running == {}
    assert state.counts()["queued"] == 4


def test_a_run_that_cannot_be_started_holds_nobody_up_and_is_retried(state: SweepState) -> None:
    """Its error ended the launcher, and with it all other runs."""
    places = Played(2)
    places.refused = {"run0": [errno.EACCES], "run1": [errno.EACCES] * 2}
    lines: list[str] = []
    launch(state, places, retries=1, say=lines.append, poll_s=0.0)
    assert places.order == ["run2", "run3", "run0"]
    assert [run.state for run in state.runs()] == ["done", "failed", "done", "done"]
    said = "could not be started: [Errno 13] Permission denied: 'order.json'"
    assert [attempt["error"] for attempt in state.attempts(2)] == [said, said]
    assert sum(said in line for line in lines) == 3


def test_a_machine_without_room_for_a_process_is_asked_again_when_a_run_has_ended(
    state: SweepState,
) -> None:
    places = Played(2)
    places.refused = {"run1": [errno.EAGAIN]}
    launch(state, places, poll_s=0.0)
    assert places.order == ["run0", "run1", "run2", "run3"]
    assert [run.state for run in state.runs()] == ["done"] * 4
    assert [run.failures for run in state.runs()] == [0] * 4
    assert len(state.attempts(2)) == 2


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        ({"run0": [errno.EAGAIN]}, "could not be started: .* end what holds them, then go on with"),
        ({"run1": [errno.ENOSPC]}, r"runs/run1: no room on the disk .* then go on with"),
        ({"run1": [errno.EDQUOT]}, r"runs/run1: no room on the disk .* then go on with"),
    ],
)
def test_where_no_run_can_be_started_the_sweep_says_how_to_go_on(
    refused: dict[str, list[int]], said: str, state: SweepState
) -> None:
    places = Played(2)
    places.refused = refused
    with pytest.raises(SweepStateError, match=f"{said}: redline sweep --resume"):
        launch(state, places, poll_s=0.0)
    assert places.running == {}
    assert state.requeue() == 1  # the one that was not started
    assert state.counts()["queued"] == 4

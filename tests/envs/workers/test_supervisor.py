"""Worker processes and shared memory without environments."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redline.envs.workers import supervisor
from redline.envs.workers.shared_memory import Layout, SharedBlock, spec_of
from redline.envs.workers.supervisor import WorkerGroup
from redline.errors import ConfigError, WorkerError
from tests.envs.scripted import Echo
from tests.envs.workers.processes import named_memory, wait_until_gone


def test_memory_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often share 64 MiB at most; it ended in an OSError's traceback."""

    def refuse(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse, raising=False)
    block = SharedBlock()
    with pytest.raises(ConfigError, match=r"4,096 bytes .* \(No space left on device\)\. Use"):
        block.resize(4096)
    block.close()


def test_a_group_of_workers_alone() -> None:
    """Commands without waiting, replies as they come, closing with replies still unread.

    FAULTS 18: a hang at shutdown while queues still hold items. FAULTS 25: worker ids
    outside the allowed cpuset crash, so workers are left where their parent may run.
    """
    group = WorkerGroup([Echo, Echo], titles=["a", "b"], timeout_s=60)
    assert group.call("hello", [1, 2]) == [(0, "hello", 1), (1, "hello", 2)]
    assert group.call("affinity") == [sorted(os.sched_getaffinity(0))] * 2
    group.send(0, "sleep", 5.0)
    group.send(1, "quick")
    assert group.receive_ready(timeout_s=30) == {1: (1, "quick", None)}
    assert group.receive(0) == (0, "sleep", 5.0)
    assert group.receive_ready() == {}
    group.send(0, "big", 50_000_000)
    begin = time.monotonic()
    group.close()
    assert time.monotonic() - begin < 10
    assert group.num_workers == 0
    group.close()


def test_a_worker_that_dies_idle_is_noticed_at_the_next_word() -> None:
    group = WorkerGroup([Echo], titles=["a"], timeout_s=60)
    pid = group._workers[0].process.pid
    os.kill(pid, signal.SIGKILL)
    wait_until_gone([pid])
    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        group.call("hello")


def test_shared_blocks_hold_nested_arrays_without_overlap() -> None:
    tree = {"a": np.zeros((3, 5), np.uint8), "b": {"c": np.zeros(2), "d": np.zeros((), np.int64)}}
    layout = Layout.of(spec_of(tree))
    before = named_memory(os.getpid())
    block = SharedBlock()
    block.resize(layout.nbytes)
    arrays = block.arrays(layout)
    assert named_memory(os.getpid()) == before
    arrays["a"][...], arrays["b"]["c"][...], arrays["b"]["d"][...] = 1, 2, 3
    again = block.arrays(layout)
    assert (again["a"] == 1).all()
    assert (again["b"]["c"] == 2).all()
    assert again["b"]["d"] == 3
    block.close()
    block.close()


class Fussy:
    """A handler that raises at its first command."""

    def __init__(self, link: Any) -> None:
        del link

    def handle(self, command: str, payload: Any) -> None:
        raise KeyError("the first command")

    def close(self) -> None:
        raise AssertionError("not reached")


def test_a_command_to_a_worker_that_failed_at_an_earlier_one_tells_how_it_failed() -> None:
    """Commands may be given ahead: the broken pipe is not the cause."""
    group = WorkerGroup([Fussy], titles=["fussy"])
    group.post("first")
    process = group._workers[0].process
    process.wait(20)
    with pytest.raises(WorkerError, match=r"KeyError: 'the first command'"):
        group.post("second")


class ClosesSlowly(Echo):
    """Its environments take a while to close, as one that encodes a video; then it says so."""

    def __init__(self, link: Any, seconds: float, note: Path) -> None:
        super().__init__(link)
        self._seconds, self._note = seconds, note

    def close(self) -> None:
        time.sleep(self._seconds)
        self._note.touch()


@pytest.mark.parametrize(("owes", "grace_s"), [(False, 0.0), (True, 60.0)])
def test_a_worker_may_close_its_environments_in_the_time_that_it_has_for_an_answer(
    owes: bool,
    grace_s: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It was killed after 2 s, in the middle of a video, also with a reply that nobody reads."""
    monkeypatch.setattr(supervisor, "_EXIT_GRACE_S", grace_s)
    group = WorkerGroup(
        [lambda link: ClosesSlowly(link, 0.5, tmp_path / "closed")], titles=["a"], timeout_s=60
    )
    if owes:
        group.send(0, "big", 1_000_000)
    group.close()
    assert (tmp_path / "closed").exists()
    assert capfd.readouterr().err == ""


def test_a_worker_that_is_killed_while_it_closes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "_EXIT_GRACE_S", 0.0)
    group = WorkerGroup(
        [lambda link: ClosesSlowly(link, 600.0, tmp_path / "closed")],
        titles=["environment 0"],
        timeout_s=0.5,
    )
    group.close()
    told = capfd.readouterr().err
    assert "killed worker 0 (environment 0), which did not end within 0.5 s" in told


def test_a_worker_in_a_long_step_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second Ctrl-C is to end the run at once; it waited for the whole `worker_timeout_s`."""
    monkeypatch.setattr(supervisor, "_EXIT_GRACE_S", 0.5)
    group = WorkerGroup([Echo], titles=["environment 0"], timeout_s=600)
    group.send(0, "sleep", 600.0)
    group.close()
    told = capfd.readouterr().err
    assert told == (
        "redline: killed worker 0 (environment 0), still busy 0.5 s after the end: close() of the "
        "environments was not called.\n"
    )

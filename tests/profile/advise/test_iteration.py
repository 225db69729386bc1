"""Where the steady state of a program begins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from redline.profile.advise.iteration import _per_step
from redline.profile.advise.steady import Steady, find_steady, once_compiled
from redline.profile.reader import Process, Session

NAMES = ("simulation", "compile", "backpropagation", "learning", "zero_grad")


@pytest.mark.parametrize(
    ("compiled", "expected"),
    [
        ([], [10, 30, 50, 70, 90]),  # nothing was compiled
        ([10, 12], [30, 50, 70, 90]),  # in the first update alone
        ([10, 31], [50, 70, 90]),  # a second time; 5 of 10 env steps come after 50
        ([10, 51], [10, 30, 50, 70, 90]),  # 3 of 10 would be left: no steady state
        ([95], [10, 30, 50, 70, 90]),  # to the end
    ],
)
def test_the_steady_state_begins_once_all_is_compiled(
    compiled: list[int], expected: list[int]
) -> None:
    """Env steps at 5, 15, ..., 95; updates at 10, 30, ..., 90."""
    learned = np.array([10, 30, 50, 70, 90], np.int64)
    steps = np.arange(5, 100, 10, dtype=np.int64)
    found = once_compiled(learned, np.array(compiled, np.int64), steps)
    assert found.tolist() == expected


def test_few_stretches_have_a_wide_interval() -> None:
    """Of 4 stretches of 10 env steps: 10, 12, 8 and 10 us each; Student's t of 3 is 3.182.

    Without one of them 300, 280, 320 or 300 us of 30 env steps are left, so that the jackknife's
    error is sqrt(3 / 4 * 2 * (2 / 3)^2).
    """
    ns = np.array([100.0, 120.0, 80.0, 100.0]) * 1e3
    found = _per_step(ns, np.array([10, 10, 10, 10]))
    assert found.us == pytest.approx(10.0)
    assert found.half_us == pytest.approx(3.182 * (0.75 * 2 * (2 / 3) ** 2) ** 0.5, rel=1e-3)


def steady_of(
    place: int, parents: list[int], *, learn: set[int], driven: frozenset[int] = frozenset()
) -> Steady:
    """Of one of some processes, with pids 1, 2, ...; each makes an env step every 10 ns.

    Args:
        place: of the process that is asked for.
        parents: their parents' pids.
        learn: places of those that learn.
        driven: places of those whose envs are stepped elsewhere, and that are not told.
    """
    directory = Path("session")
    times = np.arange(0, 10_000, 10, dtype=np.int64)
    nothing = np.empty(0, np.int64)
    processes, entries = [], []
    for i, parent in enumerate(parents):
        start = {"pid": i + 1, "parent_pid": parent, "base_ns": 0}
        processes.append(Process(directory, start, None, f"p{i}", {}, {}))
        own = dict.fromkeys(NAMES, nothing)
        if i not in driven:
            own["simulation"] = times
        if i in learn:
            own["learning"] = times[10:] + 5
        entries.append(own)
    return find_steady(Session(directory, {}, processes), place, entries)


def test_programs_that_learn_are_no_workers_of_each_other() -> None:
    """Four in one session, as ranks or seeds of a sweep are: each steps an env of its own."""
    for place in range(4):
        found = steady_of(place, [99, 99, 99, 99], learn={0, 1, 2, 3})
        assert (found.workers, found.num_envs) == ([], 1)
        assert found.env_steps.sum() == 989  # after 105


def test_workers_step_for_the_program_that_started_them() -> None:
    """Two learners, pids 1 and 2, have two workers each, one of them by way of a server."""
    parents = [99, 99, 1, 1, 2, 7, 2]
    assert steady_of(0, parents, learn={0, 1}).workers == [2, 3]
    found = steady_of(1, parents, learn={0, 1}, driven=frozenset({6}))
    assert (found.workers, found.num_envs) == ([4, 5], 2)


def test_workers_that_no_learner_started_step_for_any() -> None:
    """Actors of Ray, and those of a main process that learns a little itself."""
    assert steady_of(0, [99, 99, 98], learn={0, 1}).workers == [2]
    assert steady_of(1, [99, 1, 1], learn={0, 1}).workers == [2]
    found = steady_of(0, [99, 1, 1], learn={0}, driven=frozenset({0}))
    assert (found.workers, found.num_envs) == ([1, 2], 2)


def test_workers_that_compute_gradients_step_for_who_steps_no_env() -> None:
    """As those of A3C do; a program beside them steps for itself."""
    found = steady_of(0, [99, 1, 1, 99], learn={0, 1, 2, 3}, driven=frozenset({0}))
    assert (found.workers, found.num_envs) == ([1, 2], 2)


def test_processes_that_started_each_other_are_read() -> None:
    """Of damaged sessions."""
    assert steady_of(0, [99, 3, 2], learn={0}).workers == [1, 2]

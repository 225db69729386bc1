"""What the probe in one process added to the waits of another, worked out by hand."""

from __future__ import annotations

import pytest

from redline.profile import levels
from redline.profile.analyse.cells import Cells, Hidden
from redline.profile.analyse.corrected import (
    Shares,
    beside_the_profiler,
    correct,
    joined,
    lasting,
    passed_on,
)
from redline.profile.analyse.correction import Prior, prior_of
from redline.profile.analyse.processes import Waits, WaitsFor

LEARNER, FIRST, SECOND = 1, 2, 3


def cells(times: dict[tuple[str, str, str], int]) -> Cells:
    """Of (phase, operation, level)."""
    found = {(*key, False): ns for key, ns in times.items()}
    return Cells(found, found, [])


def waits(operation: str, waiting_ns: int, nobody_busy_ns: int = 0) -> Waits:
    return Waits("learner", LEARNER, operation, waiting_ns, nobody_busy_ns)


def waits_for(operation: str, worker: int, both_ns: int) -> WaitsFor:
    return WaitsFor("learner", LEARNER, operation, "worker", worker, "simulation", both_ns)


def test_a_wait_is_shorter_by_what_the_probe_cost_the_worker() -> None:
    """The worker works 1,000 ns, 250 of them the probe's: of 400 ns of waiting for it, 100 go."""
    found = passed_on(
        [
            (LEARNER, cells({("", "simulation", "waiting"): 400})),
            (FIRST, cells({("", "simulation", "python"): 1000, ("", "simulation", "waiting"): 7})),
        ],
        [{}, {("", "simulation"): (250.0, 10.0)}],
        levels.WAITING,
        [waits("simulation", 400)],
        [waits_for("simulation", FIRST, 400)],
    )
    assert found == [{("", "simulation", "waiting"): (100.0, 50.0)}, {}]


def test_workers_side_by_side_count_by_their_mean() -> None:
    """One loses 10%, the other 30%, both work all the 500 ns: 20% of them go, not 40%."""
    found = passed_on(
        [
            (LEARNER, cells({("", "simulation", "waiting"): 500})),
            (FIRST, cells({("", "simulation", "python"): 1000})),
            (SECOND, cells({("", "simulation", "python"): 1000})),
        ],
        [{}, {("", "simulation"): (100.0, 1.0)}, {("", "simulation"): (300.0, 1.0)}],
        levels.WAITING,
        [waits("simulation", 500)],
        [waits_for("simulation", FIRST, 500), waits_for("simulation", SECOND, 500)],
    )
    assert found[0] == {("", "simulation", "waiting"): (pytest.approx(100.0), pytest.approx(50.0))}


def test_what_nobody_worked_through_stays() -> None:
    """Of 900 ns a worker fills 300, a quarter of it the probe's: 75 go, split over the phases
    as 600 to 300. A wait in another operation, with nobody at work, stays as it is."""
    found = passed_on(
        [
            (
                LEARNER,
                cells(
                    {
                        ("first", "simulation", "waiting"): 600,
                        ("second", "simulation", "waiting"): 300,
                        ("first", "other", "waiting"): 5000,
                    }
                ),
            ),
            (FIRST, cells({("", "simulation", "python"): 400})),
        ],
        [{}, {("", "simulation"): (100.0, 1.0)}],
        levels.WAITING,
        [waits("simulation", 900, 600), waits("other", 5000, 5000)],
        [waits_for("simulation", FIRST, 300)],
    )
    assert found[0] == {
        ("first", "simulation", "waiting"): (50.0, 25.0),
        ("second", "simulation", "waiting"): (25.0, 12.5),
    }


def test_a_wait_is_taken_from_waiting_alone() -> None:
    observed = {
        ("", "simulation", "python", False): 100,
        ("", "simulation", "waiting", False): 400,
        ("", "simulation", "ready", False): 30,
    }
    corrected = correct(Cells(observed, observed, []), {}, {("", "simulation", "waiting"): 150.0})
    assert corrected == {
        ("", "simulation", "python", False): 100.0,
        ("", "simulation", "waiting", False): 250.0,
        ("", "simulation", "ready", False): 30.0,
    }


def test_the_profilers_threads_are_taken_out_where_all_share_a_core() -> None:
    """20 of 1,000 ns were theirs: 2% of the work and of what was ready; a wait is as long as ever.

    400 of the 800 ns of Python were not observed, and are split like those that were.
    """
    seen = {
        ("", "learning", "python", False): 400,
        ("", "learning", "ready", False): 100,
        ("", "learning", "waiting", False): 100,
    }
    python = ("", "learning", "python", False)
    whole = {**seen, python: 800}
    found = Cells(whole, seen, [Hidden(400, {python: 400})])
    (shares,) = beside_the_profiler([found], [20.0], {})
    levels_of = {level: share for (_, _, level), share in shares.items()}
    assert levels_of == {"python": (0.02, 0.01), "ready": (0.02, 0.01)}
    taken = correct(found, {}, {("", "learning", "ready"): 10.0}, means(shares))
    assert taken[python] == pytest.approx(784.0)
    assert taken["", "learning", "ready", False] == pytest.approx(88.2)
    assert taken["", "learning", "waiting", False] == 100.0


def test_the_threads_of_a_child_cost_its_parent_only_work_beside_it() -> None:
    """The parent works 400 of its 1,000 ns, the child is there for 200, its threads take 50.

    While it waits for the child they cost it nothing. Beside the child it works for 40 ns, of which
    a quarter goes, so 10 of 400. Its own threads take 1% of its time.
    """
    work, wait = ("", "learning", "python", False), ("", "learning", "waiting", False)
    parent = Cells({work: 400, wait: 600}, {}, [])
    child = Cells({work: 100, wait: 100}, {}, [])
    own = [10.0, 50.0]
    alone, of_child = beside_the_profiler([parent, child], own, {})
    assert means(alone) == {("", "learning", "python"): pytest.approx(0.01)}
    assert means(of_child) == {("", "learning", "python"): pytest.approx(0.25)}
    beside = {(0, 1): 40, (1, 0): 100}
    both, of_child = beside_the_profiler([parent, child], own, beside)
    assert means(both) == {("", "learning", "python"): pytest.approx(0.01 + 10 / 400)}
    assert means(of_child) == {("", "learning", "python"): pytest.approx(0.25 + 0.01)}


def test_who_worked_longer_beside_another_than_at_all_gives_all_of_its_time_at_most() -> None:
    """Ends of both are known to some microseconds: 440 ns beside a child that works for 400."""
    work = ("", "learning", "python", False)
    parent, child = Cells({work: 400}, {}, []), Cells({work: 400}, {}, [])
    found, _ = beside_the_profiler([parent, child], [0.0, 40.0], {(0, 1): 440})
    assert means(found) == {("", "learning", "python"): pytest.approx(0.1)}


def means(shares: Shares) -> dict[tuple[str, str, str], float]:
    return {key: mean for key, (mean, _) in shares.items()}


def test_what_lasts_is_taken_out_of_python_in_blocks_without_the_probe_too() -> None:
    """4% of 500 ns of Python go, though 450 of them lie in blocks; none of 500 ns in C, though
    these lie in the same blocks."""
    python, backend = ("", "learning", "python", False), ("", "learning", "backend", False)
    seen = {python: 50, backend: 50}
    found = Cells({python: 500, backend: 500}, seen, [Hidden(900, {python: 1, backend: 1})])
    shares = lasting(found, Prior(70.0, 50.0, 0.03, 0.03, 0.04, 0.01))
    assert shares == {("", "learning", "python"): (0.04, 0.01)}
    for costs in ({}, {("", "learning"): 1e-6}):
        taken = correct(found, costs, {}, means(shares))
        assert taken == {python: pytest.approx(480.0), backend: pytest.approx(500.0)}


def test_two_shares_of_one_cell_add_up_and_their_errors_do_not() -> None:
    key = ("", "learning", "python")
    assert joined({key: (0.1, 0.03)}, {key: (0.2, 0.04)}) == {
        key: (pytest.approx(0.3), pytest.approx(0.05))
    }


@pytest.mark.parametrize(
    ("python", "lasts"), [("3.11.7", False), ("3.12.1", True), ("3.13.0", False), ("x", False)]
)
def test_only_python_3_12_keeps_what_observing_cost(python: str, lasts: bool) -> None:
    assert (prior_of([python]).lasting > 0) == lasts

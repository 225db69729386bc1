"""The code between operations, named after what follows it; worked by hand."""

from __future__ import annotations

from typing import Any

from redline.profile import layout
from redline.profile.analyse.cells import compute_cells
from redline.profile.analyse.timeline import build_timeline
from redline.profile.reader import Name
from tests.profile import streams

FORWARD, LEARNING, COLLECTION, STARTUP, BACKWARD, MINE, REPLAY = range(20, 27)
EVALUATION, OWN_EVALUATION = 27, 28
NAMES = {
    **streams.NAMES,
    FORWARD: Name(FORWARD, "inferred", "forward", 0, None),
    LEARNING: Name(LEARNING, "inferred", "learning", 0, None),
    COLLECTION: Name(COLLECTION, "inferred", "collection", 0, None),
    STARTUP: Name(STARTUP, "inferred", "startup", 0, None),
    BACKWARD: Name(BACKWARD, "operation", "backpropagation", 0, None),
    REPLAY: Name(REPLAY, "operation", "replay", 0, None),
    EVALUATION: Name(EVALUATION, "operation", "evaluation", 0, layout.FRAMEWORK),
    OWN_EVALUATION: Name(OWN_EVALUATION, "operation", "evaluation", 0, None),
    MINE: Name(MINE, "operation", "my own", 0, None),
}


def operations(*marks: tuple[int, int, int]) -> dict[str, int]:
    """Ns by operation of a thread in these (name, begin, end), which ends at 100."""
    events: list[Any] = [(0, layout.CODE_WINDOW_ON)]
    for name, begin, end in marks:
        events += [(begin, streams.begin(name)), (end, streams.end(name))]
    process = streams.process(events)
    process.names = NAMES
    found: dict[str, int] = {}
    for key, ns in compute_cells(build_timeline(process)).time_ns.items():
        found[key[1]] = found.get(key[1], 0) + ns
    assert sum(found.values()) == 100
    return found


def test_what_lies_before_a_backward_pass_is_learning() -> None:
    """To 10 startup; 20-25 and 30-45 and 50-60 before the update, as is 25-30; 80- other."""
    found = operations(
        (streams.SIMULATION, 10, 20),
        (streams.INFERRED, 25, 30),
        (FORWARD, 45, 50),
        (BACKWARD, 60, 80),
    )
    assert found == {
        "startup": 10,
        "simulation": 10,
        "learning": 30,
        "forward": 10,
        "backpropagation": 20,
        "other": 20,
    }


def test_a_target_network_is_no_acting() -> None:
    """A step of DQN: it acts (with gradients, as many scripts do), samples, asks the target.

    5-10 leads to the step at 15, so it is inference and 10-15 collection. 20-25 leads to an added
    row, 30-40 to the update: its own sampling. 40-45 is the target network, 50-55 the online one.
    65-70 is what follows an optimizer's step.
    """
    found = operations(
        (FORWARD, 5, 10),
        (streams.SIMULATION, 15, 20),
        (REPLAY, 25, 30),
        (streams.INFERRED, 40, 45),
        (FORWARD, 50, 55),
        (BACKWARD, 60, 65),
        (FORWARD, 70, 75),
        (streams.SIMULATION, 80, 100),
    )
    assert found == {
        "startup": 5,
        "inference": 10,
        "simulation": 25,
        "replay": 5,
        "collection": 5 + 5 + 5,
        "learning": 10 + 5 + 5 + 5,
        "forward": 10,
        "backpropagation": 5,
    }


def test_without_a_known_simulator_gradients_tell() -> None:
    """0-10 startup, 20-30 before a call without gradients: collection; 40-60 learning."""
    found = operations(
        (streams.INFERRED, 10, 20),
        (streams.INFERRED, 30, 40),
        (FORWARD, 50, 55),
        (BACKWARD, 60, 100),
    )
    assert found == {
        "startup": 10,
        "inference": 20,
        "collection": 10,
        "learning": 15,
        "forward": 5,
        "backpropagation": 40,
    }


def test_a_native_call_in_a_gap_keeps_its_level() -> None:
    events = [
        (0, layout.CODE_WINDOW_ON),
        (10, streams.begin(FORWARD)),
        (20, streams.end(FORWARD)),
        (30, streams.begin(streams.TORCH)),
        (50, streams.end(streams.TORCH)),
        (60, streams.begin(BACKWARD)),
        (100, streams.end(BACKWARD)),
    ]
    process = streams.process(events)
    process.names = NAMES
    found = compute_cells(build_timeline(process)).time_ns
    assert found["", "learning", "backend", False] == 20
    assert found["", "learning", "python", False] == 20


def test_a_program_with_marks_of_its_own_is_left_alone() -> None:
    assert operations((FORWARD, 10, 20), (MINE, 40, 60)) == {
        "other": 70,
        "forward": 10,
        "my own": 20,
    }


def test_a_thread_that_calls_no_module_with_gradients_is_left_alone() -> None:
    assert operations((streams.SIMULATION, 10, 20))["other"] == 90


def test_an_evaluation_of_a_framework_is_no_mark_of_the_program() -> None:
    """Gaps keep their names around it; a program that marks its evaluation names all it means."""
    rest = (FORWARD, 45, 50), (BACKWARD, 60, 80)
    found = operations((EVALUATION, 10, 20), *rest)
    assert (found["evaluation"], found["learning"]) == (10, 10)
    found = operations((OWN_EVALUATION, 10, 20), *rest)
    assert found["evaluation"] == 10
    assert "learning" not in found

"""Operations that count only where they are not inside another one."""

from __future__ import annotations

from redline.profile.analyse.timeline import build_timeline
from redline.profile.analyse.transitions import BeginsOutside
from tests.profile.streams import INFERENCE, SIMULATION, begin, end, process


def test_begins_inside_another_operation_do_not_count() -> None:
    """As env steps of an evaluation are none of training; it may last into the next slice."""
    outside = BeginsOutside(process(), "simulation", "inference")
    first = [
        (1, begin(SIMULATION)), (2, end(SIMULATION)),
        (3, begin(INFERENCE)), (4, begin(SIMULATION)), (5, end(SIMULATION)),
        (6, begin(INFERENCE)), (7, begin(SIMULATION)), (8, end(SIMULATION)), (9, end(INFERENCE)),
    ]  # fmt: skip
    other = [(4, begin(SIMULATION)), (6, end(SIMULATION))]  # on another thread
    second = [
        (11, begin(SIMULATION)), (12, end(SIMULATION)), (13, end(INFERENCE)),
        (14, begin(SIMULATION)), (15, end(SIMULATION)),
    ]  # fmt: skip
    assert outside.times(build_timeline(process(first, other)).threads).tolist() == [1, 4]
    assert outside.times(build_timeline(process(second)).threads).tolist() == [14]

"""Where the steady state of a program begins."""

from __future__ import annotations

import numpy as np
import pytest

from redline.profile.advise.iteration import _per_step
from redline.profile.advise.steady import once_compiled


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

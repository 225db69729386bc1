"""Reported progress: percentages, speeds and the time of the whole, worked by hand."""

from __future__ import annotations

import math

from redline.profile.analyse.progress import Progress, progress_of
from redline.profile.reader import Reported

SECOND = 10**9


def test_nothing_reported_is_nothing() -> None:
    assert progress_of([]) is None


def test_one_report_has_no_speed() -> None:
    progress = progress_of([Reported(5 * SECOND, 1, 30.0, 120.0)])
    assert progress is not None
    assert (progress.done, progress.total, progress.share) == (30.0, 120.0, 0.25)
    assert math.isnan(progress.per_s)
    assert math.isnan(progress.whole_s)


def test_speed_is_that_of_the_windows() -> None:
    """10 to 30 in 2 s, then 500 to 520 in 3 s: 40 in 5 s, 8 a second; 800 take 100 s.

    What was done between the windows (30 to 500 in 1,000 s) does not count.
    """
    reported = [
        Reported(0 * SECOND, 1, 10.0, 800.0),
        Reported(1 * SECOND, 1, 22.0, 800.0),
        Reported(2 * SECOND, 1, 30.0, 800.0),
        Reported(1002 * SECOND, 2, 500.0, 800.0),
        Reported(1005 * SECOND, 2, 520.0, 800.0),
    ]
    assert progress_of(reported) == Progress(520.0, 800.0, 8.0)
    assert Progress(520.0, 800.0, 8.0).whole_s == 100.0


def test_a_window_that_went_back_says_nothing_of_the_speed() -> None:
    """A second phase counts from 0 again: only the first window, 5 a second, is used."""
    reported = [
        Reported(0, 1, 0.0, 10.0),
        Reported(SECOND, 1, 5.0, 10.0),
        Reported(2 * SECOND, 2, 9.0, 10.0),
        Reported(3 * SECOND, 2, 1.0, 10.0),
    ]
    assert progress_of(reported) == Progress(1.0, 10.0, 5.0)


def test_standing_still_has_no_speed() -> None:
    progress = progress_of([Reported(0, 1, 4.0, 10.0), Reported(SECOND, 1, 4.0, 10.0)])
    assert progress is not None
    assert math.isnan(progress.per_s)

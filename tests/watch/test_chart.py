"""Curves as text."""

from __future__ import annotations

import pytest

from redline.watch.chart import chart, short


def test_a_line_is_made_of_the_right_dots() -> None:
    """Beside labels of one character there are 9 characters, so 18 x 8 dots for x and y of 0..17.

    From (0, 0) to (7, 7) it rises by one dot a column: the dots 7 and 6, then 2 and 4 of each two
    characters. Then it stays in the highest row: dots 1 and 4.
    """
    lines = chart([(0, 0.0), (7, 7.0), (17, 7.0)], width=12, height=3)
    rising = chr(0x2800 + 0x40 + 0x20) + chr(0x2800 + 0x02 + 0x08)
    empty, high = chr(0x2800), chr(0x2800 + 0x01 + 0x08)
    assert lines == [
        f"7 ┤{empty * 2}{rising}{high * 5}",
        f"0 ┤{rising}{empty * 7}",
        f"{'17':>12}",
    ]


def test_points_in_one_column_are_averaged() -> None:
    many = [(x, 10.0 if x % 2 else 0.0) for x in range(10_000)]
    lines = chart([(0, 0.0), *many[1:-1], (9_999, 10.0)], width=30, height=6)
    middle = lines[2] + lines[3]
    assert sum(letter > chr(0x2800) for letter in middle) > 20


def test_one_point_and_equal_points_are_drawn() -> None:
    for points in ([(5, 3.0)], [(1, 3.0), (2, 3.0), (3, 3.0)]):
        lines = chart(points, width=20, height=4)
        assert lines[0].lstrip().startswith("4 ┤")
        assert lines[2].lstrip().startswith("2 ┤")
        assert any(chr(0x2800) < letter <= chr(0x28FF) for letter in lines[1])


def test_the_axis_goes_on_to_where_the_run_is() -> None:
    lines = chart([(10, 1.0), (20, 2.0)], width=40, height=4, last=40)
    assert lines[-1].split() == ["0", "40", "env_steps"]
    assert lines[0].rstrip(chr(0x2800)) != lines[0]


@pytest.mark.parametrize("top", [1e308, 1.7e308])
def test_values_farther_apart_than_floats_go_are_drawn(top: float) -> None:
    """From the lowest dot of the first column to the highest of the last."""
    lines = chart([(0, -top), (17, top)], width=20, height=3)
    assert lines[0].split("┤")[1][-1] != chr(0x2800)
    assert lines[1].split("┤")[1][0] != chr(0x2800)
    assert all(len(line) <= 20 for line in lines)
    assert len(chart([(1, top), (2, top)], width=20, height=3)) == 3


def test_without_points_or_room_there_is_no_chart() -> None:
    assert chart([], 80, 10) == []
    assert chart([(1, 1.0)], 5, 10) == []
    assert chart([(1, 1.0)], 80, 2) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-3, "-3"),
        (0.125, "0.125"),
        (999.6, "1,000"),
        (60_160, "60.2k"),
        (2.5e6, "2.5M"),
        (-1e308, "-1e+308"),
    ],
)
def test_labels_are_short(value: float, text: str) -> None:
    assert short(value) == text

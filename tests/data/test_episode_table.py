"""Episodes as columns are the same sequence of records."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from redline.data import EpisodeRecord, EpisodeTable
from redline.train.progress.progress import EpisodeStatistics

RECORDS = [
    EpisodeRecord(env_id=3, episode_id=0, return_=1.0, length=10),
    EpisodeRecord(env_id=5, episode_id=2, return_=2.0, length=20),
    EpisodeRecord(env_id=3, episode_id=1, return_=6.5, length=60),
]


def table() -> EpisodeTable:
    return EpisodeTable(
        np.array([3, 5, 3]), np.array([0, 2, 1]), np.array([1.0, 2.0, 6.5]), np.array([10, 20, 60])
    )


def test_records_are_made_when_they_are_asked_for() -> None:
    found = table()
    assert list(found) == RECORDS
    assert found == RECORDS
    assert found != RECORDS[:2]
    assert found != 3
    assert (len(found), found[1], found[-1]) == (3, RECORDS[1], RECORDS[2])
    assert found[1:] == RECORDS[1:]
    assert type(found[0].env_id) is int
    assert type(found[0].return_) is float
    assert RECORDS[2] in found
    with pytest.raises(IndexError):
        found[3]


def test_copies_are_the_same_episodes() -> None:
    assert copy.deepcopy(table()) == pickle.loads(pickle.dumps(table())) == table()


@pytest.mark.parametrize("window", [2, 100])
def test_statistics_are_those_of_the_records(window: int) -> None:
    columns, records = EpisodeStatistics(window), EpisodeStatistics(window)
    for _ in range(2):
        columns.add(table())
        records.add(RECORDS)
    assert columns.state_dict() == records.state_dict()
    assert columns.moving_mean == records.moving_mean
    assert columns.take_row() == records.take_row()

"""Many finished episodes as columns.

A rollout of 16,384 environments on a device ends some ten thousand episodes. To make an object of
each takes longer than to collect and to learn, so a record is made when it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from redline.data.rollout import EpisodeRecord
from redline.nested import Array


class EpisodeTable(Sequence[EpisodeRecord]):
    """A sequence of `EpisodeRecord` without success and info.

    Args:
        env_id: [n] int64.
        episode_id: [n] int64.
        return_: [n] float64.
        length: [n] int64.

    Attributes:
        return_: as given.
        length: as given.
    """

    def __init__(self, env_id: Array, episode_id: Array, return_: Array, length: Array) -> None:
        self._env_id, self._episode_id = env_id, episode_id
        self.return_, self.length = return_, length

    def __len__(self) -> int:
        return len(self.return_)

    @overload
    def __getitem__(self, index: int) -> EpisodeRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[EpisodeRecord]: ...

    def __getitem__(self, index: int | slice) -> EpisodeRecord | list[EpisodeRecord]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return EpisodeRecord(
            env_id=int(self._env_id[index]),
            episode_id=int(self._episode_id[index]),
            return_=float(self.return_[index]),
            length=int(self.length[index]),
        )

    def __repr__(self) -> str:
        return (
            f"EpisodeTable({list(self)})"
            if len(self) <= 3
            else (f"EpisodeTable of {len(self)} episodes, from {self[0]} to {self[-1]}")
        )

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Sequence):
            return False
        others: list[Any] = list(other)  # pyright: ignore[reportUnknownArgumentType]
        return list(self) == others

    __hash__ = None  # pyright: ignore[reportAssignmentType]

"""Entries of a TensorDict are told from others put in their place."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tensordict import TensorDict

from redline.replay.entries import Entries


def tree() -> TensorDict:
    part = TensorDict({"x": torch.zeros(2), "y": torch.ones(2)}, batch_size=[2])
    return TensorDict({"a": torch.zeros(2), "b": torch.ones(2), "part": part}, batch_size=[2])


def test_values_may_change_but_not_tensors() -> None:
    held = tree()
    entries = Entries(held)
    held["a"].fill_(5.0)
    held.update_(tree())
    assert entries.are_held()
    assert entries.are_held()  # asking changes nothing
    held["a"] = held["a"].clone()
    assert not entries.are_held()


def nothing(held: TensorDict) -> None:
    del held["a"]


def more(held: TensorDict) -> None:
    held["c"] = torch.zeros(2)


def more_below(held: TensorDict) -> None:
    held["part", "z"] = torch.zeros(2)


def other_below(held: TensorDict) -> None:
    held["part", "x"] = torch.zeros(2)


def other_part(held: TensorDict) -> None:
    held["part"] = held["part"].copy()


def moved(held: TensorDict) -> None:
    held["a"].share_memory_()


def moved_below(held: TensorDict) -> None:
    held["part", "x"].data = torch.zeros(2)


def other_names(held: TensorDict) -> None:
    held["a"], held["b"] = held["b"], held["a"]


@pytest.mark.parametrize(
    "change",
    [nothing, more, more_below, other_below, other_part, moved, moved_below, other_names],
)
def test_any_other_entry_is_noticed(change: Callable[[TensorDict], None]) -> None:
    held = tree()
    entries = Entries(held)
    change(held)
    assert not entries.are_held()


@pytest.mark.parametrize(
    ("change", "matters"),
    [(nothing, False), (more, False), (other_below, True), (more_below, True)],
)
def test_only_named_entries_matter_with_all_below(
    change: Callable[[TensorDict], None], matters: bool
) -> None:
    held = tree()
    entries = Entries(held, ["b", "part"])
    change(held)
    assert entries.are_held() is not matters


def test_a_missing_entry_is_an_error() -> None:
    with pytest.raises(KeyError):
        Entries(tree(), ["a", "q"])

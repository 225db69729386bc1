"""Snapshots that somebody changed and signed again: hashes agree, and values must be refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from redline.data import Array
from redline.errors import CorruptCheckpointError, IncompatibleCheckpointError, RedlineError
from redline.replay import Replay, ReplayConfig, ReplaySpec, verify_snapshot
from redline.replay.snapshot import MANIFEST
from redline.replay.spec import LeafSpec
from tests.replay.streams import Stream

ROLLOUT = 4
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "queue": {"idle_rate": 0.3},  # not every row may be drawn: units are in a queue
    "prioritized": {"prioritized": True, "idle_rate": 0.3},
    "stacked": {"frame_stack": 3},
    "sequences": {"prioritized": True, "sequence_length": 3, "burn_in": 1, "state_interval": 4},
}


def make(kind: str) -> Replay:
    """A replay of 32 rows of 2 environments, 12 rollouts of 4 rows on: rows 16 .. 47 are there."""
    settings = dict(KINDS[kind])
    stream = Stream(0, frames=3, end_rate=0.2, idle_rate=settings.pop("idle_rate", 0.0))
    rollout = stream.rollout(ROLLOUT)
    replay = Replay(ReplayConfig(capacity=64, **settings), ReplaySpec.from_rollout(rollout))
    for number in range(12):
        replay.add(rollout if number == 0 else stream.rollout(ROLLOUT))
    return replay


class Snapshot:
    """A saved replay to spoil.

    Args:
        directory: of the snapshot.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.body: Any = json.loads((directory / MANIFEST).read_text())["content"]

    def sign(self) -> None:
        """Write the list of files with a hash that agrees."""
        digest = hashlib.sha256(json.dumps(self.body, sort_keys=True).encode()).hexdigest()
        text = json.dumps({"sha256": digest, "content": self.body})
        (self.directory / MANIFEST).write_text(text)

    def array(self, name: str, dtype: Any, edit: Callable[[Array], Any]) -> None:
        """Change numbers of an array that lies in one file, and its hash."""
        if name in self.body["host_arrays"]:
            file = self.body["host_arrays"][name]["file"]
        else:
            (file,) = self.body["arrays"][name]["chunks"].values()
        value = np.frombuffer((self.directory / file).read_bytes(), dtype).copy()
        edit(value)
        (self.directory / file).write_bytes(value.tobytes())
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        self.body["files"][file] = [value.nbytes, digest]
        self.sign()

    def set(self, *path: Any, value: Any) -> None:
        """Change the list."""
        holder = self.body
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value
        self.sign()


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str], tuple[Replay, Snapshot]]:
    def save(kind: str) -> tuple[Replay, Snapshot]:
        replay = make(kind)
        replay.save(tmp_path / kind)
        return replay, Snapshot(tmp_path / kind)

    return save


Saved = Callable[[str], tuple[Replay, Snapshot]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_changed_is_taken(kind: str, saved: Saved) -> None:
    replay, snapshot = saved(kind)
    snapshot.sign()
    other = make(kind)
    other.load(snapshot.directory)
    assert len(other) == len(replay)
    other.clear()
    other.load(snapshot.directory)


def refused(kind: str, snapshot: Snapshot, said: str) -> None:
    """It is refused by a sentence, and the buffer is empty, or as it was if nothing was read."""
    other = make(kind)
    before = len(other)
    with pytest.raises(CorruptCheckpointError, match=said) as caught:
        other.load(snapshot.directory)
    assert str(caught.value).endswith(".")
    assert "Use an earlier checkpoint" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert len(other) in (0, before)


# -- positions and sizes ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uniform", "queue", "prioritized", "sequences"])
@pytest.mark.parametrize(
    "span", [[0, 48, 64], [16, 2**40, 64], [-(2**40), 48, 64], [16, 48, 10**6], [16, 48, -7]]
)
def test_the_span_that_is_drawn_from(kind: str, span: list[int], saved: Saved) -> None:
    """By hand: 48 rows were written and 32 are kept, so units of the rows 16 .. 47 are there.

    Sequences of 1 + 3 + 1 rows start at every 4th row: units 4 .. 10, of the rows 16 .. 40.
    """
    _, snapshot = saved(kind)
    snapshot.array("sampler/span", np.int64, lambda value: value.__setitem__(slice(3), span))
    refused(kind, snapshot, "sampler/span")


@pytest.mark.parametrize(
    ("name", "value"), [("head", 44), ("oldest", 15), ("oldest", 17), ("complete", 10), ("head", 0)]
)
def test_counts_that_do_not_go_together(name: str, value: int, saved: Saved) -> None:
    """48 rows written, 32 kept; (48 - 5) // 4 + 1 = 11 sequences are complete."""
    _, snapshot = saved("sequences")
    assert snapshot.body["header"] | {"layout": 0} == {
        "layout": 0, "head": 48, "oldest": 16, "complete": 11, "is_broken": False
    }  # fmt: skip
    snapshot.set("header", name, value=value)
    refused("sequences", snapshot, "replay")


def test_a_chain_that_is_neither_broken_nor_whole(saved: Saved) -> None:
    _, snapshot = saved("sequences")
    snapshot.set("header", "is_broken", value=2)
    refused("sequences", snapshot, "is_broken is 2")


@pytest.mark.parametrize("kind", ["queue", "prioritized", "sequences"])
def test_units_per_row(kind: str, saved: Saved) -> None:
    _, snapshot = saved(kind)

    def shift(value: Array) -> None:
        value[0] += 1
        value[1] -= 1

    snapshot.array("sampler/per_row", np.int64, shift)
    refused(kind, snapshot, "sampler/per_row")


def test_units_of_the_queue(saved: Saved) -> None:
    _, snapshot = saved("queue")
    snapshot.array("units", np.int64, lambda value: value.__iadd__(2**40))
    refused("queue", snapshot, "units")


@pytest.mark.parametrize(("kind", "begin"), [("queue", -1), ("queue", 2**60), ("uniform", 1)])
def test_a_queue_that_begins_nowhere(kind: str, begin: int, saved: Saved) -> None:
    """Without a queue, as where every row may be drawn, it does not begin either."""
    _, snapshot = saved(kind)
    snapshot.array("sampler/begin", np.int64, lambda value: value.fill(begin))
    refused(kind, snapshot, "sampler/begin")


# -- flags ------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [255, 32, 0, 2, 16, 1 | 8 | 2])
@pytest.mark.parametrize("kind", ["uniform", "sequences", "stacked"])
def test_flags(kind: str, flags: int, saved: Saved) -> None:
    """Of a row: beyond the last bit, not valid and yet something, cut and ended at once.

    0 is a row that nothing was written to, of which a unit must not be there.
    """
    _, snapshot = saved(kind)
    snapshot.array("flags", np.uint8, lambda value: value.fill(flags))
    refused(kind, snapshot, "flags|sampler")


@pytest.mark.parametrize("name", ["chain/newest_goes_on", "chain/episode_open"])
def test_what_is_left_open(name: str, saved: Saved) -> None:
    _, snapshot = saved("uniform")
    snapshot.array(name, np.uint8, lambda value: value.fill(128))
    refused("uniform", snapshot, name)


def test_an_open_end_that_has_ended(saved: Saved) -> None:
    replay, snapshot = saved("uniform")
    goes_on = replay._chain.newest_goes_on
    snapshot.array("chain/newest_goes_on", bool, lambda value: np.copyto(value, ~goes_on))
    refused("uniform", snapshot, "chain/newest_goes_on")


# -- priorities -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["prioritized", "sequences"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 1e308, 0.0, 0.5])
@pytest.mark.parametrize("level", [0, 1])
def test_sums_of_priorities(kind: str, value: float, level: int, saved: Saved) -> None:
    """Of both levels of the tree; 64 or 16 units have 5 or 2 nodes above them."""
    _, snapshot = saved(kind)
    snapshot.array(f"priority/sum{level}", np.float64, lambda sums: sums.fill(value))
    refused(kind, snapshot, f"priority/sum{level}")


def test_a_single_sum_that_is_off(saved: Saved) -> None:
    """A node that promises more than its leaves have would draw leaves that are empty."""
    _, snapshot = saved("prioritized")
    snapshot.array("priority/sum1", np.float64, lambda sums: sums.__setitem__(0, sums[0] * 1.001))
    refused("prioritized", snapshot, "priority/sum1")


def test_a_minimum_that_is_off(saved: Saved) -> None:
    _, snapshot = saved("prioritized")
    snapshot.array("priority/min1", np.float64, lambda least: least.__setitem__(0, 0.0))
    refused("prioritized", snapshot, "priority/min1")


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_the_highest_priority(value: float, saved: Saved) -> None:
    _, snapshot = saved("prioritized")
    snapshot.array("priority/highest", np.float64, lambda highest: highest.fill(value))
    refused("prioritized", snapshot, "priority/highest")


@pytest.mark.parametrize("value", [np.inf, -1.0])
def test_priorities_of_rows(value: float, saved: Saved) -> None:
    _, snapshot = saved("sequences")
    snapshot.array("row_priority", np.float32, lambda rows: rows.fill(value))
    refused("sequences", snapshot, "row_priority")


# -- places of frames -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["obs/older", "obs/last"])
@pytest.mark.parametrize("value", [-1, 2**30])
def test_places_of_frames(name: str, value: int, saved: Saved) -> None:
    _, snapshot = saved("stacked")
    snapshot.array(name, np.int32, lambda slots: slots.fill(value))
    refused("stacked", snapshot, name)


@pytest.mark.parametrize("name", ["free", "last_slots", "last_rows", "first_slots", "first_rows"])
@pytest.mark.parametrize("value", [-1, 2**40])
def test_places_that_are_given_out(name: str, value: int, saved: Saved) -> None:
    _, snapshot = saved("stacked")
    snapshot.array(f"obs/{name}", np.int64, lambda slots: slots.__setitem__(0, value))
    refused("stacked", snapshot, "obs/")


# -- actions, and other numbers of a kind -----------------------------------------------------


def in_spaces() -> Replay:
    """A replay of 8 rows, of spaces: Discrete(5) and Box(1, 2, (2,)), with a skill of 3."""
    spec = ReplaySpec.from_spaces(
        gymnasium.spaces.Dict(at=gymnasium.spaces.Discrete(4)),
        gymnasium.spaces.Dict(
            choice=gymnasium.spaces.Discrete(5, start=7),
            force=gymnasium.spaces.Box(1.0, 2.0, (2,), np.float32),
        ),
        2,
        extras={"skill": LeafSpec((), torch.float32)},
        bounds={"extra/skill": (0.0, 2.0)},
    )
    return Replay(ReplayConfig(capacity=16, extras=("skill",)), spec)


@pytest.mark.parametrize(
    ("name", "dtype", "value"),
    [
        ("action/choice", np.int64, 5),
        ("action/choice", np.int64, -1),
        ("action/choice", np.int64, 2**40),
        ("action/force", np.float32, 2.5),
        ("action/force", np.float32, np.nan),
        ("extra/skill", np.float32, 3.0),
        ("extra/skill", np.float32, np.nan),
    ],
)
def test_values_outside_their_space(name: str, dtype: Any, value: float, tmp_path: Path) -> None:
    """What indexes a table ended in an IndexError of the first update, or stopped a GPU."""
    snapshot = saved_in_spaces(tmp_path / "a")
    in_spaces().load(tmp_path / "a")
    snapshot.array(name, dtype, lambda values: values.__setitem__(1, value))
    other = in_spaces()
    with pytest.raises(CorruptCheckpointError, match=name):
        other.load(tmp_path / "a")
    assert len(other) == 0


@pytest.mark.parametrize(("name", "value"), [("obs/at", 4), ("next_obs/at", -1)])
def test_observations_that_left_their_space_are_those_of_the_run(
    name: str, value: int, tmp_path: Path
) -> None:
    """They train, as zeros, so they are resumed; another run's may be of another space."""
    snapshot = saved_in_spaces(tmp_path / "a")
    in_spaces().load(tmp_path / "a", of_another_run=True)
    snapshot.array(name, np.int64, lambda values: values.__setitem__(1, value))
    other = in_spaces()
    other.load(tmp_path / "a")
    assert int(other._arena[name][1]) == value
    with pytest.raises(IncompatibleCheckpointError, match=f"{name} holds {value}, .* this run"):
        other.load(tmp_path / "a", of_another_run=True)
    assert len(other) == 0


def saved_in_spaces(directory: Path) -> Snapshot:
    """Of 4 rows with the highest values of their spaces."""
    replay = in_spaces()
    rows = 4
    replay._move_to(rows, 0)
    replay._arena["flags"][: 2 * rows] = 1
    replay._arena["action/choice"][: 2 * rows] = 4
    replay._arena["action/force"][: 2 * rows] = torch.tensor([1.0, 2.0])
    replay._arena["obs/at"][: 2 * rows] = 3
    for array in replay._arena.arrays.values():
        array.touch(0, array.rows)
    replay._sampler.advance_whole(0, 0, rows)
    replay._chain = replay._chain._replace(newest_goes_on=np.ones(2, dtype=bool),
                                           episode_open=np.ones(2, dtype=bool))  # fmt: skip
    replay.save(directory)
    return Snapshot(directory)


# -- the list of files ------------------------------------------------------------------------

LISTS: list[tuple[tuple[Any, ...], Any]] = [
    *((("files",), value) for value in ("x", 7, None, [], ["a.bin"], {"../x.bin": [1, "a"]})),
    *((("files",), {"x.bin": value}) for value in ("x", [1], [-1, "a"], [True, "a"], [2**70, 5])),
    (("files",), {"x.bin": [2**50, "0" * 64]}),
    *((("arrays",), value) for value in ("x", 7, [], {"reward": 5}, {"reward": {}})),
    *((("arrays", "reward", "rows"), value) for value in (2**45, -1, "x", 63, 65, True)),
    *((("arrays", "reward", "row_bytes"), value) for value in (8, "x", None)),
    *((("arrays", "reward", "chunks"), value) for value in ("x", [], {"0": "y.bin"}, {"0": 5})),
    *((("host_arrays",), value) for value in ("x", 7, [], {}, {"chain/episode_open": 5})),
    *((("chunk_bytes",), value) for value in (0, -1, "x", 2**80, True, None)),
    *((("header",), value) for value in ("x", 7, [], {}, None, {"head": 48})),
    *((("header", "layout"), value) for value in ("x", 7, [], None)),
    *((("header", "complete"), value) for value in ("x", -1, 7, 2**70)),
]


@pytest.mark.parametrize(("path", "value"), LISTS, ids=str)
def test_the_list_of_a_snapshot(path: tuple[Any, ...], value: Any, saved: Saved) -> None:
    """None of them may end in another error than one of Redline's, or read far."""
    _, snapshot = saved("uniform")
    snapshot.set(*path, value=value)
    other = make("uniform")
    with pytest.raises(RedlineError) as caught:
        other.load(snapshot.directory)
    assert "Error: " not in str(caught.value)  # the sentence is not another error's
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("change", ["-1", "x", "00", "99999", "9" * 30])
def test_the_number_of_a_chunk(change: str, saved: Saved) -> None:
    _, snapshot = saved("uniform")
    (file,) = snapshot.body["arrays"]["reward"]["chunks"].values()
    snapshot.set("arrays", "reward", "chunks", value={change: file})
    with pytest.raises(RedlineError) as caught:
        make("uniform").load(snapshot.directory)
    assert "Error: " not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("obs/last_obs", {"dtype": "O"}),
        ("obs/last_obs", {"dtype": "no"}),
        ("obs/last_obs", {"dtype": 5}),
        ("obs/last_obs", {"shape": [2**40]}),
        ("obs/last_obs", {"shape": "x"}),
        ("obs/last_obs", {"shape": [24]}),
        ("obs/last_obs", {"file": "../x"}),
        ("obs/last_obs", {"file": ["x"]}),
        ("sampler/span", {"dtype": "float64"}),
        ("sampler/span", {"shape": [1, 3]}),
        ("sampler/span", None),
        ("chain/episode_open", None),
        ("obs/last_obs", None),
    ],
)
def test_small_arrays_of_another_kind(
    name: str, change: dict[str, Any] | None, saved: Saved
) -> None:
    _, snapshot = saved("uniform")
    if change is None:
        del snapshot.body["host_arrays"][name]
    else:
        snapshot.body["host_arrays"][name].update(change)
    snapshot.sign()
    refused("uniform", snapshot, name)


@pytest.mark.parametrize(
    "files",
    ["x", 7, None, ["a.bin"], {"../x.bin": [1, "a"]}, {"a.bin": "x"}, {"a.bin": [2**60, "a"]},
     {"a.bin": [-1, "a"]}, {"a.bin": [5, 5]}, {"/etc/passwd": [5, "a"]}, {"a.bin": [5, "a", 5]}],
    ids=str,
)  # fmt: skip
def test_verifying_reads_nothing_of_a_strange_list(files: Any, saved: Saved) -> None:
    _, snapshot = saved("uniform")
    snapshot.set("files", value=files)
    with pytest.raises(CorruptCheckpointError) as caught:
        verify_snapshot(snapshot.directory)
    assert "Error: " not in str(caught.value)


def test_verifying_takes_no_memory_for_a_size_that_is_claimed(saved: Saved) -> None:
    """2**50 bytes were reserved before anybody looked at the file."""
    _, snapshot = saved("uniform")
    name = next(iter(snapshot.body["files"]))
    snapshot.body["files"][name][0] = 2**50
    snapshot.sign()
    with pytest.raises(CorruptCheckpointError, match=r"instead of 1125899906842624"):
        verify_snapshot(snapshot.directory)

"""What is added to a replay on a device: by one copy and one graph, and the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from redline.data import Rollout
from redline.errors import ConfigError
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.device_queue import DeviceQueue, fetched
from redline.replay.staged import StagedPath
from tests.accelerator import emulated_graph
from tests.accelerator.stand_in import StandInDevice
from tests.replay.streams import Stream

SEQUENCES = {"sequence_length": 4, "burn_in": 1, "state_interval": 4, "prioritized": True}
KINDS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "prioritized": {"prioritized": True},
    "three steps": {"n_step": 3},
    "sequences": SEQUENCES,
}


def replay(kind: str, first: Rollout) -> Replay:
    """A ring of 12 rows, which rollouts of 4 fill three times and of 5 wrap around."""
    settings = {"capacity": 24, "storage": "device", "device": "standin", **KINDS[kind]}
    return Replay(ReplayConfig(**settings), ReplaySpec.from_rollout(first))


def one_by_one(made: Replay) -> Replay:
    """Writes as they were before they were gathered, and staged."""
    made._is_gathered, made._plain = False, None
    return made


def stream(kind: str, *, is_usual: bool) -> Stream:
    """Episodes that end, and break off and leave filler rows, if it is not the usual one."""
    rate, late = (0.0, False) if is_usual else (0.1, kind != "sequences")
    return Stream(3, end_rate=0.2, break_rate=rate, late_reset=late)


def with_state(rollout: Rollout, kind: str) -> Rollout:
    if kind == "sequences":
        rollout.initial_state = {"hidden": rollout["reward"][0, :, None].repeat(1, 3).clone()}
    return rollout


def contents(made: Replay) -> dict[str, Tensor]:
    """All arrays, and what is drawn by; every bit, those of NaN included."""
    if made._plain is not None:
        made._plain.mark_changed(made.head)  # which is put off until a save
    found = {name: array.tensor.cpu() for name, array in made._arena.arrays.items()}
    found |= {"span": made._sampler._span.cpu(), "head": made._head_tensor.cpu()}
    found |= {
        f"{name}/written": torch.from_numpy(array.written.copy())
        for name, array in made._arena.arrays.items()
    }
    return {name: each.reshape(-1).view(torch.uint8) for name, each in found.items()}


@pytest.mark.parametrize("on_device", [False, True], ids=["from the host", "from the device"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_usual", [False, True], ids=["with breaks", "usual"])
def test_gathered_writes_leave_the_same_bytes(
    kind: str, on_device: bool, is_usual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also captured, around the ring's end, past breaks and with priorities now and then."""
    staged: list[int] = []
    pass_on = StagedPath._pass_on
    monkeypatch.setattr(
        StagedPath, "_pass_on", lambda *given: (staged.append(given[2]), pass_on(*given))[1]
    )
    rows = stream(kind, is_usual=is_usual)
    first = with_state(rows.rollout(4), kind)
    made = [one_by_one(replay(kind, first)), replay(kind, first), replay(kind, first)]
    made[2].capture_writes()
    rollout = first
    for number in range(9):
        priorities = None
        if number % 3 == 2 and made[0].config.prioritized:
            priorities = rollout["reward"].abs()
        if on_device:
            rollout = rollout.to("standin")
            priorities = None if priorities is None else priorities.to("standin")
        for each in made:
            each.add(rollout, priorities)
        wanted, gathered, captured = map(contents, made)
        for name, value in wanted.items():
            assert torch.equal(gathered[name], value), (number, name)
            assert torch.equal(captured[name], value), (number, name)
        length = 4 if kind == "sequences" or number % 4 else 5
        rollout = with_state(rows.rollout(length), kind)
    assert len(made[0]) == len(made[1]) == len(made[2]) > 0
    if is_usual and not on_device and kind != "sequences":
        assert {4, 5} <= set(staged)  # all but the first, and those with priorities


@pytest.mark.parametrize(
    ("kind", "on_device", "most", "waits"),
    [
        ("uniform", False, 2, 0),
        ("three steps", False, 2, 0),
        ("uniform", True, 4, 1),
        ("prioritized", False, 2, 1),
        ("prioritized", True, 4, 2),
    ],
)
def test_a_rollout_is_added_by_one_copy_and_one_graph(
    kind: str, on_device: bool, most: int, waits: int, accelerator: StandInDevice
) -> None:
    """From a device two more: what lies there is put side by side and fetched at once.

    Prioritized replay looks once whether a priority was bad.
    """
    rows = Stream(0, end_rate=0.0)
    rollouts = [rows.rollout(4) for _ in range(6)]
    made = replay(kind, rollouts[0])
    made.capture_writes()
    for each in rollouts:
        given = each.to("standin") if on_device else each
        accelerator.reset()
        made.add(given)
    assert accelerator.num_launches() <= most
    assert accelerator.launches["graph"] == 1
    assert len(accelerator.read_backs) == waits


def test_a_bad_priority_is_refused_before_anything_is_written() -> None:
    rows = Stream(0, end_rate=0.0)
    first = rows.rollout(4)
    made = replay("prioritized", first)
    made.add(first)
    before = contents(made)
    bad = torch.full((4, 2), -1.0)
    with pytest.raises(ConfigError, match="negative"):
        made.add(rows.rollout(4), bad)
    for name, value in contents(made).items():
        assert torch.equal(value, before[name])


def test_work_is_done_in_its_order_and_all_of_it_by_one_copy(accelerator: StandInDevice) -> None:
    """(0 + 1) * 3 = 3, not 1; what comes in other shapes does not use the first's graph."""
    total = torch.zeros(2).to("standin")
    queue = DeviceQueue(total.device)
    queue.captures = True

    def both(one: float, three: float, size: int) -> list[float]:
        accelerator.reset()
        with queue.gathered():
            queue.put("set", total[:size].copy_, torch.full((size,), one))
            queue.put("times", lambda by: total[:size].copy_(total[:size] * by[:1]).detach(),
                      torch.full((2,), three))  # fmt: skip
        launches.append(dict(accelerator.launches))
        return total.cpu().tolist()

    launches: list[dict[str, int]] = []
    assert both(1.0, 3.0, 2) == [3.0, 3.0]
    assert both(2.0, 3.0, 2) == [6.0, 6.0]
    assert both(4.0, 0.5, 2) == [2.0, 2.0]
    assert launches[-1] == {"copy": 1, "graph": 1}
    assert both(5.0, 2.0, 1) == [10.0, 2.0]


def test_writes_that_cannot_be_captured_are_made_without_a_graph(
    accelerator: StandInDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The capture's error ended the run, though all had been written by then."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory")

    total = torch.zeros(2).to("standin")
    queue = DeviceQueue(total.device)
    queue.captures = True
    monkeypatch.setattr(emulated_graph.EmulatedGraphs, "capture", fail)
    found: list[list[float]] = []

    def write(number: float) -> None:
        with queue.gathered():
            queue.put("set", total.copy_, torch.full((2,), number))
        found.append(total.cpu().tolist())

    write(1.0)
    with pytest.warns(UserWarning, match="cannot capture what is written to replay on standin"):
        write(2.0)
    write(3.0)
    assert found == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_tensors_of_all_types_are_fetched_at_once(accelerator: StandInDevice) -> None:
    wanted = [
        torch.tensor([True, False, True]),
        torch.arange(6).view(2, 3),
        torch.tensor(1.5, dtype=torch.float64),
        torch.zeros(0, 4),
        torch.arange(8.0).view(2, 4).t(),
    ]
    there = [each.to("standin") for each in wanted]
    near = torch.ones(2)
    accelerator.reset()
    found = fetched([*there, near])
    assert len(accelerator.read_backs) == 1
    for one, other in zip(wanted, found, strict=False):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    assert found[-1] is near


@pytest.mark.parametrize("device", ["cpu", "standin"])
def test_saved_contents_take_the_place_of_what_was_added_since(device: str, tmp_path: Path) -> None:
    """Rows added after the save lie in chunks that the saved contents leave empty."""
    storage = {"storage": "memory"} if device == "cpu" else {"storage": "device", "device": device}
    rows = Stream(0, end_rate=0.1)
    rollouts = [rows.rollout(512) for _ in range(8)]
    settings: dict[str, Any] = {"capacity": 2**14, "chunk_bytes": 4096, **storage}
    made, other = (
        Replay(ReplayConfig(**settings), ReplaySpec.from_rollout(rollouts[0])) for _ in range(2)
    )
    for number, each in enumerate(rollouts):
        made.add(each)
        if number == 1:
            made.save(tmp_path / "saved")
    made.load(tmp_path / "saved")
    other.load(tmp_path / "saved")
    assert made.head == other.head == 1024
    for name, value in contents(other).items():
        assert torch.equal(contents(made)[name], value), name


@pytest.mark.parametrize("kind", ["bfloat16", "requires grad"])
def test_what_numpy_cannot_look_at_is_added_all_the_same(kind: str) -> None:
    rows = Stream(0, end_rate=0.0)
    first = rows.rollout(4)

    def changed(rollout: Rollout) -> Rollout:
        extra = torch.full((4, 2), 0.5)
        extra = extra.bfloat16() if kind == "bfloat16" else extra.requires_grad_()
        rollout.steps.set("log_prob", extra)
        return rollout

    spec = ReplaySpec.from_rollout(changed(first), extras=("log_prob",))
    made = Replay(ReplayConfig(capacity=24, storage="device", device="standin"), spec)
    made.add(first)
    made.add(changed(rows.rollout(4)))
    drawn = made.sample(16, torch.Generator("standin").manual_seed(0))
    assert made.head == 8
    assert drawn["log_prob"].float().cpu().tolist() == [0.5] * 16

"""What is collected on the host comes to the device by one copy, and stays in one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from redline.devices import kind_of
from redline.engines.staged_copies import StagedCopies
from redline.train.loops.on_policy_loop import OnPolicyLoop
from tests.accelerator.learning import batches
from tests.accelerator.stand_in import StandInDevice
from tests.accelerator.test_runs import run
from tests.engines.learners import sequences


@pytest.mark.parametrize("name", ["ppo-box", "sac", "r2d1"])
def test_everything_arrives_by_one_copy(name: str, accelerator: StandInDevice) -> None:
    first, second = batches(name, 2)
    staged = StagedCopies(torch.device("standin"))
    for value in (first, second):
        accelerator.reset()
        arrived = staged(value)
        assert accelerator.num_launches() == accelerator.launches["copy"] == 1
        assert not accelerator.read_backs
        wanted, found = leaves(value), leaves(arrived)
        assert wanted.keys() == found.keys()
        for key, leaf in wanted.items():
            assert found[key].device.type == "standin"
            assert torch.equal(found[key].cpu(), leaf)
    assert staged(first) is arrived


def leaves(value: Any) -> dict[str, torch.Tensor]:
    parts = value if isinstance(value, dict) else {}
    if hasattr(value, "items"):
        parts = dict(value.items())
    elif hasattr(value, "steps"):
        parts = {"steps": value.steps, "state": value.initial_state}
    if isinstance(value, torch.Tensor):
        return {"": value}
    return {f"{k}.{n}": leaf for k, part in parts.items() for n, leaf in leaves(part).items()}


def test_other_shapes_get_other_room_and_what_is_there_stays() -> None:
    staged = StagedCopies(torch.device("standin"))
    rows = batches("sac", 1)[0]
    assert len(staged(rows)["reward"]) == 16
    assert len(staged(rows[:5])["reward"]) == 5
    there = sequences(0).to("standin")
    assert torch.equal(staged(there).weight.cpu(), sequences(0).weight)


def test_what_lies_there_already_is_copied_there(accelerator: StandInDevice) -> None:
    """As of a recurrent policy on the device: rows of the host, and the state it began with."""
    rollout = batches("ppo-box", 1)[0]
    state = torch.arange(8.0).view(4, 2).to("standin")
    rollout.initial_state = {"hidden": state}
    staged = StagedCopies(torch.device("standin"))
    staged(rollout)
    accelerator.reset()
    arrived = staged(rollout)
    assert accelerator.num_launches() == accelerator.launches["copy"] == 2
    assert not accelerator.read_backs
    assert torch.equal(arrived.initial_state["hidden"].cpu(), torch.arange(8.0).view(4, 2))
    assert torch.equal(arrived["reward"].cpu(), rollout["reward"])
    state.add_(1.0)
    assert torch.equal(staged(rollout).initial_state["hidden"].cpu(), state.cpu())


def test_memory_is_not_written_before_its_copy_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call waits for what the first one marked."""
    waited: list[int] = []
    count = iter(range(9))

    def mark(*_: Any) -> Callable[[], None]:
        number = next(count)
        return lambda: waited.append(number)

    monkeypatch.setattr(type(kind_of("standin")), "mark", mark)
    staged, rows = StagedCopies(torch.device("standin")), batches("sac", 1)[0]
    staged(rows)
    assert waited == []
    staged(rows)
    assert waited == [0]


SCALED = {"scale_reward": True, "normalize_obs": True}


@pytest.mark.parametrize(
    ("name", "most", "settings"),
    [
        ("ppo", 1, SCALED),
        ("ppo-host-envs", 3, SCALED | {"learning_rate_schedule": "linear"}),
        ("ppo-mirrored", 1, SCALED),
        ("reinforce", 1, {"normalize_obs": True}),
    ],
)
def test_an_iteration_learns_in_one_launch(
    name: str,
    most: int,
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accelerator: StandInDevice,
) -> None:
    """The graph, with sums and statistics; one copy of what was collected on the host; the rate."""
    learn, launches = OnPolicyLoop._learn, []

    def counted(self: OnPolicyLoop, rollout: Any, collected: int) -> None:
        before, read = accelerator.num_launches(), len(accelerator.read_backs)
        learn(self, rollout, collected)
        launches.append(accelerator.num_launches() - before)
        assert len(launches) < 3 or len(accelerator.read_backs) == read

    monkeypatch.setattr(OnPolicyLoop, "_learn", counted)
    run(tmp_path, name, total_env_steps=48, **settings)
    assert launches[-1] == most

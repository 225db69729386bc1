"""Every kind of mistake in what goes into a policy or comes out, named by its key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from redline.errors import DeviceError, PlacementError
from redline.policies import ActOutput, DeviceCheck, make_policy

OBS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (1, 4, 4), np.uint8),
        "state": spaces.Box(-1, 1, (3,), np.float64),
    }
)
ACTION = spaces.Dict({"move": spaces.Discrete(3), "push": spaces.Box(-1, 1, (2,), np.float32)})


def inputs(**changes: Any) -> tuple[Any, Any, Any, Any]:
    """What is right for two environments, but for `changes`."""
    obs = {
        "image": torch.zeros(2, 1, 4, 4, dtype=torch.uint8),
        "state": torch.zeros(2, 3),
    } | changes.get("obs", {})
    state = {"hidden": torch.zeros(2, 5)} | changes.get("state", {})
    noise = changes.get("noise", torch.zeros(2, 5))
    conditioning = {"greedy": torch.zeros(2, dtype=torch.bool)} | changes.get("conditioning", {})
    return obs, state, noise, conditioning


def checked() -> DeviceCheck:
    policy = make_policy(OBS, ACTION, core="gru", core_size=5, hidden_sizes=(4,))
    assert set(policy.initial_state(1)) == {"hidden"}
    return DeviceCheck(policy)


def test_right_data_pass_and_the_answer_is_the_policys() -> None:
    check = checked()
    output, plain = check.act(*inputs()), check.policy.act(*inputs())
    assert torch.equal(output.action["push"], plain.action["push"])  # type: ignore[call-overload,index]
    assert torch.equal(output.extras["log_prob"], plain.extras["log_prob"])
    obs, state, _, _ = inputs()
    assert torch.equal(check.value(obs, state), check.policy.value(obs, state))
    assert check.act(obs, state, None).extras.keys() == {"log_prob", "value"}
    assert check.device == torch.device("cpu")


META = torch.zeros(2, 3, device="meta")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": {"state": META}}, r"obs 'state' is on meta, expected cpu"),
        (
            {"obs": {"state": torch.zeros(2, 4)}},
            r"obs 'state' has the shape \(2, 4\), expected \[2, 3\]",
        ),
        (
            {"obs": {"state": torch.zeros(2, 3).double()}},
            "obs 'state' is torch.float64, expected torch.float32",
        ),
        (
            {"obs": {"image": torch.zeros(2, 1, 4, 4)}},
            "obs 'image' is torch.float32, expected torch.uint8",
        ),
        (
            {"obs": {"state": np.zeros((2, 3), np.float32)}},
            "obs 'state' is a ndarray, expected a tensor",
        ),
        ({"obs": {"more": torch.zeros(2)}}, r"obs has the keys \['image', 'more', 'state'\]"),
        (
            {"state": {"hidden": torch.zeros(3, 5)}},
            r"state 'hidden' has the shape \(3, 5\), expected \[2, 5\]",
        ),
        (
            {"state": {"c": torch.zeros(2, 5)}},
            r"state has the keys \['c', 'hidden'\], expected \['hidden'\]",
        ),
        ({"noise": torch.zeros(2, 4)}, r"noise has the shape \(2, 4\), expected \[2, 5\]"),
        ({"noise": torch.zeros(2, 5).double()}, "noise is torch.float64"),
        (
            {"conditioning": {"greedy": torch.zeros(1, dtype=torch.bool)}},
            "conditioning 'greedy' has the shape",
        ),
        ({"conditioning": {"skill": META}}, "conditioning 'skill' is on meta"),
    ],
)
def test_a_wrong_input_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        checked().act(*inputs(**changes))


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        (
            "action",
            {"move": torch.zeros(2), "push": torch.zeros(2, 2)},
            "action 'move' is torch.float32, expected torch.int64",
        ),
        (
            "action",
            {"move": torch.zeros(2).long(), "push": torch.zeros(2, 1)},
            r"action 'push' has the shape \(2, 1\), expected \[2, 2\]",
        ),
        ("action", {"move": torch.zeros(2).long()}, r"action has the keys \['move'\]"),
        (
            "extras",
            {"value": torch.zeros(2)},
            r"extras has the keys \['value'\], expected \['log_prob', 'value'\]",
        ),
        (
            "extras",
            {"value": torch.zeros(2, 1), "log_prob": torch.zeros(2)},
            r"extras 'value' has the shape \(2, 1\), expected \[2\]",
        ),
        (
            "state",
            {"hidden": torch.zeros(2, 5, device="meta")},
            "the state it gave 'hidden' is on meta",
        ),
    ],
)
def test_a_wrong_output_is_named(part: str, value: Any, message: str) -> None:
    check = checked()
    good = check.policy.act

    def act(*arguments: Any) -> ActOutput:
        return good(*arguments)._replace(**{part: value})

    check.policy.act = act  # type: ignore[method-assign]
    with pytest.raises(PlacementError, match=message):
        check.act(*inputs())


def test_parameters_on_two_devices_are_refused() -> None:
    policy = make_policy(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), hidden_sizes=(4,))
    policy.value_head.to("meta")
    with pytest.raises(DeviceError, match=r"parameter 'value_head.weight' is on meta, expected"):
        DeviceCheck(policy)
    with pytest.raises(PlacementError, match="is on cpu, expected meta"):
        DeviceCheck(
            make_policy(spaces.Box(-1, 1, (3,)), spaces.Discrete(2), hidden_sizes=(4,)), "meta"
        )

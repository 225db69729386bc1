"""Previous actions and rewards on a device are those beside arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from redline.data import leaves
from redline.envs import make_device_vec, make_vec
from redline.envs.device.mirrored import MirroredEnv
from redline.envs.device.previous_inputs import DevicePreviousInputs
from redline.envs.previous_inputs import PreviousInputs
from redline.previous_inputs import ACTION, REWARD
from tests.collect.scripted import ScriptedEnv


@pytest.mark.parametrize("filler", [False, True])
def test_they_equal_those_beside_arrays(filler: bool) -> None:
    """Ends, truncations, filler rows and idle environments; tests/envs has the table by hand."""

    def scripted() -> ScriptedEnv:
        return ScriptedEnv([[2], [3, 1]], ["terminated", "truncated"], filler=filler)

    here, there = PreviousInputs(scripted()), DevicePreviousInputs(MirroredEnv(scripted(), "cpu"))
    obs, expected = there.reset(0), here.reset(0)
    rng = np.random.default_rng(0)
    for t in range(12):
        assert_same(obs, expected)
        action, active = rng.integers(0, 10, 2), None
        if not filler and t % 3 == 2:
            active = np.array([True, False])
        given = None if active is None else torch.from_numpy(active)
        step = there.step(torch.from_numpy(action), given)
        wanted = here.step(action, active)
        obs, expected = step.obs, wanted.obs
        if wanted.final_obs is not None:
            ended = wanted.terminated | wanted.truncated
            for (_, leaf), (_, of) in zip(
                leaves(step.final_obs), leaves(wanted.final_obs), strict=True
            ):
                assert leaf.numpy()[ended].tolist() == of[ended].tolist()


def assert_same(obs: Any, expected: Any) -> None:
    assert {name: leaf.tolist() for name, leaf in leaves(obs)} == {
        name: leaf.tolist() for name, leaf in leaves(expected)
    }


def test_native_games_show_them_and_go_on_exactly() -> None:
    def make() -> Any:
        return make_device_vec("redline/CartPole-v1", 3, device="cpu", observe_previous=True)

    first, second = make(), make()
    first.reset(1)
    actions = torch.randint(0, 2, (60, 3), generator=torch.Generator().manual_seed(0))
    for action in actions[:30]:
        step = first.step(action)
        ended = step.terminated | step.truncated
        assert (step.obs[ACTION].sum(1) == (~ended).float()).all()
        assert (step.obs[ACTION][~ended].argmax(1) == action[~ended]).all()
        assert (step.obs[REWARD][~ended] == 1.0).all()
        assert (step.final_obs[ACTION].argmax(1) == action).all()
    assert_same(second.load_state_dict(first.state_dict()), step.obs)
    for action in actions[30:]:
        assert_same(first.step(action).obs, second.step(action).obs)


def test_what_is_only_delivered_to_a_device_has_them_once() -> None:
    device = make_device_vec("CartPole-v1", 2, device="cpu", observe_previous=True)
    with make_vec("CartPole-v1", 2, observe_previous=True) as env:
        assert device.observation_space == env.observation_space
    device.close()

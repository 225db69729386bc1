"""Environments of the CPU delivered to a device: nothing may be lost or mixed up on the way."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from redline.envs import make_device_vec, make_vec
from redline.envs.device.mirrored import MirroredEnv
from redline.errors import EnvError
from tests.collect.scripted import ScriptedEnv

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no CUDA device"))]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_episodes_and_fillers_by_hand(device: str) -> None:
    """Environment 0: episodes of 2 steps cut short, then a filler; 1: of 3 that terminate."""
    env = MirroredEnv(ScriptedEnv([[2], [3]], ["truncated", "terminated"], filler=True), device)
    assert env.reset(0).tolist() == [[0], [100]]  # type: ignore[union-attr]
    seen = []
    for _ in range(4):
        step = env.step(torch.zeros(2, dtype=torch.int64, device=device))
        assert {part.device.type for part in step} == {device}  # type: ignore[union-attr]
        seen.append([part.flatten().tolist() for part in step])  # type: ignore[union-attr]
    names = type(step)._fields

    def column(name: str) -> list[list[float]]:
        return [row[names.index(name)] for row in seen]

    assert column("valid") == [[1, 1], [1, 1], [0, 1], [1, 0]]
    assert column("reward") == [[1, 1], [2, 2], [0, 3], [1, 0]]
    assert column("truncated") == [[0, 0], [1, 0], [0, 0], [0, 0]]
    assert column("terminated") == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert column("episode_ended") == [[0, 0], [1, 0], [0, 1], [0, 0]]
    assert column("episode_id") == [[0, 0], [0, 0], [1, 0], [1, 1]]
    assert column("episode_return")[1][0] == 3
    assert column("episode_return")[2][1] == 6
    assert column("episode_length")[2][1] == 3
    assert column("final_obs")[1][0] == 2
    assert column("final_obs")[2][1] == 103
    assert [part.dtype for part in step[1:5]] == [torch.float32, *[torch.bool] * 3]
    assert (step.episode_id.dtype, step.episode_length.dtype) == (torch.int64, torch.int64)


@pytest.mark.parametrize("device", DEVICES)
def test_any_environment_on_a_device_shows_what_it_shows_without_one(device: str) -> None:
    """Dict observations, idle environments, and saving and restoring."""

    def make() -> gymnasium.Env[object, object]:
        env = gymnasium.make("CartPole-v1", max_episode_steps=15)
        space = gymnasium.spaces.Dict({"state": env.observation_space})
        return gymnasium.wrappers.TransformObservation(env, lambda obs: {"state": obs}, space)

    rng = np.random.default_rng(0)
    with make_vec(make, 3) as plain, make_device_vec(make, 3, device=device) as env:
        assert (env.backend, env.can_idle) == ("gymnasium", True)
        np.testing.assert_array_equal(env.reset(1)["state"].cpu(), plain.reset(1)["state"])  # type: ignore[call-overload,index]
        for t in range(80):
            action = rng.integers(2, size=3)
            active = np.array([True, t % 4 > 0, True])
            theirs = plain.step(action, active)
            if t == 40:
                env.load_state_dict(env.state_dict())
            mine = env.step(
                torch.from_numpy(action).to(device), torch.from_numpy(active).to(device)
            )
            np.testing.assert_array_equal(mine.obs["state"].cpu(), theirs.obs["state"])  # type: ignore[call-overload,index]
            for name in ("reward", "terminated", "truncated", "valid"):
                np.testing.assert_array_equal(getattr(mine, name).cpu(), getattr(theirs, name))
            ended = mine.episode_ended.cpu().numpy()
            assert ended.nonzero()[0].tolist() == [record.env_id for record in theirs.episodes]
            for record in theirs.episodes:
                i = record.env_id
                assert float(mine.episode_return[i]) == record.return_
                assert int(mine.episode_length[i]) == record.length
                assert int(mine.episode_id[i]) == record.episode_id


def test_an_episode_given_up_keeps_its_number_and_a_foreign_state_is_refused() -> None:
    with make_device_vec("CartPole-v1", 2, device="cpu") as env:
        env.reset(0)
        action = torch.zeros(2, dtype=torch.int64)
        env.step(action)
        env.reset()
        assert env.step(action).episode_id.tolist() == [1, 1]
        env.raise_faults()
        with pytest.raises(EnvError, match="is not of 2 environments behind a device"):
            env.load_state_dict({"env": {}, "episode_id": np.zeros(3)})

"""A single environment's steps accounted for together, beside the same one by one."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from redline.collect import SerialCollector
from redline.collect.episodes import ResetMode
from redline.engines.acting import actor_for
from redline.envs import make_vec
from redline.envs.backends.env_loop import EnvLoop
from redline.envs.batched import BatchedEnv
from redline.envs.vec_env import VecEnv
from redline.errors import ActionError, EnvDataError
from redline.policies import make_policy
from redline.policies.policy import Policy
from tests.collect.placements import assert_equal, copied
from tests.collect.test_serial import rows
from tests.envs.scripted import Counting, Faulty, Lives

ONE = np.ones(1, np.int64)


def policy_for(env: VecEnv) -> Policy:
    torch.manual_seed(0)
    return make_policy(env.observation_space, env.action_space, hidden_sizes=(8,))


def collector(
    make_env: Any,
    length: int,
    *,
    quietly: bool,
    reset_mode: ResetMode = "immediate",
    **settings: Any,
) -> SerialCollector:
    if settings.get("episodic_life"):
        env: VecEnv = BatchedEnv(EnvLoop(make_env, 1, env_id="Lives"), "Lives", **settings)
    else:
        env = make_vec(make_env, 1, **settings)
    assert env.can_step_quietly
    env.can_step_quietly = quietly
    policy = policy_for(env)
    return SerialCollector(
        env, policy, rollout_length=length, seed=3, reset_mode=reset_mode, actor_for=actor_for
    )


class Whole(Counting):
    """Rewards that are whole numbers, of which float32 does not hold every sum."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs, 16_777_217 + int(action), terminated, truncated, info


ENVS = [
    pytest.param(lambda: Counting(length=3), {}, id="terminated"),
    pytest.param(lambda: Counting(length=4, end="truncated"), {}, id="truncated"),
    pytest.param(lambda: Counting(length=1), {}, id="every step ends"),
    pytest.param(lambda: Counting(length=100, reward=0.1), {}, id="no end"),
    pytest.param(lambda: Counting(length=3, reward=-7.5), {"clip_reward": True}, id="clipped"),
    pytest.param(Lives, {"episodic_life": True}, id="lives"),
    pytest.param(Whole, {}, id="whole numbers"),
    pytest.param("CartPole-v1", {}, id="CartPole"),
    pytest.param("Pendulum-v1", {}, id="Pendulum"),
]


@pytest.mark.parametrize(("make_env", "settings"), ENVS)
@pytest.mark.parametrize("length", [1, 2, 5, 30])
@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
def test_rollouts_and_state_are_the_same_to_the_bit(
    make_env: Any, settings: dict[str, Any], length: int, reset_mode: ResetMode
) -> None:
    with (
        collector(make_env, length, quietly=True, reset_mode=reset_mode, **settings) as quiet,
        collector(make_env, length, quietly=False, reset_mode=reset_mode, **settings) as plain,
    ):
        for _ in range(4):
            assert_equal(copied(quiet.collect()), copied(plain.collect()))
        found, wanted = quiet.state_dict(), plain.state_dict()
    for state in (found, wanted):
        state["actors"][0]["env"].pop("simulators")  # objects of their own; their effects are above
    np.testing.assert_equal(found, wanted)


def test_quiet_steps_go_on_from_a_checkpoint_bit_for_bit() -> None:
    with (
        collector("CartPole-v1", 7, quietly=True) as first,
        collector("CartPole-v1", 7, quietly=True) as second,
    ):
        first.collect()
        second.load_state_dict(first.state_dict())
        for _ in range(5):
            assert_equal(copied(second.collect()), copied(first.collect()))


def test_most_steps_are_quiet_and_settled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two rollouts of 5 steps with an end after every 4th: 4 + 4 quiet, 2 that are not."""
    monkeypatch.setattr("redline.collect.quiet_steps._MAX_DELAY_S", math.inf)
    with collector(lambda: Counting(length=4), 5, quietly=True) as quiet:
        settled: list[int] = []
        env, settle = quiet.env, quiet.env.settle

        def counted() -> Any:
            rewards = settle()
            settled.append(len(rewards))
            return rewards

        env.settle = counted  # type: ignore[method-assign]
        quiet.collect()
        quiet.collect()
    assert [count for count in settled if count] == [3, 1, 2, 2]


def test_rewards_are_summed_in_float64() -> None:
    """3 * 16,777,217 and more is exact in float64; float32 would lose the ones."""
    with collector(Whole, 3, quietly=True) as quiet:
        rollout = quiet.collect()
        actions = int(rollout["action"].sum())
        (episode,) = rollout.episodes
    assert episode.return_ == 3 * 16_777_217 + actions


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan obs", r"environment 0, step 3: the observation\[0\] is nan"),
        ("inf reward", "environment 0, step 3: the reward is inf"),
        ("no reward", "environment 0.*reward is"),
        ("shape", r"environment 0: observation has shape \(3,\)"),
    ],
)
def test_bad_data_is_refused_in_the_step_that_made_it(fault: str, message: str) -> None:
    with (
        collector(lambda: Faulty(fault), 8, quietly=True) as quiet,
        pytest.raises(EnvDataError, match=message),
    ):
        quiet.collect()


def test_what_was_done_before_an_exception_counts() -> None:
    """Two good steps, then the environment raises: an episode of two steps goes on."""
    with collector(lambda: Faulty("raise"), 8, quietly=True) as quiet:
        with pytest.raises(KeyError, match="the door is locked"):
            quiet.collect()
        book = quiet.state_dict()["actors"][0]["env"]["episodes"]
    assert book["length"].tolist() == [2]
    assert math.isfinite(book["return"][0])


def test_an_unfinished_rollout_shows_the_steps_of_a_slow_environment() -> None:
    """While the sixth step is waited for, five are there; the last may be 10 ms late."""
    gate = threading.Event()

    class Slow(Counting):
        def step(self, action: Any) -> Any:
            time.sleep(0.02)
            if self.t == 5:
                gate.wait(20)
            return super().step(action)

    with collector(lambda: Slow(length=100), 8, quietly=True) as quiet:
        future = quiet.collect_async()
        deadline = time.monotonic() + 20
        while (partial := future.partial()).num_valid() < 5:
            assert time.monotonic() < deadline, "no progress"
            time.sleep(0.005)
        assert rows(partial, "reward") == [1, 2, 3, 4, 5, 0, 0, 0]
        gate.set()
        assert rows(future.result(), "reward") == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("steps", [1, 4])
def test_an_interrupt_after_a_step_loses_nothing(steps: int) -> None:
    """It comes when the environment has stepped and before the collector has counted."""
    with collector(lambda: Counting(length=100), 8, quietly=True) as quiet:
        env, step = quiet.env, quiet.env.step_quietly
        left = steps

        def interrupted(action: Any) -> bool:
            nonlocal left
            is_quiet, left = step(action), left - 1
            if left == 0:
                raise KeyboardInterrupt
            return is_quiet

        env.step_quietly = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            quiet.collect()
        book = quiet.state_dict()["actors"][0]["env"]["episodes"]
        assert book["length"].tolist() == [steps]
        assert book["return"].tolist() == [steps * (steps + 1) / 2]
        left = -1
        rollout = quiet.collect()
    assert rows(rollout, "reward") == [steps + i for i in range(1, 9)]


def test_what_was_left_over_is_forgotten_with_the_episode() -> None:
    """An interrupt right after a step that was not quiet; then a reset, or another step."""
    with make_vec(lambda: Counting(length=2), 1) as env:
        env.reset(0)
        saved = env.state_dict()
        for begin_anew in (lambda: env.reset(0), lambda: env.load_state_dict(saved)):
            assert env.step_quietly(ONE)
            assert not env.step_quietly(ONE)
            env._is_stepping = False  # type: ignore[attr-defined]
            begin_anew()
            assert env.settle().tolist() == []
            assert env.step(ONE).reward.tolist() == [1.0]
            begin_anew()


def test_progress_is_seen_while_steps_are_quiet() -> None:
    """Whoever looks for a hung environment must not wait for a whole rollout."""
    seen: list[int] = []

    class Looking(Counting):
        def step(self, action: Any) -> Any:
            seen.append(int(quiet._loops[0].progress[0]))
            return super().step(action)

    with collector(lambda: Looking(length=100), 4, quietly=True) as quiet:
        quiet.collect()
    assert seen == [0, 1, 2, 3]


def test_a_forbidden_action_is_refused() -> None:
    with make_vec(lambda: Counting(), 1) as env:
        env.reset(0)
        with pytest.raises(ActionError, match="is 2, outside"):
            env.step_quietly(2 * ONE)


def test_a_step_that_is_not_quiet_is_taken_once() -> None:
    with make_vec(lambda: Counting(length=2), 1) as env:
        env.reset(0)
        assert env.step_quietly(ONE)
        assert not env.step_quietly(ONE)
        assert env.settle().tolist() == [1.0]
        step = env.finish_step()
    assert step.reward.tolist() == [2.0]
    assert step.terminated.tolist() == [True]
    (episode,) = step.episodes
    assert (episode.return_, episode.length) == (3.0, 2)


def test_several_environments_and_processes_do_not_step_quietly() -> None:
    with make_vec("CartPole-v1", 2) as env:
        assert not env.can_step_quietly
    with make_vec("CartPole-v1", 1, backend="processes") as env:
        assert not env.can_step_quietly

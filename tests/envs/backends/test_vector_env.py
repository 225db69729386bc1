"""Ready vector environments, in each of the ways in which they reset."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from redline.data import EpisodeRecord
from redline.envs import make_vec
from redline.envs.single_env import name_of
from redline.errors import ConfigError, EnvDataError, EnvError
from tests.envs.recording import record
from tests.envs.scripted import Counting, Masked, Spaces
from tests.envs.spaces.test_spaces import ACTIONS, NESTED

ZERO = np.zeros(2, dtype=np.int64)
MODES = list(AutoresetMode)


def counting(
    mode: AutoresetMode, lengths: tuple[int, ...] = (2, 3), env: Any = Counting, **kwargs: Any
) -> SyncVectorEnv:
    makers = [lambda n=n: env(length=n, **kwargs) for n in lengths]
    return SyncVectorEnv(makers, autoreset_mode=mode)


def test_the_filler_step_is_not_valid_and_counts_for_nothing() -> None:
    """FAULTS 2: the filler step of a next-step autoreset trained on.

    Environment 0 has length 2: at t = 2 it ends, at t = 3 it only resets. Its last
    observation (0, 2) is also what the ignored action answers. Environment 1 has length 3.
    """
    env = make_vec(counting(AutoresetMode.NEXT_STEP), 2)
    env.reset(0)
    env.step(ZERO)
    end = env.step(ZERO)
    np.testing.assert_array_equal(end.terminated, [True, False])
    np.testing.assert_array_equal(end.final_obs[0], [0, 2])
    np.testing.assert_array_equal(end.obs[0], [0, 2])
    assert end.valid.all()
    assert end.episodes == [EpisodeRecord(env_id=0, episode_id=0, return_=3.0, length=2)]
    filler = env.step(ZERO)
    np.testing.assert_array_equal(filler.valid, [False, True])
    np.testing.assert_array_equal(filler.reward, [0, 3])
    np.testing.assert_array_equal(filler.terminated, [False, True])
    np.testing.assert_array_equal(filler.obs[0], [1, 0])
    assert filler.episodes == [EpisodeRecord(env_id=1, episode_id=0, return_=6.0, length=3)]
    env.step(ZERO)
    again = env.step(ZERO)
    assert again.episodes == [EpisodeRecord(env_id=0, episode_id=1, return_=3.0, length=2)]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_modes_without_filler_steps_equal_the_in_process_back_end(
    mode: AutoresetMode, end: str
) -> None:
    lengths = iter([2, 3, 1])
    ours = make_vec(lambda: Counting(length=next(lengths), end=end), 2)
    theirs = make_vec(counting(mode, end=end), 2)
    assert theirs.backend == "vector"
    np.testing.assert_array_equal(theirs.reset(0), ours.reset(0))
    assert record(theirs, 12, seed=1) == record(ours, 12, seed=1)


def test_sync_vector_environments_are_seeded_one_by_one() -> None:
    vector = make_vec(SyncVectorEnv([lambda: _cartpole()] * 3), 3)
    ours = make_vec("CartPole-v1", 3)
    np.testing.assert_array_equal(vector.reset(4), ours.reset(4))


def _cartpole() -> Any:
    import gymnasium

    return gymnasium.make("CartPole-v1")


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_every_space_passes_through_a_vector_environment(space: Any) -> None:
    ours = make_vec(lambda: Spaces(NESTED, space), 2)
    theirs = make_vec(SyncVectorEnv([lambda: Spaces(NESTED, space)] * 2), 2)
    assert theirs.observation_space == ours.observation_space
    assert theirs.action_space == ours.action_space
    ours.reset(1)
    theirs.reset(1)
    assert record(theirs, 4, seed=0) == record(ours, 4, seed=0)


@pytest.mark.parametrize("mode", MODES)
def test_action_masks_of_a_vector_environment_are_seen(mode: AutoresetMode) -> None:
    """Length 2: the mask of the last observation (t = 2) allows action 0, as at the start."""
    env = make_vec(counting(mode, lengths=(2, 2), env=Masked), 2)
    np.testing.assert_array_equal(env.reset(0)["action_mask"], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(env.step(ZERO).obs["action_mask"], [[0, 1], [0, 1]])
    step = env.step(ZERO)
    np.testing.assert_array_equal(step.final_obs["action_mask"], [[1, 0], [1, 0]])
    np.testing.assert_array_equal(step.obs["action_mask"], [[1, 0], [1, 0]])


class _Odd(VectorEnv):
    """A vector environment that breaks the contract in one way."""

    def __init__(self, fault: str) -> None:
        self.num_envs, self.fault = 2, fault
        self.single_observation_space = spaces.Box(-1, 1, (3,))
        self.single_action_space = spaces.Discrete(2)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        if fault == "mode":
            self.metadata = {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert seed is None or isinstance(seed, int)
        return np.zeros((2, 3), np.float32), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs = np.zeros((2, 2 if self.fault == "shape" else 3), np.float32)
        if self.fault == "dtype":
            obs = obs.astype(np.complex64)
        reward = np.zeros((2, 1) if self.fault == "reward" else 2)
        ended = np.array([self.fault == "final", False])
        return obs, reward, ended, np.zeros(2, bool), {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("shape", r"shape \(2, 2\), but the space declares \(2, 3\)"),
        ("dtype", "dtype complex64"),
        ("reward", r"reward has shape \(2, 1\)"),
        ("final", "info has no 'final_obs'"),
    ],
)
def test_vector_environments_that_break_the_contract_are_refused(fault: str, message: str) -> None:
    env = make_vec(_Odd(fault), 2)
    env.reset(0)
    with pytest.raises(EnvDataError, match=message):
        env.step(ZERO)


def test_vector_environments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not say how it resets"):
        make_vec(_Odd("mode"), 2)
    with pytest.raises(ConfigError, match="Set num_envs=2"):
        make_vec(_Odd(""), 3)
    with pytest.raises(ConfigError, match="cannot step a ready _Odd"):
        make_vec(_Odd(""), 2, backend="processes")
    env = make_vec(_Odd(""), 2)
    env.reset(0)
    with pytest.raises(EnvError, match="no way to save its state"):
        env.state_dict()
    with pytest.raises(ConfigError, match="cannot leave environments idle"):
        env.step(ZERO, active=np.array([True, False]))
    assert name_of(_Odd("")) == "_Odd"


def test_arguments_for_what_is_made_already_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\['gravity'\] have no effect on a ready SyncVectorEnv"):
        make_vec(counting(AutoresetMode.SAME_STEP), 2, env_kwargs={"gravity": 5.0})


class Says(gymnasium.Env[Any, Any]):
    """Episodes of one step, whose last info holds this success."""

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, success: Any) -> None:
        self.success = success

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, True, False, {"success": self.success}


@pytest.mark.parametrize(
    ("said", "expected"), [(True, True), (0.0, False), (float("nan"), None), (None, None)]
)
def test_an_unsaid_success_is_none_as_for_single_environments(said: Any, expected: Any) -> None:
    """NaN counted as a success, and None as a failure."""
    ready = SyncVectorEnv([lambda: Says(said)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    for env in (make_vec(ready, 2), make_vec(lambda: Says(said), 2)):
        env.reset(0)
        step = env.step(np.zeros(2, np.int64))
        assert [record.success for record in step.episodes] == [expected] * 2
        env.close()


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_attributes_of_gymnasiums_vector_environments_are_looked_for_first(kind: Any) -> None:
    """They make what is not there, and would replace a method."""
    ready = kind([_cartpole] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    env = make_vec(ready, 2)
    env.reset(0)
    with pytest.raises(ConfigError, match="has no attribute 'gravitu' to set"):
        env.set_attr("gravitu", 5.0)
    with pytest.raises(ConfigError, match="'step' is a method"):
        env.set_attr("step", 5.0)
    env.set_attr("gravity", 5.0)
    assert ready.get_attr("gravity") == (5.0, 5.0)
    env.step(np.zeros(2, np.int64))
    ready.close()


class SaysAtTheEnd(Says):
    """Words in the middle of an episode, and `success` at its end, after two steps."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        self.steps += 1
        said = "not yet" if self.steps == 1 else self.success
        return 0, 0.0, self.steps == 2, False, {"level": said}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_what_is_logged_of_info_is_read_at_the_end_and_must_be_a_number(mode: Any) -> None:
    zero = np.zeros(2, np.int64)
    ready = SyncVectorEnv([lambda: SaysAtTheEnd(3)] * 2, autoreset_mode=mode)
    env = make_vec(ready, 2, log_info=("level",))
    env.reset(0)
    env.step(zero)
    assert [dict(record.info) for record in env.step(zero).episodes] == [{"level": 3.0}] * 2
    ready.close()
    ready = SyncVectorEnv([lambda: SaysAtTheEnd("high")] * 2, autoreset_mode=mode)
    env = make_vec(ready, 2, log_info=("level",))
    env.reset(0)
    env.step(zero)
    with pytest.raises(EnvDataError, match=r"info\['level'\] is .*'?high'?.*, and log_info takes"):
        env.step(zero)
    ready.close()

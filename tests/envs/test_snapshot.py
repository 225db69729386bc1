"""Saving a batch and going on from it in a new one, bit for bit."""

from __future__ import annotations

import copy
import importlib.util
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from redline.envs import make_vec
from redline.envs import snapshot as snapshot_module
from redline.envs.plain_data import NotPlainError, decode, encode
from redline.errors import EnvError
from tests.envs.recording import check_plain, record
from tests.envs.scripted import Counting, SecretDice, Walk, WithState

CASES = [
    # id, method, steps before, steps after
    ("CartPole-v1", "attributes", 50, 60),
    ("Pendulum-v1", "attributes", 150, 120),
    ("MountainCar-v0", "attributes", 150, 120),
    ("MountainCarContinuous-v0", "attributes", 30, 30),
    ("Acrobot-v1", "attributes", 50, 50),
    ("FrozenLake-v1", "attributes", 30, 60),
    ("CliffWalking-v1", "attributes", 30, 60),
    ("Taxi-v4", "attributes", 150, 120),
    ("Blackjack-v1", "attributes", 30, 60),
    ("HalfCheetah-v5", "mujoco", 30, 30),
    ("Hopper-v5", "mujoco", 30, 60),
    ("Ant-v5", "mujoco", 20, 30),
    ("Humanoid-v5", "mujoco", 25, 30),
    ("Pusher-v5", "mujoco", 90, 30),
    ("MinAtar/Breakout-v1", "protocol", 50, 60),
    ("MinAtar/Seaquest-v1", "protocol", 100, 100),
    ("MinAtar/SpaceInvaders-v0", "protocol", 50, 60),
]


def go_on(first: Any, second: Any, before: int, after: int) -> None:
    """Save after `before` steps; the next `after` steps must be the same in both batches."""
    first.reset(3)
    record(first, before, seed=1)
    state = first.state_dict()
    check_plain(state)
    kept = copy.deepcopy(state)
    expected = record(first, after, seed=2)
    obs = second.load_state_dict(state)
    assert record(second, after, seed=2) == expected
    np.testing.assert_equal(state, kept)  # stepping must not alter what was saved
    assert obs is not None
    first.close()
    second.close()


@pytest.mark.filterwarnings("ignore:.*settotalmass")
@pytest.mark.parametrize(("env_id", "method", "before", "after"), CASES)
def test_a_new_batch_goes_on_bit_for_bit(env_id: str, method: str, before: int, after: int) -> None:
    first, second = make_vec(env_id, 2), make_vec(env_id, 2)
    assert first._backend._snapshots[0].method == method
    assert first.restorable is None
    go_on(first, second, before, after)


# Of the module that SWIG made for Box2D, from Python 3.12 on.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
@pytest.mark.parametrize("env_id", ["LunarLander-v3", "BipedalWalker-v3"])
def test_box2d_goes_on_by_its_journal(env_id: str) -> None:
    if importlib.util.find_spec("Box2D") is None:
        pytest.skip("Box2D is not installed")
    go_on(make_vec(env_id, 2), make_vec(env_id, 2), 60, 60)


def test_an_environment_with_objects_goes_on_by_its_journal() -> None:
    first, second = make_vec(Walk, 3), make_vec(Walk, 3)
    assert first._backend._snapshots[0].method == "journal"
    go_on(first, second, 40, 60)


class NotesLate(Walk):
    """A number that no constructor and no reset makes."""

    def step(self, action: Any) -> Any:
        self.last = float(action[0])
        return super().step(action)


def test_what_the_first_step_makes_goes_on() -> None:
    """It was called another environment, and fresh episodes began."""
    first, second = make_vec(NotesLate, 2), make_vec(NotesLate, 2)
    go_on(first, second, 30, 60)


def test_a_batch_restored_by_journal_can_be_saved_again() -> None:
    first, second, third = (make_vec(Walk, 2) for _ in range(3))
    first.reset(0)
    record(first, 7, seed=1)
    second.load_state_dict(first.state_dict())
    record(first, 7, seed=2)
    record(second, 7, seed=2)
    third.load_state_dict(second.state_dict())
    assert record(third, 9, seed=3) == record(first, 9, seed=3)


def test_hidden_randomness_is_found_out() -> None:
    first, second = make_vec(SecretDice, 1), make_vec(SecretDice, 1)
    first.reset(0)
    record(first, 5, seed=1)
    with pytest.raises(EnvError, match="did not reproduce the saved observation"):
        second.load_state_dict(first.state_dict())


def test_an_episode_too_long_to_replay_is_not_restorable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_module, "JOURNAL_LIMIT", 4)
    env = make_vec(lambda: gymnasium.wrappers.TimeLimit(Walk(), 9), 1)
    env.reset(0)
    still = np.zeros((1, 2), dtype=np.float32)
    for _ in range(4):
        env.step(still)
    assert env.restorable is None
    env.step(still)
    assert "Walk has no get_state() and set_state(state)" in str(env.restorable)
    with pytest.raises(EnvError, match="longer than the 4 steps"):
        env.state_dict()


def test_the_protocol_of_ones_own_environment() -> None:
    first, second = make_vec(WithState, 2), make_vec(WithState, 2)
    assert first._backend._snapshots[0].method == "protocol"
    go_on(first, second, 4, 8)


class Wanders(gymnasium.Env[Any, Any]):
    """Draws its start and its steps; its state says nothing of the generator."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.noise = [self.np_random]  # held elsewhere, too
        self.position, self.steps = float(self.np_random.normal()), 0
        return np.array([self.position], np.float32), {}

    def step(self, action: Any) -> Any:
        self.position += float(self.noise[0].normal())
        self.steps += 1
        return np.array([self.position], np.float32), 1.0, self.steps == 5, False, {}

    def get_state(self) -> Any:
        return {"position": self.position, "steps": self.steps}

    def set_state(self, state: Any) -> None:
        self.position, self.steps = state["position"], state["steps"]


def test_generators_go_on_though_the_protocols_state_leaves_them_out() -> None:
    """All environments went on with one stream, that of seed 0, and the run called it exact."""
    first, second = make_vec(Wanders, 2), make_vec(Wanders, 2)
    assert first._backend._snapshots[0].method == "protocol"
    go_on(first, second, 7, 12)


def test_a_state_of_the_protocol_without_generators_is_taken_as_before() -> None:
    first, second = make_vec(Wanders, 1), make_vec(Wanders, 1)
    first.reset(3)
    state = first.state_dict()
    for saved in state["simulators"]["envs"]:
        assert list(saved.pop("generators")) == ["_np_random"]
    obs: Any = second.load_state_dict(state)
    assert obs.tobytes() == state["simulators"]["obs"][""].tobytes()


class MakesItsGenerator(Wanders):
    """Draws its steps from a generator that the first one makes."""

    rng_before: bool

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        if self.rng_before:
            self.rng = None
        return obs, info

    def step(self, action: Any) -> Any:
        if getattr(self, "rng", None) is None:
            self.rng = np.random.default_rng(int(self.np_random.integers(1000)))
        self.noise = [self.rng]
        return super().step(action)


@pytest.mark.parametrize("rng_before", [True, False])
def test_a_generator_that_the_first_step_makes_goes_on(rng_before: bool) -> None:
    """It was refused: "this environment does not have" it, or has None there."""
    make = type("Made", (MakesItsGenerator,), {"rng_before": rng_before})
    go_on(make_vec(make, 2), make_vec(make, 2), 7, 12)


@pytest.mark.parametrize("name", ["_np_random", "step"])
def test_what_is_no_generator_is_not_set_as_one(name: str) -> None:
    first, second = make_vec(Wanders, 1), make_vec(Wanders, 1)
    first.reset(3)
    state = first.state_dict()
    state["simulators"]["envs"][0]["generators"] = {name: 5}
    with pytest.raises(EnvError, match=f"the saved (state sets )?'{name}'"):
        second.load_state_dict(state)


def test_mujocos_set_state_is_not_taken_for_the_protocol() -> None:
    class Confusing(WithState):
        def set_state(self, qpos: Any, qvel: Any) -> None:  # type: ignore[override]
            raise AssertionError

    assert make_vec(Confusing, 1)._backend._snapshots[0].method == "journal"


def test_wrappers_keep_their_counters_and_frames() -> None:
    def make() -> gymnasium.Env:
        env = gymnasium.make("CartPole-v1", max_episode_steps=12)
        return gymnasium.wrappers.FrameStackObservation(env, 3)

    go_on(make_vec(make, 2), make_vec(make, 2), 10, 20)


def test_a_wrapper_with_objects_leads_to_a_journal() -> None:
    """Running statistics span episodes, so replaying the last one cannot bring them back."""

    def make() -> gymnasium.Env:
        return gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))

    first, second = make_vec(make, 1), make_vec(make, 1)
    assert first._backend._snapshots[0].method == "journal"
    first.reset(0)
    record(first, 60, seed=1)
    with pytest.raises(EnvError, match=r"did not reproduce|ended it early"):
        second.load_state_dict(first.state_dict())


class Stats:
    """An object of the user's own."""

    count = 0


class Growing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Rewards are the number of steps since it was made; observations tell nothing of it."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.stats = Stats()

    def step(self, action: Any) -> Any:
        obs, _, *rest = self.env.step(action)
        self.stats.count += 1
        return obs, float(self.stats.count), *rest


@pytest.mark.parametrize("num_envs", [1, 2])
def test_what_spans_episodes_and_changes_only_rewards_is_found_out(num_envs: int) -> None:
    """The run went on with other rewards and called itself exact.

    Episodes of 4 steps: the second one's first two rewards are 5 + 6, and replayed 1 + 2.
    """

    def make() -> gymnasium.Env:
        return Growing(gymnasium.wrappers.TimeLimit(Walk(), 4))

    first, second = make_vec(make, num_envs), make_vec(make, num_envs)
    still = np.zeros((num_envs, 2), np.float32)
    first.reset(0)
    for _ in range(4):
        first.step(still)
    for _ in range(2):
        first.step(still)
    with pytest.raises(EnvError, match="gave rewards that sum to 3 instead of 11"):
        second.load_state_dict(first.state_dict())


def test_a_journal_without_rewards_is_taken_as_before() -> None:
    first, second = make_vec(Walk, 1), make_vec(Walk, 1)
    first.reset(0)
    record(first, 3, seed=1)
    state = first.state_dict()
    for saved in state["simulators"]["envs"]:
        del saved["return"]
    second.load_state_dict(state)
    assert record(second, 5, seed=2) == record(first, 5, seed=2)


def test_gymnasiums_statistics_of_rewards_cannot_be_restored() -> None:
    """Even between two episodes, where there is no reward to compare."""
    env = make_vec(lambda: gymnasium.wrappers.NormalizeReward(gymnasium.make("CartPole-v1")), 1)
    env.reset(0)
    assert "NormalizeReward keeps statistics over episodes" in str(env.restorable)


def test_statistics_of_rewards_that_were_saved_earlier_are_not_restored() -> None:
    """Journals without a sum of rewards were taken, and the run called itself exact."""
    plain = make_vec(lambda: gymnasium.wrappers.TransformReward(Walk(), float), 1)
    plain.reset(0)
    state = plain.state_dict()
    for saved in state["simulators"]["envs"]:
        assert saved.pop("return") == [0.0]
    env = make_vec(lambda: gymnasium.wrappers.NormalizeReward(Walk()), 1)
    with pytest.raises(EnvError, match="NormalizeReward keeps statistics over episodes"):
        env.load_state_dict(state)


class Tracks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A wrapper whose first reset makes an object; before that all it holds is plain."""

    stats: Any = None

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.stats = None

    def reset(self, **more: Any) -> Any:
        self.stats = Stats()
        return super().reset(**more)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Hopper-v5"])
def test_what_becomes_an_object_is_said_and_fails_nothing(env_id: str) -> None:
    """The first checkpoint failed, and with it the run."""
    with make_vec(lambda: Tracks(gymnasium.make(env_id)), 1) as env:
        assert env.restorable is None
        env.reset(1)
        assert "Tracks holds tests.envs.test_snapshot.Stats" in str(env.restorable)
        with pytest.raises(EnvError, match="not plain data"):
            env.state_dict()


class ScalesItsAction(gymnasium.Env[Any, Any]):
    """Changes the array that it is given, as `action *= scale` does."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.hidden = [object()]  # so that a journal is kept

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.x = np.zeros(1, np.float32)
        return self.x.copy(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        action *= 0.1
        self.x += action
        action *= 100
        return self.x.copy(), 0.0, False, False, {}


def test_an_environment_may_change_its_action() -> None:
    """It changed the journal: replayed, the episode was another one, or an action out of bounds."""
    go_on(make_vec(ScalesItsAction, 2), make_vec(ScalesItsAction, 2), 5, 5)


def test_a_state_of_another_batch_is_refused() -> None:
    env = make_vec("CartPole-v1", 2)
    env.reset(0)
    state = env.state_dict()
    with pytest.raises(EnvError, match="of 2 environments, this run has 3"):
        make_vec("CartPole-v1", 3).load_state_dict(state)
    with pytest.raises(EnvError, match="env_id 'CartPole-v1', this one has 'Acrobot-v1'"):
        make_vec("Acrobot-v1", 2).load_state_dict(state)


def test_a_state_with_other_wrappers_is_refused() -> None:
    env = make_vec(lambda: WithState(), 1)
    env.reset(0)
    state = env.state_dict()
    state["env_id"] = "other"
    other = make_vec(lambda: gymnasium.wrappers.TimeLimit(WithState(), 5), 1)
    other.env_id = "other"
    with pytest.raises(EnvError, match="had 0 wrappers, this one has 1"):
        other.load_state_dict(state)


def test_running_scores_go_on() -> None:
    """Rewards 1 + 2 before saving, 3 after: the return of the whole episode is 6."""
    first, second = make_vec(WithState, 1), make_vec(WithState, 1)
    first.reset(0)
    for _ in range(2):
        first.step(np.zeros(1, dtype=np.int64))
    second.load_state_dict(first.state_dict())
    (episode,) = second.step(np.zeros(1, dtype=np.int64)).episodes
    assert (episode.return_, episode.length) == (6.0, 3)


def test_constructor_randomness_is_saved() -> None:
    """A map drawn in the constructor differs in every new environment."""

    def make() -> gymnasium.Env:
        return gymnasium.make("FrozenLake-v1", desc=None, map_name=None)

    go_on(make_vec(make, 1), make_vec(make, 1), 20, 60)


ARRAYS = st.sampled_from(
    [np.arange(6).reshape(2, 3), np.array(2.5), np.array([b"ab", b"c"]), np.array([1 + 2j])]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
HASHABLE = SCALARS | st.tuples(st.integers(), st.text()) | st.binary()
VALUES = st.recursive(
    HASHABLE | ARRAYS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(HASHABLE, inner)
        | st.tuples(inner, inner)
        | st.lists(HASHABLE).map(lambda parts: deque(parts, maxlen=9))
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(VALUES)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    data = encode(value)
    check_plain(data)
    back = decode(data)
    assert type(back) is type(value)
    np.testing.assert_equal(back, value)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_generators_come_back_at_the_same_place(kind: Any) -> None:
    generator = np.random.Generator(kind(4))
    generator.normal(size=3)
    data = encode(generator)
    check_plain(data)
    np.testing.assert_array_equal(decode(data).normal(size=5), generator.normal(size=5))
    legacy = np.random.RandomState(4)
    legacy.normal(size=3)
    copied = decode(encode(legacy))
    np.testing.assert_array_equal(copied.normal(size=5), legacy.normal(size=5))


@pytest.mark.parametrize("value", [object(), spaces.Discrete(2), np.array([object()]), Counting])
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with pytest.raises(NotPlainError):
        encode({"part": [value]})


def test_sets_of_what_does_not_compare_come_back() -> None:
    """They raised what nobody caught: a callback that had seen None and True ended its run."""
    value = {None, True, "a", 3}
    assert decode(encode(value)) == value
    assert encode({"b", "a"}) == {"__set__": ["a", "b"]}
    with pytest.raises(NotPlainError):
        encode({Stats(), 1})


def test_damaged_data_is_refused() -> None:
    with pytest.raises(ValueError, match="damaged"):
        decode({"__module__": "os"})

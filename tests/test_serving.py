"""Acting for whoever steps the environment: what goes in, what comes out."""

from __future__ import annotations

import copy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import redline
from redline.errors import ConfigError, EnvDataError, PlacementError
from redline.serving import Predictor, _batch_size
from redline.train.runs.run import Run

SMALL: dict[str, Any] = {
    "total_env_steps": 64,
    "num_envs": 2,
    "rollout_length": 16,
    "hidden_sizes": (8,),
    "tensorboard": False,
    "quiet": True,
    "num_threads": 1,
}


class Spaces(gymnasium.Env[Any, Any]):
    """Observations and actions of given spaces; episodes of 8 steps."""

    def __init__(self, obs: Any, action: Any, mask: bool = False) -> None:
        # Copies: a space has a random stream of its own.
        self.observation_space, self.action_space = copy.deepcopy((obs, action))
        self._mask = mask
        self._t = 0

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.eye(3, dtype=np.int8)[self._t % 3]} if self._mask else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self.observation_space.sample(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        assert self.action_space.contains(action), action
        self._t += 1
        return self.observation_space.sample(), 1.0, self._t == 8, False, self._info()


BOX = spaces.Box(-1, 1, (3,), np.float64)


@pytest.mark.parametrize(
    ("space", "empty"),
    [
        (BOX, np.zeros((0, 3))),
        (spaces.Discrete(4), []),
        (spaces.Dict(a=BOX), {"a": np.zeros((0, 3))}),
    ],
)
def test_an_empty_batch_is_refused(space: spaces.Space[Any], empty: Any) -> None:
    """It was taken for a batch of one, and torch complained of shapes."""
    with pytest.raises(EnvDataError, match="the batch is empty"):
        _batch_size(space, empty)


KINDS: dict[str, tuple[Any, Any]] = {
    "float64 and Discrete from 5": (BOX, spaces.Discrete(3, start=5)),
    "Dict and Box": (
        spaces.Dict({"a": BOX, "b": spaces.Discrete(4, start=1)}),
        spaces.Box(-2, 1, (2,), np.float32),
    ),
    "Tuple and Tuple": (
        spaces.Tuple((BOX, spaces.MultiBinary(2))),
        spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 3]))),
    ),
    "Box and MultiDiscrete": (spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([3, 2])),
}


def trained(out: Path, algorithm: str, env: Any, **settings: Any) -> Run:
    return redline.train(algorithm, env=env, out=out, **SMALL | settings)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_what_an_environment_gives_goes_in_and_what_it_takes_comes_out(
    tmp_path: Path, kind: str, core: str
) -> None:
    """Alone, step by step, equals as a row of a batch; with a state and without."""
    env = Spaces(*KINDS[kind])
    run = trained(tmp_path / "r", "ppo", lambda: Spaces(*KINDS[kind]), core=core)
    policy = run.policy()
    batch = gymnasium.vector.SyncVectorEnv([lambda: Spaces(*KINDS[kind])] * 3)
    all_obs, _ = batch.reset(seed=[4, 5, 6])
    obs, _ = env.reset(seed=4)
    state = all_state = None
    for step in range(6):
        action, state = policy.predict(obs, state)
        all_actions, all_state = policy.predict(all_obs, all_state)
        assert env.action_space.contains(action)
        assert batch.action_space.contains(all_actions)
        assert (state is None) == (core == "none")
        row = next(iter(gymnasium.vector.utils.iterate(batch.action_space, all_actions)))
        flat = [spaces.flatten(env.action_space, each) for each in (row, action)]
        assert np.allclose(*flat, atol=1e-5), step
        sampled, _ = policy.predict(obs, state, deterministic=False)
        assert env.action_space.contains(sampled)
        obs = env.step(action)[0]
        all_obs = batch.step(all_actions)[0]
    batch.close()


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"),
    [
        ("ppo", "CartPole-v1", {"normalize_obs": True}),
        ("ppo", "Pendulum-v1", {"activation": "relu", "num_minibatches": 1}),
        ("dqn", "CartPole-v1", {"learning_starts": 32, "target_update_interval": 1}),
        ("sac", "Pendulum-v1", {"learning_starts": 32}),
        ("td3", "Pendulum-v1", {"learning_starts": 32}),
    ],
)
def test_the_kernel_acts_as_the_policy_does(
    tmp_path: Path, algorithm: str, env: str, settings: dict[str, Any]
) -> None:
    """What a run evaluates with is `Policy.act`; one vector alone goes through a kernel."""
    policy = trained(tmp_path / "r", algorithm, env, **settings).policy()
    made = gymnasium.make(env)
    obs, _ = made.reset(seed=1)
    for _ in range(5):
        action, _ = policy.predict(obs)
        output = policy.act(torch.as_tensor(obs).float()[None], {})
        written = policy.env_action(output.action.numpy())[0]
        assert np.allclose(action, written, atol=1e-5)
        obs = made.step(action)[0]


def hook(policy: Any) -> None:
    policy.policy_head.register_forward_hook(lambda module, inputs, output: -output)


def other_layer(policy: Any) -> None:
    policy.policy_head = torch.nn.Linear(8, 2)


def other_parameter(policy: Any) -> None:
    policy.policy_head.bias = torch.nn.Parameter(torch.tensor([9.0, -9.0]))


def without_bias(policy: Any) -> None:
    policy.policy_head.bias = None
    other_memory(policy)


def other_memory(policy: Any) -> None:
    parameters = list(policy.parameters())
    numbers = torch.nn.utils.parameters_to_vector(parameters).detach()
    torch.nn.utils.vector_to_parameters(-numbers, parameters)


def assigned(policy: Any) -> None:
    policy.load_state_dict({k: -v for k, v in policy.state_dict().items()}, assign=True)


def method(policy: Any) -> None:
    written = policy.policy_head.forward
    policy.policy_head.forward = lambda features: -written(features)


@pytest.mark.parametrize(
    "change", [hook, other_layer, other_parameter, without_bias, other_memory, assigned, method]
)
def test_a_policy_that_was_changed_predicts_as_it_is_now(tmp_path: Path, change: Any) -> None:
    """One observation, which a kernel may serve, as a batch of one, which none does."""
    policy = trained(tmp_path / "r", "ppo", "CartPole-v1").policy()
    obs = np.random.default_rng(1).normal(size=(32, 4)).astype(np.float32)
    before = [policy.predict(each)[0] for each in obs]
    change(policy)
    after = [policy.predict(each)[0] for each in obs]
    assert after == [int(policy.predict(each[None])[0][0]) for each in obs]
    assert after != before


@pytest.mark.parametrize("settings", [{}, {"core": "gru"}])
def test_threads_may_share_a_policy(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Each gets the action for its own observation, by a kernel and by torch."""
    policy = trained(tmp_path / "r", "ppo", "CartPole-v1", **settings).policy()
    obs = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32) * 3
    alone = [policy.predict(each)[0] for each in obs]
    pair = [alone.index(0), alone.index(1)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(lambda i: {policy.predict(obs[i])[0] for _ in range(2000)}, pair)
            assert list(found) == [{0}, {1}]
    finally:
        sys.setswitchinterval(interval)


def test_a_state_is_reset_where_an_episode_begins(tmp_path: Path) -> None:
    """Row 0 begins an episode and row 1 goes on: as alone without a state, and with it."""
    policy = trained(tmp_path / "r", "ppo", "CartPole-v1", core="gru").policy()
    obs = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]], np.float32)
    _, state = policy.predict(obs)
    _, reset = policy.predict(obs, state, episode_start=[True, False])
    _, alone = policy.predict(obs[0])
    _, before = policy.predict(obs[1])
    _, going_on = policy.predict(obs[1], before)
    for name in reset:
        assert torch.allclose(reset[name][0], alone[name][0], atol=1e-6)
        assert torch.allclose(reset[name][1], going_on[name][0], atol=1e-6)
    with pytest.raises(ConfigError, match="not of 1 observations"):
        policy.predict(obs[0], state)
    with pytest.raises(ConfigError, match="not what predict gave"):
        policy.predict(obs[0], 3)
    for begins, count in ((True, 1), ([True], 1), ([True, False, False], 3)):  # one reset all rows
        with pytest.raises(EnvDataError, match=f"episode_start has {count} values, .* are 2"):
            policy.predict(obs, state, episode_start=begins)
    for begins in (True, [True], np.array([True])):
        _, one = policy.predict(obs[0], before, episode_start=begins)
        assert all(torch.allclose(one[name], alone[name], atol=1e-6) for name in one)


def test_masks_of_info_are_obeyed(tmp_path: Path) -> None:
    def make() -> Spaces:
        return Spaces(BOX, spaces.Discrete(3), mask=True)

    policy = trained(tmp_path / "r", "ppo", make).policy()
    env = make()
    obs, info = env.reset(seed=1)
    for step in range(6):
        action, _ = policy.predict(obs, deterministic=False, action_mask=info["action_mask"])
        assert action == step % 3
        obs, *_, info = env.step(action)
    both, _ = policy.predict(np.stack([obs, obs]), action_mask=[[0, 1, 0], [0, 0, 1]])
    assert both.tolist() == [1, 2]
    with pytest.raises(ConfigError, match=r'action_mask=info\["action_mask"\]'):
        policy.predict(obs)
    three = np.stack([obs] * 3)
    with pytest.raises(EnvDataError, match="has 1 entries, and the policy's actions have 3"):
        policy.predict(three, action_mask=np.array([1, 0, 1]))  # one mask for all
    with pytest.raises(EnvDataError, match="2 action masks were given with 3 observations"):
        policy.predict(three, action_mask=[[0, 1, 0], [0, 0, 1]])
    with pytest.raises(EnvDataError, match="has 4 entries"):
        policy.predict(obs, action_mask=[0, 1, 0, 1])


def test_masks_of_info_are_obeyed_beside_the_action_before(tmp_path: Path) -> None:
    def make() -> Spaces:
        return Spaces(BOX, spaces.Discrete(3), mask=True)

    run = trained(tmp_path / "r", "ppo", make, core="lstm", core_size=4, observe_previous=True)
    policy, env, state, reward = run.policy(), make(), None, None
    obs, info = env.reset(seed=1)
    for step in range(4):
        action, state = policy.predict(obs, state, action_mask=info["action_mask"], reward=reward)
        assert action == step % 3
        obs, reward, *_, info = env.step(action)


def test_the_action_before_and_its_reward_are_seen(tmp_path: Path) -> None:
    run = trained(tmp_path / "r", "ppo", "CartPole-v1", core="lstm", observe_previous=True)
    policy = run.policy()
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=1)
    action, state = policy.predict(obs)
    obs, reward, *_ = env.step(action)
    with pytest.raises(ConfigError, match="reward=reward"):
        policy.predict(obs, state)
    _, state = policy.predict(obs, state, reward=reward)
    parts = {
        "observed": obs[None],
        "previous_action": np.eye(2)[[action]],
        "previous_reward": [[1]],
    }
    first = {"observed": env.reset(seed=1)[0][None], "previous_action": [[0, 0]],
             "previous_reward": [[0]]}  # fmt: skip
    expected = policy.initial_state(1)
    for each in (first, parts):
        tensors = {n: torch.as_tensor(np.asarray(leaf)).float() for n, leaf in each.items()}
        expected = policy.act(tensors, expected).state
    for name, leaf in expected.items():
        assert torch.allclose(state[name], leaf, atol=1e-6)


def test_the_reward_before_is_clipped_as_in_training(tmp_path: Path) -> None:
    """A network that had learned from -1, 0 and 1 was shown -16."""
    run = trained(
        tmp_path / "r",
        "ppo",
        "Pendulum-v1",
        core="lstm",
        observe_previous=True,
        clip_reward=True,
        num_minibatches=1,
    )
    policy, seen = run.policy(), list[float]()
    policy.torso.register_forward_pre_hook(
        lambda _, inputs: seen.append(float(inputs[0]["previous_reward"]))
    )
    env = gymnasium.make("Pendulum-v1")
    obs, _ = env.reset(seed=1)
    action, state = policy.predict(obs)
    obs, reward, *_ = env.step(action)
    assert -17 < float(reward) < 0
    policy.predict(obs, state, reward=reward)
    assert seen == [0.0, -1.0]


def test_wrong_observations_are_refused(tmp_path: Path) -> None:
    policy = trained(tmp_path / "r", "ppo", "CartPole-v1").policy()
    obs = np.zeros(4, np.float32)
    with pytest.raises(EnvDataError, match=r"one of shape \(4,\)"):
        policy.predict(np.zeros((2, 2, 4), np.float32))
    with pytest.raises(EnvDataError, match=r"has shape \(3,\)"):
        policy.predict(obs[:3])
    with pytest.raises(EnvDataError, match="is a tensor"):
        policy.predict(torch.zeros(4))
    with pytest.raises(ConfigError, match="knows no masks"):
        policy.predict(obs, action_mask=[1, 1])
    with pytest.raises(PlacementError, match="which takes what an environment gives"):
        policy.act(obs[None], {})  # type: ignore[arg-type]
    with pytest.raises(PlacementError, match="which takes what an environment gives"):
        policy.act({"a": obs[None]}, {})  # type: ignore[arg-type]
    again = copy.deepcopy(policy)
    assert again.predict(obs) == policy.predict(obs)
    own = redline.make_policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2))
    with pytest.raises(ConfigError, match="was not loaded"):
        own.predict(obs)
    predictor = Predictor(own, spaces.Box(-1, 1, (4,)), spaces.Discrete(2), seed=1)
    assert predictor(obs)[0] in (0, 1)


def test_serving_imports_no_training(tmp_path: Path) -> None:
    """No loop, no writer and no replay, and no thread but this one."""
    trained(tmp_path / "r", "ppo", "CartPole-v1")
    program = (
        "import sys, threading, numpy, redline\n"
        f"policy = redline.load({str(tmp_path / 'r')!r}).policy()\n"
        "policy.predict(numpy.zeros(4, numpy.float32))\n"
        "loaded = [name for name in sys.modules if name.startswith(\n"
        "    ('redline.train.loops.loop', 'redline.train.runs.execution', 'tensorboard'))]\n"
        "assert not loaded, loaded\n"
        "assert threading.active_count() == 1\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_sampled_actions_repeat_with_a_seed_and_need_no_simulator(tmp_path: Path) -> None:
    """An environment that cannot be stepped says what the spaces are."""

    class OnlySpaces(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(-np.inf, np.inf, (4,))
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return self.observation_space.sample(), {}

    out = redline.train("ppo", env="CartPole-v1", out=tmp_path / "run", **SMALL).out
    obs = np.zeros(4, np.float32)

    def actions(run: Run, seed: int | None) -> list[Any]:
        policy = run.policy(seed=seed)
        return [int(policy.predict(obs, deterministic=False)[0]) for _ in range(64)]

    with_env, without = redline.load(out), redline.load(out, env=OnlySpaces)
    first = actions(with_env, 1)
    assert len(set(first)) == 2
    assert actions(with_env, 1) == actions(without, 1) == first
    assert actions(with_env, 2) != first
    assert actions(with_env, None) != actions(with_env, None)

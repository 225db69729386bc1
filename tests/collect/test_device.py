"""The device collector: by hand on scripted environments, and against the serial one."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from redline.algos.dqn import DQN, DQNConfig
from redline.collect import CollectorSetup, DeviceCollector, SerialCollector
from redline.collect.noise import DeviceNoise
from redline.data import Rollout, leaves
from redline.envs import EnvSettings, make_device_vec, make_vec
from redline.envs.device.mirrored import MirroredEnv
from redline.errors import ActionError, ConfigError, EnvError
from redline.policies import SkillPolicy, make_policy, with_skill
from tests.collect.scripted import CountingPolicy, ScriptedEnv

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def assert_equal_rollouts(one: Rollout, two: Rollout, *, tolerance: float = 0.0) -> None:
    """Everything, bit for bit but for what a policy computes, which has a tolerance."""
    mine, theirs = one.steps.to_dict(), two.steps.to_dict()
    assert set(mine) == set(theirs)
    for name, leaf in leaves(mine):
        expected = dict(leaves(theirs))[name]
        atol = tolerance if name in ("value", "log_prob", "bootstrap_value") else 0.0
        torch.testing.assert_close(leaf, expected, rtol=0, atol=atol, msg=lambda m, n=name: n + m)
    for name, leaf in leaves(one.last_obs):
        assert torch.equal(leaf, dict(leaves(two.last_obs))[name])
    for name, leaf in one.initial_state.items():
        torch.testing.assert_close(leaf, two.initial_state[name], rtol=0, atol=tolerance)
    assert one.episodes == two.episodes
    assert one.version == two.version


@pytest.mark.parametrize("filler", [False, True])
@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
def test_scripted_episodes_equal_the_serial_collectors(filler: bool, reset_mode: Any) -> None:
    """Fillers, waiting, truncations inside and at the end, over several rollouts.

    What the serial collector makes of them is told by hand in test_serial.
    """
    if filler and reset_mode == "wait":
        with pytest.raises(ConfigError, match="reset_mode='wait' needs"):
            DeviceCollector(
                MirroredEnv(ScriptedEnv([[2]], ["truncated"], filler=True), "cpu"),
                CountingPolicy(), rollout_length=2, reset_mode="wait",
            )  # fmt: skip
        return

    def env() -> ScriptedEnv:
        lengths, ends = [[3], [2, 5], [4]], ["truncated", "terminated", "truncated"]
        return ScriptedEnv(lengths, ends, filler=filler)

    serial = SerialCollector(
        env(), CountingPolicy(), rollout_length=5, seed=0, reset_mode=reset_mode
    )
    device = DeviceCollector(
        MirroredEnv(env(), "cpu"), CountingPolicy(), rollout_length=5, seed=0,
        reset_mode=reset_mode, noise="host",
    )  # fmt: skip
    for _ in range(4):
        assert_equal_rollouts(device.collect(), serial.collect())


@pytest.mark.parametrize(
    ("env_id", "core", "tolerance"),
    [
        ("redline/CartPole-v1", "none", 1e-5),
        ("redline/CartPole-v1", "lstm", 1e-5),
        ("redline/Pendulum-v1", "none", 1e-5),
        ("redline/Breakout-v1", "none", 1e-5),
    ],
)
@pytest.mark.parametrize("reset_mode", ["immediate", "wait"])
def test_native_games_equal_the_serial_collectors_numpy_view(
    env_id: str, core: Any, tolerance: float, reset_mode: Any
) -> None:
    """The same games, noise and weights: once as arrays, once without leaving the device."""
    torch.manual_seed(0)
    view, env = make_vec(env_id, 4), make_device_vec(env_id, 4, device="cpu")
    policy = make_policy(
        view.observation_space, view.action_space, core=core, hidden_sizes=(8,), core_size=8
    )
    settings: Any = {"rollout_length": 110, "seed": 3, "reset_mode": reset_mode}
    serial = SerialCollector(view, policy, **settings)
    device = DeviceCollector(env, policy, noise="host", **settings)
    episodes = 0
    for version in range(3):
        greedy = {"greedy": torch.tensor([False, False, True, False])}
        one, two = device.collect(greedy), serial.collect(greedy)
        assert_equal_rollouts(one, two, tolerance=tolerance)
        episodes += len(one.episodes)
        for collector in (serial, device):
            collector.update_weights(version + 1)
    assert episodes > 3
    assert device.restorable is None


def test_dict_observations_of_any_environment_equal_the_serial_collectors() -> None:
    """A Gymnasium environment behind a device, with images, vectors and a time limit."""

    class Both(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Dict(
            {
                "image": gymnasium.spaces.Box(0, 255, (1, 6, 6), np.uint8),
                "vector": gymnasium.spaces.Box(-1, 1, (2,), np.float32),
            }
        )
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.t = 0
            return self._obs(), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return self._obs(), float(action.sum()), self.t > 9, self.t > 6, {}

        def _obs(self) -> Any:
            image = self.np_random.integers(0, 256, (1, 6, 6), dtype=np.uint8)
            return {"image": image, "vector": np.full(2, self.t / 10, np.float32)}

    torch.manual_seed(0)
    view, env = make_vec(Both, 3), make_device_vec(Both, 3, device="cpu")
    policy = make_policy(view.observation_space, view.action_space, hidden_sizes=(8,))
    serial = SerialCollector(view, policy, rollout_length=12, seed=1)
    device = DeviceCollector(env, policy, rollout_length=12, seed=1, noise="host")
    for _ in range(3):
        assert_equal_rollouts(device.collect(), serial.collect(), tolerance=1e-5)


def test_noise_drawn_on_the_device_depends_on_seed_and_index_alone() -> None:
    """Drawing 3 steps and then 4 gives what drawing 7 gives, and env 2 is env 2 of any batch."""
    env = make_vec("redline/CartPole-v1", 1)
    policy = make_policy(env.observation_space, env.action_space)
    cpu = torch.device("cpu")
    whole = DeviceNoise(policy, 4, 7, 5, 0, cpu).draw()
    assert whole.shape == (7, 4, 2)
    parts = DeviceNoise(policy, 2, 3, 5, 2, cpu)
    first = parts.draw()
    later = DeviceNoise(policy, 2, 4, 5, 2, cpu)
    later.load_state_dict(parts.state_dict())
    assert torch.equal(torch.cat([first, later.draw()]), whole[:, 2:])
    with pytest.raises(EnvError, match="noise comes from the 'host'"):
        parts.load_state_dict({"noise": {"source": "host"}})


@pytest.mark.parametrize(
    ("space_of", "kind"), [("redline/CartPole-v1", "gumbel"), ("redline/Pendulum-v1", "normal")]
)
def test_noise_drawn_on_the_device_has_the_right_distribution(space_of: str, kind: str) -> None:
    """Mean and variance of 65,536 numbers: Gumbel has 0.5772 and pi^2 / 6, the normal 0 and 1."""
    env = make_vec(space_of, 1)
    policy = make_policy(env.observation_space, env.action_space)
    noise = DeviceNoise(policy, 4096, 16, 0, 0, torch.device("cpu")).draw().double()
    mean, variance = (0.5772, np.pi**2 / 6) if kind == "gumbel" else (0.0, 1.0)
    assert torch.isfinite(noise).all()
    assert float(noise.mean()) == pytest.approx(mean, abs=0.025)
    assert float(noise.var()) == pytest.approx(variance, abs=0.06)


@pytest.mark.parametrize("env_id", ["redline/CartPole-v1", "redline/Breakout-v1"])
def test_a_saved_collector_goes_on_bit_for_bit(env_id: str) -> None:
    torch.manual_seed(0)

    def collector() -> DeviceCollector:
        env = make_device_vec(env_id, 3, device="cpu")
        return DeviceCollector(env, policy, rollout_length=40, seed=2)

    env = make_vec(env_id, 1)
    policy = make_policy(env.observation_space, env.action_space, hidden_sizes=(8,))
    one, two = collector(), collector()
    one.collect()
    one.update_weights(1)
    saved = one.state_dict()
    expected = [one.collect(), one.collect()][1]
    assert two.load_state_dict(saved) is None
    two.collect()
    assert_equal_rollouts(two.collect(), expected)


def test_an_environment_that_cannot_be_restored_begins_fresh_episodes() -> None:
    def collector() -> DeviceCollector:
        ready = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync")
        env = make_device_vec(ready, 2, device="cpu")
        policy = make_policy(env.observation_space, env.action_space, hidden_sizes=(4,))
        return DeviceCollector(env, policy, rollout_length=4)

    one, two = collector(), collector()
    one.collect()
    assert "offers no way to save its state" in str(two.load_state_dict(one.state_dict()))
    assert two.collect()["episode_id"].eq(0).all()


def test_epsilon_changes_with_every_collection() -> None:
    """With epsilon 1 in environment 0 and 0 elsewhere, only it leaves the greedy action."""
    env = make_device_vec("redline/MountainCar-v0", 3, device="cpu")
    policy = DQN.make_policy(env.observation_space, env.action_space, DQNConfig())
    collector = DeviceCollector(env, policy, rollout_length=30)
    for explorer in (0, 2):
        epsilon = torch.zeros(3)
        epsilon[explorer] = 1.0
        rollout = collector.collect({"epsilon": epsilon})
        greedy = policy.act(
            rollout["obs"].flatten(0, 1), {}, None, {"greedy": torch.ones(90, dtype=torch.bool)}
        ).action.view(30, 3)  # type: ignore[union-attr]
        same = (rollout["action"] == greedy).all(0).tolist()
        assert same == [i != explorer for i in range(3)]


@pytest.mark.parametrize("core", ["none", "lstm", "transformer"])
def test_skills_that_change_equal_the_serial_collectors(core: Any) -> None:
    """Values of cut episodes are those of the skill that acted in them."""
    torch.manual_seed(0)

    def env() -> ScriptedEnv:
        return ScriptedEnv([[2, 5], [3], [20]], ["truncated", "terminated", "truncated"])

    inside = make_policy(
        with_skill(env().observation_space, 3), env().action_space, core=core, core_size=8
    )
    policy = SkillPolicy(inside, env().observation_space, 3)
    serial = SerialCollector(env(), policy, rollout_length=6, seed=4)
    device = DeviceCollector(
        MirroredEnv(env(), "cpu"), policy, rollout_length=6, seed=4, noise="host"
    )
    for skills in ([0, 1, 2], [2, 2, 0]):
        told = {"skill": torch.tensor(skills)}
        one, two = device.collect(told), serial.collect(told)
        assert one["bootstrap_value"].ne(0).any(0).tolist() == [True, False, True]
        assert_equal_rollouts(one, two, tolerance=1e-4)


class Reads(TorchDispatchMode):
    """Counts what waits for a device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").split(".")[0]
        self.count += name in ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero")
        return func(*args, **(kwargs or {}))


def test_reading_back_does_not_grow_with_the_rollout() -> None:
    counts = []
    for length in (4, 40):
        env = make_device_vec("redline/Pendulum-v1", 2, device="cpu")
        policy = make_policy(env.observation_space, env.action_space, hidden_sizes=(4,))
        collector = DeviceCollector(env, policy, rollout_length=length)
        with Reads() as reads:
            collector.collect()
        counts.append(reads.count)
    assert counts[0] == counts[1] <= 3


def test_a_copy_on_another_device_takes_the_weights_by_number() -> None:
    """ "meta" stands in for another device: the copy exists, and is where it should be."""
    env = make_device_vec("redline/CartPole-v1", 2, device="cpu")
    policy = make_policy(env.observation_space, env.action_space, normalize_obs=True)
    collector = DeviceCollector(env, policy, rollout_length=2, policy_device="meta")
    assert collector.policy is not policy
    assert {p.device.type for p in collector.policy.parameters()} == {"meta"}
    same = DeviceCollector(env, policy, rollout_length=2, policy_device="cpu")
    assert same.policy is policy


def test_a_copy_acts_with_the_weights_of_its_version() -> None:
    """The learner's weights change under it, and count only from the next number on."""
    torch.manual_seed(0)
    env = make_device_vec("redline/CartPole-v1", 2, device="cpu")
    policy = make_policy(env.observation_space, env.action_space, normalize_obs=True)
    collector = DeviceCollector(env, policy, rollout_length=2)
    collector.policy = copy.deepcopy(policy)
    with torch.no_grad():
        for tensor in (*policy.parameters(), *policy.buffers()):
            tensor += 1
    mine = dict(collector.policy.named_parameters())
    assert not any(torch.equal(p, mine[n]) for n, p in policy.named_parameters())
    collector.update_weights(5)
    for name, tensor in policy.state_dict().items():
        assert torch.equal(tensor, collector.policy.state_dict()[name])
    assert collector.collect().version == 5


def test_an_action_outside_the_space_ends_the_collection() -> None:
    """The scripted policy takes actions of 0 .. 9, CartPole only 0 and 1."""
    env = make_device_vec("redline/CartPole-v1", 2, device="cpu")
    collector = DeviceCollector(env, CountingPolicy(), rollout_length=8, noise="host")
    with pytest.raises(ActionError, match=r"an action lay outside Discrete\(2\)"):
        collector.collect()


@CUDA
@pytest.mark.parametrize(
    ("env_device", "policy_device"), [("cuda", "cuda"), ("cpu", "cuda"), ("cuda", "cpu")]
)
@pytest.mark.parametrize("env_id", ["redline/Breakout-v1", "MinAtar/Breakout-v1"])
def test_any_placement_gives_the_same_rollout(
    env_id: str, env_device: str, policy_device: str
) -> None:
    """Whole-number games with a policy whose choices do not depend on rounding."""
    torch.manual_seed(0)
    rollouts = []
    for env_at, policy_at in (("cpu", "cpu"), (env_device, policy_device)):
        env = make_device_vec(env_id, 4, device=env_at)
        policy = DQN.make_policy(env.observation_space, env.action_space, DQNConfig())
        collector = DeviceCollector(env, policy, rollout_length=50, policy_device=policy_at)
        rollouts.append(collector.collect({"epsilon": torch.ones(4)}))
    one, two = rollouts
    for name in ("obs", "action", "reward", "terminated", "final_obs", "episode_id"):
        assert torch.equal(one[name], two[name].cpu()), name
    assert one.episodes == two.episodes


def test_parts_of_a_batch_have_games_and_noise_of_their_own() -> None:
    """As several ranks have: each rank played the first part's games, with the same actions."""
    settings = EnvSettings(env="redline/CartPole-v1")

    def part(first: int) -> Rollout:
        env = settings.make(4, first)
        torch.manual_seed(0)
        policy = make_policy(env.observation_space, env.action_space)
        setup = CollectorSetup(
            env=env, settings=settings, policy=policy, num_envs=4, rollout_length=16, seed=1
        )
        return SerialCollector.make(setup).collect()

    one, two = part(0), part(4)
    assert one["env_id"][0].tolist() == [0, 1, 2, 3]
    assert two["env_id"][0].tolist() == [4, 5, 6, 7]
    for name in ("obs", "action"):
        assert not torch.equal(one[name], two[name])
    assert torch.equal(part(4)["obs"], two["obs"])

"""The programs in scripts/: they run, repeat themselves, and are right at every kind of end."""

from __future__ import annotations

import ast
import csv
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.parity.single_file import NAMES, SCRIPTS, load

OFF = {"learning_starts": 32, "log_every": 50, "eval_episodes": 1}
ON = {"eval_episodes": 1, "num_envs": 2}
BOX = {"env_id": "Pendulum-v1", "total_env_steps": 150, "batch_size": 16, "hidden_size": 16}
TINY: dict[str, dict[str, Any]] = {
    "sac_continuous": {**OFF, **BOX},
    "td3_continuous": {**OFF, **BOX, "num_envs": 2},
    "dqn": {**OFF, "total_env_steps": 200, "batch_size": 16, "target_interval": 40},
    "c51": {**OFF, "total_env_steps": 200, "batch_size": 16, "target_interval": 40},
    "r2d1": {**OFF, "total_env_steps": 400, "batch_size": 4, "num_envs": 4},
    "a2c": {**ON, "total_env_steps": 200, "log_every": 50},
    "reinforce": {**ON, "total_env_steps": 200, "log_every": 50},
    "ppo_continuous": {
        **ON, "env_id": "Pendulum-v1", "total_env_steps": 200, "rollout_length": 50,
        "num_minibatches": 4, "num_epochs": 2,
    },
    "ppo_atari_envpool": {
        **ON, "total_env_steps": 24, "rollout_length": 12, "num_minibatches": 2, "num_epochs": 1,
        "eval_max_steps": 20,
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def run(name: str, capsys: Any, folder: Path, **changes: Any) -> tuple[str, list[list[str]]]:
    """What a tiny run prints, losses and returns, without its speed; and its progress file."""
    module = load(name)
    file = folder / "progress.csv"
    module.train(module.Args(**{**TINY[name], "csv": file, **changes}))
    printed = re.sub(r"sps \d+", "", capsys.readouterr().out)
    with file.open() as opened:
        return printed, list(csv.reader(opened))


def test_every_program_is_tested() -> None:
    assert set(NAMES) == set(TINY)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_run(name: str, capsys: Any, tmp_path: Path) -> None:
    first, rows = run(name, capsys, tmp_path)
    again, _ = run(name, capsys, tmp_path)
    other, _ = run(name, capsys, tmp_path, seed=2)
    assert first == again
    assert first != other
    assert "evaluation  return" in first
    assert "loss" in first
    assert rows[0] == ["env_steps", "wall_time_s", "sps", "return"]
    steps, times = ([float(row[i]) for row in rows[1:]] for i in (0, 1))
    assert steps == sorted(steps)
    assert times == sorted(times)
    assert 0.75 * TINY[name]["total_env_steps"] <= steps[-1]


@pytest.mark.parametrize("name", ["sac_continuous", "td3_continuous", "dqn", "c51", "r2d1"])
def test_the_last_interval_has_a_row_where_environments_do_not_divide_the_steps(
    name: str, capsys: Any, tmp_path: Path
) -> None:
    """Of 100 steps by 3 environments 99 are taken; no interval of 100 ends by then."""
    sizes = {"num_envs": 3, "total_env_steps": 100, "log_every": 100, "eval_episodes": 0}
    _, rows = run(name, capsys, tmp_path, **sizes)
    assert [row[0] for row in rows] == ["env_steps", "99"]


@pytest.mark.parametrize("name", ["dqn", "c51", "r2d1"])
def test_epsilon_may_have_its_last_value_from_the_start(
    name: str, capsys: Any, tmp_path: Path
) -> None:
    """A fraction of 0 divided by 0; the package takes it likewise."""
    sizes = {"epsilon_fraction": 0.0, "total_env_steps": 100, "eval_episodes": 0}
    _, rows = run(name, capsys, tmp_path, **sizes)
    assert rows[-1][0] == "100"


@pytest.mark.parametrize("name", ["dqn", "c51"])
def test_epsilon_falls_over_its_share_of_the_run(name: str) -> None:
    """From 1 to 0.1 over half of 200 steps: 0.55 in the middle of it; 0.1 at once for 0."""
    module = load(name)
    falling = {"total_env_steps": 200, "epsilon_initial": 1.0, "epsilon_final": 0.1}
    args = module.Args(**falling, epsilon_fraction=0.5)
    found = [module.epsilon_at(env_steps, args) for env_steps in (0, 50, 100, 150)]
    assert found == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert module.epsilon_at(0, module.Args(**falling, epsilon_fraction=0.0)) == pytest.approx(0.1)


def test_windows_of_one_step_can_be_learned_from(capsys: Any, tmp_path: Path) -> None:
    """No row follows those that are learned from."""
    printed, _ = run("r2d1", capsys, tmp_path, n_step=1, eval_episodes=0)
    assert "loss" in printed


@pytest.mark.parametrize("name", NAMES)
def test_cuda_graphs_are_refused_on_the_cpu(name: str) -> None:
    module = load(name)
    with pytest.raises(SystemExit, match="--cudagraphs needs a CUDA device, and --device is cpu"):
        module.train(module.Args(**TINY[name], cudagraphs=True))


@pytest.mark.parametrize("seed", [-1, 1_073_741])
def test_seeds_that_would_meet_those_of_evaluations_are_refused(seed: int) -> None:
    with pytest.raises(SystemExit, match=f"--seed {seed} is out of range"):
        load("dqn").train(load("dqn").Args(seed=seed))


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("sac_continuous", "CartPole-v1"), ("td3_continuous", "CartPole-v1"),
        ("ppo_continuous", "CartPole-v1"), ("dqn", "Pendulum-v1"), ("c51", "Pendulum-v1"),
        ("a2c", "Pendulum-v1"), ("reinforce", "Pendulum-v1"), ("r2d1", "Pendulum-v1"),
    ],
)  # fmt: skip
def test_spaces_that_a_program_does_not_serve_are_refused(name: str, env_id: str) -> None:
    with pytest.raises(SystemExit, match=f"--env-id {env_id} has .* this program needs vectors"):
        load(name).train(load(name).Args(env_id=env_id))


def test_minibatches_that_do_not_divide_the_rollout_are_refused() -> None:
    module = load("ppo_continuous")
    with pytest.raises(SystemExit, match=r"100 \* 1 = 100 steps: --num-minibatches 32 must divide"):
        module.train(module.Args(rollout_length=100))


@pytest.mark.parametrize("name", NAMES)
def test_a_program_that_diverges_ends_and_says_so(name: str) -> None:
    """FAULTS 43: they went on, printed nan and ended with status 0."""
    module = load(name)
    progress = module.Progress(module.Args())
    progress.report(10, loss=torch.tensor(1.0))
    for value in (float("nan"), float("inf")):
        with pytest.raises(SystemExit, match=rf"at 20 env_steps loss is {value}: .*diverged"):
            progress.report(20, loss=torch.tensor(value))


@pytest.mark.parametrize(
    ("name", "settings"), [("dqn", {"log_every": 10**6}), ("ppo_continuous", {})]
)
def test_a_learning_rate_that_is_far_too_large_ends_the_run(
    name: str, settings: dict[str, Any]
) -> None:
    """Also a run that is shorter than the interval of its reports."""
    module = load(name)
    with pytest.raises(SystemExit, match="diverged"):
        module.train(module.Args(**{**TINY[name], "learning_rate": 1e30, **settings}))


@pytest.mark.parametrize("name", ["sac_continuous", "td3_continuous", "dqn", "c51", "r2d1"])
def test_a_replay_that_no_memory_holds_is_refused_at_the_start(name: str) -> None:
    """FAULTS 28: 2^50 rows of 4 numbers are 16,777,216 GiB."""
    module = load(name)
    with pytest.raises(SystemExit, match=r"--replay-size 1125899906842624 needs 16,777,216\.0 GiB"):
        module.empty_rows(2**50, 4, device="cpu")
    assert module.empty_rows(7, 4, device="cpu").shape == (7, 4)
    with pytest.raises(SystemExit, match="Give at most"):
        module.train(module.Args(**TINY[name], replay_size=2**40))


@pytest.mark.parametrize("name", NAMES)
def test_no_program_imports_the_library(name: str) -> None:
    tree = ast.parse((SCRIPTS / f"{name}.py").read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import)
                for alias in node.names}  # fmt: skip
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {each for each in imported if each.split(".")[0] in {"redline", "tests"}}


@pytest.mark.parametrize(
    "part",
    [
        "accelerated", "descend", "Progress", "Replay", "reverse_scan", "clipped",
        "make_env", "to_bounds", "MLP", "TwinCritic", "empty_rows",
    ],
)  # fmt: skip
def test_what_programs_repeat_is_the_same_text(part: str) -> None:
    """A fault mended in one is mended in all. Those that differ on purpose are kinds."""
    kinds: dict[str, dict[str, set[str]]] = {
        "Replay": {"sequences": {"r2d1"}, "actions": {"dqn", "c51"}},
        "MLP": {"tanh": {"ppo_continuous", "a2c", "reinforce"}},
        "make_env": {
            "discrete": {"dqn", "c51", "a2c", "reinforce", "r2d1"}, "any box": {"ppo_continuous"},
        },
    }  # fmt: skip
    texts: dict[str, set[str]] = {}
    for name in NAMES:
        if hasattr(load(name), part):
            kind = next((k for k, names in kinds.get(part, {}).items() if name in names), "all")
            texts.setdefault(kind, set()).add(inspect.getsource(getattr(load(name), part)))
    assert texts
    assert {kind: len(each) for kind, each in texts.items()} == dict.fromkeys(texts, 1)


@pytest.mark.parametrize("name", ["ppo_atari_envpool", "a2c"])
def test_filler_steps_by_hand(name: str) -> None:
    """Gamma = lambda = 1/2. Rewards 1; the filler row, t = 2, has reward 9 and value 100.

    t = 3 continues:   delta = 1 + 6/2 - 4 = 0,          A = 0
    t = 2 is a filler:                                    A = 0
    t = 1 truncates:   delta = 1 + 100/2 - 3 = 48,       A = 48     (100 is V(last observation))
    t = 0 continues:   delta = 1 + 3/2 - 2 = 1/2,        A = 1/2 + 48/4 = 12.5
    t = 1 terminates:  delta = 1 + 0 - 3 = -2,           A = -2
    t = 0 then:                                           A = 1/2 - 2/4 = 0

    A truncation taken for a termination gives the second column's numbers in the first; a
    filler that is learned from gives 9 + 4/2 - 100 instead of 0 at t = 2.
    """
    reward = np.array([[1.0, 1.0], [1.0, 1.0], [9.0, 9.0], [1.0, 1.0]])
    value = np.array([[2.0, 2.0], [3.0, 3.0], [100.0, 100.0], [4.0, 4.0], [6.0, 6.0]])
    truncated, terminated = np.zeros((4, 2), bool), np.zeros((4, 2), bool)
    truncated[1, 0] = terminated[1, 1] = True
    valid = np.array([True, True, False, True])[:, None].repeat(2, axis=1)
    advantage, target = load(name).gae(reward, value, terminated, truncated, valid, 0.5, 0.5)
    assert advantage.tolist() == [[12.5, 0.0], [48.0, -2.0], [0.0, 0.0], [0.0, 0.0]]
    assert target[[0, 1, 3]].tolist() == [[14.5, 2.0], [51.0, 1.0], [4.0, 4.0]]


@pytest.mark.parametrize("name", ["ppo_atari_envpool", "a2c"])
def test_losses_do_not_see_filler_steps(name: str) -> None:
    """Changing every entry of a filler row changes neither the loss nor a gradient."""
    module = load(name)
    torch.manual_seed(0)
    atari = name == "ppo_atari_envpool"
    agent = module.Agent(3) if atari else module.Agent(5, 3, 8)
    seen = torch.randint(0, 256, (4, 4, 84, 84), dtype=torch.uint8) if atari else torch.randn(4, 5)
    rows = torch.randn(len(module.Batch._fields) - 3, 4)
    valid = torch.tensor([1.0, 1.0, 0.0, 1.0])
    action = torch.tensor([0, 1, 2, 1])
    compute = module.ppo_loss if atari else module.a2c_loss

    def outcome() -> list[list[float]]:
        loss, _ = compute(agent, module.Batch(seen, action, *rows, valid), module.Args())
        grads = torch.autograd.grad(loss, list(agent.parameters()))
        return [grad.flatten().tolist() for grad in (loss, *grads)]

    before = outcome()
    seen[2] = 7
    action[2] = 0
    rows[:, 2] = 3.0
    assert outcome() == before


class Counter(gym.Env):
    """Observes how many steps the episode has; ends at 3, by a time limit or on its own."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (1,), np.float32)

    def __init__(self, *, terminates: bool, box: bool) -> None:
        self.action_space = (
            gym.spaces.Box(-1.0, 1.0, (1,), np.float32) if box else gym.spaces.Discrete(2)
        )
        self.terminates, self.count = terminates, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.count += 1
        end = self.count == 3
        seen = np.full(1, self.count, np.float32)
        return seen, 1.0, end and self.terminates, end and not self.terminates, {}


for _terminates in (True, False):
    for _box in (True, False):
        gym.register(
            f"Counter-{'terminates' if _terminates else 'truncates'}{'Box' if _box else ''}-v0",
            Counter,
            kwargs={"terminates": _terminates, "box": _box},
        )


@pytest.mark.parametrize("end", ["terminates", "truncates"])
@pytest.mark.parametrize("name", ["sac_continuous", "td3_continuous", "dqn", "c51"])
def test_replay_keeps_the_true_successor_and_only_terminations(
    name: str, end: str, monkeypatch: Any
) -> None:
    """Episodes 0 1 2 3 | 0 1 2 3: after 2 comes 3, never the 0 of the next episode."""
    module, rows = load(name), []
    monkeypatch.setattr(module.Replay, "add", lambda self, row: rows.append(row.copy()))
    box = "Box" if "continuous" in name else ""
    module.train(module.Args(
        env_id=f"Counter-{end}{box}-v0", total_env_steps=7, learning_starts=7, eval_episodes=0
    ))  # fmt: skip
    seen, reward, terminated, successor = (np.array(rows)[:, i].tolist() for i in (0, 2, 3, 4))
    assert seen == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0]
    assert successor == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]
    assert reward == [1.0] * 7
    ends = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert terminated == (ends if end == "terminates" else [0.0] * 7)


@pytest.mark.parametrize("end", ["terminates", "truncates"])
def test_rows_of_r2d1(end: str, monkeypatch: Any) -> None:
    """As above, with the flags of ends and of cleared states, and zero states after them."""
    module, taken = load("r2d1"), []
    monkeypatch.setattr(
        module.Streams, "add", lambda self, rows, states, replay: taken.append((rows[0], states[0]))
    )
    module.train(module.Args(
        env_id=f"Counter-{end}-v0", total_env_steps=7, num_envs=1, eval_episodes=0
    ))  # fmt: skip
    rows = np.array([row for row, _ in taken])
    ends = [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    assert rows[:, 0].tolist() == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0]
    assert rows[:, 6].tolist() == [1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 1.0]
    assert rows[:, 3].tolist() == (ends if end == "terminates" else [0.0] * 7)
    assert rows[:, 4].tolist() == ends
    assert rows[:, 5].tolist() == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    cleared = [not state.any() for _, state in taken]
    assert cleared == [True, False, False, True, False, False, True]


def test_streams_of_r2d1_by_hand() -> None:
    """Sequences of 3 rows, one every 2 steps: rows 0 1 2, then 2 3 4, each with its first state."""
    module = load("r2d1")
    args = module.Args(num_envs=1, hidden_size=1, sequence_interval=2, replay_size=4)
    streams, replay = module.Streams(3, 1, args), module.Replay(3, 1, args)
    for t in range(5):
        streams.add(np.full((1, 7), t), np.full((1, 2), 10 + t), replay)
    assert replay.size == 2
    assert replay.rows[:2, :, 0].tolist() == [[0.0, 1.0, 2.0], [2.0, 3.0, 4.0]]
    assert replay.states[:2, 0].tolist() == [10.0, 12.0]
    assert replay.priority.tolist() == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("end", ["terminates", "truncates"])
def test_ppo_bootstraps_from_the_true_last_observation(end: str) -> None:
    """Values that count: V = 10 for each observation, so the last delta tells the kinds apart."""
    module = load("ppo_continuous")
    args = module.Args(
        env_id=f"Counter-{end}Box-v0", rollout_length=4, gamma=0.5, gae_lambda=0.5, hidden_size=4
    )
    env = module.make_env(args)
    collector = module.Collector([env], args, module.Progress(args))
    collector.reward_scale = lambda reward: reward  # undo the scaling
    collector.reward_scale.observe = lambda x: None  # type: ignore[attr-defined]
    agent = module.Agent(1, 1, 4)
    torch.nn.init.zeros_(agent.critic.last.weight)
    torch.nn.init.constant_(agent.critic.last.bias, 10.0)
    collector.collect(agent.act)
    batch = module.unpacked(module.training_rows(agent, collector, args), 1)
    # delta = 1 + 10 / 2 - 10 = -4 where it bootstraps, 1 - 10 = -9 where it terminated.
    last = -9.0 if end == "terminates" else -4.0
    expected = [-4.0 - 1.0 + last / 16, -4.0 + last / 4, last, -4.0]
    assert batch.advantage.tolist() == expected
    normalize = collector.normalizer
    assert collector.next_obs[2, 0, 0] > collector.next_obs[1, 0, 0]
    assert normalize.count == 1 + 4 + 1  # the first reset, four steps, a second reset


@pytest.mark.parametrize("end", ["terminates", "truncates"])
def test_reinforce_ends_a_truncated_episode_in_a_value(end: str) -> None:
    """Rewards 1, 1, 1, gamma 1/2, V = 8: G is 1.75, 1.5, 1, or 8/8, 8/4, 8/2 more."""
    module = load("reinforce")
    args = module.Args(
        env_id=f"Counter-{end}-v0", num_envs=2, rollout_length=5, gamma=0.5, hidden_size=4
    )
    episodes = module.Episodes([module.make_env(args) for _ in range(2)], args)
    agent = module.Agent(1, 2, 4)
    torch.nn.init.zeros_(agent.critic.last.weight)
    torch.nn.init.constant_(agent.critic.last.bias, 8.0)
    episodes.run(agent.act)
    _, columns = module.training_rows(agent, episodes, args)
    to_go, valid = columns[:, 1].view(5, 2)[:3, 0].tolist(), columns[:, 3].view(5, 2)
    assert valid[:, 0].tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert to_go == ([1.75, 1.5, 1.0] if end == "terminates" else [2.75, 3.5, 5.0])


def test_normalizer_of_ppo_is_the_standard_deviation_so_far() -> None:
    normalizer, rng = load("ppo_continuous").RunningNormalizer((3,), center=True), None
    rng = np.random.default_rng(0)
    seen = rng.normal(5.0, 2.0, (50, 3))
    for row in seen:
        normalizer.observe(row)
    expected = (seen[7] - seen.mean(0)) / np.sqrt(seen.var(0) + 1e-8)
    np.testing.assert_allclose(normalizer(seen[7]), expected, rtol=1e-10)
    assert normalizer(np.array([1e6, -1e6, 5.0])).tolist()[:2] == [10.0, -10.0]


def test_clipping_is_that_of_torch() -> None:
    for max_norm in (0.1, 100.0):
        parameters = [torch.zeros(3), torch.zeros(2, 2)]
        for i, parameter in enumerate(parameters):
            parameter.grad = torch.full_like(parameter, 1.0 + i)
        own = load("a2c").clipped([p.grad.clone() for p in parameters], max_norm)  # type: ignore[union-attr]
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        torch.testing.assert_close(own, [p.grad for p in parameters])


class NoReadback(TorchDispatchMode):
    """Fails where a tensor's value is read by the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise AssertionError("the update reads a value back to the host")
        return func(*args, **(kwargs or {}))


def test_the_readback_guard_sees_a_readback() -> None:
    with NoReadback(), pytest.raises(AssertionError, match="reads a value back"):
        torch.ones(()).item()


@pytest.mark.parametrize("name", NAMES)
def test_updates_never_wait_for_the_device(
    name: str, monkeypatch: Any, tmp_path: Path, capsys: Any
) -> None:
    """Every function that can be captured runs under a guard: acting and all updates."""
    module, calls = load(name), []

    def guarded(function: Any, args: Any) -> Any:
        def inner(*inputs: Any) -> Any:
            calls.append(function)
            with NoReadback():
                return function(*inputs)

        return inner

    monkeypatch.setattr(module, "accelerated", guarded)
    run(name, capsys, tmp_path, eval_episodes=0)
    assert len(set(calls)) == (3 if name == "td3_continuous" else 2)


# The compiler looks at gradients of inner tensors, where it breaks a graph.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("name", NAMES)
def test_compiled_runs_are_the_same(
    name: str, monkeypatch: Any, tmp_path: Path, capsys: Any
) -> None:
    """Through torch.compile's tracing, with the backend that runs what was traced as it is."""
    plain, _ = run(name, capsys, tmp_path)
    compiler = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compiler(function, backend="eager"))
    settings = (
        torch._inductor.config.patch(fallback_random=False),
        torch._dynamo.config.patch(trace_autograd_ops=False),
    )  # which the run changes
    with settings[0], settings[1]:
        compiled, _ = run(name, capsys, tmp_path, compile=True)
    torch._dynamo.reset()
    assert compiled == plain


# What the compiler recommends on such devices, to every program.
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a CUDA device")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compiles", [False, True])
def test_captured_runs_learn_as_eager_ones(
    name: str, compiles: bool, tmp_path: Path, capsys: Any
) -> None:
    """From the same seed; the first updates agree to 1e-3 of what is printed."""
    changes = {"device": "cuda", "eval_episodes": 0}
    _, eager = run(name, capsys, tmp_path, **changes)
    _, captured = run(name, capsys, tmp_path, **changes, cudagraphs=True, compile=compiles)
    assert [row[0] for row in captured] == [row[0] for row in eager]
    assert captured[1][3] == eager[1][3]

"""K updates with their draws from replay as one graph: to the bit what eager ones are."""

from __future__ import annotations

import copy
import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

import redline
from redline.algos.sac import SAC
from redline.data import Rollout
from redline.engines import sampled
from redline.engines.engine import Engine, choose_engine
from redline.engines.sampled import SampledUpdates, with_sampling
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.train.runs.run import Run
from tests.accelerator.learning import host
from tests.accelerator.stand_in import StandInDevice
from tests.accelerator.test_runs import RUNS, SMALL
from tests.engines.learners import B, T, differing, make

PER_LAUNCH = 4
# Prioritized: what each update writes, the next one draws by.
PRIORITIZED = ("dqn", "rainbow", "iqn", "r2d1", "sac")
# 100 of the quickest; of the others as many as meet every turn, and replay and schedules moved.
UPDATES = {"sac": 16, "td3": 16, "ddpg": 8, "tqc": 8, "redq": 8, "dqn": 100, "rainbow": 12,
           "iqn": 8, "r2d1": 12, "crossq": 12}  # fmt: skip


def rollout(seed: int, *, discrete: bool, recurrent: bool) -> Rollout:
    """[T, B] rows of no meaning on the stand-in; no episode ends but at their last row."""
    generator = torch.Generator().manual_seed(seed)
    action: Tensor = torch.rand(T, B, 2, generator=generator) * 2.0 - 1.0
    if discrete:
        action = torch.randint(3, (T, B), generator=generator)
    ended = torch.zeros(T, B, dtype=torch.bool)
    ended[-1] = True
    steps = {
        "obs": torch.randn(T, B, 4, generator=generator),
        "final_obs": torch.randn(T, B, 4, generator=generator),
        "action": action,
        "reward": torch.randn(T, B, generator=generator),
        "terminated": ended,
        "truncated": torch.zeros_like(ended),
        "valid": torch.ones_like(ended),
        "episode_id": torch.full((T, B), seed),
    }
    state = {n: torch.randn(B, 5, generator=generator) for n in ("hidden", "cell")}
    return Rollout(
        steps=TensorDict(steps, batch_size=[T, B]),
        initial_state=state if recurrent else {},
        last_obs=torch.randn(B, 4, generator=generator),
    ).to("standin")


def rows_of(name: str, seed: int) -> Rollout:
    discrete = name in ("dqn", "rainbow", "iqn", "r2d1")
    return rollout(seed, discrete=discrete, recurrent=name == "r2d1")


def made(name: str) -> SampledUpdates:
    """Updates of a learner on the stand-in, from a full replay there."""
    sequences: dict[str, Any] = {}
    if name == "r2d1":
        sequences = {"sequence_length": 4, "burn_in": 1, "state_interval": T, "n_step": 2}
    config = ReplayConfig(
        capacity=5 * T * B, storage="device", device="standin", gamma=0.9,
        prioritized=name in PRIORITIZED, **sequences,
    )  # fmt: skip
    rows = [rows_of(name, seed) for seed in range(6)]
    replay = Replay(config, ReplaySpec.from_rollout(rows[0]))
    for each in rows:
        replay.add(each)
    generator = torch.Generator("standin").manual_seed(7)
    beta = torch.full((), 0.4, dtype=torch.float64).to("standin")
    learner = make(name, device="standin")
    return SampledUpdates(learner, replay, generator, 8, beta, lambda batch: batch)


def move_on(name: str, updates: SampledUpdates, step: int) -> None:
    """The step size, the exponent of the weights, and what is in replay."""
    updates.algorithm.set_hyperparameters({"learning_rate": 1e-3 * (1.0 - step / 100)})
    updates.beta.fill_(0.4 + 0.6 * step / 100)
    if step % 8 == 0:
        updates.replay.add(rows_of(name, 100 + step))


def captured(updates: SampledUpdates) -> Engine:
    engine = with_sampling(choose_engine(updates.algorithm, "cudagraph"), updates)
    assert engine is not None
    return engine


@pytest.mark.parametrize("name", UPDATES)
def test_updates_equal_eager_ones_to_the_bit(name: str) -> None:
    """With step size, exponent and replay moving on."""
    eager, fast = made(name), made(name)
    engine = captured(fast)
    for step in range(0, UPDATES[name], PER_LAUNCH):
        for updates, update in ((eager, eager.update), (fast, engine.update)):
            move_on(name, updates, step)
            update(PER_LAUNCH)
    wanted = host(eager.state_dict())
    assert wanted["metrics"]
    assert differing(wanted, host(fast.state_dict())) == []


@pytest.mark.parametrize("name", ["sac", "rainbow", "r2d1"])
def test_a_state_loaded_in_the_middle_goes_on_to_the_bit(name: str) -> None:
    """Into another learner, whose graphs are captured anew, beside a replay with the same rows."""
    whole, resumed = made(name), made(name)
    first, second = captured(whole), captured(resumed)
    first.update(6)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    for total in whole.totals.values():  # as a row does when it reads them
        total.zero_()
    first.update(6)
    second.update(6)
    assert differing(host(whole.state_dict()), host(resumed.state_dict())) == []


def test_all_updates_of_an_iteration_are_one_launch(accelerator: StandInDevice) -> None:
    updates = made("rainbow")
    engine = captured(updates)
    engine.update(3)
    accelerator.reset()
    engine.update(3)
    assert accelerator.num_launches() == accelerator.launches["graph"] == 1
    assert accelerator.read_backs == []
    assert accelerator.copied_bytes == 0
    assert updates.algorithm.optimizer_steps() == 6


def test_many_updates_are_several_launches(
    accelerator: StandInDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5 in parts of 2; and once there are as many patterns as may be, those of one update."""
    monkeypatch.setattr(sampled, "MOST_UPDATES", 2)
    monkeypatch.setattr(sampled, "MOST_PATTERNS", 2)
    eager, fast = made("dqn"), made("dqn")  # its target network moves at every third update
    engine = captured(fast)
    for _ in range(4):
        eager.update(5)
        engine.update(5)
    assert differing(host(eager.state_dict()), host(fast.state_dict())) == []
    assert engine.captured is not None
    assert engine.captured.num_graphs <= 4  # two patterns, and one update of each kind
    accelerator.reset()
    engine.update(5)
    assert 3 <= accelerator.launches["graph"] <= 5


def test_replay_that_moves_is_captured_anew() -> None:
    """An array that grows on a device lies elsewhere: a graph would read what it was."""
    eager, fast = made("sac"), made("sac")
    engine = captured(fast)
    for step in range(2):
        for updates, update in ((eager, eager.update), (fast, engine.update)):
            array = updates.replay._arena.arrays["action"]
            if step:
                array.grow(array.rows + 8)
                array.tensor[: 5 * T * B] += 1.0
            update(2)
    assert differing(host(eager.state_dict()), host(fast.state_dict())) == []


def whole_run(out: Path, name: str, mode: str) -> Run:
    algorithm, env, own = RUNS[name]
    settings = SMALL | own | {"replay_ratio": 4.0, "learning_rate_schedule": "linear"}
    if "priority_beta" in own and "r2d1" not in name:
        settings["priority_beta"] = 0.4
    settings |= {"total_env_steps": 48, "accelerate": mode}
    return redline.train(algorithm, env=env, out=out, **settings)


def metrics_of(run: Run) -> list[dict[str, str]]:
    with (run.out / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in ("wall_time_s", "sps")} for row in rows]


@pytest.mark.parametrize("name", ["dqn-prioritized", "r2d1-sequences"])
def test_a_captured_run_is_the_eager_one_to_the_bit(name: str, tmp_path: Path) -> None:
    """Parameters and every metric of every row, with schedules moving."""
    eager = whole_run(tmp_path / "eager", name, "eager")
    fast = whole_run(tmp_path / "fast", name, "cudagraph")
    assert metrics_of(fast) == metrics_of(eager)
    assert fast.inspect()["params_sha256"] == eager.inspect()["params_sha256"]


def test_a_user_s_own_update_is_made_one_by_one() -> None:
    """Its `update` is around the captured part, and only it says what to do with a batch."""

    class Own(SAC):
        def update(self, batch: Any) -> dict[str, Tensor]:
            return super().update(batch)

    learner = make("sac", kind=Own, device="standin")
    engine = choose_engine(learner, "cudagraph")
    updates = made("sac")
    assert engine.learn is None
    assert with_sampling(engine, updates) is None

"""Transitions and n-step windows against a reference that walks along every episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

import redline.replay.buffer as buffer_module
from redline.data import Rollout
from redline.errors import ConfigError
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.spec import LeafSpec
from tests.replay.streams import Stream

GAMMA = 0.9
RATES = st.sampled_from([0.0, 0.1, 0.5])


def make(stream: Stream, first: Rollout, **settings_: Any) -> Replay:
    config = ReplayConfig(gamma=GAMMA, **settings_)
    return Replay(config, ReplaySpec.from_rollout(first, config.extras))


def check_all(replay: Replay, stream: Stream, n: int) -> None:
    """Every valid row in the ring, and no other, is drawn as the reference has it."""
    head, oldest = len(stream.rows), max(len(stream.rows) - replay.ring_rows, 0)
    expected = {
        t * stream.num_envs + b
        for t in range(oldest, head)
        for b in range(stream.num_envs)
        if stream.rows[t][b].valid
    }
    assert len(replay) == len(expected)
    if not expected:
        return
    batch = replay.sample(len(expected) * 12 + 20, np.random.default_rng(0))
    assert set(batch["index"].tolist()) <= expected
    for i, index in enumerate(batch["index"].tolist()):
        t, b = divmod(index, stream.num_envs)
        reward, discount, k, successor = stream.window(t, b, n, GAMMA)
        step = stream.rows[t][b]
        assert np.array_equal(batch["obs"][i].numpy(), step.obs)
        assert batch["action"][i].item() == step.action
        assert batch["num_steps"][i].item() == k
        assert batch["reward"][i].item() == pytest.approx(reward, abs=1e-5)
        assert batch["discount"][i].item() == pytest.approx(discount, abs=1e-6)
        assert np.array_equal(batch["next_obs"][i].numpy(), successor)


@given(
    seed=st.integers(0, 2**20),
    num_envs=st.integers(1, 3),
    rows=st.integers(4, 12),
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    n=st.integers(1, 5),
    frames=st.sampled_from([1, 3]),
    end_rate=RATES,
    idle_rate=RATES,
    break_rate=RATES,
    late_reset=st.booleans(),
    paired=st.booleans(),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_window_equals_the_reference(
    seed: int,
    num_envs: int,
    rows: int,
    lengths: list[int],
    n: int,
    frames: int,
    end_rate: float,
    idle_rate: float,
    break_rate: float,
    late_reset: bool,
    paired: bool,
) -> None:
    """Ends, truncations at any offset, fillers, idle rows, fresh starts and ring wraps.

    Whole observations are stored beside their successors, or once with links.
    """
    stream = Stream(
        seed,
        num_envs,
        frames=frames,
        end_rate=end_rate,
        idle_rate=idle_rate,
        break_rate=break_rate,
        late_reset=late_reset,
        life_rate=0.1,
    )
    rollout = stream.rollout(lengths[0])
    with pytest.MonkeyPatch.context() as patch:
        if not paired:
            patch.setattr(buffer_module, "LARGEST_PAIRED_BYTES", 0)
        replay = make(stream, rollout, capacity=rows * num_envs, n_step=n, frame_stack=frames)
    replay.add(rollout)
    check_all(replay, stream, n)
    for length in lengths[1:]:
        replay.add(stream.rollout(length))
        check_all(replay, stream, n)


def hand_made(**columns: Any) -> Rollout:
    """One environment whose observation is the row number + 10, and 99 at an end."""
    length = len(columns["reward"])
    start = int(columns.pop("start", 0))
    false = torch.zeros(length, 1, dtype=torch.bool)
    steps = {
        "obs": torch.arange(10 + start, 10 + start + length, dtype=torch.float32).view(-1, 1, 1),
        "action": torch.zeros(length, 1, dtype=torch.int64),
        "terminated": false,
        "truncated": false,
        "valid": ~false,
        "env_id": torch.zeros(length, 1, dtype=torch.int64),
        "episode_id": torch.zeros(length, 1, dtype=torch.int64),
    }
    steps |= {k: torch.tensor(v).view(length, 1) for k, v in columns.items()}
    ended = steps["terminated"] | steps["truncated"]
    steps["final_obs"] = 99.0 * ended.float()[..., None]
    steps["episode_id"] = ended.cumsum(0) - ended.long()
    return Rollout(
        steps=TensorDict(steps, batch_size=[length, 1]),
        initial_state={},
        last_obs=torch.tensor([[10.0 + start + length]]),
    )


def by_row(batch: TensorDict, key: str) -> dict[int, float]:
    return {int(i): float(v) for i, v in zip(batch["index"], batch[key].flatten(), strict=True)}


def test_n_step_at_a_time_limit_bootstraps_at_every_offset() -> None:
    """Fault 4: elsewhere n-step used discount 1, and knew a time limit only at offset n - 1.

    Three rows, gamma = 1/2, n = 3, rewards 1, 2, 4, truncated at row 2 with successor 99:
    row 0: 1 + 2/2 + 4/4 = 3, discount 1/8
    row 1: 2 + 4/2       = 4, discount 1/4
    row 2: 4             = 4, discount 1/2
    """
    rollout = hand_made(reward=[1.0, 2.0, 4.0, 7.0], truncated=[False, False, True, False])
    replay = Replay(ReplayConfig(capacity=8, n_step=3, gamma=0.5), ReplaySpec.from_rollout(rollout))
    replay.add(rollout)
    batch = replay.sample(64, np.random.default_rng(0))
    assert by_row(batch, "reward") == {0: 3.0, 1: 4.0, 2: 4.0, 3: 7.0}
    assert by_row(batch, "discount") == {0: 0.125, 1: 0.25, 2: 0.5, 3: 0.5}
    assert by_row(batch, "next_obs") == {0: 99.0, 1: 99.0, 2: 99.0, 3: 14.0}


def test_n_step_at_a_termination_does_not_bootstrap() -> None:
    """Faults 1 and 2: the reset observation is no successor, and truncation no termination."""
    rollout = hand_made(reward=[1.0, 2.0, 4.0], terminated=[False, True, False])
    replay = Replay(ReplayConfig(capacity=8, n_step=2, gamma=0.5), ReplaySpec.from_rollout(rollout))
    replay.add(rollout)
    batch = replay.sample(64, np.random.default_rng(0))
    assert by_row(batch, "reward") == {0: 2.0, 1: 2.0, 2: 4.0}
    assert by_row(batch, "discount") == {0: 0.0, 1: 0.0, 2: 0.5}
    assert by_row(batch, "next_obs") == {0: 99.0, 1: 99.0, 2: 13.0}


def test_time_limit_survives_the_wrap() -> None:
    """Fault 4: elsewhere the mark of a time limit was lost when the ring wrapped around."""
    first = hand_made(reward=[1.0, 2.0, 4.0])
    replay = Replay(ReplayConfig(capacity=4, n_step=3, gamma=0.5), ReplaySpec.from_rollout(first))
    replay.add(first)
    replay.add(hand_made(reward=[8.0, 16.0, 32.0], truncated=[False, True, False], start=3))
    batch = replay.sample(64, np.random.default_rng(0))
    assert by_row(batch, "reward") == {2: 4 + 4 + 4, 3: 16.0, 4: 16.0, 5: 32.0}
    assert by_row(batch, "discount") == {2: 0.125, 3: 0.25, 4: 0.5, 5: 0.5}


def test_what_is_sampled_is_a_copy() -> None:
    """Fault 14: images scaled in place; a batch must not be a window into the buffer."""
    stream = Stream(0, frames=1)
    rollout = stream.rollout(4)
    replay = make(stream, rollout, capacity=8)
    replay.add(rollout)
    batch = replay.sample(8, np.random.default_rng(0))
    kept = batch.clone()
    assert batch["obs"].dtype == torch.uint8
    for leaf in batch.values():
        leaf.zero_()
    again = replay.sample(8, np.random.default_rng(0))
    assert all(torch.equal(again[key], kept[key]) for key in kept.keys())  # noqa: SIM118


def test_what_was_added_may_be_overwritten() -> None:
    """Fault 20: collectors reuse their buffers; stale or later data must not show up here."""
    stream = Stream(0)
    rollout = stream.rollout(4)
    replay = make(stream, rollout, capacity=8)
    replay.add(rollout)
    kept = replay.sample(8, np.random.default_rng(0))
    for leaf in rollout.steps.values():
        leaf.zero_()
    assert isinstance(rollout.last_obs, torch.Tensor)
    rollout.last_obs.zero_()
    again = replay.sample(8, np.random.default_rng(0))
    assert all(torch.equal(again[key], kept[key]) for key in kept.keys())  # noqa: SIM118


def test_uniform_means_uniform_over_valid_rows() -> None:
    """Chi-square over the valid rows; invalid rows between them take no share."""
    from scipy.stats import chisquare

    stream = Stream(3, idle_rate=0.4, end_rate=0.3, late_reset=True)
    rollout = stream.rollout(20)
    replay = make(stream, rollout, capacity=40)
    replay.add(rollout)
    replay.add(stream.rollout(7))
    index = replay.sample(200_000, np.random.default_rng(0))["index"]
    counts = np.unique(index.numpy(), return_counts=True)[1]
    assert len(counts) == len(replay)
    assert chisquare(counts).pvalue > 1e-3


def test_nested_observations_and_actions() -> None:
    """A16: Dict and Tuple spaces through the buffer, each leaf in its own dtype."""
    import gymnasium

    spaces = gymnasium.spaces
    obs_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (4, 2, 2), np.uint8),
            "pose": spaces.Tuple((spaces.Box(-1, 1, (3,), np.float64), spaces.Discrete(5))),
        }
    )
    act_space = spaces.Dict(
        {"move": spaces.Box(-1, 1, (2,), np.float32), "fire": spaces.MultiBinary(3)}
    )
    length, envs = 5, 2

    def rows(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        count = int(np.prod((length, envs, *shape)))
        return torch.arange(count).view(length, envs, *shape).to(dtype)

    def td(entries: dict[str, Any], size: tuple[int, ...] = (length, envs)) -> TensorDict:
        return TensorDict(entries, batch_size=list(size))

    image = rows(4, 2, 2, dtype=torch.uint8)
    obs = td(
        {
            "image": image,
            "pose": td({"0": rows(3, dtype=torch.float32), "1": rows(dtype=torch.int64)}),
        }
    )
    action = td({"move": rows(2, dtype=torch.float32), "fire": rows(3, dtype=torch.int8)})
    false = torch.zeros(length, envs, dtype=torch.bool)
    last = obs[0].clone()
    rollout = Rollout(
        steps=td(
            {
                "obs": obs,
                "action": action,
                "reward": torch.ones(length, envs),
                "terminated": false,
                "truncated": false,
                "valid": ~false,
                "final_obs": obs.clone().zero_(),
                "env_id": torch.zeros(length, envs, dtype=torch.int64),
                "episode_id": torch.zeros(length, envs, dtype=torch.int64),
            }
        ),
        initial_state={},
        last_obs=last,
    )
    spec = ReplaySpec.from_spaces(obs_space, act_space, envs)
    assert spec == ReplaySpec.from_rollout(rollout)
    replay = Replay(ReplayConfig(capacity=20), spec)
    replay.add(rollout)
    batch = replay.sample(50, np.random.default_rng(0))
    t, b = batch["index"] // envs, batch["index"] % envs
    flat = td({"obs": obs, "action": action})[t, b]
    assert bool((batch["obs"] == flat["obs"]).all())
    assert bool((batch["action"] == flat["action"]).all())
    assert batch["obs", "pose", "1"].dtype == torch.int64
    successor = torch.cat([obs, last[None]])[t + 1, b]
    assert bool((batch["next_obs"] == successor).all())


def test_extras_are_kept_and_others_are_not() -> None:
    stream = Stream(0)
    rollout = stream.rollout(4)
    replay = make(stream, rollout, capacity=8, extras=("log_prob",), next_obs=False)
    replay.add(rollout)
    batch = replay.sample(8, np.random.default_rng(0))
    assert "next_obs" not in batch.keys()  # noqa: SIM118
    assert torch.equal(batch["log_prob"], 2 * batch["reward"])


@pytest.mark.parametrize("storage", ["memory", "memmap", "device"])
def test_storage_does_not_change_the_batch(storage: str, tmp_path: Path) -> None:
    stream = Stream(1, frames=2)
    rollouts = [stream.rollout(5) for _ in range(4)]
    batches = []
    for kind in ("memory", storage):
        replay = make(
            stream, rollouts[0], capacity=16, n_step=2, storage=kind, storage_dir=tmp_path
        )
        for rollout in rollouts:
            replay.add(rollout)
        batches.append(replay.sample(64, np.random.default_rng(0)))
    assert bool((batches[0] == batches[1]).all())
    assert list(tmp_path.iterdir()) == []  # the file has no name: nothing to leave behind


@pytest.mark.parametrize("length", [0, 3])
@pytest.mark.parametrize("frames", [1, 3])
def test_an_earlier_batch_gives_its_memory(frames: int, length: int) -> None:
    """The batch is the same, and its observations lie where those of the earlier one did."""
    stream = Stream(1, frames=3)
    rollout = stream.rollout(8)
    interval = 4 if length else 0
    states = {"h": torch.zeros(2, 2, 2)} if length else None
    replay = make(
        stream,
        rollout,
        capacity=20,
        frame_stack=frames,
        sequence_length=length,
        state_interval=interval,
    )
    replay.add(rollout, states=states)
    expected = replay.sample(16, np.random.default_rng(1))
    earlier = replay.sample(16, np.random.default_rng(0))
    batch = replay.sample(16, np.random.default_rng(1), out=earlier)
    if length:
        expected, earlier, batch = expected.steps, earlier.steps, batch.steps
    assert bool((batch == expected).all())
    for key in ("obs", "next_obs"):
        assert batch[key].data_ptr() == earlier[key].data_ptr()
    wrong = replay.sample(8, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="same batch_size"):
        replay.sample(16, np.random.default_rng(1), out=wrong)


def test_a_torch_generator_draws_too() -> None:
    stream = Stream(1)
    rollout = stream.rollout(5)
    replay = make(stream, rollout, capacity=16)
    replay.add(rollout)
    draws = [replay.sample(32, torch.Generator().manual_seed(7))["index"] for _ in range(2)]
    assert torch.equal(*draws)


def test_bad_input_is_refused_and_changes_nothing() -> None:
    stream = Stream(0, frames=2)
    rollout = stream.rollout(4)
    replay = make(stream, rollout, capacity=16)
    with pytest.raises(ConfigError, match="nothing to draw yet"):
        replay.sample(1, np.random.default_rng(0))
    replay.add(rollout)
    kept = replay.sample(32, np.random.default_rng(0))
    wide = Stream(0, num_envs=3, frames=2).rollout(4)
    with pytest.raises(ConfigError, match="num_envs"):
        replay.add(wide)
    floats = stream.rollout(4)
    floats.steps["obs"] = floats["obs"].float()
    with pytest.raises(ConfigError, match="Nothing is converted silently"):
        replay.add(floats)
    with pytest.raises(ConfigError, match="rollout_length=9 exceeds the 8 rows"):
        replay.add(stream.rollout(9))
    vanished = Stream(5, end_rate=0.0).rollout(4)
    vanished.steps["episode_id"][2:] = 3
    other = make(stream, vanished, capacity=16)
    with pytest.raises(ConfigError, match="has not ended"):
        other.add(vanished)
    with pytest.raises(ConfigError, match="prioritized=False"):
        replay.update_priorities(kept["index"], torch.ones(32))
    again = replay.sample(32, np.random.default_rng(0))
    assert bool((again == kept).all())


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"capacity": 0}, "capacity=0"),
        ({"gamma": 1.5}, "gamma=1.5"),
        ({"alpha": -1.0}, "alpha=-1.0"),
        ({"priority_epsilon": 0.0}, "never be drawn again"),
        ({"storage": "memmap"}, "storage_dir"),
        ({"storage": "disk"}, "unknown"),
        ({"sequence_length": 4}, "state_interval"),
        ({"burn_in": 4}, "sequence_length"),
        ({"stacked_keys": ("a",)}, "frame_stack=1"),
        ({"priority_eta": 2.0}, "priority_eta"),
        ({"chunk_bytes": 1}, "chunk_bytes"),
    ],
)
def test_bad_settings_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplayConfig(**settings_)


def test_an_entry_without_content_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to store"):
        ReplaySpec(
            num_envs=1,
            obs={(): LeafSpec((0,), torch.float32)},
            action={},
            extras={},
            state={},
        )


def test_the_config_loads_without_torch() -> None:
    """Help must answer in a second, so a config must not load torch."""
    import subprocess
    import sys

    code = "import sys, redline.replay; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_broken_chain_is_cut_even_where_observations_coincide(tmp_path: Path) -> None:
    """A world that always looks alike: only `break_chain` tells that an episode began anew.

    Rewards are 1 and gamma is 1/2, so a whole window of 3 rows is 1.75; the last row before
    the break is alone in its window. A save in between forgets nothing.
    """
    steps = {
        "obs": torch.zeros(4, 1, 2),
        "final_obs": torch.zeros(4, 1, 2),
        "action": torch.zeros(4, 1, dtype=torch.int64),
        "reward": torch.ones(4, 1),
        "terminated": torch.zeros(4, 1, dtype=torch.bool),
        "truncated": torch.zeros(4, 1, dtype=torch.bool),
        "valid": torch.ones(4, 1, dtype=torch.bool),
        "env_id": torch.zeros(4, 1, dtype=torch.int64),
        "episode_id": torch.zeros(4, 1, dtype=torch.int64),
    }
    rollout = Rollout(
        steps=TensorDict(steps, batch_size=[4, 1]), initial_state={}, last_obs=torch.zeros(1, 2)
    )
    windows = []
    config = ReplayConfig(capacity=16, n_step=3, gamma=0.5)
    for breaks, saves in ((False, False), (True, False), (True, True)):
        replay = Replay(config, ReplaySpec.from_rollout(rollout))
        replay.add(rollout)
        if breaks:
            replay.break_chain()
        if saves:
            replay.save(tmp_path / "a")
            replay = Replay(config, replay.spec)
            replay.load(tmp_path / "a")
        replay.add(rollout)
        batch = replay.sample(400, np.random.default_rng(0))
        windows.append(dict(zip(batch["index"].tolist(), batch["reward"].tolist(), strict=True)))
    assert [windows[0][row] for row in (1, 2, 3)] == [1.75, 1.75, 1.75]
    assert [windows[1][row] for row in (1, 2, 3)] == [1.75, 1.5, 1.0]
    assert windows[1][4] == 1.75
    assert windows[2] == windows[1]

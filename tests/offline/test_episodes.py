"""Recorded episodes: what they must be, their files, and how replay sees them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redline.errors import ConfigError
from redline.nested import leaves
from redline.offline import (
    CarriedSpaces,
    RecordedEpisodes,
    as_rollouts,
    read_episodes,
    write_episodes,
)
from redline.replay import Replay, ReplayConfig, ReplaySpec

ABOUT = {"dataset_id": "test/episodes-v0"}


def arrays(**changes: Any) -> dict[str, Any]:
    """Five steps: two that terminate, then three that are truncated; observations count."""
    return {
        "observations": np.arange(10, dtype=np.float64).reshape(5, 2),
        "actions": np.array([0, 1, 0, 1, 1]),
        "rewards": np.array([1.0, 2.0, 3.0, 4.0, 5.0]),
        "terminations": np.array([0, 1, 0, 0, 0], bool),
        "truncations": np.array([0, 0, 0, 0, 1], bool),
    } | changes


def test_episodes_are_told_apart_by_their_ends() -> None:
    episodes = RecordedEpisodes.of_arrays(arrays(), "here")
    assert episodes.last_steps.tolist() == [1, 4]
    assert episodes.returns.tolist() == [3.0, 12.0]
    assert episodes.final_known.tolist() == [False, False]


def test_data_that_end_in_the_middle_of_an_episode_are_cut_there() -> None:
    episodes = RecordedEpisodes.of_arrays(arrays(truncations=np.zeros(5, bool)), "here")
    assert episodes.truncated.tolist() == [False, False, False, False, True]


@pytest.mark.parametrize("name", ["next_observations", "final_observations"])
def test_last_observations_come_from_either_array(name: str) -> None:
    """Of next_observations only rows 1 and 4, the ends of the two episodes, say something new."""
    following = np.arange(10, 20, dtype=np.float64).reshape(5, 2)
    value = following if name == "next_observations" else following[[1, 4]]
    episodes = RecordedEpisodes.of_arrays(arrays(**{name: value}), "here")
    assert np.array_equal(episodes.final_obs, [[12, 13], [18, 19]])
    assert episodes.final_known.all()


class OnADevice:
    """What a tensor of a GPU says when it is asked for an array."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rewards": np.array([])}, "holds no steps"),
        ({"rewards": np.array([1, 2, np.nan, 4, 5])}, "reward of step 2 is nan"),
        ({"rewards": np.ones((5, 2))}, "one number"),
        ({"rewards": 1.0}, "one number"),
        ({"truncations": True}, "one truth"),
        ({"observations": [[1.0], [1.0, 2.0]]}, "observations is no array"),
        (
            {"observations": torch.zeros(5, 2, requires_grad=True)},
            r"observations is no array .*detach\(\)\.cpu\(\)\.numpy\(\)",
        ),
        ({"actions": OnADevice()}, r"actions is no array .*detach\(\)\.cpu\(\)\.numpy\(\)"),
        ({"actions": np.zeros(4, int)}, r"action has shape \(4,\), and 5 rows"),
        ({"terminations": np.array([0, 2, 0, 0, 0])}, "one truth for each step"),
        (
            {"final_observations": np.zeros((3, 2))},
            "2 rows .*, one for each of the 2 episodes",
        ),
        ({"final_observations": {"a": np.zeros((2, 2))}}, "same parts"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RecordedEpisodes.of_arrays(arrays(**changes), "here")


def test_a_missing_array_is_named() -> None:
    data = arrays()
    del data["truncations"]
    with pytest.raises(ConfigError, match="has no truncations"):
        RecordedEpisodes.of_arrays(data, "here")


def test_a_step_whose_successor_is_unknown_is_left_out() -> None:
    """The second episode's last step goes; the one before is cut with its observation, (8, 9)."""
    episodes = RecordedEpisodes.of_arrays(arrays(), "here").with_successors()
    assert episodes.reward.tolist() == [1, 2, 3, 4]
    assert episodes.terminated.tolist() == [False, True, False, False]
    assert episodes.truncated.tolist() == [False, False, False, True]
    assert np.array_equal(episodes.final_obs[1], [8, 9])


def test_an_episode_of_one_such_step_goes_whole() -> None:
    data = arrays(
        terminations=np.array([0, 0, 0, 0, 1], bool), truncations=np.array([1, 0, 0, 0, 0], bool)
    )
    episodes = RecordedEpisodes.of_arrays(data, "here").with_successors()
    assert episodes.reward.tolist() == [2, 3, 4, 5]
    assert episodes.num_episodes == 1


def test_what_a_terminal_step_led_to_is_like_what_was_before() -> None:
    """Both episodes terminate, at (2, 3) and (8, 9); as a stack of 2 that is (3, 3) and (9, 9)."""
    data = arrays(truncations=np.zeros(5, bool), terminations=np.array([0, 1, 0, 0, 1], bool))
    plain = RecordedEpisodes.of_arrays(data, "here")
    assert plain.with_stand_ins({"": 1}).final_obs.tolist() == [[2, 3], [8, 9]]
    assert plain.with_stand_ins({"": 2}).final_obs.tolist() == [[3, 3], [9, 9]]
    nested = RecordedEpisodes.of_arrays(
        data | {"observations": {"a": {"b": plain.obs}, "c": plain.obs}}, "here"
    )
    found: Any = nested.with_stand_ins({"a.b": 2, "c": 1}).final_obs
    assert found["a"]["b"].tolist() == [[3, 3], [9, 9]]
    assert found["c"].tolist() == [[2, 3], [8, 9]]


# -- spaces -----------------------------------------------------------------------------------


def test_values_are_carried_as_redline_carries_them() -> None:
    """float64 becomes float32, `start` is taken off, a tuple becomes a dict; and back."""
    data = arrays(
        observations=(np.arange(5.0)[:, None], np.array([3, 4, 3, 4, 3])),
        actions=np.array([-1, 0, -1, 1, 0]),
        final_observations=(np.zeros((2, 1)), np.array([3, 4])),
    )
    space = CarriedSpaces(
        obs=spaces.Tuple([spaces.Box(-9, 9, (1,), np.float64), spaces.Discrete(2, start=3)]),
        action=spaces.Discrete(3, start=-1),
    )
    episodes = RecordedEpisodes.of_arrays(data, "here")
    carried = space.carried(episodes, "here")
    obs: Any = carried.obs
    assert obs["0"].dtype == np.float32
    assert obs["1"].tolist() == [0, 1, 0, 1, 0]
    assert np.asarray(carried.action).tolist() == [0, 1, 0, 2, 1]
    native = space.native(carried)
    assert np.asarray(native.action).tolist() == [-1, 0, -1, 1, 0]
    assert dict(leaves(native.obs))["1"].tolist() == [3, 4, 3, 4, 3]


BOX = spaces.Box(-1, 1, (1,), np.float32)


@pytest.mark.parametrize(
    ("action", "space", "said"),
    [
        (np.array([0, 1, 2, 0, 1]), spaces.Discrete(2), "hold 2 in row 2"),
        (np.zeros((5, 3)), BOX, "shape"),
        (np.array([[0.0], [1.5], [0], [0], [0]]), BOX, r"outside the bounds"),
        (np.array([[0.0], [np.nan], [0], [0], [0]]), BOX, "nan"),
        (np.zeros(5), spaces.Discrete(2), "float64"),
        ({"a": np.zeros(5, int)}, spaces.Discrete(2), "space is"),
        (np.zeros(5, int), spaces.Dict({"a": spaces.Discrete(2)}), "has the parts"),
    ],
)
def test_values_outside_the_space_are_refused(action: Any, space: Any, said: str) -> None:
    episodes = RecordedEpisodes.of_arrays(arrays(actions=action), "here")
    with pytest.raises(ConfigError, match=said):
        CarriedSpaces(obs=spaces.Box(-99, 99, (2,)), action=space).carried(episodes, "here")


@pytest.mark.parametrize(
    ("obs", "dtype", "said"),
    [
        (np.array([[1, 2], [3, 300], [0, 0], [0, 0], [0, 0]], np.uint16), np.uint8, "row 1"),
        (np.array([[0, -200]] * 5, np.int64), np.int8, "-200"),
        (np.full((5, 2), 1e39), np.float32, "e[+]39.*float32 cannot hold it"),
    ],
)
def test_observations_that_the_space_cannot_hold_are_refused(
    obs: Any, dtype: Any, said: str
) -> None:
    """300 became 44 in a uint8, 1e39 an infinity."""
    low, high = (0, 100) if dtype != np.int8 else (-100, 100)
    space = CarriedSpaces(obs=spaces.Box(low, high, (2,), dtype), action=spaces.Discrete(2))
    episodes = RecordedEpisodes.of_arrays(arrays(observations=obs), "here")
    with pytest.raises(ConfigError, match=said):
        space.carried(episodes, "here")


def test_a_key_with_a_slash_is_read_back(tmp_path: Path) -> None:
    data = arrays(observations={"walker/joints": np.ones((5, 2)), "50%": np.zeros((5, 1))})
    episodes = RecordedEpisodes.of_arrays(data, "here")
    space = spaces.Dict({"walker/joints": BOX, "50%": BOX})
    write_episodes(episodes, tmp_path / "d.npz", space, BOX, {})
    found = read_episodes(tmp_path / "d.npz")
    assert [name for name, _ in leaves(found.obs)] == [name for name, _ in leaves(episodes.obs)]
    assert set(found.obs) == {"walker/joints", "50%"}


def test_rounding_over_a_bound_is_taken_back() -> None:
    action = np.array([[0.0], [1.0000001], [0], [0], [-1]])
    episodes = RecordedEpisodes.of_arrays(arrays(actions=action), "here")
    space = CarriedSpaces(obs=spaces.Box(-99, 99, (2,)), action=BOX)
    assert np.asarray(space.carried(episodes, "here").action).max() == 1.0


# -- files ------------------------------------------------------------------------------------

OBS = spaces.Dict({"pose": spaces.Box(-9, 9, (2,)), "mode": spaces.Discrete(3)})


@st.composite
def some_episodes(draw: st.DrawFn) -> RecordedEpisodes:
    """Whole episodes of one to four steps with a Dict observation, terminated or truncated."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    steps, last = sum(lengths), np.cumsum(lengths) - 1
    ends = rng.random(len(lengths)) < 0.5
    terminated, truncated = np.zeros((2, steps), bool)
    terminated[last], truncated[last] = ends, ~ends

    def observed(rows: int) -> dict[str, Any]:
        pose = rng.random((rows, 2), np.float32)
        return {"pose": pose, "mode": rng.integers(3, size=rows)}

    return RecordedEpisodes(
        obs=observed(steps),
        action=rng.integers(2, size=steps),
        reward=rng.random(steps, np.float32),
        terminated=terminated,
        truncated=truncated,
        final_obs=observed(len(lengths)),
        final_known=np.ones(len(lengths), bool),
    )


def assert_same(one: RecordedEpisodes, other: RecordedEpisodes) -> None:
    for name in RecordedEpisodes.__dataclass_fields__:
        pairs = [dict(leaves(getattr(each, name))) for each in (one, other)]
        assert pairs[0].keys() == pairs[1].keys()
        for key, leaf in pairs[0].items():
            assert np.array_equal(leaf, pairs[1][key]), (name, key)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(episodes=some_episodes())
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, episodes: RecordedEpisodes
) -> None:
    path = tmp_path_factory.mktemp("data") / "d.npz"
    write_episodes(episodes, path, OBS, spaces.Discrete(2), ABOUT)
    assert_same(read_episodes(path), episodes)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(episodes=some_episodes())
def test_a_minari_dataset_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, episodes: RecordedEpisodes
) -> None:
    minari = pytest.importorskip("minari", reason="extra minari is not installed")
    path = tmp_path_factory.mktemp("data") / "d"
    path.mkdir()
    write_episodes(episodes, path, OBS, spaces.Discrete(2), ABOUT)
    assert_same(read_episodes(path), episodes)
    dataset = minari.MinariDataset(path)
    assert dataset.total_steps == episodes.num_steps
    assert_same(read_episodes(dataset), episodes)


def test_a_minari_dataset_is_written_to_a_relative_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("minari", reason="extra minari is not installed")
    monkeypatch.chdir(tmp_path)
    Path("d").mkdir()
    data = arrays(
        observations=np.zeros((5, 2), np.float32), final_observations=np.zeros((2, 2), np.float32)
    )
    episodes = RecordedEpisodes.of_arrays(data, "here")
    write_episodes(episodes, Path("d"), spaces.Box(-99, 99, (2,)), spaces.Discrete(2), ABOUT)
    assert read_episodes("d").returns.tolist() == [3.0, 12.0]


def test_a_minari_dataset_cannot_name_an_environment_to_be_made(tmp_path: Path) -> None:
    """Without spaces Minari would make the environment, and so import what the file says."""
    pytest.importorskip("minari", reason="extra minari is not installed")
    about = {"data_format": "arrow", "env_spec": json.dumps({"id": "os:Danger-v0"})}
    (tmp_path / "metadata.json").write_text(json.dumps(about))
    with pytest.raises(ConfigError, match="does not say its spaces"):
        read_episodes(tmp_path)


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez(path, **arrays(actions=np.array([{}] * 5, dtype=object)))
    with pytest.raises(ConfigError, match="allow_pickle=False"):
        read_episodes(path)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"no archive at all"])
def test_a_broken_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot be read as an \.npz file"):
        read_episodes(path)


@pytest.mark.parametrize("source", ["nowhere/at-all-v0", "../../etc", "/nowhere", "gone.npz"])
def test_a_source_that_is_not_there_is_named(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no such file or folder"):
        read_episodes(source)


def test_looking_for_a_dataset_of_minari_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home that cannot be written to is no reason for a traceback either."""
    pytest.importorskip("minari", reason="extra minari is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MINARI_DATASETS_PATH", raising=False)
    with pytest.raises(ConfigError, match="no such file or folder"):
        read_episodes("epsiodes")
    assert not (tmp_path / "home").exists()
    for variable, root in ((None, "home/.minari/datasets"), ("elsewhere", "elsewhere")):
        if variable:
            monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / variable))
        data = arrays(final_observations=np.zeros((2, 2)))
        episodes = RecordedEpisodes.of_arrays(data, "here")
        folder = tmp_path / root / "mine/test-v0"
        folder.mkdir(parents=True)
        box = spaces.Box(-99, 99, (2,), np.float64)
        write_episodes(episodes, folder, box, spaces.Discrete(2), ABOUT)
        assert read_episodes("mine/test-v0").num_steps == 5


# -- replay -----------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(episodes=some_episodes(), num_envs=st.integers(1, 4), rows=st.integers(1, 8))
def test_replay_holds_every_transition(
    episodes: RecordedEpisodes, num_envs: int, rows: int
) -> None:
    """The successor of each step, worked out from the arrays alone, is what replay gives."""
    spec = ReplaySpec.from_spaces(OBS, spaces.Discrete(2), num_envs)
    replay = Replay(ReplayConfig(capacity=64, n_step=1, gamma=0.5), spec)
    for rollout in as_rollouts(episodes, num_envs, rows=rows):
        replay.add(rollout)
    replay.break_chain()
    assert len(replay) == episodes.num_steps
    batch = replay.sample(2048, np.random.default_rng(0))

    rows: Any = {name: leaf.numpy() for name, leaf in batch["next_obs"].items()}
    found = {
        (float(o), float(r)): (float(n), int(m), float(d))
        for o, r, n, m, d in zip(
            batch["obs"]["pose"][:, 0],
            batch["reward"],
            rows["pose"][:, 0],
            rows["mode"],
            batch["discount"],
            strict=True,
        )
    }
    assert len(found) == episodes.num_steps
    obs, final = dict(leaves(episodes.obs)), dict(leaves(episodes.final_obs))
    episode = 0
    for t in range(episodes.num_steps):
        key = (float(obs["pose"][t, 0]), float(episodes.reward[t]))
        pose, mode, discount = found[key]
        ends = episodes.terminated[t] or episodes.truncated[t]
        source, row = (final, episode) if ends else (obs, t + 1)
        assert discount == (0.0 if episodes.terminated[t] else 0.5)
        if not episodes.terminated[t]:
            assert (pose, mode) == (source["pose"][row, 0], source["mode"][row])
        episode += ends


def test_an_archive_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 0.3 MB unpacked to 0.9 GB before anything was said."""
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, observations=np.zeros(10**6), rewards=np.zeros(10))
    assert path.stat().st_size < 10_000
    monkeypatch.setattr("redline.free_memory.available_memory", lambda: (7 * 10**6, "a test"))
    with pytest.raises(ConfigError, match=r"needs at least 8,000,\d{3} bytes"):
        read_episodes(path)


def minari_dataset(folder: Path, obs: np.ndarray[Any, Any], data_format: str) -> Path:
    """One episode of a step for each observation but the last."""
    storage = pytest.importorskip(
        "minari.dataset.minari_storage", reason="extra minari is not installed"
    )
    from minari.data_collector import EpisodeBuffer

    space = spaces.Box(0, 255, obs.shape[1:], np.uint8)
    steps = len(obs) - 1
    storage.MinariStorage.new(
        folder, space, spaces.Discrete(2), data_format=data_format
    ).update_episodes(
        [
            EpisodeBuffer(
                id=0,
                observations=obs,
                actions=np.zeros(steps, np.int64),
                rewards=[0.0] * steps,
                terminations=[False] * steps,
                truncations=[False] * (steps - 1) + [True],
            )
        ]
    )
    return folder


def test_a_dataset_that_does_not_fit_into_the_memory_is_refused_by_its_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 steps of 1,000 bytes and 8 of the action, and an observation more: 2 x 5,032 bytes."""
    folder = minari_dataset(tmp_path / "d", np.zeros((5, 1000), np.uint8), "arrow")
    assert read_episodes(folder).num_steps == 4
    monkeypatch.setattr("redline.free_memory.available_memory", lambda: (10_000, "a test"))
    with pytest.raises(ConfigError, match=r"2 x 5,032 bytes of 4 steps.*at least 10,064 bytes"):
        read_episodes(folder)


@pytest.mark.parametrize("count", [-1, "5", True, None])
def test_a_dataset_without_counts_is_refused(count: Any, tmp_path: Path) -> None:
    folder = minari_dataset(tmp_path / "d", np.zeros((5, 2), np.uint8), "arrow")
    about = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps(about | {"total_steps": count}))
    with pytest.raises(ConfigError, match=r"cannot be read .*its total_steps is .* no count"):
        read_episodes(folder)


def test_episodes_that_are_larger_than_their_metadata_say_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 bytes of observations, in 4 + 1 of the episode, and more; nothing is claimed."""
    folder = minari_dataset(tmp_path / "d", np.zeros((5, 1000), np.uint8), "arrow")
    about = json.loads((folder / "metadata.json").read_text())
    (folder / "metadata.json").write_text(json.dumps(about | {"total_steps": 0}))
    monkeypatch.setattr("redline.offline.files._CHECKED_BYTES", 1)
    monkeypatch.setattr("redline.free_memory.available_memory", lambda: (5000, "a test"))
    with pytest.raises(ConfigError, match=r"joining its first 1 episodes needs at least 5,0\d\d b"):
        read_episodes(folder)


def test_an_episode_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h5py = pytest.importorskip("h5py", reason="extra minari is not installed")
    folder = minari_dataset(tmp_path / "d", np.zeros((5, 2), np.uint8), "hdf5")
    assert read_episodes(folder).num_steps == 4
    with h5py.File(folder / "main_data.hdf5", "a") as file:
        del file["episode_0/observations"]
        bomb = np.zeros((10**6, 2), np.uint8)
        file["episode_0"].create_dataset("observations", data=bomb, compression="gzip")
    assert (folder / "main_data.hdf5").stat().st_size < 100_000
    monkeypatch.setattr("redline.free_memory.available_memory", lambda: (10**6, "a test"))
    with pytest.raises(ConfigError, match=r"largest episode, needs at least 2,000,\d{3} bytes"):
        read_episodes(folder)


def test_a_picture_that_is_too_large_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIL's error derives from nothing but Exception."""
    folder = minari_dataset(tmp_path / "d", np.zeros((2, 32, 32, 3), np.uint8), "hdf5")
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 1)
    with pytest.raises(ConfigError, match=r"cannot be read as a Minari dataset .*decompression"):
        read_episodes(folder)


def test_last_observations_that_nobody_knows_need_not_lie_in_the_space() -> None:
    """Zeros stand in their place, and a space that starts at 1 has none."""
    data = RecordedEpisodes.of_arrays(
        {
            "observations": np.array([1, 2, 3, 2]),
            "actions": np.zeros(4, int),
            "rewards": np.zeros(4),
            "terminations": np.array([0, 1, 0, 1]),
            "truncations": np.zeros(4, bool),
        },
        "data",
    )
    its = CarriedSpaces(obs=spaces.Discrete(3, start=1), action=spaces.Discrete(2))
    carried = its.carried(data, "data")
    assert carried.obs.tolist() == [0, 1, 2, 1]
    assert carried.final_obs.tolist() == [0, 0]
    known = dataclasses.replace(
        data, final_obs=np.array([3, 0]), final_known=np.array([True, False])
    )
    assert its.carried(known, "data").final_obs.tolist() == [2, 0]
    wrong = dataclasses.replace(known, final_obs=np.array([4, 0]))
    with pytest.raises(ConfigError, match="last observations hold 4 in row 0"):
        its.carried(wrong, "data")

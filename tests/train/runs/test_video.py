"""Videos: frames in, the same pictures out."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import redline
from redline.cli import main
from redline.envs import EnvSettings
from redline.errors import ConfigError, MissingExtraError
from redline.policies import ActOutput, SkillPolicy, make_policy, with_skill
from redline.train.loops.evaluate import evaluate
from redline.train.runs.given import Given, env_settings
from redline.train.runs.run import Run
from redline.train.runs.video import EpisodeFrames, write_video


def frames(count: int, height: int, width: int) -> Iterator[np.ndarray]:
    """A red field that grows over a black one, eight columns per frame."""
    for index in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[:, : 8 * (index + 1)] = (255, 0, 0)
        yield frame


def test_gif_holds_the_frames(tmp_path: Path) -> None:
    iio = pytest.importorskip("imageio.v2")
    out = write_video(frames(5, 31, 63), tmp_path / "videos" / "run.gif", fps=20)
    pictures = iio.mimread(out)
    assert len(pictures) == 5
    for picture, frame in zip(pictures, frames(5, 31, 63), strict=True):
        np.testing.assert_array_equal(picture[..., :3], frame)
    assert [path.name for path in out.parent.iterdir()] == ["run.gif"]


def test_mp4_holds_the_frames_at_their_size(tmp_path: Path) -> None:
    """An odd size grows to the next even one, and is not stretched to a multiple of 16."""
    ffmpeg: Any = pytest.importorskip("imageio_ffmpeg")
    out = write_video(frames(6, 51, 101), tmp_path / "run.mp4", fps=25)
    decode = [ffmpeg.get_ffmpeg_exe(), "-i", str(out), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(decode, capture_output=True, check=True)
    assert b"102x52" in decoded.stderr
    assert b"25 fps" in decoded.stderr
    pictures = np.frombuffer(decoded.stdout, np.uint8).reshape(6, 52, 102, 3)
    for index, picture in enumerate(pictures):
        edge = 8 * (index + 1)
        assert picture[10:40, : edge - 6, 0].min() > 200
        assert picture[10:40, edge + 6 :, 0].max() < 60


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no frames"),
        ([np.zeros((4, 4, 3))], "frame 0 has dtype float64"),
        ([np.zeros((4, 4), np.uint8)], r"shape \(4, 4\)\. A frame is uint8"),
        ([np.zeros((4, 4, 3), np.uint8), np.zeros((6, 4, 3), np.uint8)], "frame 1 has shape"),
    ],
)
@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_bad_frames_leave_nothing(
    tmp_path: Path, given: list[np.ndarray], message: str, suffix: str
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(ConfigError, match=message):
        write_video(given, tmp_path / f"run{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in '\.avi'.*\.mp4 or \.gif"):
        write_video(frames(1, 4, 4), tmp_path / "run.avi")
    with pytest.raises(ConfigError, match="fps=0"):
        write_video(frames(1, 4, 4), tmp_path / "run.gif", fps=0)


@pytest.mark.parametrize(
    ("package", "suffix"), [("imageio.v2", ".gif"), ("imageio_ffmpeg", ".mp4")]
)
def test_missing_packages_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, suffix: str
) -> None:
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'redline\[video\]'"):
        write_video(frames(1, 4, 4), tmp_path / f"run{suffix}")


class Dice(gymnasium.Env[Any, Any]):
    """An episode's return is a number thrown at its reset; pictures show it as brightness."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array", "human"], "render_fps": 5}
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    shown: ClassVar[list[float]] = []

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._thrown = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._thrown = int(self.np_random.integers(250))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.render_mode == "human":
            self.shown.append(self._thrown)
        return np.zeros(1, np.float32), float(self._thrown), True, False, {}

    def render(self) -> Any:
        return np.full((16, 16, 3), self._thrown, np.uint8)


class NoWindow(Dice):
    """Draws nothing."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}


class NoDisplay(Dice):
    """Fails as a graphics library does without a display."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        if self.render_mode == "human":
            raise RuntimeError("No available video device")
        return super().reset(**given)


for kind in (Dice, NoWindow, NoDisplay):
    gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)


def dicing(out: Path, env: str = "Dice-v0") -> Run:
    return redline.train(
        "ppo",
        env=env,
        out=out,
        total_env_steps=8,
        num_envs=1,
        rollout_length=8,
        num_minibatches=1,
        tensorboard=False,
        num_threads=1,
        quiet=True,
    )


def test_frames_of_any_episode_of_an_evaluation(tmp_path: Path) -> None:
    """Five episodes on two environments: each is drawn again, and its brightness is its return."""
    run = dicing(tmp_path / "run")
    records: list[Any] = []
    settings = env_settings(run.config, Given())
    policy = run.policy()
    evaluate(settings.make, policy, episodes=5, seed=3, num_envs=2, on_step=records.extend)
    assert len(records) == 5
    assert len({record.return_ for record in records}) > 2
    for record in records:
        frames = EpisodeFrames(
            settings, policy, seed=3, env_id=record.env_id, episode_id=record.episode_id
        )
        assert [int(frame[0, 0, 0]) for frame in frames] == [int(record.return_)]
        assert frames.record is not None
        assert frames.record.return_ == record.return_


def test_an_episode_is_drawn_with_the_skill_that_it_was_run_with() -> None:
    """Environment 2 of an evaluation has skill 2; its video showed skill 0."""
    env = EnvSettings(env="Dice-v0")
    space = env.make(1).observation_space
    policy: Any = SkillPolicy(make_policy(with_skill(space, 3), spaces.Discrete(2)), space, 3)
    seen: list[int] = []
    act = policy.act

    def noted(obs: Any, state: Any, noise: Any, conditioning: Any) -> Any:
        seen.extend(conditioning["skill"].tolist())
        return act(obs, state, noise, conditioning)

    policy.act = noted
    assert len(list(EpisodeFrames(env, policy, seed=3, env_id=2))) == 1
    assert seen == [2]


def test_a_lost_life_ends_what_a_policy_remembers() -> None:
    """As in evaluations. Breakout's ball is launched and missed: the paddle does not move."""
    pytest.importorskip("ale_py")
    settings = EnvSettings(env="ALE/Breakout-v5", preset="dqn-2015", observe_previous=True)
    env = settings.make(1)
    policy: Any = make_policy(env.observation_space, spaces.Discrete(4), core="lstm", core_size=8)
    begins: list[bool] = []

    def fire(obs: Any, state: Any, *_: Any) -> ActOutput:
        begins.append(not obs["previous_action"].any())
        return ActOutput(torch.ones(1, dtype=torch.int64), {}, state)

    policy.act = fire
    list(EpisodeFrames(settings, policy, seed=0))
    assert sum(begins) == 5  # once for each life


def test_eval_writes_the_best_and_the_worst_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ffmpeg: Any = pytest.importorskip("imageio_ffmpeg")
    dicing(tmp_path / "run")
    assert main(["eval", str(tmp_path / "run"), "--episodes", "4", "--seed", "5", "--video"]) == 0
    said = capsys.readouterr()
    assert "warning" not in said.err
    result = json.loads(said.out.splitlines()[-1])
    names = {path.stem.rpartition("_")[2]: path for path in (tmp_path / "run/videos").iterdir()}
    assert sorted(names) == ["best", "worst"]
    for name, expected in (("best", result["return_max"]), ("worst", result["return_min"])):
        decode = [ffmpeg.get_ffmpeg_exe(), "-i", str(names[name]), "-f", "rawvideo"]
        decode += ["-pix_fmt", "rgb24", "-"]
        decoded = subprocess.run(decode, capture_output=True, check=True).stdout
        picture = np.frombuffer(decoded, np.uint8)
        assert picture.size == 16 * 16 * 3
        assert abs(float(picture.mean()) - expected) < 6  # it is compressed
        assert str(names[name]) in said.out


def test_eval_in_a_window_shows_every_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dicing(tmp_path / "run")
    Dice.shown.clear()
    assert main(["eval", str(tmp_path / "run"), "--episodes", "3", "--render", "human"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert Dice.shown == result["returns"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("NoWindow-v0", r"shows no window: its render modes are \['ansi'\]"),
        (
            "NoDisplay-v0",
            r"could not open a window: this process has no display.*No available video device",
        ),
    ],
)
def test_a_window_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, said: str
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    run = dicing(tmp_path / "run", env)
    with pytest.raises(ConfigError, match=said):
        run.evaluate(1, render="human")


def test_drawing_where_nobody_sees_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pygame takes its offscreen driver by itself where there is no display."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    run = dicing(tmp_path / "run")
    for driver, is_seen in (("x11", True), ("offscreen", False)):
        display = SimpleNamespace(get_init=lambda: True, get_driver=lambda driver=driver: driver)
        monkeypatch.setitem(sys.modules, "pygame", SimpleNamespace(display=display))
        if is_seen:
            assert run.evaluate(1, render="human").episodes == 1
            continue
        with pytest.raises(ConfigError, match="this process has no display"):
            run.evaluate(1, render="human")

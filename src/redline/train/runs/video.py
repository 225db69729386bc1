"""Videos of a trained agent, as MP4 or GIF."""

from __future__ import annotations

import importlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch

from redline.data import Array, EpisodeRecord, to_numpy, to_tensor
from redline.envs import EnvSettings, VecEnv
from redline.envs.batched import BatchedEnv
from redline.envs.games.ids import ORIGINALS
from redline.envs.previous_inputs import PreviousInputs
from redline.errors import ConfigError, MissingExtraError
from redline.nested import NestedArray
from redline.policies.policy import Policy, reset_state
from redline.train.checkpoint.atomic_files import atomic_file
from redline.train.loops.evaluate import require_samples

SUFFIXES = (".mp4", ".gif")


def write_video(frames: Iterable[npt.NDArray[Any]], path: Path | str, *, fps: float = 30) -> Path:
    """Encode frames as they come; they are never all in memory for an MP4.

    Args:
        frames: each [height, width, 3] uint8 RGB, all of one size. For MP4 an odd height or
            width is made even by repeating the last row or column, as H.264 demands.
        path: file to write, ending in .mp4 or .gif.
        fps: frames per second, > 0. GIF rounds the time of a frame to 10 ms.

    Returns:
        Where the video lies.

    Raises:
        ConfigError: if the suffix or fps is wrong, there is no frame, or a frame is no picture.
        MissingExtraError: if imageio, or for MP4 its ffmpeg, is not installed.
        RunDirectoryError: if the file cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"video {str(path)!r} ends in {path.suffix!r}. Videos are written as "
            f"{' or '.join(SUFFIXES)}."
        )
    if not fps > 0:
        raise ConfigError(f"fps={fps} must be greater than 0 frames per second.")
    imageio = _imageio(suffix)
    options: dict[str, Any]
    if suffix == ".mp4":
        # macro_block_size 1: otherwise frames are resized to multiples of 16.
        options = {"format": "FFMPEG", "fps": fps, "macro_block_size": 1}
    else:
        options = {"format": "GIF", "duration": 1000.0 / fps, "loop": 0}
    shape: tuple[int, ...] | None = None
    # closing: the writer's own exit leaves ffmpeg running when the block raises.
    with atomic_file(path) as temporary, closing(imageio.get_writer(temporary, **options)) as file:
        for index, frame in enumerate(frames):
            shape = shape or frame.shape
            _check_frame(frame, index, shape)
            file.append_data(_even(frame) if suffix == ".mp4" else frame)
        if shape is None:
            raise ConfigError(f"there are no frames to write to {path}. Give at least one.")
    return path


def require_video(suffix: str) -> None:
    """Refuse now what `write_video` would only find out after the work.

    Raises:
        MissingExtraError: if what writes files of this suffix is not installed.
    """
    _imageio(suffix)


def _imageio(suffix: str) -> Any:
    packages = ("imageio.v2", "imageio_ffmpeg") if suffix == ".mp4" else ("imageio.v2",)
    modules = []
    for package in packages:
        try:
            modules.append(importlib.import_module(package))
        except ImportError as error:
            name = package.partition(".")[0]
            raise MissingExtraError(name, "video", f"writing {suffix} videos") from error
    return modules[0]


def _check_frame(frame: npt.NDArray[Any], index: int, shape: tuple[int, ...]) -> None:
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ConfigError(
            f"frame {index} has dtype {frame.dtype} and shape {frame.shape}. A frame is uint8 of "
            f"shape [height, width, 3]: make the environment with render_mode='rgb_array'."
        )
    if frame.shape != shape:
        raise ConfigError(
            f"frame {index} has shape {frame.shape}, the first one {shape}. All frames of a video "
            f"must have the same size."
        )


def _even(frame: npt.NDArray[Any]) -> npt.NDArray[Any]:
    height, width = frame.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return frame
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def drawing_settings(settings: EnvSettings, render_mode: str | None) -> EnvSettings:
    """How to make an environment that draws itself, in this process.

    What was given as a Python object draws as it was made to.

    Args:
        settings: how the run makes its environments.
        render_mode: "rgb_array" for pictures, "human" for a window, None for neither.
    """
    if not isinstance(settings.env, str):
        return settings
    # A native game cannot be drawn, but its original plays by the same rules.
    env = ORIGINALS.get(settings.env, settings.env)
    drawn = {**settings.env_kwargs, "render_mode": render_mode}
    return replace(settings, env=env, backend="gymnasium", env_kwargs=drawn)


def best_and_worst(records: Sequence[EpisodeRecord]) -> dict[str, EpisodeRecord]:
    """The episodes of the highest and of the lowest return, the first of equals.

    Args:
        records: of at least one episode; of a single one, that is "best".
    """
    found = {"best": max(records, key=lambda record: record.return_)}
    if len(records) > 1:
        found["worst"] = min(records, key=lambda record: record.return_)
    return found


class EpisodeFrames:
    """Runs one whole episode and hands out its frames as they are drawn.

    An environment's episodes follow from the seed, its index and the policy. So an episode that
    `evaluate` ran can be run again, and drawn: that of environment i which came after k others.

    Args:
        settings: how to make the environment; it is stepped in this process.
        policy: acts.
        seed: of the environment and the action noise.
        greedy: act with the mode of the action distribution.
        env_id: i, whose stream of episodes it is.
        episode_id: k, episodes that are run before it without being drawn.
        max_steps: env_steps after which each episode is cut, as `evaluate` cuts them: the
            environment then begins anew. None: none is.

    Attributes:
        fps: frames per second that the environment asks for.
        record: of the episode, once all frames were handed out.
    """

    def __init__(
        self,
        settings: EnvSettings,
        policy: Policy,
        *,
        seed: int,
        greedy: bool = True,
        env_id: int = 0,
        episode_id: int = 0,
        max_steps: int | None = None,
    ) -> None:
        if not greedy:
            require_samples(policy)
        self._policy, self._seed, self._greedy = policy, seed, greedy
        self._env_id, self._episode_id, self._max_steps = env_id, episode_id, max_steps
        self.record: EpisodeRecord | None = None
        self._rendered: list[gymnasium.Env[Any, Any]] = []
        settings = drawing_settings(settings, "rgb_array")
        make = settings.single().make

        def remember() -> gymnasium.Env[Any, Any]:
            env = make()
            self._rendered.append(env)
            return env

        # What the policy may see of rewards and of lost lives is as in training.
        plain = EnvSettings(env=remember)
        env = BatchedEnv(
            plain.backend_class.make(plain, 1, env_id),
            settings.env_id,
            clip_reward=settings.clips_reward,
            episodic_life=settings.ends_at_lost_lives,
        )
        self._env: VecEnv = PreviousInputs(env) if settings.observe_previous else env
        self.fps = float(self._rendered[0].metadata.get("render_fps", 30))

    def __iter__(self) -> Iterator[Array]:
        """Step until the episode ends; the environment is closed afterwards."""
        rng = np.random.default_rng([self._seed, self._env_id])
        with self._env as env, torch.inference_mode():
            obs = env.reset(self._seed)
            for _ in range(self._episode_id):
                obs, _ = deque(self._steps(env, obs, rng), maxlen=1)[0]
                if self._max_steps is not None:
                    obs = env.reset(None)
            yield self._frame()
            for _, record in self._steps(env, obs, rng):
                self.record = record
                if record is None:
                    yield self._frame()

    def _steps(
        self, env: VecEnv, obs: NestedArray, rng: np.random.Generator
    ) -> Iterator[tuple[NestedArray, EpisodeRecord | None]]:
        """Each step of one episode: what is observed next, and the record once it has ended."""
        state = self._policy.initial_state(1)
        # That of environment i, as `evaluate` deals them out.
        every = self._policy.evaluation_conditioning(self._env_id + 1)
        conditioning = {name: values[-1:] for name, values in every.items()}
        for taken in itertools.count(1):
            noise = None
            if not self._greedy:
                noise = torch.from_numpy(self._policy.draw_noise(rng, 1))
            output = self._policy.act(to_tensor(obs), state, noise, conditioning or None)
            step = env.step(self._policy.env_action(to_numpy(output.action)))
            obs, state = step.obs, output.state
            if step.episodes:
                yield obs, step.episodes[0]
                return
            if taken == self._max_steps:
                yield obs, env.running()[0]
                return
            yield obs, None
            if state and (step.terminated | step.truncated).any():
                state = reset_state(state, torch.from_numpy(step.terminated | step.truncated))

    def _frame(self) -> Array:
        frame: Any = self._rendered[0].render()
        if not isinstance(frame, np.ndarray):
            raise ConfigError(
                f"{self._env.env_id} drew {type(frame).__name__} instead of a picture. Give the "
                f"environment render_mode='rgb_array' where it is made."
            )
        return frame

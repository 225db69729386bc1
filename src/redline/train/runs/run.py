"""A run: made from a config, resumed from its directory, evaluated, inspected, exported."""

from __future__ import annotations

import csv
import dataclasses
import json
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Literal, SupportsIndex, TypeAlias, cast

import gymnasium

from redline.algos.algorithm import Algorithm
from redline.algos.config import require_not_negative
from redline.data import EpisodeRecord
from redline.envs import VecEnv
from redline.envs.backends.backend import Backend
from redline.errors import (
    CheckpointError,
    ConfigError,
    IncompatibleCheckpointError,
    RunDirectoryError,
)
from redline.models.registry import NetworkFactory
from redline.offline import CarriedSpaces, RecordedEpisodes, write_episodes
from redline.offline.files import require_writable
from redline.plain_text import shortened
from redline.policies import Policy
from redline.registry import is_named
from redline.serving import serve
from redline.train.checkpoint.atomic_files import atomic_directory, atomic_file
from redline.train.checkpoint.checkpoint import Checkpoint
from redline.train.checkpoint.files import params_sha256
from redline.train.checkpoint.store import CheckpointStore
from redline.train.loops.evaluate import Evaluation, Limits, evaluate, evaluation_seed
from redline.train.loops.saved_progress import algorithm_state, require_sound_metadata
from redline.train.progress.table import ProgressTable
from redline.train.runs.building import make_some
from redline.train.runs.export import export_policy, in_own_numbers
from redline.train.runs.given import (
    EnvArgument,
    Given,
    algorithm_of,
    env_settings,
    require_same_algorithm,
    require_same_network,
)
from redline.train.runs.history import read_history, saved
from redline.train.runs.learner import build_policy, trainable_parts
from redline.train.runs.recording import RecordingEnv
from redline.train.runs.run_directory import read_config
from redline.train.runs.sealed_files import require_same_config
from redline.train.runs.summary import last_return_row, summarize_run
from redline.train.runs.video import EpisodeFrames, best_and_worst, write_video
from redline.train.runs.window import explained_window, refuse_unseen, windowed
from redline.train.settings import RunConfig

ProfileRecording: TypeAlias = Callable[[Path], AbstractContextManager[None]]
Which: TypeAlias = Literal["latest", "best"] | int


class Run:
    """A run in a directory, finished or not.

    Attributes:
        out: the run directory.
        config: all its settings.
        exit_code: 0, or 128 + the number of the signal that stopped it.
    """

    def __init__(
        self,
        out: Path,
        config: RunConfig,
        given: Given | None = None,
        *,
        exit_code: int = 0,
        accept_changed_config: bool = False,
        place: Path | None = None,
    ) -> None:
        self.out, self.config, self.exit_code = out, config, exit_code
        # The program may go to another working directory; training may have done so already.
        self._place = place or out.absolute()
        self._accepts_change = accept_changed_config
        self._given = given or Given()

    def __repr__(self) -> str:
        config = self.config
        about = f"Run({str(self.out)!r}: {config.algorithm} on {config.run.env}"
        summary = summarize_run(self._place)
        if summary is None:
            return f"{about})"
        about += f", {summary.env_steps:,} of {summary.total_env_steps:,} env_steps"
        about += f", {summary.state}"
        if summary.return_mean is not None:
            about += f", return {summary.return_mean:,.1f}"
        return f"{about})"

    def progress(self) -> ProgressTable:
        """The rows of `progress.csv`: `run.progress()["return_mean"]` is a column.

        Raises:
            RunDirectoryError: if there is no row yet.
        """
        return ProgressTable.of(self._place)

    def last_training_return(self) -> tuple[float | None, float | None]:
        """Mean and standard deviation of the newest row in which training episodes ended.

        Both are None where no episode has ended, or where progress.csv is damaged.
        """
        try:
            row = last_return_row(self._place)
            return _number(row, "return_mean"), _number(row, "return_std")
        except (ValueError, csv.Error):  # an evaluation that has ended is worth more than this
            return None, None

    def history(self) -> list[dict[str, Any]]:
        """When the run began, went on, was changed and ended; see docs/warm_start.md."""
        return read_history(self._place)

    @staticmethod
    def load(out: str | Path, **given: Any) -> Run:
        """The run in a directory; see `load_run`."""
        return load_run(out, **given)

    def checkpoint(self, which: Which = "latest") -> Checkpoint:
        """The newest checkpoint that is whole, the best one, or one in between.

        Args:
            which: "latest", "best", or the env_steps of one that the run keeps; see
                `--checkpoints every` and `gap`.

        Raises:
            CheckpointError: if there is none, or it does not say what it is.
            ConfigError: if config.json was changed since it was written, or `which` is none of
                these.
        """
        which = _checked(which)
        store = CheckpointStore(self._place / "checkpoints")
        if isinstance(which, int):
            found = store.at(which)
        else:
            found = store.best() if which == "best" else store.latest(_warn)
        if found is None:
            raise CheckpointError(self._no_checkpoint(which, store))
        require_sound_metadata(found.metadata)
        if not self._accepts_change:
            require_same_config(self._place, found.run_files)
        return found

    def _no_checkpoint(self, which: Which, store: CheckpointStore) -> str:
        if isinstance(which, int) and store.list():
            kept = ", ".join(f"{step:,}" for step in store.steps())
            return (
                f"{self.out} keeps no checkpoint of {which:,} env_steps. Give the env_steps of one "
                f"that it keeps ({kept}), 'latest' or 'best'."
            )
        if which == "best" and store.list():
            if self.config.run.checkpoints == "best":
                return (
                    f"{self.out} has no best checkpoint yet: the best one is known once an "
                    f"evaluation has ended, or without eval_interval a training episode. Use the "
                    f"latest one, or train longer: redline train --resume {self.out} "
                    f"--total-env-steps N"
                )
            if any(place.endswith(":SaveBest") for place in self.config.run.callbacks):
                return (
                    f"{self.out} has no best checkpoint yet: SaveBest marks one once an evaluation "
                    f"has ended, or without eval_interval its min_episodes training episodes. Use "
                    f"the latest one, or train longer: redline train --resume {self.out} "
                    f"--total-env-steps N"
                )
            return (
                f"{self.out} has no best checkpoint: it was trained with checkpoints="
                f"{self.config.run.checkpoints!r} and without the callback SaveBest, so none was "
                f"marked. Use the latest one, or train a run with --checkpoints best."
            )
        if env_steps := saved(self._place):
            return (
                f"{self.out} has no {_kind(which)}, though it was trained for {env_steps:,} "
                f"env_steps. Put its checkpoints back."
            )
        return (
            f"{self.out} has no {_kind(which)} yet. Train it first: "
            f"redline train --resume {self.out}"
        )

    def require_checkpoint(self, which: Which = "latest") -> None:
        """Refuse a run that has no such checkpoint, without reading any.

        Raises:
            CheckpointError: naming what to do.
            ConfigError: if `which` is neither "latest", "best" nor a number.
        """
        which = _checked(which)
        store = CheckpointStore(self._place / "checkpoints")
        if isinstance(which, int):
            is_there = store.has(which)
        else:
            is_there = store.has_best() if which == "best" else bool(store.list())
        if not is_there:
            raise CheckpointError(self._no_checkpoint(which, store))

    def policy(self, which: Which = "latest", *, seed: int | None = None) -> Policy:
        """The trained policy, on the CPU; its `predict` takes what an environment gives.

        It is in evaluation mode. The environment is made and reset once, for its spaces; a
        `VectorEnv` that was given is the caller's own.

        Args:
            which: checkpoint, as for `checkpoint`.
            seed: of the actions that `predict(..., deterministic=False)` samples; None: others
                each time.
        """
        if seed is not None:
            require_not_negative(seed=seed)
        settings = env_settings(self.config, self._given)
        if settings.backend == "processes":
            settings = dataclasses.replace(settings, backend="gymnasium")  # to look at its spaces
        with make_some(settings, 1) as env:
            policy = build_policy(self.config, env, self._given)
            serve(policy, *env.native_spaces, clips_reward=env.clips_reward, seed=seed)
        load_policy(policy, self.checkpoint(which))
        return policy.eval()

    def evaluate(
        self,
        episodes: int = 10,
        *,
        seed: int | None = None,
        greedy: bool = True,
        which: Which = "latest",
        max_episode_steps: int | None = None,
        max_env_steps: int | None = None,
        log_info: str | Sequence[str] | None = None,
        render: Literal["human"] | None = None,
        on_episodes: Callable[[list[EpisodeRecord]], None] | None = None,
    ) -> Evaluation:
        """Run exactly `episodes` episodes, on environments of their own.

        Args:
            episodes: how many.
            seed: of environments and action noise; None: the run's. Training with the same seed has
                other environments.
            greedy: act with the mode of the action distribution.
            which: checkpoint, as for `checkpoint`.
            max_episode_steps: env_steps after which an episode is cut, and counts as it is.
            max_env_steps: env_steps of all episodes together, after which those that have not
                ended are left out; fewer than `episodes` may be left.
            log_info: names of values in the last info of each episode, whose means
                `Evaluation.info` then holds; None: those that training logged.
            render: "human" shows the episodes in a window, one after another.
            on_episodes: called after every step with the records of the episodes that ended in it.

        Raises:
            ConfigError: if a setting is wrong, or the environment shows no window.
        """
        limits = Limits(max_episode_steps=max_episode_steps, max_env_steps=max_env_steps)
        config = self.config if log_info is None else self.config.replace(log_info=log_info)
        settings = env_settings(config, self._given)
        env = self._given.env
        ready = env if isinstance(env, gymnasium.vector.VectorEnv) else None
        num_envs = None if ready is None else ready.num_envs
        make_env: Callable[[int], VecEnv] = partial(make_some, settings)
        if render is not None:
            make_env, num_envs = partial(windowed, settings), 1
            on_episodes = refuse_unseen(on_episodes)
        with explained_window(render):
            return evaluate(
                make_env,
                self.policy(which),
                episodes=episodes,
                seed=self._seed(seed),
                greedy=greedy,
                num_envs=num_envs,
                limits=limits,
                on_step=on_episodes,
            )

    def collect(
        self,
        episodes: int,
        out: str | Path | None = None,
        *,
        seed: int | None = None,
        greedy: bool = True,
        which: Which = "latest",
    ) -> RecordedEpisodes:
        """Record whole episodes of the agent, for `redline.train(data=...)` or others.

        Args:
            episodes: how many, exactly.
            out: where to write them: a name that ends in .npz is such a file, any other the folder
                of a Minari dataset; None: nowhere.
            seed: of environments and action noise; None: the run's. Training with the same seed has
                other environments.
            greedy: act with the mode of the action distribution.
            which: checkpoint, as for `checkpoint`.

        Returns:
            The episodes, as the environment has them.

        Raises:
            ConfigError: if `out` exists, or no data can be recorded in this environment.
            MissingExtraError: if it takes Minari to write them, and it is not installed.
        """
        if out is not None:
            require_writable(Path(out))
        # A data set holds what the environment pays, not what a learner was shown.
        settings = dataclasses.replace(env_settings(self.config, self._given), clip_reward=False)
        recording: list[RecordingEnv] = []

        def make_env(num_envs: int) -> VecEnv:
            env = make_some(settings, num_envs)
            recording.append(RecordingEnv(env, episodes))
            CarriedSpaces.of(recording[0])  # refuses what no data set holds, before the work
            return recording[0]

        evaluate(
            make_env, self.policy(which), episodes=episodes, seed=self._seed(seed), greedy=greedy
        )
        spaces = CarriedSpaces.of(recording[0])
        recorded = spaces.native(recording[0].recorded())
        if out is not None:
            self._write_episodes(recorded, Path(out), spaces)
        return recorded

    def _write_episodes(self, episodes: RecordedEpisodes, out: Path, spaces: CarriedSpaces) -> None:
        """Write them so that they appear whole or not at all."""
        about = {
            "dataset_id": f"redline/{re.sub(r'[^A-Za-z0-9_]+', '-', out.stem).strip('-')}-v0",
            "algorithm_name": self.config.algorithm,
            "description": f"recorded by Redline on {self.config.run.env}",
        }
        appears = atomic_file if out.suffix == ".npz" else atomic_directory
        # The caller named it: a link on the way is meant.
        with appears(out.parent.resolve() / out.name) as temporary:
            write_episodes(episodes, temporary, *spaces.written, about)

    def _seed(self, seed: int | None) -> int:
        """What environments are seeded from: never what training of the same seed uses."""
        if seed is None:
            seed = self.config.run.seed
        require_not_negative(seed=seed)
        return evaluation_seed(seed)

    def inspect(self) -> dict[str, Any]:
        """What the newest checkpoint holds, as plain data."""
        checkpoint = self.checkpoint()
        names = ("algorithm", "env", "env_steps", "frames", "iteration", "optimizer_steps")
        return {
            **{name: checkpoint.metadata[name] for name in names},
            "params_sha256": params_sha256(
                trainable_parts(
                    algorithm_of(self.config, self._given), algorithm_state(checkpoint.state)
                )
            ),
            "checkpoint": str(checkpoint.path),
        }

    def record_video(
        self,
        out: str | Path | None = None,
        *,
        seed: int | None = None,
        greedy: bool = True,
        which: Which = "latest",
    ) -> Path:
        """Write a video of one episode.

        Args:
            out: .mp4 or .gif file; None: videos/step_<env_steps>.mp4 in the run directory.
            seed: of environment and action noise; None: the run's. Training with the same seed has
                other environments.
            greedy: act with the mode of the action distribution.
            which: checkpoint, as for `checkpoint`.

        Returns:
            Where the video lies.
        """
        path = Path(out) if out else self._video_path(which)
        path.parent.mkdir(parents=True, exist_ok=True)
        frames = self._frames(which, seed=self._seed(seed), greedy=greedy)
        return write_video(frames, path, fps=frames.fps)

    def record_best_and_worst(
        self,
        records: Sequence[EpisodeRecord],
        *,
        seed: int | None = None,
        greedy: bool = True,
        which: Which = "latest",
        max_episode_steps: int | None = None,
    ) -> dict[str, Path]:
        """Write videos of the best and of the worst episode that `evaluate` has run.

        Each is run again from its seed. Where an environment does not repeat itself, the episode
        drawn is another one; a warning says so.

        Args:
            records: as `evaluate(on_episodes=...)` gave them.
            seed: as given to `evaluate`.
            greedy: likewise.
            which: likewise.
            max_episode_steps: likewise.

        Returns:
            "best" and, of more than one episode, "worst" -> where the video lies:
            videos/step_<env_steps>_best.mp4 in the run directory.
        """
        written: dict[str, Path] = {}
        for name, record in best_and_worst(records).items():
            frames = self._frames(
                which,
                seed=self._seed(seed),
                greedy=greedy,
                env_id=record.env_id,
                episode_id=record.episode_id,
                max_steps=max_episode_steps,
            )
            path = self._video_path(which, f"_{name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            written[name] = write_video(frames, path, fps=frames.fps)
            drawn = frames.record
            if drawn is not None and drawn.return_ != record.return_:
                _warn(
                    f"{path.name} shows an episode of return {drawn.return_:,.1f}: the {name} one, "
                    f"of {record.return_:,.1f}, could not be repeated in an environment that draws."
                )
        return written

    def _video_path(self, which: Which, suffix: str = "") -> Path:
        step = self.checkpoint(which).step
        return self._place / "videos" / f"step_{step:012d}{suffix}.mp4"

    def _frames(self, which: Which, **episode: Any) -> EpisodeFrames:
        settings = env_settings(self.config, self._given)
        return EpisodeFrames(settings, self.policy(which), **episode)

    def export(self, out: str | Path, *, format: str = "onnx", which: Which = "latest") -> Path:
        """Write the greedy policy, normalization included, for use without Redline.

        It takes and gives what the environment's spaces hold, as `predict` does: numbers of a
        Discrete space with `start=5` begin at 5.

        Args:
            out: file to write.
            format: "onnx", or "torch" for a `torch.export` program.
            which: checkpoint, as for `checkpoint`.

        Returns:
            Where the file lies.
        """
        policy = self.policy(which)
        module: Any = policy.export_module()
        if policy.served is not None:
            _, *native_spaces = policy.served
            module = in_own_numbers(module, *native_spaces)
        return export_policy(module, module.example_inputs(), out, format=format)


def _kind(which: Which) -> str:
    return f"checkpoint of {which:,} env_steps" if isinstance(which, int) else f"{which} checkpoint"


def _checked(which: Any) -> Which:
    """`which`, a number as an int.

    Raises:
        ConfigError: if it is nothing that names a checkpoint.
    """
    if isinstance(which, str) and which in ("latest", "best"):
        return which
    try:
        step = operator.index(cast("SupportsIndex", which))
    except TypeError:
        step = -1
    if step < 0 or isinstance(which, bool):
        raise ConfigError(
            f"which={which!r:.100} is no checkpoint of a run that can be asked for. Give 'latest', "
            f"'best' or the env_steps of one that is kept."
        )
    return step


def _number(row: Mapping[str, str], name: str) -> float | None:
    return float(row[name]) if row.get(name) else None


def _warn(message: str) -> None:
    sys.stderr.write(f"warning: {message}\n")


def load_policy(policy: Policy, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's parameters into a policy.

    Raises:
        CorruptCheckpointError: if they are no tensors.
        IncompatibleCheckpointError: if they do not fit.
    """
    parameters = algorithm_state(checkpoint.state, "policy")["policy"]
    try:
        policy.load_state_dict(parameters)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise IncompatibleCheckpointError(
            f"the parameters in {checkpoint.path} do not fit this policy ({shortened(error)}). The "
            f"environment or the network differs from the one that was trained: give the same."
        ) from error


def load_run(
    out: str | Path,
    *,
    algorithm: str | type[Algorithm] | None = None,
    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    env_backend: str | type[Backend] | None = None,
    env_kwargs: str | Mapping[str, Any] | None = None,
    accept_changed_config: bool = False,
) -> Run:
    """The run in a directory.

    Args:
        out: run directory.
        algorithm: its class or module:Name, if it is none that Redline knows by name.
        env: the environment, if it was given as a Python object.
        network: the network factory, or "module:Name" of it, if there was one.
        env_backend: the environments' back end, if it is a class or module:Name of your own.
        env_kwargs: the arguments of the environment again, where they name files.
        accept_changed_config: take config.json also if it was changed since Redline wrote it.

    Raises:
        RunDirectoryError: if the directory holds no run.
        ConfigError: if its config.json was changed, or the algorithm is another one.
        IncompatibleCheckpointError: if the environment or the network is another one.
    """
    path = Path(out)
    if not path.is_dir():
        raise RunDirectoryError(f"{path} does not exist. Give a run directory.")
    config = read_config(path, algorithm, accept_changed=accept_changed_config)
    if isinstance(algorithm, str) and is_named(algorithm):  # places in code may be one class
        require_same_algorithm(config, path, algorithm)
    if env is not None and isinstance(env, str) and env != config.run.env:
        raise IncompatibleCheckpointError(
            f"{path} was trained on {config.run.env}, not on {env}. Leave the environment out, or "
            f"give the same."
        )
    if isinstance(env_kwargs, Mapping):
        env_kwargs = json.dumps(env_kwargs)
    given = Given(
        algorithm=algorithm,
        env=env,
        network=network,
        env_backend=env_backend,
        confirmed={"env_kwargs": env_kwargs},
    )
    require_same_network(config, path, given)
    return Run(path, config, given, accept_changed_config=accept_changed_config)

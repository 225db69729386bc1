"""A run: made from a config, resumed from its directory, evaluated, inspected, exported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import torch

from redline.accelerate import accelerate, choose_mode
from redline.algos.configs import OffPolicyConfig
from redline.algos.configs.checks import require_not_negative, require_positive
from redline.errors import (
    CheckpointError,
    ConfigError,
    IncompatibleCheckpointError,
    RedlineError,
    RunDirectoryError,
)
from redline.policies import Policy
from redline.train.algorithms import (
    OFF_POLICY,
    build_algorithm,
    build_policy,
    build_replay,
    trainable_parts,
)
from redline.train.atomic_files import write_json_atomic
from redline.train.building import (
    EnvArgument,
    NetworkFactory,
    check_devices,
    describe_env,
    env_settings,
    make_collector,
    make_evaluation_beside,
    make_evaluator,
    make_logger,
    make_some,
    make_store,
    resolve,
)
from redline.train.checkpoint import Checkpoint
from redline.train.checkpoint_files import params_sha256
from redline.train.checkpoint_store import CheckpointStore
from redline.train.console import Console, duration
from redline.train.evaluate import Evaluation, evaluate, evaluation_seed
from redline.train.export import export_policy
from redline.train.loop import TrainLoop
from redline.train.off_policy_loop import OffPolicyLoop
from redline.train.on_policy_loop import OnPolicyLoop
from redline.train.presets import preset_config
from redline.train.progress_writers import require_writer
from redline.train.randomness import seed_global_generators
from redline.train.recording import EpisodeFrames
from redline.train.run_directory import (
    CONFIG_FILE,
    RunLock,
    check_new_run_directory,
    default_run_directory,
    read_config,
)
from redline.train.settings import RunConfig
from redline.train.video import write_video

Recording: TypeAlias = Callable[[Path], AbstractContextManager[None]]


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
        *,
        env: EnvArgument | None = None,
        network: NetworkFactory | None = None,
        exit_code: int = 0,
    ) -> None:
        self.out, self.config, self.exit_code = out, config, exit_code
        self._env, self._network = env, network

    @staticmethod
    def load(
        out: str | Path, *, env: EnvArgument | None = None, network: NetworkFactory | None = None
    ) -> Run:
        """The run in a directory; see `load_run`."""
        return load_run(out, env=env, network=network)

    def checkpoint(self, which: str = "latest") -> Checkpoint:
        """The newest checkpoint that is whole, or the best one.

        Args:
            which: "latest" or "best".

        Raises:
            CheckpointError: if there is none.
        """
        store = CheckpointStore(self.out / "checkpoints")
        found = store.best() if which == "best" else store.latest(_warn)
        if found is None:
            raise CheckpointError(
                f"{self.out} has no {which} checkpoint yet. Train it first: "
                f"redline train --resume {self.out}"
            )
        return found

    def policy(self, which: str = "latest") -> Policy:
        """The trained policy, on the CPU."""
        with make_some(env_settings(self.config, self._env), 1) as env:
            policy = build_policy(self.config, env, self._network)
        load_policy(policy, self.checkpoint(which))
        return policy

    def evaluate(
        self,
        episodes: int = 10,
        *,
        seed: int | None = None,
        greedy: bool = True,
        which: str = "latest",
    ) -> Evaluation:
        """Run exactly `episodes` whole episodes on environments of their own.

        Args:
            episodes: how many.
            seed: of environments and action noise; None: one that training never uses.
            greedy: act with the mode of the action distribution.
            which: "latest" or "best" checkpoint.
        """
        settings = env_settings(self.config, self._env)
        ready = self._env if isinstance(self._env, gymnasium.vector.VectorEnv) else None
        return evaluate(
            lambda num_envs: make_some(settings, num_envs),
            self.policy(which),
            episodes=episodes,
            seed=self._seed(seed),
            greedy=greedy,
            num_envs=None if ready is None else ready.num_envs,
        )

    def _seed(self, seed: int | None) -> int:
        """The seed given, or one that training never uses."""
        if seed is None:
            return evaluation_seed(self.config.run.seed)
        require_not_negative(seed=seed)
        return seed

    def inspect(self) -> dict[str, Any]:
        """What the newest checkpoint holds, as plain data."""
        checkpoint = self.checkpoint()
        names = ("algorithm", "env", "env_steps", "frames", "iteration", "optimizer_steps")
        return {
            **{name: checkpoint.metadata[name] for name in names},
            "params_sha256": params_sha256(trainable_parts(checkpoint.state["algorithm"])),
            "checkpoint": str(checkpoint.path),
        }

    def record_video(
        self,
        out: str | Path | None = None,
        *,
        seed: int | None = None,
        greedy: bool = True,
        which: str = "latest",
    ) -> Path:
        """Write a video of one episode.

        Args:
            out: .mp4 or .gif file; None: videos/step_<env_steps>.mp4 in the run directory.
            seed: of environment and action noise; None: one that training never uses.
            greedy: act with the mode of the action distribution.
            which: "latest" or "best" checkpoint.

        Returns:
            Where the video lies.
        """
        step = self.checkpoint(which).step
        path = Path(out) if out else self.out / "videos" / f"step_{step:012d}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        frames = EpisodeFrames(
            env_settings(self.config, self._env),
            self.policy(which),
            seed=self._seed(seed),
            greedy=greedy,
        )
        return write_video(frames, path, fps=frames.fps)

    def export(self, out: str | Path, *, format: str = "onnx", which: str = "latest") -> Path:
        """Write the greedy policy, normalisation included, for use without Redline.

        Args:
            out: file to write.
            format: "onnx", or "torch" for a `torch.export` program.
            which: "latest" or "best" checkpoint.

        Returns:
            Where the file lies.
        """
        module = self.policy(which).export_module()
        return export_policy(module, module.example_inputs(), out, format=format)


def _warn(message: str) -> None:
    sys.stderr.write(f"warning: {message}\n")


def load_policy(policy: Policy, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's parameters into a policy.

    Raises:
        IncompatibleCheckpointError: if they do not fit.
    """
    try:
        policy.load_state_dict(checkpoint.state["algorithm"]["policy"])
    except (RuntimeError, KeyError) as error:
        raise IncompatibleCheckpointError(
            f"the parameters in {checkpoint.path} do not fit this policy ({error}). The "
            f"environment or the network differs from the one that was trained: give the same."
        ) from error


def train(
    algorithm: str | None = None,
    *,
    env: EnvArgument | None = None,
    network: NetworkFactory | None = None,
    resume: str | Path | None = None,
    preset: str = "auto",
    **settings: Any,
) -> Run:
    """Train an agent, or go on with a run.

    Args:
        algorithm: its name, such as "ppo" or "sac"; None with `resume`.
        env: a Gymnasium id, a callable that makes a `gymnasium.Env`, or a
            `gymnasium.vector.VectorEnv`.
        network: observation space -> module from observations to features, in place of the
            built-in encoders.
        resume: run directory to go on with.
        preset: named hyperparameters to start from.
        settings: any setting of the run, the policy or the algorithm by its name, such as
            `total_env_steps`, `seed`, `out`, `num_envs`, `learning_rate`, `core`.

    Returns:
        The run; `run.evaluate(episodes=20)` tests its agent.

    Raises:
        RedlineError: if a setting is wrong; nothing has been written then.
    """
    if resume is not None:
        allowed = {"total_env_steps", "quiet"}
        if unknown := set(settings) - allowed:
            raise ConfigError(
                f"{', '.join(sorted(unknown))} cannot be changed when a run is resumed: it would "
                f"not be the same run. Only {' and '.join(sorted(allowed))} can."
            )
        return resume_run(Path(resume), env=env, network=network, algorithm=algorithm, **settings)
    if algorithm is None:
        raise ConfigError("algorithm is missing. Give one, such as redline.train('ppo', ...).")
    if env is None:
        raise ConfigError("env is missing. Give one, such as env='CartPole-v1'.")
    name = describe_env(env)
    if "out" in settings and settings["out"] is not None:
        settings["out"] = str(settings["out"])
    if isinstance(env, gymnasium.vector.VectorEnv):
        settings.setdefault("num_envs", env.num_envs)
    if isinstance(settings.get("env_kwargs"), Mapping):
        settings["env_kwargs"] = json.dumps(settings["env_kwargs"])
    config = preset_config(algorithm, name, preset).replace(env=name, **settings)
    return start_run(config, env=None if isinstance(env, str) else env, network=network)


def start_run(
    config: RunConfig,
    *,
    env: EnvArgument | None = None,
    network: NetworkFactory | None = None,
    recording: Recording | None = None,
) -> Run:
    """Begin a run in a new directory and train until it is complete or stopped.

    Args:
        config: all settings.
        env: the environment, if it is a Python object.
        network: the network factory, if there is one.
        recording: run directory -> context in which the training takes place.

    Raises:
        RedlineError: if a setting is wrong; nothing has been written then.
    """
    out = Path(config.run.out) if config.run.out else default_run_directory(config)
    check_new_run_directory(out)
    _check_updates(config)
    # Named by the caller, not by a file: its module may be imported.
    return _execute(
        config,
        out,
        env=env or config.run.env,
        network=network,
        checkpoint=None,
        recording=recording,
    )


def resume_run(
    out: Path,
    *,
    env: EnvArgument | None = None,
    network: NetworkFactory | None = None,
    algorithm: str | None = None,
    total_env_steps: int | None = None,
    quiet: bool = False,
    recording: Recording | None = None,
) -> Run:
    """Go on with a run from its newest whole checkpoint.

    Args:
        out: run directory.
        env: the same environment again, if it was given as a Python object; a different id
            is refused.
        network: the same network factory again, if there was one.
        algorithm: None, or the run's own.
        total_env_steps: new length of the run; None: as it was.
        quiet: leave out the progress bar and messages.
        recording: run directory -> context in which the training takes place.

    Raises:
        RedlineError: if the directory holds no run, or a different one.
    """
    if total_env_steps is not None:
        require_positive(total_env_steps=total_env_steps)
    config = read_config(out)
    if algorithm is not None and algorithm != config.algorithm:
        raise ConfigError(
            f"{out} is a run of {config.algorithm}, not of {algorithm}. Leave the algorithm out, "
            f"or give another run directory."
        )
    if env is not None and describe_env(env) != config.run.env:
        raise IncompatibleCheckpointError(
            f"{out} was trained on {config.run.env}, not on {describe_env(env)}. Resume it with "
            f"the same environment, or start a new run."
        )
    total = total_env_steps or config.run.total_env_steps
    console = Console(total, quiet=quiet)
    checkpoint = CheckpointStore(out / "checkpoints").latest(console.warning, with_replay=True)
    if checkpoint is not None:
        _check_same_env(config, checkpoint)
        if checkpoint.metadata["env_steps"] >= total:
            console.message(
                f"{out} is already complete: {checkpoint.metadata['env_steps']:,} of {total:,} "
                f"env_steps. To train longer, give a larger --total-env-steps."
            )
            return Run(out, config, env=env, network=network)
    if checkpoint is not None and (change := _stretched_schedules(config, total)):
        console.warning(change)
    config = config.replace(total_env_steps=total, quiet=quiet)
    return _execute(
        config, out, env=env, network=network, checkpoint=checkpoint, recording=recording
    )


def _check_updates(config: RunConfig) -> None:
    """Refuse a run that would end without having learned anything.

    Raises:
        ConfigError: with the arithmetic.
    """
    algo, total = config.algo, config.run.total_env_steps
    if not isinstance(algo, OffPolicyConfig) or algo.expected_updates(total) >= 1.0:
        return
    raise ConfigError(
        f"total_env_steps={total} ends before the first update: learning_starts="
        f"{algo.learning_starts} env_steps come first, then replay_ratio={algo.replay_ratio:g} / "
        f"{algo.samples_per_update} samples per update makes "
        f"{algo.replay_ratio / algo.samples_per_update:.3g} updates per env_step. Train longer, "
        f"or give a smaller learning_starts or a larger replay_ratio."
    )


def _stretched_schedules(config: RunConfig, total: int) -> str | None:
    """What a new length of the run does to its schedules; None if nothing."""
    old = config.run.total_env_steps
    names = [
        name
        for name in type(config.algo).__dataclass_fields__
        if name.endswith("_schedule") and getattr(config.algo, name) == "linear"
    ]
    if getattr(config.algo, "prioritized", False):
        names.append("priority_beta")
    if total == old or not names:
        return None
    return (
        f"{', '.join(names)}: schedules of the run now reach their end at {total:,} instead of "
        f"{old:,} env_steps, so their present values change."
    )


def _check_same_env(config: RunConfig, checkpoint: Checkpoint) -> None:
    if checkpoint.metadata["env"] != config.run.env:
        raise IncompatibleCheckpointError(
            f"{checkpoint.path} was trained on {checkpoint.metadata['env']}, but the run's "
            f"{CONFIG_FILE} says {config.run.env}. Put {checkpoint.metadata['env']} back into "
            f"{CONFIG_FILE}."
        )


def _execute(
    config: RunConfig,
    out: Path,
    *,
    env: EnvArgument | None,
    network: NetworkFactory | None,
    checkpoint: Checkpoint | None,
    recording: Recording | None,
) -> Run:
    """Build everything, train, and close everything whatever happens."""
    check_devices(config.run)
    for name in ("tensorboard", "jsonl", "wandb"):
        if getattr(config.run, name):
            require_writer(name)
    settings = env_settings(config, env or None)
    with ExitStack() as closing:
        if recording is not None:
            # Around everything, so that worker processes are recorded from their start to their
            # end. It writes into the run directory, which otherwise is left alone until the
            # settings have proved right.
            closing.enter_context(RunLock(out))
            closing.enter_context(recording(out))
        serial = config.run.collector == "serial"
        probe = settings.make(config.algo.num_envs if serial else 1)
        closing.callback(probe.close)
        config = resolve(config, probe)
        torch.set_num_threads(config.run.num_threads or 1)
        seed_global_generators(config.run.seed)
        algorithm = build_algorithm(config, probe, network)
        mode, reason = choose_mode(algorithm, config.run.accelerate)
        accelerate(algorithm, mode)
        config = config.replace(accelerate=mode)
        learning: dict[str, Any] = {}
        if config.algorithm in OFF_POLICY:
            learning["replay"] = build_replay(config, probe, algorithm.policy, out)
        collector = make_collector(config, settings, probe, algorithm.policy)
        closing.callback(collector.close)
        if recording is None:
            closing.enter_context(RunLock(out))
        write_json_atomic(out / CONFIG_FILE, config.to_json())
        console = closing.enter_context(
            Console(
                config.run.total_env_steps,
                title=f"{config.algorithm} {config.run.env}",
                quiet=config.run.quiet,
            )
        )
        logger = closing.enter_context(make_logger(config, out))
        evaluator = beside = None
        if config.run.eval_interval and config.run.eval_async:
            beside = make_evaluation_beside(config, settings, algorithm.policy)
            closing.callback(beside.close)
        elif config.run.eval_interval:
            evaluator = make_evaluator(config, settings, algorithm.policy)
        kind = OffPolicyLoop if learning else OnPolicyLoop
        loop: TrainLoop = kind(
            config,
            **learning,
            algorithm=algorithm,
            collector=collector,
            logger=logger,
            store=make_store(config, out),
            console=console,
            frame_skip=probe.frame_skip,
            evaluate=evaluator,
            beside=beside,
        )
        console.message(
            f"{config.algorithm} on {config.run.env} ({probe.backend}, {config.algo.num_envs} "
            f"environments, {config.run.collector} collector, preset {config.run.preset}): {out}"
        )
        console.message(f"updates: {mode} ({reason})")
        if checkpoint is not None:
            _restore(loop, checkpoint)
        stopped_by = loop.run()
        console.close()
        console.message(_summary(loop))
        if stopped_by is not None:
            console.message(f"stopped; go on with: redline train --resume {out}")
    exit_code = 0 if stopped_by is None else 128 + stopped_by
    return Run(out, config, env=env, network=network, exit_code=exit_code)


def _restore(loop: TrainLoop, checkpoint: Checkpoint) -> None:
    try:
        loop.restore(checkpoint)
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, RedlineError):
            raise
        raise IncompatibleCheckpointError(
            f"{checkpoint.path} does not fit the run's settings ({error}). Resume with the network "
            f"and the {CONFIG_FILE} that it was trained with."
        ) from error


def _summary(loop: TrainLoop) -> str:
    counters = loop.counters
    text = f"{counters.env_steps:,} env_steps in {duration(counters.wall_time_s)}"
    text += f" ({counters.env_steps / max(counters.wall_time_s, 1e-9):,.0f} SPS)"
    if loop.mean_return is not None:
        text += f", mean return of recent episodes {loop.mean_return:,.1f}"
    return text


def load_run(
    out: str | Path,
    *,
    env: EnvArgument | None = None,
    network: NetworkFactory | None = None,
) -> Run:
    """The run in a directory.

    Args:
        out: run directory.
        env: the environment, if it was given as a Python object.
        network: the network factory, if there was one.

    Raises:
        RunDirectoryError: if the directory holds no run.
    """
    path = Path(out)
    if not path.is_dir():
        raise RunDirectoryError(f"{path} does not exist. Give a run directory.")
    config = read_config(path)
    if env is not None and isinstance(env, str) and env != config.run.env:
        raise IncompatibleCheckpointError(
            f"{path} was trained on {config.run.env}, not on {env}. Leave the environment out, or "
            f"give the same."
        )
    return Run(path, config, env=env, network=network)

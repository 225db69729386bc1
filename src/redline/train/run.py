"""A run: made from a config, resumed from its directory, evaluated, inspected, exported."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import torch

from redline.algos.a2c import A2C
from redline.algos.algorithm import OnPolicyAlgorithm
from redline.algos.ppo import PPO
from redline.algos.reinforce import Reinforce
from redline.collect import Collector, SerialCollector, WorkersCollector
from redline.envs import EnvSettings, VecEnv
from redline.envs.cpus import usable_cpus
from redline.envs.registry import is_atari
from redline.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    IncompatibleCheckpointError,
    RunDirectoryError,
)
from redline.policies import ActorCritic, make_policy
from redline.train.atomic_files import write_json_atomic
from redline.train.checkpoint import Checkpoint
from redline.train.checkpoint_files import params_sha256
from redline.train.checkpoint_store import CheckpointStore
from redline.train.console import Console, duration
from redline.train.evaluate import Evaluation, evaluate, evaluation_seed
from redline.train.export import export_policy
from redline.train.loop import OnPolicyLoop
from redline.train.presets import preset_config
from redline.train.progress import ProgressLogger
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

EnvArgument: TypeAlias = "str | Callable[[], gymnasium.Env[Any, Any]] | gymnasium.vector.VectorEnv"
"""What a user may give as an environment."""
NetworkFactory: TypeAlias = Callable[[gymnasium.Space[Any]], torch.nn.Module]
"""Observation space -> module from observations to features; see `policies.make_policy`."""

_ALGORITHMS: dict[str, Any] = {"ppo": PPO, "a2c": A2C, "reinforce": Reinforce}
_PYTHON_ENV = "python:"  # marks an environment that only the calling program can make


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

    def policy(self, which: str = "latest") -> ActorCritic:
        """The trained policy, on the CPU."""
        with env_settings(self.config, self._env).make(1) as env:
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
        return evaluate(
            settings.make,
            self.policy(which),
            episodes=episodes,
            seed=evaluation_seed(self.config.run.seed) if seed is None else seed,
            greedy=greedy,
        )

    def inspect(self) -> dict[str, Any]:
        """What the newest checkpoint holds, as plain data."""
        checkpoint = self.checkpoint()
        names = ("algorithm", "env", "env_steps", "frames", "iteration", "optimizer_steps")
        return {
            **{name: checkpoint.metadata[name] for name in names},
            "params_sha256": params_sha256(checkpoint.state["algorithm"]["policy"]),
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
            seed=evaluation_seed(self.config.run.seed) if seed is None else seed,
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


def env_settings(config: RunConfig, env: EnvArgument | None = None) -> EnvSettings:
    """How to make the run's environments.

    Raises:
        ConfigError: if the environment can only be made by the program that started the run.
    """
    run = config.run
    if env is None:
        if not run.env:
            raise ConfigError(
                "env is missing: there is nothing to train on. Give a Gymnasium id, such as "
                "--env CartPole-v1."
            )
        if run.env.startswith(_PYTHON_ENV):
            raise ConfigError(
                f"the environment of this run was given as a Python object ({run.env}), which no "
                f"file can hold. Call redline.train(resume=..., env=...) or redline.load(..., "
                f"env=...) with the same object."
            )
        env = run.env
    return EnvSettings(
        env=env,
        backend=run.env_backend,
        preset=run.atari_preset if is_atari(env) else None,
        env_kwargs=run.parsed_env_kwargs(),
        num_workers=run.num_workers,
        worker_timeout_s=run.worker_timeout_s,
    )


def build_policy(config: RunConfig, env: VecEnv, network: NetworkFactory | None) -> ActorCritic:
    """The run's policy with fresh weights, drawn from torch's global generator, on the CPU."""
    settings = dataclasses.asdict(config.policy)
    if settings["shared_encoder"] is None:
        settings["shared_encoder"] = "auto"
    if network is not None:
        settings["encoder"] = network
    return make_policy(env.observation_space, env.action_space, **settings)


def load_policy(policy: ActorCritic, checkpoint: Checkpoint) -> None:
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


def describe_env(env: EnvArgument) -> str:
    """What `config.json` says of an environment."""
    if isinstance(env, str):
        return env
    name = getattr(env, "__qualname__", type(env).__qualname__)
    return f"{_PYTHON_ENV}{getattr(env, '__module__', type(env).__module__)}.{name}"


def check_device(device: str) -> None:
    """Refuse a device that is not there.

    Raises:
        DeviceError: naming the reason and the fix.
    """
    if device == "cuda" and not torch.cuda.is_available():
        build = "this build of torch has no CUDA" if torch.version.cuda is None else "none found"
        raise DeviceError(
            f"device='cuda' was asked for, but no CUDA device can be used ({build}). Use "
            f"--device cpu, or install a CUDA build of torch on a machine with an NVIDIA GPU."
        )


def resolve(config: RunConfig, observation_space: gymnasium.Space[Any]) -> RunConfig:
    """Put numbers in place of settings left to be chosen, so that `config.json` has all."""
    run = config.run
    total = run.total_env_steps
    images = any(
        space.dtype == "uint8" and len(space.shape or ()) == 3
        for space in _leaf_spaces(observation_space)
    )
    reset_mode = run.reset_mode
    if reset_mode == "auto":
        reset_mode = "wait" if config.algorithm == "reinforce" else "immediate"
    return config.replace(
        log_interval=run.log_interval or max(1, total // 100),
        checkpoint_interval=run.checkpoint_interval or max(1, total // 20),
        checkpoint_gap=run.checkpoint_gap or max(1, total // 5),
        num_threads=run.num_threads or (usable_cpus() if images else 1),
        reset_mode=reset_mode,
    )


def _leaf_spaces(space: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    if isinstance(space, gymnasium.spaces.Dict):
        return [leaf for sub in space.spaces.values() for leaf in _leaf_spaces(sub)]
    if isinstance(space, gymnasium.spaces.Tuple):
        return [leaf for sub in space.spaces for leaf in _leaf_spaces(sub)]
    return [space]


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
        algorithm: "ppo", "a2c" or "reinforce"; None with `resume`.
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
) -> Run:
    """Begin a run in a new directory and train until it is complete or stopped.

    Raises:
        RedlineError: if a setting is wrong; nothing has been written then.
    """
    out = Path(config.run.out) if config.run.out else default_run_directory(config)
    check_new_run_directory(out)
    return _execute(config, out, env=env, network=network, checkpoint=None)


def resume_run(
    out: Path,
    *,
    env: EnvArgument | None = None,
    network: NetworkFactory | None = None,
    algorithm: str | None = None,
    total_env_steps: int | None = None,
    quiet: bool = False,
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

    Raises:
        RedlineError: if the directory holds no run, or a different one.
    """
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
    checkpoint = CheckpointStore(out / "checkpoints").latest(console.warning)
    if checkpoint is not None:
        _check_same_env(config, checkpoint)
        if checkpoint.metadata["env_steps"] >= total:
            console.message(
                f"{out} is already complete: {checkpoint.metadata['env_steps']:,} of {total:,} "
                f"env_steps. To train longer, give a larger --total-env-steps."
            )
            return Run(out, config, env=env, network=network)
    config = config.replace(total_env_steps=total, quiet=quiet)
    env = None if isinstance(env, str) else env
    return _execute(config, out, env=env, network=network, checkpoint=checkpoint)


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
) -> Run:
    """Build everything, train, and close everything whatever happens."""
    check_device(config.run.device)
    settings = env_settings(config, env)
    with ExitStack() as closing:
        serial = config.run.collector == "serial"
        probe = settings.make(config.algo.num_envs if serial else 1)
        closing.callback(probe.close)
        config = resolve(config, probe.observation_space)
        torch.set_num_threads(config.run.num_threads or 1)
        torch.manual_seed(config.run.seed)
        policy = build_policy(config, probe, network).to(config.run.device)
        algorithm: OnPolicyAlgorithm = _ALGORITHMS[config.algorithm](
            policy, config.algo, seed=config.run.seed
        )
        collector = _make_collector(config, settings, probe, policy)
        closing.callback(collector.close)
        closing.enter_context(RunLock(out))
        write_json_atomic(out / CONFIG_FILE, config.to_json())
        console = closing.enter_context(
            Console(
                config.run.total_env_steps,
                title=f"{config.algorithm} {config.run.env}",
                quiet=config.run.quiet,
            )
        )
        logger = closing.enter_context(_make_logger(config, out))
        evaluator = None
        if config.run.eval_interval:
            evaluator = _make_evaluator(config, settings, policy)
        loop = OnPolicyLoop(
            config,
            algorithm=algorithm,
            collector=collector,
            logger=logger,
            store=_make_store(config, out),
            console=console,
            frame_skip=probe.frame_skip,
            evaluate=evaluator,
        )
        console.message(
            f"{config.algorithm} on {config.run.env} ({probe.backend}, {config.algo.num_envs} "
            f"environments, {config.run.collector} collector, preset {config.run.preset}): {out}"
        )
        if checkpoint is not None:
            loop.restore(checkpoint)
        stopped_by = loop.run()
        console.close()
        console.message(_summary(loop))
        if stopped_by is not None:
            console.message(f"stopped; go on with: redline train --resume {out}")
    exit_code = 0 if stopped_by is None else 128 + stopped_by
    return Run(out, config, env=env, network=network, exit_code=exit_code)


def _summary(loop: OnPolicyLoop) -> str:
    counters = loop.counters
    text = f"{counters.env_steps:,} env_steps in {duration(counters.wall_time_s)}"
    text += f" ({counters.env_steps / max(counters.wall_time_s, 1e-9):,.0f} SPS)"
    if loop.mean_return is not None:
        text += f", mean return of recent episodes {loop.mean_return:,.1f}"
    return text


def _make_collector(
    config: RunConfig, settings: EnvSettings, env: VecEnv, policy: ActorCritic
) -> Collector:
    run = config.run
    if run.collector == "serial":
        return SerialCollector(
            env,
            policy,
            rollout_length=config.algo.rollout_length,
            seed=run.seed,
            reset_mode=run.reset_mode,  # type: ignore[arg-type]
        )
    env.close()
    return WorkersCollector(
        settings,
        policy,
        num_envs=config.algo.num_envs,
        num_workers=run.num_workers,
        rollout_length=config.algo.rollout_length,
        seed=run.seed,
        reset_mode=run.reset_mode,  # type: ignore[arg-type]
        timeout_s=run.worker_timeout_s,
    )


def _make_logger(config: RunConfig, out: Path) -> ProgressLogger:
    writers = ["csv"]
    writers += [name for name in ("tensorboard", "jsonl", "wandb") if getattr(config.run, name)]
    name = f"{config.algorithm}-{config.run.env}-seed{config.run.seed}"
    return ProgressLogger(
        out, writers=writers, wandb_settings={"name": name, "config": config.to_json()}
    )


def _make_store(config: RunConfig, out: Path) -> CheckpointStore:
    return CheckpointStore(
        out / "checkpoints", mode=config.run.checkpoints, gap=config.run.checkpoint_gap
    )


def _make_evaluator(
    config: RunConfig, settings: EnvSettings, policy: ActorCritic
) -> Callable[[int], Evaluation]:
    def evaluator(salt: int) -> Evaluation:
        return evaluate(
            settings.make,
            policy,
            episodes=config.run.eval_episodes,
            seed=evaluation_seed(config.run.seed, salt),
        )

    return evaluator


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
    return Run(path, read_config(path), env=env, network=network)

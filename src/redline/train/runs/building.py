"""From settings to objects: environments, policy, collector, logger, store."""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import torch

from redline.algos.algorithm import Algorithm
from redline.algos.config import OffPolicyConfig
from redline.algos.registry import find_algorithm
from redline.collect import ActorFor, Collector, CollectorSetup, find_collector
from redline.devices import choose_device, require_device
from redline.engines.acting import actor_for
from redline.engines.captured_acting import CapturedActing
from redline.envs import EnvSettings, VecEnv
from redline.envs.atari import is_atari
from redline.envs.backends.backend import Backend
from redline.envs.cpus import threads_each, worker_cpus
from redline.errors import ConfigError
from redline.models import leaf_spaces
from redline.plain_text import shortened, shown
from redline.policies import Policy
from redline.previous_inputs import ACTION, REWARD, has_previous, without_previous
from redline.registry import PYTHON_ONLY, is_named
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.hindsight import HindsightReplay, goal_functions, require_own_rewards
from redline.replay.spec import LeafSpec, entry_name
from redline.train.checkpoint.store import CheckpointStore
from redline.train.loops.background_evaluation import BackgroundEvaluation
from redline.train.loops.callback_calls import callback_label, find_callback
from redline.train.loops.evaluate import Evaluation, evaluate, evaluation_seed
from redline.train.loops.saved_progress import algorithm_state
from redline.train.progress.progress import BASE_COLUMNS, ProgressLogger
from redline.train.runs.memory_checks import limited_allocations, size_settings
from redline.train.runs.outside_settings import require_confirmed_env_kwargs
from redline.train.settings import RunConfig, RunSettings
from redline.train.threads import busy_cores, choose_threads, update_multiplications

EnvArgument: TypeAlias = "str | Callable[[], gymnasium.Env[Any, Any]] | gymnasium.vector.VectorEnv"
"""What a user may give as an environment."""
PLACING_SETTINGS = ("policy_device", "env_device")  # the collector's to follow
DEVICE_SETTINGS = ("device", *PLACING_SETTINGS, "eval_device")
NetworkFactory: TypeAlias = Callable[[gymnasium.Space[Any]], torch.nn.Module]
"""Observation space -> module from observations to features; see `policies.make_policy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the caller gave as Python objects, which `config.json` can only name.

    Attributes:
        algorithm: class, or module:Name of one.
        env: id, callable or `VectorEnv`; None: as the config says.
        network: in place of the built-in encoders.
        data: recorded episodes: arrays by their names, or a `minari.MinariDataset`; None: none,
            or those that only the run directory names.
        env_backend: what steps the environments: a name, class or module:Name of one; None: as
            the config says.
        collector: likewise, what collects.
        callbacks: objects, classes without arguments, or module:Name of them.
        changed: names of the settings that the caller changed from those of the preset, or, where
            a run is resumed, from its own.
        confirmed: settings of a run directory that the caller says, too, because they reach
            outside it; see `outside_settings`.
    """

    algorithm: str | type[Algorithm] | None = None
    env: EnvArgument | None = None
    network: NetworkFactory | None = None
    data: Any = None
    env_backend: str | type[Backend] | None = None
    collector: str | type[Collector] | None = None
    callbacks: tuple[Any, ...] = ()
    changed: frozenset[str] = frozenset()
    confirmed: Mapping[str, Any] = field(default_factory=dict)


def describe_env(env: EnvArgument) -> str:
    """What `config.json` says of an environment."""
    if isinstance(env, str):
        return env
    name = getattr(env, "__qualname__", type(env).__qualname__)
    return f"{PYTHON_ONLY}{getattr(env, '__module__', type(env).__module__)}.{name}"


def collector_of(config: RunConfig, given: Given) -> type[Collector]:
    """The class of the run's collector."""
    return find_collector(_named_again(config.run.collector, given.collector, "collector"))


def _named_again(label: str, given: Any, setting: str) -> Any:
    """What the caller gave, or the name that the config holds.

    Raises:
        ConfigError: if only the run directory names it, and it is Python code.
    """
    if given is not None:
        return given
    if ":" not in label:
        return label
    name_it = f"name it again: --{setting.replace('_', '-')} {shortened(label)}"
    if label.startswith(PYTHON_ONLY):
        name_it = f"call redline.train(resume=..., {setting}=...) with its class"
    raise ConfigError(
        f"the {setting} of this run, {shown(label, 200)}, is Python code, and a run directory "
        f"alone must not decide what is imported. If you trust it, {name_it}."
    )


def env_settings(
    config: RunConfig, given: Given, collector: type[Collector] | None = None
) -> EnvSettings:
    """How to make the run's environments.

    Args:
        config: of the run.
        given: what the caller gave.
        collector: what steps them; None: the one that the config names, if Redline knows it.

    Raises:
        ConfigError: if the environment can only be made by the program that started the run.
    """
    run, env = config.run, given.env
    if env is None:
        if not run.env:
            raise ConfigError(
                "env is missing: there is nothing to train on. Give a Gymnasium id, such as "
                "--env CartPole-v1."
            )
        if ":" in run.env and not run.env.startswith(PYTHON_ONLY):
            raise ConfigError(
                f"the environment of this run, {shown(run.env, 200)}, is made by a Python module, "
                "and a run "
                f"directory alone must not decide what is imported. If you trust it, name it "
                f"again: --env {shortened(run.env)}"
            )
        if run.env.startswith(PYTHON_ONLY):
            raise ConfigError(
                "the environment of this run was given as a Python object "
                f"({shortened(run.env)}), which no "
                f"file can hold. Call redline.train(resume=..., env=...) or redline.load(..., "
                f"env=...) with the same object."
            )
        env = run.env
    require_confirmed_env_kwargs(config, given.confirmed.get("env_kwargs"))
    backend = _named_again(run.env_backend, given.env_backend, "env_backend")
    if isinstance(env, gymnasium.vector.VectorEnv) and run.eval_interval:
        raise ConfigError(
            "eval_interval needs environments beside those that train, and a VectorEnv object is "
            "only one. Give an id, or a callable that makes one gymnasium.Env."
        )
    if collector is None:
        collector = Collector if ":" in run.collector else find_collector(run.collector)
    backend = collector.choose_backend(env, backend)
    return EnvSettings(
        env=env,
        backend=backend,
        preset=run.atari_preset if is_atari(env) else None,
        clip_reward=run.clip_reward,
        episodic_life=run.episodic_life,
        sticky_actions=run.sticky_actions,
        noop_max=run.noop_max,
        frame_skip=run.frame_skip,
        observe_previous=run.observe_previous,
        env_kwargs=run.parsed_env_kwargs(),
        num_workers=run.num_workers,
        worker_timeout_s=run.worker_timeout_s,
        tune_process=run.tune_process,
        log_info=run.log_info,
        check_env=run.check_env,
    )


def check_devices(run: RunSettings, collector: type[Collector]) -> None:
    """Refuse devices that are not there, or that the collector cannot use.

    Raises:
        DeviceError: naming the reason and the fix.
        ConfigError: if environments or acting are placed where the collector has no say.
    """
    for name in DEVICE_SETTINGS:
        device = getattr(run, name)
        if device is not None:
            require_device(device, name)
        if name in PLACING_SETTINGS and device is not None:
            _require_placeable(name, device, run, collector)


def _require_placeable(
    name: str, device: str, run: RunSettings, collector: type[Collector]
) -> None:
    """Refuse to place what the collector has no say in."""
    acts_there = name == "policy_device" and collector.takes_policy_device
    if acts_there and run.deterministic and torch.device(device).type != "cpu":
        raise ConfigError(
            f"{name}={device!r} with deterministic=True: workers act in processes of their own, "
            f"which are not held to deterministic operators. Leave one of the two out."
        )
    if collector.takes_devices or acts_there:
        return
    if name == "policy_device" and collector.workers == "stepping":
        raise ConfigError(
            f"{name}={device!r}: the {run.collector} collector acts in the learner's process, on "
            f"device={run.device!r}. Leave {name} out, or act elsewhere with collector='workers', "
            f"'async' or 'serial'."
        )
    itself = "environments" if collector.takes_policy_device else "environments and acting"
    raise ConfigError(
        f"{name}={device!r} is for collector='serial'; the {run.collector} collector "
        f"places {itself} itself. Leave {name} out."
    )


def resolve_devices(config: RunConfig) -> tuple[RunConfig, list[str]]:
    """Put devices in place of "auto"; also one sentence for each, why that one."""
    chosen: dict[str, str] = {}
    said: list[str] = []
    for name in DEVICE_SETTINGS:
        asked = getattr(config.run, name)
        if asked == "auto":
            chosen[name], reason = choose_device(asked)
            said.append(f"{name}: {chosen[name]} ({reason})")
    return config.replace(**chosen), said


def resolve(config: RunConfig, env: VecEnv, *, waits_for_episodes: bool = False) -> RunConfig:
    """Put numbers in place of settings left to be chosen, so that `config.json` has all."""
    run = config.run
    total = run.total_env_steps
    reset_mode = run.reset_mode
    if reset_mode == "auto":
        reset_mode = "wait" if waits_for_episodes and env.can_idle else "immediate"
    return config.replace(
        log_interval=run.log_interval or max(1, total // 100),
        checkpoint_interval=run.checkpoint_interval or max(1, total // 20),
        checkpoint_gap=run.checkpoint_gap or max(1, total // 5),
        reset_mode=reset_mode,
    )


def said_at_start(
    config: RunConfig, env: VecEnv, algorithm: type[Algorithm], changed: frozenset[str]
) -> list[str]:
    """Warnings about what a new run will do that its caller may not expect.

    Args:
        config: as the caller gave it.
        env: some of the run's environments.
        algorithm: its class.
        changed: names of the settings that the caller changed from those of the preset.
    """
    said = [algorithm.caution(config.algo, changed, clips_reward=env.clips_reward)]
    if algorithm.waits_for_episodes and config.run.reset_mode == "auto" and not env.can_idle:
        said.append(
            f"{config.algorithm} learns from whole episodes, but the back end {env.backend!r} "
            f"steps all environments at once, so that none can wait for the others: the ends of "
            f"rollouts cut episodes. With env_backend='gymnasium' or 'processes' they wait."
        )
    return [sentence for sentence in said if sentence]


def initial_threads(run: RunSettings, env: VecEnv, collector: type[Collector]) -> int:
    """Threads before there is an algorithm whose work could be told."""
    if run.num_threads != "auto":
        return run.num_threads
    return _learner_cores(run, collector) if _has_images(env) else 1


def resolve_threads(
    config: RunConfig, env: VecEnv, collector: type[Collector], algorithm: Any
) -> tuple[RunConfig, str]:
    """Put a number in place of `num_threads="auto"`; also one sentence why."""
    run, algo = config.run, config.algo
    if run.num_threads != "auto":
        return config, "as the settings say"
    threads = initial_threads(run, env, collector)
    reason = "all cores of this process, for images"
    if not _has_images(env):
        rows = getattr(algo, "samples_per_update", None)
        if rows is None:
            minibatches = getattr(algorithm, "num_minibatches", 1)
            rows = algo.num_envs * algo.rollout_length / minibatches
        work = update_multiplications(algorithm, rows) if run.device == "cpu" else 0.0
        cores = _learner_cores(run, collector)
        busy = busy_cores() if choose_threads(work, cores, 0.0) > 1 else 0.0
        threads = choose_threads(work, cores, busy)
        reason = f"{work / 1e6:,.0f} million multiplications per update, {cores} cores"
        if busy >= 0.5:
            reason += f", {busy:.1f} of them busy with other processes"
    return config.replace(num_threads=threads), reason


def _learner_cores(run: RunSettings, collector: type[Collector]) -> int:
    # Where workers act while the learner learns, all want cores at the same time.
    return threads_each(run.num_workers + 1 if collector.works_ahead else 1)


def _has_images(env: VecEnv) -> bool:
    return any(
        space.dtype == "uint8" and len(space.shape or ()) == 3
        for space in _leaf_spaces(env.observation_space)
    )


def _leaf_spaces(space: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    if isinstance(space, gymnasium.spaces.Dict):
        return [leaf for sub in space.spaces.values() for leaf in _leaf_spaces(sub)]
    if isinstance(space, gymnasium.spaces.Tuple):
        return [leaf for sub in space.spaces for leaf in _leaf_spaces(sub)]
    return [space]


def make_some(settings: EnvSettings, num_envs: int) -> VecEnv:
    """Environments beside those that train: fewer, so fewer worker processes too.

    A ready VectorEnv always gives all of its own.
    """
    if isinstance(settings.env, gymnasium.vector.VectorEnv):
        return settings.make(settings.env.num_envs)
    if settings.num_workers is not None and settings.num_workers > num_envs:
        settings = dataclasses.replace(settings, num_workers=num_envs)
    return settings.make(num_envs)


def make_collector(
    kind: type[Collector],
    config: RunConfig,
    settings: EnvSettings,
    env: VecEnv,
    policy: Policy,
    acting: CapturedActing,
) -> Collector:
    """The run's collector.

    Args:
        kind: its class.
        config: all settings.
        settings: how to make more environments.
        env: taken over, or closed where workers make their own.
        policy: the learner's.
        acting: gives what acts in the policy's place in this process.
    """
    run, given = config.run, acting
    if kind.workers == "acting":  # in processes of their own, whatever acts here
        given = _acting_in_workers(run, acting)
    cpus = None if kind.workers == "none" else worker_cpus(run.cpu_affinity, run.num_workers)
    return kind.make(
        CollectorSetup(
            env=env,
            settings=settings,
            policy=policy,
            num_envs=config.algo.num_envs,
            rollout_length=config.algo.rollout_length,
            seed=run.seed,
            reset_mode=run.reset_mode,  # type: ignore[arg-type]
            num_workers=run.num_workers,
            num_groups=run.num_groups,
            overlap=run.overlap_groups,
            max_staleness=run.max_staleness,
            timeout_s=run.worker_timeout_s,
            cpus=cpus,
            device=run.device,
            env_device=run.env_device,
            policy_device=run.policy_device,
            actor_for=given,
            rollouts_for=acting.rollouts,
        )
    )


def _acting_in_workers(run: RunSettings, acting: CapturedActing) -> ActorFor | None:
    """What acts in the policy's place in worker processes, where they act."""
    if torch.device(run.policy_device or "cpu").type != "cpu":
        there = CapturedActing(None, captures=acting.captures)
        there.report = _say_to_stderr  # the console is the learner's
        return there
    return actor_for if run.cpu_acting else None


def _say_to_stderr(problem: str) -> None:
    sys.stderr.write(f"redline: a worker: {problem}\n")
    sys.stderr.flush()


def make_callbacks(config: RunConfig, given: Given) -> list[Any]:
    """The user's callbacks.

    Raises:
        ConfigError: if those that the config names are not given again.
    """
    labels = tuple(map(callback_label, given.callbacks))
    if labels != config.run.callbacks:
        again = (
            " ".join(f"--callback {shortened(label)}" for label in config.run.callbacks) or "none"
        )
        raise ConfigError(
            f"the callbacks of this run are {shown(list(config.run.callbacks), 400)}, and given "
            "are "
            f"{list(labels)}. They are Python code, which a run directory alone must not import: "
            f"give the same ones again ({again}; from Python callbacks=[...])."
        )
    return [find_callback(each) for each in given.callbacks]


def make_logger(config: RunConfig, out: Path) -> ProgressLogger:
    """Writes progress.csv and whatever else was asked for."""
    writers = ["csv"]
    writers += [name for name in ("tensorboard", "jsonl", "wandb") if getattr(config.run, name)]
    run = config.run
    if taken := sorted(set(run.log_info) & set(BASE_COLUMNS)):
        raise ConfigError(
            f"log_info={taken[0]!r}: progress.csv has a column of that name. Rename the value in "
            f"info, or leave it out."
        )
    about: dict[str, Any] = {
        "name": run.name or f"{config.algorithm}-{run.env}-seed{run.seed}",
        "config": config.to_json(),
    }
    if run.group is not None:
        about["group"] = run.group
    if run.tags:
        about["tags"] = list(run.tags)
    return ProgressLogger(out, writers=writers, wandb_settings=about)


def make_store(config: RunConfig, out: Path) -> CheckpointStore:
    """Keeps the run's checkpoints."""
    return CheckpointStore(
        out / "checkpoints", mode=config.run.checkpoints, gap=config.run.checkpoint_gap
    )


def make_background_evaluation(
    config: RunConfig, settings: EnvSettings, policy: Policy
) -> BackgroundEvaluation:
    """Evaluates the learner's policy in another process."""
    if settings.backend == "processes":
        settings = dataclasses.replace(settings, backend="gymnasium")  # it is in a process already
    return BackgroundEvaluation(
        settings,
        policy,
        episodes=config.run.eval_episodes,
        timeout_s=config.run.worker_timeout_s,
        device=config.run.eval_device or "cpu",
    )


def make_evaluator(
    config: RunConfig, settings: EnvSettings, policy: Policy
) -> Callable[[int], Evaluation]:
    """Evaluates the learner's policy on separate environments; each salt has its own seeds."""
    device = config.run.eval_device
    is_elsewhere = device is not None and torch.device(device) != torch.device(config.run.device)

    def evaluator(salt: int) -> Evaluation:
        return evaluate(
            lambda num_envs: make_some(settings, num_envs),
            copy.deepcopy(policy).to(device) if is_elsewhere else policy,
            episodes=config.run.eval_episodes,
            seed=evaluation_seed(config.run.seed, salt),
        )

    return evaluator


# -- the algorithm, its policy and its replay -------------------------------------------------


def algorithm_of(config: RunConfig, given: Given) -> type[Algorithm]:
    """The class of the run's algorithm."""
    named = config.algorithm if is_named(config.algorithm) else given.algorithm
    return find_algorithm(named or config.algorithm)


def build_policy(config: RunConfig, env: VecEnv, given: Given) -> Policy:
    """The run's policy with fresh weights, drawn from torch's global generator, on the CPU."""
    with limited_allocations(size_settings(config, env)):
        return algorithm_of(config, given).make_policy(
            env.observation_space,
            env.action_space,
            config.algo,
            **_network_settings(config, given.network),
        )


def build_algorithm(config: RunConfig, env: VecEnv, given: Given) -> Any:
    """The run's algorithm on its device, with fresh weights from torch's global generator.

    Raises:
        ConfigError: if its state does not hold what acts, which loading a run needs.
    """
    with limited_allocations(size_settings(config, env)):
        algorithm = algorithm_of(config, given).make(
            env.observation_space,
            env.action_space,
            config.algo,
            seed=config.run.seed,
            device=config.run.device,
            **_network_settings(config, given.network),
        )
    if "policy" not in algorithm.state_dict():
        raise ConfigError(
            f"{type(algorithm).__name__}.state_dict() has no entry 'policy', from which the policy "
            f"is loaded to evaluate or export it. Add 'policy': self.policy.state_dict()."
        )
    return algorithm


def _network_settings(config: RunConfig, network: NetworkFactory | None) -> dict[str, Any]:
    settings = dataclasses.asdict(config.policy)
    if network is not None:
        settings["encoder"] = network
    return settings


def build_replay(
    config: RunConfig, env: VecEnv, policy: Policy, out: Path, settings: EnvSettings
) -> Replay:
    """The run's replay, empty.

    Args:
        config: of the run.
        env: its environments.
        policy: says what else is stored: recurrent state, conditioning.
        out: run directory, for a replay that lies in a file.
        settings: how to make an environment that computes rewards of other goals.

    Raises:
        ConfigError: if it cannot fit, with the arithmetic; or if goals are to be replaced and
            the environment has none.
    """
    algo: OffPolicyConfig = config.algo
    frame_stack = algo.replay_frame_stack or _stacked_frames(config, env.observation_space)
    replay_config = ReplayConfig(
        capacity=algo.replay_size,
        n_step=algo.n_step,
        gamma=algo.gamma,
        frame_stack=frame_stack,
        stacked_keys=_stacked_keys(env.observation_space) if frame_stack > 1 else (),
        prioritized=algo.prioritized,
        alpha=algo.priority_alpha,
        extras=policy.conditioning_names,
        storage=algo.replay_storage,
        storage_dir=out / "replay" if algo.replay_storage == "memmap" else None,
        device=config.run.device if algo.replay_storage == "device" else "cpu",
        **algo.sequence_settings(),
    )
    state = {
        name: LeafSpec(tuple(leaf.shape[1:]), leaf.dtype)
        for name, leaf in policy.initial_state(1).items()
    }
    spec = ReplaySpec.from_spaces(
        env.observation_space,
        env.action_space,
        algo.num_envs,
        extras=dict.fromkeys(policy.conditioning_names, LeafSpec((), torch.float32)),
        state=state,
        bounds={entry_name("extra", (n,)): b for n, b in policy.conditioning_bounds.items()},
    )
    if algo.replay == "her":
        goal_env = _goal_env(settings, env)
        return HindsightReplay(replay_config, spec, goal_env, share=algo.her_share)
    return Replay(replay_config, spec)


def _goal_env(settings: EnvSettings, env: VecEnv) -> Any:
    """An environment that says what other goals would have paid.

    Raises:
        ConfigError: if none can be made, or rewards are not of the goals alone.
    """
    if isinstance(settings.env, gymnasium.vector.VectorEnv):
        raise ConfigError(
            "replay='her' asks an environment of its own what other goals would have paid, and a "
            "VectorEnv object is only one. Give an id, or a callable that makes one gymnasium.Env."
        )
    if env.clips_reward:
        raise ConfigError(
            "replay='her' computes rewards anew, and clip_reward changes those that were "
            "collected. Leave clip_reward out."
        )
    made = settings.single().make()
    goal_functions(made)
    require_own_rewards(made)
    return made


def _stacked_frames(config: RunConfig, space: gymnasium.Space[Any]) -> int:
    """Frames per observation that replay stores only once; 1 where observations are no stacks."""
    space = without_previous(space)
    if not is_atari(config.run.env) or not isinstance(space, gymnasium.spaces.Box):
        return 1
    return int(space.shape[0]) if len(space.shape) == 3 else 1


def _stacked_keys(space: gymnasium.Space[Any]) -> tuple[str, ...]:
    """The name of the stacked observation, where the previous action and reward lie beside it."""
    if not isinstance(space, gymnasium.spaces.Dict) or not has_previous(space):
        return ()
    own = [".".join(path) for path, _ in leaf_spaces(space) if path[0] not in (ACTION, REWARD)]
    return tuple(own) if len(own) == 1 else ()


def trainable_parts(algorithm: type[Algorithm], state: dict[str, Any]) -> dict[str, Any]:
    """What of an algorithm's saved state `params_sha256` covers: all that gradients change.

    Target networks follow from it and are left out.

    Raises:
        CorruptCheckpointError: if something else than tensors stands there.
    """
    parts = algorithm.saved_parameters
    if parts == ("policy",):
        return algorithm_state({"algorithm": state}, "policy")["policy"]
    parameters: dict[str, Any] = {}
    for part in parts:
        if isinstance(state.get(part), torch.Tensor):
            parameters[part] = state[part]
        elif part in state:
            found = algorithm_state({"algorithm": state}, part)[part]
            parameters |= {f"{part}.{name}": value for name, value in found.items()}
    return parameters

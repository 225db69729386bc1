"""Settings of a run, beside the algorithm's own. Imports no torch: `--help` must answer at once.

`RunSettings` says where, how long and on what; `PolicySettings` describes the network;
hyperparameters stand with their algorithm. Together they are a `RunConfig`, which is what
`config.json` in a run directory holds.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from redline.algos.config import (
    OnlyIf,
    OnlyWith,
    require_at_most,
    require_few_layers,
    require_not_negative,
    require_positive,
)
from redline.algos.registry import declaration
from redline.errors import ConfigError
from redline.plain_text import shortened, shown
from redline.registry import is_named
from redline.train.setting_names import unknown_setting
from redline.train.setting_values import as_json, coerced, from_plain, require_64_bits, types_of

FORMAT_VERSION = 1
_LARGEST_SEED = 2**63 - 1  # torch's generators take a signed number of 64 bits
_LONGEST_WAIT_S = 1e8  # three years; the system's clocks overflow at 1e10
_MOST_THREADS = 1024  # with 100,000 the tensor library ends by a segmentation fault
_POSITIVE_IF_GIVEN = (
    *("num_threads", "log_interval", "checkpoint_interval", "checkpoint_gap"),
    "eval_max_episode_steps",
)
PLACING_SETTINGS = ("policy_device", "env_device")  # the collector's to follow
DEVICE_SETTINGS = ("device", *PLACING_SETTINGS, "eval_device")
_OLD_ENGINES = {"derived": "cpu"}  # names of version 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """Where a run takes place, how long it lasts and what it writes.

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "atari_preset": (OnlyIf("environments", ("ALE",)),),
        "self_check": (OnlyIf("accelerate", never=("eager",)),),
        "checkpoint_gap": (OnlyIf("checkpoints", ("gap", "last+gap")),),
        "checkpoint_interval": (OnlyIf("checkpoints", never=("none",)),),
        "eval_async": (OnlyIf("eval_interval", never=(0,)),),
        "eval_device": (OnlyIf("eval_interval", never=(0,)),),
        "eval_episodes": (OnlyIf("eval_interval", never=(0,)),),
        "eval_max_episode_steps": (OnlyIf("eval_interval", never=(0,)),),
        "init_parts": (OnlyIf("init_from", never=(None,)),),
        "max_worker_restarts": (OnlyIf("on_worker_failure", ("restart",)),),
    }

    env: str = ""
    """Gymnasium id: CartPole-v1, HalfCheetah-v5, ALE/Breakout-v5, MinAtar/Breakout-v1, ...
    `module:Id` imports the module first."""
    total_env_steps: int = 1_000_000
    """Length of the run in env_steps: decisions, summed over environments.
    Whole iterations are run until it is reached."""
    seed: int = 1
    """Seed of everything: network, action noise, environments, minibatches."""
    device: str = "cpu"
    """Where the policy learns, and acts unless policy_device says otherwise: auto, cpu, cuda,
    cuda:N or mps. auto: the first CUDA device if there is one, else the CPU; the run says why."""
    policy_device: str | None = None
    """Where the policy acts; elsewhere than device it is a copy that takes over the weights
    after each iteration. None: device; the CPU where workers act."""
    env_device: str | None = None
    """Where native games are stepped, and where other environments' observations are delivered.
    None: policy_device for native games, the CPU for others."""
    eval_device: str | None = None
    """Where the policy acts while it is evaluated, as a copy if that is elsewhere than device.
    None: device, or the CPU with eval_async."""
    deterministic: bool = False
    """Whether only operators that give the same bits every time may run: on a GPU, some have no
    such form, and the run stops with the operator's name."""
    env_backend: str = "auto"
    """What steps the environments: auto, gymnasium, processes, envpool, ale, device, or module:Name
    of your own.
    auto: ALE's own vector environment for ALE ids, device for native games (redline/CartPole-v1,
    ...), Gymnasium in this process for the others."""
    env_kwargs: str = "{}"
    """Further arguments of the environment, as a JSON object."""
    network: str | None = None
    """A network of your own: module:Name of a function or class that takes the observation space
    and gives a module. None: the built-in ones, as encoder and hidden_sizes say."""
    check_env: Literal["off", "first", "always"] = "first"
    """Whether observations of single environments are compared with their space, masks looked at
    for an allowed action, and spaces for changes.
    first: in each environment's first episode, and in one step of 1,009 after it."""
    atari_preset: Literal["dqn-2015", "machado-2018"] = "dqn-2015"
    """Evaluation protocol of ALE environments; other environments have none."""
    clip_reward: bool | None = None
    """Whether the learner sees the sign of each reward. Returns are always the game's own.
    None: as atari_preset says; no elsewhere."""
    episodic_life: bool | None = None
    """Whether a lost life ends the learner's episode, in ALE's games.
    None: as atari_preset says."""
    sticky_actions: float | None = None
    """Probability of repeating the last executed action, in ALE's games.
    None: as atari_preset says."""
    noop_max: int | None = None
    """No-ops at the start of ALE's games are drawn from 1 to this; 0: none.
    None: as atari_preset says."""
    frame_skip: int | None = None
    """Frames that an action is held for in ALE's games. None: as atari_preset says, 4."""
    observe_previous: bool = False
    """Whether a policy with a core also sees its action before and that one's reward, zeros at the
    start of an episode."""
    reset_mode: Literal["auto", "immediate", "wait"] = "auto"
    """After an episode ends: begin the next at once, or wait for the next iteration.
    auto: wait for reinforce, immediate for the others."""
    collector: str = "serial"
    """serial: acting and stepping in this process, on the devices that were chosen.
    central: stepping in num_workers processes, acting in this one, on all environments at once.
    alternating: likewise, in groups: while the policy acts for one, the others step; with the
    back ends envpool and ale in threads of this process.
    workers: both in num_workers processes, each with its environments and copy of the policy.
    async: likewise, while this process learns from the rollouts before.
    ray: likewise, in num_workers actors anywhere in a Ray cluster: that of RAY_ADDRESS, else one
    that is started here.
    module:Name: one of your own."""
    num_workers: int = 2
    """W, worker processes (actors) of every collector but serial, and of the processes back end."""
    num_groups: int = 2
    """Groups of environments of the alternating collector."""
    overlap_groups: bool = True
    """Whether one of these groups may begin to step while another one still does."""
    max_staleness: int = 1
    """Updates of the weights that a rollout of the async and ray collectors may be behind."""
    cpu_affinity: str = "none"
    """Cores that workers are pinned to: none, auto (their share of all), or a list as 0-3,6."""
    worker_timeout_s: float = 8.0
    """Seconds without an answer after which a worker counts as hung."""
    on_worker_failure: Literal["end", "restart"] = "end"
    """When a worker process dies, raises or hangs: end the run, or restart all workers, which begin
    fresh episodes. A run that restarted is not repeated to the bit."""
    max_worker_restarts: int = 3
    """Restarts in a row, without a rollout between them, after which the run ends all the same."""
    accelerate: Literal["auto", "eager", "cpu", "compile", "cudagraph", "compile+cudagraph"] = (
        "auto"
    )
    """How updates run: as they are written (eager), by hand-written kernels for known algorithms
    and networks (cpu), through torch.compile, or as captured CUDA graphs. What an engine cannot
    serve runs eager. auto: captured on CUDA; elsewhere what has proved fastest for such a device
    and such networks. config.json says which that was."""
    cpu_acting: bool | None = None
    """Whether hand-written kernels may act where they know the policy: for a single environment,
    and for images. None: where accelerate is auto or cpu."""
    self_check: bool = True
    """Whether some of an engine's updates are compared with the written one."""
    num_threads: int | Literal["auto"] = "auto"
    """Threads of torch.
    auto: chosen from the work of an update and the cores that are free when the run starts; the
    run says how many, and config.json keeps the number."""
    tune_process: bool = True
    """Whether the run may change what holds for its whole process: glibc keeps freed memory, idle
    OpenMP threads sleep soon, numpy's matrix library works with one thread. Of several runs in
    one process the first decides."""
    out: str | None = None
    """Run directory.
    None: runs/<name>, or runs/<group>/<name>; numbered if that is taken, also by a run that starts
    at the same moment."""
    name: str | None = None
    """What the run is called in tables and logs, and its default directory.
    None: <algorithm>-<env>-seed<seed>; before the seed up to three hyperparameters that differ from
    the preset's."""
    group: str | None = None
    """Runs that belong together: a folder under runs, and W&B's group."""
    tags: tuple[str, ...] = ()
    """Words to find the run by, separated by commas."""
    init_from: str | None = None
    """Run directory to begin with: its newest weights are taken where names and shapes fit."""
    init_parts: tuple[str, ...] = ("weights", "normalizer")
    """What is taken from there: weights, normalizer (statistics of observations), replay."""
    data: str | None = None
    """Recorded episodes: an .npz file, the folder of a Minari dataset, or the name of one that
    Minari has on this machine. bc learns from nothing else; replay begins with them."""
    preset: str = "auto"
    """Named hyperparameters to start from.
    auto: chosen by the environment; default: the plain defaults."""
    log_interval: int | None = None
    """env_steps between rows of progress.csv. None: 1% of total_env_steps."""
    checkpoints: Literal["none", "last", "every", "gap", "last+gap", "best"] = "last"
    """Which checkpoints are kept: the newest two, every one, those checkpoint_gap apart, ...
    The state at the end is always saved."""
    checkpoint_interval: int | None = None
    """env_steps between checkpoints. None: 5% of total_env_steps, or in the gap modes less, so that
    checkpoint_gap is a multiple of it."""
    checkpoint_gap: int | None = None
    """env_steps between the checkpoints that gap keeps. None: 20% of total_env_steps."""
    eval_interval: int = 0
    """env_steps between evaluations on separate environments, at most total_env_steps; 0: none
    during training."""
    eval_async: bool = False
    """Whether to evaluate in a process of its own, while learning goes on. Results come a while
    later, and are waited for before a checkpoint and the next evaluation."""
    eval_episodes: int = 10
    """Episodes of each evaluation."""
    eval_max_episode_steps: int | None = None
    """env_steps after which an episode of an evaluation is cut; it counts with the return it has
    then. None: each goes on until the environment ends it."""
    log_info: tuple[str, ...] = ()
    """Names of values in the last info of each episode whose means are logged, separated by commas.
    Success rates are logged by themselves."""
    callbacks: tuple[str, ...] = ()
    """Callbacks of your own, each as module:Name; see docs/callbacks.md."""
    stop_at_return: float | None = None
    """Stop as soon as the mean return of the last 100 training episodes reaches this; the mean must
    cover at least 20."""
    on_divergence: Literal["stop", "warn"] = "stop"
    """When a metric or a parameter is no longer a finite number: stop, before a broken state
    replaces a good checkpoint, or warn once and go on."""
    tensorboard: bool = True
    """Whether to write TensorBoard events."""
    jsonl: bool = False
    """Whether to write progress.jsonl, one JSON object per row."""
    wandb: bool = False
    """Whether to log to Weights & Biases (extra: wandb)."""
    quiet: bool = False
    """Whether to leave out the progress bar and messages."""

    def __post_init__(self) -> None:
        require_file_name(name=self.name, group=self.group)
        require_positive(
            total_env_steps=self.total_env_steps,
            num_workers=self.num_workers,
            num_groups=self.num_groups,
            max_staleness=self.max_staleness,
            worker_timeout_s=self.worker_timeout_s,
            eval_episodes=self.eval_episodes,
            max_worker_restarts=self.max_worker_restarts,
        )
        require_not_negative(seed=self.seed, eval_interval=self.eval_interval)
        require_at_most(
            seed=(self.seed, _LARGEST_SEED),
            worker_timeout_s=(self.worker_timeout_s, _LONGEST_WAIT_S),
            num_threads=(0 if self.num_threads == "auto" else self.num_threads, _MOST_THREADS),
        )
        for name in _POSITIVE_IF_GIVEN:
            value = getattr(self, name)
            if value not in (None, "auto"):
                require_positive(**{name: value})
        if self.on_worker_failure == "restart" and self.deterministic:
            raise ConfigError(
                "on_worker_failure='restart' begins fresh episodes at a moment that no seed "
                "repeats, and deterministic=True asks for the same bits each time. Leave one of "
                "them out."
            )
        self.parsed_env_kwargs()

    def parsed_env_kwargs(self) -> dict[str, Any]:
        """`env_kwargs` as a dict.

        Raises:
            ConfigError: if it is not a JSON object.
        """
        try:
            parsed = json.loads(self.env_kwargs)
        except (ValueError, RecursionError) as error:  # also digits or depth without end
            raise ConfigError(
                f"env_kwargs={shown(self.env_kwargs, 200)} is not JSON ({error}). Give an object "
                f"such as '{{\"gravity\": 5.0}}'."
            ) from error
        if not isinstance(parsed, dict):
            raise ConfigError(
                f"env_kwargs={shown(self.env_kwargs, 200)} is not a JSON object. Give one such as "
                f"'{{\"gravity\": 5.0}}'."
            )
        return parsed


def require_file_name(**values: str | None) -> None:
    """Raise ConfigError for the first value that cannot name a folder."""
    for name, value in values.items():
        if value is not None and (value in ("", ".", "..") or "/" in value or "\0" in value):
            raise ConfigError(
                f"{name}={shown(value)} cannot name a folder. Give a word without '/', and the "
                "folder as out."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The network and the action distribution.

    Raises:
        ConfigError: if a value is out of range.
    """

    only_with: ClassVar[OnlyWith] = {
        "encoder": (OnlyIf("network", (None,)),),
        "hidden_sizes": (OnlyIf("layers", ("dense",)),),
        "activation": (
            OnlyIf("layers", ("dense",)),
            OnlyIf("hidden_sizes", never=((),), or_given=("critic_hidden_sizes",)),
        ),
        "core_size": (OnlyIf("core", never=("none",)),),
        "core_window": (OnlyIf("core", ("transformer",)),),
        "core_layers": (OnlyIf("core", ("transformer",)),),
        "core_heads": (OnlyIf("core", ("transformer",)),),
        "distribution": (OnlyIf("actions", ("Box",)),),
        "initial_log_std": (OnlyIf("actions", ("Box",)),),
        "normalize_obs": (OnlyIf("observations", ("float",)),),
    }

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers for vector observations."""
    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Activation between those layers."""
    encoder: Literal["auto", "mlp", "nature", "impala", "minatar"] = "auto"
    """Network in front of the heads.
    auto: nature for images, minatar for images too small for it, mlp for vectors."""
    core: Literal["none", "lstm", "gru", "transformer"] = "none"
    """What carries the past of an episode, between encoder and heads."""
    core_size: int = 128
    """Width of the core."""
    core_window: int = 32
    """Steps that each layer of a transformer attends to, the present one included."""
    core_layers: int = 1
    """Layers of a transformer."""
    core_heads: int = 4
    """Heads of attention in each layer; they divide core_size."""
    shared_encoder: bool | None = None
    """Whether actor and critic share the encoder.
    None: yes for images and with a core, no for vectors."""
    normalize_obs: bool = False
    """Whether float observations are normalized by running statistics, clipped to +-10."""
    distribution: Literal["auto", "gaussian", "squashed"] = "auto"
    """Of Box actions: Gaussian clipped to the bounds (auto), or squashed into them by tanh."""
    initial_log_std: float = 0.0
    """Logarithm of the Gaussian's initial standard deviation."""

    def __post_init__(self) -> None:
        require_positive(
            core_size=self.core_size,
            core_window=self.core_window,
            core_layers=self.core_layers,
            core_heads=self.core_heads,
        )
        require_few_layers(core_layers=self.core_layers)
        for size in self.hidden_sizes:
            require_positive(hidden_sizes=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All settings of a run."""

    algorithm: str
    run: RunSettings = field(default_factory=RunSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    algo: Any

    def __post_init__(self) -> None:
        for part in (self.run, self.policy, self.algo):
            for each in dataclasses.fields(part):
                require_64_bits(each.name, getattr(part, each.name))
                if each.name.endswith("hidden_sizes"):  # of an algorithm's own networks, too
                    require_few_layers(**{each.name: getattr(part, each.name) or ()})

    def to_json(
        self,
        *,
        engine: str = "",
        build: Mapping[str, Any] | None = None,
        changed: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Plain data for `config.json`.

        Args:
            engine: why updates run as `accelerate` says, for whoever reads the file.
            build: what computes: versions and kernels; see `build_description`.
            changed: settings that a resumed run went on with instead of its own.
        """
        return {
            "format_version": FORMAT_VERSION,
            "algorithm": self.algorithm,
            **({"engine": engine} if engine else {}),
            **({"build": dict(build)} if build else {}),
            **({"changed": list(changed)} if changed else {}),
            "run": dataclasses.asdict(self.run),
            "policy": dataclasses.asdict(self.policy),
            "algo": dataclasses.asdict(self.algo),
        }

    @staticmethod
    def from_json(
        data: Mapping[str, Any], algorithm: Any = None, *, for_help: bool = False
    ) -> RunConfig:
        """What `to_json` gave; every name and type is checked, nothing is executed.

        Args:
            data: plain data.
            algorithm: the algorithm's class or place, where the data name one of a user's own.
            for_help: whether a built-in algorithm's outline will do, which needs no torch.

        Raises:
            ConfigError: if a name is unknown or a value has the wrong type.
        """
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise ConfigError(
                f"config.json has format_version={shown(version)}, this version of Redline reads "
                f"{FORMAT_VERSION}. Use the version of Redline that wrote it."
            )
        label = str(data.get("algorithm"))
        if not is_named(label) and algorithm is None:
            raise ConfigError(
                f"the algorithm of this run, {shown(label, 200)}, is Python code, and a run "
                "directory alone "
                f"must not decide what is imported. If you trust it, name it again: "
                f"redline train {shortened(label)} --resume ..., redline eval ... --algorithm "
                f"{shortened(label)}, or "
                f"algorithm={shown(label, 200)} from Python."
            )
        said = declaration(label if is_named(label) else algorithm, for_help=for_help)
        return RunConfig(
            algorithm=label,
            run=from_plain(RunSettings, _of_today(data)),
            policy=from_plain(PolicySettings, data.get("policy", {})),
            algo=from_plain(said.Config, _as_learned_then(data, _field_names(said.Config))),
        )

    def replace(self, **settings: Any) -> RunConfig:
        """The same config with some settings changed, each by its flat name.

        Raises:
            ConfigError: if no part of the config has a setting of that name.
        """
        parts: dict[str, Any] = {"run": self.run, "policy": self.policy, "algo": self.algo}
        changes: dict[str, dict[str, Any]] = {name: {} for name in parts}
        for name, value in settings.items():
            owner = next((p for p, part in parts.items() if name in _field_names(part)), None)
            if owner is None:
                raise ConfigError(unknown_setting(name, self.algorithm, self.names()))
            if name == "env_kwargs" and isinstance(value, Mapping):
                value = as_json(name, value)
            kind = types_of(type(parts[owner]))[name]
            changes[owner][name] = coerced(name, value, kind)
        return dataclasses.replace(
            self,
            **{p: dataclasses.replace(part, **changes[p]) for p, part in parts.items()},
        )

    def names(self) -> list[str]:
        """Every setting's flat name, those of the run first."""
        parts = (self.run, self.policy, self.algo)
        return [f.name for part in parts for f in dataclasses.fields(part)]

    def mistakes(self, settings: Mapping[str, Any]) -> list[str]:
        """What `replace` would refuse, one sentence each; an empty list if nothing.

        Unlike `replace`, it looks at all settings before it gives up. Limits that join several
        settings are looked at once each setting is right by itself.

        Args:
            settings: flat name -> value.
        """
        found: list[str] = []
        for name, value in settings.items():
            try:
                self._check(name, value)
            except ConfigError as error:
                found.append(str(error))
        if not found:
            try:
                self.replace(**settings)
            except ConfigError as error:
                found.append(str(error))
        return found

    def _check(self, name: str, value: Any) -> None:
        """Whether a setting is known and `value` is of its type."""
        for part in (self.run, self.policy, self.algo):
            if name in _field_names(part):
                if not (name == "env_kwargs" and isinstance(value, Mapping)):
                    coerced(name, value, types_of(type(part))[name])
                return
        raise ConfigError(unknown_setting(name, self.algorithm, self.names()))


def _field_names(part: Any) -> set[str]:
    return {f.name for f in dataclasses.fields(part)}


def _is_a_runs(data: Mapping[str, Any]) -> bool:
    """Whether a run wrote this config.json, so that nobody wrote it by hand."""
    return "engine" in data or "keep_freed_memory" in data.get("run", {})


def _as_learned_then(data: Mapping[str, Any], names: set[str]) -> Any:
    """The algorithm's settings; a run from before `backup_entropy` had entropy in its targets."""
    algo = data.get("algo", {})
    if isinstance(algo, Mapping) and "backup_entropy" in names and _is_a_runs(data):
        return {"backup_entropy": True, **algo}
    return algo


def _of_today(data: Mapping[str, Any]) -> Any:
    """The run's settings by today's names, from a config.json of version 0.1."""
    run = data.get("run", {})
    if not isinstance(run, Mapping):
        return run
    run = dict(run)
    is_a_runs = _is_a_runs(data)
    engine = run.get("accelerate")
    if isinstance(engine, str):  # what else stands there is refused with the other values
        run["accelerate"] = _OLD_ENGINES.get(engine, engine)
    if is_a_runs:
        run.setdefault("cpu_acting", True)  # it was no option
        run.setdefault("check_env", "off")  # likewise
    if "keep_freed_memory" in run:
        run["tune_process"] = run.pop("keep_freed_memory")
    if run.get("num_threads", "auto") is None:
        run["num_threads"] = "auto"
    return run

"""What the training loop asks of a collector, whatever its placement.

A collector of your own is one class: derive from `Collector`, or from one of those that are
there, and build it in `make` from a `CollectorSetup`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from gymnasium.vector import VectorEnv
from torch import Tensor

from redline.collect.acting_loop import ActingLoop, ActorFor
from redline.collect.episodes import ResetMode
from redline.data import Array, Rollout
from redline.envs.backends.backend import Backend
from redline.envs.backends.processes import ProcessBackend
from redline.envs.backends.registry import find_backend
from redline.envs.games.ids import is_native
from redline.envs.settings import EnvSettings, EnvSource
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError
from redline.policies.policy import Policy

RolloutsFor: TypeAlias = Callable[[ActingLoop], "Callable[[], bool] | None"]
"""loop -> what takes all steps of a rollout and says whether it could; None: one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSetup:
    """All that a collector can be built from; each takes what it needs.

    Args:
        env: environments in this process. The collector takes them over: it steps and later
            closes them, or closes them before it makes its own.
        settings: how to make more of them.
        policy: the learner's.
        num_envs: B.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        num_workers: W, worker processes.
        num_groups: groups of environments that take turns.
        overlap: whether a group may begin to step while another one still does.
        max_staleness: M, rollouts that are made while the learner learns.
        timeout_s: seconds after which a worker that does not answer counts as hung.
        cpus: the cores that each worker may run on; None: those of this process.
        device: the learner's.
        env_device: where the environments' data are to be; None: as they come.
        policy_device: where to act; None: on the learner's device, workers on the CPU.
        actor_for: gives what acts in the policy's place; None: the policy always acts.
        rollouts_for: gives what takes all steps of a rollout on a device; None: nothing does.
    """

    env: VecEnv
    settings: EnvSettings
    policy: Policy
    num_envs: int
    rollout_length: int
    seed: int = 0
    reset_mode: ResetMode = "immediate"
    num_workers: int = 1
    num_groups: int = 2
    overlap: bool = True
    max_staleness: int = 1
    timeout_s: float = 8.0
    cpus: Sequence[Collection[int]] | None = None
    device: str = "cpu"
    env_device: str | None = None
    policy_device: str | None = None
    actor_for: ActorFor | None = None
    rollouts_for: RolloutsFor | None = None

    @property
    def in_process(self) -> dict[str, Any]:
        """The arguments of collectors that step in this process, but environments and policy."""
        names = ("rollout_length", "seed", "reset_mode", "actor_for")
        return {name: getattr(self, name) for name in names}

    @property
    def in_workers(self) -> dict[str, Any]:
        """The arguments of collectors with worker processes, but settings and policy."""
        names = ("num_envs", "num_workers", "timeout_s", "cpus")
        return self.in_process | {name: getattr(self, name) for name in names}

    @property
    def in_acting_workers(self) -> dict[str, Any]:
        """The arguments of collectors whose workers act where they are told to."""
        place = {} if self.policy_device is None else {"policy_device": self.policy_device}
        return self.in_workers | place


class Collector(ABC):
    """Fills rollouts of T steps of B environments with one policy.

    Attributes:
        name: what it is asked for by, `--collector NAME`; "" for one that only has its class.
        workers: whether it has worker processes, and whether they only step or act as well.
        works_ahead: whether it collects while the learner learns.
        takes_devices: whether environments and acting can be placed on devices.
        takes_policy_device: whether acting alone can be.
        options: settings of the run that it uses, of those that not every collector has.
            A run in which nothing uses one refuses it.
        num_envs: B.
        rollout_length: T.
        version: number of the weights that act in the next rollout to be begun.
        max_staleness: how many `update_weights` a rollout may be behind when `collect` gives it.
        restorable: None if `state_dict` restores the environments bit for bit, else why not.
        replaced: a sentence for each worker that died and was replaced; None where the death of
            a worker ends the run, as it does by default.
    """

    name: ClassVar[str] = ""
    workers: ClassVar[Literal["none", "stepping", "acting"]] = "none"
    works_ahead: ClassVar[bool] = False
    takes_devices: ClassVar[bool] = False
    takes_policy_device: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = (
        "num_workers",
        "worker_timeout_s",
        "cpu_affinity",
        "num_groups",
        "overlap_groups",
        "max_staleness",
        "on_worker_failure",
    )
    num_envs: int
    rollout_length: int
    version: int
    max_staleness: int = 0
    restorable: str | None
    replaced: list[str] | None = None
    _future: RolloutFuture | None = None

    @classmethod
    def make(cls, setup: CollectorSetup) -> Collector:
        """Build the collector of a run.

        Args:
            setup: all that there is to build it from. `setup.env` is to be stepped or closed.

        Raises:
            ConfigError: if the setup does not fit; the default refuses every one.
        """
        del setup
        raise ConfigError(
            f"{cls.__qualname__} cannot be built for a run: it has no `make`. Add the classmethod "
            f"make(cls, setup: CollectorSetup)."
        )

    @classmethod
    def takes(cls, option: str, backend: type[Backend]) -> bool:
        """Whether it uses a setting of the run when it steps with this back end."""
        del backend
        return option in cls.options

    @classmethod
    def choose_backend(cls, env: EnvSource, backend: str | type[Backend]) -> str | type[Backend]:
        """The back end with which this collector steps.

        Args:
            env: what is to be stepped.
            backend: as the user gave it, "auto" included.

        Raises:
            ConfigError: if the back end or the environment does not fit the collector.
        """
        if cls.workers != "none" and isinstance(env, VectorEnv):
            raise ConfigError(
                f"collector={cls.name!r} needs environments beside those that train, and a "
                f"VectorEnv object is only one. Give an id, or a callable that makes one "
                f"gymnasium.Env."
            )
        if cls.workers == "acting" and backend in ("processes", ProcessBackend):
            raise ConfigError(
                f"collector={cls.name!r} and env_backend='processes' would start processes inside "
                f"of processes. Use one of them: the workers step their environments themselves."
            )
        return step_in_workers(cls.name, env, backend) if cls.workers == "stepping" else backend

    def collect(self, conditioning: Mapping[str, Tensor] | None = None) -> Rollout:
        """Take T steps in every environment.

        Args:
            conditioning: per-environment inputs of the policy, name -> [B, ...], in force for
                this rollout (for the one that is begun now, where rollouts are made ahead).

        Returns:
            A rollout that holds until the next call, which writes into the same memory.

        Raises:
            ConfigError: if a collection is under way.
            EnvError: if an environment broke its contract.
            WorkerError: if a worker process raised, died or stopped answering.
        """
        self._refuse_if_busy("collect()")
        self._start(conditioning, background=False)
        return self._finish()

    def collect_async(self, conditioning: Mapping[str, Tensor] | None = None) -> RolloutFuture:
        """Do the same beside the caller, who may poll, wait, or look at what is there so far.

        The rollout is made with the weights of this moment: what the learner does to its own,
        and `update_weights`, reach the next one. Until the rollout is there, nothing else can
        be asked of the collector but `update_weights` and `close`.

        Args:
            conditioning: as for `collect`.

        Raises:
            ConfigError: if a collection is under way.
        """
        self._refuse_if_busy("collect_async()")
        self._start(conditioning, background=True)
        self._future = RolloutFuture(self._finish, self._partial)
        return self._future

    def begin_episodes(self, num_episodes: int | None) -> None:
        """Run exactly so many whole episodes, over as many collections as they take.

        Each environment gets its share beforehand, the first ones one more where it does not
        come out even; short episodes make no room for others. An environment that is through
        with its share is idle: its rows are not valid. `Rollout.num_running` counts the others.
        Episodes that are in the middle are given up, so that every one is whole; their
        numbers are not used again.

        Args:
            num_episodes: over all environments; None goes back to episodes without end.

        Raises:
            ConfigError: if it is below 1, or the environments cannot idle.
        """
        self._refuse_if_busy("begin_episodes()")
        if num_episodes is None:
            self._limit_episodes(None)
            return
        if num_episodes < 1:
            raise ConfigError(f"num_episodes={num_episodes} must be at least 1, or None.")
        quota = np.full(self.num_envs, num_episodes // self.num_envs, np.int64)
        quota[: num_episodes % self.num_envs] += 1
        self._limit_episodes(quota)

    def episodes(
        self, num_episodes: int, conditioning: Mapping[str, Tensor] | None = None
    ) -> Iterator[Rollout]:
        """Rollouts that together hold exactly `num_episodes` whole episodes.

        Each holds until the next one is asked for. Afterwards episodes go on without end.
        """
        self.begin_episodes(num_episodes)
        num_running = 1
        while num_running > 0:
            rollout = self.collect(conditioning)
            num_running = rollout.num_running
            try:
                yield rollout
            except GeneratorExit:  # the caller has seen enough
                if self._future is None:
                    self.begin_episodes(None)
                raise
        self.begin_episodes(None)

    def _refuse_if_busy(self, what: str) -> None:
        if self._future is None:
            return
        if not self._future.done:
            raise ConfigError(
                f"{what} was called while a collection is under way. Wait for its future first: "
                f"future.result()."
            )
        self._future = None

    @abstractmethod
    def _start(self, conditioning: Mapping[str, Tensor] | None, *, background: bool) -> None:
        """Begin a rollout with the weights of this moment.

        Args:
            conditioning: as for `collect`.
            background: the caller goes on meanwhile, and may change the learner's weights.
        """

    @abstractmethod
    def _finish(self) -> Rollout:
        """Wait until the rollout is complete, or make it."""

    @abstractmethod
    def _partial(self) -> Rollout:
        """A copy of what the rollout under way holds by now; from another thread."""

    @abstractmethod
    def _limit_episodes(self, quota: Array | None) -> None:
        """Run `quota` [B] whole episodes in each environment from here on; None: no limit."""

    @abstractmethod
    def update_weights(self, version: int) -> None:
        """Act with the learner's present weights from the next rollout on; call them `version`."""

    def set_env_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value, from the next rollout on.

        Rollouts that were made ahead keep what they were made with.

        Args:
            name: of an attribute that the environments or their wrappers have.
            value: plain data.

        Raises:
            ConfigError: if there is no such attribute, or it cannot be reached.
        """
        del value
        raise ConfigError(
            f"{type(self).__qualname__} cannot set the attribute {name!r} of environments: it has "
            f"no `set_env_attr`. Add one, or use another collector."
        )

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the next rollout depends on beside the weights.

        Environments that cannot be saved are left out; `restorable` says so.
        """

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`.

        Returns:
            None if the environments go on exactly, else why they began new episodes.
        """

    @abstractmethod
    def close(self) -> None:
        """Free environments and processes. Calling it twice does no harm."""

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


WORKER_OPTIONS = ("num_workers", "worker_timeout_s", "cpu_affinity", "on_worker_failure")
"""The `Collector.options` of those with worker processes."""


def step_in_workers(name: str, env: EnvSource, backend: str | type[Backend]) -> str:
    """The back end of environments that are stepped one by one in worker processes.

    Args:
        name: of the collector, for messages.
        env: what is to be stepped.
        backend: as the user gave it.

    Raises:
        ConfigError: if they can only be stepped in another way.
    """
    if backend != "auto" and not find_backend(backend).single_envs:
        raise ConfigError(
            f"env_backend={backend!r} steps its environments by itself, and collector={name!r} "
            f"steps them in worker processes. Use env_backend='gymnasium', or collector='serial'."
        )
    if is_native(env):
        raise ConfigError(
            f"{env} steps its whole batch in tensor operations, and collector={name!r} steps "
            f"single environments in worker processes. Use collector='serial', or 'workers' or "
            f"'async', whose workers step a batch each."
        )
    return "gymnasium"


class RolloutFuture:
    """What `Collector.collect_async` gives.

    Args:
        make: makes the rollout, or waits for it; runs in a thread of its own.
        look: a copy of what the rollout holds by now.
    """

    def __init__(self, make: Callable[[], Rollout], look: Callable[[], Rollout]) -> None:
        self._make, self._look = make, look
        self._rollout: Rollout | None = None
        self._error: BaseException | None = None
        # A daemon: a program that ends does not wait for a rollout that nobody wants.
        self._thread = threading.Thread(target=self._run, name="redline-collect", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._rollout = self._make()
        except BaseException as error:  # noqa: BLE001 (raised again in `result`)
            self._error = error

    @property
    def done(self) -> bool:
        """Whether the rollout is complete, or has failed; never waits."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is done, or for `timeout_s` seconds; whether it is done then."""
        self._thread.join(timeout_s)
        return self.done

    def result(self) -> Rollout:
        """Wait for the rollout, which holds until the collector's next call.

        Raises:
            RedlineError: what `Collector.collect` would have raised.
        """
        self._thread.join()
        if self._rollout is None:
            if self._error is None:
                raise RuntimeError("the collecting thread ended without a result")
            raise self._error
        return self._rollout

    def partial(self) -> Rollout:
        """A copy of the rows that are complete by now; never waits.

        It has the shape of the whole rollout. Rows that are still to come are zero and not
        valid. Where the copy ends in the middle of an episode there is no bootstrap value
        yet, and of a single environment the policy's own outputs may come with the last row: it
        is for looking at, not for learning from.
        """
        return self._look()

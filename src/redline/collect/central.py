"""Collection whose environments step beside the policy, which acts in this process.

They step in worker processes, or in the threads of a back end that has its own. A worker process
knows nothing of the policy, not even the tensor library. Observations and actions pass through
shared memory, and an eventfd wakes whoever waits for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from redline.collect.acting_loop import ActorFor
from redline.collect.collector import WORKER_OPTIONS, CollectorSetup
from redline.collect.episodes import ResetMode
from redline.collect.serial import ArrayCollector
from redline.envs.backends.backend import Backend
from redline.envs.backends.processes import split_evenly
from redline.envs.backends.registry import find_backend
from redline.envs.settings import EnvSettings, EnvSource
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError
from redline.policies.policy import Policy


class CentralCollector(ArrayCollector):
    """Steps in W worker processes and acts on all environments as one batch.

    The policy sees the same batches as in the serial collector, so the rollouts are
    identical to the bit.

    Args:
        settings: how to make environments, with the back end gymnasium or processes.
        policy: the learner's policy.
        num_envs: B.
        num_workers: W.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        timeout_s: seconds after which a worker that does not answer counts as hung.
        cpus: the cores that each worker may run on; None: those of this process.
        actor_for: gives what acts in the policy's place; None: the policy always acts.

    Raises:
        ConfigError: if there are more workers than environments, or the back end steps in
            threads of its own.
        WorkerError: if a worker does not start.
    """

    name = "central"
    workers = "stepping"
    options = WORKER_OPTIONS

    def __init__(
        self,
        settings: EnvSettings,
        policy: Policy,
        *,
        num_envs: int,
        num_workers: int,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
        timeout_s: float = 8.0,
        cpus: Sequence[Collection[int]] | None = None,
        actor_for: ActorFor | None = None,
    ) -> None:
        env = in_processes(settings, num_workers, timeout_s, cpus).make(num_envs)
        super().__init__(
            [env],
            policy,
            rollout_length=rollout_length,
            seed=seed,
            reset_mode=reset_mode,
            actor_for=actor_for,
        )
        self.env = env

    @classmethod
    def make(cls, setup: CollectorSetup) -> CentralCollector:
        """See `Collector.make`."""
        setup.env.close()
        return cls(setup.settings, setup.policy, **setup.in_workers)


class AlternatingCollector(ArrayCollector):
    """Two or more groups of environments: while the policy acts for one, the others step.

    Each group has its own worker processes; with the back end envpool or ale, a pool of threads
    of its own in this process. The policy acts on the batch of one group, so rollouts equal the
    serial collector's as far as the policy's arithmetic does not depend on the size of a batch,
    and exactly for a policy whose arithmetic is exact.

    Args:
        settings: how to make environments, with any back end that can step beside this thread:
            gymnasium, processes, envpool or ale.
        policy: the learner's policy.
        num_envs: B, over all groups.
        num_workers: W, over all groups; threads have no use for it.
        num_groups: G.
        rollout_length: T.
        seed: of the run.
        reset_mode: what an environment does after its episode ends.
        overlap: a group begins to step as soon as its actions are there. Without, it waits
            until the group before it is through, so that each has all cores to itself.
        timeout_s: seconds after which a worker that does not answer counts as hung.
        cpus: the cores that each worker may run on; None: those of this process.
        actor_for: gives what acts in the policy's place; None: the policy always acts.

    Raises:
        ConfigError: if a group would have no worker or no environment, a worker no
            environment, the back end cannot step beside this thread, or threads are to be
            pinned.
        WorkerError: if a worker does not start.
    """

    name = "alternating"
    workers = "stepping"
    options = (*WORKER_OPTIONS, "num_groups", "overlap_groups")

    def __init__(
        self,
        settings: EnvSettings,
        policy: Policy,
        *,
        num_envs: int,
        num_workers: int,
        num_groups: int = 2,
        rollout_length: int,
        seed: int = 0,
        reset_mode: ResetMode = "immediate",
        overlap: bool = True,
        timeout_s: float = 8.0,
        cpus: Sequence[Collection[int]] | None = None,
        actor_for: ActorFor | None = None,
    ) -> None:
        threaded = settings.backend_class.threaded
        if threaded:
            num_workers = num_groups
        _check_groups(num_groups, num_workers, num_envs)
        if threaded and cpus is not None:
            raise ConfigError(
                f"cpus={cpus} pins worker processes, and the back end {settings.backend!r} steps "
                f"in threads. Leave --cpu-affinity out, or use env_backend='gymnasium'."
            )
        envs: list[VecEnv] = []
        shares = zip(
            split_evenly(num_envs, num_groups), split_evenly(num_workers, num_groups), strict=True
        )
        try:
            for (first, end), (first_worker, end_worker) in shares:
                own = None if cpus is None else cpus[first_worker:end_worker]
                group = settings
                if not threaded:
                    group = in_processes(settings, end_worker - first_worker, timeout_s, own)
                envs.append(group.make(end - first, first))
            super().__init__(
                envs,
                policy,
                rollout_length=rollout_length,
                seed=seed,
                reset_mode=reset_mode,
                overlap=overlap,
                actor_for=actor_for,
            )
        except BaseException:
            for env in envs:
                env.close()
            raise

    @classmethod
    def make(cls, setup: CollectorSetup) -> AlternatingCollector:
        """See `Collector.make`."""
        setup.env.close()
        groups = {"num_groups": setup.num_groups, "overlap": setup.overlap}
        return cls(setup.settings, setup.policy, **setup.in_workers, **groups)

    @classmethod
    def takes(cls, option: str, backend: type[Backend]) -> bool:
        """See `Collector.takes`; a back end with threads of its own has no workers."""
        if backend.threaded and option in WORKER_OPTIONS:
            return False
        return super().takes(option, backend)

    @classmethod
    def choose_backend(cls, env: EnvSource, backend: str | type[Backend]) -> str | type[Backend]:
        """See `Collector.choose_backend`; back ends with threads of their own alternate, too."""
        if backend != "auto" and find_backend(backend).threaded:
            return backend
        return super().choose_backend(env, backend)


def _check_groups(num_groups: int, num_workers: int, num_envs: int) -> None:
    if num_groups < 2:
        raise ConfigError(
            f"num_groups={num_groups}: alternating takes at least 2 groups of environments. Use "
            f"the central collector for one."
        )
    for name, count in (("num_workers", num_workers), ("num_envs", num_envs)):
        if count < num_groups:
            raise ConfigError(
                f"{name}={count} is less than num_groups={num_groups}: every group needs one of "
                f"its own. Use at least {num_groups}."
            )


def in_processes(
    settings: EnvSettings,
    num_workers: int,
    timeout_s: float,
    cpus: Sequence[Collection[int]] | None,
) -> EnvSettings:
    """The same environments, stepped in `num_workers` processes.

    Raises:
        ConfigError: if they can only be stepped in another way.
    """
    if not settings.backend_class.single_envs:
        raise ConfigError(
            f"the back end {settings.backend!r} steps its environments by itself, and this "
            f"collector steps them in worker processes. Use env_backend='gymnasium', or the serial "
            f"collector."
        )
    return dataclasses.replace(
        settings,
        backend="processes",
        num_workers=num_workers,
        worker_timeout_s=timeout_s,
        worker_cpus=None if cpus is None else tuple(map(tuple, cpus)),
    )

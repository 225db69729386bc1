"""What the training loop asks of a collector, whatever its placement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
from torch import Tensor

from redline.collect.future import RolloutFuture
from redline.data import Array, Rollout
from redline.errors import ConfigError

ResetMode: TypeAlias = Literal["immediate", "wait"]
"""`immediate`: a new episode begins as soon as one ends. `wait`: the environment stays idle,
its rows not valid, until the rollout is over."""


class Collector(ABC):
    """Fills rollouts of T steps of B environments with one policy.

    Attributes:
        num_envs: B.
        rollout_length: T.
        version: number of the weights that act in the next rollout to be begun.
        max_staleness: how many `update_weights` a rollout may be behind when `collect` gives it.
        restorable: None if `state_dict` restores the environments bit for bit, else why not.
    """

    num_envs: int
    rollout_length: int
    version: int
    max_staleness: int = 0
    restorable: str | None
    _future: RolloutFuture | None = None

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

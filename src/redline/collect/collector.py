"""What the training loop asks of a collector, whatever its placement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from torch import Tensor

from redline.data import Rollout

ResetMode: TypeAlias = Literal["immediate", "wait"]
"""`immediate`: a new episode begins as soon as one ends. `wait`: the environment stays idle,
its rows not valid, until the rollout is over."""


class Collector(ABC):
    """Fills rollouts of T steps of B environments with one policy.

    Attributes:
        num_envs: B.
        rollout_length: T.
        version: number of the weights that act.
        restorable: None if `state_dict` restores the environments bit for bit, else why not.
    """

    num_envs: int
    rollout_length: int
    version: int
    restorable: str | None

    @abstractmethod
    def collect(self, conditioning: Mapping[str, Tensor] | None = None) -> Rollout:
        """Take T steps in every environment.

        Args:
            conditioning: per-environment inputs of the policy, name -> [B, ...], in force for
                this rollout.

        Returns:
            A rollout that holds until the next call, which writes into the same memory.

        Raises:
            EnvError: if an environment broke its contract.
            WorkerError: if a worker process raised, died or stopped answering.
        """

    @abstractmethod
    def update_weights(self, version: int) -> None:
        """Act with the learner's present weights from now on, and call them `version`."""

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

"""What a replay buffer keeps and how it is sampled. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from redline.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig:
    """Settings of a replay buffer.

    The ring holds L = ceil(capacity / num_envs) rows of num_envs transitions, L rounded up
    to a multiple of `state_interval` for sequences.

    Raises:
        ConfigError: if a value is out of range or two values contradict each other.
    """

    capacity: int = 1_000_000  # transitions over all environments
    n_step: int = 1  # rewards summed before bootstrapping
    gamma: float = 0.99  # discount per environment step
    next_obs: bool = True  # whether batches carry the observation to bootstrap from
    extras: tuple[str, ...] = ()  # further rollout entries to keep, e.g. ("log_prob",)

    frame_stack: int = 1  # k frames on the first axis, newest last, each stored once; 1 is plain
    stacked_keys: tuple[str, ...] = ()  # dotted names of the stacked observations of a Dict space

    prioritized: bool = False  # proportional prioritization (Schaul et al. 2016)
    alpha: float = 0.6  # exponent of the priorities
    priority_epsilon: float = 1e-6  # added to every priority before the exponent

    sequence_length: int = 0  # learnable rows per sequence; 0 samples single transitions
    burn_in: int = 0  # rows before those, to warm the recurrent state up
    state_interval: int = 0  # rows between sequence starts, where the state is stored
    priority_eta: float = 0.9  # sequence priority = eta * max + (1 - eta) * mean

    storage: Literal["memory", "memmap", "device"] = "memory"
    storage_dir: Path | None = None  # where the file behind storage="memmap" is made
    device: str = "cpu"  # where storage="device" lies
    chunk_bytes: int = 8 * 2**20  # size of the files of a checkpoint, the unit of what changed

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_sequences()
        if self.stacked_keys and self.frame_stack == 1:
            raise ConfigError(
                f"stacked_keys={self.stacked_keys} but frame_stack=1: nothing is stacked. "
                "Set frame_stack to the number of frames."
            )
        if self.storage == "memmap" and self.storage_dir is None:
            raise ConfigError(
                "storage='memmap' needs storage_dir, a directory on the disk to use. "
                "Set it, or use storage='memory'."
            )

    def _check_ranges(self) -> None:
        for name in ("capacity", "n_step", "frame_stack"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name}={value} must be at least 1.")
        if not 0.0 <= self.gamma <= 1.0:
            raise ConfigError(f"gamma={self.gamma} must lie in [0, 1].")
        if self.alpha < 0.0:
            raise ConfigError(f"alpha={self.alpha} must not be negative; 0 is uniform.")
        if not self.priority_epsilon > 0.0:
            raise ConfigError(
                f"priority_epsilon={self.priority_epsilon} must be positive: a transition of "
                "priority 0 would never be drawn again. Use a small number such as 1e-6."
            )
        if not 0.0 <= self.priority_eta <= 1.0:
            raise ConfigError(f"priority_eta={self.priority_eta} must lie in [0, 1].")
        if self.storage not in ("memory", "memmap", "device"):
            raise ConfigError(
                f"storage={self.storage!r} is unknown. Use 'memory', 'memmap' or 'device'."
            )
        if self.chunk_bytes < 4096:
            raise ConfigError(f"chunk_bytes={self.chunk_bytes} must be at least 4096.")

    def _check_sequences(self) -> None:
        if self.sequence_length < 0 or self.burn_in < 0 or self.state_interval < 0:
            raise ConfigError(
                f"sequence_length={self.sequence_length}, burn_in={self.burn_in} and "
                f"state_interval={self.state_interval} must not be negative."
            )
        if self.is_sequential and self.state_interval == 0:
            raise ConfigError(
                f"sequence_length={self.sequence_length} needs state_interval, the rows between "
                "two sequence starts. Use the collector's rollout_length or a multiple of it."
            )
        if not self.is_sequential and (self.burn_in or self.state_interval):
            raise ConfigError(
                f"burn_in={self.burn_in} and state_interval={self.state_interval} mean nothing "
                "for single transitions. Set sequence_length, or leave both at 0."
            )

    @property
    def is_sequential(self) -> bool:
        """Whether batches are sequences."""
        return self.sequence_length > 0

    @property
    def sequence_rows(self) -> int:
        """T', the rows of a sequence: burn-in, what is learned, and n_step rows beyond it."""
        return self.burn_in + self.sequence_length + self.n_step if self.is_sequential else 1

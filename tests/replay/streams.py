"""Rollouts of made-up environments, and a slow reference that remembers every step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from tensordict import TensorDict

from redline.data import Array, Rollout

FRAME = (2, 2)


@dataclass
class Step:
    """One row of one environment."""

    valid: bool
    obs: Array
    action: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    successor: Array | None = None
    episode: int = -1
    chain: int = -1


@dataclass
class Stream:
    """Environments that end, lose lives, idle, reset late and break off at given rates.

    Observations are stacks of `frames` frames; every frame is new random content, so two
    observations are equal only if they are the same one.
    """

    seed: int
    num_envs: int = 2
    frames: int = 1
    end_rate: float = 0.2
    life_rate: float = 0.0
    idle_rate: float = 0.0
    break_rate: float = 0.0
    late_reset: bool = False  # next-step autoreset: a filler row after each end
    paddings: tuple[str, ...] = ("repeat", "zero", "distinct")
    rows: list[list[Step]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self._serial = 0
        self.episode = [0] * self.num_envs
        self.chain = [0] * self.num_envs
        self.episode_id = [0] * self.num_envs
        self.filler = [False] * self.num_envs
        self.current = [self._reset(b) for b in range(self.num_envs)]

    def _frame(self) -> Array:
        return self.rng.integers(1, 256, FRAME, dtype=np.uint8)

    def _reset(self, b: int) -> Array:
        self._new_episode(b)
        self.chain[b] = self._serial
        padding = self.paddings[int(self.rng.integers(len(self.paddings)))]
        newest = self._frame()
        older = {
            "repeat": lambda: newest,
            "zero": lambda: np.zeros(FRAME, dtype=np.uint8),
            "distinct": self._frame,
        }[padding]
        return np.stack([*(older() for _ in range(self.frames - 1)), newest])

    def _new_episode(self, b: int) -> None:
        self._serial += 1
        self.episode[b] = self._serial

    def _step(self, b: int) -> Step:
        if self.filler[b]:
            self.filler[b] = False
            self.current[b] = self._reset(b)
            return Step(valid=False, obs=np.zeros_like(self.current[b]))
        if self.rng.random() < self.idle_rate:
            return Step(valid=False, obs=np.zeros_like(self.current[b]))
        following = np.concatenate([self.current[b][1:], self._frame()[None]])
        step = Step(
            valid=True,
            obs=self.current[b],
            action=int(self.rng.integers(1, 9)),
            reward=float(np.float32(self.rng.normal())),
            successor=following,
            episode=self.episode[b],
            chain=self.chain[b],
        )
        self.current[b] = following
        if self.rng.random() < self.life_rate:
            step.terminated = True
            self._new_episode(b)
            self.episode_id[b] += 1
            self.chain[b] = self._serial
        elif self.rng.random() < self.end_rate:
            step.terminated = bool(self.rng.random() < 0.5)
            step.truncated = not step.terminated or bool(self.rng.random() < 0.1)
            self.episode_id[b] += 1
            if self.late_reset:
                self.filler[b] = True
            else:
                self.current[b] = self._reset(b)
        return step

    def rollout(self, length: int) -> Rollout:
        """The next `length` rows, also kept in `rows`."""
        first = len(self.rows)
        for b in range(self.num_envs):
            if self.rng.random() < self.break_rate and first:
                self.filler[b] = False
                self.episode_id[b] += 1
                self.current[b] = self._reset(b)
        ids = np.zeros((length, self.num_envs), dtype=np.int64)
        for t in range(length):
            ids[t] = self.episode_id
            self.rows.append([self._step(b) for b in range(self.num_envs)])
        rows = self.rows[first:]
        shape = (length, self.num_envs)

        def column(name: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor([[getattr(s, name) for s in row] for row in rows], dtype=dtype)

        def images(name: str, only_ended: bool) -> torch.Tensor:
            blank = np.zeros_like(self.current[0])
            return torch.from_numpy(
                np.array(
                    [
                        [
                            blank
                            if only_ended and not (s.terminated or s.truncated)
                            else getattr(s, name)
                            for s in row
                        ]
                        for row in rows
                    ]
                )
            )

        return Rollout(
            steps=TensorDict(
                {
                    "obs": images("obs", False),
                    "action": column("action", torch.int64),
                    "reward": column("reward", torch.float32),
                    "terminated": column("terminated", torch.bool),
                    "truncated": column("truncated", torch.bool),
                    "valid": column("valid", torch.bool),
                    "final_obs": images("successor", True),
                    "env_id": torch.arange(self.num_envs).expand(shape),
                    "episode_id": torch.from_numpy(ids),
                    "bootstrap_value": torch.zeros(shape),
                    "log_prob": column("reward", torch.float32) * 2,
                },
                batch_size=list(shape),
            ),
            initial_state={
                "h": torch.stack(
                    [torch.full((self.num_envs,), float(first)), torch.arange(self.num_envs) * 1.0],
                    dim=1,
                )
            },
            last_obs=torch.from_numpy(np.array(self.current)),
        )

    def continues(self, t: int, b: int) -> bool:
        """Whether row t + 1 carries on where row t left off."""
        if t + 1 == len(self.rows):
            return False
        here, after = self.rows[t][b], self.rows[t + 1][b]
        ended = here.terminated or here.truncated
        return here.valid and after.valid and not ended and here.chain == after.chain

    def window(self, t: int, b: int, n: int, gamma: float) -> tuple[float, float, int, Array]:
        """Reward, discount, k and successor of the n-step window, by walking along it."""
        reward, k = 0.0, 0
        while True:
            step = self.rows[t + k][b]
            reward += gamma**k * step.reward
            k += 1
            if k == n or not self.continues(t + k - 1, b):
                break
        assert step.successor is not None
        return reward, 0.0 if step.terminated else gamma**k, k, step.successor

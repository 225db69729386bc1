"""What collectors produce, what replay gives, and what updates consume.

A rollout of T steps of B environments:

| symbol | shape | meaning |
|---|---|---|
| T, B | | rollout_length, num_envs; every tensor is time-major |
| obs | [T, B, ...] | what the policy saw before it acted |
| action | [T, B, ...] | what it did, in the action space's own structure |
| reward | [T, B] | reward of that action |
| terminated, truncated | [T, B] | Gymnasium's meaning, for that action |
| valid | [T, B] | true where the row is a real transition |
| final_obs | [T, B, ...] | the true successor where an episode ended, else zero |
| env_id, episode_id | [T, B] | which environment, which of its episodes |
| extras | [T, B, ...] | the policy's own outputs, such as log_prob and value |
| bootstrap_value | [T, B] | V(true successor) where truncated or (not ended) at t = T - 1 |
| initial_state | [B, ...] | the policy's recurrent state before t = 0 |
| last_obs | [B, ...] | the observation to act on after t = T - 1 |

Invalid rows are zero, never stale.

A batch of N transitions is a TensorDict [N]:

| key | shape | meaning |
|---|---|---|
| obs, action | [N, ...] | as in the rollout |
| reward | [N] | sum of gamma^k * reward over the window of num_steps rows |
| discount | [N] | gamma^num_steps, and 0 where the window ends in a termination |
| num_steps | [N] | rows in the window: n_step, fewer where the episode ends |
| next_obs | [N, ...] | the observation to bootstrap from, the true one at a truncation |
| index | [N] | to give priorities back with |
| weight | [N] | importance weight; 1 without prioritization |
"""

# tensordict ships no types for what indexing gives.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from redline.data.nested import NestedTensor, as_tensordict
from redline.errors import ConfigError
from redline.nested import map_leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """One finished episode of the real game: unclipped, unscaled, lives not counted as ends.

    Attributes:
        env_id: index of the environment, 0 .. num_envs - 1.
        episode_id: its number among those of that environment, from 0. One that was given up in
            the middle, as where workers were started anew, has a number, too.
        return_: sum of the environment's own rewards.
        length: number of env_steps.
        success: whether the environment's last info calls it one; None if it does not say.
        info: values of that info that the run logs, as far as it has them.
    """

    env_id: int
    episode_id: int
    return_: float
    length: int
    success: bool | None = None
    info: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Rollout:
    """T steps of B environments; the table in the module docstring names the parts.

    Attributes:
        steps: [T, B] TensorDict with obs, action, reward, terminated, truncated, valid,
            final_obs, env_id, episode_id, bootstrap_value and one entry per extra.
        initial_state: [B, ...] recurrent state before t = 0; empty for a policy without one.
        last_obs: [B, ...] observation after the last row.
        episodes: finished episodes, in the order in which they ended.
        version: number of the weights that acted.
        num_running: environments that still had an episode to finish after the last row: all
            of them, unless the number of episodes is limited.
    """

    steps: TensorDict
    initial_state: dict[str, Tensor]
    last_obs: NestedTensor
    episodes: Sequence[EpisodeRecord] = field(default_factory=list)
    version: int = 0
    num_running: int = 0

    @property
    def rollout_length(self) -> int:
        """T."""
        return self.steps.batch_size[0]

    @property
    def num_envs(self) -> int:
        """B."""
        return self.steps.batch_size[1]

    def __getitem__(self, key: str) -> Any:
        """The [T, B, ...] tensor (or TensorDict) called `key`."""
        return self.steps[key]

    @property
    def valid(self) -> Tensor:
        """[T, B] bool, true where the row is a real transition."""
        return self.steps["valid"]

    @property
    def done(self) -> Tensor:
        """[T, B] bool, terminated or truncated."""
        return self.steps["terminated"] | self.steps["truncated"]

    def num_valid(self) -> int:
        """Number of real transitions: what env_steps grows by. Waits for the device."""
        valid = self.valid
        if valid.is_cpu:  # counting takes an eighth of the time there
            return int(np.count_nonzero(valid.numpy()))
        return int(valid.sum())

    def select_envs(self, index: Tensor) -> Rollout:
        """The rollout of some of its environments, for minibatches of whole sequences.

        Args:
            index: [b] int64, which of the B environments, in this order.
        """
        return Rollout(
            steps=self.steps[:, index],
            initial_state={name: leaf[index] for name, leaf in self.initial_state.items()},
            last_obs=map_leaves(lambda leaf: leaf[index], self.last_obs),
            version=self.version,
        )

    def with_columns(self, **columns: NestedTensor) -> Rollout:
        """The same rollout with more entries, or others under the same names.

        Args:
            columns: name -> [T, B, ...], such as the advantages that an algorithm computes.
        """
        shape = (self.rollout_length, self.num_envs)
        # A shallow copy: the caller's rollout keeps its entries, and no tensor is copied.
        steps = self.steps.copy()
        for name, column in columns.items():
            steps.set(name, as_tensordict(column, shape))
        return replace(self, steps=steps)

    def minibatches(self, order: Tensor, num_minibatches: int) -> Iterator[Rollout]:
        """Equal parts, each made of some environments with all their steps.

        For minibatches of single transitions, `flatten` first: each row is then an
        environment of its own, with one step.

            rows = rollout.flatten("obs", "action", "log_prob", "advantage")
            for _ in range(num_epochs):
                order = torch.randperm(rows.num_envs, generator=generator)
                for part in rows.minibatches(order, num_minibatches):
                    output = policy.evaluate_rollout(part)

        Args:
            order: [B] int64 a permutation of the environments; part i takes the i-th of its
                `num_minibatches` equal pieces.
            num_minibatches: must divide B.

        Yields:
            Rollouts [T, B / num_minibatches]; single rows come without `last_obs`.

        Raises:
            ConfigError: if the parts would not be equal.
        """
        size, left_over = divmod(len(order), num_minibatches)
        if left_over or not size:
            raise ConfigError(
                f"num_minibatches={num_minibatches} does not divide the {len(order)} "
                f"environments (or rows) of the rollout, so parts would differ in size. Use a "
                f"divisor of {len(order)}."
            )
        if self.rollout_length > 1 or self.initial_state:
            # Sequences are gathered part by part, since a slice of environments out of
            # [T, B] would not be contiguous, and every operation on it slower.
            for index in order.split(size):
                yield self.select_envs(index)
            return
        # Rows are put in order all at once, and the parts are views: one large gather for
        # each entry takes less time than `num_minibatches` small ones.
        parts = map_leaves(lambda leaf: _shuffled(leaf, order, size), self.steps)
        for i in range(num_minibatches):
            rows = map_leaves(lambda leaf, i=i: leaf[i], parts)
            steps = as_tensordict(rows, (1, size))
            yield Rollout(steps=steps, initial_state={}, last_obs={}, version=self.version)

    def flatten(self, *keys: str) -> Rollout:
        """All T * B rows side by side, for minibatches of single transitions.

        Args:
            keys: the entries to keep; gathering the others would cost for nothing.

        Returns:
            A rollout of shape [1, T * B], a view of this one, with no state and no last_obs.
        """
        rows = self.rollout_length * self.num_envs
        return Rollout(
            steps=self.steps.select(*keys).reshape(1, rows),
            initial_state={},
            last_obs={},
            version=self.version,
        )

    def to(self, device: torch.device | str) -> Rollout:
        """The same rollout on `device` (itself if it is there already)."""
        return Rollout(
            steps=self.steps.to(device),
            initial_state={name: leaf.to(device) for name, leaf in self.initial_state.items()},
            last_obs=map_leaves(lambda leaf: leaf.to(device), self.last_obs),
            episodes=self.episodes,
            version=self.version,
            num_running=self.num_running,
        )


@dataclass(slots=True, kw_only=True)
class SequenceBatch:
    """N sequences of T' rows.

    Attributes:
        steps: [T', N] TensorDict with the entries of a transition batch (except index and
            weight), and terminated, truncated, valid, and reset: the recurrent state must
            be cleared before this row. Rows that are not valid are zero.
        initial_state: name -> [N, ...] recurrent state before the first row, already
            cleared if an episode began there.
        index: [N] int64, to give priorities back with.
        weight: [N] float32 importance weight.
    """

    steps: TensorDict
    initial_state: dict[str, Tensor]
    index: Tensor
    weight: Tensor

    def to(self, device: torch.device | str) -> SequenceBatch:
        """The same batch on `device`."""
        return SequenceBatch(
            steps=self.steps.to(device),
            initial_state={name: leaf.to(device) for name, leaf in self.initial_state.items()},
            index=self.index.to(device),
            weight=self.weight.to(device),
        )


def _shuffled(leaf: Tensor, order: Tensor, size: int) -> tuple[Tensor, ...]:
    """Rows [1, N, ...] in another order, as parts [1, size, ...] in the layout that they had.

    Images with the channels last in memory would come out of `index_select` with the
    channels first, and each convolution would have to convert them back.
    """
    rows = leaf.squeeze(0)
    if rows.dim() == 4 and rows.is_contiguous(memory_format=torch.channels_last):
        rows = rows.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)
    else:
        rows = rows.index_select(0, order)
    return rows.view(-1, 1, size, *rows.shape[1:]).unbind(0)


def masked_mean(value: Tensor, valid: Tensor) -> Tensor:
    """Mean over the rows where `valid`; NaN in the others does not leak in.

    Nor does it leak into the gradient of `value`, which is exactly 0 in the other rows. What
    made `value` must be finite there all the same: autograd multiplies that 0 by the
    derivatives of earlier operations, and 0 * inf is NaN. Mask before `exp`, not after it.

    Args:
        value: [...] any float.
        valid: [...] bool, same shape.

    Returns:
        [] the mean; 0 if no row is valid.
    """
    # Selected, not multiplied: 0 * NaN is NaN.
    selected = torch.where(valid, value, torch.zeros_like(value))
    return selected.sum() / valid.sum().clamp(min=1)


def masked_mean_std(value: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation over valid rows; (0, 0) if there are none."""
    # Before squaring, whose derivative at NaN would undo the mask in the backward pass.
    value = torch.where(valid, value, torch.zeros_like(value))
    mean = masked_mean(value, valid)
    variance = masked_mean((value - mean).square(), valid)
    return mean, variance.sqrt()

"""`DerivedDQN` in numpy and C, for perceptrons on a CPU; the formulas are there.

Of some hundred rows an update is twenty short operations, whose calls cost several times their
arithmetic: memory and views that can stay are made once for batches of one size.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.algos.dqn import DQN
from redline.data import Array
from redline.engines.cpu.array_mlp import ArrayPerceptron
from redline.engines.cpu.mlp_gradients import Gradients, Perceptron

_FEW = 16  # actions


class ArrayDQN:
    """Two perceptrons, online and target.

    Args:
        algorithm: owns the highest priority.
        online: the network that learns.
        target: the target network.
        gradients: of the online one.
    """

    def __init__(
        self, algorithm: DQN, online: Perceptron, target: Perceptron, gradients: Gradients
    ) -> None:
        self._algorithm, config = algorithm, algorithm.config
        self._double_q, self._limit = config.double_q, config.huber_threshold
        self._max_norm, self._gradients = config.max_grad_norm, gradients
        self._flat_gradients = gradients.flat.numpy()
        self._highest_priority = algorithm.highest_priority.numpy()
        self._online, self._target = ArrayPerceptron(online), ArrayPerceptron(target)
        self._room: _Room | None = None
        self._seen: tuple[Tensor, ...] = ()
        self._addresses: list[int] = []
        self._arrays: list[Array] = []

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def learn(self, *batch: Tensor) -> dict[str, Any]:
        """As `DerivedDQN._learn`, but the highest priority is kept too.

        Metrics are numbers: to make tensors of them would take as long as a third of the rest.
        """
        size, means = self._differentiate(*self._views(batch))
        loss, q_mean, target_mean = means.tolist()
        priority = torch.from_numpy(size)
        # So put that a priority that is not a number is kept as well.
        if not size.max() <= self._highest_priority:
            self._algorithm.note_priority(priority)
        return {
            "loss": loss,
            "q_mean": q_mean,
            "target_mean": target_mean,
            "grad_norm": self._clip(),
            "priority": priority,
        }

    def _clip(self) -> float:
        """Clip the gradients; their norm before."""
        if self._max_norm > 0:
            return float(self._gradients.clip(self._max_norm).numpy())
        flat = self._flat_gradients
        return math.sqrt(flat.dot(flat))

    def _views(self, tensors: tuple[Tensor, ...]) -> list[Array]:
        """The tensors of a batch as arrays.

        A replay writes its batches over one another: they are the tensors of last time, then,
        unless somebody moved one, as `share_memory_` does.
        """
        addresses = [tensor.data_ptr() for tensor in tensors]
        if addresses != self._addresses or not all(map(operator.is_, tensors, self._seen)):
            self._seen, self._addresses = tensors, addresses
            self._arrays = [tensor.numpy() for tensor in tensors]
        return self._arrays

    def _differentiate(
        self,
        obs: Array,
        next_obs: Array,
        action: Array,
        reward: Array,
        discount: Array,
        weight: Array,
    ) -> tuple[Array, Array]:
        """Write the gradients; |error| [N], and the means of loss, Q and target [3]."""
        room = self._room
        if room is None or len(room.rows) != len(action):
            room = self._room = _Room(len(action), self._online, self._target)
        value = self._next_value(next_obs, room)
        value *= discount
        value += reward
        kept = self._online.forward(obs, room.online)
        # Refuses an action that is none, which taking by `clip` would not.
        taken = np.ravel_multi_index((room.rows, action), room.grad.shape)
        chosen = room.online_entries.take(taken, out=room.chosen, mode="clip")
        error = value - chosen
        size = np.abs(error)
        limit = self._limit
        if limit is None:
            weighted = weight * error
            room.sums[0] = 0.5 * weighted.dot(error)
        else:
            weighted = weight * np.clip(error, -limit, limit)
            small = np.minimum(size, np.float32(limit))
            room.sums[0] = weight.dot(small * (size - np.float32(0.5) * small))
        weighted *= -room.share
        room.grad.fill(0.0)
        room.grad_entries[taken] = weighted
        self._online.backward(kept, room.grad)
        np.add.reduce(room.chosen_and_value, 1, out=room.sums[1:])
        return size, room.sums * room.share

    def _next_value(self, next_obs: Array, room: _Room) -> Array:
        """[N] the target network's values of the best actions, in memory of the room."""
        self._target.forward(next_obs, room.target)
        if self._double_q:
            best = self._online.forward(next_obs, room.online)[-1].argmax(1)
            best += room.starts
            return room.target_entries.take(best, out=room.value, mode="clip")
        if len(room.target_columns) > _FEW:
            return room.target[-1].max(1, out=room.value)
        # Column by column, which for a few of them takes a fifth of the time.
        np.copyto(room.value, room.target_columns[0])
        for column in room.target_columns[1:]:
            np.maximum(room.value, column, out=room.value)
        return room.value


class _Room:
    """Memory for the updates of N rows, and views of it.

    Args:
        count: N.
        online: the network that learns.
        target: the target network.
    """

    def __init__(self, count: int, online: ArrayPerceptron, target: ArrayPerceptron) -> None:
        self.online = online.room(count)
        self.target = target.room(count, like=self.online)  # of it only the values are kept
        outputs, values = self.online[-1], self.target[-1]
        self.grad = np.zeros_like(outputs)  # [N, A] of the loss with respect to Q(s, .)
        self.online_entries, self.target_entries = outputs.reshape(-1), values.reshape(-1)
        self.grad_entries = self.grad.reshape(-1)
        self.target_columns = list(values.T)
        self.rows = np.arange(count)
        self.starts = self.rows * outputs.shape[1]  # of each row among the entries
        self.chosen_and_value = np.empty((2, count), np.float32)
        self.chosen, self.value = self.chosen_and_value
        self.sums = np.empty(3, np.float32)  # of loss, Q and target
        self.share = np.float32(1.0 / count)

"""DQN's update with gradients derived by hand; the loss is in `algos/dqn.py`.

With e = y - Q(s, a) of N rows, importance weights w and the Huber threshold k:

    dL/dQ(s, a) = -w * clip(e, -k, k) / N,   and 0 for the other actions

With some hundred rows an update is twenty short operations, whose calls cost several times their
arithmetic: memory and views that can stay are made once for batches of one size.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.algos.dqn import DQN
from redline.algos.q_learning import TargetNetwork
from redline.data import Array
from redline.engines.cpu.known_parts import (
    NotServedError,
    known_q_policy,
    require_optimizer,
    require_parameters,
    require_type,
)
from redline.engines.cpu.mlp import MLP, require_quick
from redline.engines.cpu.parameters import Gradients, OptimizerStep, TargetMove

_FEW_ACTIONS = 16


class DQNUpdate:
    """In place of `DQN.update`.

    Args:
        algorithm: owns parameters, optimizer and counts, which are changed in place.


    Raises:
        NotServedError: if a part is not known.
    """

    def __init__(self, algorithm: DQN) -> None:
        policy, target = algorithm.policy, algorithm.target_policy
        config = algorithm.config
        if config.value_distribution != "none":
            raise NotServedError(
                f"returns are learned as a {config.value_distribution} distribution"
            )
        self._online = known_q_policy(policy)
        known_target = known_q_policy(target, "target_policy")
        require_type(algorithm.target_network, TargetNetwork, "target_network")
        require_parameters({"policy": policy})
        require_parameters({"target_policy": target}, trainable=False)
        require_optimizer(algorithm.optimizer, [policy], "optimizer")
        require_quick([self._online.chain], config.batch_size)
        self._algorithm = algorithm
        self._double_q, self._limit = config.double_q, config.huber_threshold
        self._gradients = Gradients(algorithm.optimizer.parameters)
        self._step = OptimizerStep(algorithm.optimizer, self._gradients.views)
        self._online_mlp = MLP(self._online.chain, self._gradients)
        self._target_mlp = MLP(known_target.chain)
        self._highest_priority = algorithm.highest_priority.numpy()
        # Copying it whole, and what is no parameter, are the target network's own affair.
        self._move = algorithm.target_network.move
        if config.tau < 1.0 and next(policy.buffers(), None) is None:
            self._move = TargetMove([target], [policy], config.tau)
        self._memory: _Memory | None = None
        self._seen: tuple[Tensor, ...] = ()
        self._addresses: list[int] = []
        self._arrays: list[Array] = []

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def __call__(self, batch: Any) -> dict[str, Any]:
        """As `DQN.update`, but that metrics are numbers.

        To make tensors of them would take as long as a third of the rest.
        """
        algorithm = self._algorithm
        algorithm.updates += 1
        columns = (batch[name] for name in ("action", "reward", "discount", "weight"))
        views = self._views(
            (self._encoded(batch["obs"]), self._encoded(batch["next_obs"]), *columns)
        )
        size, means = self._differentiate(*views)
        loss, q_mean, target_mean = means.tolist()
        norm = self._gradients.clip(algorithm.config.max_grad_norm)
        self._step()
        if algorithm.target_network.is_due(algorithm.updates):
            self._move()
        priority = torch.from_numpy(size)
        # Written this way, a priority that is not a number is kept as well.
        if not size.max() <= self._highest_priority:
            algorithm.note_priority(priority)
        return {
            "loss": loss,
            "q_mean": q_mean,
            "target_mean": target_mean,
            "grad_norm": norm,
            "priority": priority,
        }

    def _encoded(self, obs: Any) -> Tensor:
        """[N, F] float32 features."""
        if self._online.is_identity and obs.dtype == torch.float32:
            return obs
        return self._online.encoder(obs)

    def _views(self, tensors: tuple[Tensor, ...]) -> list[Array]:
        """The tensors of a batch as arrays.

        A replay writes its batches over one another, so they usually are the tensors of last time,
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
        memory = self._memory
        if memory is None or len(memory.rows) != len(action):
            memory = self._memory = _Memory(len(action), self._online_mlp, self._target_mlp)
        value = self._next_value(next_obs, memory)
        value *= discount
        value += reward
        tape = self._online_mlp.forward(obs, memory.online)
        # Refuses an action that does not exist, which taking by `clip` would not.
        taken = np.ravel_multi_index((memory.rows, action), memory.grad.shape)
        chosen = memory.online_entries.take(taken, out=memory.chosen, mode="clip")
        error = value - chosen
        size = np.abs(error)
        limit = self._limit
        if limit is None:
            weighted = weight * error
            memory.sums[0] = 0.5 * weighted.dot(error)
        else:
            weighted = weight * np.clip(error, -limit, limit)
            small = np.minimum(size, np.float32(limit))
            memory.sums[0] = weight.dot(small * (size - np.float32(0.5) * small))
        weighted *= -memory.share
        memory.grad.fill(0.0)
        memory.grad_entries[taken] = weighted
        self._online_mlp.backward(tape, memory.grad)
        np.add.reduce(memory.chosen_and_value, 1, out=memory.sums[1:])
        return size, memory.sums * memory.share

    def _next_value(self, next_obs: Array, memory: _Memory) -> Array:
        """[N] the target network's values of the best actions; overwritten by the next call."""
        self._target_mlp.forward(next_obs, memory.target)
        if self._double_q:
            best = self._online_mlp.forward(next_obs, memory.online)[-1].argmax(1)
            best += memory.starts
            return memory.target_entries.take(best, out=memory.value, mode="clip")
        if len(memory.target_columns) > _FEW_ACTIONS:
            return memory.target[-1].max(1, out=memory.value)
        # Column by column, which for a few of them takes a fifth of the time.
        np.copyto(memory.value, memory.target_columns[0])
        for column in memory.target_columns[1:]:
            np.maximum(memory.value, column, out=memory.value)
        return memory.value


class _Memory:
    """Memory for updates of N rows, and views of it.

    Args:
        count: N.
        online: the network that learns.
        target: the target network.
    """

    def __init__(self, count: int, online: MLP, target: MLP) -> None:
        self.online = online.workspace(count)
        self.target = target.workspace(count, share=self.online)  # only the values are kept
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

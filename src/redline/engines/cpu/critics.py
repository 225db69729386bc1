"""What SAC, TD3 and DDPG share: the inputs of their networks, the actor's and the critic's step.

Beside its matrix products such an update is some sixty short operations on a few numbers per row,
whose calls through torch cost several times their arithmetic. Everything that networks read and
write stays in one place for batches of one size.

The critic's loss is that of `algos/critics.py`; its gradient in row n is w_n (Q_e - y)_n / N for
each member e, with importance weight w and target y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.data import Array
from redline.engines.cpu.known_parts import KnownActor, KnownCritic
from redline.engines.cpu.mlp import MLP
from redline.engines.cpu.parameters import Gradients, OptimizerStep


class Inputs:
    """Features of N observations with actions beside them: what critics see.

    Args:
        actor: of the policy.
        critic: any of the critics.
        action_size: k.
        rows: N.

    Attributes:
        both: [N, F + k] features and actions.
        action: [N, k] of them.
    """

    def __init__(self, actor: KnownActor, critic: KnownCritic, action_size: int, rows: int) -> None:
        width = critic.members[0].layers[0].weight.shape[0]
        self.both = np.empty((rows, width), np.float32)
        self._features, self.action = self.both[:, :-action_size], self.both[:, -action_size:]
        self._are_alike = actor.is_vector and critic.is_vector

    def take(self, obs: Any, critic: KnownCritic) -> None:
        """Write what a critic sees of observations."""
        # Encoders that only convert the dtype need no call: writing converts as well.
        seen = obs if self._are_alike else critic.critic.encode(obs)
        self._features[:] = seen.numpy().reshape(self._features.shape)

    def of_actor(self, obs: Any, actor: KnownActor) -> Array:
        """[N, F'] what an actor sees of the observations taken last."""
        return self._features if self._are_alike else actor.encoder(obs).numpy()


class ActorNetwork:
    """An actor's network for batches of N rows.

    Args:
        actor: its parts.
        rows: N.
        gradients: of its parameters; None for one that does not learn.
        share: workspace of a network that is not used between `forward` and `backward` of this one.
    """

    def __init__(
        self,
        actor: KnownActor,
        rows: int,
        gradients: Gradients | None = None,
        share: list[Array] | None = None,
    ) -> None:
        self._mlp = MLP(actor.chain, gradients)
        self._workspace = self._mlp.workspace(rows, share)

    def forward(self, x: Array) -> Array:
        """[N, out] what actions are made of; overwritten by the next call."""
        self._tape = self._mlp.forward(x, self._workspace)
        return self._tape[-1]

    def backward(self, grad: Array) -> None:
        """Write gradients, given that [N, out] of what the last `forward` gave."""
        self._mlp.backward(self._tape, grad)


class CriticNetworks:
    """A critic's members for batches of N rows.

    Args:
        critic: its parts.
        rows: N.
        gradients: of its parameters; None for a target.
        share: as for `ActorNetwork`. All members use it, so `action_gradient` must not be asked.

    Attributes:
        workspace: that of the first member.
    """

    def __init__(
        self,
        critic: KnownCritic,
        rows: int,
        gradients: Gradients | None = None,
        share: list[Array] | None = None,
    ) -> None:
        self._critic = critic
        self._members = [MLP(member, gradients) for member in critic.members]
        self._values = np.empty((len(self._members), rows, 1), np.float32)
        # For `values`, after which every member's gradient may be asked: one workspace for each.
        self._workspaces = [
            [*member.workspace(rows, share)[:-1], value]
            for member, value in zip(self._members, self._values, strict=True)
        ]
        self.workspace = self._workspaces[0]
        # For `learn`, where members take turns: one for all of them.
        self._shared = [
            [*member.workspace(rows, self.workspace)[:-1], value]
            for member, value in zip(self._members, self._values, strict=True)
        ]
        self._errors = np.empty((len(self._members), rows), np.float32)

    def values(self, inputs: Array, members: slice = slice(None)) -> Array:
        """Q [E, N] of the members for [N, F + k]; overwritten by the next call."""
        self._asked = self._members[members]
        self._tapes = [
            member.forward(inputs, workspace)
            for member, workspace in zip(self._asked, self._workspaces[members], strict=True)
        ]
        return self._values[members, :, 0]

    def action_gradient(self, grads: Array, size: int) -> Array:
        """[N, size] the gradient of the action, summed over members.

        Args:
            grads: [E, N] those of what the last call of `values` gave.
            size: k.
        """
        total: Any = None
        for member, tape, grad in zip(self._asked, self._tapes, grads, strict=True):
            part = member.input_gradient(tape, grad[:, None], size)
            total = part if total is None else np.add(total, part, out=total)
        return total

    def learn(
        self, batch: Any, inputs: Inputs, next_value: Array, step: OptimizerStep
    ) -> dict[str, Tensor]:
        """One step towards y = R + discount * V(s').

        Args:
            batch: [N] transitions; their observations and actions are left in `inputs`.
            inputs: where critics see them.
            next_value: [N] V(s'), overwritten.
            step: of the critic's optimizer.

        Returns:
            "critic_loss" [], "q_value" [], and "priority" [N], the mean over members of |Q - y|.
        """
        target = next_value
        target *= batch["discount"].numpy()
        target += batch["reward"].numpy()
        inputs.take(batch["obs"], self._critic)
        inputs.action[:] = batch["action"].numpy().reshape(inputs.action.shape)
        count, errors = np.float32(len(target)), self._errors
        share = batch["weight"].numpy() / count
        # Forward and backward member by member: what one of them keeps stays in the cache.
        for member, workspace, error in zip(self._members, self._shared, errors, strict=True):
            tape = member.forward(inputs.both, workspace)
            np.subtract(tape[-1][:, 0], target, out=error)
            member.backward(tape, (share * error)[:, None])
        step()
        loss = np.float32(0.5) * share.dot(np.add.reduce(errors * errors, 0))
        q_value = (np.add.reduce(errors, None) / len(errors) + np.add.reduce(target)) / count
        priority = np.add.reduce(np.abs(errors), 0)
        priority /= len(errors)
        metrics = as_metrics(critic_loss=loss, q_value=q_value)
        return metrics | {"priority": torch.from_numpy(priority)}


def as_metrics(**values: Any) -> dict[str, Tensor]:
    """Name -> [] of each number."""
    numbers = torch.from_numpy(np.array(list(values.values()), np.float32))
    return dict(zip(values, numbers.unbind(), strict=True))

"""The networks of DDPG, TD3 and SAC in numpy or C, for perceptrons on a CPU.

The formulas are those of `networks`, `box_actors` and `sac` beside this file. Beside its matrix
products an update is some sixty short operations on a few numbers per row, whose calls through the
tensor library cost several times their arithmetic. What networks read and write stays where it is
for batches of one size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.algos.optimizers import Adam
from redline.data import Array
from redline.engines.cpu.array_mlp import ArrayPerceptron, suits_arrays
from redline.engines.cpu.mlp_gradients import Perceptron
from redline.engines.cpu.networks import DerivedActor, DerivedCritic
from redline.engines.cpu.torso_parts import is_vector


class InArrays:
    """A step in arrays, made anew when its memory would not do any more.

    Args:
        networks: all that it computes.
        make: from the number of a batch's rows.
    """

    def __init__(
        self, networks: Sequence[DerivedActor | DerivedCritic], make: Callable[[int], Any]
    ) -> None:
        self._networks, self._make = networks, make
        self._made: Any = None
        self._for: Any = None

    def step_for(self, rows: int) -> Any:
        """The step for batches of so many rows; None where the tensor library is quicker.

        Arrays do not follow parameters that are moved, as `share_memory_` does with all of a
        module: one of each network tells.
        """
        if torch.compiler.is_compiling():
            return None
        first = [_parts(network)[0].layers[0].weight for network in self._networks]
        present = rows, [weight.data_ptr() for weight in first]
        if present != self._for:
            self._made = self._make(rows) if _all_suit(self._networks, rows) else None
            self._for = present
        return self._made


def _all_suit(networks: Sequence[DerivedActor | DerivedCritic], rows: int) -> bool:
    return all(suits_arrays(part, rows) for network in networks for part in _parts(network))


def _parts(network: DerivedActor | DerivedCritic) -> list[Perceptron]:
    return network.members if isinstance(network, DerivedCritic) else [network.perceptron]


class Inputs:
    """What networks see of N observations, and actions beside it: inputs of the critics.

    Args:
        policy: whose observations they are.
        actor: of the policy.
        critic: any of the critics.
        rows: N.

    Attributes:
        both: [N, F + k] features and actions.
        action: [N, k] of them.
    """

    def __init__(self, policy: Any, actor: DerivedActor, critic: DerivedCritic, rows: int) -> None:
        size, width = policy.action_size, critic.members[0].layers[0].weight.shape[0]
        self.both = np.empty((rows, width), np.float32)
        self._features, self.action = self.both[:, :-size], self.both[:, -size:]
        self._are_alike = all(
            is_vector(each.encoder, policy.observation_space) for each in (actor, critic)
        )

    def take(self, obs: Any, critic: DerivedCritic) -> None:
        """Write what a critic sees of observations."""
        # As it is where encoders do nothing but to convert, which writing does as well.
        seen = obs if self._are_alike else critic.encode(obs)
        self._features[:] = seen.numpy().reshape(self._features.shape)

    def of_actor(self, obs: Any, actor: DerivedActor) -> Array:
        """[N, F'] what an actor sees of the observations taken last."""
        return self._features if self._are_alike else actor.encoder(obs).numpy()


class ArrayActor:
    """An actor's perceptron.

    Args:
        actor: the same in tensors; parameters and gradients are used where they lie.
        rows: N, of the batches.
        like: another's room, to be used when that one is not; then it cannot `learn` if the other
            is used in between.
    """

    def __init__(self, actor: DerivedActor, rows: int, like: list[Array] | None = None) -> None:
        self._perceptron, self._gradients = ArrayPerceptron(actor.perceptron), actor.gradients
        self._room = self._perceptron.room(rows, like)

    def forward(self, x: Array) -> Array:
        """[N, out] what actions are made of."""
        self._tape = self._perceptron.forward(x, self._room)
        return self._tape[-1]

    def learn(self, grad: Array, optimizer: Adam) -> None:
        """One step, given the gradient [N, out] of what the last `forward` gave."""
        self._perceptron.backward(self._tape, grad)
        optimizer.step(self._gradients)


class ArrayCritic:
    """A critic's members.

    Args:
        critic: the same in tensors; parameters and gradients are used where they lie.
        rows: N, of the batches.
        like: another's room, for all members, which then cannot be asked for gradients of actions.
            It must not be in use.

    Attributes:
        room: that of the first member.
    """

    def __init__(self, critic: DerivedCritic, rows: int, like: list[Array] | None = None) -> None:
        self._critic = critic
        self._members = [ArrayPerceptron(member) for member in critic.members]
        self._values = np.empty((len(self._members), rows, 1), np.float32)
        self._rooms = [
            [*member.room(rows, like)[:-1], value]
            for member, value in zip(self._members, self._values, strict=True)
        ]
        self._alone = [
            [*member.room(rows, self._rooms[0])[:-1], room[-1]]
            for member, room in zip(self._members, self._rooms, strict=True)
        ]
        self.room = self._rooms[0]
        self._errors = np.empty((len(self._members), rows), np.float32)

    def values(self, inputs: Array, members: slice = slice(None)) -> Array:
        """Q [E, N] of the members for [features, action] [N, F + k]; overwritten by the next."""
        self._asked = self._members[members]
        self._tapes = [
            member.forward(inputs, room)
            for member, room in zip(self._asked, self._rooms[members], strict=True)
        ]
        return self._values[members, :, 0]

    def learn(
        self, batch: Any, inputs: Inputs, next_value: Array, optimizer: Adam
    ) -> dict[str, Tensor]:
        """One step towards R + discount * V(s'); see `bootstrapped` and `DerivedCritic.learn`.

        Args:
            batch: [N] transitions; what was seen and done in them is left in `inputs`.
            inputs: where critics see it.
            next_value: [N] V(s'), overwritten.
            optimizer: of the critic.

        Returns:
            The critic's metrics and "priority" [N].
        """
        next_value *= batch["discount"].numpy()
        next_value += batch["reward"].numpy()
        inputs.take(batch["obs"], self._critic)
        inputs.action[:] = batch["action"].numpy().reshape(inputs.action.shape)
        loss, q_value, priority = self._step(
            inputs.both, next_value, batch["weight"].numpy(), optimizer
        )
        metrics = as_metrics(critic_loss=loss, q_value=q_value)
        return metrics | {"priority": torch.from_numpy(priority)}

    def _step(
        self, inputs: Array, target: Array, weight: Array, optimizer: Adam
    ) -> tuple[Any, Any, Array]:
        count = np.float32(len(target))
        share, errors = weight / count, self._errors
        # One after the other: what a member keeps stays in the cache.
        for member, room, error in zip(self._members, self._alone, errors, strict=True):
            tape = member.forward(inputs, room)
            np.subtract(tape[-1][:, 0], target, out=error)
            member.backward(tape, (share * error)[:, None])
        optimizer.step(self._critic.gradients)
        loss = np.float32(0.5) * share.dot(np.add.reduce(errors * errors, 0))
        q_value = (np.add.reduce(errors, None) / len(errors) + np.add.reduce(target)) / count
        priority = np.add.reduce(np.abs(errors), 0)
        priority /= len(errors)
        return loss, q_value, priority

    def action_gradient(self, grads: Array, size: int) -> Array:
        """[N, size] the gradient of the action, summed over members.

        Args:
            grads: [E, N] those of what `values` gave, the last thing that was asked.
            size: k.
        """
        total: Any = None
        for member, tape, grad in zip(self._asked, self._tapes, grads, strict=True):
            part = member.input_gradient(tape, grad[:, None], size)
            total = part if total is None else np.add(total, part, out=total)
        return total


def as_metrics(**values: Any) -> dict[str, Tensor]:
    """Name -> [] of each number."""
    numbers = torch.from_numpy(np.array(list(values.values()), np.float32))
    return dict(zip(values, numbers.unbind(), strict=True))

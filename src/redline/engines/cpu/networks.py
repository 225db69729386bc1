"""The networks of DDPG, TD3 and SAC as perceptrons, where they are plain ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from redline.algos.critics import Critic
from redline.algos.optimizers import Adam
from redline.engines.cpu.mlp_gradients import (
    Gradients,
    Perceptron,
    perceptron_of,
    perceptrons_of,
)
from redline.engines.cpu.torso_parts import is_fixed, split_torso
from redline.policies.actors import Actor


class DerivedActor:
    """An actor's encoder and perceptron.

    Args:
        encoder: observations to features, which have no parameters.
        perceptron: from there to what an action is made of.
        gradients: of the parameters, in their order.
    """

    def __init__(self, encoder: nn.Module, perceptron: Perceptron, gradients: list[Tensor]) -> None:
        self.encoder, self.perceptron, self.gradients = encoder, perceptron, gradients

    @classmethod
    def of(cls, actor: Actor, optimizer: Adam | None = None) -> DerivedActor | None:
        """None if it is not a plain perceptron behind an encoder without parameters."""
        encoder, body = split_torso(actor.torso)
        if actor.has_mask or not is_fixed(encoder):
            return None
        grads = Gradients(optimizer.parameters) if optimizer else None
        perceptron = perceptron_of([*body, actor.head], grads)
        if perceptron is None:
            return None
        return cls(encoder, perceptron, grads.views if grads else [])


class DerivedCritic:
    """A critic's encoder and its members.

    Args:
        critic: observations to features, which have no parameters, by its `encode`.
        members: one perceptron for each Q-function.
        gradients: of the parameters, in their order.
    """

    def __init__(self, critic: Critic, members: list[Perceptron], gradients: list[Tensor]) -> None:
        self.encode, self.encoder = critic.encode, critic.encoder
        self.members, self.gradients = members, gradients

    @classmethod
    def of(cls, critic: Critic, optimizer: Adam | None = None) -> DerivedCritic | None:
        """None if it is not plain perceptrons behind an encoder without parameters."""
        if not is_fixed(critic.encoder):
            return None
        grads = Gradients(optimizer.parameters) if optimizer else None
        members = perceptrons_of(critic.ensemble, grads)
        if members is None:
            return None
        return cls(critic, members, grads.views if grads else [])

    def values(self, inputs: Tensor) -> list[Tensor]:
        """Q [N] of each member for [features, action] [N, F + k]."""
        return [member.forward(inputs)[-1].squeeze(1) for member in self.members]

    def learn(self, inputs: Tensor, target: Tensor, weight: Tensor, optimizer: Adam) -> Any:
        """One step on `critics.critic_loss`, whose gradient is w (Q_e - y) / N.

        Args:
            inputs: [N, F + k] features and actions.
            target: [N] y.
            weight: [N] importance weights.
            optimizer: of the critic.

        Returns:
            Loss [], mean Q [], and mean over the members of |Q - y| [N].
        """
        share = weight / len(weight)
        errors: list[Tensor] = []
        for member in self.members:  # one after the other: what a member keeps stays in the cache
            kept = member.forward(inputs)
            errors.append(kept[-1].squeeze(1) - target)
            member.backward(kept, (share * errors[-1]).unsqueeze(1), columns=None)
        optimizer.step(self.gradients)
        stacked = torch.stack(errors)
        loss = 0.5 * torch.dot(share, stacked.square().sum(0))
        return loss, stacked.mean() + target.mean(), stacked.abs().mean(0)

    def action_gradient(
        self, members: list[Perceptron], kept: list[list[Tensor]], grads: list[Tensor], size: int
    ) -> Tensor:
        """[N, k] gradient with respect to the action, summed over members.

        Args:
            members: those whose values count.
            kept: what their `forward` returned.
            grads: [N] gradient with respect to each one's value.
            size: k.
        """
        total: Tensor | None = None
        for member, tape, grad in zip(members, kept, grads, strict=True):
            part = member.backward(
                tape, grad.unsqueeze(1), weights=False, columns=slice(-size, None)
            )
            total = part if total is None else total + part  # type: ignore[operator]
        return total  # type: ignore[return-value]

"""What stands between torso and heads where a policy needs its past."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn


class Core(nn.Module, ABC):
    """A module with a state, that runs one step while acting and whole sequences while learning.

    The state is a mapping of names to [B, ...] float tensors, batch first, so that
    environments can be picked from it by index. All zeros is the state before the first step
    of an episode.

    Attributes:
        out_features: width of the output.
    """

    out_features: int

    @abstractmethod
    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        """Zeros [batch_size, ...] for each part of the state."""

    @abstractmethod
    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One step.

        Args:
            x: [B, F] input.
            state: name -> [B, ...] before the step.

        Returns:
            [B, out_features] output, and the state after the step.
        """

    @abstractmethod
    def sequence(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """T steps, equal to as many calls of `step`.

        Args:
            x: [T, B, F] input.
            state: name -> [B, ...] before the first step.
            reset: [T, B] bool; where true the state is zeroed before that step.

        Returns:
            [T, B, out_features] outputs, and the state after the last step.
        """

"""Recurrent cores with state resets inside a sequence.

A core runs one step while acting and a whole sequence while learning, by the same
arithmetic. Its state is a mapping of names to [B, H], batch first, so that environments
can be picked from it by index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from difflib import get_close_matches
from typing import ClassVar

import torch
from torch import Tensor, nn

from redline.errors import ConfigError, UnknownNameError


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


class RecurrentCore(Core):
    """A recurrent layer of H units.

    Args:
        in_features: F, width of the input.
        size: H, number of units.

    Attributes:
        state_names: names of the state's parts, in a fixed order.
        out_features: H.
    """

    state_names: ClassVar[tuple[str, ...]]
    num_gates: ClassVar[int]

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__()
        if in_features < 1 or size < 1:
            raise ConfigError(
                f"a recurrent core of size {size} on {in_features} inputs is empty. "
                f"Give at least 1 of each."
            )
        self.in_features = in_features
        self.out_features = size
        self.input_weight = nn.Parameter(torch.empty(self.num_gates * size, in_features))
        self.hidden_weight = nn.Parameter(torch.empty(self.num_gates * size, size))
        self.bias = nn.Parameter(torch.zeros(self.num_gates * size))
        # Gate by gate: a stack of gates that is orthogonal as a whole would shrink each.
        for weight in (self.input_weight, self.hidden_weight):
            for gate in weight.detach().chunk(self.num_gates):
                nn.init.orthogonal_(gate)

    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        """Zeros [batch_size, H] for each part of the state."""
        return {
            name: self.hidden_weight.new_zeros(batch_size, self.out_features)
            for name in self.state_names
        }

    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One step.

        Args:
            x: [B, F] input.
            state: name -> [B, H] before the step.

        Returns:
            [B, H] output, and the state after the step.
        """
        parts = self._cell(self._project(x), tuple(state[name] for name in self.state_names))
        return parts[0], dict(zip(self.state_names, parts, strict=True))

    def sequence(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """T steps, the input's projection computed for all of them at once.

        Args:
            x: [T, B, F] input.
            state: name -> [B, H] before the first step.
            reset: [T, B] bool; where true the state is zeroed before that step.

        Returns:
            [T, B, H] outputs, and the state after the last step.
        """
        # One large product for all steps; only the recurrent one has to wait for its turn.
        projected = self._project(x)
        parts = tuple(state[name] for name in self.state_names)
        outputs: list[Tensor] = []
        for projected_t, reset_t in zip(
            projected.unbind(), reset.unsqueeze(-1).unbind(), strict=True
        ):
            # Filled, not multiplied: 0 * NaN would carry a bad state into the next episode.
            parts = self._cell(projected_t, tuple(p.masked_fill(reset_t, 0.0) for p in parts))
            outputs.append(parts[0])
        return torch.stack(outputs), dict(zip(self.state_names, parts, strict=True))

    def states(self, x: Tensor, state: dict[str, Tensor], reset: Tensor) -> dict[str, Tensor]:
        """As `sequence`, but every state is kept, so that a step can be taken from any of them.

        Args:
            x: [T, B, F] input.
            state: name -> [B, H] before the first step.
            reset: [T, B] bool; where true the state is zeroed before that step.

        Returns:
            name -> [T, B, H] after each step; the first part is the output.
        """
        parts = tuple(state[name] for name in self.state_names)
        steps: list[tuple[Tensor, ...]] = []
        for projected_t, reset_t in zip(
            self._project(x).unbind(), reset.unsqueeze(-1).unbind(), strict=True
        ):
            parts = self._cell(projected_t, tuple(p.masked_fill(reset_t, 0.0) for p in parts))
            steps.append(parts)
        stacked = (torch.stack(part) for part in zip(*steps, strict=True))
        return dict(zip(self.state_names, stacked, strict=True))

    def _project(self, x: Tensor) -> Tensor:
        """[..., F] -> [..., gates * H]."""
        return nn.functional.linear(x, self.input_weight, self.bias)

    @abstractmethod
    def _cell(self, projected: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """[B, gates * H] projected input and the state's parts to the new parts, output first."""


class LSTMCore(RecurrentCore):
    """Long short-term memory with forget gates.

    Hochreiter & Schmidhuber 1997; Gers et al. 2000. With sigma the logistic function and
    [i, f, o, g] = W x + U h + b:

        c' = sigma(f) * c + sigma(i) * tanh(g)
        h' = sigma(o) * tanh(c')
    """

    state_names = ("hidden", "cell")
    num_gates = 4

    def _cell(self, projected: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, cell = parts
        gates = torch.addmm(projected, hidden, self.hidden_weight.t())
        size = self.out_features
        # The three logistic gates lie side by side, so that one call serves them.
        input_, forget, output = gates[:, : 3 * size].sigmoid().chunk(3, dim=1)
        cell = torch.addcmul(forget * cell, input_, gates[:, 3 * size :].tanh())
        return output * cell.tanh(), cell


class GRUCore(RecurrentCore):
    """Gated recurrent unit, the variant whose reset gate acts after the matrix product.

    Cho et al. 2014, arXiv:1406.1078, in the form of cuDNN and `torch.nn.GRU`:

        r = sigma(W_r x + U_r h + b_r)
        z = sigma(W_z x + U_z h + b_z)
        n = tanh(W_n x + b_n + r * (U_n h + d_n))
        h' = (1 - z) * n + z * h
    """

    state_names = ("hidden",)
    num_gates = 3

    def __init__(self, in_features: int, size: int) -> None:
        super().__init__(in_features, size)
        self.candidate_bias = nn.Parameter(torch.zeros(size))

    def _cell(self, projected: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = parts
        size = self.out_features
        recurrent = torch.mm(hidden, self.hidden_weight.t())
        gates = projected[:, : 2 * size] + recurrent[:, : 2 * size]
        reset, update = gates.sigmoid().chunk(2, dim=1)
        candidate = recurrent[:, 2 * size :] + self.candidate_bias
        candidate = torch.addcmul(projected[:, 2 * size :], reset, candidate).tanh()
        return (torch.lerp(candidate, hidden, update),)


CORES: dict[str, type[RecurrentCore]] = {"lstm": LSTMCore, "gru": GRUCore}


def make_core(name: str, in_features: int, size: int) -> RecurrentCore:
    """The recurrent core called `name`.

    Raises:
        UnknownNameError: if there is none of that name.
        ConfigError: if a size is below 1.
    """
    if name not in CORES:
        close = get_close_matches(name, ("none", *CORES), n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownNameError(
            f"core={name!r} is not known.{hint} Use one of none, {', '.join(CORES)}."
        )
    return CORES[name](in_features, size)

"""A transformer over the last steps of an episode, as the core of a policy.

```
x -> embedding -> [ + attention(LayerNorm) -> + MLP(LayerNorm) ] x layers -> LayerNorm
```

Vaswani et al. 2017, arXiv:1706.03762, with the layer normalization before each part, which
Parisotto et al. 2020, arXiv:1910.06764, section 3.2, found to be what makes transformers
learn from rewards; learned biases per head and distance for the position, as in Raffel et
al. 2020, arXiv:1910.10683, section 2.1, so that a step is the same wherever its episode
stands.

Each layer attends to the step itself and the W - 1 steps before it in the same episode.
Through L layers a step sees L * (W - 1) + 1 inputs and nothing older.

Acting keeps the keys and values of the last W - 1 steps of every layer, and computes those of
the new step only. Learning computes a whole sequence at once from the same state, by the same
arithmetic; steps of earlier episodes are masked.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from redline.errors import ConfigError
from redline.models.mlp import HIDDEN_GAIN, orthogonal_
from redline.models.recurrent import Core

_ROWS_AT_ONCE = 128  # of a sequence: attention takes memory with the square of it
_EXPANSION = 2  # hidden units of the MLP per unit of the core
_RESIDUAL_GAIN = 0.1  # layers begin near the identity: acting begins as without a past


class _Layer(nn.Module):
    """One layer: attention over keys and values of the past, then an MLP."""

    def __init__(self, size: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(size)
        self.projection = orthogonal_(nn.Linear(size, 3 * size), 1.0)
        self.attention_out = orthogonal_(nn.Linear(size, size), _RESIDUAL_GAIN)
        self.distance_bias = nn.Parameter(torch.zeros(heads, window))
        self.perceptron_norm = nn.LayerNorm(size)  # of the MLP; a key in checkpoints
        self.hidden = orthogonal_(nn.Linear(size, _EXPANSION * size), HIDDEN_GAIN)
        self.hidden_out = orthogonal_(nn.Linear(_EXPANSION * size, size), _RESIDUAL_GAIN)

    def forward(
        self, x: Tensor, old_keys: Tensor, old_values: Tensor, distance: Tensor, allowed: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer over T steps.

        Args:
            x: [B, T, D].
            old_keys: [B, M, D] of the M steps before.
            old_values: [B, M, D].
            distance: [T, M + T] int64, steps from the key to the query, within the window.
            allowed: [B, T, M + T] bool, what a query may attend to.

        Returns:
            [B, T, D], and keys and values [B, M + T, D].
        """
        query, key, value = self.projection(self.attention_norm(x)).chunk(3, dim=-1)
        keys, values = torch.cat([old_keys, key], dim=1), torch.cat([old_values, value], dim=1)
        x = x + self.attention_out(self._attend(query, keys, values, distance, allowed))
        hidden = self.hidden(self.perceptron_norm(x)).relu()
        return x + self.hidden_out(hidden), keys, values

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, distance: Tensor, allowed: Tensor
    ) -> Tensor:
        query, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, keys, values)
        )
        scores = query @ keys.transpose(2, 3) * query.shape[-1] ** -0.5
        scores = scores + self.distance_bias[:, distance]
        weights = scores.masked_fill(~allowed.unsqueeze(1), -torch.inf).softmax(dim=-1)
        # 0 * NaN would carry a bad step into the next episode. In its own one it still tells:
        # its key is as bad as its value, and the scores show it.
        values = torch.where(values.isfinite(), values, 0.0)
        return (weights @ values).transpose(1, 2).flatten(2)


class TransformerCore(Core):
    """Attention over the last steps of an episode; the module docstring says how.

    Args:
        in_features: F, width of the input.
        size: D, width of every layer.
        window: W, steps that each layer attends to, the present one included; 2 or more.
        layers: L.
        heads: of attention in each layer; they divide D.

    Raises:
        ConfigError: if a number is out of range, or the heads do not divide the size.
    """

    def __init__(
        self, in_features: int, size: int, *, window: int = 32, layers: int = 1, heads: int = 4
    ) -> None:
        super().__init__()
        if min(in_features, size, layers, heads) < 1:
            raise ConfigError(
                f"a transformer of size {size} on {in_features} inputs with {layers} layers and "
                f"{heads} heads is empty. Give at least 1 of each."
            )
        if window < 2:
            raise ConfigError(
                f"core_window={window} shows a step nothing but itself. Use at least 2, or no core."
            )
        if size % heads:
            raise ConfigError(
                f"core_heads={heads} does not divide core_size={size}: each head gets an equal "
                f"part. Use a divisor of {size}."
            )
        self.in_features, self.out_features, self.window = in_features, size, window
        self.embedding = orthogonal_(nn.Linear(in_features, size), 1.0)
        self.layers = nn.ModuleList(_Layer(size, heads, window) for _ in range(layers))
        self.norm = nn.LayerNorm(size)

    def initial_state(self, batch_size: int) -> dict[str, Tensor]:
        """Zeros: keys and values [batch_size, L, W - 1, D], filled [batch_size, W - 1].

        `filled` is 1 where a step of the present episode is kept, the newest one last.
        """
        weight = self.embedding.weight
        past = (batch_size, len(self.layers), self.window - 1, self.out_features)
        return {
            "keys": weight.new_zeros(past),
            "values": weight.new_zeros(past),
            "filled": weight.new_zeros(batch_size, self.window - 1),
        }

    def step(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One step; see `Core.step`."""
        output, state = self._rows(x.unsqueeze(1), state, None)
        return output.squeeze(1), state

    def sequence(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """T steps in one pass, or in several if there are many; see `Core.sequence`."""
        outputs: list[Tensor] = []
        for rows, resets in zip(
            x.transpose(0, 1).split(_ROWS_AT_ONCE, dim=1),
            reset.t().split(_ROWS_AT_ONCE, dim=1),
            strict=True,
        ):
            output, state = self._rows(rows, state, resets)
            outputs.append(output)
        return torch.cat(outputs, dim=1).transpose(0, 1), state

    def _rows(
        self, x: Tensor, state: dict[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs [B, T, D] of inputs [B, T, F], and the state after them."""
        memory, length = self.window - 1, x.shape[1]
        # Rows of the sequence are numbered from 0, those kept in the state from -memory.
        row = torch.arange(length, device=x.device)
        key_row = torch.arange(-memory, length, device=x.device)
        distance = row.unsqueeze(1) - key_row
        near = (distance >= 0) & (distance <= memory)
        present = torch.cat([state["filled"] != 0.0, x.new_ones(x.shape[:2]) != 0.0], dim=1)
        allowed = near & present.unsqueeze(1)
        remembered = present
        if reset is not None:
            began = torch.where(reset, row, -memory).cummax(dim=1).values  # row of the last reset
            allowed = allowed & (key_row >= began.unsqueeze(2))
            remembered = remembered & (key_row >= began[:, -1:])

        keys: list[Tensor] = []
        values: list[Tensor] = []
        x = self.embedding(x)
        distance = distance.clamp(0, memory)
        for index, layer in enumerate(self.layers):
            x, key, value = layer(
                x, state["keys"][:, index], state["values"][:, index], distance, allowed
            )
            keys.append(key[:, -memory:])
            values.append(value[:, -memory:])
        remembered = remembered[:, -memory:]
        forgotten = ~remembered[:, None, :, None]
        return self.norm(x), {
            "keys": torch.stack(keys, dim=1).masked_fill(forgotten, 0.0),
            "values": torch.stack(values, dim=1).masked_fill(forgotten, 0.0),
            "filled": remembered.to(state["filled"].dtype),
        }

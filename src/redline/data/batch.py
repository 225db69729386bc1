"""What replay gives and off-policy updates consume.

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

from __future__ import annotations

from dataclasses import dataclass

from tensordict import TensorDict
from torch import Tensor


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

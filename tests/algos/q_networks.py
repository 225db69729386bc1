"""Q-networks whose values are read off the observation, so that targets can be worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from redline.models import QHead
from redline.policies import QPolicy


class Identity(nn.Module):
    """Features are the observation, times a weight of 1 that can be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, obs: Any) -> Tensor:
        """[N, F]."""
        return self.scale * (obs if isinstance(obs, Tensor) else obs["x"])


def linear_policy(head: QHead, weight: Tensor, *, masked: bool = False) -> QPolicy:
    """A policy whose outputs are `weight` [A * Z, F] times the observation [F]."""
    size = weight.shape[1]
    space: spaces.Space[Any] = spaces.Box(-np.inf, np.inf, (size,), np.float32)
    if masked:
        space = spaces.Dict({"x": space, "action_mask": spaces.MultiBinary(head.num_actions)})
    set_weight(head, weight)
    return QPolicy(space, spaces.Discrete(head.num_actions), torso=Identity(), head=head)


def set_weight(head: QHead, weight: Tensor) -> None:
    """Make the last layer of the only stream `weight`, without bias."""
    with torch.no_grad():
        head.advantage.layers[0].weight.copy_(weight)
        head.advantage.layers[0].bias.zero_()


def transitions(**fields: Any) -> TensorDict:
    """A batch with weights of 1 unless given."""
    count = len(fields["reward"])
    fields.setdefault("weight", torch.ones(count))
    return TensorDict(fields, batch_size=[count])

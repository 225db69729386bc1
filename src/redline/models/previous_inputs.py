"""A network whose features are joined by the action before and its reward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from redline.previous_inputs import ACTION, PLAIN, REWARD


class PreviousBesideFeatures(nn.Module):
    """Features of an observation, then its previous action and reward: the input of a core.

    Kapturowski et al. 2019 (R2D2), section 2.3: the recurrent layer takes the convolutional
    features with the action before, one-hot, and its reward.

    Args:
        torso: observations [N, ...] without the two -> features [N, F].

    Attributes:
        torso: as given.
    """

    def __init__(self, torso: nn.Module) -> None:
        super().__init__()
        self.torso = torso

    def forward(self, obs: Any) -> Tensor:
        """Encode, and put both beside.

        Args:
            obs: [N, ...] in the structure of `previous_inputs.with_previous`.

        Returns:
            [N, F + K + 1] float32.
        """
        parts: Any = {key: obs[key] for key in obs.keys()}  # noqa: SIM118 (a TensorDict's rows)
        previous = [parts.pop(ACTION), parts.pop(REWARD)]
        return torch.cat([self.torso(parts.get(PLAIN, parts)), *previous], dim=1)

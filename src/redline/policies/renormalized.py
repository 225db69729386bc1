"""The actor of CrossQ: SAC's, with batch renormalization."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from redline.data import NestedTensor
from redline.models.batch_renorm import RenormalizedMLP
from redline.policies.actors import SquashedGaussianActor
from redline.policies.masks import without_mask
from redline.policies.normalizer import ObservationNormalizer


class RenormalizedActor(SquashedGaussianActor):
    """A `SquashedGaussianActor` that acts by running statistics and learns by those of a batch.

    Args:
        observation_space: as for `SquashedGaussianActor`.
        action_space: as for `SquashedGaussianActor`.
        encoder: observations [N, ...] -> [N, F].
        body: from there to what the head sees.
        features: of the body's output.
        normalizer: as for `SquashedGaussianActor`.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        *,
        encoder: nn.Module,
        body: RenormalizedMLP,
        features: int,
        normalizer: ObservationNormalizer | None = None,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            torso=nn.Sequential(encoder, body),
            features=features,
            normalizer=normalizer,
        )

    def learning_sample(self, obs: NestedTensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """As `sample`, normalized by this batch, which the running statistics take in."""
        torso: Any = self.torso
        encoder, body = torso
        seen = without_mask(obs) if self.has_mask else obs
        return self._sampled(self._gaussian(self.head(body.learn(encoder(seen)))), noise)

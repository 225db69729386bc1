"""The policy of PPO, A2C, IMPALA and REINFORCE over arrays: two networks and a distribution."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from redline.data import Array, map_leaves
from redline.engines.cpu.distributions import CategoricalDistribution, GaussianDistribution
from redline.engines.cpu.known_parts import (
    known_actor_critic,
    require_optimizer,
    require_parameters,
)
from redline.engines.cpu.mlp import MLP, require_quick
from redline.engines.cpu.parameters import Gradients, OptimizerStep


class ActorCriticNetworks:
    """Evaluates actions and takes optimizer steps, on the memory of an algorithm's policy.

    Args:
        algorithm: with `policy` and `optimizer`.
        rows: of the batches.

    Attributes:
        gradients: of all parameters.
        step: changes the parameters by them.
        watched: one parameter, to see whether the policy has been moved.

    Raises:
        NotServedError: if a part is not known.
    """

    def __init__(self, algorithm: Any, rows: int) -> None:
        known = known_actor_critic(algorithm.policy)
        require_parameters({"policy": algorithm.policy})
        require_optimizer(algorithm.optimizer, [algorithm.policy], "optimizer")
        require_quick([known.actor.chain, known.critic.chain], rows)
        self._known = known
        self.gradients = Gradients(algorithm.optimizer.parameters)
        self.step = OptimizerStep(algorithm.optimizer, self.gradients.views)
        self._actor = MLP(known.actor.chain, self.gradients)
        self._critic = MLP(known.critic.chain, self.gradients)
        self._distribution: GaussianDistribution | CategoricalDistribution
        self._distribution = CategoricalDistribution()
        if known.log_std is not None:
            self._distribution = GaussianDistribution(
                known.log_std.detach().numpy(), self.gradients[known.log_std].numpy()
            )
        self.watched = [next(algorithm.policy.parameters())]

    def rows_of(self, obs: Any) -> Array:
        """[T * B, F] normalized and encoded observations, of [T, B, ...].

        Statistics do not move during an update, so that once serves all passes.
        """
        normalizer = self._known.policy.normalizer
        rows = map_leaves(lambda leaf: leaf.flatten(0, 1), obs)
        seen: Tensor = self._known.actor.encoder(rows if normalizer is None else normalizer(rows))
        return seen.numpy()

    def forward(self, x: Array, action: Array) -> tuple[Array, Array, Array]:
        """[N] log pi(a), entropy and value of actions [N, ...] at inputs [N, F]."""
        self._tapes = self._actor.forward(x), self._critic.forward(x)
        log_prob, entropy = self._distribution.evaluate(self._tapes[0][-1], action)
        return log_prob, entropy, self._tapes[1][-1][:, 0]

    def backward(self, log_prob: Array, entropy: Array, value: Array) -> None:
        """Write all gradients, given those [N] of the loss with respect to what `forward` gave."""
        self._actor.backward(self._tapes[0], self._distribution.gradient(log_prob, entropy))
        self._critic.backward(self._tapes[1], value[:, None])
        del self._tapes

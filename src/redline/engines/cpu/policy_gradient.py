"""The update of A2C, IMPALA and REINFORCE with gradients derived by hand.

The loss is in `algos/a2c.py`, the estimates are each algorithm's own. With row weights
w (1 / rows where valid, else 0), A the advantage and y the value target:

    dL/d log pi = -w A,    dL/dV = c_v w (V - y),    dL/dH = -c_e w
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from redline.algos.a2c import A2C
from redline.algos.algorithm import explained_variance, normalized
from redline.data import Array, Rollout, map_leaves
from redline.engines.cpu.critics import as_metrics
from redline.engines.cpu.distributions import CategoricalDistribution, GaussianDistribution
from redline.engines.cpu.known_parts import (
    known_actor_critic,
    require_optimizer,
    require_parameters,
)
from redline.engines.cpu.mlp import MLP, require_quick
from redline.engines.cpu.parameters import Gradients, OptimizerStep
from redline.policies.policy import ActionEvaluation


class PolicyGradientUpdate:
    """In place of `A2C.update`, which IMPALA and REINFORCE share.

    Args:
        algorithm: owns parameters, optimizer and counts, which are changed in place.


    Raises:
        NotServedError: if a part is not known.
    """

    def __init__(self, algorithm: A2C) -> None:
        rows = algorithm.config.num_envs * algorithm.config.rollout_length
        self._algorithm: Any = algorithm
        self._networks = ActorCriticNetworks(algorithm, rows)

    @np.errstate(all="ignore")  # a loss that diverges is reported as such, not by numpy
    def __call__(self, rollout: Rollout) -> dict[str, Tensor]:
        """As `A2C.update`."""
        algorithm, networks, valid = self._algorithm, self._networks, rollout["valid"]
        config = algorithm.config
        algorithm.updates += 1
        x = networks.rows_of(rollout["obs"])
        evaluated = networks.forward(x, rollout["action"].flatten(0, 1).numpy())
        log_probs, entropies, values = (
            torch.from_numpy(each).view(valid.shape) for each in evaluated
        )
        output = ActionEvaluation(log_probs, entropies, values, {})
        advantage, target, metrics = algorithm.estimate(rollout, output)
        variance = explained_variance(values, target, valid)
        if config.normalize_advantage:
            advantage = normalized(advantage, valid)
        # What stands in rows that are not valid must not reach a sum, not even times 0.
        is_valid = valid.flatten().numpy()
        log_prob, entropy, value = (np.where(is_valid, each, np.float32(0.0)) for each in evaluated)
        weight = is_valid / np.float32(max(is_valid.sum(), 1))
        gain = np.where(is_valid, weight * advantage.flatten().numpy(), np.float32(0.0))
        error = np.where(is_valid, value - target.flatten().numpy(), np.float32(0.0))
        value_grad = np.float32(config.value_coef) * weight * error
        entropy_grad = -np.float32(algorithm.entropy_coef.numpy()) * weight
        networks.backward(-gain, entropy_grad, value_grad)
        norm = networks.gradients.clip(config.max_grad_norm)
        networks.step()
        losses = as_metrics(
            policy_loss=-gain.dot(log_prob),
            value_loss=np.float32(0.5) * weight.dot(error * error),
            entropy=weight.dot(entropy),
            grad_norm=norm,
        )
        return losses | {"explained_variance": variance, **metrics}


class ActorCriticNetworks:
    """Evaluates actions and takes optimizer steps, on the memory of an algorithm's policy.

    Args:
        algorithm: with `policy` and `optimizer`.
        rows: of the batches.

    Attributes:
        gradients: of all parameters.
        step: changes the parameters by them.

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

"""Acting with one environment in C or numpy, on the memory of the policy.

For a single observation the calls of torch cost more than a small network's arithmetic: of
`Policy.act` with two layers of 256 units some 90 us are calls and 10 us arithmetic (AMD EPYC). What
is computed is the same, up to the order of rounding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from redline.data import Array
from redline.engines.cpu.distributions import gaussian_log_prob, log_softmax
from redline.engines.cpu.known_parts import (
    KnownActor,
    NotServedError,
    known_actor,
    known_actor_critic,
    known_q_policy,
    require_parameters,
)
from redline.engines.cpu.mlp import MLP
from redline.engines.watch import NetworksWatch
from redline.policies.actor_critic import ActorCritic
from redline.policies.actors import DeterministicActor, SquashedGaussianActor
from redline.policies.policy import Policy
from redline.policies.q_policy import QPolicy

_ROOT_HALF = 0.5**0.5


class RowActor(ABC):
    """Acts in place of a policy with one environment, one row of a rollout at a time.

    Attributes:
        is_rowwise: True: it has `act(t, obs, action)` in numpy, and `end`.
        known: the conditioning that it understands.
        watch: says whether the policy is still what this was made for.
    """

    watch: NetworksWatch

    is_rowwise, takes_arrays = True, False
    known: frozenset[str] = frozenset()

    def serves(self, conditioning: Mapping[str, Tensor] | None) -> bool:
        """Whether it understands this conditioning; else the policy itself must act."""
        return self.known.issuperset(conditioning or ())

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """Take what the next rollout is acted with, and the present statistics.

        Args:
            conditioning: name -> [1], in force for the whole rollout.
            noise: [T, 1, noise_size] float32; must not change before `end`.
        """
        self._conditions = {name: value.item() for name, value in (conditioning or {}).items()}
        self._noise = list(noise[:, 0])

    @abstractmethod
    def act(self, t: int, obs: Array, action: Array) -> None:
        """Choose the action of one row.

        Args:
            t: its number in the rollout.
            obs: [1, F] float32.
            action: [1, ...] to write the action to.
        """

    def end(self, obs: Array, action: Array, extras: Mapping[str, Array]) -> None:
        """Write the extras of the rollout that was begun; some policies have none.

        Args:
            obs: [t, 1, F] float32, all that was acted on.
            action: [t, 1, ...] what was done.
            extras: name -> [t, 1] to write to.
        """
        del obs, action, extras


class SquashedGaussianRowActor(RowActor):
    """For `SquashedGaussianActor`.

    Args:
        policy: owns the parameters.
    """

    known = frozenset(("random",))

    def __init__(self, policy: SquashedGaussianActor) -> None:
        self._mlp = _mlp_of(known_actor(policy, SquashedGaussianActor))
        self._policy, self._size = policy, policy.action_size
        self._outputs = np.empty(2 * self._size, np.float32)

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """See `RowActor`."""
        super().begin(conditioning, noise)
        self._range = self._policy.log_std_range

    def act(self, t: int, obs: Array, action: Array) -> None:
        """See `RowActor`."""
        into = action.reshape(-1)
        if self._conditions.get("random"):
            into[:] = _uniform(self._noise[t])
            return
        self._mlp.row(obs[0], self._outputs)
        mean, log_std = self._outputs[: self._size], self._outputs[self._size :]
        np.clip(log_std, *self._range, out=log_std)
        np.exp(log_std, out=log_std)
        log_std *= self._noise[t]
        log_std += mean
        np.tanh(log_std, out=into)


class DeterministicRowActor(RowActor):
    """For `DeterministicActor`.

    Args:
        policy: owns the parameters.
    """

    known = frozenset(("random", "noise_scale"))

    def __init__(self, policy: DeterministicActor) -> None:
        self._mlp = _mlp_of(known_actor(policy, DeterministicActor))
        self._outputs = np.empty(policy.action_size, np.float32)

    def act(self, t: int, obs: Array, action: Array) -> None:
        """See `RowActor`."""
        into = action.reshape(-1)
        if self._conditions.get("random"):
            into[:] = _uniform(self._noise[t])
            return
        self._mlp.row(obs[0], self._outputs)
        np.tanh(self._outputs, out=into)
        if "noise_scale" in self._conditions:
            into += self._noise[t] * np.float32(self._conditions["noise_scale"])
            np.clip(into, -1.0, 1.0, out=into)


class QRowActor(RowActor):
    """For `QPolicy` with one value per action.

    Which steps are random is looked up before the first of them, and what is only recorded is
    gathered after the last.

    Args:
        policy: owns the parameters.
    """

    known = frozenset(("epsilon",))

    def __init__(self, policy: QPolicy) -> None:
        self._mlp = _mlp_of(known_q_policy(policy))
        self._num_actions = policy.head.num_actions
        self._steps = np.arange(0)

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """See `RowActor`."""
        super().begin(conditioning, noise)
        if len(noise) != len(self._steps):
            self._steps = np.arange(len(noise))
        self._values = np.empty((len(noise), self._num_actions), np.float32)
        self._rows = list(self._values)
        self._random: list[int | None] = [None] * len(noise)
        if "epsilon" in self._conditions:
            chance, place = noise[:, 0, 0], noise[:, 0, 1] * np.float32(self._num_actions)
            for t in (chance < np.float32(self._conditions["epsilon"])).nonzero()[0].tolist():
                self._random[t] = min(int(place[t]), self._num_actions - 1)

    def act(self, t: int, obs: Array, action: Array) -> None:
        """See `RowActor`."""
        values = self._rows[t]
        self._mlp.row(obs[0], values)
        chosen = self._random[t]
        action[0] = values.argmax() if chosen is None else chosen

    def end(self, obs: Array, action: Array, extras: Mapping[str, Array]) -> None:
        """See `RowActor`."""
        values = self._values[: len(obs)]
        extras["q_taken"][:, 0] = values[self._steps[: len(obs)], action[:, 0]]
        np.maximum.reduce(values, 1, out=extras["q_max"][:, 0])


class ActorCriticRowActor(RowActor):
    """For `ActorCritic` with a Gaussian or categorical distribution.

    Values and log-probabilities do not affect what is done, and weights and statistics rest within
    a rollout: they are computed for all of its steps at once in the end.

    Args:
        policy: owns the parameters.
    """

    def __init__(self, policy: ActorCritic) -> None:
        known = known_actor_critic(policy)
        self._policy = policy
        self._mlp, self._critic = _mlp_of(known.actor), _mlp_of(known.critic)
        self._outputs = np.empty(self._mlp.widths[-1], np.float32)
        self._log_std = None if known.log_std is None else known.log_std.detach().numpy()

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """See `RowActor`."""
        super().begin(conditioning, noise)
        if self._log_std is not None:
            self._std = np.exp(self._log_std)
        self._moments = None
        if self._policy.normalizer is not None:
            moments: Any = self._policy.normalizer.moments[0]
            self._moments = [part.numpy().reshape(-1) for part in (moments.offset, moments.factor)]
            self._limit = np.float32(moments.limit.item())

    def _inputs(self, obs: Array) -> Array:
        """[..., F] normalized, if the policy does that."""
        if self._moments is None:
            return obs
        x = obs - self._moments[0]
        x *= self._moments[1]
        np.minimum(x, self._limit, out=x)
        return np.maximum(x, -self._limit, out=x)

    def act(self, t: int, obs: Array, action: Array) -> None:
        """See `RowActor`."""
        self._mlp.row(self._inputs(obs[0]), self._outputs)
        if self._log_std is None:
            self._outputs += self._noise[t]
            action[0] = self._outputs.argmax()
        else:
            into = action.reshape(-1)
            np.multiply(self._std, self._noise[t], out=into)
            into += self._outputs

    @np.errstate(all="ignore")  # numbers that diverge are found where they are learned from
    def end(self, obs: Array, action: Array, extras: Mapping[str, Array]) -> None:
        """See `RowActor`."""
        x = self._inputs(obs[:, 0])
        outputs, values = (mlp.forward(x)[-1] for mlp in (self._mlp, self._critic))
        extras["value"][:, 0] = values[:, 0]
        if self._log_std is None:
            log_p = log_softmax(outputs)
            extras["log_prob"][:, 0] = log_p[np.arange(len(log_p)), action[:, 0]]
            return
        # Of the actions as they were rounded, which is what an update will see.
        z = (action.reshape(outputs.shape) - outputs) / self._std
        extras["log_prob"][:, 0] = gaussian_log_prob(z, self._log_std)


def _mlp_of(known: KnownActor) -> MLP:
    if not known.is_identity:
        raise NotServedError("observations are no single vector of float32")
    return MLP(known.chain)


def _uniform(noise: Array) -> list[float]:
    """Uniform numbers on [-1, 1] from standard normal ones."""
    return [math.erf(float(number) * _ROOT_HALF) for number in noise]


ROW_ACTORS: dict[type, Any] = {
    ActorCritic: ActorCriticRowActor,
    QPolicy: QRowActor,
    SquashedGaussianActor: SquashedGaussianRowActor,
    DeterministicActor: DeterministicRowActor,
}


def row_actor(policy: Policy) -> RowActor:
    """What acts for this policy with one environment.

    Args:
        policy: of a type among `ROW_ACTORS`.

    Raises:
        NotServedError: if a part is not known.
    """
    require_parameters({"policy": policy}, trainable=False)
    return ROW_ACTORS[type(policy)](policy)

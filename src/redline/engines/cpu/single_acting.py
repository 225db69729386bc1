"""Acting for a single environment in numpy, or in C with ReLU, on the policy's own memory.

A call of the tensor library costs more than a small network's arithmetic for one observation:
of `Policy.act` of two layers of 256 units some 90 us are calls and 10 us arithmetic. What is
computed is the same, up to the order of rounding. Only plain perceptrons on vectors are
served; `single_actor` says which.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from redline.data import Array
from redline.engines.cpu.array_mlp import ArrayPerceptron, give_numpy_one_thread
from redline.engines.cpu.mlp_gradients import Perceptron, perceptron_of
from redline.engines.cpu.native_network import native_network
from redline.engines.cpu.torso_parts import is_identity, split_torso
from redline.models.q_heads import ScalarHead
from redline.policies.action_heads import CategoricalHead, GaussianHead
from redline.policies.actor_critic import ActorCritic
from redline.policies.actors import DeterministicActor, SquashedGaussianActor
from redline.policies.policy import Policy
from redline.policies.q_policy import QPolicy

_HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
_ROOT_HALF = 0.5**0.5


class SinglePerceptron:
    """A perceptron for one input at a time.

    Args:
        perceptron: on the CPU; its parameters are read where they lie.
    """

    def __init__(self, perceptron: Perceptron) -> None:
        give_numpy_one_thread()
        self._tanh, self._native = perceptron.tanh, native_network(perceptron)
        last = len(perceptron.layers) - 1
        self._layers = [
            (
                layer.weight.t().numpy(),
                layer.bias.numpy(),
                np.empty(layer.bias.shape, np.float32),
                # The maximum with an array takes half the time of that with a number.
                np.zeros(layer.bias.shape, np.float32),
                i < last or perceptron.activate_output,
            )
            for i, layer in enumerate(perceptron.layers)
        ]
        self._out = self._layers[-1][2]

    def __call__(self, x: Array) -> Array:
        """[in] -> [out], in memory that the next call overwrites."""
        if self._native is not None:
            self._native.row(x, self._out)
            return self._out
        return self._by_numpy(x)

    def into(self, x: Array, out: Array) -> None:
        """[in] to `out` [out]."""
        if self._native is not None:
            self._native.row(x, out)
        else:
            out[:] = self._by_numpy(x)

    def _by_numpy(self, x: Array) -> Array:
        for weight, bias, out, zeros, active in self._layers:
            np.dot(weight, x, out=out)
            out += bias
            if active:
                if self._tanh:
                    np.tanh(out, out=out)
                else:
                    np.maximum(out, zeros, out=out)
            x = out
        return x


class SingleActor(ABC):
    """What acts in place of a policy with one environment.

    Attributes:
        known: the conditioning that it understands.
    """

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


class SingleGaussianActor(SingleActor):
    """For `SquashedGaussianActor`.

    Args:
        policy: owns the parameters.
        network: its perceptron.
    """

    known = frozenset(("random",))

    def __init__(self, policy: SquashedGaussianActor, network: Perceptron) -> None:
        self._network, self._size = SinglePerceptron(network), policy.action_size
        self._range = policy.log_std_range

    def act(self, t: int, obs: Array, action: Array) -> None:
        """See `SingleActor`."""
        into = action.reshape(-1)
        if self._conditions.get("random"):
            into[:] = _uniform(self._noise[t])
            return
        outputs = self._network(obs[0])
        mean, log_std = outputs[: self._size], outputs[self._size :]
        np.clip(log_std, *self._range, out=log_std)
        np.exp(log_std, out=log_std)
        log_std *= self._noise[t]
        log_std += mean
        np.tanh(log_std, out=into)


class SingleDeterministicActor(SingleActor):
    """For `DeterministicActor`.

    Args:
        network: its perceptron.
    """

    known = frozenset(("random", "noise_scale"))

    def __init__(self, network: Perceptron) -> None:
        self._network = SinglePerceptron(network)

    def act(self, t: int, obs: Array, action: Array) -> None:
        """See `SingleActor`."""
        into = action.reshape(-1)
        if self._conditions.get("random"):
            into[:] = _uniform(self._noise[t])
            return
        np.tanh(self._network(obs[0]), out=into)
        if "noise_scale" in self._conditions:
            into += self._noise[t] * np.float32(self._conditions["noise_scale"])
            np.clip(into, -1.0, 1.0, out=into)


class SingleQActor(SingleActor):
    """For `QPolicy` with one scalar per action.

    What is left to chance is looked up before the first step, and what is only kept is gathered
    after the last.

    Args:
        network: its perceptron.
    """

    known = frozenset(("epsilon",))

    def __init__(self, network: Perceptron) -> None:
        self._network = SinglePerceptron(network)
        self._num_actions = len(network.layers[-1].bias)
        self._steps = np.arange(0)

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """See `SingleActor`."""
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
        """See `SingleActor`."""
        values = self._rows[t]
        self._network.into(obs[0], values)
        chosen = self._random[t]
        action[0] = values.argmax() if chosen is None else chosen

    def end(self, obs: Array, action: Array, extras: Mapping[str, Array]) -> None:
        """See `SingleActor`."""
        values = self._values[: len(obs)]
        extras["q_taken"][:, 0] = values[self._steps[: len(obs)], action[:, 0]]
        np.maximum.reduce(values, 1, out=extras["q_max"][:, 0])


class SingleActorCritic(SingleActor):
    """For `ActorCritic` with a Gaussian or categorical distribution.

    Values and log-probabilities change nothing about what is done, and weights and statistics rest
    within a rollout: they are computed for all of its steps at once in the end.

    Args:
        policy: owns the parameters.
        actor: from observations to the distribution's parameters.
        critic: from observations to the value.
    """

    def __init__(self, policy: ActorCritic, actor: Perceptron, critic: Perceptron) -> None:
        self._policy = policy
        self._actor = SinglePerceptron(actor)
        self._networks = ArrayPerceptron(actor), ArrayPerceptron(critic)
        head: Any = policy.action_head
        self._log_std = head.log_std.detach() if hasattr(head, "log_std") else None

    def begin(self, conditioning: Mapping[str, Tensor] | None, noise: Array) -> None:
        """See `SingleActor`."""
        super().begin(conditioning, noise)
        if self._log_std is not None:
            self._std = np.exp(self._log_std.numpy())
        self._moments = None
        if self._policy.normalizer is not None:
            moments: Any = self._policy.normalizer.moments[0]
            self._moments = [part.numpy().reshape(-1) for part in (moments.offset, moments.factor)]
            self._limit = np.float32(moments.limit.item())

    def _inputs(self, obs: Array) -> Array:
        """[..., F] normalised, if the policy does that."""
        if self._moments is None:
            return obs
        x = obs - self._moments[0]
        x *= self._moments[1]
        np.minimum(x, self._limit, out=x)
        return np.maximum(x, -self._limit, out=x)

    def act(self, t: int, obs: Array, action: Array) -> None:
        """See `SingleActor`."""
        outputs = self._actor(self._inputs(obs[0]))
        if self._log_std is None:
            outputs += self._noise[t]
            action[0] = outputs.argmax()
        else:
            into = action.reshape(-1)
            np.multiply(self._std, self._noise[t], out=into)
            into += outputs

    @np.errstate(all="ignore")  # numbers that diverge are found where they are learned from
    def end(self, obs: Array, action: Array, extras: Mapping[str, Array]) -> None:
        """See `SingleActor`."""
        x = self._inputs(obs[:, 0])
        outputs, values = (network.forward(x)[-1] for network in self._networks)
        extras["value"][:, 0] = values[:, 0]
        if self._log_std is None:
            outputs -= outputs.max(1, keepdims=True)
            outputs -= np.log(np.exp(outputs).sum(1, keepdims=True))
            extras["log_prob"][:, 0] = outputs[np.arange(len(outputs)), action[:, 0]]
            return
        # Of the actions as they were rounded, which is what an update will see.
        z = (action.reshape(outputs.shape) - outputs) / self._std
        constant = (self._log_std.numpy() + np.float32(_HALF_LOG_TWO_PI)).sum()
        extras["log_prob"][:, 0] = -0.5 * np.square(z).sum(1) - constant


def _uniform(noise: Array) -> list[float]:
    """Uniform numbers on [-1, 1] from standard normal ones."""
    return [math.erf(float(number) * _ROOT_HALF) for number in noise]


def single_actor(policy: Policy) -> SingleActor | None:
    """What acts for this policy with one environment; None if it is not a plain perceptron.

    Args:
        policy: on the CPU.
    """
    if type(policy) is ActorCritic:
        return _of_actor_critic(policy)
    if type(policy) is QPolicy:
        head = policy.head
        if type(head) is not ScalarHead or head.state_value is not None or head.is_noisy:
            return None
        if policy.core is not None or policy.has_mask or len(head.advantage.layers) > 1:
            return None
        network = _chain(policy, policy.torso, *head.advantage.layers)
        return None if network is None else SingleQActor(network)
    if type(policy) in (SquashedGaussianActor, DeterministicActor):
        network = _chain(policy, policy.torso, policy.head)  # type: ignore[arg-type]
        if network is None:
            return None
        if isinstance(policy, SquashedGaussianActor):
            return SingleGaussianActor(policy, network)
        return SingleDeterministicActor(network)
    return None


def _of_actor_critic(policy: ActorCritic) -> SingleActorCritic | None:
    head = policy.action_head
    gaussian = type(head) is GaussianHead and head.log_std is not None
    if policy.core is not None or policy.has_mask or policy.critic_torso is None:
        return None
    if not gaussian and type(head) is not CategoricalHead:
        return None
    actor = _chain(policy, policy.torso, policy.policy_head)
    critic = _chain(policy, policy.critic_torso, policy.value_head)
    if actor is None or critic is None:
        return None
    return SingleActorCritic(policy, actor, critic)


def _chain(policy: Any, torso: Any, *heads: Any) -> Perceptron | None:
    encoder, body = split_torso(torso)
    if not is_identity(encoder, policy.observation_space):
        return None
    return perceptron_of([*body, *heads])

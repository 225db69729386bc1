"""What stands behind two of the package's doors: which kernels serve an algorithm or a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from redline.algos.a2c import A2C
from redline.algos.appo import APPO
from redline.algos.ddpg import DDPG
from redline.algos.dqn import DQN
from redline.algos.impala import Impala
from redline.algos.optimizers import Optimizer
from redline.algos.ppo import PPO
from redline.algos.reinforce import Reinforce
from redline.algos.sac import SAC
from redline.algos.td3 import TD3
from redline.engines.cpu import mlp
from redline.engines.cpu.acting import ROW_ACTORS, row_actor
from redline.engines.cpu.dqn import DQNUpdate
from redline.engines.cpu.images import has_images, image_update, packed_actor
from redline.engines.cpu.known_parts import NotServedError, require_type
from redline.engines.cpu.policy_gradient import PolicyGradientUpdate
from redline.engines.cpu.ppo import PPOUpdate
from redline.engines.cpu.sac import SACUpdate
from redline.engines.cpu.td3 import TD3Update
from redline.engines.cpu.written import change_in
from redline.engines.watch import NetworksWatch

_UPDATES: dict[type, Any] = {
    SAC: SACUpdate,
    TD3: TD3Update,
    DDPG: TD3Update,
    DQN: DQNUpdate,
    PPO: PPOUpdate,
    APPO: PPOUpdate,
    A2C: PolicyGradientUpdate,
    Impala: PolicyGradientUpdate,
    Reinforce: PolicyGradientUpdate,
}


class _FollowedUpdate:
    """An update by kernels that looks before each call whether it still serves the algorithm.

    The kernels write to the parameters' memory. Where parameters were moved or frozen, or a
    network, an optimizer or a method was replaced, everything is looked at anew: the update is made
    again, or the written one takes over. Inside networks, and for hooks, `NetworksWatch` looks.

    Args:
        algorithm: which learns.
        kind: class of the update, or a function that makes it; it raises `NotServedError`.
    """

    def __init__(self, algorithm: Any, kind: Any) -> None:
        self._algorithm, self._kind = algorithm, kind
        self._watch = NetworksWatch(algorithm)
        self._make()

    def _make(self) -> None:
        algorithm = self._algorithm
        require_type(algorithm, type(algorithm), "the algorithm")
        self._update: Callable[[Any], Any] = self._kind(algorithm)
        self._parts = {
            name: part
            for name, part in vars(algorithm).items()
            if isinstance(part, (nn.Module, Optimizer))
        }
        modules = [part for part in self._parts.values() if isinstance(part, nn.Module)]
        self._parameters = [p for module in modules for p in module.parameters()]
        self._seen = self._look()

    def _look(self) -> list[int]:
        """What must not have changed: attributes, memory, and what learns."""
        attributes = vars(self._algorithm)
        same = all(attributes.get(name) is part for name, part in self._parts.items())
        memory = [parameter.data_ptr() for parameter in self._parameters]
        return [len(attributes), same, *memory, sum(p.requires_grad for p in self._parameters)]

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """As `algorithm.update`."""
        if self._look() != self._seen or self._watch.changed():
            try:
                self._make()
            except NotServedError:
                self._update, self._seen = self._algorithm.update, self._look()
        return self._update(batch)


def serve_update(algorithm: Any) -> tuple[Callable[[Any], Any] | None, str]:
    """See `update_for` in the package."""
    kind = _UPDATES.get(type(algorithm))
    try:
        if has_images(algorithm):
            _require_unchanged("images")
            update = _FollowedUpdate(algorithm, image_update)
            return update, "the convolutional networks have kernels"
        if kind is None:
            return None, f"{type(algorithm).__name__} has no update on the CPU's kernels"
        _require_unchanged(type(algorithm).__name__)
        return _FollowedUpdate(algorithm, kind), _reason()
    except NotServedError as refusal:
        return None, str(refusal)


def serve_actor(policy: Any, num_envs: int, rollout_length: int) -> Any | None:
    """See `actor_for` in the package."""
    try:
        if num_envs == 1 and type(policy) in ROW_ACTORS:
            _require_unchanged(type(policy).__name__)
            return _followed(row_actor(policy), policy)
    except NotServedError:
        pass  # it may have a convolutional network
    try:
        _require_unchanged("images")
        return _followed(packed_actor(policy, num_envs, rollout_length), policy)
    except NotServedError:
        return None


def _followed(actor: Any, policy: Any) -> Any:
    """The actor, and what says whether it is still that policy's."""
    actor.watch = NetworksWatch(policy)
    return actor


def _require_unchanged(kind: str) -> None:
    """Refuse to stand for code that somebody has changed."""
    change = change_in(kind)
    if change is not None:
        raise NotServedError(change)


def _reason() -> str:
    reason = "every part of the networks has a kernel"
    return reason if mlp.has_extension() else f"{reason}, in numpy: the C extension is not there"

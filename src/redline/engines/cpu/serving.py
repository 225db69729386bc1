"""What stands behind the package's two doors: which kernels serve an algorithm or a policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from redline.algos.a2c import A2C
from redline.algos.appo import APPO
from redline.algos.ddpg import DDPG
from redline.algos.dqn import DQN
from redline.algos.impala import Impala
from redline.algos.ppo import PPO
from redline.algos.reinforce import Reinforce
from redline.algos.sac import SAC
from redline.algos.td3 import TD3
from redline.engines.cpu.acting import ROW_ACTORS, row_actor
from redline.engines.cpu.dqn import DQNUpdate
from redline.engines.cpu.images import has_images, image_update, packed_actor
from redline.engines.cpu.known_parts import NotServedError, require_type
from redline.engines.cpu.policy_gradient import PolicyGradientUpdate
from redline.engines.cpu.ppo import PPOUpdate
from redline.engines.cpu.sac import SACUpdate
from redline.engines.cpu.td3 import TD3Update

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
    """An update by kernels that is made anew when parameters have been moved.

    Args:
        algorithm: the learner.
        kind: class of the update; its constructor raises `NotServedError`.
    """

    def __init__(self, algorithm: Any, kind: Any) -> None:
        self._algorithm, self._kind = algorithm, kind
        self._make()

    def _make(self) -> None:
        self._update: Callable[[Any], Any] = self._kind(self._algorithm)
        self._watched = self._update.watched  # type: ignore[attr-defined]
        self._addresses = [parameter.data_ptr() for parameter in self._watched]

    def __call__(self, batch: Any) -> Mapping[str, Any]:
        """As `algorithm.update`."""
        addresses = [parameter.data_ptr() for parameter in self._watched]
        if addresses != self._addresses:
            try:
                self._make()
            except NotServedError:  # they went to a place that the kernels do not reach
                self._update, self._addresses = self._algorithm.update, addresses
        return self._update(batch)


def serve_update(algorithm: Any) -> tuple[Callable[[Any], Any] | None, str]:
    """See `update_for` in the package."""
    kind = _UPDATES.get(type(algorithm))
    try:
        if has_images(algorithm):
            return image_update(algorithm), "the convolutional networks have kernels"
        if kind is None:
            return None, f"{type(algorithm).__name__} has no update on the CPU's kernels"
        require_type(algorithm, type(algorithm), "the algorithm")
        return _FollowedUpdate(algorithm, kind), "every part of the networks has a kernel"
    except NotServedError as refusal:
        return None, str(refusal)


def serve_actor(policy: Any, num_envs: int, rollout_length: int) -> Any | None:
    """See `actor_for` in the package."""
    try:
        if num_envs == 1 and type(policy) in ROW_ACTORS:
            return row_actor(policy)
    except NotServedError:
        pass  # it may have a convolutional network
    try:
        return packed_actor(policy, num_envs, rollout_length)
    except NotServedError:
        return None

"""Updates with hand-derived gradients: the algorithms' own numbers without autograd's graph.

Each has the losses of its algorithm's file differentiated by hand, and changes the same
parameters and optimisers, so that the two can take turns. They serve plain perceptrons
(`models.mlp_gradients`); `derived` says whether an algorithm's networks are such.
"""

from __future__ import annotations

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
from redline.engines.cpu.box_actors import DerivedBoxActor
from redline.engines.cpu.dqn import DerivedDQN
from redline.engines.cpu.policy_gradient import DerivedPolicyGradient
from redline.engines.cpu.ppo import DerivedPPO
from redline.engines.cpu.sac import DerivedSAC

_KINDS: dict[type, Any] = {
    SAC: DerivedSAC,
    TD3: DerivedBoxActor,
    DDPG: DerivedBoxActor,
    DQN: DerivedDQN,
    PPO: DerivedPPO,
    APPO: DerivedPPO,
    A2C: DerivedPolicyGradient,
    Impala: DerivedPolicyGradient,
    Reinforce: DerivedPolicyGradient,
}


def derived(algorithm: Any) -> Any | None:
    """An object whose `step` is the algorithm's own, with hand-derived gradients.

    Args:
        algorithm: the learner; it stays the owner of all state and is not changed here.

    Returns:
        None if its networks are not plain. What has a `prepare` too expects it to be applied
        to a rollout's observations first.
    """
    kind = _KINDS.get(type(algorithm))
    return None if kind is None else kind.of(algorithm)

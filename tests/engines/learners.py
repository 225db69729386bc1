"""Small learners of every algorithm with batches to learn from, for comparing paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos.a2c import A2C, A2CConfig
from redline.algos.appo import APPO, APPOConfig
from redline.algos.ddpg import DDPG, DDPGConfig
from redline.algos.dqn import DQN, DQNConfig
from redline.algos.impala import Impala, ImpalaConfig
from redline.algos.ppo import PPO, PPOConfig
from redline.algos.r2d1 import R2D1, R2D1Config
from redline.algos.reinforce import Reinforce, ReinforceConfig
from redline.algos.sac import SAC, SACConfig
from redline.algos.td3 import TD3, TD3Config
from redline.data import Rollout, SequenceBatch
from redline.policies import make_policy

OBS = spaces.Box(-np.inf, np.inf, (4,), np.float32)
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
CHOICE = spaces.Discrete(3)
T, B = 8, 4


def transitions(seed: int, rows: int = 16, *, discrete: bool = False) -> TensorDict:
    """[N] rows of no meaning, some of them terminated."""
    generator = torch.Generator().manual_seed(seed)
    action = torch.rand(rows, 2, generator=generator) * 2.0 - 1.0
    if discrete:
        action = torch.randint(3, (rows,), generator=generator)
    return TensorDict(
        {
            "obs": torch.randn(rows, 4, generator=generator),
            "next_obs": torch.randn(rows, 4, generator=generator),
            "action": action,
            "reward": torch.randn(rows, generator=generator),
            "discount": 0.9 * (torch.rand(rows, generator=generator) > 0.2),
            "num_steps": torch.ones(rows, dtype=torch.int64),
            "weight": torch.rand(rows, generator=generator),
        },
        batch_size=[rows],
    )


def sequences(seed: int) -> SequenceBatch:
    """3 sequences of 1 + 4 + 1 rows for R2D1."""
    generator = torch.Generator().manual_seed(seed)
    shape = (6, 3)
    flat = transitions(seed, 18, discrete=True).reshape(6, 3)
    flat["valid"] = torch.rand(shape, generator=generator) > 0.1
    flat["reset"] = torch.rand(shape, generator=generator) > 0.8
    flat["terminated"] = flat["discount"] == 0.0
    flat["truncated"] = torch.zeros(shape, dtype=torch.bool)
    state = {name: torch.randn(3, 5, generator=generator) for name in ("hidden", "cell")}
    weight = torch.rand(3, generator=generator)
    return SequenceBatch(steps=flat, initial_state=state, index=torch.arange(3), weight=weight)


def rollout(policy: Any, seed: int) -> Rollout:
    """[T, B] as the policy would have collected it, with ends and rows that are not valid."""
    generator = torch.Generator().manual_seed(seed)
    rng = np.random.default_rng(seed)
    obs = torch.randn(T, B, 4, generator=generator)
    noise = np.stack([policy.draw_noise(rng, B) for _ in range(T)])
    outputs = [policy.act(obs[t], {}, torch.from_numpy(noise[t])) for t in range(T)]
    ends = torch.rand(T, B, generator=generator)
    valid = torch.rand(T, B, generator=generator) > 0.1
    steps = {
        "obs": obs,
        "action": torch.stack([o.action for o in outputs]),
        "reward": torch.randn(T, B, generator=generator),
        "terminated": ends < 0.1,
        "truncated": ends > 0.9,
        "valid": valid,
        "bootstrap_value": torch.randn(T, B, generator=generator) * (ends > 0.9),
        # Not quite what acting gave: else every ratio would be 1 in the first minibatch.
        "log_prob": torch.stack([o.extras["log_prob"] for o in outputs])
        + 0.2 * torch.randn(T, B, generator=generator),
        "value": torch.stack([o.extras["value"] for o in outputs])
        + 0.2 * torch.randn(T, B, generator=generator),
    }
    return Rollout(
        steps=TensorDict(steps, batch_size=[T, B]), initial_state={}, last_obs=obs[-1].clone()
    )


def _ppo(
    space: spaces.Space[Any], kind: Any = PPO, config: Any = PPOConfig, **settings: Any
) -> Any:
    defaults = {"num_envs": B, "rollout_length": T, "num_epochs": 2, "num_minibatches": 2}
    return kind(make_policy(OBS, space, hidden_sizes=(8, 8)), config(**(defaults | settings)))


NETWORK: dict[str, Any] = {"hidden_sizes": (8, 8), "activation": "relu"}
LEARNERS: dict[str, Callable[[], Any]] = {
    "sac": lambda: SAC.make(OBS, BOX, SACConfig(actor_update_interval=2), **NETWORK),
    "sac-fixed-alpha": lambda: SAC.make(OBS, BOX, SACConfig(alpha=0.1, num_critics=3), **NETWORK),
    "sac-discrete": lambda: SAC.make(OBS, CHOICE, SACConfig(), **NETWORK),
    "redq": lambda: SAC.make(OBS, BOX, SACConfig(num_critics=3, critic_subset=2), **NETWORK),
    "td3": lambda: TD3.make(OBS, BOX, TD3Config(), **NETWORK),
    "ddpg": lambda: DDPG.make(OBS, BOX, DDPGConfig(), **(NETWORK | {"activation": "tanh"})),
    "dqn": lambda: DQN.make(
        OBS, CHOICE, DQNConfig(target_update_interval=3, max_grad_norm=0.1), seed=0, **NETWORK
    ),
    "double-dqn": lambda: DQN.make(
        OBS,
        CHOICE,
        DQNConfig(double_q=True, tau=0.5, huber_threshold=None, max_grad_norm=0.0),
        seed=0,
        **NETWORK,
    ),
    "rainbow": lambda: DQN.make(
        OBS,
        CHOICE,
        DQNConfig(double_q=True, dueling=True, noisy=True, value_distribution="categorical"),
        seed=0,
        **NETWORK,
    ),
    "iqn": lambda: DQN.make(
        OBS, CHOICE, DQNConfig(value_distribution="implicit"), seed=0, **NETWORK
    ),
    "r2d1": lambda: R2D1.make(
        OBS,
        CHOICE,
        R2D1Config(burn_in=1, sequence_length=4, n_step=2),
        seed=0,
        hidden_sizes=(8,),
        core="lstm",
        core_size=5,
    ),
    "ppo-box": lambda: _ppo(BOX, clip_range_value=0.1, entropy_coef=0.01),
    "ppo-discrete": lambda: _ppo(CHOICE, normalize_advantage=False, max_grad_norm=0.0),
    "ppo-limited": lambda: _ppo(CHOICE, target_kl=1e-3, entropy_coef=0.02),
    "appo": lambda: _ppo(BOX, APPO, APPOConfig),
    "a2c": lambda: A2C(make_policy(OBS, CHOICE), A2CConfig(num_envs=B, rollout_length=T)),
    "a2c-box": lambda: A2C(
        make_policy(OBS, BOX),
        A2CConfig(
            num_envs=B, rollout_length=T, optimizer="adam", normalize_advantage=True, gae_lambda=0.9
        ),
    ),
    "impala": lambda: Impala(make_policy(OBS, CHOICE), ImpalaConfig(num_envs=B, rollout_length=T)),
    "reinforce": lambda: Reinforce(
        make_policy(OBS, CHOICE), ReinforceConfig(num_envs=B, rollout_length=T, entropy_coef=0.02)
    ),
}
ON_POLICY = ("ppo", "appo", "a2c", "impala", "reinforce")
DISCRETE = ("sac-discrete", "dqn", "double-dqn", "rainbow", "iqn")


def make(name: str, seed: int = 0) -> Any:
    """The learner, its weights from the seed."""
    torch.manual_seed(seed)
    return LEARNERS[name]()


def batch(name: str, learner: Any, seed: int) -> Any:
    """What its update takes."""
    if name == "r2d1":
        return sequences(seed)
    if name.startswith(ON_POLICY):
        return rollout(learner.policy, seed)
    return transitions(seed, discrete=name in DISCRETE)


def parameters(learner: Any) -> dict[str, Tensor]:
    """Everything that gradients change, by name."""
    parts = {"policy": learner.policy}
    if hasattr(learner, "critic"):
        parts |= {"critic": learner.critic, "target": learner.target}
    return {
        f"{part}.{name}": value.detach().clone()
        for part, module in parts.items()
        for name, value in module.state_dict().items()
    }

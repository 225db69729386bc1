"""Small learners of every algorithm with batches to learn from, for comparing engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor

from redline.algos.a2c import A2C
from redline.algos.appo import APPO
from redline.algos.bc import BC
from redline.algos.crossq import CrossQ
from redline.algos.ddpg import DDPG
from redline.algos.diayn import DIAYN
from redline.algos.dqn import DQN
from redline.algos.impala import Impala
from redline.algos.ppo import PPO
from redline.algos.r2d1 import R2D1
from redline.algos.reinforce import Reinforce
from redline.algos.sac import SAC, DiscreteSAC
from redline.algos.td3 import TD3
from redline.algos.tqc import TQC
from redline.data import Rollout, SequenceBatch

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
    training = policy.training
    policy.eval()  # layers that count or draw where they train leave no trace
    outputs = [policy.act(obs[t], {}, torch.from_numpy(noise[t])) for t in range(T)]
    policy.train(training)
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


def _on_policy(kind: Any, device: Any, space: spaces.Space[Any], **settings: Any) -> Any:
    sizes: dict[str, Any] = {"num_envs": B, "rollout_length": T}
    if issubclass(kind, PPO):
        sizes |= {"num_epochs": 2, "num_minibatches": 2}
    config = kind.Config(**(sizes | settings))
    return kind.make(OBS, space, config, seed=0, device=device, hidden_sizes=(8, 8))


def _off_policy(
    kind: Any, device: Any, space: spaces.Space[Any], *, network: Any = None, **settings: Any
) -> Any:
    config = kind.Config(**settings)
    return kind.make(OBS, space, config, seed=0, device=device, **(network or NETWORK))


NETWORK: dict[str, Any] = {"hidden_sizes": (8, 8), "activation": "relu"}
RAINBOW = {"double_q": True, "dueling": True, "noisy": True, "value_distribution": "categorical"}
LEARNERS: dict[str, tuple[type, Callable[[Any, Any], Any]]] = {
    "sac": (SAC, lambda kind, device: _off_policy(kind, device, BOX, actor_update_interval=2)),
    "sac-fixed-alpha": (
        SAC,
        lambda kind, device: _off_policy(kind, device, BOX, alpha=0.1, num_critics=3),
    ),
    "sac-critic-widths": (
        SAC,
        lambda kind, device: _off_policy(kind, device, BOX, critic_hidden_sizes=(12, 4, 6)),
    ),
    "td3-critic-widths": (
        TD3,
        lambda kind, device: _off_policy(kind, device, BOX, critic_hidden_sizes=(12, 6)),
    ),
    "ppo-critic-widths": (
        PPO,
        lambda kind, device: _on_policy(kind, device, BOX, critic_hidden_sizes=(12, 6)),
    ),
    "sac-hard-target": (
        SAC,
        lambda kind, device: _off_policy(kind, device, BOX, backup_entropy=False),
    ),
    "sac-discrete": (DiscreteSAC, lambda kind, device: _off_policy(kind, device, CHOICE)),
    "sac-discrete-soft-target": (
        DiscreteSAC,
        lambda kind, device: _off_policy(kind, device, CHOICE, backup_entropy=True),
    ),
    "redq": (
        SAC,
        lambda kind, device: _off_policy(kind, device, BOX, num_critics=3, critic_subset=2),
    ),
    "tqc": (
        TQC,
        lambda kind, device: _off_policy(kind, device, BOX, num_critics=2, num_quantiles=5),
    ),
    "crossq": (
        CrossQ,
        lambda kind, device: _off_policy(
            kind, device, BOX, critic_hidden_sizes=(8, 8), renorm_warmup=1
        ),
    ),
    "td3": (TD3, lambda kind, device: _off_policy(kind, device, BOX)),
    "ddpg": (
        DDPG,
        lambda kind, device: _off_policy(
            kind, device, BOX, network=NETWORK | {"activation": "tanh"}
        ),
    ),
    "diayn": (DIAYN, lambda kind, device: _off_policy(kind, device, BOX, num_skills=3)),
    "dqn": (
        DQN,
        lambda kind, device: _off_policy(
            kind, device, CHOICE, target_update_interval=3, max_grad_norm=0.1
        ),
    ),
    "double-dqn": (
        DQN,
        lambda kind, device: _off_policy(
            kind, device, CHOICE, double_q=True, tau=0.5, huber_threshold=None, max_grad_norm=0.0
        ),
    ),
    "rainbow": (DQN, lambda kind, device: _off_policy(kind, device, CHOICE, **RAINBOW)),
    "iqn": (
        DQN,
        lambda kind, device: _off_policy(kind, device, CHOICE, value_distribution="implicit"),
    ),
    "r2d1": (
        R2D1,
        lambda kind, device: _off_policy(
            kind,
            device,
            CHOICE,
            network={"hidden_sizes": (8,), "core": "lstm", "core_size": 5},
            burn_in=1,
            sequence_length=4,
            n_step=2,
        ),
    ),
    "ppo-box": (
        PPO,
        lambda kind, device: _on_policy(kind, device, BOX, clip_range_value=0.1, entropy_coef=0.01),
    ),
    "ppo-discrete": (
        PPO,
        lambda kind, device: _on_policy(
            kind, device, CHOICE, normalize_advantage=False, max_grad_norm=0.0
        ),
    ),
    "ppo-limited": (
        PPO,
        lambda kind, device: _on_policy(kind, device, CHOICE, target_kl=1e-3, entropy_coef=0.02),
    ),
    "appo": (APPO, lambda kind, device: _on_policy(kind, device, BOX)),
    "a2c": (A2C, lambda kind, device: _on_policy(kind, device, CHOICE)),
    "a2c-box": (
        A2C,
        lambda kind, device: _on_policy(
            kind, device, BOX, optimizer="adam", normalize_advantage=True, gae_lambda=0.9
        ),
    ),
    "impala": (Impala, lambda kind, device: _on_policy(kind, device, CHOICE)),
    "reinforce": (
        Reinforce,
        lambda kind, device: _on_policy(kind, device, CHOICE, entropy_coef=0.02),
    ),
    "bc": (
        BC,
        lambda kind, device: kind.make(
            OBS,
            BOX,
            kind.Config(batch_size=T * B, policy_of="ppo"),
            seed=0,
            device=device,
            hidden_sizes=(8, 8),
        ),
    ),
}
ALGORITHMS = (
    "ppo-box", "a2c", "reinforce", "impala", "appo", "dqn", "r2d1", "ddpg", "td3", "sac", "tqc",
    "crossq", "diayn", "bc",
)  # fmt: skip
"""One learner of every algorithm."""
ON_POLICY = ("ppo", "appo", "a2c", "impala", "reinforce", "bc")
DISCRETE = ("sac-discrete", "sac-discrete-soft-target", "dqn", "double-dqn", "rainbow", "iqn")


def says(reason: str, word: str) -> bool:
    """Whether a reason names something; where there are no kernels, they need name nothing."""
    return word in reason or "kernels are not installed" in reason


def make(name: str, kind: Any = None, seed: int = 0, device: Any = "cpu") -> Any:
    """The learner, its weights from the seed; of another class if `kind` gives one."""
    torch.manual_seed(seed)
    standard, maker = LEARNERS[name]
    return maker(kind or standard, device)


def batch(name: str, learner: Any, seed: int) -> Any:
    """What its update takes."""
    if name == "r2d1":
        return sequences(seed)
    if name.startswith(ON_POLICY):
        return rollout(learner.policy, seed)
    rows = transitions(seed, discrete=name in DISCRETE)
    if name == "diayn":
        generator = torch.Generator().manual_seed(seed)
        rows["skill"] = torch.randint(3, (len(rows),), generator=generator).float()
    return rows


def parts_of(learner: Any) -> dict[str, Any]:
    """What gradients change, and the target networks: modules by name."""
    parts = {"policy": learner.policy}
    critic = getattr(learner, "sac", learner)  # DIAYN has a SAC inside
    if hasattr(critic, "critic"):
        parts["critic"] = critic.critic
        if critic.target is not None:
            parts["target"] = critic.target
    for name in ("target_policy", "discriminator"):
        if hasattr(learner, name):
            parts[name] = getattr(learner, name)
    return parts


def parameters(learner: Any) -> dict[str, Tensor]:
    """Numbers of `parts_of`, what is counted or drawn along the way included, by name."""
    return {
        f"{part}.{name}": value.detach().clone()
        for part, module in parts_of(learner).items()
        for name, value in module.state_dict().items()
        if value.is_floating_point()  # counts are no numbers to be near to
    }


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Euclidean distance of all parameters together."""
    return sum(float((a[key].double() - b[key].double()).square().sum()) for key in a) ** 0.5


def differing(a: Any, b: Any, prefix: str = "") -> list[str]:
    """Names of the entries of two nested states that are not equal to the bit."""
    if isinstance(a, Mapping):
        if a.keys() != b.keys():
            return [f"{prefix}: {sorted(a.keys() ^ b.keys())}"]
        return [name for key in a for name in differing(a[key], b[key], f"{prefix}.{key}")]
    same = torch.equal(a, b) if isinstance(a, Tensor) else a == b
    return [] if same else [prefix]

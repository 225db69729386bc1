"""PPO on CartPole of TorchRL's own parts, for `benchmarks.studies frameworks`.

    PYTHON benchmarks/peers/torchrl_ppo.py --env-steps 8192

PYTHON is an interpreter with `torchrl`. Four envs in this process, rollouts of 128 steps, four
epochs of minibatches of 128: what the study's other programs do. Nothing of Redline is imported.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import GymEnv, SerialEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

ENVS, LENGTH, EPOCHS, MINIBATCH = 4, 128, 4, 128


def network(outputs: int) -> nn.Sequential:
    """Two layers of 64."""
    return nn.Sequential(
        nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)
    )


def main() -> None:
    """Train for a fixed number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-steps", type=int, default=8_192)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    env = SerialEnv(ENVS, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    actor = ProbabilisticActor(
        TensorDictModule(network(2), in_keys=["observation"], out_keys=["logits"]),
        in_keys=["logits"],
        spec=env.full_action_spec_unbatched["action"],
        distribution_class=Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
    loss_of: Any = ClipPPOLoss(
        actor, critic, clip_epsilon=0.2, entropy_coeff=0.01, critic_coeff=0.5,
        normalize_advantage=True,
    )  # fmt: skip
    optimizer = torch.optim.Adam(loss_of.parameters(), lr=2.5e-4, eps=1e-5)
    rows = TensorDictReplayBuffer(
        storage=LazyTensorStorage(ENVS * LENGTH),
        sampler=SamplerWithoutReplacement(),
        batch_size=MINIBATCH,
    )
    collector = Collector(
        env,
        actor,
        frames_per_batch=ENVS * LENGTH,
        total_frames=options.env_steps,
        auto_register_policy_transforms=True,
    )
    for rollout in collector:
        with torch.no_grad():
            advantage(rollout)
        rows.extend(rollout.reshape(-1))
        for _ in range(EPOCHS):
            for _ in range(ENVS * LENGTH // MINIBATCH):
                losses = loss_of(rows.sample())
                loss = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(loss_of.parameters(), 0.5)
                optimizer.step()
    collector.shutdown()


if __name__ == "__main__":
    main()

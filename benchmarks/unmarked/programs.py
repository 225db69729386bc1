"""Training scripts as users write them: single files in CleanRL's style, SB3, a DataLoader.

    python -m benchmarks.unmarked.programs NAME --env-steps N

None of them imports Redline, marks anything, or shares code with the others.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical, Normal


def layer(inputs: int, outputs: int, std: float = 2**0.5) -> nn.Linear:
    """Orthogonal weights."""
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, std)
    nn.init.constant_(made.bias, 0.0)
    return made


class Agent(nn.Module):
    """Two networks, as PPO scripts have them."""

    def __init__(self, observations: int, actions: int) -> None:
        super().__init__()
        self.critic = nn.Sequential(
            layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, 1, 1.0)
        )
        self.actor = nn.Sequential(
            layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, actions, 0.01)
        )

    def act(self, x: Any, action: Any = None) -> tuple[Any, Any, Any, Any]:
        """Action, its log probability, the entropy and the value."""
        chances = Categorical(logits=self.actor(x))
        if action is None:
            action = chances.sample()
        return action, chances.log_prob(action), chances.entropy(), self.critic(x)


def ppo(env_steps: int) -> None:
    """PPO on CartPole, four envs."""
    envs = gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(4)])
    envs.reset(seed=1)
    _ppo(envs, env_steps)


def ppo_envpool(env_steps: int) -> None:
    """PPO on EnvPool's CartPole, four envs."""
    import envpool

    _ppo(envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, seed=1), env_steps)


def _ppo(envs: Any, env_steps: int) -> None:
    agent, length, count = Agent(4, 2), 128, 4
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    obs = torch.zeros((length, count, 4))
    actions = torch.zeros((length, count))
    logprobs, rewards, dones, values = (torch.zeros((length, count)) for _ in range(4))
    next_obs, next_done = torch.Tensor(envs.reset()[0]), torch.zeros(count)
    for _ in range(env_steps // (length * count)):
        for step in range(length):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                action, logprob, _, value = agent.act(next_obs)
                values[step] = value.flatten()
            actions[step], logprobs[step] = action, logprob
            seen, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward).view(-1)
            next_obs = torch.Tensor(seen)
            next_done = torch.Tensor(np.logical_or(terminated, truncated))
        with torch.no_grad():
            next_value = agent.critic(next_obs).reshape(1, -1)
            advantages, last = torch.zeros_like(rewards), 0
            for t in reversed(range(length)):
                ongoing = 1.0 - (next_done if t == length - 1 else dones[t + 1])
                following = next_value if t == length - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * following * ongoing - values[t]
                advantages[t] = last = delta + 0.99 * 0.95 * ongoing * last
            returns = advantages + values
        flat = [each.reshape(-1) for each in (logprobs, actions, advantages, returns, values)]
        b_logprobs, b_actions, b_advantages, b_returns, _ = flat
        b_obs, rows = obs.reshape(-1, 4), np.arange(length * count)
        for _ in range(4):
            np.random.shuffle(rows)
            for start in range(0, length * count, 128):
                chosen = rows[start : start + 128]
                _, logprob, entropy, value = agent.act(b_obs[chosen], b_actions.long()[chosen])
                ratio = (logprob - b_logprobs[chosen]).exp()
                advantage = b_advantages[chosen]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = torch.clamp(ratio, 0.8, 1.2)
                loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
                loss = loss - 0.01 * entropy.mean()
                loss = loss + 0.25 * ((value.view(-1) - b_returns[chosen]) ** 2).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()


class Buffer:
    """A replay buffer of numpy arrays."""

    def __init__(self, size: int, observations: int, actions: int) -> None:
        self.rows: list[Any] = [
            np.zeros((size, observations), np.float32),
            np.zeros((size, observations), np.float32),
            np.zeros((size, actions), np.float32),
            np.zeros((size, 1), np.float32),
            np.zeros((size, 1), np.float32),
        ]
        self.used = 0

    def put(self, *values: Any) -> None:
        """One transition."""
        for table, value in zip(self.rows, values, strict=True):
            table[self.used % len(table)] = value
        self.used += 1

    def draw(self, size: int) -> list[Any]:
        """A batch of tensors."""
        rows = np.random.randint(0, min(self.used, len(self.rows[0])), size)
        return [torch.as_tensor(table[rows]) for table in self.rows]


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Two layers of 256."""
    return nn.Sequential(
        nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, outputs)
    )


def sac(env_steps: int) -> None:
    """SAC on Pendulum, one env."""
    env = gym.make("Pendulum-v1")
    actor, critics = network(3, 2), [network(4, 1) for _ in range(2)]
    targets = [network(4, 1) for _ in range(2)]
    for target, critic in zip(targets, critics, strict=True):
        target.load_state_dict(critic.state_dict())
    parameters = [p for critic in critics for p in critic.parameters()]
    q_optimizer = torch.optim.Adam(parameters, lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    buffer = Buffer(10_000, 3, 1)

    def choose(x: Any) -> tuple[Any, Any]:
        mean, log_std = actor(x).chunk(2, -1)
        normal = Normal(mean, torch.clamp(log_std, -5, 2).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        log_prob = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, log_prob.sum(-1, keepdim=True)

    obs, _ = env.reset(seed=1)
    for step in range(env_steps):
        if step < 100:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = 2 * choose(torch.as_tensor(obs).unsqueeze(0))[0].numpy()[0]
        after, reward, terminated, truncated, _ = env.step(action)
        buffer.put(obs, after, action, reward, terminated)
        obs = env.reset()[0] if terminated or truncated else after
        if step < 100:
            continue
        b_obs, b_after, b_action, b_reward, b_end = buffer.draw(256)
        with torch.no_grad():
            next_action, next_log_prob = choose(b_after)
            x = torch.cat([b_after, 2 * next_action], 1)
            least = torch.min(targets[0](x), targets[1](x)) - 0.2 * next_log_prob
            goal = b_reward + (1 - b_end) * 0.99 * least
        x = torch.cat([b_obs, b_action], 1)
        q_loss = sum(nn.functional.mse_loss(critic(x), goal) for critic in critics)
        q_optimizer.zero_grad()
        torch.as_tensor(q_loss).backward()
        q_optimizer.step()
        chosen, log_prob = choose(b_obs)
        x = torch.cat([b_obs, 2 * chosen], 1)
        actor_loss = (0.2 * log_prob - torch.min(critics[0](x), critics[1](x))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        for target, critic in zip(targets, critics, strict=True):
            for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                old.data.copy_(0.005 * new.data + 0.995 * old.data)


def dqn(env_steps: int) -> None:
    """DQN on CartPole, one env, trained every 4 steps."""
    _dqn(env_steps, lambda function: function)


def dqn_compiled(env_steps: int) -> None:
    """The same with a compiled loss."""
    _dqn(env_steps, torch.compile)


def _dqn(env_steps: int, compiled: Callable[[Any], Any]) -> None:
    env = gym.make("CartPole-v1")
    q, target = network(4, 2), network(4, 2)

    def loss_of(b_obs: Any, b_after: Any, b_action: Any, b_reward: Any, b_end: Any) -> Any:
        with torch.no_grad():
            best = target(b_after).max(1, keepdim=True)[0]
            goal = b_reward + 0.99 * best * (1 - b_end)
        return nn.functional.mse_loss(q(b_obs).gather(1, b_action.long()), goal)

    find_loss = compiled(loss_of)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=2.5e-4)
    buffer = Buffer(10_000, 4, 1)
    obs, _ = env.reset(seed=1)
    for step in range(env_steps):
        if random.random() < max(0.05, 1 - step / 1000):
            action = int(env.action_space.sample())
        else:
            action = int(q(torch.Tensor(obs).unsqueeze(0)).argmax(1).item())
        after, reward, terminated, truncated, _ = env.step(action)
        buffer.put(obs, after, [action], reward, terminated)
        obs = env.reset()[0] if terminated or truncated else after
        if step > 200 and step % 4 == 0:
            loss = find_loss(*buffer.draw(128))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 400 == 0:
                target.load_state_dict(q.state_dict())


def data_loader(env_steps: int) -> None:
    """Supervised learning of what a simulator would do, from two loading processes."""
    rows = torch.randn(env_steps * 16, 32)

    class Rows(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int) -> Any:
            time.sleep(0)  # a file would be read here
            return rows[index], rows[index].sum()

    loader = torch.utils.data.DataLoader(Rows(), batch_size=64, shuffle=True, num_workers=2)
    model = network(32, 1)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader:
        loss = ((model(x).squeeze(1) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _sb3(name: str, env: str, env_steps: int, **settings: Any) -> None:
    import stable_baselines3

    algorithm = getattr(stable_baselines3, name)
    algorithm("MlpPolicy", env, seed=1, device="cpu", **settings).learn(env_steps)


def sb3_ppo(env_steps: int) -> None:
    """PPO of Stable-Baselines3."""
    _sb3("PPO", "CartPole-v1", env_steps, n_steps=512)


def sb3_sac(env_steps: int) -> None:
    """SAC of Stable-Baselines3."""
    _sb3("SAC", "Pendulum-v1", env_steps)


def sb3_ppo_processes(env_steps: int) -> None:
    """PPO of Stable-Baselines3 with two worker processes."""
    _sb3_ppo_processes(env_steps, 2)


def sb3_ppo_four_processes(env_steps: int) -> None:
    """The same with four."""
    _sb3_ppo_processes(env_steps, 4)


def _sb3_ppo_processes(env_steps: int, count: int) -> None:
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import SubprocVecEnv

    envs = make_vec_env("CartPole-v1", count, vec_env_cls=SubprocVecEnv)
    _sb3("PPO", envs, env_steps, n_steps=256)  # pyright: ignore[reportArgumentType]


# Each takes some three seconds.
PROGRAMS: dict[str, tuple[Callable[[int], None], int]] = {
    "ppo in one file": (ppo, 6_144),
    "sac in one file": (sac, 400),
    "dqn in one file": (dqn, 5_000),
    "dqn, compiled loss": (dqn_compiled, 5_000),
    "ppo on envpool": (ppo_envpool, 6_144),
    "data loader": (data_loader, 500),
    "sb3 ppo": (sb3_ppo, 3_072),
    "sb3 sac": (sb3_sac, 300),
    "sb3 ppo, 2 processes": (sb3_ppo_processes, 4_096),
    "sb3 ppo, 4 processes": (sb3_ppo_four_processes, 4_096),
}


def main() -> None:
    """Run one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unmarked.programs")
    parser.add_argument("name", choices=sorted(PROGRAMS))
    parser.add_argument("--env-steps", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(1)
    work, usual = PROGRAMS[options.name]
    work(options.env_steps or usual)


if __name__ == "__main__":
    main()

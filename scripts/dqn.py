"""Deep Q-learning (DQN) for Discrete actions, complete in this file.

    python scripts/dqn.py --env-id CartPole-v1 --seed 1 --csv dqn.csv

Mnih et al. 2015 (Nature 518). Reads top to bottom: `Args`, `QNetwork`, `q_loss`,
`make_update`, `Replay`, `train`, `evaluate`.

Defaults are CleanRL's for CartPole: one environment, an update per 10 steps from 10,000 steps
on, batch 128, network of 120 and 84, Adam with 2.5e-4, replay of 10,000, the target network a
copy every 500 steps, epsilon from 1 to 0.05 over the first half of 500,000 steps. The loss is
half the squared error, CleanRL's the whole: to Adam they are the same.

A transition bootstraps from the true last observation of an episode unless it terminated.

`--compile` compiles acting and the update, `--cudagraphs` captures both; each works alone.
"""

from __future__ import annotations

import copy
import csv
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as functional
import tyro
from torch import Tensor, nn

EVALUATION_SEED = 2**30  # training seeds stay below, evaluation seeds start here


@dataclass(frozen=True, kw_only=True)
class Args:
    """Options of a run."""

    env_id: str = "CartPole-v1"  # Gymnasium id; Box observations [n], Discrete actions
    total_env_steps: int = 500_000  # over all environments
    num_envs: int = 1  # stepped one after the other
    seed: int = 1  # of python, numpy, torch and the environments
    device: str = "cpu"  # where to act and learn: cpu, cuda, cuda:1, ...
    compile: bool = False  # compile acting and the update with torch.compile
    cudagraphs: bool = False  # capture acting and the update as CUDA graphs; needs --device cuda
    gamma: float = 0.99  # discount per step
    batch_size: int = 128  # transitions per update
    train_interval: int = 10  # environment steps per update
    target_interval: int = 500  # environment steps per copy of the network to its target
    learning_starts: int = 10_000  # steps before the first update
    epsilon_initial: float = 1.0  # probability of a random action at the start
    epsilon_final: float = 0.05  # the same at the end of its fall
    epsilon_fraction: float = 0.5  # share of the run over which it falls
    replay_size: int = 10_000  # transitions kept
    learning_rate: float = 2.5e-4  # Adam's step size
    num_threads: int = 1  # of torch on the CPU; more do not help networks this small
    log_every: int = 5_000  # environment steps from one progress line to the next
    eval_episodes: int = 10  # of the greedy policy after training; 0: none
    csv: Path | None = None  # file for the progress: env_steps, wall_time_s, sps, return


class QNetwork(nn.Module):
    """Observations [N, n] -> values [N, A] of the actions."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.first = nn.Linear(obs_size, 120)
        self.second = nn.Linear(120, 84)
        self.last = nn.Linear(84, num_actions)

    def forward(self, obs: Tensor) -> Tensor:
        """The layers, as functions: a module's own call costs more than a layer this small."""
        x = functional.linear(obs, self.first.weight, self.first.bias).relu_()
        x = functional.linear(x, self.second.weight, self.second.bias).relu_()
        return functional.linear(x, self.last.weight, self.last.bias)

    def greedy(self, obs: Tensor) -> Tensor:
        """[N] int64 the best actions."""
        return self.forward(obs).argmax(dim=1)


def q_loss(network: QNetwork, target: QNetwork, batch: Batch, gamma: float) -> Tensor:
    """Half the mean squared error to y = r + gamma (1 - terminated) max_a Q'(s', a).

    A truncated step is not terminated, so it bootstraps.
    """
    with torch.no_grad():
        y = batch.reward + gamma * (1.0 - batch.terminated) * target(batch.next_obs).amax(dim=1)
    value = network(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
    return 0.5 * functional.mse_loss(value, y)


@torch.compiler.disable  # its step is one kernel already
def descend(optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> None:
    """One step of an optimizer along the gradients of its parameters, in their order."""
    for parameter, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def make_update(
    network: QNetwork, target: QNetwork, replay: Replay, args: Args
) -> Callable[[Tensor], dict[str, Tensor]]:
    """The update as a function of the rows [batch_size] to learn from; never waits."""
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(
        parameters, args.learning_rate, eps=1e-8,
        fused=True, capturable=args.device.startswith("cuda"),
    )  # fmt: skip

    def update(index: Tensor) -> dict[str, Tensor]:
        loss = q_loss(network, target, replay.batch(index), args.gamma)
        metrics = {"loss": loss.detach()}
        descend(optimizer, torch.autograd.grad(loss, parameters))
        return metrics

    return update


class Batch(NamedTuple):
    """Columns of N rows of replay."""

    obs: Tensor  # [N, n]
    action: Tensor  # [N] int64
    reward: Tensor  # [N]
    terminated: Tensor  # [N] 0 or 1
    next_obs: Tensor  # [N, n] what followed, also where the episode ended


def empty_rows(*shape: int, device: str) -> Tensor:
    """Room for rows, which takes memory as it is written; refused if it could never be full."""
    needed, has = 4 * math.prod(shape), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if device == "cpu" and needed > has:
        raise SystemExit(
            f"--replay-size {shape[0]} needs {needed / 2**30:,.1f} GiB, and this machine has "
            f"{has / 2**30:,.1f}. Give at most {has * shape[0] // needed}."
        )
    return torch.empty(shape, device=device)


class Replay:
    """Transitions as rows [obs, action, reward, terminated, next_obs] of one float32 tensor.

    So one step is one write, and one batch one gather. float32 holds an action exactly.
    """

    def __init__(self, capacity: int, obs_size: int, device: str) -> None:
        self.obs_size = obs_size
        self.rows = empty_rows(capacity, 2 * obs_size + 3, device=device)
        self.position = self.size = 0

    def add(self, row: np.ndarray) -> None:
        """Keep a row, in place of the oldest if there is no room."""
        self.rows[self.position] = torch.from_numpy(row)
        self.position = (self.position + 1) % len(self.rows)
        self.size = min(self.size + 1, len(self.rows))

    def batch(self, index: Tensor) -> Batch:
        """The rows of these numbers [N] int64."""
        rows, n = self.rows.index_select(0, index), self.obs_size
        action, reward, terminated = rows[:, n : n + 3].unbind(dim=1)
        return Batch(rows[:, :n], action.long(), reward, terminated, rows[:, n + 3 :])


def epsilon_at(env_steps: int, args: Args) -> float:
    """Probability of a random action, which falls linearly."""
    span = args.epsilon_fraction * args.total_env_steps
    progress = min(1.0, env_steps / span) if span > 0.0 else 1.0
    return args.epsilon_initial + progress * (args.epsilon_final - args.epsilon_initial)


def train(args: Args) -> float:
    """Train, and return what the policy is worth at the end."""
    set_up(args)
    envs = [make_env(args) for _ in range(args.num_envs)]
    space: Any = envs[0].action_space
    obs_size, num_actions = envs[0].observation_space.shape[0], int(space.n)
    network = QNetwork(obs_size, num_actions).to(args.device)
    target = copy.deepcopy(network).requires_grad_(False)
    replay = Replay(args.replay_size, obs_size, args.device)
    update = accelerated(make_update(network, target, replay, args), args)
    act = accelerated(network.greedy, args)
    progress, metrics = Progress(args), dict[str, Tensor]()
    obs = np.empty((args.num_envs, obs_size), np.float32)
    seen, episode_return = torch.from_numpy(obs), np.zeros(args.num_envs)
    for i, env in enumerate(envs):
        obs[i], _ = env.reset(seed=1_000 * args.seed + i)
        env.action_space.seed(1_000 * args.seed + i)
    for env_steps in range(args.num_envs, args.total_env_steps + 1, args.num_envs):
        before = env_steps - args.num_envs
        epsilon = epsilon_at(env_steps, args)
        explores = [random.random() < epsilon for _ in envs]
        if not all(explores):
            with torch.inference_mode():
                greedy = act(seen.to(args.device)).tolist()
        for i, env in enumerate(envs):
            action = env.action_space.sample() if explores[i] else greedy[i]
            next_obs, reward, terminated, truncated, _ = env.step(action)
            # The true successor, also where the episode ends: what acting sees next is apart.
            replay.add(np.concatenate((obs[i], (action, reward, terminated), next_obs)))
            obs[i] = next_obs
            episode_return[i] += reward
            if terminated or truncated:
                progress.returns.append(episode_return[i])
                obs[i], _ = env.reset()
                episode_return[i] = 0.0
        updates = env_steps // args.train_interval - before // args.train_interval
        for _ in range(updates if env_steps > args.learning_starts else 0):
            metrics = update(torch.randint(replay.size, (args.batch_size,), device=args.device))
        if env_steps % args.target_interval < args.num_envs:
            target.load_state_dict(network.state_dict())
        is_last = env_steps + args.num_envs > args.total_env_steps
        if env_steps % args.log_every < args.num_envs or is_last:
            progress.report(env_steps, **metrics)
    return evaluate(network, args)


def make_env(args: Args) -> gym.Env:
    """One environment, refused if its spaces are not those that this program serves."""
    env = gym.make(args.env_id, disable_env_checker=True)
    obs_space, action_space = env.observation_space, env.action_space
    vector = isinstance(obs_space, gym.spaces.Box) and len(obs_space.shape) == 1
    if not vector or not isinstance(action_space, gym.spaces.Discrete) or action_space.start:
        raise SystemExit(
            f"--env-id {args.env_id} has {obs_space} and {action_space}: this program needs "
            "vectors to see and Discrete actions from 0."
        )
    return env


@torch.inference_mode()
def evaluate(network: QNetwork, args: Args) -> float:
    """Mean return of whole episodes of the greedy policy, with seeds that training never has."""
    if args.eval_episodes == 0:
        return float("nan")
    env, returns = make_env(args), []
    for episode in range(args.eval_episodes):
        obs, _ = env.reset(seed=EVALUATION_SEED + 1_000 * args.seed + episode)
        total, ended = 0.0, False
        while not ended:
            seen = torch.as_tensor(obs, dtype=torch.float32, device=args.device)
            action = network.greedy(seen[None])[0].cpu().numpy()
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"evaluation  return {np.mean(returns):.1f} +- {np.std(returns):.1f}")
    return float(np.mean(returns))


def accelerated(function: Callable[..., Any], args: Args) -> Callable[..., Any]:
    """The function, compiled and captured as the options say."""
    if args.compile:
        function = torch.compile(function)
    if args.cudagraphs:
        from tensordict.nn import CudaGraphModule  # copies inputs in, launches, copies results out

        os.environ.setdefault("EXCLUDE_TD_FROM_PYTREE", "1")  # as it needs it; else it warns
        function = CudaGraphModule(function, warmup=5)
    return function


def set_up(args: Args) -> None:
    """Refuse what cannot work, then seed everything that draws."""
    if not 0 <= args.seed < EVALUATION_SEED // 1_000:
        raise SystemExit(f"--seed {args.seed} is out of range. Use 0 to 1,073,740.")
    if args.cudagraphs and torch.device(args.device).type != "cuda":
        raise SystemExit(
            f"--cudagraphs needs a CUDA device, and --device is {args.device}. Add --device cuda, "
            "or leave --cudagraphs out."
        )
    torch.set_num_threads(args.num_threads)
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    if args.compile:
        torch._inductor.config.fallback_random = True  # draw the numbers that eager code draws
        torch._dynamo.config.trace_autograd_ops = True  # gradients without leaving the graph


class Progress:
    """Prints a line per interval, and writes it to the file."""

    def __init__(self, args: Args) -> None:
        self.start = self.last_time = time.perf_counter()
        self.last_steps, self.returns = 0, list[float]()
        self.path = args.csv
        self.write("w", "env_steps", "wall_time_s", "sps", "return")

    def write(self, mode: str, *cells: Any) -> None:
        """Write a row to the file, if there is one."""
        if self.path:
            with self.path.open(mode, newline="") as file:
                csv.writer(file).writerow(cells)

    def report(self, env_steps: int, **metrics: Tensor) -> None:
        """Say how it stands. Here, once per interval, metrics are read from the device."""
        values = {name: value.item() for name, value in metrics.items()}
        for name, value in values.items():
            if not np.isfinite(value):
                raise SystemExit(
                    f"at {env_steps} env_steps {name} is {value}: training has diverged, and no "
                    "update mends that. A smaller learning rate usually helps."
                )
        said = "".join(f"  {name} {value:.3f}" for name, value in values.items())
        now = time.perf_counter()
        sps = (env_steps - self.last_steps) / (now - self.last_time)
        mean = float(np.mean(self.returns)) if self.returns else float("nan")
        print(f"env_steps {env_steps}  sps {sps:.0f}  return {mean:.1f}{said}", flush=True)
        self.write("a", env_steps, f"{now - self.start:.3f}", f"{sps:.1f}", f"{mean:.3f}")
        self.last_time, self.last_steps, self.returns = now, env_steps, []


if __name__ == "__main__":
    train(tyro.cli(Args))

"""Twin delayed deep deterministic policy gradient (TD3), complete in this file.

    python scripts/td3_continuous.py --env-id HalfCheetah-v5 --seed 1 --csv td3.csv

Fujimoto et al. 2018, arXiv:1802.09477. Reads top to bottom: `Args`, `Actor`, `TwinCritic`,
the two losses, `make_updates`, `Replay`, `train`, `evaluate`.

Defaults are CleanRL's for MuJoCo: one environment, one update per step from 25,000 steps on,
batch 256, networks of 256 x 256, Adam with 3e-4, tau 0.005, exploration noise 0.1, target noise
0.2 clipped at 0.5, an update of the actor and of the targets with every second one of the critics.

Actions are kept in [-1, 1], the unit of all noise, and scaled to the environment's bounds only
when it is stepped. A transition bootstraps from the true last observation of an episode unless
it terminated.

`--compile` compiles acting and both updates, `--cudagraphs` captures them; each works alone.
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

    env_id: str = "HalfCheetah-v5"  # Gymnasium id; Box observations [n] and actions [k]
    total_env_steps: int = 1_000_000  # over all environments
    num_envs: int = 1  # stepped one after the other
    seed: int = 1  # of python, numpy, torch and the environments
    device: str = "cpu"  # where to act and learn: cpu, cuda, cuda:1, ...
    compile: bool = False  # compile acting and the update with torch.compile
    cudagraphs: bool = False  # capture acting and the update as CUDA graphs; needs --device cuda
    gamma: float = 0.99  # discount per step
    tau: float = 0.005  # share of the way that the targets move at each of their updates
    batch_size: int = 256  # transitions per update
    updates_per_step: int = 1  # updates of the critics per environment step
    policy_delay: int = 2  # updates of the critics per update of the actor and the targets
    learning_starts: int = 25_000  # steps of uniform random actions before the first update
    exploration_noise: float = 0.1  # standard deviation of the noise on actions
    target_noise: float = 0.2  # the same on the target actor's actions
    target_noise_clip: float = 0.5  # bound of that noise
    replay_size: int = 1_000_000  # transitions kept
    hidden_size: int = 256  # width of the two hidden layers of each network
    learning_rate: float = 3e-4  # Adam's step size
    log_every: int = 1_000  # environment steps from one progress line to the next
    eval_episodes: int = 10  # of the greedy policy after training; 0: none
    csv: Path | None = None  # file for the progress: env_steps, wall_time_s, sps, return


class MLP(nn.Module):
    """Two hidden layers with ReLU: [N, inputs] -> [N, outputs]."""

    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The layers, as functions: a module's own call costs as much as a small layer."""
        x = functional.linear(x, self.first.weight, self.first.bias).relu_()
        x = functional.linear(x, self.second.weight, self.second.bias).relu_()
        return functional.linear(x, self.last.weight, self.last.bias)


class Actor(nn.Module):
    """A deterministic policy: [N, n] observations -> [N, k] actions in [-1, 1]."""

    def __init__(self, obs_size: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.net = MLP(obs_size, hidden, action_size)

    def forward(self, obs: Tensor) -> Tensor:
        """[N, k] actions without noise."""
        return self.net(obs).tanh()


class TwinCritic(nn.Module):
    """Two Q-functions: [N, n + k] observations beside actions -> [N] and [N]."""

    def __init__(self, obs_size: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.first = MLP(obs_size + action_size, hidden, 1)
        self.second = MLP(obs_size + action_size, hidden, 1)

    def forward(self, obs_action: Tensor) -> tuple[Tensor, Tensor]:
        """Both values."""
        return self.first(obs_action).squeeze(1), self.second(obs_action).squeeze(1)


def critic_loss(
    target_actor: Actor, critic: TwinCritic, target: TwinCritic,
    batch: Batch, noise: Tensor, gamma: float, noise_clip: float,
) -> Tensor:  # fmt: skip
    """Half the squared error to y, summed over both critics (algorithm 1).

    y = r + gamma (1 - terminated) min Q'(s', clip(mu'(s') + clip(noise, -c, c), -1, 1)).
    A truncated step is not terminated, so it bootstraps.

    Args:
        target_actor: mu'.
        critic: Q.
        target: Q'.
        batch: N transitions.
        noise: [N, k] of standard deviation `target_noise`.
        gamma: discount.
        noise_clip: c.
    """
    with torch.no_grad():
        next_action = target_actor(batch.next_obs) + noise.clamp(-noise_clip, noise_clip)
        next_obs_action = torch.cat([batch.next_obs, next_action.clamp(-1.0, 1.0)], dim=1)
        next_value = torch.minimum(*target(next_obs_action))
        y = batch.reward + gamma * (1.0 - batch.terminated) * next_value
    first, second = critic(batch.obs_action)
    return 0.5 * ((first - y).square().mean() + (second - y).square().mean())


def actor_loss(actor: Actor, critic: TwinCritic, obs: Tensor) -> Tensor:
    """-mean(Q1(s, mu(s)))."""
    return -critic.first(torch.cat([obs, actor(obs)], dim=1)).mean()


@torch.compiler.disable  # its step is one kernel already
def descend(optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> None:
    """One step of an optimizer along the gradients of its parameters, in their order."""
    for parameter, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def make_updates(
    actor: Actor, critic: TwinCritic, replay: Replay, args: Args
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Updates of the critics, and of the actor with all targets, of rows [batch_size].

    Two functions, so that the delay is decided outside of what is compiled or captured.
    """
    target_actor = copy.deepcopy(actor).requires_grad_(False)
    target = copy.deepcopy(critic).requires_grad_(False)
    online = [*actor.parameters(), *critic.parameters()]
    targets = [*target_actor.parameters(), *target.parameters()]
    learned, judging = list(actor.parameters()), list(critic.parameters())
    how: dict[str, bool] = {"fused": True, "capturable": args.device.startswith("cuda")}
    actor_optimizer = torch.optim.Adam(learned, args.learning_rate, **how)
    critic_optimizer = torch.optim.Adam(judging, args.learning_rate, **how)
    noise_shape = (args.batch_size, replay.action_size)

    def update_critics(index: Tensor) -> Tensor:
        noise = args.target_noise * torch.randn(noise_shape, device=args.device)
        batch, clip = replay.batch(index), args.target_noise_clip
        loss = critic_loss(target_actor, critic, target, batch, noise, args.gamma, clip)
        value = loss.detach()
        descend(critic_optimizer, torch.autograd.grad(loss, judging))
        return value

    def update_actor(index: Tensor) -> Tensor:
        loss = actor_loss(actor, critic, replay.batch(index).obs)
        value = loss.detach()
        descend(actor_optimizer, torch.autograd.grad(loss, learned))
        with torch.no_grad():
            torch._foreach_lerp_(targets, online, args.tau)
        return value

    return update_critics, update_actor


class Batch(NamedTuple):
    """Columns of N rows of replay."""

    obs_action: Tensor  # [N, n + k]
    obs: Tensor  # [N, n]
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

    So one step is one write and one batch one gather, and [obs, action] is what critics take.
    """

    def __init__(self, capacity: int, obs_size: int, action_size: int, device: str) -> None:
        self.obs_size, self.action_size = obs_size, action_size
        self.rows = empty_rows(capacity, 2 * obs_size + action_size + 2, device=device)
        self.position = self.size = 0

    def add(self, row: np.ndarray) -> None:
        """Keep a row, in place of the oldest if there is no room."""
        self.rows[self.position] = torch.from_numpy(row)
        self.position = (self.position + 1) % len(self.rows)
        self.size = min(self.size + 1, len(self.rows))

    def batch(self, index: Tensor) -> Batch:
        """The rows of these numbers [N] int64."""
        rows, n, k = self.rows.index_select(0, index), self.obs_size, self.action_size
        return Batch(
            rows[:, : n + k], rows[:, :n], rows[:, n + k], rows[:, n + k + 1], rows[:, n + k + 2 :]
        )


def train(args: Args) -> float:
    """Train, and return what the policy is worth at the end."""
    set_up(args)
    envs = [make_env(args) for _ in range(args.num_envs)]
    space: Any = envs[0].action_space
    obs_size, action_size = envs[0].observation_space.shape[0], space.shape[0]
    actor = Actor(obs_size, action_size, args.hidden_size).to(args.device)
    critic = TwinCritic(obs_size, action_size, args.hidden_size).to(args.device)
    replay = Replay(args.replay_size, obs_size, action_size, args.device)
    update_critics, update_actor = (
        accelerated(update, args) for update in make_updates(actor, critic, replay, args)
    )
    act, updates = accelerated(actor.forward, args), 0
    progress, metrics = Progress(args), dict[str, Tensor]()
    obs = np.empty((args.num_envs, obs_size), np.float32)
    seen, episode_return = torch.from_numpy(obs), np.zeros(args.num_envs)
    for i, env in enumerate(envs):
        obs[i], _ = env.reset(seed=1_000 * args.seed + i)
        env.action_space.seed(1_000 * args.seed + i)
    for env_steps in range(args.num_envs, args.total_env_steps + 1, args.num_envs):
        learning = env_steps > args.learning_starts
        if learning:
            with torch.inference_mode():
                action = act(seen.to(args.device)).cpu().numpy()
            noise = np.random.normal(0.0, args.exploration_noise, action.shape)
            action = (action + noise).clip(-1.0, 1.0)
        else:
            action = np.random.uniform(-1.0, 1.0, (args.num_envs, action_size))
        for i, env in enumerate(envs):
            next_obs, reward, terminated, truncated, _ = env.step(to_bounds(action[i], space))
            # The true successor, also where the episode ends: what acting sees next is apart.
            replay.add(np.concatenate((obs[i], action[i], (reward, terminated), next_obs)))
            obs[i] = next_obs
            episode_return[i] += reward
            if terminated or truncated:
                progress.returns.append(episode_return[i])
                obs[i], _ = env.reset()
                episode_return[i] = 0.0
        for _ in range(args.num_envs * args.updates_per_step if learning else 0):
            index = torch.randint(replay.size, (args.batch_size,), device=args.device)
            metrics["critic_loss"] = update_critics(index)
            updates += 1
            if updates % args.policy_delay == 0:
                metrics["actor_loss"] = update_actor(index)
        is_last = env_steps + args.num_envs > args.total_env_steps
        if env_steps % args.log_every < args.num_envs or is_last:
            progress.report(env_steps, **metrics)
    return evaluate(actor, args)


def make_env(args: Args) -> gym.Env:
    """One environment, refused if its spaces are not those that this program serves."""
    env = gym.make(args.env_id, disable_env_checker=True)
    obs_space, action_space = env.observation_space, env.action_space
    box = isinstance(obs_space, gym.spaces.Box) and isinstance(action_space, gym.spaces.Box)
    if not box or len(obs_space.shape) != 1 or not action_space.is_bounded():
        raise SystemExit(
            f"--env-id {args.env_id} has {obs_space} and {action_space}: this program needs "
            "vectors to see and a bounded Box to act in."
        )
    return env


def to_bounds(action: np.ndarray, space: Any) -> np.ndarray:
    """From [-1, 1] to the bounds of the space."""
    return space.low + 0.5 * (action + 1.0) * (space.high - space.low)


@torch.inference_mode()
def evaluate(actor: Actor, args: Args) -> float:
    """Mean return of whole episodes of the greedy policy, with seeds that training never has."""
    if args.eval_episodes == 0:
        return float("nan")
    env, returns = make_env(args), []
    for episode in range(args.eval_episodes):
        obs, _ = env.reset(seed=EVALUATION_SEED + 1_000 * args.seed + episode)
        total, ended = 0.0, False
        while not ended:
            seen = torch.as_tensor(obs, dtype=torch.float32, device=args.device)
            action = actor(seen[None])[0].cpu().numpy()
            obs, reward, terminated, truncated, _ = env.step(to_bounds(action, env.action_space))
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

"""Soft actor-critic (SAC) for continuous actions, complete in this file.

    python scripts/sac_continuous.py --env-id HalfCheetah-v5 --seed 1 --csv sac.csv

Haarnoja et al. 2018, arXiv:1812.05905. Reads top to bottom: `Args`, `Actor`, `TwinCritic`,
the three losses, `make_update`, `Replay`, `train`, `evaluate`.

Defaults are CleanRL's for MuJoCo: one environment, one update per step from 5,000 steps on,
batch 256, networks of 256 x 256, Adam with 3e-4 (actor) and 1e-3 (critics, temperature), tau
0.005, learned temperature. CleanRL makes two updates of the actor every second step, this
program one every step. The log standard deviation is clamped to [-20, 2] as in the paper's code.

Actions are kept in [-1, 1] and scaled to the environment's bounds only when it is stepped. A
transition bootstraps from the true last observation of an episode unless it terminated.

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

    env_id: str = "HalfCheetah-v5"  # Gymnasium id; Box observations [n] and actions [k]
    total_env_steps: int = 1_000_000  # over all environments
    num_envs: int = 1  # stepped one after the other
    seed: int = 1  # of python, numpy, torch and the environments
    device: str = "cpu"  # where to act and learn: cpu, cuda, cuda:1, ...
    compile: bool = False  # compile acting and the update with torch.compile
    cudagraphs: bool = False  # capture acting and the update as CUDA graphs; needs --device cuda
    gamma: float = 0.99  # discount per step
    tau: float = 0.005  # share of the way that the target critics move at each update
    batch_size: int = 256  # transitions per update
    updates_per_step: int = 1  # updates per environment step
    learning_starts: int = 5_000  # steps of uniform random actions before the first update
    replay_size: int = 1_000_000  # transitions kept
    hidden_size: int = 256  # width of the two hidden layers of each network
    actor_learning_rate: float = 3e-4  # Adam's step size
    critic_learning_rate: float = 1e-3  # the same for the critics and the temperature
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
    """A Gaussian squashed by tanh: [N, n] observations -> [N, k] actions in [-1, 1]."""

    def __init__(self, obs_size: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.net = MLP(obs_size, hidden, 2 * action_size)
        self.action_size = action_size

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions [N, k] from standard normal noise [N, k], and their log-density [N].

        Appendix C: log p(a) = log N(u) - sum(log(1 - tanh(u)^2)) with a = tanh(u), the last
        term in the form 2 (log 2 - u - softplus(-2 u)), which is finite at the bounds.
        """
        mean, log_std = self.net(obs).chunk(2, dim=1)
        log_std = log_std.clamp(-20.0, 2.0)
        u = mean + log_std.exp() * noise
        log_normal = -0.5 * noise.square() - log_std - 0.9189385332046727  # log(2 pi) / 2
        log_slope = 2.0 * (0.6931471805599453 - u - functional.softplus(-2.0 * u))
        return u.tanh(), (log_normal - log_slope).sum(dim=1)

    def explore(self, obs: Tensor) -> Tensor:
        """[N, k] a sample."""
        return self.sample(obs, torch.randn((len(obs), self.action_size), device=obs.device))[0]

    def greedy(self, obs: Tensor) -> Tensor:
        """[N, k] tanh of the mean."""
        return self.net(obs)[:, : self.action_size].tanh()


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
    actor: Actor, critic: TwinCritic, target: TwinCritic, alpha: Tensor,
    batch: Batch, noise: Tensor, gamma: float,
) -> Tensor:  # fmt: skip
    """Half the squared error to y, summed over both critics (eqs. 5 and 6).

    y = r + gamma (1 - terminated) (min Q'(s', a') - alpha log pi(a'|s')), a' from the policy.
    A truncated step is not terminated, so it bootstraps.
    """
    with torch.no_grad():
        next_action, next_log_prob = actor.sample(batch.next_obs, noise)
        next_value = torch.minimum(*target(torch.cat([batch.next_obs, next_action], dim=1)))
        soft_value = next_value - alpha * next_log_prob
        y = batch.reward + gamma * (1.0 - batch.terminated) * soft_value
    first, second = critic(batch.obs_action)
    return 0.5 * ((first - y).square().mean() + (second - y).square().mean())


def actor_loss(
    actor: Actor, critic: TwinCritic, alpha: Tensor, obs: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """mean(alpha log pi(a|s) - min Q(s, a)) of the policy's own action (eq. 9).

    Returns:
        The loss [] and the entropy [], for the temperature, without gradient.
    """
    action, log_prob = actor.sample(obs, noise)
    value = torch.minimum(*critic(torch.cat([obs, action], dim=1)))
    return (alpha * log_prob - value).mean(), -log_prob.detach().mean()


def temperature_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: float) -> Tensor:
    """(H - target) log alpha: entropy to spare lowers alpha (eq. 18, in log alpha)."""
    return log_alpha * (entropy - target_entropy)


@torch.compiler.disable  # its step is one kernel already
def descend(optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> None:
    """One step of an optimizer along the gradients of its parameters, in their order."""
    for parameter, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def make_update(
    actor: Actor, critic: TwinCritic, replay: Replay, args: Args
) -> Callable[[Tensor], dict[str, Tensor]]:
    """The whole update as a function of the rows [batch_size] to learn from; never waits."""
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = torch.zeros((), device=args.device, requires_grad=True)
    online, targets = list(critic.parameters()), list(target.parameters())
    learned = list(actor.parameters())
    how: dict[str, bool] = {"fused": True, "capturable": args.device.startswith("cuda")}
    actor_optimizer = torch.optim.Adam(learned, args.actor_learning_rate, **how)
    critic_optimizer = torch.optim.Adam(online, args.critic_learning_rate, **how)
    alpha_optimizer = torch.optim.Adam([log_alpha], args.critic_learning_rate, **how)
    noise_shape = (2, args.batch_size, replay.action_size)

    def update(index: Tensor) -> dict[str, Tensor]:
        batch = replay.batch(index)
        noise = torch.randn(noise_shape, device=args.device)
        alpha = log_alpha.detach().exp()
        q_loss = critic_loss(actor, critic, target, alpha, batch, noise[0], args.gamma)
        metrics = {"alpha": alpha, "critic_loss": q_loss.detach()}
        descend(critic_optimizer, torch.autograd.grad(q_loss, online))
        # One sample of actions serves the actor and the temperature.
        pi_loss, entropy = actor_loss(actor, critic, alpha, batch.obs, noise[1])
        metrics |= {"actor_loss": pi_loss.detach(), "entropy": entropy}
        descend(actor_optimizer, torch.autograd.grad(pi_loss, learned))
        alpha_loss = temperature_loss(log_alpha, entropy, -float(replay.action_size))
        descend(alpha_optimizer, torch.autograd.grad(alpha_loss, [log_alpha]))
        with torch.no_grad():
            torch._foreach_lerp_(targets, online, args.tau)
        return metrics

    return update


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
    update = accelerated(make_update(actor, critic, replay, args), args)
    act = accelerated(actor.explore, args)
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
            metrics = update(torch.randint(replay.size, (args.batch_size,), device=args.device))
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
            action = actor.greedy(seen[None])[0].cpu().numpy()
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

"""Advantage actor-critic (A2C) for Discrete actions, complete in this file.

    python scripts/a2c.py --env-id CartPole-v1 --seed 1 --csv a2c.csv

Mnih et al. 2016, arXiv:1602.01783, in its synchronous form. Reads top to bottom: `Args`,
`Agent`, `a2c_loss`, `gae`, `make_update`, `Collector`, `train`, `evaluate`.

Defaults are the usual ones of the synchronous form (CleanRL has no A2C): 8 environments, 5 steps
per iteration, gamma 0.99, lambda 1 (n-step returns), value loss weighted 0.5, no entropy bonus,
gradients clipped at 0.5, RMSprop with 7e-4, smoothing 0.99 and epsilon 1e-5, separate networks
of 64 x 64 with tanh.

Gymnasium's vector environments reset an environment in the step after the end of its episode,
whatever the action. That step is no experience: its row is masked out of the loss and no
advantage passes it. What it *sees* is the true last observation, so its value is what a truncated
episode bootstraps from.

`--compile` compiles acting and the update, `--cudagraphs` captures both; each works alone.
"""

from __future__ import annotations

import csv
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
    num_envs: int = 8  # B, stepped one after the other
    seed: int = 1  # of python, numpy, torch and the environments
    device: str = "cpu"  # where to act and learn: cpu, cuda, cuda:1, ...
    compile: bool = False  # compile acting and the update with torch.compile
    cudagraphs: bool = False  # capture acting and the update as CUDA graphs; needs --device cuda
    rollout_length: int = 5  # T, steps per environment and iteration
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 1.0  # of generalized advantage estimation; 1 gives n-step returns
    entropy_coef: float = 0.0  # weight of the entropy bonus
    value_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # gradients are scaled down to this L2 norm
    hidden_size: int = 64  # width of the two hidden layers of each network
    learning_rate: float = 7e-4  # RMSprop's step size
    num_threads: int = 1  # of torch on the CPU; more do not help networks this small
    log_every: int = 10_000  # environment steps from one progress line to the next
    eval_episodes: int = 10  # of the greedy policy after training; 0: none
    csv: Path | None = None  # file for the progress: env_steps, wall_time_s, sps, return


class MLP(nn.Module):
    """Two hidden layers with tanh, orthogonal weights: [N, inputs] -> [N, outputs]."""

    def __init__(self, inputs: int, hidden: int, outputs: int, last_gain: float) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, outputs)
        for layer, gain in (self.first, 2**0.5), (self.second, 2**0.5), (self.last, last_gain):
            nn.init.orthogonal_(layer.weight, gain)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The layers, as functions: a module's own call costs more than a layer this small."""
        x = functional.linear(x, self.first.weight, self.first.bias).tanh_()
        x = functional.linear(x, self.second.weight, self.second.bias).tanh_()
        return functional.linear(x, self.last.weight, self.last.bias)


class Agent(nn.Module):
    """A categorical policy and a value function of observations [N, n]."""

    def __init__(self, obs_size: int, num_actions: int, hidden: int) -> None:
        super().__init__()
        self.policy = MLP(obs_size, hidden, num_actions, last_gain=0.01)
        self.critic = MLP(obs_size, hidden, 1, last_gain=1.0)

    def value(self, obs: Tensor) -> Tensor:
        """[N] V(s)."""
        return self.critic(obs).squeeze(1)

    def act(self, obs: Tensor) -> Tensor:
        """[N, 2] a sampled action and the value, for one copy to the host."""
        probability = self.policy(obs).softmax(dim=1)
        # The greatest of p / e with exponential e is each action with its probability.
        action = (probability / torch.empty_like(probability).exponential_()).argmax(dim=1)
        return torch.stack([action.to(obs.dtype), self.value(obs)], dim=1)


class Batch(NamedTuple):
    """N rows to learn from."""

    obs: Tensor  # [N, n]
    action: Tensor  # [N] int64
    advantage: Tensor  # [N]
    value_target: Tensor  # [N]
    valid: Tensor  # [N] 1, or 0 for a filler step


def a2c_loss(agent: Agent, batch: Batch, args: Args) -> tuple[Tensor, Tensor]:
    """-log pi(a|s) A, half the squared error of V, and minus the entropy, over valid rows.

    Returns:
        The loss [] and the entropy [] in nats.
    """
    weight = batch.valid / batch.valid.sum().clamp(min=1.0)
    log_probs = agent.policy(batch.obs).log_softmax(dim=1)
    log_prob = log_probs.gather(1, batch.action[:, None]).squeeze(1)
    policy_loss = -(weight * log_prob * batch.advantage).sum()
    value_loss = 0.5 * (weight * (agent.value(batch.obs) - batch.value_target).square()).sum()
    entropy = -(weight * (log_probs.exp() * log_probs).sum(dim=1)).sum()
    loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy
    return loss, entropy.detach()


def reverse_scan(addend: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """[T, B] x with x_t = addend_t + decay_t x_{t+1} and x_T = 0.

    In Python floats: for few environments that is much faster than T operations on arrays.
    """
    result = np.empty_like(addend)
    for b in range(addend.shape[1]):
        running, column = 0.0, []
        for a, d in zip(addend[::-1, b].tolist(), decay[::-1, b].tolist(), strict=True):
            running = a + d * running
            column.append(running)
        result[::-1, b] = column
    return result


def gae(
    reward: np.ndarray, value: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    valid: np.ndarray, gamma: float, gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Advantages and value targets (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

        delta_t = r_t + gamma (1 - terminated_t) V_{t+1} - V_t
        A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1},    A_T = 0

    After an end, row t + 1 is a filler step. It sees the true last observation, so V_{t+1} is
    right to bootstrap from where the end was a truncation. Its own advantage is 0.

    Args:
        reward: [T, B].
        value: [T + 1, B], the last row that of what is seen after the rollout.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        valid: [T, B] bool, false in a filler step.
        gamma: discount.
        gae_lambda: lambda.
    """
    delta = reward + gamma * np.where(terminated, 0.0, value[1:]) - value[:-1]
    decay = gamma * gae_lambda * (valid & ~terminated & ~truncated)
    advantage = reverse_scan(np.where(valid, delta, 0.0), decay)
    return advantage, advantage + value[:-1]


def clipped(gradients: Sequence[Tensor], max_norm: float) -> Sequence[Tensor]:
    """The gradients, scaled down in place to an L2 norm of at most `max_norm`."""
    norm = torch.stack(torch._foreach_norm(gradients)).norm()
    torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp(max=1.0))
    return gradients


@torch.compiler.disable  # its step is one kernel already
def descend(optimizer: torch.optim.Optimizer, gradients: Sequence[Tensor]) -> None:
    """One step of an optimizer along the gradients of its parameters, in their order."""
    for parameter, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def make_update(
    agent: Agent, optimizer: torch.optim.Optimizer, args: Args
) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """The update as a function of the rollout's rows; never waits."""
    parameters = list(agent.parameters())

    def update(obs: Tensor, columns: Tensor) -> dict[str, Tensor]:
        action, *others = columns.unbind(dim=1)
        loss, entropy = a2c_loss(agent, Batch(obs, action.long(), *others), args)
        metrics = {"loss": loss.detach(), "entropy": entropy}
        gradients = torch.autograd.grad(loss, parameters)
        descend(optimizer, clipped(gradients, args.max_grad_norm))
        return metrics

    return update


class Collector:
    """Steps the environments, and makes rows to learn from of what it sees."""

    def __init__(self, envs: gym.vector.VectorEnv, args: Args, progress: Progress) -> None:
        self.envs, self.args, self.progress = envs, args, progress
        seeds = [1_000 * args.seed + i for i in range(args.num_envs)]
        self.seen, _ = envs.reset(seed=seeds)
        envs.action_space.seed(1_000 * args.seed)
        self.ended, self.score = np.zeros(args.num_envs, bool), np.zeros(args.num_envs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, ...]:
        """Reward, terminated, truncated and valid, each [B], of one step."""
        valid = ~self.ended
        self.seen, reward, terminated, truncated, _ = self.envs.step(action)
        self.ended = terminated | truncated
        self.score += np.where(valid, reward, 0.0)
        if self.ended.any():
            self.progress.returns.extend(self.score[self.ended].tolist())
            self.score[self.ended] = 0.0
        return reward, terminated, truncated, valid

    @torch.inference_mode()
    def collect(self, act: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, int]:
        """Observations [T * B, n], the other columns [T * B, 4], and the number of valid steps."""
        args, obs, acted, steps = self.args, [], [], []
        for _ in range(args.rollout_length):
            obs.append(self.seen.astype(np.float32))
            acted.append(act(torch.from_numpy(obs[-1]).to(args.device)).cpu().numpy().T)
            steps.append(self.step(acted[-1][0].astype(np.int64)))
        last = torch.from_numpy(self.seen.astype(np.float32)).to(args.device)
        value = np.stack([value for _, value in acted] + [act(last).cpu().numpy()[:, 1]])
        reward, terminated, truncated, valid = map(np.stack, zip(*steps, strict=True))
        estimates = gae(reward, value, terminated, truncated, valid, args.gamma, args.gae_lambda)
        action = np.stack([action for action, _ in acted])
        columns = np.stack([action, *estimates, valid], axis=-1).astype(np.float32)
        rows = torch.from_numpy(np.concatenate(obs)), torch.from_numpy(columns).flatten(0, 1)
        return rows[0].to(args.device), rows[1].to(args.device), int(valid.sum())


def train(args: Args) -> float:
    """Train, and return what the policy is worth at the end."""
    set_up(args)
    env = make_env(args)
    # Autoreset in the next step is Gymnasium's default, said here as the rows depend on it.
    envs = gym.make_vec(
        args.env_id,
        args.num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP},
    )
    sizes = env.observation_space.shape[0], int(env.action_space.n)
    agent = Agent(*sizes, args.hidden_size).to(args.device)
    optimizer = torch.optim.RMSprop(
        agent.parameters(), args.learning_rate, alpha=0.99, eps=1e-5, foreach=True,
        capturable=args.device.startswith("cuda"),
    )  # fmt: skip
    update = accelerated(make_update(agent, optimizer, args), args)
    act = accelerated(agent.act, args)
    progress, env_steps = Progress(args), 0
    collector = Collector(envs, args, progress)
    while env_steps < args.total_env_steps:
        obs, columns, steps = collector.collect(act)
        metrics = update(obs.clone(), columns.clone())
        env_steps += steps
        if env_steps % args.log_every < steps or env_steps >= args.total_env_steps:
            progress.report(env_steps, **metrics)
    return evaluate(agent, args)


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
def evaluate(agent: Agent, args: Args) -> float:
    """Mean return of whole episodes of the greedy policy, with seeds that training never has."""
    if args.eval_episodes == 0:
        return float("nan")
    env, returns = make_env(args), []
    for episode in range(args.eval_episodes):
        obs, _ = env.reset(seed=EVALUATION_SEED + 1_000 * args.seed + episode)
        total, ended = 0.0, False
        while not ended:
            seen = torch.as_tensor(obs, dtype=torch.float32, device=args.device)
            action = agent.policy(seen[None])[0].argmax().cpu().numpy()
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

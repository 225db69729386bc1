"""REINFORCE with a learned baseline for Discrete actions, complete in this file.

    python scripts/reinforce.py --env-id CartPole-v1 --seed 1 --csv reinforce.csv

Williams 1992; Sutton and Barto 2018, section 13.4. Reads top to bottom: `Args`, `Agent`,
`reinforce_loss`, `rewards_to_go`, `make_update`, `Episodes`, `train`, `evaluate`.

Defaults (CleanRL has no REINFORCE): 8 environments, one episode of each per iteration and one
optimizer step of all of them, gamma 0.99, advantages of mean 0 and standard deviation 1, gradients
clipped at 0.5, Adam with 3e-3, separate networks of 64 x 64 with tanh.

An environment that has finished its episode waits for the others: its rows are not valid, and
the loss masks them. An episode that is truncated, by its time limit or after `--rollout-length`
steps, ends in the value of its true last observation.

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
    total_env_steps: int = 300_000  # over all environments; the last iteration is finished
    num_envs: int = 8  # B, episodes per iteration
    seed: int = 1  # of python, numpy, torch and the environments
    device: str = "cpu"  # where to act and learn: cpu, cuda, cuda:1, ...
    compile: bool = False  # compile acting and the update with torch.compile
    cudagraphs: bool = False  # capture acting and the update as CUDA graphs; needs --device cuda
    rollout_length: int = 500  # T, steps after which an episode is cut off
    gamma: float = 0.99  # discount per step
    entropy_coef: float = 0.0  # weight of the entropy bonus
    value_coef: float = 0.5  # weight of the baseline's loss
    max_grad_norm: float = 0.5  # gradients are scaled down to this L2 norm
    hidden_size: int = 64  # width of the two hidden layers of each network
    learning_rate: float = 3e-3  # Adam's step size
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
        """[N] int64 sampled actions."""
        probability = self.policy(obs).softmax(dim=1)
        # The greatest of p / e with exponential e is each action with its probability.
        return (probability / torch.empty_like(probability).exponential_()).argmax(dim=1)


class Batch(NamedTuple):
    """N rows to learn from."""

    obs: Tensor  # [N, n]
    action: Tensor  # [N] int64
    to_go: Tensor  # [N] discounted reward-to-go
    baseline: Tensor  # [N] V(s) before the update
    valid: Tensor  # [N] 1, or 0 where the episode was over


def reinforce_loss(agent: Agent, batch: Batch, args: Args) -> tuple[Tensor, Tensor]:
    """-log pi(a|s) A, half the squared error of V, and minus the entropy, over valid rows.

    A = G - V(s), given mean 0 and standard deviation 1 over the valid rows.

    Returns:
        The loss [] and the entropy [] in nats.
    """
    weight = batch.valid / batch.valid.sum().clamp(min=1.0)
    advantage = batch.to_go - batch.baseline
    advantage = advantage - (weight * advantage).sum()
    advantage = advantage / ((weight * advantage.square()).sum().sqrt() + 1e-8)
    log_probs = agent.policy(batch.obs).log_softmax(dim=1)
    log_prob = log_probs.gather(1, batch.action[:, None]).squeeze(1)
    policy_loss = -(weight * log_prob * advantage).sum()
    value_loss = 0.5 * (weight * (agent.value(batch.obs) - batch.to_go).square()).sum()
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


def rewards_to_go(
    reward: np.ndarray, next_value: np.ndarray, terminated: np.ndarray, truncated: np.ndarray,
    gamma: float,
) -> np.ndarray:  # fmt: skip
    """[T, B] G_t = r_t + gamma G_{t+1} within an episode (Sutton and Barto 2018, eq. 3.9).

    Its last row is r_t if it terminated, r_t + gamma V(s') of the true s' if truncated.

    Args:
        reward: [T, B], 0 where not valid.
        next_value: [T, B] V(s') of each step's true successor.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        gamma: discount.
    """
    tail = np.where(truncated & ~terminated, gamma * next_value, 0.0)
    return reverse_scan(reward + tail, gamma * ~(terminated | truncated))


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
    """The update as a function of the rows of the episodes; never waits."""
    parameters = list(agent.parameters())

    def update(obs: Tensor, columns: Tensor) -> dict[str, Tensor]:
        action, *others = columns.unbind(dim=1)
        loss, entropy = reinforce_loss(agent, Batch(obs, action.long(), *others), args)
        metrics = {"loss": loss.detach(), "entropy": entropy}
        gradients = torch.autograd.grad(loss, parameters)
        descend(optimizer, clipped(gradients, args.max_grad_norm))
        return metrics

    return update


class Episodes:
    """One episode of each environment, in arrays [T, B, ...] that are 0 after its end."""

    def __init__(self, envs: list[gym.Env], args: Args) -> None:
        self.envs, self.args = envs, args
        shape = (args.rollout_length, len(envs))
        self.obs, self.next_obs = (
            np.empty((*shape, *envs[0].observation_space.shape), np.float32) for _ in range(2)
        )
        self.action, self.reward = np.empty(shape, np.int64), np.empty(shape, np.float32)
        self.terminated, self.truncated, self.valid = (np.empty(shape, bool) for _ in range(3))
        for i, env in enumerate(envs):
            env.reset(seed=1_000 * args.seed + i)
            env.action_space.seed(1_000 * args.seed + i)

    @torch.inference_mode()
    def run(self, act: Callable[[Tensor], Tensor]) -> None:
        """Play them."""
        for array in (self.obs, self.next_obs, self.action, self.reward):
            array.fill(0)
        for array in (self.terminated, self.truncated, self.valid):
            array.fill(False)
        seen = np.stack([env.reset()[0] for env in self.envs]).astype(np.float32)
        running, t = set(range(len(self.envs))), 0
        while running and t < self.args.rollout_length:
            action = act(torch.from_numpy(seen).to(self.args.device)).tolist()
            for i in list(running):
                self.obs[t, i], self.action[t, i], self.valid[t, i] = seen[i], action[i], True
                obs, reward, terminated, truncated, _ = self.envs[i].step(action[i])
                truncated = truncated or (t == self.args.rollout_length - 1 and not terminated)
                seen[i] = self.next_obs[t, i] = obs  # the true successor, also at the end
                self.reward[t, i] = float(reward)
                self.terminated[t, i], self.truncated[t, i] = terminated, truncated
                if terminated or truncated:
                    running.remove(i)
            t += 1


@torch.inference_mode()
def training_rows(agent: Agent, episodes: Episodes, args: Args) -> tuple[Tensor, Tensor]:
    """Observations [T * B, n] and the other columns [T * B, 4]."""
    obs, next_obs = (
        torch.from_numpy(array).flatten(0, 1).to(args.device)
        for array in (episodes.obs, episodes.next_obs)
    )
    baseline, next_value = (
        agent.value(seen).cpu().numpy().reshape(episodes.valid.shape) for seen in (obs, next_obs)
    )
    ends = episodes.terminated, episodes.truncated
    to_go = rewards_to_go(episodes.reward, next_value, *ends, args.gamma)
    columns = np.stack([episodes.action, to_go, baseline, episodes.valid], axis=-1)
    return obs, torch.from_numpy(columns.astype(np.float32)).flatten(0, 1).to(args.device)


def train(args: Args) -> float:
    """Train, and return what the policy is worth at the end."""
    set_up(args)
    envs = [make_env(args) for _ in range(args.num_envs)]
    sizes = envs[0].observation_space.shape[0], int(envs[0].action_space.n)
    agent = Agent(*sizes, args.hidden_size).to(args.device)
    optimizer = torch.optim.Adam(
        agent.parameters(), args.learning_rate, eps=1e-5, fused=True,
        capturable=args.device.startswith("cuda"),
    )  # fmt: skip
    update = accelerated(make_update(agent, optimizer, args), args)
    act = accelerated(agent.act, args)
    progress, episodes, env_steps = Progress(args), Episodes(envs, args), 0
    while env_steps < args.total_env_steps:
        episodes.run(act)
        obs, columns = training_rows(agent, episodes, args)
        metrics = update(obs.clone(), columns.clone())
        progress.returns.extend(episodes.reward.sum(axis=0).tolist())
        steps = int(episodes.valid.sum())
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

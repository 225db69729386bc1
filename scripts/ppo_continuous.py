"""Proximal policy optimization (PPO) for continuous actions, complete in this file.

    python scripts/ppo_continuous.py --env-id HalfCheetah-v5 --seed 1 --csv ppo.csv

Schulman et al. 2017, arXiv:1707.06347. Reads top to bottom: `Args`, `Agent`, `ppo_loss`, `gae`,
`make_update`, `RunningNormalizer`, `Collector`, `train`, `evaluate`.

Defaults are CleanRL's for MuJoCo: one environment, 2048 steps per iteration, 10 epochs of 32
minibatches, gamma 0.99, lambda 0.95, clipping at 0.2 of ratio and value, no entropy bonus,
gradients clipped at 0.5, separate networks of 64 x 64 with tanh, Adam with 3e-4 falling to 0 and
epsilon 1e-5; observations and rewards normalized by running statistics and cut off at 10.

Values and log-probabilities are computed for the whole rollout at once, also those of the true
successor of every step: so the last observation of a truncated episode bootstraps.

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

    env_id: str = "HalfCheetah-v5"  # Gymnasium id; Box observations [n] and actions [k]
    total_env_steps: int = 1_000_000  # over all environments
    num_envs: int = 1  # stepped one after the other
    seed: int = 1  # of python, numpy, torch and the environments
    device: str = "cpu"  # where to act and learn: cpu, cuda, cuda:1, ...
    compile: bool = False  # compile acting and the update with torch.compile
    cudagraphs: bool = False  # capture acting and the update as CUDA graphs; needs --device cuda
    rollout_length: int = 2_048  # T, steps per environment and iteration
    num_epochs: int = 10  # passes over each rollout
    num_minibatches: int = 32  # equal parts of a rollout
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 0.95  # of generalized advantage estimation
    clip_range: float = 0.2  # largest change of ratio and value that is rewarded
    entropy_coef: float = 0.0  # weight of the entropy bonus
    value_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # gradients are scaled down to this L2 norm
    hidden_size: int = 64  # width of the two hidden layers of each network
    learning_rate: float = 3e-4  # Adam's step size at the start, falling to 0
    num_threads: int = 1  # of torch on the CPU; more do not help networks this small
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
    """A Gaussian policy, its standard deviation the same everywhere, and a value function."""

    def __init__(self, obs_size: int, action_size: int, hidden: int) -> None:
        super().__init__()
        self.mean = MLP(obs_size, hidden, action_size, last_gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(action_size))
        self.critic = MLP(obs_size, hidden, 1, last_gain=1.0)

    def act(self, obs: Tensor) -> Tensor:
        """[N, k] a sample."""
        mean = self.mean(obs)
        return torch.addcmul(mean, self.log_std.exp(), torch.randn_like(mean))

    def value(self, obs: Tensor) -> Tensor:
        """[N] V(s)."""
        return self.critic(obs).squeeze(1)

    def log_prob(self, obs: Tensor, action: Tensor) -> Tensor:
        """[N] log-density of actions [N, k]."""
        noise = (action - self.mean(obs)) * (-self.log_std).exp()
        return -0.5 * noise.square().sum(dim=1) - (self.log_std + 0.9189385332046727).sum()

    def entropy(self) -> Tensor:
        """[] in nats, of every state."""
        return (self.log_std + 1.4189385332046727).sum()  # (1 + log(2 pi)) / 2


class Batch(NamedTuple):
    """N rows to learn from."""

    obs: Tensor  # [N, n]
    action: Tensor  # [N, k]
    log_prob: Tensor  # [N] under the policy that acted
    value: Tensor  # [N] before the update
    advantage: Tensor  # [N]
    value_target: Tensor  # [N]


def ppo_loss(agent: Agent, batch: Batch, args: Args) -> tuple[Tensor, Tensor]:
    """Clipped surrogate (eq. 7), clipped value loss and entropy bonus.

    Advantages get mean 0 and standard deviation 1 in the batch.

    Returns:
        The loss [], and the estimate [] of the KL divergence, E[(r - 1) - log r].
    """
    advantage = batch.advantage - batch.advantage.mean()
    advantage = advantage / (advantage.square().mean().sqrt() + 1e-8)
    log_ratio = agent.log_prob(batch.obs, batch.action) - batch.log_prob
    ratio = log_ratio.exp()
    near_one = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
    policy_loss = -torch.minimum(ratio * advantage, near_one * advantage).mean()
    change = agent.value(batch.obs) - batch.value
    error = batch.value - batch.value_target
    near = change.clamp(-args.clip_range, args.clip_range)
    value_loss = 0.5 * torch.maximum((error + change).square(), (error + near).square()).mean()
    loss = policy_loss + args.value_coef * value_loss
    if args.entropy_coef:
        loss = loss - args.entropy_coef * agent.entropy()
    return loss, (ratio - 1.0 - log_ratio).detach().mean()


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
    reward: np.ndarray, value: np.ndarray, next_value: np.ndarray,
    terminated: np.ndarray, truncated: np.ndarray, gamma: float, gae_lambda: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Advantages and value targets (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

        delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
        A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1},    A_T = 0

    Args:
        reward: [T, B].
        value: [T, B] V(s).
        next_value: [T, B] V(s') of each step's true successor, which a truncated step has too.
        terminated: [T, B] bool.
        truncated: [T, B] bool.
        gamma: discount.
        gae_lambda: lambda.
    """
    delta = reward + gamma * np.where(terminated, 0.0, next_value) - value
    advantage = reverse_scan(delta, gamma * gae_lambda * ~(terminated | truncated))
    return advantage, advantage + value


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
) -> Callable[..., dict[str, Tensor]]:
    """One optimizer step as a function of a minibatch's rows; never waits."""
    parameters = list(agent.parameters())

    def update(rows: Tensor) -> dict[str, Tensor]:
        loss, approx_kl = ppo_loss(agent, unpacked(rows, len(agent.log_std)), args)
        metrics = {"loss": loss.detach(), "approx_kl": approx_kl}
        gradients = torch.autograd.grad(loss, parameters)
        descend(optimizer, clipped(gradients, args.max_grad_norm))
        return metrics

    return update


def unpacked(rows: Tensor, action_size: int) -> Batch:
    """The columns of rows [N, n + k + 4]: one gather shuffles them all."""
    obs_size = rows.shape[1] - action_size - 4
    obs, action, others = rows.split((obs_size, action_size, 4), dim=1)
    return Batch(obs, action, *others.unbind(dim=1))


class RunningNormalizer:
    """Divides by the standard deviation of all that was seen so far (Welford 1962).

    Args:
        shape: of what is normalized.
        center: whether the mean is taken off first.
    """

    def __init__(self, shape: tuple[int, ...], center: bool) -> None:
        self.count, self.center = 0, center
        self.mean, self.squares = np.zeros(shape), np.zeros(shape)

    def observe(self, x: Any) -> None:
        """Count x [*shape] in."""
        self.count += 1
        delta = x - self.mean
        self.mean = self.mean + delta / self.count
        self.squares = self.squares + delta * (x - self.mean)

    def __call__(self, x: Any) -> np.ndarray:
        """[*shape] x, normalized and cut off at 10."""
        scale = 1.0 / np.sqrt(self.squares / max(self.count, 1) + 1e-8)
        return ((x - self.mean if self.center else x) * scale).clip(-10.0, 10.0)


class Collector:
    """Steps the environments and keeps the rollout in arrays [T, B, ...]."""

    def __init__(self, envs: list[gym.Env], args: Args, progress: Progress) -> None:
        self.envs, self.args, self.progress = envs, args, progress
        space: Any = envs[0].action_space
        self.low, self.high = space.low, space.high
        obs_size = envs[0].observation_space.shape[0]
        self.normalizer = RunningNormalizer((obs_size,), center=True)
        self.reward_scale = RunningNormalizer((), center=False)
        shape = (args.rollout_length, len(envs))
        self.obs, self.next_obs = (np.empty((*shape, obs_size), np.float32) for _ in range(2))
        self.action = np.empty((*shape, *space.shape), np.float32)
        self.reward, self.terminated, self.truncated = (
            np.empty(shape, dtype) for dtype in (np.float32, bool, bool)
        )
        self.seen = np.empty((len(envs), obs_size), np.float32)
        self.discounted = np.zeros(len(envs))
        self.episode_return = np.zeros(len(envs))
        for i, env in enumerate(envs):
            self.seen[i] = self.normalized(env.reset(seed=1_000 * args.seed + i)[0])
            env.action_space.seed(1_000 * args.seed + i)

    def normalized(self, obs: np.ndarray) -> np.ndarray:
        """An observation after it is counted into the statistics."""
        self.normalizer.observe(obs)
        return self.normalizer(obs)

    def scaled(self, i: int, reward: float, ended: bool) -> float:
        """A reward over the standard deviation of the discounted return so far."""
        self.discounted[i] = self.discounted[i] * self.args.gamma + reward
        self.reward_scale.observe(self.discounted[i])
        if ended:
            self.discounted[i] = 0.0
        return float(self.reward_scale(reward))

    @torch.inference_mode()
    def collect(self, act: Callable[[Tensor], Tensor]) -> None:
        """One rollout. `next_obs` is the true successor, also where an episode ends."""
        seen = torch.from_numpy(self.seen)
        for t in range(self.args.rollout_length):
            self.obs[t] = self.seen
            self.action[t] = act(seen.to(self.args.device)).cpu().numpy()
            for i, env in enumerate(self.envs):
                self.step(t, i, env)

    def step(self, t: int, i: int, env: gym.Env) -> None:
        """Step environment i, and reset it if its episode ends."""
        # The policy is unbounded; only what the environment gets is cut off.
        action = np.minimum(np.maximum(self.action[t, i], self.low), self.high)
        obs, reward, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
        self.seen[i] = self.next_obs[t, i] = self.normalized(obs)
        self.reward[t, i] = self.scaled(i, float(reward), ended)
        self.terminated[t, i], self.truncated[t, i] = terminated, truncated
        self.episode_return[i] += float(reward)
        if ended:
            self.progress.returns.append(self.episode_return[i])
            self.episode_return[i] = 0.0
            self.seen[i] = self.normalized(env.reset()[0])


@torch.inference_mode()
def training_rows(agent: Agent, rollout: Collector, args: Args) -> Tensor:
    """[T * B, n + k + 4] what `unpacked` takes apart, of one rollout."""
    shape = rollout.reward.shape
    obs, action, next_obs = (
        torch.from_numpy(array).flatten(0, 1).to(args.device)
        for array in (rollout.obs, rollout.action, rollout.next_obs)
    )
    log_prob, value, next_value = (
        agent.log_prob(obs, action), agent.value(obs), agent.value(next_obs),
    )  # fmt: skip
    advantage, value_target = gae(
        rollout.reward, value.cpu().numpy().reshape(shape), next_value.cpu().numpy().reshape(shape),
        rollout.terminated, rollout.truncated, args.gamma, args.gae_lambda,
    )  # fmt: skip
    estimates = torch.from_numpy(np.stack((advantage, value_target), axis=-1)).flatten(0, 1)
    columns = [log_prob[:, None], value[:, None], estimates.to(args.device)]
    return torch.cat([obs, action, *columns], dim=1)


def train(args: Args) -> float:
    """Train, and return what the policy is worth at the end."""
    set_up(args)
    envs = [make_env(args) for _ in range(args.num_envs)]
    sizes = envs[0].observation_space.shape[0], envs[0].action_space.shape[0]
    agent = Agent(*sizes, args.hidden_size).to(args.device)
    learning_rate = torch.tensor(args.learning_rate, device=args.device)  # it falls
    optimizer = torch.optim.Adam(
        agent.parameters(), learning_rate, eps=1e-5, fused=True,
        capturable=args.device.startswith("cuda"),
    )  # fmt: skip
    update = accelerated(make_update(agent, optimizer, args), args)
    act = accelerated(agent.act, args)
    progress = Progress(args)
    collector = Collector(envs, args, progress)
    rollout_size = args.rollout_length * args.num_envs
    iterations = args.total_env_steps // rollout_size
    for iteration in range(iterations):
        learning_rate.fill_(args.learning_rate * (1.0 - iteration / iterations))
        collector.collect(act)
        rows = training_rows(agent, collector, args).clone()
        for _ in range(args.num_epochs):
            order = torch.randperm(rollout_size, device=args.device)
            for minibatch in rows[order].split(rollout_size // args.num_minibatches):
                metrics = update(minibatch)
        progress.report((iteration + 1) * rollout_size, **metrics)
    return evaluate(agent, collector.normalizer, args)


def make_env(args: Args) -> gym.Env:
    """One environment, refused if its spaces are not those that this program serves."""
    env = gym.make(args.env_id, disable_env_checker=True)
    obs_space, action_space = env.observation_space, env.action_space
    box = isinstance(obs_space, gym.spaces.Box) and isinstance(action_space, gym.spaces.Box)
    if not box or len(obs_space.shape) != 1 or len(action_space.shape) != 1:
        raise SystemExit(
            f"--env-id {args.env_id} has {obs_space} and {action_space}: this program needs "
            "vectors to see and a Box of numbers to act in."
        )
    return env


@torch.inference_mode()
def evaluate(agent: Agent, normalizer: RunningNormalizer, args: Args) -> float:
    """Mean return of whole episodes of the greedy policy, with seeds that training never has."""
    if args.eval_episodes == 0:
        return float("nan")
    env, returns = make_env(args), []
    space: Any = env.action_space
    for episode in range(args.eval_episodes):
        obs, _ = env.reset(seed=EVALUATION_SEED + 1_000 * args.seed + episode)
        total, ended = 0.0, False
        while not ended:
            seen = torch.as_tensor(normalizer(obs), dtype=torch.float32, device=args.device)
            action = agent.mean(seen[None])[0].cpu().numpy().clip(space.low, space.high)
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
    rollout_size = args.rollout_length * args.num_envs
    if rollout_size % args.num_minibatches or args.total_env_steps < rollout_size:
        raise SystemExit(
            f"A rollout has {args.rollout_length} * {args.num_envs} = {rollout_size} steps: "
            f"--num-minibatches {args.num_minibatches} must divide it, and --total-env-steps "
            f"{args.total_env_steps} must be at least as much."
        )
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

"""Proximal policy optimization (PPO) on Atari games in EnvPool, complete in this file.

    python scripts/ppo_atari_envpool.py --env-id Breakout-v5 --seed 1 --csv ppo.csv

Schulman et al. 2017, arXiv:1707.06347. Reads top to bottom: `Args`, `Agent`, `ppo_loss`, `gae`,
`make_update`, `Rollout`, `collect`, `train`, `evaluate`.

Defaults are CleanRL's: 8 environments, 128 steps per iteration, 4 epochs of 4 minibatches, gamma
0.99, lambda 0.95, clipping at 0.1 of ratio and value, entropy bonus 0.01, gradients clipped at
0.5, one network (Mnih et al. 2015) for policy and value, Adam with 2.5e-4 falling to 0 and epsilon
1e-5. To learn from, a lost life ends the episode and rewards are cut to their sign; the return
that is reported is the game's own, of whole games.

EnvPool resets an environment in the step after the end of its episode, whatever the action. That
step is no experience: its row is masked out of every loss and no advantage passes it. What it
*sees* is the true last observation, so its value is what a truncated episode bootstraps from.

Images are kept with the channels last, which convolutions on the CPU take a third less time for.

`--compile` compiles acting and the update, `--cudagraphs` captures both; each works alone.
"""

from __future__ import annotations

import csv
import ctypes
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import envpool
import numpy as np
import torch
import torch.nn.functional as functional
import tyro
from torch import Tensor, nn

EVALUATION_SEED = 2**30  # training seeds stay below, evaluation seeds start here


@dataclass(frozen=True, kw_only=True)
class Args:
    """Options of a run."""

    env_id: str = "Breakout-v5"  # EnvPool id of an Atari game
    total_env_steps: int = 10_000_000  # over all environments
    num_envs: int = 8  # B, stepped in parallel
    seed: int = 1  # of python, numpy, torch and the environments
    device: str = "cpu"  # where to act and learn: cpu, cuda, cuda:1, ...
    compile: bool = False  # compile acting and the update with torch.compile
    cudagraphs: bool = False  # capture acting and the update as CUDA graphs; needs --device cuda
    rollout_length: int = 128  # T, steps per environment and iteration
    num_epochs: int = 4  # passes over each rollout
    num_minibatches: int = 4  # equal parts of a rollout
    gamma: float = 0.99  # discount per step
    gae_lambda: float = 0.95  # of generalized advantage estimation
    clip_range: float = 0.1  # largest change of ratio and value that is rewarded
    entropy_coef: float = 0.01  # weight of the entropy bonus
    value_coef: float = 0.5  # weight of the value loss
    max_grad_norm: float = 0.5  # gradients are scaled down to this L2 norm
    learning_rate: float = 2.5e-4  # Adam's step size at the start, falling to 0
    eval_episodes: int = 10  # whole games of the greedy policy after training; 0: none
    eval_max_steps: int = 27_000  # at which one of those is cut off
    csv: Path | None = None  # file for the progress: env_steps, wall_time_s, sps, return


class Agent(nn.Module):
    """Images [N, 4, 84, 84] uint8 -> logits [N, A] and values [N], of one network."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        )
        self.dense = nn.Linear(3136, 512)
        self.policy, self.critic = nn.Linear(512, num_actions), nn.Linear(512, 1)
        gains = {self.policy: 0.01, self.critic: 1.0}
        for layer in (*self.convs, self.dense, self.policy, self.critic):
            nn.init.orthogonal_(layer.weight, gains.get(layer, 2**0.5))
            nn.init.zeros_(layer.bias)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and values. The first weights are scaled by 1 / 255 instead of every pixel."""
        x, scale = obs.float(), 1.0 / 255.0
        for conv in self.convs:
            x = functional.conv2d(x, conv.weight * scale, conv.bias, conv.stride).relu_()
            scale = 1.0
        x = self.dense(x.flatten(1)).relu_()
        return self.policy(x), self.critic(x).squeeze(1)

    def act(self, obs: Tensor) -> Tensor:
        """[N, 3] a sampled action, its log-probability and the value, for one copy to the host."""
        logits, value = self.forward(obs)
        log_probs = logits.log_softmax(dim=1)
        # The greatest of p / e with exponential e is each action with its probability.
        action = (log_probs.exp() / torch.empty_like(logits).exponential_()).argmax(dim=1)
        log_prob = log_probs.gather(1, action[:, None])
        return torch.cat([action[:, None].to(value.dtype), log_prob, value[:, None]], dim=1)


class Batch(NamedTuple):
    """N rows to learn from."""

    obs: Tensor  # [N, 4, 84, 84] uint8
    action: Tensor  # [N] int64
    log_prob: Tensor  # [N] under the policy that acted
    value: Tensor  # [N] before the update
    advantage: Tensor  # [N]
    value_target: Tensor  # [N]
    valid: Tensor  # [N] 1, or 0 for a filler step


def ppo_loss(agent: Agent, batch: Batch, args: Args) -> tuple[Tensor, Tensor]:
    """Clipped surrogate (eq. 7), clipped value loss and entropy bonus, over valid rows.

    Advantages get mean 0 and standard deviation 1 over the valid rows of the batch.

    Returns:
        The loss [], and the estimate [] of the KL divergence, E[(r - 1) - log r].
    """
    weight = batch.valid / batch.valid.sum().clamp(min=1.0)
    advantage = batch.advantage - (weight * batch.advantage).sum()
    advantage = advantage / ((weight * advantage.square()).sum().sqrt() + 1e-8)
    logits, value = agent(batch.obs)
    log_probs = logits.log_softmax(dim=1)
    log_ratio = log_probs.gather(1, batch.action[:, None]).squeeze(1) - batch.log_prob
    # Before exp: a filler step's ratio may overflow, and 0 * inf is no number.
    log_ratio = log_ratio.masked_fill(batch.valid == 0, 0.0)
    ratio = log_ratio.exp()
    near_one = ratio.clamp(1.0 - args.clip_range, 1.0 + args.clip_range)
    policy_loss = -(weight * torch.minimum(ratio * advantage, near_one * advantage)).sum()
    near = batch.value + (value - batch.value).clamp(-args.clip_range, args.clip_range)
    errors = (value - batch.value_target).square(), (near - batch.value_target).square()
    value_loss = 0.5 * (weight * torch.maximum(*errors)).sum()
    entropy = -(weight * (log_probs.exp() * log_probs).sum(dim=1)).sum()
    loss = policy_loss + args.value_coef * value_loss - args.entropy_coef * entropy
    return loss, (weight * (ratio - 1.0 - log_ratio).detach()).sum()


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
    agent: Agent, rollout: Rollout, optimizer: torch.optim.Optimizer, args: Args
) -> Callable[[Tensor], dict[str, Tensor]]:
    """One optimizer step as a function of the minibatch's row numbers; never waits."""
    parameters = list(agent.parameters())

    def update(index: Tensor) -> dict[str, Tensor]:
        loss, approx_kl = ppo_loss(agent, rollout.batch(index), args)
        metrics = {"loss": loss.detach(), "approx_kl": approx_kl}
        # Some kernels give those of convolutions with the channels last, which Adam refuses.
        gradients = [each.contiguous() for each in torch.autograd.grad(loss, parameters)]
        descend(optimizer, clipped(gradients, args.max_grad_norm))
        return metrics

    return update


class Rollout:
    """Rows t * B + b on the device, in place from one iteration to the next."""

    def __init__(self, length: int, num_envs: int, device: str) -> None:
        self.images = torch.empty((length * num_envs, 84, 84, 4), dtype=torch.uint8, device=device)
        self.columns = torch.empty((length * num_envs, 6), device=device)

    def batch(self, index: Tensor) -> Batch:
        """The rows of these numbers [N] int64."""
        images = self.images.index_select(0, index).permute(0, 3, 1, 2)
        action, *others = self.columns.index_select(0, index).unbind(dim=1)
        return Batch(images, action.long(), *others)


class Games:
    """EnvPool's environments, what they show now, and the returns of whole games."""

    def __init__(self, args: Args) -> None:
        self.envs = make_envs(args, args.num_envs, 1_000 * args.seed, learning=True)
        self.device, self.score = args.device, np.zeros(args.num_envs)
        self.obs, self.ended = self.envs.reset()[0], np.zeros(args.num_envs, bool)

    def images(self) -> Tensor:
        """[B, 4, 84, 84] uint8 what is seen, with the channels last in memory."""
        images = torch.from_numpy(self.obs).to(self.device)
        return images.contiguous(memory_format=torch.channels_last)

    def step(self, action: np.ndarray, returns: list[float]) -> tuple[np.ndarray, ...]:
        """Reward, terminated, truncated and valid, each [B], of one step."""
        valid = ~self.ended
        self.obs, reward, terminated, truncated, info = self.envs.step(action)
        self.ended = terminated | truncated
        self.score += info["reward"]  # as the game counts; `reward` is cut to its sign
        over = info["terminated"].astype(bool) | truncated
        returns.extend(self.score[over].tolist())
        self.score[over] = 0.0
        return reward, terminated, truncated, valid


@torch.inference_mode()
def collect(games: Games, act: Callable, rollout: Rollout, returns: list[float], args: Args) -> int:
    """Fill the rollout; the number of valid steps."""
    num_envs, length = args.num_envs, args.rollout_length
    acted = np.empty((length + 1, num_envs, 3), np.float32)
    steps = []
    for t in range(length):
        images = games.images()
        acted[t] = act(images).cpu().numpy()
        rollout.images[t * num_envs : (t + 1) * num_envs] = images.permute(0, 2, 3, 1)
        steps.append(games.step(acted[t, :, 0].astype(np.int32), returns))
    acted[length] = act(games.images()).cpu().numpy()
    reward, terminated, truncated, valid = map(np.stack, zip(*steps, strict=True))
    estimates = gae(
        reward, acted[:, :, 2], terminated, truncated, valid, args.gamma, args.gae_lambda
    )
    columns = np.stack([*acted[:-1].transpose(2, 0, 1), *estimates, valid], axis=-1)
    rollout.columns.copy_(torch.from_numpy(columns.astype(np.float32)).flatten(0, 1))
    return int(valid.sum())


def train(args: Args) -> float:
    """Train, and return what the policy is worth at the end."""
    set_up(args)
    games, progress, env_steps = Games(args), Progress(args), 0
    agent = Agent(int(games.envs.action_space.n)).to(args.device)
    rollout = Rollout(args.rollout_length, args.num_envs, args.device)
    learning_rate = torch.tensor(args.learning_rate, device=args.device)  # it falls
    optimizer = torch.optim.Adam(
        agent.parameters(), learning_rate, eps=1e-5, fused=True,
        capturable=args.device.startswith("cuda"),
    )  # fmt: skip
    update = accelerated(make_update(agent, rollout, optimizer, args), args)
    act = accelerated(agent.act, args)
    rollout_size = args.rollout_length * args.num_envs
    while env_steps < args.total_env_steps:
        fraction_left = 1.0 - env_steps / args.total_env_steps
        learning_rate.fill_(args.learning_rate * fraction_left)
        env_steps += collect(games, act, rollout, progress.returns, args)
        for _ in range(args.num_epochs):
            order = torch.randperm(rollout_size, device=args.device)
            for index in order.split(rollout_size // args.num_minibatches):
                metrics = update(index)
        progress.report(env_steps, **metrics)
    return evaluate(agent, args)


def make_envs(args: Args, num_envs: int, seed: int, *, learning: bool) -> Any:
    """Games, as one learns from them or as they are."""
    return envpool.make_gymnasium(
        args.env_id,
        num_envs=num_envs,
        seed=seed,
        episodic_life=learning,
        reward_clip=learning,
        **({} if learning else {"max_episode_steps": args.eval_max_steps}),
    )


@torch.inference_mode()
def evaluate(agent: Agent, args: Args) -> float:
    """Mean return of the first whole game of each of some environments of their own seeds."""
    if args.eval_episodes == 0:
        return float("nan")
    envs = make_envs(args, args.eval_episodes, EVALUATION_SEED + 1_000 * args.seed, learning=False)
    total, over = np.zeros(args.eval_episodes), np.zeros(args.eval_episodes, bool)
    obs, _ = envs.reset()
    while not over.all():
        images = torch.from_numpy(obs).to(args.device).contiguous(memory_format=torch.channels_last)
        action = agent(images)[0].argmax(dim=1).cpu().numpy().astype(np.int32)
        obs, reward, terminated, truncated, _ = envs.step(action)
        total += np.where(over, 0.0, reward)
        over |= terminated | truncated
    print(f"evaluation  return {np.mean(total):.1f} +- {np.std(total):.1f}")
    return float(np.mean(total))


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
    # Minibatches in the memory of those before: mapping it anew takes a tenth of the time. These
    # are glibc's M_MMAP_THRESHOLD, up to which blocks are not mapped one by one, and
    # M_TRIM_THRESHOLD, from which on memory is given back.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt and mallopt(-3, 2**25):
        mallopt(-1, -1)
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

"""Recurrent replay distributed DQN on one machine (R2D1), complete in this file.

    python scripts/r2d1.py --seed 1 --csv r2d1.csv

Kapturowski et al. 2019 (R2D2), ICLR. Reads top to bottom: `Args`, `TMaze`, `QNetwork`,
`n_step_windows`, `r2d1_loss`, `make_update`, `Replay`, `Streams`, `train`, `evaluate`.

The default task is a T-maze (Bakker 2002), which needs memory: a policy without earns at most 0.5,
the best 1. Other environments by their Gymnasium id. Defaults (CleanRL has no R2D2): 16
environments, an update per 40 steps from 2,000 on, 32 sequences of 20 learned rows after 5 of
burn-in, each 10 steps after the one before, 3-step returns, gamma 0.997, prioritized with alpha
0.9 and beta 0.6, double, dueling, values of h(return), Adam with 1e-3, the target network a
copy every 100 updates, epsilon from 1 to 0.01 over the first 30 % of 100,000 steps.

Sequences run on over the ends of episodes, where the recurrent state is cleared. They start from
the state that acting had. Every row keeps its true successor: its value is that of one step more
of the network from the state after that row, so a truncated episode bootstraps rightly.

`--compile` compiles acting and the update but for its unrolling of the network, `--cudagraphs`
captures both whole; each works alone.
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
import tyro
from torch import Tensor, nn

EVALUATION_SEED = 2**30  # training seeds stay below, evaluation seeds start here


@dataclass(frozen=True, kw_only=True)
class Args:
    """Options of a run."""

    env_id: str = "TMaze-v0"  # TMaze-v0 or a Gymnasium id; Box observations [n], Discrete actions
    total_env_steps: int = 100_000  # over all environments
    num_envs: int = 16  # B, stepped one after the other
    seed: int = 1  # of python, numpy, torch and the environments
    device: str = "cpu"  # where to act and learn: cpu, cuda, cuda:1, ...
    compile: bool = False  # compile acting and the update with torch.compile
    cudagraphs: bool = False  # capture acting and the update as CUDA graphs; needs --device cuda
    gamma: float = 0.997  # discount per step
    n_step: int = 3  # rewards summed before bootstrapping
    burn_in: int = 5  # rows that only warm the recurrent state up
    sequence_length: int = 20  # rows after those that are learned from
    sequence_interval: int = 10  # steps from the start of a sequence to that of the next one
    batch_size: int = 32  # sequences per update
    train_interval: int = 40  # environment steps per update
    target_interval: int = 100  # updates per copy of the network to its target
    learning_starts: int = 2_000  # steps before the first update
    replay_size: int = 5_000  # sequences kept
    priority_alpha: float = 0.9  # exponent of the priorities; 0 is uniform
    priority_beta: float = 0.6  # exponent of the importance weights
    priority_eta: float = 0.9  # share of the greatest error in a sequence's priority
    epsilon_initial: float = 1.0  # probability of a random action at the start
    epsilon_final: float = 0.01  # the same at the end of its fall
    epsilon_fraction: float = 0.3  # share of the run over which it falls
    hidden_size: int = 64  # width of the encoder and of the recurrent state
    learning_rate: float = 1e-3  # Adam's step size
    max_grad_norm: float = 40.0  # gradients are scaled down to this L2 norm
    num_threads: int = 1  # of torch on the CPU; more do not help networks this small
    log_every: int = 5_000  # environment steps from one progress line to the next
    eval_episodes: int = 20  # of the greedy policy after training; 0: none
    csv: Path | None = None  # file for the progress: env_steps, wall_time_s, sps, return


class TMaze(gym.Env):
    """Walk ten steps to a junction, then turn as the cue at the start said.

    Observation [4]: the cue is up, the cue is down (both only at the start), in the corridor, at
    the junction. Actions: 0 forward, 1 up, 2 down. A turn at the junction ends the episode, with
    1 if it is the cue's; what runs into a wall costs 0.1.
    """

    observation_space = gym.spaces.Box(0.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def observation(self) -> np.ndarray:
        """What is seen from here."""
        start, junction = self.position == 0, self.position == 10
        cue = [start and self.up, start and not self.up]
        return np.array([*cue, not start and not junction, junction], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        """Draw a cue and go to the start."""
        super().reset(seed=seed)
        self.position, self.up = 0, bool(self.np_random.integers(2))
        return self.observation(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Walk or turn."""
        junction = self.position == 10
        if junction and action != 0:
            return self.observation(), float((action == 1) == self.up), True, False, {}
        if junction or action != 0:
            return self.observation(), -0.1, False, False, {}
        self.position += 1
        return self.observation(), 0.0, False, False, {}


gym.register("TMaze-v0", TMaze, max_episode_steps=40)


class QNetwork(nn.Module):
    """Encoder, LSTM and dueling head. States are [N, 2 H], hidden beside cell."""

    def __init__(self, obs_size: int, num_actions: int, hidden: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(obs_size, hidden)
        self.core = nn.LSTMCell(hidden, hidden)
        self.value, self.advantage = nn.Linear(hidden, 1), nn.Linear(hidden, num_actions)

    def step(self, obs: Tensor, state: Tensor) -> Tensor:
        """[N, 2 H] the state after observations [N, n]."""
        return torch.cat(self.core(self.encoder(obs).relu(), state.chunk(2, dim=1)), dim=1)

    @torch.compiler.disable  # unrolled into a compiled graph it would take minutes to compile
    def unroll(self, obs: Tensor, reset: Tensor, state: Tensor) -> Tensor:
        """[R, N, 2 H] the states after rows [R, N], each cleared before where `reset` [R, N]."""
        states, keep = [], (1.0 - reset).unsqueeze(-1)
        for t in range(len(obs)):
            state = self.step(obs[t], state * keep[t])
            states.append(state)
        return torch.stack(states) if states else state.new_empty((0, *state.shape))

    def values(self, states: Tensor) -> Tensor:
        """[..., A] of states [..., 2 H]: a state value plus advantages less their mean."""
        hidden = states.chunk(2, dim=-1)[0]
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(dim=-1, keepdim=True)

    def act(self, obs: Tensor, state: Tensor) -> Tensor:
        """[N, 1 + 2 H] the best action beside the state after it was chosen."""
        state = self.step(obs, state)
        return torch.cat([self.values(state).argmax(dim=1, keepdim=True).to(obs.dtype), state], 1)


def rescale(x: Tensor) -> Tensor:
    """h(x) = sign(x) (sqrt(|x| + 1) - 1) + 0.001 x (Pohlen et al. 2018, arXiv:1805.11593)."""
    return x.sign() * ((x.abs() + 1.0).sqrt() - 1.0) + 1e-3 * x


def unrescale(y: Tensor) -> Tensor:
    """The inverse of h, by the root of its quadratic equation that loses no digits near 0."""
    root = 2.0 * y.abs() / (1.002 + (1.002**2 + 4e-3 * y.abs()).sqrt())
    return y.sign() * root * (root + 2.0)


class Batch(NamedTuple):
    """N sequences of R = burn_in + sequence_length + n_step - 1 rows."""

    obs: Tensor  # [R, N, n]
    action: Tensor  # [R, N] int64
    reward: Tensor  # [R, N]
    terminated: Tensor  # [R, N] 0 or 1
    ended: Tensor  # [R, N] 0 or 1: terminated or truncated
    reset: Tensor  # [R, N] 0 or 1: the state is cleared before this row
    next_obs: Tensor  # [R, N, n] what followed, also where the episode ended
    state: Tensor  # [N, 2 H] that acting had before the first row


def n_step_windows(
    batch: Batch, first: int, length: int, n_step: int, gamma: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of rows first .. first + length - 1, each [length, N]: R, D and the last row.

    The window of row t takes in rows t, t + 1, ... up to n of them or the end of the episode.
    R is their discounted reward, D is gamma^(rows taken in), or 0 if the last one terminated.
    """
    last = torch.arange(first, first + length, device=batch.reward.device)[:, None]
    last = last.expand(-1, batch.reward.shape[1]).clone()
    total = torch.zeros_like(batch.reward[first : first + length])
    discount, goes_on = torch.ones_like(total), torch.ones_like(total)
    for k in range(n_step):
        rows = slice(first + k, first + k + length)
        total = total + goes_on * discount * batch.reward[rows]
        last = last + goes_on.long() * (k > 0)
        discount = torch.where(goes_on > 0, gamma * discount, discount)
        discount = discount * (1.0 - goes_on * batch.terminated[rows])
        goes_on = goes_on * (1.0 - batch.ended[rows])
    return total, discount, last


def r2d1_loss(
    network: QNetwork, target: QNetwork, batch: Batch, weight: Tensor, args: Args
) -> tuple[Tensor, Tensor]:
    """Half the squared error to y = h(R + D h^-1(Q'(s', argmax_a Q(s', a)))) (eqs. 1 and 2).

    Args:
        network: Q; learns from the rows after the burn-in, whose states have no gradient.
        target: Q'.
        batch: N sequences.
        weight: [N] importance weights.
        args: options.

    Returns:
        The loss [], and the new priorities [N] (section 2.3).
    """
    first, learned = args.burn_in, slice(args.burn_in, args.burn_in + args.sequence_length)
    after = slice(learned.stop, None)
    with torch.no_grad():
        warm = network.unroll(batch.obs[:first], batch.reset[:first], batch.state)[-1]
    states = network.unroll(batch.obs[learned], batch.reset[learned], warm)
    q = network.values(states)
    chosen = q.gather(2, batch.action[learned].unsqueeze(2)).squeeze(2)
    with torch.no_grad():
        tail = network.unroll(batch.obs[after], batch.reset[after], states[-1].detach())
        reward, discount, last = n_step_windows(
            batch, first, args.sequence_length, args.n_step, args.gamma
        )
        online_states = torch.cat([states.detach(), tail])
        target_states = target.unroll(batch.obs, batch.reset, batch.state)[first:]

        def successor_values(net: QNetwork, after_rows: Tensor) -> Tensor:
            index = (last - first).unsqueeze(2)
            state = after_rows.gather(0, index.expand(-1, -1, after_rows.shape[2]))
            seen = batch.next_obs.gather(0, last.unsqueeze(2).expand(-1, -1, batch.obs.shape[2]))
            return net.values(net.step(seen.flatten(0, 1), state.flatten(0, 1)))

        best = successor_values(network, online_states).argmax(dim=1, keepdim=True)
        value = successor_values(target, target_states).gather(1, best).view_as(reward)
        y = rescale(reward + discount * unrescale(value))
    error = y - chosen
    loss = 0.5 * (weight * error.square()).mean()
    size, eta = error.detach().abs(), args.priority_eta
    return loss, eta * size.amax(dim=0) + (1.0 - eta) * size.mean(dim=0)


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
    """Sequences of rows [obs, action, reward, terminated, ended, reset, next_obs], by priority."""

    def __init__(self, length: int, obs_size: int, args: Args) -> None:
        self.obs_size, self.args = obs_size, args
        size, width, device = args.replay_size, 2 * obs_size + 5, args.device
        self.rows = empty_rows(size, length, width, device=device)
        self.states = torch.empty((size, 2 * args.hidden_size), device=device)
        self.priority = torch.zeros(size, device=device)
        self.position, self.size = 0, 0

    def add(self, rows: np.ndarray, state: np.ndarray) -> None:
        """Keep a sequence, in place of the oldest, with the highest priority that there is."""
        highest = self.priority.amax() if self.size else 1.0
        self.rows[self.position] = torch.from_numpy(rows)
        self.states[self.position] = torch.from_numpy(state)
        self.priority[self.position] = highest
        self.position = (self.position + 1) % len(self.rows)
        self.size = min(self.size + 1, len(self.rows))

    def sample(self) -> tuple[Tensor, Tensor]:
        """Numbers [N] of sequences, drawn by priority^alpha, and their weights [N], at most 1."""
        probability = self.priority[: self.size].clamp(min=1e-6) ** self.args.priority_alpha
        probability = probability / probability.sum()
        index = torch.multinomial(probability, self.args.batch_size, replacement=True)
        weight = (self.size * probability[index]) ** -self.args.priority_beta
        return index, weight / weight.amax()

    def batch(self, index: Tensor) -> Batch:
        """The sequences of these numbers [N] int64."""
        rows = self.rows.index_select(0, index).transpose(0, 1)
        obs, columns, next_obs = rows.split((self.obs_size, 5, self.obs_size), dim=2)
        action, *others = columns.unbind(dim=2)
        return Batch(obs, action.long(), *others, next_obs, self.states.index_select(0, index))


def make_update(
    network: QNetwork, target: QNetwork, replay: Replay, args: Args
) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
    """The update as a function of the sequences' numbers and weights [N]; never waits."""
    parameters = list(network.parameters())
    optimizer = torch.optim.Adam(
        parameters, args.learning_rate, eps=1e-5,
        fused=True, capturable=args.device.startswith("cuda"),
    )  # fmt: skip

    def update(index: Tensor, weight: Tensor) -> dict[str, Tensor]:
        loss, priority = r2d1_loss(network, target, replay.batch(index), weight, args)
        metrics = {"loss": loss.detach()}
        gradients = torch.autograd.grad(loss, parameters)
        descend(optimizer, clipped(gradients, args.max_grad_norm))
        replay.priority.index_copy_(0, index, priority)
        return metrics

    return update


class Streams:
    """The last rows of each environment, of which every `sequence_interval` make a sequence."""

    def __init__(self, length: int, obs_size: int, args: Args) -> None:
        self.rows = np.zeros((args.num_envs, length, 2 * obs_size + 5), np.float32)
        self.states = np.zeros((args.num_envs, length, 2 * args.hidden_size), np.float32)
        self.filled, self.interval = 0, args.sequence_interval

    def add(self, rows: np.ndarray, states: np.ndarray, replay: Replay) -> None:
        """Take in a row of each environment [B, ...], and the states [B, 2 H] before them."""
        self.rows[:, self.filled], self.states[:, self.filled] = rows, states
        self.filled += 1
        length = self.rows.shape[1]
        if self.filled == length:
            for sequence, state in zip(self.rows, self.states[:, 0], strict=True):
                replay.add(sequence, state)
            self.filled = length - self.interval
            for array in (self.rows, self.states):
                array[:, : self.filled] = array[:, self.interval :].copy()


class Actors:
    """The environments with the recurrent state of each."""

    def __init__(self, args: Args, progress: Progress) -> None:
        self.args, self.progress = args, progress
        self.envs = [make_env(args) for _ in range(args.num_envs)]
        self.num_actions = int(self.envs[0].action_space.n)
        self.seen = np.stack(
            [env.reset(seed=1_000 * args.seed + i)[0] for i, env in enumerate(self.envs)]
        ).astype(np.float32)
        for i, env in enumerate(self.envs):
            env.action_space.seed(1_000 * args.seed + i)
        self.state = np.zeros((args.num_envs, 2 * args.hidden_size), np.float32)
        self.reset = np.ones(args.num_envs, bool)
        self.score = np.zeros(args.num_envs)

    def step(self, act: Callable[[Tensor, Tensor], Tensor], epsilon: float) -> np.ndarray:
        """One step of each; the rows [B, 2 n + 5]. `state` is then that after it, or zero."""
        inputs = (torch.from_numpy(x).to(self.args.device) for x in (self.seen, self.state))
        acted = act(*inputs).cpu().numpy()
        self.state, rows = acted[:, 1:].copy(), []
        for i, env in enumerate(self.envs):
            explores = random.random() < epsilon
            action = int(env.action_space.sample()) if explores else int(acted[i, 0])
            obs, reward, terminated, truncated, _ = env.step(action)
            ended = terminated or truncated
            numbers = (action, reward, terminated, ended, self.reset[i])
            # The true successor, also where the episode ends: what acting sees next is apart.
            rows.append(np.concatenate((self.seen[i], numbers, obs)))
            self.seen[i], self.reset[i] = obs, ended
            self.score[i] += reward
            if ended:
                self.progress.returns.append(self.score[i])
                self.seen[i], self.score[i], self.state[i] = env.reset()[0], 0.0, 0.0
        return np.stack(rows)


def train(args: Args) -> float:
    """Train, and return what the policy is worth at the end."""
    set_up(args)
    progress, metrics, updates = Progress(args), dict[str, Tensor](), 0
    actors = Actors(args, progress)
    obs_size = actors.seen.shape[1]
    network = QNetwork(obs_size, actors.num_actions, args.hidden_size).to(args.device)
    target = copy.deepcopy(network).requires_grad_(False)
    length = args.burn_in + args.sequence_length + args.n_step - 1
    replay, streams = Replay(length, obs_size, args), Streams(length, obs_size, args)
    update = accelerated(make_update(network, target, replay, args), args)
    act = accelerated(network.act, args)
    for env_steps in range(args.num_envs, args.total_env_steps + 1, args.num_envs):
        before = env_steps - args.num_envs
        span = args.epsilon_fraction * args.total_env_steps
        progress_made = min(1.0, before / span) if span > 0.0 else 1.0
        change = args.epsilon_final - args.epsilon_initial
        state = actors.state
        with torch.inference_mode():
            rows = actors.step(act, args.epsilon_initial + progress_made * change)
        streams.add(rows, state, replay)
        due = env_steps // args.train_interval - before // args.train_interval
        for _ in range(due if env_steps > args.learning_starts and replay.size else 0):
            metrics = update(*replay.sample())
            updates += 1
            if updates % args.target_interval == 0:
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
        state = torch.zeros((1, 2 * args.hidden_size), device=args.device)
        total, ended = 0.0, False
        while not ended:
            seen = torch.as_tensor(obs, dtype=torch.float32, device=args.device)
            state = network.step(seen[None], state)
            action = int(network.values(state)[0].argmax())
            obs, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"evaluation  return {np.mean(returns):.2f} +- {np.std(returns):.2f}")
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
    rows = args.burn_in + args.sequence_length + args.n_step - 1
    if not 1 <= args.sequence_interval <= rows or args.burn_in < 1 or args.n_step < 1:
        raise SystemExit(
            f"Sequences have {rows} rows: --sequence-interval {args.sequence_interval} must be 1 "
            f"to that, --burn-in {args.burn_in} and --n-step {args.n_step} at least 1."
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

"""Data-parallel learning: several processes, one run.

    torchrun --nproc-per-node 2 -m redline train ppo --env CartPole-v1

Every rank steps its share of the environments and learns from its share of each minibatch.
Gradients are averaged after each backward pass, all in one flat all-reduce, so that parameters stay
equal to the bit. Counters, schedules and budgets are global. What follows from equal numbers
(evaluation, schedules) every rank does by itself. Rank 0 alone writes and calls callbacks; what
they change and whether they stop the run, the others take over from it.

| setting | on each of N ranks |
|---|---|
| num_envs | num_envs / N; rank r has those from r * num_envs / N on |
| num_minibatches | as it is, each of 1 / N of the rows |
| batch_size, replay_size | 1 / N |
| replay_ratio, learning_starts, total_env_steps, schedules | global |
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed

from redline.algos.optimizers import Optimizer
from redline.data import EpisodeRecord
from redline.data.ranks import gather_from_ranks, lost_rank, sum_over_ranks
from redline.devices import kind_of
from redline.engines.engine import inner_of
from redline.errors import ClusterError, ConfigError, IncompatibleCheckpointError
from redline.train.settings import DEVICE_SETTINGS, RunConfig

_TIMEOUT = timedelta(minutes=30)  # an evaluation of one rank may take long
# What the host needs to know goes by gloo, which notices a death at once; NCCL waits in a kernel.
_CUDA = "cpu:gloo,cuda:nccl"
_SEED_STEP = 1_000_003  # keeps the ranks' generators apart


@dataclasses.dataclass(frozen=True, slots=True)
class Ranks:
    """The processes of a run.

    Attributes:
        rank: of this one.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this one writes."""
        return self.rank == 0

    def share(self, config: RunConfig) -> RunConfig:
        """The settings of this rank's part: environments, batch, replay.

        Raises:
            ConfigError: listing every setting that cannot be split.
        """
        if self.size == 1:
            return config
        names = [n for n in ("num_envs", "batch_size", "replay_size") if hasattr(config.algo, n)]
        values = {name: getattr(config.algo, name) for name in names}
        odd = {n: v for n, v in values.items() if v % self.size and n != "replay_size"}
        if odd:
            said = " and ".join(f"{name}={value}" for name, value in odd.items())
            raise ConfigError(
                f"{said} cannot be split evenly over {self.size} ranks. Give a multiple of "
                f"{self.size}, or another --nproc-per-node."
            )
        part: dict[str, Any] = {name: value // self.size for name, value in values.items()}
        minibatches = getattr(config.algo, "minibatches", None)
        if minibatches is not None:
            # Chosen from the whole rollout: a rank takes as many steps as one process would.
            part["num_minibatches"] = minibatches(recurrent=config.policy.core != "none")
        try:
            return config.replace(**part)
        except ConfigError as error:
            raise ConfigError(f"on each of {self.size} ranks: {error}") from error

    def check(self, config: RunConfig, *, resumed: bool = False, is_new: bool = True) -> None:
        """Refuse what cannot be done by several ranks.

        Args:
            config: with the devices that "auto" stands for.
            resumed: whether a run goes on. Up to version 0.2 one may have chosen a GPU's number
                for environments, acting or evaluations; it keeps that.
            is_new: whether it has no checkpoint yet, so that it begins with another one's replay.

        Raises:
            ConfigError: naming the setting.
        """
        if self.size == 1:
            return
        placed = {n: getattr(config.run, n) for n in (("device",) if resumed else DEVICE_SETTINGS)}
        takes_replay = config.run.init_from is not None and "replay" in config.run.init_parts
        for name, wrong, instead in (
            ("data", config.run.data, "leave it out: every rank would draw the same rows"),
            ("init_parts", takes_replay and is_new, "leave replay out: every rank would begin "
             "with the same transitions"),
            ("eval_async", config.run.eval_async, "evaluate in turn: leave it out"),
            ("target_kl", getattr(config.algo, "target_kl", None), "leave it out: each rank "
             "would stop at a moment of its own"),
            *((name, ":" in (place or ""), "use cuda: each rank takes the GPU of its number")
              for name, place in placed.items()),
            ("accelerate", config.run.accelerate not in ("auto", "eager"), "use eager: gradients "
             "are averaged between backward pass and step"),
        ):  # fmt: skip
            if wrong:
                value = getattr(config.run, name, wrong)
                raise ConfigError(f"{name}={value} does not go with several ranks; {instead}.")

    def own_device(self, config: RunConfig) -> RunConfig:
        """The settings with what `auto` stands for: with CUDA, each rank's own GPU."""
        chosen = [name for name in DEVICE_SETTINGS if getattr(config.run, name) == "auto"]
        if self.size == 1 or not chosen:
            return config
        return config.replace(**dict.fromkeys(chosen, "cuda" if _means_cuda("auto") else "cpu"))

    def eager(self, config: RunConfig) -> RunConfig:
        """The settings with updates as they are written, whose gradients can be averaged."""
        if self.size == 1:
            return config
        may_act = config.run.cpu_acting
        if may_act is None:
            may_act = config.run.accelerate == "auto"
        return config.replace(accelerate="eager", cpu_acting=may_act)

    def own_seed(self, config: RunConfig) -> RunConfig:
        """The settings with a seed that no other rank has."""
        return config if self.is_first else config.replace(seed=self.seed(config.run.seed))

    def seed(self, seed: int) -> int:
        """Of what each rank draws by itself, such as the rows of a minibatch."""
        return seed + self.rank * _SEED_STEP

    def first_env_id(self, local: RunConfig) -> int:
        """Number of this rank's first environment in the whole run."""
        return self.rank * local.algo.num_envs

    def folder(self, out: Path) -> Path:
        """Where this rank keeps its checkpoints and rows: the run directory, or below it."""
        return out if self.is_first else out / "ranks" / str(self.rank)

    def quiet(self, config: RunConfig) -> RunConfig:
        """The settings of a rank that shows nothing, unless it is the first."""
        if self.is_first:
            return config
        return config.replace(quiet=True, tensorboard=False, jsonl=False, wandb=False)

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, for all; of plain data.

        Raises:
            ClusterError: if another rank has ended.
        """
        if self.size == 1:
            return value
        holder = [value]
        try:
            distributed.broadcast_object_list(holder)
        except RuntimeError as error:
            raise lost_rank(error) from error
        return holder[0]

    def common(self, steps: Sequence[int]) -> list[int]:
        """Those of this rank's checkpoints that every rank has, the newest first."""
        if self.size == 1:
            return sorted(steps, reverse=True)
        common = set.intersection(*(set(each) for each in self._gathered(list(steps))))
        return sorted(common, reverse=True)

    def all_true(self, mine: bool) -> bool:
        """Whether it is so on every rank."""
        if self.size == 1:
            return mine
        own = torch.tensor(int(mine))
        return all(bool(each) for each in gather_from_ranks(own))

    def total(
        self, env_steps: int, signal: int | None, episodes: Sequence[EpisodeRecord]
    ) -> tuple[int, int | None, Sequence[EpisodeRecord]]:
        """What all ranks together did in an iteration.

        Args:
            env_steps: of this rank.
            signal: that asked this rank to stop.
            episodes: that ended here.

        Returns:
            env_steps of all, a signal that any has had, and all episodes in the ranks' order.
        """
        if self.size == 1:
            return env_steps, signal, episodes
        mine = torch.tensor([env_steps, signal or 0, len(episodes)])
        steps, signals, ended = torch.stack(gather_from_ranks(mine)).T.tolist()
        every = list(episodes)
        if sum(ended):
            every = [each for part in self._gathered(list(episodes)) for each in part]
        return sum(steps), max(signals) or None, every

    def mean(self, values: Mapping[str, float]) -> dict[str, float]:
        """The mean of each number over the ranks."""
        if self.size == 1 or not values:
            return dict(values)
        mine = torch.tensor(list(values.values()), dtype=torch.float64)
        means = (sum_over_ranks(mine) / self.size).tolist()
        return dict(zip(values, means, strict=True))

    def check_equal(self, algorithm: Any) -> None:
        """Make sure that all ranks hold the same parameters.

        Raises:
            ClusterError: if they do not; what they learned is not one agent then.
        """
        if self.size == 1:
            return
        # The policy's, too: it may learn with an optimizer that `learned_by` does not find.
        every = [*learned_by(algorithm), *algorithm.policy.parameters()]
        mine = torch.stack([p.detach().double().sum() for p in every]).cpu()
        if any(not torch.equal(mine, other) for other in gather_from_ranks(mine)):
            raise ClusterError(
                "the ranks' parameters differ, so their gradients are no longer those of one "
                "agent. Does the algorithm draw numbers that differ by rank, or learn with an "
                "optimizer that is no attribute of it? Does a callback change weights?"
            )

    def check_checkpoint(self, metadata: Mapping[str, Any], out: Path) -> None:
        """Refuse a checkpoint of another number of ranks.

        Raises:
            IncompatibleCheckpointError: with the command that goes on.
        """
        saved = int(metadata.get("ranks", 1))
        if saved != self.size:
            command = "redline train"
            if saved > 1:
                command = f"torchrun --nproc-per-node {saved} -m redline train"
            raise IncompatibleCheckpointError(
                f"{out} was saved by {saved} rank{'s' * (saved > 1)}, and {self.size} would go on "
                f"with it: environments and replay would not be the same. Go on with: {command} "
                f"--resume {out}; or begin a new run from its weights with --init-from {out}"
            )

    def _gathered(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        try:
            distributed.all_gather_object(found, value)
        except RuntimeError as error:
            raise lost_rank(error) from error
        return found


ALONE = Ranks()


@contextlib.contextmanager
def joined_ranks(device: str, *others: str | None) -> Iterator[Ranks]:
    """The ranks of this run, as torchrun has started them; one, if it has not.

    Args:
        device: the learner's; cuda takes the GPU of this rank's number on its machine.
        others: where environments, acting and evaluations have a place of their own. Where only
            they are on CUDA, ranks share the GPUs if there are too few.

    Raises:
        ClusterError: if the other ranks cannot be reached, or there is no GPU of this number.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    on_cuda, number = _means_cuda(device), int(os.environ.get("LOCAL_RANK", "0"))
    if on_cuda:
        _take_own_gpu(number)
    elif any(_means_cuda(other) for other in others if other is not None):
        _share_gpus(number)
    try:
        distributed.init_process_group(_CUDA if on_cuda else "gloo", timeout=_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise ClusterError(
            f"the {size} ranks cannot reach each other at {os.environ.get('MASTER_ADDR')}:"
            f"{os.environ.get('MASTER_PORT')} ({error}). Check the address that torchrun was given."
        ) from error
    try:
        yield Ranks(distributed.get_rank(), size)
    finally:
        distributed.destroy_process_group()


def _means_cuda(device: str) -> bool:
    """Whether the learner's device is a GPU of each rank; "auto" wants one wherever there are any.

    Nothing is tried here: ranks that found different answers would wait for each other over
    different back ends. Whether its own GPU works, each rank finds before it learns.
    """
    cuda = torch.device("cuda", 0)
    is_there = device == "auto" and kind_of(cuda).why_unusable(cuda) is None
    return is_there or device.startswith("cuda")


def _take_own_gpu(number: int) -> None:
    there = torch.cuda.device_count()
    if number >= there:
        raise ClusterError(
            f"rank {number} of this machine needs a GPU of its own, and there are {there}. Start "
            f"--nproc-per-node {max(there, 1)}, or learn with --device cpu."
        )
    torch.cuda.set_device(number)


def _share_gpus(number: int) -> None:
    if there := torch.cuda.device_count():  # none is refused as missing, by its setting
        torch.cuda.set_device(number % there)


def learned_by(algorithm: Any) -> list[Tensor]:
    """What the optimizers of an algorithm, and of one inside it, change; each once."""
    owners = {id(owner): owner for owner in (algorithm, inner_of(algorithm))}
    found: dict[int, Tensor] = {}
    for part in (part for owner in owners.values() for part in vars(owner).values()):
        parameters: list[Any] = []
        if isinstance(part, Optimizer):
            parameters = list(part.parameters)
        elif isinstance(part, torch.optim.Optimizer):
            parameters = [p for group in part.param_groups for p in group["params"]]
        found |= {id(parameter): parameter for parameter in parameters}
    return list(found.values())


def average_gradients(algorithm: Any, ranks: Ranks) -> Callable[[], None]:
    """Average gradients over the ranks at the end of every backward pass, in one all-reduce.

    It needs nothing of the algorithm but `backward()`: each parameter says when it has its
    gradient, and the pass calls back when it is over, before gradients are clipped or used.

    Args:
        algorithm: whose optimizers are attributes of it.
        ranks: of the run.

    Returns:
        What ends the averaging.

    Raises:
        ConfigError: if the algorithm has no optimizer that is known.
    """
    if ranks.size == 1:
        return lambda: None
    parameters = learned_by(algorithm)
    if not parameters:
        raise ConfigError(
            f"{type(algorithm).__name__} has no optimizer as an attribute, so its gradients cannot "
            f"be averaged over ranks. Keep the optimizer in an attribute, or use one process."
        )
    fresh: dict[int, Tensor] = {}

    def arrived(parameter: Tensor, number: int) -> None:
        if not fresh:
            torch.autograd.Variable._execution_engine.queue_callback(reduce)  # type: ignore[attr-defined]
        fresh[number] = parameter

    def reduce() -> None:
        chosen = [fresh[number].grad for number in sorted(fresh)]
        fresh.clear()
        gradients = [gradient for gradient in chosen if gradient is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        averaged = sum_over_ranks(flat) / ranks.size
        parts = averaged.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    handles = [
        parameter.register_post_accumulate_grad_hook(lambda p, number=number: arrived(p, number))
        for number, parameter in enumerate(parameters)
    ]

    def end() -> None:
        for handle in handles:
            handle.remove()

    return end

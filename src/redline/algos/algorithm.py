"""What an algorithm is: how it is found, how it is made, how it learns.

An algorithm is one class in one file. The class says its name, its config and its presets;
it makes its policy; `update` improves that from what was collected. Nothing else in Redline
keeps a list of algorithms: `redline.train` takes a built-in one by its name and anybody's by
its class (`algos/registry.py`).

| subclass of | its `update` takes | and it is called |
|---|---|---|
| `OnPolicyAlgorithm` | a `Rollout` [T, B] | once per rollout, which is then thrown away |
| `OffPolicyAlgorithm` | a batch [N] from replay | as often as the replay ratio says |

What is written in `update` is what runs. Where an algorithm has a method `step`, that is the part
of its update that depends on nothing but tensors and flags: what is random is drawn before it, and
counts are kept outside. An engine may compile or capture `step` as it stands; an algorithm without
one simply runs.

Redline's own algorithms are cut once more, so that a whole update can be captured as one graph:

    update(batch) = reported(learn(batch, begin_update()))

| method | does | may |
|---|---|---|
| `begin_update` | counts, and says which parts have their turn | use Python's numbers |
| `learn` | everything else, what is random included | draw from the algorithm's own generators |
| `reported` | adds the metrics of parts whose turn it was not | use Python's dicts |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import torch
from gymnasium import spaces
from torch import Tensor

from redline.data import Rollout, masked_mean_std
from redline.data.ranks import are_several, sum_over_ranks
from redline.errors import ConfigError, CorruptCheckpointError
from redline.plain_text import shown
from redline.policies import make_policy
from redline.policies.policy import Policy

Settings = Mapping[str, Any]


class Algorithm(ABC):
    """What every algorithm has in common.

    Attributes:
        name: what it is called on the command line and in run directories.
        Config: a dataclass of its hyperparameters, all with defaults.
        defaults: settings of the run and the network that differ from the general defaults.
        presets: name -> settings; a preset named after a family of environments
            (`train/presets.py`) is taken for those by itself.
        variants: name -> settings laid over the preset of the environment's family.
        variant_presets: (variant, family) -> what the variant needs there besides.
        saved_parameters: the entries of `state_dict` that gradients change.
        waits_for_episodes: whether environments wait after an episode until all have ended.
        learns_from_data: whether its rollouts are drawn from recorded episodes, the run's `data`,
            instead of stepping environments. Its config says by `num_envs` how many steps each.
        inner: the attribute that holds another algorithm, whose `update` this one's calls, and
            which an engine runs; "": none.
        policy: what acts, and learns.
        config: the hyperparameters in force.
        device: where it learns; where the policy is, if the algorithm does not say.
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    defaults: ClassVar[Settings] = {}
    presets: ClassVar[Mapping[str, Settings]] = {}
    variants: ClassVar[Mapping[str, Settings]] = {}
    variant_presets: ClassVar[Mapping[tuple[str, str], Settings]] = {}
    saved_parameters: ClassVar[tuple[str, ...]] = ("policy",)
    waits_for_episodes: ClassVar[bool] = False
    learns_from_data: ClassVar[bool] = False
    inner: ClassVar[str] = ""

    policy: Any
    config: Any

    @cached_property
    def device(self) -> torch.device:
        """Where it learns."""
        return next(self.policy.parameters()).device

    @classmethod
    @abstractmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: Any,
        **network: Any,
    ) -> Policy:
        """The policy with fresh weights from torch's global generator, on the CPU.

        Args:
            observation_space: of one environment.
            action_space: of one environment.
            config: hyperparameters.
            network: the run's `PolicySettings`, by name.

        Raises:
            SpaceError: if a space cannot be served.
            ConfigError: if a setting of the network does not apply.
        """

    @classmethod
    @abstractmethod
    def make(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: Any,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> Self:
        """The algorithm with a fresh policy; arguments and errors as for `make_policy`.

        Args:
            observation_space: of one environment.
            action_space: of one environment.
            config: hyperparameters.
            seed: of everything that updates draw.
            device: where to learn.
            network: the run's `PolicySettings`, by name.
        """

    @classmethod
    def caution(cls, config: Any, changed: frozenset[str], *, clips_reward: bool) -> str | None:
        """One sentence to say when a run begins with settings that are hardly meant so.

        Args:
            config: hyperparameters.
            changed: names of the settings that the caller changed from those of the preset.
            clips_reward: whether the learner sees the sign of each reward instead.
        """
        del config, changed, clips_reward
        return None

    def begin_update(self) -> tuple[bool, ...]:
        """Count one more update; which of its parts have their turn."""
        return ()

    def reported(self, found: dict[str, Any]) -> dict[str, Any]:
        """The metrics of an update, from those that `learn` found."""
        return found

    def carried_metrics(self) -> dict[str, Tensor]:
        """Metrics that `reported` keeps for later updates, in the dict where it keeps them."""
        return {}

    @abstractmethod
    def set_hyperparameters(self, values: Mapping[str, float]) -> None:
        """Take the present values of what the schedules govern, before an update."""

    @abstractmethod
    def optimizer_steps(self) -> int:
        """Optimizer steps taken so far. May wait for the device: for the logger only."""

    def steps_on_device(self) -> Tensor | None:
        """[] that count where it lies on the device, to be read with other numbers; else None."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on; "policy" holds the policy's parameters."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`, in place: tensors keep their memory."""


class OnPolicyAlgorithm(Algorithm):
    """An algorithm that learns from each rollout once.

    Args:
        policy: the network that acts and learns.
        config: hyperparameters.
        seed: of everything that updates draw.
    """

    @abstractmethod
    def __init__(self, policy: Policy, config: Any, seed: int = 0) -> None: ...

    @abstractmethod
    def update(self, rollout: Rollout) -> dict[str, Tensor]:
        """Improve the policy from one rollout.

        Args:
            rollout: [T, B]; it is not changed.

        Returns:
            name -> [] metrics, on the algorithm's device: nothing here waits for it.
        """

    @classmethod
    def make_policy(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: Any,
        **network: Any,
    ) -> Policy:
        """See `Algorithm.make_policy`: an actor-critic."""
        if network.get("shared_encoder") is None:
            network["shared_encoder"] = "auto"
        widths = getattr(config, "critic_hidden_sizes", None)
        policy = make_policy(observation_space, action_space, critic_hidden_sizes=widths, **network)
        policy.noise_color = getattr(config, "noise_color", 0.0)
        if policy.noise_color and not isinstance(action_space, spaces.Box):
            raise ConfigError(
                f"noise_color={policy.noise_color} is for Box actions: the noise that chooses an "
                f"action of {action_space} is not normal. Leave it at 0."
            )
        return policy

    @classmethod
    def make(
        cls,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        config: Any,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        **network: Any,
    ) -> Self:
        """See `Algorithm.make`."""
        policy = cls.make_policy(observation_space, action_space, config, **network)
        return cls(policy.to(device), config, seed=seed)


class OffPolicyAlgorithm(Algorithm):
    """An algorithm that learns from batches of replay.

    Attributes:
        metric_names: what `update` returns beside "priority"; names that are given are columns of
            progress.csv from the first row on, which may come before the first update. Others join
            when they first come.
    """

    metric_names: tuple[str, ...] = ()

    @abstractmethod
    def update(self, batch: Any) -> dict[str, Any]:
        """Improve from one batch; never waits for the device.

        Args:
            batch: [N] transitions with the keys in `data/rollout.py`, or a `SequenceBatch`.

        Returns:
            name -> metrics, each a tensor [], or a number where nothing has to be waited for;
            and "priority" [N], a tensor, the new priorities of the batch; without it they stay.
        """

    @abstractmethod
    def conditioning(
        self, env_steps: int, total_env_steps: int, num_envs: int
    ) -> dict[str, Tensor]:
        """Per-environment inputs of the policy for the next collection, name -> [B].

        Args:
            env_steps: taken so far, over all environments.
            total_env_steps: length of the run.
            num_envs: B.
        """

    def initial_priorities(self, rollout: Rollout) -> Tensor | None:
        """[T, B] priorities of new transitions; None: the highest that replay has seen."""
        del rollout
        return None


def metrics_of(algorithm: Any, found: Any) -> dict[str, Any]:
    """What an update returned, as a dict of its own.

    Raises:
        ConfigError: if that is no mapping of names to tensors [] or numbers; names the algorithm.
    """
    name = f"{type(algorithm).__name__}.update"
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"{name} returned {found!r:.100}, not its metrics. Return a dict of name -> tensor [] "
            f"or number; {{}} if there are none."
        )
    metrics = cast("Mapping[str, Any]", found)
    for metric, value in metrics.items():
        is_number = isinstance(value, (int, float)) or getattr(value, "size", None) == 1
        if isinstance(value, Tensor):
            is_number = value.numel() == 1
        if not is_number and metric != "priority":
            raise ConfigError(
                f"{name} returned the metric {metric!r} = {value!r:.100}, which is not one number. "
                f"Return a tensor [] or a number for each metric."
            )
    return dict(metrics)


def saved_count(state: Mapping[str, Any], name: str) -> int:
    """A count of steps or updates from a saved state, which may be a stranger's.

    Raises:
        CorruptCheckpointError: if it is no count.
    """
    found: Any = state[name]
    if type(found) is int and 0 <= found < 2**63:
        return found
    raise CorruptCheckpointError(
        f"the checkpoint's state.algorithm.{name} is {shown(found)}, and should be a whole number "
        "from 0 on. It was changed since it was saved; use an earlier checkpoint, or the run it "
        "was copied from."
    )


def normalized(advantage: Tensor, valid: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1 over the valid rows."""
    mean, std = masked_mean_std(advantage, valid)
    if are_several():
        mean, std = _over_ranks(mean, std, valid)
    return (advantage - mean) / (std + 1e-8)


def _over_ranks(mean: Tensor, std: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the rows of all ranks, from those of each."""
    count, center, spread = valid.sum().double(), mean.double(), std.double()
    own = torch.stack([count, count * center, count * (spread.square() + center.square())])
    sums = sum_over_ranks(own)
    total = sums[0].clamp(min=1.0)
    whole = sums[1] / total
    deviation = (sums[2] / total - whole.square()).clamp(min=0.0).sqrt()
    return whole.to(mean.dtype), deviation.to(mean.dtype)


def clip_gradients(parameters: Sequence[Tensor], max_norm: float) -> Tensor:
    """Scale gradients to an L2 norm of at most `max_norm` (0: leave them); the norm before, []."""
    bound = max_norm if max_norm > 0 else float("inf")
    return torch.nn.utils.clip_grad_norm_(parameters, bound)


def explained_variance(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """1 - Var(target - value) / Var(target) over valid rows; 1 is perfect, 0 a constant guess."""
    _, residual_std = masked_mean_std(target - value, valid)
    _, target_std = masked_mean_std(target, valid)
    return 1.0 - residual_std.square() / target_std.square().clamp(min=1e-8)

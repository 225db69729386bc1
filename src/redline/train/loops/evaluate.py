"""Evaluation: exactly N episodes, on environments of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

import numpy as np
import torch

from redline.data import Array, EpisodeRecord, to_numpy, to_tensor
from redline.envs.vec_env import VecEnv
from redline.errors import ConfigError, CorruptCheckpointError
from redline.plain_text import printable, shortened
from redline.policies.modes import evaluation_mode
from redline.policies.policy import Policy, reset_state

MAX_ENVS = 16
_EVALUATION_STREAM = 2  # keeps these seeds apart from those of training


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Returns of N episodes of the real game: unclipped, unscaled, all lives.

    Attributes:
        episodes: N.
        return_mean: mean of the episodes' returns.
        return_std: their population standard deviation.
        return_min: the smallest.
        return_max: the largest.
        length_mean: mean length in env_steps.
        returns: of each episode, in the order in which they ended.
        lengths: likewise, in env_steps.
        cut: how many of them `max_episode_steps` cut short; their returns are those so far.
        success_rate: share of the episodes that the environment calls a success, where it says
            so in its last info (`is_success` or `success`); else None. One that was cut is none.
        info: means of the values in the last infos that were asked for, over the episodes that
            have them.
    """

    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    length_mean: float
    returns: tuple[float, ...] = ()
    lengths: tuple[int, ...] = ()
    cut: int = 0
    success_rate: float | None = None
    info: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain data, in the order of the attributes; the infos' means under their own names."""
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "info"}
        plain = {n: list(v) if isinstance(v, tuple) else v for n, v in own.items()}
        return plain | {name: mean for name, mean in self.info.items() if name not in plain}

    def to_state(self) -> dict[str, Any]:
        """All of it as plain data, for a checkpoint."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        lists = {name: list(plain[name]) for name in ("returns", "lengths")}
        return plain | lists | {"info": dict(self.info)}

    @classmethod
    def from_state(cls, state: Any) -> Evaluation:
        """What `to_state` gave.

        Raises:
            CorruptCheckpointError: if it is something else.
        """
        try:
            rate = state["success_rate"]
            means = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
            return cls(
                episodes=int(state["episodes"]),
                **{name: float(state[name]) for name in means},
                returns=tuple(map(float, state["returns"])),
                lengths=tuple(map(int, state["lengths"])),
                cut=int(state["cut"]),
                success_rate=None if rate is None else float(rate),
                info={str(name): float(mean) for name, mean in state["info"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CorruptCheckpointError(
                f"the checkpoint's last evaluation makes no sense ({shortened(error)}). Use an "
                "earlier checkpoint."
            ) from error

    @classmethod
    def of(cls, records: Sequence[EpisodeRecord], *, cut: int = 0) -> Evaluation:
        """What these episodes amount to.

        Args:
            records: of N episodes, at least one.
            cut: how many of them were cut short.
        """
        returns = np.array([record.return_ for record in records])
        said = [record.success for record in records]
        infos: dict[str, list[float]] = {}
        for record in records:
            for name, value in record.info.items():
                infos.setdefault(name, []).append(value)
        return cls(
            episodes=len(records),
            return_mean=float(returns.mean()),
            return_std=float(returns.std()),
            return_min=float(returns.min()),
            return_max=float(returns.max()),
            length_mean=float(np.mean([record.length for record in records])),
            returns=tuple(returns.tolist()),
            lengths=tuple(record.length for record in records),
            cut=cut,
            success_rate=None if all(s is None for s in said) else said.count(True) / len(said),
            info={name: float(np.mean(values)) for name, values in infos.items()},
        )


def evaluation_seed(run_seed: int, salt: int = 0) -> int:
    """A seed for evaluation environments that no training environment has.

    Args:
        run_seed: the run's seed.
        salt: tells the evaluations of one run apart.
    """
    sequence = np.random.SeedSequence([run_seed, _EVALUATION_STREAM, salt])
    return int(sequence.generate_state(1)[0] >> 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far an evaluation may go; None: as far as its episodes do.

    Attributes:
        max_episode_steps: env_steps after which an episode is cut, which counts as it is.
        max_env_steps: env_steps of all episodes together, after which those that have not ended
            are left out. Long ones are then left out more often than short ones.

    Raises:
        ConfigError: if one is below 1.
    """

    max_episode_steps: int | None = None
    max_env_steps: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_episode_steps", "max_env_steps"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Integral):
                raise ConfigError(f"{name}={value!r} must be a whole number, or None.")
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1, or None for no limit.")


NO_LIMITS = Limits()


def evaluate(
    make_env: Callable[[int], VecEnv],
    policy: Policy,
    *,
    episodes: int,
    seed: int,
    greedy: bool = True,
    num_envs: int | None = None,
    limits: Limits = NO_LIMITS,
    on_step: Callable[[list[EpisodeRecord]], None] | None = None,
) -> Evaluation:
    """Run exactly `episodes` episodes, whole ones unless there are limits.

    Every environment gets its share beforehand and stops after it, so a short episode does
    not make room for another one: the mean is not drawn towards short episodes.

    Args:
        make_env: number of environments -> environments; closed afterwards.
        policy: acts; it is not changed, and its normalizer is not updated.
        episodes: N.
        seed: of environments and action noise.
        greedy: act with the mode of the action distribution instead of sampling.
        num_envs: environments to share the episodes out to; None: one per episode, at most 16.
        limits: in env_steps.
        on_step: called after every step with those of the episodes that ended in it.

    Raises:
        ConfigError: if episodes < 1, if `max_env_steps` is over before any episode, or if actions
            are to be sampled by a policy that samples none.
    """
    if not greedy:
        require_samples(policy)
    if isinstance(episodes, bool) or not isinstance(episodes, Integral):
        raise ConfigError(f"episodes={episodes!r} must be a whole number of 1 or more.")
    if episodes < 1:
        raise ConfigError(f"episodes={episodes} must be at least 1.")
    num_envs = num_envs or min(episodes, MAX_ENVS)
    records: list[EpisodeRecord] = []
    with evaluation_mode(policy), make_env(num_envs) as env, torch.inference_mode():
        episode_run = _EpisodeRun(env, policy, seed, greedy, limits)
        for ended in episode_run.all(episodes):
            records += ended
            if on_step is not None:
                on_step(ended)
    if not records:
        raise ConfigError(
            f"max_env_steps={limits.max_env_steps} is over before the first episode has ended. "
            f"Give more, or max_episode_steps to cut episodes and count them."
        )
    return Evaluation.of(records, cut=episode_run.cut)


class _EpisodeRun:
    """Steps environments and policy until the episodes asked for have ended.

    Args:
        env: the environments.
        policy: acts.
        seed: of environments and action noise.
        greedy: as for `evaluate`.
        limits: likewise.

    Attributes:
        cut: episodes cut short so far.
    """

    def __init__(
        self, env: VecEnv, policy: Policy, seed: int, greedy: bool, limits: Limits
    ) -> None:
        self._env, self._policy, self._seed, self._greedy = env, policy, seed, greedy
        self._limits, self.cut = limits, 0
        parameter = next(policy.parameters(), None)
        self._device = parameter.device if parameter is not None else torch.device("cpu")
        self._rngs = [np.random.default_rng([seed, i]) for i in range(env.num_envs)]
        self._conditioning = {
            name: leaf.to(self._device)
            for name, leaf in policy.evaluation_conditioning(env.num_envs).items()
        }
        self._env_steps = 0

    @property
    def _is_over(self) -> bool:
        limit = self._limits.max_env_steps
        return limit is not None and self._env_steps >= limit

    def all(self, episodes: int) -> Iterator[list[EpisodeRecord]]:
        """Step by step, those of `episodes` episodes that ended."""
        num_envs = self._env.num_envs
        if self._limits.max_episode_steps is None:
            quota = np.full(num_envs, episodes // num_envs)
            quota[: episodes % num_envs] += 1
            yield from self._stretch(quota, self._seed)
            return
        # An episode that is cut must not go on: all begin anew, once each is through with one.
        for begun in range(0, episodes, num_envs):
            if not self._is_over:
                quota = (np.arange(num_envs) < episodes - begun).astype(np.int64)
                yield from self._stretch(quota, self._seed if begun == 0 else None)

    def _stretch(self, quota: np.ndarray, seed: int | None) -> Iterator[list[EpisodeRecord]]:
        """From a reset on, `quota` [B] episodes of each environment.

        Args:
            quota: with a limit on episodes at most 1 each.
            seed: of the reset; None goes on with the environments' streams.
        """
        env, policy, limit = self._env, self._policy, self._limits.max_episode_steps
        state = {n: s.to(self._device) for n, s in policy.initial_state(env.num_envs).items()}
        remaining = quota.copy()
        obs, steps = env.reset(seed), 0
        while remaining.any() and not self._is_over:
            noise = self._noise(remaining > 0)
            output = policy.act(
                to_tensor(obs, self._device), state, noise, self._conditioning or None
            )
            action = policy.env_action(to_numpy(output.action))
            step = env.step(action, remaining > 0 if env.can_idle else None)
            steps += 1
            self._env_steps += int((step.valid & (remaining > 0)).sum())
            obs, state = step.obs, output.state
            ended = step.terminated | step.truncated | ~step.valid
            if state and ended.any():
                state = reset_state(state, torch.from_numpy(ended).to(self._device))
            counted = [record for record in step.episodes if remaining[record.env_id] > 0]
            for record in counted:
                remaining[record.env_id] -= 1
            if limit is not None and steps >= limit:
                under_way = [each for each in env.running() if remaining[each.env_id] > 0]
                self.cut += len(under_way)
                counted += under_way
                remaining[:] = 0
            yield counted

    def _noise(self, active: Array) -> torch.Tensor | None:
        """[B, noise_size] from each environment's own stream; None to act greedily.

        Args:
            active: [B] bool; the others wait, and their streams with them, so that an episode has
                its noise however long those before it and beside it were.
        """
        if self._greedy:
            return None
        nothing = np.full((1, self._policy.noise_size), 0.5, np.float32)  # of any distribution
        rows = [
            self._policy.draw_noise(rng, 1) if is_active else nothing
            for rng, is_active in zip(self._rngs, active.tolist(), strict=True)
        ]
        return torch.from_numpy(np.concatenate(rows)).to(self._device)


def require_samples(policy: Policy) -> None:
    """Refuse to sample the actions of a policy that has no distribution of them.

    Raises:
        ConfigError: if it explores only while it trains.
    """
    if not policy.samples:
        raise ConfigError(
            "--stochastic (greedy=False) has no effect: this policy explores only while it trains, "
            "by random actions or by noise on its own, and has no distribution to sample from. "
            "Leave it out."
        )


def explain_greedy(
    result: Evaluation,
    training_mean: float | None,
    training_std: float | None,
    *,
    samples: bool = True,
) -> str | None:
    """Why a greedy evaluation may lie far below what training showed; None if it does not.

    Args:
        result: of acting greedily.
        training_mean: newest mean return of training episodes; None: not known.
        training_std: their standard deviation.
        samples: whether the policy can sample its actions, see `Policy`.
    """
    if training_mean is None:
        return None
    gap = training_mean - result.return_mean
    if gap <= max(0.3 * abs(training_mean), training_std or 0.0, result.return_std):
        return None
    cut = f"{result.cut} of {result.episodes} episodes were cut, which may be why. "
    if not samples:
        return (
            f"acting greedily reaches {result.return_mean:,.1f}, and training reached "
            f"{training_mean:,.1f} while it explored. {cut if result.cut else ''}A random action "
            "now and then can free a policy where it is held. Train longer."
        )
    return (
        f"acting greedily reaches {result.return_mean:,.1f}, and training reached "
        f"{training_mean:,.1f} by sampling its actions. "
        f"{cut if result.cut else ''}A policy may need its noise: always taking "
        f"the likeliest action can hold it where it is. Evaluate it as it was trained with "
        f"--stochastic (greedy=False), or train longer, until it is surer of itself."
    )


def over_runs(
    results: Mapping[str, Evaluation], independent: Collection[str] | None = None
) -> dict[str, Any]:
    """Plain data of several runs, and the mean and population standard deviation over them.

    Args:
        results: run -> its evaluation.
        independent: the runs that the mean counts; None: all.
    """
    counted = results if independent is None else independent
    means = np.array([results[name].return_mean for name in counted])
    return {
        "return_mean": float(means.mean()),
        "return_std": float(means.std()),
        "runs": {name: result.to_json() for name, result in results.items()},
    }


def as_table(results: Mapping[str, Evaluation], independent: Collection[str] | None = None) -> str:
    """One line per run, and one for all of them, in columns.

    Args:
        results: run -> its evaluation.
        independent: the runs that the last line counts; None: all.
    """
    rows: list[tuple[str, ...]] = [
        ("run", "episodes", "return", "std", "min", "max", "length", "success")
    ]
    for name, result in results.items():
        numbers = (result.return_mean, result.return_std, result.return_min, result.return_max)
        rate = "" if result.success_rate is None else f"{result.success_rate:.0%}"
        shown = [f"{number:,.2f}" for number in (*numbers, result.length_mean)]
        rows.append((printable(name), str(result.episodes), *shown, rate))
    total = over_runs(results, independent)
    number = len(results if independent is None else independent)
    mean, std = f"{total['return_mean']:,.2f}", f"{total['return_std']:,.2f}"
    rows.append((f"mean of {number} run{'s' if number > 1 else ''}", "", mean, std, "", "", "", ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )
    return "".join(f"{line}\n" for line in lines)

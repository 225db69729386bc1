"""Callbacks: code of yours that a run calls, to log, to stop, to change what it does.

A callback is any object that has some of these methods; each is called with a `RunState`:

| method | called |
|---|---|
| `on_start(state)` | before the first iteration, also when a run is resumed |
| `on_episode(state)` | for each episode that ended, as `state.episode` |
| `on_evaluation(state)` | after an evaluation, with `state.evaluation` |
| `on_iteration(state)` | after each iteration: one collection and its updates |
| `on_checkpoint(state)` | after a checkpoint was written, to `state.checkpoint` |
| `on_end(state)` | at the end of the run, with `state.stop_reason` if it was stopped |

```python
class StopWhenSlow:
    def on_iteration(self, state):
        state.log("minutes", state.wall_time_s / 60)
        if state.wall_time_s > 3600:
            state.stop("an hour is over")

redline.train("ppo", env="CartPole-v1", callbacks=[StopWhenSlow()])
```

A checkpoint holds a callback's state, so that a resumed run goes on exactly: what `state_dict()`
gives, if the callback has that and `load_state_dict(state)`; else those of its attributes that are
plain data (numbers, strings, arrays, lists, dicts; no classes derived from these). They replace
what the callback of the resumed run was made with; of Redline's own callbacks only the progress is
taken from the checkpoint, so new arguments hold. An exception in a callback ends the run with a
checkpoint and the traceback.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from redline.envs.attributes import plain_attribute
from redline.envs.plain_data import is_same
from redline.errors import ConfigError
from redline.train.progress.progress import RECENT_EPISODES

if TYPE_CHECKING:
    from redline.data import EpisodeRecord
    from redline.policies import Policy
    from redline.train.loops.evaluate import Evaluation
    from redline.train.loops.loop import TrainLoop
    from redline.train.settings import RunConfig

RETURN_REACHED = "mean return"  # how the reason of `StopAtReturn` begins
EVENTS = ("on_start", "on_episode", "on_evaluation", "on_iteration", "on_checkpoint", "on_end")


class Environments(Protocol):
    """The run's training environments; those of evaluations are others."""

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value, from the next iteration on.

        Args:
            name: of an attribute that the environments or their wrappers have.
            value: plain data. A resumed run sets it again.

        Raises:
            ConfigError: if there is no such attribute, or the back end cannot reach it.
        """
        ...


class RunState:
    """What a callback sees of a run, and what it may do to it.

    Attributes:
        episode: the one that ended, in `on_episode`; else None.
        evaluation: the newest one; None before the first.
        checkpoint: the newest one that this session wrote; None before that.
        stop_reason: why the run ends before its length; None if it does not.
    """

    def __init__(self, loop: TrainLoop) -> None:
        self._loop = loop
        self.episode: EpisodeRecord | None = None
        self.evaluation: Evaluation | None = None
        self.checkpoint: Path | None = None
        self.stop_reason: str | None = None

    @property
    def config(self) -> RunConfig:
        """All settings of the run."""
        return self._loop.config

    @property
    def out(self) -> Path:
        """The run directory, for files of a callback's own."""
        return self._loop.out

    @property
    def policy(self) -> Policy:
        """The learner's policy."""
        return self._loop.algorithm.policy

    @property
    def env_steps(self) -> int:
        """Decisions taken so far, summed over environments."""
        return self._loop.counters.env_steps

    @property
    def iteration(self) -> int:
        """Iterations finished."""
        return self._loop.counters.iteration

    @property
    def wall_time_s(self) -> float:
        """Seconds spent training, over all sessions of the run."""
        return self._loop.counters.wall_time_s

    @property
    def rollouts_ahead(self) -> int:
        """How many of the coming iterations may learn from what was collected before now."""
        return self._loop.collector.max_staleness

    @property
    def mean_return(self) -> float:
        """Mean return of the last 100 training episodes; NaN before the first has ended.

        Comparisons with NaN are false, so `state.mean_return > 100` needs no further look.
        """
        mean = self._loop.mean_return
        return math.nan if mean is None else mean

    @property
    def recent_episodes(self) -> int:
        """How many episodes that is the mean of."""
        return self._loop.recent_episodes

    @property
    def hyperparameters(self) -> Mapping[str, float]:
        """Present values of those that `set_hyperparameter` can change."""
        return self._loop.hyperparameters()

    @property
    def envs(self) -> Environments:
        """The training environments."""
        return self._loop.environments

    def log(self, name: str, value: float) -> None:
        """Log a number as a column of its own, in every log that the run writes.

        Of several values between two rows, the mean is logged; NaN counts as no value.

        Args:
            name: such as "curriculum/level".
            value: a number.

        Raises:
            ConfigError: if it is no number, the name is another column's, or no row follows.
        """
        self._loop.log(name, value)

    def stop(self, reason: str) -> None:
        """End the run cleanly after this iteration: with a last row and a checkpoint.

        Args:
            reason: shown to the user; the first one given counts.
        """
        if self.stop_reason is None:
            self.stop_reason = str(reason)

    def set_hyperparameter(self, name: str, value: float) -> None:
        """Change a hyperparameter from the next update on, in place of its schedule.

        Args:
            name: one of `hyperparameters`, such as "learning_rate".
            value: its new value.

        Raises:
            ConfigError: if it cannot be changed while the run goes on, or the value is no number.
        """
        self._loop.set_hyperparameter(name, value)

    def save_best(self, score: float) -> Path:
        """Write a checkpoint as the run's best one, for `which="best"`; the old best is removed.

        Args:
            score: what makes it the best.
        """
        return self._loop.save_best(score)


@runtime_checkable
class Callback(Protocol):
    """For type checkers: the method that most callbacks have; others are in the module's table."""

    def on_iteration(self, state: RunState) -> None:
        """Called after each iteration."""
        ...


def _covered(name: str, min_episodes: int) -> int:
    """How many episodes a mean must cover, which is taken over the last `RECENT_EPISODES`."""
    if not 1 <= min_episodes <= RECENT_EPISODES:
        raise ConfigError(
            f"{name}(min_episodes={min_episodes}) has no mean to look at: the mean return is that "
            f"of at most the last {RECENT_EPISODES} episodes. Give 1 to {RECENT_EPISODES}."
        )
    return int(min_episodes)


class StopAtReturn:
    """Stop the run as soon as the mean return of recent training episodes reaches a threshold.

    Episodes of every value of a `Curriculum` count; to stop at its last value, go by evaluations.

    Args:
        threshold: mean return of the last 100 episodes.
        min_episodes: episodes that the mean must cover, from 1 to 100.

    Raises:
        ConfigError: if `min_episodes` is out of range.
    """

    def __init__(self, threshold: float, *, min_episodes: int = 20) -> None:
        self.threshold = float(threshold)
        self.min_episodes = _covered("StopAtReturn", min_episodes)

    def on_iteration(self, state: RunState) -> None:
        """Stop if the threshold is reached."""
        enough = state.recent_episodes >= self.min_episodes
        if enough and state.mean_return >= self.threshold:
            state.stop(f"{RETURN_REACHED} {state.mean_return:,.1f} has reached {self.threshold:,g}")


class Curriculum:
    """Set an attribute of the environments to one value after the other.

    Evaluations keep the value that their environments were made with.

    A resumed run may have other arguments: it goes on in the stage where it was, or in the last one
    if there are fewer.

    Args:
        attribute: of the environments or their wrappers.
        values: in the order in which they are set; the first one at the start.
        at_env_steps: env_steps at which each value but the first is set.
        at_return: instead, the mean return at which the next value is set: one for all, or one
            for each value but the last. It is taken over `episodes` episodes under the value: after
            a move the rollouts that were made ahead do not count, nor does the first episode that
            then ends in each environment.
        episodes: how many.

    Raises:
        ConfigError: if values and conditions do not fit each other.
    """

    def __init__(
        self,
        attribute: str,
        values: Sequence[Any],
        *,
        at_env_steps: Sequence[int] | None = None,
        at_return: float | Sequence[float] | None = None,
        episodes: int = 20,
    ) -> None:
        if (at_env_steps is None) == (at_return is None):
            raise ConfigError("Curriculum needs at_env_steps or at_return, and not both.")
        moves = len(values) - 1
        given = at_env_steps if at_return is None else at_return
        if isinstance(given, (int, float, Real)):  # Real: numpy's
            given = [float(given)] * moves
        self.limits = [float(limit) for limit in (() if given is None else given)]
        if moves < 1 or len(self.limits) != moves:
            raise ConfigError(
                f"Curriculum has {len(values)} values of {attribute} and {len(self.limits)} "
                f"conditions. Give one condition less than values, and at least two values."
            )
        if episodes < 1:
            raise ConfigError(
                f"Curriculum(episodes={episodes}) is a mean of nothing. Give 1 or more."
            )
        self.attribute, self.values, self.episodes = attribute, list(values), int(episodes)
        self.by_return = at_return is not None
        self._begin()

    def _begin(self) -> None:
        self.stage = 0
        self.returns: deque[float] = deque(maxlen=self.episodes)
        self.begun: set[int] = set()  # environments in which an episode ended since the last move
        self.ahead = 0  # iterations whose rollouts were made before it, at the most
        self.is_first = True  # whether no value was set before the present one
        self.is_other = False  # whether a resume gave other arguments, and so another present value

    def compare(self, before: Mapping[str, Any]) -> None:
        """See whether the present value is another than before a resume; `on_start` sets it then.

        Args:
            before: all attributes as plain data, of the checkpoint.
        """
        self.stage = min(self.stage, len(self.limits))
        self.returns = deque(self.returns, maxlen=self.episodes)
        if "values" in before:  # a checkpoint leaves out those that are not plain data
            was = [before["attribute"], before["values"][before["stage"]]]
            value = plain_attribute(self.attribute, self.values[self.stage])
            self.is_other = not is_same(was, [self.attribute, value])

    def on_start(self, state: RunState) -> None:
        """Set the first value; a resumed run has the present one, unless it is another now."""
        if state.env_steps == 0:
            self._begin()  # the object may have served another run
            state.envs.set_attr(self.attribute, self.values[0])
        elif self.is_other:
            self.is_other = False
            self._move(state)

    def on_episode(self, state: RunState) -> None:
        """Take the episode's return in, unless it began under the value before."""
        episode = state.episode
        if episode is None or not self.by_return or self.ahead:
            return
        if (self.is_first and self.stage == 0) or episode.env_id in self.begun:
            self.returns.append(float(episode.return_))
        else:
            self.begun.add(episode.env_id)

    def on_iteration(self, state: RunState) -> None:
        """Set the next value if it is time, and log how far the curriculum is."""
        self.ahead = max(self.ahead - 1, 0)
        if self.stage < len(self.limits) and self._is_time(state):
            self.stage += 1
            self._move(state)
        state.log(f"curriculum/{self.attribute}", self.stage)

    def _move(self, state: RunState) -> None:
        """Set the stage's value; what was seen under the one before says nothing of it."""
        self.returns.clear()
        self.begun.clear()
        self.ahead, self.is_first = state.rollouts_ahead, False
        state.envs.set_attr(self.attribute, self.values[self.stage])

    def _is_time(self, state: RunState) -> bool:
        limit = self.limits[self.stage]
        if not self.by_return:
            return state.env_steps >= limit
        full = len(self.returns) == self.episodes
        return full and sum(self.returns) / self.episodes >= limit


class SaveBest:
    """Keep the best policy so far, for `redline eval --which best`, whatever `checkpoints` says.

    The score is the mean return of each evaluation; without evaluations that of recent training
    episodes, looked at every `every_env_steps`. Scores of the two kinds are not compared: a run
    that is resumed with the other kind begins anew. Beside a `Curriculum` have evaluations:
    training episodes count whatever value they had.

    Args:
        every_env_steps: None: 1% of the run.
        min_episodes: training episodes that the mean must cover, from 1 to 100.

    Raises:
        ConfigError: if `min_episodes` is out of range.
    """

    def __init__(self, *, every_env_steps: int | None = None, min_episodes: int = 20) -> None:
        self.every_env_steps = every_env_steps
        self.min_episodes = _covered("SaveBest", min_episodes)
        self.best: float | None = None
        self.by_evaluation: bool | None = None  # None: an earlier version did not say
        self.looked_at = 0

    def on_start(self, state: RunState) -> None:
        """Begin anew with a new run, as the object may have served another, or another measure."""
        by_evaluation = bool(state.config.run.eval_interval)
        if state.env_steps == 0:
            self.best, self.looked_at = None, 0
        elif self.by_evaluation not in (None, by_evaluation):
            self.best = None
        self.by_evaluation = by_evaluation

    def on_evaluation(self, state: RunState) -> None:
        """Keep the policy if it did better than any before."""
        if state.evaluation is not None:
            self._keep(state, state.evaluation.return_mean)

    def on_iteration(self, state: RunState) -> None:
        """Where there are no evaluations, go by training episodes."""
        if state.config.run.eval_interval:
            return
        every = self.every_env_steps or max(1, state.config.run.total_env_steps // 100)
        if state.env_steps - self.looked_at < every or state.recent_episodes < self.min_episodes:
            return
        self.looked_at = state.env_steps
        self._keep(state, state.mean_return)

    def _keep(self, state: RunState, score: float) -> None:
        if self.best is None or score > self.best:
            self.best = score
            state.save_best(score)


ARGUMENTS: Mapping[type, frozenset[str]] = {
    StopAtReturn: frozenset(("threshold", "min_episodes")),
    Curriculum: frozenset(("attribute", "values", "limits", "episodes", "by_return")),
    SaveBest: frozenset(("every_env_steps", "min_episodes")),
}
"""Attributes that say what was asked for, not how far it is: those given at a resume hold.

Of these classes alone. Of one derived from them all is restored, as of any class of a user's.
"""

"""When a run is evaluated, by whom, and what was found last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from redline.errors import RedlineError
from redline.profile import marks
from redline.train.loops.background_evaluation import BackgroundEvaluation
from redline.train.loops.evaluate import Evaluation, evaluation_seed, explain_greedy
from redline.train.progress.console import Console
from redline.train.progress.progress import EpisodeStatistics
from redline.train.settings import RunSettings

_EVALUATION = marks.operation("evaluation")
EVALUATION_COLUMNS = ("eval_return_mean", "eval_return_std", "eval_episode_length_mean")

__all__ = ["EVALUATION_COLUMNS", "Evaluations"]


class Evaluations:
    """The evaluations of a run, one after the other.

    Args:
        run: settings of the run.
        evaluate: salt -> Evaluation, in this process; None: not here.
        background: evaluates in another process instead; None: none does.
        console: what was found is said there.
        episodes: of training, beside whose returns a greedy one may look odd.
        samples: whether the policy can sample its actions, see `Policy`.

    Attributes:
        last: columns of the last one; empty before the first.
        have_failed: whether the process that evaluates has; what learns is whole then.
    """

    def __init__(
        self,
        run: RunSettings,
        evaluate: Callable[[int], Evaluation] | None,
        background: BackgroundEvaluation | None,
        console: Console,
        episodes: EpisodeStatistics,
        *,
        samples: bool = True,
    ) -> None:
        self._run, self._evaluate, self._background = run, evaluate, background
        self._console, self._episodes, self._samples = console, episodes, samples
        self._has_explained = self.have_failed = False
        self.last: dict[str, float] = {}

    @property
    def take_place(self) -> bool:
        """Whether the run is evaluated at all."""
        return self._evaluate is not None or self._background is not None

    def make(self, env_steps: int) -> Evaluation | None:
        """Evaluate the policy as it is now; None where another process has begun to do so."""
        if self._background is not None:
            with self._noticed():
                self._background.start(env_steps, evaluation_seed(self._run.seed, env_steps))
        elif self._evaluate is not None:
            with _EVALUATION:
                result = self._evaluate(env_steps)
            return self._noted(result, env_steps)
        return None

    def take(self, *, wait: bool = False) -> Evaluation | None:
        """What another process has found, if it has, or when it has."""
        if self._background is None or self._background.running is None:
            return None
        env_steps = self._background.running
        with self._noticed(), _EVALUATION:
            result = self._background.wait() if wait else self._background.poll()
        return None if result is None else self._noted(result, env_steps)

    @contextmanager
    def _noticed(self) -> Iterator[None]:
        """Keep in mind that the other process has failed; it may have died between evaluations."""
        try:
            yield
        except RedlineError:
            self.have_failed = True
            raise

    def _noted(self, result: Evaluation, env_steps: int) -> Evaluation:
        rate = result.success_rate
        found = (result.return_mean, result.return_std, result.length_mean)
        self.last = dict(zip(EVALUATION_COLUMNS, found, strict=True))
        if rate is not None:
            self.last["eval_success_rate"] = rate
        self.last |= {f"eval_{name}": mean for name, mean in result.info.items()}
        self._console.message(
            f"evaluation at {env_steps:,} env_steps: return "
            f"{result.return_mean:.1f} +- {result.return_std:.1f} over {result.episodes} episodes"
            + (f" ({result.cut} cut)" if result.cut else "")
            + ("" if rate is None else f", success {rate:.0%}")
        )
        note = explain_greedy(result, *self._episodes.moving_statistics, samples=self._samples)
        if note is not None and not self._has_explained:
            self._has_explained = True
            self._console.message(f"note: {note}")
        return result

    def columns(self) -> Mapping[str, float | None]:
        """Of a row: those of every evaluation, None before the first."""
        if not self.take_place:
            return {}
        names: Sequence[str] = (
            *EVALUATION_COLUMNS,
            *(f"eval_{name}" for name in self._run.log_info),
        )
        return {name: self.last.get(name) for name in names}

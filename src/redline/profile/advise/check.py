"""A prediction put to the test: two commands, run in turn, per env step.

The first command is recorded in full once, which gives the prediction. Then pairs of both are
recorded in light mode, in alternating order, so that what changes on the machine meets both alike.
Measured is the geometric mean of the pairs' ratios, with Student's interval.
"""

from __future__ import annotations

import math
import shlex
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from redline.errors import ConfigError, ProfileError
from redline.profile.advise.iteration import Iteration, read_iteration
from redline.profile.advise.rates import measure_rates, why_not_measured
from redline.profile.advise.remedies import NEED_RATES, REMEDIES, Advice, advise
from redline.profile.analyse.correction import t_quantile
from redline.profile.record.options import Options

# Words by which the second command differs from the first, and the remedy that they stand for. An
# option whose value changed stands behind its value and with it.
WORDS = (
    (("dummyvec", "no-subproc", "serialenv"), "in-process"),
    (("collector serial", "collector=serial"), "in-process"),
    (("subproc", "worker", "asyncvector"), "workers"),
    (("n_envs", "n-envs", "num_envs", "num-envs"), "envs"),
    (("fused",), "fused"),
    (("foreach",), "foreach"),
    (("thread",), "threads"),
    (("cudagraph",), "graphs"),
    (("compile",), "compile"),
    (("overlap", "async"), "overlap"),
    (("batch",), "batches"),
    (("log",), "logging"),
    (("replay-storage", "replay_storage"), "replay"),
    (("taskset", "pin"), "pinning"),
    (("frame_skip", "frame-skip", "render"), "simulator"),
)

# The second command without one of these has all envs in one process.
WORKER_WORDS = ("subproc", "asyncvector")

__all__ = ["Checked", "check", "remedy_between", "render_check"]


@dataclass(frozen=True, slots=True)
class Checked:
    """A prediction and what came of it; us per env step."""

    remedy: str | None
    prediction: Advice | None
    before_us: list[float]  # of each pair
    after_us: list[float]
    ratio: float  # after by before
    ratio_low: float  # 95% interval
    ratio_high: float
    no_rates: str = ""  # why this machine could not be asked for its rates

    @property
    def measured_us(self) -> float:
        """Of the second command, on the scale of the session that gave the prediction."""
        scale = self.prediction.before_us if self.prediction else statistics.mean(self.before_us)
        return self.ratio * scale

    @property
    def verdict(self) -> str:
        """`inside`, `outside`, or `unknown` where noise hides it or nothing was predicted."""
        if self.prediction is None:
            return "unknown"
        hidden = self.ratio_low <= 1.0 <= self.ratio_high
        if hidden and not self.prediction.known:
            return "unknown"
        inside = self.prediction.low_us <= self.measured_us <= self.prediction.high_us
        return "inside" if inside else "outside"


def remedy_between(first: list[str], words: list[str]) -> str | None:
    """The remedy that the words of the second command stand for; None if none is known.

    Args:
        first: words of the first command.
        words: of the second.
    """
    added = " ".join(word for word in words if word not in first).lower()
    # A setting whose value changed: its name stands in front of it in both.
    for place, word in enumerate(words[1:], 1):
        if word not in first and words[place - 1].startswith("-"):
            added += f" {words[place - 1]} {word}".lower()
    for known, remedy in WORDS:
        if any(word in added for word in known):
            return remedy
    removed = " ".join(word for word in first if word not in words).lower()
    return "in-process" if any(word in removed for word in WORKER_WORDS) else None


def check(
    before: str,
    after: str,
    *,
    remedy: str | None = None,
    pairs: int = 5,
    progress: Callable[[str], None] = lambda _: None,
    output: int | None = None,
) -> Checked:
    """Predict, then measure.

    Args:
        before: a command.
        after: the same with a remedy.
        remedy: which; told by the words that differ if not given.
        pairs: how often each is run to measure.
        progress: told what is being run.
        output: a descriptor that what the commands print goes to; None: to this program's.

    Raises:
        ConfigError: if a command is empty, cannot be read or fails, or the numbers make no sense.
        ProfileError: if a command takes no env steps.
    """
    if pairs < 2:
        raise ConfigError(
            f"pairs={pairs}, but an interval needs at least 2. Give --pairs 2 or more"
        )
    if remedy is not None and remedy not in REMEDIES:
        raise ConfigError(f"no remedy {remedy!r}. Choose one of: {', '.join(REMEDIES)}")
    commands = _Command(before, output), _Command(after, output)
    remedy = remedy or remedy_between(*(command.words for command in commands))
    with tempfile.TemporaryDirectory(prefix="redline-advise-") as directory:
        root = Path(directory)
        progress("recording the first command in full, for the prediction")
        iteration = commands[0].recorded(root / "full", "full")
        rates = measure_rates(iteration.torch_threads)
        no_rates = why_not_measured(iteration.torch_threads)
        if no_rates:
            progress(no_rates)
        found = {each.remedy: each for each in advise(iteration, rates)}
        times: dict[str, list[float]] = {"a": [], "b": []}
        for pair in range(pairs):
            order = ("a", "b") if pair % 2 == 0 else ("b", "a")
            for side in order:
                progress(f"pair {pair + 1} of {pairs}: {'first' if side == 'a' else 'second'}")
                command = commands[side == "b"]
                one = command.recorded(root / f"{pair}-{side}", "light")
                times[side].append(one.total.us)
    ratio, low, high = _ratio(times["a"], times["b"])
    prediction = found.get(remedy) if remedy is not None else None
    return Checked(remedy, prediction, times["a"], times["b"], ratio, low, high, no_rates)


class _Command:
    """A command that can be recorded.

    Args:
        text: as given.
        output: a descriptor that what it prints goes to; None: to this program's.

    Raises:
        ConfigError: if its quotes do not fit.
    """

    def __init__(self, text: str, output: int | None) -> None:
        self._text, self._output = text, output
        try:
            self.words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(
                f"cannot read the command {text!r}: {error}. Check its quotes"
            ) from None

    def recorded(self, directory: Path, mode: str) -> Iteration:
        """What its env steps consist of, as recorded into a new session."""
        from redline.profile.runner import run_profiled

        status = run_profiled(self.words, directory, Options(mode=mode), output=self._output)
        if status != 0:
            raise ConfigError(
                f"{self._text!r} ended with status {status}. Give a command that runs to its end"
            )
        try:
            return read_iteration(directory)
        except ProfileError as error:
            raise ProfileError(f"{self._text!r}: {error}") from error


def _ratio(before: list[float], after: list[float]) -> tuple[float, float, float]:
    """Geometric mean of the pairs' ratios, with its 95% interval."""
    logs = [math.log(b / a) for a, b in zip(before, after, strict=True)]
    mean = statistics.mean(logs)
    half = t_quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def _why_not_predicted(checked: Checked) -> str:
    if not checked.remedy:
        return "the words that differ name no remedy: give --remedy"
    if checked.no_rates and checked.remedy in NEED_RATES:
        return checked.no_rates
    return f"remedy {checked.remedy} does not apply to the first command"


def render_check(checked: Checked) -> str:
    """Times of both, and the line: predicted, measured, inside or not."""
    scale = checked.measured_us / checked.ratio
    measured = (
        f"measured {checked.measured_us:,.1f} us (95% {checked.ratio_low * scale:,.1f} to "
        f"{checked.ratio_high * scale:,.1f})"
    )
    each = checked.prediction
    if each is None:
        predicted = f"predicted unknown ({_why_not_predicted(checked)})"
    elif not each.known:
        predicted = f"predicted unknown (at most {each.most_us:,.1f} us saved)"
    else:
        predicted = (
            f"predicted {each.predicted_us:,.1f} us ({each.low_us:,.1f} to {each.high_us:,.1f})"
        )
    pairs = "".join(
        f"  pair {i}: {a:12,.1f} {b:12,.1f}  {100 * (b / a - 1):+.1f}%\n"
        for i, (a, b) in enumerate(zip(checked.before_us, checked.after_us, strict=True), 1)
    )
    return (
        f"us per env step of the first and of the second command:\n{pairs}"
        f"{checked.remedy or 'no remedy'}: {predicted}, {measured}: {checked.verdict}\n"
    )

"""Advice as text and as plain data."""

from __future__ import annotations

import math
import textwrap
from dataclasses import asdict
from typing import Any

from redline.profile.advise.iteration import Iteration
from redline.profile.advise.opening import opening_to_json, step_lines, verdict, who_waits
from redline.profile.advise.remedies import Advice

WIDTH = 92

__all__ = ["advice_to_json", "render_advice", "verdict"]


def render_advice(iteration: Iteration, advice: list[Advice]) -> str:
    """The verdict, the parts of an env step, and the remedies by what they gain."""
    lines = [
        verdict(iteration),
        *step_lines(iteration, with_hot_lines=True),
        *who_waits(iteration),
    ]
    lines += [f"  note: {problem}" for problem in iteration.problems]
    lines += ["", "what to change, by what it gains:"]
    if iteration.mode != "full":
        lines.append(
            f"  note: recorded in mode {iteration.mode}: only a full session tells levels apart"
        )
    for place, each in enumerate([one for one in advice if one.known], 1):
        lines += ["", *_remedy(f"{place}. {each.title}", each)]
    if not any(each.known for each in advice):
        lines.append("  nothing stands out: no remedy gains more than the noise")
    unknown = [each for each in advice if not each.known]
    if unknown:
        lines += ["", "unknown, as noise may hide the gain or there may be none:"]
        for each in unknown:
            lines += [f"  {each.title}: {_at_most(each)}", *_wrapped("assumes", each.assumes)]
    return "\n".join(lines) + "\n"


def _remedy(head: str, each: Advice) -> list[str]:
    lines = [head, f"   predicted {_predicted(each)} ({-100 * each.gain:+.0f}%)"]
    for label, text in (("assumes", each.assumes), ("how", each.how)):
        lines += _wrapped(label, text)
    return lines


def _wrapped(label: str, text: str) -> list[str]:
    if not text:
        return []
    return textwrap.wrap(f"{label}: {text}", WIDTH, initial_indent="   ", subsequent_indent="     ")


def _predicted(each: Advice) -> str:
    return (
        f"{each.predicted_us:,.1f} us per env step (95% {each.low_us:,.1f} to "
        f"{each.high_us:,.1f}), now {each.before_us:,.1f}"
    )


def _at_most(each: Advice) -> str:
    if each.most_us <= 0:
        slower = each.predicted_us > each.before_us
        return "likely slower" if slower else "how much it gains cannot be told from a session"
    share = 100 * each.most_us / each.before_us
    return f"at most {each.most_us:,.1f} of {each.before_us:,.1f} us per env step ({share:.0f}%)"


def advice_to_json(iteration: Iteration, advice: list[Advice]) -> dict[str, Any]:
    """Plain data for `json.dumps`; what is not known is null."""
    found: dict[str, Any] = {
        "verdict": verdict(iteration),
        "process": iteration.process,
        "pid": iteration.pid,
        "framework": iteration.framework,
        "env_steps": iteration.env_steps,
        "num_envs": iteration.num_envs,
        "workers": iteration.workers,
        "steady_state_s": [iteration.begin_s, iteration.end_s],
        "ready_us_per_env_step": iteration.ready_us,
        "torch_threads": iteration.torch_threads or None,
        "optimizers": list(iteration.optimizers),
        "problems": iteration.problems,
        "optimizer_us_per_env_step": _or_none(iteration.optimizer_us),
        **opening_to_json(iteration),
        "remedies": [{**asdict(each), "gain": each.gain} for each in advice],
    }
    return found


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None

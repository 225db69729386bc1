"""What the paper found, and whether it is so here."""

from __future__ import annotations

from typing import Any, NamedTuple

CONFIRMED, REFUTED, UNTESTABLE = "confirmed", "refuted", "not testable here"
PUBLISHED_SIMULATORS = ("Ant", "HalfCheetah", "Hopper", "Pong, ALE")
Row = dict[str, Any]  # of one case: see `benchmarks.studies.__main__.measure`


class Finding(NamedTuple):
    """One line of the table."""

    published: str
    here: str
    verdict: str


def findings(name: str, rows: list[Row]) -> list[Finding]:
    """Of one study."""
    return {
        "frameworks": _frameworks,
        "algorithms": _algorithms,
        "simulators": _simulators,
        "workers": _workers,
    }[name](rows)


def _share(row: Row, *operations: str) -> float:
    return sum(row["parts_us"].get(name, 0.0) for name in operations) / row["us"]


def _verdict(holds: bool) -> str:
    return CONFIRMED if holds else REFUTED


def _gpu(rows: list[Row]) -> Finding:
    published = "inference and backpropagation execute GPU kernels at most 14.1% of their time"
    if not any(row["gpu_busy"] for row in rows):
        return Finding(published, "no GPU was used", UNTESTABLE)
    most = max(row["gpu_busy"] for row in rows)
    return Finding(published, f"at most {100 * most:.0f}% of all time", _verdict(most <= 0.141))


def _frameworks(rows: list[Row]) -> list[Finding]:
    times = {row["label"]: row["us"] for row in rows}
    slowest, fastest = (pick(times, key=lambda label: times[label]) for pick in (max, min))
    ratio = times[slowest] / times[fastest]
    found = [
        Finding(
            "the same algorithm takes 2.3 times as long in another framework",
            f"{slowest} takes {ratio:.1f} times as long as {fastest} per env step",
            _verdict(ratio >= 2.0),
        )
    ]
    if {"Redline eager", "Redline cpu"} <= set(times):
        gain = times["Redline eager"] / times["Redline cpu"]
        found.append(
            Finding(
                "eager execution is 2 to 4.8 times as slow as graphs",
                f"eager is {gain:.1f} times as slow as fused kernels, over the whole step",
                _verdict(gain >= 2.0),
            )
        )
    return [*found, _gpu(rows)]


def _algorithms(rows: list[Row]) -> list[Finding]:
    shares = {row["label"]: _share(row, "simulation") for row in rows}
    least = min(shares[row["label"]] for row in rows if row["on_policy"])
    most = max(shares[row["label"]] for row in rows if not row["on_policy"])
    off = [row for row in rows if not row["on_policy"]]
    update = [
        _share(row, "backpropagation", "forward", "learning", "zero_grad", "replay") for row in off
    ]
    shown = ", ".join(f"{label} {100 * share:.0f}%" for label, share in shares.items())
    return [
        Finding(
            "on-policy algorithms are at least 3.5 times as simulation-bound as off-policy ones",
            f"{least / most:.1f} times (simulation: {shown})",
            _verdict(least >= 3.5 * most),
        ),
        Finding(
            "DDPG and SAC backpropagate 72 and 78% of the time",
            f"updates take {100 * min(update):.0f} to {100 * max(update):.0f}% off policy",
            _verdict(min(update) >= 0.6),
        ),
        _gpu(rows),
    ]


def _simulators(rows: list[Row]) -> list[Finding]:
    shares = {row["label"]: _share(row, "simulation") for row in rows}
    shown = ", ".join(f"{label} {100 * share:.0f}%" for label, share in shares.items())
    published = [label for label in PUBLISHED_SIMULATORS if label in shares]
    less = [label for label in published if shares[label] < 0.38]
    but = f"confirmed, but not for {', '.join(less)}"
    return [
        Finding(
            "simulation takes 38 to 74% of PPO: Ant 47, HalfCheetah 38, Hopper 47, Pong 74",
            shown,
            but if 0 < len(less) < len(published) else _verdict(not less),
        ),
        _gpu(rows),
    ]


def _workers(rows: list[Row]) -> list[Finding]:
    last = rows[-1]
    busy = last["busy"]
    monitor = last["monitor"]
    return [
        Finding(
            "a monitor shows 100% while each of 16 self-play workers hardly uses the GPU",
            f"with {last['simulators']} simulators a CPU monitor shows {100 * monitor:.0f}% of the "
            f"cores busy; the session's processes computed {100 * busy:.0f}% of one core each",
            UNTESTABLE,
        ),
        _gpu(rows),
    ]

"""The page of a published suite: one table, and one figure per family of environments.

It is made of the records alone, so it can be written anew without the runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published import records
from benchmarks.published.experiments import SUITES, Experiment
from benchmarks.published.references import PROTOCOLS, published, published_env_steps

ALGORITHMS = (
    "ppo",
    "a2c",
    "impala",
    "appo",
    "reinforce",
    "dqn",
    "r2d1",
    "sac",
    "tqc",
    "crossq",
    "td3",
    "ddpg",
)
BEGIN, END = "<!-- written by benchmarks.learning: begin -->", "<!-- end -->"
_HOW = (
    "Returns of the greedy policy after training: the mean of 20 episodes per seed (100 where an "
    "episode says little) on seeds that training never saw; +- is the standard deviation over "
    "seeds. Training used no option but the length, except where its command or its place below "
    "has one. "
    "Published figures have columns of their own: their protocols differ from this one and from "
    "each other; so may their lengths, which stand beside them then. The zoo's interval is its "
    "mean +- its deviation, or +- a hundredth of the mean where that is more; fewer than three "
    "seeds are not judged. A shorter run is judged only where it reaches the interval: sooner. The "
    "commit is the checkout's at the end of a seed; empty where the record lacks it."
)
LEAST_SEEDS = 3  # of fewer, a mean says little beside an interval
_PANEL_INCHES = (4.0, 2.6)
_DPI = 80

Recorded = dict[str, dict[str, Any]]  # name of an experiment -> its record


def recorded(experiments: list[Experiment], folder: Path) -> Recorded:
    """The records there are, of these experiments."""
    found = {e.name: records.read(folder, e.name) for e in experiments}
    return {name: record for name, record in found.items() if record is not None}


def number(value: float, beside: float | None = None) -> str:
    """As many digits as say something: 9,812 but 0.74; as many as a number beside it has."""
    large = abs(value if beside is None else beside) >= 20
    return f"{value:,.0f}" if large else f"{value:.2f}"


def spread(deviation: float, mean: float) -> str:
    """A deviation with the digits of its mean, and two where those would leave 0 of it."""
    return number(deviation, mean if round(deviation) or not deviation else None)


def mean_and_deviation(record: dict[str, Any]) -> tuple[float, float | None]:
    """Over the seeds of a record; no deviation of one."""
    values = [row["return_mean"] for row in record["rows"]]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return float(np.mean(values)), deviation


def interval(figure: str) -> tuple[float, float]:
    """A published figure such as "2,326 +- 1,130" as (mean, deviation)."""
    mean, deviation = figure.replace(",", "").split(" +- ")
    return float(mean), float(deviation)


def beside_zoo(experiment: Experiment, record: dict[str, Any]) -> str:
    """Where the mean lies beside the zoo's interval: above, within or below.

    "" without an interval, of a shorter run that does not reach it, of a record with other
    settings than today's, and where fewer than `LEAST_SEEDS` are meant. Of fewer seeds than that,
    how many there are.
    """
    figure = published(experiment.algorithm, experiment.env).get("zoo")
    is_judged = experiment.seeds >= LEAST_SEEDS and not records.outdated(experiment, record)
    if figure is None or not is_judged:
        return ""
    if (seeds := len(record["rows"])) < LEAST_SEEDS:
        return f"{seeds} of {LEAST_SEEDS} seeds"
    mean, deviation = interval(figure)
    # A solved task has no deviation: a hundredth of the mean is not another result.
    room = max(deviation, abs(mean) / 100)
    ours, _ = mean_and_deviation(record)
    length = _other_length(experiment)
    if ours < mean - room:
        return "**below**" if length is None else ""
    where = "above" if ours > mean + room else "within"
    return where if length is None else f"{where}, sooner"


def _other_length(made: Experiment) -> int | None:
    """The length of the published figures, if it is not that of an experiment as it was made."""
    (today,) = [e for e in SUITES["published"] if e.name == made.name] or [made]
    length = published_env_steps(made.algorithm, made.env) or today.env_steps
    return None if length == made.env_steps else length


def as_made(experiment: Experiment, record: dict[str, Any]) -> Experiment:
    """The experiment with the length that its record was made with."""
    run = record["settings"]["run"]
    return replace(experiment, env_steps=run.get("total_env_steps", experiment.env_steps))


def revisions(record: dict[str, Any]) -> str:
    """The commits that made the seeds, in their order, each once; "" where none is known."""
    all_of = dict.fromkeys(r["revision"] for r in record["rows"] if r.get("revision"))
    # Of one commit there may be a short and a longer beginning.
    return ", ".join(a for a in all_of if not any(b != a and b.startswith(a) for b in all_of))


def verdict(experiment: Experiment, record: dict[str, Any]) -> str:
    """The goal and whether it is reached; "" without a goal."""
    if experiment.goal is None:
        return ""
    values = [row["return_mean"] for row in record["rows"]]
    goal = number(experiment.goal)
    if experiment.needed:
        passed = sum(value >= experiment.goal for value in values)
        reached = passed >= experiment.needed
        if not reached and len(values) < experiment.seeds:
            return f"{goal} in {passed} of {len(values)}, {experiment.needed} needed"
        return f"{goal} in {passed} of {len(values)}: {_yes(reached)}"
    reached = float(np.mean(values)) >= experiment.goal
    lacking = experiment.seeds - len(values)
    return f"mean {goal}: {_yes(reached)}" + (
        f" ({lacking} of {experiment.seeds} seeds to come)" if lacking else ""
    )


def _yes(reached: bool) -> str:
    return "reached" if reached else "**not reached**"


def table(experiments: list[Experiment], found: Recorded) -> str:
    """Returns of each seed, their mean, and the published figures, each in a column of its own."""
    shown = [e for e in experiments if e.name in found]
    sources = [s for s in PROTOCOLS if any(s in published(e.algorithm, e.env) for e in shown)]
    head = ["algorithm", "environment", "env_steps", "each seed", "mean", "goal", *sources]
    head += ["beside the zoo's interval"] if "zoo" in sources else []
    head += ["commit"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for experiment in shown:
        record, others = found[experiment.name], published(experiment.algorithm, experiment.env)
        mean, deviation = mean_and_deviation(record)
        length = _other_length(as_made(experiment, record))
        at = "" if length is None else f" at {length:,}"
        cells = [
            experiment.algorithm,
            experiment.env,
            f"{as_made(experiment, record).env_steps:,}",
            ", ".join(number(row["return_mean"], mean) for row in record["rows"]),
            number(mean) + ("" if deviation is None else f" +- {spread(deviation, mean)}"),
            verdict(experiment, record),
            *(f"{others[s]}{at}" if s in others else "" for s in sources),
        ]
        cells += [beside_zoo(experiment, record)] if "zoo" in sources else []
        cells += [revisions(record)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(path: Path, experiments: list[Experiment], found: Recorded) -> None:
    """A panel per environment, a line per algorithm: the mean of the training returns."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    from redline.train.progress.curves import curve_over_runs, draw_curves

    envs = list(dict.fromkeys(e.env for e in experiments if e.name in found))
    columns = min(3, len(envs))
    rows = -(-len(envs) // columns)
    width, height = _PANEL_INCHES
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(envs) :]:
            panel.set_visible(False)
        for panel, env in zip(panels, envs, strict=False):
            shown = [e for e in experiments if e.env == env and e.name in found]
            curves = [
                curve_over_runs(
                    e.algorithm,
                    [tuple(np.array(r["curve"]).T) for r in found[e.name]["rows"] if r["curve"]],
                )
                for e in shown
            ]
            draw_curves(panel, curves, [ALGORITHMS.index(e.algorithm) for e in shown])
            panel.set_title(env, loc="left")
            panel.set_xlabel("environment steps")
            panel.set_ylabel("training return")
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            # Beside the panel: on it, it hid the curves of the best.
            panel.legend(frameon=False, fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=_DPI)


def families(experiments: list[Experiment], found: Recorded) -> Iterator[tuple[str, list[Any]]]:
    """Each family of which something is recorded, with its experiments."""
    for family in dict.fromkeys(e.family for e in experiments):
        own = [e for e in experiments if e.family == family]
        if any(e.name in found for e in own):
            yield family, sorted(own, key=lambda e: (e.env, ALGORITHMS.index(e.algorithm)))


def not_run(experiments: list[Experiment], found: Recorded) -> list[str]:
    """What lacks, environment by environment: whole experiments, or seeds of them."""
    lines = []
    for env in dict.fromkeys(e.env for e in experiments):
        lacking = []
        for experiment in (e for e in experiments if e.env == env):
            done = len(found[experiment.name]["rows"]) if experiment.name in found else 0
            if not done:
                lacking.append(experiment.algorithm)
            elif done < experiment.seeds:
                missing = experiment.seeds - done
                lacking.append(f"{experiment.algorithm} ({missing} of {experiment.seeds} seeds)")
        if lacking:
            lines.append(f"{env}: {', '.join(lacking)}")
    return lines


def commands(experiments: list[Experiment], found: Recorded) -> str:
    """How each recorded run is made."""
    shown = [as_made(e, found[e.name]) for e in experiments if e.name in found]
    lines = [" ".join(["redline", *e.arguments("SEED", "RUN")]) for e in shown]
    return "\n".join(lines)


def threads(found: Recorded) -> str:
    """How many cores and threads a run had, and which runs had more than one."""
    lines = []
    for name, record in found.items():
        for row in record["rows"]:
            cores, count = row.get("cores", 1), row.get("threads", 1)
            if (cores, count) != (1, 1):
                one = f"{count} thread{'s' * (count > 1)}"
                lines.append(f"{name}, seed {row['seed']}: {one} on {cores} cores.")
    return " ".join(["One core and one thread per run.", *lines])


def places(found: Recorded) -> str:
    """A list of the runs that computed elsewhere than their command says; "" without any."""
    placed: dict[str, list[str]] = {}
    for name, record in found.items():
        own: dict[str, list[str]] = {}
        for row in record["rows"]:
            own.setdefault(row.get("place", ""), []).append(str(row["seed"]))
        for place, seeds in own.items():
            some = f" (of its seeds {', '.join(seeds)})" if len(own) > 1 else ""
            placed.setdefault(place, []).append(f"{name}{some}")
    lines = [f"- `{place}`: {', '.join(names)}" for place, names in placed.items() if place]
    head = "These ran elsewhere than their command says:"
    return "\n".join(["", head, "", *lines, ""]) if lines else ""


def machines(found: Recorded) -> str:
    """Every machine and set of versions that runs were made with, as tables."""
    seen: list[dict[str, str]] = []
    for record in found.values():
        for row in record["rows"]:
            if row["machine"] not in seen:
                seen.append(row["machine"])
    names = list(dict.fromkeys(name for machine in seen for name in machine))
    lines = [
        f"| {name} | {' | '.join(machine.get(name, '') for machine in seen)} |" for name in names
    ]
    return "\n".join([f"| machine |{' |' * len(seen)}", "|---" * (len(seen) + 1) + "|", *lines])


def other_settings(experiment: Experiment, record: dict[str, Any]) -> str:
    """A sentence if a preset has changed since the record was made; "" if not."""
    names = records.outdated(experiment, record)
    if not names:
        return ""
    return (
        f"The row was made with other settings of {', '.join(names)} than this version has. It "
        f"waits to be run again."
    )


def markdown(suite: str, experiments: list[Experiment], found: Recorded, figures: str) -> str:
    """Everything on a page that follows from the records.

    Args:
        suite: its name on the command line.
        experiments: of the suite.
        found: their records.
        figures: path of a family's figure from the page, with {family} in it.
    """
    shown = [e for _, own in families(experiments, found) for e in own]
    parts = [
        f"## Returns\n\n{_HOW}\n\n"
        f"```bash\npython -m benchmarks.learning --suite {suite} --out runs/published\n```\n\n"
        f"{table(shown, found)}"
    ]
    protocols = "\n".join(f"- {text}." for text in PROTOCOLS.values())
    parts.append(f"## Published figures\n\n{protocols}\n")
    caveats = [
        f"- {e.name}: {text}"
        for e in shown
        if e.name in found
        for text in (e.caveat, other_settings(e, found[e.name]))
        if text
    ]
    if caveats:
        parts.append("\n".join(["## Caveats\n", *caveats, ""]))
    lines = [
        f"![{family}]({figures.format(family=slug(family))})\n"
        for family, _ in families(experiments, found)
    ]
    parts.append(
        "## Training curves\n\nReturns of the policy that explores: the mean over seeds, with its "
        "95% bootstrap interval. Of three seeds that is from the lowest to the highest.\n\n"
        + "\n".join(lines)
    )
    lacking = not_run(experiments, found)
    text = "\n".join(f"- {line}" for line in lacking) or "Nothing: every seed is recorded."
    parts.append(f"## Not run\n\n{text}\n")
    parts.append(f"## Commands\n\n```bash\n{commands(shown, found)}\n```\n")
    parts.append(f"## Machine\n\n{threads(found)}\n{places(found)}\n{machines(found)}\n")
    return "\n".join(parts)


def slug(family: str) -> str:
    """A family as part of a file's name."""
    return re.sub(r"\W+", "-", family).lower()


def write_page(suite: str, experiments: list[Experiment], results: Path, page: Path) -> Path | None:
    """The page of a suite and its figures; None if nothing is recorded yet.

    What a page says between the marks `BEGIN` and `END` is written anew, the rest of it stays.

    Args:
        suite: its name.
        experiments: all of the suite, run or not.
        results: directory of figures; records lie in `published` under it.
        page: the Markdown file.
    """
    found = recorded(experiments, results / "published")
    if not found:
        return None
    for family, own in families(experiments, found):
        draw(results / f"{suite}-{slug(family)}.png", own, found)
    place = Path(os.path.relpath(results, page.parent)).as_posix()
    text = markdown(suite, experiments, found, f"{place}/{suite}-{{family}}.png")
    before, after = f"# The suite `{suite}`\n\n", ""
    if page.exists():
        before, _, rest = page.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after or chr(10)}")
    return page

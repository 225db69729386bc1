"""Random damage to profile sessions: refused, named in the report, or without any effect.

Every fourth session is sealed again, as a stranger can: then other figures are the stranger's
right, but the report must end with a sentence.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from benchmarks.attack.damage import damage
from benchmarks.attack.series import FAULT, WAIT_LIMIT_S, Verdict, refusal
from benchmarks.attack.signing import damage_and_seal
from redline.errors import RedlineError
from redline.profile.analyse.shares import with_shares
from redline.profile.analyse.summary import summarize
from redline.profile.reader import open_session
from redline.profile.report.text import render_text
from redline.profile.report.trace import write_trace
from redline.profile.seal import seal

SESSIONS = Path(__file__).parents[2] / "tests" / "fixtures" / "revision-0.1" / "sessions"


class Sessions:
    """Damages copies of recorded sessions and reports them, in this process."""

    kind = "sessions"
    wait_s = WAIT_LIMIT_S

    def prepare(self, folder: Path) -> None:
        """Report the sessions as they are."""
        self._sealed: dict[str, Path] = {}
        self._figures: dict[str, tuple[Any, list[str]]] = {}
        for each in sorted(SESSIONS.iterdir()):
            if each.is_dir():
                copy = Path(shutil.copytree(each / "session", folder / f"{each.name}-sealed"))
                seal(copy)  # as the end of a recording does
                self._sealed[each.name] = copy
                again = Path(shutil.copytree(copy, folder / each.name))
                self._figures[each.name] = reported(again)

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Damage a copy, and report it."""
        name = rng.choice(sorted(self._figures))
        session = Path(shutil.copytree(self._sealed[name], folder / "session"))
        is_sealed = number % 4 == 3
        if is_sealed:
            what = f"sealed again: {damage_and_seal(session, rng)}"
        else:
            what = "; ".join(damage(session, rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))
        said = f"{name}: {what}"
        try:
            figures, problems = reported(session)
        except RedlineError as error:
            message = refusal(error)
            return Verdict(self.kind, number, said, "refused" if message else FAULT,
                           message or repr(error), name)  # fmt: skip
        expected, usual = self._figures[name]
        if further := [problem for problem in problems if problem not in usual]:
            return Verdict(self.kind, number, said, "named", "; ".join(further)[:300], name)
        if figures == expected:
            return Verdict(self.kind, number, said, "harmless", "", name)
        if is_sealed:
            return Verdict(self.kind, number, said, "reported as sealed", "", name)
        return Verdict(self.kind, number, said, FAULT, "undetected: other figures", name)


def reported(session: Path) -> tuple[Any, list[str]]:
    """All that a report says, and the problems that it names."""
    opened = open_session(session)
    summary = with_shares(summarize(opened), opened)
    figures = json.dumps(summary.to_json(), allow_nan=False)
    write_trace(opened, session / "trace.json")
    said = figures, render_text(summary), (session / "trace.json").read_text()
    # Where the session lies is no figure of it.
    return [each.replace(str(session), "SESSION") for each in said], list(summary.problems)

"""Random damage to profile sessions: refused, named in the report, or without any effect."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from benchmarks.attack.damage import damage
from benchmarks.attack.series import FAULT, Verdict, refusal
from redline.errors import RedlineError
from redline.profile.analyse.shares import with_shares
from redline.profile.analyse.summary import summarize
from redline.profile.reader import open_session
from redline.profile.report.text import render_text
from redline.profile.report.trace import write_trace

SESSIONS = Path(__file__).parents[2] / "tests" / "fixtures" / "revision-0.1" / "sessions"


class Sessions:
    """Damages copies of recorded sessions and reports them, in this process."""

    kind = "sessions"

    def prepare(self, folder: Path) -> None:
        """Report the sessions as they are."""
        self._figures = {
            each.name: reported(Path(shutil.copytree(each / "session", folder / each.name)))[0]
            for each in sorted(SESSIONS.iterdir())
            if each.is_dir()
        }

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Damage a copy, and report it."""
        name = rng.choice(sorted(self._figures))
        session = Path(shutil.copytree(SESSIONS / name / "session", folder / "session"))
        what = "; ".join(damage(session, rng) for _ in range(rng.choice((1, 1, 1, 2, 5))))
        said = f"{name}: {what}"
        try:
            figures, problems = reported(session)
        except RedlineError as error:
            message = refusal(error)
            return Verdict(self.kind, number, said, "refused" if message else FAULT,
                           message or repr(error), name)  # fmt: skip
        if problems:
            return Verdict(self.kind, number, said, "named", "; ".join(problems)[:300], name)
        verdict = "harmless" if figures == self._figures[name] else "other figures"
        return Verdict(self.kind, number, said, verdict, "", name)


def reported(session: Path) -> tuple[Any, list[str]]:
    """All that a report says, and the problems that it names."""
    opened = open_session(session)
    summary = with_shares(summarize(opened), opened)
    text = render_text(summary)
    figures = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    write_trace(opened, session / "trace.json")
    problems = [problem for process in opened.processes for problem in process.problems]
    return (figures, text), problems

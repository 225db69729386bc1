"""What the pages show: fenced blocks, and what the tests run before them.

A page may hold comments that no reader sees. `<!-- before: CODE -->` is Python that the test runs
there, so that a fragment of a program runs as well. `<!-- error of: CODE -->` is Python that must
raise the error that the next block shows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = (
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
)
PIECE = re.compile(
    r"^<!-- (?P<note>before|error of):(?P<hidden>.*?)-->|"
    r"^(?P<fence>`{3,})(?P<language>\w*)\n(?P<shown>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
SEPARATORS = (";", "&", "&&", "||", "|", "do", "then", "else", "{", "}")
VARIABLE = re.compile(r"\$\{?(?!ARGUMENTS)\w+\}?|\bSEED\b")  # $ARGUMENTS stands for several words


@dataclass(frozen=True)
class Snippet:
    """A block of a page.

    Attributes:
        page: the file, from the repository's root.
        line: its first line in the page, from 1.
        kind: the block's language, or "before" or "error of" for what no reader sees.
        text: what it holds.
    """

    page: str
    line: int
    kind: str
    text: str

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"{self.page}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that the block shows, if its first line names one: `# my_envs.py`."""
        match = re.match(r"# (\w+\.(?:py|yaml|toml|json))\n", self.text)
        return match[1] if match else None


def snippets_of(page: Path) -> list[Snippet]:
    """Every block of a page, in order."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(REPOSITORY).as_posix()
    return [
        Snippet(
            page=name,
            line=text.count("\n", 0, match.start()) + 1,
            kind=match["note"] or match["language"],
            text=match["hidden"] if match["note"] else match["shown"],
        )
        for match in PIECE.finditer(text)
    ]


def commands_of(shell: str) -> Iterator[list[str]]:
    """The commands of a shell block as words, without the assignments in front of them.

    Variables stand for a number, so that they fit wherever one is expected.
    """
    for line in shell.replace("\\\n", " ").splitlines():
        words = [VARIABLE.sub("1", word) for word in _split(line)]
        command: list[str] = []
        for word in [*words, ";"]:
            if word in SEPARATORS:
                if command:
                    yield command
                command = []
            elif command or not re.match(r"\w+=", word):
                command.append(_without_brackets(word))


def _without_brackets(word: str) -> str:
    """`[--stochastic]` says that an option may be left out: here it is given."""
    if word.startswith("[--"):
        word = word[1:]
    return word[:-1] if word.endswith("]") and "[" not in word else word


def _split(line: str) -> list[str]:
    spaced = re.sub(r";(\s|$)", r" ;\1", line)
    return shlex.split(spaced, comments=True)

"""What mkdocs does for this site beside its plugins.

The pages also read well in the repository, so they link to files outside of docs/ by relative
paths: recorded results, examples, CONTRIBUTING.md. The site holds these files as well, under
repository/: Markdown and Python as pages, everything else as it is. A link to a folder leads to a
page that lists it. A link to what does not exist is left alone, and fails the strict build.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[1]
DOCS = "docs/"
PREFIX = "repository/"
SHORT_CODE = re.compile(r"<code>([^<\n]{1,32})</code>")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add every file outside of docs/ that a page leads to, and what those lead to."""
    waiting = [DOCS + file.src_uri for file in files if file.src_uri.endswith(".md")]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        for target in _targets(path, _text_of(path)):
            if target in seen:
                continue
            seen.add(target)
            if not target.startswith(DOCS):
                files.append(_site_file(target, config))
                waiting += [target] if _is_page(target) else []
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    own = page.file.src_uri
    path = _repository_path(own)
    if own.startswith(PREFIX + "benchmarks/"):
        page.meta["search"] = {"exclude": True}  # tables of figures would bury the pages

    def replaced(match: re.Match[str]) -> str:
        target = _target(path, match[1])
        if target is None or (path.startswith(DOCS) and target.startswith(DOCS)):
            return match[0]
        anchor = "#" + match[1].partition("#")[2] if "#" in match[1] else ""
        return f"]({posixpath.relpath(_site_uri(target), posixpath.dirname(own))}{anchor})"

    return LINK.sub(replaced, markdown)


def on_page_content(html: str, **_: object) -> str:
    """Mark short pieces of code, so that the style sheet can keep an option on one line."""
    return SHORT_CODE.sub(r'<code class="short">\1</code>', html)


def _targets(path: str, text: str) -> Iterator[str]:
    """The files and folders of the repository that a page links to."""
    for link in LINK.findall(text):
        target = _target(path, link)
        if target is not None:
            yield target


def _target(path: str, link: str) -> str | None:
    """The path in the repository that a link leads to; None if it is no such link."""
    name = link.partition("#")[0]
    if not name or ":" in name or name.startswith("/"):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
    return target if (REPOSITORY / target).exists() and not target.startswith("..") else None


def _is_page(path: str) -> bool:
    return path.endswith((".md", ".py")) or (REPOSITORY / path).is_dir()


def _text_of(path: str) -> str:
    """The Markdown of a page: a program stands in a block, a folder becomes a list."""
    file = REPOSITORY / path
    if file.is_dir():
        names = sorted(each.name + "/" * each.is_dir() for each in file.iterdir())
        lines = [f"- [{name}]({file.name}/{name.rstrip('/')})" for name in names if name[0] != "."]
        return f"# {path}\n\n" + "\n".join(lines) + "\n"
    text = file.read_text(encoding="utf-8")
    return f"# {path}\n\n````python\n{text}````\n" if path.endswith(".py") else text


def _site_uri(path: str) -> str:
    """Where the site has a file of the repository."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    file = REPOSITORY / path
    if path.endswith(".py") or file.is_dir():
        return f"{PREFIX}{path}.md"
    return PREFIX + path


def _repository_path(uri: str) -> str:
    """The other way round, for pages."""
    if not uri.startswith(PREFIX):
        return DOCS + uri
    path = uri.removeprefix(PREFIX)
    stem = path.removesuffix(".md")
    return stem if (REPOSITORY / stem).exists() else path


def _site_file(path: str, config: MkDocsConfig) -> File:
    uri = _site_uri(path)
    if not _is_page(path):
        return File.generated(config, uri, abs_src_path=str(REPOSITORY / path))
    file = File.generated(config, uri, content=_text_of(path))
    file.inclusion = InclusionLevel.NOT_IN_NAV
    return file

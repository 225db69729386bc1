"""What the site's hooks do with links between files of the repository."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("mkdocs", reason="the extra docs is not installed")
REPOSITORY = Path(__file__).parents[2]
HOOKS = runpy.run_path(str(REPOSITORY / "scripts" / "docs_hooks.py"))


def on_page(uri: str, markdown: str) -> str:
    page: Any = SimpleNamespace(file=SimpleNamespace(src_uri=uri), meta={})
    return HOOKS["on_page_markdown"](markdown, page)


@pytest.mark.parametrize(
    ("uri", "link", "on_the_site"),
    [
        ("speed.md", "gpu.md#anchor", "gpu.md#anchor"),
        ("speed.md", "../CONTRIBUTING.md", "repository/CONTRIBUTING.md"),
        (
            "tutorials/own_network.md",
            "../../examples/own_algorithm.py",
            "../repository/examples/own_algorithm.py.md",
        ),
        ("speed.md", "../benchmarks/results/train", "repository/benchmarks/results/train.md"),
        ("repository/CONTRIBUTING.md", "docs/concepts.md", "../concepts.md"),
        ("repository/benchmarks/results/train.md", "train/sac.json", "train/sac.json"),
        ("speed.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("speed.md", "../absent.md", "../absent.md"),  # is left, and fails the strict build
        ("speed.md", "../../elsewhere.md", "../../elsewhere.md"),
    ],
)
def test_links_lead_to_pages_of_the_site(uri: str, link: str, on_the_site: str) -> None:
    assert on_page(uri, f"See [it]({link}).") == f"See [it]({on_the_site})."


def test_a_folder_is_a_page_that_lists_it() -> None:
    text = HOOKS["_text_of"]("examples")
    assert "- [own_algorithm.py](examples/own_algorithm.py)" in text


def test_nothing_is_loaded_from_the_network() -> None:
    settings = (REPOSITORY / "mkdocs.yml").read_text()
    assert "font: false" in settings
    assert not re.search(r"https?://", settings)

"""Which tests are left to `make test-all`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiers import (
    LONG,
    ROOT,
    UNKNOWN,
    leave_out_long_tests,
    long_tests,
    split,
    unknown,
)

NAMES = ["tests/test_a.py::test_quick", "tests/test_a.py::test_slow[x-1]", "tests/test_b.py::test"]


def items(*names: str) -> Any:
    return [SimpleNamespace(nodeid=name) for name in names]


def config(*, arguments: list[str], all_of_them: bool, keyword: str = "") -> Any:
    left_out: list[Any] = []
    return SimpleNamespace(
        args=arguments,
        getoption=lambda name, _: {"all": all_of_them, "keyword": keyword}.get(name, False),
        stash={},
        hook=SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items)),
        left_out=left_out,
    )


def test_comments_and_empty_lines_name_nothing() -> None:
    assert long_tests("# why\n\n  tests/test_b.py::test \n#\n") == ["tests/test_b.py::test"]


def test_a_name_counts_as_a_whole_and_unknown_ones_are_found() -> None:
    listed = ["tests/test_a.py::test_slow[x-1]", "tests/test_a.py::test_gone", "tests/test_c.py::t"]
    short, long = split(items(*NAMES), listed)
    assert [item.nodeid for item in short] == [NAMES[0], NAMES[2]]
    assert [item.nodeid for item in long] == [NAMES[1]]
    gone = unknown(listed, NAMES)
    assert gone == ["tests/test_a.py::test_gone"], "of test_c.py nothing was collected"


ALL_LISTED = long_tests(LONG.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("asked", "all_run"),
    [
        (config(arguments=[str(ROOT / "tests")], all_of_them=False), False),
        (config(arguments=["tests"], all_of_them=False), False),
        (config(arguments=["tests"], all_of_them=True), True),
        (config(arguments=["tests/engines"], all_of_them=False), True),
        (config(arguments=["tests"], all_of_them=False, keyword="compiled"), True),
    ],
)
def test_only_the_whole_suite_leaves_them_out(asked: Any, all_run: bool) -> None:
    names = [name for name in ALL_LISTED if _file(name) == _file(ALL_LISTED[0])]
    collected = items(*names, "tests/test_other.py::test")
    leave_out_long_tests(asked, collected)
    assert len(collected) == (len(names) + 1 if all_run else 1)
    assert len(asked.left_out) == (0 if all_run else len(names))


def test_every_name_in_the_list_is_a_tests(pytestconfig: pytest.Config) -> None:
    """Told where the whole suite was collected."""
    assert pytestconfig.stash.get(UNKNOWN, []) == [], f"{LONG.name} names tests that there are not"


def _file(name: str) -> str:
    return name.split("::")[0]

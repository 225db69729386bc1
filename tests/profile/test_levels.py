"""Which native callable belongs to which level, and what hears of an import."""

from __future__ import annotations

import queue
import select
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from redline.profile import levels
from redline.profile.record.imports import PostImport


@pytest.mark.parametrize(
    ("function", "origin"),
    [
        (time.sleep, ("time", "sleep")),
        (threading.Lock().acquire, ("_thread", "lock.acquire")),
        (queue.SimpleQueue().get, ("_queue", "SimpleQueue.get")),
        (select.poll().poll, ("select", "poll.poll")),
        (len, ("builtins", "len")),
        ([].append, ("builtins", "list.append")),
        (str.join, ("builtins", "str.join")),
        (dict.fromkeys, ("builtins", "dict.fromkeys")),
    ],
)
def test_origins(function: Any, origin: tuple[str, str]) -> None:
    assert levels.origin_of(function) == origin


@pytest.mark.parametrize(
    ("module", "name", "level"),
    [
        ("time", "sleep", levels.WAITING),
        ("_thread", "lock.acquire", levels.WAITING),
        ("_multiprocessing", "SemLock.acquire", levels.WAITING),
        ("torch._C", "_cuda_synchronize", levels.WAITING),
        ("torch._C", "TensorBase.add_", levels.BACKEND),
        ("torch._C", "is_grad_enabled", levels.PYTHON),
        ("torch._C", "TensorBase.type", levels.BACKEND),  # with a dtype it converts, and copies
        ("mujoco._functions", "mj_step", levels.SIMULATOR),
        ("ale_py._ale_py", "ALEInterface.act", levels.SIMULATOR),
        ("torchlike", "add", levels.PYTHON),
        ("builtins", "len", levels.PYTHON),
    ],
)
def test_levels(module: str, name: str, level: int) -> None:
    assert levels.level_of(module, name) == level


def test_actions_run_when_their_module_is_imported(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks, seen = PostImport(), []
    hooks.install()
    try:
        hooks.add("late_module", lambda module: seen.append(module.value))
        hooks.add("sys", lambda module: seen.append(module))
        assert seen == [sys]
        import late_module  # pyright: ignore[reportMissingImports]

        assert seen == [sys, 1]
        assert type(late_module.__loader__).__name__ == "SourceFileLoader"
    finally:
        hooks.remove()
        sys.modules.pop("late_module", None)
    assert hooks not in sys.meta_path


def test_a_failing_action_does_not_break_the_import(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks = PostImport()
    hooks.install()
    try:
        hooks.add("other_module", lambda module: module.missing)
        import other_module  # pyright: ignore[reportMissingImports]

        assert other_module.value == 1
    finally:
        hooks.remove()
        sys.modules.pop("other_module", None)
    assert "other_module is not fully observed: AttributeError" in capsys.readouterr().err

"""Run code when a module has been imported, at once if it already is.

Nothing is imported on the program's behalf: a program that never imports torch never does.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Action = Callable[[ModuleType], None]

__all__ = ["PostImport"]


class _Loader(importlib.abc.Loader):
    """The module's own loader, with the actions after it."""

    def __init__(self, inner: importlib.abc.Loader, hooks: PostImport) -> None:
        self._inner, self._hooks = inner, hooks

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Readers of loader or spec (inspect, runpy, pickle) must see the real one.
        module.__loader__ = self._inner
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        self._inner.exec_module(module)
        self._hooks.run(module)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a loader can do: `python -m` asks for the code."""
        return getattr(self._inner, name)


class PostImport(importlib.abc.MetaPathFinder):
    """The set of actions waiting for their modules; installed at the front of `sys.meta_path`."""

    def __init__(self) -> None:
        self._actions: dict[str, list[Action]] = {}
        self._searching: set[str] = set()

    def add(self, name: str, action: Action) -> None:
        """Call `action(module)` once `name` is imported."""
        self._actions.setdefault(name, []).append(action)
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            self.run(module)

    def install(self) -> None:
        """Begin to see imports."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop, and forget the actions that never ran."""
        self._actions.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def run(self, module: ModuleType) -> None:
        """Run the actions of a module that has just been imported.

        An action that fails must not make the program's import fail: it is printed, and what it
        was to observe goes unobserved.
        """
        for action in self._actions.pop(module.__name__, []):
            try:
                action(module)
            except Exception as error:  # noqa: BLE001  (the program must run, whatever this meets)
                sys.stderr.write(
                    f"redline.profile: {module.__name__} is not fully observed: "
                    f"{type(error).__name__}: {error}\n"
                )

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The real spec with its loader wrapped, for modules somebody waits for."""
        if name not in self._actions or name in self._searching:
            return None
        self._searching.add(name)
        try:
            for finder in sys.meta_path:
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self)
                    return spec
            return None
        finally:
            self._searching.discard(name)

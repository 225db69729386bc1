"""What can be read off the classes of settings: their types and their documentation."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Any


def kinds_of(*parts: Any) -> dict[str, Any]:
    """Setting -> type, of dataclasses or objects of them."""
    kinds: dict[str, Any] = {}
    for part in parts:
        cls = part if isinstance(part, type) else type(part)
        hints = typing.get_type_hints(cls)
        kinds |= {each.name: hints[each.name] for each in dataclasses.fields(cls)}
    return kinds


def choices_of(kind: Any) -> tuple[Any, ...]:
    """The members of a union; a type alone is its own only one."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def setting_docs(cls: type) -> Mapping[str, str]:
    """Setting -> the sentences below it in its class's source, and in those it derives from."""
    docs: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if dataclasses.is_dataclass(each):
            docs |= _docs_of(each)
    return docs


def _docs_of(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # a class that was made in a session has no source
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    docs: dict[str, str] = {}
    for field, below in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            docs[field.target.id] = " ".join(below.value.value.split())
    return docs

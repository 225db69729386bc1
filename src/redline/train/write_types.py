"""Writes `typed.py`: what editors and type checkers know of each algorithm's settings.

    python -m redline.train.write_types            # after a setting was added or changed
    python -m redline.train.write_types --check    # in CI: fails if the file is not up to date

Settings stand with their algorithms, in dataclasses. A type checker cannot follow them from there
to the keywords of `redline.train`, so they are written out once more, by this script alone.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import sys
import textwrap
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from redline.algos.registry import BUILT_IN, declaration
from redline.errors import ConfigError
from redline.train.outlines import kinds_of, setting_docs
from redline.train.settings import PolicySettings, RunSettings

TARGET = Path(__file__).with_name("typed.py")
_NAMED = ("env", "network", "data", "env_backend", "collector", "callbacks", "preset")
"""Settings that are arguments of `redline.train` by themselves."""
_HEAD = '''"""What type checkers know of `redline.train`. Nothing imports it at run time.

Written by `python -m redline.train.write_types`; do not edit it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

if TYPE_CHECKING:
    from redline.algos.algorithm import Algorithm
    from redline.collect import Collector
    from redline.envs.backends.backend import Backend
    from redline.models.registry import NetworkFactory
    from redline.train.runs.given import EnvArgument
    from redline.train.runs.run import Run
    from redline.train.settings import RunConfig

'''
_WIDER = {
    "out": "str | Path | None",
    "init_from": "str | Path | None",
    "env_kwargs": "str | Mapping[str, Any]",
}
"""What `redline.train` takes beside what a config holds."""
_ARGUMENTS = """    env: EnvArgument | None = None,
    network: str | NetworkFactory | None = None,
    data: Any = None,
    env_backend: str | type[Backend] | None = None,
    collector: str | type[Collector] | None = None,
    callbacks: Any = (),
    config: str | Path | RunConfig | Mapping[str, Any] | None = None,
    resume: str | Path | None = None,
    preset: str | None = None,
    set: Mapping[str, Any] | None = None,
"""


def main(arguments: list[str]) -> int:
    """Write the file, or say whether it is up to date; the exit code."""
    text = written()
    old = TARGET.read_text(encoding="utf-8") if TARGET.is_file() else ""
    if "--check" not in arguments:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if ast.dump(ast.parse(old)) == ast.dump(ast.parse(text)):  # a formatter may move lines
        return 0
    lines = difflib.unified_diff(old.splitlines(), text.splitlines(), "typed.py", "settings")
    sys.stderr.write("\n".join(list(lines)[:40]) + "\n")
    sys.stderr.write("run python -m redline.train.write_types\n")
    return 1


def written() -> str:
    """The whole file."""
    parts = [_HEAD]
    common = {**_fields(RunSettings), **_fields(PolicySettings)}
    parts.append(_typed_dict("RunOptions", "TypedDict", "Settings of every run.", common))
    everything: dict[str, tuple[str, str]] = {}
    for name in BUILT_IN:
        own = _fields(declaration(name, for_help=True).Config)
        kind = _kind_of(name)
        parts.append(_typed_dict(kind, "RunOptions", f"Settings of a run of {name}.", own))
        for setting, (annotation, doc) in own.items():
            known = everything.get(setting)
            everything[setting] = (_joined(known[0], annotation) if known else annotation, doc)
    about = "Settings of any built-in algorithm."
    parts.append(_typed_dict("AnyOptions", "RunOptions", about, everything))
    named = [(f'Literal["{name}"]', _kind_of(name)) for name in BUILT_IN]
    for annotation, kind in [*named, ("str", "AnyOptions")]:
        parts.append(_overload(f"algorithm: {annotation}", f"Unpack[{kind}]"))
    # Two of them: with one alone, a type checker blames the algorithm for a misspelled setting.
    parts.append(_overload("algorithm: type[Algorithm]", "Any"))
    parts.append(_overload("algorithm: None = None", "Any"))
    parts.append(
        "def train(\n    algorithm: str | type[Algorithm] | None = None, *args: Any, "
        '**settings: Any\n) -> Run:\n    """See `redline.train.runs.start.train`."""\n'
        "    raise NotImplementedError\n"
    )
    return "\n".join(parts)


def _kind_of(name: str) -> str:
    return f"{name.upper()}Options"


def _typed_dict(name: str, base: str, about: str, fields: Mapping[str, tuple[str, str]]) -> str:
    lines = [f"\nclass {name}({base}, total=False):", f'    """{about}"""', ""]
    for setting, (annotation, doc) in fields.items():
        lines += (
            textwrap.wrap(
                f"{setting}: {annotation}", 96, initial_indent="    ", subsequent_indent="        "
            )
            if len(annotation) < 60
            else [f"    {setting}: {_broken(annotation)}"]
        )
        if doc:
            body = textwrap.wrap(doc, 90, break_long_words=False, break_on_hyphens=False)
            lines.append('    """' + "\n    ".join(body) + '"""')
    return "\n".join(lines) + "\n"


def _broken(annotation: str) -> str:
    """A long annotation over several lines."""
    if len(annotation) < 80 or "[" not in annotation:
        return annotation
    head, _, rest = annotation.partition("[")
    inside, _, tail = rest.rpartition("]")
    items = "".join(f"        {item.strip()},\n" for item in inside.split(","))
    return f"{head}[\n{items}    ]{tail}"


def _overload(first: str, settings: str) -> str:
    return (
        f"\n@overload\ndef train(\n    {first},\n    *,\n{_ARGUMENTS}    **settings: {settings},\n"
        f") -> Run: ...\n"
    )


def _fields(cls: type) -> dict[str, tuple[str, str]]:
    """Setting -> its annotation as a caller may give it, and its documentation."""
    kinds, docs = kinds_of(cls), setting_docs(cls)
    return {
        field.name: (
            _WIDER.get(field.name, _annotation(kinds[field.name])),
            docs.get(field.name, "").replace("\\", "\\\\"),
        )
        for field in dataclasses.fields(cls)
        if field.name not in _NAMED
    }


def _annotation(kind: Any) -> str:
    """A type as source."""
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if kind is type(None):
        return "None"
    if origin is typing.Literal:
        return f"Literal[{', '.join(_quoted(value) for value in inside)}]"
    if origin is tuple:
        return f"Sequence[{_annotation(inside[0])}]" + (" | str" if inside[0] is str else "")
    if inside:
        return " | ".join(_annotation(each) for each in inside)
    if kind in (int, float, str, bool):
        return kind.__name__
    raise ConfigError(f"a setting of type {kind!r} has no annotation here. Add one.")


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _joined(*annotations: str) -> str:
    """What either of several annotations allows."""
    members: Iterable[str] = dict.fromkeys(
        ast.unparse(member) for each in annotations for member in _members(each)
    )
    return " | ".join(members).replace("'", '"')


def _members(annotation: str) -> list[ast.expr]:
    node: ast.expr = ast.parse(annotation, mode="eval").body
    if isinstance(node, ast.BinOp):
        return [*_members(ast.unparse(node.left)), *_members(ast.unparse(node.right))]
    return [node]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

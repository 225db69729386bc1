"""Options as people type them, before and while they become a dataclass.

tyro turns options into dataclasses. What it does not know is done here, on the words of the
command line: an answer for a setting that may be left open, `1e5` for a whole number, lists with
commas, and what another library calls a setting.
"""

from __future__ import annotations

import contextlib
import io
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from redline.errors import ConfigError
from redline.plain_text import printable
from redline.train.outlines import choices_of

RESUMING = "train --resume"  # whose options are few: most settings go by --set
_MOST_VALUES = 1_000  # of one option: as many as a network may have layers


def parse(kind: Any, arguments: list[str], command: str, default: Any = None) -> Any:
    """Parse options into a dataclass with tyro; help and mistakes end the program.

    Args:
        kind: the dataclass.
        arguments: the options.
        command: behind `redline` in messages.
        default: values of options that are not given; None: the dataclass's own.

    Raises:
        ConfigError: if an option is given twice.
    """
    import tyro
    from tyro.conf import OmitArgPrefixes

    refuse_repeated(arguments)
    extra: dict[str, Any] = {} if default is None else {"default": default}
    extra |= {"prog": f"redline {command}", "config": (OmitArgPrefixes,)}
    if all(printable(word) == word for word in arguments):
        return tyro.cli(kind, args=arguments, **extra)
    shown_on = sys.stderr
    with contextlib.redirect_stderr(io.StringIO()) as said:  # tyro shows them as they are
        try:
            return tyro.cli(kind, args=arguments, **extra)
        finally:
            shown_on.write(printable(said.getvalue()))


def peek(options: Sequence[str], name: str) -> str | None:
    """The value of an option, before the options are parsed."""
    found = values_of(options, name)
    return found[-1] if found else None


def values_of(options: Sequence[str], name: str) -> list[str]:
    """The values of an option that may be given several times."""
    return _split(options, name)[0]


def without(options: Sequence[str], name: str) -> list[str]:
    """The options without one that has been dealt with, and without its values."""
    return _split(options, name)[1]


def _split(options: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """The values of an option, and all other words."""
    values: list[str] = []
    rest: list[str] = []
    words = iter(options)
    for word in words:
        option, equals, value = word.partition("=")
        if option.replace("_", "-") != name:
            rest.append(word)
        elif equals:
            values.append(value)
        else:
            values.append(next(words, ""))
    return values, rest


def refuse_repeated(options: Sequence[str], many: Sequence[str] = ()) -> None:
    """Refuse an option that is given twice, since only one of its values could count.

    Args:
        options: as they were typed.
        many: those that may be given several times.

    Raises:
        ConfigError: naming the option and what it was given.
    """
    seen: dict[str, str] = {}
    for word in options:
        flag = word.partition("=")[0].replace("_", "-")
        if not flag.startswith("--") or flag in ("--", *many):
            continue
        name = f"--{flag.removeprefix('--').removeprefix('no-')}"
        if name in seen:
            values = [v for v in values_of(options, flag) if v and not v.startswith("--")]
            if seen[name] != flag:
                values = [seen[name], flag]
            said = " and ".join(values) if len(values) > 1 else ""
            raise ConfigError(
                f"{name} is given twice{f': {said}' if said else ''}. Leave one of them out."
            )
        seen[name] = flag


def as_parsed(
    options: list[str],
    kinds: Mapping[str, Any],
    command: str,
    *,
    alone: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """The options in the words that tyro reads.

    Args:
        options: as they were typed.
        kinds: setting -> its type.
        command: whose options they are, in messages.
        alone: setting -> its value where its option has none.

    Raises:
        ConfigError: if there is no such option, with the one that was probably meant; or if a
            number is none.
    """
    said: list[str] = []
    _require_few_values(options, kinds)
    name = ""
    for index, word in enumerate(options):
        if not _is_option(word):
            said += _value(word, kinds.get(name))
            continue
        option, equals, value = word.partition("=")
        name = option[2:].replace("-", "_")
        following = options[index + 1] if index + 1 < len(options) else ""
        if not equals and name in alone and (not following or _is_option(following)):
            equals, value = "=", alone[name]
        said += _option(name, value if equals else None, following, kinds, command)
        name = name.removeprefix("no_") if name not in kinds else name
    return said


def _require_few_values(options: Sequence[str], kinds: Mapping[str, Any]) -> None:
    """Refuse lists of very many values at once: tyro takes seconds to print what is wrong.

    Raises:
        ConfigError: with the option and the number of its values.
    """
    name, count = "", 0
    for word in options:
        if _is_option(word):
            name, count = word.partition("=")[0][2:].replace("-", "_"), word.count(",")
        else:
            count += 1 + word.count(",")
        if count > _MOST_VALUES and _items_of(kinds.get(name)) is not None:
            raise ConfigError(
                f"--{name.replace('_', '-')} has more than {_MOST_VALUES:,} values. Give fewer."
            )


def _is_option(word: str) -> bool:
    """Whether a word names an option: -1e-3 is a number."""
    return word.startswith("--") or (word.startswith("-") and word[1:2].isalpha())


def _option(
    name: str, value: str | None, following: str, kinds: Mapping[str, Any], command: str
) -> list[str]:
    """An option's name, with its value where that stands behind `=` or is left to be told."""
    flag = f"--{name.replace('_', '-')}"
    if name in ("help", "h") or not name:
        return ["--help"] if name else ["--"]
    if name not in kinds:
        answered = name.removeprefix("no_")
        if name == answered or not _is_yes_or_no(kinds.get(answered)):
            raise ConfigError(_unknown(name, kinds, command))
        return [f"--{answered.replace('_', '-')}", "False"] if _is_open(kinds[answered]) else [flag]
    if value is not None or _is_number(kinds[name]):
        number = following if value is None and not _is_option(following) else value or ""
        _require_number(flag, number, kinds[name])
    if value is not None:
        return [flag, *_value(value, kinds[name])]
    if _is_open(kinds[name]) and following not in ("True", "False", "None"):
        return [flag, "True"]
    return [flag]


def _value(word: str, kind: Any) -> list[str]:
    """A value in the words that tyro reads."""
    items = _items_of(kind)
    if items is not None:
        return [each for part in word.split(",") for each in _value(part, items)]
    return [_whole(word)] if int in choices_of(kind) and float not in choices_of(kind) else [word]


def _items_of(kind: Any) -> Any:
    """The type of a list's items, also of a list that may be None; None if it is no list."""
    lists = [each for each in choices_of(kind) if typing.get_origin(each) is tuple]
    return typing.get_args(lists[0])[0] if lists else None


def _is_number(kind: Any) -> bool:
    """Whether values are numbers with a fraction, and nothing else but None."""
    return float in choices_of(kind) and set(choices_of(kind)) <= {float, type(None)}


def _require_number(flag: str, word: str, kind: Any) -> None:
    """Refuse what is no number.

    Raises:
        ConfigError: with the word; tyro would print a page.
    """
    if not _is_number(kind) or (word == "None" and type(None) in choices_of(kind)):
        return
    try:
        float(word)
    except ValueError:
        raise ConfigError(f"{flag} {word} is not a number. Give one") from None


def _whole(word: str) -> str:
    """1e5 as 100000; everything else as it is."""
    try:
        number = float(word)
    except ValueError:
        return word
    return str(int(number)) if "e" in word.lower() and number.is_integer() else word


def _is_yes_or_no(kind: Any) -> bool:
    return bool in choices_of(kind)


def _is_open(kind: Any) -> bool:
    """Whether a setting is yes, no or left open."""
    return {bool, type(None)} <= set(choices_of(kind))


def _unknown(name: str, kinds: Iterable[str], command: str) -> str:
    from redline.train.setting_names import algorithms_with, meant

    flag = f"--{name.replace('_', '-')}"
    close = " or ".join(f"--{each.replace('_', '-')}" for each in meant(name, kinds))
    hint = f" Did you mean {close}?" if close else ""
    doing, _, algorithm = command.partition(" ")
    if doing == "train" and command != RESUMING and (others := algorithms_with(name)):
        return (
            f"{algorithm} has no {flag}: it is a setting of {', '.join(others)}.{hint} "
            f"`redline {command} --help-all` lists all options."
        )
    if command != RESUMING:
        return f"there is no option {flag}.{hint} `redline {command} --help-all` lists all of them."
    if not close:
        hint = f" Where a setting of the run can be changed, --set {name}=VALUE does."
    return (
        f"there is no option {flag} beside --resume.{hint} `redline {command} --help` lists all "
        f"options."
    )

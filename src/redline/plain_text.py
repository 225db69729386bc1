"""Text from files and names that a stranger may have written, made safe to show.

A name that holds an escape sequence could clear a terminal or rewrite its title; a cell that
begins with `=` is run as a formula by spreadsheets.
"""

from __future__ import annotations

import reprlib
import unicodedata
from typing import Any

_KEPT = "\n\t"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # OWASP's list for CSV injection


def printable(text: str) -> str:
    """The text with each control character as its escape; lines and tabs stay.

    So are characters that turn the writing direction around, which could hide a name's end.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each if each in _KEPT or _is_harmless(each) else each.encode("unicode_escape").decode()
        for each in text
    )


def _is_harmless(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs") or character == "\u200d"


def shown(value: Any, limit: int = 60) -> str:
    """What a value from a file is in a message: its beginning, however large it is.

    Nested values are not walked through: a few lines may stand for millions of items.

    Args:
        value: of any kind.
        limit: characters to give at most.
    """
    short = reprlib.Repr()
    short.maxlevel, short.maxother = 3, limit
    short.maxstring = short.maxlong = limit
    try:
        text = short.repr(value)
    except ValueError:  # Python writes out no whole number of thousands of digits
        text = "a whole number of thousands of digits"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def shortened(text: Any, limit: int = 400) -> str:
    """Words from a file, or an error's about one, in a message: harmless, one line, not too long.

    Args:
        text: of any kind; what is none is written as `str` does.
        limit: characters to give at most.
    """
    line = " ".join(printable(str(text)).split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def csv_cell(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: words that begin so get a `'` before them.

    Numbers stay as they are, also as text.
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value

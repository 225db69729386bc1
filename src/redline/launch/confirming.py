"""What the runs of a folder reach outside of it: done only if the caller says it, too.

The folder of a sweep or a search may be a stranger's, and what it holds says what to run. As with a
run directory, it alone must not decide what is imported, sent, compiled or opened. What the file
that the caller gives says counts as said; the rest is to be confirmed as `NAME=VALUE`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from redline.errors import ConfigError, RedlineError
from redline.launch.checking import starting_config
from redline.registry import is_named
from redline.train.config_files import CODE, given_settings, labels_of
from redline.train.runs.outside_settings import outside_values

_NOT_SETTINGS = ("seed", "key")  # of a run in the database


class Confirmed:
    """What the caller has said of a folder's runs.

    Args:
        folder: of the sweep or the search.
        words: NAME=VALUE of each setting that the caller confirms.
        command: `sweep` or `tune`.

    Raises:
        ConfigError: if a word has another form.
    """

    def __init__(self, folder: Path, words: Sequence[str] = (), command: str = "sweep") -> None:
        self._folder, self._command = folder, command
        self._said: set[str] = set()
        self._known: set[str] = set()
        for word in words:
            name, equals, value = word.partition("=")
            if not (name and equals):
                raise ConfigError(
                    f"--confirm {word} is not NAME=VALUE. Give such as "
                    f"callbacks=my_callbacks:Mine, as the message had it."
                )
            self._said.add(_word(name.replace("-", "_"), value))

    def say(self, name: str, value: Any) -> None:
        """Count a setting of the caller's own file as said."""
        several = value if isinstance(value, (list, tuple)) else ()
        self._said |= {_word(name, each) for each in (value, *several)}

    def say_all(self, algorithm: str, settings: Mapping[str, Any]) -> None:
        """Count everything that a run of the caller's own file reaches as said."""
        self._said |= {_word(name, value) for name, value, _ in _reached(algorithm, settings)}

    def require(self, run: str, algorithm: str, settings: Mapping[str, Any]) -> None:
        """Refuse a run that reaches outside the folder by what nobody has said.

        Args:
            run: what messages call it.
            algorithm: its name, or module:Name.
            settings: flat name -> value.

        Raises:
            ConfigError: naming the first such setting and how to confirm it.
        """
        plain = {name: v for name, v in settings.items() if name not in _NOT_SETTINGS}
        known = json.dumps([algorithm, plain], sort_keys=True)
        if known in self._known:
            return
        # One after the other: an algorithm is not imported before it has been confirmed.
        for name, value, what in _reached(algorithm, plain):
            self._require(run, name, value, what)
        self._known.add(known)

    def require_address(self, launch: Mapping[str, Any]) -> None:
        """Refuse the address of a cluster that only the folder names."""
        if (address := launch.get("address")) is not None:
            self._require("the launcher", "address", address, "is where the runs would be sent")

    def _require(self, run: str, name: str, value: Any, what: str) -> None:
        word = _word(name, value)
        if word in self._said:
            return
        raise ConfigError(
            f"{word} of {run} in {self._folder} {what}, and a folder alone must not decide that. "
            f"If you trust it, give the file again that describes it: redline {self._command} FILE "
            f"--out {shlex.quote(str(self._folder))}; or confirm it: redline {self._command} "
            f"--resume {shlex.quote(str(self._folder))} --confirm {shlex.quote(word)}"
        )


def _reached(algorithm: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Name, value and effect of each setting of a run that reaches outside its folder.

    What is wrong with the settings is left to the run itself, which then begins nothing.
    """
    plain = {name: v for name, v in settings.items() if name not in _NOT_SETTINGS}
    try:
        said = given_settings({"algorithm": algorithm, **plain}).algorithm
    except RedlineError:
        said = None
    for label in dict.fromkeys((algorithm, said)):
        if label is not None and not is_named(label):
            yield "algorithm", label, "is Python code"
    try:
        config = starting_config(algorithm, dict(plain))
    except RedlineError:
        return
    for name in CODE:
        for label in labels_of(getattr(config.run, name)):
            if not is_named(label):
                yield name, label, "is Python code"
    for name, (value, what) in outside_values(config).items():
        if what:
            yield name, value, what


def _word(name: str, value: Any) -> str:
    """NAME=VALUE in one form, however the value was written."""
    if name == "env_kwargs" and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return f"{name}={value}"
    if name == "wandb" and isinstance(value, str):
        value = value.lower()
    return f"{name}={value if isinstance(value, str) else json.dumps(value, sort_keys=True)}"

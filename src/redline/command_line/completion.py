"""`redline completion SHELL`: completes commands, algorithms, options and their values."""

from __future__ import annotations

import sys
import typing

from redline.errors import ConfigError

_BASH = """_redline() {
    local IFS=$'\\n'
    COMPREPLY=($(redline completion words "${COMP_WORDS[@]:1:COMP_CWORD}"))
    [[ ${#COMPREPLY[@]} -eq 0 ]] && COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o nosort -F _redline redline
"""
_ZSH = """#compdef redline
_redline() {
    local -a found
    found=("${(@f)$(redline completion words "${(@)words[2,CURRENT]}")}")
    [[ -n "${found[1]}" ]] && compadd -Q -- "${found[@]}" || _files
}
compdef _redline redline
"""
_HOW = """usage: redline completion bash|zsh

Prints a script that completes commands, algorithms, options and their values.
  bash:  eval "$(redline completion bash)"   in ~/.bashrc
  zsh:   eval "$(redline completion zsh)"    in ~/.zshrc, after compinit
"""


def print_completion(arguments: list[str]) -> int:
    """Print the script of a shell; or, for that script, the words that may come next.

    Raises:
        ConfigError: if there is no such shell.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_HOW)
        return 0 if arguments else 2
    if arguments[0] == "words":
        sys.stdout.write("".join(f"{word}\n" for word in completions(arguments[1:])))
        return 0
    scripts = {"bash": _BASH, "zsh": _ZSH}
    if arguments[0] not in scripts:
        raise ConfigError(f"there is no completion for {arguments[0]!r}. Choose bash or zsh.")
    sys.stdout.write(scripts[arguments[0]])
    return 0


def completions(words: list[str]) -> list[str]:
    """What the last word may become.

    Args:
        words: behind `redline`, the last one still being typed; it may be empty.

    Returns:
        Words that begin as it does; none where a file or a value of one's own comes next.
    """
    *before, begun = words or [""]
    return [word for word in _candidates(before) if word.startswith(begun)]


def _candidates(before: list[str]) -> list[str]:
    from redline.algos.registry import algorithm_names
    from redline.command_line import COMMANDS

    if not before:
        return [*COMMANDS, "--help", "--version"]
    if before[0] == "completion":
        return ["bash", "zsh"] if len(before) == 1 else []
    if before[0] == "presets":
        return _presets(before[1:])
    if before[0] == "watch":
        return ["--once", "--help"]
    if before[0] != "train":
        return []
    if len(before) == 1:
        return [*algorithm_names(), "--resume", "--config"]
    return _train_words(before[1:])


def _presets(before: list[str]) -> list[str]:
    from redline.algos.registry import BUILT_IN, algorithm_names, declaration

    if not before:
        return list(algorithm_names())
    if len(before) > 1 or before[0] not in BUILT_IN:
        return []
    said = declaration(before[0], for_help=True)
    return [*said.presets, *said.variants]


def _train_words(before: list[str]) -> list[str]:
    """Options of an algorithm, or the values that the last of them takes."""
    from redline.algos.registry import BUILT_IN, declaration
    from redline.command_line.profile_options import ProfileOptions
    from redline.profile.record.options import MODES
    from redline.train.outlines import choices_of, kinds_of
    from redline.train.settings import PolicySettings, RunSettings

    if before[0] not in BUILT_IN:
        return []
    said = declaration(before[0], for_help=True)
    kinds = kinds_of(RunSettings, PolicySettings, said.Config, ProfileOptions)
    last = before[-1].removeprefix("--").replace("-", "_")
    if before[-1] == "--profile":
        return list(MODES)
    if before[-1] == "--preset":
        return ["auto", "default", *said.presets, *said.variants]
    if before[-1].startswith("--") and last in kinds:
        values: list[str] = []
        for kind in choices_of(kinds[last]):
            if typing.get_origin(kind) is typing.Literal:
                values += map(str, typing.get_args(kind))
        if values or bool not in choices_of(kinds[last]):
            return values
    own = ["--config", "--preset", "--callback", "--print-config", "--help-all"]
    return [*(f"--{name.replace('_', '-')}" for name in kinds), *own, "--help"]

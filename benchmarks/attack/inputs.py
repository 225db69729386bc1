"""Random command lines, through the command line's own entry, in this process.

A command line is one that works and is small, with one to four of its options changed to, or
joined by, values that may be anything. It must be refused with an error of Redline's tree (or the
usage of the option's type), or run: never a traceback, a hang, or an exit without a word. What ran
must have taken over every value that was given.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import random
import re
from pathlib import Path
from typing import Any

from benchmarks.attack.series import FAULT, WAIT_LIMIT_S, Verdict, quiet
from redline.algos.registry import algorithm_names, declaration
from redline.cli import main
from redline.errors import RedlineError
from redline.train.outlines import choices_of, kinds_of
from redline.train.settings import PolicySettings, RunSettings

_TINY: dict[str, str] = {
    "--total-env-steps": "64", "--num-envs": "2", "--rollout-length": "8", "--hidden-sizes": "4",
    "--preset": "default", "--num-threads": "1",
}  # fmt: skip
_OFF_POLICY: dict[str, str] = {
    "--learning-starts": "16", "--replay-size": "64", "--batch-size": "4", "--replay-ratio": "1",
}  # fmt: skip
_ENVS = ("CartPole-v1", "Pendulum-v1", "redline/CartPole-v1", "redline/TMaze-v1")
_STRANGE = (
    "", "0", "-1", "1", "2", "3", "1e5", "1e309", "nan", "inf", "-inf", "0.5", "-0.0", "1e-320",
    "999999999999", str(2**63), str(-(2**63)), "9" * 5000, "None", "none", "True", "False", "auto",
    "[]", "{}", '{"a": 1}', '{"render_mode": "human"}', "[" * 5000, "null", "=cmd|x", "\x1b[2J",
    "a" * 300, "../x", "/", "/dev/null", "/dev/full", "/proc/self/mem", "~", "-", "--", "x:y",
    "no.such:Thing", "os:system", ",", "1,2", "64 64", "π", "\udcff", "cuda", "cuda:99", "mps",
    "meta", "cpu:7", "0-3", "default", "none,none", "CartPole-v1", "ALE/Pong-v5", "NoSuch-v0",
)  # fmt: skip
_SLOW = {  # options with which a run may take long, or leave this process changed
    "total_env_steps": ("64", "1", "0", "-5", "1e2", "nan", ""),
    "num_envs": ("1", "2", "3", "7", "0", "-1", "1000000000", "nan", "2.5"),
    "rollout_length": ("1", "8", "0", "-1", "1000000000", "9" * 30),
    "eval_episodes": ("1", "2", "0", "-1", "x"),
    "num_epochs": ("1", "2", "0", "-1", "x"),
    "collector": ("serial", "nothing", "", "x:y", "7"),
    "env_backend": ("auto", "gymnasium", "device", "envpool", "ale", "vector", "none", "x:y"),
    "accelerate": ("eager", "cpu", "auto", "cudagraph", "x", ""),
    "eval_async": ("x",),
    "replay_ratio": ("0.5", "1", "0", "-1", "nan", "inf", "8"),
    "out": ("",),
}
_NEVER = ("wandb",)  # it would ask a server
_OTHER_COMMANDS = (
    ["runs"], ["presets"], ["eval"], ["inspect"], ["plot"], ["export"], ["compare"], ["report"],
    ["sweep", "status"], ["completion"], ["advise"], ["trace"], ["diff"], ["inspect-session"],
    ["sessions"], ["merge-sessions"],
    ["train", "--resume"], ["nothing"], [],
)  # fmt: skip


class Inputs:
    """Random command lines."""

    kind = "inputs"
    wait_s = WAIT_LIMIT_S

    def prepare(self, folder: Path) -> None:
        """Train one run for the commands that look at runs."""
        os.chdir(folder)
        # The parser reads the sources of all settings for its help, at every call.
        parser: Any = importlib.import_module("tyro._docstrings")
        parser.get_field_docstring = functools.cache(parser.get_field_docstring)
        words = [word for pair in _TINY.items() for word in pair]
        main(["train", "ppo", "--env", "CartPole-v1", "--out", "a-run", "--no-tensorboard", *words])
        self._folder = folder
        self._kinds = {
            name: kinds_of(RunSettings, PolicySettings, declaration(name).Config)
            for name in algorithm_names()
        }

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Make up a command line and give it to `main`."""
        os.chdir(folder)
        if rng.random() < 0.2:
            words, given = self._other_command(rng), {}
        else:
            words, given = self._train_command(rng)
        shown = " ".join(repr(word[:60]) for word in words)
        group = words[0][:12] if words and words[0] in ("train",) else "other commands"
        status: Any
        with quiet() as (out, err):
            try:
                status = main(words)
            except SystemExit as error:  # how a type's usage is told
                status = error.code
        os.chdir(self._folder)
        said = err.getvalue() + out.getvalue()
        problem = _problem(status, said, folder, given)
        if problem:
            return Verdict(self.kind, number, shown, FAULT, f"{problem}\n{said[-1500:]}", group)
        verdict = "ran" if status == 0 else "refused"
        return Verdict(self.kind, number, shown, verdict, said[:200], group)

    def _train_command(self, rng: random.Random) -> tuple[list[str], dict[str, str]]:
        algorithm = rng.choice(list(self._kinds))
        kinds = self._kinds[algorithm]
        options = {"--env": rng.choice(_ENVS), **_TINY}
        if "replay_size" in kinds:
            options |= _OFF_POLICY
        if "num_minibatches" in kinds:
            options["--num-minibatches"] = "1"
        changed: dict[str, str] = {}
        for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
            name = rng.choice([each for each in kinds if each not in _NEVER])
            changed[f"--{name.replace('_', '-')}"] = self._value(name, kinds[name], rng)
        options |= changed
        words = ["train", algorithm, "--no-tensorboard", "--out", "run"]
        flags = [n for n in options if bool in choices_of(kinds.get(n[2:].replace("-", "_"), str))]
        for name, value in options.items():
            if name in flags:
                words.append(name if rng.random() < 0.5 else name.replace("--", "--no-", 1))
            else:
                words += [f"{name}={value}"] if rng.random() < 0.5 else [name, value]
        if rng.random() < 0.05:
            words.insert(rng.randrange(1, len(words) + 1), rng.choice(_STRANGE))
        return words, {name: value for name, value in changed.items() if name not in flags}

    @staticmethod
    def _value(name: str, kind: Any, rng: random.Random) -> str:
        if name in _SLOW:
            return rng.choice(_SLOW[name])
        pool = [*_STRANGE]
        for each in choices_of(kind):
            words = getattr(each, "__args__", ())
            pool += [str(word) for word in words if isinstance(word, str)] * 4
        return rng.choice(pool)

    @staticmethod
    def _other_command(rng: random.Random) -> list[str]:
        words = list(rng.choice(_OTHER_COMMANDS))
        run = str(Path.cwd().parent / "a-run")
        for _ in range(rng.randint(0, 4)):
            option = rng.choice(
                ("--out", "--format", "--episodes", "--x", "--y", "--seed", "--env", "--tag",
                 "--which", "--help", "--algorithm", "--smooth", "--statistic", "--quiet")
            )  # fmt: skip
            strange = rng.choice([each for each in _STRANGE if each != "/"])  # a whole disk
            words.append(rng.choice((run, run, option, strange)))
        if words[:1] in (["eval"], ["completion"]):
            words = [word for word in words if word not in ("999999999999", "1e5")]
        return words


def _problem(status: Any, said: str, folder: Path, given: dict[str, str]) -> str | None:
    """What is wrong with how a command ended; None if nothing."""
    if "Traceback (most recent call last)" in said:
        return f"status {status} with a traceback"
    if status not in (0, 1, 2):
        return f"status {status!r}"
    if status != 0:
        names = {kind.__name__ for kind in _tree(RedlineError)}
        is_told = said.partition(":")[0].strip().splitlines()[-1:] or [""]
        known = any(f"{name}:" in said for name in names)
        told = said.lower()
        usage = any(word in told for word in ("usage", "error", "option", "full helptext"))
        return None if known or usage else f"status {status} without a reason: {is_told}"
    return _not_taken_over(folder / "run" / "config.json", given, said)


def _tree(kind: type[BaseException]) -> set[type[BaseException]]:
    return {kind}.union(*(_tree(each) for each in kind.__subclasses__()))


def _not_taken_over(config: Path, given: dict[str, str], said: str) -> str | None:
    """An option that was given and that the run's settings do not say; None if there is none.

    An engine that cannot serve the update gives way to another, and the run says which and why.
    """
    if not config.exists():
        return None
    written = json.loads(config.read_text())
    flat = {**written["run"], **written["policy"], **written["algo"]}
    for option, value in given.items():
        kept: Any = flat.get(option[2:].replace("-", "_"))
        if value in ("auto", "default", "None", "none", "") or isinstance(kept, list):
            continue
        try:
            same = float(value) == float(kept) or value == str(kept)
        except (TypeError, ValueError, OverflowError):
            same = value == str(kept)
        gave_way = option == "--accelerate" and re.search(
            rf"^updates: {re.escape(str(kept))} \((?!as asked for)", said, re.MULTILINE
        )
        if not same and not gave_way:
            return f"silently not taken over: {option} {value!r}, and config.json says {kept!r}"
    return None

"""Random command lines, each in a fork of this process (`forks`).

A command line is one that works and is small, with one to four of its options changed to, or
joined by, values that may be anything. It must be refused with an error of Redline's tree (or the
usage of the option's type), or run: never a traceback, a hang, or an exit without a word. What ran
must have taken over every value that was given. One in `REALLY` is also given to an interpreter of
its own, which must end with the same status and the same words.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.attack.damage import STRANGE, spoil
from benchmarks.attack.forks import Ended, load_everything, run, run_really
from benchmarks.attack.series import FAULT, WAIT_LIMIT_S, Verdict
from redline.algos.registry import algorithm_names, declaration
from redline.cli import main
from redline.train.outlines import choices_of, kinds_of
from redline.train.settings import PolicySettings, RunSettings

REALLY = 100  # one attempt in so many is also made as a user makes it
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
_SLOW = {  # options with which a run may take long
    "total_env_steps": ("64", "1", "0", "-5", "1e2", "nan", ""),
    "num_envs": ("1", "2", "3", "7", "0", "-1", "1000000000", "nan", "2.5"),
    "rollout_length": ("1", "8", "0", "-1", "1000000000", "9" * 30),
    "eval_episodes": ("1", "2", "0", "-1", "x"),
    "eval_max_episode_steps": ("1", "5", "0", "-1", "x"),
    "num_epochs": ("1", "2", "0", "-1", "x"),
    "collector": (
        "serial",
        "serial",
        "nothing",
        "",
        "x:y",
        "7",
        "central",
        "workers",
        "async",
        "alternating",
    ),
    "env_backend": (
        "auto",
        "gymnasium",
        "device",
        "envpool",
        "ale",
        "vector",
        "none",
        "x:y",
        "processes",
    ),
    "num_workers": ("1", "2", "0", "-1", "x", "3"),
    "accelerate": ("eager", "cpu", "auto", "cudagraph", "x", ""),
    "eval_async": ("x",),
    "replay_ratio": ("0.5", "1", "0", "-1", "nan", "inf", "8"),
    "out": ("",),
}
_NEVER = ("wandb",)  # it would ask a server
_WITH_WORKERS = ("central", "workers", "async", "alternating", "processes")
_OTHER_COMMANDS = (
    ["runs"], ["presets"], ["eval"], ["inspect"], ["plot"], ["export"], ["compare"], ["report"],
    ["sweep", "status"], ["completion"], ["advise"], ["trace"], ["diff"], ["inspect-session"],
    ["sessions"], ["merge-sessions"], ["collect"], ["tune"], ["sweep"], ["train", "--config"],
    ["train", "ppo", "--init-from"],
    ["train", "--resume"], ["nothing"], [],
)  # fmt: skip


class Inputs:
    """Random command lines."""

    kind = "inputs"
    wait_s = 3 * WAIT_LIMIT_S  # each command has a limit of its own

    def prepare(self, folder: Path) -> None:
        """Train one run for the commands that look at runs."""
        load_everything()
        # The parser reads the sources of all settings for its help, at every call.
        parser: Any = importlib.import_module("tyro._docstrings")
        parser.get_field_docstring = functools.cache(parser.get_field_docstring)
        self._kinds: dict[str, dict[str, Any]] = {}
        for name in algorithm_names():
            self._kinds[name] = kinds_of(RunSettings, PolicySettings, declaration(name).Config)
            self._warm_up(name)
        words = [word for pair in _TINY.items() for word in pair]
        command = ["train", "ppo", "--env", "CartPole-v1", "--out", "a-run", "--no-tensorboard"]
        ended = run([*command, *words], folder)
        if ended.status != 0:
            raise RuntimeError(f"no run to look at: {ended.said}")

    @staticmethod
    def _warm_up(name: str) -> None:
        """Let this process, and so its forks, have read what an algorithm's help needs."""
        with contextlib.suppress(SystemExit):
            main(["train", name, "--env", "CartPole-v1", "--print-config"])

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Make up a command line, and call it; a sample of them in an interpreter, too."""
        given: dict[str, str] = {}
        kind = rng.random()
        if kind < 0.2:
            words, group = self._other_command(rng, folder.parent / "a-run"), "other commands"
        elif kind < 0.3:
            words, group = self._file_command(rng, folder), "train --config"
        else:
            (words, given), group = self._train_command(rng), "train"
        shown = " ".join(repr(word[:60]) for word in words)
        here = _copy(folder, "here")
        workers = any(word in _WITH_WORKERS for part in words for word in part.split("="))
        ended = run(words, here, workers=workers)
        problem = ended.problem() or _not_taken_over(here / "run", given, ended)
        if problem is None and number % REALLY == REALLY // 2:
            group += ", also in an interpreter"
            problem = _differs_really(words, folder, ended)
        if problem:
            said = f"{problem}\n{ended.said[-1500:]}"
            return Verdict(self.kind, number, shown, FAULT, said, group)
        verdict = "ran" if ended.status == 0 else "refused"
        return Verdict(self.kind, number, shown, verdict, ended.reason()[:200], group)

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

    def _file_command(self, rng: random.Random, folder: Path) -> list[str]:
        """A file of settings, some of which are strange, and the command that takes it."""
        algorithm = rng.choice(list(self._kinds))
        settings: dict[str, Any] = {"algorithm": algorithm, "env": rng.choice(_ENVS), "out": "run"}
        settings |= {name[2:].replace("-", "_"): value for name, value in _TINY.items()}
        kinds = self._kinds[algorithm]
        for _ in range(rng.choice((1, 1, 2, 4))):
            name = rng.choice([each for each in kinds if each not in (*_NEVER, *_SLOW)])
            settings[name] = rng.choice((rng.choice(STRANGE), self._value(name, kinds[name], rng)))
        text = json.dumps(settings)
        ending = rng.choice(("json", "json", "yaml", "yaml", "toml", "txt"))
        if ending == "toml":
            text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        elif ending == "yaml" and rng.random() < 0.7:
            text = "".join(f"{name}: {value}\n" for name, value in settings.items())
        data = bytearray(text.encode(errors="surrogateescape"))
        if rng.random() < 0.3:
            spoil(data, rng)
        (folder / f"settings.{ending}").write_bytes(data)
        return ["train", "--config", f"settings.{ending}", "--quiet"]

    @staticmethod
    def _other_command(rng: random.Random, run: Path) -> list[str]:
        words = list(rng.choice(_OTHER_COMMANDS))
        for _ in range(rng.randint(0, 4)):
            option = rng.choice(
                ("--out", "--format", "--episodes", "--x", "--y", "--seed", "--env", "--tag",
                 "--which", "--help", "--algorithm", "--smooth", "--statistic", "--quiet", "--set",
                 "--init-from", "--video", "--greedy", "--json")
            )  # fmt: skip
            strange = rng.choice([each for each in _STRANGE if each != "/"])  # a whole disk
            words.append(rng.choice((str(run), str(run), option, strange)))
        if words[:1] in (["eval"], ["completion"], ["collect"]):
            words = [word for word in words if word not in ("999999999999", "1e5")]
        return words


def _copy(folder: Path, name: str) -> Path:
    """A folder to call a command in, and one around it, for what it writes to `../x`."""
    inside = folder / name / "inside"
    inside.mkdir(parents=True)
    for file in folder.glob("settings.*"):
        shutil.copy(file, inside)
    return inside


def _differs_really(words: Sequence[str], folder: Path, forked: Ended) -> str | None:
    """What an interpreter of its own makes of the same command otherwise; None if nothing."""
    there = _copy(folder, "real")  # names of one length: who breaks lines counts letters
    really = run_really(words, there)
    if (problem := really.problem()) is not None:
        return f"only in an interpreter: {problem}\n{really.said[-1000:]}"
    if really.status != forked.status:
        return f"status {really.status} in an interpreter\n{really.said[-1000:]}"
    own, other = _comparable(forked, folder / "here"), _comparable(really, folder / "real")
    return None if own == other else f"an interpreter says\n{other[-1000:]}\nand not\n{own[-1000:]}"


def _comparable(ended: Ended, folder: Path) -> str:
    """What a refusal says, but for where it was and for memory and times; of a success nothing."""
    if ended.status == 0:
        return ""
    said = ended.err.replace(str(folder), "FOLDER")
    # Who draws boxes around messages breaks their lines.
    return re.sub(r"[\s│]+", " ", re.sub(r"\d[\d,.e+-]*", "0", said))


def _not_taken_over(run: Path, given: dict[str, str], ended: Ended) -> str | None:
    """An option that was given and that the run's settings do not say; None if there is none.

    An engine that cannot serve the update gives way to another, and the run says which and why.
    """
    config = run / "config.json"
    if ended.status != 0 or not config.exists():
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
            rf"^updates: {re.escape(str(kept))} \((?!as asked for)", ended.said, re.MULTILINE
        )
        if not same and not gave_way:
            return f"silently not taken over: {option} {value!r}, and config.json says {kept!r}"
    return None

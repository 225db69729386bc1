"""Do the wheel and the source archive install and run outside the tree, in clean environments?

    python -m benchmarks.packages
    python -m benchmarks.packages --python 3.12 --keep build/packages

A source archive is made of the tree, and for each Python that is found a wheel of the archive, so
that nothing but the archive counts. Each case gets an environment of its own: wheel or archive,
with and without a compiler, Python 3.11 to 3.13, numpy 1.26 and 2. There `scripts/check_wheel.sh`
trains, evaluates, resumes, plots and profiles. Where the package index has torch for CUDA only, its
gigabytes are not taken: the parts that need no torch are tried, and the table says so. With
`--any-torch` they are taken, and everything is tried.

The table goes to benchmarks/results/packages.md. It is made of packages.json beside it, where a
case takes the place of the one before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import processor

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PYTHONS = ("3.11", "3.12", "3.13")
NUMPYS = ("numpy==1.26.*", "numpy>=2")
EXTENSIONS = tuple(re.findall(r'Extension\(\s*"([\w.]+)"', (ROOT / "setup.py").read_text()))
# What the check calls, when there is no compiler to be found beside it.
TOOLS = ("bash", "sh", "mktemp", "cat", "env", "uname", "rm", "mkdir")
NOT_A_USERS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
NEEDS_TORCH = ("torch", "tensordict")
WITHOUT_TORCH = (
    "redline --version",
    "redline --help",
    "redline train ppo --env CartPole-v1 --help",
    "redline presets ppo",
    "redline watch . --once",
)
PROFILE = (
    "redline profile --out session -- python -c 'import gymnasium as g; g.make(\"CartPole-v1\")'",
    "redline report session",
)


@dataclass(frozen=True)
class Case:
    """One environment.

    Attributes:
        python: version.
        numpy: requirement.
        source: what is installed, wheel or archive.
        compiler: whether one is found.
    """

    python: str
    numpy: str
    source: str
    compiler: bool = True


@dataclass(frozen=True)
class Outcome:
    """What came of a case; `failed` holds the end of the output, "" if all went well."""

    case: Case
    numpy: str
    torch: str
    extensions: int
    seconds: float
    failed: str
    known: int = len(EXTENSIONS)
    shared: bool = False
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d"))

    def row(self) -> str:
        """A line of the table."""
        case = self.case
        done = (
            "train, resume, eval, plot, profile" if self.torch else "help, presets, watch, profile"
        )
        if not self.extensions:
            done = done.replace("profile", "profile says what is missing")
        verdict = f"failed: {self.failed.splitlines()[-1]}" if self.failed else done
        torch = self.torch or "CUDA builds only"
        found = {0: "none", self.known: "all"}.get(self.extensions, f"{self.extensions}")
        source = case.source if case.compiler else f"{case.source}, no compiler"
        source += ", shared" if self.shared else ""
        return (
            f"| {case.python} | {self.numpy} | {torch} | {source} | {found} | {verdict} "
            f"| {self.seconds:.0f} |"
        )


class CommandError(Exception):
    """A command ended with another code than 0; the message is the end of its output."""


def run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a command outside the tree; its output."""
    clean = {name: v for name, v in (env or os.environ).items() if name not in NOT_A_USERS}
    done = subprocess.run(
        command, cwd=cwd, env=clean, check=False, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise CommandError(f"{' '.join(command)}\n{done.stdout[-4000:]}")
    return done.stdout


def interpreter(version: str) -> str | None:
    """The executable of a Python version, on PATH or among pyenv's; None if there is none."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for each in (*map(str, installed), shutil.which(f"python{version}")):
        if each and subprocess.run([each, "-c", "import venv"], check=False).returncode == 0:
            return each
    return None


def pip(environment: Path, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    """Call the pip of an environment, held to the tree's constraints."""
    python = str(environment / "bin" / "python")
    options = ("--quiet", "--disable-pip-version-check")
    if arguments[0] == "install":
        options += ("--constraint", str(ROOT / "constraints.txt"))
    command = [python, "-m", "pip", arguments[0], *options, *arguments[1:]]
    return run(command, cwd=environment, env=env)


def new_environment(python: str, path: Path) -> Path:
    """A virtual environment with nothing but pip."""
    run([python, "-m", "venv", str(path)], cwd=path.parent)
    return path


def source_archive(work: Path) -> Path:
    """The archive of the tree."""
    builder = new_environment(sys.executable, work / "builder")
    pip(builder, "install", "build>=1.2")
    python = str(builder / "bin" / "python")
    run([python, "-m", "build", "--sdist", "--outdir", str(work / "dist"), str(ROOT)], cwd=work)
    (archive,) = (work / "dist").glob("*.tar.gz")
    return archive


def torch_requirement() -> str:
    """The torch that the tree is held to, such as torch==2.13.0."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def has_cpu_torch(environment: Path) -> bool:
    """Whether there is a torch without CUDA; on Linux its version ends in +cpu."""
    if sys.platform != "linux":
        return True
    try:
        pip(environment, "install", "--dry-run", "--no-deps", f"{torch_requirement()}+cpu")
    except CommandError:
        return False
    return True


def other_dependencies() -> list[str]:
    """What Redline needs besides torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [
        each for each in project["dependencies"] if re.split(r"[<>=\[]", each)[0] not in NEEDS_TORCH
    ]


def without_compiler(work: Path) -> dict[str, str]:
    """The process's variables with a PATH on which there is no compiler."""
    tools = work / "tools"
    tools.mkdir(exist_ok=True)
    for name in TOOLS:
        found = shutil.which(name)
        if found and not (tools / name).exists():
            (tools / name).symlink_to(found)
    return {**os.environ, "PATH": str(tools), "CC": "/bin/false", "CXX": "/bin/false"}


def tried(
    case: Case,
    python: str,
    archives: Mapping[str, Path],
    work: Path,
    *,
    shared: bool,
    any_torch: bool,
) -> Outcome:
    """Make the environment of a case, or take the shared one, and run the checks there."""
    began_s = time.monotonic()
    environment = work / (f"shared-{case.python}" if shared else "environment")
    if not shared:
        shutil.rmtree(environment, ignore_errors=True)
    torch = installed = failed = ""
    extensions = 0
    try:
        if not environment.exists():
            new_environment(python, environment)
        if shared:
            pip(environment, "uninstall", "--yes", "redline")
        env = dict(os.environ) if case.compiler else without_compiler(work)
        env["PATH"] = f"{environment / 'bin'}{os.pathsep}{env['PATH']}"
        full = any_torch or has_cpu_torch(environment)
        if full:
            pip(environment, "install", torch_requirement(), case.numpy)
            pip(environment, "install", str(archives[case.source]), case.numpy, env=env)
            torch = version(environment, "torch")
        else:
            pip(environment, "install", case.numpy, *other_dependencies())
            pip(environment, "install", "--no-deps", str(archives[case.source]), env=env)
        installed = version(environment, "numpy")
        extensions = count_extensions(environment)
        check(environment, env, full=full)
    except CommandError as error:
        failed = str(error).strip()
    seconds = time.monotonic() - began_s
    return Outcome(case, installed, torch, extensions, seconds, failed, shared=shared)


def version(environment: Path, package: str) -> str:
    """The version of what is installed."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return run([str(environment / "bin" / "python"), "-c", code], cwd=environment).strip()


def count_extensions(environment: Path) -> int:
    """How many of the C extensions there are."""
    code = (
        "from importlib.util import find_spec; import sys; "
        "print(sum(find_spec(each) is not None for each in sys.argv[1:]))"
    )
    return int(run([str(environment / "bin" / "python"), "-c", code, *EXTENSIONS], cwd=environment))


def check(environment: Path, env: Mapping[str, str], *, full: bool) -> None:
    """Use the installed package as a user would."""
    with tempfile.TemporaryDirectory(dir=environment) as folder:
        if full:
            run(["bash", str(ROOT / "scripts" / "check_wheel.sh")], cwd=Path(folder), env=env)
            return
        profile = PROFILE if count_extensions(environment) else (f"! {PROFILE[0]}",)
        for command in (*WITHOUT_TORCH, *profile):
            run(["bash", "-c", command], cwd=Path(folder), env=env)


def cases(python: str) -> list[Case]:
    """Those of one Python: both numpys by wheel, and the archive without a compiler."""
    has_wheels = [each for each in NUMPYS if (python, each) != ("3.13", NUMPYS[0])]
    return [
        *(Case(python, each, "wheel") for each in has_wheels),
        Case(python, NUMPYS[-1], "archive", compiler=False),
    ]


def recorded(outcome: Outcome) -> list[Outcome]:
    """Put an outcome into packages.json, in place of the one before; all that it then holds."""
    path = RESULTS / "packages.json"
    before = json.loads(path.read_text()) if path.exists() else []
    kept = {each.case: each for each in map(_read, before)} | {outcome.case: outcome}
    order = [case for python in PYTHONS for case in cases(python)]
    together = sorted(kept.values(), key=lambda each: order.index(each.case))
    path.write_text(json.dumps([asdict(each) for each in together], indent=1) + "\n")
    return together


def _read(entry: dict[str, Any]) -> Outcome:
    return Outcome(**{**entry, "case": Case(**entry["case"])})


def page(outcomes: Sequence[Outcome]) -> str:
    """The results as Markdown."""
    rows = "\n".join(outcome.row() for outcome in outcomes)
    dates = " to ".join(sorted({outcome.date for outcome in outcomes}))
    return f"""# The packages in clean environments

`python -m benchmarks.packages`, {dates}, on one core of {processor()}.

Each line is a new environment, in which the package was installed by pip and used outside the
tree. Where it says shared, torch and other packages lay there already. A wheel is built of the
source archive. Seconds include downloading, installing and the check.

| Python | numpy | torch | from | C extensions | works | s |
|---|---|---|---|---|---|---|
{rows}

numpy 1.26 has no wheels for Python 3.13. A torch whose version does not end in `+cpu` is the build
for CUDA, used on a CPU (`--any-torch`).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Try all cases; 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--python", action="append", choices=PYTHONS, help="version, such as 3.12; several are fine"
    )
    parser.add_argument("--numpy", choices=NUMPYS, help="only the cases with this one")
    parser.add_argument(
        "--shared", action="store_true", help="one environment for all cases of a Python: quicker"
    )
    parser.add_argument(
        "--any-torch", action="store_true", help="take a torch for CUDA where there is no other"
    )
    parser.add_argument("--keep", type=Path, help="folder to work in, which is then kept")
    chosen = parser.parse_args(argv)
    work = Path(tempfile.mkdtemp()) if chosen.keep is None else chosen.keep.resolve()
    work.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    try:
        archive = source_archive(work)
        for wanted in chosen.python or PYTHONS:
            python = interpreter(wanted)
            if python is None:
                print(f"Python {wanted} is not installed: left out")
                continue
            wheels = work / f"wheel-{wanted}"
            builder = new_environment(python, work / f"builder-{wanted}")
            required = {**os.environ, "REDLINE_REQUIRE_EXTENSIONS": "1"}
            pip(builder, "wheel", "--no-deps", "-w", str(wheels), str(archive), env=required)
            archives = {"wheel": next(wheels.glob("*.whl")), "archive": archive}
            for case in cases(wanted):
                if chosen.numpy not in (None, case.numpy):
                    continue
                options = {"shared": chosen.shared, "any_torch": chosen.any_torch}
                outcomes.append(tried(case, python, archives, work, **options))
                print(outcomes[-1].row(), outcomes[-1].failed, flush=True)
                (RESULTS / "packages.md").write_text(page(recorded(outcomes[-1])))
    finally:
        if chosen.keep is None:
            shutil.rmtree(work, ignore_errors=True)
    return int(any(outcome.failed for outcome in outcomes) or not outcomes)


if __name__ == "__main__":
    sys.exit(main())

"""The jobs of a new user, done from the documentation alone: `python -m benchmarks.jobs`.

Every job is what one page shows, taken from the page as it stands: blocks of Python, lines of
shell. They run one after the other in one folder, as a reader would type them. Counted are the
lines that the reader types, without blank lines and comments, the minutes that the reader waits for
them, and their processor time; most of both is training, so `--env-steps` may shorten the runs.
Python and quick commands run in one process, so torch is loaded once, in the first job. A job fails
if it ends with an error, or if its Python uses a private name.

    python -m benchmarks.jobs --record        # writes benchmarks/results/jobs.md
    python -m benchmarks.jobs --only serve
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tests.docs.snippets import REPOSITORY, Snippet, snippets_of

from benchmarks.machine import as_markdown
from redline.cli import main as redline_main

IN_THIS_PROCESS = ("train", "eval", "plot", "export", "collect", "compare", "watch", "report")
PACKAGES = ("redline", "gymnasium", "numpy", "torch")
RESULT = REPOSITORY / "benchmarks" / "results" / "jobs.md"


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a reader wants.

    Attributes:
        name: in the table.
        page: where it is explained.
        python: a piece of each block of Python that the reader types.
        shell: the beginning of each line of shell.
        files: names of files that the page shows and the reader saves.
        kill_at: files at whose sight the first line of shell is ended by `kill -9`.
        is_run: whether the job is done, not only counted.
        note: what the table says beside it.
        environment: variables that keep tools quiet.
    """

    name: str
    page: str
    python: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    kill_at: str = ""
    is_run: bool = True
    note: str = ""
    environment: dict[str, str] = field(default_factory=dict)


OWN_ENV = "docs/tutorials/own_environment.md"
OWN_NETWORK = "docs/tutorials/own_network.md"
CURRICULUM = "docs/tutorials/curriculum.md"
QUICK = "docs/quick-start.md"
JOBS = (
    Job(
        name="install",
        page=QUICK,
        shell=("pip install torch", "pip install -e ."),
        is_run=False,
        note="not run here; how long it takes: [packages](packages.md)",
    ),
    Job(name="train", page="README.md", shell=("redline train ppo --env CartPole-v1",)),
    Job(
        name="resume",
        page=QUICK,
        shell=("redline train ppo --env CartPole-v1 --seed 1", "redline train --resume"),
        kill_at="runs/cartpole/checkpoints/step_*",
        note="ended by `kill -9` after its first checkpoint",
    ),
    Job(name="evaluate", page="docs/index.md", shell=("redline eval runs/cartpole",)),
    Job(name="plot", page=QUICK, shell=("redline plot runs/cartpole",)),
    Job(name="export", page=QUICK, shell=("redline export runs/cartpole",)),
    Job(name="video", page="docs/logging.md", shell=("redline eval runs/cartpole --video",)),
    Job(name="serve", page="docs/serving.md", python=("policy.predict(obs, state)",)),
    Job(
        name="config",
        page="docs/configuration.md",
        files=("cartpole.yaml",),
        shell=("redline train --config cartpole.yaml",),
    ),
    Job(
        name="own environment: a callable",
        page=OWN_ENV,
        files=("my_envs.py",),
        python=("def make_env():",),
    ),
    Job(
        name="own environment: registered",
        page=OWN_ENV,
        files=("my_envs.py",),
        shell=("PYTHONPATH=. redline train ppo --env my_envs:Corridor-v0 --env-kwargs",),
    ),
    Job(name="own environment: vector", page=OWN_ENV, python=("gymnasium.make_vec",)),
    Job(name="Dict observations and masks", page=OWN_ENV, python=("class Doors",)),
    Job(name="reward wrapper", page=OWN_ENV, python=("TransformReward",)),
    Job(name="own network", page=OWN_NETWORK, python=("def network(", "redline.load(")),
    Job(name="own extractor", page=OWN_NETWORK, python=("class Extractor",)),
    Job(
        name="own algorithm",
        page="docs/own_algorithm.md",
        python=("class Plain(", "redline.train(Plain"),
    ),
    Job(name="callback that stops and logs", page="docs/callbacks.md", python=("StopWhenGood",)),
    Job(
        name="curriculum",
        page=CURRICULUM,
        files=("hills.py",),
        python=("redline.Curriculum(",),
    ),
    Job(name="warm start", page="docs/warm_start.md", python=("init_from",)),
    Job(
        name="sweep and compare",
        page="docs/sweeps.md",
        files=("sweep.yaml",),
        shell=("redline sweep sweep.yaml --out", "redline compare sweeps/first"),
    ),
    Job(
        name="tune",
        page="docs/tuning.md",
        files=("tune.yaml",),
        shell=("redline tune tune.yaml",),
    ),
    Job(
        name="W&B offline",
        page="docs/logging.md",
        shell=("WANDB_MODE=offline redline train",),
        environment={"WANDB_SILENT": "true"},
    ),
    Job(
        name="TensorBoard",
        page="docs/logging.md",
        note="on by default: `tensorboard --logdir runs`",
    ),
    Job(
        name="offline: record and clone",
        page="docs/offline_data.md",
        shell=(
            "redline train ppo --env CartPole-v1 --out runs/teacher",
            "redline collect runs/teacher",
            "redline train bc --env CartPole-v1",
        ),
    ),
    Job(name="watch", page="docs/watch.md", shell=("redline watch runs/cartpole --once",)),
    Job(
        name="profile a run",
        page="docs/tutorials/profiling.md",
        shell=("redline train ppo --env CartPole-v1 --total-env-steps 50000 --profile",),
    ),
    Job(
        name="profile any program",
        page="docs/coming_from/rl_scope.md",
        files=("train.py",),
        shell=("redline profile --out session", "redline report session"),
    ),
)


@dataclass(frozen=True)
class Done:
    """What came of a job."""

    job: Job
    lines: int
    processor_s: float
    waited_s: float
    problem: str = ""


def main() -> int:
    """Do the jobs; 0 if all of them worked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="part of a job's name")
    parser.add_argument("--record", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--env-steps", type=int, help="the most that a run may take")
    arguments = parser.parse_args()
    jobs = [job for job in JOBS if not arguments.only or arguments.only in job.name]
    with tempfile.TemporaryDirectory() as name:
        folder, done = Path(name), []
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        for job in jobs:
            done.append(do(job, folder, arguments.env_steps))
            print(f"{job.name:32} {done[-1].lines:3} lines {done[-1].waited_s:6.1f} s", flush=True)
            if done[-1].problem:
                print(done[-1].problem, flush=True)
            if arguments.record:
                RESULT.write_text(as_page(done, arguments.env_steps), encoding="utf-8")
        os.chdir(REPOSITORY)
    return int(any(each.problem for each in done))


def do(job: Job, folder: Path, most_env_steps: int | None) -> Done:
    """Do a job in a folder, as its page says."""
    blocks = snippets_of(REPOSITORY / job.page)
    files = [block for block in blocks if block.file_name in job.files]
    for block in files:
        (folder / str(block.file_name)).write_text(shorter(block.text, most_env_steps))
    programs = [block_with(piece, blocks) for piece in job.python]
    commands = [line_with(start, blocks) for start in job.shell]
    typed = "\n".join([block.text for block in [*files, *programs]] + commands)
    if private := sorted(private_names([*files, *programs])):
        return Done(job, lines_of(typed), 0.0, 0.0, f"private names: {private}")
    if not job.is_run:
        return Done(job, lines_of(typed), 0.0, 0.0)
    begin, began, problem = processor_s(), time.monotonic(), ""
    if programs:
        # A reader types a page from its top: what its blocks import is there for all of them.
        before = [imports_of(block, job) for block in blocks if block.kind == "python"]
        program = "\n".join([*before, *(block.text for block in programs)])
        problem = ran_here(lambda: run_program(shorter(program, most_env_steps)))
    for number, command in enumerate(commands):
        if most_env_steps and re.search(r"redline train (?!--)", command):
            command = re.sub(r" --total-env-steps \d+", "", command)
            command += f" --total-env-steps {most_env_steps}"
        kill_at = job.kill_at if number == 0 else ""
        problem = problem or ran(command, job, folder, kill_at)
    return Done(job, lines_of(typed), processor_s() - begin, time.monotonic() - began, problem)


def shorter(text: str, most_env_steps: int | None) -> str:
    """A program or a file of settings whose runs are at most so long."""
    if most_env_steps is None:
        return text
    pattern = r"(total_env_steps *[=:] *)([\d_e]+)"
    return re.sub(
        pattern, lambda match: f"{match[1]}{min(int(float(match[2])), most_env_steps)}", text
    )


def processor_s() -> float:
    """Seconds of processor time of this process and of those that it has waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def ran(command: str, job: Job, folder: Path, kill_at: str) -> str:
    """Run a line of shell, or its beginning; what it said if it failed."""
    words = shlex.split(command.partition(" #")[0])
    is_quick = words[0] == "redline" and words[1] in IN_THIS_PROCESS and "--profile" not in words
    if is_quick and not kill_at:
        return ran_here(lambda: run_redline(words[1:]))
    return ran_apart(command, job, folder, kill_at)


def ran_here(work: Callable[[], None]) -> str:
    """Do something in this process, where torch is loaded already; what was wrong."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            work()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a job that fails is a row, not the end
        return f"{said.getvalue()[-1000:]}\n{type(error).__name__}: {error}"
    return ""


def run_program(text: str) -> None:
    """Run a program as a reader's own."""
    exec(compile(text, "program.py", "exec", dont_inherit=True), {"__name__": "program"})


def run_redline(arguments: list[str]) -> None:
    """Run a command of redline; raises if it fails."""
    if status := redline_main(arguments):
        raise SystemExit(status)


def ran_apart(command: str, job: Job, folder: Path, kill_at: str) -> str:
    """Run a line of shell in a process of its own; what it said if it failed."""
    (folder / "bin").mkdir(exist_ok=True)
    for name, program in (("python", sys.executable), ("redline", f"{sys.executable} -m redline")):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    environment = {**os.environ, **job.environment, "PATH": f"{folder}/bin:{os.environ['PATH']}"}
    with (folder / "said.txt").open("w+") as said:
        process = subprocess.Popen(
            ["bash", "-ec", command], env=environment, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        while kill_at and process.poll() is None and not list(folder.glob(kill_at)):
            time.sleep(0.05)
        if kill_at and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        said.seek(0)
        return "" if status == 0 or kill_at else said.read()[-2000:]


def block_with(piece: str, blocks: list[Snippet]) -> Snippet:
    """The block of Python that holds a piece of text."""
    return next(block for block in blocks if block.kind == "python" and piece in block.text)


def line_with(start: str, blocks: list[Snippet]) -> str:
    """The line of shell that begins so."""
    lines = [line for block in blocks if block.kind == "bash" for line in block.text.splitlines()]
    return next(line for line in lines if line.startswith(start))


def imports_of(block: Snippet, job: Job) -> str:
    """The imports of a block, but for those of files that this job does not need."""
    there = {*sys.stdlib_module_names, *PACKAGES, *(name.removesuffix(".py") for name in job.files)}
    statements = (
        s for s in ast.parse(block.text).body if isinstance(s, ast.Import | ast.ImportFrom)
    )
    return "\n".join(ast.unparse(each) for each in statements if roots_of(each) <= there)


def roots_of(statement: ast.Import | ast.ImportFrom) -> set[str]:
    """The packages that a statement imports from."""
    if isinstance(statement, ast.ImportFrom):
        return {str(statement.module).partition(".")[0]}
    return {alias.name.partition(".")[0] for alias in statement.names}


def private_names(blocks: list[Snippet]) -> Iterator[str]:
    """Names that begin with one underscore and are not the block's own."""
    for block in blocks:
        tree = ast.parse(block.text) if block.kind == "python" else ast.Module([], [])
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            name = getattr(node, "attr", None) or getattr(node, "module", None) or ""
            last = name.rpartition(".")[2]
            if last.startswith("_") and not last.startswith("__") and last not in own:
                yield name


def lines_of(text: str) -> int:
    """Lines that a reader types."""
    lines = (line.strip() for line in text.splitlines())
    return sum(bool(line) and not line.startswith("#") for line in lines)


def as_page(done: list[Done], most_env_steps: int | None) -> str:
    """The table, with its command and machine."""
    rows = []
    for each in done:
        page = f"[{Path(each.job.page).stem}](../../{each.job.page})"
        seconds = f"{each.waited_s / 60:.1f} | {each.processor_s:.1f}"
        if not (each.job.is_run and each.lines):
            seconds = " | "
        outcome = "**failed**" if each.problem else each.job.note
        rows.append(f"| {each.job.name} | {page} | {each.lines} | {seconds} | {outcome} |")
    option = f" --env-steps {most_env_steps}" if most_env_steps else ""
    head = ["| job | page | lines | minutes | processor time, s | |", "|---|---|---|---|---|---|"]
    return (
        "# Jobs of a new user\n\n"
        + " ".join((__doc__ or "").split("\n\n")[1].split())
        + f"\n\n```bash\npython -m benchmarks.jobs --record{option}\n```\n\n"
        + "\n".join([*head, *rows])
        + f"\n\n{datetime.now(UTC):%Y-%m-%d}.\n\n"
        + as_markdown()
        + "\n"
    )


if __name__ == "__main__":
    sys.exit(main())

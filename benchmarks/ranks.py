"""Data-parallel learning with two ranks: does it learn, end, resume, and pay?

    python -m benchmarks.ranks                          # all parts
    python -m benchmarks.ranks --part resumes --kills 10

| part | shows |
|---|---|
| learning | PPO on CartPole, SAC on Pendulum, several seeds, evaluated over 20 episodes |
| recurrent | PPO with an LSTM: kills and resumes, parameters to the bit |
| death | a rank is killed with -9: seconds until nothing of the run is left |
| resumes | kills -9 of the whole run at random moments, each resumed: parameters to the bit |
| speed | env_steps per second of two ranks with a core each beside one with one core, in turn |

Every run is a `torchrun ... -m redline train`. Writes benchmarks/results/ranks.json and ranks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.ray_runs import evaluated, hashed, sps, wait_until
from benchmarks.records import merged, recorded, require_one_machine

RESULTS = Path(__file__).parent / "results" / "ranks.json"
QUIET = ("--no-tensorboard", "--quiet", "--num-threads", "1")
PPO = ("ppo", "--env", "CartPole-v1", *QUIET)
SAC = ("sac", "--env", "Pendulum-v1", "--num-envs", "2", *QUIET)
RECURRENT = (
    *("ppo", "--env", "redline/CartPoleHiddenVelocity-v1", "--core", "lstm", *QUIET),
    *("--num-envs", "8", "--rollout-length", "64", "--checkpoint-interval", "1024"),
)


def start(out: Path, *options: str, ranks: int = 2) -> subprocess.Popen[bytes]:
    """Begin a run on so many ranks, or go on with it."""
    program = [sys.executable, "-m"]
    if ranks > 1:
        program += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    if (out / "config.json").exists():
        options = ("--resume", str(out), "--quiet")
    else:
        options = (*options, "--out", str(out))
    # In a session of its own, so that all of it can be killed at once.
    return subprocess.Popen(
        [*program, "redline", "train", *options],
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    """Wait for a run.

    Raises:
        SystemExit: if it failed.
    """
    if process.wait():
        raise SystemExit(f"a run ended with {process.returncode}")


def processes(run: Path) -> dict[int, list[str]]:
    """Processes of a run -> their command lines."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if int(entry.name) != os.getpid() and str(run) in words:
            found[int(entry.name)] = words
    return found


def learning(folder: Path, seeds: int) -> dict[str, Any]:
    """Mean return of 20 evaluation episodes of each seed."""
    found: dict[str, Any] = {}
    cases = (("ppo-cartpole", PPO, 40_000, seeds), ("sac-pendulum", SAC, 6_000, 2))
    for name, arguments, env_steps, count in cases:
        returns = []
        for seed in range(1, count + 1):
            out = folder / f"{name}-{seed}"
            options = ("--seed", str(seed), "--total-env-steps", str(env_steps))
            finish(start(out, *arguments, *options))
            returns.append(evaluated(out))
            print(name, seed, returns[-1], flush=True)
            found[name] = {"env_steps": env_steps, "returns": returns}
            merged(
                RESULTS, {"machine": describe(), "learning": found}
            )  # a long part: what there is counts
    return found


def killed_series(
    folder: Path, arguments: Sequence[str], env_steps: int, kills: int, seed: int
) -> dict[str, Any]:
    """A whole run, and one killed with -9 and resumed; whether they end alike."""
    options = (*arguments, "--total-env-steps", str(env_steps))
    began = time.monotonic()
    whole = start(folder / "whole", *options)
    wait_until(lambda: (folder / "whole" / "progress.csv").exists())
    startup_s = time.monotonic() - began
    finish(whole)
    training_s = time.monotonic() - began - startup_s
    rng, done, spent = random.Random(seed), folder / "killed", 0
    for _ in range(kills):
        process = start(done, *options)
        try:
            process.wait(rng.uniform(0.8 * startup_s, startup_s + 1.6 * training_s / kills))
            break  # complete before all kills were spent
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            end_all(done)
            process.wait()
            spent += 1
    finish(start(done, *options))
    return {
        "kills": spent,
        "params_equal": hashed(folder / "whole") == hashed(done),
        "params_sha256": hashed(done),
    }


def end_all(run: Path) -> None:
    """Kill what is left of a run: torchrun gives each rank a session of its own."""
    for process in processes(run):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    wait_until(lambda: not processes(run))


def death(folder: Path) -> dict[str, Any]:
    """Kill one rank; seconds until no process of the run is left, and its exit code."""
    run = folder / "run"
    process = start(run, *SAC, "--total-env-steps", "200000", "--learning-starts", "100")
    wait_until(lambda: (run / "progress.csv").exists())
    ranks = [each for each, words in processes(run).items() if "torch.distributed.run" not in words]
    os.kill(max(ranks), signal.SIGKILL)
    began = time.monotonic()
    wait_until(lambda: not processes(run))
    return {
        "ranks": len(ranks),
        "gone_after_s": round(time.monotonic() - began, 2),
        "exit_code": process.wait(),
    }


def speed(folder: Path, rounds: int, only: Sequence[str] = ()) -> dict[str, Any]:
    """Two ranks on two cores beside one process on one, runs in turn."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("two ranks need two cores to show what they are worth.")
    cases = {
        "ppo-cartpole": (*PPO, "--num-envs", "16", "--total-env-steps", "40000"),
        "ppo-halfcheetah": (
            *("ppo", "--env", "HalfCheetah-v5", *QUIET),
            *("--num-envs", "8", "--total-env-steps", "24576"),
        ),
        # Few steps of the optimizer, each of much computing: what ranks are for.
        "ppo-halfcheetah-large": (
            *("ppo", "--env", "HalfCheetah-v5", *QUIET, "--num-envs", "8"),
            *("--hidden-sizes", "1024,1024", "--num-minibatches", "4"),
            *("--rollout-length", "512", "--total-env-steps", "12288"),
        ),
    }
    before: dict[str, Any] = recorded(RESULTS).get("speed", {}) if only else {}
    found = {**before, "rounds": rounds, "exchange": exchange()}
    for name, options in cases.items():
        if only and name not in only:
            continue
        seen: dict[int, list[float]] = {1: [], 2: []}
        for number in range(rounds):
            for ranks in (1, 2) if number % 2 == 0 else (2, 1):
                out = folder / f"{name}-{ranks}-{number}"
                os.sched_setaffinity(0, cores[:ranks])
                own = ("--accelerate", "eager")
                finish(start(out, *options, *own, ranks=ranks))
                os.sched_setaffinity(0, cores)
                seen[ranks].append(sps(out))
        ratios = [two / one for one, two in zip(seen[1], seen[2], strict=True)]
        found[name] = {
            "one_rank_sps": round(statistics.median(seen[1])),
            "two_ranks_sps": round(statistics.median(seen[2])),
            "ratio": round(statistics.median(ratios), 2),
            "ratios": [round(each, 2) for each in ratios],
        }
    return found


def exchange() -> dict[str, Any]:
    """What two ranks take to add up gradients (`benchmarks.exchange`)."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    program += ["--nproc-per-node", "2", "-m", "benchmarks.exchange"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, check=True, env=env, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def page(found: dict[str, Any]) -> str:
    """The results for people."""
    lines = ["# Data-parallel learning with two ranks", "", "| machine | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in found["machine"].items()]
    lines.append("")
    for name, part in found.get("learning", {}).items():
        returns = ", ".join(f"{value:.0f}" for value in part["returns"])
        lines += [f"{name} after {part['env_steps']:,} env_steps, one return per seed: {returns}."]
    for name, said in (("recurrent", "with an LSTM"), ("resumes", "feed-forward")):
        if name in found:
            part = found[name]
            equal = "equal" if part["params_equal"] else "NOT equal"
            lines += ["", f"{part['kills']} kills -9 and resumes, PPO {said}: parameters {equal}."]
    if "death" in found:
        part = found["death"]
        lines += [
            "",
            f"After kill -9 of one of {part['ranks']} ranks everything was gone in "
            f"{part['gone_after_s']:.1f} s, with exit code {part['exit_code']}.",
        ]
    if "speed" in found:
        part = found["speed"]
        lines += ["", "| | one rank, one core, SPS | two ranks, two cores, SPS | ratio |"]
        lines.append("|---|---|---|---|")
        for name, each in part.items():
            if name not in ("rounds", "exchange"):
                one, two = each["one_rank_sps"], each["two_ranks_sps"]
                lines.append(f"| {name} | {one:,} | {two:,} | {each['ratio']:.2f} |")
        lines += [
            "",
            f"Medians of {part['rounds']} rounds in turn, also of the rounds' own ratios; updates "
            "run eagerly.",
        ]
        lines += [
            "",
            "Each rank takes as many steps of the optimizer as one process would, and exchanges",
            "its gradients in each. What that takes here, with 3 ms of computing in between:",
            "",
            "| gradients | numbers | median, us | mean, us |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {each['numbers']:,} | {each['median_us']:,} | {each['mean_us']:,} |"
            for name, each in part["exchange"].items()
        ]
    return "\n".join([*lines, "", "    python -m benchmarks.ranks", ""])


def main() -> int:
    """Measure the parts that were asked for, and record them beside the others."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = ("learning", "recurrent", "death", "resumes", "speed")
    parser.add_argument("--part", nargs="+", default=every, choices=every)
    parser.add_argument("--seeds", type=int, default=5, help="of PPO")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=(), help="of speed; all if left out")
    options = parser.parse_args()
    often = ("--checkpoint-interval", "1024")
    measure: dict[str, Callable[[Path], dict[str, Any]]] = {
        "learning": lambda folder: learning(folder, options.seeds),
        "recurrent": lambda folder: killed_series(folder, RECURRENT, 8_192, 2, 0),
        "death": death,
        "resumes": lambda folder: killed_series(folder, (*PPO, *often), 30_720, options.kills, 1),
        "speed": lambda folder: speed(folder, options.rounds, options.cases),
    }
    again = {*options.part} - ({"speed"} if options.cases else set())  # the other cases stay
    require_one_machine(RESULTS, {*recorded(RESULTS)} - {"machine", *again}, describe())
    for part in options.part:
        with tempfile.TemporaryDirectory() as folder:
            found = merged(RESULTS, {"machine": describe(), part: measure[part](Path(folder))})
        print(json.dumps({part: found[part]}, indent=2), flush=True)
        RESULTS.with_suffix(".md").write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

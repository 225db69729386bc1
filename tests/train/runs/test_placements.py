"""Training in every placement: all algorithms, resuming to the bit, evaluating beside learning."""

from __future__ import annotations

import csv
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from tests.collect.placements import children

import redline
from redline.algos.registry import BUILT_IN
from redline.cli import main
from redline.envs.cpus import allowed_cpus, worker_cpus
from redline.errors import ConfigError, WorkerError
from redline.train.presets import preset_config
from redline.train.progress.progress import TIME_COLUMNS
from redline.train.runs.run import Run

TINY: dict[str, Any] = {
    "total_env_steps": 96,
    "num_envs": 2,
    "rollout_length": 8,
    "num_workers": 2,
    "hidden_sizes": (8,),
    "log_interval": 16,
    "checkpoint_interval": 32,
    "quiet": True,
    "tensorboard": False,
}
OFF_POLICY: dict[str, Any] = {
    "batch_size": 8,
    "replay_size": 240,
    "replay_ratio": 4.0,
    "learning_starts": 16,
}
TARGET: dict[str, Any] = {"target_update_interval": 4}
SEQUENCES: dict[str, Any] = (
    OFF_POLICY
    | TARGET
    | {
        "sequence_length": 8,
        "state_interval": 8,
        "burn_in": 8,
        "n_step": 2,
        "core_size": 8,
    }
)
RECURRENT: dict[str, Any] = {"core": "gru", "core_size": 8, "observe_previous": True}
CASES: list[tuple[str, str, str, dict[str, Any]]] = [
    ("ppo", "central", "redline/CartPoleHiddenVelocity-v1", {"num_minibatches": 2} | RECURRENT),
    ("a2c", "alternating", "CartPole-v1", RECURRENT),
    ("reinforce", "alternating", "CartPole-v1", {}),
    ("impala", "async", "CartPole-v1", {"max_staleness": 2, "num_workers": 1}),
    ("appo", "central", "CartPole-v1", {"num_minibatches": 2}),
    ("dqn", "alternating", "CartPole-v1", OFF_POLICY | TARGET | {"prioritized": True}),
    ("r2d1", "async", "redline/TMaze-v1", SEQUENCES | {"prioritized": True, "num_workers": 1}),
    ("ddpg", "central", "Pendulum-v1", OFF_POLICY),
    ("td3", "alternating", "Pendulum-v1", OFF_POLICY),
    ("sac", "async", "Pendulum-v1", OFF_POLICY | {"num_workers": 1}),
    ("tqc", "workers", "Pendulum-v1", OFF_POLICY),
    ("crossq", "workers", "Pendulum-v1", OFF_POLICY | {"critic_hidden_sizes": (8,)}),
    ("diayn", "async", "Pendulum-v1", OFF_POLICY | {"skill_length": 16, "num_workers": 1}),
]  # fmt: skip


def progress(run: Run) -> list[dict[str, str]]:
    with (run.out / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in rows]


@pytest.mark.parametrize(
    ("algorithm", "collector", "env", "settings"), CASES, ids=[f"{c[0]}-{c[1]}" for c in CASES]
)
def test_every_algorithm_trains(
    algorithm: str, collector: str, env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Each at least in one placement; benchmarks.placement_matrix runs all pairs."""
    run = redline.train(
        algorithm, env=env, out=tmp_path / "run", collector=collector, **(TINY | settings)
    )
    rows = progress(run)
    assert int(rows[-1]["env_steps"]) >= 96
    assert int(rows[-1]["optimizer_steps"]) > 0
    if collector == "async":
        limit = settings.get("max_staleness", 1)
        assert {row["staleness_max"] for row in rows[2:]} == {str(limit)}


@pytest.mark.parametrize(
    ("algorithm", "env", "settings"), [(c[0], c[2], c[3]) for c in CASES], ids=[c[0] for c in CASES]
)
def test_every_algorithm_learns_while_environments_wait(
    algorithm: str, env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Episodes of 5 steps, after which an environment idles to the end of the rollout."""
    settings = {n: v for n, v in settings.items() if n not in ("num_workers", "max_staleness")}
    env = env if env == "Pendulum-v1" else "CartPole-v1"
    run = redline.train(
        algorithm, env=env, env_kwargs={"max_episode_steps": 5}, out=tmp_path / "run",
        **(TINY | settings | {"reset_mode": "wait", "log_interval": 1}),
    )  # fmt: skip
    rows = progress(run)
    assert {int(row["env_steps"]) % (5 * TINY["num_envs"]) for row in rows} == {0}
    assert int(rows[-1]["optimizer_steps"]) > 0
    loss = {name for name in rows[-1] if "loss" in name}
    assert loss
    assert all(math.isfinite(float(rows[-1][name])) for name in loss)
    assert {float(row["episode_length_mean"]) for row in rows} == {5.0}


def test_every_algorithm_has_a_case() -> None:
    collecting = set(BUILT_IN) - {"bc"}  # which steps no environments
    assert {case[0] for case in CASES} >= collecting


@pytest.mark.parametrize(
    ("algorithm", "collector", "env", "settings"),
    [
        ("ppo", "alternating", "CartPole-v1", {"num_minibatches": 2} | RECURRENT),
        ("dqn", "async", "CartPole-v1", OFF_POLICY | TARGET | {"num_workers": 1}),
        ("td3", "serial", "redline/Pendulum-v1", OFF_POLICY | {"noise_color": 1.0}),
        ("sac", "async", "Pendulum-v1", OFF_POLICY | {"num_workers": 1, "noise_color": 1.0}),
    ],
)
def test_a_resumed_run_ends_like_one_that_was_never_stopped(
    algorithm: str, collector: str, env: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """To the bit, the rollouts made ahead included; from the checkpoint of 32 env_steps."""
    settings = TINY | settings | {"collector": collector, "checkpoints": "every"}
    whole = redline.train(algorithm, env=env, out=tmp_path / "whole", **settings)
    shutil.copytree(whole.out, tmp_path / "torn")
    kept, *later = sorted((tmp_path / "torn" / "checkpoints").glob("step_*"))
    assert kept.name == "step_000000000032"
    for directory in later:
        shutil.rmtree(directory)
    resumed = redline.train(resume=tmp_path / "torn", quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    assert progress(resumed) == progress(whole)


def test_apex_like_collects_ahead_and_resumes(tmp_path: Path) -> None:
    """Horgan et al. 2018: actors beside the learner, each environment with its own epsilon."""
    settings = TINY | OFF_POLICY | {"num_workers": 1, "checkpoints": "every"}
    settings |= {"target_update_interval": 10}
    whole = redline.train(
        "dqn", env="CartPole-v1", preset="apex-like", out=tmp_path / "whole", **settings
    )
    assert whole.config.run.collector == "async"
    assert progress(whole)[-1]["staleness_max"] == "1"
    shutil.copytree(whole.out, tmp_path / "torn")
    for directory in sorted((tmp_path / "torn" / "checkpoints").glob("step_*"))[1:]:
        shutil.rmtree(directory)
    resumed = redline.train(resume=tmp_path / "torn", quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]


def test_the_presets_workers_have_environments_enough() -> None:
    """Whatever the family: two workers cannot share one environment."""
    for env in ("CartPole-v1", "ALE/Pong-v5", "MinAtar/Breakout-v1", "My-v0"):
        config = preset_config("dqn", env, "apex-like")
        assert config.algo.num_envs >= config.run.num_workers
        assert config.algo.epsilon_schedule == "ape-x"


def test_colored_noise_is_the_same_in_other_processes(tmp_path: Path) -> None:
    settings = TINY | OFF_POLICY | {"noise_color": 1.0}
    hashes = {
        redline.train(
            "td3", env="Pendulum-v1", out=tmp_path / collector, collector=collector, **settings
        ).inspect()["params_sha256"]
        for collector in ("serial", "central")
    }
    assert len(hashes) == 1


def test_evaluation_beside_learning_gives_what_evaluation_in_turn_gives(tmp_path: Path) -> None:
    """The last row has the last evaluation, of the same weights on the same seeds."""
    settings = TINY | {"num_minibatches": 2, "eval_interval": 48, "eval_episodes": 3}
    runs = [
        redline.train("ppo", env="CartPole-v1", out=tmp_path / name, eval_async=beside, **settings)
        for name, beside in (("in turn", False), ("beside", True))
    ]
    first, second = (progress(run)[-1] for run in runs)
    names = [name for name in first if name.startswith("eval_")]
    assert len(names) == 3
    assert first == second
    assert float(first["eval_return_mean"]) > 0


# Without a main guard, and with environments that only this file defines.
UNGUARDED = """
import multiprocessing, os, sys
import gymnasium
import redline

multiprocessing.set_start_method(sys.argv[1])

class Mine(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

def make():
    return Mine()

for name, collector, beside in (("workers", "workers", False), ("async", "async", True)):
    redline.train(
        "a2c", env=make, collector=collector, num_workers=2, num_envs=2, rollout_length=4,
        total_env_steps=64, eval_interval=32, eval_episodes=1, eval_async=beside, quiet=True,
        tensorboard=False, hidden_sizes=(4,), out=os.path.join(sys.argv[2], name),
    )
print("trained")
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_script_without_main_guard_trains_with_acting_workers(
    method: str, tmp_path: Path
) -> None:
    """FAULTS 26: workers are fresh interpreters here, as users have them."""
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [sys.executable, str(script), method, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained\n"  # once: no worker runs the script again


class Doomed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that does something bad as soon as it is stepped in another process."""

    def __init__(self, deed: str, home: int) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        self.deed, self.home = deed, home

    def step(self, action: Any) -> Any:
        if os.getpid() != self.home:
            if self.deed == "raise":
                raise RuntimeError("the simulator has lost its balance")
            if self.deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(1000)
        return self.env.step(action)


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        ("raise", "the simulator has lost its balance"),
        ("kill", "was killed by SIGKILL"),
        ("hang", "did not answer"),
    ],
)
def test_an_evaluation_that_fails_beside_learning_ends_the_run(
    deed: str, message: str, tmp_path: Path
) -> None:
    """Within seconds, and with the reason; the run can go on from its checkpoint."""
    limit_s = 2.0 if deed == "hang" else 60.0  # what fails at once may first be slow
    settings = TINY | {"num_minibatches": 2, "eval_interval": 48, "worker_timeout_s": limit_s}
    home, before = os.getpid(), children()

    with pytest.raises(WorkerError, match=message):
        redline.train(
            "ppo", env=lambda: Doomed(deed, home), out=tmp_path / "run", eval_async=True, **settings
        )

    assert not children() - before  # others may end meanwhile


def test_what_cannot_be_placed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*options: str) -> str:
        assert main(["train", "ppo", "--out", str(tmp_path / "x"), *options]) == 2
        return capsys.readouterr().err

    assert "steps its environments by itself" in refused(
        "--env", "ALE/Breakout-v5", "--collector", "central", "--env-backend", "ale"
    )
    assert "processes inside of processes" in refused(
        "--env", "CartPole-v1", "--collector", "async", "--env-backend", "processes"
    )
    assert "steps its whole batch in tensor operations" in refused(
        "--env", "redline/CartPole-v1", "--collector", "alternating"
    )
    assert "names core 4095, which this process may not use" in refused(
        "--env", "CartPole-v1", "--collector", "central", "--cpu-affinity", "4095"
    )
    assert not (tmp_path / "x").exists()


def test_cores_are_dealt_out_evenly() -> None:
    """FAULTS 25: core numbers outside of the allowed set crash."""
    first = allowed_cpus()[0]
    assert worker_cpus("none", 2) is None
    assert worker_cpus(str(first), 2) == [(first,), (first,)]
    shares = worker_cpus("auto", 1)
    assert shares == [tuple(allowed_cpus())]
    for wrong in ("1-", "a", "", "3-1"):
        with pytest.raises(ConfigError, match="cpu_affinity="):
            worker_cpus(wrong, 2)


class Where(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole that tells where it runs."""

    def __init__(self, note: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True))
        Path(note, str(os.getpid())).write_text(repr(allowed_cpus()))


def test_a_run_confined_to_a_core_uses_that_core_only(tmp_path: Path) -> None:
    """As with `taskset -c`: no process has another core, and none more than one thread."""
    core = allowed_cpus()[-1]
    notes = tmp_path / "notes"
    notes.mkdir()
    program = (
        f"import os; os.sched_setaffinity(0, {{{core}}})\n"
        "import sys, torch, redline; sys.path.insert(0, '.')\n"
        "from redline.envs.cpus import usable_cpus\n"
        "from tests.train.runs.test_placements import TINY, Where\n"
        f"redline.train('ppo', env=lambda: Where({str(notes)!r}), out={str(tmp_path / 'run')!r},\n"
        "    collector='central', cpu_affinity='auto', **(TINY | {'num_minibatches': 2}))\n"
        "print(usable_cpus(), torch.get_num_threads(), os.sched_getaffinity(0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=Path.cwd()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"1 1 {{{core}}}"
    assert {note.read_text() for note in notes.iterdir()} == {f"[{core}]"}
    assert len(list(notes.iterdir())) == 3  # the learner's look at the spaces, and two workers

"""Whole runs, small: train, stop, resume, evaluate, inspect, export; and what is refused."""

from __future__ import annotations

import csv
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from tests.warm_workers import WarmSubprocess
from torch import nn

import redline
from redline.cli import main
from redline.errors import (
    CheckpointError,
    ConfigError,
    DeviceError,
    EnvDataError,
    EnvError,
    IncompatibleCheckpointError,
    RunDirectoryError,
    SpaceError,
    UnknownNameError,
)
from redline.train.callbacks import Callback, RunState
from redline.train.checkpoint.store import CheckpointStore
from redline.train.presets import preset_config
from redline.train.progress.progress import BASE_COLUMNS, TIME_COLUMNS
from redline.train.runs.run import Run
from redline.train.settings import PolicySettings

SMALL: dict[str, Any] = {
    "total_env_steps": 1024,
    "num_envs": 4,
    "rollout_length": 32,
    "hidden_sizes": (16,),
    "log_interval": 256,
    "checkpoint_interval": 256,
    "quiet": True,
    "tensorboard": False,
}


def small(out: Path, algorithm: Any = "ppo", env: Any = "CartPole-v1", **settings: Any) -> Run:
    return redline.train(algorithm, env=env, out=out, preset="default", **(SMALL | settings))


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open() as file:
        return [
            {k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in csv.DictReader(file)
        ]


@pytest.mark.parametrize(
    ("algorithm", "core"),
    [
        *product(("ppo", "a2c", "reinforce", "impala", "appo"), ("none", "lstm")),
        ("ppo", "transformer"),
    ],
)
def test_every_algorithm_runs_and_resumes_bit_for_bit(
    algorithm: str, core: str, tmp_path: Path
) -> None:
    """A run of 1,024 env_steps equals one of 512 that goes on to 1,024, in parameters and rows."""
    network: dict[str, Any] = {} if core == "none" else {"core": core, "core_size": 8}
    whole = small(tmp_path / "whole", algorithm, **network)
    half = small(tmp_path / "half", algorithm, total_env_steps=512, **network)
    assert half.inspect()["env_steps"] >= 512
    resumed = redline.train(resume=half.out, total_env_steps=1024, quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    assert resumed.inspect()["env_steps"] == whole.inspect()["env_steps"] >= 1024
    if algorithm != "reinforce":  # its last row of the first half comes early: the run ended there
        assert rows(half.out) == rows(whole.out)


class Float64(gymnasium.Env[Any, Any]):
    """Observations of float64, by random numbers; rewards of the last action."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float64)

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.action_space = action_space
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, 3), {}

    def step(self, action: Any) -> Any:
        self._steps += 1
        reward = float(np.sum(action))
        return self.np_random.uniform(-1.0, 1.0, 3), reward, self._steps % 10 == 0, False, {}


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "td3", "ppo", "a2c"])
def test_float64_observations_run_on_the_cpu_kernels(algorithm: str, tmp_path: Path) -> None:
    """They travel as float32."""
    discrete = algorithm == "dqn"
    action_space = spaces.Discrete(2) if discrete else spaces.Box(-1.0, 1.0, (1,))
    settings: dict[str, Any] = {"total_env_steps": 512}
    if algorithm in ("dqn", "sac", "td3"):
        settings |= {"learning_starts": 128, "replay_size": 512, "replay_ratio": 1.0}
    if discrete:
        settings |= {"target_update_interval": 1}  # of the eight updates that there are
    run = small(
        tmp_path / "run", algorithm, lambda: Float64(action_space), accelerate="cpu", **settings
    )
    assert run.config.run.accelerate == "cpu"
    assert run.inspect()["optimizer_steps"] > 0


def test_same_seed_same_parameters_other_seed_others(tmp_path: Path) -> None:
    hashes = [
        small(tmp_path / name, seed=seed).inspect()["params_sha256"]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_serial_and_workers_differ_in_nothing_but_placement(tmp_path: Path) -> None:
    serial = small(tmp_path / "serial")
    parallel = small(tmp_path / "parallel", collector="workers", num_workers=2)
    one = np.array([float(row["return_mean"] or 0) for row in rows(serial.out)])
    two = np.array([float(row["return_mean"] or 0) for row in rows(parallel.out)])
    np.testing.assert_allclose(one, two, rtol=0.2)
    assert serial.inspect()["env_steps"] == parallel.inspect()["env_steps"]


def test_a_run_killed_at_any_time_ends_like_one_never_stopped(
    tmp_path: Path, warm_subprocess: WarmSubprocess
) -> None:
    """SIGKILL three times, once before the first checkpoint can be there."""
    command = [sys.executable, "-m", "redline.cli", "train"]
    settings = {
        "env": "CartPole-v1", "preset": "default", "total-env-steps": 4096, "num-envs": 4,
        "rollout-length": 32, "hidden-sizes": 16, "log-interval": 700, "checkpoint-interval": 300,
    }  # fmt: skip
    options = ["ppo", "--no-tensorboard", "--quiet"]
    options += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    warm_subprocess.run([*command, *options, "--out", str(whole)], check=True)
    for progress in (0, 2, 5):
        begun = (killed / "config.json").exists()
        form = ["--resume", str(killed), "--quiet"] if begun else [*options, "--out", str(killed)]
        process = warm_subprocess.Popen([*command, *form])
        wait_for(lambda: number_of_checkpoints_written(killed) >= progress)  # noqa: B023
        process.kill()
        process.wait()
    warm_subprocess.run([*command, "--resume", str(killed), "--quiet"], check=True)
    assert Run.load(killed).inspect()["params_sha256"] == Run.load(whole).inspect()["params_sha256"]
    assert rows(killed) == rows(whole)


def number_of_checkpoints_written(run: Path) -> int:
    found = sorted((run / "checkpoints").glob("step_*")) if run.exists() else []
    if not (run / "config.json").exists():
        return -1
    return int(found[-1].name.removeprefix("step_").split("-")[0]) // 300 if found else 0


def wait_for(condition: Any, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_writes_a_checkpoint_and_leaves(
    number: int, tmp_path: Path, warm_subprocess: WarmSubprocess
) -> None:
    out = tmp_path / "run"
    process = warm_subprocess.Popen(
        [sys.executable, "-m", "redline.cli", "train", "a2c", "--env", "CartPole-v1",
         "--total-env-steps", "100000000", "--checkpoint-interval", "100000000",
         "--log-interval", "40", "--out", str(out), "--no-tensorboard"],
        stderr=warm_subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: (out / "progress.csv").exists())
    process.send_signal(number)
    _, printed = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"redline train --resume {out}" in printed
    assert Run.load(out).inspect()["env_steps"] > 0


def test_a_complete_run_says_so_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(tmp_path / "run")
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in run.out.rglob("*")}
    assert main(["train", "--resume", str(run.out)]) == 0
    assert "already complete" in capsys.readouterr().err
    assert before == {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in run.out.rglob("*")}


def test_a_corrupt_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small(tmp_path / "run")
    expected = run.inspect()["params_sha256"]
    newest = Path(run.inspect()["checkpoint"])
    with (newest / "tensors.safetensors").open("r+b") as file:
        file.truncate(100)
    redline.train(resume=run.out, quiet=True)
    assert "corrupt checkpoint" in capsys.readouterr().err
    assert run.inspect()["params_sha256"] == expected


def test_progress_begins_with_the_fixed_columns(tmp_path: Path) -> None:
    run = small(tmp_path / "run", eval_interval=512, eval_episodes=2)
    with (run.out / "progress.csv").open() as file:
        header = file.readline().strip().split(",")
    assert tuple(header[: len(BASE_COLUMNS)]) == BASE_COLUMNS
    assert {"policy_loss", "entropy", "eval_return_mean"} <= set(header)
    table = rows(run.out)
    assert [int(row["env_steps"]) for row in table] == [256, 512, 768, 1024]
    assert table[0]["eval_return_mean"] == ""
    assert float(table[1]["eval_return_mean"]) > 0


def test_evaluation_gives_exactly_the_episodes_asked_for(tmp_path: Path) -> None:
    """Elsewhere 132 trajectories came where 8 were asked for."""
    run = small(tmp_path / "run")
    for episodes in (1, 7, 20, 33):
        assert run.evaluate(episodes).episodes == episodes
    assert run.evaluate(5) == run.evaluate(5)
    assert run.evaluate(20, greedy=False) != run.evaluate(20)


class LengthByLuck(gymnasium.Env[Any, Any]):
    """Episodes of 1 step (return 1) or of 9 (return 9), each with probability one half."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.choice([1, 9]))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_evaluation_is_not_drawn_to_short_episodes(tmp_path: Path) -> None:
    """The first 400 episodes to finish would have a mean near 1.8; the true mean is 5.

    The standard error of 400 fair episodes is 4 / 20 = 0.2.
    """
    run = small(tmp_path / "run", env=LengthByLuck, total_env_steps=128)
    assert run.evaluate(400).return_mean == pytest.approx(5.0, abs=0.8)


def test_custom_networks_and_environments(tmp_path: Path) -> None:
    def network(space: spaces.Space[Any]) -> nn.Module:
        assert isinstance(space, spaces.Box)
        return nn.Sequential(nn.Linear(space.shape[0], 12), nn.ReLU())

    def make_env() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1")

    run = small(
        tmp_path / "run", env=make_env, network=network, total_env_steps=512,
        hidden_sizes=PolicySettings().hidden_sizes,
    )  # fmt: skip
    assert run.evaluate(3).episodes == 3
    with pytest.raises(ConfigError, match="given as a Python object"):
        redline.load(run.out).evaluate(1)
    loaded = redline.load(run.out, env=make_env, network=network)
    assert loaded.evaluate(3) == run.evaluate(3)
    again = redline.train(
        resume=run.out, env=make_env, network=network, total_env_steps=1024, quiet=True
    )
    assert again.inspect()["env_steps"] == 1024


def test_a_vector_env_can_be_given(tmp_path: Path) -> None:
    settings = {k: v for k, v in SMALL.items() if k != "num_envs"}
    env = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    run = redline.train(
        "a2c", env=env, out=tmp_path / "run", preset="default",
        **(settings | {"total_env_steps": 480}),
    )  # fmt: skip
    assert run.inspect()["env_steps"] >= 480
    assert run.evaluate(5).episodes == 5
    with pytest.raises(ConfigError, match="only one"):
        redline.train("a2c", env=env, out=tmp_path / "other", eval_interval=100)


def test_exported_policies_act_like_the_original(tmp_path: Path) -> None:
    """On 64 random observations, through both formats."""
    run = small(tmp_path / "run", normalize_obs=True)
    obs = torch.from_numpy(np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32))
    policy = run.policy()
    expected = policy.act(obs, {}).action.numpy()
    program = torch.export.load(run.export(tmp_path / "p.pt2", format="torch"))
    np.testing.assert_array_equal(program.module()(obs).numpy(), expected)
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    session = runtime.InferenceSession(str(run.export(tmp_path / "p.onnx")))
    np.testing.assert_array_equal(session.run(None, {"obs": obs.numpy()})[0], expected)


def test_the_best_checkpoint_is_kept(tmp_path: Path) -> None:
    run = small(tmp_path / "run", checkpoints="best", eval_interval=256, eval_episodes=3)
    scores = [float(row["eval_return_mean"]) for row in rows(run.out)]
    best = run.checkpoint("best")
    assert best.score == max(scores)
    assert main(["eval", str(run.out), "--which", "best", "--episodes", "2"]) == 0


def test_each_kept_checkpoint_can_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its env_steps: what a callback sees of the weights there is what is loaded."""
    seen: dict[int, float] = {}

    class Watch(Callback):
        def on_checkpoint(self, state: RunState) -> None:
            seen[state.env_steps] = next(iter(state.policy.parameters())).sum().item()

    settings: dict[str, Any] = {"checkpoints": "every", "checkpoint_interval": 128}
    run = small(tmp_path / "run", callbacks=[Watch()], **settings)
    for step, expected in seen.items():
        assert run.checkpoint(step).step == step
        assert next(iter(run.policy(step).parameters())).sum().item() == expected
    assert len(set(seen.values())) == len(seen) > 2
    first = min(seen)
    assert main(["eval", str(run.out), "--which", str(first), "--episodes", "1"]) == 0
    assert main(["eval", str(run.out), "--which", str(first + 1), "--episodes", "1"]) == 2
    kept = ", ".join(f"{step:,}" for step in sorted(seen))
    said = capsys.readouterr().err
    assert f"keeps no checkpoint of {first + 1:,} env_steps" in said
    assert f"that it keeps ({kept})" in said


@pytest.mark.parametrize("which", ["Best", "step_000000000256", "256", -1, True, 1.5, None])
def test_what_names_no_checkpoint_is_not_taken_for_the_newest(tmp_path: Path, which: Any) -> None:
    run = Run(tmp_path, preset_config("ppo", "CartPole-v1", "default"))
    for asked in (run.checkpoint, run.require_checkpoint):
        with pytest.raises(ConfigError, match="Give 'latest', 'best' or the env_steps"):
            asked(which)


def test_a_run_in_env_processes_can_be_evaluated(tmp_path: Path) -> None:
    """One environment is made for the policy's spaces, fewer than there are workers."""
    run = small(tmp_path / "run", env_backend="processes", total_env_steps=128)
    assert run.evaluate(1).episodes == 1
    with pytest.raises(ConfigError, match="processes inside of processes"):
        small(tmp_path / "other", env_backend="processes", collector="workers")


@pytest.mark.parametrize("mode", ["none", "gap"])
def test_a_stop_loses_nothing_in_any_checkpoint_mode(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the stopping iteration is one that would have asked the mode for a checkpoint."""
    from redline.train.loops.on_policy_loop import OnPolicyLoop

    iterate = OnPolicyLoop._iterate

    def interrupted(loop: OnPolicyLoop) -> None:
        iterate(loop)
        if loop.counters.iteration == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(OnPolicyLoop, "_iterate", interrupted)
    run = small(tmp_path / "run", checkpoints=mode, checkpoint_interval=None)
    assert run.exit_code == 128 + signal.SIGTERM
    assert run.inspect()["iteration"] == 3


@pytest.mark.parametrize(
    ("mode", "gap", "kept"),
    [
        ("gap", 32, [32, 64, 96, 128, 160]),  # it was 48, 80, 128, 160
        ("gap", 48, [48, 96, 144, 160]),  # it was 48, 128, 160
        ("last+gap", 48, [48, 96, 144, 160]),
    ],
)
def test_checkpoints_lie_as_far_apart_as_their_gap(
    mode: str, gap: int, kept: list[int], tmp_path: Path
) -> None:
    """A twentieth of the length is 40, and the run stops after 160 env_steps."""

    class Stops:
        def on_iteration(self, state: RunState) -> None:
            if state.env_steps == 160:
                state.stop("enough is seen")

    run = small(
        tmp_path / "run", checkpoints=mode, checkpoint_gap=gap, checkpoint_interval=None,
        total_env_steps=800, num_envs=2, rollout_length=8, num_minibatches=1, callbacks=[Stops()],
    )  # fmt: skip
    found = [int(path.name[5:]) for path in CheckpointStore(run.out / "checkpoints").list()]
    assert found == kept


def test_a_run_directory_alone_does_not_decide_what_is_imported(tmp_path: Path) -> None:
    run = small(tmp_path / "run", total_env_steps=128)
    config = json.loads((run.out / "config.json").read_text())
    config["run"]["env"] = "tests.train.never_imported:Some-v0"
    (run.out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="must not decide what is imported"):
        redline.load(run.out, accept_changed_config=True).evaluate(1)


def test_a_checkpoint_that_does_not_fit_the_config_is_named(tmp_path: Path) -> None:
    run = small(tmp_path / "run", total_env_steps=128)
    config = json.loads((run.out / "config.json").read_text())
    config["policy"]["hidden_sizes"] = [8]
    (run.out / "config.json").write_text(json.dumps(config))
    with pytest.raises(IncompatibleCheckpointError, match="does not fit"):
        redline.train(resume=run.out, total_env_steps=256, quiet=True, accept_changed_config=True)


def test_reinforce_runs_where_environments_cannot_wait(tmp_path: Path) -> None:
    pytest.importorskip("envpool", reason="needs the extra envpool")
    run = small(
        tmp_path / "run", "reinforce", env_backend="envpool", total_env_steps=256,
        rollout_length=32,
    )  # fmt: skip
    assert run.config.run.reset_mode == "immediate"


def test_envpool_resumes_with_fresh_episodes_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("envpool", reason="needs the extra envpool")
    run = small(tmp_path / "run", env_backend="envpool", total_env_steps=256)
    redline.train(resume=run.out, total_env_steps=512, quiet=True)
    assert "begin fresh episodes" in capsys.readouterr().err


class NeverTheSame(gymnasium.Env[Any, Any]):
    """Episodes of 4 steps that come out differently when they are played again."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Discrete(2)
    drawn: ClassVar[Iterator[int]] = count()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = 4
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return self._seen(), 1.0, self.left == 0, False, {}

    def _seen(self) -> Any:
        return np.full(1, next(NeverTheSame.drawn) / 1000, np.float32)


@pytest.mark.parametrize("known", ["before", "by trying"])
def test_episodes_are_numbered_on_where_they_begin_anew(known: str, tmp_path: Path) -> None:
    """Episodes of 4 steps: of 132 env_steps each environment has 16, and a 17th is given up.

    That environments cannot be restored is known before, or it shows when they are.
    """

    class Notes:
        def __init__(self) -> None:
            self.ended: list[tuple[int, int]] = []

        def on_episode(self, state: RunState) -> None:
            assert state.episode is not None
            self.ended.append((state.episode.env_id, state.episode.episode_id))

    def envs() -> Any:
        if known == "by trying":
            return NeverTheSame
        make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=4)
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        return gymnasium.vector.SyncVectorEnv([make, make], autoreset_mode=mode)

    first, second, third = Notes(), Notes(), Notes()
    run = small(
        tmp_path / "run", env=envs(), total_env_steps=132, callbacks=[first], num_envs=2,
        rollout_length=33, num_minibatches=1,
    )  # fmt: skip
    assert first.ended == [(env, number) for number in range(16) for env in (0, 1)]
    for notes, total in ((second, 198), (third, 264)):
        redline.train(
            resume=run.out, env=envs(), total_env_steps=total, callbacks=[notes], quiet=True
        )
    # 66 env_steps are 8 episodes of each, and a ninth that is given up. Earlier ones were saved.
    numbers = [*range(16), *range(17, 25)]
    assert second.ended == [(env, number) for number in numbers for env in (0, 1)]
    numbers += range(26, 34)
    assert third.ended == [(env, number) for number in numbers for env in (0, 1)]


# -- what is refused, before any work -------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"env": "CartPol-v1"}, UnknownNameError, "CartPole-v1"),
        ({"algorithm": "pppo"}, UnknownNameError, "Did you mean 'ppo'"),
        ({"num_minibatches": 3}, ConfigError, "does not divide"),
        ({"learning_rats": 1.0}, ConfigError, "did you mean learning_rate"),
        ({"env_backend": "ale"}, ConfigError, "ALE"),
        ({"collector": "workers", "num_workers": 9}, ConfigError, "num_workers=9"),
        ({"env_kwargs": {"gravitas": 1}}, ConfigError, "gravitas"),
        ({"env": lambda: 3}, EnvError, "gymnasium.Env"),
        ({"env": None}, ConfigError, "env is missing"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        small(tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_no_cuda_device_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is present, so asking for it is no mistake")
    with pytest.raises(DeviceError, match="--device cpu"):
        small(tmp_path / "run", device="cuda")
    assert not (tmp_path / "run").exists()


class Unservable(LengthByLuck):
    """Actions of text."""

    action_space = spaces.Text(5)


def test_an_action_space_that_no_policy_serves_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="Text"):
        small(tmp_path / "run", env=Unservable)
    assert not (tmp_path / "run").exists()


class Broken(LengthByLuck):
    """Gives NaN at the third step."""

    def __init__(self, where: str) -> None:
        self.where, self.count = where, 0

    def step(self, action: Any) -> Any:
        self.count += 1
        bad = self.count == 3
        obs = np.full(1, np.nan if bad and self.where == "obs" else 0.0, np.float32)
        return obs, np.nan if bad and self.where == "reward" else 1.0, False, False, {}


@pytest.mark.parametrize("where", ["obs", "reward"])
def test_nan_from_an_environment_is_named(where: str, tmp_path: Path) -> None:
    with pytest.raises(EnvDataError, match=rf"(?s){'reward' if where == 'reward' else 'obs'}.*nan"):
        small(tmp_path / "run", env=lambda: Broken(where))


def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    run = small(tmp_path / "run", total_env_steps=128)
    before = run.inspect()
    with pytest.raises(RunDirectoryError, match="--resume"):
        small(tmp_path / "run")
    assert run.inspect() == before


def test_an_unwritable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="is a file"):
        small(tmp_path / "file" / "run")
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        with pytest.raises(RunDirectoryError, match="permission"):
            small(tmp_path / "locked" / "run")


def test_resuming_with_another_environment_is_refused(tmp_path: Path) -> None:
    run = small(tmp_path / "run", total_env_steps=128)
    with pytest.raises(IncompatibleCheckpointError, match="trained on the environment CartPole-v1"):
        redline.train(resume=run.out, env="Acrobot-v1", total_env_steps=256)
    config = json.loads((run.out / "config.json").read_text())
    config["run"]["env"] = "Acrobot-v1"
    (run.out / "config.json").write_text(json.dumps(config))
    with pytest.raises(IncompatibleCheckpointError, match="Put CartPole-v1 back"):
        redline.train(resume=run.out, total_env_steps=256, accept_changed_config=True)


def test_resuming_with_other_settings_is_refused(tmp_path: Path) -> None:
    run = small(tmp_path / "run", total_env_steps=128)
    with pytest.raises(ConfigError, match="gamma cannot be changed"):
        redline.train(resume=run.out, gamma=0.5)


def test_a_run_without_a_checkpoint_cannot_be_evaluated_yet(tmp_path: Path) -> None:
    run = small(tmp_path / "run", total_env_steps=128)
    for path in (run.out / "checkpoints").glob("step_*"):
        path.rename(run.out / path.name)
    with pytest.raises(CheckpointError, match=r"was trained for 128 env_steps\. Put"):
        run.evaluate(1)
    before = (run.out / "progress.csv").read_bytes()
    with pytest.raises(RunDirectoryError, match=r"tells of one at 128 env_steps.*--config"):
        redline.train(resume=run.out, quiet=True)  # it would begin anew, and replace the curve
    assert (run.out / "progress.csv").read_bytes() == before
    history = run.out / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    stopped = lines[-1].replace("128", "0").replace("complete", "interrupted")
    history.write_text(lines[0] + stopped)  # before the first iteration
    with pytest.raises(CheckpointError, match="Train it first"):
        run.evaluate(1)
    again = redline.train(resume=run.out, quiet=True)
    assert again.inspect()["env_steps"] == 128


def test_two_processes_cannot_train_in_one_directory(tmp_path: Path) -> None:
    from redline.train.runs.run_directory import RunLock

    run = small(tmp_path / "run", total_env_steps=128)
    with RunLock(run.out), pytest.raises(RunDirectoryError, match="in use by another process"):
        redline.train(resume=run.out, total_env_steps=256, quiet=True)

"""Evaluation: seeds of its own, limits, success, several runs."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import redline
from redline.cli import main
from redline.command_line.runs import eval_runs
from redline.data import EpisodeRecord
from redline.envs import make_vec
from redline.errors import CheckpointError, ConfigError, RunDirectoryError, WorkerError
from redline.policies import make_policy
from redline.train.loops.background_evaluation import BackgroundEvaluation, Progress
from redline.train.loops.evaluate import Evaluation, Limits, evaluate, explain_greedy
from redline.train.runs.run import Run


class SeedWitness(gymnasium.Env[Any, Any]):
    """Remembers, over all instances, with what those that are stepped were seeded."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    seeds: ClassVar[list[int]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left, self.seed = 3, seed
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.left == 3 and self.seed is not None:
            self.seeds.append(self.seed)
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_no_environment_of_an_evaluation_is_seeded_like_one_that_trains(tmp_path: Path) -> None:
    """Elsewhere agents were evaluated on the episodes that they had been trained on."""
    SeedWitness.seeds.clear()
    run = redline.train(
        "ppo", env=SeedWitness, out=tmp_path / "run", seed=4, num_envs=4, rollout_length=8,
        total_env_steps=64, hidden_sizes=(4,), quiet=True, tensorboard=False, eval_interval=32,
        eval_episodes=3,
    )  # fmt: skip
    during = list(SeedWitness.seeds)
    SeedWitness.seeds.clear()
    run.evaluate(5)
    after = list(SeedWitness.seeds)
    training, evaluations = set(during[:4]), [during[4:7], during[7:], after]
    assert len(training) == 4
    assert [len(seeds) for seeds in evaluations] == [3, 3, 5]
    seen = set(training)
    for seeds in evaluations:
        assert len(set(seeds)) == len(seeds)
        assert not seen & set(seeds)
        seen |= set(seeds)

    for seed, same in ((4, True), (5, False)):  # naming the training's own seed gives no others
        SeedWitness.seeds.clear()
        run.evaluate(5, seed=seed)
        assert not training & set(SeedWitness.seeds)
        assert (SeedWitness.seeds == after) is same


class ShortAndLong(gymnasium.Env[Any, Any]):
    """Episodes of 2, 6, 2, 6, ... steps with rewards of 5; the short ones succeed."""

    observation_space = spaces.Box(0, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.begun, self.steps = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        if self.steps == 0:  # an episode that nobody steps does not count
            self.begun += 1
        self.steps += 1
        is_short = self.begun % 2 == 1
        ended = self.steps == (2 if is_short else 6)
        info = {"is_success": is_short} if ended else {}
        return np.zeros(1, np.float32), 5.0, ended, False, info


class Silent(ShortAndLong):
    """The same without a word about success."""

    def step(self, action: Any) -> Any:
        return (*super().step(action)[:4], {})


def three_episodes(env: Any = ShortAndLong, backend: str = "auto", **limits: int) -> Evaluation:
    """The first environment has two of them, of 2 and 6 steps, the second one of 2 steps."""
    policy = make_policy(ShortAndLong.observation_space, ShortAndLong.action_space)
    return evaluate(
        lambda num_envs: make_vec(env, num_envs, backend=backend, clip_reward=True),
        policy,
        episodes=3,
        seed=0,
        num_envs=2,
        limits=Limits(**limits),
    )


def test_every_return_and_the_success_rate() -> None:
    result = three_episodes()
    assert result.returns == (10.0, 10.0, 30.0)
    assert result.lengths == (2, 2, 6)
    assert result.return_mean == pytest.approx(50 / 3)
    assert result.success_rate == pytest.approx(2 / 3)
    assert result.cut == 0


def test_an_episode_is_cut_and_counts_with_its_return_so_far() -> None:
    """4 of 6 steps: a return of 20, of the real rewards and not of the clipped ones."""
    result = three_episodes(max_episode_steps=4)
    assert result.returns == (10.0, 10.0, 20.0)
    assert result.lengths == (2, 2, 4)
    assert (result.episodes, result.cut) == (3, 1)
    assert result.success_rate == pytest.approx(2 / 3)


def test_what_is_over_at_the_limit_is_not_cut() -> None:
    assert three_episodes(max_episode_steps=6) == three_episodes()


def test_a_limit_on_all_steps_leaves_out_what_has_not_ended() -> None:
    """4 steps are the short ones; 3 of the long one's 6 follow."""
    result = three_episodes(max_env_steps=7)
    assert result.returns == (10.0, 10.0)
    assert result.episodes == 2


def test_bad_limits_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_env_steps=1 is over before the first episode"):
        three_episodes(max_env_steps=1)
    with pytest.raises(ConfigError, match="max_episode_steps=0"):
        Limits(max_episode_steps=0)


def test_an_environment_that_says_nothing_has_no_success_rate() -> None:
    assert three_episodes(Silent).success_rate is None


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, "processes"])
def test_success_is_found_whatever_steps_the_environments(mode: Any) -> None:
    if mode == "processes":
        assert three_episodes(backend="processes").success_rate == pytest.approx(2 / 3)
        return
    ready = SyncVectorEnv([ShortAndLong, ShortAndLong], autoreset_mode=mode)
    result = three_episodes(ready)
    assert result.returns == (10.0, 10.0, 30.0)
    assert result.success_rate == pytest.approx(2 / 3)
    ready.close()


def test_several_runs_make_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outs = [str(tmp_path / name) for name in ("one", "two")]
    for seed, out in enumerate(outs):
        redline.train(
            "ppo", env="CartPole-v1", out=out, seed=seed, preset="default", num_envs=4,
            rollout_length=8, total_env_steps=32, hidden_sizes=(4,), quiet=True, tensorboard=False,
        )  # fmt: skip
    capfd.readouterr()
    assert main(["eval", *outs, "--episodes", "3", "--max-episode-steps", "5"]) == 0
    *lines, last = capfd.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["run", "episodes", "return"]
    assert [line.split()[0] for line in lines[1:]] == [*outs, "mean"]
    result = json.loads(last)
    assert list(result["runs"]) == outs
    assert result["runs"][outs[0]]["lengths"] == [5, 5, 5]
    assert result["return_mean"] == 5.0
    assert main(["eval", outs[0], "--episodes", "2"]) == 0
    alone = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert len(alone["returns"]) == alone["episodes"] == 2
    assert main(["eval"]) == 2


@pytest.mark.parametrize(
    ("greedy", "training", "said"),
    [
        ([10.0, 12.0], (100.0, 20.0), True),
        ([95.0, 90.0], (100.0, 20.0), False),
        ([10.0, 12.0], (100.0, 95.0), False),  # within what episodes differ by
        ([-900.0, -900.0], (-100.0, 20.0), True),
        ([10.0, 12.0], (None, None), False),
    ],
)
def test_greedy_far_below_training_is_explained(
    greedy: list[float], training: tuple[float | None, float | None], said: bool
) -> None:
    records = [
        EpisodeRecord(env_id=0, episode_id=i, return_=each, length=1)
        for i, each in enumerate(greedy)
    ]
    note = explain_greedy(Evaluation.of(records), *training)
    assert (note is not None) == said
    assert note is None or "--stochastic" in note


def test_greedy_below_training_names_the_episodes_that_were_cut() -> None:
    """What was cut away would have counted too."""
    records = [EpisodeRecord(env_id=0, episode_id=i, return_=10.0, length=1) for i in range(2)]
    assert "cut" not in (explain_greedy(Evaluation.of(records), 200.0, 30.0) or "")
    note = explain_greedy(Evaluation.of(records, cut=1), 200.0, 30.0)
    assert note is not None
    assert "1 of 2 episodes were cut" in note


@pytest.mark.parametrize("beside", [False, True])
def test_training_evaluates_up_to_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], beside: bool
) -> None:
    """Each of three environments plays an episode of 2 steps worth 5 each: the first is left."""
    redline.train(
        "ppo", env=ShortAndLong, out=tmp_path / "run", num_envs=2, rollout_length=8,
        total_env_steps=16, hidden_sizes=(4,), num_minibatches=1, tensorboard=False,
        eval_interval=16, eval_episodes=3, eval_max_episode_steps=1, eval_async=beside,
    )  # fmt: skip
    with (tmp_path / "run" / "progress.csv").open() as file:
        row = list(csv.DictReader(file))[-1]
    assert float(row["eval_return_mean"]) == 5.0
    assert float(row["eval_episode_length_mean"]) == 1.0
    said = "evaluation at 16 env_steps: return 5.0 +- 0.0 over 3 episodes (3 cut)"
    assert said in capsys.readouterr().err


def test_a_limit_of_training_is_at_least_one_step(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="eval_max_episode_steps=0 must be above 0"):
        redline.train(
            "ppo", env="CartPole-v1", out=tmp_path / "run", quiet=True, eval_interval=16,
            eval_max_episode_steps=0,
        )  # fmt: skip


def test_eval_explains_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's rows say 400; what 64 env_steps have taught is far below."""
    out = tmp_path / "r"
    redline.train(
        "ppo", env="CartPole-v1", out=out, total_env_steps=64, num_envs=2, rollout_length=32,
        num_minibatches=1, tensorboard=False, quiet=True, num_threads=1,
    )  # fmt: skip
    table = (out / "progress.csv").read_text().splitlines()
    header = table[0].split(",")
    row = dict.fromkeys(header, "") | {"env_steps": "64", "return_mean": "400", "return_std": "9"}
    (out / "progress.csv").write_text(f"{table[0]}\n{','.join(row.values())}\n")
    assert main(["eval", str(out), "--episodes", "2"]) == 0
    assert "training reached 400.0 by sampling" in capsys.readouterr().err
    assert main(["eval", str(out), "--episodes", "2", "--stochastic"]) == 0
    assert "note:" not in capsys.readouterr().err
    assert main(["eval", str(out), "--which", "best"]) == 2
    said = capsys.readouterr().err
    assert "has no best checkpoint" in said
    assert "--resume" not in said


def test_a_run_made_twice_counts_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second lies in a numbered directory, and the documented glob takes both."""
    settings: dict[str, Any] = {
        "env": "CartPole-v1", "total_env_steps": 64, "num_envs": 2, "rollout_length": 32,
        "num_minibatches": 2, "hidden_sizes": (4,), "quiet": True, "tensorboard": False,
    }  # fmt: skip
    first, again, other = (tmp_path / name for name in ("seed1", "seed1-2", "seed2"))
    for out, seed in ((first, 1), (again, 1), (other, 2)):
        redline.train("ppo", out=out, seed=seed, **settings)
    eval_runs([str(first), str(again), str(other), "--episodes", "2"])
    said = capsys.readouterr()
    table, summary = said.out.splitlines()[:-1], json.loads(said.out.splitlines()[-1])
    assert table[-1].startswith("mean of 2 runs")
    assert list(summary["runs"]) == [str(first), str(again), str(other)]
    means = [summary["runs"][str(out)]["return_mean"] for out in (first, other)]
    assert summary["return_mean"] == sum(means) / 2
    assert f"{again} has the same seed 1 as {first}" in said.err
    eval_runs([str(first), str(again), "--episodes", "1"])
    assert capsys.readouterr().out.splitlines()[-2].startswith("mean of 1 run ")


def test_all_runs_are_opened_before_one_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r"
    redline.train(
        "ppo", env="CartPole-v1", out=out, total_env_steps=64, num_envs=2, rollout_length=32,
        quiet=True, tensorboard=False,
    )  # fmt: skip

    def evaluated(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(Run, "evaluate", evaluated)
    with pytest.raises(RunDirectoryError, match="gone does not exist"):
        eval_runs([str(out), str(tmp_path / "gone"), "--episodes", "1"])
    best = tmp_path / "best"  # the best one outlives those that it was one of
    shutil.copytree(out, best, ignore=shutil.ignore_patterns("step_*"))
    newest = max((out / "checkpoints").glob("step_*"))
    shutil.copytree(newest, best / "checkpoints" / "best" / newest.name)
    with pytest.raises(AssertionError):  # it is opened
        eval_runs([str(best), "--which", "best", "--episodes", "1"])
    shutil.copytree(out, tmp_path / "empty", ignore=shutil.ignore_patterns("step_*"))
    with pytest.raises(CheckpointError, match="was trained for 64 env_steps"):
        eval_runs([str(out), str(tmp_path / "empty"), "--episodes", "1"])
    with pytest.raises(ConfigError, match="given twice"):
        eval_runs([str(out), str(tmp_path / "x" / ".." / "r"), "--episodes", "1"])
    with pytest.raises(ConfigError, match="is a run of ppo, not of dqn"):
        eval_runs([str(out), "--algorithm", "dqn", "--episodes", "1"])


class FailsElsewhere(ShortAndLong):
    """Raises in every process but that which learns."""

    def step(self, action: Any) -> Any:
        if os.getpid() != int(os.environ["LEARNS"]):
            raise RuntimeError("not here")
        return super().step(action)


def test_a_run_whose_evaluation_fails_in_its_process_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 x 8 env_steps an iteration; the evaluation begins at 16, the first checkpoint is due at 64.

    The second evaluation, at 32, waits for the first.
    """
    monkeypatch.setenv("LEARNS", str(os.getpid()))
    with pytest.raises(redline.errors.RedlineError, match="not here"):
        redline.train(
            "ppo", env=FailsElsewhere, out=tmp_path / "r", total_env_steps=64, num_envs=2,
            rollout_length=8, num_minibatches=2, eval_interval=16, eval_episodes=1, eval_async=True,
            checkpoint_interval=64, quiet=True, tensorboard=False, num_threads=1,
        )  # fmt: skip
    assert redline.load(tmp_path / "r", env=FailsElsewhere).inspect()["env_steps"] == 32


def test_a_run_whose_evaluating_process_died_in_between_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 x 8 env_steps an iteration: the evaluation at 32 finds nobody, the one at 16 was made."""
    start = BackgroundEvaluation.start

    def dead_at_32(self: BackgroundEvaluation, env_steps: int, seed: int) -> None:
        if env_steps == 32:
            raise WorkerError("the evaluating process was killed")
        start(self, env_steps, seed)

    monkeypatch.setattr(BackgroundEvaluation, "start", dead_at_32)
    with pytest.raises(WorkerError, match="was killed"):
        redline.train(
            "ppo", env=ShortAndLong, out=tmp_path / "r", total_env_steps=64, num_envs=2,
            rollout_length=8, num_minibatches=2, eval_interval=16, eval_episodes=1, eval_async=True,
            checkpoint_interval=64, quiet=True, tensorboard=False, num_threads=1,
        )  # fmt: skip
    assert redline.load(tmp_path / "r", env=ShortAndLong).inspect()["env_steps"] == 32


def test_making_environments_counts_as_progress_for_a_while() -> None:
    now_s = [10.0]
    counts = np.array([7, 0, 0])
    progress = Progress(counts, lambda: now_s[0])
    progress.begin()
    assert [progress.beat(), progress.beat()] == [-1, -2]
    now_s[0] = 10.0 + 121.0
    assert [progress.beat(), progress.beat()] == [7, 7], "it has had as long as a worker has"
    now_s[0] = 12.0
    counts[2] = 1
    assert [progress.beat(), progress.beat()] == [7, 7], "it steps: only steps count"

"""The best checkpoint holds the weights that were evaluated, whenever that is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import redline
from redline.envs import EnvSettings
from redline.errors import CheckpointError
from redline.train.callbacks import RunState
from redline.train.loops.evaluate import evaluate, evaluation_seed
from redline.train.runs.run import Run

EVERY, EPISODES = 192, 3
SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "num_envs": 2,
    "rollout_length": 32,
    "num_minibatches": 2,
    "num_epochs": 2,
    "learning_rate": 0.01,
    "hidden_sizes": (16,),
    "preset": "default",
    "quiet": True,
    "tensorboard": False,
}


class StopsBefore:
    """Ends the run once, before its first evaluation."""

    def on_iteration(self, state: RunState) -> None:
        if state.env_steps == 128:
            state.stop("it is to go on later")


def best_is_what_was_evaluated(run: Run) -> None:
    """The score comes out again, to the bit, with the seeds of that evaluation."""
    best = run.checkpoint("best")
    assert best.step % EVERY == 0
    found = evaluate(
        EnvSettings(env="CartPole-v1").make,
        run.policy("best"),
        episodes=EPISODES,
        seed=evaluation_seed(run.config.run.seed, best.step),
    )
    assert found.return_mean == best.score


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("by_callback", [False, True])
def test_the_best_one_is_that_which_was_evaluated(
    is_async: bool, by_callback: bool, tmp_path: Path
) -> None:
    """It was the state of the next checkpoint, or of when the other process told its result."""
    keeps: dict[str, Any] = {"checkpoints": "best", "checkpoint_interval": 256}
    if by_callback:
        keeps = {"callbacks": [redline.SaveBest()], "checkpoints": "none"}
    run = redline.train(
        "ppo", out=tmp_path / "run", total_env_steps=1920, eval_interval=EVERY,
        eval_episodes=EPISODES, eval_async=is_async, **keeps, **SMALL,
    )  # fmt: skip
    best_is_what_was_evaluated(run)
    callbacks = [redline.SaveBest()] if by_callback else []
    more: dict[str, Any] = {"total_env_steps": 2304, "callbacks": callbacks, "quiet": True}
    best_is_what_was_evaluated(redline.train(resume=run.out, **more))


def test_a_run_with_save_best_is_not_said_to_be_without_it(tmp_path: Path) -> None:
    """Fewer episodes than `min_episodes` had ended, and the advice was to train without it."""
    saves = [redline.SaveBest(min_episodes=100)]
    run = redline.train("ppo", out=tmp_path / "run", total_env_steps=64, callbacks=saves, **SMALL)
    with pytest.raises(CheckpointError, match="no best checkpoint yet: SaveBest marks one once"):
        run.checkpoint("best")


def test_training_returns_do_not_compete_with_evaluations(tmp_path: Path) -> None:
    """The mean of the first, lucky episodes was a score that no evaluation could beat."""
    settings = SMALL | {"checkpoints": "best", "checkpoint_interval": 64, "total_env_steps": 256}
    stops = [StopsBefore()]
    run = redline.train(
        "ppo", out=tmp_path / "run", eval_interval=EVERY, callbacks=stops, **settings
    )
    with pytest.raises(CheckpointError, match="known once an evaluation has ended"):
        run.checkpoint("best")
    again = redline.train(resume=run.out, total_env_steps=256, callbacks=stops, quiet=True)
    assert again.checkpoint("best").step == EVERY
    without = redline.train("ppo", out=tmp_path / "other", **settings)
    assert without.checkpoint("best").step in (64, 128, 192, 256)


@pytest.mark.parametrize("by_callback", [False, True])
def test_evaluations_of_a_resumed_run_do_not_compete_with_training_returns(
    by_callback: bool, tmp_path: Path
) -> None:
    """An episode of CartPole pays 8 or more; an evaluation that is cut after one step pays 1."""
    saves = [redline.SaveBest(every_env_steps=64, min_episodes=1)] if by_callback else []
    keeps: dict[str, Any] = {"checkpoints": "last" if by_callback else "best"}
    run = redline.train(
        "ppo", out=tmp_path / "run", total_env_steps=256, callbacks=saves, checkpoint_interval=64,
        **keeps, **SMALL,
    )  # fmt: skip
    score = run.checkpoint("best").score
    assert score is not None
    assert score >= 8
    again = redline.train(
        resume=run.out, total_env_steps=512, callbacks=saves, quiet=True,
        set={"eval_interval": 128, "eval_max_episode_steps": 1},
    )  # fmt: skip
    assert (again.checkpoint("best").score, again.checkpoint("best").step) == (1.0, 384)

"""A curriculum moves on by what was seen under its present value."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.train.loops.leveled import SMALL, Leveled, rows, train

import redline
from redline.data import EpisodeRecord
from redline.errors import ConfigError
from redline.train.callbacks import Curriculum, SaveBest, StopAtReturn
from redline.train.loops.callback_calls import CallbackCalls


def test_a_curriculum_by_env_steps_and_by_return(tmp_path: Path) -> None:
    """Level 2 after 128 env_steps and 3 after 256; or once 8 episodes paid 4, then 8."""
    for name, condition in (("a", {"at_env_steps": (128, 256)}), ("b", {"at_return": [4, 8]})):
        run = train(
            tmp_path / name, callbacks=[Curriculum("level", [1, 2.0, 3.0], episodes=8, **condition)]
        )
        assert float(rows(run)[-1]["return_mean"]) == 12.0
        assert rows(run)[-1]["curriculum/level"] == "2.0"
    with pytest.raises(ConfigError, match="one condition less"):
        Curriculum("level", [1, 2], at_env_steps=[1, 2])
    with pytest.raises(ConfigError, match="and not both"):
        Curriculum("level", [1, 2])


def test_a_second_run_begins_the_curriculum_anew(tmp_path: Path) -> None:
    """64 env_steps each; the level is 1 in the first two iterations and 2 in the last two."""
    course = Curriculum("level", [1, 2], at_env_steps=[128])
    for name in ("a", "b"):
        run = train(
            tmp_path / name, callbacks=[course], total_env_steps=256, log_interval=64, seed=3
        )
        assert [row["return_mean"] for row in rows(run)] == ["4.0", "4.0", "8.0", "8.0"]
        assert [row["curriculum/level"] for row in rows(run)] == ["0.0", "1.0", "1.0", "1.0"]


class Latching(Leveled):
    """The level of an episode is the one that it began with; level 1 pays 10 a step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.begun = self.level
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 10.0 if self.begun == 1.0 else 0.0, *rest


def test_a_stage_is_judged_by_its_own_episodes(tmp_path: Path) -> None:
    """32 episodes are under way as level 1 is left: what they pay says nothing of level 2."""
    course = Curriculum("level", [1.0, 2.0, 3.0], at_return=30, episodes=20)
    settings: dict[str, Any] = {"num_envs": 32, "rollout_length": 5, "total_env_steps": 32 * 5 * 5}
    run = redline.train(
        "ppo", env=Latching, out=tmp_path / "r", callbacks=[course], **SMALL | settings
    )
    assert rows(run)[-1]["curriculum/level"] == "1.0"


def test_rollouts_made_ahead_of_a_move_do_not_count() -> None:
    """Two iterations learn from what was collected before; then one episode began before."""
    course = Curriculum("level", [1.0, 2.0, 3.0], at_return=1, episodes=1)
    state: Any = SimpleNamespace(
        env_steps=0,
        rollouts_ahead=2,
        envs=SimpleNamespace(set_attr=lambda name, value: None),
        log=lambda name, value: None,
    )
    stages = []
    for ends in (1, 3, 3, 1, 1):
        for number in range(ends):
            state.episode = EpisodeRecord(env_id=0, episode_id=number, return_=5.0, length=4)
            course.on_episode(state)
        course.on_iteration(state)
        stages.append(course.stage)
    assert stages == [1, 1, 1, 1, 2]


def test_other_values_hold_at_a_resume(tmp_path: Path) -> None:
    """Level 2 until 128, and 3 until 256. Then 3 is 5, and 6 comes after 384 env_steps."""

    def course(*values: float, limits: list[int]) -> list[Curriculum]:
        return [Curriculum("level", values, at_env_steps=limits)]

    run = train(tmp_path / "r", callbacks=course(2, 3, limits=[128]), total_env_steps=256)
    redline.train(
        resume=run.out, env=Leveled, callbacks=course(2, 5, 6, limits=[128, 384]),
        total_env_steps=512, quiet=True,
    )  # fmt: skip
    assert [row["return_mean"] for row in rows(run)] == ["8.0", "12.0", "20.0", "24.0"]


def resumed(before: Curriculum, now: Curriculum) -> list[tuple[str, Any]]:
    """What `now` sets in the environments at the start of a run that `before` was of."""
    given: list[tuple[str, Any]] = []
    envs = SimpleNamespace(set_attr=lambda name, value: given.append((name, value)))
    state: Any = SimpleNamespace(env_steps=64, rollouts_ahead=0, envs=envs)
    CallbackCalls([now], state).load_state_dict(CallbackCalls([before], state).state_dict())
    now.on_start(state)
    return given


def test_a_resume_keeps_the_stage_and_takes_new_arguments() -> None:
    """In stage 2 with returns 3, 4, 5: fewer episodes, fewer values, another attribute."""
    before = Curriculum("level", [1, 2, np.ones(2)], at_return=9, episodes=3)
    before.stage = 2
    before.returns.extend([3.0, 4.0, 5.0])
    same = Curriculum("level", [7, 8, np.ones(2), 9], at_return=1, episodes=2)
    assert resumed(before, same) == []
    assert (same.stage, list(same.returns), same.limits) == (2, [4.0, 5.0], [1.0, 1.0, 1.0])
    fewer = Curriculum("level", [1, 2], at_return=9)
    assert resumed(before, fewer) == [("level", 2)]
    assert (fewer.stage, list(fewer.returns)) == (1, [])
    other = Curriculum("width", [1, 2, 3], at_return=9)
    assert resumed(before, other) == [("width", 3)]
    assert other.stage == 2


def test_episodes_under_way_say_nothing_of_another_first_value() -> None:
    now = Curriculum("level", [4, 2], at_return=9)
    assert resumed(Curriculum("level", [1, 2], at_return=9), now) == [("level", 4)]
    for number, return_ in enumerate((1.0, 6.0)):
        episode = EpisodeRecord(env_id=0, episode_id=number, return_=return_, length=4)
        state: Any = SimpleNamespace(episode=episode)
        now.on_episode(state)
    assert list(now.returns) == [6.0]


def test_numbers_of_numpy_are_numbers() -> None:
    steps = np.linspace(100, 200, 2)
    assert Curriculum("level", [1, 2, 3], at_env_steps=steps).limits == [100.0, 200.0]  # type: ignore[arg-type]
    each = Curriculum("level", [1, 2, 3], at_return=np.float32(0.5))  # type: ignore[arg-type]
    assert each.limits == [0.5, 0.5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Curriculum("level", [1, 2], at_return=1.0, episodes=0),
        lambda: StopAtReturn(475, min_episodes=200),
        lambda: StopAtReturn(475, min_episodes=0),
        lambda: SaveBest(min_episodes=101),
    ],
)
def test_a_mean_that_never_comes_is_refused(make: Any) -> None:
    """The mean return is that of the last 100 episodes."""
    with pytest.raises(ConfigError, match=r"Give 1 (to 100|or more)"):
        make()

"""Off-policy runs, small: the ratio, stopping and going on, damage, and what is refused."""

from __future__ import annotations

import csv
import json
import math
import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import redline
from redline.algos.dqn import DQN, DQNConfig
from redline.algos.registry import declaration
from redline.algos.sac import SAC
from redline.cli import main
from redline.errors import ConfigError, CorruptCheckpointError, SpaceError
from redline.train.checkpoint.checkpoint import load_checkpoint
from redline.train.checkpoint.files import params_sha256
from redline.train.loops.off_policy_loop import OffPolicyLoop
from redline.train.presets import preset_config
from redline.train.progress.progress import BASE_COLUMNS, TIME_COLUMNS
from redline.train.runs import execution
from redline.train.runs.learner import trainable_parts
from redline.train.runs.run import Run
from redline.train.runs.start import check_updates

SMALL: dict[str, Any] = {
    "total_env_steps": 240,
    "num_envs": 2,
    "rollout_length": 6,
    "batch_size": 8,
    "replay_size": 150,  # it wraps around within a run
    "replay_ratio": 4.0,
    "learning_starts": 48,
    "hidden_sizes": (8,),
    "log_interval": 48,
    "checkpoint_interval": 48,
    "quiet": True,
    "tensorboard": False,
}
CASES: dict[str, dict[str, Any]] = {
    "dqn": {"env": "CartPole-v1", "target_update_interval": 10},
    "rainbow": {
        "env": "CartPole-v1", "target_update_interval": 10, "double_q": True, "dueling": True,
        "noisy": True, "n_step": 3, "value_distribution": "categorical", "num_atoms": 5,
        "prioritized": True,
    },
    "iqn": {
        "env": "CartPole-v1", "target_update_interval": 10, "value_distribution": "implicit",
        "prioritized": True,
    },
    "r2d1": {
        "env": "redline/TMaze-v1", "sequence_length": 6, "state_interval": 6, "burn_in": 6,
        "n_step": 2, "prioritized": True, "core_size": 8, "replay_size": 240,
        "target_update_interval": 1,
    },
    "sac": {"env": "Pendulum-v1"},
    "sac-discrete": {"env": "CartPole-v1"},
    "sac-droq": {
        "env": "Pendulum-v1", "num_critics": 3, "critic_subset": 2, "critic_dropout": 0.1,
        "critic_layer_norm": True, "prioritized": True, "n_step": 2, "actor_follows": "mean",
    },
    "diayn": {"env": "Pendulum-v1", "num_skills": 3, "skill_length": 20},
    "tqc": {"env": "Pendulum-v1", "num_critics": 2, "num_quantiles": 5},
    "crossq": {"env": "Pendulum-v1", "critic_hidden_sizes": (8,), "renorm_warmup": 2},
    "td3": {"env": "Pendulum-v1"},
    "ddpg": {"env": "Pendulum-v1", "n_step": 3},
    "dqn-normalized": {"env": "CartPole-v1", "target_update_interval": 10, "normalize_obs": True},
    "sac-normalized": {"env": "Pendulum-v1", "normalize_obs": True},
}  # fmt: skip
ALGORITHMS = {"rainbow": "dqn", "iqn": "dqn", "sac-discrete": "sac", "sac-droq": "sac"}
ALGORITHMS |= {"dqn-normalized": "dqn", "sac-normalized": "sac"}


def small(out: Path, case: str, **settings: Any) -> Run:
    chosen = {"preset": "default", **SMALL, **CASES[case], **settings}
    return redline.train(ALGORITHMS.get(case, case), out=out, **chosen)


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "progress.csv").open() as file:
        return [
            {k: v for k, v in row.items() if k not in TIME_COLUMNS} for row in csv.DictReader(file)
        ]


def stop_after(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run gets a SIGTERM in that iteration."""
    learn, count = OffPolicyLoop._learn, [0]

    def interrupted(loop: OffPolicyLoop, rollout: Any, collected: int) -> None:
        learn(loop, rollout, collected)
        count[0] += 1
        if count[0] == iterations:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(OffPolicyLoop, "_learn", interrupted)


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_ends_like_one_never_stopped(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replay, its priorities, targets, optimizers, schedules and every stream go on exactly."""
    whole = small(tmp_path / "whole", case)
    with monkeypatch.context() as patch:
        stop_after(11, patch)
        stopped = small(tmp_path / "stopped", case)
    assert stopped.exit_code == 128 + signal.SIGTERM
    assert stopped.inspect()["env_steps"] == 11 * 12
    resumed = redline.train(resume=stopped.out, quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]
    assert rows(resumed.out) == rows(whole.out)


def test_an_update_may_return_the_same_dict_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a captured one does; kernels would not stand for an update that was replaced."""
    wanted = small(tmp_path / "wanted", "dqn", accelerate="eager")
    update, returned = DQN.update, {}

    def captured(algorithm: DQN, batch: Any) -> dict[str, Any]:
        returned.update(update(algorithm, batch))
        return returned

    monkeypatch.setattr(DQN, "update", captured)
    found = small(tmp_path / "found", "dqn", accelerate="eager")
    assert "priority" in returned
    assert rows(found.out) == rows(wanted.out)


def test_updates_follow_the_replay_ratio_with_the_remainder_carried(tmp_path: Path) -> None:
    """15 samples an iteration x ratio 1.3 / batch 8 = 2.4375 updates, from 60 env_steps on.

    At env_steps 60, 75, ..., 300 that is 17 iterations: 41.4375, so 41 updates.
    """
    run = small(
        tmp_path / "run", "dqn", num_envs=3, rollout_length=5, total_env_steps=300,
        learning_starts=60, replay_ratio=1.3, log_interval=15,
    )  # fmt: skip
    found = rows(run.out)
    steps = {int(row["env_steps"]): int(row["optimizer_steps"]) for row in found}
    assert [steps[n] for n in (45, 60, 75, 90, 300)] == [0, 2, 4, 7, 41]
    assert float(found[-1]["replay_ratio"]) == pytest.approx(41 * 8 / 255)


def test_columns_are_there_before_the_first_update(tmp_path: Path) -> None:
    run = small(tmp_path / "run", "sac", total_env_steps=60, learning_starts=48, log_interval=12)
    found = rows(run.out)
    assert [name for name in BASE_COLUMNS if name not in TIME_COLUMNS] == list(found[0])[:10]
    assert found[0]["critic_loss"] == "" != found[-1]["critic_loss"]


class SaysMore(DQN):
    """Returns a metric that no `metric_names` announces, from the third update on."""

    def update(self, batch: Any) -> dict[str, Any]:
        found = super().update(batch)
        return found | ({"mine": 4.0} if self.optimizer_steps() > 2 else {})


def test_metrics_that_nobody_announced_join_when_they_come(tmp_path: Path) -> None:
    """One update per iteration of 12 env_steps from 48 on: rows 4 and 5 have none of it."""
    settings = {"target_update_interval": 1, "replay_ratio": 8 / 12, "log_interval": 12}
    run = redline.train(
        SaysMore,
        env="CartPole-v1",
        out=tmp_path / "run",
        **SMALL | settings | {"total_env_steps": 120},
    )
    assert [row["mine"] for row in rows(run.out)] == [""] * 5 + ["4.0"] * 5


def test_learned_parameters_all_count_in_the_hash(tmp_path: Path) -> None:
    """Another critic or temperature is another agent, though the actor that acts is the same."""
    state = small(tmp_path / "run", "sac").checkpoint().state["algorithm"]
    hashes = [params_sha256(trainable_parts(SAC, state))]
    for part in (state["policy"], state["critic"], state):
        name = "log_alpha" if part is state else next(iter(part))
        part[name] = part[name] + 1.0
        hashes.append(params_sha256(trainable_parts(SAC, state)))
    assert len(set(hashes)) == 4


@pytest.mark.parametrize("case", ["r2d1", "sac"])
def test_workers_collect_for_off_policy_learning(case: str, tmp_path: Path) -> None:
    """Each environment's noise is its own, so only the networks' arithmetic may differ."""
    serial = small(tmp_path / "serial", case, learning_starts=240)  # only at the very end
    workers = small(
        tmp_path / "workers", case, learning_starts=240, collector="workers", num_workers=2
    )
    columns = ("env_steps", "return_mean", "episodes", "episode_length_mean")
    for ours, theirs in zip(rows(serial.out), rows(workers.out), strict=True):
        for name in columns:
            assert (ours[name] == "") == (theirs[name] == "")
            if ours[name]:
                assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-4)


def test_replay_in_a_file_gives_the_same_run(tmp_path: Path) -> None:
    memory = small(tmp_path / "memory", "dqn")
    file = small(tmp_path / "file", "dqn", replay_storage="memmap")
    assert memory.inspect()["params_sha256"] == file.inspect()["params_sha256"]


class Narrow(gymnasium.Env[Any, Any]):
    """Its actions lie in [0, 0.4] and [-0.1, 3], and replay keeps them in [-1, 1]."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(
        np.array([0.0, -0.1], np.float32), np.array([0.4, 3.0], np.float32)
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        assert self.action_space.contains(action)
        self._steps += 1
        return np.tanh(action), float(action[0]), False, self._steps == 20, {}


@pytest.mark.parametrize("case", ["sac", "sac-droq", "td3", "ddpg", "tqc", "crossq", "diayn"])
def test_runs_whose_actions_have_narrow_bounds_go_on(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Humanoid's are 0.4 wide: what was saved was checked by them, and refused as corrupt."""
    narrow = {"env": Narrow, "num_threads": 1}
    whole = small(tmp_path / "whole", case, **narrow)
    with monkeypatch.context() as patch:
        stop_after(11, patch)
        stopped = small(tmp_path / "stopped", case, **narrow)
    resumed = redline.train(resume=stopped.out, env=Narrow, quiet=True)
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]


def test_damaged_replay_is_named_and_the_checkpoint_before_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = small(tmp_path / "whole", "dqn", total_env_steps=480)
    run = small(tmp_path / "run", "dqn", total_env_steps=480)
    newest = max((run.out / "checkpoints").glob("step_*"))
    chunk = max((newest / "replay").glob("*.bin"), key=lambda file: file.stat().st_size)
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.unlink()  # the file may be shared with the checkpoint before
    chunk.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=chunk.name):
        load_checkpoint(newest, with_replay=True)
    resumed = redline.train(resume=run.out, quiet=True)
    assert f"{chunk} does not match its SHA-256" in capsys.readouterr().err
    assert resumed.inspect()["params_sha256"] == whole.inspect()["params_sha256"]


def test_a_missing_replay_is_named(tmp_path: Path) -> None:
    run = small(tmp_path / "run", "dqn")
    for checkpoint in (run.out / "checkpoints").iterdir():
        (checkpoint / "replay" / "replay.json").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"replay\.json"):
        redline.train(resume=run.out, total_env_steps=480, quiet=True)


def test_the_best_checkpoint_keeps_its_replay(tmp_path: Path) -> None:
    run = small(tmp_path / "run", "dqn", checkpoints="best", total_env_steps=480)
    best = run.checkpoint("best")
    assert best.replay is not None
    assert load_checkpoint(best.path, with_replay=True).replay == best.replay


def test_evaluate_export_and_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for case in ("dqn", "sac", "td3", "r2d1"):
        run = small(tmp_path / case, case)
        assert main(["eval", str(run.out), "--episodes", "2"]) == 0
        line = capsys.readouterr().out.strip().splitlines()[-1]
        assert json.loads(line)["episodes"] == 2
        samples = case == "sac"
        sampled = ["eval", str(run.out), "--episodes", "2", "--stochastic"]
        assert main(sampled) == (0 if samples else 2)
        if not samples:
            assert "has no effect: this policy explores only" in capsys.readouterr().err
            with pytest.raises(ConfigError, match="has no distribution to sample from"):
                run.collect(1, greedy=False)
            with pytest.raises(ConfigError, match="has no distribution to sample from"):
                run.record_video(tmp_path / "a.gif", greedy=False)
        path = run.export(tmp_path / f"{case}.pt2", format="torch")
        assert path.exists()


def test_exported_actors_act_like_the_original(tmp_path: Path) -> None:
    """The exported program answers in the bounds of Pendulum's torque, [-2, 2]."""
    run = small(tmp_path / "run", "sac")
    program = torch.export.load(run.export(tmp_path / "sac.pt2", format="torch")).module()
    obs = torch.tensor(np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32))
    policy = run.policy()
    expected = policy.env_action(policy.act(obs, {}).action)
    answers = torch.cat([program(row[None]) for row in obs])
    torch.testing.assert_close(answers, torch.as_tensor(expected), rtol=1e-5, atol=1e-6)
    assert expected.abs().max() <= 2.0


def test_replay_that_cannot_fit_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs .* GB = 1,000,000,000,000 x"):
        small(tmp_path / "run", "dqn", replay_size=10**12)
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("algorithm", "env", "pattern"),
    [
        ("dqn", "Pendulum-v1", "Discrete"),
        ("r2d1", "Pendulum-v1", "Discrete"),
        ("td3", "CartPole-v1", "Box"),
        ("ddpg", "CartPole-v1", "Box"),
    ],
)
def test_action_spaces_that_do_not_fit_are_refused(
    algorithm: str, env: str, pattern: str, tmp_path: Path
) -> None:
    with pytest.raises((SpaceError, ConfigError), match=pattern):
        redline.train(algorithm, env=env, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_starts": 241},
        {"replay_ratio": 1e-9},
        {"batch_size": 1000, "replay_size": 1000, "replay_ratio": 1.0},
    ],
)
def test_a_run_that_would_never_learn_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="total_env_steps=240 ends before the first update"):
        small(tmp_path / "run", "dqn", **settings)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("case", "interval"), [("dqn", 103), ("rainbow", 103), ("r2d1", 23), ("r2d1", 2_500)]
)
def test_a_run_whose_target_would_never_move_is_refused(
    case: str, interval: int, tmp_path: Path
) -> None:
    """FAULTS 41. 204 samples are learned from: 204 * 4 / 8 = 102 updates of 8 rows, and
    204 * 4 / (8 * 6) = 17 of R2D1's sequences."""
    updates = 17 if case == "r2d1" else 102
    with pytest.raises(
        ConfigError,
        match=rf"total_env_steps=240 ends before the target network moves .*"
        rf"target_update_interval={interval} .*, {updates} in all",
    ):
        small(tmp_path / "run", case, target_update_interval=interval)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("case", "name"),
    [("td3", "policy_delay"), ("sac", "actor_update_interval"), ("tqc", "actor_update_interval")],
)
def test_a_run_whose_actor_would_never_move_is_refused(
    case: str, name: str, tmp_path: Path
) -> None:
    """102 updates, as above: the 103rd would be the actor's first; with 102 it is the last."""
    settings: dict[str, Any] = {"env": "Pendulum-v1", "preset": "default"}
    with pytest.raises(
        ConfigError,
        match=rf"ends before the actor moves for the first time, after {name}=103 .*, 102 in all",
    ):
        redline.train(case, out=tmp_path / "a", **(SMALL | settings | {name: 103}))
    assert not (tmp_path / "a").exists()
    config = preset_config(declaration(case), "Pendulum-v1", "default").replace(
        env="Pendulum-v1", **(SMALL | {name: 102})
    )
    check_updates(config)


def test_a_run_that_began_with_a_target_that_never_moves_goes_on(tmp_path: Path) -> None:
    """It would not be the same run with another interval."""
    run = small(tmp_path / "run", "dqn", target_update_interval=10)
    config = json.loads((run.out / "config.json").read_text())
    config["algo"]["target_update_interval"] = 10_000
    (run.out / "config.json").write_text(json.dumps(config))
    resumed = redline.train(
        resume=run.out, total_env_steps=480, quiet=True, accept_changed_config=True
    )
    assert resumed.inspect()["env_steps"] == 480


@pytest.mark.parametrize("algorithm", ["dqn", "r2d1"])
def test_the_targets_of_every_preset_move_often(algorithm: str) -> None:
    """Within the preset's own length, and in 200,000 env_steps by the plain defaults."""
    for name in ("default", *declaration(algorithm).presets):
        config = preset_config(algorithm, "Any-v0", name)
        total = 200_000 if name == "default" else config.run.total_env_steps
        moves = config.algo.expected_updates(total) / config.algo.target_update_interval
        assert moves >= 20, name


def test_expected_updates_by_hand() -> None:
    """Iterations of 12 end at 12, 24, ...; learning starts with the one that ends at 48 or more:
    48 .. 240 are 17 of them, 204 samples x 4 / 8 = 102 updates."""
    config = DQNConfig(
        num_envs=2, rollout_length=6, batch_size=8, replay_ratio=4.0, learning_starts=48
    )
    assert config.expected_updates(240) == 102.0
    assert config.expected_updates(47) == 6.0  # the iteration that passes it ends at 48
    assert config.expected_updates(36) == 0.0


@pytest.mark.parametrize(
    ("name", "value"),
    [("priority_alpha", math.inf), ("max_grad_norm", math.inf), ("v_min", -math.inf)],
)
def test_infinite_settings_are_refused_by_name(name: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{name}=.*finite"):
        small(tmp_path / "run", "dqn", **{name: value})


def test_a_file_too_large_for_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="free on the disk"):
        small(tmp_path / "run", "dqn", replay_size=10**13, replay_storage="memmap")
    assert not (tmp_path / "run").exists()


def test_stretched_schedules_are_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Epsilon falls from 1 by 0.95 within 0.75 x 480 = 360 env_steps: 1 - 0.95 x 240 / 360."""
    settings = {"learning_rate_schedule": "linear", "epsilon_fraction": 0.75, "epsilon_final": 0.05}
    run = small(tmp_path / "run", "dqn", epsilon_initial=1.0, **settings)
    redline.train(resume=run.out, total_env_steps=480, quiet=True)
    said = capsys.readouterr().err
    assert "learning_rate_schedule: schedules of the run now reach their end at 480" in said
    assert (
        "epsilon: its schedule now reaches its end at 360 instead of 180 env_steps "
        "(epsilon_fraction=0.75), so epsilon is 0.367 instead of 0.05 at present."
    ) in said
    # Of a run of 480 with another fraction: 0.5 x 960 = 480, and 1 - 0.95 x 480 / 480.
    redline.train(resume=run.out, total_env_steps=960, quiet=True, set={"epsilon_fraction": 0.5})
    assert (
        "reaches its end at 480 instead of 360 env_steps (epsilon_fraction=0.5), so epsilon stays "
        "0.05 at present."
    ) in capsys.readouterr().err


class Robot(gymnasium.Env[Any, int]):
    """A stack of two camera pictures and the state of the joints; ends after 5 steps."""

    observation_space = gymnasium.spaces.Dict(
        camera=gymnasium.spaces.Box(0, 255, (2, 10, 10), np.uint8),
        joints=gymnasium.spaces.Box(-9.0, 9.0, (2,), np.float32),
    )
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self._step = 1
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._seen(), 1.0, self._step == 6, False, {}

    def _seen(self) -> dict[str, Any]:
        frames = np.array([self._step - 1, self._step], np.uint8)
        picture = np.broadcast_to(frames[:, None, None], (2, 10, 10)).copy()
        return {"camera": picture, "joints": np.full(2, self._step, np.float32)}


def test_the_images_of_a_dict_are_stored_one_frame_a_step(tmp_path: Path) -> None:
    """A run had no way to name them. A row takes 100 bytes of the picture's 200."""
    settings: dict[str, Any] = {
        "env": Robot,
        "total_env_steps": 32,
        "learning_starts": 16,
        "batch_size": 8,
        "replay_size": 64,
        "target_update_interval": 1,
        "tensorboard": False,
        "quiet": True,
    }
    run = redline.train("dqn", out=tmp_path / "a", replay_frame_stack=2, **settings)
    content = json.loads((run.checkpoint().path / "replay/replay.json").read_text())["content"]
    assert content["header"]["layout"]["frames"] == {"camera": 2, "joints": 1}
    assert content["arrays"]["obs/camera/frames"]["row_bytes"] == 100
    with pytest.raises(ConfigError, match=r"replay_frame_stack=3 .*camera \[2, 10, 10\], joints"):
        redline.train("dqn", out=tmp_path / "b", replay_frame_stack=3, **settings)


def test_settings_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    for settings in ({"core": "lstm"}, {"initial_log_std": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            small(tmp_path / "run", "dqn", **settings)
    with pytest.raises(ConfigError, match="smaller than one iteration"):
        small(tmp_path / "run", "dqn", replay_size=11)
    with pytest.raises(ConfigError, match="never fit into replay_size=40"):
        small(tmp_path / "run", "dqn", replay_size=40, n_step=20)


def test_time_limits_are_bootstrapped_and_terminations_are_not(tmp_path: Path) -> None:
    """A reward of 1 for ever is worth 1 / (1 - gamma) = 4 though each episode is cut after 5.

    An environment that terminates there instead is worth 1 + .75 + ... at most; with one
    step left, 1. Deep learning finds both within 0.3.
    """

    class Constant(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, ends: bool) -> None:
            self.ends, self.left = ends, 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.left = 5
            return self._obs(), {}

        def step(self, action: Any) -> Any:
            self.left -= 1
            over = self.left == 0
            return self._obs(), 1.0, over and self.ends, over and not self.ends, {}

        def _obs(self) -> Any:
            return np.array([self.left / 5 if self.ends else 0.5], np.float32)

    def value(ends: bool) -> float:
        run = small(
            tmp_path / f"ends-{ends}", "dqn", env=lambda: Constant(ends), gamma=0.75,
            total_env_steps=1500, replay_size=1000, learning_rate=1e-2, hidden_sizes=(16,),
            target_update_interval=5, n_step=2,
        )  # fmt: skip
        policy = redline.load(run.out, env=lambda: Constant(ends)).policy()
        obs = torch.tensor([[0.2 if ends else 0.5]])
        with torch.inference_mode():
            return float(policy.evaluate(obs).q.max())

    assert value(ends=False) == pytest.approx(4.0, abs=0.3)
    assert value(ends=True) == pytest.approx(1.0, abs=0.3)


@pytest.mark.parametrize(
    ("env", "warned"), [("Taxi-v4", 1), ("CartPole-v1", 0)], ids=["no family", "family"]
)
def test_rainbow_says_that_its_range_of_returns_was_not_chosen(
    env: str, warned: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Taxi's returns go down to -1,000 at a discount of 0.99: below every atom."""
    out = tmp_path / "run"
    run = redline.train(
        "dqn", env=env, preset="rainbow", out=out, total_env_steps=64, num_envs=1,
        learning_starts=32, batch_size=4, replay_size=100, hidden_sizes=(4,), quiet=True,
        tensorboard=False, target_update_interval=8,
    )  # fmt: skip
    assert "".join(capfd.readouterr()).count("tells returns apart from v_min=-10") == warned
    assert run.config.algo.epsilon_final == 0.0
    redline.train(resume=out, total_env_steps=96, quiet=True)
    assert "tells returns apart" not in "".join(capfd.readouterr())


def test_what_a_run_gives_its_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exponents of priorities and importance weights, and the share of goals replaced."""
    made: list[Any] = []
    build = execution.build_replay
    monkeypatch.setattr(
        execution, "build_replay", lambda *given: made.append(build(*given)) or made[-1]
    )
    run = small(tmp_path / "run", "rainbow", priority_alpha=0.9, priority_beta=0.4)
    assert made[0].config.alpha == 0.9
    for row in rows(run.out):
        progress = int(row["env_steps"]) / 240
        assert float(row["priority_beta"]) == pytest.approx(0.4 + 0.6 * progress)
    goals = {"env": "redline/PointReach-v1", "replay": "her", "her_share": 0.3}
    small(tmp_path / "goals", "sac", **goals)
    assert made[1]._share == 0.3

"""Runs that go on with another kind of device: from the stand-in to the CPU and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import redline
from redline.algos.sac import SAC
from redline.errors import ConfigError
from redline.generator_states import begun_anew, seed_after
from redline.train.loops.off_policy_loop import _ReplayGenerator
from redline.train.runs.run import Run
from tests.accelerator.test_runs import run

BOTH = ("ppo-host-envs", "dqn-prioritized", "sac", "r2d1-sequences")
ONE = (
    "ppo", "ppo-images", "a2c-gru", "reinforce", "dqn-uniform", "dqn-host-envs", "dqn-host-replay",
    "td3", "ddpg", "tqc", "crossq", "diayn", "impala", "appo",
)  # fmt: skip
MOVES = [(name, "cpu") for name in (*BOTH, *ONE)] + [(name, "standin") for name in BOTH]


class Weights:
    """Keeps the policy's weights as the run begins with them, on the CPU."""

    def on_start(self, state: Any) -> None:
        self.found = {n: p.detach().cpu().clone() for n, p in state.policy.state_dict().items()}


def moved(source: Path, out: Path, device: str, **options: Any) -> Run:
    shutil.copytree(source, out)
    settings = options.pop("settings", {}) | {"device": device}
    return redline.train(resume=out, set=settings, quiet=True, **options)


@pytest.mark.parametrize(("name", "there"), MOVES)
def test_a_run_goes_on_with_another_device(name: str, there: str, tmp_path: Path) -> None:
    here = {"cpu": "standin", "standin": "cpu"}[there]
    began = Weights()
    half = run(tmp_path / "half", name, device=here, total_env_steps=24, callbacks=[began])
    saved = {n: p.cpu() for n, p in half.policy().state_dict().items()}
    found = moved(half.out, tmp_path / "moved", there, total_env_steps=40, callbacks=[began])
    assert began.found.keys() == saved.keys()
    assert all(torch.equal(began.found[each], saved[each]) for each in saved)
    assert found.inspect()["env_steps"] >= 40
    assert found.config.run.device == there
    assert (found.config.run.accelerate == "cudagraph") == (there == "standin")


def test_the_same_run_moved_twice_is_the_same_run(tmp_path: Path) -> None:
    """What is drawn depends on nothing but the saved state."""
    half = run(tmp_path / "half", "sac", total_env_steps=16)
    a, b = (moved(half.out, tmp_path / each, "cpu", total_env_steps=32) for each in "ab")
    assert a.inspect()["params_sha256"] == b.inspect()["params_sha256"]


def test_what_was_collected_goes_along(tmp_path: Path) -> None:
    """Replay is full when the run moves, and updates go on at once."""
    half = run(tmp_path / "half", "sac", total_env_steps=16)
    found = moved(half.out, tmp_path / "moved", "cpu", total_env_steps=20)
    rows = (found.out / "progress.csv").read_text().splitlines()
    head = rows[0].split(",")
    before, after = (dict(zip(head, row.split(","), strict=True)) for row in rows[-2:])
    # One update of 8 samples for each 8 env_steps, from 8 on: 4 more make half an update.
    assert (before["env_steps"], after["env_steps"]) == ("16", "24")
    assert int(after["optimizer_steps"]) - int(before["optimizer_steps"]) == 1


def test_streams_do_not_begin_again_where_the_run_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream seeded by the run's seed alone would repeat the run's first draws."""
    half = run(tmp_path / "half", "sac", total_env_steps=16)
    states: list[torch.Tensor] = []
    own = SAC.load_state_dict

    def looked_at(self: SAC, state: Any) -> None:
        states.append(self.generator.get_state())
        own(self, state)
        states.append(self.generator.get_state())

    monkeypatch.setattr(SAC, "load_state_dict", looked_at)
    moved(half.out, tmp_path / "moved", "cpu", total_env_steps=20)
    assert not torch.equal(states[0], states[1])


def test_a_run_killed_after_its_move_goes_on_there(tmp_path: Path) -> None:
    """Its newest checkpoint is still of the device before."""

    class Killed:
        def on_start(self, state: Any) -> None:
            if state.env_steps == 16 and not went_on:
                raise KeyboardInterrupt

    went_on = False
    half = run(tmp_path / "half", "dqn-uniform", total_env_steps=16, callbacks=[Killed()])
    out = tmp_path / "moved"
    with pytest.raises(KeyboardInterrupt):
        moved(half.out, out, "cpu", total_env_steps=32, callbacks=[Killed()])
    assert json.loads((out / "config.json").read_text())["run"]["device"] == "cpu"
    went_on = True
    found = redline.train(resume=out, total_env_steps=32, quiet=True, callbacks=[Killed()])
    assert found.config.run.device == "cpu"
    assert found.inspect()["env_steps"] >= 32


def test_it_is_said_what_a_move_changes(tmp_path: Path, capsys: Any) -> None:
    half = run(tmp_path / "half", "ppo", total_env_steps=16)
    redline.train(resume=half.out, set={"device": "cpu"}, total_env_steps=32)
    said = capsys.readouterr().err
    assert "device: standin -> cpu, accelerate: cudagraph -> auto" in said
    assert "'standin' made the newest checkpoint, and the run goes on elsewhere" in said
    assert "wrote this run" not in said  # the engine was not chosen by anybody
    (resumed,) = [each for each in half.history() if each["event"] == "resumed"]
    assert resumed["changed"]["device"] == ["standin", "cpu"]


def test_an_engine_of_one_s_own_choice_stays(tmp_path: Path) -> None:
    half = run(tmp_path / "half", "ppo", total_env_steps=16, accelerate="eager")
    found = moved(half.out, tmp_path / "a", "cpu", total_env_steps=32)
    assert found.config.run.accelerate == "eager"
    asked = {"accelerate": "cudagraph"}
    with pytest.raises(ConfigError, match="Give device='cuda', or accelerate='auto'"):
        moved(half.out, tmp_path / "b", "cpu", settings=asked, total_env_steps=32)


def test_an_engine_chosen_while_the_run_is_moved_stays_at_the_next_move(tmp_path: Path) -> None:
    """The reason for the engine before was kept, so that the choice counted for none."""
    half = run(tmp_path / "half", "ppo", total_env_steps=16)
    eager = moved(
        half.out, tmp_path / "a", "cpu", settings={"accelerate": "eager"}, total_env_steps=32
    )
    assert json.loads((eager.out / "config.json").read_text())["engine"] == "as asked for"
    found = moved(eager.out, tmp_path / "b", "standin", total_env_steps=48)
    assert found.config.run.accelerate == "eager"


def test_who_acts_follows_the_engine(tmp_path: Path) -> None:
    half = run(tmp_path / "half", "ppo-host-envs", total_env_steps=16, accelerate="cudagraph")
    assert half.config.run.cpu_acting is False
    found = moved(half.out, tmp_path / "a", "cpu", total_env_steps=32)
    assert found.config.run.cpu_acting is True
    said = {"cpu_acting": False}
    found = moved(half.out, tmp_path / "b", "cpu", settings=said, total_env_steps=32)
    assert found.config.run.cpu_acting is False


def test_an_engine_that_auto_had_to_take_is_chosen_anew(tmp_path: Path) -> None:
    """No kernel of the CPU serves a recurrent policy; on a GPU its update is one graph."""
    half = run(tmp_path / "half", "a2c-gru", total_env_steps=16, device="cpu")
    assert half.config.run.accelerate == "eager"
    found = moved(half.out, tmp_path / "moved", "standin", total_env_steps=32)
    assert found.config.run.accelerate == "cudagraph"


def test_environments_placed_there_move_with_them(tmp_path: Path) -> None:
    places = {"eval_device": "standin", "eval_interval": 16, "eval_episodes": 1}
    half = run(tmp_path / "half", "ppo-mirrored", total_env_steps=16, **places)
    elsewhere = {"env_device": "cpu", "eval_device": "cpu"}
    found = moved(half.out, tmp_path / "a", "cpu", settings=elsewhere, total_env_steps=32)
    assert found.inspect()["env_steps"] >= 32


@pytest.mark.parametrize("name", ["policy_device", "env_device"])
@pytest.mark.parametrize("began", [None, "cpu"])
def test_a_place_is_neither_given_nor_taken_on_the_way(
    name: str, began: str | None, tmp_path: Path
) -> None:
    """It failed with a KeyError: 'noise' behind advice that could not help."""
    half = run(tmp_path / "half", "ppo-host-envs", total_env_steps=16, **{name: began})
    files = {path: path.read_bytes() for path in half.out.rglob("*") if path.is_file()}
    given = "cpu" if began is None else None
    with pytest.raises(ConfigError, match=f"{name}={given!r} cannot be changed when a run"):
        redline.train(resume=half.out, set={name: given}, total_env_steps=32, quiet=True)
    assert {path: path.read_bytes() for path in half.out.rglob("*") if path.is_file()} == files


def test_replay_draws_a_stream_of_its_own_after_a_move() -> None:
    """On the host in place of the device, and the other way round."""
    of_device = torch.Generator("cpu").manual_seed(5).get_state()
    host = _ReplayGenerator(1, torch.device("cpu"))
    with begun_anew():
        host.restore(of_device)
    assert isinstance(host.generator, np.random.Generator)
    expected = np.random.default_rng(seed_after(of_device)).random(4)
    assert host.generator.random(4).tolist() == expected.tolist()
    of_host = _ReplayGenerator(1, torch.device("cpu")).state()
    device = _ReplayGenerator(1, torch.device("standin"))
    assert isinstance(device.generator, torch.Generator)
    with begun_anew():
        device.restore(of_host)
    assert device.generator.initial_seed() == seed_after(of_host)

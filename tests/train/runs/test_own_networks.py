"""Whole runs with a network of one's own: by Python, command line, file and sweep; resumed, loaded.

A run directory names the network and never imports it: whoever goes on with the run says it again.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymnasium import spaces
from torch import nn

import redline
from redline import registry
from redline.cli import main
from redline.errors import ConfigError, IncompatibleCheckpointError

HERE = __name__
SMALL: dict[str, Any] = {
    "env": "CartPole-v1",
    "preset": "default",
    "total_env_steps": 256,
    "num_envs": 2,
    "rollout_length": 32,
    "checkpoint_interval": 128,
    "quiet": True,
    "tensorboard": False,
}
EVIL = "open('EXECUTED', 'w').close()\n\n\ndef net(space):\n    raise AssertionError\n"


def narrow(space: spaces.Space[Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(spaces.flatdim(space), 6), nn.Tanh())


def alike(space: spaces.Space[Any]) -> nn.Module:
    """Parameters of the same shapes, and another function."""
    return nn.Sequential(nn.Linear(spaces.flatdim(space), 6), nn.ReLU())


def words(out: Path, **settings: Any) -> list[str]:
    """SMALL as options."""
    given = SMALL | {"out": out} | settings
    flags = {True: "", False: "no-"}
    return [
        f"--{flags[value]}{name.replace('_', '-')}"
        if isinstance(value, bool)
        else f"--{name.replace('_', '-')}={value}"
        for name, value in given.items()
    ]


def network_in(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())["run"]["network"]


def sha(run: Path) -> str:
    return redline.load(run).inspect()["params_sha256"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that the command line began."""
    out = tmp_path / "run"
    assert main(["train", "ppo", *words(out, network=f"{HERE}:narrow")]) == 0
    return out


def test_the_command_line_takes_the_network_that_python_takes(run: Path, tmp_path: Path) -> None:
    by_object = redline.train("ppo", network=narrow, out=tmp_path / "object", **SMALL)
    by_name = redline.train("ppo", network=f"{HERE}:narrow", out=tmp_path / "name", **SMALL)
    plain = redline.train("ppo", out=tmp_path / "plain", **SMALL)
    assert (
        network_in(run) == network_in(by_object.out) == network_in(by_name.out) == f"{HERE}:narrow"
    )
    assert network_in(plain.out) is None
    assert sha(run) == sha(by_object.out) == sha(by_name.out) != sha(plain.out)


def test_commands_about_a_run_want_its_network_again(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["--network", f"{HERE}:narrow"]
    for command in (
        ["eval", str(run), "--episodes", "2"],
        ["collect", str(run), "--out", str(tmp_path / "episodes.npz"), "--episodes", "2"],
        ["export", str(run), "--out", str(tmp_path / "policy.pt2"), "--format", "torch"],
    ):
        capsys.readouterr()
        assert main(command) == 2
        assert f"name it again: --network {HERE}:narrow" in capsys.readouterr().err
        assert main([*command, *named]) in (0, None)
    with pytest.raises(ConfigError, match="must not decide what is imported"):
        redline.load(run).evaluate(1)
    with pytest.raises(IncompatibleCheckpointError, match=f"{HERE}:narrow, not with {HERE}:alike"):
        redline.load(run, network=alike)
    given = redline.load(run, network=narrow).evaluate(2)
    assert redline.load(run, network=f"{HERE}:narrow").evaluate(2) == given


def test_a_resumed_run_wants_it_again_and_goes_on_to_the_bit(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = ["train", "--resume", str(run), "--total-env-steps", "512", "--quiet"]
    assert main(longer) == 2
    assert f"name it again: --network {HERE}:narrow" in capsys.readouterr().err
    assert main([*longer, "--network", f"{HERE}:alike"]) == 2
    assert (
        f"trained with the network {HERE}:narrow, not with {HERE}:alike" in capsys.readouterr().err
    )
    with pytest.raises(IncompatibleCheckpointError, match="not with"):
        redline.train(resume=run, network=alike, total_env_steps=512, quiet=True)
    assert main([*longer, "--network", f"{HERE}:narrow"]) == 0
    whole = redline.train(
        "ppo", network=narrow, out=tmp_path / "whole", **SMALL | {"total_env_steps": 512}
    )
    assert sha(run) == sha(whole.out)


def test_a_network_of_the_program_itself_is_given_again_wherever_it_stands(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A script's function is `__main__`'s while it trains, and its module's once it is imported."""

    def local(space: spaces.Space[Any]) -> nn.Module:
        return narrow(space)

    run = redline.train("ppo", network=local, out=tmp_path / "run", **SMALL)
    assert network_in(run.out).startswith("python:")
    with pytest.raises(ConfigError, match=r"give it again from Python.*: network=\.\.\."):
        redline.load(run.out).evaluate(1)
    capfd.readouterr()
    longer = redline.train(resume=run.out, network=narrow, total_env_steps=512)
    assert longer.inspect()["env_steps"] == 512
    said = " ".join(capfd.readouterr().err.split())
    assert f"the network is {HERE}:narrow now, and was python:" in said


def test_a_run_that_does_not_say_its_network_takes_the_callers(run: Path) -> None:
    """As runs did before there was the setting; what does not fit is refused."""
    path = run / "config.json"
    config = json.loads(path.read_text())
    del config["run"]["network"]
    path.write_text(json.dumps(config))
    loaded = redline.load(run, network=narrow, accept_changed_config=True)
    assert loaded.evaluate(1).episodes == 1
    with pytest.raises(IncompatibleCheckpointError, match="do not fit this policy"):
        redline.load(run, accept_changed_config=True).evaluate(1)
    redline.train(
        resume=run, network=narrow, total_env_steps=512, quiet=True, accept_changed_config=True
    )
    assert network_in(run) == f"{HERE}:narrow"


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"encoder": "mlp"}, "encoder='mlp' has no effect in this run: it belongs to network=None"),
        ({"hidden_sizes": "32"}, "hidden_sizes=(32,) has no effect in this run"),
    ],
)
def test_settings_of_the_built_in_networks_are_refused_beside_it(
    option: dict[str, str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(["train", "ppo", *words(out, network=f"{HERE}:narrow", **option)]) == 2
    assert why in capsys.readouterr().err
    assert not out.exists()


def test_a_file_of_the_callers_names_it_and_a_runs_config_does_not(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(SMALL | {"algorithm": "ppo", "network": f"{HERE}:narrow"}))
    by_file = tmp_path / "file"
    assert main(["train", "--config", str(plan), "--out", str(by_file)]) == 0
    assert sha(by_file) == sha(run)
    repeat = ["train", "--config", str(run / "config.json"), "--out", str(tmp_path / "again")]
    capsys.readouterr()
    assert main(repeat) == 2
    assert f"name it again: --network {HERE}:narrow" in capsys.readouterr().err
    assert main([*repeat, "--network", f"{HERE}:narrow"]) == 0
    assert sha(tmp_path / "again") == sha(run)


def test_a_run_directory_imports_no_network(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil_net.py").write_text(EVIL)
    path = run / "config.json"
    config = json.loads(path.read_text())
    config["run"]["network"] = "evil_net:net"
    path.write_text(json.dumps(config))
    for do in (
        lambda: redline.load(run, accept_changed_config=True).evaluate(1),
        lambda: redline.train(resume=run, total_env_steps=512, accept_changed_config=True),
        lambda: redline.train(config=path, out=tmp_path / "again"),
    ):
        with pytest.raises(ConfigError, match="must not decide what is imported"):
            do()
    assert "evil_net" not in sys.modules
    assert not (tmp_path / "EXECUTED").exists()


def test_a_place_that_a_package_offers_by_a_name_is_one_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun by its place, it is gone on with by its place, its name and as an object."""
    point = EntryPoint("small", f"{HERE}:narrow", "redline.networks")
    monkeypatch.setattr(
        registry, "entry_points", lambda *, group: [point] if group == point.group else []
    )
    run = redline.train("ppo", network=f"{HERE}:narrow", out=tmp_path / "run", **SMALL)
    for steps, again in ((320, f"{HERE}:narrow"), (384, "small"), (448, narrow)):
        resumed = redline.train(resume=run.out, network=again, total_env_steps=steps, quiet=True)
        assert resumed.inspect()["env_steps"] == steps


def test_cloning_has_no_layers_of_its_own_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = redline.train("ppo", out=tmp_path / "plain", **SMALL)
    plain.collect(2, tmp_path / "episodes.npz")
    clone = ["train", "bc", "--env", "CartPole-v1", "--data", str(tmp_path / "episodes.npz")]
    clone += ["--network", f"{HERE}:narrow", "--total-env-steps", "512", "--quiet"]
    assert main([*clone, "--hidden-sizes", "32", "--out", str(tmp_path / "one")]) == 2
    assert "hidden_sizes=(32,) has no effect in this run" in capsys.readouterr().err
    assert main([*clone, "--out", str(tmp_path / "two")]) == 0


def test_off_policy_algorithms_and_a_memory_take_it(tmp_path: Path) -> None:
    settings = SMALL | {"network": f"{HERE}:narrow"}
    for name, own in (
        ("dqn", {"learning_starts": 64, "replay_size": 512, "target_update_interval": 32}),
        ("ppo", {"core": "lstm", "core_size": 4}),
    ):
        run = redline.train(name, out=tmp_path / name, **settings | own)
        policy = redline.load(run.out, network=narrow).policy()
        assert any(tuple(p.shape) == (6, 4) for p in policy.parameters())

"""`redline advise` on programs whose iterations are known."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError, ProfileError
from redline.profile.advise.iteration import read_iteration
from redline.profile.commands import advise_main

PROGRAM = """
import sys, time, mujoco, torch
from redline import profile
def busy(name, call, ns):
    with profile.operation(name):
        call(ns)
mujoco.spin(60_000_000)  # no part of the steady state
profile.metadata(num_envs=4)
for i in range(120):
    busy("simulation", mujoco.spin, 1_000_000)
    busy("logging", time.sleep, 0.0005)
    if i >= 20:
        busy("learning", torch.spin, 2_000_000)
"""


@pytest.fixture
def session(profiled: Any) -> Path:
    profiled.run(PROGRAM, calibrate=False)
    return profiled.session


def test_an_env_step_of_known_parts(session: Path) -> None:
    """1 ms of simulation and 2 of learning per step of four envs, once it learns."""
    it = read_iteration(session)
    assert it.num_envs == 4
    assert 4 * 95 <= it.env_steps <= 4 * 101
    # A busy machine stretches what was spun; less it cannot be, but for the ends.
    assert it.part("simulation").level("simulator") > 0.95 * 250
    assert it.part("learning").level("backend") > 0.95 * 500
    assert it.part("logging").level("waiting") > 0.95 * 125
    whole = sum(part.time.us for part in it.parts.values())
    assert whole == pytest.approx(it.total.us, rel=1e-6)


APART = """
import os, time, mujoco, torch
from redline import profile
time.sleep(0.5)  # so that the other process begins later
learns, says = os.pipe()
child = os.fork()
if not child:
    profile.metadata(num_envs=4)
    os.read(learns, 1)
    for _ in range(100):
        with profile.operation("simulation"):
            mujoco.spin(2_000_000)
    raise SystemExit
while not os.waitpid(child, os.WNOHANG)[0]:
    with profile.operation("learning"):
        os.write(says, b"x")
        torch.spin(2_000_000)
"""


def test_env_steps_of_a_process_that_begins_later(profiled: Any) -> None:
    """Each process counts from its own begin: 100 steps of four envs while the other learns."""
    profiled.run(APART, calibrate=False)
    it = read_iteration(profiled.session)
    assert (it.num_envs, it.workers) == (4, 1)
    assert 4 * 80 <= it.env_steps <= 4 * 100
    assert it.begin_s > 0.45


def test_the_command_prints_a_ranking(session: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert advise_main([str(session)]) == 0
    text = capsys.readouterr().out
    assert "us per env step once started up: " in text
    assert "what to change, by what it gains:" in text
    assert advise_main([str(session), "--format", "json"]) == 0
    content = json.loads(capsys.readouterr().out)
    by_name = {each["remedy"]: each for each in content["remedies"]}
    assert by_name["logging"]["predicted_us"] < content["us_per_env_step"]["us"]


def test_a_session_without_env_steps_says_what_is_missing(profiled: Any) -> None:
    profiled.run("sum(range(1000))", calibrate=False)
    with pytest.raises(ProfileError, match="holds no env step"):
        advise_main([str(profiled.session)])


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="one session directory, or --check"):
        advise_main([])
    with pytest.raises(ConfigError, match="at least 2"):
        advise_main(["--check", "true", "true", "--pairs", "1"])
    with pytest.raises(ConfigError, match="no remedy 'magic'"):
        advise_main(["--check", "true", "true", "--remedy", "magic"])
    with pytest.raises(ConfigError, match="ended with status 3"):
        advise_main(["--check", f"{sys.executable} -c 'raise SystemExit(3)'", "true"])


@pytest.mark.parametrize(
    "commands", [("python 'a.py", "true"), ("true", "python 'a.py")], ids=["first", "second"]
)
@pytest.mark.parametrize("remedy", [[], ["--remedy", "fused"]], ids=["told", "given"])
def test_an_open_quote_is_named_before_anything_runs(
    commands: tuple[str, str], remedy: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the command \"python 'a.py\": No closing"):
        advise_main(["--check", *commands, *remedy])
    assert "recording" not in capsys.readouterr().err


def test_a_check_measures_pairs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second program does not log, which took 4 of 5 ms asleep. What it prints is no JSON."""
    script = tmp_path / "program.py"
    script.write_text(
        """
import sys, time
from redline import profile
print("150 env steps", flush=True)
for i in range(150):
    with profile.operation("simulation"):
        time.sleep(0.001)
    with profile.operation("logging"):
        time.sleep(0.004 * (sys.argv[-1] != "--log-never"))
"""
    )
    command = f"{sys.executable} {script}"
    arguments = ["--check", command, f"{command} --log-never", "--pairs", "2", "--format", "json"]
    assert advise_main(arguments) == 0
    printed = capfd.readouterr()
    assert "150 env steps" in printed.err
    content = json.loads(printed.out)
    assert content["remedy"] == "logging"
    assert len(content["before_us"]) == len(content["after_us"]) == 2
    assert content["ratio"] < 0.75
    assert content["verdict"] in {"inside", "outside"}

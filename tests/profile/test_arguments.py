"""The options of a recording in a script's own parser."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from redline import profile
from redline.errors import ConfigError
from redline.profile.analyse.summary import summarize
from redline.profile.arguments import add_options, options_of
from redline.profile.record.options import Options


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--steps", type=int, default=3)
    profile.add_arguments(made)
    return made


def test_nothing_given_is_the_usual_recording() -> None:
    made = argparse.ArgumentParser()
    add_options(made.add_argument)
    assert options_of(made.parse_args([])) == Options()


def test_each_option_of_a_recording_can_be_given() -> None:
    made = argparse.ArgumentParser()
    add_options(made.add_argument)
    named = {name for name in vars(made.parse_args([]))}
    renamed = {"lines": "no_lines", "calibrate": "no_calibration"}
    assert named == {renamed.get(field.name, field.name) for field in fields(Options)}


def test_options_are_read_with_their_prefix() -> None:
    given = [
        *("--profile-mode", "sample", "--profile-for-steps", "5"),
        *("--profile-every-steps", "50", "--profile-no-lines"),
        *("--profile-watch", "a:b", "--profile-watch", "c:d", "--profile-delay-s", "1.5"),
    ]
    arguments = parser().parse_args(given)
    assert options_of(arguments, "profile_") == Options(
        mode="sample",
        for_steps=5,
        every_steps=50,
        lines=False,
        watch=("a:b", "c:d"),
        delay_s=1.5,
    )


def test_without_the_option_nothing_is_recorded() -> None:
    from redline.profile.record.recorder import current

    with profile.start_from(parser().parse_args([])):
        assert current() is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--profile-mode", "light", "--profile-for-s", "30"], "--profile-mode 'light'"),
        (["--profile-mode", "full"], "--profile-mode 'full'"),  # the default, but given
        (["--profile-for-s", "30"], "--profile-for-s 30.0"),
        (["--profile-no-lines"], "--profile-no-lines"),
        (["--profile-watch", "a:b"], "--profile-watch 'a:b'"),
    ],
)
def test_options_without_a_session_are_refused(given: list[str], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        profile.start_from(parser().parse_args(given))
    assert str(refused.value) == (
        f"{named} has no effect without --profile, which names the session to record. "
        "Add --profile DIR, or leave it out"
    )


def test_defaults_of_a_script_are_not_refused_where_nothing_is_recorded() -> None:
    """They hold once `--profile` is given, but nobody gave them."""
    made = parser()
    made.set_defaults(
        profile_mode="sample", profile_for_s="60", profile_watch=("a:b",), profile_no_lines=True
    )
    arguments = made.parse_args(["--steps", "5"])
    profile.start_from(arguments).close()
    assert options_of(arguments, "profile_") == Options(
        mode="sample", for_s=60.0, watch=("a:b",), lines=False
    )
    with pytest.raises(ConfigError, match=r"--profile-watch 'c:d' has no effect"):
        profile.start_from(made.parse_args(["--profile-watch", "c:d"]))


def test_a_wrong_option_is_refused_without_a_session_too() -> None:
    with pytest.raises(ConfigError, match="negative"):
        profile.start_from(parser().parse_args(["--profile-for-s", "-1"]))


def test_a_session_can_be_ended_before_the_program_does(tmp_path: Path) -> None:
    arguments = parser().parse_args(["--profile", str(tmp_path / "s"), "--profile-mode", "light"])
    with profile.start_from(arguments):
        profile.step()
    assert summarize(tmp_path / "s").processes[0].steps == 1


@pytest.mark.parametrize("fork", ["", "import os\nos.fork() or sys.exit(0)\nos.wait()\n"])
def test_two_lines_record_a_script(tmp_path: Path, fork: str) -> None:
    """To its end, sealed; a child that ends by itself does not end the session."""
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse, sys\nfrom redline import profile\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--steps', type=int)\n"
        "profile.add_arguments(parser)\narguments = parser.parse_args()\n"
        f"profile.start_from(arguments)\n{fork}"
        "for _ in range(arguments.steps):\n    profile.step()\n"
    )
    options = ["--steps", "4", "--profile", str(tmp_path / "s"), "--profile-mode", "light"]
    subprocess.run([sys.executable, str(script), *options], check=True, timeout=60)
    summary = summarize(tmp_path / "s")
    assert (summary.mode, summary.processes[0].steps) == ("light", 4)
    assert summary.problems == []

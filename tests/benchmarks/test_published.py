"""The suites of hours: what is run, what survives a kill, and what the page says."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.published import one_run, page, records, references, running
from benchmarks.published.experiments import FIRST, SUITES, Experiment, chosen
from benchmarks.published.running import Cores, Seed

from benchmarks import learning
from redline.envs.cpus import allowed_cpus

ROOT = Path(__file__).parents[2]
TINY = Experiment(
    algorithm="ppo",
    env="CartPole-v1",
    family="classic control",
    env_steps=6_000,
    seeds=2,
    options="--checkpoint-interval 500 --log-interval 500",
    episodes=2,
)


# -- what is run --------------------------------------------------------------------------


def test_every_experiment_has_a_name_of_its_own() -> None:
    names = [experiment.name for experiment in SUITES["published"]]

    assert len(set(names)) == len(names)


def test_the_cheap_and_telling_ones_come_first() -> None:
    """SAC on HalfCheetah takes hours and has a goal; PPO on Ant takes half an hour and has none."""
    names = [experiment.name for experiment in SUITES["published"]]
    wanted = ["ppo-CartPole-v1", "ppo-LunarLander-v3", "sac-HalfCheetah-v5", "sac-Hopper-v5"]

    assert [name for name in names if name in wanted] == wanted
    assert names.index("sac-HalfCheetah-v5") < names.index("ppo-Ant-v5")
    assert SUITES["published"][0].env_steps <= 100_000


def test_the_first_things_people_try_take_no_option_but_the_length() -> None:
    assert len({experiment.env for experiment in FIRST}) == 12
    assert not any(experiment.options for experiment in FIRST)
    assert all(experiment.seeds >= 3 for experiment in FIRST)


def test_a_pattern_restricts_and_one_without_a_match_is_refused() -> None:
    found = chosen("published", ["sac-HalfCheetah*", "ddpg-HalfCheetah-v5"])

    assert sorted(e.name for e in found) == ["ddpg-HalfCheetah-v5", "sac-HalfCheetah-v5"]
    with pytest.raises(SystemExit, match="rainbow-\\*' matches no experiment"):
        chosen("published", ["rainbow-*"])


@pytest.mark.parametrize(
    "name", ["sac-HalfCheetah-v5", "dqn-MinAtar-Asterix-v1", "ppo-ALE-Pong-v5"]
)
def test_a_command_names_nothing_but_what_the_experiment_says(name: str) -> None:
    from redline.command_line.train import parse_train_arguments

    experiment = next(e for e in SUITES["published"] if e.name == name)
    config = parse_train_arguments(experiment.arguments(3, "somewhere")[1:])

    assert config.run.env == experiment.env
    assert config.run.total_env_steps == experiment.env_steps
    assert (config.run.seed, config.run.out) == (3, "somewhere")


# -- many at once -------------------------------------------------------------------------


class Fake:
    """A process that ends after so many looks, with its result if it shall succeed."""

    def __init__(self, seed: Seed, looks: int, succeeds: bool = True) -> None:
        self.seed, self.looks, self.succeeds, self.terminated = seed, looks, succeeds, False

    def poll(self) -> int | None:
        self.looks -= 1
        if self.looks > 0:
            return None
        if self.succeeds:
            self.seed.out.mkdir(parents=True, exist_ok=True)
            one_run.write_whole(self.seed.out / one_run.RESULT, {"return_mean": 1.0})
        return 0 if self.succeeds else 1

    def terminate(self) -> None:
        self.terminated = True

    def wait(self) -> int:
        return 0


def test_each_core_has_one_run_at_a_time_and_finished_ones_are_skipped(tmp_path: Path) -> None:
    seeds = running.seeds_of([TINY, Experiment(**{**vars_of(TINY), "algorithm": "a2c"})], tmp_path)
    seeds[0].out.mkdir(parents=True)
    one_run.write_whole(seeds[0].out / one_run.RESULT, {"return_mean": 1.0})
    held: dict[Cores, Fake] = {}
    begun: list[tuple[str, Cores]] = []

    def begin(seed: Seed, cores: Cores) -> Fake:
        assert cores not in held or held[cores].looks <= 0
        held[cores] = Fake(seed, looks=3)
        begun.append((seed.name, cores))
        return held[cores]

    failed = running.run_all(seeds, [(0,), (1, 2)], begin, poll_s=0)

    assert failed == []
    assert [name for name, _ in begun] == [seed.name for seed in seeds[1:]]
    assert {cores for _, cores in begun} == {(0,), (1, 2)}
    assert all(seed.state() == "finished" for seed in seeds)


def vars_of(experiment: Experiment) -> dict[str, Any]:
    return {name: getattr(experiment, name) for name in experiment.__dataclass_fields__}


def test_a_failed_run_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    seeds = running.seeds_of([TINY], tmp_path)

    failed = running.run_all(
        seeds, [(0,)], lambda seed, cores: Fake(seed, 1, succeeds=seed.seed != 1), poll_s=0
    )

    assert failed == [seeds[0]]
    assert seeds[1].state() == "finished"


def test_a_signal_stops_every_process(tmp_path: Path) -> None:
    begun: list[Fake] = []

    def begin(seed: Seed, cores: Cores) -> Fake:
        begun.append(Fake(seed, looks=1_000))
        return begun[-1]

    running.run_all(
        running.seeds_of([TINY], tmp_path),
        [(0,), (1,)],
        begin,
        stopped=lambda: bool(begun),
        poll_s=0,
    )

    assert [fake.terminated for fake in begun] == [True, True]


def test_a_folder_is_held_by_one_suite(tmp_path: Path) -> None:
    with (
        running.only_one(tmp_path),
        pytest.raises(SystemExit, match="another process"),
        running.only_one(tmp_path),
    ):
        pass


def test_more_jobs_than_cores_are_refused() -> None:
    with pytest.raises(SystemExit, match="a core of its own"):
        running.usable_cores(100_000)


def test_a_run_is_started_on_its_cores_with_as_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **rest: started.append((command, rest["env"]))
    )

    running.start(running.seeds_of([TINY], tmp_path)[0], (4, 6), ["--device", "cuda"])

    ((command, environment),) = started
    assert command[-1] == "--place=--device cuda"
    place = command.index("--cores")
    assert command[place : place + 4] == ["--cores", "4", "6", "--experiment"]
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "2"


def test_cores_are_handed_out_by_the_threads_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five cores, two runs of two threads have four; the fifth stays free."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 0, 1, 2, 7}, raising=False)

    assert running.usable_cores(None) == [(0,), (1,), (2,), (3,), (7,)]
    assert running.usable_cores(None, 2) == [(0, 1), (2, 3)]
    assert running.usable_cores(1, 5) == [(0, 1, 2, 3, 7)]
    with pytest.raises(SystemExit, match=r"--jobs 3: each run has 2 cores .* Give 1 to 2\."):
        running.usable_cores(3, 2)
    for threads in (0, 6):
        with pytest.raises(SystemExit, match=rf"--threads {threads}: .* Give 1 to 5\."):
            running.usable_cores(None, threads)


def test_the_status_reads_no_line_that_is_still_being_written(tmp_path: Path) -> None:
    seed = running.seeds_of([TINY], tmp_path)[0]
    seed.out.mkdir(parents=True)
    (seed.out / "config.json").write_text("{}")
    (seed.out / "progress.csv").write_text("env_steps,return_mean\n1500,22.5\n30")

    assert running.progress_of(seed) == (1500, 22.5)
    assert "begun      25%  return so far         22.5" in running.status([seed])


# -- killed and resumed -------------------------------------------------------------------

_SCRIPT = """
import sys
from pathlib import Path
from benchmarks.published import one_run
from tests.benchmarks.test_published import TINY
out = Path(sys.argv[1])
out.mkdir(parents=True, exist_ok=True)
assert one_run.train(TINY, 1, out) == 0
one_run.write_whole(out / one_run.RESULT, one_run.evaluate(TINY, 1, out))
"""


def _run(out: Path) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.Popen([sys.executable, "-c", _SCRIPT, str(out)], env=env, cwd=ROOT)


def test_a_killed_run_ends_as_one_that_was_never_stopped(tmp_path: Path) -> None:
    from redline.train.runs.run import load_run

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert _run(whole).wait() == 0
    process = _run(killed)
    while not list(killed.glob("checkpoints/step_*")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / one_run.RESULT).exists()

    assert _run(killed).wait() == 0

    hashes = [load_run(out).inspect()["params_sha256"] for out in (whole, killed)]
    results = [json.loads((out / one_run.RESULT).read_text()) for out in (whole, killed)]
    assert hashes[0] == hashes[1]
    assert results[0]["return_mean"] == results[1]["return_mean"]
    assert results[0]["threads"] == 1  # of any number of cores: its update is small
    assert results[0]["cores"] == len(allowed_cpus())
    assert results[0]["settings"]["algo"]["num_epochs"] == 20  # of the preset for CartPole


def test_settings_of_today_are_held_to_those_that_a_run_began_with() -> None:
    then = {"run": {"env": "X"}, "policy": {}, "algo": {"gamma": 0.98, "old": 1}}
    now = {"run": {"env": "X", "new": 0, "newer": 2}, "policy": {}, "algo": {"gamma": 0.99}}

    found = one_run.settings_that_differ(then, now, {"new": 0, "newer": 1})

    assert found == ["newer", "gamma", "old"]


@pytest.mark.parametrize(
    ("name", "differing"),
    [("sac-Pendulum-v1", []), ("sac-CartPole-v1", ["target_entropy_scale"])],
)
def test_what_has_no_effect_on_the_actions_is_no_other_setting(
    name: str, differing: list[str]
) -> None:
    """Rows of Box actions stand although the default for Discrete ones has changed."""
    (experiment,) = chosen("published", [name])
    then = one_run.settings_of(experiment)
    then["algo"]["target_entropy_scale"] = 0.98
    plain = one_run.plain_defaults(experiment)

    assert one_run.settings_that_differ(then, one_run.settings_of(experiment), plain) == differing


def test_where_a_run_computes_is_no_setting_of_its_experiment(tmp_path: Path) -> None:
    """A run begun on a GPU goes on as a seed of the experiment."""
    moved = one_run.settings_of(TINY, ["--device", "auto", "--policy-device", "cpu"])
    one_run.write_whole(tmp_path / one_run.SETTINGS, moved)

    one_run.require_same_settings(tmp_path, TINY)
    place = one_run.place_of(moved, TINY)
    assert place == ["--device", "auto", "--policy-device", "cpu"]
    assert one_run.place_of(one_run.settings_of(TINY), TINY) == []


def test_a_run_from_before_a_setting_was_there_has_no_place() -> None:
    dqn = chosen("published", ["dqn-CartPole-v1"])[0]
    then = one_run.settings_of(dqn)
    del then["algo"]["replay_storage"], then["run"]["eval_device"]

    assert one_run.place_of(then, dqn) == []
    then["algo"]["replay_storage"] = "device"
    assert one_run.place_of(then, dqn) == ["--replay-storage", "device"]


def test_a_result_names_the_gpus_that_were_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: f"G {device}")
    cpu = {"device": "cpu", "policy_device": None}

    assert one_run.gpu_of({"run": cpu}) == {}
    assert one_run.gpu_of({"run": cpu | {"policy_device": "cuda:1"}}) == {"gpu": "G cuda:1"}
    both = {"device": "cuda:0", "env_device": "cuda:0", "policy_device": "cuda:1"}
    assert one_run.gpu_of({"run": both}) == {"gpu": "G cuda:0, G cuda:1"}


_PLACED = ["learning", "--suite", "published", "--only", "ppo-CartPole-v1", "--place"]


def test_a_place_reaches_new_runs_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three seeds the first has begun, and is said to go on where it was."""
    started = []

    def run_all(seeds: list[Seed], cores: list[Cores], begin: Any, **rest: Any) -> list[Seed]:
        begin(seeds[1], cores[0])
        return []

    monkeypatch.setattr(running, "start", lambda seed, cores, place: started.append(place))
    monkeypatch.setattr(running, "run_all", run_all)
    monkeypatch.setattr(records, "collect", lambda *rest: {})
    monkeypatch.setattr(page, "write_page", lambda *rest: None)
    (tmp_path / "ppo-CartPole-v1-seed1").mkdir()
    (tmp_path / "ppo-CartPole-v1-seed1" / "config.json").write_text("{}")
    words = [*_PLACED, "--policy-device cpu", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)

    learning.main()

    assert started == [["--policy-device", "cpu"]]
    assert "ppo-CartPole-v1-seed1: begun, and goes on where it was" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("--device nonsense", "device='nonsense' is no device"),
        ("--replay-storage device", "ppo has no --replay-storage"),
    ],
)
def test_a_place_that_is_not_there_is_refused_before_a_run_begins(
    place: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [*_PLACED, place, "--out", str(tmp_path)])

    with pytest.raises(SystemExit, match=reason):
        learning.main()
    assert not list(tmp_path.glob("ppo*"))


def test_a_place_is_refused_where_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [*_PLACED, "--device cpu", "--status"])

    with pytest.raises(SystemExit):
        learning.main()
    assert "--status and --page begin none" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["--gamma 0.5", "--device", "--device cpu --seed 3", "cuda", "--device 'cuda"]
)
def test_a_place_says_nothing_but_where(text: str) -> None:
    assert one_run.place("--device cuda --env-device cpu")[2:] == ["--env-device", "cpu"]
    with pytest.raises(argparse.ArgumentTypeError, match="the options are --device, --policy"):
        one_run.place(text)


def test_a_run_trains_where_it_was_placed(tmp_path: Path) -> None:
    assert one_run.train(TINY, 1, tmp_path, ["--policy-device", "cpu"]) == 0

    found = one_run.evaluate(TINY, 1, tmp_path)

    assert json.loads((tmp_path / "config.json").read_text())["run"]["policy_device"] == "cpu"
    assert found["place"] == "--policy-device cpu"
    assert found["command"].endswith("--seed 1 --out RUN --policy-device cpu")
    assert "gpu" not in found["machine"]


def test_a_run_of_other_settings_is_refused(tmp_path: Path) -> None:
    settings = one_run.settings_of(TINY)
    settings["algo"]["gamma"] = 0.5
    one_run.write_whole(tmp_path / one_run.SETTINGS, settings)

    with pytest.raises(SystemExit, match="began with other settings of gamma"):
        one_run.require_same_settings(tmp_path, TINY)


# -- records and page ---------------------------------------------------------------------

MACHINE = {"processor": "P", "cores": "2"}


def row(seed: int, value: float) -> dict[str, Any]:
    curve = [[1000, value / 2], [2000, value]]
    return {"seed": seed, "return_mean": value, "machine": MACHINE, "curve": curve}


def record_of(experiment: Experiment, values: list[float]) -> dict[str, Any]:
    """As it would be made today."""
    rows = [row(seed, value) for seed, value in enumerate(values, start=1)]
    return {"settings": one_run.settings_of(experiment), "rows": rows}


def test_rows_of_two_places_share_a_record_that_has_no_place(tmp_path: Path) -> None:
    seeds = running.seeds_of([TINY], tmp_path)
    for seed, place in zip(seeds, ([], ["--device", "meta"]), strict=True):
        seed.out.mkdir()
        (seed.out / "progress.csv").write_text("env_steps,return_mean\n10,1.0\n")
        (seed.out / "config.json").write_text("{}")
        result = row(seed.seed, 1.0) | {"settings": one_run.settings_of(TINY, place)}
        one_run.write_whole(seed.out / one_run.RESULT, result | {"place": " ".join(place)})

    records.collect(seeds, tmp_path / "records")

    record = records.read(tmp_path / "records", TINY.name)
    assert [each["place"] for each in record["rows"]] == ["", "--device meta"]
    assert not {"device", "policy_device"} & record["settings"]["run"].keys()
    assert records.outdated(TINY, record) == []


def test_a_curve_is_thinned_to_means_of_its_parts() -> None:
    """Five rows, one of them empty, in two parts: (1, 3) and (4, 6)."""
    x, y = np.array([1.0, 2, 3, 4, 5]), np.array([1.0, 3, np.nan, 4, 6])

    assert records.thinned(x, y, points=2) == [[2, 2.0], [5, 5.0]]


def settings(**algo: Any) -> dict[str, Any]:
    return {"run": {"env": "X"}, "policy": {}, "algo": algo}


def test_a_record_never_mixes_settings() -> None:
    plain = {"gamma": 0.99, "new": 0}
    first = records.merged(None, settings(gamma=0.9), row(2, 20.0), plain)
    both = records.merged(first, settings(gamma=0.9), row(1, 10.0), plain)
    again = records.merged(both, settings(gamma=0.9, new=0), row(2, 30.0), plain)
    older = records.merged(again, settings(gamma=0.9), row(3, 50.0), plain)
    changed = records.merged(older, settings(gamma=0.99), row(1, 40.0), plain)

    assert [r["return_mean"] for r in both["rows"]] == [10.0, 20.0]
    assert [r["return_mean"] for r in again["rows"]] == [10.0, 30.0]
    assert [r["return_mean"] for r in older["rows"]] == [10.0, 30.0, 50.0]
    assert again["settings"] == older["settings"] == settings(gamma=0.9, new=0)
    assert [r["return_mean"] for r in changed["rows"]] == [40.0]


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    record = records.merged(None, settings(gamma=0.9), row(1, 10.0), {})
    records.write(tmp_path, "ppo-CartPole-v1", record)

    assert records.read(tmp_path, "ppo-CartPole-v1") == record
    assert records.read(tmp_path, "a2c-CartPole-v1") is None


@pytest.mark.parametrize(
    ("value", "expected"), [(275.0, "above"), (211.0, "within"), (209.0, "**below**")]
)
def test_the_zoo_interval_of_ppo_on_lunar_lander_is_242_and_32(value: float, expected: str) -> None:
    experiment = next(e for e in FIRST if e.name == "ppo-LunarLander-v3")

    assert page.beside_zoo(experiment, record_of(experiment, [value] * 3)) == expected


@pytest.mark.parametrize(("seeds", "expected"), [(1, "1 of 3 seeds"), (2, "2 of 3 seeds")])
def test_fewer_than_three_seeds_are_no_verdict(seeds: int, expected: str) -> None:
    experiment = next(e for e in FIRST if e.name == "ppo-LunarLander-v3")
    assert page.beside_zoo(experiment, record_of(experiment, [0.0] * seeds)) == expected


@pytest.mark.parametrize(
    ("name", "value", "expected", "shown"),
    [
        # 3M env_steps here, 10M elsewhere, and one seed is meant.
        ("ppo-ALE-Pong-v5", 20.9, "", "| 20.99 +- 0.11 at 10,000,000 | 20.36 +- 0.20 at 10,000"),
        ("sac-LunarLanderContinuous-v3", 194.0, "", "| 260 +- 65 at 500,000 |"),
        ("sac-LunarLanderContinuous-v3", 196.0, "within, sooner", "| within, sooner |"),
        ("tqc-BipedalWalker-v3", 284.0, "", "| 330 +- 45 at 500,000 |"),
        (
            "tqc-BipedalWalker-v3",
            376.0,
            "above, sooner",
            "| 330 +- 45 at 500,000 | above, sooner |",
        ),
        ("td3-LunarLanderContinuous-v3", 100.0, "**below**", "| 207 +- 68 | **below** |"),
    ],
)
def test_of_a_shorter_run_only_what_it_reaches_is_said(
    name: str, value: float, expected: str, shown: str
) -> None:
    (experiment,) = chosen("published", [name])
    record = record_of(experiment, [value] * 3)

    assert page.beside_zoo(experiment, record) == expected
    assert shown in page.table([experiment], {experiment.name: record})


def test_a_record_of_another_length_is_shown_as_it_was_made() -> None:
    (experiment,) = chosen("published", ["sac-BipedalWalker-v3"])
    record = record_of(experiment, [400.0] * 3)
    record["settings"]["run"]["total_env_steps"] = 70_000

    shown = page.table([experiment], {experiment.name: record})
    assert "| BipedalWalker-v3 | 70,000 |" in shown
    assert "| 298 +- 33 at 500,000 |" in shown
    assert "--total-env-steps 70000 " in page.commands([experiment], {experiment.name: record})
    assert page.beside_zoo(experiment, record) == ""


def test_a_finished_run_of_other_settings_does_not_replace_a_newer_record(tmp_path: Path) -> None:
    seed = running.seeds_of([TINY], tmp_path)[0]
    seed.out.mkdir()
    (seed.out / "progress.csv").write_text("env_steps,return_mean\n10,1.0\n")
    before = one_run.settings_of(TINY)
    before["algo"]["gamma"] = 0.5
    one_run.write_whole(seed.out / one_run.RESULT, row(1, 1.0) | {"settings": before})
    newer = record_of(TINY, [2.0, 3.0])
    records.write(tmp_path / "records", TINY.name, newer)

    assert records.collect([seed], tmp_path / "records") == {seed.name: ["gamma"]}
    assert records.read(tmp_path / "records", TINY.name) == newer


@pytest.mark.parametrize(
    ("name", "differing"), [("sac-Acrobot-v1", ["backup_entropy"]), ("sac-Pendulum-v1", [])]
)
def test_sac_from_before_backup_entropy_had_it_with_discrete_actions(
    name: str, differing: list[str]
) -> None:
    (experiment,) = chosen("published", [name])
    now, plain = one_run.settings_of(experiment), one_run.plain_defaults(experiment)
    then = one_run.settings_of(experiment)
    del then["algo"]["backup_entropy"]

    assert one_run.settings_that_differ(then, now, plain) == differing
    both = records.merged({"settings": now, "rows": [row(1, 9.0)]}, then, row(2, 1.0), plain)
    assert len(both["rows"]) == (1 if differing else 2)


def test_each_row_names_the_commits_that_made_it() -> None:
    rows = [row(1, 0.0) | {"revision": "abc"}, row(2, 0.0), row(3, 0.0) | {"revision": "def"}]

    assert page.revisions({"rows": rows}) == "abc, def"
    assert page.revisions({"rows": [rows[0], rows[0] | {"seed": 2}]}) == "abc"
    assert page.revisions({"rows": [rows[1]]}) == ""
    longer = row(4, 0.0) | {"revision": "abcd"}
    assert page.revisions({"rows": [rows[0], longer]}) == "abcd"


def test_the_page_names_runs_of_more_than_one_thread() -> None:
    one, two = row(1, 0.0), row(2, 0.0) | {"cores": 2, "threads": 2}
    small = row(3, 0.0) | {"cores": 2, "threads": 1}  # its update was too small for both

    assert page.threads({"a": {"rows": [one]}}) == "One core and one thread per run."
    assert page.threads({"a": {"rows": [one]}, "b": {"rows": [one, two, small]}}) == (
        "One core and one thread per run. b, seed 2: 2 threads on 2 cores. "
        "b, seed 3: 1 thread on 2 cores."
    )


def test_the_page_names_runs_that_computed_elsewhere() -> None:
    one, two = row(1, 0.0), row(2, 0.0) | {"place": "--device cuda"}

    assert page.places({"a": {"rows": [one]}}) == ""
    lines = page.places({"a": {"rows": [two]}, "b": {"rows": [one, two]}}).splitlines()
    assert lines[1] == "These ran elsewhere than their command says:"
    assert lines[3] == "- `--device cuda`: a, b (of its seeds 2)"


def test_numbers_have_the_digits_that_say_something() -> None:
    """Seeds have those of their mean; a deviation that is not 0 is not shown as 0."""
    assert page.number(9.69, 150.0) == "10"
    assert page.number(0.694) == "0.69"
    assert page.spread(122.4, 150.0) == "122"
    assert page.spread(0.48, 61.6) == "0.48"
    assert page.spread(0.0, 500.0) == "0"


def test_every_published_figure_is_a_mean_and_a_deviation() -> None:
    for experiment in SUITES["published"]:
        for figure in references.published(experiment.algorithm, experiment.env).values():
            assert len(page.interval(figure)) == 2
    assert page.interval("2,326 +- 1,130") == (2326.0, 1130.0)


def test_the_page_says_what_was_reached_and_what_was_not_run(tmp_path: Path) -> None:
    """Three of five seeds of PPO on LunarLander: mean 220, deviation 20, goal 200."""
    experiments = [e for e in FIRST if e.name in ("ppo-LunarLander-v3", "dqn-LunarLander-v3")]
    rows = [row(1, 200.0), row(2, 220.0), row(3, 240.0)]
    settings = one_run.settings_of(next(e for e in experiments if e.algorithm == "ppo"))
    record = {"settings": settings, "rows": [each | {"revision": "abc1234"} for each in rows]}
    records.write(tmp_path / "published", "ppo-LunarLander-v3", record)

    (tmp_path / "page.md").write_text(f"# Mine\n{page.BEGIN}\nold\n{page.END}\nMy end\n")
    text = page.write_page("first", experiments, tmp_path, tmp_path / "page.md").read_text()

    line = (
        "| ppo | LunarLander-v3 | 1,000,000 | 200, 220, 240 | 220 +- 20 | mean 200: reached "
        "(2 of 5 seeds to come) | 242 +- 32 | within | abc1234 |"
    )
    assert line in text
    assert text.startswith("# Mine\n")
    assert text.endswith("My end\n")
    assert "old" not in text
    assert "- LunarLander-v3: ppo (2 of 5 seeds), dqn\n" in text
    assert "redline train ppo --env LunarLander-v3 --total-env-steps 1000000" in text
    assert "| processor | P |" in text
    assert "![Box2D](./first-box2d.png)" in text
    assert (tmp_path / "first-box2d.png").stat().st_size < 60_000
    assert "other settings" not in text

    settings["algo"]["gamma"] = 0.5  # as if the preset had been tuned since
    records.write(tmp_path / "published", "ppo-LunarLander-v3", record)
    text = page.write_page("first", experiments, tmp_path, tmp_path / "page.md").read_text()
    assert "- ppo-LunarLander-v3: The row was made with other settings of gamma than" in text

"""Learning curves: grouping, interpolation and intervals by hand, and the pictures."""

import json
from pathlib import Path
from typing import Any, cast

import matplotlib.image
import numpy as np
import pytest

from redline.cli import main
from redline.errors import ConfigError, RunDirectoryError
from redline.train.progress.curves import (
    independent_runs,
    learning_curves,
    load_progress,
    load_setting,
    plot_runs,
    setting_labels,
    summary_note,
)


def make_run(
    directory: Path,
    rows: list[tuple[float, float | None]],
    *,
    algorithm: str = "ppo",
    env: str = "CartPole-v1",
    seed: int = 1,
    **algo: Any,
) -> Path:
    directory.mkdir(parents=True)
    run = {"env": env, "seed": seed, "out": str(directory), "quiet": seed == 1}
    config = {"format_version": 1, "algorithm": algorithm, "run": run, "algo": algo}
    (directory / "config.json").write_text(json.dumps(config))
    lines = ["env_steps,return_mean"]
    lines += [f"{x!r},{'' if y is None else repr(y)}" for x, y in rows]
    (directory / "progress.csv").write_text("\n".join(lines) + "\n")
    return directory


def line(slope: float, start: int = 0, stop: int = 100, step: int = 10) -> list[Any]:
    return [(x, slope * x) for x in range(start, stop + 1, step)]


def test_load_progress_reads_numbers_and_empty_cells(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [(10, None), (20, 0.1), (30, float("nan"))])
    with open(run / "progress.csv", "a") as file:
        file.write("40,1")  # being written
    columns = load_progress(run)
    assert columns["env_steps"].tolist() == [10, 20, 30]
    assert np.isnan(columns["return_mean"]).tolist() == [True, False, True]
    assert columns["return_mean"][1] == 0.1


@pytest.mark.parametrize("text", ["", "env_steps,return_mean\n", "env_steps,return_mean\n10,1"])
def test_empty_progress_is_refused(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run", [])
    (run / "progress.csv").write_text(text)
    with pytest.raises(RunDirectoryError, match="has no rows yet"):
        load_progress(run)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"has no progress\.csv"):
        load_progress(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"config\.json cannot be read"):
        load_setting(tmp_path)
    run = make_run(tmp_path / "run", [(10, 1.0)])
    for row in ("20,high\n", "20\n", f"20,{'1' * 131_073}\n"):  # the last: more than csv reads
        (run / "progress.csv").write_text("env_steps,return_mean\n10,1\n" + row)
        with pytest.raises(RunDirectoryError, match="is damaged"):
            load_progress(run)


def test_seeds_of_a_setting_become_a_mean_with_an_interval(tmp_path: Path) -> None:
    """Slopes 1 and 3 on different rows: the mean has slope 2, and of two runs the bootstrap
    interval spans both. The grid is where both have values: 10 to 90."""
    runs = [
        make_run(tmp_path / "a", [(0, None), *line(1, 10, 100, 10)], seed=1),
        make_run(tmp_path / "b", line(3, 5, 90, 17), seed=2),
    ]
    (curve,) = learning_curves(runs)
    assert curve.num_runs == 2
    assert curve.label == "ppo, CartPole-v1"
    assert (curve.x[0], curve.x[-1]) == (10, 90)
    np.testing.assert_allclose(curve.y, 2 * curve.x)
    np.testing.assert_allclose(curve.low, curve.x)
    np.testing.assert_allclose(curve.high, 3 * curve.x)


def test_interquartile_mean_leaves_the_odd_run_out(tmp_path: Path) -> None:
    slopes = [1, 2, 4, 100]
    runs = [make_run(tmp_path / str(s), line(s), seed=s) for s in slopes]
    (curve,) = learning_curves(runs, statistic="iqm")
    np.testing.assert_allclose(curve.y, 3 * curve.x)


def test_below_four_runs_the_interquartile_mean_is_called_the_mean(tmp_path: Path) -> None:
    """Of three runs a quarter is none: the curve is the mean 3 x, and says so."""
    runs = [make_run(tmp_path / str(s), line(s), seed=s) for s in (1, 2, 6)]
    said: list[str] = []
    (curve,) = learning_curves(runs, statistic="iqm", warn=said.append)
    np.testing.assert_allclose(curve.y, 3 * curve.x)
    assert curve.statistic == "mean"
    assert summary_note([curve]) == "mean, 95% bootstrap interval"
    assert len(said) == 1
    assert "of 3 that is none" in said[0]
    assert "Give at least 4 seeds" in said[0]
    more = [make_run(tmp_path / f"b{s}", line(s), seed=s, lr=2) for s in (1, 2, 3, 4)]
    few, many = learning_curves([*runs, *more], statistic="iqm")
    assert (few.statistic, many.statistic) == ("mean", "iqm")
    assert summary_note([many]) == "interquartile mean, 95% bootstrap interval"
    assert "mean below 4 runs" in (summary_note([few, many]) or "")


def test_a_seed_counts_once(tmp_path: Path) -> None:
    """Seed 1 lies there twice, the second time longer; seed 2 has slope 3: the mean is 2 x."""
    short = make_run(tmp_path / "short", line(1, stop=50), seed=1)
    whole = make_run(tmp_path / "whole", line(1), seed=1)
    other = make_run(tmp_path / "other", line(3), seed=2)
    said: list[str] = []
    (curve,) = learning_curves([short, whole, other, other], warn=said.append)
    assert curve.num_runs == 2
    assert curve.x[-1] == 100
    np.testing.assert_allclose(curve.y, 2 * curve.x)
    assert len(said) == 1
    assert f"{short} has the same seed 1 as {whole}" in said[0]


def test_a_mean_over_runs_counts_a_seed_once(tmp_path: Path) -> None:
    """Seed 1 lies there twice, the first time shorter, and once with another learning rate."""
    short = make_run(tmp_path / "short", line(1, stop=50), seed=1)
    whole = make_run(tmp_path / "whole", line(1), seed=1)
    other = make_run(tmp_path / "other", line(3), seed=2)
    setting = make_run(tmp_path / "setting", line(3), seed=1, lr=2)
    said: list[str] = []
    found = independent_runs([short, whole, other, setting], said.append)
    assert found == [whole, other, setting]
    assert len(said) == 1
    assert said[0].endswith("not independent runs. It is left out of the mean.")
    assert f"{short} has the same seed 1 as {whole}" in said[0]


def test_the_command_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / name, line(1), seed=1) for name in ("a", "b")]
    assert main(["plot", *map(str, runs), "--out", str(tmp_path / "c.svg")]) == 0
    assert "same seed 1" in capsys.readouterr().err


def test_one_run_keeps_its_own_rows(tmp_path: Path) -> None:
    (curve,) = learning_curves([make_run(tmp_path / "a", [(1, 2.0), (4, None), (7, 5.0)])])
    assert curve.x.tolist() == [1, 7]
    assert curve.y.tolist() == curve.low.tolist() == curve.high.tolist() == [2, 5]


def test_smoothing_averages_backwards(tmp_path: Path) -> None:
    """Window 2 over 1, 3, 8: 1, 2, 5.5."""
    (curve,) = learning_curves([make_run(tmp_path / "a", [(1, 1), (2, 3), (3, 8)])], smooth=2)
    assert curve.y.tolist() == [1, 2, 5.5]


def test_settings_are_told_apart_by_what_differs(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", line(1), gamma=0.9, lr=1),
        make_run(tmp_path / "b", line(1), gamma=0.9, lr=1, seed=2),
        make_run(tmp_path / "c", line(1), gamma=0.9, lr=2),
        make_run(tmp_path / "d", line(1), algorithm="a2c", vf=1),
    ]
    curves = learning_curves(runs)
    assert [(curve.label, curve.num_runs) for curve in curves] == [
        ("ppo, lr=1", 2),
        ("ppo, lr=2", 1),
        ("a2c", 1),
    ]


def test_what_a_run_finds_on_its_machine_makes_no_other_setting(tmp_path: Path) -> None:
    """One seed had two threads and fell back to eager updates, and one was made longer: mean 2x."""
    runs = [make_run(tmp_path / str(seed), line(2 * seed - 1), seed=seed) for seed in (1, 2)]
    of_the_run = (
        {"num_threads": 2, "accelerate": "eager", "total_env_steps": 100},
        {"num_threads": 1, "accelerate": "cpu", "total_env_steps": 200},
    )
    for run, own in zip(runs, of_the_run, strict=True):
        config = json.loads((run / "config.json").read_text())
        config["run"] |= own
        if own["total_env_steps"] == 200:
            config["changed"] = ["total_env_steps"]
        (run / "config.json").write_text(json.dumps(config))
    (curve,) = learning_curves(runs)
    assert (curve.label, curve.num_runs) == ("ppo, CartPole-v1", 2)
    np.testing.assert_allclose(curve.y, 2 * curve.x)


def test_the_same_seeds_by_two_engines_are_compared(tmp_path: Path) -> None:
    """Each engine ran seeds 1 and 2: two curves. Threads alone make none."""
    runs = []
    for engine, slope in (("eager", 1), ("cpu", 3)):
        for seed in (1, 2):
            run = make_run(tmp_path / f"{engine}{seed}", line(slope), seed=seed)
            config = json.loads((run / "config.json").read_text())
            config["run"] |= {"accelerate": engine, "num_threads": seed}
            (run / "config.json").write_text(json.dumps(config))
            runs.append(run)
    curves = learning_curves(runs)
    assert [(curve.label, curve.num_runs) for curve in curves] == [
        *(("accelerate=eager", 2), ("accelerate=cpu", 2))
    ]


def changed_run(path: Path, slope: int, seed: int, **settings: Any) -> Path:
    run = make_run(path, line(slope), seed=seed)
    config = json.loads((run / "config.json").read_text())
    config["run"] |= settings
    (run / "config.json").write_text(json.dumps(config))
    return run


def test_runs_that_were_to_be_shorter_are_curves_of_their_own(tmp_path: Path) -> None:
    """One line would end where the shortest does, without a word."""
    runs = [
        changed_run(tmp_path / str(seed), 1, seed, total_env_steps=length)
        for seed, length in ((1, 100), (2, 500), (3, 500))
    ]
    found = {curve.label: curve.num_runs for curve in learning_curves(runs)}
    assert found == {"total_env_steps=100": 1, "total_env_steps=500": 2}


def test_each_curve_has_a_name_beside_runs_of_two_engines(tmp_path: Path) -> None:
    runs = [
        changed_run(tmp_path / engine, 1, 1, accelerate=engine, collector="serial")
        for engine in ("eager", "cpu")
    ]
    runs.append(changed_run(tmp_path / "async", 1, 1, accelerate="cpu", collector="async"))
    labels = [curve.label for curve in learning_curves(runs)]
    assert labels == [
        "collector=serial, accelerate=eager",
        "collector=serial, accelerate=cpu",
        "collector=async",
    ]


def test_labels_name_no_more_than_is_needed() -> None:
    """A preset that changes five settings is named once."""
    base = {"algorithm": "ppo", "run.env": "A"}
    presets = [{**base, "run.preset": name, "algo.lr": i} for i, name in enumerate("xy")]
    assert setting_labels(presets) == ["preset=x", "preset=y"]
    assert setting_labels([base, {**base, "run.env": "B"}]) == ["A", "B"]
    assert setting_labels([{}]) == ["run"]


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_pictures_are_written_and_repeat(tmp_path: Path, suffix: str) -> None:
    runs = [make_run(tmp_path / f"r{s}", line(s), seed=s) for s in range(3)]
    runs.append(make_run(tmp_path / "other", line(2), algorithm="a2c"))
    first = plot_runs(runs, tmp_path / "new" / f"first{suffix}")
    second = plot_runs(runs, tmp_path / f"second{suffix}")
    assert first.read_bytes() == second.read_bytes()
    assert len(first.read_bytes()) > 2000
    assert not list(tmp_path.rglob(".tmp-*"))
    if suffix == ".svg":
        assert b"<svg" in first.read_bytes()
    if suffix == ".pdf":
        assert first.read_bytes().startswith(b"%PDF")
    if suffix == ".png":
        picture = matplotlib.image.imread(first)
        blue = np.abs(picture[..., :3] - np.array([0x00, 0x72, 0xB2]) / 255).max(-1) < 0.02
        assert blue.sum() > 500, "the line of the first setting is drawn"


def test_many_settings_and_single_rows_can_be_drawn(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"r{i}", [(10, 1.0 * i)], lr=i) for i in range(9)]
    assert plot_runs(runs, tmp_path / "many.png", title="nine").stat().st_size > 2000


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", line(1))
    with pytest.raises(ConfigError, match=r"ends in '\.jpg'.*\.png, \.pdf, \.svg"):
        plot_runs([run], tmp_path / "out.jpg")
    with pytest.raises(ConfigError, match=r"no column 'reward'.*env_steps, return_mean"):
        plot_runs([run], tmp_path / "out.png", y="reward")
    with pytest.raises(ConfigError, match="at least one run directory"):
        plot_runs([], tmp_path / "out.png")
    with pytest.raises(ConfigError, match="smooth=0"):
        plot_runs([run], tmp_path / "out.png", smooth=0)
    with pytest.raises(ConfigError, match="statistic='median'"):
        plot_runs([run], tmp_path / "out.png", statistic=cast(Any, "median"))
    early = make_run(tmp_path / "early", line(1, 0, 10), seed=2)
    late = make_run(tmp_path / "late", line(1, 50, 90), seed=3)
    with pytest.raises(ConfigError, match="share no range"):
        plot_runs([early, late], tmp_path / "out.png")
    silent = make_run(tmp_path / "silent", [(10, None)], seed=4)
    with pytest.raises(RunDirectoryError, match="no value of return_mean yet"):
        plot_runs([silent], tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()

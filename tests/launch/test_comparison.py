"""Comparisons: scores by hand, statistics against numbers worked out independently, files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import redline
from redline.cli import main
from redline.errors import ConfigError, RunDirectoryError
from redline.launch.comparison import (
    OVERALL,
    compare,
    improvements,
    probability_above,
    summarize,
)
from redline.launch.comparison_figures import _curves
from redline.launch.scores import ScoredRun, score_of, scored_runs


def _run(folder: Path, algorithm: str, env: str, rate: float, seed: int, top: float) -> Path:
    """A run directory whose return rises evenly to `top`."""
    path = folder / f"{algorithm}-{env}-{rate}-{seed}"
    path.mkdir(parents=True)
    run = {"env": env, "seed": seed, "total_env_steps": 1000}
    config = {"algorithm": algorithm, "run": run, "algo": {"learning_rate": rate}}
    (path / "config.json").write_text(json.dumps(config))
    rows = [f"{step},{step / 500},{top * step / 1000}\n" for step in range(100, 1001, 100)]
    (path / "progress.csv").write_text("env_steps,wall_time_s,return_mean\n" + "".join(rows))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(7)
    for env, scale in (("CartPole-v1", 1.0), ("Acrobot-v1", 10.0)):
        for rate in (0.001, 0.0003):
            for seed in range(1, 6):
                _run(folder, "ppo", env, rate, seed, scale * (rate * 1e5 + rng.normal(0, 60)))
    return folder


def test_scores_worked_out_by_hand() -> None:
    """Rows at 0, 50, 95, 100: the last tenth holds the last two."""
    steps, values = np.array([0.0, 50.0, 95.0, 100.0]), np.array([np.nan, 4.0, 8.0, 6.0])
    columns = {"env_steps": steps, "return_mean": values}
    assert score_of(columns, "final") == 7.0
    assert score_of(columns, "best") == 8.0
    # (45 * (4 + 8) / 2 + 5 * (8 + 6) / 2) / 50
    assert score_of(columns, "area") == pytest.approx(6.1)


def test_groups_are_what_differs_within_an_environment(runs: Path) -> None:
    found = scored_runs([runs])
    assert {run.group for run in found} == {"learning_rate=0.001", "learning_rate=0.0003"}
    assert len(found) == 20
    with pytest.raises(ConfigError, match="no run has a setting 'gama'"):
        scored_runs([runs], by=["gama"])
    with pytest.raises(RunDirectoryError, match="holds no run and no sweep"):
        scored_runs([runs / "none"])


def test_one_seed_counts_once(tmp_path: Path) -> None:
    _run(tmp_path / "a", "ppo", "CartPole-v1", 0.1, 1, 1.0)
    _run(tmp_path / "b", "ppo", "CartPole-v1", 0.1, 1, 2.0)
    said: list[str] = []
    assert len(scored_runs([tmp_path], warn=said.append)) == 1
    assert "has the same setting and seed 1" in said[0]


def test_a_group_holds_runs_of_several_settings_that_share_a_seed(tmp_path: Path) -> None:
    """Of a sweep over learning rates grouped by algorithm, one run per seed was left."""
    for rate in (0.1, 0.2):
        for seed in (1, 2):
            _run(tmp_path, "ppo", "CartPole-v1", rate, seed, 10 * rate + seed)
    said: list[str] = []
    found = scored_runs([tmp_path], by=["algorithm"], score="best", warn=said.append)
    assert sorted(run.score for run in found) == [2.0, 3.0, 3.0, 4.0]
    assert said == []


def test_what_follows_from_the_length_makes_no_other_setting(tmp_path: Path) -> None:
    """Intervals do; two lengths of one seed are one run that got further."""
    for length in (10, 20):
        path = _run(tmp_path / str(length), "ppo", "CartPole-v1", 0.1, 1, length)
        config = json.loads((path / "config.json").read_text())
        config["run"] |= {"total_env_steps": length, "log_interval": length // 10}
        config["changed"] = ["device"][: length % 3]
        (path / "config.json").write_text(json.dumps(config))
    for by in (None, ["algorithm"]):
        assert len(scored_runs([tmp_path], by=by)) == 1


def test_what_a_run_finds_on_its_machine_makes_no_other_group(tmp_path: Path) -> None:
    """Of loose runs, one that fell back to eager updates was a group of its own."""
    for seed, engine in ((1, "cpu"), (2, "eager")):
        path = _run(tmp_path, "ppo", "CartPole-v1", 0.1, seed, 1.0)
        config = json.loads((path / "config.json").read_text())
        config["run"]["accelerate"] = engine
        (path / "config.json").write_text(json.dumps(config))
    assert [run.group for run in scored_runs([tmp_path])] == ["ppo", "ppo"]


def test_what_is_asked_for_makes_groups_of_the_same_seeds(tmp_path: Path) -> None:
    """Each seed by two engines: the second of each was left out as the same run."""
    for engine in ("cpu", "eager"):
        for seed in (1, 2):
            path = _run(tmp_path / engine, "ppo", "CartPole-v1", 0.1, seed, 1.0)
            config = json.loads((path / "config.json").read_text())
            config["run"]["accelerate"] = engine
            (path / "config.json").write_text(json.dumps(config))
    groups = [run.group for run in scored_runs([tmp_path], by=["accelerate"])]
    assert sorted(groups) == [*["accelerate=cpu"] * 2, *["accelerate=eager"] * 2]


def test_area_needs_no_function_that_an_older_numpy_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0, 50 and 100 steps: (50 * (4 + 8) / 2 + 50 * (8 + 6) / 2) / 100."""
    monkeypatch.delattr(np, "trapezoid", raising=False)
    columns = {"env_steps": np.array([0.0, 50.0, 100.0]), "return_mean": np.array([4.0, 8.0, 6.0])}
    assert score_of(columns, "area") == 6.5


def test_environments_count_alike_over_all(tmp_path: Path) -> None:
    """Two groups that are equal in each environment, one run more often here, one there."""
    for env, scores in {
        "a": {0.1: [5.0, 5.0, 5.0], 0.2: [5.0], 0.3: [1.0]},
        "b": {0.1: [1.0], 0.2: [1.0, 1.0, 1.0], 0.3: [5.0]},
    }.items():
        for rate, tops in scores.items():
            for seed, top in enumerate(tops):
                _run(tmp_path, "ppo", env, rate, seed, top)
    overall = [s for s in summarize(scored_runs([tmp_path], score="best")) if s.env == OVERALL]
    # Scaled, each has 1 in one environment and 0 in the other. The first was 0.75, the second 0.25.
    assert len(overall) == 3
    for each in overall:
        assert (each.mean, each.mean_low, each.iqm) == pytest.approx((0.5, 0.5, 0.5))


@pytest.mark.parametrize("smooth", [0, -1])
def test_curves_of_no_rows_are_refused(smooth: int, runs: Path) -> None:
    with pytest.raises(ConfigError, match=f"smooth={smooth} must be at least 1"):
        compare(runs, smooth=smooth)


def test_unfinished_runs_are_named_in_the_table_and_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run of 1,000 env_steps that was killed after 300 was scored as the others, unsaid."""
    _run(tmp_path, "ppo", "CartPole-v1", 0.1, 1, 10.0)
    killed = _run(tmp_path, "ppo", "CartPole-v1", 0.1, 2, 10.0)
    rows = (killed / "progress.csv").read_text().splitlines(keepends=True)
    (killed / "progress.csv").write_text("".join(rows[:4]))
    stopped = _run(tmp_path, "ppo", "CartPole-v1", 0.1, 3, 10.0)
    (stopped / "progress.csv").write_text("".join(rows[:4]))
    (stopped / "history.jsonl").write_text(
        json.dumps({"event": "ended", "state": "stopped"}) + "\n"
    )
    main(["compare", str(tmp_path), "--out", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert said.err.count("not finished") == 1
    assert f"{killed} is killed after 300 env_steps" in said.err
    assert "3 (1 unfinished)" in said.out
    main(["compare", str(tmp_path), "--out", str(tmp_path / "out"), "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    assert {run["seed"]: run["state"] for run in found["runs"]} == {
        1: "complete", 2: "killed", 3: "stopped",
    }  # fmt: skip
    assert [each["unfinished"] for each in found["summaries"]] == [1]


def _independent_interval(strata: list[np.ndarray], iqm: bool) -> np.ndarray:
    """The stratified bootstrap as plain loops over the draws that scipy makes."""
    rng, drawn = np.random.default_rng(0), []
    for begin in range(0, 2000, 64):
        size = min(64, 2000 - begin)
        parts = [s[rng.integers(0, len(s), (size, len(s)))] for s in strata]
        for row in np.concatenate(parts, axis=-1):
            ordered = np.sort(row)
            cut = len(ordered) // 4 if iqm else 0
            drawn.append(ordered[cut : len(ordered) - cut].mean())
    return np.percentile(drawn, [2.5, 97.5])


def test_means_and_intervals_equal_an_independent_computation(runs: Path) -> None:
    found = scored_runs([runs])
    group = "learning_rate=0.001"
    by_env = {
        env: np.array([r.score for r in found if (r.env, r.group) == (env, group)])
        for env in ("CartPole-v1", "Acrobot-v1")
    }
    summaries = {(each.env, each.group): each for each in summarize(found)}
    for env, scores in by_env.items():
        each, ordered = summaries[env, group], np.sort(scores)
        assert each.mean == pytest.approx(scores.sum() / 5, abs=1e-6)
        assert each.iqm == pytest.approx(ordered[1:4].sum() / 3, abs=1e-6)
        low, high = _independent_interval([scores], iqm=True)
        assert (each.iqm_low, each.iqm_high) == pytest.approx((low, high), abs=1e-6)
    scaled = []
    for env in sorted({run.env for run in found}, key=[run.env for run in found].index):
        every = np.array([run.score for run in found if run.env == env])
        scaled.append((by_env[env] - every.min()) / (every.max() - every.min()))
    overall = summaries[OVERALL, group]
    ordered = np.sort(np.concatenate(scaled))
    assert overall.iqm == pytest.approx(ordered[2:8].mean(), abs=1e-6)
    low, high = _independent_interval(scaled, iqm=False)
    assert (overall.mean_low, overall.mean_high) == pytest.approx((low, high), abs=1e-6)


def test_probability_of_improvement_by_hand() -> None:
    """Of 2 x 3 pairs three are larger and one is a tie; the other environment has 1 of 1."""
    first, second = np.array([3.0, 1.0]), np.array([0.0, 1.0, 5.0])
    # 3 > 0, 3 > 1, 1 > 0, and 1 = 1
    assert probability_above(first, second) == pytest.approx(3.5 / 6)
    runs = [
        ScoredRun(path=Path("x"), env=env, group=group, seed=i, env_steps=1, score=score)
        for env, group, scores in (
            ("a", "one", first),
            ("a", "two", second),
            ("b", "one", [2.0]),
            ("b", "two", [1.0]),
        )
        for i, score in enumerate(scores)
    ]
    found = {(each.first, each.second): each for each in improvements(runs)}
    assert found["one", "two"].probability == pytest.approx((3.5 / 6 + 1.0) / 2)
    assert found["two", "one"].probability == pytest.approx(1 - (3.5 / 6 + 1.0) / 2)
    assert found["one", "two"].low <= found["one", "two"].probability <= found["one", "two"].high


def test_files_and_json(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["compare", str(runs), "--out", str(out), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == json.loads((out / "comparison.json").read_text())
    assert {path.name for path in out.iterdir()} == {
        *(f"{name}.{end}" for name in ("curves", "curves_by_wall_time", "scores", "improvement")
          for end in ("png", "svg")),
        *("runs.csv", "summary.csv", "improvement.csv", "comparison.json"),
    }  # fmt: skip
    assert len((out / "runs.csv").read_text().splitlines()) == 21
    assert main(["compare", str(runs), "--out", str(out)]) == 0
    assert "probability of improvement" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="no format 'jpg'"):
        compare(runs, out, formats=["jpg"])
    assert redline.compare is compare


def test_a_group_is_in_the_legend_once_and_one_run_has_no_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group with 2 runs in one environment and 3 in another is one line of the legend."""
    for env, seeds in (("CartPole-v1", (1, 2)), ("Acrobot-v1", (1, 2, 3))):
        for seed in seeds:
            _run(tmp_path, "ppo", env, 0.1, seed, 200.0 + seed)
    _run(tmp_path, "a2c", "Acrobot-v1", 0.1, 1, 150.0)
    compared = compare(tmp_path, formats=["svg"])
    legend = _curves(compared, "env_steps", 1).legends[0]
    assert sorted(text.get_text() for text in legend.get_texts()) == ["a2c", "ppo (2 to 3 runs)"]
    assert legend.get_title().get_text() == "mean, 95% bootstrap interval"
    assert main(["compare", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    line = next(row for row in capsys.readouterr().out.splitlines() if "a2c" in row)
    assert "[" not in line

"""Options as people type them, the help that tells of them, and what completes them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from redline.algos.presets import SOURCES
from redline.algos.registry import algorithm_names, declaration
from redline.cli import main
from redline.command_line.completion import completions
from redline.command_line.options import as_parsed, values_of, without
from redline.command_line.resume import ResumeArguments, resume
from redline.command_line.train import parse_train_arguments
from redline.command_line.train_help import GROUPS, OFTEN_USED, grouped
from redline.errors import ConfigError
from redline.train.outlines import setting_docs
from redline.train.settings import PolicySettings, RunConfig, RunSettings


def test_whole_numbers_may_have_an_exponent() -> None:
    config = parse_train_arguments(
        [
            "ppo",
            "--env",
            "A-v0",
            "--total-env-steps",
            "1e5",
            "--learning-rate",
            "1e-3",
            "--seed=2e0",
        ]
    )
    assert (config.run.total_env_steps, config.run.seed) == (100_000, 2)
    assert config.algo.learning_rate == 1e-3


def test_lists_may_have_commas_and_options_may_be_repeated() -> None:
    config = parse_train_arguments(
        ["ppo", "--hidden-sizes", "8,4", "2", "--log-info", "a,b", "--tags=x,y",
         "--callback", "m:A", "--callback=m:B"]
    )  # fmt: skip
    assert config.policy.hidden_sizes == (8, 4, 2)
    assert (config.run.log_info, config.run.tags) == (("a", "b"), ("x", "y"))
    assert config.run.callbacks == ("m:A", "m:B")
    assert parse_train_arguments(["ppo", "--hidden_sizes", "8"]).policy.hidden_sizes == (8,)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "reinforce", "sac", "td3", "ddpg", "tqc"])
def test_critics_have_widths_of_their_own_if_they_are_given(algorithm: str) -> None:
    """TQC's paper has three layers of 512 for the critics, and two of 256 for the actor."""
    given = parse_train_arguments([algorithm, "--critic-hidden-sizes", "512,512", "512"])
    assert given.algo.critic_hidden_sizes == (512, 512, 512)
    assert parse_train_arguments([algorithm]).algo.critic_hidden_sizes is None
    again = RunConfig.from_json(json.loads(json.dumps(given.to_json())))
    assert again == given


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--lr", "--learning-rate"),
        ("--total-timesteps", "--total-env-steps"),
        ("--n_steps", "--rollout-length"),
        ("--ent-coef", "--entropy-coef"),
        ("--learning-rat", "--learning-rate"),
        ("--no-quite", "--"),
    ],
)
def test_unknown_options_suggest_what_is_meant(option: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"no option {option.replace('_', '-')}") as caught:
        parse_train_arguments(["ppo", "--env", "A-v0", option, "1"])
    assert meant in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "option", "meant"),
    [
        ("sac", "--ent-coef", "Did you mean --alpha or --initial-alpha"),
        ("sac", "--entropy-coef", "Did you mean --alpha or --initial-alpha"),
        ("ppo", "--ent-coef", r"Did you mean --entropy-coef\?"),
        ("tqc", "--n-critics", "--num-critics"),
        ("tqc", "--n-quantiles", "--num-quantiles"),
        ("tqc", "--top-quantiles-to-drop-per-net", "--dropped-quantiles"),
        ("crossq", "--policy-delay", "--actor-update-interval"),
        ("td3", "--target-policy-noise", "--target-noise"),
        ("dqn", "--exploration-initial-eps", "--epsilon-initial"),
        ("dqn", "--exploration-final-eps", "--epsilon-final"),
        ("dqn", "--exploration-fraction", "--epsilon-fraction"),
    ],
)
def test_what_others_call_a_setting_is_told_by_algorithm(
    algorithm: str, option: str, meant: str
) -> None:
    """Of SAC, ent_coef is the temperature: it was answered with a list of all settings."""
    with pytest.raises(ConfigError, match=meant):
        parse_train_arguments([algorithm, "--env", "A-v0", option, "1"])


@pytest.mark.parametrize(
    ("algorithm", "option", "owners"),
    [("dqn", "--gae-lambda", "ppo, a2c, impala, appo"), ("ppo", "--num-quantiles", "dqn, tqc")],
)
def test_a_setting_of_other_algorithms_is_named_as_theirs(
    algorithm: str, option: str, owners: str
) -> None:
    """It was answered with what is spelled alike, or with nothing."""
    with pytest.raises(ConfigError, match=f"{algorithm} has no {option}: .* of {owners}"):
        parse_train_arguments([algorithm, "--env", "A-v0", option, "1"])
    name = option[2:].replace("-", "_")
    with pytest.raises(ConfigError, match=f"no setting '{name}': it is one of {owners}"):
        parse_train_arguments([algorithm]).replace(**{name: 1})


def test_what_is_meant_stands_beside_whose_setting_it_is() -> None:
    with pytest.raises(ConfigError, match=r"of ddpg, td3, sac, .*Did you mean --learning-rate"):
        parse_train_arguments(["dqn", "--env", "A-v0", "--actor-learning-rate", "1"])
    with pytest.raises(ConfigError, match="there is no option --move-intervals"):
        parse_train_arguments(["ppo", "--env", "A-v0", "--move-intervals", "1"])


def test_negative_numbers_are_values() -> None:
    assert as_parsed(["--x", "-1e-3"], {"x": float}, "train") == ["--x", "-1e-3"]
    assert values_of(["--a", "1", "--b", "--a=2"], "--a") == ["1", "2"]
    assert without(["--a", "1", "--b", "--a=2", "c"], "--a") == ["--b", "c"]


def test_every_setting_of_the_run_has_one_group_and_is_explained() -> None:
    """What is in none would be listed as the algorithm's own."""
    settings = [*dataclasses.fields(RunSettings), *dataclasses.fields(PolicySettings)]
    names = [field.name for field in settings if field.name != "preset"]
    in_groups = [name for group in GROUPS.values() for name in group]
    assert len(in_groups) == len(set(in_groups))
    assert set(names) <= set(in_groups)
    docs = {**setting_docs(RunSettings), **setting_docs(PolicySettings)}
    assert all(docs.get(name) for name in names)


@pytest.mark.parametrize("algorithm", algorithm_names())
def test_help_shows_what_people_use_and_all_the_rest(
    algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", algorithm, "--help"]) == 0
    short = capsys.readouterr().out
    shown = [line for line in short.splitlines() if line.startswith("  --")]
    assert 15 <= len(shown) <= 32
    assert main(["train", algorithm, "--help-all"]) == 0
    everything = capsys.readouterr().out
    fields = dataclasses.fields(declaration(algorithm, for_help=True).Config)
    names = [f.name for part in (RunSettings, PolicySettings) for f in dataclasses.fields(part)]
    for name in [*names, *(field.name for field in fields)]:
        flag = "--callback" if name == "callbacks" else f"--{name.replace('_', '-')}"
        assert name == "preset" or f"  {flag}" in everything, name
    assert next(title for title, _ in grouped(names)) == "run"
    assert "learning_rate" in OFTEN_USED


def test_help_shows_the_defaults_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "ppo", "--env", "CartPole-v1", "--gamma", "0.5", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Adam's step size. [0.001]" in shown
    assert "in [0, 1]. [0.5]" in shown


def test_the_arguments_of_the_environment_choose_the_preset() -> None:
    words = ["sac", "--env", "LunarLander-v3", "--env-kwargs", '{"continuous": true}']
    assert parse_train_arguments(words).run.preset == "lunarlandercontinuous"


def test_presets_are_listed_with_what_each_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "ppo"]) == 0
    printed = capsys.readouterr().out
    assert "cartpole (taken for CartPole)" in printed
    assert "gae_lambda=0.8" in printed
    assert "    from: RL Baselines3 Zoo, CartPole-v1, but the value's loss has half" in printed
    assert main(["presets", "dqn", "rainbow"]) == 0
    assert "on top of the environment's preset" in capsys.readouterr().out
    assert main(["presets", "dqn", "nope"]) == 2
    assert main(["presets", "nope"]) == 2


@pytest.mark.parametrize(
    ("algorithm", "preset", "taken"),
    [
        ("sac", "mujoco", {"HalfCheetah", "Hopper"}),  # Swimmer has one of its own
        ("tqc", "mujoco", {"HalfCheetah"}),
        ("tqc", "hopper", {"Hopper"}),
        ("ppo", "lunarlander", {"LunarLander", "LunarLanderContinuous"}),
        (
            *("a2c", "lunarlandercontinuous"),
            {"LunarLanderContinuous", "LunarLander with continuous=true"},
        ),
        ("crossq", "bipedalwalker", {"BipedalWalker", "BipedalWalkerHardcore"}),
        ("sac", "bipedalwalker", {"BipedalWalker"}),
    ],
)
def test_presets_name_the_environments_that_fall_back_to_them(
    algorithm: str, preset: str, taken: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["presets", algorithm, preset]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    _, _, ids = first.removesuffix(")").partition(" (taken for ")
    assert {each for each in ids.split(", ") if not each.startswith("(Walker2d|Ant")} == taken


def test_every_preset_has_a_source_and_stands_on_its_algorithm_s_page() -> None:
    pages = Path(__file__).parents[2] / "docs" / "algorithms"
    for name in algorithm_names():
        said = declaration(name)
        known = {*said.presets, *said.variants}
        assert SOURCES.get(name, {}).keys() == known, name
        _, _, listed = (pages / f"{name}.md").read_text().partition("\nPresets: ")
        listed = listed.partition("\n\n")[0]
        assert {preset for preset in known if f"`{preset}`" not in listed} == set(), name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], ["train", "eval", "runs"]),
        (["tr"], ["train", "trace"]),
        (["train", "pp"], ["ppo"]),
        (["train", "ppo", "--learning-rate-"], ["--learning-rate-schedule"]),
        (["train", "ppo", "--core", "l"], ["lstm"]),
        (["train", "ppo", "--preset", "cart"], ["cartpole"]),
        (["presets", "dqn", "rain"], ["rainbow"]),
        (["train", "ppo", "--out", ""], []),
        (["completion", "b"], ["bash"]),
    ],
)
def test_words_are_completed(words: list[str], expected: list[str]) -> None:
    found = completions(words)
    assert set(expected) <= set(found)
    assert bool(found) == bool(expected)


def test_the_shells_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert "complete -o nosort -F _redline redline" in capsys.readouterr().out
    assert main(["completion", "words", "train", "sa"]) == 0
    assert capsys.readouterr().out == "sac\n"
    assert main(["completion", "fish"]) == 2


def run_directory(path: Path, config: dict[str, Any], csv: str, history: list[Any]) -> None:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "progress.csv").write_text(csv)
    (path / "history.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in history))


def test_runs_are_listed_with_state_steps_and_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = {"env": "A-v0", "seed": 3, "total_env_steps": 2000, "tags": ["x"], "group": "g"}
    config = {"algorithm": "ppo", "run": run}
    csv = "env_steps,return_mean\n1000,5.5\n2000,\n30"
    end = {"event": "ended", "state": "complete", "env_steps": 2000}
    run_directory(tmp_path / "a", config, csv, [end])
    run_directory(tmp_path / "g" / "b", config | {"run": run | {"tags": []}}, "", [])
    (tmp_path / "g" / "other").mkdir()
    assert main(["runs", str(tmp_path), "--format", "json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["state"], first["env_steps"], first["return_mean"]) == ("complete", 2000, 5.5)
    assert (second["state"], second["env_steps"], second["return_mean"]) == ("killed", 0, None)
    assert main(["runs", str(tmp_path), "--tag", "x"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == [
        "run", "state", "algorithm", "env", "seed", "env_steps", "of", "return", "tags"
    ]  # fmt: skip
    assert table[1].split() == ["a", "complete", "ppo", "A-v0", "3", "2,000", "2,000", "5.5", "x"]
    assert len(table) == 2
    assert main(["runs", str(tmp_path / "nowhere")]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "CartPole-v1", "--env", "Pendulum-v1"], "--env is given twice: CartPole-v1 and"),
        (["--env=CartPole-v1", "--env", "Pendulum-v1"], "CartPole-v1 and Pendulum-v1"),
        (["--num-envs", "2", "--num_envs", "3"], "--num-envs is given twice: 2 and 3"),
        (["--quiet", "--no-quiet"], "--quiet is given twice: --quiet and --no-quiet. Leave"),
        (["--quiet", "--quiet", "--out"], "--quiet is given twice. Leave"),
        (["--cpu-acting", "--no-cpu-acting"], "--cpu-acting is given twice"),
        (["--preset", "default", "--preset", "cartpole"], "--preset is given twice"),
    ],
)
def test_an_option_is_given_once(words: list[str], said: str) -> None:
    """Before, the first --env chose the preset and the second was trained on."""
    with pytest.raises(ConfigError, match=said):
        parse_train_arguments(["ppo", *words])


def test_callbacks_may_be_given_several_times() -> None:
    words = ["--env", "CartPole-v1", "--callback", "a:B", "--callback", "c:D"]
    assert parse_train_arguments(["ppo", *words]).run.callbacks == ("a:B", "c:D")


@pytest.mark.parametrize("values", [["4"] * 1_001, [",".join(["4"] * 1_001)]])
def test_lists_without_end_are_refused_before_they_are_parsed(values: list[str]) -> None:
    """20,000 sizes took 12 s, most of them to print what was wrong."""
    with pytest.raises(ConfigError, match="--hidden-sizes has more than 1,000 values"):
        as_parsed(["--hidden-sizes", *values], {"hidden_sizes": tuple[int, ...]}, "train ppo")
    said = as_parsed(["--hidden-sizes", *["4"] * 999], {"hidden_sizes": tuple[int, ...]}, "train")
    assert len(said) == 1_000


def test_options_that_resuming_has_not_are_answered_with_what_helps() -> None:
    """It named `train --resume --help-all`, which asked for an algorithm."""
    said = "beside --resume.*--set device=VALUE does. `redline train --resume --help` lists"
    with pytest.raises(ConfigError, match=said):
        resume(["--resume", "run", "--device", "cpu"])
    with pytest.raises(ConfigError, match=r"Did you mean --quiet\? `redline train --resume"):
        resume(["--resume", "run", "--quite"])


def test_a_setting_is_changed_once() -> None:
    with pytest.raises(ConfigError, match="--set eval_interval is given twice"):
        resume(["--resume", "run", "--set", "eval-interval=5", "--set", "eval_interval=6"])


@pytest.mark.parametrize("word", ["--help", "-h", "--help-all"])
@pytest.mark.parametrize("first", [["--resume"], ["--resume", "runs/x"], ["--resume=runs/x"]])
def test_resuming_has_help_of_its_own(first: list[str], word: str, capsys: Any) -> None:
    assert main(["train", *first, word]) == 0
    said = capsys.readouterr().out
    shown = [line.split()[0] for line in said.splitlines() if line.startswith("  --")]
    renamed = {"callbacks": "callback"}
    names = [field.name for field in dataclasses.fields(ResumeArguments)]
    wanted = [f"--{renamed.get(name, name).replace('_', '-')}" for name in names]
    assert sorted(shown) == sorted(wanted)
    assert "--set NAME=VALUE" in said

"""Settings from files: what is read, what is refused, and that a run's own file repeats it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import redline
from redline.cli import main
from redline.command_line.train import parse_train_arguments
from redline.errors import ConfigError
from redline.train.config_files import (
    config_of,
    given_settings,
    read_mapping,
    setting_mistakes,
    value_of,
)
from redline.train.presets import preset_config
from redline.train.runs.run import Run
from redline.train.settings import RunConfig

SHORT = {"total_env_steps": 512, "num_envs": 4, "rollout_length": 32, "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("runs") / "first"
    return redline.train(
        "ppo", env="CartPole-v1", out=out, tensorboard=False, log_interval=128, **SHORT
    )


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "algorithm: ppo\nenv: CartPole-v1\ntotal_env_steps: 1e5\nlearning_rate: 1e-3\n"),
        ("a.yml", "algorithm: ppo\nrun: {env: CartPole-v1, total_env_steps: 100_000}\n"
         "algo:\n  learning_rate: 0.001\n"),
        ("a.toml", 'algorithm = "ppo"\nenv = "CartPole-v1"\ntotal_env_steps = 1e5\n'
         "learning_rate = 1e-3\n"),
        ("a.json", '{"algorithm": "ppo", "env": "CartPole-v1", "total_env_steps": 1e5,'
         ' "learning_rate": 1e-3}'),
    ],
)  # fmt: skip
def test_every_format_means_the_same(tmp_path: Path, name: str, text: str) -> None:
    """The environment's preset comes first, as on the command line; 1e5 is a whole number."""
    file = written(tmp_path / name, text)
    config = parse_train_arguments(["--config", str(file)])
    wanted = preset_config("ppo", "CartPole-v1", "auto").replace(
        total_env_steps=100_000, learning_rate=1e-3
    )
    assert config == wanted
    assert config.run.preset == "cartpole"
    assert type(config.run.total_env_steps) is int


def test_the_command_line_wins(tmp_path: Path) -> None:
    file = written(tmp_path / "a.yaml", "algorithm: ppo\nenv: CartPole-v1\ngamma: 0.5\nseed: 3\n")
    config = parse_train_arguments(["--config", str(file), "--gamma", "0.6", "--env", "Any-v0"])
    assert (config.algo.gamma, config.run.seed, config.run.env) == (0.6, 3, "Any-v0")
    assert config.run.preset == "default"
    other = parse_train_arguments(["a2c", "--config", str(file)])
    assert (other.algorithm, other.algo.gamma) == ("a2c", 0.5)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "algorithm: ppo\nlearning_rat: 1\n", "did you mean learning_rate"),
        ("a.yaml", "algorithm: ppo\nlr: 1\n", "did you mean learning_rate"),
        ("a.yaml", "algorithm: ppo\ngamma: high\nseed: x\n", "2 settings are wrong"),
        ("a.yaml", "algorithm: ppo\ngamma: 1\ngamma: 0\n", "'gamma' stands twice"),
        ("a.json", '{"algorithm": "ppo", "gamma": 1, "gamma": 0}', "'gamma' stands twice"),
        ("a.json", '{"algorithm": "ppo", "run": {"seed": 1, "seed": 2}}', "'seed' stands twice"),
        ("a.yaml", "algorithm: ppo\nseed: 1\nrun: {seed: 2}\n", "seed is set twice"),
        ("a.yaml", "algorithm: ppo\nrun: 3\n", "run must hold settings"),
        ("a.yaml", "algorithm: [ppo]\n", "is not a name"),
        ("a.yaml", "seed: 1\n", "names no algorithm"),
        ("a.yaml", "- ppo\n", "holds a list"),
        ("a.yaml", "", "holds nothing"),
        ("a.yaml", "a: [1\n", "not valid YAML"),
        ("a.yaml", "a: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
        ("a.toml", "a =\n", "not valid TOML"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", '{"format_version": 99, "algorithm": "ppo"}', "format_version=99"),
        ("a.txt", "algorithm: ppo\n", "ends with none of"),
        ("a.yaml", "algorithm: ppo\nnum_minibatches: 7\n", "does not divide"),
    ],
)
def test_bad_files_are_refused(
    tmp_path: Path, name: str, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / name, text)
    assert main(["train", "--config", str(file), "--env", "Any-v0"]) == 2
    assert message in capsys.readouterr().err


def test_files_of_unreasonable_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested too deep"):
        read_mapping(written(tmp_path / "deep.json", "[" * 200_000))
    with pytest.raises(ConfigError, match="at most 4,194,304"):
        read_mapping(written(tmp_path / "large.yaml", "1" * 5_000_000))
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_mapping(tmp_path / "a.json")
    with pytest.raises(ConfigError, match="is not JSON"):
        config_of(given_settings({"algorithm": "ppo"})).replace(
            env_kwargs=f'{{"a": {"9" * 5_000}}}'
        )


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        read_mapping("nowhere.yaml")


def test_what_print_config_prints_is_read_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["ppo", "--env", "CartPole-v1", "--gamma", "0.5", "--env-kwargs", '{"a": 1}']
    assert main(["train", *words, "--print-config"]) == 0
    printed = capsys.readouterr().out
    for suffix in ("json", "yaml"):
        file = written(tmp_path / f"a.{suffix}", printed)
        assert parse_train_arguments(["--config", str(file)]) == parse_train_arguments(words)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 0.5}, "gamma stands outside the sections.*Write it into the section algo"),
        ({"gama": 0.5}, "ppo has no setting 'gama' .did you mean gamma"),
        ({"algo": None}, "not the section algo"),
        ({"algo": None, "algos": {"gamma": 0.5}}, "2 settings are wrong"),
    ],
)
def test_a_complete_file_says_nothing_to_no_effect(change: dict[str, Any], message: str) -> None:
    """A line added to what `--print-config` printed was ignored without a word."""
    said = {"format_version": 1, "algorithm": "ppo", "run": {}, "policy": {}, "algo": {}}
    assert config_of(given_settings(said)).algo.gamma == 0.99
    changed = {name: value for name, value in (said | change).items() if value is not None}
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        config_of(given_settings(changed))


def sha(run: Run) -> str:
    return run.inspect()["params_sha256"]


def test_a_runs_config_repeats_it_to_the_bit(run: Run, tmp_path: Path) -> None:
    again = tmp_path / "again"
    options = ["--out", str(again), "--no-tensorboard"]
    assert main(["train", "--config", str(run.out / "config.json"), *options]) == 0
    repeated = redline.load(again)
    assert sha(repeated) == sha(run)
    assert repeated.config == run.config.replace(out=str(again))


def test_a_config_from_python_repeats_a_run(run: Run, tmp_path: Path) -> None:
    repeated = redline.train(config=run.config, out=tmp_path / "again")
    assert sha(repeated) == sha(run)
    other = redline.train(config=run.out / "config.json", out=tmp_path / "other", seed=2)
    assert other.config.run.seed == 2
    assert sha(other) != sha(run)


def test_a_mapping_is_a_sparse_config(tmp_path: Path) -> None:
    said: dict[str, Any] = {"algorithm": "ppo", "env": "CartPole-v1", "env_kwargs": {"x": 1}}
    config = config_of(given_settings(said), gamma=0.5)
    assert (config.run.preset, config.algo.gamma) == ("cartpole", 0.5)
    assert config.run.parsed_env_kwargs() == {"x": 1}
    assert isinstance(config, redline.RunConfig)


@pytest.mark.parametrize("name", ["env", "env_backend", "collector"])
def test_a_runs_config_decides_no_imports(run: Run, tmp_path: Path, name: str) -> None:
    """As a run directory does not; who repeats the run names the part again."""
    changed = run.config.replace(**{name: "stranger:Thing"}).to_json()
    file = written(tmp_path / "config.json", json.dumps(changed))
    with pytest.raises(ConfigError, match="must not decide what is imported"):
        parse_train_arguments(["--config", str(file)])
    option = f"--{name.replace('_', '-')}"
    config = parse_train_arguments(["--config", str(file), option, "stranger:Thing"])
    assert getattr(config.run, name) == "stranger:Thing"


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("wandb", True, ["--wandb"]),
        ("accelerate", "compile", ["--accelerate", "compile"]),
        ("data", "/a.npz", ["--data", "/a.npz"]),
        ("init_from", "/runs/a", ["--init-from", "/runs/a"]),
        ("env_kwargs", '{"xml_file": "/a.xml"}', ["--env-kwargs", '{"xml_file": "/a.xml"}']),
    ],
)
def test_a_runs_config_does_not_reach_outside(
    run: Run, tmp_path: Path, name: str, value: Any, option: list[str]
) -> None:
    """As when a run is resumed: the file may be a stranger's."""
    changed = run.config.replace(**{name: value}).to_json()
    file = written(tmp_path / "config.json", json.dumps(changed))
    with pytest.raises(ConfigError, match="must not decide that"):
        parse_train_arguments(["--config", str(file)])
    config = parse_train_arguments(["--config", str(file), *option])
    assert getattr(config.run, name) == value


def test_a_runs_config_keeps_to_its_algorithm(run: Run) -> None:
    file = str(run.out / "config.json")
    with pytest.raises(ConfigError, match="settings of ppo, not of sac"):
        parse_train_arguments(["sac", "--config", file])
    with pytest.raises(ConfigError, match="would change none"):
        parse_train_arguments(["--config", file, "--preset", "mujoco"])


def test_mistakes_are_listed_together() -> None:
    """What a sweep shows before its first run; the limits that join settings come last."""
    wrong = {"learning_rat": 1, "gamma": "x", "env": "CartPole-v1", "preset": "default"}
    found = setting_mistakes("ppo", wrong)
    assert len(found) == 2
    assert "learning_rat" in found[0]
    assert "gamma='x'" in found[1]
    assert setting_mistakes("ppo", {"num_envs": 3, "num_minibatches": 7, "env": "A"}) != []
    assert setting_mistakes("ppoo", {}) != []
    assert setting_mistakes("ppo", {"env": "CartPole-v1", "total_env_steps": 20000}) == []


def test_whole_floats_and_lists_with_commas_are_taken() -> None:
    config = preset_config("ppo", "Any-v0", "auto")
    assert config.replace(total_env_steps=1e5).run.total_env_steps == 100_000
    assert config.replace(tags="a, b").run.tags == ("a", "b")
    with pytest.raises(ConfigError, match=r"num_envs=2\.5"):
        config.replace(num_envs=2.5)


def test_none_in_yaml_is_none(tmp_path: Path) -> None:
    """As help writes it. A run lay in a folder of that name."""
    path = tmp_path / "run.yaml"
    path.write_text("algorithm: ppo\nenv: CartPole-v1\nout: None\nname: 'None'\ntarget_kl: None\n")
    config = config_of(given_settings(path))
    assert (config.run.out, config.run.name, config.algo.target_kl) == (None, "None", None)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"run": {1: 2}}, "1 in run is no name of a setting"),
        ({"learning_rate": 10**400}, "learning_rate"),
        ({"format_version": 1, "run": {1: 2}, "policy": {}, "algo": {}}, "no setting 1"),
    ],
)
def test_odd_names_and_numbers_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(given_settings({"algorithm": "ppo", **settings}))


def test_a_run_config_is_data(run: Run) -> None:
    assert RunConfig.from_json(json.loads(json.dumps(run.config.to_json()))) == run.config
    assert replace(run.config, algorithm="a2c").algorithm == "a2c"


def test_aliases_of_yaml_are_refused(tmp_path: Path) -> None:
    """Seven lines of nine aliases each hung for 15 s in the text of a message."""
    rows = [f"  a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    path = tmp_path / "bomb.yaml"
    path.write_text("\n".join(["run:", "  seed: &a0 [x]", "policy:", *rows]))
    with pytest.raises(ConfigError, match=r"line 4 has the alias \*a0"):
        read_mapping(path)


@pytest.mark.parametrize("dot", [".", " . "])
def test_keys_of_thousands_of_dots_are_refused(dot: str, tmp_path: Path) -> None:
    """A key of 20,000 took the parser 23 s and 1.9 GB."""
    path = tmp_path / "deep.toml"
    for key in (dot.join("a" * 900), dot.join(["'a b'"] * 900)):
        for text in (f"{key} = 1", f"[{key}]", f"b = {{{key} = 1}}"):
            path.write_text(f"# a comment ......\n{text}\n")
            with pytest.raises(ConfigError, match="a key in line 2 has more than 64 dots"):
                read_mapping(path)
    path.write_text(f"# {'.' * 200}\nrun.seed = 3\nx = [{'0.5, ' * 200}]\n")
    assert read_mapping(path)["run"] == {"seed": 3}


def test_off_is_a_word_where_a_setting_has_it(tmp_path: Path) -> None:
    """YAML reads it as no."""
    path = tmp_path / "c.yaml"
    path.write_text("algorithm: ppo\nenv: CartPole-v1\ncheck_env: off\nnormalize_obs: off\n")
    config = config_of(given_settings(path))
    assert (config.run.check_env, config.policy.normalize_obs) == ("off", False)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3", str, "3"),
        ("0-3", str, "0-3"),
        ("2024-01-01", str | None, "2024-01-01"),
        ("None", str | None, None),
        ("'3'", str, "3"),
        ("7", tuple[str, ...], "7"),
        ("[a, b]", tuple[str, ...], ["a", "b"]),
        ("{a: 1}", str, {"a": 1}),
        ("3", int | None, 3),
        ("off", Literal["off", "warn"], False),  # which the setting takes for the word
        ("1e-4", None, 1e-4),
        ("[None, 'None']", None, [None, "None"]),
    ],
)
def test_a_setting_of_words_takes_numbers_as_they_stand(text: str, kind: Any, value: Any) -> None:
    assert value_of(text, kind) == value


_SAC, _LANDER = ("sac", "HalfCheetah-v5"), ("dqn", "LunarLander-v3")


@pytest.mark.parametrize(
    ("algorithm", "env", "given", "expected"),
    [
        # 1e-3 for both beside 3e-4: one rate that is given is that of all three.
        (*_SAC, {}, {"critic_learning_rate": 1e-3, "alpha_learning_rate": 1e-3}),
        (
            *_SAC,
            {"learning_rate": 3e-4},
            {"critic_learning_rate": None, "alpha_learning_rate": None},
        ),
        (
            *_SAC,
            {"learning_rate": 1e-4, "critic_learning_rate": 2e-3},
            {"critic_learning_rate": 2e-3, "alpha_learning_rate": None},
        ),
        (*_SAC, {"batch_size": 64}, {"critic_learning_rate": 1e-3, "learning_rate": 3e-4}),
        # 16 * 1,024 rows in 256 parts are 64 in each.
        ("ppo", "LunarLander-v3", {}, {"num_minibatches": 256}),
        ("ppo", "LunarLander-v3", {"num_envs": 16}, {"num_minibatches": 256}),
        ("ppo", "LunarLander-v3", {"num_envs": 1}, {"num_minibatches": None}),
        ("ppo", "Acrobot-v1", {"rollout_length": 10}, {"num_minibatches": None}),
        ("ppo", "LunarLander-v3", {"num_envs": 1, "num_minibatches": 8}, {"num_minibatches": 8}),
        ("appo", "HalfCheetah-v5", {"core": "lstm"}, {"num_minibatches": None}),
        # These have other sizes than 64, so the number is what was chosen.
        ("ppo", "CartPole-v1", {"num_envs": 16}, {"num_minibatches": 1}),
        ("ppo", "ALE/Pong-v5", {"num_envs": 16}, {"num_minibatches": 4}),
        ("ppo", "redline/CartPoleHiddenVelocity-v1", {"core": "none"}, {"num_minibatches": 4}),
        (*_LANDER, {}, {"tau": 0.005, "target_update_interval": 1}),
        (*_LANDER, {"target_update_interval": 250}, {"tau": 1.0, "target_update_interval": 250}),
        (*_LANDER, {"target_update_interval": 1}, {"tau": 0.005, "target_update_interval": 1}),
        (*_LANDER, {"tau": 1.0}, {"tau": 1.0, "target_update_interval": 500}),
        (*_LANDER, {"tau": 0.01}, {"tau": 0.01, "target_update_interval": 1}),
        (
            *_LANDER,
            {"tau": 0.1, "target_update_interval": 20},
            {"tau": 0.1, "target_update_interval": 20},
        ),
        ("dqn", "CartPole-v1", {"tau": 1.0}, {"target_update_interval": 100}),
        # Of SAC the plain default, 0.005, follows even more slowly than the preset's.
        ("sac", "BipedalWalker-v3", {"target_update_interval": 2}, {"tau": 0.02}),
        (
            *_LANDER,
            {"preset": "rainbow", "target_update_interval": 99},
            {"tau": 1.0, "target_update_interval": 99},
        ),
        (*_SAC, {"preset": "default", "learning_rate": 1e-4}, {"critic_learning_rate": None}),
    ],
)
def test_what_a_preset_chose_for_another_setting_ends_with_it(
    algorithm: str, env: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    """A target that is copied by 0.005 every 250 updates hardly moves in a whole run."""
    said = {"algorithm": algorithm, "env": env, **given}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    for config in (
        config_of(given_settings(said)),
        parse_train_arguments([algorithm, "--env", env, *options]),
    ):
        assert {name: getattr(config.algo, name) for name in expected} == expected


def test_options_end_what_a_file_left_of_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "sac.yaml"
    path.write_text("algorithm: sac\nenv: HalfCheetah-v5\nalpha_learning_rate: 0.002\n")
    config = parse_train_arguments(["--config", str(path), "--learning_rate", "1e-4"])
    algo: Any = config.algo
    assert (algo.learning_rate, algo.critic_learning_rate) == (1e-4, None)
    assert algo.alpha_learning_rate == 2e-3
    said = ["--config", str(path), "--critic-learning-rate", "0.003", "--learning-rate=0.0001"]
    algo = parse_train_arguments(said).algo
    assert (algo.critic_learning_rate, algo.alpha_learning_rate) == (3e-3, 2e-3)


def test_settings_of_sweeps_are_checked_with_what_ends(tmp_path: Path) -> None:
    """3,000 rows do not split into Acrobot's 64 minibatches, which nobody asked for."""
    settings = {"env": "Acrobot-v1", "num_envs": 3, "rollout_length": 1_000}
    assert setting_mistakes("ppo", settings) == []
    wrong = setting_mistakes("ppo", {**settings, "num_minibatches": 64})
    assert "num_minibatches=64 does not divide" in wrong[0]


def test_values_of_another_type_are_refused_by_their_name() -> None:
    for name, value in (("num_envs", [3]), ("learning_rate", "fast"), ("tau", None)):
        with pytest.raises(ConfigError, match=f"^config: {name}="):
            config_of(given_settings({"algorithm": "dqn", "env": "LunarLander-v3", name: value}))

"""The file that describes a sweep, and the runs that it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redline.errors import ConfigError
from redline.launch.sweep_file import plan_from
from redline.launch.variants import expand
from redline.train.config_files import read_mapping

SMALLEST = """\
algorithm: ppo
base: {env: CartPole-v1, total_env_steps: 20000}
grid: {learning_rate: [0.001, 3e-4]}
seeds: [1, 2]
"""


def test_the_smallest_file_stands_for_four_runs_named_by_what_varies(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text(SMALLEST)
    plan = plan_from(read_mapping(file))
    names = [variant.name(seed) for variant in expand(plan) for seed in plan.seeds]
    assert names == [
        "ppo-CartPole-v1-learning_rate=0.001-seed=1",
        "ppo-CartPole-v1-learning_rate=0.001-seed=2",
        "ppo-CartPole-v1-learning_rate=0.0003-seed=1",
        "ppo-CartPole-v1-learning_rate=0.0003-seed=2",
    ]


def test_toml_and_json_say_the_same_as_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SMALLEST)
    (tmp_path / "a.toml").write_text(
        'algorithm = "ppo"\nseeds = [1, 2]\n'
        '[base]\nenv = "CartPole-v1"\ntotal_env_steps = 20000\n'
        "[grid]\nlearning_rate = [0.001, 3e-4]\n"
    )
    (tmp_path / "a.json").write_text(
        '{"algorithm": "ppo", "base": {"env": "CartPole-v1", "total_env_steps": 20000}, '
        '"grid": {"learning_rate": [0.001, 0.0003]}, "seeds": [1, 2]}'
    )
    yaml, toml, json = (read_mapping(tmp_path / f"a.{s}") for s in ("yaml", "toml", "json"))
    assert yaml == toml == json


def test_grid_is_crossed_and_zip_goes_side_by_side() -> None:
    plan = plan_from(
        {
            "algorithm": ["ppo", "a2c"],
            "base": {"env": "CartPole-v1"},
            "grid": {"gamma": [0.9, 0.99]},
            "zip": {"num_envs": [4, 8], "rollout_length": [16, 32]},
            "by_algorithm": {"a2c": {"entropy_coef": 0.1}},
            "seeds": 2,
        }
    )
    variants = list(expand(plan))
    assert len(variants) == 8
    assert plan.seeds == (1, 2)
    assert [tuple(v.varies.values()) for v in variants[:4]] == [
        (0.9, 4, 16),
        (0.9, 8, 32),
        (0.99, 4, 16),
        (0.99, 8, 32),
    ]
    assert ["entropy_coef" in v.settings for v in variants] == [False] * 4 + [True] * 4
    assert len({v.key(1) for v in variants}) == 8


def test_all_mistakes_of_form_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        plan_from(
            {
                "algoritm": "ppo",
                "base": {"env": "CartPole-v1", "seed": 3, "gamma": 0.9},
                "grid": {"gamma": [0.9], "learning_rate": 0.1},
                "zip": {"num_envs": [4, 8], "rollout_length": [16]},
                "seeds": "many",
                "launch": {"slot": 2},
            },
            "sweep.yaml",
        )
    message = str(caught.value)
    assert message.startswith("sweep.yaml has 8 mistakes; nothing was started:")
    for part in (
        "'algoritm' (did you mean algorithm?)",
        "'slot' (did you mean slots?)",
        "learning_rate=0.1 must be a list",
        "num_envs has 2, rollout_length has 1",
        "'gamma' is given more than once",
        "'seed' is no setting here: use seeds",
        "algorithm=None",
        "seeds='many'",
    ):
        assert part in message, part


def test_settings_of_one_algorithm_that_would_not_count_are_mistakes() -> None:
    plan = {
        "algorithm": ["ppo", "dqn", "a2c"],
        "grid": {"learning_rate": [0.1, 0.2]},
        "by_algorithm": {"dqn": {"learning_rate": 0.3}, "ppo": {"seed": 5}, "a2c": 7},
    }
    with pytest.raises(ConfigError) as caught:
        plan_from(plan)
    message = str(caught.value)
    assert "3 mistakes" in message
    assert "dqn: 'learning_rate' also varies by grid or zip, which would win" in message
    assert "ppo: 'seed' is no setting here" in message
    assert "a2c=7 must be a mapping" in message


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seeds": 1_000_000_000}, "seeds=1000000000 are as many runs each"),
        ({"grid": {"gamma": [0.5] * 400, "gae_lambda": [0.5] * 300}}, "1 x 400 x 300 x 1 x 1"),
    ],
)
def test_more_runs_than_a_sweep_has_are_refused(changes: dict[str, Any], said: str) -> None:
    """A number of seeds became a tuple of as many, and a MemoryError."""
    with pytest.raises(ConfigError, match=f"{said}.*100,000 at most"):
        plan_from({"algorithm": "ppo", "base": {"env": "CartPole-v1"}, **changes})

"""Settings: what is accepted, what is refused, and that a config file gives back the same."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import subprocess
import sys
from typing import Any, cast

import pytest

from redline.algos import presets
from redline.algos.ppo import PPOConfig
from redline.algos.registry import BUILT_IN, declaration
from redline.algos.tqc import TQCConfig
from redline.errors import ConfigError, RedlineError, UnknownNameError
from redline.train.presets import family, preset_config
from redline.train.settings import PolicySettings, RunConfig, RunSettings


def config(**settings: Any) -> RunConfig:
    plain = RunConfig(algorithm="ppo", run=RunSettings(env="CartPole-v1"), algo=PPOConfig())
    return plain.replace(**settings)


def test_config_json_gives_back_the_same() -> None:
    """Also after a trip through text, in which tuples become lists."""
    made = config(hidden_sizes=(32, 16), seed=7, target_kl=0.01, env_kwargs='{"gravity": 5.0}')
    again = RunConfig.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.policy.hidden_sizes == (32, 16)


@pytest.mark.parametrize("kept", [True, False])
def test_a_config_file_of_version_0_1_is_read(kept: bool) -> None:
    """It said `keep_freed_memory`, and None where it now says "auto"."""
    data = config().to_json()
    del data["run"]["tune_process"]
    data["run"] |= {"keep_freed_memory": kept, "num_threads": None}
    run = RunConfig.from_json(data).run
    assert run.tune_process == kept
    assert run.num_threads == "auto"


def test_a_config_file_without_previous_inputs_means_none() -> None:
    """A run of R2D1 that began before there were any goes on without them, and as it learned."""
    data = preset_config("r2d1", "redline/TMaze-v1", "auto").to_json()
    assert data["run"]["observe_previous"]
    new = ("observe_previous", "clip_reward", "episodic_life", "sticky_actions", "noop_max")
    for name in (*new, "frame_skip"):
        del data["run"][name]
    data["algo"] |= {"adam_eps": 1e-3, "max_grad_norm": 40.0}
    again = RunConfig.from_json(data)
    assert not again.run.observe_previous
    assert again.run.frame_skip is None
    assert (again.algo.adam_eps, again.algo.max_grad_norm) == (1e-3, 40.0)


def test_a_file_by_hand_has_todays_defaults() -> None:
    """Only a run of version 0.1 went without a check: what a file leaves out has its default."""
    data = {"format_version": 1, "algorithm": "ppo", "run": {"env": "CartPole-v1"}}
    run = RunConfig.from_json(data).run
    assert (run.check_env, run.cpu_acting) == ("first", None)
    run = RunConfig.from_json({**data, "engine": "none was faster"}).run
    assert (run.check_env, run.cpu_acting) == ("off", True)


def test_a_run_from_before_backup_entropy_goes_on_with_it() -> None:
    data = preset_config("sac", "CartPole-v1", "auto").to_json(engine="none was faster")
    assert RunConfig.from_json(data).algo.backup_entropy is None
    del data["algo"]["backup_entropy"]
    assert RunConfig.from_json(data).algo.backup_entropy is True
    del data["engine"]  # by hand: what a file leaves out has today's default
    assert RunConfig.from_json(data).algo.backup_entropy is None


def test_a_chosen_number_of_threads_stays() -> None:
    assert RunConfig.from_json(config(num_threads=3).to_json()).run.num_threads == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"total_env_steps": 0}, "total_env_steps=0"),
        ({"num_threads": 0}, "num_threads=0"),
        ({"num_threads": "all"}, "num_threads='all'"),
        ({"learning_rate": "fast"}, "learning_rate='fast'"),
        ({"num_envs": 2.5}, "num_envs=2.5"),
        ({"num_envs": True}, "num_envs=True"),
        ({"hidden_sizes": (64, "x")}, "hidden_sizes"),
        ({"hidden_sizes": (0,)}, "hidden_sizes=0"),
        ({"env_kwargs": "[1]"}, "not a JSON object"),
        ({"env_kwargs": "{"}, "not JSON"),
        ({"learning_rat": 1e-3}, r"did you mean learning_rate"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**change)


def test_a_whole_number_is_a_float_where_one_is_expected() -> None:
    assert config(worker_timeout_s=3).run.worker_timeout_s == 3.0


def test_a_config_file_is_checked_field_by_field() -> None:
    data = config().to_json()
    data["run"]["__class__"] = "os.system"
    with pytest.raises(ConfigError, match="__class__"):
        RunConfig.from_json(data)
    with pytest.raises(ConfigError, match="format_version=99"):
        RunConfig.from_json({"format_version": 99})
    with pytest.raises(UnknownNameError, match="Did you mean 'ppo'"):
        RunConfig.from_json({"format_version": 1, "algorithm": "ppoo"})


@pytest.mark.parametrize("odd", [[], {}, [[]], {"a": []}, "x", -1, 2**70, 1.5, True, None])
def test_no_kind_of_value_in_a_config_file_goes_unchecked(odd: Any) -> None:
    """Each setting by itself: what may not stand there is refused as a setting."""
    plain = preset_config("dqn", "CartPole-v1", "auto").to_json()
    for part in ("run", "policy", "algo"):
        for name in plain[part]:
            data = copy.deepcopy(plain)
            data[part][name] = odd
            with contextlib.suppress(RedlineError):
                RunConfig.from_json(data)


@pytest.mark.parametrize("algorithm", sorted(BUILT_IN))
def test_every_preset_is_a_valid_config(algorithm: str) -> None:
    for name, settings in declaration(algorithm).presets.items():
        made = preset_config(algorithm, "Any-v0", name)
        for key, value in settings.items():
            owners = (made.run, made.policy, made.algo)
            assert any(getattr(owner, key, None) == value for owner in owners)
        assert made.run.preset == name


def test_auto_takes_the_preset_of_the_environments_family() -> None:
    assert family("HalfCheetah-v5") == "halfcheetah"
    assert family("Walker2d-v5") == "mujoco"
    assert preset_config("sac", "Hopper-v5", "auto").run.preset == "mujoco"
    assert preset_config("tqc", "Hopper-v5", "auto").run.preset == "hopper"
    assert preset_config("a2c", "HalfCheetah-v5", "auto").run.preset == "mujoco"
    assert preset_config("reinforce", "HalfCheetah-v5", "auto").run.preset == "default"
    assert family("ALE/Breakout-v5") == "atari"
    assert family("MinAtar/Breakout-v1") == "minatar"
    assert preset_config("ppo", "CartPole-v1", "auto").run.preset == "cartpole"
    assert preset_config("ppo", "Acrobot-v1", "auto").run.preset == "acrobot"
    assert preset_config("ppo", "Blackjack-v1", "auto").run.preset == "default"
    assert preset_config("ppo", "LunarLanderContinuous-v3", "auto").run.preset == "lunarlander"
    assert preset_config("sac", "LunarLander-v3", "auto").run.preset == "default"
    assert preset_config("ppo", "CartPole-v1", "default").algo == PPOConfig()


@pytest.mark.parametrize(
    ("env", "env_kwargs", "expected"),
    [
        ("LunarLander-v3", {"continuous": True}, "lunarlandercontinuous"),
        ("LunarLander-v3", '{"continuous": true}', "lunarlandercontinuous"),
        ("LunarLander-v3", {"continuous": False, "gravity": -5.0}, "lunarlander"),
        ("LunarLanderContinuous-v3", {"continuous": False}, "lunarlander"),
        ("LunarLanderContinuous-v3", {"gravity": -5.0}, "lunarlandercontinuous"),
        ("BipedalWalker-v3", {"hardcore": True}, "bipedalwalkerhardcore"),
        ("CartPole-v1", {"continuous": True, "hardcore": True}, "cartpole"),
        ("LunarLander-v3", "{", "lunarlander"),
    ],
)
def test_auto_looks_at_the_arguments_of_the_environment(
    env: str, env_kwargs: Any, expected: str
) -> None:
    """Gymnasium makes these environments by their arguments as well as by an id."""
    assert family(env, env_kwargs) == expected
    assert preset_config("a2c", env, "auto", {"env_kwargs": env_kwargs}).run.preset == expected


def test_the_family_of_an_id_with_its_module_is_that_of_the_id() -> None:
    assert family("ale_py:ALE/Pong-v5") == "atari"
    assert family("my_envs:HalfCheetah-v5") == "halfcheetah"


@pytest.mark.parametrize(
    ("algorithm", "wanted"),
    [
        # RL Baselines3 Zoo, BipedalWalkerHardcore-v3
        ("sac", {"learning_rate": 7.3e-4, "tau": 0.01, "alpha": 0.005, "total_env_steps": 10**7}),
        ("tqc", {"learning_rate": 7.3e-4, "tau": 0.01, "alpha": None, "total_env_steps": 2 * 10**6,
                 "num_critics": 2}),
        ("td3", {"learning_rate": 7e-4, "tau": 0.005, "total_env_steps": 10**7}),
        ("ddpg", {"learning_rate": 7e-4, "tau": 0.005, "total_env_steps": 10**7}),
        ("ppo", {"learning_rate": 2.5e-4, "clip_range": 0.2, "clip_range_schedule": "linear",
                 "entropy_coef": 0.001, "gae_lambda": 0.95, "num_envs": 16, "rollout_length": 2_048,
                 "num_epochs": 10, "total_env_steps": 10**8}),
        ("a2c", {"learning_rate": 8e-4, "entropy_coef": 0.001, "gae_lambda": 0.9, "num_envs": 32,
                 "rollout_length": 8, "value_coef": 2 * 0.4, "total_env_steps": 2 * 10**8}),
    ],
)  # fmt: skip
def test_the_hardcore_walker_has_the_zoos_tuning(algorithm: str, wanted: dict[str, Any]) -> None:
    parts = preset_config(algorithm, "BipedalWalkerHardcore-v3", "auto").to_json()
    values = parts["run"] | parts["policy"] | parts["algo"]

    assert values["preset"] == "bipedalwalkerhardcore"
    assert (values["gamma"], values["learning_rate_schedule"]) == (0.99, "linear")
    assert {name: values[name] for name in wanted} == wanted
    if algorithm in ("ppo", "a2c"):
        assert values["normalize_obs"]
        assert values["scale_reward"]
    else:
        assert (values["batch_size"], values["replay_ratio"]) == (256, 256.0)
        assert (values["replay_size"], values["learning_starts"]) == (1_000_000, 10_000)
        assert list(values["hidden_sizes"]) == [400, 300]


def test_without_a_tuning_of_its_own_the_hardcore_walker_has_the_walkers() -> None:
    made = preset_config("crossq", "BipedalWalkerHardcore-v3", "auto")
    assert made.run.preset == "bipedalwalker"


@pytest.mark.parametrize("env", ["MountainCar-v0", "LunarLanderContinuous-v3", "BipedalWalker-v3"])
def test_impala_has_a2cs_presets_with_a2cs_rollouts(env: str) -> None:
    """Of the settings that both have nothing differs, the plain length of rollouts neither."""
    a2c, impala = (preset_config(name, env, "auto") for name in ("a2c", "impala"))
    assert impala.policy == a2c.policy
    for field in dataclasses.fields(a2c.algo):
        assert getattr(impala.algo, field.name) == getattr(a2c.algo, field.name), field.name


@pytest.mark.parametrize(
    ("env", "dropped"),
    [("LunarLanderContinuous-v3", 2), ("HalfCheetah-v5", 2), ("Hopper-v5", 5), ("Pendulum-v1", 2)],
)
def test_tqc_has_the_zoos_critics(env: str, dropped: int) -> None:
    """RL Baselines3 Zoo, tqc.yml: n_critics is 2 by default, top_quantiles_to_drop_per_net 2."""
    algo = cast("TQCConfig", preset_config("tqc", env, "auto").algo)

    assert (algo.num_critics, algo.num_quantiles, algo.dropped_quantiles) == (2, 25, dropped)
    assert TQCConfig().num_critics == 5


@pytest.mark.parametrize(
    ("algorithm", "env", "batch", "updates_per_step"),
    [
        # RL Baselines3 Zoo: batch_size; n_epochs / batch_size, or gradient_steps / train_freq
        ("ppo", "LunarLander-v3", 64, 4 / 64),
        ("ppo", "BipedalWalker-v3", 64, 10 / 64),
        ("ppo", "BipedalWalkerHardcore-v3", 64, 10 / 64),
        ("ppo", "Acrobot-v1", 64, 4 / 64),
        ("ppo", "MountainCar-v0", 64, 4 / 64),
        ("ppo", "Pendulum-v1", 64, 10 / 64),
        ("dqn", "LunarLander-v3", 128, 1.0),
        ("dqn", "MountainCar-v0", 128, 8 / 16),
        ("sac", "MountainCarContinuous-v0", 512, 1.0),
        ("sac", "BipedalWalker-v3", 256, 1.0),
        ("td3", "LunarLanderContinuous-v3", 256, 1.0),
    ],
)
def test_published_tunings_keep_their_batches_and_updates(
    algorithm: str, env: str, batch: int, updates_per_step: float
) -> None:
    algo = preset_config(algorithm, env, "auto").algo

    if algorithm == "ppo":
        samples = algo.num_envs * algo.rollout_length
        steps = algo.num_epochs * algo.minibatches(recurrent=False)
        assert samples // algo.minibatches(recurrent=False) == batch
        assert steps / samples == updates_per_step
    else:
        assert algo.batch_size == batch
        assert algo.replay_ratio / batch == updates_per_step


@pytest.mark.parametrize("algorithm", ["a2c", "impala"])
def test_values_of_cart_pole_are_not_learned_in_raw_rewards(algorithm: str) -> None:
    """There V is 100: tanh units saturated on the way, and policies at 500 were lost again."""
    algo = preset_config(algorithm, "CartPole-v1", "auto").algo

    assert algo.scale_reward
    assert algo.entropy_coef == 0.0


@pytest.mark.parametrize(
    ("env", "least", "most"),
    [
        # The least is that of an episode without end: -1 / (1 - gamma).
        ("Acrobot-v1", -100.0, 0.0),
        ("MountainCar-v0", -50.0, 0.0),
        ("LunarLander-v3", -300.0, 300.0),
        ("CartPole-v1", 0.0, 50.0),
    ],
)
def test_rainbow_tells_the_returns_of_known_environments_apart(
    env: str, least: float, most: float
) -> None:
    """Its atoms from -10 to 10 held no return of these beyond some ten steps."""
    algo = preset_config("dqn", env, "rainbow").algo

    assert (algo.v_min, algo.v_max) == (least, most)
    if least in (-100.0, -50.0):
        assert least == pytest.approx(-1 / (1 - algo.gamma))
    plain = preset_config("dqn", env, "double-dqn").algo
    assert (plain.v_min, plain.v_max) == (-10.0, 10.0)


def test_rainbow_on_atari_has_the_numbers_of_the_paper() -> None:
    """Hessel et al. 2018, table 4; a decision is 4 frames, an update follows every 4 decisions."""
    made = preset_config("dqn", "ALE/Pong-v5", "rainbow")
    algo = made.algo

    assert algo.learning_starts * 4 == 80_000
    assert (algo.learning_rate, algo.adam_eps) == (6.25e-5, 1.5e-4)
    assert algo.replay_ratio / algo.batch_size == 1 / 4
    assert algo.target_update_interval * 4 * 4 == 32_000
    assert (algo.n_step, algo.priority_alpha, algo.priority_beta) == (3, 0.5, 0.4)
    assert (algo.num_atoms, algo.v_min, algo.v_max) == (51, -10.0, 10.0)
    assert algo.noisy_std == 0.5
    assert algo.epsilon_final == 0.0
    assert algo.epsilon_fraction * made.run.total_env_steps == algo.learning_starts
    assert algo.head_hidden_sizes == (512,)  # of each stream, noisy


@pytest.mark.parametrize(
    ("env", "vf_coef"),
    [("LunarLander-v3", 0.5), ("Acrobot-v1", 0.5), ("Pendulum-v1", 0.4), ("BipedalWalker-v3", 0.4),
     ("MountainCar-v0", 0.5), ("ALE/Pong-v5", 0.25)],
)  # fmt: skip
def test_a2c_weighs_the_value_as_the_published_tuning(env: str, vf_coef: float) -> None:
    """There vf_coef * (V - R)^2, here value_coef * (V - R)^2 / 2: twice the number is the same."""
    assert preset_config("a2c", env, "auto").algo.value_coef == 2 * vf_coef


@pytest.mark.parametrize(
    "algorithm", ["ppo", "appo", "a2c", "impala", "sac", "tqc", "crossq", "td3", "ddpg"]
)
def test_a_car_that_must_swing_up_is_explored_with_pink_noise(algorithm: str) -> None:
    assert preset_config(algorithm, "MountainCarContinuous-v0", "auto").algo.noise_color == 1.0


def test_unknown_presets_are_refused_with_what_there_is() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean mujoco\?.*auto, default, acrobot"):
        preset_config("ppo", "X", "mujocco")


def test_policy_settings_name_what_make_policy_takes() -> None:
    """A setting that the policy's maker does not know would surface only in training."""
    import inspect
    from dataclasses import fields

    from redline.policies import make_policy

    accepted = inspect.signature(make_policy).parameters
    assert all(field.name in accepted for field in fields(PolicySettings))


def test_settings_import_no_torch() -> None:
    """Help must answer within a second; importing torch alone takes longer."""
    program = (
        "import sys, redline.cli, redline.train.settings, redline.train.presets;"
        "sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("algorithm", sorted(BUILT_IN))
def test_no_name_means_two_things(algorithm: str) -> None:
    """Options and keyword arguments are flat: each name must have one owner."""
    parts = (RunSettings, PolicySettings, declaration(algorithm).Config)
    names = [field.name for part in parts for field in dataclasses.fields(part)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("variant", sorted(presets.DQN_VARIANTS))
@pytest.mark.parametrize(
    "env",
    [
        *("CartPole-v1", "LunarLander-v3", "MountainCar-v0", "Acrobot-v1"),
        *("MinAtar/Breakout-v1", "ALE/Pong-v5", "X-v0"),
    ],
)
def test_variants_are_laid_over_the_family(variant: str, env: str) -> None:
    config = preset_config("dqn", env, variant)
    assert RunConfig.from_json(config.to_json()) == config
    plain = preset_config("dqn", env, "auto")
    assert config.run.total_env_steps == plain.run.total_env_steps
    assert config.run.preset == variant
    wanted = presets.DQN_VARIANTS[variant]
    parts = config.to_json()
    values = parts["run"] | parts["policy"] | parts["algo"]
    assert {name: values[name] for name in wanted} == wanted
    assert values["tau"] == 1.0  # their papers copy the online network from time to time
    assert values["target_update_interval"] > 1


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("ppo", {"core": "transformer", "core_layers": 1_000_000}),
        ("ppo", {"hidden_sizes": (4,) * 20_000}),
        ("dqn", {"head_hidden_sizes": (4,) * 20_000}),
        ("crossq", {"critic_hidden_sizes": (4,) * 20_000}),
        ("sac", {"critic_hidden_sizes": (4,) * 20_000}),
    ],
)
def test_networks_of_very_many_layers_are_refused(algorithm: str, settings: dict[str, Any]) -> None:
    """They took more than 12 s to make, and would have taken as long in each update."""
    name = [*settings][-1]
    with pytest.raises(
        ConfigError, match=f"{name} asks for [0-9,]* layers, and there may be 1,000"
    ):
        preset_config(declaration(algorithm), "CartPole-v1", "auto").replace(**settings)


@pytest.mark.parametrize(
    ("algorithm", "setting", "most"),
    [("dqn", "replay_ratio", 10_000 * 64), ("ppo", "num_epochs", 10_000)],
)
def test_an_update_that_would_never_end_is_refused(algorithm: str, setting: str, most: int) -> None:
    """A run with such a config.json computed for ever, and no signal ended it."""
    plain = preset_config(algorithm, "CartPole-v1", "default")
    if setting == "replay_ratio":
        plain = plain.replace(batch_size=64)
    plain.replace(**{setting: most})
    with pytest.raises(ConfigError, match=setting):
        plain.replace(**{setting: 2**62})
    with pytest.raises(ConfigError, match=setting):
        plain.replace(**{setting: most + 1})

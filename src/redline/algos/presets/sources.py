"""Where each set of presets comes from."""

from __future__ import annotations


def _zoo(env: str, but: str = "") -> str:
    return f"RL Baselines3 Zoo, {env}{f', but {but}' if but else ''}"


def _cleanrl(script: str, but: str = "") -> str:
    return f"CleanRL, {script}.py{f', but {but}' if but else ''}"


_OWN = "own tuning"
_NO_SDE = "without state-dependent exploration"
_HALF = "the value's loss has half the weight: its square is halved here"
_PPO_SOURCES = {
    "cartpole": _zoo("CartPole-v1", _HALF),
    "recurrent": _OWN,
    "memory": _OWN,
    "mujoco": _cleanrl(
        "ppo_continuous_action",
        "16 environments of 128 steps for one of 2,048, values are not clipped",
    ),
    "swimmer": "as mujoco; gamma and gae_lambda of RL Baselines3 Zoo, Swimmer-v4",
    "lunarlander": _zoo("LunarLander-v3", _HALF),
    "bipedalwalker": _zoo("BipedalWalker-v3", _HALF),
    "bipedalwalkerhardcore": _zoo("BipedalWalkerHardcore-v3", _HALF),
    "acrobot": _zoo("Acrobot-v1", _HALF),
    "mountaincar": _zoo("MountainCar-v0", _HALF),
    "mountaincarcontinuous": f"{_OWN}; length of RL Baselines3 Zoo, pink noise of Eberhard et al. "
    "2023",
    "pendulum": _zoo("Pendulum-v1", f"{_NO_SDE}; {_HALF}"),
    "toytext": _OWN,
    "halfcheetah": "as mujoco; gamma, gae_lambda, value_coef and max_grad_norm of RL Baselines3 "
    "Zoo, HalfCheetah-v4; initial_log_std is own tuning",
    "atari": _cleanrl("ppo_atari", "values are not clipped"),
    "minatar": _OWN,
}
_DETERMINISTIC_SOURCES = {
    "pendulum": _OWN,
    "mountaincarcontinuous": _zoo(
        "MountainCarContinuous-v0", "pink noise for Ornstein-Uhlenbeck's, a longer start at random"
    ),
    "lunarlandercontinuous": _zoo("LunarLanderContinuous-v3"),
    "bipedalwalker": _zoo("BipedalWalker-v3"),
    "bipedalwalkerhardcore": _zoo("BipedalWalkerHardcore-v3"),
    "swimmer": "as mujoco; gamma of RL Baselines3 Zoo, Swimmer-v4",
}
_SAC_SOURCES = {
    "pendulum": f"{_OWN}; length and learning rate of RL Baselines3 Zoo, Pendulum-v1",
    "mountaincarcontinuous": _zoo(
        "MountainCarContinuous-v0",
        "pink noise for state-dependent exploration, a longer start at random",
    ),
    "lunarlandercontinuous": _zoo("LunarLanderContinuous-v3"),
    "bipedalwalker": _zoo("BipedalWalker-v3", _NO_SDE),
    "bipedalwalkerhardcore": _zoo("BipedalWalkerHardcore-v3"),
    "mujoco": _cleanrl("sac_continuous_action"),
    "swimmer": "as mujoco; gamma of RL Baselines3 Zoo, Swimmer-v4",
}

SOURCES: dict[str, dict[str, str]] = {
    "ppo": _PPO_SOURCES,
    "appo": {name: f"PPO's: {source}" for name, source in _PPO_SOURCES.items()},
    "a2c": {
        "cartpole": _zoo(
            "CartPole-v1",
            "a falling learning rate, scaled rewards, half the weight of the value",
        ),
        "lunarlander": _zoo("LunarLander-v3"),
        "lunarlandercontinuous": _zoo("LunarLanderContinuous-v3", _NO_SDE),
        "bipedalwalker": _zoo("BipedalWalker-v3", _NO_SDE),
        "bipedalwalkerhardcore": _zoo("BipedalWalkerHardcore-v3", _NO_SDE),
        "mountaincarcontinuous": _zoo(
            "MountainCarContinuous-v0", "large pink noise for state-dependent exploration"
        ),
        "pendulum": _zoo("Pendulum-v1", _NO_SDE),
        "acrobot": _zoo("Acrobot-v1"),
        "mountaincar": _zoo("MountainCar-v0"),
        "mujoco": _OWN,
        "atari": _zoo("atari", "RMSprop as torch's"),
        "minatar": _OWN,
    },
    "reinforce": {"cartpole": _OWN},
    "impala": {
        "cartpole": _OWN,
        **dict.fromkeys(
            (
                *("mountaincarcontinuous", "mountaincar", "pendulum"),
                *("lunarlandercontinuous", "bipedalwalker"),
            ),
            "A2C's",
        ),
        "lunarlander": "A2C's, but a million env_steps",
        "minatar": _OWN,
        "atari": _OWN,
    },
    "dqn": {
        "cartpole": f"{_OWN}; networks and replay_size of RL Baselines3 Zoo, CartPole-v1",
        "lunarlander": _zoo(
            "LunarLander-v3",
            "double Q with 3 steps, a target that follows by 0.005, a replay of twice the size and "
            "a rate that falls: own tuning; a start of 128 random env_steps for none",
        ),
        "acrobot": _zoo("Acrobot-v1", "a start of 128 random env_steps for none"),
        "mountaincar": _zoo(
            "MountainCar-v0",
            "double Q with 3 steps, a target that follows by 0.005, a replay of five times the "
            "size and a lower rate that falls: own tuning",
        ),
        "minatar": _OWN,
        "atari": _cleanrl(
            "dqn_atari",
            "8 environments for one, the target moves at every 1,000th update, not env_step, a "
            "Huber loss, clipped gradients",
        ),
        "dqn": "Mnih et al. 2015",
        "double-dqn": "van Hasselt et al. 2016, arXiv:1509.06461",
        "rainbow": "Hessel et al. 2018, arXiv:1710.02298; on Atari 8 environments for one and a "
        "dense layer more; ranges elsewhere, and the size on CartPole: own tuning",
        "apex-like": "Horgan et al. 2018, arXiv:1803.00933; 16 actors for 360",
    },
    "r2d1": {
        "memory": _OWN,
        "minatar": _OWN,
        "atari": "Kapturowski et al. 2019 (R2D2), table 2; adam_eps and max_grad_norm as of a mean "
        "loss, a smaller batch and replay, more updates per env_step, the target moved oftener",
    },
    "ddpg": _DETERMINISTIC_SOURCES
    | {"mujoco": _cleanrl("ddpg_continuous_action", "actor and targets move at each update")},
    "td3": _DETERMINISTIC_SOURCES | {"mujoco": _cleanrl("td3_continuous_action")},
    "sac": _SAC_SOURCES,
    "tqc": {name: f"as SAC's: {source}" for name, source in _SAC_SOURCES.items()}
    | {
        "bipedalwalkerhardcore": _zoo("BipedalWalkerHardcore-v3"),
        "mujoco": _zoo("HalfCheetah-v4"),
        "hopper": _zoo("Hopper-v4"),
        "swimmer": _zoo("Swimmer-v4"),
    },
    "crossq": {
        "pendulum": _zoo("Pendulum-v1", "a start of 1,000 random env_steps for 100"),
        "mountaincarcontinuous": _zoo(
            "MountainCarContinuous-v0",
            "pink noise for state-dependent exploration, a longer start at random",
        ),
        "lunarlandercontinuous": _zoo("LunarLanderContinuous-v3"),
        "bipedalwalker": _zoo("BipedalWalker-v3"),
        "mujoco": "Bhatt et al. 2024, arXiv:1902.05605",
        "swimmer": "as mujoco; gamma of RL Baselines3 Zoo, Swimmer-v4",
    },
    "diayn": {"pendulum": _OWN, "mujoco": _OWN},
}
"""Algorithm -> preset or variant -> where its values come from, compared with the zoo's
(github.com/DLR-RM/rl-baselines3-zoo, folder hyperparams, at 22e3ff2) and CleanRL's
(github.com/vwxyzjn/cleanrl, at fe8d8a0)."""

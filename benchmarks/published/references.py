"""What others published, by source. Protocols differ: figures of two sources are never mixed.

Nothing of MinAtar stands here: Young and Tian 2019 (arXiv:1903.03176) and the authors of PureJaxRL
and PQN show curves, at other lengths or of the full action set, and no table. Nor anything of
CrossQ: the zoo has its tunings, and no returns.

Sources:
    zoo: RL Baselines3 Zoo, benchmark.md (github.com/DLR-RM/rl-baselines3-zoo).
    CleanRL: docs.cleanrl.dev, the benchmarks of its single-file scripts.
    Tianshou: its MuJoCo benchmark (tianshou.org).
"""

from __future__ import annotations

PROTOCOLS = {
    "zoo": "RL Baselines3 Zoo: one run, the deterministic policy after training (Atari: the "
    "stochastic one), +- over some 150,000 evaluation steps; environments of its day "
    "(MuJoCo -v3, LunarLander-v2, Atari NoFrameskip-v4)",
    "CleanRL": "CleanRL: the training return at the end, mean +- deviation over 3 seeds, MuJoCo "
    "-v4, Atari NoFrameskip-v4",
    "Tianshou": "Tianshou: the largest of the average returns during training, 10 seeds, MuJoCo "
    "-v2 and -v3",
}
"""Source -> how its figures came about."""

_ATARI_ENV_STEPS = 10_000_000
_ZOO = {
    "CartPole-v1": {"a2c": "500 +- 0", "dqn": "500 +- 0", "ppo": "500 +- 0"},
    "Acrobot-v1": {"a2c": "-83 +- 17", "dqn": "-77 +- 12", "ppo": "-74 +- 18"},
    "MountainCar-v0": {"a2c": "-111 +- 24", "dqn": "-101 +- 10", "ppo": "-110 +- 19"},
    "MountainCarContinuous-v0": {
        "a2c": "91 +- 0", "ddpg": "94 +- 0", "ppo": "88 +- 3", "sac": "95 +- 1", "td3": "93 +- 0",
        "tqc": "64 +- 45",
    },
    "Pendulum-v1": {
        "a2c": "-163 +- 103", "ddpg": "-152 +- 94", "ppo": "-172 +- 104", "sac": "-157 +- 89",
        "td3": "-152 +- 90", "tqc": "-151 +- 88",
    },
    "LunarLander-v3": {"a2c": "156 +- 80", "dqn": "154 +- 79", "ppo": "242 +- 32"},
    "LunarLanderContinuous-v3": {
        "a2c": "84 +- 146", "ddpg": "230 +- 92", "ppo": "271 +- 32", "sac": "260 +- 65",
        "td3": "207 +- 68", "tqc": "278 +- 25",
    },
    "BipedalWalker-v3": {
        "a2c": "300 +- 23", "ddpg": "197 +- 142", "ppo": "288 +- 2", "sac": "298 +- 33",
        "td3": "306 +- 57", "tqc": "330 +- 45",
    },
    "HalfCheetah-v5": {
        "a2c": "3,041 +- 157", "ppo": "5,819 +- 664", "sac": "9,535 +- 100", "td3": "9,656 +- 970",
        "tqc": "12,090 +- 127",
    },
    "Hopper-v5": {"ppo": "2,410 +- 10", "sac": "2,326 +- 1,130", "td3": "3,606 +- 4"},
    "Walker2d-v5": {"ppo": "3,479 +- 822", "sac": "3,863 +- 254", "td3": "4,718 +- 46"},
    "Ant-v5": {"ppo": "1,327 +- 452", "sac": "4,616 +- 1,354", "td3": "5,813 +- 590"},
    "ALE/Breakout-v5": {"a2c": "280 +- 122", "dqn": "358 +- 62", "ppo": "398 +- 33"},
    "ALE/Pong-v5": {"a2c": "17.3 +- 3.2", "dqn": "20.60 +- 0.61", "ppo": "20.99 +- 0.11"},
    "ALE/BeamRider-v5": {
        "a2c": "2,890 +- 1,379", "dqn": "4,296 +- 1,790", "ppo": "3,397 +- 1,662",
    },
}  # fmt: skip
# Where the zoo's run is longer than the experiment.
_LONGER = {
    "MountainCarContinuous-v0": {"ddpg": 300_000},
    "LunarLanderContinuous-v3": {"sac": 500_000, "tqc": 500_000, "ddpg": 300_000},
    "BipedalWalker-v3": {"tqc": 500_000, "td3": 1_000_000, "ddpg": 1_000_000},
}
_CLEANRL = {
    "HalfCheetah-v5": {"ppo": "1,443 +- 46", "sac": "9,635 +- 1,424", "td3": "9,583 +- 126"},
    "Hopper-v5": {"ppo": "2,383 +- 272", "sac": "2,310 +- 343", "td3": "3,135 +- 360"},
    "Walker2d-v5": {"ppo": "2,288 +- 572", "sac": "3,591 +- 911", "td3": "4,058 +- 659"},
    "ALE/Breakout-v5": {"dqn": "366.9 +- 39.9", "ppo": "414.7 +- 28.1"},
    "ALE/Pong-v5": {"dqn": "20.25 +- 0.41", "ppo": "20.36 +- 0.20"},
    "ALE/BeamRider-v5": {"dqn": "6,673 +- 1,434", "ppo": "1,916 +- 485"},
}
_TIANSHOU = {
    "HalfCheetah-v5": {
        "a2c": "1,830 +- 1,068", "ppo": "5,784 +- 1,244", "sac": "12,139 +- 1,049",
        "td3": "10,201 +- 773",
    },
    "Hopper-v5": {"ppo": "2,609 +- 701", "sac": "3,542 +- 52", "td3": "3,472 +- 117"},
    "Walker2d-v5": {"ppo": "3,589 +- 757", "sac": "5,007 +- 252", "td3": "3,982 +- 275"},
    "Ant-v5": {"ppo": "3,258 +- 1,079", "sac": "5,850 +- 476", "td3": "5,116 +- 800"},
}  # fmt: skip


def published(algorithm: str, env: str) -> dict[str, str]:
    """Source -> its figure; {} if none is known. `published_env_steps` says at which length."""
    tables = {"zoo": _ZOO, "CleanRL": _CLEANRL, "Tianshou": _TIANSHOU}
    found = {source: table.get(env, {}).get(algorithm) for source, table in tables.items()}
    return {source: figure for source, figure in found.items() if figure is not None}


def published_env_steps(algorithm: str, env: str) -> int | None:
    """The length of the published figures; None: that of the experiment."""
    if env.startswith("ALE/"):
        return _ATARI_ENV_STEPS
    return _LONGER.get(env, {}).get(algorithm)

"""From a config to an algorithm with its policy, and to its replay."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium
import torch

from redline.algos.a2c import A2C
from redline.algos.algorithm import OffPolicyAlgorithm, OnPolicyAlgorithm
from redline.algos.appo import APPO
from redline.algos.config import OffPolicyConfig
from redline.algos.r2d1 import R2D1Config
from redline.algos.impala import Impala
from redline.algos.ppo import PPO
from redline.algos.reinforce import Reinforce
from redline.envs import VecEnv
from redline.envs.registry import is_atari
from redline.errors import ConfigError
from redline.policies import Policy, make_policy
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.spec import LeafSpec
from redline.train.runs.building import NetworkFactory
from redline.train.settings import RunConfig

Algorithm: TypeAlias = OnPolicyAlgorithm | OffPolicyAlgorithm

ON_POLICY: dict[str, Any] = {
    "ppo": PPO,
    "a2c": A2C,
    "reinforce": Reinforce,
    "impala": Impala,
    "appo": APPO,
}
OFF_POLICY = {
    "dqn": ("redline.algos.dqn", "DQN"),
    "r2d1": ("redline.algos.r2d1", "R2D1"),
    "ddpg": ("redline.algos.ddpg", "DDPG"),
    "td3": ("redline.algos.td3", "TD3"),
    "sac": ("redline.algos.sac", "SAC"),
    "diayn": ("redline.algos.diayn", "DIAYN"),
}
"""Where the class of each off-policy algorithm is; only the one in use is imported."""


def _off_policy(name: str) -> Any:
    module, attribute = OFF_POLICY[name]
    return getattr(importlib.import_module(module), attribute)


def build_policy(config: RunConfig, env: VecEnv, network: NetworkFactory | None) -> Policy:
    """The run's policy with fresh weights, drawn from torch's global generator, on the CPU."""
    settings = _network_settings(config, network)
    if config.algorithm in OFF_POLICY:
        return _off_policy(config.algorithm).make_policy(
            env.observation_space, env.action_space, config.algo, **settings
        )
    if settings["shared_encoder"] is None:
        settings["shared_encoder"] = "auto"
    return make_policy(env.observation_space, env.action_space, **settings)


def build_algorithm(config: RunConfig, env: VecEnv, network: NetworkFactory | None) -> Algorithm:
    """The run's algorithm on its device, with fresh weights from torch's global generator."""
    if config.algorithm in OFF_POLICY:
        return _off_policy(config.algorithm).make(
            env.observation_space,
            env.action_space,
            config.algo,
            seed=config.run.seed,
            device=config.run.device,
            **_network_settings(config, network),
        )
    policy = build_policy(config, env, network).to(config.run.device)
    return ON_POLICY[config.algorithm](policy, config.algo, seed=config.run.seed)


def _network_settings(config: RunConfig, network: NetworkFactory | None) -> dict[str, Any]:
    settings = dataclasses.asdict(config.policy)
    if network is not None:
        settings["encoder"] = network
    return settings


def build_replay(config: RunConfig, env: VecEnv, policy: Policy, out: Path) -> Replay:
    """The run's replay, empty.

    Raises:
        ConfigError: if it cannot fit; says what it needs and what there is.
    """
    algo = config.algo
    if not isinstance(algo, OffPolicyConfig):
        raise ConfigError(f"{config.algorithm} is on-policy and has no replay.")
    storage_dir = None
    if algo.replay_storage == "memmap":
        storage_dir = out / "replay"
    sequences: dict[str, Any] = {}
    if isinstance(algo, R2D1Config):
        sequences = {
            "sequence_length": algo.sequence_length,
            "burn_in": algo.burn_in,
            "state_interval": algo.state_interval,
            "priority_eta": algo.priority_eta,
        }
    replay_config = ReplayConfig(
        capacity=algo.replay_size,
        n_step=algo.n_step,
        gamma=algo.gamma,
        frame_stack=algo.replay_frame_stack or _stacked_frames(config, env.observation_space),
        prioritized=algo.prioritized,
        alpha=algo.priority_alpha,
        extras=policy.conditioning_names,
        storage=algo.replay_storage,
        storage_dir=storage_dir,
        device=config.run.device if algo.replay_storage == "device" else "cpu",
        **sequences,
    )
    state = {
        name: LeafSpec(tuple(leaf.shape[1:]), leaf.dtype)
        for name, leaf in policy.initial_state(1).items()
    }
    spec = ReplaySpec.from_spaces(
        env.observation_space,
        env.action_space,
        algo.num_envs,
        extras=dict.fromkeys(policy.conditioning_names, LeafSpec((), torch.float32)),
        state=state,
    )
    return Replay(replay_config, spec)


def _stacked_frames(config: RunConfig, space: gymnasium.Space[Any]) -> int:
    """Frames per observation that replay stores only once; 1 where observations are no stacks."""
    if not is_atari(config.run.env) or not isinstance(space, gymnasium.spaces.Box):
        return 1
    return int(space.shape[0]) if len(space.shape) == 3 else 1


def trainable_parts(state: dict[str, Any]) -> dict[str, Any]:
    """What of an algorithm's saved state `params_sha256` covers: all that gradients change.

    Target networks follow from it and are left out.
    """
    if "critic" not in state:
        return state["policy"]
    parameters = {
        f"{part}.{name}": value
        for part in ("policy", "critic", "discriminator")
        if part in state
        for name, value in state[part].items()
    }
    if "log_alpha" in state:
        parameters["log_alpha"] = state["log_alpha"]
    return parameters

"""From settings to what learns: the algorithm, its policy and its replay."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import torch

from redline.algos.algorithm import Algorithm
from redline.algos.config import OffPolicyConfig
from redline.envs import EnvSettings, VecEnv
from redline.envs.atari import is_atari
from redline.errors import ConfigError
from redline.models import image_shape, leaf_spaces
from redline.policies import Policy
from redline.previous_inputs import ACTION, REWARD, has_previous, without_previous
from redline.replay import Replay, ReplayConfig, ReplaySpec
from redline.replay.hindsight import HindsightReplay, goal_functions, require_own_rewards
from redline.replay.spec import LeafSpec, entry_name
from redline.train.loops.saved_progress import algorithm_state
from redline.train.runs.given import Given, algorithm_of, network_of
from redline.train.runs.memory_checks import limited_allocations, size_settings
from redline.train.settings import RunConfig

_PREVIOUS = ((ACTION,), (REWARD,))
_NESTED = (gymnasium.spaces.Dict, gymnasium.spaces.Tuple)


def _require_single_precision(config: RunConfig, given: Given) -> None:
    """Of one's own algorithm nobody else knows in what it computes."""
    default = torch.get_default_dtype()
    if default != torch.float32 and algorithm_of(config, given).__module__.startswith("redline."):
        raise ConfigError(
            f"this program has set torch's default dtype to {str(default).removeprefix('torch.')}, "
            f"so that layers would be made of it, and observations are float32. Call "
            f"torch.set_default_dtype(torch.float32) before, and set yours again afterwards."
        )


def build_policy(config: RunConfig, env: VecEnv, given: Given) -> Policy:
    """The run's policy with fresh weights, drawn from torch's global generator, on the CPU.

    Raises:
        ConfigError: if torch makes layers of another precision than the observations'.
    """
    _require_single_precision(config, given)
    with limited_allocations(size_settings(config, env)):
        return algorithm_of(config, given).make_policy(
            env.observation_space,
            env.action_space,
            config.algo,
            **_network_settings(config, given),
        )


def build_algorithm(config: RunConfig, env: VecEnv, given: Given) -> Any:
    """The run's algorithm on its device, with fresh weights from torch's global generator.

    Raises:
        ConfigError: if its state does not hold what acts, which loading a run needs; or if torch
            makes layers of another precision than the observations'.
    """
    _require_single_precision(config, given)
    with limited_allocations(size_settings(config, env)):
        algorithm = algorithm_of(config, given).make(
            env.observation_space,
            env.action_space,
            config.algo,
            seed=config.run.seed,
            device=config.run.device,
            **_network_settings(config, given),
        )
    if "policy" not in algorithm.state_dict():
        raise ConfigError(
            f"{type(algorithm).__name__}.state_dict() has no entry 'policy', from which the policy "
            f"is loaded to evaluate or export it. Add 'policy': self.policy.state_dict()."
        )
    return algorithm


def _network_settings(config: RunConfig, given: Given) -> dict[str, Any]:
    settings, network = dataclasses.asdict(config.policy), network_of(config, given)
    if network is not None:
        settings["encoder"] = network
    return settings


def build_replay(
    config: RunConfig, env: VecEnv, policy: Policy, out: Path, settings: EnvSettings
) -> Replay:
    """The run's replay, empty.

    Args:
        config: of the run.
        env: its environments.
        policy: says what else is stored: recurrent state, conditioning.
        out: run directory, for a replay that lies in a file.
        settings: how to make an environment that computes rewards of other goals.

    Raises:
        ConfigError: if it cannot fit, with the arithmetic; or if goals are to be replaced and
            the environment has none.
    """
    algo: OffPolicyConfig = config.algo
    frame_stack = algo.replay_frame_stack or _stacked_frames(config, env.observation_space)
    replay_config = ReplayConfig(
        capacity=algo.replay_size,
        n_step=algo.n_step,
        gamma=algo.gamma,
        frame_stack=frame_stack,
        stacked_keys=_stacked_keys(env.observation_space, frame_stack),
        prioritized=algo.prioritized,
        alpha=algo.priority_alpha,
        extras=policy.conditioning_names,
        storage=algo.replay_storage,
        storage_dir=out / "replay" if algo.replay_storage == "memmap" else None,
        device=config.run.device if algo.replay_storage == "device" else "cpu",
        **algo.sequence_settings(),
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
        bounds={entry_name("extra", (n,)): b for n, b in policy.conditioning_bounds.items()},
        stored_action_space=getattr(policy, "stored_action_space", None),
    )
    if algo.replay == "her":
        goal_env = _goal_env(settings, env)
        return HindsightReplay(replay_config, spec, goal_env, share=algo.her_share)
    return Replay(replay_config, spec)


def _goal_env(settings: EnvSettings, env: VecEnv) -> Any:
    """An environment that says what other goals would have paid.

    Raises:
        ConfigError: if none can be made, or rewards are not of the goals alone.
    """
    if isinstance(settings.env, gymnasium.vector.VectorEnv):
        raise ConfigError(
            "replay='her' asks an environment of its own what other goals would have paid, and a "
            "VectorEnv object is only one. Give an id, or a callable that makes one gymnasium.Env."
        )
    if env.clips_reward:
        raise ConfigError(
            "replay='her' computes rewards anew, and clip_reward changes those that were "
            "collected. Leave clip_reward out."
        )
    made = settings.single().make()
    goal_functions(made)
    require_own_rewards(made)
    return made


def _stacked_frames(config: RunConfig, space: gymnasium.Space[Any]) -> int:
    """Frames per observation that replay stores only once; 1 where observations are no stacks."""
    space = without_previous(space)
    if not is_atari(config.run.env) or not isinstance(space, gymnasium.spaces.Box):
        return 1
    return int(space.shape[0]) if len(space.shape) == 3 else 1


def _stacked_keys(space: gymnasium.Space[Any], frames: int) -> tuple[str, ...]:
    """The names of the stacked observations, where there are several: the images.

    Beside the previous action and reward, a single observation is stacked whatever it is.

    Raises:
        ConfigError: if they cannot be stacks of that many frames.
    """
    if frames == 1:
        return ()
    own = [(path, leaf) for path, leaf in leaf_spaces(space) if path[:1] not in _PREVIOUS]
    if not has_previous(space):
        own = list(leaf_spaces(space))
    if len(own) > 1:
        own = [(path, leaf) for path, leaf in own if image_shape(leaf) == leaf.shape]
    stacked = [path for path, leaf in own if leaf.shape and leaf.shape[0] % frames == 0]
    if not stacked:
        raise ConfigError(
            f"replay_frame_stack={frames} does not divide the first axis of any observation that "
            f"may be a stack of frames: {_shapes(space)}. Use a divisor of it, or leave "
            f"replay_frame_stack out."
        )
    return tuple(".".join(path) for path in stacked) if isinstance(space, _NESTED) else ()


def _shapes(space: gymnasium.Space[Any]) -> str:
    named = ((".".join(path) or "the observation", leaf) for path, leaf in leaf_spaces(space))
    return ", ".join(f"{name} {list(leaf.shape or ())}" for name, leaf in named)


def trainable_parts(algorithm: type[Algorithm], state: dict[str, Any]) -> dict[str, Any]:
    """What of an algorithm's saved state `params_sha256` covers: all that gradients change.

    Target networks follow from it and are left out.

    Raises:
        CorruptCheckpointError: if something else than tensors stands there.
    """
    parts = algorithm.saved_parameters
    if parts == ("policy",):
        return algorithm_state({"algorithm": state}, "policy")["policy"]
    parameters: dict[str, Any] = {}
    for part in parts:
        if isinstance(state.get(part), torch.Tensor):
            parameters[part] = state[part]
        elif part in state:
            found = algorithm_state({"algorithm": state}, part)[part]
            parameters |= {f"{part}.{name}": value for name, value in found.items()}
    return parameters

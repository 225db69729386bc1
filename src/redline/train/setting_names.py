"""Names of settings: what other libraries call them, and what a mistaken one may mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import fields

from redline.plain_text import shown

__all__ = ["NAMES_ELSEWHERE", "OF_THE_RUN", "did_you_mean", "meant", "unknown_setting"]

NAMES_ELSEWHERE: dict[str, str | tuple[str, ...]] = {
    "dataset": "data",
    "replay_from": "data",
    "lr": "learning_rate",
    "env_id": "env",
    "environment": "env",
    "timesteps": "total_env_steps",
    "total_timesteps": "total_env_steps",
    "total_steps": "total_env_steps",
    "num_timesteps": "total_env_steps",
    "steps": "total_env_steps",
    "n_envs": "num_envs",
    "n_steps": "rollout_length",
    "num_steps": "rollout_length",
    "horizon": "rollout_length",
    "n_epochs": "num_epochs",
    "update_epochs": "num_epochs",
    "clip_coef": "clip_range",
    "ent_coef": ("entropy_coef", "alpha", "initial_alpha"),
    "entropy_coef": ("alpha", "initial_alpha"),
    "temperature": ("alpha", "initial_alpha"),
    "vf_coef": "value_coef",
    "lam": "gae_lambda",
    "discount": "gamma",
    "buffer_size": "replay_size",
    "train_freq": "rollout_length",
    "gradient_steps": "replay_ratio",
    "utd_ratio": "replay_ratio",
    "net_arch": "hidden_sizes",
    "hidden_size": "hidden_sizes",
    "track": "wandb",
    "logdir": "out",
    "output_dir": "out",
    "eval_freq": "eval_interval",
    "save_freq": "checkpoint_interval",
    "verbose": "quiet",
    "polyak": "tau",
    "n_critics": "num_critics",
    "n_quantiles": "num_quantiles",
    "top_quantiles_to_drop_per_net": "dropped_quantiles",
    "policy_delay": "actor_update_interval",
    "target_policy_noise": "target_noise",
    "exploration_initial_eps": "epsilon_initial",
    "exploration_final_eps": "epsilon_final",
    "exploration_fraction": "epsilon_fraction",
}
"""What other libraries and people call a setting -> its name here, or names: which of them there
are depends on the algorithm."""

OF_THE_RUN = frozenset(
    (
        "total_env_steps",
        "device",
        "policy_device",
        "env_device",
        "eval_device",
        "accelerate",
        "cpu_acting",
        "check_env",
        "cpu_affinity",
        "worker_timeout_s",
        "on_worker_failure",
        "max_worker_restarts",
        "num_threads",
        "self_check",
        "log_interval",
        "checkpoints",
        "checkpoint_interval",
        "checkpoint_gap",
        "eval_interval",
        "eval_async",
        "eval_episodes",
        "eval_max_episode_steps",
        "stop_at_return",
        "on_divergence",
        "tensorboard",
        "jsonl",
        "wandb",
        "quiet",
        "name",
        "tags",
    )
)
"""Settings of a run that what is saved does not depend on: a resumed run may change them."""


def unknown_setting(name: str, algorithm: str, known: Iterable[str]) -> str:
    """The message for a setting that no part of the config has.

    Args:
        name: as it was given.
        algorithm: whose settings they are.
        known: all names that there are.
    """
    known = list(known)
    if others := algorithms_with(name):
        close = did_you_mean(name, known)
        return f"{algorithm} has no setting {shown(name)}: it is one of {', '.join(others)}{close}."
    if hint := did_you_mean(name, known):
        return f"{algorithm} has no setting {shown(name)}{hint}."
    return f"{algorithm} has no setting {shown(name)}. Settings are: {', '.join(sorted(known))}."


def algorithms_with(name: str) -> list[str]:
    """The built-in algorithms that have a hyperparameter of this name."""
    from redline.algos.registry import BUILT_IN, declaration

    return [
        each
        for each in BUILT_IN
        if name in {field.name for field in fields(declaration(each, for_help=True).Config)}
    ]


def meant(name: str, known: Iterable[str]) -> list[str]:
    """The settings that an unknown one may mean: by what others call it, else by its letters."""
    known = list(known)
    own = NAMES_ELSEWHERE.get(name, ())
    there = [each for each in ((own,) if isinstance(own, str) else own) if each in known]
    return there or difflib.get_close_matches(name, known, n=3)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to add to a message about an unknown name; empty where nothing is like it."""
    matches = meant(name, known)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""

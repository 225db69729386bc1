r"""Train an algorithm of Stable-Baselines3 with settings given on the command line.

    PYTHON benchmarks/peers/stable_baselines3_settings.py PPO CartPole-v1 --env-steps 10000 \
        --n-envs 4 --subproc --optimizer fused --set n_steps=512 --set batch_size=256

Nothing of Redline is imported. Torch uses as many threads as OMP_NUM_THREADS says.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import stable_baselines3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv


def setting(text: str) -> tuple[str, Any]:
    """`name=value`, the value as JSON."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main() -> None:
    """Train for a number of steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm")
    parser.add_argument("env")
    parser.add_argument("--env-steps", type=int, required=True)
    parser.add_argument("--n-envs", type=int, default=1)
    parser.add_argument(
        "--subproc", action=argparse.BooleanOptionalAction, help="each env in a process of its own"
    )
    parser.add_argument("--optimizer", choices=("fused", "foreach"))
    parser.add_argument("--log-interval", type=int)
    parser.add_argument("--log-to", help="folder for CSV and TensorBoard files")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=JSON")
    options = parser.parse_args()
    kind = SubprocVecEnv if options.subproc else DummyVecEnv
    envs = make_vec_env(options.env, options.n_envs, seed=1, vec_env_cls=kind)
    policy: dict[str, Any] = {}
    if options.optimizer:
        policy["optimizer_kwargs"] = {options.optimizer: True}
    algorithm = getattr(stable_baselines3, options.algorithm)
    settings = dict(options.set)
    model = algorithm("MlpPolicy", envs, seed=1, device="cpu", policy_kwargs=policy, **settings)
    if options.log_to:
        model.set_logger(configure(options.log_to, ["csv", "tensorboard"]))
    logged = {"log_interval": options.log_interval} if options.log_interval else {}
    model.learn(options.env_steps, **logged)


if __name__ == "__main__":
    main()

"""One episode of a trained agent, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch

from redline.data import Array, to_numpy, to_tensor
from redline.envs import EnvSettings
from redline.envs.games.ids import ORIGINALS
from redline.errors import ConfigError
from redline.policies.policy import Policy, reset_state


class EpisodeFrames:
    """Runs one whole episode and hands out its frames as they are drawn.

    Args:
        settings: how to make the environment; it is stepped in this process.
        policy: acts.
        seed: of the environment and the action noise.
        greedy: act with the mode of the action distribution.

    Attributes:
        fps: frames per second that the environment asks for.
    """

    def __init__(
        self, settings: EnvSettings, policy: Policy, *, seed: int, greedy: bool = True
    ) -> None:
        self._policy, self._seed, self._greedy = policy, seed, greedy
        self._rendered: list[gymnasium.Env[Any, Any]] = []
        if isinstance(settings.env, str):
            drawn = {**settings.env_kwargs, "render_mode": "rgb_array"}
            # A native game cannot be drawn, but its original plays by the same rules.
            env = ORIGINALS.get(settings.env, settings.env)
            settings = replace(settings, env=env, backend="gymnasium", env_kwargs=drawn)
        make = settings.single().make

        def remember() -> gymnasium.Env[Any, Any]:
            env = make()
            self._rendered.append(env)
            return env

        self._env = EnvSettings(env=remember).make(1)
        self.fps = float(self._rendered[0].metadata.get("render_fps", 30))

    def __iter__(self) -> Iterator[Array]:
        """Step until the episode ends; the environment is closed afterwards."""
        rng = np.random.default_rng([self._seed, 0])
        state = self._policy.initial_state(1)
        conditioning = self._policy.evaluation_conditioning(1)
        with self._env as env, torch.inference_mode():
            obs = env.reset(self._seed)
            while True:
                yield self._frame()
                noise = None
                if not self._greedy:
                    noise = torch.from_numpy(self._policy.draw_noise(rng, 1))
                output = self._policy.act(to_tensor(obs), state, noise, conditioning or None)
                step = env.step(self._policy.env_action(to_numpy(output.action)))
                if step.episodes:
                    return
                obs, state = step.obs, output.state
                if state and (step.terminated | step.truncated).any():
                    state = reset_state(state, torch.from_numpy(step.terminated | step.truncated))

    def _frame(self) -> Array:
        frame: Any = self._rendered[0].render()
        if not isinstance(frame, np.ndarray):
            raise ConfigError(
                f"{self._env.env_id} drew {type(frame).__name__} instead of a picture. Give the "
                f"environment render_mode='rgb_array' where it is made."
            )
        return frame

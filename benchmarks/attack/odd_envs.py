"""Random environments that break Gymnasium's contract in one to three ways, trained on."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

import redline
from benchmarks.attack.series import FAULT, WAIT_LIMIT_S, Verdict, quiet, refusal
from redline.errors import RedlineError

_SMALL: dict[str, Any] = {
    "total_env_steps": 64, "num_envs": 2, "rollout_length": 8, "hidden_sizes": (4,),
    "preset": "default", "quiet": True, "tensorboard": False, "num_threads": 1,
}  # fmt: skip
_OFF_POLICY: dict[str, Any] = {
    "learning_starts": 8, "batch_size": 4, "replay_size": 64, "replay_ratio": 1.0,
}  # fmt: skip
_SPACES: tuple[Callable[[], spaces.Space[Any]], ...] = (
    lambda: spaces.Box(-1, 1, (3,), np.float32),
    lambda: spaces.Box(-np.inf, np.inf, (2,), np.float64),
    lambda: spaces.Box(0, 255, (4, 12, 12), np.uint8),
    lambda: spaces.Box(-1, 1, (), np.float32),
    lambda: spaces.Box(-1, 1, (0,), np.float32),
    lambda: spaces.Box(-(2**40), 2**40, (2,), np.int64),
    lambda: spaces.Box(-1, 1, (2, 0), np.float16),
    lambda: spaces.Discrete(4),
    lambda: spaces.Discrete(3, start=-5),
    lambda: spaces.Discrete(1),
    lambda: spaces.MultiDiscrete([2, 3]),
    lambda: spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    lambda: spaces.MultiBinary(3),
    lambda: spaces.MultiBinary((2, 2)),
    lambda: spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1, (2,), np.float32)),
    lambda: spaces.Dict({}),
    lambda: spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,), np.float32))),
    lambda: spaces.Tuple(()),
    lambda: spaces.Text(5),
    lambda: spaces.Sequence(spaces.Discrete(2)),
    lambda: spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(2))}),
    lambda: spaces.Dict(obs=spaces.Discrete(2), action_mask=spaces.MultiBinary(4)),
)
_VALUES: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: float("nan"), lambda: float("inf"), lambda: 1e300,
    lambda: -(10**400), lambda: "1", lambda: b"1", lambda: [], lambda: [1.0], lambda: {},
    lambda: np.array([1.0, 2.0]), lambda: np.array([[True]]), lambda: np.float16(7e4),
    lambda: np.array(["a"]), lambda: object(), lambda: 1 + 2j, lambda: np.datetime64("now"),
    lambda: np.ma.masked, lambda: range(3), lambda: np.zeros((3, 0)), lambda: -1, lambda: 2**70,
)  # fmt: skip
_ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: StopIteration(), lambda: SystemExit(0), lambda: SystemExit("bye"), lambda: ValueError(),
    lambda: KeyError("x"), lambda: RecursionError(), lambda: MemoryError(), lambda: GeneratorExit(),
    lambda: OSError(5, "x"), lambda: AssertionError(),
)  # fmt: skip


class Odd(gymnasium.Env[Any, Any]):
    """Does what it should, but for what `wrong` says.

    Args:
        wrong: name of a part -> what gives its value, from step `since` on.
        since: step.
        observations: makes the observation space.
        actions: makes the action space.
    """

    def __init__(
        self,
        wrong: dict[str, Callable[[], Any]],
        since: int,
        observations: Callable[[], spaces.Space[Any]],
        actions: Callable[[], spaces.Space[Any]],
    ) -> None:
        self._wrong, self._since, self._count = wrong, since, 0
        self.observation_space = observations()
        self.action_space = actions()
        if "raises in init" in wrong:
            raise wrong["raises in init"]()

    def _get(self, name: str, usual: Any) -> Any:
        late = self._count >= self._since
        return self._wrong[name]() if late and name in self._wrong else usual

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """See `gymnasium.Env.reset`."""
        super().reset(seed=seed)
        if "raises in reset" in self._wrong and self._count >= self._since:
            raise self._wrong["raises in reset"]()
        obs = self._get("obs", self.observation_space.sample())
        return self._get("reset", (obs, self._get("info", {})))

    def step(self, action: Any) -> Any:
        """See `gymnasium.Env.step`."""
        self._count += 1
        if "raises in step" in self._wrong and self._count >= self._since:
            raise self._wrong["raises in step"]()
        if self._count >= self._since and "space" in self._wrong:
            self.observation_space = self._wrong["space"]()
        obs = self._get("obs", self.observation_space.sample())
        ended = self._get("terminated", self._count % 7 == 0)
        truncated = self._get("truncated", False)
        outcome = (obs, self._get("reward", 1.0), ended, truncated, self._get("info", {}))
        return self._get("step", outcome)


class OddEnvs:
    """Trains on odd environments."""

    kind = "envs"
    wait_s = WAIT_LIMIT_S

    def prepare(self, folder: Path) -> None:
        """Train on an environment that is not odd, which loads what later attempts need."""
        for algorithm in ("ppo", "dqn", "sac"):
            settings = _SMALL | ({} if algorithm == "ppo" else _OFF_POLICY)
            env = "Pendulum-v1" if algorithm == "sac" else "CartPole-v1"
            with contextlib.suppress(RedlineError):
                redline.train(algorithm, env=env, out=folder / algorithm, **settings)

    def attempt(self, number: int, rng: random.Random, folder: Path) -> Verdict:
        """Make one up, and train on it."""
        observations, actions = rng.choice(_SPACES[:3]), rng.choice(_SPACES[7:8])
        if rng.random() < 0.4:
            observations, actions = rng.choice(_SPACES), rng.choice(_SPACES)
        wrong = dict(_wrong(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3))))
        since = rng.choice((0, 1, 2, 9, 20))
        algorithm = rng.choice(("ppo", "dqn", "sac", "a2c"))
        settings: dict[str, Any] = _SMALL | (_OFF_POLICY if algorithm in ("dqn", "sac") else {})
        if algorithm == "ppo":
            settings = settings | {"num_minibatches": 1}
        told = {name: repr(value())[:40] for name, value in wrong.items()}
        what = f"{algorithm}, {observations()} -> {actions()}, from step {since}: {told}"
        given = rng.choice((None, rng.choice(_VALUES)())) if rng.random() < 0.03 else 0
        try:
            with quiet():
                made: Any = (
                    (lambda: Odd(wrong, since, observations, actions))
                    if given == 0
                    else (lambda: given)
                )
                redline.train(algorithm, env=made, out=folder / "run", **settings)
        except RedlineError as error:
            message = refusal(error)
            return Verdict(self.kind, number, what, "refused" if message else FAULT,
                           message or repr(error), algorithm)  # fmt: skip
        except (SystemExit, GeneratorExit) as error:
            return Verdict(self.kind, number, what, FAULT, f"left by {error!r}", algorithm)
        except Exception as error:
            if _is_its_own(error):
                return Verdict(self.kind, number, what, "its own error", repr(error), algorithm)
            raise
        return Verdict(self.kind, number, what, "ran", "", algorithm)


def _wrong(rng: random.Random) -> tuple[str, Callable[[], Any]]:
    part = rng.choice(
        ("obs", "reward", "terminated", "truncated", "info", "step", "reset", "raises in step",
         "raises in reset", "raises in init", "space")
    )  # fmt: skip
    if part.startswith("raises"):
        return part, rng.choice(_ERRORS)
    if part == "space":
        return part, rng.choice(_SPACES)
    return part, rng.choice(_VALUES)


def _is_its_own(error: BaseException) -> bool:
    """Whether the environment itself raised it: its author needs the traceback as it is."""
    trail = error.__traceback__
    while trail is not None and trail.tb_next is not None:
        trail = trail.tb_next
    last = None if trail is None else trail.tb_frame.f_code.co_filename
    return last == sys.modules[__name__].__file__

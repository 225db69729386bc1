"""The experiments: algorithm, environment, length, seeds. The cheap and telling ones come first.

`FIRST` is what people try first: twelve environments by every algorithm that can act there,
with no option but the length. It is that of RL Baselines3 Zoo's run where the zoo publishes
one, so that like is compared with like. DDPG has less on MountainCarContinuous; SAC, TQC and DDPG
on LunarLanderContinuous; TQC, TD3 and DDPG on BipedalWalker: the zoo's length takes a core hours,
and less says as much where it is enough. Of SAC with Discrete actions and of R2D1 the zoo has
none: they have DQN's length, and 100,000 at least. But SAC has 50,000 on CartPole and Taxi, where
it needs no more, and 100,000 on MinAtar; REINFORCE has a million there. Taxi, of which the zoo has
nothing, has 200,000 for other algorithms with replay, 500,000 for those without.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

MILLION = 1_000_000
SEEDS = 3


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """One setting of `redline train` over several seeds.

    Attributes:
        algorithm: as `redline train` knows it.
        env: its environment.
        family: of environments; those of one share a figure.
        env_steps: length of each run, in decisions.
        seeds: how many; they are 1, 2, ...
        options: further arguments of `redline train`.
        first: whether it is part of the suite `first`.
        goal: what `needed` seeds must reach, or the mean over the seeds if `needed` is 0.
        needed: seeds that must reach the goal.
        episodes: of the greedy policy, for the return of each seed.
        caveat: what a reader must know of this experiment alone.
    """

    algorithm: str
    env: str
    family: str
    env_steps: int
    seeds: int = SEEDS
    options: str = ""
    first: bool = False
    goal: float | None = None
    needed: int = 0
    episodes: int = 20
    caveat: str = ""

    @property
    def name(self) -> str:
        """Of its files, and what `--only` matches: sac-HalfCheetah-v5."""
        return f"{self.algorithm}-{self.env.replace('/', '-')}"

    def arguments(self, seed: int | str, out: str) -> list[str]:
        """Of `redline`, to train one seed."""
        length = ["--total-env-steps", str(self.env_steps)]
        place = ["--seed", str(seed), "--out", out]
        return ["train", self.algorithm, "--env", self.env, *length, *self.options.split(), *place]


_DISCRETE = ("ppo", "a2c", "dqn", "sac", "impala", "appo", "reinforce", "r2d1")
_CONTINUOUS = (
    *("ppo", "a2c", "sac", "td3", "ddpg", "impala", "appo", "reinforce", "tqc", "crossq"),
)

_TRIED_FIRST: tuple[tuple[str, str, tuple[str, ...], int, dict[str, int]], ...] = (
    # environment, family, algorithms, length, and where it is another one
    ("CartPole-v1", "classic control", _DISCRETE, 100_000,
     {"a2c": 500_000, "dqn": 50_000, "sac": 50_000, "impala": 500_000, "reinforce": 200_000}),
    ("LunarLander-v3", "Box2D", _DISCRETE, MILLION,
     {"a2c": 200_000, "dqn": 100_000, "sac": 100_000, "r2d1": 100_000}),
    ("Acrobot-v1", "classic control", _DISCRETE, 500_000,
     {"ppo": MILLION, "dqn": 100_000, "sac": 100_000, "r2d1": 100_000}),
    ("MountainCar-v0", "classic control", _DISCRETE, MILLION,
     {"dqn": 120_000, "sac": 120_000, "r2d1": 120_000}),
    ("Pendulum-v1", "classic control", _CONTINUOUS, MILLION,
     {"ppo": 100_000, "sac": 20_000, "td3": 20_000, "ddpg": 20_000, "tqc": 20_000,
      "crossq": 20_000}),
    ("MountainCarContinuous-v0", "classic control", _CONTINUOUS, 300_000,
     {"ppo": 20_000, "a2c": 100_000, "sac": 50_000, "ddpg": 100_000, "tqc": 50_000,
      "crossq": 50_000}),
    ("FrozenLake-v1", "toy text", _DISCRETE, 200_000, {"sac": 100_000}),
    ("Taxi-v4", "toy text", _DISCRETE, 500_000, {"dqn": 200_000, "sac": 50_000, "r2d1": 200_000}),
    ("LunarLanderContinuous-v3", "Box2D", _CONTINUOUS, MILLION,
     {"a2c": 5 * MILLION, "sac": 200_000, "td3": 300_000, "ddpg": 200_000, "tqc": 100_000,
      "crossq": 200_000}),
    ("HalfCheetah-v5", "MuJoCo", _CONTINUOUS, MILLION, {}),
    ("BipedalWalker-v3", "Box2D", _CONTINUOUS, MILLION,
     {"ppo": 5 * MILLION, "a2c": 5 * MILLION, "sac": 500_000, "td3": 300_000, "ddpg": 300_000,
      "tqc": 150_000, "crossq": 200_000}),
    ("MinAtar/Breakout-v1", "MinAtar", _DISCRETE, 5 * MILLION,
     {"dqn": MILLION, "sac": 100_000, "r2d1": MILLION, "reinforce": MILLION}),
)  # fmt: skip
_MORE_SEEDS = {("ppo", "LunarLander-v3"): 5, ("ppo", "HalfCheetah-v5"): 5}
_GOALS = {
    ("ppo", "LunarLander-v3"): 200.0,
    ("sac", "HalfCheetah-v5"): 9_000.0,
    ("td3", "HalfCheetah-v5"): 9_000.0,
}

FIRST: tuple[Experiment, ...] = tuple(
    Experiment(
        algorithm=algorithm,
        env=env,
        family=family,
        env_steps=others.get(algorithm, length),
        seeds=_MORE_SEEDS.get((algorithm, env), SEEDS),
        first=True,
        goal=_GOALS.get((algorithm, env)),
        # On ice an episode is won or lost by chance: of 20 the mean is known to 0.1 only.
        episodes=100 if family == "toy text" else 20,
    )
    for env, family, algorithms, length, others in _TRIED_FIRST
    for algorithm in algorithms
)
_ANT = (
    "The zoo's Ant-v3 had no contact forces: with the MuJoCo of its day they were always 0. Ant-v5 "
    "observes them and has them cost reward. Without both (`--env-kwargs "
    """'{"contact_cost_weight": 0.0, "include_cfrc_ext_in_observation": false}'`, and no other """
    "change) five seeds reached 3,257, 2,210, 2,234, 2,583 and 1,935 here."
)
_CAVEATS = {("ppo", "Ant-v5"): _ANT}


def _mujoco(algorithm: str, env: str, seeds: int = SEEDS) -> Experiment:
    return Experiment(
        algorithm=algorithm,
        env=env,
        family="MuJoCo",
        env_steps=MILLION,
        seeds=seeds,
        caveat=_CAVEATS.get((algorithm, env), ""),
    )


_LOCOMOTION = ("Hopper-v5", "Walker2d-v5", "Ant-v5")
_GAMES = ("Asterix", "Freeway", "Seaquest", "SpaceInvaders")

_LONGER: tuple[Experiment, ...] = (
    Experiment(
        algorithm="r2d1", env="redline/TMaze-v1", family="memory", env_steps=100_000, seeds=5,
        goal=0.9, needed=5, episodes=100,
    ),
    Experiment(
        algorithm="ppo", env="redline/CartPoleHiddenVelocity-v1", family="memory",
        env_steps=400_000, seeds=5, goal=400.0, needed=5,
    ),
    Experiment(
        algorithm="r2d1", env="redline/CartPoleHiddenVelocity-v1", family="memory",
        env_steps=400_000, goal=400.0, needed=3,
    ),
    Experiment(
        algorithm="sac", env="redline/PointReach-v1", family="goals", env_steps=20_000,
        options="--replay her", goal=-15.0, needed=3, episodes=100,
        caveat="A return of -50 means that no goal was ever reached, one of about -9 that each was "
        "reached on the shortest way.",
    ),
    *(_mujoco("ppo", env, 5) for env in _LOCOMOTION),
    *(_mujoco(algorithm, env) for env in _LOCOMOTION for algorithm in ("sac", "td3")),
    *(
        Experiment(
            algorithm=algorithm, env=f"MinAtar/{game}-v1", family="MinAtar", env_steps=length
        )
        for algorithm, length in (("ppo", 5 * MILLION), ("dqn", MILLION))
        for game in _GAMES
    ),
    Experiment(
        algorithm="ppo", env="ALE/Pong-v5", family="Atari", env_steps=3 * MILLION, seeds=1,
        options="--env-backend envpool", goal=18.0,
        caveat="EnvPool cannot save its environments: a resumed run starts new episodes, so it "
        "is not the run that was never stopped.",
    ),
    Experiment(
        algorithm="dqn", env="ALE/Pong-v5", family="Atari", env_steps=500_000, seeds=1,
        caveat="As far as time allowed: DQN's paper had 50 million decisions. One core makes "
        "some 110 a second.",
    ),
)  # fmt: skip

# What one core does in a second, roughly, for the order alone.
_ROUGH_SPS = {"ppo": 3_000, "a2c": 5_000, "impala": 4_000, "appo": 3_000, "reinforce": 5_000}
_ROUGH_SPS |= {"dqn": 1_000, "r2d1": 800, "sac": 200, "td3": 300, "ddpg": 350, "tqc": 60}
_ROUGH_SPS |= {"crossq": 10}


def _rough_hours(experiment: Experiment) -> float:
    slow = {"Atari": 0.2, "MinAtar": 0.5}.get(experiment.family, 1.0)
    sps = _ROUGH_SPS[experiment.algorithm] * slow
    return experiment.env_steps * experiment.seeds / sps / 3600


def _in_order(experiments: tuple[Experiment, ...]) -> tuple[Experiment, ...]:
    """The cheap ones first; one with a goal tells more and may take ten times as long."""
    return tuple(
        sorted(experiments, key=lambda e: _rough_hours(e) * (1.0 if e.goal is None else 0.1))
    )


SUITES: dict[str, tuple[Experiment, ...]] = {
    "first": _in_order(FIRST),
    "published": _in_order(FIRST + _LONGER),
}
"""Suite -> its experiments, in the order in which they are run."""


def chosen(suite: str, patterns: list[str] | None = None) -> list[Experiment]:
    """The experiments of a suite, those alone that a pattern such as sac-HalfCheetah* matches.

    What the first pattern matches comes first; within a pattern the suite's order stands.

    Raises:
        SystemExit: if a pattern matches none.
    """
    experiments = SUITES[suite]
    for pattern in patterns or ():
        if not any(fnmatchcase(e.name, pattern) for e in experiments):
            names = ", ".join(e.name for e in experiments)
            raise SystemExit(f"--only {pattern!r} matches no experiment. There are: {names}.")
    if not patterns:
        return list(experiments)
    ordered = [e for pattern in patterns for e in experiments if fnmatchcase(e.name, pattern)]
    return list(dict.fromkeys(ordered))

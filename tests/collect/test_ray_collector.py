"""Actors of a Ray cluster: the rollouts of the async collector, and what becomes of the dead."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import redline
from redline.collect import AsyncCollector, RayCollector, ray_actors
from redline.collect.ray_actors import ActorGroup
from redline.envs import EnvSettings
from redline.errors import ConfigError, MissingExtraError, WorkerError
from redline.policies import make_policy
from tests.collect.placements import assert_equal, copied

pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray's own


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """One small cluster for all: two CPUs, no dashboard, no network."""
    ray = pytest.importorskip("ray")
    from redline.ray_cluster import connected_ray

    connected_ray("a test", address="local", num_cpus=2)
    yield
    ray.shutdown()


class Trouble(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Raises, or stands still, in the 30th step of its life."""

    def __init__(self, kind: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._kind, self._steps = kind, 0

    def step(self, action: Any) -> Any:
        self._steps += 1
        if self._steps == 30:
            if self._kind == "raises":
                raise ZeroDivisionError("the pole is broken")
            time.sleep(600)
        return super().step(action)


def policy_for_cartpole() -> Any:
    torch.manual_seed(0)
    env = gymnasium.make("CartPole-v1")
    return make_policy(env.observation_space, env.action_space, hidden_sizes=(16,))


def ray_collector(policy: Any, env: Any = "CartPole-v1", **settings: Any) -> RayCollector:
    defaults = {"num_envs": 4, "num_workers": 2, "rollout_length": 20, "seed": 3}
    return RayCollector(EnvSettings(env=env), policy, **(defaults | settings))


def kill(collector: RayCollector, *workers: int) -> None:
    import ray

    for worker in workers:
        ray.kill(collector._group._members[worker].actor)  # type: ignore[attr-defined]


def collect_several(collector: RayCollector) -> None:
    for _ in range(4):
        collector.collect()


def change(policy: Any, by: float) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(by)


def test_actors_are_run_as_readily_as_the_learner() -> None:
    """Ray's own niceness for workers, 15, let an import of torch take 30 s beside busy programs."""
    import ray

    niceness = ray.remote(lambda: os.nice(0)).remote()  # type: ignore[attr-defined]
    assert ray.get(niceness) == os.nice(0)


def test_rollouts_are_those_of_async_and_the_dead_are_replaced_until_all_are_lost() -> None:
    """In one life of a collector, for each actor takes seconds to start."""
    policy, other = policy_for_cartpole(), policy_for_cartpole()
    settings = {"num_envs": 4, "num_workers": 2, "rollout_length": 40, "seed": 3}
    local = AsyncCollector(EnvSettings(env="CartPole-v1"), other, **settings)
    with ray_collector(policy, rollout_length=40) as remote:
        with local:
            assert_same_rollouts(local, other, remote, policy)
        assert_replaced_after_a_death(remote)
        kill(remote, 0, 1)
        with pytest.raises(WorkerError, match="all 2 actors of this run are lost"):
            collect_several(remote)


def assert_same_rollouts(
    local: AsyncCollector, other: Any, remote: RayCollector, policy: Any
) -> None:
    """To the bit, over versions of the weights, and after loading a saved state."""
    for version in range(1, 6):
        expected, rollout = copied(local.collect()), copied(remote.collect())
        assert_equal(rollout, expected)
        assert rollout["version"] == max(0, version - 2)
        for each, collector in ((other, local), (policy, remote)):
            change(each, 0.01)
            collector.update_weights(version)
        if version == 3:
            remote.load_state_dict(remote.state_dict())
            remote.update_weights(version)
    assert remote.replaced == []


def assert_replaced_after_a_death(remote: RayCollector) -> None:
    """One of the two is: rollouts stay whole, and no episode's number comes twice."""
    seen: set[tuple[int, int]] = set()
    kill(remote, 1)
    for _ in range(5):
        rollout = remote.collect()
        assert rollout.valid.all()
        assert rollout["env_id"][0].tolist() == [0, 1, 2, 3]
        ended = {(e.env_id, e.episode_id) for e in rollout.episodes}
        assert ended
        assert not ended & seen
        seen |= ended
    assert [sentence[:38] for sentence in remote.replaced or ()] == [
        "the actor of environments 2 .. 3 was l"
    ]


@pytest.mark.parametrize(
    ("kind", "message", "timeout_s"),
    [  # the set-up has this time, too
        ("raises", "ZeroDivisionError: the pole is broken", 60.0),
        ("hangs", "took no step(.|\n)*sleep", 5.0),
    ],
)
def test_an_environment_that_fails_ends_the_run_with_its_traceback(
    kind: str, message: str, timeout_s: float
) -> None:
    collector = ray_collector(
        policy_for_cartpole(), lambda: Trouble(kind), num_envs=1, num_workers=1, timeout_s=timeout_s
    )
    with collector, pytest.raises(WorkerError, match=message):
        collect_several(collector)


class KillsAnActor:
    """A callback that ends an actor in the middle of a run."""

    def on_iteration(self, run: Any) -> None:
        if run.env_steps == 320:
            kill(run._loop.collector, 0)


def run_on_ray(algorithm: str, out: Path, **settings: Any) -> Any:
    run = redline.train(
        algorithm,
        env="CartPole-v1",
        total_env_steps=960,
        collector="ray",
        num_envs=4,
        rollout_length=20,
        log_interval=160,
        hidden_sizes=(8,),
        tensorboard=False,
        quiet=True,
        out=out,
        **settings,
    )
    return np.genfromtxt(run.out / "progress.csv", delimiter=",", names=True)


def test_a_run_goes_on_without_a_dead_actor_and_logs_it(tmp_path: Path) -> None:
    rows = run_on_ray("impala", tmp_path, num_workers=2, callbacks=[KillsAnActor()])
    assert rows["workers_replaced"][-1] == 1
    assert rows["staleness_max"].max() == 1
    assert rows["env_steps"][-1] == 960


def test_a_replay_algorithm_is_fed_asynchronously(tmp_path: Path) -> None:
    rows = run_on_ray("dqn", tmp_path, num_workers=1, learning_starts=80, max_staleness=2)
    assert rows["workers_replaced"][-1] == 0
    assert rows["staleness_max"].max() == 2
    assert rows["env_steps"][-1] == 960


def test_what_was_set_reaches_a_replacement_after_a_resume() -> None:
    """Its environments had the attributes that they were made with, and no limit of episodes."""
    policy = policy_for_cartpole()
    few = {"num_envs": 1, "num_workers": 1, "rollout_length": 60}
    with ray_collector(policy, **few) as remote:
        remote.set_env_attr("gravity", 5.0)
        remote.begin_episodes(9)
        first = remote.collect()
        state = remote.state_dict()  # with the rollout that was made ahead
        second = remote.collect()
    left = 9 - len(first.episodes) - len(second.episodes)
    newest = int(second["episode_id"].max())
    assert second.episodes
    assert state["ids"]["quota"].tolist() == [left]
    assert state["ids"]["newest_id"].tolist() == [newest]
    with ray_collector(policy, **few) as resumed:
        assert resumed.load_state_dict(state) is None
        assert resumed._newest_id.tolist() == [newest]
        commands = dict(resumed._set_up(0))
        assert commands["limit"].tolist() == [left]
        assert commands["set_attr"] == ("gravity", 5.0)
        resumed.collect()
        assert "begin" in dict(resumed._set_up(0))


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(8.0, 120.0), (300.0, 300.0)])
def test_a_raised_timeout_is_not_cut_down_where_commands_have_a_limit_of_their_own(
    timeout_s: float, limit_s: float
) -> None:
    """First resets that may take 300 s were ended after 120 s."""
    group = object.__new__(ActorGroup)
    group._timeout_s = timeout_s
    assert group._timeout({0}, 120.0)._timeout_s == limit_s


@pytest.mark.parametrize(
    ("is_busy", "timeout_s", "said"),
    [
        (False, 0.5, "environments 0 .. 1, which did not end within 0.5 s"),
        (True, 600.0, "environments 0 .. 1, still busy 0 s after the end"),
    ],
)
def test_an_actor_that_is_ended_while_it_closes_is_named(
    is_busy: bool,
    timeout_s: float,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One that is busy has not the whole time: a second Ctrl-C is to end the run at once."""
    import ray

    @ray.remote
    class NeverCloses:
        def close(self) -> None:
            time.sleep(600)

    monkeypatch.setattr(ray_actors, "_END_S", 0.0)
    group = object.__new__(ActorGroup)
    group._ray, group._timeout_s, group._is_closed = ray, timeout_s, False
    actor = NeverCloses.remote()
    pending = [("collect", None, actor.close.remote())] if is_busy else []
    group._members = [SimpleNamespace(title="environments 0 .. 1", actor=actor, pending=pending)]
    group.close()
    assert f"ended the actor of {said}" in capsys.readouterr().err


def test_what_the_cluster_cannot_give_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers=50 takes as many CPUs"):
        ray_collector(policy_for_cartpole(), num_workers=50, num_envs=50)


def test_without_ray_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'redline\[ray\]'"):
        ray_collector(policy_for_cartpole())

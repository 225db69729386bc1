"""Collection by actors of a Ray cluster: as `async`, with environments on any of its machines.

Each actor steps its share of the environments with its own copy of the policy. Weights lie in
Ray's object store, numbered; each node fetches a version once. Rows come back the same way and
are copied into the rollout [T, B] as they arrive. The order of requests is that of `workers`:
rollouts are at most `max_staleness` versions old, and the same seed gives the same rollouts, as
long as no actor dies. One that does is replaced: its environments begin new episodes, with a
seed of their own, and its requests are given to the new one with the weights they were made with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from redline.collect.acting_worker import ActingJob, PrefetchedRollout, WorkerPart
from redline.collect.buffer import RolloutBuffer
from redline.collect.collector import CollectorSetup
from redline.collect.ray_actors import ActorGroup
from redline.collect.workers import AsyncCollector
from redline.data import Array, leaves, map_leaves
from redline.envs.attributes import plain_attribute
from redline.envs.plain_data import decode
from redline.envs.settings import EnvSettings
from redline.errors import ConfigError
from redline.policies.policy import Policy
from redline.ray_cluster import connected_ray
from redline.usable_cores import usable_cpus

_STORE_SHARE = 1.25  # of the object store, to what lies in it at the same time


class RayCollector(AsyncCollector):
    """Actors that act and work ahead, anywhere in a Ray cluster.

    Args:
        settings: how to make environments.
        policy: the learner's; each actor gets a copy, on the CPU.
        num_workers: W, actors; each takes one CPU of the cluster.
        address: of the cluster; None: `RAY_ADDRESS`, else one that is started here.
        store_bytes: of the object store of a cluster that is started here.
        further: as for `AsyncCollector`.

    Raises:
        MissingExtraError: without Ray.
        ClusterError: if the cluster cannot be reached, or has no room.
        ConfigError: if it has fewer CPUs than there are actors; as for `AsyncCollector`.
    """

    name = "ray"
    takes_policy_device = False
    options = ("num_workers", "worker_timeout_s", "max_staleness")

    def __init__(
        self,
        settings: EnvSettings,
        policy: Policy,
        *,
        num_workers: int,
        address: str | None = None,
        store_bytes: int = 0,
        **further: Any,
    ) -> None:
        self._ray = connected_ray(
            "--collector ray",
            address=address,
            num_cpus=max(usable_cpus(), num_workers),
            store_bytes=store_bytes,
        )
        there = int(self._ray.cluster_resources().get("CPU", 0))
        if there < num_workers:
            raise ConfigError(
                f"num_workers={num_workers} takes as many CPUs, and the Ray cluster has {there}. "
                f"Give at most {there}, or add nodes."
            )
        self.replaced = []
        self._attributes: dict[str, Any] = {}
        self._quota: Array | None = None
        super().__init__(settings, policy, num_workers=num_workers, **further)

    @classmethod
    def make(cls, setup: CollectorSetup) -> RayCollector:
        """See `Collector.make`."""
        env, ahead = setup.env, setup.max_staleness
        rollout = RolloutBuffer.create(
            setup.rollout_length,
            setup.num_envs,
            env.observation_space,
            env.action_space,
            setup.policy.extras_spec,
        )
        rows = sum(leaf.nbytes for field in rollout.fields.values() for _, leaf in leaves(field))
        weights = sum(leaf.nbytes for leaf in setup.policy.state_dict().values())
        needed = (ahead + 2) * rows + (ahead + 3) * weights
        env.close()
        further = setup.in_workers | {"max_staleness": ahead, "cpus": None}
        return cls(setup.settings, setup.policy, store_bytes=int(_STORE_SHARE * needed), **further)

    # -- what differs from worker processes -----------------------------------------------

    def _started(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        jobs: Sequence[ActingJob],
        timeout_s: float,
        cpus: Sequence[Collection[int]] | None,
    ) -> ActorGroup:
        del cpus  # Ray places them
        return ActorGroup(
            self._ray,
            [dataclasses.replace(job, num_threads=1) for job in jobs],
            titles=self._titles,
            timeout_s=timeout_s,
            set_up=self._set_up,
            replaced=self._note_replaced,
        )

    def _lay_out(self, template: RolloutBuffer) -> None:
        copies = [
            RolloutBuffer({n: map_leaves(np.zeros_like, f) for n, f in template.fields.items()})
            for _ in range(self.max_staleness)
        ]
        self._take_buffers([template, *copies], self._no_progress())
        # Episodes count from 0 in every actor; those of a replacement go on from here.
        self._first_id = np.zeros(self.num_envs, np.int64)
        self._newest_id = np.zeros(self.num_envs, np.int64)
        layout = (self.rollout_length, self.num_envs)
        self._group.call("attach", [layout] * len(self._shares))
        self.update_weights(0)

    def update_weights(self, version: int) -> None:
        """Put the learner's present weights into the object store, for later requests."""
        self._latest = self._ray.put([leaf.numpy() for leaf in self._flat_weights()])
        self._stamp += 1
        self.version = version

    def _gathered(self, rollout: PrefetchedRollout) -> list[WorkerPart]:
        group: Any = self._group
        return group.gather("collect", take=lambda worker, r: self._take(rollout, worker, *r))

    def _take(
        self,
        rollout: PrefetchedRollout,
        worker: int,
        part: WorkerPart,
        columns: Mapping[str, Any],
        at: tuple[Array, Array],
        final: Any,
    ) -> WorkerPart:
        """Copy an actor's rows into the rollout.

        Args:
            rollout: that they are of.
            worker: number of the actor.
            part: what it has beside the rows.
            columns: name -> [T, b, ...].
            at: (t, b) of the rows where an episode ended.
            final: [n, ...] the true last observations there.
        """
        begin, end = self._shares[worker]
        self._dirty.add(rollout.slot)
        own = self._buffers[rollout.slot].columns(begin, end).fields
        for name, column in columns.items():
            map_leaves(np.copyto, own[name], column)
        map_leaves(lambda into, leaf: into.__setitem__(at, leaf), own["final_obs"], final)
        own["episode_id"] += self._first_id[begin:end]
        self._newest_id[begin:end] = own["episode_id"].max(axis=0)
        self._progress[worker, 1:3] = self.rollout_length, rollout.number
        if self._quota is not None:
            for _, ended in part.collected.episodes:
                self._quota[ended.env_id] -= 1
        return self._with_own_ids(part)

    def _with_own_ids(self, part: WorkerPart) -> WorkerPart:
        """The part with episodes numbered as in the rows."""
        episodes = [
            (row, dataclasses.replace(e, episode_id=e.episode_id + int(self._first_id[e.env_id])))
            for row, e in part.collected.episodes
        ]
        collected = part.collected._replace(episodes=episodes)
        return dataclasses.replace(part, collected=collected)

    # -- replacements ---------------------------------------------------------------------

    def _note_replaced(self, worker: int, reason: str) -> None:
        begin, end = self._shares[worker]
        self._first_id[begin:end] = self._newest_id[begin:end] + 1
        self.replaced = [
            *(self.replaced or []),
            f"the actor of {self._titles[worker]} was lost ({reason}) and replaced: its "
            f"environments begin new episodes",
        ]

    def _set_up(self, worker: int) -> list[tuple[str, Any]]:
        """What brings a new actor to where the others are."""
        commands: list[tuple[str, Any]] = [("attach", (self.rollout_length, self.num_envs))]
        commands += [("set_attr", each) for each in self._attributes.items()]
        if self._quota is not None:
            commands.append(("limit", self._quota[slice(*self._shares[worker])]))
        if self._has_begun:
            commands.append(("begin", None))
        return commands

    def _limit_episodes(self, quota: Array | None) -> None:
        super()._limit_episodes(quota)
        self._quota = None if quota is None else quota.copy()

    def set_env_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `Collector.set_env_attr`."""
        super().set_env_attr(name, value)
        self._attributes[name] = value

    # -- saving ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """As of `async`, and who was replaced."""
        state = super().state_dict()  # first: it gathers rollouts, which moves what follows
        own: dict[str, Any] = {
            "first_id": self._first_id.copy(),
            "newest_id": self._newest_id.copy(),
            "attributes": {n: plain_attribute(n, each) for n, each in self._attributes.items()},
        }
        if self._quota is not None:
            own["quota"] = self._quota.copy()
        return state | {"replaced": list(self.replaced or []), "ids": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> str | None:
        """Go on from `state`; see `Collector.load_state_dict`."""
        reason = super().load_state_dict(state)
        if "ids" in state:  # else it is of the async collector
            own = state["ids"]
            self.replaced = list(state["replaced"])
            self._first_id[:] = own["first_id"]
            self._newest_id[:] = own["newest_id"]
            self._attributes = {n: decode(each) for n, each in own.get("attributes", {}).items()}
            # Environments that begin anew have no limit.
            is_limited = "quota" in own and reason is None
            self._quota = np.array(own["quota"], np.int64) if is_limited else None
        return reason

    def close(self) -> None:
        """End the actors. The cluster goes on: other runs of this process may use it."""
        if self._future is not None and not self._future.done:
            self._group.interrupt()
            self._future.wait()
        self._group.close()

"""The replay buffer: a ring of L rows of B transitions, and how batches are drawn from it.

| symbol | meaning |
|---|---|
| L, B | rows of the ring, environments; row t of environment b lies at [(t mod L) * B + b] |
| head | absolute number of the row to be written next; the ring holds rows head - L .. head - 1 |
| unit | what is drawn: a transition, or a sequence named by where it starts |
| N | batch size |
| T' | rows of a sequence: burn_in + sequence_length + n_step |

Only valid rows are drawn, and no window reaches over a row that is not valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from redline.data import Array, Rollout, as_tensordict
from redline.devices import kind_of
from redline.errors import (
    ConfigError,
    CorruptCheckpointError,
    IncompatibleCheckpointError,
    RedlineError,
)
from redline.nested import leaves, map_leaves
from redline.plain_text import shortened, shown
from redline.replay.batches import Batches, ObservationStore, SequenceBatch
from redline.replay.config import ReplayConfig
from redline.replay.device_queue import fetched
from redline.replay.frames import FrameStore
from redline.replay.links import (
    CUT,
    VALID,
    ChainState,
    Links,
    first_obs,
    leaf_rows,
    link_rows,
    next_chain_state,
    require_rollout,
    zero_invalid,
)
from redline.replay.loaded_values import (
    require_bits,
    require_bounds,
    require_chain,
    require_flags,
)
from redline.replay.plain import LARGEST_PAIRED_BYTES, PairStore, PlainPath
from redline.replay.samplers import PrioritizedSampler, Sampler, UniformSampler
from redline.replay.sequences import SequenceIndex
from redline.replay.snapshot import (
    SavedFile,
    load_snapshot,
    read_array,
    read_manifest,
    save_snapshot,
)
from redline.replay.snapshot_form import HostPlan, is_count, refuse
from redline.replay.spec import Bounds, ReplaySpec, dotted, entry_name, flatten
from redline.replay.spec import Path as KeyPath
from redline.replay.staged import StagedPath
from redline.replay.storage import Arena, ArrayPlan


class Replay:
    """Keeps collected rollouts and draws batches from them.

    Args:
        config: what to keep and how to draw.
        spec: shapes and dtypes of what the collector produces.

    Raises:
        ConfigError: if the buffer does not fit where it is to lie (with the arithmetic), or
            is too small for a sequence.
        DeviceError: if the device is not there.
    """

    def __init__(self, config: ReplayConfig, spec: ReplaySpec) -> None:
        self.config, self.spec = config, spec
        self.num_envs = spec.num_envs
        rows = -(-config.capacity // spec.num_envs)
        interval = config.state_interval or 1
        self.ring_rows = -(-rows // interval) * interval
        if self.ring_rows < config.sequence_rows:
            raise ConfigError(
                f"capacity={config.capacity} gives {self.ring_rows} rows of num_envs="
                f"{spec.num_envs}, fewer than the {config.sequence_rows} rows of one sequence. "
                f"Use a capacity of at least {config.sequence_rows * spec.num_envs}."
            )
        stacked = stacked_paths(config, spec)
        self._frames = {path: config.frame_stack if path in stacked else 1 for path in spec.obs}
        self._paired = {
            path
            for path, leaf in spec.obs.items()
            if path not in stacked and leaf.nbytes <= LARGEST_PAIRED_BYTES
        }
        self._arena = Arena(self._plans(), config)
        self._obs = {path: self._make_store(path) for path in spec.obs}
        self._sequences = (
            SequenceIndex(self._arena, config, spec.state, self.ring_rows, self.num_envs)
            if config.is_sequential
            else None
        )
        self._sampler = self._make_sampler()
        self._batches = Batches(self._arena, config, spec, self._obs)
        # Large observations stay where they are: they are compared and linked on the device.
        is_small = self._paired == set(self._obs)
        self._is_gathered = is_small and self._arena.queue is not None
        self._plain = self._make_plain_path()
        self._head_tensor = torch.zeros((), dtype=torch.int64, device=self.device)
        self._reset_chain()

    def __len__(self) -> int:
        """How many units there are to draw from."""
        return self._sampler.count

    @property
    def head(self) -> int:
        """Rows ever written; the number of the next one."""
        return self._head

    @property
    def nbytes(self) -> int:
        """Bytes the buffer takes once it is full."""
        return self._arena.nbytes

    @property
    def frames(self) -> dict[str, int]:
        """Dotted name of each observation ("" of a bare one) -> frames of its stack, or 1."""
        return {dotted(path): frames for path, frames in self._frames.items()}

    @property
    def caution(self) -> str | None:
        """What to say at the start where short episodes may need more memory than there is."""
        return self._arena.caution

    @property
    def device(self) -> torch.device:
        """Where the buffer lies and batches are made."""
        return self._arena.device

    @property
    def memory_version(self) -> int:
        """A number that changes when part of the buffer moves to other memory."""
        return self._arena.version

    def priorities(self) -> dict[str, Tensor]:
        """What `update_priorities` writes to, by name: the memory itself; {} if nothing."""
        if not isinstance(self._sampler, PrioritizedSampler):
            return {}
        return self._sampler.written_by_updates()

    @staticmethod
    def index_of(batch: TensorDict | SequenceBatch) -> Tensor:
        """[N] what to give the priorities of a drawn batch back with."""
        return batch.index if isinstance(batch, SequenceBatch) else batch["index"]

    def add(
        self,
        rollout: Rollout,
        priorities: Tensor | None = None,
        states: dict[str, Tensor] | None = None,
    ) -> None:
        """Append a rollout; the oldest rows make room.

        A rollout whose first observations are not those that the one before ended with
        (fresh episodes after a resume) is taken as a break: the row before is bootstrapped
        from the observation it was left with.

        Args:
            rollout: [T, B], T at most L.
            priorities: [T, B] initial priorities, as to `update_priorities`; None gives
                every new unit the highest priority so far. Sequences mix those of the rows
                they learn from.
            states: name -> [S, B, ...] recurrent states before each of the S rows of this
                rollout at which a sequence starts; not needed if that is its first only.

        Raises:
            ConfigError: if shapes, dtypes, episodes or stacks are not as they should be, or
                a priority is negative. The buffer is unchanged.
            UnsoundPriorityError: if one is NaN or infinite, likewise.
        """
        if isinstance(self._sampler, PrioritizedSampler):
            self._sampler.require_sound()
            priorities = None if priorities is None else self._sampler.sound(priorities)
        if priorities is None and self._add_plain(rollout):
            return
        if self._is_gathered:
            rollout, priorities, states = brought_near(rollout, priorities, states)
        require_rollout(rollout, priorities, self.config, self.spec, self.ring_rows)
        length, head = rollout.rollout_length, self._head
        starts = self._sequences and self._sequences.require_states(head, rollout, states)
        follows = self._follows(rollout)
        links = link_rows(rollout, follows & self._chain.episode_open)
        chain = next_chain_state(self._chain, links, follows)
        obs = leaf_rows(rollout, links)
        for path, leaf in self._obs.items():
            leaf.check(obs[path], links)

        # Nothing can be refused from here on.
        self._is_broken = False
        oldest = max(head + length - self.ring_rows, 0)
        matches = follows & links.valid[0]
        cut = self._chain.newest_goes_on & ~matches
        self._cut_before(head, cut)
        with self._gathered():
            for path, leaf in self._obs.items():
                leaf.make_way(head, oldest, cut, matches)
                leaf.write(head, obs[path], links, matches)
            self._write_rows(head, rollout, links)
            self._move_to(head + length, oldest)
            self._chain = chain
            if self._sequences is None:
                self._sampler.advance(oldest, head, links.valid, priorities)
            else:
                self._sequences.write(head, length, starts or {}, priorities)
        if self._sequences is not None:
            with self._gathered():
                first, eligible, priority = self._sequences.completed(self._head, oldest)
                oldest_unit = -(-oldest // self.config.state_interval)
                self._sampler.advance(oldest_unit, first, eligible, priority)

    def replace_unsound_priorities(self) -> None:
        """Let the highest priority so far take the place of one that is NaN or infinite."""
        if isinstance(self._sampler, PrioritizedSampler):
            self._sampler.replaces_unsound = True

    def capture_writes(self) -> None:
        """Let a graph make what `add` writes to a device, from the second time on."""
        if self._is_gathered and self._arena.queue is not None:
            self._arena.queue.captures = kind_of(self.device).captures

    def _gathered(self) -> AbstractContextManager[None]:
        """A block in which writes to a device wait for each other."""
        queue = self._arena.queue if self._is_gathered else None
        return nullcontext() if queue is None else queue.gathered()

    def _add_plain(self, rollout: Rollout) -> bool:
        """Take in a usual rollout of plain transitions; whether it was one."""
        head = self._head
        if self._plain is None or head == 0 or self._is_broken:
            return False
        with self._gathered():
            goes_on = self._plain.add(rollout, head, self._chain.episode_open)
            if goes_on is None:
                return False
            length = rollout.rollout_length
            oldest = max(head + length - self.ring_rows, 0)
            self._move_to(head + length, oldest)
            self._chain = ChainState(newest_goes_on=goes_on, episode_open=goes_on)
            self._sampler.advance_whole(oldest, head, length)
        return True

    def _follows(self, rollout: Rollout) -> Array:
        """[B] whether the rollout begins with the observations that were to be acted on next."""
        if self._head == 0 or self._is_broken:
            return np.zeros(self.num_envs, dtype=bool)
        follows = np.ones(self.num_envs, dtype=bool)
        for path, first in first_obs(rollout).items():
            follows &= self._obs[path].follows(self._head, first).cpu().numpy()
        return follows

    def sample(
        self,
        batch_size: int,
        rng: np.random.Generator | torch.Generator,
        beta: float | Tensor = 1.0,
        out: Any = None,
    ) -> Any:
        """Draw a batch with replacement.

        Args:
            batch_size: N.
            rng: the stream to draw from; the same stream and buffer give the same batch. A
                torch.Generator must lie on the buffer's device.
            beta: exponent of the importance weights, annealed by the caller in env_steps.
            out: an earlier batch of the same size that is not needed any more; its memory is
                used again, which for images saves more time than the copying takes. It may
                be the same object that is returned.

        Returns:
            For transitions a TensorDict [N] with obs, action, next_obs (the true successor
            of the n-step window), reward (its discounted sum), discount (gamma^k, 0 if it
            terminated), num_steps (k), index, weight and the extras. For sequences a
            `SequenceBatch`.

        Raises:
            ConfigError: if there is nothing to draw yet, or `out` does not fit.
        """
        if len(self) == 0:
            raise ConfigError(
                f"the replay holds nothing to draw yet: {self._head} rows of {self.num_envs} "
                f"were added, a unit takes {self.config.sequence_rows}. "
                "Collect more before the first update."
            )
        index, weight = self._sampler.draw(self._uniform(batch_size, rng), beta)
        if self._plain is not None and self._plain.overwrite(out, index, weight):
            return out
        if self._sequences is None:
            fields = self._batches.rows(index, self._head_tensor, out)
            batch = TensorDict({**fields, "index": index, "weight": weight}, [batch_size])
            if self._plain is not None:
                self._plain.remember(batch)
            return batch
        rows = self._sequences.rows(index)
        return SequenceBatch(
            steps=self._batches.steps(rows, self._head_tensor, None if out is None else out.steps),
            initial_state=self._sequences.states(index),
            index=index,
            weight=weight,
        )

    def observations(self, at_once: int = 4096) -> Iterator[Any]:
        """The observations that the buffer holds, oldest first; a part at a time.

        Args:
            at_once: N of each part at most.

        Returns:
            [N, ...] of rows that an environment gave; true last observations are not among them.
        """
        return self._batches.observations(self._oldest, self._head, at_once)

    def update_priorities(self, index: Tensor, priority: Tensor) -> None:
        """Give drawn units new priorities; those overwritten since are passed over.

        Args:
            index: [N] int64 from the batch; where one occurs twice, the higher counts.
            priority: [N] non-negative, before epsilon and alpha: |TD error|, for sequences
                as `mixed_priority` mixes it.

        Raises:
            ConfigError: if the buffer is not prioritized, or a priority is negative.
            UnsoundPriorityError: if one is NaN or infinite (on a device both come at the next
                `add` or `save`, for looking would wait).
        """
        if not isinstance(self._sampler, PrioritizedSampler):
            raise ConfigError(
                "prioritized=False: this replay has no priorities to update. "
                "Set prioritized=True, or do not update."
            )
        if index.shape != priority.shape:
            raise ConfigError(
                f"priority of shape {tuple(priority.shape)} does not match index of shape "
                f"{tuple(index.shape)}. Give one priority for each drawn unit."
            )
        self._sampler.update(index, priority)

    def save(self, directory: Path, previous: Path | None = None) -> list[SavedFile]:
        """Write the whole buffer to a directory, at the cost of what changed.

        The random stream belongs to the caller and is not part of it.

        Args:
            directory: made if need be; should be empty.
            previous: the directory of an earlier save, whose unchanged files are linked.

        Returns:
            Every file of it, with size and SHA-256.

        Raises:
            ConfigError: if a bad priority was given on a device.
            OSError: if the directory cannot be written.
        """
        if isinstance(self._sampler, PrioritizedSampler):
            self._sampler.require_sound()
        if self._plain is not None:
            self._plain.mark_changed(self._head)
        header = {
            "layout": self._layout(),
            "head": self._head,
            "oldest": self._oldest,
            "complete": self._sequences.complete if self._sequences else 0,
            "is_broken": self._is_broken,
        }
        return save_snapshot(self._arena, self._host_arrays(), header, directory, previous)

    def load(self, directory: Path, *, of_another_run: bool = False) -> None:
        """Replace the contents by saved ones; every later batch is as if never stopped.

        Args:
            directory: of the save.
            of_another_run: whether another run saved it, whose spaces may be other ones.

        Raises:
            CorruptCheckpointError: if a file is missing, torn or altered; the buffer is
                then empty.
            IncompatibleCheckpointError: if it was saved with another layout.
        """
        try:
            self._load(directory, read_manifest(directory), of_another_run=of_another_run)
        except RedlineError:
            raise
        except Exception as error:  # a stranger may have signed anything
            self.clear()
            raise CorruptCheckpointError(
                f"{directory} does not hold what a replay saves ({type(error).__name__}: "
                f"{shortened(error)}). Use an earlier checkpoint."
            ) from error

    def _load(self, directory: Path, manifest: dict[str, Any], *, of_another_run: bool) -> None:
        header = manifest["header"]
        self._require_layout(header["layout"], directory)
        head, oldest = self._require_counts(header, directory)
        pairs = [leaf for leaf in self._obs.values() if isinstance(leaf, PairStore)]
        linked = [leaf for leaf in pairs if leaf.name not in manifest["arrays"]]
        absent = [name for leaf in linked for name in (leaf.name, leaf.next_name)]
        absent = [name for name in absent if name in self._arena]
        plans = self._host_plans(linked)
        if self._plain is not None:
            self._plain.mark_changed(self._head)  # so that what is replaced is cleared
        try:
            host = load_snapshot(self._arena, manifest, directory, plans, without=absent)
            self._require_values(host, head, oldest, directory)
            self._require_bounds(directory, of_another_run=of_another_run)
            self._move_to(head, oldest)
            for leaf in linked:
                self._load_linked(leaf, manifest, directory)
        except RedlineError:
            self.clear()
            raise
        if self._plain is not None:
            self._plain.skip_marking(self._head)
        if self._sequences is not None:
            self._sequences.complete = self._sequences.complete_at(head)
        self._is_broken = header.get("is_broken", False)  # earlier versions did not save it
        self._chain = ChainState(host["chain/newest_goes_on"], host["chain/episode_open"])
        self._sampler.load_state_arrays(_under("sampler", host))
        for path, leaf in self._obs.items():
            leaf.load_state_arrays(_under(_obs_name(path), host))

    def _require_counts(self, header: Mapping[str, Any], directory: Path) -> tuple[int, int]:
        """Head and oldest row, refused if they are none that a replay comes to."""
        if type(broken := header.get("is_broken", False)) is not bool:
            refuse(directory, f"the saved replay's is_broken is {shown(broken)}, which is no truth")
        head: Any = header.get("head")
        if not is_count(head):
            refuse(
                directory, f"the saved replay's head is {shown(head)}, which is no count of rows"
            )
        complete = 0 if self._sequences is None else self._sequences.complete_at(head)
        wanted = {"oldest": max(head - self.ring_rows, 0), "complete": complete}
        for name, value in wanted.items():
            if type(header.get(name)) is not int or header[name] != value:
                refuse(
                    directory,
                    f"the saved replay's {name} is {shown(header.get(name))}, and with "
                    f"head={head} and {self.ring_rows} rows it is {value}",
                )
        return head, wanted["oldest"]

    def _host_plans(self, linked: list[PairStore]) -> dict[str, HostPlan]:
        """The small arrays that a snapshot of this buffer holds."""
        plans: dict[str, HostPlan] = {}
        for name, value in self._host_arrays().items():
            plans[name] = HostPlan(value.dtype, value.shape)
        units = self.ring_rows // (self.config.state_interval or 1)
        is_optional = isinstance(self._sampler, UniformSampler)
        plans["sampler/per_row"] = HostPlan(np.dtype(np.int64), (units,), is_optional=is_optional)
        for path, leaf in self._obs.items():
            if isinstance(leaf, FrameStore):
                for name in leaf.state_arrays():
                    most = leaf.arena.arrays[f"{leaf.name}/frames"].plan.max_rows
                    plan = HostPlan(np.dtype(np.int64), None, most)
                    plans[f"{_obs_name(path)}/{name}"] = plan
        for leaf in linked:
            del plans[f"{leaf.name}/last_obs"]
        return plans

    def _require_values(
        self, host: dict[str, Array], head: int, oldest: int, directory: Path
    ) -> None:
        """Refuse contents that no replay comes to; see `loaded_values`."""
        arrays = {name: array.tensor for name, array in self._arena.arrays.items()}
        flags = arrays["flags"].cpu().numpy().reshape(self.ring_rows, self.num_envs)
        require_flags(flags, head, oldest, directory)
        chain = (host["chain/newest_goes_on"], host["chain/episode_open"])
        require_chain(*chain, flags, head, directory)
        for name, tensor in arrays.items():
            if tensor.dtype == torch.bool:
                require_bits(name, tensor.cpu().numpy(), directory)
        is_valid = (flags.reshape(-1) & VALID) != 0
        for leaf in self._obs.values():
            if isinstance(leaf, FrameStore):
                leaf.require_state(_under(leaf.name, host), head, directory)
        if self._sequences is None:
            first, eligible = oldest, is_valid.reshape(self.ring_rows, self.num_envs)
            eligible = eligible[np.arange(oldest, head) % self.ring_rows]
        else:
            first, eligible = self._sequences.eligible_at(head, oldest, flags)
            self._sequences.require_state(directory)
        self._sampler.require_state(_under("sampler", host), eligible, first, directory)

    def _require_bounds(self, directory: Path, *, of_another_run: bool) -> None:
        """Refuse values outside of their space: `spec.bounds`, of another run `choices` as well."""
        bounds: dict[str, Bounds] = dict(self.spec.bounds)
        for path, bound in self.spec.choices.items() if of_another_run else ():
            if self._frames[path] == 1:
                name = _obs_name(path)
                bounds |= dict.fromkeys((name, f"next_{name}", f"{name}/frames"), bound)
        is_valid = (self._arena["flags"].cpu().numpy() & VALID) != 0
        for name, bound in bounds.items():
            if name in self._arena:
                value = self._arena[name].cpu().numpy()
                counted = is_valid if len(value) == len(is_valid) else np.ones(len(value), bool)
                require_bounds(
                    name, value, bound, counted, directory, of_another_run=of_another_run
                )

    def _load_linked(self, leaf: PairStore, manifest: dict[str, Any], directory: Path) -> None:
        """Convert an observation of format 1, which stored each once, with links."""
        frames, last = f"{leaf.name}/frames", f"{leaf.name}/last"
        most = (self.ring_rows + 1) * self.num_envs
        leaf.load_linked(
            read_array(manifest, frames, directory, leaf.dtype, 8 * most, leaf.row_bytes),
            read_array(manifest, last, directory, None, most, 8),
            self._arena["flags"].cpu(),
            self._head,
            self._oldest,
        )

    def break_chain(self) -> None:
        """The next rollout begins fresh episodes, though it may look as if it carried on."""
        self._is_broken = True

    def clear(self) -> None:
        """Forget everything."""
        if self._plain is not None:
            self._plain.mark_changed(self._head)
        self._arena.clear()
        for leaf in self._obs.values():
            leaf.clear()
        self._sampler.clear()
        self._reset_chain()

    def _move_to(self, head: int, oldest: int) -> None:
        self._head, self._oldest = head, oldest
        if self.config.n_step > 1:  # one-step windows do without
            self._arena.run("head", self._head_tensor.copy_, torch.tensor(head))

    def _reset_chain(self) -> None:
        self._is_broken = False
        self._move_to(0, 0)
        closed = np.zeros(self.num_envs, dtype=bool)
        self._chain = ChainState(newest_goes_on=closed, episode_open=closed)
        if self._sequences is not None:
            self._sequences.complete = 0
        if self._plain is not None:
            self._plain.skip_marking(0)

    def _make_store(self, path: KeyPath) -> ObservationStore:
        name, rows, envs = _obs_name(path), self.ring_rows, self.num_envs
        if path in self._paired:
            return PairStore(self._arena, name, self.spec.obs[path], rows, envs)
        return FrameStore(self._arena, name, self._frames[path], rows, envs)

    def _make_plain_path(self) -> PlainPath | None:
        leaves = {p: leaf for p, leaf in self._obs.items() if isinstance(leaf, PairStore)}
        is_plain = len(leaves) == len(self._obs) and not self.config.is_sequential
        is_plain = is_plain and self._arena.is_known_to_numpy
        if not is_plain or not (self._is_gathered or self.device.type == "cpu"):
            return None
        kind = StagedPath if self._is_gathered else PlainPath
        return kind(self._arena, self.config, self.spec, leaves, self.ring_rows)

    def _plans(self) -> list[ArrayPlan]:
        config, spec, rows = self.config, self.spec, self.ring_rows
        total = rows * spec.num_envs
        plans: list[ArrayPlan] = []
        for path, leaf in spec.obs.items():
            name = _obs_name(path)
            if path in self._paired:
                plans += PairStore.plans(name, leaf, total, next_obs=config.next_obs)
            else:
                plans += FrameStore.plans(name, leaf, self._frames[path], rows, spec.num_envs)
        for name, leaf in self._row_leaves().items():
            plans.append(ArrayPlan(name=name, rows=total, shape=leaf.shape, dtype=leaf.dtype))
        plans.append(ArrayPlan(name="reward", rows=total, shape=(), dtype=torch.float32))
        plans.append(ArrayPlan(name="flags", rows=total, shape=(), dtype=torch.uint8))
        if config.is_sequential:
            plans += SequenceIndex.plans(config, spec.state, rows, spec.num_envs)
        units = rows // (config.state_interval or 1)
        kind = PrioritizedSampler if config.prioritized else UniformSampler
        return plans + kind.plans(units, spec.num_envs)

    def _make_sampler(self) -> Sampler:
        units = self.ring_rows // (self.config.state_interval or 1)
        if not self.config.prioritized:
            return UniformSampler(self._arena, units, self.num_envs)
        return PrioritizedSampler(
            self._arena, units, self.num_envs, self.config.alpha, self.config.priority_epsilon
        )

    def _row_leaves(self) -> dict[str, Any]:
        actions = {entry_name("action", path): leaf for path, leaf in self.spec.action.items()}
        return {**actions, **{f"extra/{name}": leaf for name, leaf in self.spec.extras.items()}}

    def _cut_before(self, head: int, cut: Array) -> None:
        envs = np.flatnonzero(cut)
        if len(envs) == 0:
            return
        slots = (head - 1) % self.ring_rows * self.num_envs + envs
        flags = self._arena.arrays["flags"]
        flags.touch_rows(slots)
        flags.tensor[torch.from_numpy(slots).to(self.device)] |= CUT

    def _write_rows(self, head: int, rollout: Rollout, links: Links) -> None:
        values = {
            entry_name("action", path): leaf for path, leaf in flatten(rollout["action"]).items()
        }
        values |= {f"extra/{name}": rollout[name] for name in self.spec.extras}
        values["reward"] = rollout["reward"]
        for name, value in values.items():
            self._arena.write_ring(name, head, zero_invalid(value, links), self.num_envs)
        self._arena.write_ring("flags", head, torch.from_numpy(links.flags), self.num_envs)

    def _uniform(self, count: int, rng: np.random.Generator | torch.Generator) -> Tensor:
        if isinstance(rng, torch.Generator):
            return torch.rand(count, generator=rng, dtype=torch.float64, device=self.device)
        return torch.from_numpy(rng.random(count)).to(self.device)

    def _host_arrays(self) -> dict[str, Array]:
        host = {f"chain/{name}": value for name, value in self._chain._asdict().items()}
        host |= {f"sampler/{name}": v for name, v in self._sampler.state_arrays().items()}
        for path, leaf in self._obs.items():
            host |= {f"{_obs_name(path)}/{n}": v for n, v in leaf.state_arrays().items()}
        return host

    def _layout(self) -> dict[str, Any]:
        config = self.config
        return {
            "ring_rows": self.ring_rows,
            "spec": self.spec.as_json(),
            "frames": self.frames,
            "prioritized": config.prioritized,
            "alpha": config.alpha if config.prioritized else None,
            "sequence_rows": config.sequence_rows,
            "burn_in": config.burn_in,
            "state_interval": config.state_interval,
        }

    def _require_layout(self, saved: dict[str, Any], directory: Path) -> None:
        for key, wanted in self._layout().items():
            if saved.get(key) != wanted:
                raise IncompatibleCheckpointError(
                    f"{directory}: the saved replay has {key}={shown(saved.get(key), 200)}, this "
                    f"one {shown(wanted, 200)}. Resume with the settings it was saved with."
                )


def brought_near(
    rollout: Rollout, priorities: Tensor | None, states: dict[str, Tensor] | None
) -> tuple[Rollout, Tensor | None, dict[str, Tensor] | None]:
    """A rollout and what comes with it in main memory, by one copy where it lies on a device."""
    given: dict[str, Any] = {
        "steps": rollout.steps,
        "state": rollout.initial_state,
        "last_obs": rollout.last_obs,
        "states": states or {},
    }
    if priorities is not None:
        given["priorities"] = priorities
    there = [leaf for _, leaf in leaves(given)]
    if all(leaf.is_cpu for leaf in there):
        return rollout, priorities, states
    near = iter(fetched(there))
    moved = map_leaves(lambda _: next(near), given)
    host = Rollout(
        steps=as_tensordict(moved["steps"], rollout.steps.batch_size),
        initial_state=moved["state"],
        last_obs=moved["last_obs"],
    )
    return host, moved.get("priorities"), None if states is None else moved["states"]


def stacked_paths(config: ReplayConfig, spec: ReplaySpec) -> set[KeyPath]:
    """Which observations are stacks of `frame_stack` frames.

    Raises:
        ConfigError: if the setting leaves it open, or names what is not there.
    """
    if config.frame_stack == 1:
        return set()
    if not config.stacked_keys:
        if len(spec.obs) > 1:
            raise ConfigError(
                f"frame_stack={config.frame_stack} with several observations "
                f"{[dotted(path) for path in spec.obs]}: name the stacked ones in stacked_keys."
            )
        return set(spec.obs)
    names = {dotted(path): path for path in spec.obs}
    unknown = [key for key in config.stacked_keys if key not in names]
    if unknown:
        raise ConfigError(
            f"stacked_keys={config.stacked_keys}: there is no observation {unknown}, "
            f"only {sorted(names)}."
        )
    return {names[key] for key in config.stacked_keys}


def _obs_name(path: KeyPath) -> str:
    return entry_name("obs", path)


def _under(prefix: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """The entries one level below `prefix`, without it."""
    start = f"{prefix}/"
    return {
        name[len(start) :]: value
        for name, value in arrays.items()
        if name.startswith(start) and "/" not in name[len(start) :]
    }

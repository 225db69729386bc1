"""Single Gymnasium environments stepped one after the other, straight into fixed buffers.

The same loop serves the in-process back end and each worker process. An episode that
ends is reset at once, in the same step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
from gymnasium import Space

from redline.envs import odd_envs
from redline.envs.attributes import plain_attribute, set_attribute
from redline.envs.backends.backend import Backend, StepBuffers, logged_values, success_of
from redline.envs.plain_data import decode
from redline.envs.seeding import env_seed
from redline.envs.snapshot import Snapshotter
from redline.envs.space_checks import CheckEnv, SpaceWatch, require_same_spaces
from redline.envs.spaces.action_mask import find_mask_space, with_action_mask
from redline.envs.spaces.layout import carried_space, labels, make_writer
from redline.errors import (
    CorruptCheckpointError,
    EnvDataError,
    EnvError,
    EnvExitError,
    RedlineError,
)
from redline.free_memory import require_memory, resident_bytes
from redline.nested import Array, NestedArray, leaves

_ODD = (TypeError, ValueError, AttributeError, OverflowError)  # what odd values end in
_SAMPLE = 256  # environments after which it is known how much memory all of them take

if TYPE_CHECKING:
    from redline.envs.settings import EnvSettings, EnvSource
    from redline.envs.single_env import SingleEnv


class EnvLoop(Backend):
    """B single environments in this process: the back end `gymnasium`.

    Args:
        make_env: makes one environment; called B times.
        num_envs: B.
        env_id: what to call them in messages.
        first_env_id: index of the first of them in the whole batch.
        frame_skip: simulator frames per step.
        info_names: of the values in the last info of an episode that are logged.
        check_env: how often observations are compared with their space; see `space_checks`.
    """

    name = "gymnasium"
    single_envs = True
    options = ("check_env",)
    can_idle = True
    can_step_one = True
    reads_info = True

    def __init__(
        self,
        make_env: Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        *,
        env_id: str,
        first_env_id: int = 0,
        frame_skip: int = 1,
        info_names: tuple[str, ...] = (),
        check_env: CheckEnv = "first",
    ) -> None:
        self.frame_skip, self.info_names = frame_skip, info_names
        self._set_attributes: dict[str, Any] = {}
        self._envs: list[gymnasium.Env[Any, Any]] = []
        try:
            for made in range(num_envs):
                self._envs.append(_checked_env(_made(make_env, env_id), env_id))
                if made == 0:  # what it imports is not counted
                    memory_of_one = resident_bytes()
                elif made == _SAMPLE:
                    _require_all_fit(num_envs, (resident_bytes() - memory_of_one) // _SAMPLE)
            odd_envs.require_distinct(self._envs, env_id)
            with odd_envs.may_not_leave("reading a space", env_id):
                spaces = [(env.observation_space, env.action_space) for env in self._envs]
            require_same_spaces(spaces, env_id)
            self._own_space = self._envs[0].observation_space
            self._add_action_masks(lambda: _made(make_env, env_id))
        except BaseException:
            with contextlib.suppress(EnvExitError):  # what came first is told
                self.close()
            raise
        env = self._envs[0]
        self._native_space = env.observation_space
        self.native_action_space = env.action_space
        obs_space = carried_space(env.observation_space)
        self.allocate(env_id, num_envs, first_env_id, obs_space, env.action_space)
        self._snapshots = [Snapshotter(env) for env in self._envs]
        self._journals = [snap if snap.keeps_journal else None for snap in self._snapshots]
        self._keeps_journals = any(journal is not None for journal in self._journals)
        self._left_over: tuple[Any, ...] | None = None
        self._watch = SpaceWatch(self._envs, check_env, labels(env_id, first_env_id))
        self._is_known = False  # whether an episode has ended; until then outcomes are looked at
        self.use_buffers(self.buffers)

    @classmethod
    def serves(cls, env: EnvSource) -> bool:
        """Whatever no other back end takes before it."""
        del env
        return True

    @classmethod
    def make(cls, settings: EnvSettings, num_envs: int, first_env_id: int) -> EnvLoop:
        """The loop over environments of an id or a callable."""
        return cls.over(settings.single(), num_envs, first_env_id)

    @classmethod
    def over(cls, single: SingleEnv, num_envs: int, first_env_id: int) -> EnvLoop:
        """The loop over B environments that are each made as `single` says."""
        return cls(
            single.make,
            num_envs,
            env_id=single.env_id,
            first_env_id=first_env_id,
            frame_skip=single.frame_skip,
            info_names=single.info_names,
            check_env=single.check_env,
        )

    @property
    def restorable(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """None if every environment can be restored bit for bit, else the reason why not."""
        return next((snap.reason for snap in self._snapshots if snap.reason), None)

    @property
    def native_spaces(self) -> tuple[Space[Any], Space[Any]]:
        """See `Backend.native_spaces`; masks that come in info are no part of it."""
        return self._own_space, self.native_action_space

    def use_buffers(self, buffers: StepBuffers) -> None:
        """Write into `buffers` from now on, which may be shared memory."""
        self.buffers = buffers
        label = labels(self.env_id, self.first_env_id)
        self._write_obs = make_writer(self._native_space, buffers.obs, label)
        self._write_final_obs = make_writer(self._native_space, buffers.final_obs, label)

    def reset(self, seed: int | None) -> None:
        """Start new episodes everywhere; environment i is seeded from (seed, i) alone."""
        self.buffers.clear_flags()
        self._left_over = None
        for i in range(self.num_envs):
            one = None if seed is None else env_seed(seed, self.first_env_id + i)
            self._reset_one(i, one)

    def _reset_one(self, i: int, seed: int | None) -> None:
        journal = self._journals[i]
        if journal is not None:
            journal.before_reset(seed)
        obs, info = odd_envs.reset(self._envs[i], seed, self.label(i))
        if self._watch.is_thorough:
            self._watch.look(i, obs, is_last=False)
        self._write_obs(i, obs)
        self.buffers.lives[i] = info.get("lives", 0)

    def step(self, action: NestedArray, active: Array | None) -> bool:
        """Step all, or those in `active`."""
        rows = self.codec.rows(action)
        if self._keeps_journals:
            self._record(rows, active)
        flags = None if active is None else active.tolist()
        if flags is None or all(flags):
            is_due = self._watch.is_due()
            if self._is_known and not is_due:
                return self._write(map(_step, self._envs, rows))
            return self._write(self._checked_steps(rows, range(self.num_envs)))
        self.buffers.clear_flags()
        which = [i for i, is_active in enumerate(flags) if is_active]
        any_ended = self._write(self._checked_steps(rows, which), which)
        self.buffers.valid[...] = active
        return any_ended

    def _checked_steps(self, rows: list[Any], which: Iterable[int]) -> Iterator[tuple[Any, ...]]:
        for i in which:
            outcome = _step(self._envs[i], rows[i])
            self._check(i, outcome)
            yield outcome

    def _check(self, i: int, outcome: tuple[Any, ...]) -> None:
        odd_envs.check_outcome(outcome, self.label(i))
        if self._watch.is_off:
            return
        self._watch.look(i, outcome[0], is_last=bool(outcome[2] or outcome[3]))

    def step_one(self, action: NestedArray) -> float | None:
        """Step the only environment, and write its observation if nothing else happened.

        Args:
            action: as for `ActionCodec.encode`.

        Returns:
            The raw reward. None if an episode ended, or there are lives to be counted: then
            nothing is written yet, and `finish_step` does so.
        """
        self._left_over = None
        row = self.codec.only_row(action)
        if self._keeps_journals:
            self._record([row], None)
        outcome = _step(self._envs[0], row)
        if self._watch.is_due() or not self._is_known:
            self._check(0, outcome)
        obs, reward, terminated, truncated, info = outcome
        if terminated or truncated or "lives" in info or not isinstance(reward, (float, int)):
            self._left_over = outcome
            return None
        self._write_obs(0, obs)
        if self._keeps_journals:
            self._note_reward(0, reward)
        return reward

    def begin_step(self, action: NestedArray, active: Array | None) -> None:
        """See `Backend.begin_step`; a step that was left over and never finished is forgotten."""
        self._left_over = None
        super().begin_step(action, active)

    def finish_step(self) -> bool:
        """Step, or write what `step_one` left over."""
        if self._left_over is None:
            return super().finish_step()
        outcome, self._left_over = self._left_over, None
        return self._write(iter([outcome]))

    def _write(self, outcomes: Iterator[tuple[Any, ...]], which: list[int] | None = None) -> bool:
        """Step and write, one environment after the other; whether any episode ended.

        Args:
            outcomes: steps the next environment whenever it is asked for the next item.
            which: the environments that it steps; None means all.
        """
        any_ended = False
        write_obs, buffers = self._write_obs, self.buffers
        rewards, terminations, truncations = [], [], []
        lives = buffers.lives
        numbers = range(self.num_envs) if which is None else which
        for i, outcome in zip(numbers, outcomes, strict=True):
            try:
                obs, reward, terminated, truncated, info = outcome
                rewards.append(reward)
                terminations.append(terminated)
                truncations.append(truncated)
                if self._keeps_journals:
                    self._note_reward(i, reward)
                if terminated or truncated:
                    any_ended = True
                    self._write_end(i, obs, info)
                else:
                    write_obs(i, obs)
                    if "lives" in info:
                        lives[i] = info["lives"]
            except _ODD as error:
                self._explain(i, outcome, error)
                raise
        index = slice(None) if which is None else which
        try:
            buffers.reward[index] = rewards
            if any_ended:
                buffers.terminated[index] = terminations
                buffers.truncated[index] = truncations
            else:
                buffers.terminated.fill(False)
                buffers.truncated.fill(False)
        except _ODD as error:
            raise self._odd_scalars(numbers, rewards, terminations, truncations) from error
        buffers.valid.fill(True)
        if any_ended:
            self._is_known = True
        return any_ended

    def _write_end(self, i: int, obs: Any, info: Mapping[str, Any]) -> None:
        """Write the last observation of an episode, and begin the next one."""
        self.buffers.success[i] = success_of(info)
        if self.info_names:
            self.buffers.info[i] = logged_values(info, self.info_names, self.label(i))
        self._write_final_obs(i, obs)
        self._watch.ended(i)
        self._reset_one(i, None)

    def _explain(self, i: int, outcome: Any, error: BaseException) -> None:
        """Say what of an outcome could not be written, if that is the reason."""
        if not isinstance(error, RedlineError):
            odd_envs.check_outcome(outcome, self.label(i))

    def _record(self, rows: list[Any], active: Array | None) -> None:
        for i, journal in enumerate(self._journals):
            if journal is not None and (active is None or active[i]):
                journal.before_step(rows[i])

    def _note_reward(self, i: int, reward: Any) -> None:
        journal = self._journals[i]
        if journal is not None:
            journal.after_step(reward)

    def _odd_scalars(self, numbers: Iterable[int], *columns: list[Any]) -> EnvDataError:
        names = ("reward", "terminated", "truncated")
        for name, column in zip(names, columns, strict=True):
            for i, value in zip(numbers, column, strict=True):
                is_huge = isinstance(value, int) and value.bit_length() > 1023
                if is_huge:
                    return EnvDataError(
                        f"{self.label(i)}: {name} is a whole number of hundreds of digits. Scale "
                        f"rewards in the environment or a wrapper."
                    )
                if getattr(value, "shape", ()) != () or not hasattr(value, "__float__"):
                    return EnvDataError(
                        f"{self.label(i)}: {name} is {value!r} of type {type(value).__name__}. "
                        f"step() must return one plain number or bool for it."
                    )
        return EnvDataError(f"{self.env_id}: reward, terminated or truncated is not a number.")

    def set_attr(self, name: str, value: Any) -> None:
        """Give an attribute of every environment a value; see `Backend.set_attr`."""
        saved = plain_attribute(name, value)
        for i, env in enumerate(self._envs):
            set_attribute(env, name, decode(saved), self.label(i))
        self._set_attributes[name] = saved
        for journal in self._journals:
            if journal is not None:
                journal.after_set_attr(name, saved)

    def state_dict(self) -> dict[str, Any]:
        """The state of each environment and the observation to act on."""
        attributes = {"attributes": dict(self._set_attributes)} if self._set_attributes else {}
        return {
            "envs": [snap.save() for snap in self._snapshots],
            **attributes,
            **self.buffers.saved(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore each environment; see `Snapshotter.restore`."""
        self.buffers.clear_flags()
        self._left_over = None
        self._set_attributes = dict(state.get("attributes", {}))
        if not self._keeps_journals:  # a journal sets them when they were set
            for name, value in self._set_attributes.items():
                self.set_attr(name, decode(value))
        for i, (snap, saved) in enumerate(zip(self._snapshots, state["envs"], strict=True)):
            replayed = _restored(snap, saved, self.label(i))
            if replayed is not None:
                self._write_obs(i, replayed[0])
                self._compare(i, state["obs"])
        for key, leaf in leaves(self.buffers.obs):
            leaf[...] = state["obs"][key]
        self.buffers.lives[...] = state["lives"]

    def _compare(self, i: int, saved: dict[str, Array]) -> None:
        for key, leaf in leaves(self.buffers.obs):
            if leaf[i].tobytes() != saved[key][i].tobytes():
                part = f" (key {key!r})" if key else ""
                raise EnvError(
                    f"{self.label(i)}: replaying the episode's actions did not reproduce the "
                    f"saved observation{part}, so its state cannot be restored. Give the "
                    f"environment get_state() and set_state(state), or draw all its randomness "
                    f"from self.np_random."
                )

    def close(self) -> None:
        """Close every environment.

        Raises:
            EnvExitError: if one exits; the others are closed all the same.
        """
        envs, self._envs = self._envs, []
        exits: list[EnvExitError] = []
        for env in envs:
            try:
                with odd_envs.may_not_leave("close", type(env.unwrapped).__name__):
                    env.close()
            except EnvExitError as error:
                exits.append(error)
        if exits:
            raise exits[0]

    def _add_action_masks(self, make_env: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        space = find_mask_space(self._envs[0], make_env)
        if space is not None:
            self._envs = [with_action_mask(env, space) for env in self._envs]


def _step(env: gymnasium.Env[Any, Any], action: Any) -> tuple[Any, ...]:
    try:
        return env.step(action)
    except odd_envs.LEAVING as error:
        raise odd_envs.left(error, "step", type(env.unwrapped).__name__) from error


def _made(make_env: Callable[[], Any], env_id: str) -> Any:
    try:
        return make_env()
    except odd_envs.LEAVING as error:
        raise odd_envs.left(error, "the constructor", env_id) from error


def _require_all_fit(num_envs: int, each: int) -> None:
    require_memory(
        num_envs * each,
        f"num_envs={num_envs}: {num_envs:,} environments x {each:,} bytes, as the first {_SAMPLE} "
        f"took, and so it",
        "Use fewer environments.",
    )


def _checked_env(env: Any, env_id: str) -> gymnasium.Env[Any, Any]:
    if not isinstance(env, gymnasium.Env):
        raise EnvError(
            f"{env_id}: the callable returned {type(env).__name__}, not a gymnasium.Env. "
            f"Return one environment that derives from gymnasium.Env."
        )
    return env


def _restored(snap: Snapshotter, saved: Any, label: str) -> tuple[Any, Any] | None:
    """See `Snapshotter.restore`.

    Raises:
        CorruptCheckpointError: if the state, which may be a stranger's, ends in any other error.
    """
    try:
        return snap.restore(saved, label)
    except RedlineError:
        raise
    except Exception as error:  # whatever an environment makes of foreign data
        raise CorruptCheckpointError(
            f"{label}: its saved state cannot be taken ({type(error).__name__}: {error!s:.200}). "
            f"It was altered, or is of another version of the environment. Use an earlier "
            f"checkpoint."
        ) from error

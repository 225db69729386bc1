"""The state of one Gymnasium environment as plain data, and back, bit for bit.

How, in order of preference:

| method | for | what is kept |
|---|---|---|
| protocol | the innermost environment has `get_state()` and `set_state(state)` | what they give, and its generators |
| mujoco | Gymnasium's MuJoCo environments | integration state, every array of MjData |
| ale | `ale_py`'s environments without sticky actions | ALE's own serialized system state |
| attributes | Gymnasium's classic control and toy text | its attributes |
| journal | any other | its generators before the last reset, the actions and the sum of rewards since |

Beside that, the plain attributes of every wrapper (a time limit's counter, a stack of
frames) are kept. A journal is replayed: the sum of rewards must be the saved one, and the caller
compares the observation. The protocol's state must be plain data: None, numbers, strings, arrays,
and lists, tuples, sets and dicts of those, random generators included. Those that are attributes of
the environment go back before `set_state`, for a state that leaves them out.
"""  # noqa: E501 (rows of a table)

from __future__ import annotations

import contextlib
import copy
import inspect
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from redline.envs.attributes import set_attribute
from redline.envs.layers import layers_of
from redline.envs.plain_data import NotPlainError, decode, encode
from redline.envs.saved_attributes import (
    refuse_another_state,
    refuse_containers,
    refuse_other_kinds,
)
from redline.errors import EnvError
from redline.plain_text import shown

JOURNAL_LIMIT = 100_000
_ATTRIBUTE_MODULES = ("gymnasium.envs.classic_control.", "gymnasium.envs.toy_text.")
# Constant for given constructor arguments, and large.
_CONSTANT = {"TaxiEnv": ("P", "initial_state_distrib", "desc", "locs")}
# A number in one episode and a string in the next.
_VARYING = {"BlackjackEnv": ("dealer_top_card_value_str",)}
_MUJOCO_ATTRIBUTES = frozenset({"model", "data", "mujoco_renderer"})
_ALE_ATTRIBUTES = frozenset({"ale", "_action_set"})
_GENERATORS = (np.random.Generator, np.random.RandomState)
_SKIPPED_TYPES = (gymnasium.Space, gymnasium.Env, EnvSpec)
_SKIPPED_NAMES = frozenset({"metadata", "_saved_kwargs", "_ezpickle_args", "_ezpickle_kwargs"})


class Snapshotter:
    """Saves and restores one environment.

    Args:
        env: the environment with all its wrappers.

    Attributes:
        method: one of the methods of the module docstring.
        keeps_journal: whether `before_reset` and `before_step` must be called.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._layers = layers_of(env)
        self._inner = self._layers[-1]
        self._constant_reason: str | None = None
        self.method = self._choose()
        self.keeps_journal = self.method == "journal"
        self._origin: dict[str, Any] | None = None
        self._actions: list[Any] = []
        self._return = 0.0  # of the actions
        # Attributes that the run set: those in force at the last reset, and those since, each
        # with the number of actions before it.
        self._attributes: dict[str, Any] = {}
        self._changes: list[tuple[int, str, Any]] = []

    @property
    def reason(self) -> str | None:
        """None if the environment can be restored as it now is, else why not."""
        if self._constant_reason is not None:
            return self._constant_reason
        if self.keeps_journal and len(self._actions) > JOURNAL_LIMIT:
            return (
                f"{type(self._inner).__name__} has no get_state() and set_state(state), and its "
                f"episode is longer than the {JOURNAL_LIMIT} steps that are kept for replay"
            )
        return None if self.method == "journal" else self._what_is_not_plain()

    def _what_is_not_plain(self) -> str | None:
        """What has come to hold something else than plain data since the method was chosen."""
        skipped = self._own_names()
        layers = self._layers if self.method != "protocol" else self._layers[:-1]
        for layer in layers:
            try:
                _attributes(layer, skipped if layer is self._inner else frozenset())
            except NotPlainError as error:
                return (
                    f"{type(layer).__name__} holds {error}, which is not plain data. Give it "
                    f"get_state() and set_state(state), or keep plain data"
                )
        return None

    def _choose(self) -> str:
        inner = self._inner
        if any(isinstance(layer, gymnasium.wrappers.NormalizeReward) for layer in self._layers):
            self._constant_reason = (
                "NormalizeReward keeps statistics over episodes, which replaying one does not "
                "bring back. Leave it out, and let the algorithm scale rewards (--scale-reward)"
            )
            return "journal"
        if _has_protocol(inner):
            return "protocol" if self._wrappers_are_plain() else "journal"
        module = type(inner).__module__
        if hasattr(inner, "ale") and module.startswith(("ale_py", "shimmy")):
            return self._choose_ale()
        if not self._wrappers_are_plain():
            return "journal"
        if _is_mujoco(inner) and self._is_plain(inner, skip=_MUJOCO_ATTRIBUTES):
            return "mujoco"
        if module.startswith(_ATTRIBUTE_MODULES) and self._is_plain(inner):
            return "attributes"
        return "journal"

    def _choose_ale(self) -> str:
        ale = self._inner.ale
        if ale.getFloat("repeat_action_probability") > 0:
            self._constant_reason = (
                f"{type(self._inner).__name__} has sticky actions of its own, whose last action "
                f"ALE does not save. Use the preset 'machado-2018'"
            )
        elif not self._wrappers_are_plain():
            self._constant_reason = (
                f"a wrapper around {type(self._inner).__name__} holds state that is not plain data"
            )
        return "ale"

    def _wrappers_are_plain(self) -> bool:
        return all(self._is_plain(layer) for layer in self._layers[:-1])

    def _is_plain(self, layer: Any, skip: frozenset[str] = frozenset()) -> bool:
        try:
            _attributes(layer, skip)
        except NotPlainError:
            return False
        return True

    def before_reset(self, seed: int | None) -> None:
        """Begin a journal: remember what the reset draws from."""
        self._origin = {"seed": seed, "generators": [_generators(layer) for layer in self._layers]}
        self._actions.clear()
        self._return = 0.0
        self._attributes |= {name: value for _, name, value in self._changes}
        self._changes.clear()

    def before_step(self, action: Any) -> None:
        """Add an action to the journal."""
        if len(self._actions) <= JOURNAL_LIMIT:
            # A copy: an environment may scale the array that it is given.
            self._actions.append(action if type(action) is int else copy.deepcopy(action))

    def after_step(self, reward: Any) -> None:
        """Add a reward to the journal; what is no number is refused by whoever writes it."""
        if isinstance(reward, float):  # the rest takes longer than an easy environment's step
            self._return += reward
        elif getattr(reward, "shape", ()) == ():
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                self._return += float(reward)

    def after_set_attr(self, name: str, value: Any) -> None:
        """Add to the journal that the run gave an attribute a value, as plain data."""
        self._changes.append((len(self._actions), name, value))

    def save(self) -> dict[str, Any]:
        """The state as plain data.

        Raises:
            EnvError: if it cannot be saved.
        """
        if self.reason is not None:
            raise EnvError(f"the state cannot be saved: {self.reason}")
        if self.method == "journal":
            return {
                "method": self.method,
                "origin": self._origin,
                "actions": _pack(self._actions),
                "return": np.array([self._return]),
                **self._saved_attributes(),
            }
        try:
            return {
                "method": self.method,
                "inner": self._save_inner(),
                **self._saved_generators(),
                "wrappers": [_attributes(layer) for layer in self._layers[:-1]],
            }
        except NotPlainError as error:
            raise EnvError(
                f"the state of {type(self._inner).__name__} cannot be saved: it holds {error}, "
                f"which is not plain data. Give it get_state() and set_state(state)."
            ) from error

    def _saved_attributes(self) -> dict[str, Any]:
        if not (self._attributes or self._changes):
            return {}
        changes = [list(change) for change in self._changes]
        return {"attributes": dict(self._attributes), "changes": changes}

    def _saved_generators(self) -> dict[str, Any]:
        """What the protocol's state may leave out; Redline's own environments do not."""
        if self.method != "protocol" or self._is_own:
            return {}
        return {"generators": _numpy_generators(self._inner)}

    def _save_inner(self) -> Any:
        if self.method == "protocol":
            return encode(self._inner.get_state())
        if self.method == "mujoco":
            return {
                "simulator": save_mujoco(self._inner),
                "attributes": _attributes(self._inner, _MUJOCO_ATTRIBUTES),
            }
        if self.method == "ale":
            return {
                "simulator": save_ale(self._inner.ale),
                "attributes": _attributes(self._inner, _ALE_ATTRIBUTES),
            }
        return _attributes(self._inner)

    def restore(self, state: dict[str, Any], name: str) -> tuple[Any, Any] | None:
        """Bring the environment into the saved state.

        Args:
            state: what `save` gave.
            name: what to call the environment in messages.

        Returns:
            None if that is certain; (observation, info) if the state was reached by replaying
            a journal, for the caller to compare with what was saved.

        Raises:
            EnvError: if the state is of another kind of environment.
        """
        if self._constant_reason is not None:  # an earlier version may have saved it all the same
            raise EnvError(f"{name}: {self._constant_reason}.")
        if state.get("method") != self.method:
            raise EnvError(
                f"{name}: the saved state was made by the method {shown(state.get('method'))}, "
                "this "
                f"environment needs {self.method!r}. Resume with the environment of the saved run."
            )
        if self.method == "journal":
            return self._replay(state, name)
        if len(state["wrappers"]) != len(self._layers) - 1:
            raise EnvError(
                f"{name}: the saved environment had {len(state['wrappers'])} wrappers, this one "
                f"has {len(self._layers) - 1}. Resume with the environment of the saved run."
            )
        # Some constructors leave to the first reset what stepping needs.
        self._env.reset(seed=0)
        wrappers = list(zip(self._layers[:-1], state["wrappers"], strict=True))
        inner = self._inner_attributes(state["inner"])
        generators = state.get("generators", {})
        self._make_attributes([*wrappers, *inner, (self._inner, generators)])
        self._set_generators(generators, name)
        self._restore_inner(state["inner"], name)
        self._set_all(inner, wrappers, name)
        if self.method == "attributes" or self._is_own:
            # A value of a fitting kind may still be none that stepping takes. A journal and a
            # simulator have checks of their own, and the wrappers' attributes go back as well.
            self._env.step(copy.deepcopy(self._env.action_space).sample())
            self._restore_inner(state["inner"], name)
            self._set_all(inner, wrappers, name)
        return None

    def _set_all(
        self, inner: list[tuple[Any, Any]], wrappers: list[tuple[Any, Any]], name: str
    ) -> None:
        for layer, attributes in inner:
            self._set_attributes(layer, attributes, name, self._own_names())
        for layer, attributes in wrappers:
            self._set_attributes(layer, attributes, name)

    @property
    def _is_own(self) -> bool:
        """Whether it is one of Redline's own with the protocol, whose states are known."""
        return self.method == "protocol" and type(self._inner).__module__.startswith("redline.")

    def _set_generators(self, saved: Any, name: str) -> None:
        """Set the innermost environment's generators in place, for whatever else holds them."""
        layer = self._inner
        own = {"_np_random": None} | _empty(layer) | _numpy_generators(layer)
        refuse_other_kinds(own, saved, f"{name}, {type(layer).__name__}")
        for attribute, data in saved.items():
            here: Any = getattr(layer, attribute, None)
            there: Any = decode(data)
            if type(there) not in _GENERATORS:
                raise EnvError(f"{name}: the saved {shown(attribute)} is no generator.")
            if isinstance(here, np.random.Generator):
                here.bit_generator.state = there.bit_generator.state
            elif isinstance(here, np.random.RandomState):
                here.set_state(there.get_state())
            else:
                setattr(layer, attribute, there)

    def _restore_inner(self, saved: Any, name: str) -> None:
        if self.method == "protocol":
            if self._is_own:
                own = encode(self._inner.get_state())
                refuse_another_state(own, saved, f"{name}, {type(self._inner).__name__}", "system")
            self._inner.set_state(decode(saved))
        elif self.method == "mujoco":
            restore_mujoco(self._inner, saved["simulator"])
        elif self.method == "ale":
            restore_ale(self._inner.ale, saved["simulator"])

    def _inner_attributes(self, saved: Any) -> list[tuple[Any, Any]]:
        """The innermost environment and its saved attributes, if they are saved by name."""
        if self.method == "protocol":
            return []
        return [(self._inner, saved if self.method == "attributes" else saved["attributes"])]

    def _own_names(self) -> frozenset[str]:
        """Attributes of the innermost environment that its simulator stands for."""
        return {"mujoco": _MUJOCO_ATTRIBUTES, "ale": _ALE_ATTRIBUTES}.get(self.method, frozenset())

    def _make_attributes(self, saved: list[tuple[Any, Any]]) -> None:
        """Take a step where something saved exists only after the first one."""
        if any(name not in vars(layer) for layer, attributes in saved for name in attributes):
            # A copy: drawing from the environment's own space would change its generator.
            self._env.step(copy.deepcopy(self._env.action_space).sample())
            self._env.reset(seed=0)

    def _set_attributes(
        self, layer: Any, saved: Any, name: str, skip: frozenset[str] = frozenset()
    ) -> None:
        """Set what the layer's own snapshot has, and nothing else: the file may be a stranger's."""
        kind = type(layer).__name__
        try:
            own = _attributes(layer, skip)
        except NotPlainError:  # something else than what was saved, as a first observation
            own = _attributes(layer, skip | (vars(layer).keys() - saved.keys()))
        own |= dict.fromkeys(_VARYING.get(kind, ()))
        refuse_other_kinds(own, saved, f"{name}, {kind}")
        if type(layer).__module__.startswith(_ATTRIBUTE_MODULES):
            refuse_containers(own, saved, f"{name}, {kind}")
        for attribute, data in saved.items():
            setattr(layer, attribute, decode(data))

    def _replay(self, state: dict[str, Any], name: str) -> tuple[Any, Any]:
        origin = state["origin"]
        if len(origin["generators"]) != len(self._layers):
            raise EnvError(
                f"{name}: the saved environment had {len(origin['generators']) - 1} wrappers, "
                f"this one has {len(self._layers) - 1}. Resume with that of the saved run."
            )
        layers = list(zip(self._layers, origin["generators"], strict=True))
        if _lack(layers):
            self._env.reset(seed=0)  # which makes what the constructor has not
        if _lack(layers):  # a copy, as in `_make_attributes`
            self._env.step(copy.deepcopy(self._env.action_space).sample())
            self._env.reset(seed=0)
        for layer, generators in layers:
            own = _numbers_or_none(layer)
            refuse_other_kinds(own, generators, f"{name}, {type(layer).__name__}")
            for attribute, data in generators.items():
                setattr(layer, attribute, decode(data))
        self._origin, self._actions, self._return = origin, _unpack(state["actions"]), 0.0
        self._attributes = dict(state.get("attributes", {}))
        self._changes = [(int(at), key, value) for at, key, value in state.get("changes", [])]
        for key, value in self._attributes.items():
            set_attribute(self._env, key, decode(value), name)
        obs, info = self._env.reset(seed=origin["seed"])
        for number, action in enumerate(self._actions):
            self._change_attributes(number, name)
            obs, reward, terminated, truncated, info = self._env.step(copy.deepcopy(action))
            self.after_step(reward)
            if terminated or truncated:
                raise EnvError(
                    f"{name}: replaying the episode's actions ended it early, so its state cannot "
                    f"be restored. Give the environment get_state() and set_state(state), or "
                    f"draw all its randomness from self.np_random."
                )
        self._change_attributes(len(self._actions), name)
        self._compare_return(state.get("return"), name)
        return obs, info

    def _compare_return(self, saved: Any, name: str) -> None:
        """Refuse a replay with other rewards; older states do not tell them."""
        if saved is not None and saved.tobytes() != np.array([self._return]).tobytes():
            raise EnvError(
                f"{name}: replaying the episode's actions gave rewards that sum to "
                f"{self._return:g} instead of {saved[0]:g}, so its state cannot be restored: does "
                f"a wrapper keep something over episodes? Draw all randomness from "
                f"self.np_random, and keep what spans episodes in get_state() and "
                f"set_state(state) of the environment."
            )

    def _change_attributes(self, number: int, label: str) -> None:
        """Set again what the run set after so many actions."""
        for at, name, value in self._changes:
            if at == number:
                set_attribute(self._env, name, decode(value), label)


def _pack(actions: list[Any]) -> Any:
    """One array for a journal of numbers or of arrays; a list for structured actions."""
    if actions and all(type(action) is int for action in actions):
        return {"kind": "numbers", "values": np.array(actions, dtype=np.int64)}
    if actions and all(isinstance(action, np.ndarray) for action in actions):
        return {"kind": "arrays", "values": np.stack(actions)}
    return {"kind": "any", "values": [encode(action) for action in actions]}


def _unpack(packed: dict[str, Any]) -> list[Any]:
    if packed["kind"] == "numbers":
        return packed["values"].tolist()
    if packed["kind"] == "arrays":
        return list(np.array(packed["values"]))
    return [decode(action) for action in packed["values"]]


def _has_protocol(env: Any) -> bool:
    """MuJoCo environments have a `set_state(qpos, qvel)` of another meaning."""
    if not callable(getattr(env, "get_state", None)) or not callable(
        getattr(env, "set_state", None)
    ):
        return False
    parameters = inspect.signature(env.set_state).parameters.values()
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    return len(required) == 1


def _is_mujoco(env: Any) -> bool:
    data = getattr(env, "data", None)
    return type(data).__module__.startswith("mujoco") and hasattr(env, "model")


def _is_skipped(name: str, value: Any) -> bool:
    return (
        name in _SKIPPED_NAMES
        or isinstance(value, _SKIPPED_TYPES)
        or callable(value)
        or inspect.ismodule(value)
        or type(value).__module__.startswith("pygame")
    )


def _attributes(layer: Any, skip: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The layer's own attributes as plain data, without spaces, functions and windows."""
    constant = _CONSTANT.get(type(layer).__name__, ())
    return {
        name: encode(value)
        for name, value in vars(layer).items()
        if name not in skip and name not in constant and not _is_skipped(name, value)
    }


def _numbers_or_none(layer: Any) -> dict[str, Any]:
    """What a journal's beginning may set on a layer; None where it may have no value yet."""
    # Gymnasium makes these two at the first use.
    return {"_np_random": None, "_np_random_seed": None} | _empty(layer) | _generators(layer)


def _empty(layer: Any) -> dict[str, Any]:
    """The attributes that have no value yet."""
    return {name: None for name, value in vars(layer).items() if value is None}


def _lack(layers: list[tuple[Any, Any]]) -> bool:
    """Whether a layer lacks something that its saved beginning sets."""
    return any(each not in _numbers_or_none(layer) for layer, saved in layers for each in saved)


def _generators(layer: Any) -> dict[str, Any]:
    """What a reset may draw from or count with: generators and plain numbers."""
    return _of_kinds(layer, (*_GENERATORS, bool, int, float))


def _numpy_generators(layer: Any) -> dict[str, Any]:
    return _of_kinds(layer, _GENERATORS)


def _of_kinds(layer: Any, kinds: tuple[type, ...]) -> dict[str, Any]:
    return {
        name: encode(value)
        for name, value in vars(layer).items()
        if isinstance(value, kinds) and not _is_skipped(name, value)
    }


def save_mujoco(env: Any) -> dict[str, Any]:
    """The integration state, and every array of MjData.

    Derived quantities lag a step behind the positions, and rewards read them, so the
    integration state alone is not enough.

    Args:
        env: has `model` and `data`.
    """
    mujoco: Any = import_module("mujoco")

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    integration = np.empty(mujoco.mj_stateSize(env.model, spec), dtype=np.float64)
    mujoco.mj_getState(env.model, env.data, integration, spec)
    return {
        "integration": integration,
        "arrays": {name: encode(array) for name, array in _mujoco_arrays(env.data)},
    }


def restore_mujoco(env: Any, saved: dict[str, Any]) -> None:
    """Bring `env` into the state that `save_mujoco` gave."""
    mujoco: Any = import_module("mujoco")

    spec = mujoco.mjtState.mjSTATE_INTEGRATION
    mujoco.mj_setState(env.model, env.data, saved["integration"], spec)
    for name, array in _mujoco_arrays(env.data):
        if name in saved["arrays"]:
            value = decode(saved["arrays"][name])
            if value.shape == array.shape:
                array[...] = value


def _mujoco_arrays(data: Any) -> list[tuple[str, Any]]:
    """Every writeable numeric array of MjData, those of changing length left out."""
    found = []
    for name in dir(data):
        if name.startswith(("_", "efc_", "iefc_")):
            continue
        value = getattr(data, name)
        if isinstance(value, np.ndarray) and value.flags.writeable and value.dtype.kind in "biuf":
            found.append((name, value))
    return found


def save_ale(ale: Any) -> Any:
    """The whole system state, random generator included, as plain data."""
    return encode(bytes(ale.cloneSystemState().__getstate__()))


def restore_ale(ale: Any, saved: Any) -> None:
    """Bring an ALEInterface into the state that `save_ale` gave."""
    state_class: Any = import_module("ale_py").ALEState
    state = state_class.__new__(state_class)
    state.__setstate__(decode(saved))
    ale.restoreSystemState(state)

"""Saving and restoring MuJoCo's and ALE's simulators bit for bit."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from redline.envs.plain_data import decode, encode


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

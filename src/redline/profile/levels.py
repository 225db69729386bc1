"""Stack levels, and how a native callable is sorted into one by where it comes from."""

from __future__ import annotations

import types
from typing import Any, cast

LEVELS = (
    *("python", "backend", "compiled", "simulator", "cuda_api", "waiting", "unattributed"),
    "ready",  # could have run, and had no core: no event says so, the system's scheduler does
)
PYTHON, BACKEND, COMPILED, SIMULATOR, CUDA_API, WAITING, UNATTRIBUTED, READY = range(len(LEVELS))
IDLE = frozenset({WAITING, READY})

BACKEND_PACKAGES = frozenset(
    {"torch", "functorch", "torchvision", "torchaudio", "torchrl", "tensordict", "triton"}
)
SIMULATOR_PACKAGES = frozenset(
    {
        *("mujoco", "mujoco_py", "ale_py", "envpool", "Box2D", "_Box2D", "pygame", "pybullet"),
        *("procgen", "nle", "vizdoom", "multi_agent_ale_py", "warp", "physx", "isaacgym"),
    }
)

# Called many times per module call and over in some 30 ns each: timing them would cost more than
# they do. They count to their caller.
TRIVIAL_BACKEND_CALLS = frozenset(
    {
        *("_get_tracing_state", "_has_torch_function", "_has_torch_function_unary"),
        *("_has_torch_function_variadic", "is_grad_enabled", "is_inference_mode_enabled"),
        *("_log_api_usage_once", "_is_torch_function_enabled", "_is_torch_function_mode_enabled"),
        *("_disabled_torch_function_impl", "_are_functorch_transforms_active", "set_grad_enabled"),
        *("_set_grad_enabled", "is_autocast_enabled", "is_autocast_cpu_enabled", "get_device"),
        *("_is_any_autocast_enabled", "is_floating_point", "is_complex", "is_sparse", "is_nested"),
        *("dim", "size", "numel", "stride", "is_contiguous", "data_ptr", "element_size", "ndim"),
        *("_jit_clear_class_registry", "_get_cudnn_enabled", "is_tracing", "is_leaf"),
        *("_is_alias_of", "_to_dlpack", "_dispatch_tls_local_exclude_set", "_len_torch_function"),
        *("_is_tracing", "_autograd_init", "_profiler_enabled", "_current_autograd_node"),
        *("_len_torch_dispatch_stack", "_get_torch_function_mode", "_push_on_torch_function_stack"),
    }
)

# What blocks: (module, name) of functions, (module, "Type.name") of methods.
WAITING_CALLS = frozenset(
    {
        ("time", "sleep"),
        ("builtins", "input"),
        *(("posix", n) for n in ("read", "waitpid", "wait", "wait3", "wait4", "waitid")),
        *(("posix", n) for n in ("sched_yield", "readv", "pread", "fsync", "fdatasync", "sync")),
        *(("posix", n) for n in ("system", "write", "writev", "pwrite", "sendfile", "lockf")),
        *(("fcntl", n) for n in ("flock", "lockf")),
        *(("signal", n) for n in ("pause", "sigwait", "sigwaitinfo", "sigtimedwait")),
        *(("_signal", n) for n in ("pause", "sigwait", "sigwaitinfo", "sigtimedwait")),
        ("select", "select"),
        *(("select", n) for n in ("poll.poll", "epoll.poll", "kqueue.control", "devpoll.poll")),
        *(("_thread", n) for n in ("lock.acquire", "lock.acquire_lock", "RLock.acquire")),
        *(("_thread", n) for n in ("lock.__enter__", "RLock.__enter__", "_ThreadHandle.join")),
        ("_queue", "SimpleQueue.get"),
        *(("_multiprocessing", n) for n in ("SemLock.acquire", "SemLock.__enter__")),
        *(("_socket", f"socket.{n}") for n in ("accept", "_accept", "connect", "recv")),
        *(("_socket", f"socket.{n}") for n in ("recv_into", "recvfrom", "recvfrom_into")),
        *(("_socket", f"socket.{n}") for n in ("recvmsg", "recvmsg_into", "send", "sendall")),
        *(("_socket", f"socket.{n}") for n in ("sendto", "sendmsg", "sendmsg_afalg", "sendfile")),
        *(("_io", f"BufferedReader.{n}") for n in ("read", "read1", "readinto", "readline")),
        *(("_io", f"FileIO.{n}") for n in ("read", "readall", "readinto", "write")),
    }
)
# The ML back end's own ways to wait for the device.
WAITING_BACKEND_NAMES = frozenset({"synchronize", "_cuda_synchronize", "wait_event", "wait_stream"})

# Callable types, besides builtin functions and method descriptors, that hold native code.
NATIVE_FUNCTION_TYPES = frozenset(
    {
        *("nb_func", "nb_method", "nb_static_property", "cython_function_or_method"),
        *("fused_cython_function", "nanobind_function", "ScriptFunction", "ScriptMethod"),
    }
)

__all__ = [
    "BACKEND",
    "COMPILED",
    "CUDA_API",
    "IDLE",
    "LEVELS",
    "PYTHON",
    "READY",
    "SIMULATOR",
    "UNATTRIBUTED",
    "WAITING",
    "level_of",
    "may_be_native",
    "origin_of",
]


def origin_of(function: Any) -> tuple[str, str]:
    """The module that defines a native callable, and its name there.

    Methods are named `Type.name`, after the class of the MRO that defines them: the `apply` of
    an autograd function belongs to torch, whoever derived the class.
    """
    name = str(getattr(function, "__name__", type(function).__name__))
    owner: Any = getattr(function, "__objclass__", None)
    if owner is None:
        bound_to: Any = getattr(function, "__self__", None)
        if isinstance(bound_to, types.ModuleType):
            return bound_to.__name__, name
        meta: Any = cast(Any, type(bound_to))
        family = type.mro(meta)
        if issubclass(meta, type):
            family = type.mro(bound_to) + family
        owner = next((c for c in family if name in vars(c)), None)
    if owner is not None:
        return str(owner.__module__), f"{owner.__name__}.{name}"
    return str(getattr(function, "__module__", None) or "builtins"), name


def level_of(module: str, name: str) -> int:
    """The level of a native callable, `PYTHON` when it counts to its caller.

    Args:
        module: where it is defined.
        name: `function` or `Type.method`.
    """
    package = module.partition(".")[0]
    last = name.rpartition(".")[2]
    if (module, name) in WAITING_CALLS:
        return WAITING
    if package in SIMULATOR_PACKAGES:
        return SIMULATOR
    if package in BACKEND_PACKAGES:
        if last in WAITING_BACKEND_NAMES:
            return WAITING
        return PYTHON if last in TRIVIAL_BACKEND_CALLS else BACKEND
    return PYTHON


def may_be_native(kind: type) -> bool:
    """Whether objects of this callable type, met at a call, are to be classified one by one."""
    return kind.__name__ in NATIVE_FUNCTION_TYPES

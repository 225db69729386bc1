"""Operations known without marks: simulation and backpropagation; simulator entry points.

Everything done to the program's classes and modules is undone by `Patches.undo`.

| operation | what counts |
|---|---|
| simulation | `step` and `reset` of Gymnasium, EnvPool, ALE, Stable-Baselines3, TorchRL, |
| | PettingZoo and dm_env envs; `observe` and `last` of PettingZoo's AEC |
| | and of the program's own: see `record.own_envs` |
| backpropagation | `backward`, `torch.autograd.grad`, the `step` of optimizers |
| zero_grad | `zero_grad` of optimizers |
| replay | adding to and sampling from the replay buffers of SB3, CleanRL and TorchRL |
| learning, collection | `train` and `collect_rollouts` of SB3 |
| evaluation | `evaluate_policy` of SB3 |
| data loading | the next batch of a `DataLoader`, and what its workers do for it |
| imports | modules that were not there yet |
| logging | TensorBoard's writer, the logger of Stable-Baselines3, `log` of W&B runs |
| inference, forward | outermost module calls with gradients off, and on: see `record.boundary` |
"""

from __future__ import annotations

import _thread
import functools
import importlib.machinery
import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from redline.errors import ProfileError
from redline.profile import _native, layout, levels, marks
from redline.profile.record.calibrate import IMPORTS
from redline.profile.record.imports import PostImport
from redline.profile.record.own_envs import follow_classes, without_look
from redline.profile.record.simulation import in_simulation, in_turn
from redline.profile.record.tasks import separating

# Base classes of envs: (module, class, methods). Subclasses are followed as they are defined.
ENV_CLASSES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("gymnasium.core", "Env", ("step", "reset")),
    (
        "gymnasium.vector.vector_env",
        "VectorEnv",
        ("step", "reset", "step_async", "step_wait", "reset_async", "reset_wait", "send", "recv"),
    ),
    ("gym.core", "Env", ("step", "reset")),
    ("envpool.python.envpool", "EnvPoolMixin", ("step", "reset", "send", "recv", "async_reset")),
    (
        "stable_baselines3.common.vec_env.base_vec_env",
        "VecEnv",
        ("step", "reset", "step_async", "step_wait"),
    ),
    ("torchrl.envs.common", "EnvBase", ("step", "reset")),
    ("pettingzoo.utils.env", "AECEnv", ("step", "reset", "observe", "last")),
    ("pettingzoo.utils.env", "ParallelEnv", ("step", "reset")),
    ("dm_env._environment", "Environment", ("step", "reset")),  # dm_control's, too
)

# What else frameworks do, by operation: (operation, module, class, methods), subclasses as well.
FRAMEWORK_CLASSES: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    ("zero_grad", "torch.optim.optimizer", "Optimizer", ("zero_grad",)),
    *(
        (
            "replay",
            module,
            "BaseBuffer",
            ("add", "extend", "sample", "compute_returns_and_advantage"),
        )
        for module in ("stable_baselines3.common.buffers", "cleanrl_utils.buffers")
    ),
    (
        "replay",
        "torchrl.data.replay_buffers.replay_buffers",
        "ReplayBuffer",
        ("add", "extend", "sample"),
    ),
    (
        "logging",
        "torch.utils.tensorboard.writer",
        "SummaryWriter",
        ("add_scalar", "add_scalars", "add_histogram", "add_text", "add_video", "flush", "close"),
    ),
    ("logging", "stable_baselines3.common.logger", "Logger", ("dump",)),
    ("learning", "stable_baselines3.common.base_class", "BaseAlgorithm", ("train",)),
    (
        "collection",
        "stable_baselines3.common.base_class",
        "BaseAlgorithm",
        ("collect_rollouts",),
    ),
    ("data loading", "torch.utils.data.dataloader", "_BaseDataLoaderIter", ("__next__",)),
    # In its worker processes, too.
    ("data loading", "torch.utils.data._utils.fetch", "_BaseDatasetFetcher", ("fetch",)),
    ("logging", "wandb.sdk.wandb_run", "Run", ("log",)),
)

EVALUATION = "evaluation"
# Where its function is: `callbacks` has it by name, perhaps from before the recording.
EVALUATIONS = tuple(f"stable_baselines3.common.{name}" for name in ("evaluation", "callbacks"))

# Classes whose objects step several envs, and say how many: for times per env step.
VECTOR_CLASSES = ("VectorEnv", "VecEnv", "EnvPoolMixin", "EnvBase")
# TorchRL imports Stable-Baselines3 where that is installed: what is imported last is what runs.
FRAMEWORKS = (
    ("stable_baselines3", "SB3"),
    ("cleanrl_utils", "CleanRL"),
    ("torchrl", "TorchRL"),
)

# Native entry points that neither a profile function nor a CALL event is sure to show.
SIMULATOR_METHODS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("ale_py._ale_py", "ALEInterface", ("act", "reset_game", "getScreenRGB", "getScreenGrayscale")),
    ("ale_py._ale_py", "ALEVectorInterface", ("send", "recv", "reset")),
)

# Of these, what is simulation also where no env class is around it.
ALE_METHODS = (
    ("ALEInterface", ("act", "reset_game")),
    ("ALEVectorInterface", ("send", "recv", "reset")),
)

# Tensor operators reach C through type slots, which no call event shows.
TENSOR_OPERATORS = tuple(
    f"__{name}__"
    for name in (
        *("add", "radd", "iadd", "sub", "isub", "mul", "rmul", "imul", "truediv", "itruediv"),
        *("matmul", "neg", "pos", "abs", "invert", "and", "or", "xor", "iand", "ior", "ixor"),
        *("mod", "lshift", "rshift", "lt", "le", "gt", "ge", "eq", "ne", "getitem", "setitem"),
        *("bool", "float", "int", "index"),
    )
)

Timed = Callable[[Any, str], Callable[..., Any]]  # of a method and its name

__all__ = ["Patches"]


class Patches:
    """What has been wrapped, and how to take it back.

    Args:
        hooks: runs the actions once the modules they concern are imported.
    """

    def __init__(self, hooks: PostImport) -> None:
        self._hooks = hooks
        self._undo: list[Callable[[], None]] = []
        self._done = False

    def undo(self) -> None:
        """Take everything back, latest first. Classes defined meanwhile are left alone."""
        self._done = True
        while self._undo:
            self._undo.pop()()

    def on_undo(self, action: Callable[[], None]) -> None:
        """Do this, too, when everything is taken back."""
        self._undo.append(action)

    def operations(self) -> None:
        """Mark simulation and backpropagation wherever they happen."""
        for module, name, methods in ENV_CLASSES:
            timed = in_turn if name == "AECEnv" else in_simulation
            self._hooks.add(module, self._family_action(name, methods, timed))
        for name, methods in ALE_METHODS:
            self._hooks.add("ale_py._ale_py", self._methods_action(name, methods, in_simulation))
        for operation, module, name, methods in FRAMEWORK_CLASSES:
            self._hooks.add(module, self._family_action(name, methods, _in_operation(operation)))
        for module in EVALUATIONS:
            self._hooks.add(module, self._mark_evaluation)
        for module, name in FRAMEWORKS:
            self._hooks.add(module, functools.partial(_note_framework, name))
        follow_classes(self._replace)
        self._mark_imports()
        self._hooks.add("asyncio.events", self._separate_tasks)
        self._hooks.add("torch.autograd", self._mark_backward)
        self._hooks.add("torch.optim.optimizer", self._mark_optimizers)

    def native_functions(self) -> None:
        """Time native functions that the boundary probe does not see."""
        for module, name, methods in SIMULATOR_METHODS:
            self._hooks.add(module, self._methods_action(name, methods))
        self._hooks.add("torch", self._time_tensor_operators)
        self._hooks.add("torch", self._time_releases)
        self._time_loading()
        self._time_locks()

    def watch(self, targets: Iterable[str]) -> None:
        """Count further functions as simulator.

        Args:
            targets: each `module:function` or `module:Class.method`, native or not.
        """
        for target in targets:
            module, _, name = target.partition(":")
            self._hooks.add(module, self._watch_action(target, name))

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        own: Mapping[str, Any] = owner.__dict__
        missing = name not in own
        before = own.get(name)
        setattr(owner, name, replacement)

        def take_back() -> None:
            if own.get(name) is not replacement:
                return  # somebody wrapped the wrapper: it stays, and does nothing
            if missing:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(take_back)

    def _watch_action(self, target: str, name: str) -> Callable[[types.ModuleType], None]:
        def wrap(module: types.ModuleType) -> None:
            owner: Any = module
            *path, last = name.split(".")
            try:
                for part in path:
                    owner = getattr(owner, part)
                function = vars(owner)[last] if isinstance(owner, type) else getattr(owner, last)
            except (AttributeError, KeyError):
                raise ProfileError(
                    f"--watch {target!r}: {module.__name__} has no {name!r}. "
                    "Check the spelling against the module"
                ) from None
            _require_a_call(target, function)
            number = _native.intern("call", name, levels.SIMULATOR, module.__name__)
            self._replace(owner, last, _as_bound(owner, function, number))
            known: list[str] = marks.known_metadata().get(layout.WATCHED) or []
            marks.metadata(**{layout.WATCHED: [*known, target]})

        return wrap

    def _methods_action(
        self, class_name: str, methods: tuple[str, ...], timed: Timed | None = None
    ) -> Callable[[types.ModuleType], None]:
        def wrap(module: types.ModuleType) -> None:
            owner = getattr(module, class_name, None)
            for method in methods if owner is not None else ():
                function = vars(owner).get(method)
                if not callable(function):
                    continue
                if timed is not None:
                    wrapper = timed(function, method)
                else:
                    name = f"{class_name}.{method}"
                    number = _native.intern("call", name, levels.SIMULATOR, module.__name__)
                    wrapper = _native.Wrapper(function, number, level=levels.SIMULATOR)
                self._replace(owner, method, wrapper)

        return wrap

    def _family_action(
        self, class_name: str, methods: tuple[str, ...], timed: Timed
    ) -> Callable[[types.ModuleType], None]:
        def follow(module: types.ModuleType) -> None:
            root: Any = getattr(module, class_name)
            for kind in _descendants(root):
                self._wrap_methods(kind, methods, timed)
            own: Any = root.__dict__.get("__init_subclass__")

            def init_subclass(cls: type, **kwargs: Any) -> None:
                if isinstance(own, classmethod):
                    cast(Any, own).__func__(cls, **kwargs)
                else:
                    super(root, cls).__init_subclass__(**kwargs)
                if not self._done:
                    self._wrap_methods(cls, methods, timed)

            self._replace(root, "__init_subclass__", classmethod(init_subclass))

        return follow

    def _wrap_methods(self, kind: type, methods: tuple[str, ...], timed: Timed) -> None:
        is_vector = any(base.__name__ in VECTOR_CLASSES for base in kind.__mro__)
        for method in methods:
            function: Any = without_look(vars(kind).get(method))
            if (
                function is None
                or isinstance(function, (staticmethod, classmethod, property, _native.Wrapper))
                or not callable(function)
                or not hasattr(type(function), "__get__")  # it is no method: it gets no self
                or getattr(function, "__isabstractmethod__", False)
            ):
                continue
            if method == "reset" and is_vector:
                function = _noting_envs(function)
            self._replace(kind, method, timed(function, method))

    def _separate_tasks(self, events: Any) -> None:
        self._replace(events.Handle, "_run", separating(events.Handle._run))

    def _mark_evaluation(self, module: types.ModuleType) -> None:
        """Env steps of an evaluation are none that the program learns from."""
        function = vars(module).get("evaluate_policy")
        # What imported it later has it timed already.
        if isinstance(function, types.FunctionType):
            number = _native.intern("operation", EVALUATION, module=layout.FRAMEWORK)
            wrapper = _native.Wrapper(function, number, operation=True)
            self._replace(module, "evaluate_policy", wrapper)

    def _mark_imports(self) -> None:
        """What is imported anew; modules that are there are found without this function."""
        number = _native.intern("operation", IMPORTS)
        bootstrap: Any = sys.modules["_frozen_importlib"]
        wrapper = _native.Wrapper(bootstrap._find_and_load, number, operation=True, is_long=True)
        self._replace(bootstrap, "_find_and_load", wrapper)

    def _mark_backward(self, autograd: types.ModuleType) -> None:
        number = _native.intern("operation", "backpropagation")
        for name in ("backward", "grad"):
            wrapper = _native.Wrapper(getattr(autograd, name), number, operation=True)
            self._replace(autograd, name, wrapper)

    def _mark_optimizers(self, module: types.ModuleType) -> None:
        number = _native.intern("operation", "backpropagation")
        torch = sys.modules["torch"]

        seen: set[int] = set()

        # torch.compile traces into these: to it they must be nothing at all.
        def before(optimizer: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
            if torch.compiler.is_compiling():
                return None
            if id(optimizer) not in seen:
                seen.add(id(optimizer))
                _note_optimizer(optimizer, torch)
            _native.begin(number)
            return args, _StepArguments(kwargs)

        def after(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
            if isinstance(kwargs, _StepArguments) and not torch.compiler.is_compiling():
                kwargs.end(number)

        handles = (
            module.register_optimizer_step_pre_hook(before),
            module.register_optimizer_step_post_hook(after),
        )
        for handle in handles:
            self._undo.append(handle.remove)

    def _time_tensor_operators(self, torch: types.ModuleType) -> None:
        tensor = getattr(torch, "Tensor", None)
        for name in TENSOR_OPERATORS if tensor is not None else ():
            function = getattr(tensor, name, None)
            # Else Python code, whose own calls are seen.
            if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
                number = _native.intern("call", f"Tensor.{name}", levels.BACKEND, "torch")
                wrapper = _native.Wrapper(function, number, level=levels.BACKEND)
                self._replace(tensor, name, wrapper)

    def _time_releases(self, torch: types.ModuleType) -> None:
        """Freeing a tensor, and the memory and graph that nothing else holds."""
        number = _native.intern("call", "Tensor (release)", levels.BACKEND, "torch")
        tensor = getattr(torch, "Tensor", None)
        for kind in tensor.__mro__ if tensor is not None else ():
            if kind is not object and _native.time_release(kind, number, levels.BACKEND):
                self._undo.append(functools.partial(_native.restore_release, kind))

    def _time_locks(self) -> None:
        """`with lock:` waits as `lock.acquire` does, and is not a call."""
        for kind in (_thread.LockType, _thread.RLock):
            name = f"{kind.__name__}.__enter__"
            number = _native.intern("call", name, levels.WAITING, "_thread")
            enter = _native.Wrapper(vars(kind)["__enter__"], number, level=levels.WAITING)
            before = _native.set_in_type(kind, "__enter__", enter)
            self._undo.append(functools.partial(_native.set_in_type, kind, "__enter__", before))

    def _time_loading(self) -> None:
        """Count the loading of a library, which runs its own code, to its level.

        Of an import of torch that is more than half a second.
        """
        loader = importlib.machinery.ExtensionFileLoader
        load: Callable[..., Any] = loader.create_module
        known = (
            (levels.BACKEND, levels.BACKEND_PACKAGES),
            (levels.SIMULATOR, levels.SIMULATOR_PACKAGES),
        )
        timed: dict[str, Callable[..., Any]] = {}
        for level, packages in known:
            # Sealed: the loader is Python code, but what takes time is inside the library.
            number = _native.intern("call", "load libraries", level, "importlib", sealed=True)
            wrapper = _native.Wrapper(load, number, level=level)
            timed |= dict.fromkeys(packages, wrapper)

        def create_module(self: Any, spec: importlib.machinery.ModuleSpec) -> Any:
            return timed.get(spec.name.partition(".")[0], load)(self, spec)

        self._replace(loader, "create_module", create_module)


def _in_operation(operation: str) -> Timed:
    """Times methods as this operation."""
    number = _native.intern("operation", operation)
    return lambda function, _: _native.Wrapper(function, number, operation=True)


def _note_framework(name: str, module: types.ModuleType) -> None:
    marks.metadata(framework=name)


def _note_optimizer(optimizer: Any, torch: Any) -> None:
    """Keep with the session how it steps, and on how many threads: advice needs to know."""
    groups: list[dict[str, Any]] = optimizer.param_groups
    kinds = [name for name in ("fused", "foreach") if any(group.get(name) for group in groups)]
    word = " ".join([type(optimizer).__name__, *kinds])
    known: list[str] = marks.known_metadata().get("optimizers") or []
    if word not in known:
        marks.metadata(optimizers=[*known, word], torch_threads=torch.get_num_threads())


def _noting_envs(reset: Any) -> Any:
    """The method, which also keeps with the session how many envs it resets."""

    @functools.wraps(reset)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        number = _envs_of(self)
        if number and marks.known_metadata().get("num_envs") is None:
            marks.metadata(num_envs=number)
        return reset(self, *args, **kwargs)

    return noting


def _envs_of(env: Any) -> int:
    """As the env says; TorchRL's has a batch size, which is empty for one env. 0: not known."""
    if "EnvBase" in (base.__name__ for base in type(env).__mro__):
        sizes: tuple[int, ...] = tuple(getattr(env, "batch_size", ()))
        return math.prod(sizes) if sizes else 0
    number = getattr(env, "num_envs", None)
    return number if isinstance(number, int) else 0


class _StepArguments(dict[str, Any]):
    """The arguments of a step under way, which nothing but its frame holds.

    No hook hears of a step that raises: its operation ends as they are dropped.
    """

    has_ended = False

    def end(self, number: int) -> None:
        if not self.has_ended:
            self.has_ended = True
            _native.end(number)

    def __del__(self) -> None:
        if not self.has_ended:
            self.end(_native.intern("operation", "backpropagation"))


def _descendants(root: type) -> list[type]:
    found: list[type] = []
    queue = [root]
    while queue:
        kind = queue.pop()
        if kind not in found:
            found.append(kind)
            queue.extend(kind.__subclasses__())
    return found


def _require_a_call(target: str, function: Any) -> None:
    """Refuse what does its work after it has returned: microseconds would be all that is seen."""
    bare: Any = getattr(function, "__func__", function)
    late = (
        inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction,
    )  # fmt: skip
    if any(kind(bare) for kind in late):
        raise ProfileError(
            f"--watch {target!r} is a generator or coroutine function: a call only makes what does "
            f"the work later. Write `with redline.profile.operation('simulation'):` around the "
            f"part of its body that is meant"
        )


def _as_bound(owner: Any, function: Any, number: int) -> Any:
    """A wrapper of a call that takes the instance, the class or neither, as the original does."""
    takes_none = isinstance(owner, type) and not hasattr(function.__class__, "__get__")
    wrapper: Any = _native.Wrapper(
        getattr(function, "__func__", function) if _is_bare(function) else function,
        number,
        level=levels.SIMULATOR,
    )
    if isinstance(function, classmethod):
        return classmethod(wrapper)
    return staticmethod(wrapper) if takes_none or isinstance(function, staticmethod) else wrapper


def _is_bare(function: Any) -> bool:
    """Whether it is a function with its kind of binding around it, as in a class's dict."""
    return isinstance(function, (staticmethod, classmethod))

"""Steps through torch.compile.

What is compiled is the step that one reads, gradients included: torch 2.13 and later trace
`backward` into the graph, earlier releases break the graph there. On the CPU the code that launches
the kernels is C++, too, which spares some microseconds of Python per kernel.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.torch_version import TorchVersion

from redline.engines.cudagraph import describe


class CompiledStep:
    """A step through torch.compile, which counts what that cost.

    Args:
        step: what to compile.
        device: where it runs.
        backend: of torch.compile.

    Attributes:
        compile_s: seconds of the calls in which something was compiled.
        graphs: graphs compiled so far.
        graph_breaks: places where compilation gave way to Python.
        recompilations: times that inputs of shapes and flags seen before were compiled again.
    """

    def __init__(
        self, step: Callable[..., Any], device: torch.device, backend: str = "inductor"
    ) -> None:
        import torch._dynamo.config as tracing
        import torch._inductor.config as inductor
        from torch._dynamo.utils import counters

        # The compiler's pool of processes takes longer to start than one step to compile, and
        # on a busy machine has been seen to wait for ever.
        inductor.compile_threads = 1
        if hasattr(tracing, "trace_autograd_ops"):
            tracing.trace_autograd_ops = True
        keep_compiled_code()
        # Random numbers as eager mode draws them, so that the self-check compares like with like.
        options: dict[str, Any] = {"fallback_random": True, "cpp_wrapper": device.type == "cpu"}
        if TorchVersion(torch.__version__) < "2.13":
            # On a GPU its compiler looks for loops to reorder among fused foreach kernels, and
            # fails an assertion there (github.com/pytorch/pytorch/issues/176591): PPO's step met
            # it. Loops are not merged either, then.
            options["loop_ordering_after_fusion"] = False
        self._counters = counters
        self._step = torch.compile(
            step,
            dynamic=False,
            backend=backend,
            options=options if backend == "inductor" else None,
        )
        self.compile_s, self.graphs, self.graph_breaks, self.recompilations = 0.0, 0, 0, 0
        self._seen: set[Any] = set()

    def __call__(self, *inputs: Any) -> Any:
        """Run, compiling first where these shapes and flags are new."""
        graphs = self._counters["stats"]["unique_graphs"]
        breaks = self._counters["graph_break"].total()
        begin = time.perf_counter()
        result = self._step(*inputs)
        compiled = self._counters["stats"]["unique_graphs"] - graphs
        if compiled:
            self.compile_s += time.perf_counter() - begin
            self.graphs += compiled
            self.graph_breaks += self._counters["graph_break"].total() - breaks
            key = describe(inputs, [])
            self.recompilations += key in self._seen
            self._seen.add(key)
        return result

    def __str__(self) -> str:
        return (
            f"compiled {self.graphs} graphs in {self.compile_s:.1f} s, "
            f"{self.graph_breaks} graph breaks, {self.recompilations} recompilations"
        )


def untraced_hook(algorithm: Any) -> str | None:
    """A hook on gradients that a compiled step would leave out or fail on; None if there is none.

    Args:
        algorithm: what learns; its networks are looked at.
    """
    networks = {k: v for k, v in vars(algorithm).items() if isinstance(v, torch.nn.Module)}
    for name, network in networks.items():
        for path, module in network.named_modules(prefix=name):
            if module._backward_hooks or module._backward_pre_hooks:
                return f"{path} has a backward hook"
        for path, parameter in network.named_parameters(prefix=name):
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                return f"{path} has a gradient hook"
    return None


def keep_compiled_code() -> None:
    """Let compiled code outlive a restart of the machine, for the next run to start quickly.

    TORCHINDUCTOR_CACHE_DIR, where it is set, says where; else it is the user's cache directory,
    or where that cannot be written the temporary one that the compiler takes by itself.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:
        return
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(base) / "redline" / "compiled"
    if not directory.is_absolute():  # a user without a home
        return
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(directory)

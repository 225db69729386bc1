"""Programs that use the real torch and Gymnasium; skipped where they are not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from redline.profile import _native, levels
from redline.profile.analyse.shares import read_sampled
from redline.profile.analyse.summary import Summary, summarize
from redline.profile.reader import open_session

pytestmark = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("gymnasium") is None,
    reason="torch and gymnasium are not installed in this environment",
)

PROGRAM = """
import gymnasium, torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters())
env = gymnasium.make("CartPole-v1")
obs, _ = env.reset(seed=0)
for _ in range(50):
    with torch.no_grad():
        action = int(net(torch.as_tensor(obs)).argmax())
    obs, _, terminated, truncated, _ = env.step(action)
    if terminated or truncated:
        obs, _ = env.reset()
    loss = (net(torch.randn(16, 4)) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
x = torch.randn(8)
for _ in range(100):
    y = x + x * 2 - x[0]
    y += 1
    z = -x
"""


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """One run, looked at by several tests; without the stub modules on the path."""
    from tests.profile.conftest import Profiled

    directory = tmp_path_factory.mktemp("real")
    profiled = Profiled(directory, directory)
    profiled.run(PROGRAM, calibrate=False)
    return summarize(profiled.session)


def calls(summary: Summary, function: str) -> int:
    return sum(row.calls for row in summary.functions if row.function == function)


def test_operations_are_known_without_marks(summary: Summary) -> None:
    operations = {cell.operation for cell in summary.cells}
    assert {"simulation", "inference", "backpropagation", "other"} <= operations


def test_inference_is_grad_free_module_calls_only(summary: Summary) -> None:
    """100 forward passes of three layers, half of them with gradients: those are `other`."""
    levels = {(c.operation, c.level): c.raw_s for c in summary.cells}
    assert calls(summary, "torch._C._nn.linear") == 200
    assert levels["inference", "backend"] > 0
    assert levels["other", "backend"] > 0


def test_backward_is_seen_from_its_caller(summary: Summary) -> None:
    assert calls(summary, "torch._C._EngineBase.run_backward") == 50
    assert any(c.operation == "backpropagation" and c.level == "backend" for c in summary.cells)


def test_tensor_operators_are_seen(summary: Summary) -> None:
    """Fault 37: wrapping module attributes sees none of the tensor operators."""
    for operator, least in (
        ("add", 100),
        ("mul", 100),
        ("sub", 150),
        ("iadd", 100),
        ("neg", 100),  # a method of another name in the class
    ):
        assert calls(summary, f"torch.Tensor.__{operator}__") >= least
    assert calls(summary, "torch.Tensor.__getitem__") >= 100


def test_releases_of_tensors_are_seen(summary: Summary) -> None:
    """Of each `y = x + x * 2 - x[0]` four: three intermediate results and the y before."""
    assert calls(summary, "torch.Tensor (release)") >= 4 * 99


def test_a_step_that_raises_ends(tmp_path: Any) -> None:
    """Torch calls no hook then; what follows is no longer backpropagation."""
    from tests.profile.conftest import Profiled

    profiled = Profiled(tmp_path, tmp_path)
    profiled.run(
        """
import time, torch
optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
def closure():
    raise ValueError
for _ in range(2):
    try:
        optimizer.step(closure)
    except ValueError:
        pass
optimizer.step()
time.sleep(0.3)
""",
        calibrate=False,
        check=False,  # torch warns of its own profiler's marks in optimizers
    )
    cells = summarize(profiled.session).cells
    assert sum(c.raw_s for c in cells if (c.operation, c.level) == ("other", "waiting")) >= 0.3
    assert any(cell.operation == "backpropagation" for cell in cells)


def test_tensor_subclasses_find_what_they_handle(tmp_path: Any) -> None:
    """Torch names functions by their originals, the program by what stands in their place."""
    from tests.profile.conftest import Profiled

    done = Profiled(tmp_path, tmp_path).run(
        """
import torch
class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return handled[func]
handled = {torch.Tensor.__getitem__: "got", torch.Tensor.__and__: "both"}
own = torch.ones(2, dtype=torch.int).as_subclass(Own)
print(own[0], own & 1)
"""
    )
    assert done.stdout == "got both\n"


def test_the_program_is_left_as_it_was(tmp_path: Any) -> None:
    """After a session in code no class, module or hook keeps a trace of it."""
    import gymnasium
    import torch

    from redline import profile

    optimizers: Any = sys.modules["torch.optim.optimizer"]
    before = (
        dict(vars(gymnasium.Env)),
        dict(vars(torch.Tensor)),
        torch.autograd.backward,
        dict(optimizers._global_optimizer_pre_hooks),
    )
    with profile.session(tmp_path / "s", calibrate=False):
        assert dict(vars(torch.Tensor)) != before[1]
    assert dict(vars(gymnasium.Env)) == before[0]
    assert dict(vars(torch.Tensor)) == before[1]
    base = torch._C.TensorBase
    assert _native.time_release(base, _native.intern("call", "x", levels.BACKEND), levels.BACKEND)
    _native.restore_release(base)
    assert torch.autograd.backward is before[2]
    assert dict(optimizers._global_optimizer_pre_hooks) == before[3]


def test_profiling_changes_no_graph_that_torch_compile_makes(tmp_path: Any) -> None:
    """Wrapped operators, hooks and module calls must not break a graph, nor be traced into it."""
    from tests.profile.conftest import Profiled

    done = Profiled(tmp_path, tmp_path).run(
        """
import pathlib, torch, warnings
import redline.profile
warnings.simplefilter("ignore")
own = str(pathlib.Path(redline.profile.__file__).parent)  # in the stack of what was traced there
def shows_the_profiler(graph):
    stacks = [str(node.stack_trace) for node in graph.graph.nodes]
    return any(own in stack for stack in stacks) or "redline" in graph.code
graphs = []
def backend(module, inputs):
    graphs.append(module)
    return module.forward
net = torch.nn.Linear(4, 2)
@torch.compile(backend=backend, fullgraph=True)
def infer(x):
    with torch.no_grad():
        return (net(x) + x[:, :2] * 2 - 1 > 0).float().sum()
for _ in range(3):
    infer(torch.randn(8, 4))
assert len(graphs) == 1
assert not shows_the_profiler(graphs[0])
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
@torch.compile(backend=backend)
def step():
    optimizer.step()
net(torch.randn(8, 4)).sum().backward()
step()
assert not shows_the_profiler(graphs[-1])
""",
        check=False,  # torch warns of its own profiler's marks in optimizers
    )
    assert done.returncode == 0, done.stderr


def test_loading_a_library_counts_to_its_level(summary: Summary) -> None:
    """Most of `import torch` is not Python; the sampler and the recorder agree on that."""
    rows = [row for row in summary.functions if row.function == "importlib.load libraries"]
    assert {row.level for row in rows} == {"backend"}
    assert sum(row.total_s for row in rows) > 0.02
    # Other programs may have had the cores meanwhile.
    spent = sum(cell.raw_s for cell in summary.cells if cell.level in ("backend", "ready"))
    assert spent >= sum(row.total_s for row in rows)


MATRICES = """
import time, torch
torch.set_num_threads(1)
a, b = torch.randn(512, 512), torch.randn(512, 512)
until = time.perf_counter() + 0.8
while time.perf_counter() < until:
    torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
"""


def test_code_made_at_run_time_is_sampled_as_its_library(tmp_path: Path) -> None:
    """OneDNN's kernels cannot be unwound; as what runs in no library they counted to Python."""
    import torch

    from tests.profile.conftest import Profiled

    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    profiled = Profiled(tmp_path, tmp_path)
    profiled.run(MATRICES, mode="sample", sample_hz=250.0)
    samples = read_sampled(open_session(profiled.session).processes[0])
    assert samples is not None
    last = samples.times_ns > samples.times_ns[-1] - 600_000_000
    backend = samples.levels[last] == levels.BACKEND
    assert last.sum() > 5
    assert backend.mean() > 0.9

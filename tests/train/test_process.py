"""What a run changes about its process, and that nothing else does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from redline import kept_memory
from redline.algos.ppo import PPOConfig
from redline.kept_memory import keep_freed_memory
from redline.train.settings import RunConfig, RunSettings

CHOICES_OF_THE_USER = (
    "GOMP_SPINCOUNT",
    "OMP_WAIT_POLICY",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_MMAP_THRESHOLD_",
    "GLIBC_TUNABLES",
    "OPENBLAS_NUM_THREADS",
)
is_glibc = sys.platform == "linux" and "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")


def run_python(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, none of whose environment is chosen but what is given here."""
    inherited = {name: v for name, v in os.environ.items() if name not in CHOICES_OF_THE_USER}
    done = subprocess.run(
        [sys.executable, *command], env=inherited | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done


# -- imports ------------------------------------------------------------------------------

# What Gymnasium, torch's compiler and threadpoolctl set when they are imported.
BY_OTHERS = ("PYGAME_HIDE_SUPPORT_PROMPT", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK")
ENVIRONMENT = f"""
import os

def environment():
    return {{name: value for name, value in os.environ.items() if name not in {BY_OTHERS!r}}}
"""
STATE = f"""{ENVIRONMENT}
import json, threading
import numpy, torch
from threadpoolctl import threadpool_info

def state():
    return json.dumps({{
        "environment": environment(),
        "torch threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "library threads": sorted((i["filepath"], i["num_threads"]) for i in threadpool_info()),
        "threads": threading.active_count(),
        "scheduler": os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else 0,
        "cores": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
        "niceness": os.nice(0),
    }})

before = state()
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import redline; redline.train",
        "import redline.train",
        "import redline.cli, redline.train.runs.start, redline.train.process",
    ],
)
def test_an_import_changes_nothing(imports: str) -> None:
    """Neither variables nor threads nor scheduling, whether torch was loaded first or not."""
    after_torch = f"{STATE}\n{imports}\nassert state() == before"
    run_python("-c", after_torch)
    without_torch = (
        f"{ENVIRONMENT}\nbefore = environment()\n{imports}\nassert environment() == before"
    )
    run_python("-c", without_torch)


# -- idle threads -------------------------------------------------------------------------

SHOW = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


def spin_count(program: str, **environment: str) -> str:
    """`GOMP_SPINCOUNT` after a program whose `run()` asks for a run, one that is refused."""
    call = f"""
import contextlib
import redline, redline.errors

def run(**settings):
    with contextlib.suppress(redline.errors.ConfigError):
        redline.train('ppo', env='CartPole-v1', seed=-1, **settings)

{program}
{SHOW}
"""
    return run_python("-c", call, **environment).stdout.strip()


@pytest.mark.parametrize(
    ("program", "environment", "count"),
    [
        ("run()", {}, "10000"),
        ("run(tune_process=False)", {}, "None"),
        ("run()", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("run()", {"OMP_WAIT_POLICY": "active"}, "None"),
        ("import torch; run()", {}, "None"),  # too late: the library has read it
        ("import redline.profile", {}, "None"),
    ],
)
def test_idle_threads_sleep_sooner_in_a_run(
    program: str, environment: dict[str, str], count: str
) -> None:
    assert spin_count(program, **environment) == count


@pytest.mark.parametrize("tuned", [True, False])
def test_a_resumed_run_does_as_its_settings_say(tmp_path: Path, tuned: bool) -> None:
    settings = RunSettings(env="CartPole-v1", tune_process=tuned)
    config = RunConfig(algorithm="ppo", run=settings, algo=PPOConfig())
    (tmp_path / "config.json").write_text(json.dumps(config.to_json()))
    program = f"from redline.train.process import before_torch_loads as go; go({str(tmp_path)!r})"
    assert spin_count(program) == ("10000" if tuned else "None")


@pytest.mark.parametrize(
    ("text", "call", "count"),
    [
        ("tune_process: false", "run(config='f.yaml')", "None"),
        ("run: {tune_process: false}", "run(config='f.yaml')", "None"),
        ("tune_process: false", "run(config='f.yaml', tune_process=True)", "10000"),
        ("seed: 2", "run(config='f.yaml')", "10000"),
        ("", "run(config={'tune_process': False})", "None"),
        ("tune_process: false", "main(['train', '--config', 'f.yaml', '--seed', '-1'])", "None"),
        ("seed: -1", "main(['train', '--config', 'f.yaml'])", "10000"),
    ],
)
def test_a_run_does_as_its_file_says(tmp_path: Path, text: str, call: str, count: str) -> None:
    """Each is refused for its seed, or for lack of an algorithm, after the file was read."""
    (tmp_path / "f.yaml").write_text(text)
    program = f"import os\nfrom redline.cli import main\nos.chdir({str(tmp_path)!r})\n{call}"
    assert spin_count(program) == count


@pytest.mark.parametrize("option", ["--tune-process", "--no-tune-process"])
def test_torch_reads_it_on_the_way_to_training(option: str) -> None:
    """On the command line's way nothing loads torch before it is told."""
    program = "import sys; from redline.cli import main; assert main(sys.argv[1:]) == 2"
    command = ("train", "ppo", "--env", "NoSuchEnv-v0", option)
    done = run_python("-c", program, *command, OMP_DISPLAY_ENV="verbose")
    counts = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not counts:
        pytest.skip("torch has no threads of GNU's OpenMP here")
    assert all(("'10000'" in line) == (option == "--tune-process") for line in counts)


def test_profiled_programs_are_left_as_they_are(tmp_path: Path) -> None:
    """What is measured must not run otherwise for being measured."""
    found, session = tmp_path / "found", tmp_path / "session"
    program = f"import os; open({str(found)!r}, 'w').write(str(os.environ.get('GOMP_SPINCOUNT')))"
    command = ("-m", "redline", "profile", "--out", str(session), "--")
    run_python(*command, sys.executable, "-c", program)
    assert found.read_text() == "None"


# -- freed memory -------------------------------------------------------------------------

FAULTS = """
import resource, sys
import numpy as np
from redline.kept_memory import keep_freed_memory

kept = sys.argv[1] == "keep" and keep_freed_memory()

def use():
    blocks = [np.ones(20 * 2**20, np.uint8) for _ in range(4)]
    return sum(int(block[0]) for block in blocks)

use()
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(what: str, **environment: str) -> tuple[int, int]:
    """Whether memory is kept, and the page faults of 5 times 80 MiB."""
    kept, faults = run_python("-c", FAULTS, what, **environment).stdout.split()
    return int(kept), int(faults)


@pytest.mark.skipif(not is_glibc, reason="needs glibc")
def test_kept_memory_is_not_mapped_anew() -> None:
    """80 MiB are 20,480 pages of 4 KiB, 40 of 2 MiB: at the least 5 x 40 faults if mapped anew."""
    kept, faults = page_faults("keep")
    assert kept == 1
    assert faults < 100
    kept, faults = page_faults("leave")
    assert kept == 0
    assert faults >= 200


@pytest.mark.skipif(not is_glibc, reason="needs glibc")
@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
)
def test_memory_settings_of_the_user_hold(environment: dict[str, str]) -> None:
    kept, faults = page_faults("keep", **environment)
    assert kept == 0
    assert faults >= 200


@pytest.mark.skipif(not is_glibc, reason="needs glibc")
def test_a_threshold_that_is_refused_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """To set the other one alone would make every block of 128 KiB and more slower."""
    asked: list[int] = []

    class Refusing:
        def mallopt(self, parameter: int, _value: int) -> int:
            asked.append(parameter)
            return 0

    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(kept_memory, "_c_library", Refusing)
    assert not keep_freed_memory()
    assert asked == [-3]


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown, raising=False)
    assert not keep_freed_memory()


# -- numpy's threads ----------------------------------------------------------------------

NUMPY_THREADS = """
import json, sys
import numpy, torch
from threadpoolctl import threadpool_info
from redline.train.process import tune_process
from redline.train.settings import RunSettings

torch.set_num_threads(2)
tune_process(RunSettings(tune_process=sys.argv[1] == "tune"))
print(json.dumps([i["num_threads"] for i in threadpool_info() if i["internal_api"] == "openblas"]))
assert torch.get_num_threads() == 2
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_numpy_gets_one_thread() -> None:
    """With as many as torch has, the two kept each other from working."""

    def threads(what: str, **environment: str) -> set[int]:
        return set(json.loads(run_python("-c", NUMPY_THREADS, what, **environment).stdout))

    if not (left := threads("leave")):
        pytest.skip("numpy has no OpenBLAS here")
    assert 1 not in left
    assert threads("tune") == {1}
    assert threads("tune", OPENBLAS_NUM_THREADS="2") == {2}

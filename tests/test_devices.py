"""Which device a setting stands for, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from redline.devices import (
    choose_device,
    global_rng_states,
    kind_of,
    require_device,
    widest_float,
)
from redline.errors import DeviceError

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def test_names_that_are_no_devices_are_refused() -> None:
    for asked in ("gpu", "cuda:", "cuda:x", "CPU", ""):
        with pytest.raises(DeviceError, match=r"is no device\. Use auto, cpu, cuda, cuda:N or mps"):
            require_device(asked, "eval_device")


def test_the_cpu_has_no_number() -> None:
    with pytest.raises(DeviceError, match=r"'cpu:1': the CPU has no number\. Use --eval-dev"):
        require_device("cpu:1", "eval_device")
    with pytest.raises(DeviceError, match="Use --set device=cpu"):
        require_device("cpu:0", "device", resumed=True)


def test_the_cpu_and_auto_are_always_there() -> None:
    require_device("cpu", "device")
    require_device("auto", "device")


@no_cuda
@pytest.mark.parametrize("asked", ["cuda", "cuda:1"])
def test_a_missing_device_is_named_with_the_reason_and_the_fix(asked: str) -> None:
    with pytest.raises(DeviceError, match=rf"eval_device='{asked}' was asked for.*no CUDA device"):
        require_device(asked, "eval_device")
    with pytest.raises(DeviceError, match="Use --eval-device cpu, or install a CUDA build"):
        require_device(asked, "eval_device")


@no_cuda
def test_a_resumed_run_is_told_how_to_go_on_elsewhere() -> None:
    """Options of a new run are none beside `--resume`."""
    with pytest.raises(DeviceError, match="Use --set eval_device=cpu, or install a CUDA build"):
        require_device("cuda", "eval_device", resumed=True)


def test_states_of_devices_that_this_machine_has_not_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run of a machine with four GPUs could not be resumed on one with two."""
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda s, i: taken.append((i, int(s[0]))))
    kind_of("cuda").set_rng_states([torch.tensor([n], dtype=torch.uint8) for n in (5, 6, 7, 8)])
    assert taken == [(0, 5), (1, 6)]


@no_cuda
def test_auto_explains_itself() -> None:
    chosen, reason = choose_device("auto")
    assert chosen == "cpu"
    assert reason.startswith("no CUDA device can be used: ")
    assert choose_device("cuda:1") == ("cuda:1", "as asked for")


def test_a_number_beyond_the_devices_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    require_device("cuda:1", "device")
    with pytest.raises(DeviceError, match=r"there are 2, numbered from 0"):
        require_device("cuda:2", "device")


def test_auto_takes_the_first_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Some GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3 * 2**30, 4 * 2**30))
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
    assert choose_device("auto") == ("cuda:0", "Some GPU, 3 GiB free")


def test_what_the_cpu_can_do() -> None:
    cpu = kind_of("cpu")
    assert not cpu.captures
    assert not cpu.pins
    assert cpu.has_float64
    assert not kind_of("mps").has_float64
    assert (widest_float("cpu"), widest_float("mps")) == (torch.float64, torch.float32)
    assert kind_of("cuda:3").captures
    with pytest.raises(DeviceError, match="cpu runs no captured graphs"):
        cpu.graphs(torch.device("cpu"))


@no_cuda
def test_without_devices_there_are_no_generators_to_save() -> None:
    assert global_rng_states() == {}


def test_a_cuda_device_that_another_process_holds_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is there, and everything that is asked of it fails: `auto` ended in a traceback."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nCUDA kernel errors ...")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", fail)
    monkeypatch.setattr(torch, "zeros", fail)
    reason = "CUDA error: all CUDA-capable devices are busy"
    assert choose_device("auto") == ("cpu", f"no CUDA device can be used: {reason}")
    require_device("cuda", "device")  # of a sweep, whose own process is not to start it
    with pytest.raises(DeviceError, match=rf"\({reason}\)\. Use --device cpu, or free it"):
        require_device("cuda", "device", tried=True)


def test_generators_of_cuda_that_was_never_used_are_not_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a child that was forked off a process with CUDA, the first checkpoint ended the run."""

    def fail() -> Any:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", fail)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert kind_of("cuda").rng_states() == []
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [torch.ones(2)])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert kind_of("cuda").rng_states()[0].tolist() == [1.0, 1.0]

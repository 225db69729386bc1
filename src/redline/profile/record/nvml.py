"""NVIDIA's management library through ctypes: what a monitor shows of the GPUs.

Loaded only where the driver has it; nothing is linked or installed. Its "utilization" is the share
of a past period in which any kernel ran at all, which is not how busy the device was.
"""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
CLOCK_SM, CLOCK_MEMORY = 1, 2

__all__ = ["Nvml", "NvmlMissingError"]


class NvmlMissingError(Exception):
    """There is no NVML, or it does not work; says why."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


class Nvml:
    """The devices of this machine.

    Args:
        library: stands in for the driver's library, in tests.

    Raises:
        NvmlMissingError: if there is no library, driver or device.
    """

    def __init__(self, library: Any = None) -> None:
        try:
            self._library = library or ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise NvmlMissingError(f"no NVIDIA driver: {error}") from error
        status = self._library.nvmlInit_v2()
        if status:
            raise NvmlMissingError(f"NVML does not start: error {status}")
        count = ctypes.c_uint()
        status = self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        if status or count.value == 0:
            self.close()
            raise NvmlMissingError(f"NVML sees no device (error {status})")
        self._devices = [self._device(number) for number in range(count.value)]

    def _device(self, number: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        status = self._library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
        if status:
            raise NvmlMissingError(f"NVML does not give device {number}: error {status}")
        return handle

    def names(self) -> list[str]:
        """Of the devices, in NVML's order, which `CUDA_VISIBLE_DEVICES` does not change."""
        found: list[str] = []
        for device in self._devices:
            text = ctypes.create_string_buffer(96)
            self._library.nvmlDeviceGetName(device, text, len(text))
            found.append(text.value.decode(errors="replace"))
        return found

    def read(self) -> list[dict[str, float | None]]:
        """One reading per device; None for what it does not tell."""
        return [self._read(device) for device in self._devices]

    def _read(self, device: ctypes.c_void_p) -> dict[str, float | None]:
        utilization, memory = _Utilization(), _Memory()
        got = self._library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(utilization)) == 0
        has = self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)) == 0
        power_mw = self._number("nvmlDeviceGetPowerUsage", device)
        return {
            "utilization": utilization.gpu / 100 if got else None,
            "memory_utilization": utilization.memory / 100 if got else None,
            "memory_used_bytes": memory.used if has else None,
            "memory_total_bytes": memory.total if has else None,
            "sm_clock_mhz": self._number("nvmlDeviceGetClockInfo", device, CLOCK_SM),
            "memory_clock_mhz": self._number("nvmlDeviceGetClockInfo", device, CLOCK_MEMORY),
            "power_w": None if power_mw is None else power_mw / 1000,
        }

    def _number(self, function: str, *arguments: Any) -> int | None:
        value = ctypes.c_uint()
        status = getattr(self._library, function)(*arguments, ctypes.byref(value))
        return None if status else value.value

    def close(self) -> None:
        """Give the library back."""
        self._library.nvmlShutdown()

"""The connection to a Ray cluster: one that exists, or one that is started here."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

from redline.errors import ClusterError, ConfigError, MissingExtraError

_PORT_S, _ANSWER_S, _CONNECT_S = 2.0, 3.0, 60.0
# How a client begins HTTP/2, on which gRPC and so Ray rests, and the type of the frame that every
# server answers with: RFC 9113, sections 3.4 and 6.5.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4
_LEAST_STORE_BYTES = 80 * 2**20  # Ray refuses less than 75 MiB


def connected_ray(
    purpose: str, *, address: str | None = None, num_cpus: int = 1, store_bytes: int = 0
) -> Any:
    """The package `ray`, connected to a cluster.

    A process has one cluster: where Ray is connected already, that is it.

    Args:
        purpose: what Ray is needed for, for messages.
        address: of the cluster, host:port, or "auto" for the one on this machine; None:
            `RAY_ADDRESS`, else a cluster that is started here and ends with this process.
        num_cpus: of a cluster that is started here.
        store_bytes: its object store, if that is more than the least that Ray takes. Its memory
            lies in /dev/shm, which containers keep small.

    Raises:
        MissingExtraError: without Ray.
        ClusterError: if the cluster cannot be reached: within 5 seconds, or a minute if something
            answers there and lets nobody in.
        ConfigError: if the address is none.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingExtraError("ray", "ray", purpose) from error
    if ray.is_initialized():
        return ray
    address = _address(address)
    with _own_signals():
        if address == "local":
            _start_here(ray, num_cpus, max(_LEAST_STORE_BYTES, store_bytes))
        else:
            if address != "auto":
                _check_port(address)
            _connect(ray, address)
    return ray


def starts_here(address: str | None) -> bool:
    """Whether `connected_ray` would start a cluster of this process's own, which nobody joins."""
    ray = sys.modules.get("ray")
    return not (ray is not None and ray.is_initialized()) and _address(address) == "local"


def _address(address: str | None) -> str:
    return address or os.environ.get("RAY_ADDRESS") or "local"


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Leave SIGTERM to the caller: Ray would end the process, without a checkpoint."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _start_here(ray: Any, num_cpus: int, store_bytes: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would look for a network
    # Ray makes its workers 15 nicer than the learner: beside any other program they hardly run.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        ray.init(
            address="local",
            num_cpus=num_cpus,
            object_store_memory=store_bytes,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"no Ray cluster could be started on this machine ({_first_line(error)}). Its logs are "
            f"in /tmp/ray/session_latest/logs; a cluster that exists is used with RAY_ADDRESS."
        ) from error


def _connect(ray: Any, address: str) -> None:
    """Connect beside a clock: Ray itself tries for minutes."""
    failure: list[BaseException] = []

    def connect() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except BaseException as error:  # noqa: BLE001 (raised again below)
            failure.append(error)

    thread = threading.Thread(target=connect, name="ray-connect", daemon=True)
    thread.start()
    thread.join(_CONNECT_S)
    if thread.is_alive():
        raise ClusterError(
            f"the Ray cluster at {address} did not let this process in within {_CONNECT_S:g} s. "
            f"Look with `ray status --address {address}`."
        )
    if failure:
        raise ClusterError(
            f"the Ray cluster at {address} cannot be used ({_first_line(failure[0])}). Check `ray "
            f"status` there, and that both sides have the same version of Ray and Python."
        ) from failure[0]


def _check_port(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"address={address!r} must be host:port of a Ray cluster, or auto.")
    try:
        with contextlib.closing(socket.create_connection((host, int(port)), _PORT_S)) as connection:
            speaks = bool(os.environ.get("RAY_USE_TLS")) or _speaks_http2(connection)
    except OSError as error:
        raise ClusterError(
            f"there is no Ray cluster at {address} ({error}). Start one with `ray start --head "
            f"--port {port}` on {host}, or leave the address out for one on this machine."
        ) from error
    if not speaks:
        raise ClusterError(
            f"what listens at {address} is no Ray cluster: it does not answer as one within "
            f"{_ANSWER_S:g} s. Give the address that `ray start --head` has printed."
        )


def _speaks_http2(connection: socket.socket) -> bool:
    """Whether the other side answers as every gRPC server does.

    Ray itself would wait for minutes for what is none; and how long it takes to connect to one
    that is says more about a busy machine.
    """
    connection.settimeout(_ANSWER_S)
    try:
        connection.sendall(_PREFACE)
        head = b""
        while len(head) < 4:  # length of the frame in three bytes, then its type
            part = connection.recv(4 - len(head))
            if not part:
                return False
            head += part
    except OSError:  # silence, or it has hung up
        return False
    return head[3] == _SETTINGS


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

"""A Ray session: processes of this machine for as long as a command runs, or an existing cluster.

On this machine Ray is closed to other users: it listens on the loopback interface alone, requires a random token of the
session, and keeps its files in a private folder. No dashboard, no usage statistics.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slicepilot.configs import ConfigError, FailureError, outside

EXTRA = "slicepilot[train,ray]"
# A socket's path has 107 characters (unix(7), sun_path); Ray adds /session_DATE_TIME_PID/sockets/plasma_store.
SOCKET_PATH, RAYS_PART = 107, 70
OBJECT_STORE_BYTES = 256 * 2**20
CONNECT_S = 5
ENDING_S = 5.0
LOOPBACK = ("127.0.0.1", "::1")
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
FOR_ALL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # names of files in configurations count from the command's folder
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the command
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # Ray's remarks about workers go to standard output, where JSON belongs
    "RAY_AIR_NEW_OUTPUT": "0",  # the newer output is never silent
}
FOR_THIS_MACHINE = {
    # Despite its name this decides, on Linux too, whether Ray's servers listen beyond the loopback interface.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_enable_open_telemetry": "0",
    "RAY_DISABLE_DASHBOARD_LOG_INFO": "1",
}


def usable_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def need_ray(command: str) -> None:
    """Raises ConfigError where Ray is not installed."""
    import importlib.util

    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"{command} needs the package ray: install {EXTRA}")


@contextmanager
def ray_session(
    address: str | None, cpus: int | None = None, threads: int = 1, environment: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """The module ``ray``, connected; processes that were started for it end with the session.

    Args:
        address: of a cluster's head, ``HOST:PORT``, or ``auto`` for the cluster that this machine belongs to; None
            starts processes on this machine. The cluster's own environment says whether it requires a token.
        cpus: CPUs that Ray may use on this machine, by default those of this process. A cluster knows its own.
        threads: CPU threads of each worker's libraries.
        environment: further variables of the workers.

    Raises:
        ConfigError: Ray is not installed, or no cluster answers.
        FailureError: Ray does not start.
    """
    need_ray("ray" if address is None else "address")
    if address is not None and (address == "local" or "://" in address):
        raise ConfigError(
            f"address = {address!r}: expected HOST:PORT of a cluster's head, or auto, on one of its nodes"
        )
    if address is not None and address != "auto":
        _knock(address)
    outside.will_make("ray")
    workers = {**dict.fromkeys(ONE_THREAD, str(threads)), **(environment or {})}
    if address is not None:
        with (
            _environment(FOR_ALL),
            _connected(address=address, runtime_env={"env_vars": {**FOR_ALL, **workers}}) as ray,
        ):
            yield ray
        return
    private = _private_folder()
    try:
        # Workers inherit the environment; a runtime environment would cost each an agent's help.
        token = {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with _environment({**FOR_ALL, **FOR_THIS_MACHINE, **token, **workers}):
            # Ray makes its own folder world-accessible, so the enclosing folder is private.
            settings: dict[str, Any] = {"_temp_dir": str(private / "r"), "object_store_memory": OBJECT_STORE_BYTES}
            settings |= {"num_cpus": cpus or usable_cpus(), "num_gpus": 0, "include_dashboard": False}
            with _connected(address="local", **settings) as ray:
                # Ray reads the variable while it is imported, which may have happened before.
                if (listens_at := ray.util.get_node_ip_address()) not in LOOPBACK:
                    raise FailureError(f"ray: listens at {listens_at}: expected the loopback interface alone")
                yield ray
    finally:
        _remove(private)


def _knock(address: str) -> None:
    """Raises ConfigError if no process listens; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from error


def _unreachable(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"address = {address!r}: {why}; expected HOST:PORT of a cluster's head, or auto, on one of its nodes; without "
        "it, this machine alone"
    )


@contextmanager
def _connected(**settings: Any) -> Iterator[Any]:
    import ray

    # What goes wrong in a worker comes back as its error.
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    address = settings["address"]
    try:
        with _signals_kept():
            ray.init(**settings, log_to_driver=False, logging_level=logging.ERROR, configure_logging=True)
    except (ConnectionError, ValueError) as error:
        if address == "local":
            raise FailureError(f"ray: does not start: {_first_line(error)}") from error
        raise _unreachable(address, _first_line(error)) from error
    except Exception as error:  # Ray raises the base class where its processes take too long to start
        raise FailureError(f"ray: {_first_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM over; the command ends as all commands do (`slicepilot.cli.shared.endings`)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _remove(folder: Path) -> None:
    """Ray's processes may write until they have ended, some after `ray.shutdown` has returned."""
    deadline = time.monotonic() + ENDING_S
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def _private_folder() -> Path:
    """A new folder of this user alone, short enough for the paths of Ray's sockets; raises ConfigError."""
    for folder in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/dev/shm")):
        if len(folder) + len("/slicepilot-12345678/r") + RAYS_PART > SOCKET_PATH or not os.access(folder, os.W_OK):
            continue
        return Path(tempfile.mkdtemp(prefix="slicepilot-", dir=folder))
    shown = tempfile.gettempdir()
    raise ConfigError(
        f"TMPDIR = {shown!r}: expected a writable folder, of at most {SOCKET_PATH - RAYS_PART - 22} "
        "characters: sockets below it have room for no more"
    )

"""A real MLflow server with SQLite, and policies to log there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from slicepilot.agents.learned.bundle import PolicyBundle
from tests.controller.record.conftest import keys, make_keys  # noqa: F401 (fixtures)

PATIENCE_S = 200  # of a busy machine


@pytest.fixture(scope="module", name="server")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and the folder of its database and artifacts, which only clients of the server see by name."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "kept")),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environment |= {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            address = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + PATIENCE_S
            while not _healthy(address):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.2)
            yield address, folder
        finally:
            os.killpg(process.pid, 9)
            process.wait()


def _healthy(address: str) -> bool:
    """Whether it has answered from its database, too: the first answer takes longer than commands wait for one."""
    query = "api/2.0/mlflow/experiments/get?experiment_id=0"
    try:
        with urllib.request.urlopen(f"{address}/{query}", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(name="policy")
def _policy(tmp_path: Path) -> PolicyBundle:
    """The shipped policy, as if it had been trained here."""
    bundle = PolicyBundle.load("generalist")
    return replace(bundle, training=replace(bundle.training, run_id="0" * 32)).save(tmp_path / "trained" / "bundle")

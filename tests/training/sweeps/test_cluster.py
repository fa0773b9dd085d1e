"""A sweep and an evaluation on a Ray cluster of two nodes, which are processes of this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.sweeps.test_tune import PROGRAM, TRAINING

RAY = Path(sys.executable).with_name("ray")
PATIENCE_S = 400  # of a busy machine


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))}
    return kept | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(name="address", scope="module")
def _address() -> Iterator[str]:
    """Of the head of a cluster with two nodes of one CPU each; the head has a resource ``head``, the other ``far``."""
    started: list[subprocess.Popen[bytes]] = []
    address = f"127.0.0.1:{free_port()}"
    shared = ("--num-cpus", "1", "--num-gpus", "0", "--object-store-memory", str(128 << 20), "--block")
    head = ("--head", "--port", address.rpartition(":")[2], "--include-dashboard", "false")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:  # short: sockets are below it
        head = (*head, "--temp-dir", folder)
        try:
            for options in (head, ("--address", address)):
                command = [str(RAY), "start", *options, "--node-ip-address", "127.0.0.1", *shared]
                with (Path(folder) / f"log{len(started)}").open("wb") as log:
                    started.append(
                        subprocess.Popen(
                            command, env=environment(), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                        )
                    )
                wait_for_nodes(address, len(started))
            yield address
        finally:
            for process in reversed(started):
                os.killpg(process.pid, 15)
            for process in started:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)
                    process.wait()


LOOK = """
import json, sys, time
import ray

deadline = time.monotonic() + 200
while True:
    try:
        ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
        break
    except (ConnectionError, ValueError):
        assert time.monotonic() < deadline
        time.sleep(0.5)
while len([node for node in ray.nodes() if node["Alive"]]) < int(sys.argv[2]):
    assert time.monotonic() < deadline
    time.sleep(0.2)
"""


def wait_for_nodes(address: str, count: int) -> None:
    arguments = [sys.executable, "-c", LOOK, address, str(count)]
    subprocess.run(arguments, env=environment(), check=True, timeout=PATIENCE_S, capture_output=True)


def slicepilot(*arguments: str, folder: Path) -> Any:
    """The JSON of a command."""
    done = subprocess.run(
        [*PROGRAM, *arguments, "--json"],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_trials_and_rollouts_run_on_both_nodes_of_a_cluster(address: str, tmp_path: Path) -> None:
    """With one CPU a node, two trials at a time are on two nodes."""
    few = {"tracking": "none", "total_steps": 4096}
    (tmp_path / "training.yaml").write_text(yaml.safe_dump(TRAINING | few))
    sweep = {"training": "training.yaml", "axes": {"seed": [0, 1]}, "asha": None}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    done = slicepilot("tune", "-c", "sweep.yaml", "--out", "sweep", "--address", address, folder=tmp_path)
    assert [trial["status"] for trial in done["trials"]] == ["finished"] * 2
    assert {trial["starts"] for trial in done["trials"]} == {1}
    parents = set()
    for trial in done["trials"]:
        worker = json.loads((tmp_path / "sweep" / "trials" / trial["trial"] / "worker.json").read_text())
        parents.add(worker["node"])
    assert len(parents) == 2, "one node had both"

    options = ("--scenario", "slice-churn", "--agents", "no-control,queue-greedy", "--seeds", "2", "--no-mlflow")
    here = slicepilot("evaluate", *options, "--results", "here", folder=tmp_path)
    there = slicepilot("evaluate", *options, "--results", "there", "--ray", "--address", address, folder=tmp_path)
    assert here == there

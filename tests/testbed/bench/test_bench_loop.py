"""``bench loop`` on a real node of its own: it prints what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from slicepilot.agents.runtime.session import INPUT_NAME, OUTPUT_NAME
from slicepilot.controller.system.cgroup import CpuHierarchy
from slicepilot.controller.telemetry.layout import FOLDER
from slicepilot.env.encoding import FEATURES, KNOB_FEATURES
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.bench.node import BenchNode
from tests.command import slicepilot
from tests.reachable import AS_NOBODY
from tests.testbed.controlled import bundle_of

pytestmark = pytest.mark.realtime

PROGRAM = [sys.executable, "-c", "from slicepilot.cli import main; main()", "bench", "loop"]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: cgroups, namespaces, BPF")
needs_objects = pytest.mark.skipif(not (FOLDER / "packets.bpf.o").exists(), reason="no BPF objects: make bpf")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that asks for the knobs it has, shifted a little towards lower limits."""
    first = FEATURES.index(KNOB_FEATURES[0])
    constants = {"from": [first], "to": [first + 3], "axes": [2], "shift": np.asarray([-0.3, 0.1, -0.2], np.float32)}
    nodes = [
        helper.make_node("Slice", [INPUT_NAME, "from", "to", "axes"], ["held"]),
        helper.make_node("Add", ["held", "shift"], [OUTPUT_NAME]),
    ]
    return Path(bundle_of(tmp_path_factory.mktemp("policy") / "bundle", nodes, constants))


@pytest.mark.slow
@needs_root
@needs_objects
def test_it_measures_all_stages_and_leaves_nothing_behind(bundle: Path) -> None:
    result = slicepilot("bench", "loop", "--bundle", bundle, "--seconds", "1", "--json")
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout)
    assert measured["slices"] == 5
    for part in ("idle", "back_to_back", "contended"):
        for stage in ("observe", "infer", "guard", "apply", "total"):
            times = measured[part][f"{stage}_us"]
            assert 0 < times["p50"] <= times["p99"] <= times["p999"]
        assert measured[part]["total_us"]["p50"] > measured[part]["infer_us"]["p50"]
        assert measured[part]["ticks"] == 200
    assert not list(CpuHierarchy.find().root.glob("slicepilot-bench-*"))


@needs_root
@needs_objects
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_ends_it_leaves_nothing_behind(bundle: Path, number: signal.Signals) -> None:
    """Ctrl-C at once, a kill at the latest when it is run again."""
    root = CpuHierarchy.find().root
    command = [*PROGRAM, "--bundle", str(bundle), "--seconds", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        own = root / f"slicepilot-bench-{process.pid}"
        limit = time.monotonic() + 60
        while not own.is_dir() and time.monotonic() < limit:
            time.sleep(0.05)
        time.sleep(2)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "Traceback" not in complaint
    else:
        assert own.is_dir()
        BenchNode(SliceSet.from_yaml("testbed-five")).close()
    assert not own.is_dir()


def test_without_root_it_says_what_is_missing(bundle: Path) -> None:
    lowered = () if os.geteuid() else AS_NOBODY
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        Path(folder).chmod(0o755)
        readable = shutil.copytree(bundle, Path(folder) / "bundle")
        command = [*lowered, *PROGRAM, "--bundle", str(readable), "--seconds", "1"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1, result.stderr
    assert "bench loop needs root" in result.stderr

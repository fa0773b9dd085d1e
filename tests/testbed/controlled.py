"""A testbed under light load, policies whose wishes are known, and what a running controller has told."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from slicepilot.agents.bundle import INPUT_NAME, OUTPUT_NAME, PolicyBundle, TrainingRecord
from slicepilot.env.encoding import NUM_FEATURES, NUM_KNOBS
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.rig import Controller, Rig

SLICES = [f"slice{i}" for i in range(1, 6)]
WEIGHT = "cpu.shares" if Path("/sys/fs/cgroup/cpu/cpu.shares").exists() else "cpu.weight"
SLICEPILOT = [sys.executable, "-m", "slicepilot.controller.cli"]

Records = np.ndarray[Any, np.dtype[Any]]


def light(rate_mbps: float = 8.0) -> Scenario:
    """Traffic that leaves the machine time for everything else."""
    loads = {name: (Load("cbr", rate_mbps=rate_mbps, packet_bytes=1000),) for name in SLICES}
    return Scenario("light", "a test", "testbed-five", "testbed", 2.0, 0.01, loads)


def constant(folder: Path, nice_action: float) -> str:
    """A bundle that asks for the same nice on every slice, and for no limits."""
    actions = np.asarray([1.0, nice_action, 1.0], np.float32)
    dynamic = ["lanes", "slices"]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", [INPUT_NAME, "nothing"], ["zero"]),
            helper.make_node("Add", ["zero", "actions"], [OUTPUT_NAME]),
        ],
        "policy",
        [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, [*dynamic, NUM_FEATURES])],
        [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, [*dynamic, NUM_KNOBS])],
        [
            onnx.numpy_helper.from_array(np.zeros((NUM_FEATURES, NUM_KNOBS), np.float32), "nothing"),
            onnx.numpy_helper.from_array(actions, "actions"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    slices = SliceSet.from_yaml("testbed-five")
    PolicyBundle(slices, model.SerializeToString(), TrainingRecord("made", seed=0)).save(folder)
    return str(folder)


def records(controller: Controller, count: int = 200) -> Records:
    """The latest ticks."""
    with closing(controller.reader()) as reader:
        return reader.last(count)


def wait_ticks(controller: Controller, count: int) -> Records:
    """So many more ticks."""
    before = controller.ticks()
    controller.wait_for(lambda: controller.ticks() >= before + count, f"{count} ticks")
    return records(controller, count)


def description(controller: Controller) -> dict[str, Any]:
    """Of its run, as it is now."""
    with closing(controller.reader()) as reader:
        return reader.description()[1]


def missed(controller: Controller) -> int:
    """Ticks that have gone by so far."""
    return int(records(controller, 1)["missed"][-1])


def weights(rig: Rig) -> dict[str, int]:
    """Of every slice's group."""
    return {name: int((rig.testbed.cgroup(name) / WEIGHT).read_text()) for name in SLICES}


def order(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``slicepilot control`` to the rig's controller."""
    where = ["--name", rig.testbed.spec.name, "--run-root", str(rig.folder / "run")]
    return slicepilot("control", *arguments, *where)


def slicepilot(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    return subprocess.run([*SLICEPILOT, *arguments], capture_output=True, text=True, check=False, timeout=120)


def told(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The one line that a command ended with, and with this exit status."""
    assert done.returncode == status, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("slicepilot: error: ")
    return lines[0]

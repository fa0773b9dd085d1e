"""A testbed under load, policies whose decisions are known, and what a running controller reports."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.agents.runtime.session import INPUT_NAME, OUTPUT_NAME
from slicepilot.env.encoding import NUM_FEATURES
from slicepilot.env.knobs import NUM_KNOBS
from slicepilot.env.simulator.scenario import Load, Scenario
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.bench.rig import Controller, Rig
from slicepilot.testbed.lifecycle.removal import take_down
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed
from tests.command import slicepilot

SLICES = [f"slice{i}" for i in range(1, 6)]
WEIGHT = "cpu.shares" if Path("/sys/fs/cgroup/cpu/cpu.shares").exists() else "cpu.weight"

Records = np.ndarray[Any, np.dtype[Any]]


@contextlib.contextmanager
def fresh_testbed(spec: TestbedSpec) -> Iterator[Testbed]:
    """One that goes down at the end, instead of what a test that was killed may have left under its name."""
    take_down(spec.name)
    testbed = Testbed.up(spec)
    try:
        yield testbed
    finally:
        testbed.down()


@contextlib.contextmanager
def rig_under(load: Scenario | None, testbed: Testbed, folder: Path) -> Iterator[Rig]:
    """A rig whose knobs have to be as at first in the end."""
    with Rig(testbed, folder) as rig:
        if load is not None:
            rig.load(load)
        result = rig.knobs.read()
        yield rig
        rig.stop()
        assert rig.knobs.read() == result


def light(rate_mbps: float = 8.0) -> Scenario:
    """Traffic that leaves the machine time for everything else."""
    loads = {name: (Load("cbr", rate_mbps=rate_mbps, packet_bytes=1000),) for name in SLICES}
    return Scenario("light", "a test", "testbed-five", "testbed", 2.0, 0.01, loads)


def bundle_of(folder: Path, nodes: Sequence[onnx.NodeProto], constants: Mapping[str, Any]) -> str:
    """A policy of a few operators, as a bundle."""
    dynamic = ["lanes", "slices"]
    inputs = [helper.make_tensor_value_info(INPUT_NAME, TensorProto.FLOAT, [*dynamic, NUM_FEATURES])]
    outputs = [helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, [*dynamic, NUM_KNOBS])]
    initial = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "policy", inputs, outputs, initial)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    slices = SliceSet.from_yaml("testbed-five")
    PolicyBundle(slices, model.SerializeToString(), TrainingRecord("made", seed=0)).save(folder)
    return str(folder)


def constant(folder: Path, nice: float, cpu_limit: float = 1.0, egress: float = 1.0) -> str:
    """A bundle that always asks for the same on every slice, as actions in [-1, 1]; without limits unless given."""
    return bundle_of(
        folder,
        [
            helper.make_node("MatMul", [INPUT_NAME, "nothing"], ["zero"]),
            helper.make_node("Add", ["zero", "actions"], [OUTPUT_NAME]),
        ],
        {
            "nothing": np.zeros((NUM_FEATURES, NUM_KNOBS), np.float32),
            "actions": np.asarray([cpu_limit, nice, egress], np.float32),
        },
    )


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
    return slicepilot("control", *arguments, *where(rig))


def where(rig: Rig) -> list[str]:
    """Options that name the rig's controller."""
    return ["--name", rig.testbed.spec.name, "--run-root", str(rig.folder / "run")]


def reported(done: subprocess.CompletedProcess[str], status: int) -> str:
    """The one line that a command ended with, beside the logged stages of a start, and with this exit status."""
    assert done.returncode == status, done.stdout + done.stderr
    lines = [line for line in done.stderr.strip().splitlines() if '"event": "starting"' not in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("slicepilot: error: ")
    return lines[0]

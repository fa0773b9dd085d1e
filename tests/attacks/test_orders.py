"""A member of the control group, who also writes what an order names, against a running controller on real UPFs."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slicepilot.agents.learned.bundle import PolicyBundle, TrainingRecord
from slicepilot.env.slices import SliceSet
from slicepilot.testbed.bench.rig import Controller, Rig
from slicepilot.testbed.lifecycle.spec import TestbedSpec
from slicepilot.testbed.lifecycle.testbed import Testbed, missing
from tests.node.machine import children
from tests.testbed.controlled import (
    constant,
    description,
    fresh_testbed,
    missed,
    order,
    reported,
    rig_under,
    wait_ticks,
)

from . import unprivileged
from .test_models import CUT, endless, model_of, slow
from .test_yaml import HOSTILE

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(bool(missing()), reason=f"this machine lacks {'; '.join(missing())}"),
]
NAME = "spk"
GROUP = "nogroup"
# Until an order is answered that does not wait for others; most of it is the publisher, which makes way for everybody.
QUICK_S = 5.0
ASK = """
client = socket.socket(socket.AF_UNIX)
client.settimeout(60)
client.connect(sys.argv[1])
start_s = time.monotonic()
client.sendall(sys.argv[2].encode() + b"\\n")
answer = json.loads(client.makefile().readline())
print(json.dumps(answer | {"took_s": time.monotonic() - start_s}))
"""


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    with fresh_testbed(TestbedSpec(name=NAME, burn_us=50)) as testbed:
        yield testbed


@pytest.fixture
def rig(testbed: Testbed, reachable: Path) -> Iterator[Rig]:
    with rig_under(None, testbed, reachable) as rig:
        yield rig


@pytest.fixture
def controller(rig: Rig, reachable: Path) -> Controller:
    """One in shadow with a harmless policy, that the group may order about; bundles are below `reachable`/bundles."""
    bundle = constant(reachable / "bundles" / "first", -0.5)
    controller = rig.start("shadow", bundle=bundle, publish={"group": GROUP, "log": "off"})
    assert send(rig, {"command": "status"})["ok"], "its publisher is there"
    return controller


def send(rig: Rig, request: dict[str, Any]) -> dict[str, Any]:
    """What an unprivileged member of the group is answered, with the time that it took."""
    process = unprivileged.start(ASK, rig.run_folder / "control.sock", json.dumps(request))
    out, _ = process.communicate(timeout=90)
    return json.loads(out)


def hostile(folder: Path, model: bytes) -> str:
    PolicyBundle(SliceSet.from_yaml("testbed-five"), model, TrainingRecord("hostile", seed=0)).save(folder)
    return str(folder)


def endless_bundle(folder: Path) -> str:
    import numpy as np

    return hostile(folder, model_of(endless(), CUT | {"true": np.asarray(True)}))


def test_only_the_loop_holds_a_runtime_of_models(controller: Controller) -> None:
    wait_ticks(controller, 20)
    others = children(controller.pid)
    assert others
    for pid in others:
        assert "onnxruntime" not in Path(f"/proc/{pid}/maps").read_text()


def test_safe_and_signals_are_served_while_a_policy_is_tried_that_does_not_end(
    rig: Rig, controller: Controller, reachable: Path
) -> None:
    bundle = hostile(reachable / "bundles" / "slow", slow())
    answers: list[dict[str, Any]] = []
    reload = threading.Thread(target=lambda: answers.append(send(rig, {"command": "reload", "bundle": bundle})))
    before = missed(controller)
    reload.start()
    controller.wait_for(lambda: bool(trials(controller)), "it is tried out")
    answer = send(rig, {"command": "safe"})
    assert answer["ordered_safe"]
    assert answer["took_s"] < QUICK_S
    assert trials(controller), "meanwhile"
    controller.process.send_signal(signal.SIGUSR1)
    assert order(rig, "mode", "shadow").returncode == 0
    assert send(rig, {"command": "resume"})["ordered_safe"] is False
    reload.join()
    [answer] = answers
    assert not answer["ok"]
    assert "takes more CPU time, or memory, than a policy may" in answer["error"] or "not tried out" in answer["error"]
    assert trials(controller) == []
    wait_ticks(controller, 20)
    print(f"{missed(controller) - before} ticks missed meanwhile")
    assert description(controller)["bundle"]["path"] == str(reachable / "bundles" / "first")


def trials(controller: Controller) -> list[int]:
    """Processes of a controller that try something out."""
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == str(controller.pid) and b"trial_process" in (process / "cmdline").read_bytes():
                result.append(int(process.name))
        except OSError:
            continue
    return result


def test_at_the_start_a_policy_is_tried_and_signals_are_served(rig: Rig, reachable: Path) -> None:
    refused = rig.start("live", "--force", wait=False, bundle=endless_bundle(reachable / "endless"))
    assert refused.process.wait(90.0) == 2
    assert "a graph inside of a node" in refused.tail()
    for number, status in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)):
        starting = rig.start("shadow", wait=False, bundle=hostile(reachable / "slow", slow()))
        starting.wait_for(lambda starting=starting: bool(trials(starting)), "it is tried out")
        [trial] = trials(starting)
        starting.process.send_signal(signal.SIGUSR1)
        starting.process.send_signal(number)
        assert starting.process.wait(10.0) == status
        until_s = time.monotonic() + 5.0
        while Path(f"/proc/{trial}").exists() and time.monotonic() < until_s:
            time.sleep(0.01)
        assert not Path(f"/proc/{trial}").exists()


def test_no_error_quotes_a_file_of_somebody_else(rig: Rig, controller: Controller, reachable: Path) -> None:
    inside, secret = reachable / "bundles", "hunter2 is the word"
    private = reachable / "private.yaml"
    private.write_text(f"{secret}\n")
    private.chmod(0o600)
    (inside / "link.yaml").symlink_to(private)
    (inside / "root.yaml").symlink_to("/etc/shadow")
    for name, text in (
        ("text.yaml", secret), ("key.yaml", f"{secret}: 1"), ("value.yaml", f"hysteresis: {secret}"),
        ("deep.yaml", f"sla_floor: {{slices: {{{secret}: {{{secret}: 1}}}}}}"), ("tag.yaml", f"a: !<{secret}> 1"),
        ("broken.yaml", f"a: [{secret}"), ("inner.yaml", f"hysteresis: {{nice_levels: {secret}}}"),
    ):  # fmt: skip
        (inside / name).write_text(text)
        (inside / name).chmod(0o600)
    first = Path("/etc/shadow").read_text().splitlines()[0]
    paths = ["/etc/shadow", "/etc/passwd", "/proc/1/environ", str(private), str(inside / ".." / "private.yaml"), "/"]
    for path in [*paths, *map(str, sorted(inside.glob("*.yaml")))]:
        answer = send(rig, {"command": "reload", "guard": path if path.endswith(".yaml") else f"{path}/"})
        assert not answer["ok"], path
        for said in (answer["error"], json.dumps(send(rig, {"command": "status"})["status"])):
            assert first not in said
            assert not any(word in said for word in ("hunter2", "the word")), said
    for path in paths:
        answer = send(rig, {"command": "reload", "bundle": path})
        assert "expected an absolute path below" in answer["error"] or "out of the declared" in answer["error"], answer
    # What there is and what there is not, outside, looks the same.
    there, not_there = (send(rig, {"command": "reload", "guard": p})["error"] for p in ("/etc/shadow/", "/etc/none/"))
    assert there.replace("/etc/shadow", "") == not_there.replace("/etc/none", "")


def test_hostile_files_cost_the_loop_next_to_nothing(rig: Rig, controller: Controller, reachable: Path) -> None:
    inside = reachable / "bundles"
    sparse = inside / "sparse"
    shutil.copytree(inside / "first", sparse)
    with (sparse / "policy.onnx").open("r+b") as file:
        file.truncate(8 << 30)
    before = missed(controller)
    for name in ("lists", "laughs", "a number", "directives", "deep lines"):
        (inside / "guard.yaml").write_text(HOSTILE[name][0])
        answer = send(rig, {"command": "reload", "guard": str(inside / "guard.yaml")})
        assert HOSTILE[name][1] in answer["error"]
        assert answer["took_s"] < QUICK_S
    answer = send(rig, {"command": "reload", "bundle": str(sparse)})
    assert "policy.onnx: more than" in answer["error"]
    assert answer["took_s"] < QUICK_S
    lost = missed(controller) - before
    print(f"six hostile reloads: {lost} ticks missed")
    assert lost <= 6 * 5


def test_shadow_overtakes_what_waits_to_act(rig: Rig, controller: Controller, reachable: Path) -> None:
    bundle = hostile(reachable / "bundles" / "slow", slow())
    answers: dict[str, dict[str, Any]] = {}

    def ask(name: str, **request: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: answers.update({name: send(rig, request)}))
        thread.start()
        return thread

    threads = [ask("reload", command="reload", bundle=bundle)]
    controller.wait_for(lambda: bool(trials(controller)), "it is tried out")
    threads.append(ask("live", command="mode", mode="live", force=True))
    time.sleep(2.0)
    assert send(rig, {"command": "mode", "mode": "shadow"})["ok"]
    for thread in threads:
        thread.join()
    assert "shadow was ordered meanwhile" in answers["live"]["error"]
    assert description(controller)["bundle"]["path"].endswith("/first")
    assert controller.notes()["mode"] == "shadow"
    assert "no such folder" in reported(order(rig, "reload", "--bundle", str(reachable / "bundles" / "none")), 1)

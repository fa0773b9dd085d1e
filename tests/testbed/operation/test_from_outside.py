"""What others get of a running controller on real UPFs: promotion, records, pages, privileges, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from slicepilot.controller.record.reader import SegmentReader
from slicepilot.controller.system.privileges import CAPABILITIES, LOOP
from slicepilot.testbed.bench import faults
from slicepilot.testbed.bench.rig import Controller, Rig
from slicepilot.testbed.lifecycle.testbed import Testbed
from tests.command import slicepilot
from tests.testbed.controlled import (
    SLICES,
    constant,
    description,
    light,
    order,
    reported,
    rig_under,
    wait_ticks,
    weights,
    where,
)

NAME = "spo"
AGENT = "static-weights-9-nice"
# All that a few seconds can show.
LENIENT = {
    "shadow": {"min_duration_s": 2, "min_ticks": 200},
    "guard": {"min_unchanged_ratio": 0.5, "min_agreement_ratio": 0.9, "max_warning_per_hour": 1e6},
    "budget": {"max_late_ratio": 0.1, "max_total_p99_us": 5000},
    "telemetry": {"max_invalid_ratio": 0.1},
    "estimate": {
        "min_windows": 1,
        "min_promise_gain_s_per_hour": -1e6,
        "min_carried_gain_pct": -100,
        "max_worse_ratio": 1,
    },
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not in pytest's own folder, which the publisher's user may not enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def rig(testbed: Testbed, folder: Path) -> Iterator[Rig]:
    with rig_under(light(2.0), testbed, folder) as rig:
        yield rig


def refused(rig: Rig, *options: str, **settings: Any) -> str:
    """Start a controller that has to refuse; returns its only line beside the stages of its start."""
    controller = rig.start("live", *options, wait=False, **settings)
    assert controller.process.wait(60.0) == 2
    lines = [line for line in controller.log.read_text().strip().splitlines() if '"event": "starting"' not in line]
    assert len(lines) == 1, lines
    return lines[0]


def events(controller: Controller, name: str) -> list[dict[str, Any]]:
    """Of its log."""
    lines = controller.log.read_text().splitlines()
    return [line for text in lines if text.startswith("{") and (line := json.loads(text))["event"] == name]


# -- promotion and records -----------------------------------------------------------------------------------------


def test_from_shadow_by_promotion_to_live(rig: Rig, folder: Path) -> None:
    bundle, criteria, kept = folder / "bundle", folder / "criteria.yaml", rig.state_folder / "records"
    constant(bundle, -0.5)
    criteria.write_text(yaml.safe_dump(LENIENT))
    assert "never promoted; run it in shadow" in refused(rig, bundle=str(bundle))

    controller = rig.start("shadow", bundle=str(bundle), publish={"records_mb": 16})
    wait_ticks(controller, 600)  # of which two seconds are a window for the simulator
    assert rig.stop() == 0
    strict = slicepilot("promote", str(bundle), "--records", str(kept))
    assert strict.returncode == 1, "an hour is required"
    assert "shadow.min_duration_s" in strict.stdout
    verdict = rig.command("promote", str(bundle), "--records", str(kept), "--criteria", str(criteria))
    assert verdict["promoted"]

    result = weights(rig)
    controller = rig.start("live", bundle=str(bundle))
    controller.wait_for(lambda: weights(rig) != result, "it acts")
    assert description(controller)["bundle"]["promoted"]
    rig.stop()

    explained(rig, kept)
    for name in ("SHA256SUMS", "bundle.yaml", "policy.onnx"):
        shutil.copy(Path(constant(folder / "other", 0.5)) / name, bundle / name)
    assert "promoted with other contents" in refused(rig, bundle=str(bundle))
    with (bundle / "policy.onnx").open("ab") as file:
        file.write(b"\0")
    assert "policy.onnx" in refused(rig, bundle=str(bundle))


def explained(rig: Rig, kept: Path) -> None:
    """What the records of a run in shadow and of a run that was live say afterwards."""
    last = rig.command("explain", "--at", "last", "--records", str(kept))
    assert last["mode"] == "live"
    window = rig.command("explain", "--at", "last", "--window", "2s", "--records", str(kept))
    assert len(window) in {1, 2}
    text = slicepilot("explain", "--at", "last", "--records", str(kept))
    assert text.returncode == 0
    assert all(name in text.stdout for name in SLICES)
    assert "nothing recorded at" in reported(slicepilot("explain", "--at", "-3h", "--records", str(kept)), 2)


def test_only_bundles_that_a_trusted_key_has_signed(rig: Rig, folder: Path) -> None:
    key = Ed25519PrivateKey.generate()
    private, public, bundle = folder / "key.pem", folder / "key.pub", Path(constant(folder / "bundle", -0.5))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert "SHA256SUMS.sig" in refused(rig, "--force", "--trust", str(public), bundle=str(bundle))
    done = subprocess.run(
        ["openssl", "pkeyutl", "-sign", "-inkey", private, "-rawin", "-in", bundle / "SHA256SUMS"],
        capture_output=True,
        check=True,
    )
    encoded = subprocess.run(["base64", "-w0"], input=done.stdout, capture_output=True, check=True)
    (bundle / "SHA256SUMS.sig").write_bytes(encoded.stdout + b"\n")
    controller = rig.start("live", "--force", "--trust", str(public), bundle=str(bundle))
    unsigned = constant(folder / "unsigned", 0.5)
    assert "SHA256SUMS.sig" in reported(order(rig, "reload", "--bundle", unsigned, "--force"), 1)
    assert description(controller)["bundle"]["path"] == str(bundle)


def test_records_have_the_last_tick_when_all_processes_get_sigterm(rig: Rig) -> None:
    """As a service manager does it: SIGTERM to all processes of the unit at once."""
    controller = rig.start("live", agent=AGENT)
    wait_ticks(controller, 150)
    with closing(controller.reader()) as reader:
        group = [faults.publisher_pid(rig), controller.supervisor, controller.pid]
        os.kill(group[0], signal.SIGTERM)
        time.sleep(1.0)
        for pid in group:
            os.kill(pid, signal.SIGTERM)
        assert controller.process.wait(15.0) == 0
        ticks = reader.written
    stretches = list(SegmentReader(rig.state_folder / "records").stretches())
    sequence = np.concatenate([stretch.records["sequence"] for stretch in stretches])
    assert sequence[-1] == ticks
    assert (np.diff(sequence.astype(np.int64)) == 1).all()


# -- views ---------------------------------------------------------------------------------------------------------


def test_top_metrics_and_status_of_a_running_controller(rig: Rig) -> None:
    closed_umask = ("sh", "-c", 'umask 077 && exec "$@"', "sh")
    controller = rig.start("live", "--listen", "127.0.0.1:0", agent=AGENT, wrapper=closed_umask)
    controller.wait_for(lambda: bool(events(controller, "start")), "its log")
    for path in (rig.run_folder, rig.run_folder.parent):
        assert stat.filemode(path.stat().st_mode) == "drwxr-xr-x", "the control group goes through"
    [start] = events(controller, "start")
    wait_ticks(controller, 150)
    page = {path: get(start["listen"], path) for path in ("/metrics", "/status.json", "/")}
    assert metric(page["/metrics"], "slicepilot_decisions_total", 'mode="live"', 'outcome="ok"') > 100
    status = json.loads(page["/status.json"])
    assert status["mode"] == "live"
    assert [item["name"] for item in status["slices"]] == SLICES
    assert status["slices"][0]["knobs"]["applied"]["nice"] == -5
    top = slicepilot("top", "--once", *where(rig))
    assert top.returncode == 0, top.stderr
    assert all(name in top.stdout for name in SLICES)
    assert rig.command("control", "status", *where(rig))["mode"] == "live"
    assert rig.stop() == 0
    assert "no controller runs there" in reported(slicepilot("top", "--once", "--run-root", str(rig.folder / "run")), 2)
    assert not (rig.run_folder / "control.sock").exists()


def metric(page: str, name: str, *labels: str) -> float:
    """A sample of the exposition."""
    [line] = [line for line in page.splitlines() if line.startswith(name) and all(label in line for label in labels)]
    return float(line.rpartition(" ")[2])


def get(address: str, path: str) -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_service_manager_is_notified(rig: Rig) -> None:
    """Ready when it ticks, alive while it does, also at periods of more than a second, and stopping."""
    path = rig.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(60.0)
        for period_ms in (10, 2500):
            controller = rig.start(
                "live", wait=False, agent=AGENT, period_ms=period_ms, environment={"NOTIFY_SOCKET": str(path)}
            )
            assert manager.recv(1000).startswith(b"READY=1\nSTATUS=live"), period_ms
            assert controller.ticks() >= 1
            assert "SCHED_FIFO" in description(controller)["scheduling"]
            began_s = time.monotonic()
            assert manager.recv(1000) == b"WATCHDOG=1\n"
            assert manager.recv(1000) == b"WATCHDOG=1\n"
            assert time.monotonic() - began_s < 2.5
            controller.process.send_signal(signal.SIGTERM)
            while not (message := manager.recv(1000)).startswith(b"STOPPING=1"):
                assert message == b"WATCHDOG=1\n"
            assert controller.process.wait(15.0) == 0


# -- privileges ----------------------------------------------------------------------------------------------------


def test_each_process_has_what_it_needs_and_no_more(rig: Rig) -> None:
    controller = rig.start("live", agent=AGENT)
    loop = sum(1 << CAPABILITIES.index(name) for name in LOOP)
    for thread in Path(f"/proc/{controller.pid}/task").iterdir():
        status = status_of(thread / "status")
        assert (int(status["CapEff"], 16), int(status["CapBnd"], 16)) == (loop, loop), status["Name"]
        assert int(status["CapPrm"], 16) == loop
        assert status["NoNewPrivs"] == "1"
    supervisor = status_of(Path(f"/proc/{controller.supervisor}/status"))
    assert int(supervisor["CapEff"], 16) & ~loop == 0
    assert int(supervisor["CapBnd"], 16) & ~loop == 0
    assert supervisor["NoNewPrivs"] == "1"
    path = Path(f"/proc/{faults.publisher_pid(rig)}/status")
    controller.wait_for(lambda: status_of(path)["NoNewPrivs"] == "1", "it has given up the last thing")
    publisher = status_of(path)
    assert set(publisher["Uid"].split()) == {"65534"}
    assert publisher.get("Groups", "") == ""
    assert {int(publisher[held], 16) for held in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {0}


def status_of(path: Path) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in path.read_text().splitlines())}


# -- the command line ----------------------------------------------------------------------------------------------


REFUSED: tuple[tuple[dict[str, Any], tuple[str, ...], str], ...] = (
    ({"mode": "lvie"}, (), "mode = 'lvie'"),
    ({"watchdog": {"hangs": 1}}, (), "did you mean hang_s?"),
    ({"agent": AGENT, "bundle": "x"}, (), "bundle, agent: both are given; expected one of them"),
    ({"agent": "static-wieghts-9"}, (), "did you mean static-weights-9"),
    ({"agent": AGENT, "mode": "canary", "canary": ["slcie3"]}, (), "did you mean slice3?"),
    ({"agent": AGENT, "mode": "canary"}, (), "names of the slices to act on: --canary NAME"),
    ({"agent": AGENT}, ("--scenario", "testbed-contenton"), "did you mean testbed-contention"),
    ({"agent": AGENT}, ("--period-ms", "1"), "period_ms = 1.0: expected a number greater than or equal to 2"),
    ({"agent": AGENT}, ("--period-ms", "fast"), "--period-ms = fast: expected a number"),
    (
        {"agent": AGENT},
        ("--listen", "localhost"),
        "listen = 'localhost': expected off, inherited, local, or an address and port",
    ),
    ({"agent": AGENT, "name": "spo-none"}, (), "spo-none"),
    ({"agent": AGENT, "run_root": "/proc/none"}, (), "run_root = /proc/none"),
    ({"agent": AGENT, "state_root": "/proc/none"}, (), "state_root = /proc/none"),
    ({"agent": AGENT, "publish": {"user": "nobdoy"}}, (), "user = 'nobdoy': unknown"),
    ({"agent": AGENT, "publish": {"user": "root"}}, (), "user = 'root': is root"),
    ({"agent": AGENT, "cpu": 4096}, (), "cpu = 4096; expected one of 0"),
    ({"agent": AGENT}, ("--instance", "a/b"), "instance = 'a/b'"),
    ({"bundle": "/nowhere"}, (), "no such folder"),
    ({"backend": "testbed"}, ("--node", "edge.yaml"), "backend = 'testbed': expected node, because node = 'edge.yaml'"),
)


@pytest.mark.parametrize(("settings", "options", "line"), REFUSED, ids=[line for *_, line in REFUSED])
def test_bad_input_is_one_line(
    testbed: Testbed, tmp_path: Path, settings: dict[str, Any], options: tuple[str, ...], line: str
) -> None:
    path, name = tmp_path / "run.yaml", testbed.spec.name
    roots = {"run_root": str(tmp_path / "run"), "state_root": str(tmp_path / "state")}
    path.write_text(yaml.safe_dump({"name": name} | roots | settings))
    assert line in reported(slicepilot("run", "-c", str(path), *options), 2)

"""``slicepilot probe`` on any UPF."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slicepilot.controller.system.net import namespaces
from slicepilot.controller.telemetry.discover import by_netns
from tests.command import slicepilot
from tests.controller.other_programs import xdp

PROBE = "from slicepilot.cli import main; main()"


class Traffic:
    """A packet every two milliseconds, and a PFCP modification with each tenth, until stopped."""

    def __init__(self, network: Any, packets: Any) -> None:
        self._network, self._packets = network, packets
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        smf, upf = (home.socket() for home in (self._network.ran, self._network.upf))
        with smf, upf:
            smf.bind(("10.101.0.1", 8805))
            upf.bind(("10.101.0.2", 8805))
            number = 0
            while not self._stop.wait(0.002):
                number += 1
                inner = self._packets.ipv4(self._packets.udp(number.to_bytes(8, "big") + bytes(80)))
                self._network.send(self._packets.gtpu(inner, 7, 5))
                if number % 10 == 0:
                    request = b"\x21\x34\0\x0c" + bytes(8) + number.to_bytes(3, "big") + b"\0"
                    smf.sendto(request, ("10.101.0.2", 8805))
                    upf.recv(100)
                    upf.sendto(b"\x21\x35" + request[2:], ("10.101.0.1", 8805))
                    smf.recv(100)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def traffic(network: Any, forwarder: Any, packets: Any) -> Any:
    made = Traffic(network, packets)
    yield made
    made.stop()


def test_totals_as_json_and_events_as_csv(network: Any, traffic: Any, tmp_path: Path) -> None:
    packet_file, pfcp_file = tmp_path / "packets.csv", tmp_path / "pfcp.csv"
    done = slicepilot(
        "probe", "--netns", network.upf.path, "--n6-netns", network.dn.path, "--duration", 1, "--json",
        "--csv", packet_file, "--sample", 2, "--pfcp-csv", pfcp_file,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [item] = json.loads(done.stdout)["slices"]
    assert item["n3"]["packets"] > 50
    for point in ("tun", "n6"):
        assert item[point]["packets"] >= item["n3"]["packets"] - 30  # on their way, or through before it was attached
        assert item[point]["match_ratio"] == 1
        assert 0 < item[point]["delay_us"]["p50"] <= item[point]["delay_us"]["p99"]
    [flow] = item["flows"]
    assert (flow["teid"], flow["qfi"]) == (7, 5)
    assert item["n3"]["packets"] <= flow["packets"] <= item["n3"]["packets"] + 30  # read a moment later
    assert item["pfcp"].keys() == {"modification"}
    assert item["pfcp"]["modification"]["latency_us"]["p50"] > 0

    rows = list(csv.DictReader(packet_file.read_text().splitlines()))
    assert packet_file.read_text().startswith("slice,delay_us,pkt_len,ts_rx_ns,ts_tx_ns,netif_rx\n")
    assert len(rows) == pytest.approx(item["n6"]["packets"] / 2, rel=0.5)
    for row in rows:
        assert (row["pkt_len"], row["netif_rx"]) == ("116", "n3")
        assert float(row["delay_us"]) == pytest.approx((int(row["ts_tx_ns"]) - int(row["ts_rx_ns"])) / 1e3, abs=0.001)
    lines = pfcp_file.read_text().splitlines()
    assert lines[0] == "pfcp_type,latency_us"
    answers = item["pfcp"]["modification"]["answers"]
    assert answers <= len(lines) - 1 < 2 * answers  # written a moment later, and each once
    assert all(re.fullmatch(r"modification,\d+\.\d{3}", line) for line in lines[1:])


def test_a_container_names_its_upf(network: Any, traffic: Any, groups: list[Path]) -> None:
    identity = "0123456789abcdef" * 4
    container = groups[0] / f"cri-containerd-{identity}.scope"
    container.mkdir()
    try:
        (container / "cgroup.procs").write_text(str(network.upf.pid))
        done = slicepilot("probe", "--container", identity[:12], "--duration", 0.5, "--json")
    finally:
        (groups[0].parent.parent / "cgroup.procs").write_text(str(network.upf.pid))
        container.rmdir()
    assert done.returncode == 0, done.stderr
    [item] = json.loads(done.stdout)["slices"]
    assert item["slice"] == identity[:12]
    assert item["n3"]["packets"] > 10
    assert item["cpu_mcpu"] >= 0


def test_a_process_that_ends_while_it_is_looked_at_is_passed_over(
    network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short-lived processes in a UPF's namespace ended the start of a probe with a traceback."""
    real = namespaces.identity
    with subprocess.Popen(["nsenter", f"--net={network.upf.path}", "sleep", "60"]) as ending:

        def identity(netns: str | Path) -> tuple[int, int]:
            result = real(netns)
            if result == wanted and str(netns) == f"/proc/{ending.pid}/ns/net":
                ending.kill()
                ending.wait()
            return result

        try:
            wanted = real(network.upf.path)
            end = time.monotonic() + 10.0
            while real(f"/proc/{ending.pid}/ns/net") != wanted:
                assert time.monotonic() < end, "it does not enter"
            monkeypatch.setattr(namespaces, "identity", identity)
            assert by_netns(str(network.upf.path)).netns == network.upf.path
            assert ending.returncode is not None, "it was looked at"
        finally:
            ending.kill()


def wait_attached(pid: int) -> None:
    """Until a probe has its programs in the kernel."""
    end = time.monotonic() + 60
    while True:
        with contextlib.suppress(FileNotFoundError):  # a file that it has closed meanwhile
            if any("bpf-prog" in str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()):
                return
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError("it attaches nothing")
        time.sleep(0.05)


def probing(network: Any, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROBE, "probe", "--netns", str(network.upf.path), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_ends_with_totals_and_nothing_left(network: Any, traffic: Any) -> None:
    with probing(network, "--json") as running:
        wait_attached(running.pid)
        time.sleep(2)
        running.send_signal(2)
        out, _ = running.communicate(timeout=20)
    assert running.returncode == 0
    assert json.loads(out)["slices"][0]["n3"]["packets"] > 0
    assert "clsact" not in network.upf.sh("tc qdisc show")


def test_a_namespace_that_vanishes_ends_it(network: Any) -> None:
    with probing(network, "--n6-netns", str(network.dn.path), "--interval", "0.2") as running:
        assert running.stdout is not None
        running.stdout.readline()
        network.upf.close()
        _, complaint = running.communicate(timeout=20)
    assert running.returncode == 1
    assert complaint.startswith("slicepilot: error: stopped measuring: ")
    assert "namespace" in complaint
    assert complaint.count("\n") == 1


def test_what_others_hide_from_it_is_said_once(network: Any, traffic: Any) -> None:
    with probing(network, "--n6-netns", str(network.dn.path), "--interval", "0.2") as running:
        assert running.stdout is not None
        running.stdout.readline()
        with xdp(network.upf.path, "n3"):
            time.sleep(2)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=20)
    assert running.returncode == 0
    assert said.startswith("not measured: n3 ingress in network namespace ")
    assert said.count("an XDP program has come to the device") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "no UPF is given; use --netns, --pid, --container or --node"),
        (["--netns", "no-such-netns"], "--netns = no-such-netns: no such network namespace; expected "),
        (["--pid", "4194303"], "--pid = 4194303: no such process; expected "),
        (["--container", "abcdef0123456789"], "--container = abcdef0123456789: no process in such a cgroup"),
        (["--netns", "{upf}", "--n3", "eth7"], "--n3 = eth7: no such interface; expected lo, "),
        (["--netns", "{upf}", "--netns", "{upf}"], "the same network namespace as "),
        (["--netns", "{ran}"], "--tun or --n6: "),
    ],
)
def test_bad_input(network: Any, arguments: list[str], complaint: str) -> None:
    positions = {"upf": network.upf.path, "dn": network.dn.path, "ran": network.ran.path}
    done = slicepilot("probe", *(argument.format(**positions) for argument in arguments))
    assert done.returncode == 2, done.stderr
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1

"""Any bytes are read, or refused in one line and in time, by every reader of foreign input.

A run of the suite tries each reader for a few seconds at most; `make fuzz` does for hours.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from slicepilot.agents.learned.bundle import PolicyBundle
from slicepilot.agents.learned.files import BundleFiles
from slicepilot.agents.learned.signature import verify
from slicepilot.cluster.fetch.sources import check_rules
from slicepilot.cluster.metrics.merging import MergedPages
from slicepilot.cluster.plan.allowance import Admission, Allowance
from slicepilot.cluster.plan.plan import Planner
from slicepilot.cluster.resources.pod import Pod
from slicepilot.cluster.status.report import report
from slicepilot.configs import ConfigError, read_yaml
from slicepilot.controller.actuators.cilium.endpoints import parse as parse_endpoint
from slicepilot.controller.actuators.cilium.rate import OriginalThrottle
from slicepilot.controller.contracts.orders import parse
from slicepilot.controller.guard.config import GuardConfig
from slicepilot.controller.promotion import certificate
from slicepilot.controller.promotion.criteria import Criteria
from slicepilot.controller.promotion.signed import EvidenceFolder
from slicepilot.controller.publisher.pages import PageServer
from slicepilot.controller.record.explain import explain_tick
from slicepilot.controller.record.reader import SegmentReader, moment_in
from slicepilot.controller.record.ring import Tick, TickRing
from slicepilot.controller.record.ring_reader import TickReader
from slicepilot.controller.record.segments import SegmentWriter
from slicepilot.controller.service.run_config import RunConfig
from slicepilot.controller.system.bpf.btf import Btf, BtfError
from slicepilot.controller.telemetry.prometheus.answers import FUTURE_S, NoAnswerError
from slicepilot.controller.telemetry.prometheus.answers import read as read_answer
from slicepilot.controller.telemetry.prometheus.config import TAG, Row
from slicepilot.controller.watchdog.journal import Journal, JournalError, SliceOriginals
from slicepilot.data.captures import is_capture
from slicepilot.data.traces.captures import Chosen, read_packets
from slicepilot.data.traces.csv_rates import read_rates
from slicepilot.data.traces.trace import Trace
from slicepilot.env.knobs import Knobs
from slicepilot.env.telemetry import Telemetry
from slicepilot.node.config.spec import NodeSpec
from slicepilot.node.find.containers import containers
from tests.controller.record.conftest import count, description, ticks
from tests.effort import examples
from tests.fuzzing import fuzz as try_all
from tests.k8s_api.documents import FULL, pod_document, set_document, slice_document

pytestmark = pytest.mark.fuzz
LONGEST_S = 5.0
"""For an example, on a machine with other work."""
CONFIGS = Path(__file__).parents[2] / "configs"
TOKENS = [
    b"", b"\0", b"\xff" * 8, b"\x7f\xff\xff\xff", b"-1", b"1e999", b"nan", b".inf", b"null", b"[]", b"{}", b"[" * 5000,
    b"{a: " * 300, b"&a [*a, *a]", b"!!python/object:os.system", b'"', b"\n", b"\r\n\r\n", b": ", b"- ", b"\\ud800",
    b"99999999999999999999", b"true", b"../../etc/passwd", b"\33[2J", "\u2028\U0001f4a5".encode(),
]  # fmt: skip


@st.composite
def mutants(draw: st.DrawFn, *seeds: bytes) -> bytes:
    """One of the seeds with some of its bytes changed, cut out, repeated, or others put in."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 6))):
        at, length = draw(st.integers(0, max(0, len(data) - 1))), draw(st.sampled_from([0, 1, 1, 2, 4, 8, 64, 1000]))
        new = draw(
            st.one_of(st.sampled_from(TOKENS), st.binary(max_size=8), st.just(bytes(data[at : at + length]) * 2))
        )
        data[at : at + length] = new
    return bytes(data)


def fuzz(
    strategy: st.SearchStrategy[Any], read: Callable[[Any], object], quick: int, *refused: type[Exception]
) -> None:
    """Have something read examples, which it may refuse, but in time."""

    def run(data: bytes) -> None:
        began_s = time.monotonic()
        with contextlib.suppress(ConfigError, *refused):
            read(data)
        took_s = time.monotonic() - began_s
        assert took_s < LONGEST_S, f"{took_s:.1f} s for {len(data)} bytes"

    try_all(strategy, run, examples(quick), [b""])


def test_orders() -> None:
    seeds = [
        b'{"command": "mode", "mode": "canary", "slices": ["slice1", "slice2"], "force": true}\n',
        b'{"command": "reload", "bundle": "/etc/bundle", "guard": "default"}\n',
        b'{"command": "status"}\n',
        ('{"\u2201":' + "[" * 2000).encode("utf-16-be"),  # that character would be the bytes of a quote, and more
    ]

    def read(data: bytes) -> None:
        parse(data, ["slice1", "slice2"])

    fuzz(st.one_of(mutants(*seeds), st.binary(max_size=200)), read, 800)


def test_answers_of_a_prometheus_server() -> None:
    """What is believed of any answer is a number from 0 on with a recent sample, of one slice."""
    row = Row("slice", "cpu_use_mcpu", (), ("first{}", "second{}"), 1000.0)
    now_s = 1.79e9
    tags = [("0:v", "0.5"), ("0:t", f"{now_s - 3}"), ("1:v", "NaN"), ("1:t", f"{now_s + 90}")]
    vector = [{"metric": {TAG: tag, "id": "/a"}, "value": [now_s, text]} for tag, text in tags]
    matrix = [{"metric": {TAG: tag}, "values": [[now_s - 30, text], [now_s, text]]} for tag, text in tags]
    seeds = [json.dumps(item).encode() for item in (vector, matrix, vector * 2)]

    def read(data: bytes) -> None:
        for times_s in (np.array([now_s]), np.array([now_s - 30, now_s])):
            with contextlib.suppress(NoAnswerError, ValueError, RecursionError):
                result = json.loads(data)
                reading = read_answer(row, result, times_s, 45.0, now_s)
                believed = np.isfinite(reading.newest_s)
                assert (np.isfinite(reading.values) == believed).all()
                assert (reading.values[believed] >= 0).all()
                assert (abs(reading.newest_s[believed] - now_s) <= 75 + FUTURE_S).all()
                assert all(why is None or (why.isprintable() and len(why) < 1000) for why in reading.why)

    fuzz(mutants(*seeds), read, 800)


def test_slice_sets_and_pods() -> None:
    """Whatever somebody declares costs his own loop alone: the plan is made, and what is wrong with it is a line."""
    kept = set_document("kept", "2026-02-01T00:00:00Z", slices=[slice_document("c")])
    claim = {"persistentVolumeClaim": {"claimName": "c", "path": "a/b", "digest": "0a" * 32}}
    image = {"image": {"reference": "r.example/b:1", "digest": "0a" * 32}}
    rules = {"configMap": {"name": "g", "key": "guard.yaml"}}
    fetched = [{"policy": {"bundle": claim}, "guard": rules}, {"policy": {"bundle": image}}]
    whole, bundle = {"slices": [FULL], "mode": "canary", "canary": ["a"]}, {"bundle": {"shipped": "generalist"}}
    seeds = [
        json.dumps(
            [set_document(**more)["spec"], pod_document()["spec"], pod_document()["metadata"]["labels"]]
        ).encode()
        for more in (whole, {"policy": bundle, "nodeSelector": {"zone": "edge"}}, *fetched)
    ]
    pod = Pod.of(pod_document("upf-c-0", "c"))

    def read(data: bytes) -> None:
        try:
            spec, pod_spec, labels = json.loads(data)
        except (ValueError, TypeError, RecursionError):
            return
        if not isinstance(spec, dict) or not isinstance(spec.get("slices"), list):  # the API server sees to that
            return
        document = set_document() | {"spec": spec}
        pods = [pod]
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a pod's fields have their types
            other = pod_document()
            other["metadata"]["labels"] = labels
            pods.append(Pod.of(other | {"spec": pod_spec}))
        plans = Planner().plan([document, kept], pods, {"zone": "edge"}, 0.0)
        result = {plan.identity.name: plan for plan in Admission(Allowance()).admit(plans)}
        assert result["kept"].loop is not None
        for plan in result.values():
            assert json.dumps(report(plan, None).body)
            assert all("\n" not in line for line in (plan.invalid or "", plan.missing.message if plan.missing else ""))

    fuzz(mutants(*seeds), read, 300)


def test_rules_of_config_maps() -> None:
    seeds = [(CONFIGS / "guard" / "default.yaml").read_bytes(), b"sla_floor: {window_s: 5}"]
    fuzz(mutants(*seeds), lambda data: check_rules(data, "g, guard.yaml"), 200)


def test_files_of_container_runtimes(tmp_path: Path) -> None:
    notes = {"io.kubernetes.pod.name": "upf-0", "io.kubernetes.pod.namespace": "core", "io.kubernetes.pod.uid": "9"}
    seeds = [
        json.dumps({"Name": "/upf", "Config": {"Labels": notes}, "State": {"Pid": 4242}}).encode(),
        json.dumps({"annotations": notes | {"io.kubernetes.cri.sandbox-name": "upf-0"}}).encode(),
        b"4242\n",
    ]
    docker, containerd, crio = (tmp_path / name for name in ("docker", "containerd", "crio"))
    paths = [
        docker / "c1" / "config.v2.json",
        *(containerd / "k8s.io" / "c2" / name for name in ("config.json", "init.pid")),
        *(crio / "c3" / "userdata" / name for name in ("config.json", "pidfile")),
    ]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)

    def read(data: bytes) -> None:
        for path in paths:
            path.write_bytes(data)
        for item in containers(docker, containerd, crio):
            assert all(isinstance(text, str) for text in (item.name, *(item.pod or ())))
            assert item.init is None or 0 < item.init <= 1 << 22

    fuzz(mutants(*seeds), read, 400)


def test_requests() -> None:
    """A server on a socket, which gets a request in two parts and has to answer, or hang up, in time."""
    seeds = [
        b"GET /metrics HTTP/1.1\r\nHost: localhost:9464\r\nAccept: text/plain;q=0.5\r\n\r\n",
        b"HEAD / HTTP/1.0\r\n\r\n",
    ]
    page = b"there", {"Content-Type": "text/plain"}
    listener = socket.create_server(("127.0.0.1", 0))
    PageServer(listener, {"/metrics": lambda accept: page, "/": lambda accept: page}).start("http")

    def read(data: bytes) -> None:
        answer = b""
        with socket.create_connection(listener.getsockname(), 10.0) as connection, contextlib.suppress(ConnectionError):
            for part in (data[: len(data) // 2], data[len(data) // 2 :]):
                connection.sendall(part)
            with contextlib.suppress(OSError):  # it has hung up already
                connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                answer += part
        assert answer == b"" or answer.startswith(b"HTTP/1.1 ")

    fuzz(st.one_of(mutants(*seeds), st.binary(max_size=200)), read, 400)


@pytest.mark.parametrize(
    ("folder", "load"),
    [
        ("run", RunConfig.from_yaml), ("guard", GuardConfig.from_yaml), ("promotion", Criteria.from_yaml),
        ("nodes", NodeSpec.from_yaml),
    ],
)  # fmt: skip
def test_configurations(folder: str, load: Callable[[str], object], tmp_path: Path) -> None:
    seeds = [path.read_bytes() for path in sorted((CONFIGS / folder).glob("*.yaml"))]
    path = tmp_path / "file.yaml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        load(str(path))

    fuzz(mutants(*seeds), read, 120)


def test_bundles(bundle: Path) -> None:
    """Each of the files in turn, by an attacker who can write a bundle: also the sums."""
    seeds = {name: (bundle / name).read_bytes() for name in ("bundle.yaml", "SHA256SUMS")}

    def read(data: bytes) -> None:
        for name, sound in seeds.items():
            (bundle / name).write_bytes(data)
            try:
                PolicyBundle.load(bundle)
            except ConfigError:
                pass
            finally:
                (bundle / name).write_bytes(sound)

    fuzz(mutants(*seeds.values()), read, 100)


def test_promotions_and_signatures(bundle: Path, keys: tuple[Path, Path]) -> None:
    promoted = b"format_version: 1\nbundle: abc\ntime: x\ncriteria: {}\nfindings: []\nversions: {}\n"

    def read(data: bytes) -> None:
        for name in ("promotion.yaml", "SHA256SUMS.sig"):
            (bundle / name).write_bytes(data)
        with contextlib.suppress(ConfigError):
            certificate.check(BundleFiles.read(bundle))
        verify(BundleFiles.read(bundle), keys[1])

    fuzz(mutants(promoted, b"QUJD" * 22 + b"\n"), read, 200)


def test_records(tmp_path: Path) -> None:
    """Everything that `explain`, `promote` and `dataset convert` read of a segment that the publisher's user made."""
    writer = SegmentWriter(tmp_path, 1 << 30)
    writer.add(ticks(40), description(digest="ab" * 32), 2)
    writer.close()
    [path] = tmp_path.iterdir()
    sound = path.read_bytes()
    at = sound.rindex(b'{"format"')

    def read(data: bytes) -> None:
        path.write_bytes(data)
        reader = SegmentReader(tmp_path)
        for stretch in reader.stretches():
            assert stretch.records.dtype.names
        reader.span_ns()
        moment = moment_in(list(reader.stretches()), int(ticks(40)["time_ns"][-1]))
        if moment is not None:
            json.dumps(explain_tick(moment), default=str)
        assert all(text.isprintable() for pair in reader.broken.items() for text in pair)

    headers = mutants(sound[at:]).map(lambda end: sound[:at] + end)
    fuzz(st.one_of(mutants(sound), headers), read, 200)


def test_journals(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    throttle = OriginalThrottle("/sys/fs/bpf/tc/globals/cilium_throttle", 3, 12, 1_250_000, 2 * 10**9, "lxc1", 5)
    result = SliceOriginals("slice1", "/sys/fs/cgroup/a", 7, -1, 100_000, 1024, throttle=throttle)
    sound = Journal.of((result,), os.getpid()).dump()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        Journal.load(path)

    fuzz(mutants(sound), read, 500, JournalError)


def test_states_of_ciliums_endpoints() -> None:
    document = {"ID": 7, "IfName": "lxc7", "IfIndex": 12, "K8sNamespace": "core", "K8sPodName": "upf-7"}

    def read(data: bytes) -> None:
        result = parse_endpoint(data, 7)
        assert result is None or (result.id == 7 and result.link.isprintable() and result.ifindex > 0)

    fuzz(mutants(json.dumps(document).encode()), read, 500)


def test_types_of_maps() -> None:
    """Of the kernel, so what is wrong in them would be the kernel's mistake; and ours where we write by them."""
    strings = b"\0edt_info\0bps\0u64\0"
    number = struct.pack("=IIII", 14, 1 << 24, 8, 64)
    members = struct.pack("=III", 1, 4 << 24 | 1, 8) + struct.pack("=III", 10, 1, 0)
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, 28 + 12, 40, len(strings))
    sound = header + number + members + strings
    assert [(item.name, item.bytes) for item in Btf(sound).members(2)] == [("bps", 8)]

    def read(data: bytes) -> None:
        types = Btf(data)
        for number in range(1, 4):
            with contextlib.suppress(BtfError):
                types.members(number)

    fuzz(mutants(sound), read, 500, BtfError)


def test_evidence(tmp_path: Path) -> None:
    count(tmp_path, ticks(1000), description(digest="ab" * 32))
    path = tmp_path / "evidence" / "run-1.json"
    sound = path.read_bytes()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        evidence, left_out = EvidenceFolder(tmp_path).load("ab" * 32)
        assert (evidence.ticks == 0 and set(left_out) == {path.name}) or data.rstrip(b"\n") == sound.rstrip(b"\n")

    fuzz(mutants(sound), read, 300)


def test_rings(tmp_path: Path) -> None:
    """The file that `top`, `explain` and the publisher map: its header, documents and ticks."""
    path = tmp_path / "ticks"
    ring = TickRing(path, 2, 16)
    ring.describe(description())
    ring.note({"mode": "live"})
    reasons, knobs = ticks(1, num_slices=2)["reasons"][0], Knobs.none(2)
    for _ in range(20):
        ring.write(Tick(1, 2), Telemetry.empty(2), knobs, knobs, knobs, reasons)
    sound = path.read_bytes()
    starts = (0, 4096, 4096 + (1 << 18), len(sound) - 16 * 256)

    def read(data: bytes) -> None:
        for start in starts:
            path.write_bytes((sound[:start] + data + sound[start + len(data) :])[: len(sound)])
            with contextlib.suppress(ConfigError), contextlib.closing(TickReader(path)) as reader:
                for look in (reader.description, reader.notes, reader.delays, reader.new, lambda: reader.last(5)):
                    with contextlib.suppress(ConfigError):
                        look()

    fuzz(mutants(*(sound[start : start + 128] for start in starts)), read, 80)


def test_traces() -> None:
    """Rates from CSV, packets from captures."""
    inner = bytes.fromhex("4500003c000000004011 0000 0a3c0002 0a670002 03e807d0 0028 0000".replace(" ", "")) + bytes(32)
    outer = bytes.fromhex(
        "450000600000000040110000 0a010001 0a010002 08680868 004c 0000 34ff0044 00000001".replace(" ", "")
    )
    frame = bytes(12) + b"\x08\x00" + outer + bytes(3) + b"\x85" + bytes.fromhex("01100900") + inner
    pcap = struct.pack("<IHHIIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
    for second in range(3):
        pcap += struct.pack("<IIII", second, 5, len(frame), len(frame)) + frame
    body = struct.pack("<IIIII", 0, 0, 9, len(frame), len(frame)) + frame + bytes(-len(frame) % 4)
    blocks = [
        (0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)),
        (1, struct.pack("<HHIHHI", 1, 0, 0, 9, 1, 9)),
        (6, body),
        (6, body),
    ]
    ng = b"".join(struct.pack("<II", k, len(b) + 12) + b + struct.pack("<I", len(b) + 12) for k, b in blocks)

    def read(data: bytes) -> None:
        if is_capture(data):
            trace: Trace = read_packets(data, "f", Chosen())
        else:
            trace = next(iter(read_rates(data, "f").values()))
        assert trace.duration_s > 0
        assert trace.mean_mbps >= 0

    with contextlib.suppress(ConfigError):
        read(ng)
    assert read_packets(pcap, "f", Chosen(teid=1)).sizes.tolist() == [60] * 3
    fuzz(mutants(b"time,slice,mbps\n0,a,1\n1,a,2.5\n", pcap, ng), read, 600)


def test_yaml_of_any_kind(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        read_yaml(path)

    fuzz(mutants(b"a: {b: [1, 2.5, x, null, 2026-01-01]}\nc: &d\n  - e: *d\n"), read, 800)


HOSTILE_METRICS = [
    *("x{garbage} 1", 'x{a="1 1', 'x{a="b"c"} 1', 'x{a="1",a="2"} 1', "x 1.2.3", "x 1_0", 'x{le="low"} 1'),
    # Of others: their loops and namespaces, reserved labels, parts of their metrics, the agent's own.
    *('x{loop="0"} 1', 'x{a="1",sliceset_namespace="0"} 1', 'x{__address__="0"} 1', "# TYPE a_sum gauge"),
    *("# TYPE slicepilot_agent_loop_up gauge\nslicepilot_agent_loop_up 0", "slicepilot_agent_loop_up 0"),
    '{__name__="a",b="1"} 1',
    # Of other formats, or of none.
    *("# TYPE x nonsense", "# TYPE y info", 'x{a="\r"} 1', 'x{a="\0"} 1', "x 1 1790000000000"),
    *('x{a="1"} 5 # {b="2"} 1', "x 1e999", "# TYPE z gauge\n# TYPE x gauge\nx 2", "# HELP y \\", "# EOF"),
]


def test_metrics_of_publishers() -> None:
    """Whatever a publisher writes, the page can be read, and the other publishers' samples are all there."""
    about = "# HELP a{0} A\\\\b\\nc\n# TYPE a{0} {1}\n"
    seeds = [
        about.format("", "gauge") + 'a{slice="x,}\\"\\\\\\n",stage="y"} 1.5\na{} NaN\na -Inf\n',
        about.format("", "histogram") + 'a_bucket{le="1e-05"} 1\na_bucket{le="+Inf"} 2\na_sum 3e+06\na_count 2\n',
        about.format("_total", "counter") + "a_total 1\n" + about.format(":b", "untyped") + "a:b 1\n",
    ]
    hostile = [f"# HELP x X\n# TYPE x gauge\nx 1\n{line}\n" for line in HOSTILE_METRICS]

    def read(data: bytes) -> None:
        merged = MergedPages()
        with contextlib.suppress(ValueError):
            merged.add(data.decode(), {"loop": "evil", "sliceset_namespace": "core"})
        for number, seed in enumerate(seeds):
            merged.add(seed, {"loop": str(number), "sliceset_namespace": "core"})
        page = generate_latest(merged).decode()
        for line in page.splitlines():
            assert re.fullmatch(r"# (HELP|TYPE) [\w:]+ .*|[\w:]+\{.*\} ([0-9.e+-]+|[+-]Inf|NaN)", line), line
        samples = [sample for metric in text_string_to_metric_families(page) for sample in metric.samples]
        assert all(sample.timestamp is None and sample.exemplar is None for sample in samples)
        assert {sample.labels["loop"] for sample in samples} <= {"evil", "0", "1", "2"}
        assert {sample.labels["sliceset_namespace"] for sample in samples} == {"core"}
        assert not any(sample.name.startswith("slicepilot_agent_") for sample in samples)
        assert not any(label.startswith("__") for sample in samples for label in sample.labels)
        assert sum(sample.labels["loop"] != "evil" for sample in samples) == 9

    for page in hostile:
        read(page.encode())
    fuzz(mutants(*(seed.encode() for seed in (*seeds, *hostile))), read, 800)

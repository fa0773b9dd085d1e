"""Files of users that others have made to do harm cost a line, and little time and memory."""

from __future__ import annotations

import gzip
import json
import os
import resource
import struct
import time
from pathlib import Path

import pytest
from hypothesis import strategies as st

from slicepilot.configs import ConfigError
from slicepilot.data.own.propose import propose
from tests.attacks.test_fuzz_readers import fuzz, mutants
from tests.command import slicepilot

WIDE = b"time," + b",".join(b"c%d" % n for n in range(5000)) + b"\n" + b",".join([b"1"] * 5001) + b"\n"
DEEP = b'{"status": "success", "data": {"result": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}"
SERIES = b'{"data": {"result": [{"metric": {"pod": "%b"}, "values": [[%b, "%b"]]}]}}'
LONG = b"time,slice,metric,value\n0,a,offered_mbps,1\n0,b,delay_us,2\n1,a,offered_mbps,5e300\n"
LONG += b"".join(b"%d,b,delay_us,3\n" % n for n in range(2, 9))
PCAP = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
HOSTILE = {
    "columns.csv": WIDE,
    "deep.json": DEEP,
    "numbers.csv": b"time,slice,delay_us\n" + b"1e300,a,9e999\n" * 50,
    "digits.json": SERIES % (b"a", b"1", b"9" * 100_000),
    "integer.json": b'{"data": {"result": [{"metric": {}, "values": [[' + b"9" * 10_000 + b', "1"]]}]}}',
    "codes.csv": b"time,slice,delay_us\n" + b"1,\x1b[2J\x1b]0;owned\x07,5\n" * 50,
    "header.csv": b"time,sl\x1b[31mice,delay_us\n1,a,5\n",
    "codes.json": SERIES % (b"\\u001b[2J", b"1764000000", b"5"),
    "direction.json": SERIES % (b"\\u202eabc", b"1764000000", b"5"),
    "truncated.pcap": PCAP + struct.pack("<IIII", 1, 0, 60, 60) + bytes(20),
    "long.pcap": PCAP + struct.pack("<IIII", 1, 0, 0xFFFFFFF0, 0xFFFFFFF0),
    "blocks.pcapng": b"\x0a\x0d\x0d\x0a\xf0\xff\xff\xff\x4d\x3c\x2b\x1a" + bytes(50),
    "nothing.csv": b"",
    "nul.csv": bytes(5000),
    "line.csv": b"a,b\n" + b"x" * (3 << 20),
    "zeros.csv.gz": gzip.compress(bytes(64 << 20), 1),
    "zeros.json.gz": gzip.compress(b'{"data": [' + b"0," * (36 << 20), 1),
    "empty.json": b'{"status": "error", "error": "\\u001b[2J"}',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_line_refuses_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(HOSTILE[name])
    began_s, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ConfigError) as raised:
        propose([tmp_path / name])
    text = str(raised.value)
    assert text.isprintable(), repr(text)
    assert len(text) < 2000
    assert time.monotonic() - began_s < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


def test_links_pipes_and_files_of_nothing_are_refused_by_the_command(tmp_path: Path) -> None:
    (tmp_path / "loop.csv").symlink_to(tmp_path / "loop.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "deep.json").write_bytes(DEEP)
    for name, said in (("loop.csv", "link loop"), ("pipe.csv", "FIFO"), ("deep.json", "nested too deep")):
        done = slicepilot("dataset", "map", tmp_path / name, "--out", tmp_path / "m.yaml")
        assert done.returncode == 2
        [line] = done.stderr.splitlines()
        assert said in line
    assert not (tmp_path / "m.yaml").exists()


def test_a_single_number_beyond_measure_is_a_fault_of_its_row(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_bytes(LONG)
    assert propose([tmp_path / "long.csv"]).rows == 10


@pytest.mark.fuzz
@pytest.mark.parametrize("kind", ["table", "json", "ping", "pcap"])
def test_any_bytes_are_read_or_refused(tmp_path: Path, kind: str) -> None:
    frame = bytes(12) + b"\x08\x00" + bytes.fromhex("45000040000000004011000005060708010203040868086800" + "2c0000")
    frame += bytes.fromhex("30ff001c00000043") + bytes.fromhex(
        "4500001c000100004011000005060708010203040fa0177000080000"
    )
    record = struct.pack("<IIII", 1_764_000_000, 5, len(frame), len(frame)) + frame
    iperf3 = {"start": {}, "intervals": [{"sum": {"start": 0, "end": 1, "bits_per_second": 5e6}}], "end": {}}
    seeds = {
        "table": (LONG, b"Time;slice1 delay (ms);b_rate\n24.11.2026 10:00:00;1,5;2\n24.11.2026 10:00:01;1,5;2\n"),
        "json": (
            SERIES % (b"a", b"1764000000", b"5"),
            json.dumps(iperf3).encode(),
            b'[{"event": "start", "data": {}}, {"event": []}, {"event": "interval", "data": {"sum": {}}}]',
            b'{"labels": ["time", "user"], "data": [[1764000000, 5], [1764000001, [6, 0, 0]]]}',
        ),
        "ping": (b"[1764000001.5] 64 bytes from 10.45.0.1: icmp_seq=1 ttl=64 time=1.80 ms\n" * 3,),
        "pcap": (PCAP + record * 3,),
    }[kind]

    def read(data: bytes) -> None:
        (tmp_path / "file").write_bytes(data)
        propose([tmp_path / "file"])

    fuzz(st.one_of(mutants(*seeds), st.binary(max_size=200)), read, 40)

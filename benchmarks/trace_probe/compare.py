"""CPU time that two ways of timing every packet of a UPF take: a trace line per packet and point, matched offline, and
the probe.

    python benchmarks/trace_probe/compare.py --pps 20000 --seconds 5 --repetitions 5

Needs root, clang, and what `slicepilot testbed up` needs. Both ways measure the same UPF at N3 and behind the shared
uplink, in turns. Counted is the time of the BPF programs by the kernel's statistics, of their readers,
and of the matching.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from slicepilot.controller.system.bpf.libbpf import BpfObject, RunStats, count_run_time, run_stats
from slicepilot.controller.telemetry.attachments import Attachment
from slicepilot.controller.telemetry.layout import AT_N6, FOLDER
from slicepilot.controller.telemetry.source import KernelSource
from slicepilot.testbed.bench.upf import BenchUpf

HERE = Path(__file__).parent
# In a mount namespace of its own: tracefs need not be mounted on the machine.
READ_TRACE = "[ -e {0}/trace_pipe ] || mount -t tracefs none {0}; exec cat {0}/trace_pipe".format("/sys/kernel/tracing")


def main() -> None:
    """Measure, and print a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pps", type=int, default=20_000, help="packets per second (default 20000)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each run (default 5)")
    parser.add_argument("--repetitions", type=int, default=5, help="rounds; medians count (default 5)")
    parser.add_argument("--read-every", type=float, default=1.0, help="seconds between the probe's figures (default 1)")
    options = parser.parse_args()
    ways = {"trace": measure_trace, "probe": measure_probe}
    result: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder, BenchUpf() as upf, count_run_time():
        program = compile_trace(Path(folder))
        for _ in range(options.repetitions):
            for way, measure in ways.items():
                result[way].append(measure(upf, options, program))
    print(json.dumps(report(result, options.pps, options.seconds), indent=2))


def report(result: dict[str, list[dict[str, float]]], pps: int, seconds: float) -> dict[str, Any]:
    """Medians over the rounds; CPU in mCPU."""
    summary: dict[str, Any] = {"packets_per_s": pps, "seconds": seconds}
    for way, rounds in result.items():
        summary[way] = {key: statistics.median(item[key] for item in rounds) for key in rounds[0]}
    ratios = [
        trace["cpu_mcpu"] / probe["cpu_mcpu"] for trace, probe in zip(result["trace"], result["probe"], strict=True)
    ]
    return summary | {"times_less_cpu": statistics.median(ratios), "times_less_cpu_range": [min(ratios), max(ratios)]}


def compile_trace(folder: Path) -> Path:
    """The reference's program, compiled against the probe's headers."""
    target = folder / "trace.bpf.o"
    headers = FOLDER
    options = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", f"-I{headers}"]
    options += ["-idirafter", f"/usr/include/{os.uname().machine}-linux-gnu"]
    subprocess.run(["clang", *options, "-c", HERE / "trace.bpf.c", "-o", target], check=True)
    return target


def measure_trace(upf: BenchUpf, options: argparse.Namespace, program: Path) -> dict[str, float]:
    """Print, read into a file, match afterwards."""
    points, *_ = upf.points(tun=False)
    assert points.n6 is not None
    with tempfile.TemporaryDirectory() as folder, BpfObject(program) as loaded:
        trace = Path(folder) / "trace"
        programs = [loaded.program(name).fd for name in ("trace_n3", "trace_n6")]
        with trace.open("wb") as output:
            reader = subprocess.Popen(["unshare", "--mount", "sh", "-c", READ_TRACE], stdout=output)
            attached = [
                Attachment(point, fd, "trace", 0, tcx=False)
                for point, fd in zip((points.n3, points.n6), programs, strict=True)
            ]
            try:
                upf.send(options.pps, options.seconds)
            finally:
                for item in reversed(attached):
                    item.detach()
                reader.kill()
                _, _, usage = os.wait4(reader.pid, 0)
        in_kernel = sum((run_stats(fd) for fd in programs), RunStats())
        begun = time.monotonic()
        matched = json.loads(
            subprocess.run([sys.executable, HERE / "match.py", trace], capture_output=True, check=True).stdout
        )
        matching_s = time.monotonic() - begun
    return figures(matched, in_kernel, usage.ru_utime + usage.ru_stime, matching_s, options.seconds)


def measure_probe(upf: BenchUpf, options: argparse.Namespace, program: Path) -> dict[str, float]:
    """Match in the kernel, read the figures now and then. The scheduler's programs are not counted: the reference has
    none."""
    del program
    with KernelSource(upf.points(tun=False), timed_per_s=0) as source:
        stop, reading_s = threading.Event(), [0.0]

        def read() -> None:
            while not stop.wait(options.read_every):
                source.measure()
            reading_s[0] = time.thread_time()

        reader = threading.Thread(target=read)
        reader.start()
        upf.send(options.pps, options.seconds)
        stop.set()
        reader.join()
        in_kernel = sum(source.packets.cost().values(), RunStats())
        delays = source.packets.slices[0]["delay"][AT_N6]
        matched = {"matched": int(delays.sum()), "missed": int(source.packets.slices[0]["exit"][AT_N6]["missed"])}
    return figures(matched, in_kernel, reading_s[0], 0.0, options.seconds)


def figures(
    matched: dict[str, int], in_kernel: RunStats, reading_s: float, matching_s: float, seconds: float
) -> dict[str, float]:
    """CPU of the parts, per second of traffic."""
    parts_s = {"programs": 1e-9 * in_kernel.run_time_ns, "reading": reading_s, "matching": matching_s}
    return {
        "matched": matched["matched"],
        "missed": matched["missed"],
        "ns_per_packet_and_point": in_kernel.run_time_ns / max(in_kernel.runs, 1),
        "cpu_mcpu": 1e3 * sum(parts_s.values()) / seconds,
        **{f"{part}_mcpu": 1e3 * value / seconds for part, value in parts_s.items()},
    }


if __name__ == "__main__":
    main()

"""``slicepilot bench probe``: what measuring every packet costs, on a testbed made for the purpose."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .output import console, print_json, progress_bar

if TYPE_CHECKING:
    from ...testbed.testbed import Testbed
    from ..telemetry.points import SlicePoints

PACKET_BYTES = 350
UPLINK_MBPS = 20_000.0  # no bottleneck
SATURATING_PPS = 450_000  # more than one UPF forwards on one CPU
LOAD_PRIORITY = 30
WARM_UP_S, DRAIN_S = 0.3, 0.2
# Where the saturated UPF is measured: nowhere, at the points the control loop uses, at all.
MODES = {"without": (), "loop": ("n3", "n6"), "all": ("n3", "tun", "n6")}


def probe(
    pps: Annotated[
        int, typer.Option(min=1000, max=1_000_000, help="Packets per second while costs are taken.")
    ] = 100_000,
    seconds: Annotated[float, typer.Option(min=0.5, max=60, help="How long each repetition runs.")] = 2.0,
    repetitions: Annotated[int, typer.Option(min=1, max=100, help="Repetitions; the median counts.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time per packet and point, share of packets matched, and throughput that a saturated UPF loses.

    Needs root. Brings up a testbed of its own and takes it down again. The saturated UPF runs without the probe, with
    N3 and N6, and with all points in turns; the load has a CPU of its own where there are two.

    Example: [bold]slicepilot bench probe --repetitions 15[/bold]
    """
    try:
        result = _measure(pps, seconds, repetitions)
    except (RuntimeError, OSError) as error:
        typer.echo(f"slicepilot: error: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        print_json(result)
        return
    console.print(
        f"at {result['packets_per_s']:,.0f} packets/s (with {result['ns_statistics']:.0f} ns that counting takes)"
    )
    for point, cost_ns in result["ns_per_packet"].items():
        console.print(f"  {point:3} {cost_ns:6.0f} ns a packet")
    console.print(f"  matched at N6: {100 * result['match_ratio']:.4f}%")
    console.print(f"saturated at {result['saturated_packets_per_s']['without']:,.0f} packets/s")
    for mode, name in (("throughput_loss_pct", "N3 and N6"), ("throughput_loss_all_points_pct", "and TUN")):
        low, high = result[f"{mode}_range"]
        console.print(f"  {name:9} loses {result[mode]:5.2f}% (quartiles {low:.2f} to {high:.2f})")


def _measure(pps: int, seconds: float, repetitions: int) -> dict[str, Any]:
    from ...testbed.spec import TestbedSpec
    from ...testbed.testbed import Testbed

    spec = TestbedSpec(uplink_mbps=UPLINK_MBPS, burn_us=0.0, ues=2, name=f"b{os.getpid() % 10_000_000}")
    with contextlib.ExitStack() as stack:
        testbed = Testbed.up(spec)
        stack.callback(testbed.down)
        stack.enter_context(_unread_sink(testbed))
        progress = stack.enter_context(progress_bar())
        task = progress.add_task("cost per packet", total=1 + repetitions)
        result = _costs(testbed, pps, seconds)
        progress.update(task, advance=1, description="saturated UPF")
        rates: dict[str, list[float]] = {mode: [] for mode in MODES}
        for _ in range(repetitions):
            for mode, points in MODES.items():
                rates[mode].append(_saturated_rate(testbed, points, seconds))
            progress.advance(task)
    return result | _losses(rates)


def _points(testbed: Testbed, wanted: tuple[str, ...]) -> SlicePoints:
    """Of the first slice, with N6 behind the shared uplink."""
    from ...testbed.layout import netns_path
    from ..telemetry.points import NetPoint, SlicePoints

    plan = testbed.layout.slices[0]
    here = netns_path(plan.netns)
    return SlicePoints(
        plan.name,
        NetPoint(here, "n3"),
        NetPoint(here, "tun") if "tun" in wanted else None,
        NetPoint(netns_path(testbed.layout.data_network), "n6"),
    )


def _costs(testbed: Testbed, pps: int, seconds: float) -> dict[str, Any]:
    """Cost per packet by the kernel's own statistics, and the match ratio."""
    from ..telemetry.layout import AT_N6
    from ..telemetry.libbpf import count_run_time
    from ..telemetry.packets import PacketProbe

    with PacketProbe([_points(testbed, MODES["all"])]) as probe:
        with count_run_time():
            sent = _send(testbed, pps, seconds)
            time.sleep(DRAIN_S)
            costs = probe.cost()
        n6, delays = probe.slices[0]["exit"][AT_N6], probe.slices[0]["delay"][AT_N6]
        matched, missed = int(delays.sum()), int(n6["missed"])
    if not matched:
        raise RuntimeError("bench probe: the UPF let nothing through")
    return {
        "packets_per_s": sent / seconds,
        "ns_per_packet": {point: costs[point].run_time_ns / max(costs[point].runs, 1) for point in MODES["all"]},
        "ns_statistics": _statistics_cost_ns(),
        "match_ratio": matched / (matched + missed),
    }


def _statistics_cost_ns() -> float:
    """What the kernel counts for a program that does next to nothing: how much of a cost is the counting itself."""
    from ..telemetry.libbpf import BpfObject, count_run_time, run_stats
    from ..telemetry.objects import FOLDER

    with BpfObject(FOLDER / "stub.bpf.o", {".rodata.stub": bytes(4)}) as loaded, count_run_time():
        program = loaded.program("stub")
        program.test_run(bytes(64), repeat=100_000)
        stats = run_stats(program.fd)
    return stats.run_time_ns / max(stats.runs, 1)


def _saturated_rate(testbed: Testbed, points: tuple[str, ...], seconds: float) -> float:
    """Packets per second that come through when more are offered, measured at these points or not at all."""
    from ..telemetry.packets import PacketProbe

    probe = PacketProbe([_points(testbed, points)]) if points else contextlib.nullcontext()
    with probe:
        before = _received(testbed)
        sent = _send(testbed, SATURATING_PPS, seconds)
        time.sleep(DRAIN_S)
        through = _received(testbed) - before
    if through > 0.98 * sent:
        raise RuntimeError(f"bench probe: the UPF forwards all of {sent / seconds:,.0f} packets/s: it is not saturated")
    return through / seconds


def _send(testbed: Testbed, pps: int, seconds: float) -> int:
    """Let the load generator send to the first slice's UPF; returns how many packets it sent."""
    from ...testbed.layout import QFI, SINK_ADDRESS, SINK_PORT
    from ...testbed.processes import ProgramError, binary

    plan = testbed.layout.slices[0]
    flow = (
        f"kind=cbr,rate={8e-6 * pps * PACKET_BYTES:g},bytes={PACKET_BYTES},from={plan.n3_ran},to={plan.n3_upf},"
        f"teid={plan.teid(0)},qfi={QFI},ue={plan.ue(0)},dst={SINK_ADDRESS}:{SINK_PORT}"
    )
    arguments: list[str | Path] = [
        binary("load"),
        f"--flow={flow}",
        f"--duration={seconds:g}s",
        "--json",
        f"--rt={LOAD_PRIORITY}",
        "--cpu=0",
    ]
    program = testbed.start("load", testbed.layout.ran, arguments)
    while program.process.alive:
        time.sleep(0.01)
    report = program.stop()
    if not report.get("flows"):
        raise ProgramError(f"load: no report; see {program.log}")
    return int(report["flows"][0]["packets"])


def _received(testbed: Testbed) -> int:
    """Packets that have come to the data network."""
    from ...testbed.layout import netns_path
    from ..actuators.rtnetlink import RouteSocket
    from ..telemetry import tc

    with closing(RouteSocket(netns_path(testbed.layout.data_network))) as route:
        return tc.links(route)["n6"].received


@contextlib.contextmanager
def _unread_sink(testbed: Testbed) -> Iterator[None]:
    """A socket that takes packets and is never read: nothing answers "port unreachable", and nothing else runs."""
    from ...testbed.layout import SINK_ADDRESS, SINK_PORT, netns_path
    from ..telemetry.namespaces import inside

    def make() -> socket.socket:
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sink.bind((SINK_ADDRESS, SINK_PORT))
        return sink

    with closing(inside(netns_path(testbed.layout.data_network), make)):
        yield


def _losses(rates: dict[str, list[float]]) -> dict[str, Any]:
    """Throughput lost against the run before it without the probe, in percent: median and quartiles."""
    found: dict[str, Any] = {
        "saturated_packets_per_s": {mode: statistics.median(values) for mode, values in rates.items()}
    }
    for mode, name in (("loop", "throughput_loss_pct"), ("all", "throughput_loss_all_points_pct")):
        lost = sorted(100 * (1 - one / base) for one, base in zip(rates[mode], rates["without"], strict=True))
        found[name] = statistics.median(lost)
        found[f"{name}_range"] = [lost[len(lost) // 4], lost[-1 - len(lost) // 4]]
    return found

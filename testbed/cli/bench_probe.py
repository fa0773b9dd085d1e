"""``slicepilot bench probe``: what measuring every packet costs, on a testbed made for the purpose."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slicepilot.cli.schemas.bench import ProbeBench
from slicepilot.cli.shared.output import console, print_json, progress_bar

if TYPE_CHECKING:
    from slicepilot.testbed.bench.upf import BenchUpf

SATURATING_PPS = 600_000  # more than a UPF forwards on one CPU
COSTS_S = 2.0
WARM_UP_S = 0.9  # until the load is there and the probe has seen how much it is
READ_EVERY_S = 0.05
# How the saturated UPF is measured: not at all; as by the control loop, at N3 and N6; every packet, at the TUN device
# too, and by flow.
MODES = ("without", "loop", "all")


def probe(
    pps: Annotated[
        int, typer.Option(min=1000, max=1_000_000, help="Packets per second while the costs are measured.")
    ] = 100_000,
    seconds: Annotated[float, typer.Option(min=0.2, max=60, help="Duration of each run.")] = 0.5,
    repetitions: Annotated[int, typer.Option(min=1, max=100, help="Number of rounds with the saturated UPF.")] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the cost of the probe per packet, its match ratio, and the throughput that a saturated UPF loses.

    Needs root. Starts its own testbed and removes it. The saturated UPF runs in turns without the probe, with N3
    and N6, and with all points; the load uses the first CPU, the UPF the others.

    Example: [bold]slicepilot bench probe --repetitions 50[/bold]
    """
    try:
        result = _measure(pps, seconds, repetitions)
    except (RuntimeError, OSError) as error:
        typer.echo(f"slicepilot: error: {error}", err=True)
        raise typer.Exit(1) from error
    if as_json:
        print_json(result, ProbeBench)
        return
    console.print(
        f"at {result['packets_per_s']:,.0f} packets/s (with {result['ns_statistics']:.0f} ns that counting takes)"
    )
    for point, cost_ns in result["ns_per_packet"].items():
        console.print(f"  {point:3} {cost_ns:6.0f} ns a packet")
    console.print(f"  matched at N6: {100 * result['match_ratio']:.4f}%")
    console.print(
        f"saturated at {result['saturated_packets_per_cpu_s']['without']:,.0f} packets per second of CPU time, "
        f"{100 * result['saturated_share_through']:.0f}% of what is offered"
    )
    for mode, name in (("throughput_loss_pct", "N3 and N6"), ("throughput_loss_all_pct", "all, by flow")):
        low, high = result[f"{mode}_range"]
        console.print(f"  {name:12} loses {result[mode]:5.2f}% (quartiles {low:.2f} to {high:.2f})")


def _measure(pps: int, seconds: float, repetitions: int) -> dict[str, Any]:
    from slicepilot.testbed.bench.upf import bench_upf

    with bench_upf() as upf, upf.unread(), progress_bar() as progress:
        task = progress.add_task("cost per packet", total=1 + repetitions)
        result = _costs(upf, pps, max(seconds, COSTS_S))
        progress.update(task, advance=1, description="saturated UPF")
        costs_ns: dict[str, list[float]] = {mode: [] for mode in MODES}
        shares = []
        for _ in range(repetitions):
            for mode in MODES:
                cost_ns, share = _saturated(upf, mode, seconds)
                costs_ns[mode].append(cost_ns)
                shares.append(share)
            progress.advance(task)
    return result | _losses(costs_ns) | {"saturated_share_through": statistics.median(shares)}


def _costs(upf: BenchUpf, pps: int, seconds: float) -> dict[str, Any]:
    """Cost per packet by the kernel's own statistics, and the match ratio."""
    from slicepilot.controller.system.bpf.libbpf import count_run_time
    from slicepilot.controller.telemetry.layout import AT_N6
    from slicepilot.controller.telemetry.packets import PacketProbe

    with PacketProbe(upf.points(tun=True), by_flow=True) as probe:
        with count_run_time():
            sent = upf.send(pps, seconds)["packets"]
            costs = probe.cost()
        matched = int(probe.slices[0]["delay"][AT_N6].sum())
        missed = int(probe.slices[0]["exit"][AT_N6]["missed"])
    if not matched:
        raise RuntimeError("bench probe: the UPF let nothing through")
    return {
        "packets_per_s": sent / seconds,
        "ns_per_packet": {point: costs[point].run_time_ns / max(costs[point].runs, 1) for point in ("n3", "tun", "n6")},
        "ns_statistics": _statistics_cost_ns(),
        "match_ratio": matched / (matched + missed),
    }


def _statistics_cost_ns() -> float:
    """The kernel's run time of a program that does next to nothing, which is the cost of the counting itself."""
    from slicepilot.controller.system.bpf.libbpf import BpfObject, count_run_time, run_stats
    from slicepilot.controller.telemetry.layout import FOLDER

    with BpfObject(FOLDER / "stub.bpf.o", {".rodata.stub": bytes(4)}) as loaded, count_run_time():
        program = loaded.program("slicepilot_hook")
        program.test_run(bytes(64), repeat=100_000)
        stats = run_stats(program.fd)
    return stats.run_time_ns / max(stats.runs, 1)


def _saturated(upf: BenchUpf, mode: str, seconds: float) -> tuple[float, float]:
    """CPU time in ns that the UPF takes for each packet that comes through, when it is offered more than it can
    forward; and the share of packets that come through.

    A saturated UPF's throughput is what its CPU allows, whatever else runs on it.
    """
    with _measured(upf, mode), ThreadPoolExecutor(1) as pool:
        sending = pool.submit(upf.send, SATURATING_PPS, WARM_UP_S + seconds)
        time.sleep(WARM_UP_S)
        before, used_s = upf.received(), upf.cpu_s()
        time.sleep(0.9 * seconds)
        through, used_s = upf.received() - before, upf.cpu_s() - used_s
        sent = sending.result()["packets"] * 0.9 * seconds / (WARM_UP_S + seconds)
    if not through:
        raise RuntimeError("bench probe: the UPF let nothing through")
    return 1e9 * used_s / through, through / sent


@contextlib.contextmanager
def _measured(upf: BenchUpf, mode: str) -> Iterator[None]:
    """Measure within this context, with regular reads: the probe only adapts its sampling when it is read."""
    from slicepilot.controller.telemetry.packets import PacketProbe
    from slicepilot.controller.telemetry.source import TIMED_PER_S
    from slicepilot.env.telemetry import Telemetry

    if mode == "without":
        yield
        return
    everything = mode == "all"
    timed_per_s = 0 if everything else TIMED_PER_S
    with PacketProbe(upf.points(tun=everything), timed_per_s=timed_per_s, by_flow=everything) as probe:
        stop, telemetry = threading.Event(), Telemetry.empty(len(probe.points))

        def read() -> None:
            while not stop.wait(READ_EVERY_S):
                probe.window.read(time.monotonic_ns(), telemetry)

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            stop.set()
            reader.join()


def _losses(costs_ns: dict[str, list[float]]) -> dict[str, Any]:
    """Throughput lost, in percent: by lower quartiles, since what else runs on the machine only ever adds to a cost;
    the range is that of the quartiles over rounds."""
    quartiles = {mode: sorted(values)[len(values) // 4] for mode, values in costs_ns.items()}
    results: dict[str, Any] = {"saturated_packets_per_cpu_s": {mode: 1e9 / cost for mode, cost in quartiles.items()}}
    for mode, name in (("loop", "throughput_loss_pct"), ("all", "throughput_loss_all_pct")):
        rounds = sorted(100 * (1 - base / cost) for base, cost in zip(costs_ns["without"], costs_ns[mode], strict=True))
        results[name] = 100 * (1 - quartiles["without"] / quartiles[mode])
        results[f"{name}_range"] = [rounds[len(rounds) // 4], rounds[-1 - len(rounds) // 4]]
    return results
